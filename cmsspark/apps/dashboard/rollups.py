"""The rollups of a store: which segments there should be, building those that are
missing, removing old ones.

A month that is over is one segment, and so is a week of the newest month; each day after
that is a segment of its own, so a new day builds only itself. Until a month or week is
built its days stay as they were. The name of a segment has a digest of its days, their
runs and the list of names, and one of its content: a day that was run again is another
segment, and one that is damaged or of another version is built anew.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import Final

import msgspec

from cmsspark.apps.dashboard import segment_build
from cmsspark.apps.dashboard.segment import (
    SPILLED,
    TABLE,
    VERSION,
    Segment,
    file_digest,
    find_exhaustion,
    is_held,
    locked_names,
    read_names,
)
from cmsspark.apps.dashboard.segment_build import BuilderEnded
from cmsspark.base.errors import CmssparkError, DataError, InputMissing
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.storage import local_path
from cmsspark.sources.registry import STREAMS_OF_JOBS
from cmsspark.store.query.database import Database
from cmsspark.store.query.stored_parts import StoredInterval

_DIGEST: Final = 16
_SUFFIX: Final = ".duckdb"
#: Seconds until a day that could not be read, and a disk that was full, is tried again.
AGAIN_S: Final = 60.0
#: Errors whose reason is the day that is read.
_OF_DAY: Final = (DataError, InputMissing, BuilderEnded)


class RollupState(msgspec.Struct, frozen=True, dict=True):
    """What a refresh found: the segments, the stored days that cannot be read with the
    reason, why days are partial, and the streams that each day counted. ``pending``:
    stored days whose segments are still to be built.
    """

    segments: tuple[Segment, ...]
    faults: Mapping[date, str] = msgspec.field(default_factory=dict)
    partial: Mapping[date, str] = msgspec.field(default_factory=dict)
    streams: Mapping[date, tuple[str, ...]] = msgspec.field(default_factory=dict)
    pending: frozenset[date] = frozenset()

    @cached_property
    def runs(self) -> dict[date, str]:
        """The run of each day that the rollups hold."""
        return {day: run for segment in self.segments for day, run in segment.runs.items()}


class _Unreadable(msgspec.Struct, frozen=True):
    """Why a day could not be read, its run and its files then, and when (monotonic seconds)."""

    reason: str
    run: str
    files: tuple[tuple[int, ...], ...]
    at_s: float

    def is_due(self, entry: StoredInterval) -> bool:
        """Return whether to try the day again."""
        is_same = (self.run, self.files) == (entry.run, _stat(entry))
        return not is_same or time.monotonic() - self.at_s > AGAIN_S


def _stat(entry: StoredInterval) -> tuple[tuple[int, ...], ...]:
    """Return what changes when a part of a day is written, replaced or allowed again."""
    states: list[tuple[int, ...]] = []
    for part in entry.parts:
        try:
            state = os.stat(local_path(part.path))
        except OSError as error:
            states.append((error.errno or 0,))
        else:
            states.append((state.st_ino, state.st_size, state.st_mtime_ns, state.st_ctime_ns))
    return tuple(states)


#: Builds the segment of some stored days in a folder, with a name; returns its file.
Build = Callable[[Sequence[StoredInterval], Path, str], Path]


class Rollups:
    """The rollups of a local store in the folder ``cache``. ``log`` takes a line of
    progress, ``build`` builds a segment as :func:`segment_build.build` does.
    """

    def __init__(
        self,
        database: Database,
        cache: Path,
        log: Callable[[str], None],
        build: Build = segment_build.build,
    ) -> None:
        self._build = build
        self._database = database
        self.store = store = str(Path(local_path(database.fout)).resolve())
        self.folder = cache / "dashboard" / hashlib.sha256(store.encode()).hexdigest()[:_DIGEST]
        self._log = log
        self._names_id = ""
        self._verified: set[str] = set()
        #: Days that could not be read: they are not tried at every refresh.
        self._unreadable: dict[date, _Unreadable] = {}

    def refresh(self, offer: Callable[[RollupState], None] = lambda state: None) -> RollupState:
        """Build what is missing, the newest days first. Days that cannot be read are
        left out, each with its reason.

        ``offer`` gets the state before each segment that is built. Raises OutputError
        (73) where the cache cannot be written.
        """
        stored = self.stored()
        try:
            names = read_names(self.folder)
            if names is None:
                with locked_names(self.folder) as names:
                    pass
            self._names_id = names.id
        except OSError as error:
            raise find_exhaustion(error) or segment_build.unwritten(error, self.folder) from error
        self._try_again(stored)
        faults = self.find_faults(stored)
        days = {day: entry for day, entry in stored.items() if day not in faults}
        reasons = {
            day: entry.partial_reason for day, entry in days.items() if entry.partial_reason
        }
        streams = {day: interval.streams for day, interval in days.items()}
        groups = {
            name: [days[day] for day in members if day in days]
            for name, members in plan_segments(sorted(stored)).items()
            if not days.keys().isdisjoint(members)
        }
        segments = {name: self._existing(name, members) for name, members in groups.items()}
        missing = [name for name, segment in segments.items() if segment is None]
        parts = {name: self._parts(groups[name]) for name in missing}

        def state() -> RollupState:
            built: list[Segment] = []
            for name, segment in segments.items():
                built += parts[name] if name in missing else [segment] if segment else []
            built_days = {day for segment in built for day in segment.runs}
            waiting = {entry.first_day for name in missing for entry in groups[name]}
            pending = frozenset(waiting - built_days)
            return RollupState(tuple(built), dict(faults), reasons, streams, pending)

        while missing:
            offer(state())
            name = missing.pop()
            segments[name] = self._segment(name, groups[name], faults)
        return state()

    def _parts(self, days: Sequence[StoredInterval]) -> list[Segment]:
        """Return the segments of parts of some days, as they were before the next day came."""
        by_day = {entry.first_day: entry for entry in days}
        segments = [
            self._existing(name, [by_day[day] for day in members])
            for name, members in plan_segments(sorted(by_day)).items()
        ]
        return [segment for segment in segments if segment is not None]

    def find_faults(self, stored: Mapping[date, StoredInterval]) -> dict[date, str]:
        """Return the stored days that cannot be read, each with the reason. One whose
        run or files have changed since, and one that was not tried for a minute, is
        left out.
        """
        faults = {
            day: _text(entry.fault) for day, entry in stored.items() if entry.fault is not None
        }
        for day, unreadable in self._unreadable.items():
            entry = stored.get(day)
            if entry is not None and entry.fault is None and not unreadable.is_due(entry):
                faults[day] = unreadable.reason
        return faults

    def _try_again(self, stored: Mapping[date, StoredInterval]) -> None:
        """Read each day alone that could not be read and should be tried again now: its
        month is built only if it can be read.
        """
        for day, unreadable in list(self._unreadable.items()):
            entry = stored.get(day)
            if entry is None or entry.fault is not None:
                del self._unreadable[day]
            elif unreadable.is_due(entry):
                del self._unreadable[day]
                self._readable([entry], {})

    def remove_old(self, state: RollupState) -> None:
        """Remove segments that no server on this host uses, and what killed builds left."""
        used = {segment.path for segment in state.segments}
        for path in self.folder.iterdir() if self.folder.is_dir() else ():
            if path.name.startswith(".building-"):
                if _is_old(path):
                    shutil.rmtree(path, ignore_errors=True)
                    path.unlink(missing_ok=True)
            elif path.name.startswith(SPILLED) and not is_held(path):
                shutil.rmtree(path, ignore_errors=True)
            elif path.suffix == _SUFFIX and path not in used and not is_held(path):
                path.unlink(missing_ok=True)

    def forget(self) -> None:
        """Check the files of every segment again at the next refresh, as one of them
        could not be read.
        """
        self._verified.clear()
        self._unreadable.clear()

    def are_whole(self, segments: Sequence[Segment]) -> bool:
        """Return whether the files of segments have their digests now.

        Raises NotReady (75) where they cannot be read now.
        """
        self._verified.clear()
        try:
            return all(self._is_intact(segment.path) for segment in segments)
        except OSError as error:
            if exhausted := find_exhaustion(error):
                raise exhausted from error
            return False

    def stored(self) -> dict[date, StoredInterval]:
        """Return the stored days, as the store has them now."""
        intervals = self._database.stored(TABLE)
        return {entry.interval: entry for entry in intervals if isinstance(entry.interval, date)}

    def _stem(self, name: str, days: Sequence[StoredInterval]) -> str:
        """Return the name of a segment with a digest of its days, runs and list of names."""
        # Servers of two versions of this package may use one cache.
        runs = [[str(entry.interval), entry.run] for entry in days]
        text = json.dumps([VERSION, STREAMS_OF_JOBS, self._names_id, runs])
        return f"{name}.{hashlib.sha256(text.encode()).hexdigest()[:_DIGEST]}"

    def _segment(
        self, name: str, days: list[StoredInterval], faults: dict[date, str]
    ) -> Segment | None:
        """Build a segment, or return it where it is there; without the days that cannot be read."""
        if not days:
            return None
        if segment := self._existing(name, days):
            return segment
        self._log(f"rollups of {name}: {pluralize(len(days), 'day')}")
        try:
            path = self._build_twice(days, name)
        except _OF_DAY as error:
            # One day must not cost the others: find it, leave it out.
            if len(days) == 1:
                self._leave_out(days[0], error, faults)
                return None
            readable = self._readable(days, faults)
            if len(readable) == len(days):
                raise
            return self._segment(name, readable, faults)
        self._verified.add(path.name)
        return _to_segment(path, days)

    def _build_twice(self, days: list[StoredInterval], name: str) -> Path:
        """Build a segment, a second time if somebody ended the process that builds it."""
        try:
            return self._build(days, self.folder, self._stem(name, days))
        except BuilderEnded as error:
            self._log(f"the rollups are built again: {_text(error)}")
            return self._build(days, self.folder, self._stem(name, days))

    def _readable(
        self, days: list[StoredInterval], faults: dict[date, str]
    ) -> list[StoredInterval]:
        """Return the days that can be read; the others get their faults."""
        readable = []
        for entry in days:
            try:
                self._build_twice([entry], f"{entry.interval}")
                readable.append(entry)
            except _OF_DAY as error:
                self._leave_out(entry, error, faults)
        return readable

    def _leave_out(
        self, entry: StoredInterval, error: CmssparkError, faults: dict[date, str]
    ) -> None:
        unreadable = _Unreadable(_text(error), entry.run, _stat(entry), time.monotonic())
        self._unreadable[entry.first_day] = unreadable
        faults[entry.first_day] = unreadable.reason

    def _existing(self, name: str, days: Sequence[StoredInterval]) -> Segment | None:
        """Return the segment of some days, or None where it is not there or damaged."""
        for path in sorted(self.folder.glob(f"{self._stem(name, days)}.*{_SUFFIX}")):
            try:
                if self._is_intact(path):
                    return _to_segment(path, days)
            except OSError as error:
                if exhausted := find_exhaustion(error):
                    raise exhausted from error
            self._log(f"rollups in {path.name} are damaged, and are built anew")
            path.unlink(missing_ok=True)
        return None

    def _is_intact(self, path: Path) -> bool:
        """Return whether a file has the digest of its name, when it is first used."""
        if path.name in self._verified:
            return path.is_file()
        if is_same := file_digest(path) == path.name.split(".")[-2]:
            self._verified.add(path.name)
        return is_same


def _to_segment(path: Path, days: Sequence[StoredInterval]) -> Segment:
    return Segment(path, {entry.first_day: entry.run for entry in days})


def plan_segments(days: Sequence[date]) -> dict[str, list[date]]:
    """Segment name → its days: one for each month, one for each seven days of the newest
    month that are over, and one for each day after them.

    Example:
        >>> days = [date(2026, 1, 30), date(2026, 1, 31), date(2026, 2, 7), date(2026, 2, 8)]
        >>> plan_segments(days).keys()
        dict_keys(['2026-01', '2026-02-week1', '2026-02-08'])
    """
    groups: dict[str, list[date]] = {}
    for day in days:
        name, week = f"{day:%Y-%m}", (day.day + 6) // 7
        if (day.year, day.month) == (days[-1].year, days[-1].month):
            name = f"{name}-week{week}" if 7 * week < days[-1].day else day.isoformat()
        groups.setdefault(name, []).append(day)
    return groups


def _text(error: CmssparkError) -> str:
    return " ".join(error.text().split())


def _is_old(path: Path) -> bool:
    try:
        return time.time() - path.stat().st_mtime > 3_600
    except OSError:
        return False
