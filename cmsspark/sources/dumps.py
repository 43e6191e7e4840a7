"""Which dump belongs to a log day (``docs/counting.md``, rule 17)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from datetime import date
from typing import Final

from cmsspark.errors import InputMissing, NotReady
from cmsspark.sources.layout import Layout, shown
from cmsspark.sources.listing import InputFile, data_files, digest, hold_data, is_hidden
from cmsspark.sources.registry import DUMPS, REPLICAS
from cmsspark.storage import Entry, Files, join

#: A dump further away than this many days is told as a warning.
FAR_DAYS: Final = 7
_DATED: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2})", re.ASCII)
_SNAPSHOT: Final = re.compile(r"time=(\d{4})-(\d{2})-(\d{2})(?:_(.*))?", re.ASCII | re.DOTALL)


@dataclass(frozen=True)
class Dump:
    """The dump of a log day: ``kind`` dbs or phedex; ``day`` and ``distance_days`` are None for ``current``."""

    kind: str
    day: date | None
    folder: str
    tables: Mapping[str, tuple[InputFile, ...]]
    distance_days: int | None
    warnings: tuple[str, ...] = field(default=())

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for files in self.tables.values() for file in files)

    def folder_of(self, table: str) -> str:
        """The folder that the table's files lie in."""
        return self.folder if DUMPS[self.kind].is_one_folder else join(self.folder, table)

    def fingerprint(self, tables: Iterable[str] | None = None) -> str:
        """A digest over path, size and mtime of each file of ``tables`` (default: of all that were chosen)."""
        names = sorted(self.tables if tables is None else tables)
        return digest({name: self.tables[name] for name in names})


def choose_dbs_dump(files: Files, layout: Layout, day: date, tables: Iterable[str]) -> Dump:
    """The DBS dump of a log day with the files of ``tables``.

    It is the first complete one dated after the day, else the day's own, else the newest before; the legacy
    ``current`` only where there is no dated one. Raises InputMissing (66) where there is none, NotReady (75) where
    none is complete.
    """
    wanted = sorted(set(tables))
    place, legacy = layout.dump_place("dbs", "dated"), layout.dump_place("dbs", "current")
    dated = [(found, "", entry.path) for entry in _folders(files, place.folder) if (found := _dump_day(_DATED, entry))]
    if not dated and (current := files.stat(legacy.folder)) is not None and current.is_dir:
        return _current_dump(files, legacy.folder, wanted)
    looked = [place.folder, legacy.folder]
    return _choose(
        files, "dbs", day, [(when, time, _table_folders(path, wanted)) for when, time, path in dated], looked
    )


def choose_phedex_dump(files: Files, layout: Layout, day: date) -> Dump:
    """The PhEDEx snapshot of a log day, of one date the later. Its table is ``block_replicas``."""
    place = layout.dump_place("phedex", "snapshots")
    dated = []
    for entry in _folders(files, place.folder):
        match = _SNAPSHOT.fullmatch(entry.name)
        if match and (found := _dump_day(_SNAPSHOT, entry)):
            dated.append((found, match[4] or "", {"": entry.path, REPLICAS: entry.path}))
    return _choose(files, "phedex", day, dated, [place.folder])


def dump_at(files: Files, kind: str, folder: str, day: date, when: date | None, tables: Iterable[str]) -> Dump | None:
    """The dump in ``folder``, dated ``when``, as it was chosen before for ``day``; None where it is no longer whole."""
    if DUMPS[kind].is_one_folder:
        names = dict.fromkeys(DUMPS[kind].tables, folder)
    else:
        names = {table: join(folder, table) for table in sorted(set(tables))}
    there, lacking = _tables(files, names)
    if lacking:
        return None
    distance = None if when is None else abs((when - day).days)
    return Dump(kind, when, folder, there, distance, tuple(_far(kind, day, when)))


