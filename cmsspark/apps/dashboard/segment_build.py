"""Builds one segment of the rollups from the stored partials of some days.

A day is read once and reduced to its sums and its people, by numbers of names. These are
sorted by dataset over all days in :mod:`day_rows`, so memory does not grow with the rows
of a month, and written in that order. DuckDB makes the other tables of them.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import uuid
from collections.abc import Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.apps.dashboard import segment
from cmsspark.apps.dashboard.day_rows import Names, Rows, SortedParts, read_day
from cmsspark.apps.dashboard.query_process import NO_MEMORY, Child, answered, how_ended
from cmsspark.apps.dashboard.segment import (
    SET_TABLES,
    SUM_TABLES,
    SUMS,
    NameList,
    ResourceExhausted,
    find_exhaustion,
)
from cmsspark.base.errors import NotReady, OutputError
from cmsspark.base.memory import share_freed
from cmsspark.counting.packing import Codes, distinct, find_starts, pack
from cmsspark.sources.registry import STREAMS_OF_JOBS
from cmsspark.store.query.stored_parts import StoredInterval

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: Rows of a group: a few groups are read for a dataset or site.
_ROW_GROUP: Final = 30_720
#: Sets of people have a multiple of so many bits, so that most segments have equal ones.
_WIDTH: Final = 512
#: Sums that are smaller as floats fit into 64 bits.
_SAFE: Final = 2.0**62


def _sorted(numbers: Codes) -> tuple[npt.NDArray[np.intp], Codes]:
    """Return the order of numbers, and the numbers in it."""
    bits, largest = len(numbers).bit_length(), int(numbers.max(initial=0))
    if largest < 1 << 16:
        # Short numbers are sorted in one pass.
        order = np.argsort(numbers.astype(np.uint16), kind="stable")
        return order, numbers[order]
    if largest >= 1 << (62 - bits):
        order = np.argsort(numbers)
        return order, numbers[order]
    # Numbers are sorted several times as fast as their positions.
    both = np.sort(numbers << bits | np.arange(len(numbers)), kind="stable")
    return both & (1 << bits) - 1, both >> bits


class Groups:
    """Rows with the same keys: ``keys`` has those of each group, in order."""

    def __init__(self, keys: Sequence[Codes]) -> None:
        packed, _ = pack(keys, len(keys[0]))
        self._order, in_order = _sorted(packed)
        self._starts = np.flatnonzero(find_starts(in_order)[: len(packed)])
        first = self._order[self._starts]
        self.keys = [column[first] for column in keys]

    def sums(self, rows: Rows) -> Rows:
        """Return the additive columns of each group."""
        return sum_runs({name: rows[name][self._order] for name in (*SUMS, "has")}, self._starts)


def sum_runs(rows: Rows, starts: npt.NDArray[np.intp]) -> Rows:
    """Return the additive columns of the runs of rows that begin at ``starts``."""
    if not len(starts):
        return rows
    sums = {"has": np.bitwise_or.reduceat(rows["has"], starts)}
    for name in SUMS:
        values = rows[name]
        if values.dtype != object and values.sum(dtype=np.float64) > _SAFE:
            # Such numbers are absurd, but what a log says is summed exactly.
            values = values.astype(object)
        sums[name] = np.add.reduceat(values, starts)
    return sums


class Days:
    """What a segment needs of its days. Rows by dataset are in files of the folder
    ``scratch``.
    """

    def __init__(self, names: Names, scratch: Path) -> None:
        self.names = names
        self.days: list[int] = []
        self.totals = dict.fromkeys(SUMS, 0)
        self.detail = SortedParts(scratch / "detail")
        self.people = SortedParts(scratch / "people")
        #: Of each day the distinct (stream, site, person).
        self.at_sites: list[Rows] = []

    def add(self, entry: StoredInterval) -> list[str]:
        """Add a day, and return the ids of its pseudonym keys. Raises DataError (65)
        where it is damaged.
        """
        day = read_day(entry, self.names)
        rows = day.rows
        self.days.append(day.day)
        columns = ("dataset_name", "stream", "site_name", "app")
        groups = Groups([rows[name] for name in columns])
        dataset, *keys = groups.keys
        sums = groups.sums(rows)
        self.detail.add(dataset, dict(zip(columns[1:], keys, strict=True)) | sums)
        for name in SUMS:
            is_small = float(sums[name].sum(dtype=np.float64)) < _SAFE
            self.totals[name] += int(sums[name].sum()) if is_small else sum(sums[name].tolist())
        has_user = rows["user"] >= 0
        people = {name: rows[name][has_user] for name in (*columns[:3], "user")}
        people["site_tier"] = self.names.derived_codes("site_tier")[people["site_name"]]
        of_datasets = _distinct(people, ("dataset_name", "stream", "site_tier", "user"))
        self.people.add(of_datasets.pop("dataset_name"), of_datasets)
        self.at_sites.append(_distinct(people, ("stream", "site_name", "user")))
        return day.keys


def _distinct(rows: Rows, columns: Sequence[str]) -> Rows:
    """Return the distinct rows of some columns, in order."""
    packed, unpack = pack([rows[name] for name in columns], len(rows["user"]))
    numbers = (column.astype(np.int32) for column in unpack(distinct(packed)))
    return dict(zip(columns, numbers, strict=True))


#: What the system says of a full disk, and free bytes of one that is full.
_NO_SPACE: Final = os.strerror(errno.ENOSPC)
_FULL: Final = 16_000_000
#: Pages come first where both need the processors.
_NICE: Final = 5


def build(days: Sequence[StoredInterval], folder: Path, name: str) -> Path:
    """Build the segment of some stored days in ``folder``, and return its file, which
    appears only when it is complete: ``name``, the digest of its content, and a suffix.

    Raises DataError (65) where a day cannot be read or has another number of rows than
    its manifest says, OutputError (73) where the segment cannot be written.
    """
    import duckdb

    aside = folder / f".building-{uuid.uuid4().hex}"
    try:
        aside.mkdir(parents=True, mode=0o700)
        with segment.locked_names(folder) as stored_names:
            # Another dashboard may have built it meanwhile.
            if paths := sorted(folder.glob(f"{name}.*.duckdb")):
                return paths[0]
            names = Names(stored_names.names)
            path = _build(days, names, stored_names.id, aside)
            segment.write_names(folder, NameList(stored_names.id, names.lists))
            target = folder / f"{name}.{segment.file_digest(path)}.duckdb"
            os.rename(path, target)
        return target
    except (OSError, duckdb.Error) as error:
        if exhausted := None if isinstance(error, OSError) else find_exhaustion(error):
            raise exhausted from error
        raise unwritten(error, folder) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)


def unwritten(error: Exception, folder: Path) -> OutputError:
    """Return the error to raise where the rollups cannot be written."""
    # Libraries may say no more than that fewer bytes were written.
    text = str(getattr(error, "strerror", None) or error)
    is_full = getattr(error, "errno", None) is None and shutil.disk_usage(folder).free < _FULL
    return OutputError(
        "the rollups cannot be written",
        where=folder,
        found=_NO_SPACE if is_full or _NO_SPACE in text else " ".join(text.split())[:200],
        next_step="make room there: building goes on by itself within a minute",
    )


def _build(days: Sequence[StoredInterval], names: Names, names_id: str, folder: Path) -> Path:
    import duckdb
    import pyarrow as pa

    path, collected = folder / "segment", Days(names, folder)
    keys = [collected.add(entry) for entry in days]
    config: dict[str, str | bool | int | float | list[str]] = {
        "threads": 1,
        "memory_limit": "200MB",
        "temp_directory": str(folder / "spilled"),
    }
    with duckdb.connect(config=config) as con:
        con.execute("SET enable_progress_bar = false")
        con.execute(
            f"ATTACH '{str(path).replace(chr(39), chr(39) * 2)}' AS segment (ROW_GROUP_SIZE {_ROW_GROUP})"
        )
        con.execute("USE segment")
        about = {
            "day": [entry.first_day for entry in days],
            "run": [entry.run for entry in days],
            "keys": pa.array(keys, pa.list_(pa.string())),
            "names_id": [names_id] * len(days),
        }
        _insert(con, "days", about)
        _write_rows(con, collected)
        _write_tables(con, collected)
    return path


def _insert(con: duckdb.DuckDBPyConnection, table: str, columns: Mapping[str, Any]) -> None:
    """Add rows to a table of the segment, or to one of this connection (``TEMP``)."""
    import pyarrow as pa

    con.register("rows", pa.table(columns))
    kind, _, name = table.rpartition(" ")
    con.execute(f"CREATE {kind} TABLE IF NOT EXISTS {name} AS FROM rows LIMIT 0")
    con.execute(f"INSERT INTO {name} FROM rows")
    con.unregister("rows")


def _write_rows(con: duckdb.DuckDBPyConnection, collected: Days) -> None:
    """Write the rows by dataset, and those of people at sites, which are read once."""
    import pyarrow as pa

    names, days = collected.names, np.array(collected.days, np.int32)
    count = len(names.lists["dataset_name"])
    is_wide = {name: collected.totals[name] >= 1 << 63 for name in SUMS}

    def add(table: str, rows: Rows) -> None:
        columns: dict[str, Any] = {
            "dataset": rows["place"].astype(np.int32),
            "day": pa.array(days[rows["part"]]).cast(pa.date32()),
        }
        for name, values in rows.items():
            if name in SUMS:
                is_null = (rows["has"] >> SUMS.index(name) & 1) == 0
                columns[name] = _numbers(values, is_null, is_wide[name])
            elif name not in ("place", "part", "has"):
                columns["person" if name == "user" else name] = values
        _insert(con, table, columns)

    for batch in collected.detail.batches(count):
        add("detail", batch)
        # In these rows a dataset's days are in order.
        starts = np.flatnonzero(find_starts(batch["place"] << 32 | batch["part"]))
        starts = starts[: len(batch["place"])]
        of_days = {name: batch[name][starts] for name in ("place", "part")}
        add("dataset_days", of_days | sum_runs(batch, starts))
    for batch in collected.people.batches(count):
        add("people", batch)
    for day, rows in zip(days.tolist(), collected.at_sites, strict=True):
        of_day = pa.array(np.full(len(rows["user"]), day, np.int32)).cast(pa.date32())
        codes = {name: rows[name] for name in ("stream", "site_name")}
        _insert(con, "TEMP at_sites", {"day": of_day, **codes, "person": rows["user"]})
    for table, key, parts_of_name in (
        ("datasets", "dataset", ("data_tier", "campaign")),
        ("sites", "site_name", ("site_tier",)),
    ):
        derived_columns = {name: names.derived_codes(name) for name in parts_of_name}
        numbers = np.arange(len(next(iter(derived_columns.values()))), dtype=np.int32)
        _insert(con, f"TEMP {table}", {key: numbers, **derived_columns})


def _numbers(values: Any, is_null: Any, is_wide: bool) -> pa.Array:
    import pyarrow as pa

    if is_wide:
        cells = [None if null else int(value) for value, null in zip(values, is_null, strict=True)]
        return pa.array(cells, pa.decimal128(38, 0))
    return pa.array(values, pa.int64(), mask=is_null)


#: Table → the rows that its sums or sets are made of.
_SOURCES: Final[Mapping[str, str]] = {
    "cube": "(FROM detail JOIN datasets USING (dataset) JOIN sites USING (site_name))",
    "site_days": "(FROM detail JOIN datasets USING (dataset))",
    "site_totals": "site_days",
    "site_datasets": "detail",
    "dataset_sums": "(FROM site_datasets JOIN sites USING (site_name))",
    "dataset_totals": "dataset_sums",
    "cube_users": "(FROM people JOIN datasets USING (dataset))",
    "tier_users": "cube_users",
    "campaign_users": "cube_users",
    "site_users": "at_sites",
    "dataset_users": "people",
    "dataset_stream_users": "dataset_users",
    "dataset_tier_users": "dataset_users",
    "dataset_everyone": "dataset_tier_users",
}


def _write_tables(con: duckdb.DuckDBPyConnection, collected: Days) -> None:
    """Write the tables that are made of others, each in the order of its keys."""
    lists = collected.names.lists
    jobs = ", ".join(map(str, collected.names.codes("stream", STREAMS_OF_JOBS).tolist()))
    for name, source in _SOURCES.items():
        keys = ", ".join(SUM_TABLES.get(name) or SET_TABLES[name])
        if name in SUM_TABLES:
            cells = [
                f"sum({column})::{'BIGINT' if collected.totals[column] < 1 << 63 else 'DECIMAL(38, 0)'} AS {column}"
                for column in SUMS
            ]
            if "day" not in SUM_TABLES[name]:
                last = "day" if source == "detail" else "last_day"
                cells.append(f"max({last}) FILTER (nacc > 0 OR job_count > 0) AS last_day")
            con.execute(
                f"CREATE TABLE {name} AS SELECT {keys}, {', '.join(cells)} FROM {source} GROUP BY {keys} ORDER BY {keys}"
            )
        else:
            most = -(-max(1, len(lists["user"])) // _WIDTH) * _WIDTH - 1
            users = (
                "bit_or(users::BIT)"
                if source in SET_TABLES
                else f"bitstring_agg(person, 0, {most})"
            )
            is_of_all = "stream" not in keys and source != "dataset_tier_users"
            where = f"WHERE stream NOT IN ({jobs})" if is_of_all else ""
            columns = [
                f"{key} {'DATE' if key == 'day' else 'INTEGER'}" for key in SET_TABLES[name]
            ]
            # Packed sets take four times as long to read; they make files a third smaller.
            columns.append("users BLOB USING COMPRESSION uncompressed")
            con.execute(f"CREATE TABLE {name} ({', '.join(columns)})")
            con.execute(
                f"INSERT INTO {name} SELECT {keys}, {users}::BLOB FROM {source} {where} GROUP BY {keys} ORDER BY {keys}"
            )


class BuilderEnded(NotReady):
    """The process that builds segments ended before it was done, not for lack of memory
    (75).
    """


class RollupProcess:
    """Calls :func:`build` in a process that starts when needed and ends with :meth:`close`."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def __call__(self, days: Sequence[StoredInterval], folder: Path, name: str) -> Path:
        """Build a segment. Raises ResourceExhausted (75) if the process was killed or
        lacked memory, BuilderEnded (75) if it ended otherwise, else what the function
        raises.
        """
        if self._child is None or not self._child.is_alive:
            self._child = Child(_serve)
        child = self._child
        try:
            child.pipe.send((days, folder, name))
            path: Path = child.receive()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            code, self._child = child.exit_code, None
            is_killed = code == -signal.SIGKILL
            by = " by somebody, or by the system when memory is short" if is_killed else ""
            kind = ResourceExhausted if is_killed or code == NO_MEMORY else BuilderEnded
            raise kind(
                "the process that builds the rollups ended unexpectedly",
                found=how_ended(code) + by,
                next_step="it is started again by itself",
            ) from None
        return path

    def close(self) -> None:
        """End the process; what it builds is dropped."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()


def _serve(pipe: Connection) -> None:
    share_freed()
    with suppress(EOFError, OSError):
        values = pipe.recv()
        # Before the first segment no page waits for the processors.
        if any(values[1].glob("*.duckdb")):
            os.nice(_NICE)
        while True:
            pipe.send(answered(lambda values=values: build(*values)))  # type: ignore[misc]
            values = pipe.recv()
