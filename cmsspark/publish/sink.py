"""The interface of sinks: where a batch is sent, and how a sink reports what became of it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated, Any, Protocol

import msgspec

from cmsspark.base.errors import NotAllowed, SettingsError
from cmsspark.publish.batch_log import Batch
from cmsspark.settings.settings import Settings


class SendError(Exception):
    """A batch or a connection failed.

    ``in_doubt``: the batch may have been delivered all the same; otherwise nothing of it was.
    """

    def __init__(self, reason: str, *, in_doubt: bool = False) -> None:
        super().__init__(reason)
        self.reason = reason
        self.in_doubt = in_doubt


class RetryableError(SendError):
    """Another attempt may succeed. ``retry_after``: seconds that the destination asks us to wait."""

    def __init__(self, reason: str, *, in_doubt: bool = False, retry_after: float = 0.0) -> None:
        super().__init__(reason, in_doubt=in_doubt)
        self.retry_after = retry_after


class RejectedError(SendError):
    """The destination refuses the content of this batch: sending the same bytes again
    does not help.
    """


class ForbiddenError(NotAllowed):
    """The destination does not let us publish (77): no retry cures that. ``in_doubt``
    as in SendError.
    """

    def __init__(self, problem: str, *, in_doubt: bool = False, **details: Any) -> None:
        super().__init__(problem, **details)
        self.in_doubt = in_doubt


class Sink(Protocol):
    """A destination that confirms.

    ``where`` names the sink for people (without secrets), ``outbox_name`` its folder in
    the outbox. A sink whose ``outbox_name`` writes something has a ``known_outbox``
    that returns the same name and writes nothing, or None if there is none yet.
    ``open`` and ``send`` raise SendError, or ForbiddenError (77) for what no retry
    cures; ``send`` returns only when the whole batch is confirmed. While it waits for
    the confirmation it may call ``meanwhile``, which hands the next batch to ``stage``:
    the sink may write it ahead, uncommitted. By default nothing is written ahead or
    open between batches.
    """

    where: str

    def outbox_name(self, state_dir: Path) -> str: ...
    def known_outbox(self, state_dir: Path) -> str | None:
        return self.outbox_name(state_dir)

    def open(self) -> None: ...
    def send(
        self, batch: Batch, documents: Sequence[bytes], meanwhile: Callable[[], None]
    ) -> None: ...
    def stage(self, batch: Batch, documents: Sequence[bytes]) -> None:
        return None

    def close(self) -> None:
        return None


Text = Annotated[str, msgspec.Meta(min_length=1)]


class PublishingSettings(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """The keys under ``publishing``.

    ``amq`` and ``spool`` are paths; :func:`publishing_settings` makes them absolute.
    ``patience``: seconds without any confirmed batch before the command gives up.
    ``max_refused`` and ``max_refused_share``: see
    :class:`cmsspark.publish.publisher.RetryPolicy`. ``require_tls``: never send a
           password unencrypted to another host. ``verify_url``, ``verify_login``,
           ``verify_index``: defaults of ``--verify``, ``--verify-login`` and
           ``--index``. ``min_distinct_users``: fewer distinct users than this, but not
           0, are withheld; None: none are. ``user_datasets``: whether datasets of the
           tier USER, whose names carry accounts, are published. ``http_metadata``,
           ``http_top_level``: where documents over HTTP have producer, type,
           type_prefix, timestamp, _id.
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
            "documents over HTTP would have no producer and type",
            where=settings.where("publishing", "http_top_level"),
            found="http_metadata and http_top_level both false",
        )
    # Relative paths start at the settings file's folder.
    paths = {
        name: str(settings.folder / Path(text).expanduser())
        for name in ("amq", "spool", "verify_login")
        if (text := getattr(section, name)) is not None
    }
    return msgspec.structs.replace(section, **paths)


class SinkOptions(msgspec.Struct, frozen=True):
    """What a sink may need to know beside its credentials.

    ``spool``: the folder of the file sink. ``type`` and ``producer``: of the documents.
    ``settings``: the ``publishing`` part of the settings; ``log`` receives a line for
    each problem waited out.
    """

    table: str
    period: str
    producer: str
    type: str
    spool: Path
    settings: PublishingSettings = msgspec.field(default_factory=PublishingSettings)
    log: Callable[[str], None] = lambda text: None
