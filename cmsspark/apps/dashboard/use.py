"""Questions about use: over time, in total, by dataset. Sums come from the rollups,
users from unions of sets.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from datetime import date
from fnmatch import translate
from functools import partial, reduce
from operator import or_
from typing import TYPE_CHECKING, Any, Final

import msgspec
import pyarrow as pa
from msgspec.structs import replace

from cmsspark.apps.dashboard.rollup_query import people, sums
from cmsspark.apps.dashboard.segment import SUMS
from cmsspark.apps.dashboard.selection import FILTERS, Selection, text_parameter
from cmsspark.apps.dashboard.snapshot import Snapshot, day_number, to_day
from cmsspark.apps.dashboard.tables import Column, ratios, to_arrow
from cmsspark.sources.registry import ACCESS_STREAMS, STREAMS_OF_JOBS

if TYPE_CHECKING:
    from cmsspark.apps.dashboard.page_request import PageRequest
    from cmsspark.apps.dashboard.snapshot import Snapshot


#: Measure → (label, unit, factor from the stored value).
MEASURES: Final[Mapping[str, tuple[str, str, float]]] = {
    "nacc": ("Accesses", "", 1),
    "users": ("Distinct users", "", 1),
    "read_bytes": ("Bytes read", "B", 1),
    "job_count": ("Jobs", "", 1),
    "job_read_bytes": ("Bytes read by jobs", "B", 1),
    "cpu_ms": ("CPU hours", "h", 1 / 3_600_000),
}
#: Measures of jobs, which are not accesses.
OF_JOBS: Final = ("job_count", "job_read_bytes")
#: Groups that a chart shows by name, and those with at least this share of the sum; the
#: rest is one more group.
SHOWN, SHOWN_SHARE = 7, 0.01
#: Groups that are always shown by name.
ALWAYS: Final = ("NANOAOD", "NANOAODSIM")
OTHER: Final = "other"


class Series(msgspec.Struct, frozen=True):
    """Values over time by group: ``values[group][n]`` is the value of ``buckets[n]``,
    None where there is none.

    ``is_additive``: whether groups and buckets may be added up. ``note`` says why
    values are missing. ``partial``: the buckets of which only a part is counted.
    """

    buckets: list[date]
    values: dict[str, list[int | None]]
    is_additive: bool = True
    note: str = ""
    partial: frozenset[date] = frozenset()


def totals(snapshot: Snapshot, chosen: Selection) -> dict[str, int | None]:
    """Return the sums of a selection, and its distinct users: of jobs for a stream of jobs."""
    chosen.check([name for name, _ in chosen.filters])

    def make() -> dict[str, int | None]:
        ((row,),) = sums(snapshot, chosen, ())
        result: dict[str, int | None] = dict(zip(SUMS, row, strict=True))
        counted = "job_count" if chosen.is_of_jobs else "nacc"
        result[counted] = known_count(snapshot, chosen, result[counted])
        return {**result, "users": count_people(snapshot, chosen)}

    return snapshot.cached(("totals", chosen), make)


def count_people(snapshot: Snapshot, chosen: Selection) -> int | None:
    """Return the distinct users of the period; None over days of two pseudonym keys, and
    if no stored day counted such streams.
    """
    if len(snapshot.find_keys(chosen.first, chosen.last)) > 1:
        return None
    count = people(snapshot, chosen).get((), 0).bit_count()
    return count if count or is_counted(snapshot, chosen, chosen.streams_of_users) else None


def sum_groups(snapshot: Snapshot, chosen: Selection) -> dict[str, int]:
    """Return the measure of each group of the period by a column, the largest first;
    groups without a value are left out.
    """
    (rows,) = sums(snapshot, chosen, (chosen.by,), columns=[chosen.measure])
    return {name: value for name, value in rows if value is not None}


def series(snapshot: Snapshot, chosen: Selection) -> Series:
    """Return the measure over time, as a whole or by a column of the filters, the largest
    groups first.
    """
    chosen.check(FILTERS, groups=FILTERS, measures=MEASURES)
    make = partial(users_by if chosen.measure == "users" else _sums_by, snapshot, chosen)
    return snapshot.cached(("series", chosen), make)


def _sums_by(snapshot: Snapshot, chosen: Selection) -> Series:
    keys = ("step", chosen.by) if chosen.by else ("step",)
    (rows,) = sums(snapshot, chosen, keys, columns=[chosen.measure])
    return sum_series(snapshot, chosen, {row[:-1]: row[-1] for row in rows})


def sum_series(
    snapshot: Snapshot, chosen: Selection, values: Mapping[tuple[Any, ...], int | None]
) -> Series:
    """Return sums of steps, and groups if the selection has some, as values over time."""
    buckets = chosen.buckets
    position = {day: number for number, day in enumerate(buckets)}
    by_group: dict[str, list[int | None]] = {}
    for (day, *name), value in values.items():
        if value is not None:
            steps = by_group.setdefault("".join(name), [None] * len(buckets))
            steps[position[day]] = value
    if chosen.measure in ("nacc", "job_count"):
        with_zeros(snapshot, chosen, by_group, chosen.measure, chosen.by)
    return Series(buckets, _with_others(by_group), partial=partial_steps(snapshot, chosen))


def with_zeros(
    snapshot: Snapshot,
    chosen: Selection,
    by_group: dict[str, list[int | None]],
    measure: str,
    column: str,
) -> None:
    """Write 0 where a group has no count in a step with a day that counted its streams;
    without one nothing is known.

    ``column``: what the groups are values of; empty for none of the filters.
    """
    streams = STREAMS_OF_JOBS if measure == "job_count" else ACCESS_STREAMS
    of_all = counted_steps(snapshot, chosen, streams)
    for name, values in by_group.items():
        is_counted = counted_steps(snapshot, chosen, (name,)) if column == "stream" else of_all
        by_group[name] = [
            0 if value is None and counted else value
            for value, counted in zip(values, is_counted, strict=True)
        ]


def counted_steps(snapshot: Snapshot, chosen: Selection, streams: Sequence[str]) -> list[bool]:
    """Return for each step of the period whether one of its stored days counted one of
    ``streams``.
    """
    chosen_streams = {*streams} & {*(chosen.values("stream") or streams)}
    counted = {
        bucket
        for day, bucket in chosen.steps.items()
        if day in snapshot.state.runs
        and not chosen_streams.isdisjoint(snapshot.state.streams.get(day, ()))
    }
    return [bucket in counted for bucket in chosen.buckets]


def is_counted(snapshot: Snapshot, chosen: Selection, streams: Sequence[str]) -> bool:
    """Return whether a stored day of the period counted one of ``streams``."""
    return any(counted_steps(snapshot, chosen, streams))


def known_count(snapshot: Snapshot, chosen: Selection, count: int | None) -> int | None:
    """Return a count over the whole period: 0 for None, unless no stored day of it
    counted such a stream.
    """
    streams = STREAMS_OF_JOBS if chosen.is_of_jobs else ACCESS_STREAMS
    return 0 if count is None and is_counted(snapshot, chosen, streams) else count


def partial_steps(snapshot: Snapshot, chosen: Selection) -> frozenset[date]:
    """Return the steps of which days lie outside the period, are not stored, or are partial."""
    whole_days = {
        day for day in snapshot.days if chosen.first <= day <= chosen.last
    } - snapshot.state.partial.keys()
    return frozenset(
        bucket for bucket in chosen.buckets if not whole_days.issuperset(chosen.list_days(bucket))
    )


def _with_others(by_group: dict[str, list[int | None]]) -> dict[str, list[int | None]]:
    ordered = sorted(by_group, key=lambda name: (-total(by_group[name]), name))
    named = named_groups({name: total(by_group[name]) for name in ordered})
    shown = {name: by_group[name] for name in named}
    unnamed = [by_group[name] for name in ordered if name not in named]
    if unnamed:
        shown[OTHER] = [added(values) for values in zip(*unnamed, strict=True)]
    return shown


def named_groups(sums: Mapping[str, int]) -> list[str]:
    """Return the groups that a chart shows by name, of groups with their sums, the largest first."""
    least = SHOWN_SHARE * sum(sums.values())
    return [
        name
        for number, (name, size) in enumerate(sums.items())
        if number < SHOWN or (size >= least and size) or name in ALWAYS
    ]


def users_by(snapshot: Snapshot, chosen: Selection) -> Series:
    """Distinct users in each step of the period by group; each person once in a cell.
    Users of jobs are counted where the selection's stream is of jobs.

    Where a cell spans days of two pseudonym keys its users cannot be counted, and it is None.
    """
    chosen.check(FILTERS, groups=FILTERS, measures=("users",))
    buckets, column = chosen.buckets, chosen.by
    sets = people(snapshot, chosen, "step", *([column] if column else []))
    names = snapshot.names[column] if column else [""]
    shown = names if len(names) <= SHOWN + 1 else _largest(snapshot, chosen)
    groups = {
        name: [sets.get((day, *([name] * bool(column)))) or 0 for day in buckets] for name in names
    }
    unnamed = [sets for name, sets in groups.items() if name not in shown]
    groups = {name: groups[name] for name in shown}
    if unnamed:
        groups[OTHER] = [reduce(or_, sets) for sets in zip(*unnamed, strict=True)]
    is_mixed = mixed_steps(snapshot, chosen, buckets)
    of_all = counted_steps(snapshot, chosen, chosen.streams_of_users)
    values: dict[str, list[int | None]] = {}
    for name, cells in groups.items():
        is_named = column == "stream" and name is not OTHER
        is_counted = counted_steps(snapshot, chosen, (name,)) if is_named else of_all
        flags = zip(cells, is_counted, is_mixed, strict=True)
        values[name] = [
            cell.bit_count() if (counted or cell) and not mixed else None
            for cell, counted, mixed in flags
        ]
    note = (
        "Users cannot be counted over days of two pseudonym keys: such periods have no number."
        if any(is_mixed)
        else ""
    )
    used = {
        name: cells
        for name, cells in values.items()
        if any(cells) or (len(values) == 1 and name is not OTHER)
    }
    partial_days = partial_steps(snapshot, chosen)
    return Series(buckets, used, is_additive=False, note=note, partial=partial_days)


def compare_people(
    snapshot: Snapshot, chosen: Selection, values: tuple[str, str]
) -> tuple[int | None, int | None, int | None]:
    """Return how many people used only the first of two values of the grouping, both,
    and only the second; the filters of that column do not matter. None over days of two
    pseudonym keys.
    """
    sets = people(snapshot, chosen.with_values(chosen.by, *values), chosen.by)
    is_known = sets or is_counted(snapshot, chosen, chosen.streams_of_users)
    if not is_known or len(snapshot.find_keys(chosen.first, chosen.last)) > 1:
        return None, None, None
    first, second = (sets.get((value,), 0) for value in values)
    return (
        (first & ~second).bit_count(),
        (first & second).bit_count(),
        (second & ~first).bit_count(),
    )


def _largest(snapshot: Snapshot, chosen: Selection) -> list[str]:
    counted = replace(chosen, measure="job_count" if chosen.is_of_jobs else "nacc")
    return named_groups(sum_groups(snapshot, counted))


def mixed_steps(snapshot: Snapshot, chosen: Selection, buckets: Sequence[date]) -> list[bool]:
    """Return for each step whether its days have two pseudonym keys: its users cannot be counted."""
    if len(snapshot.find_keys(chosen.first, chosen.last)) < 2:
        return [False] * len(buckets)
    ends = [*(to_day(day_number(day) - 1) for day in buckets[1:]), chosen.last]
    return [
        len(snapshot.find_keys(max(a, chosen.first), b)) > 1
        for a, b in zip(buckets, ends, strict=True)
    ]


def total(values: Sequence[int | None]) -> int:
    """Return the sum of the values that are there."""
    return sum(value for value in values if value is not None)


def added(values: Iterable[int | None]) -> int | None:
    """Return the sum of the values that are there; None where there is none."""
    numbers = [value for value in values if value is not None]
    return sum(numbers) if numbers else None


# The columns of use that tables of datasets, sites and applications share, and their
# cells.

_COLUMNS: Final = {
    column.name: column
    for column in (
        Column("nacc", "Accesses", "count"),
        Column(
            "remote_share", "Remote", "share", "remote accesses among those whose log records it"
        ),
        Column("read_bytes", "Read", "bytes", "by accesses"),
        Column("job_count", "Jobs", "count", "jobs are not accesses"),
        Column("job_read_bytes", "Read by jobs", "bytes"),
        Column("cpu_ms", "CPU hours", "ms", "of jobs"),
    )
}
#: The columns of most tables.
USUAL: Final = ("nacc", "remote_share", "read_bytes", "job_count", "cpu_ms")


def use_columns(*names: str) -> tuple[Column, ...]:
    """Return the columns of these names."""
    return tuple(_COLUMNS[name] for name in names)


def stored_columns(snapshot: Snapshot, columns: Iterable[Column]) -> tuple[Column, ...]:
    """Return the columns without those of jobs where no jobs are stored."""
    return tuple(column for column in columns if snapshot.has_jobs or column.name not in OF_JOBS)


def to_table(key: str, rows: Sequence[Sequence[Any]]) -> pa.Table:
    """Return rows of a key and all sums as Arrow."""
    return to_arrow([Column(key, key), *(Column(name, name, "count") for name in SUMS)], rows)


def with_remote_share(rows: pa.Table) -> pa.Table:
    """Return sums with the share of remote accesses."""
    shares = ratios(rows["remote_nacc"], rows["remote_known_nacc"])
    return rows.append_column("remote_share", shares)


# Finding datasets by parts of their names, as one types.

_SUGGESTIONS: Final = 15


def matching(names: list[str], text: str) -> list[int]:
    """Return the positions of names with every word of a text in any case; ``*`` and
    ``?`` match any.
    """
    words = text.lower().split()
    if not words:
        return list(range(len(names)))
    tests = [
        re.compile(translate(f"*{word}*")).match if set("*?[") & set(word) else word
        for word in words
    ]
    return [
        number
        for number, name in enumerate(names)
        if all(
            word in name.lower() if isinstance(word, str) else word(name.lower()) for word in tests
        )
    ]


def suggestions(request: PageRequest) -> list[dict[str, Any]]:
    """Datasets whose names match the parameter ``q``, those with the most accesses
    first, then those of jobs alone.
    """
    names, sums = _ranked(request.snapshot)
    numbers = matching(names, text_parameter(request.parameters, "q"))[:_SUGGESTIONS]
    return [
        {"name": names[number], "nacc": sums[number], "href": request.dataset_link(names[number])}
        for number in numbers
    ]


def _ranked(snapshot: Snapshot) -> tuple[list[str], list[int]]:
    """Return all datasets by their accesses on all stored days, then by their jobs."""

    def make() -> tuple[list[str], list[int]]:
        every = Selection(snapshot.days[0], snapshot.days[-1])
        (rows,) = sums(snapshot, every, ("dataset_name",), columns=("nacc", "job_count"))
        rows.sort(key=lambda row: (-(row[1] or 0), -(row[2] or 0), row[0]))
        return [name for name, *_ in rows], [nacc or 0 for _, nacc, _ in rows]

    return snapshot.cached("ranked", make)
