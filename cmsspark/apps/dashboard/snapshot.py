"""One loaded state of the rollups: small tables in memory, large ones read from Parquet
by name of dataset or site.

A snapshot never changes. When the store grows, the next one is loaded beside it, and
requests that have begun finish with the old one.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import Future
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np

from cmsspark.apps.dashboard import dataset_tables, user_sets
from cmsspark.apps.dashboard.dataset_tables import DatasetTables
from cmsspark.apps.dashboard.rollups import RollupState
from cmsspark.apps.dashboard.segment import BIT_FILES, SUMS, Segment, hold, reading_rollups
from cmsspark.apps.dashboard.user_sets import UserTable
from cmsspark.sources.registry import STREAMS_OF_JOBS

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

T = TypeVar("T")
#: Columns whose few values are kept as numbers.
DIMENSIONS: Final = ("stream", "site_tier", "data_tier", "campaign", "site_name")
_EPOCH: Final = date(1970, 1, 1)
_KEPT_RESULTS: Final = 256


def day_number(day: date) -> int:
    """Days since 1970."""
    return (day - _EPOCH).days


def to_day(number: int) -> date:
    """Return the day of a number of days since 1970."""
    return _EPOCH + timedelta(days=int(number))


@dataclass
class Snapshot:
    """The rollups as pages query them.

    ``state``: the segments, and the days that are left out or partial. ``names``:
    dimension → its values, sorted. ``pseudonyms``: the number of all users.
    ``datasets``: what is known of each dataset.
    """

    state: RollupState
    con: duckdb.DuckDBPyConnection
    names: Mapping[str, list[str]]
    pseudonyms: int
    user_tables: Mapping[str, list[UserTable]]
    datasets: DatasetTables
    _results: OrderedDict[Any, Future[Any]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)
    _lists: list[UserTable] | None = None

    @cached_property
    def days(self) -> list[date]:
        """The days that it holds, in order."""
        return sorted(self.state.runs)

    @cached_property
    def stored_days(self) -> list[date]:
        """All days that the store has, in order, also those that cannot be read and
        those that are not summed up yet.
        """
        return sorted({*self.days, *self.state.faults, *self.state.pending})

    @property
    def segments(self) -> tuple[Segment, ...]:
        return self.state.segments

    @property
    def has_jobs(self) -> bool:
        """Whether any stored day has a stream of jobs."""
        return any(name in STREAMS_OF_JOBS for name in self.names["stream"])

    def query(self, sql: str, parameters: Sequence[Any] = ()) -> list[tuple[Any, ...]]:
        """Return the rows of a query; any thread may call it."""
        with reading_rollups(), self.con.cursor() as cursor:
            return cursor.execute(sql, list(parameters)).fetchall()

    def arrow(self, sql: str, parameters: Sequence[Any] = ()) -> pa.Table:
        """Return the rows of a query as an Arrow table; any thread may call it."""
        with reading_rollups(), self.con.cursor() as cursor:
            return cursor.sql(sql, params=list(parameters)).to_arrow_table()

    def cached(self, key: Any, make: Callable[[], T]) -> T:
        """``make()``, or its last result for the same key: a snapshot never changes, so
        results do not, either.

        Requests for a key that is being made wait for it: several people who ask the
        same question cost one answer.
        """
        with self._lock:
            result: Future[T] | None = self._results.get(key)
            is_own = result is None
            if result is None:
                result = self._results[key] = Future()
            self._results.move_to_end(key)
            while len(self._results) > _KEPT_RESULTS:
                self._results.popitem(last=False)
        if is_own:
            try:
                result.set_result(make())
            except BaseException as error:
                with self._lock:
                    self._results.pop(key, None)
                result.set_exception(error)
        return result.result()

    def files(self, name: str, first: date, last: date) -> list[str]:
        """Return the files of a rollup whose segments have days of the period."""
        chosen = [
            segment
            for segment in self.segments
            if segment.days[0] <= last and segment.days[-1] >= first
        ]
        return [segment.file(name) for segment in chosen]

    def split(self, first: date, last: date) -> tuple[list[int], list[Segment]]:
        """Return the numbers of segments that lie within the period, and the segments
        that it cuts.
        """
        inside, cut = [], []
        for number, segment in enumerate(self.segments):
            begin, end = segment.days[0], segment.days[-1]
            if first <= begin and end <= last:
                inside.append(number)
            elif begin <= last and end >= first:
                cut.append(segment)
        return inside, cut

    def code(self, column: str, value: str) -> int:
        """Return the number of a dimension's value; -1 where no access has it."""
        names = self.names[column]
        return names.index(value) if value in names else -1

    def lists(self) -> list[UserTable]:
        """Return the users of each day, stream, tiers and campaign, loaded when first needed."""
        import pyarrow.parquet as pq

        with self._lock, reading_rollups():
            if self._lists is None:
                ids = [table.global_ids for table in self.user_tables["tier_users"]]
                columns = ("day", "stream", "site_tier", "data_tier", "campaign")
                files = [segment.file("cube_users") for segment in self.segments]
                # One at a time: those of a year are large.
                tables = (
                    pq.read_table(file, columns=[*columns, "users"], partitioning=None)
                    for file in files
                )
                self._lists = [
                    user_sets.from_lists(rows, _codes(rows, self.names), user_ids)
                    for user_ids, rows in zip(ids, tables, strict=True)
                ]
            return self._lists

    def find_keys(self, first: date, last: date) -> set[str]:
        """Return the ids of the pseudonym keys of the days of a period: users of two
        keys cannot be told apart.
        """
        return {
            key
            for key, days in self.days_of_keys.items()
            if any(first <= day <= last for day in days)
        }

    @cached_property
    def days_of_keys(self) -> dict[str, list[date]]:
        """The days of each pseudonym key, in order."""
        days: dict[str, list[date]] = {}
        for segment in self.segments:
            for day, keys in segment.index.keys.items():
                for key in keys:
                    days.setdefault(key, []).append(date.fromisoformat(day))
        return days


