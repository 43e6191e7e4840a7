"""What ``cmsspark daily`` is told by the settings: which jobs, how many days, what to wait for, whom to tell."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Any, Final
from urllib.parse import urlsplit

from cmsspark.errors import SettingsError, UsageError
from cmsspark.jobs import Job, find_job
from cmsspark.jobs.plan import POLICIES
from cmsspark.runs.alarms import PORTS, Mail, Push
from cmsspark.runs.readiness import Rules
from cmsspark.settings import Settings
from cmsspark.sources.registry import STREAMS

_NUMBERS: Final = tuple(field.name for field in fields(Rules))
_KEYS: Final[Mapping[str, type | tuple[type, ...]]] = {
    "jobs": list,
    "days": int,
    "publish": bool,
    "parallel": int,
    "sources": dict,
    "run_spark": list,
    "metrics": str,
    "mail": dict,
    "push": dict,
    **dict.fromkeys(_NUMBERS, (int, float)),
}
_SECRET: Final[Mapping[str, type]] = {"user": str, "password_file": str, "ca": str}
_MAIL: Final[Mapping[str, type]] = {"to": list, "from": str, "server": str, "port": int, "security": str, **_SECRET}
_PUSH: Final[Mapping[str, type]] = {"url": str, **_SECRET}
_LOOPBACK: Final = ("localhost", "127.0.0.1", "::1")


@dataclass(frozen=True)
class Morning:
    """``days``: how far back daily looks. ``options``: of run_spark itself. ``policies``: by source."""

    jobs: tuple[Job, ...]
    days: int
    publish: bool
    parallel: int
    rules: Rules
    policies: Mapping[str, str]
    options: tuple[str, ...]
    metrics: Path | None
    mail: Mail | None
    push: Push | None


def morning(settings: Settings) -> Morning:
    """The ``daily`` part of the settings, checked. Raises SettingsError (78) with the key's line."""
    given = settings.daily
    _check(settings, given, _KEYS, "daily")
    for key in ("days", "parallel"):
        if given.get(key, 1) < 1:
            raise _wrong(settings, given[key], "daily", key)
    for key in _NUMBERS:
        if given.get(key, 0) < 0:
            raise _wrong(settings, given[key], "daily", key)
    policies = given.get("sources", {})
    for source, policy in policies.items():
        if source not in STREAMS or policy not in POLICIES:
            raise SettingsError(
                f"daily.sources names {', '.join(STREAMS)}, each with one of {', '.join(POLICIES)}",
                where=settings.where("daily", "sources", source),
                found=f"{source}: {policy}",
            )
    metrics = given.get("metrics")
    return Morning(
        jobs=tuple(_job(settings, str(name)) for name in given.get("jobs", ["data_aggregation"])),
        days=given.get("days", 7),
        publish=given.get("publish", bool(settings.publishing)),
        parallel=given.get("parallel", 1),
        rules=Rules(**{key: given[key] for key in _NUMBERS if key in given}),
        policies=policies,
        options=tuple(str(word) for word in given.get("run_spark", ())),
        metrics=_base(settings) / metrics if metrics else None,
        mail=_mail(settings, given["mail"]) if given.get("mail") else None,
        push=_push(settings, given["push"]) if given.get("push") else None,
    )


def _job(settings: Settings, name: str) -> Job:
    """A job of which each day has a result of its own."""
    where = settings.where("daily", "jobs")
    try:
        job = find_job(name)
    except UsageError as error:
        raise SettingsError(error.wanted, where=where, found=error.found) from None
    if not job.tables or job.of_periods:
        raise SettingsError(
            "daily.jobs names jobs that work on a day",
            where=where,
            found=name,
            next_step="daily publishes by itself (`publish: true`); periods are a line of their own in cron",
        )
    return job


def _mail(settings: Settings, given: Mapping[str, Any]) -> Mail:
    _check(settings, given, _MAIL, "daily", "mail")
    if not given.get("to") or not given.get("from"):
        raise SettingsError("mail needs `to`, a list, and `from`", where=settings.where("daily", "mail"))
    if given.get("security", "none") not in PORTS:
        raise _wrong(settings, given["security"], "daily", "mail", "security")
    is_open = given.get("security", "none") == "none" and given.get("server", "localhost") not in _LOOPBACK
    told = {key: given[key] for key in ("server", "port", "security") if key in given}
    return Mail(tuple(map(str, given["to"])), given["from"], **told, **_secret(settings, given, "mail", is_open))


def _push(settings: Settings, given: Mapping[str, Any]) -> Push:
    _check(settings, given, _PUSH, "daily", "push")
    parts = urlsplit(given.get("url", ""))
    if parts.scheme not in ("http", "https") or not parts.hostname or parts.username or parts.query:
        raise SettingsError(
            "push needs `url`: http(s)://HOST:PORT/metrics/job/NAME, without a password in it",
            where=settings.where("daily", "push"),
        )
    is_open = parts.scheme == "http" and parts.hostname not in _LOOPBACK
    return Push(given["url"], **_secret(settings, given, "push", is_open))


def _secret(settings: Settings, given: Mapping[str, Any], name: str, is_open: bool) -> dict[str, Any]:
    """How to log in; ``is_open``: the way there is not encrypted."""
    if ("user" in given) != ("password_file" in given):
        raise SettingsError("`user` and `password_file` go together", where=settings.where("daily", name))
    if is_open and "user" in given:
        raise SettingsError(
            f"a password goes over TLS only, and {name} has none",
            where=settings.where("daily", name),
            next_step="use `security: starttls` or `tls`" if name == "mail" else "use https",
        )
    files = {key: _base(settings) / given[key] for key in ("password_file", "ca") if key in given}
    return {**files, **({"user": given["user"]} if "user" in given else {})}


def _base(settings: Settings) -> Path:
    """The folder that paths in the settings begin in."""
    return Path(settings.origin).parent if settings.origin else Path.cwd()


def _check(
    settings: Settings, given: Mapping[str, Any], known: Mapping[str, type | tuple[type, ...]], *path: str
) -> None:
    for key, value in given.items():
        if key not in known:
            raise SettingsError(
                f"there is no setting {key!r} under {'.'.join(path)}",
                where=settings.where(*path, key),
                next_step=f"use {', '.join(known)}",
            )
        if not isinstance(value, known[key]) or (isinstance(value, bool) and known[key] is not bool):
            raise _wrong(settings, value, *path, key)


def _wrong(settings: Settings, value: object, *path: str) -> SettingsError:
    return SettingsError(f"{'.'.join(path)} has another form", where=settings.where(*path), found=repr(value))
