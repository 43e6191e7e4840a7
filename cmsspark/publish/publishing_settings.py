"""The ``publishing`` part of the settings: defaults of ``cmsspark publish``."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import msgspec

from cmsspark.base.errors import SettingsError
from cmsspark.settings.settings import Settings

Text = Annotated[str, msgspec.Meta(min_length=1)]


class PublishingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys under ``publishing``.

    ``amq`` and ``spool`` are paths; :func:`publishing_settings` makes them absolute. ``patience``: seconds without any
    confirmed batch before the command gives up. ``max_refused`` and ``max_refused_share``: see
    :class:`cmsspark.publish.publisher.RetryPolicy`. ``require_tls``: never send a password unencrypted to another host.
    ``verify_url``, ``verify_login``, ``verify_index``: defaults of ``--verify``, ``--verify-login`` and ``--index``.
    ``min_distinct_users``: fewer distinct users than this, but not 0, are withheld; None: none are. ``user_datasets``:
    whether datasets of the tier USER, whose names carry accounts, are published.
    ``http_metadata``, ``http_top_level``: where documents over HTTP have producer, type, type_prefix, timestamp, _id.
    """

    sink: Text | None = None
    amq: Text | None = None
    spool: Text | None = None
    producer: Text | None = None
    type: Text | None = None
    patience: Annotated[float, msgspec.Meta(gt=0)] = 300.0
    max_refused: Annotated[int, msgspec.Meta(ge=1)] = 20
    max_refused_share: Annotated[float, msgspec.Meta(ge=0, le=1)] = 0.1
    require_tls: bool = False
    verify_url: Text | None = None
    verify_login: Text | None = None
    verify_index: Text | None = None
    min_distinct_users: Annotated[int, msgspec.Meta(ge=2)] | None = None
    user_datasets: bool = True
    http_metadata: bool = True
    http_top_level: bool = True


def publishing_settings(settings: Settings) -> PublishingSettings:
    """Return the checked ``publishing`` part. Raises SettingsError (78) with file and line."""
    section = settings.section(PublishingSettings, "publishing")
    if not (section.http_metadata or section.http_top_level):
        raise SettingsError(
            "a document over HTTP needs its producer and type",
            where=settings.where("publishing", "http_top_level"),
            found="http_metadata and http_top_level both false",
        )
    paths = {name: _path(settings, getattr(section, name)) for name in ("amq", "spool", "verify_login")}
    return msgspec.structs.replace(section, **paths)


def _path(settings: Settings, text: str | None) -> str | None:
    """Return a path of the settings; relative ones start at the settings file's folder."""
    return None if text is None else str(settings.folder / Path(text).expanduser())