def load(state: RollupState, threads: int = 2) -> Snapshot:
    """Load the segments of a state. Raises duckdb.Error where a file is damaged or gone."""
    import duckdb
    import pyarrow as pa

    con = duckdb.connect(
        ":memory:",
        config={"memory_limit": "450MB", "threads": threads, "preserve_insertion_order": "false"},
    )
    segments = state.segments
    con.execute("SET parquet_metadata_cache = true")
    con.execute("SET enable_progress_bar = false")
    names = {name: _values(con, segments, name) for name in DIMENSIONS}
    datasets = dataset_tables.load(segments)
    for name, values in names.items():
        con.register("enum_values", pa.table({"value": pa.array(values or [""], pa.string())}))
        con.execute(f"CREATE TYPE {name}_enum AS ENUM (SELECT value FROM enum_values)")
        con.unregister("enum_values")
    _load_cube(con, segments)
    _load_sites(con, segments)
    users, tables = _load_users(con, segments, names)
    names["dataset_name"] = datasets.names
    loaded = Snapshot(state, con, names, users, tables, datasets)
    hold([segment.folder for segment in segments], loaded)
    return loaded


def _values(con: duckdb.DuckDBPyConnection, segments: Sequence[Segment], column: str) -> list[str]:
    if not segments:
        return []
    file = "site_days" if column == "site_name" else "cube"
    paths = [segment.file(file) for segment in segments]
    rows = con.execute(
        f"SELECT DISTINCT {column} FROM read_parquet(?) ORDER BY 1", [paths]
    ).fetchall()
    return [row[0] for row in rows]


def _load_cube(con: duckdb.DuckDBPyConnection, segments: Sequence[Segment]) -> None:
    keys = ("stream", "site_tier", "data_tier", "campaign")
    columns = (
        ", ".join(f"{name} {name}_enum" for name in keys)
        + ", "
        + _sum_columns(con, segments, "cube")
    )
    con.execute(f"CREATE TABLE cube (day DATE, {columns})")
    for segment in segments:
        con.execute(
            f"INSERT INTO cube SELECT day, {', '.join((*keys, *SUMS))} FROM read_parquet(?)",
            [segment.file("cube")],
        )


def _load_sites(con: duckdb.DuckDBPyConnection, segments: Sequence[Segment]) -> None:
    """``site_totals``: sums by day, site and stream."""
    columns = _sum_columns(con, segments, "site_days", wide=True)
    con.execute(
        f"CREATE TABLE site_totals (day DATE, site_name site_name_enum, stream stream_enum, {columns})"
    )
    sums = ", ".join(f"sum({name})" for name in SUMS)
    for segment in segments:
        con.execute(
            f"INSERT INTO site_totals SELECT day, site_name, stream, {sums} FROM read_parquet(?) GROUP BY ALL",
            [segment.file("site_days")],
        )


def _sum_columns(
    con: duckdb.DuckDBPyConnection, segments: Sequence[Segment], name: str, *, wide: bool = False
) -> str:
    """Return the definitions of the sums: 64 bits, or 128 where a segment has larger ones."""
    large: set[str] = set(SUMS) if wide else set()
    for segment in segments:
        rows = con.execute(
            "DESCRIBE SELECT * FROM read_parquet(?)", [segment.file(name)]
        ).fetchall()
        large |= {row[0] for row in rows if str(row[1]).startswith("DECIMAL")}
    return ", ".join(f"{column} {'HUGEINT' if column in large else 'BIGINT'}" for column in SUMS)


def _load_users(
    con: duckdb.DuckDBPyConnection, segments: Sequence[Segment], names: Mapping[str, list[str]]
) -> tuple[int, dict[str, list[UserTable]]]:
    import pyarrow.parquet as pq

    numbers: dict[str, int] = {}
    tables: dict[str, list[UserTable]] = {name: [] for name in BIT_FILES}
    for segment in segments:
        sql = "SELECT user_key FROM read_parquet(?) ORDER BY user_id"
        user_keys = con.execute(sql, [segment.file("users")]).fetchall()
        ids = np.fromiter(
            (numbers.setdefault(row[0], len(numbers)) for row in user_keys),
            np.int64,
            len(user_keys),
        )
        for name, keys in BIT_FILES.items():
            rows = pq.read_table(segment.file(name), columns=[*keys, "users"], partitioning=None)
            tables[name].append(user_sets.from_bits(rows, _codes(rows, names), ids))
    return len(numbers), tables


def _codes(rows: pa.Table, names: Mapping[str, list[str]]) -> dict[str, user_sets.Codes]:
    import pyarrow as pa
    import pyarrow.compute as pc

    codes = {}
    for column in rows.column_names:
        if column == "day":
            codes[column] = rows[column].cast(pa.int32()).to_numpy()
        elif column != "users":
            positions = pc.index_in(
                rows[column].cast(pa.string()), value_set=pa.array(names[column], pa.string())
            )
            codes[column] = positions.to_numpy().astype(np.int32)
    return codes
