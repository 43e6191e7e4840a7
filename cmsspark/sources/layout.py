"""Where the inputs lie: the places of ``etc/sources.yaml`` under a root, and which days a place holds.

Pure Python over :class:`cmsspark.storage.Files`; folders are found by listing, never by a glob, so that any
character in a name survives.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import islice
from typing import Any, Final
from urllib.parse import urlsplit

from cmsspark.errors import CmssparkError, InputMissing, SettingsError
from cmsspark.resources import read_yaml
from cmsspark.sources.listing import TMP
from cmsspark.storage import Files, is_local, join, local_path

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_LEVEL: Final = re.compile(r"(?P<prefix>.*?)(?P<token>YYYY|Y|MM|M|DD|D)")
_WIDTHS: Final = {"YYYY": 4, "Y": 0, "MM": 2, "M": 0, "DD": 2, "D": 0}
_DAYS: Final = ("YYYY/MM/DD", "year=Y/month=M/day=D")


@dataclass(frozen=True)
class Level:
    """One folder level of a day: a prefix and a number, padded to ``width`` digits (0: not padded)."""

    prefix: str
    width: int

    def name(self, number: int) -> str:
        """The folder's name for that year, month or day."""
        return f"{self.prefix}{number:0{self.width}d}" if self.width else f"{self.prefix}{number}"

    def number(self, name: str) -> int | None:
        """The number that a folder's name holds; None where it is no folder of this level."""
        digits = name[len(self.prefix) :]
        if not (name.startswith(self.prefix) and digits.isascii() and digits.isdigit() and len(digits) <= 4):
            return None
        return int(digits) if self.name(int(digits)) == name else None


@dataclass(frozen=True)
class InputLocation:
    """A folder of one source in one form. ``days`` is empty for dumps; ``since`` and ``until`` are years, or None."""

    source: str
    name: str
    form: str
    folder: str
    days: tuple[Level, ...] = ()
    since: int | None = None
    until: int | None = None

    def day_folder(self, day: date) -> str:
        """The day's final folder; with ``.tmp`` behind it, the one still being written."""
        numbers = (day.year, day.month, day.day)
        return join(self.folder, *(level.name(number) for level, number in zip(self.days, numbers, strict=True)))

    def holds(self, location: str) -> bool:
        """Whether ``location`` lies in this place; ``hdfs:///x`` stands for ``/x`` of any name node."""
        folder = self.folder
        if not is_local(folder) and not urlsplit(folder).netloc:
            location, folder = urlsplit(location).path, urlsplit(folder).path
        return (location.rstrip("/") + "/").startswith(folder.rstrip("/") + "/")

    def covers(self, day: date) -> bool:
        """True where the place is meant for the day's year."""
        return (self.since is None or day.year >= self.since) and (self.until is None or day.year <= self.until)


@dataclass(frozen=True)
class Layout:
    """All places, by source (``aaa, eos, cmssw, crab, dbs, phedex``), in the order in which they are tried."""

    places: Mapping[str, tuple[InputLocation, ...]] = field(default_factory=dict)

    @classmethod
    def load(cls, overrides: Mapping[str, Any] | None = None, root: str | None = None) -> Layout:
        """The built-in places with ``overrides`` (``{source: {place: folder or {folder, …}}}``) under ``root``.

        A folder with a scheme stays as given. One without gets ``root`` before it; without a root, built-in
        folders get ``hdfs://`` and overridden ones stay. Raises SettingsError (78) for unknown sources, places or keys.
        """
        builtin: dict[str, dict[str, dict[str, Any]]] = read_yaml("etc/sources.yaml")
        given = dict(overrides or {})
        _check_keys("sources", given, builtin)
        places = {
            source: tuple(_place(source, name, spec, given.get(source), root) for name, spec in named.items())
            for source, named in builtin.items()
        }
        for source, value in given.items():
            _check_keys(f"sources.{source}", value, builtin[source])
        return cls(places)

    def day_places(self, stream: str, day: date) -> tuple[InputLocation, ...]:
        """The stream's places for a day, those meant for its year first."""
        return tuple(sorted(self.places[stream], key=lambda place: not place.covers(day)))

    def dump_place(self, source: str, name: str) -> InputLocation:
        """The place of that name of a dump."""
        return next(place for place in self.places[source] if place.name == name)


