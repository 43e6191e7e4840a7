"""Input locations: the folders of ``etc/sources.yaml`` under a root, and the days that they have.

Pure Python over :class:`cmsspark.filesystems.storage.Files`. Folders are found by listing, not by
a glob, so that names may contain any character.
"""

from __future__ import annotations

import os
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field, replace
from datetime import date
from itertools import islice
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from cmsspark.base.errors import CmssparkError, SettingsError
from cmsspark.base.resources import read_yaml
from cmsspark.filesystems.storage import Files, is_local, join, local_path
from cmsspark.sources.epochs import KEY, MEANINGS, Epochs, Where
from cmsspark.sources.listing import TMP
from cmsspark.sources.registry import OWN_PLACES, STREAMS_BY_NAME

if TYPE_CHECKING:
    from cmsspark.settings.settings import Settings

_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_LEVEL: Final = re.compile(r"(?P<prefix>.*?)(?P<token>YYYY|Y|MM|M|DD|D)")
_WIDTHS: Final = {"YYYY": 4, "Y": 0, "MM": 2, "M": 0, "DD": 2, "D": 0}
_DAYS: Final = ("YYYY/MM/DD", "year=Y/month=M/day=D")


@dataclass(frozen=True)
class Level:
    """One folder level of a day: a prefix and a number, zero-padded to ``width`` digits
    (0: not padded).
    """

    prefix: str
    width: int

    def name(self, number: int) -> str:
        """Return the folder's name for that year, month or day."""
        return f"{self.prefix}{number:0{self.width}d}" if self.width else f"{self.prefix}{number}"

    def number(self, name: str) -> int | None:
        """Return the number in a folder's name; None for a folder that is not of this level."""
        digits = name[len(self.prefix) :]
        if not (
            name.startswith(self.prefix)
            and digits.isascii()
            and digits.isdigit()
            and len(digits) <= 4
        ):
            return None
        return int(digits) if self.name(int(digits)) == name else None


@dataclass(frozen=True)
class InputLocation:
    """A folder of one source in one format. ``days`` is empty for dumps; ``since`` and
    ``until`` are years, or None. ``serves``: the source of a role
    (:mod:`cmsspark.sources.epochs`), where a stream has several.
    """

    source: str
    name: str
    format_name: str
    folder: str
    days: tuple[Level, ...] = ()
    since: int | None = None
    until: int | None = None
    serves: str = ""

    def day_folder(self, day: date) -> str:
        """Return the day's final folder; while it is being written, its name ends in ``.tmp``."""
        numbers = (day.year, day.month, day.day)
        return join(
            self.folder,
            *(level.name(number) for level, number in zip(self.days, numbers, strict=True)),
        )

    def holds(self, location: str) -> bool:
        """Return whether ``location`` is inside this folder; ``hdfs:///x`` matches
        ``/x`` of any name node.
        """
        folder = self.folder
        if not is_local(folder) and not urlsplit(folder).netloc:
            location, folder = urlsplit(location).path, urlsplit(folder).path
        return (location.rstrip("/") + "/").startswith(folder.rstrip("/") + "/")

    def covers(self, day: date) -> bool:
        """Return whether this location is meant for the day's year."""
        return (self.since is None or day.year >= self.since) and (
            self.until is None or day.year <= self.until
        )


@dataclass(frozen=True)
class Layout:
    """All input locations by source (``aaa, eos, cmssw, crab, dbs, phedex`` …), in the
    order in which they are tried, and the epochs of the sources.
    """

    locations: Mapping[str, tuple[InputLocation, ...]] = field(default_factory=dict)
    epochs: Epochs = field(default_factory=Epochs)

    @classmethod
    def from_settings(cls, settings: Settings, root: str | None = None) -> Layout:
        """Return the locations that settings name, under ``root`` or the settings'
        root. Raises as :meth:`load`.
        """
        return cls.load(settings.sources, root or settings.root, settings.where)

    @classmethod
    def load(
        cls,
        overrides: Mapping[str, Any] | None = None,
        root: str | None = None,
        where: Where | None = None,
    ) -> Layout:
        """Return the built-in locations with ``overrides`` (``{source: {name: folder or
        {folder, …}}}``) under ``root``.

        A folder with a scheme is unchanged. Otherwise ``root`` is prepended. Without a
        root, ``hdfs://`` is prepended to built-in folders and overridden ones are
        local. ``where``: the line of a key of the settings. Raises SettingsError (78)
        for unknown sources, names or keys.
        """
        builtin: dict[str, dict[str, dict[str, Any]]] = dict(read_yaml("etc/sources.yaml"))
        builtin |= {name: {"logs": dict(entry)} for name, entry in OWN_PLACES.items()}
        overridden = dict(overrides or {})
        _check_keys("sources", overridden, builtin)
        epochs = Epochs.load(overridden, where) if where else Epochs.load(overridden)
        for key in (KEY, MEANINGS):
            builtin.pop(key)
            overridden.pop(key, None)
        locations = {
            source: tuple(
                _location(source, name, spec, overridden.get(source), root)
                for name, spec in specs.items()
            )
            for source, specs in builtin.items()
        }
        for source, value in overridden.items():
            _check_keys(f"sources.{source}", value, builtin[source])
        return cls(locations, epochs)

    def day_locations(self, stream: str, day: date) -> tuple[InputLocation, ...]:
        """Return the stream's locations for a day; those meant for its year come first.

        None where another source has the stream's role on that day (rule 28).
        """
        served = [location for location in self.locations[stream] if self._serves(location, day)]
        return tuple(sorted(served, key=lambda location: not location.covers(day)))

    def other_locations(self, stream: str, day: date) -> tuple[InputLocation, ...]:
        """Return the stream's locations that belong to a source that does not serve the day."""
        return tuple(
            location for location in self.locations[stream] if not self._serves(location, day)
        )

    def _serves(self, location: InputLocation, day: date) -> bool:
        # A feed that is no stream, such as xcache, has no role.
        role = STREAMS_BY_NAME[location.source].role if location.source in STREAMS_BY_NAME else ""
        return not role or self.epochs.source(role, day) == (location.serves or location.source)

    def dump_location(self, source: str, name: str) -> InputLocation:
        """Return the location of a dump by its name."""
        return next(location for location in self.locations[source] if location.name == name)


