"""Input locations: the folders of ``etc/sources.yaml`` under a root, and the days that they have.

Pure Python over :class:`cmsspark.filesystems.storage.Files`. Folders are found by listing, not by
a glob, so that names may contain any character.
"""

from __future__ import annotations

import hashlib
import os
import re
import zlib
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any, Final, NamedTuple
from urllib.parse import urlsplit

import msgspec
from msgspec.structs import replace

from cmsspark.base.config_files import nearest
from cmsspark.base.errors import CmssparkError, InputMissing, SettingsError
from cmsspark.base.resources import read_yaml
from cmsspark.filesystems.storage import Files, is_local, join, local_path
from cmsspark.sources.formats import avro_blocks
from cmsspark.sources.registry import (
    OWN_PLACES,
    STREAMS,
    STREAMS_BY_NAME,
    find_dump_kind,
    streams_of_day,
)

if TYPE_CHECKING:
    from cmsspark.settings.settings import Settings


# Listing of the data files in a folder, with size and mtime.

#: The suffix of a folder or file that is still being written.
TMP: Final = ".tmp"
#: The suffix of a file that ``hdfs dfs -put`` or ``distcp`` is still writing.
COPYING: Final = "._COPYING_"
_UNREAD_SUFFIXES: Final = (TMP, COPYING, ".crc")

#: An empty gzip member has some 20 bytes and a file name: a longer file is assumed to have data.
_EMPTY_LIMIT: Final = 1024
#: An Avro file of this size may be a header, with the schema of a wide table, and nothing else.
_AVRO_HEADER_LIMIT: Final = 65_536
#: Blank lines are not records (``docs/counting.md``, rule 1).
_BLANK_LINES: Final = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t]*\r?\n)*[ \t]*\r?")


@dataclass(frozen=True, order=True)
class InputFile:
    """A listed file: location, size in bytes, mtime in UTC ms. ``version``: inode and
    ctime of a local file.
    """

    path: str
    size: int
    mtime_ms: int
    version: tuple[int, int] = field(default=(0, 0), compare=False)


def digest(files: Mapping[str, Sequence[InputFile]]) -> str:
    """Return a digest over table, path, size and mtime of each file."""
    hasher = hashlib.sha256()
    for table, listed in sorted(files.items()):
        for file in sorted(listed):
            hasher.update(
                repr((table, file.path, file.size, file.mtime_ms)).encode(
                    "utf-8", "surrogateescape"
                )
            )
    return hasher.hexdigest()


def is_hidden(name: str) -> bool:
    """Return whether a name is never data: hidden files, files that are still being
    written, and checksums.
    """
    return name.startswith((".", "_")) or name.endswith(_UNREAD_SUFFIXES)


class Listed(NamedTuple):
    """The data files of a folder, by name, and the paths in it that are not read:
    sub-folders, files that are still being copied into it, and unfinished files
    (``.tmp``).
    """

    files: tuple[InputFile, ...]
    folders: list[str]
    copying: list[str]
    unfinished: list[str]


def data_files(files: Files, folder: str) -> Listed:
    """List a folder. Raises InputMissing (66) for a data file that is a broken link, a
    pipe and the like.
    """
    everything = files.list_dir(folder)
    entries = [entry for entry in everything if not is_hidden(entry.name)]
    for entry in entries:
        if entry.size < 0:
            raise InputMissing(
                "a file of the input cannot be read",
                where=entry.path,
                found=entry.fault or "a link to nothing",
            )
    visible = [entry for entry in everything if not entry.name.startswith((".", "_"))]
    return Listed(
        tuple(
            InputFile(entry.path, entry.size, entry.mtime_ms, getattr(entry, "version", (0, 0)))
            for entry in entries
            if not entry.is_dir
        ),
        [entry.path for entry in entries if entry.is_dir],
        [entry.path for entry in visible if entry.name.endswith(COPYING)],
        [entry.path for entry in visible if entry.name.endswith(TMP)],
    )


def hold_data(files: Files, listed: Sequence[InputFile]) -> bool:
    """Return whether any of the files has data. Empty files, empty gzip files, Avro
    files without a block and files of a few blank lines have none.

    Small files are opened only if no larger file exists. Damaged files count as
    data: the reader reports them.
    """
    return any(_holds_data(files, file) for file in sorted(listed, key=lambda file: -file.size))


