"""The use of one dataset: over time, by site, by application; and when it was read last."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.dashboard.segment_build import SUMS
from cmsspark.dashboard.selection import Selection
from cmsspark.dashboard.snapshot import Snapshot, day_number, day_of
from cmsspark.dashboard.use import Series, with_zeros

if TYPE_CHECKING:
    import pyarrow as pa

_SUMS: Final = ", ".join(f"sum({name})" for name in SUMS)
#: What is grouped by → the bits of (day, site, application), 1 where a column is not.
_GROUPS: Final = {"all": 0b111, "day": 0b011, "site": 0b101, "app": 0b110}


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
    rows = _rows(snapshot, chosen, name, "detail", ("day", "stream", "site_name", "app", *SUMS))
    users, everyone = _users(snapshot, chosen, name)
    last = last_access(snapshot, name)
    if not rows:
        return DatasetUse((None,) * len(SUMS), [], [], [], users, everyone, last)
    with snapshot.con.cursor() as cursor:
        cursor.register("chosen", _together([part for _, part in rows]))
        found = cursor.execute(
            f"SELECT grouping(d, site_name, app), d, stream, site_name, app, {_SUMS} FROM "
            f"(SELECT *, date_trunc('{chosen.step}', day)::DATE AS d FROM chosen) "
            "GROUP BY GROUPING SETS ((), (d, stream), (site_name), (app))"
        ).fetchall()
    # In a group's bits the columns that it is not grouped by are 1.
    of = {name: [row for row in found if row[0] == bits] for name, bits in _GROUPS.items()}
    totals = of["all"][0][5:]
    by_day = sorted((row[1], row[2], *row[5:]) for row in of["day"])
    by_site = sorted(((row[3], *row[5:]) for row in of["site"]), key=_largest)
    by_app = sorted(((row[4], *row[5:]) for row in of["app"]), key=_largest)
    return DatasetUse(_whole(totals), by_day, by_site, by_app, users, everyone, last)


def _rows(
    snapshot: Snapshot, chosen: Selection, name: str, file: str, columns: Sequence[str]
) -> list[tuple[int, pa.Table]]:
    """(number of a segment, its rows of the dataset in the selection's days and stream), of segments that have any."""
    import pyarrow as pa
    import pyarrow.compute as pc

    code = snapshot.datasets.positions.get(name)
    if code is None:
        return []
    streams = chosen.streams_of_users if file == "dataset_users" else None
    if streams is None and chosen.value("stream") is not None:
        streams = (str(chosen.value("stream")),)
    found = []
    for number, segment in enumerate(snapshot.segments):
        own = snapshot.datasets.segments[number]
        place = int(own.places[code])
        if place < 0 or segment.days[0] > chosen.last or segment.days[-1] < chosen.first:
            continue
        rows = own.lookups[file].rows(place, name, columns)
        if segment.days[0] < chosen.first or segment.days[-1] > chosen.last:
            first, last = pa.scalar(chosen.first), pa.scalar(chosen.last)
            rows = rows.filter(pc.and_(pc.greater_equal(rows["day"], first), pc.less_equal(rows["day"], last)))
        if streams is not None:
            rows = rows.filter(pc.is_in(rows["stream"].cast(pa.string()), value_set=pa.array(streams, pa.string())))
        if rows.num_rows:
            found.append((number, rows))
    return found


def _together(parts: list[pa.Table]) -> pa.Table:
    """Rows of several segments, whose sums may be wider in some."""
    import pyarrow as pa

    wide = {name for part in parts for name in SUMS if pa.types.is_decimal(part.schema.field(name).type)}
    texts = ("stream", "site_name", "app")
    schema = pa.schema(
        [
            pa.field(
                field.name,
                pa.string() if field.name in texts else pa.decimal128(38, 0) if field.name in wide else field.type,
            )
            for field in parts[0].schema
        ]
    )
    return pa.concat_tables([part.cast(schema) for part in parts])


def last_access(snapshot: Snapshot, name: str) -> date | None:
    """The last stored day on which an access or a job read the dataset; None where it was on none."""
    code = snapshot.datasets.positions.get(name)
    day = None if code is None else snapshot.datasets.last_day(code)
    return None if day is None else day_of(day)


def _users(snapshot: Snapshot, chosen: Selection, name: str) -> tuple[list[int | None], int | None]:
    """The distinct users of each step of the period, and of all of it."""
    buckets = chosen.buckets()
    starts = np.array([day_number(day) for day in buckets], np.int32)
    # A person in a step is one number.
    cells = [np.zeros(0, np.int64)]
    for number, rows in _rows(snapshot, chosen, name, "dataset_users", ("day", "stream", "user_id")):
        ids = snapshot.user_tables["tier_users"][number].global_ids[rows["user_id"].to_numpy()]
        at = np.searchsorted(starts, rows["day"].cast("int32").to_numpy(), side="right") - 1
        cells.append(np.unique(at.astype(np.int64) * snapshot.pseudonyms + ids))
    both = np.unique(np.concatenate(cells))
    per_step = np.bincount(both // max(1, snapshot.pseudonyms), minlength=len(buckets))
    counts: list[int | None] = [int(count) for count in per_step]
    ends = [*(day_of(day_number(day) - 1) for day in buckets[1:]), chosen.last]
    if len(snapshot.keys_of(chosen.first, chosen.last)) < 2:
        return counts, len(np.unique(both % max(1, snapshot.pseudonyms)))
    for number, (first, last) in enumerate(zip(buckets, ends, strict=True)):
        if len(snapshot.keys_of(max(first, chosen.first), last)) > 1:
            counts[number] = None
    return counts, None


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


def _largest(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """The order of groups: the most accesses first, then the most jobs."""
    nacc, jobs = (row[1 + SUMS.index(name)] for name in ("nacc", "job_count"))
    return 1 if nacc is None else -nacc, 0 if jobs is None else -jobs, row[0]


def _whole(values: Sequence[Any]) -> tuple[int | None, ...]:
    return tuple(None if value is None else int(value) for value in values)
