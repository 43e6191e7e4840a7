"""One loaded state of the rollups: its segments attached to one DuckDB, small tables in
memory.

A snapshot never changes. When the store grows, the next one is loaded beside it, and
requests that have begun finish with the old one.
"""

from __future__ import annotations

import threading
import uuid
from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping, Sequence
from concurrent.futures import Future
from contextlib import contextmanager, suppress
from datetime import date, timedelta
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final, TypeVar

import msgspec
import pyarrow as pa

from cmsspark.apps.dashboard.rollups import RollupState
from cmsspark.apps.dashboard.segment import (
    SET_TABLES,
    SPILLED,
    SUMS,
    RollupsDamagedError,
    Segment,
    hold,
    part_sql,
    read_names,
    reading_rollups,
)
from cmsspark.sources.registry import STREAMS_OF_JOBS

if TYPE_CHECKING:
    import duckdb

T = TypeVar("T")
#: Columns that filters choose from.
DIMENSIONS: Final = ("stream", "site_tier", "data_tier", "campaign", "site_name")
#: Columns of few names, which tables have as numbers.
CODED: Final = (*DIMENSIONS, "app")
#: Tables that are kept in memory, as most pages read them: a query over all segments has
#: a millisecond of planning for each. Packed sums take a third of the room, and sets are
#: read in half the time as they are.
_IN_MEMORY: Final[Mapping[str, str]] = {
    **{table: f"packed.{table}" for table in ("cube", "site_totals", "dataset_totals")},
    **{table: f"memory.{table}" for table in ("tier_users", "campaign_users", "site_users")},
}
#: Bytes that queries may take beside the tables in memory, also for blocks of the files: with
#: 64 MB a page of a year reads its blocks, some 45 MB, several times.
_FOR_QUERIES: Final = 96_000_000
_EPOCH: Final = date(1970, 1, 1)
_KEPT_RESULTS: Final = 256


def day_number(day: date) -> int:
    """Days since 1970."""
    return (day - _EPOCH).days


def to_day(number: int) -> date:
    """Return the day of a number of days since 1970."""
    return _EPOCH + timedelta(days=int(number))


