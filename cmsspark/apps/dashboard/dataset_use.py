"""The use of one dataset: over time, by site, by application; and when it was read last."""

from __future__ import annotations

from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.apps.dashboard.dataset_tables import SAFE, Sums
from cmsspark.apps.dashboard.segment import NULL, SUMS
from cmsspark.apps.dashboard.selection import Selection
from cmsspark.apps.dashboard.snapshot import Snapshot, day_number, to_day
from cmsspark.apps.dashboard.use import Series, mixed_steps, partial_steps, with_zeros

if TYPE_CHECKING:
    import pyarrow as pa

_TEXTS: Final = ("stream", "site_name", "app")


@dataclass(frozen=True)
class DatasetUse:
    """What the pages show of a dataset in a period.

    ``totals``: sums as in ``SUMS``. ``by_day``: (day, stream, sums …); ``by_site``:
    (site, sums …); ``by_app``: (app, sums …). ``users``: distinct people in each step
    of the period; ``all_users``: over all of it, None where the days have two pseudonym
    keys. ``last_access``: over all stored days.
    """

    totals: tuple[int | None, ...]
    by_day: list[tuple[Any, ...]]
    by_site: list[tuple[Any, ...]]
    by_app: list[tuple[Any, ...]]
    users: list[int | None]
    all_users: int | None
    last_access: date | None


def load_use(snapshot: Snapshot, chosen: Selection, name: str) -> DatasetUse:
    """Return the use of a dataset in the selection's period and stream."""
    return snapshot.cached(("dataset", chosen, name), lambda: _load_use(snapshot, chosen, name))


