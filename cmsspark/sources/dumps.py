"""Selection of the dump for a log day (``docs/counting.md``, rule 17)."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from datetime import date
from typing import Final, NamedTuple

import msgspec
from msgspec.structs import replace

from cmsspark.base.errors import InputMissing, NotReady
from cmsspark.filesystems.storage import Files, join
from cmsspark.sources.layout import (
    REPLICAS_ROLE,
    InputFile,
    Layout,
    absence,
    data_files,
    digest,
    hold_data,
    is_hidden,
    shown,
)
from cmsspark.sources.registry import DUMPS, REPLICAS, TASKS, find_dump_kind

#: A dump that is further away than this many days gives a warning.
FAR_DAYS: Final = 7
#: Year, month, day, and the time of a snapshot.
_DATED: Final = re.compile(r"(\d{4})-(\d{2})-(\d{2})()", re.ASCII)
_SNAPSHOT: Final = re.compile(r"time=(\d{4})-(\d{2})-(\d{2})(?:_(.*))?", re.ASCII | re.DOTALL)


class Dump(msgspec.Struct, frozen=True):
    """The dump of a log day: ``kind`` dbs, phedex or rucio; ``day`` and
    ``distance_days`` are None for ``current``.
    """

    kind: str
    day: date | None
    folder: str
    tables: Mapping[str, tuple[InputFile, ...]]
    distance_days: int | None
    warnings: tuple[str, ...] = msgspec.field(default=())

    @property
    def size(self) -> int:
        """Bytes of all files."""
        return sum(file.size for files in self.tables.values() for file in files)

    def table_folder(self, table: str) -> str:
        """Return the folder with the table's files."""
        return _table_folder(self.kind, self.folder, table)

    def fingerprint(self, tables: Iterable[str] | None = None) -> str:
        """Return a digest over path, size and mtime of each file of ``tables``
        (default: all tables).
        """
        names = sorted(self.tables if tables is None else tables)
        return digest({name: self.tables[name] for name in names})

    def identity(self, tables: Iterable[str] | None = None) -> str:
        """Return :meth:`fingerprint` with the versions of local files: what is cached of
        a dump does not outlive a file that was replaced by one of its size and mtime.
        """
        names = sorted(self.tables if tables is None else tables)
        versions = [file.version for name in names for file in sorted(self.tables[name])]
        return self.fingerprint(names) + (repr(versions) if any(map(any, versions)) else "")


def choose_dbs_dump(files: Files, layout: Layout, day: date, tables: Iterable[str]) -> Dump:
    """Return the DBS dump of a log day with the files of ``tables``.

    It is the first complete dump dated after the day, else that of the day, else the
    newest before it. The legacy ``current`` is used only if no dated dump exists.
    Raises InputMissing (66) if there is no dump, NotReady (75) where none is
    complete.
    """
    required = sorted(set(tables))
    location, legacy = layout.dump_location("dbs", "dated"), layout.dump_location("dbs", "current")
    dated = _dated(files, location.folder, _DATED)
    if not dated and (current := files.stat(legacy.folder)) is not None and current.is_dir:
        tables, incomplete = _tables(files, "dbs", legacy.folder, required)
        if incomplete:
            raise NotReady(
                "no complete dbs dump",
                where=shown(legacy.folder),
                found="; ".join(incomplete),
                next_step="run again when it is written",
            )
        return Dump("dbs", None, legacy.folder, tables, None)
    return _choose(files, "dbs", day, dated, required, [location.folder, legacy.folder])


def choose_phedex_dump(files: Files, layout: Layout, day: date) -> Dump:
    """Return the PhEDEx snapshot of a log day, the latest of its date. Its table is
    ``block_replicas``.
    """
    folder = layout.dump_location("phedex", "snapshots").folder
    return _choose(files, "phedex", day, _dated(files, folder, _SNAPSHOT), (REPLICAS,), [folder])


def choose_rucio_dump(files: Files, layout: Layout, day: date, tables: Iterable[str] = ()) -> Dump:
    """Return the Rucio dump of a log day (rule 22) with the files of ``tables``, by
    default of those that replicas need.

    Its tables are written one by one, so that a day whose dump is being written is
    skipped as incomplete.
    """
    folder = layout.dump_location("rucio", "dated").folder
    required = sorted(set(tables) or DUMPS["rucio"].for_streams)
    return _choose(files, "rucio", day, _dated(files, folder, _DATED), required, [folder])


def choose_task_dump(files: Files, layout: Layout, day: date) -> Dump:
    """Return the tasks of CRAB of a log day. Their table is ``TASKS``."""
    folder = layout.dump_location(TASKS.name, "dated").folder
    return _choose(files, TASKS.name, day, _dated(files, folder, _DATED), TASKS.tables, [folder])


def with_tables(files: Files, dump: Dump, tables: Iterable[str]) -> Dump:
    """Return the dump with those of other tables that it has, complete."""
    listed: dict[str, tuple[InputFile, ...]] = {}
    for table in tables:
        of_table, incomplete = _tables(files, dump.kind, dump.folder, [table])
        listed |= {} if incomplete else of_table
    return replace(dump, tables={**dump.tables, **listed})


def newest_rucio_dump(files: Files, layout: Layout) -> str | None:
    """Return the folder of the newest dump of Rucio; None without any."""
    dated = _dated(files, layout.dump_location("rucio", "dated").folder, _DATED)
    return max(dated, key=lambda dump: dump.day).folder if dated else None


def incomplete_tables(
    files: Files, kind: str, folder: str, tables: Iterable[str]
) -> dict[str, str]:
    """Return which of the tables a dump's folder lacks, or has empty, with the reason."""
    reasons = {table: _tables(files, kind, folder, [table])[1] for table in tables}
    return {table: reason[0] for table, reason in reasons.items() if reason}


