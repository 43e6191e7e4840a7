"""Epochs: which source serves a role on which day (rules 28 and 47 of
``docs/counting.md``), and what a field means there.

A role is what a day needs one source for: ``replicas`` (PhEDEx, then Rucio), ``jobs``
(JobMonitoring, then HTCondor) and ``aaa`` (the GLED collector, then the XRootD
shoveler). ``epochs`` in ``etc/sources.yaml`` lists the sources of each role, with the
first day (UTC) of each; settings override it under ``sources: {epochs: …}``. Of the
sources whose first day is not after the log day the last one serves it. The others are
not read, even where they have the day.

``meanings`` is the same of the meanings of a feed's field: the producer changed what it
writes there, and the last meaning whose first day is not after the log day holds.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any

from cmsspark.base.config_files import nearest
from cmsspark.base.errors import SettingsError
from cmsspark.base.resources import read_yaml
from cmsspark.sources.registry import DUMPS, STREAMS, STREAMS_BY_NAME, streams_of_day

REPLICAS_ROLE, JOBS_ROLE, AAA_ROLE = "replicas", "jobs", "aaa"
#: The keys in ``etc/sources.yaml`` and in the settings under ``sources``.
KEY, MEANINGS = "epochs", "meanings"
#: Values of ``from`` beside dates.
_ALWAYS, _NEVER = "always", "never"

#: Returns ``file, line N`` of a key of the settings.
Where = Callable[..., str]


def _settings(*key: str) -> str:
    return f"settings: {'.'.join(key)}"


@dataclass(frozen=True)
class Epoch:
    """A source of a role, or a meaning of a field, and its first day; ``first`` is
    ``date.min`` for always, None for never.
    """

    source: str
    first: date | None


@dataclass(frozen=True)
class Epochs:
    """The sources of each role, and the meanings of each feed's fields, in the order of
    ``etc/sources.yaml``.
    """

    roles: Mapping[str, tuple[Epoch, ...]] = field(default_factory=dict)
    meanings: Mapping[str, Mapping[str, tuple[Epoch, ...]]] = field(default_factory=dict)

    @classmethod
    def load(cls, overrides: Mapping[str, Any] | None = None, where: Where = _settings) -> Epochs:
        """Return the built-in epochs with those of ``overrides``, the section
        ``sources`` of the settings.

        Raises SettingsError (78) for unknown roles and sources, and for days that are
        none, with file and line where ``where`` knows them.
        """
        builtin, overridden = read_yaml("etc/sources.yaml"), overrides or {}
        feeds = _mapping(
            overridden.get(MEANINGS) or {}, builtin[MEANINGS], where, "sources", MEANINGS
        )
        return cls(
            _sections(builtin[KEY], overridden.get(KEY) or {}, where, "sources", KEY),
            {
                feed: _sections(fields, feeds.get(feed) or {}, where, "sources", MEANINGS, feed)
                for feed, fields in builtin[MEANINGS].items()
            },
        )

    def source(self, role: str, day: date) -> str:
        """Return the source that serves ``role`` on a log day; empty where none does."""
        return _of_day(self.roles[role], day)

    def meaning(self, feed: str, field_name: str, day: date) -> str:
        """Return what a field of a feed means in records of a log day."""
        return _of_day(self.meanings[feed][field_name], day)

    def meanings_of_day(self, day: date, names: Iterable[str]) -> dict[str, str]:
        """Return the meaning of each ``feed.field`` of the feeds ``names``, for manifests."""
        return {
            f"{name}.{field_name}": self.meaning(name, field_name, day)
            for name in names
            for field_name in self.meanings.get(name, ())
        }

    def first_day(self, role: str, source: str) -> date | None:
        """Return the first day of a source: None for never, ``date.min`` for always."""
        return next(epoch.first for epoch in self.roles[role] if epoch.source == source)

    def sources(self, role: str) -> list[str]:
        """Return all sources of a role."""
        return [epoch.source for epoch in self.roles[role]]

    def serves(self, stream: str, day: date) -> bool:
        """Return whether a stream is read on a day: streams without a role are, and so
        is each whose role has a source of several in the stream itself.
        """
        role = STREAMS_BY_NAME[stream].role
        return not role or stream not in self.sources(role) or self.source(role, day) == stream

    def streams_of_day(self, day: date, streams: tuple[str, ...] = STREAMS) -> tuple[str, ...]:
        """Return those of ``streams`` that are expected to have logs of ``day``."""
        return tuple(name for name in streams_of_day(day, streams) if self.serves(name, day))

    def of_day(self, day: date, names: Iterable[str]) -> dict[str, str]:
        """Return the source of each role that the streams and dumps ``names`` have, for manifests."""
        roles = {find_role(name) for name in names} - {""}
        return {role: self.source(role, day) for role in self.roles if role in roles}

    def why(self, role: str, day: date) -> str:
        """Return what serves a role on a day, for messages."""
        source = self.source(role, day)
        if not source:
            return f"no source serves {role} on {day}"
        first = self.first_day(role, source)
        since = "" if first in (None, date.min) else f" from {first} on"
        return f"{role} of {day} come from {source}, which serves them{since}"


def find_role(name: str) -> str:
    """Return the role of a stream or a kind of dump; empty for one without."""
    return STREAMS_BY_NAME[name].role if name in STREAMS_BY_NAME else DUMPS[name].role


def setting(role: str, source: str, first: date) -> str:
    """Return the line of settings that has ``source`` serve ``role`` from a day on."""
    return f"sources: {{{KEY}: {{{role}: {{{source}: {{from: {first}}}}}}}}}"


def _mapping(values: Any, allowed: Iterable[str], where: Where, *key: str) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise SettingsError(
            f"{'.'.join(key)} has `key: value` lines below it",
            where=where(*key),
            found=repr(values),
        )
    for name in values:
        if name not in allowed:
            raise SettingsError(
                f"{'.'.join(key)} has no {name!r}",
                where=where(*key, str(name)),
                next_step=nearest(str(name), allowed),
            )
    return values


def _sections(
    builtin: Mapping[str, Mapping[str, Any]], overridden: Any, where: Where, *key: str
) -> dict[str, tuple[Epoch, ...]]:
    """Return the epochs of each name of a section, with those of settings."""
    changed = {
        name: _mapping(values, builtin[name], where, *key, name)
        for name, values in _mapping(overridden, builtin, where, *key).items()
    }
    return {
        name: tuple(
            Epoch(source, _first(value, where, *key, name, source))
            for source, value in {**sources, **changed.get(name, {})}.items()
        )
        for name, sources in builtin.items()
    }


def _of_day(epochs: Iterable[Epoch], day: date) -> str:
    """Return the last one that has begun; of two with one first day the later in the file."""
    started = [epoch for epoch in epochs if epoch.first is not None and epoch.first <= day]
    return sorted(started, key=lambda epoch: epoch.first or date.min)[-1].source if started else ""


def _first(value: Any, where: Where, *key: str) -> date | None:
    """Return the first day of ``{from: DAY}``."""
    day = _mapping(value, ("from",), where, *key).get("from")
    if isinstance(day, date) and type(day) is date:
        return day
    if day in (_ALWAYS, _NEVER):
        return date.min if day == _ALWAYS else None
    try:
        return date.fromisoformat(str(day))
    except (TypeError, ValueError):
        raise SettingsError(
            f"{'.'.join(key)}.from is a day, {_ALWAYS} or {_NEVER}",
            where=where(*key, "from"),
            found=repr(day),
            next_step=f"write `{key[-1]}: {{from: 2026-03-01}}`",
        ) from None
