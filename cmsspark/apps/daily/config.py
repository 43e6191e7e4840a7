"""The ``daily`` section of the settings: which jobs, how many days, what to wait for,
whom to notify.
"""

from __future__ import annotations

import os
from collections.abc import Mapping
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Annotated, Literal, TypeVar

import msgspec

from cmsspark.apps.daily.alarms import Argument, Login, Mail, Push
from cmsspark.apps.daily.planner import POLICIES
from cmsspark.apps.daily.readiness import Rules
from cmsspark.base.errors import SettingsError, UsageError
from cmsspark.settings.http_client import LOOPBACK, HttpAddress
from cmsspark.settings.settings import Settings
from cmsspark.sources.registry import STREAMS
from cmsspark.store.day_states import DEFAULT_DAYS
from cmsspark.store.job_index import Job, find_job

_AtLeastOne = Annotated[int, msgspec.Meta(ge=1)]
_Target = TypeVar("_Target", bound=Login)

_Sources = msgspec.defstruct(
    "_Sources",
    [(stream, Literal[POLICIES] | None, None) for stream in STREAMS],
    forbid_unknown_fields=True,
    frozen=True,
)


class _Section(Rules, forbid_unknown_fields=True, frozen=True):
    """The section as it is written, with its defaults."""

    jobs: tuple[Argument, ...] = ("data_aggregation",)
    days: _AtLeastOne = DEFAULT_DAYS
    publish: bool | None = None
    parallel: _AtLeastOne = 1
    attempts: _AtLeastOne = 3
    sources: _Sources = _Sources()  # type: ignore[valid-type]  # made of the streams
    run_spark: tuple[Argument, ...] = ()
    metrics: str | None = None
    mail: Mail | None = None
    push: Push | None = None
    pushgateway: str | None = None


@dataclass(frozen=True)
class Targets:
    """Where it is reported how a daily ended. ``pushgateway``: the address of a
    Pushgateway that takes the metrics of CMS's cron jobs, begin and end.
    """

    metrics: Path | None = None
    mail: Mail | None = None
    push: Push | None = None
    pushgateway: str | None = None


@dataclass(frozen=True, kw_only=True)
class DailyConfig(Targets):
    """What ``cmsspark daily`` does. ``days``: how far back it looks. ``publish``:
    whether stored days are published. ``parallel``: days at once. ``attempts``: failed
    runs of the same inputs before a day is given up. ``options``: of run_spark itself.
    ``policies``: by source, one of ``POLICIES``.
    """

    jobs: tuple[Job, ...]
    days: int
    publish: bool
    parallel: int
    rules: Rules
    policies: Mapping[str, str]
    options: tuple[str, ...]
    attempts: int = 3


def daily_config(settings: Settings) -> DailyConfig:
    """Return the ``daily`` section of the settings, checked. Raises SettingsError (78)
    with the key's line.
    """
    section = settings.section(_Section, "daily")
    policies = msgspec.structs.asdict(section.sources)
    return DailyConfig(
        jobs=tuple(_job(settings, str(name)) for name in section.jobs),
        days=section.days,
        publish=bool(settings.publishing) if section.publish is None else section.publish,
        parallel=section.parallel,
        rules=msgspec.convert(section, Rules, from_attributes=True),
        policies={stream: policy for stream, policy in policies.items() if policy is not None},
        options=tuple(str(argument) for argument in section.run_spark),
        metrics=settings.folder / section.metrics if section.metrics else None,
        mail=_mail(settings, section.mail) if section.mail else None,
        push=_push(settings, section.push) if section.push else None,
        pushgateway=_pushgateway(settings, section.pushgateway),
        attempts=section.attempts,
    )


def load_targets(settings: Settings) -> Targets:
    """Return the targets of the settings, each by itself: an error elsewhere keeps no mail back."""
    targets = {}
    for name in ("metrics", "mail", "push", "pushgateway"):
        if name in settings.daily or name == "pushgateway":
            chosen = {name: settings.daily[name]} if name in settings.daily else {}
            alone = replace(settings, daily={"jobs": [], **chosen})
            with suppress(SettingsError):
                targets[name] = getattr(daily_config(alone), name)
    return Targets(**targets)


def _job(settings: Settings, name: str) -> Job:
    """Return a job of which each day has a result of its own."""
    where = settings.where("daily", "jobs")
    try:
        job = find_job(name)
    except UsageError as error:
        raise SettingsError(error.problem, where=where, found=error.found) from None
    if not job.tables or job.of_periods or job.is_day_optional:
        raise SettingsError(
            "daily.jobs names jobs that work on a day",
            where=where,
            found=name,
            next_step="daily publishes by itself (`publish: true`); periods are a line of their own in cron",
        )
    return job


def _mail(settings: Settings, section: Mail) -> Mail:
    is_open = section.security == "none" and section.server not in LOOPBACK
    return _with_login(settings, section, "mail", is_open)


def _push(settings: Settings, section: Push) -> Push:
    try:
        address = HttpAddress.from_url(section.url)
    except ValueError:
        raise SettingsError(
            "push needs `url`: http(s)://HOST:PORT/metrics/job/NAME, without a password in it",
            where=settings.where("daily", "push"),
        ) from None
    return _with_login(settings, section, "push", address.is_exposed)


def _pushgateway(settings: Settings, url: str | None) -> str | None:
    """Return the Pushgateway of the settings, or of PUSHGATEWAY_URL, which CMS's cron
    jobs have.
    """
    chosen = url or os.environ.get("PUSHGATEWAY_URL")
    if not chosen:
        return None
    try:
        HttpAddress.from_url(f"{chosen.rstrip('/')}/metrics")
    except ValueError:
        raise SettingsError(
            "pushgateway has the form http(s)://HOST:PORT, without a password in it",
            where=settings.where("daily", "pushgateway") if url else "PUSHGATEWAY_URL",
            found=chosen,
        ) from None
    return chosen.rstrip("/")


def _with_login(settings: Settings, section: _Target, name: str, is_open: bool) -> _Target:
    """Return the target with its paths resolved; ``is_open``: the connection is not encrypted."""
    if (section.user is None) != (section.password_file is None):
        raise SettingsError(
            "`user` and `password_file` go together", where=settings.where("daily", name)
        )
    if is_open and section.user is not None:
        raise SettingsError(
            f"a password goes over TLS only, and {name} has none",
            where=settings.where("daily", name),
            next_step="use `security: starttls` or `tls`" if name == "mail" else "use https",
        )
    paths = {"password_file": section.password_file, "ca": section.ca}
    resolved = {
        key: str(settings.folder / path) for key, path in paths.items() if path is not None
    }
    return msgspec.structs.replace(section, **resolved)