def find_rucio_dump(files: Files, layout: Layout, day: date, tables: Iterable[str]) -> Dump | None:
    """Return the dump of Rucio that is dated ``day``; None if there is none with these tables."""
    folder = join(layout.dump_location("rucio", "dated").folder, day.isoformat())
    return dump_at(files, "rucio", folder, day, day, tables)


def choose_replica_dump(
    files: Files, layout: Layout, day: date, tables: Iterable[str] = ()
) -> Dump:
    """Return the dump of the source that serves the replicas of a log day (rule 28).
    ``tables``: of Rucio, where it is that.

    Raises InputMissing (66) if that source has none, whatever the others have.
    """
    source = layout.epochs.source(REPLICAS_ROLE, day)
    try:
        if source == "rucio":
            return choose_rucio_dump(files, layout, day, tables)
        if source == "phedex":
            return choose_phedex_dump(files, layout, day)
    except InputMissing as error:
        observed = f"{error.found}; {layout.epochs.why(REPLICAS_ROLE, day)}"
        raise error.with_parts(found=observed) from None
    raise InputMissing(
        f"no replicas for {day}",
        found=layout.epochs.why(REPLICAS_ROLE, day),
        next_step="see epochs in docs/feeds.md",
    )


def dump_at(
    files: Files, kind: str, folder: str, day: date, when: date | None, tables: Iterable[str]
) -> Dump | None:
    """Return the dump in ``folder``, dated ``when``, that was chosen for ``day``; None
    if incomplete now.
    """
    described = find_dump_kind(kind)
    names = described.tables if described.is_one_folder else sorted(set(tables))
    listed, incomplete = _tables(files, kind, folder, names)
    if incomplete:
        return None
    distance = None if when is None else abs((when - day).days)
    return Dump(kind, when, folder, listed, distance, tuple(_far(kind, day, when)))


def _far(kind: str, day: date, dump_day: date | None) -> list[str]:
    """Return a warning where the dump is far from the day."""
    if dump_day is None or abs((dump_day - day).days) <= FAR_DAYS:
        return []
    return [
        f"{kind}: the dump is of {dump_day}, {abs((dump_day - day).days)} days away from {day}"
    ]


class _Dated(NamedTuple):
    """A dump that a folder's name dates. ``time``: the time in the name of a snapshot."""

    day: date
    time: str
    folder: str


def _dated(files: Files, folder: str, pattern: re.Pattern[str]) -> list[_Dated]:
    parent = files.stat(folder)
    dated = []
    for entry in files.list_dir(folder) if parent is not None and parent.is_dir else ():
        match = pattern.fullmatch(entry.name)
        if match and entry.is_dir and not is_hidden(entry.name):
            year, month, day, time = match.groups()
            with suppress(ValueError):
                dated.append(_Dated(date(int(year), int(month), int(day)), time or "", entry.path))
    return dated


def _table_folder(kind: str, folder: str, table: str) -> str:
    described = find_dump_kind(kind)
    return folder if described.is_one_folder else join(folder, described.table_folder(table))


def _choose(
    files: Files,
    kind: str,
    day: date,
    dated: Sequence[_Dated],
    required: Sequence[str],
    searched: Sequence[str],
) -> Dump:
    if not dated:
        raise InputMissing(
            f"no {kind} dump for {day}",
            where=" or ".join(shown(folder) for folder in searched),
            found=absence(files, searched[0], "no dump at all"),
            next_step="check --root, or the folders in the settings under sources",
        )
    skipped: list[str] = []
    # The order of rule 17: later days, nearest first; the same day; earlier days,
    # newest first.
    latest_first = sorted(
        dated,
        key=lambda dump: (
            tuple(int(part) for part in re.findall(r"\d+", dump.time, re.ASCII)),
            dump.time,
        ),
        reverse=True,
    )
    after = sorted((dump for dump in latest_first if dump.day > day), key=lambda dump: dump.day)
    before = sorted(
        (dump for dump in latest_first if dump.day <= day), key=lambda dump: dump.day, reverse=True
    )
    for dump_day, _, folder in [*after, *before]:
        tables, incomplete = _tables(files, kind, folder, required)
        if incomplete:
            skipped.append(f"{folder}: {'; '.join(incomplete)}")
            continue
        warnings = [
            f"{kind}: a nearer dump was skipped because it is incomplete: {reason}"
            for reason in skipped
        ]
        warnings += _far(kind, day, dump_day)
        return Dump(kind, dump_day, folder, tables, abs((dump_day - day).days), tuple(warnings))
    raise NotReady(
        f"no complete {kind} dump for {day}",
        where=" or ".join(shown(folder) for folder in searched),
        found=" | ".join(skipped[:3])
        + (f" | and {len(skipped) - 3} more" if len(skipped) > 3 else ""),
        next_step="run again when the dump is written",
    )


def _tables(
    files: Files, kind: str, folder: str, names: Iterable[str]
) -> tuple[dict[str, tuple[InputFile, ...]], list[str]]:
    """Return the files of each table, and which tables are missing or empty."""
    tables: dict[str, tuple[InputFile, ...]] = {}
    incomplete = []
    for table in names:
        of_table = _table_folder(kind, folder, table)
        entry = files.stat(of_table)
        if entry is None or not entry.is_dir:
            incomplete.append(f"{table} is missing")
            continue
        listed, _, copying, _ = data_files(files, of_table)
        if copying:
            incomplete.append(f"{table} is still being copied")
        elif not hold_data(files, listed):
            incomplete.append(f"{table} is empty")
        tables[table] = listed
    return tables, incomplete