def _check_keys(where: str, given: object, known: Mapping[str, Any]) -> None:
    if not isinstance(given, Mapping):
        raise SettingsError(f"settings: {where} must be a mapping", found=repr(given))
    unknown = [str(key) for key in given if key not in known]
    if unknown:
        raise SettingsError(
            f"settings: {where} has no {', '.join(unknown)}",
            found=f"known: {', '.join(known)}",
            next_step="see docs/feeds.md",
        )


def _place(source: str, name: str, spec: Mapping[str, Any], given: Any, root: str | None) -> InputLocation:
    where = f"sources.{source}.{name}"
    own = given.get(name) if isinstance(given, Mapping) else None
    changes = {} if own is None else {"folder": own} if isinstance(own, str) else own
    _check_keys(where, changes, {"folder": 0, "form": 0, "days": 0} if "days" in spec else {"folder": 0})
    for key, value in changes.items():
        if not isinstance(value, str) or not value:
            raise SettingsError(f"settings: {where}.{key} must be a text", found=repr(value))
    merged = {**spec, **changes}
    folder = _rooted(merged["folder"], root, overridden="folder" in changes)
    place = InputLocation(source, name, merged["form"], folder, _levels(where, merged.get("days")))
    # A folder of one's own holds what it holds, whatever the year.
    return place if changes else replace(place, since=spec.get("since"), until=spec.get("until"))


def _rooted(folder: str, root: str | None, *, overridden: bool) -> str:
    if _SCHEME.match(folder):
        return folder
    if root is not None:
        return join(root if _SCHEME.match(root) else os.path.abspath(root), folder)
    return os.path.abspath(folder) if overridden else f"hdfs://{folder}"


def _levels(where: str, days: str | None) -> tuple[Level, ...]:
    if days is None:
        return ()
    matches = [_LEVEL.fullmatch(part) for part in days.split("/")]
    tokens = [match["token"][0] if match else "" for match in matches]
    if tokens != ["Y", "M", "D"]:
        raise SettingsError(
            f"settings: {where}.days must be three folders for year, month and day",
            found=days,
            next_step=f"such as {' or '.join(_DAYS)}",
        )
    return tuple(Level(match["prefix"], _WIDTHS[match["token"]]) for match in matches if match)


def days_near(files: Files, place: InputLocation, day: date, count: int = 3) -> list[str]:
    """Up to ``count`` days before and after that have a folder, as text, oldest first; ``.tmp`` ones are marked.

    Lists only the years and months on the way. The wanted day itself comes back too where its ``.tmp`` is there.
    """
    before = list(islice(_walk(files, place, day, -1), count))
    after = list(islice(_walk(files, place, day, 1), count))
    return list(dict.fromkeys([*reversed(before), *after]))


def _walk(files: Files, place: InputLocation, day: date, step: int) -> Iterator[str]:
    """Days with a folder, from ``day`` on into the past (-1) or the future (1)."""
    year_level, month_level, day_level = place.days
    for year, year_folder in _numbers(files, place.folder, year_level, step):
        if (year - day.year) * step < 0:
            continue
        for month, month_folder in _numbers(files, year_folder, month_level, step):
            if ((year - day.year) * 12 + month - day.month) * step < 0:
                continue
            for number, folder in _numbers(files, month_folder, day_level, step, tmp=True):
                found = _date(year, month, number)
                if found is not None and (found - day).days * step >= 0:
                    yield found.isoformat() + (" (.tmp)" if folder.endswith(TMP) else "")


def _numbers(files: Files, folder: str, level: Level, step: int, *, tmp: bool = False) -> list[tuple[int, str]]:
    """The numbers that sub-folders stand for, nearest first in the direction of ``step``; one folder each."""
    try:
        entries = files.list_dir(folder)
    except InputMissing:
        return []
    except CmssparkError:  # This only words an error message: what cannot be looked at is not named.
        return []
    found: dict[int, str] = {}
    for entry in entries:
        is_tmp = entry.name.endswith(TMP)
        number = level.number(entry.name.removesuffix(TMP)) if tmp or not is_tmp else None
        if number is not None and entry.is_dir and not (is_tmp and number in found):
            found[number] = entry.path
    return sorted(found.items(), reverse=step < 0)


def _date(year: int, month: int, number: int) -> date | None:
    try:
        return date(year, month, number)
    except ValueError:
        return None


def shown(folder: str) -> str:
    """A location as people read it."""
    return local_path(folder) if is_local(folder) else folder