def _far(kind: str, day: date, when: date | None) -> list[str]:
    """A warning where the dump is far from the day."""
    if when is None or abs((when - day).days) <= FAR_DAYS:
        return []
    return [f"{kind}: the dump is of {when}, {abs((when - day).days)} days away from {day}"]


_Dated = tuple[date, str, dict[str, str]]


def _folders(files: Files, folder: str) -> list[Entry]:
    found = files.stat(folder)
    if found is None or not found.is_dir:
        return []
    return [entry for entry in files.list_dir(folder) if entry.is_dir and not is_hidden(entry.name)]


def _dump_day(pattern: re.Pattern[str], entry: Entry) -> date | None:
    match = pattern.fullmatch(entry.name)
    try:
        return date(int(match[1]), int(match[2]), int(match[3])) if match else None
    except ValueError:
        return None


def _table_folders(folder: str, tables: Iterable[str]) -> dict[str, str]:
    """The folder of each table, and of the dump itself under the empty name."""
    return {"": folder, **{table: join(folder, table) for table in tables}}


def _time_key(time: str) -> tuple[tuple[int, ...], str]:
    """Times of a snapshot's name in their order, padded or not (``9h05m`` before ``10h00m``)."""
    return tuple(int(part) for part in re.findall(r"\d+", time, re.ASCII)), time


def _preference(day: date, dated: Sequence[_Dated]) -> list[_Dated]:
    """Rule 17's order: after the day, nearest first; its own; before it, newest first; of one date the later time."""
    latest_first = sorted(dated, key=lambda one: _time_key(one[1]), reverse=True)
    after = sorted((one for one in latest_first if one[0] > day), key=lambda one: one[0])
    before = sorted((one for one in latest_first if one[0] <= day), key=lambda one: one[0], reverse=True)
    return [*after, *before]


def _choose(files: Files, kind: str, day: date, dated: Sequence[_Dated], looked: Sequence[str]) -> Dump:
    if not dated:
        raise InputMissing(
            f"a {kind} dump for {day} is wanted",
            where=" or ".join(shown(folder) for folder in looked),
            found="no dump at all",
            next_step="check --root, or the folders in the settings under sources",
        )
    skipped: list[str] = []
    for when, _, folders in _preference(day, dated):
        tables, lacking = _tables(files, folders)
        if lacking:
            skipped.append(f"{folders['']}: {'; '.join(lacking)}")
            continue
        warnings = [f"{kind}: a nearer dump was passed over, it is not complete: {told}" for told in skipped]
        warnings += _far(kind, day, when)
        return Dump(kind, when, folders[""], tables, abs((when - day).days), tuple(warnings))
    raise NotReady(
        f"a complete {kind} dump for {day} is wanted",
        where=" or ".join(shown(folder) for folder in looked),
        found=" | ".join(skipped[:3]) + (f" | and {len(skipped) - 3} more" if len(skipped) > 3 else ""),
        next_step="run again when the dump is written",
    )


def _current_dump(files: Files, folder: str, wanted: Sequence[str]) -> Dump:
    tables, lacking = _tables(files, _table_folders(folder, wanted))
    if lacking:
        raise NotReady(
            "a complete dbs dump is wanted",
            where=shown(folder),
            found="; ".join(lacking),
            next_step="run again when it is written",
        )
    return Dump("dbs", None, folder, tables, None)


def _tables(files: Files, folders: Mapping[str, str]) -> tuple[dict[str, tuple[InputFile, ...]], list[str]]:
    """The files of each table, and which tables are missing or empty."""
    tables: dict[str, tuple[InputFile, ...]] = {}
    lacking = []
    for table, folder in folders.items():
        if not table:
            continue
        found = files.stat(folder)
        if found is None or not found.is_dir:
            lacking.append(f"{table} is missing")
            continue
        listed, _, copying, _ = data_files(files, folder)
        if copying:
            lacking.append(f"{table} is still being copied")
        elif not hold_data(files, listed):
            lacking.append(f"{table} is empty")
        tables[table] = listed
    return tables, lacking
