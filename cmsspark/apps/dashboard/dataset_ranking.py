"""Datasets by use: the largest first, their users, and how concentrated use is."""

from __future__ import annotations

import threading
from collections.abc import Sequence
from datetime import date
from functools import partial
from itertools import accumulate
from typing import Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import pyarrow as pa
import pyarrow.compute as pc

from cmsspark.apps.dashboard.rollup_query import Row, choose_table, sum_table, sums, where
from cmsspark.apps.dashboard.segment import SET_TABLES, SUMS
from cmsspark.apps.dashboard.selection import FILTERS, Selection
from cmsspark.apps.dashboard.snapshot import Snapshot
from cmsspark.apps.dashboard.tables import sorted_positions
from cmsspark.apps.dashboard.use import MEASURES, OF_JOBS, Series, mixed_steps, sum_series

#: Flags of all people for all datasets take some 50 MB.
_ONE_AT_A_TIME: Final = threading.Lock()
#: The share of all datasets from which on all are counted: choosing takes longer.
_MANY: Final = 0.25
#: Datasets whose sums are looked up; for more of them the sums of all take less time.
_FEW: Final = 500


def rank_datasets(snapshot: Snapshot, chosen: Selection) -> pa.Table:
    """Return the datasets with accesses, or with jobs for a measure or stream of jobs, the
    largest first: the number ``dataset``; ``counted``, its accesses or jobs, and
    ``measured``, its measure, both null where it has none.
    """
    chosen.check(FILTERS, groups=("dataset_name",), measures=MEASURES)
    return snapshot.cached(("datasets", chosen), lambda: _rank(snapshot, chosen))


def _rank(snapshot: Snapshot, chosen: Selection) -> pa.Table:
    measure = chosen.measure
    counted = "job_count" if chosen.is_of_jobs or measure in OF_JOBS else "nacc"
    columns = [counted] if measure in ("users", counted) else [measure, counted]
    rows = sum_table(snapshot, chosen.only(*FILTERS), "dataset", columns)
    measured = rows[columns[0]]
    if measure == "users":
        users = users_of_datasets(snapshot, chosen, rows["dataset"].to_numpy())
        measured = pc.if_else(
            rows[counted].is_valid(), pa.array(users, pa.int64()), pa.scalar(None, pa.int64())
        )
    ranking = pa.table(
        {"dataset": rows["dataset"], "counted": rows[counted], "measured": measured}
    )
    if measure == "users":
        # Sums are in the order of the measure and of names.
        ranking = ranking.take(sorted_positions(snapshot.named(ranking)["dataset_name"]))
        ranking = ranking.take(sorted_positions(ranking["measured"], is_descending=True))
    return ranking.filter(pc.or_(ranking["counted"].is_valid(), ranking["measured"].is_valid()))


def sum_datasets(
    snapshot: Snapshot, chosen: Selection, numbers: npt.NDArray[np.int32], columns: Sequence[str]
) -> pa.Table:
    """Return the sums of datasets that the selection has, in their order; null of one
    without any.
    """
    if len(numbers) <= _FEW:
        # Their tiers and campaigns are those of the selection.
        base = chosen.only("stream", "site_tier", "site_name")
        chosen = base.with_values("dataset", tuple(numbers.tolist()))
    rows = sum_table(snapshot, chosen, "dataset", columns)
    positions = pc.index_in(pa.array(numbers), rows["dataset"].combine_chunks())
    return rows.take(positions).drop_columns("dataset")


def users_of_datasets(
    snapshot: Snapshot, chosen: Selection, numbers: npt.NDArray[np.int32]
) -> list[int | None]:
    """Return the distinct users of each dataset by its number: of accesses, or of jobs for a
    stream of jobs; None where the days have two pseudonym keys.
    """
    chosen, key = chosen.only("stream", "site_tier"), "users_of_datasets"
    if len(snapshot.find_keys(chosen.first, chosen.last)) > 1:
        return [None] * len(numbers)

    def count(datasets: npt.NDArray[np.int32] | None = None) -> npt.NDArray[np.int64]:
        with _ONE_AT_A_TIME:
            return _count_users(snapshot, chosen, datasets)

    # Most pages count those of the few datasets that they show.
    is_few = len(numbers) <= _MANY * len(snapshot.datasets)
    if is_few and not snapshot.has_result((key, chosen)):
        question = (key, chosen, numbers.tobytes())
        return [*snapshot.cached(question, partial(count, numbers)).tolist()]
    return [*snapshot.cached((key, chosen), count)[numbers].tolist()]