def _holds_data(files: Files, file: InputFile) -> bool:
    if file.path.endswith(".avro") and file.size <= _AVRO_HEADER_LIMIT:
        try:
            return avro_blocks.first_block(files.read_bytes(file.path)) < file.size
        except avro_blocks.DamagedBlock:
            return file.size > 0
    if file.size == 0 or file.size > _EMPTY_LIMIT:
        return file.size > 0
    content = files.read_range(file.path, 0, _EMPTY_LIMIT)
    try:
        while content.startswith(b"\x1f\x8b"):
            member = zlib.decompressobj(wbits=31)
            if not _BLANK_LINES.fullmatch(member.decompress(content)) or not member.eof:
                return True
            content = member.unused_data
    except zlib.error:
        return True
    return not _BLANK_LINES.fullmatch(content)


# Epochs: which source serves a role on which day (rules 28 and 47 of
# ``docs/counting.md``), and what a field means there.

REPLICAS_ROLE, JOBS_ROLE, AAA_ROLE = "replicas", "jobs", "aaa"
#: The keys in ``etc/sources.yaml`` and in the settings under ``sources``.
KEY, MEANINGS = "epochs", "meanings"
#: Values of ``from`` beside dates.
_ALWAYS, _NEVER = "always", "never"

#: Returns ``file, line N`` of a key of the settings.
Where = Callable[..., str]


def _settings(*key: str) -> str:
    return f"settings: {'.'.join(key)}"


class Epoch(msgspec.Struct, frozen=True):
    """A source of a role, or a meaning of a field, and its first day; ``first`` is
    ``date.min`` for always, None for never.
    """

    source: str
    first: date | None


class Epochs(msgspec.Struct, frozen=True):
    """The sources of each role, and the meanings of each feed's fields, in the order of
    ``etc/sources.yaml``.
    """

    roles: Mapping[str, tuple[Epoch, ...]] = msgspec.field(default_factory=dict)
    meanings: Mapping[str, Mapping[str, tuple[Epoch, ...]]] = msgspec.field(default_factory=dict)

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
        """Return the source that serves ``role`` on a log day; empty if none does."""
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
    return STREAMS_BY_NAME[name].role if name in STREAMS_BY_NAME else find_dump_kind(name).role


def setting(role: str, source: str, first: date) -> str:
    """Return the line of settings that has ``source`` serve ``role`` from a day on."""
    return f"sources: {{{KEY}: {{{role}: {{{source}: {{from: {first}}}}}}}}}"


def _mapping(values: Any, allowed: Iterable[str], where: Where, *key: str) -> Mapping[str, Any]:
    if not isinstance(values, Mapping):
        raise SettingsError(
            f"{'.'.join(key)} has no `key: value` lines below it",
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
            f"{'.'.join(key)}.from is not a day, {_ALWAYS} or {_NEVER}",
            where=where(*key, "from"),
            found=repr(day),
            next_step=f"write `{key[-1]}: {{from: 2026-03-01}}`",
        ) from None


_SCHEME: Final = re.compile(r"[A-Za-z][A-Za-z0-9+.-]*:/")
_LEVEL: Final = re.compile(r"(?P<prefix>.*?)(?P<token>YYYY|Y|MM|M|DD|D)")
_WIDTHS: Final = {"YYYY": 4, "Y": 0, "MM": 2, "M": 0, "DD": 2, "D": 0}
_DAYS: Final = ("YYYY/MM/DD", "year=Y/month=M/day=D")


class Level(msgspec.Struct, frozen=True):
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


class InputLocation(msgspec.Struct, frozen=True):
    """A folder of one source in one format. ``days`` is empty for dumps; ``since`` and
    ``until`` are years, or None. ``serves``: the source of a role
    (:mod:`cmsspark.sources.layout`), where a stream has several.
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


class Layout(msgspec.Struct, frozen=True):
    """All input locations by source (``aaa, eos, cmssw, crab, dbs, phedex`` …), in the
    order in which they are tried, and the epochs of the sources.
    """

    locations: Mapping[str, tuple[InputLocation, ...]] = msgspec.field(default_factory=dict)
    epochs: Epochs = msgspec.field(default_factory=Epochs)

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

        None if another source has the stream's role on that day (rule 28).
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
        raise SettingsError(f"settings: {where} is not a mapping", found=repr(values))
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
            raise SettingsError(f"settings: {where}.{key} is not a text", found=repr(value))
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
            f"settings: {where}.days is not three folders for year, month and day",
            found=days,
            next_step=f"such as {' or '.join(_DAYS)}",
        )
    return tuple(Level(match["prefix"], _WIDTHS[match["token"]]) for match in matches if match)


def absence(files: Files, folder: str, problem: str) -> str:
    """Return the problem, with the first part of a local path that does not exist: a
    wrong root is then named as such.
    """
    if is_local(folder):
        path = PurePosixPath(local_path(folder))
        for part in (*reversed(path.parents), path):
            if files.stat(str(part)) is None:
                return f"{problem}: there is no {part}"
    return problem


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
