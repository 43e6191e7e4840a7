"""One loaded state of the rollups: its segments attached to one DuckDB, small tables in
memory.

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
import numpy.typing as npt

from cmsspark.apps.dashboard.rollups import RollupState
from cmsspark.apps.dashboard.segment import (
    SET_TABLES,
    SUM_TABLES,
    SUMS,
    RollupsDamagedError,
    Segment,
    derive_part,
    hold,
    read_names,
    reading_rollups,
)
from cmsspark.sources.registry import STREAMS_OF_JOBS

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

T = TypeVar("T")
Numbers = npt.NDArray[np.int64]
#: Columns whose few values are kept as numbers.
DIMENSIONS: Final = ("stream", "site_tier", "data_tier", "campaign", "site_name")
#: Tables that are kept in memory, as most pages read them: a query over all segments has
#: a millisecond of planning for each.
_IN_MEMORY: Final = (
    *("cube", "site_totals", "dataset_totals"),
    *("tier_users", "campaign_users", "site_users"),
)
_EPOCH: Final = date(1970, 1, 1)
_KEPT_RESULTS: Final = 256


def day_number(day: date) -> int:
    """Days since 1970."""
    return (day - _EPOCH).days


def to_day(number: int) -> date:
    """Return the day of a number of days since 1970."""
    return _EPOCH + timedelta(days=int(number))


@dataclass
class Datasets:
    """The datasets of a snapshot. ``names``: of all, in order; a dataset's code is its
    position. ``numbers``: code → number in the segments; ``codes``: the other way round.

    ``last_days``: the last day on which an access or a job read each, as days since
    1970; -1 where none did. ``parts``: derived column → the part of each name.
    """

    names: list[str]
    numbers: Numbers
    codes: Numbers
    last_days: Numbers
    parts: Mapping[str, npt.NDArray[Any]]

    @cached_property
    def positions(self) -> dict[str, int]:
        """Name → code."""
        return {name: code for code, name in enumerate(self.names)}

    @cached_property
    def texts(self) -> dict[int, str]:
        """Number in the segments → name."""
        return dict(zip(self.numbers.tolist(), self.names, strict=True))

    def number(self, name: str) -> int:
        """Return the number of a dataset in the segments; -1 where none has it."""
        code = self.positions.get(name)
        return -1 if code is None else int(self.numbers[code])


@dataclass
class Snapshot:
    """The rollups as pages query them.

    ``state``: the segments, and the days that are left out or partial. ``names``:
    dimension → its values, sorted. ``widths``: the bytes of each segment's sets of people.
    ``days_of_keys``: the days of each pseudonym key.
    """

    state: RollupState
    con: duckdb.DuckDBPyConnection
    widths: Sequence[int]
    days_of_keys: Mapping[str, Sequence[date]]
    names: dict[str, list[str]] = field(default_factory=dict)
    datasets: Datasets = field(init=False)
    _results: OrderedDict[Any, Future[Any]] = field(default_factory=OrderedDict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

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

    @cached_property
    def kinds(self) -> dict[str, str]:
        """The type of sums of each additive column: 64 bits where all of them fit."""
        totals = self.query(f"SELECT {', '.join(f'sum({name})' for name in SUMS)} FROM cube")[0]
        return {
            name: "BIGINT" if int(total or 0) < 1 << 62 else "HUGEINT"
            for name, total in zip(SUMS, totals, strict=True)
        }

    def rows(
        self, table: str, segments: Sequence[int] | None = None, *, is_stored: bool = False
    ) -> str:
        """Return in SQL the rows of a table of some segments, by default of all.
        ``is_stored``: of the files themselves.
        """
        if segments is None:
            segments = range(len(self.segments))
        if not segments:
            return f"(FROM s0.{table} LIMIT 0)"
        if table in _IN_MEMORY and not is_stored:
            numbers = ", ".join(map(str, segments))
            is_part = len(segments) < len(self.segments)
            return f"(FROM {table} WHERE segment IN ({numbers}))" if is_part else table
        parts = [f"FROM s{number}.{table}" for number in segments]
        if table in SET_TABLES:
            # Sets that meet have equal lengths.
            width = max(self.widths)
            parts = [
                part
                if self.widths[number] == width
                else f"SELECT * REPLACE (users || repeat('\\x00', {width - self.widths[number]})::BLOB AS users) {part}"
                for part, number in zip(parts, segments, strict=True)
            ]
        return f"({' UNION ALL '.join(parts)})"

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

    def split(self, first: date, last: date) -> tuple[list[int], list[int]]:
        """Return the numbers of the segments that lie within the period, and of those
        that it cuts.
        """
        inside, cut = [], []
        for number, segment in enumerate(self.segments):
            begin, end = segment.days[0], segment.days[-1]
            if first <= begin and end <= last:
                inside.append(number)
            elif begin <= last and end >= first:
                cut.append(number)
        return inside, cut

    def find_keys(self, first: date, last: date) -> set[str]:
        """Return the ids of the pseudonym keys of the days of a period: users of two
        keys cannot be told apart.
        """
        return {
            key
            for key, days in self.days_of_keys.items()
            if any(first <= day <= last for day in days)
        }


def load(state: RollupState) -> Snapshot:
    """Load the segments of a state.

    Raises RollupsDamagedError (75) where their names are those of another list, OSError
    or duckdb.Error where a file is damaged or gone.
    """
    import duckdb

    # Each query has the thread that asks: two take up to three times the processor time
    # for rows of many segments, and eight people have two processors.
    con = duckdb.connect(
        ":memory:",
        config={"memory_limit": "250MB", "threads": 1, "preserve_insertion_order": "false"},
    )
    con.execute("SET enable_progress_bar = false")
    for number, segment in enumerate(state.segments):
        path = str(segment.path).replace("'", "''")
        con.execute(f"ATTACH '{path}' AS s{number} (READ_ONLY)")
    widths, keys, ids = _read_about(con, state)
    loaded = Snapshot(state, con, widths, keys)
    hold([segment.path for segment in state.segments], loaded)
    stored = read_names(state.segments[0].path.parent) if state.segments else None
    if ids - {stored.id if stored else None}:
        raise RollupsDamagedError("the names of the rollups are damaged or gone")
    _load_tables(loaded)
    loaded.datasets = _load_datasets(loaded, stored.datasets if stored else [])
    loaded.names["dataset_name"] = loaded.datasets.names
    return loaded


def _read_about(
    con: duckdb.DuckDBPyConnection, state: RollupState
) -> tuple[list[int], dict[str, list[date]], set[str]]:
    """Return the bytes of each segment's sets, the days of each pseudonym key, and the
    ids of the lists of names that the segments use.
    """
    widths: list[int] = []
    days_of_keys: dict[str, list[date]] = {}
    ids: set[str] = set()
    for number in range(len(state.segments)):
        rows = con.execute(
            f"SELECT day, keys, names_id FROM s{number}.days ORDER BY day"
        ).fetchall()
        for day, keys, names_id in rows:
            ids.add(names_id)
            for key in keys:
                days_of_keys.setdefault(key, []).append(day)
        width = con.execute(
            f"SELECT octet_length(users) FROM s{number}.tier_users LIMIT 1"
        ).fetchall()
        widths.append(width[0][0] if width else 0)
    return widths, days_of_keys, ids


def _load_tables(loaded: Snapshot) -> None:
    """Copy small tables into memory, with numbers for texts of few values."""
    loaded.names = {name: [] for name in DIMENSIONS}
    if not loaded.segments:
        return
    sources = {
        table: " UNION ALL ".join(
            f"SELECT {number} AS segment, * FROM {loaded.rows(table, [number], is_stored=True)}"
            for number in range(len(loaded.segments))
        )
        for table in _IN_MEMORY
    }
    for name in DIMENSIONS:
        source = sources["site_totals" if name == "site_name" else "cube"]
        loaded.con.execute(
            f"CREATE TYPE {name}_enum AS ENUM (SELECT DISTINCT {name} FROM ({source}) ORDER BY 1)"
        )
        values = loaded.query(f"SELECT unnest(enum_range(NULL::{name}_enum))")
        loaded.names[name] = [row[0] for row in values]
    for table, source in sources.items():
        kinds = {name: f"{name}_enum" for name in {**SUM_TABLES, **SET_TABLES}[table]}
        kinds = {name: kind for name, kind in kinds.items() if name in DIMENSIONS}
        if table in SET_TABLES:
            kinds["users"] = "BIT"
        casts = ", ".join(f"{name}::{kind} AS {name}" for name, kind in kinds.items())
        replaced = f" REPLACE ({casts})" if casts else ""
        loaded.con.execute(f"CREATE TABLE {table} AS SELECT *{replaced} FROM ({source})")


def _load_datasets(loaded: Snapshot, stored: Sequence[str]) -> Datasets:
    """Return the datasets that the segments have, of all names of their list."""
    import pyarrow as pa

    last_days = np.full(len(stored), -2, np.int64)
    if loaded.segments:
        rows = loaded.arrow(
            "SELECT dataset, coalesce(max(last_day) - DATE '1970-01-01', -1) AS last "
            f"FROM {loaded.rows('dataset_totals')} GROUP BY 1"
        )
        last_days[rows["dataset"].to_numpy()] = rows["last"].to_numpy()
    present = np.flatnonzero(last_days > -2)
    numbers = np.array(sorted(present.tolist(), key=stored.__getitem__), np.int64)
    codes = np.full(len(stored), -1, np.int64)
    codes[numbers] = np.arange(len(numbers))
    names = [stored[number] for number in numbers]
    parts = {
        column: np.array([derive_part(column, name) for name in names], dtype=object)
        for column in ("data_tier", "campaign")
    }
    loaded.con.register("dataset_parts", pa.table({"dataset": numbers, **parts}))
    loaded.con.execute("CREATE TABLE datasets AS FROM dataset_parts")
    loaded.con.unregister("dataset_parts")
    return Datasets(names, numbers, codes, last_days[numbers], parts)