def _count_users(
    snapshot: Snapshot, chosen: Selection, numbers: npt.NDArray[np.int32] | None
) -> npt.NDArray[np.int64]:
    """Return the distinct users of each of some datasets, or of all by number: the union of
    the sets of whole segments, and of the people on the days of cut ones.
    """
    inside, cut = snapshot.split(chosen.first, chosen.last)
    width, count = max(snapshot.widths, default=0), len(snapshot.dataset_names)
    is_few = numbers is not None
    if numbers is not None:
        chosen = chosen.with_values("dataset", tuple(numbers.tolist()))

    def read(
        cells: str, table: str, segments: Sequence[int], condition: tuple[str, list[object]]
    ) -> Any:
        sql, parameters = condition
        source = snapshot.rows(table, segments)
        return snapshot.arrow(f"SELECT {cells} FROM {source} WHERE {sql}", parameters).to_batches()

    # NumPy joins sets that lie apart in a fifth of the time of ``bit_or``.
    sets = np.zeros((count, width // 8), np.uint64)
    table = choose_table(SET_TABLES, {"dataset"}, chosen)
    of_sets = where(snapshot, chosen, SET_TABLES[table], has_days=False, of_users=True)
    # The sets of all datasets of a year would take much memory at once.
    for segments in [inside] if is_few and inside else [[number] for number in inside]:
        for batch in read("dataset, users", table, segments, of_sets):
            _join_sets(sets, batch["dataset"].to_numpy(), batch["users"])
    chosen_rows: Any = slice(None) if numbers is None else numbers
    joined = sets[chosen_rows]
    if cut:
        flags = np.zeros(count * 8 * width, np.bool_)
        of_days = where(snapshot, chosen, ("dataset", "day", "stream", "site_tier"), of_users=True)
        kind = "INTEGER" if flags.size < 1 << 31 else "BIGINT"
        position = f"dataset::{kind} * {8 * width} + person AS position"
        for number in cut:
            for batch in read(position, "people", [number], of_days):
                flags[batch["position"].to_numpy()] = True
        flags_of_datasets = flags.reshape(count, 8 * width)[chosen_rows]
        joined |= np.packbits(flags_of_datasets, axis=1).view(np.uint64)
    counts: npt.NDArray[np.int64] = np.bitwise_count(joined).sum(axis=1, dtype=np.int64)
    return counts


def _join_sets(
    sets: npt.NDArray[np.uint64], at: npt.NDArray[np.int32], added: pa.BinaryArray
) -> None:
    """Add sets of people to those of the datasets with the numbers ``at``."""
    width = sets.shape[1]
    words = np.frombuffer(added.buffers()[2], np.uint64)[added.offset * width :]
    words = words[: len(at) * width].reshape(len(at), width)
    # Where numbers rise, each is there once.
    ends = [*np.flatnonzero(np.diff(at) <= 0) + 1, len(at)] if len(at) else []
    for begin, end in zip([0, *ends], ends, strict=False):
        first, last = at[begin], at[end - 1]
        has_all = last - first == end - 1 - begin
        sets[slice(first, last + 1) if has_all else at[begin:end]] |= words[begin:end]


def concentration(measured: pa.ChunkedArray) -> list[tuple[int, int, float]]:
    """(N, sum of the N largest values, its share of the sum of all), for N of 1, 2, 5, 10,
    20, 50 … and all, of values in order.
    """
    amounts = [*accumulate(int(value) for value in measured.to_pylist() if value)]
    if not amounts:
        return []
    numbers = [base * 10**power for power in range(7) for base in (1, 2, 5)]
    chosen = [number for number in numbers if number < len(amounts)] + [len(amounts)]
    return [(number, amounts[number - 1], amounts[number - 1] / amounts[-1]) for number in chosen]


# The use of one dataset: over time, by site, by application; and when it was read last.


class DatasetUse(msgspec.Struct, frozen=True):
    """What the pages show of a dataset in a period.

    ``totals``: sums as in ``SUMS``. ``by_step``: (first day, stream, sums …); ``by_site``:
    (site, sums …); ``by_app``: (app, sums …), the most accesses first. ``users``: distinct
    people in each step of the period; ``all_users``: over all of it, None where the days
    have two pseudonym keys. ``last_access``: over all stored days.
    """

    totals: Row
    by_step: list[Row]
    by_site: list[Row]
    by_app: list[Row]
    users: list[int | None]
    all_users: int | None
    last_access: date | None


def load_use(snapshot: Snapshot, chosen: Selection, name: str) -> DatasetUse:
    """Return the use of a dataset in the selection's period and stream."""
    chosen.check(("stream",))
    return snapshot.cached(("dataset", chosen, name), lambda: _load_use(snapshot, chosen, name))


def _load_use(snapshot: Snapshot, chosen: Selection, name: str) -> DatasetUse:
    of_dataset = chosen.with_values("dataset", (snapshot.datasets.get(name, -1),))
    # The rows are read once for all groups.
    groups = (("step", "stream"), ("site_name",), ("app",), ())
    by_step, by_site, by_app, (totals,) = sums(snapshot, of_dataset, *groups)
    users, everyone = _users(snapshot, of_dataset)
    last = last_access(snapshot, name)
    return DatasetUse(totals, sorted(by_step), by_site, by_app, users, everyone, last)


def last_access(snapshot: Snapshot, name: str) -> date | None:
    """Return the last stored day on which an access or a job read the dataset; None
    where it was on none.
    """
    rows = snapshot.query("SELECT last_day FROM datasets WHERE dataset_name = ?", [name])
    return rows[0][0] if rows else None


def last_at_sites(snapshot: Snapshot, name: str) -> dict[str, date]:
    """Return the last stored day on which an access or a job read the dataset at each site."""

    def make() -> dict[str, date]:
        rows = snapshot.query(
            f"SELECT site_name, max(day) FROM {snapshot.rows('detail')} "
            "WHERE dataset = ? AND (nacc > 0 OR job_count > 0) GROUP BY 1",
            [snapshot.datasets.get(name, -1)],
        )
        return {snapshot.texts["site_name"][site]: day for site, day in rows}

    return snapshot.cached(("last_at_sites", name), make)


def _users(snapshot: Snapshot, chosen: Selection) -> tuple[list[int | None], int | None]:
    """Return the distinct users of each step of the period, and of all of it."""
    condition, parameters = where(snapshot, chosen, ("dataset", "day", "stream"), of_users=True)
    inside, cut = snapshot.split(chosen.first, chosen.last)
    rows = snapshot.query(
        f"SELECT date_trunc('{chosen.step}', day)::DATE AS step, count(DISTINCT person) "
        f"FROM {snapshot.rows('people', sorted([*inside, *cut]))} "
        f"WHERE {condition} GROUP BY GROUPING SETS ((step), ())",
        parameters,
    )
    counts = dict(rows)
    buckets = chosen.buckets
    per_step = [
        None if mixed else counts.get(day, 0)
        for mixed, day in zip(mixed_steps(snapshot, chosen, buckets), buckets, strict=True)
    ]
    has_two_keys = len(snapshot.find_keys(chosen.first, chosen.last)) > 1
    return per_step, None if has_two_keys else counts.get(None, 0)


def series_by_stream(snapshot: Snapshot, result: DatasetUse, chosen: Selection) -> Series:
    """Return the measure of a dataset's use over time by stream."""
    chosen.check(("stream",), groups=("stream",), measures=SUMS)
    at = 2 + SUMS.index(chosen.measure)
    return sum_series(snapshot, chosen, {row[:2]: row[at] for row in result.by_step})
