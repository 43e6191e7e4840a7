"""The use of one dataset: over time, by site, by application; and when it was read last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import Any, Final

import numpy as np

from cmsspark.dashboard import user_sets
from cmsspark.dashboard.segment_build import SUMS
from cmsspark.dashboard.selection import Selection
from cmsspark.dashboard.snapshot import Snapshot, day_number, day_of
from cmsspark.dashboard.use import Series, with_zeros

_SUMS: Final = ", ".join(f"sum({name})" for name in SUMS)
#: The most accesses first, then the most jobs.
_LARGEST: Final = "ORDER BY sum(nacc) DESC NULLS LAST, sum(job_count) DESC NULLS LAST, 1"


@dataclass(frozen=True)
class DatasetUse:
    """What the pages show of a dataset in a period.

    ``totals``: sums as in ``SUMS``. ``by_day``: (day, stream, sums …); ``by_site``: (site, sums …); ``by_app``: (app,
    sums …). ``users``: distinct people in each step of the period; ``all_users``: over all of it, None where the days
    have two pseudonym keys. ``last_access``: over all stored days.
    """

    totals: tuple[int | None, ...]
    by_day: list[tuple[Any, ...]]
    by_site: list[tuple[Any, ...]]
    by_app: list[tuple[Any, ...]]
    users: list[int | None]
    all_users: int | None
    last_access: date | None


def use_of(snapshot: Snapshot, chosen: Selection, name: str) -> DatasetUse:
    """The use of a dataset in the selection's period and stream."""
    return snapshot.cached(("dataset", chosen, name), lambda: _use_of(snapshot, chosen, name))


def _use_of(snapshot: Snapshot, chosen: Selection, name: str) -> DatasetUse:
    files = snapshot.files("detail", chosen.first, chosen.last)
    where, parameters = chosen.where(("stream",))
    if not files:
        return DatasetUse((None,) * len(SUMS), [], [], [], [0] * len(chosen.buckets()), 0, last_access(snapshot, name))
    with snapshot.con.cursor() as cursor:
        cursor.execute(
            f"CREATE TEMP TABLE chosen AS SELECT day, stream, site_name, app, {', '.join(SUMS)} "
            f"FROM read_parquet(?, union_by_name = true) WHERE dataset_name = ? AND {where}",
            [files, name, *parameters],
        )
        try:
            step = f"date_trunc('{chosen.step}', day)::DATE"
            totals = cursor.execute(f"SELECT {_SUMS} FROM chosen").fetchall()[0]
            by_day = cursor.execute(
                f"SELECT {step} AS d, stream, {_SUMS} FROM chosen GROUP BY 1, 2 ORDER BY 1, 2"
            ).fetchall()
            by_site = cursor.execute(f"SELECT site_name, {_SUMS} FROM chosen GROUP BY 1 {_LARGEST}").fetchall()
            by_app = cursor.execute(f"SELECT app, {_SUMS} FROM chosen GROUP BY 1 {_LARGEST}").fetchall()
        finally:
            cursor.execute("DROP TABLE chosen")
    users, everyone = _users(snapshot, chosen, name)
    return DatasetUse(_whole(totals), by_day, by_site, by_app, users, everyone, last_access(snapshot, name))


def last_access(snapshot: Snapshot, name: str) -> date | None:
    """The last stored day on which an access or a job read the dataset; None where it was on none."""

    def make() -> date | None:
        # Newest segments first: most datasets that are looked at were read lately.
        for segment in reversed(snapshot.segments):
            row = snapshot.query(
                "SELECT max(day) FROM read_parquet(?) WHERE dataset_name = ? AND (nacc > 0 OR job_count > 0)",
                [segment.file("detail"), name],
            )
            if row[0][0] is not None:
                found: date = row[0][0]
                return found
        return None

    return snapshot.cached(("last_access", name), make)


def _users(snapshot: Snapshot, chosen: Selection, name: str) -> tuple[list[int | None], int | None]:
    buckets = chosen.buckets()
    starts = np.array([day_number(day) for day in buckets], np.int32)
    by_step = user_sets.DistinctCounter(len(buckets), snapshot.pseudonyms)
    over_all = user_sets.DistinctCounter(1, snapshot.pseudonyms)
    where, parameters = chosen.where_users(("stream",))
    for number, segment in enumerate(snapshot.segments):
        if segment.days[0] > chosen.last or segment.days[-1] < chosen.first:
            continue
        rows = snapshot.arrow(
            "SELECT (day - DATE '1970-01-01')::INTEGER AS day, user_id FROM read_parquet(?) "
            f"WHERE dataset_name = ? AND {where}",
            [segment.file("dataset_users"), name, *parameters],
        )
        if not rows.num_rows:
            continue
        table = user_sets.of_rows(rows, snapshot.user_tables["tier_users"][number].global_ids)
        at = np.searchsorted(starts, rows["day"].to_numpy(), side="right") - 1
        by_step.add(table, np.arange(rows.num_rows), at.astype(np.int32))
        over_all.add(table, np.arange(rows.num_rows), np.zeros(rows.num_rows, np.int32))
    ends = [*(day_of(day_number(day) - 1) for day in buckets[1:]), chosen.last]
    counts: list[int | None] = [int(count) for count in by_step.counts()]
    for number, (first, last) in enumerate(zip(buckets, ends, strict=True)):
        if len(snapshot.keys_of(max(first, chosen.first), last)) > 1:
            counts[number] = None
    is_mixed = len(snapshot.keys_of(chosen.first, chosen.last)) > 1
    return counts, None if is_mixed else int(over_all.counts()[0])


def series_by_stream(snapshot: Snapshot, result: DatasetUse, chosen: Selection, measure: str) -> Series:
    """A measure over time by stream."""
    buckets = chosen.buckets()
    position = {day: number for number, day in enumerate(buckets)}
    column = 2 + SUMS.index(measure)
    values: dict[str, list[int | None]] = {}
    for row in result.by_day:
        if row[column] is not None:
            values.setdefault(row[1], [None] * len(buckets))[position[row[0]]] = int(row[column])
    if measure in ("nacc", "job_count"):
        with_zeros(snapshot, chosen, values)
    return Series(buckets, values)


def _whole(values: Sequence[Any]) -> tuple[int | None, ...]:
    return tuple(None if value is None else int(value) for value in values)