def _check_keys(where: str, values: object, allowed: Mapping[str, Any]) -> None:
    if not isinstance(values, Mapping):
        raise SettingsError(f"settings: {where} must be a mapping", found=repr(values))
    unknown = [str(key) for key in values if key not in allowed]
    if unknown:
        raise SettingsError(
            f"settings: {where} has no {', '.join(unknown)}",
            found=f"known: {', '.join(allowed)}",
            next_step="see docs/feeds.md",
        )


def _location(
    source: str, name: str, spec: Mapping[str, Any], overrides: Any, root: str | None
) -> InputLocation:
    where = f"sources.{source}.{name}"
    override = overrides.get(name) if isinstance(overrides, Mapping) else None
    changes = (
        {} if override is None else {"folder": override} if isinstance(override, str) else override
    )
    _check_keys(
        where, changes, {"folder": 0, "form": 0, "days": 0} if "days" in spec else {"folder": 0}
    )
    for key, value in changes.items():
        if not isinstance(value, str) or not value:
            raise SettingsError(f"settings: {where}.{key} must be a text", found=repr(value))
    merged = {**spec, **changes}
    folder = _rooted(merged["folder"], root, overridden="folder" in changes)
    location = InputLocation(
        source, name, merged["form"], folder, _levels(where, merged.get("days"))
    )
    # An overridden folder is used for all years.
    location = replace(location, serves=spec.get("serves", ""))
    return (
        location
        if changes
        else replace(location, since=spec.get("since"), until=spec.get("until"))
    )


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


def days_near(files: Files, location: InputLocation, day: date, count: int = 3) -> list[str]:
    """Up to ``count`` days with a folder before and after ``day``, as text, oldest
    first; ``.tmp`` folders are marked.

    Lists only the years and months that are needed. ``day`` is included where its
    ``.tmp`` folder exists.
    """
    before = list(islice(_walk(files, location, day, -1), count))
    after = list(islice(_walk(files, location, day, 1), count))
    return list(dict.fromkeys([*reversed(before), *after]))


def _walk(files: Files, location: InputLocation, day: date, step: int) -> Iterator[str]:
    """Days with a folder, from ``day`` into the past (step -1) or the future (step 1)."""
    year_level, month_level, day_level = location.days
    for year, year_folder in _numbers(files, location.folder, year_level, step):
        if (year - day.year) * step < 0:
            continue
        for month, month_folder in _numbers(files, year_folder, month_level, step):
            if ((year - day.year) * 12 + month - day.month) * step < 0:
                continue
            for number, folder in _numbers(files, month_folder, day_level, step, tmp=True):
                candidate = _date(year, month, number)
                if candidate is not None and (candidate - day).days * step >= 0:
                    yield candidate.isoformat() + (" (.tmp)" if folder.endswith(TMP) else "")


def _numbers(
    files: Files, folder: str, level: Level, step: int, *, tmp: bool = False
) -> list[tuple[int, str]]:
    """Return the numbers in the names of sub-folders, in the direction of ``step``,
    with one folder each.
    """
    try:
        entries = files.list_dir(folder)
    except CmssparkError:  # The result is only part of an error message, so a folder that cannot be listed is skipped.
        return []
    folders: dict[int, str] = {}
    for entry in entries:
        is_tmp = entry.name.endswith(TMP)
        number = level.number(entry.name.removesuffix(TMP)) if tmp or not is_tmp else None
        if number is not None and entry.is_dir and not (is_tmp and number in folders):
            folders[number] = entry.path
    return sorted(folders.items(), reverse=step < 0)


def _date(year: int, month: int, number: int) -> date | None:
    try:
        return date(year, month, number)
    except ValueError:
        return None


def shown(folder: str) -> str:
    """Return a location for display: a local one as a plain path."""
    return local_path(folder) if is_local(folder) else folder