class Snapshot(msgspec.Struct, dict=True, weakref=True):
    """The rollups as pages query them.

    ``state``: the segments, and the days that are left out or partial. ``names``:
    dimension → its values, sorted. ``widths``: the bytes of each segment's sets of people.
    ``days_of_keys``: the days of each pseudonym key. ``texts``: column → the name of each
    number in the segments. ``datasets``: name → its number, in the order of names;
    ``dataset_names``: the name of each number.
    """

    state: RollupState
    con: duckdb.DuckDBPyConnection
    widths: Sequence[int]
    days_of_keys: Mapping[str, Sequence[date]]
    texts: Mapping[str, list[str]]
    names: dict[str, list[str]] = msgspec.field(default_factory=dict)
    datasets: dict[str, int] = msgspec.field(default_factory=dict)
    dataset_names: pa.Array = msgspec.field(default=None)
    _results: OrderedDict[Any, Future[Any]] = msgspec.field(default_factory=OrderedDict)
    _lock: threading.Lock = msgspec.field(default_factory=threading.Lock)

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
        totals = self.query(
            f"SELECT {', '.join(f'sum({name})' for name in SUMS)} FROM {self.rows('cube')}"
        )[0]
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
            numbers, relation = ", ".join(map(str, segments)), _IN_MEMORY[table]
            is_part = len(segments) < len(self.segments)
            return f"(FROM {relation} WHERE segment IN ({numbers}))" if is_part else relation
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

    def query(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        tables: Mapping[str, pa.Table] | None = None,
    ) -> list[tuple[Any, ...]]:
        """Return the rows of a query; any thread may call it. ``tables``: Arrow tables that
        the query names.
        """
        with self._cursor(tables) as cursor:
            return cursor.execute(sql, list(parameters)).fetchall()

    def arrow(
        self,
        sql: str,
        parameters: Sequence[Any] = (),
        tables: Mapping[str, pa.Table] | None = None,
    ) -> pa.Table:
        """Return the rows of a query as an Arrow table; as :meth:`query`."""
        with self._cursor(tables) as cursor:
            return cursor.sql(sql, params=list(parameters)).to_arrow_table()

    @contextmanager
    def _cursor(
        self, tables: Mapping[str, pa.Table] | None
    ) -> Iterator[duckdb.DuckDBPyConnection]:
        with reading_rollups(), self.con.cursor() as cursor:
            for name, table in (tables or {}).items():
                cursor.register(name, table)
            yield cursor

    @cached_property
    def codes(self) -> Mapping[str, dict[str, int]]:
        """Column → its names with their numbers in the segments."""
        return {
            column: {text: number for number, text in enumerate(texts)}
            for column, texts in self.texts.items()
            if column in CODED
        }

    def named(self, rows: pa.Table) -> pa.Table:
        """Return rows of datasets with their names in place of their numbers, ``dataset``."""
        numbers = rows["dataset"].combine_chunks()
        return rows.drop_columns("dataset").add_column(
            0, "dataset_name", self.dataset_names.take(numbers)
        )

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

    def has_result(self, key: Any) -> bool:
        """Return whether :meth:`cached` has a result for a key, or makes it now."""
        with self._lock:
            return key in self._results

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
        config={
            "memory_limit": "250MB",
            "threads": 1,
            "preserve_insertion_order": "false",
            "temp_directory": "",
        },
    )
    con.execute("SET enable_progress_bar = false")
    if state.segments:
        # By default DuckDB spills into the directory that the server was started in.
        spilled = state.segments[0].path.parent / f"{SPILLED}{uuid.uuid4().hex}"
        with suppress(OSError):
            spilled.mkdir(mode=0o700)
            hold([spilled], con)
            con.execute(f"SET temp_directory = '{str(spilled).replace(chr(39), chr(39) * 2)}'")
    con.execute("ATTACH ':memory:' AS packed (COMPRESS)")
    for number, segment in enumerate(state.segments):
        path = str(segment.path).replace("'", "''")
        con.execute(f"ATTACH '{path}' AS s{number} (READ_ONLY)")
    widths, keys, ids = _read_about(con, state)
    stored = read_names(state.segments[0].path.parent) if state.segments else None
    if ids - {stored.id if stored else None}:
        raise RollupsDamagedError("the names of the rollups are damaged or gone")
    loaded = Snapshot(state, con, widths, keys, stored.names if stored else {})
    hold([segment.path for segment in state.segments], loaded)
    _load_tables(loaded)
    _load_datasets(loaded, loaded.texts.get("dataset_name", []))
    sql = "SELECT sum(memory_usage_bytes) FROM duckdb_memory() WHERE tag = 'IN_MEMORY_TABLE'"
    ((used,),) = loaded.query(sql)
    con.execute(f"SET memory_limit = '{int(used or 0) + _FOR_QUERIES}B'")
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
    """Copy small tables into memory, and the names of numbers."""
    loaded.names = {name: [] for name in DIMENSIONS}
    for name in CODED:
        texts = pa.array(loaded.texts.get(name, []), pa.string())
        numbers = pa.array(range(len(texts)), pa.int32())
        loaded.con.register("named", pa.table({"code": numbers, "name": texts}))
        loaded.con.execute(f"CREATE TABLE {name}_names AS FROM named")
        loaded.con.unregister("named")
    if not loaded.segments:
        return
    for table, relation in _IN_MEMORY.items():
        source = " UNION ALL ".join(
            f"SELECT {number} AS segment, * FROM {loaded.rows(table, [number], is_stored=True)}"
            for number in range(len(loaded.segments))
        )
        users = " REPLACE (users::BIT AS users)" if table in SET_TABLES else ""
        loaded.con.execute(f"CREATE TABLE {relation} AS SELECT *{users} FROM ({source})")
    loaded.con.execute("CHECKPOINT packed")
    for name in DIMENSIONS:
        table = "site_totals" if name == "site_name" else "cube"
        rows = loaded.query(f"SELECT DISTINCT {name} FROM {loaded.rows(table)}")
        loaded.names[name] = sorted(loaded.texts[name][number] for (number,) in rows)


def _load_datasets(loaded: Snapshot, stored: Sequence[str]) -> None:
    """Load the datasets that the segments have, of all names of their list, as a table:
    number, name, the rank of the name among them, its parts, and the last day with an
    access or a job; and sites with their tiers.
    """
    numbers = pa.array(range(len(stored)), pa.int32())
    names = pa.table({"dataset": numbers, "dataset_name": pa.array(stored, pa.string())})
    loaded.con.register("stored_names", names)
    last_days = "SELECT NULL::INTEGER AS dataset, NULL::DATE AS last_day LIMIT 0"
    if loaded.segments:
        rows = loaded.rows("dataset_totals")
        last_days = f"SELECT dataset, max(last_day) AS last_day FROM {rows} GROUP BY 1"
    loaded.con.execute(
        "CREATE TABLE datasets AS SELECT dataset, dataset_name, last_day, "
        "row_number() OVER (ORDER BY dataset_name)::INTEGER AS rank, "
        "data_tier_names.code AS data_tier, campaign_names.code AS campaign "
        f"FROM ({last_days}) JOIN stored_names USING (dataset) "
        f"JOIN data_tier_names ON data_tier_names.name = {part_sql('data_tier')} "
        f"JOIN campaign_names ON campaign_names.name = {part_sql('campaign')} "
        "ORDER BY dataset_name"
    )
    loaded.con.unregister("stored_names")
    loaded.con.execute(
        "CREATE TABLE sites AS SELECT site_name_names.code AS site_name, "
        "site_tier_names.code AS site_tier FROM site_name_names JOIN site_tier_names "
        f"ON site_tier_names.name = {part_sql('site_tier', 'site_name_names.name')}"
    )
    loaded.datasets = dict(loaded.query("SELECT dataset_name, dataset FROM datasets"))
    loaded.dataset_names = pa.array(stored, pa.string())