def _load_use(snapshot: Snapshot, chosen: Selection, name: str) -> DatasetUse:
    # Two files of each segment are decoded, side by side.
    with ThreadPoolExecutor(1) as pool:
        people = pool.submit(_users, snapshot, chosen, name)
        rows = _rows(snapshot, chosen, name, "detail", ("day", *_TEXTS, *SUMS))
        users, everyone = people.result()
    last = last_access(snapshot, name)
    if not rows:
        return DatasetUse((None,) * len(SUMS), [], [], [], users, everyone, last)
    table = _together([part for _, part in rows])
    (streams, of_streams), (sites, of_sites), (apps, of_apps) = (
        _coded(table[name]) for name in _TEXTS
    )
    values = [_values(table[name]) for name in SUMS]
    buckets = chosen.buckets()
    starts = np.array([day_number(day) for day in buckets], np.int32)
    at = np.searchsorted(starts, table["day"].cast("int32").to_numpy(), side="right") - 1
    ((_, *totals),) = _sums_by(np.zeros(len(at), np.uint8), values)
    count = len(streams)
    by_day = [
        (buckets[key // count], streams[key % count], *sums)
        for key, *sums in _sums_by(at * count + of_streams, values)
    ]
    by_site = sorted(
        ((sites[key], *sums) for key, *sums in _sums_by(of_sites, values)), key=_largest
    )
    by_app = sorted(((apps[key], *sums) for key, *sums in _sums_by(of_apps, values)), key=_largest)
    return DatasetUse(tuple(totals), sorted(by_day), by_site, by_app, users, everyone, last)


def _coded(column: pa.ChunkedArray) -> tuple[list[str], npt.NDArray[Any]]:
    """Return the names of a column whose chunks have the same dictionary, and the
    number of each row's name.
    """
    combined = column.combine_chunks()
    return combined.dictionary.to_pylist(), combined.indices.to_numpy()


def _values(column: pa.ChunkedArray) -> Sums:
    """Return a column's values, 0 for null, and which are there; Python's numbers where
    sums pass 64 bits.
    """
    import pyarrow.compute as pc

    is_there = pc.is_valid(column).to_numpy()
    if (pc.sum(column.cast("float64", safe=False)).as_py() or 0) >= SAFE:
        return np.array([int(value or 0) for value in column.to_pylist()], dtype=object), is_there
    return pc.fill_null(column, 0).to_numpy(), is_there


def _sums_by(keys: npt.NDArray[Any], values: Sequence[Sums]) -> list[tuple[Any, ...]]:
    """(key, sums …) of each key of some rows; None where no row of it has a value.
    ``keys``: one for each row.
    """
    # Short numbers are sorted in one pass.
    short = keys.astype(np.min_scalar_type(int(keys.max())))
    order = np.argsort(short, kind="stable")
    ordered = short[order]
    starts = np.flatnonzero(np.concatenate(([True], ordered[1:] != ordered[:-1])))
    columns: list[list[Any]] = [ordered[starts].tolist()]
    for column, is_there in values:
        sums = np.add.reduceat(column[order], starts).tolist()
        has_any = np.logical_or.reduceat(is_there[order], starts)
        columns.append(
            [value if any_there else None for value, any_there in zip(sums, has_any, strict=True)]
        )
    return list(zip(*columns, strict=True))


def _rows(
    snapshot: Snapshot, chosen: Selection, name: str, file: str, columns: Sequence[str]
) -> list[tuple[int, pa.Table]]:
    """(number of a segment, its rows of the dataset in the selection's days and
    stream), of segments that have any.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    code = snapshot.datasets.positions.get(name)
    if code is None:
        return []
    streams = chosen.streams_of_users if file == "dataset_users" else None
    if streams is None:
        streams = chosen.values("stream") or None
    tables = []
    for number, stored in enumerate(snapshot.segments):
        segment = snapshot.datasets.segments[number]
        position = int(segment.positions[code])
        if position < 0 or stored.days[0] > chosen.last or stored.days[-1] < chosen.first:
            continue
        rows = segment.lookups[file].rows(position, name, columns)
        if stored.days[0] < chosen.first or stored.days[-1] > chosen.last:
            first, last = pa.scalar(chosen.first), pa.scalar(chosen.last)
            rows = rows.filter(
                pc.and_(pc.greater_equal(rows["day"], first), pc.less_equal(rows["day"], last))
            )
        if streams is not None:
            rows = rows.filter(
                pc.is_in(
                    rows["stream"].cast(pa.string()), value_set=pa.array(streams, pa.string())
                )
            )
        if rows.num_rows:
            tables.append((number, rows))
    return tables


def _together(parts: list[pa.Table]) -> pa.Table:
    """Rows of several segments, whose sums may be wider in some; each column of texts
    has one dictionary.
    """
    import pyarrow as pa

    wide = {
        name
        for part in parts
        for name in SUMS
        if pa.types.is_decimal(part.schema.field(name).type)
    }
    schema = pa.schema(
        [
            pa.field(field.name, pa.decimal128(38, 0) if field.name in wide else field.type)
            for field in parts[0].schema
        ]
    )
    return pa.concat_tables([part.cast(schema) for part in parts]).unify_dictionaries()


def last_access(snapshot: Snapshot, name: str) -> date | None:
    """Return the last stored day on which an access or a job read the dataset; None
    where it was on none.
    """
    code = snapshot.datasets.positions.get(name)
    day = NULL if code is None else snapshot.datasets.last_days[code]
    return None if day == NULL else to_day(day)


def last_at_sites(snapshot: Snapshot, name: str) -> dict[str, date]:
    """Return the last stored day on which an access or a job read the dataset at each site."""

    def make() -> dict[str, date]:
        every = Selection(snapshot.days[0], snapshot.days[-1])
        last: dict[str, date] = {}
        for _, rows in _rows(
            snapshot, every, name, "detail", ("day", "site_name", "nacc", "job_count")
        ):
            # Decimals, which larger sums are, do not compare with integers.
            nacc, jobs = (
                pc.fill_null(rows[column].cast("float64", safe=False), 0)
                for column in ("nacc", "job_count")
            )
            read = rows.filter(pc.or_(pc.greater(nacc, 0), pc.greater(jobs, 0)))
            for site, day in zip(
                read["site_name"].to_pylist(), read["day"].to_pylist(), strict=True
            ):
                last[site] = max(day, last.get(site, day))
        return last

    import pyarrow.compute as pc

    return snapshot.cached(("last_at_sites", name), make)


def _users(
    snapshot: Snapshot, chosen: Selection, name: str
) -> tuple[list[int | None], int | None]:
    """Return the distinct users of each step of the period, and of all of it."""
    buckets = chosen.buckets()
    starts = np.array([day_number(day) for day in buckets], np.int32)
    # A person in a step is one number.
    cells = [np.zeros(0, np.int64)]
    for number, rows in _rows(
        snapshot, chosen, name, "dataset_users", ("day", "stream", "user_id")
    ):
        ids = snapshot.user_tables["tier_users"][number].global_ids[rows["user_id"].to_numpy()]
        at = np.searchsorted(starts, rows["day"].cast("int32").to_numpy(), side="right") - 1
        cells.append(np.unique(at.astype(np.int64) * snapshot.pseudonyms + ids))
    both = np.unique(np.concatenate(cells))
    per_step = np.bincount(both // max(1, snapshot.pseudonyms), minlength=len(buckets))
    is_mixed = mixed_steps(snapshot, chosen, buckets)
    counts = [
        None if mixed else int(count) for mixed, count in zip(is_mixed, per_step, strict=True)
    ]
    has_two_keys = len(snapshot.find_keys(chosen.first, chosen.last)) > 1
    return counts, None if has_two_keys else len(np.unique(both % max(1, snapshot.pseudonyms)))


def series_by_stream(
    snapshot: Snapshot, result: DatasetUse, chosen: Selection, measure: str
) -> Series:
    """Return a measure over time by stream."""
    buckets = chosen.buckets()
    position = {day: number for number, day in enumerate(buckets)}
    column = 2 + SUMS.index(measure)
    values: dict[str, list[int | None]] = {}
    for row in result.by_day:
        if row[column] is not None:
            values.setdefault(row[1], [None] * len(buckets))[position[row[0]]] = int(row[column])
    if measure in ("nacc", "job_count"):
        with_zeros(snapshot, chosen, values, measure, "stream")
    return Series(buckets, values, partial=partial_steps(snapshot, chosen))


def _largest(row: tuple[Any, ...]) -> tuple[Any, ...]:
    """Return the order of groups: the most accesses first, then the most jobs."""
    nacc, jobs = (row[1 + SUMS.index(name)] for name in ("nacc", "job_count"))
    return 1 if nacc is None else -nacc, 0 if jobs is None else -jobs, row[0]
