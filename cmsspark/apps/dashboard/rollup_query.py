"""Sums and people of a selection by any keys: the one query of the rollups.

A segment has several tables of the same sums and of the same sets of people. The smallest
one that has the keys and the filters answers; one without days answers for the segments
that lie in the period, one with days for those that the period cuts.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

from cmsspark.apps.dashboard.segment import SET_TABLES, SUM_TABLES, SUMS
from cmsspark.apps.dashboard.selection import Selection, UnusedPartError
from cmsspark.apps.dashboard.snapshot import Snapshot
from cmsspark.sources.registry import STREAMS_OF_JOBS

if TYPE_CHECKING:
    import pyarrow as pa

Row = tuple[Any, ...]
#: Key → the key of tables that has its numbers.
_NUMBERED: Final = {"dataset_name": "dataset"}
#: Filter → the key that it also follows from, and its condition then.
_FOLLOWING: Final[Mapping[str, tuple[str, str]]] = {
    "site_tier": ("site_name", "split_part(site_name::VARCHAR, '_', 1) IN ({})"),
    "data_tier": ("dataset", "dataset IN (SELECT dataset FROM datasets WHERE data_tier IN ({}))"),
    "campaign": ("dataset", "dataset IN (SELECT dataset FROM datasets WHERE campaign IN ({}))"),
}


def sums(
    snapshot: Snapshot,
    chosen: Selection,
    *groups: tuple[str, ...],
    columns: Sequence[str] = SUMS,
) -> list[list[Row]]:
    """Return for each group of keys its rows: the keys, and the sums of ``columns``. Keys
    are those of tables, ``dataset_name``, and ``step``, the first day of a step of the
    selection.

    Rows with the largest first column come first, those of equal ones in the order of
    ``columns`` and keys. Raises UnusedPartError if no table has the keys and filters.
    """
    named = [tuple(_NUMBERED.get(name, name) for name in group) for group in groups]
    names = list(dict.fromkeys(name for group in named for name in group))
    source, parameters = _source(snapshot, chosen, names, columns, SUM_TABLES)
    cells = [f"sum({name})::{snapshot.kinds[name]} AS {name}" for name in columns]
    if len(groups) > 1:
        # Several groups are made of few sums: each costs a pass over the rows.
        keys = ", ".join(names)
        source = f"SELECT {keys}, {', '.join(cells)} FROM ({source}) GROUP BY {keys}"
    order = [*(f"{name} DESC NULLS LAST" for name in columns), *names]
    sets = ", ".join(f"({', '.join(group)})" for group in named)
    marks = [f"grouping({name})" for name in names] if len(groups) > 1 else []
    rows = snapshot.query(
        f"SELECT {', '.join([*marks, *names, *cells])} FROM ({source}) "
        f"GROUP BY GROUPING SETS ({sets}) ORDER BY {', '.join(order)}",
        parameters,
    )
    results, begin, end = [], len(marks), len(marks) + len(names)
    for group in named:
        own_marks = tuple(int(name not in group) for name in names)[:begin]
        own_rows = [row[begin:] for row in rows if row[:begin] == own_marks] if marks else rows
        at = [names.index(name) for name in group]
        if at != list(range(end - begin)):
            own_rows = [(*(row[n] for n in at), *row[end - begin :]) for row in own_rows]
        if "dataset" in group:
            n, texts = group.index("dataset"), snapshot.datasets.texts
            own_rows = [(*row[:n], texts[row[n]], *row[n + 1 :]) for row in own_rows]
        results.append(own_rows)
    return results


def sums_of_datasets(snapshot: Snapshot, chosen: Selection, columns: Sequence[str]) -> pa.Table:
    """Return the sums of each dataset, whose number is the column ``dataset``, as Arrow."""

    def make() -> pa.Table:
        source, parameters = _source(snapshot, chosen, ["dataset"], columns, SUM_TABLES)
        cells = ", ".join(f"sum({name})::{snapshot.kinds[name]} AS {name}" for name in columns)
        return snapshot.arrow(f"SELECT dataset, {cells} FROM ({source}) GROUP BY 1", parameters)

    # A sorting or another page of a table asks for the same sums, of some megabytes.
    return snapshot.cached(("sums_of_datasets", chosen, *columns), make)


def people(snapshot: Snapshot, chosen: Selection, *keys: str) -> dict[Row, int]:
    """Return the set of people of each combination of keys, as the bits of a number.

    They are people of jobs if the selection's streams are, else people of accesses.
    """
    source, parameters = _source(snapshot, chosen, keys, ("users",), SET_TABLES)
    selected = "".join(f"{name}, " for name in keys)
    rows = snapshot.query(
        f"SELECT {selected}bit_or(users::BIT)::BLOB FROM ({source}) GROUP BY ALL", parameters
    )
    return {row[:-1]: int.from_bytes(row[-1]) for row in rows if row[-1] is not None}


def _source(
    snapshot: Snapshot,
    chosen: Selection,
    keys: Sequence[str],
    cells: Sequence[str],
    tables: Mapping[str, tuple[str, ...]],
) -> tuple[str, list[object]]:
    """Return in SQL the rows that the selection takes, and the parameters."""
    needed = {"day" if name == "step" else name for name in keys}
    table = choose_table(tables, needed, chosen)
    inside, cut = snapshot.split(chosen.first, chosen.last)
    parts = [(table, inside)]
    if "day" in tables[table]:
        parts = [(table, sorted([*inside, *cut]))]
    elif cut:
        parts.append((choose_table(tables, {*needed, "day"}, chosen), cut))
    step = f"date_trunc('{chosen.step}', day)::DATE AS step"
    selected = ", ".join([*(step if name == "step" else name for name in keys), *cells])
    statements, parameters = [], list[object]()
    for name, segments in parts:
        has_days, of_users = "day" in tables[name], tables is SET_TABLES
        condition, values = where(chosen, tables[name], has_days=has_days, of_users=of_users)
        rows = snapshot.rows(name, segments=segments)
        statements.append(f"SELECT {selected} FROM {rows} WHERE {condition}")
        parameters += values
    return " UNION ALL ".join(statements), parameters


def choose_table(tables: Mapping[str, tuple[str, ...]], keys: set[str], chosen: Selection) -> str:
    """Return the first of some tables, the smallest ones first, that has these keys and
    can use the selection's filters. Raises UnusedPartError if none does.
    """
    filters = {name for name, _ in chosen.filters}
    for name, own_keys in tables.items():
        if keys <= {*own_keys} and filters <= {*_conditions(own_keys)}:
            return name
    raise UnusedPartError(", ".join(sorted({*keys, *filters})))


def _conditions(keys: Sequence[str]) -> dict[str, str]:
    """Filter → its condition on a table with these keys."""
    conditions = {name: f"{name} IN ({{}})" for name in keys}
    for name, (key, condition) in _FOLLOWING.items():
        if key in keys:
            conditions.setdefault(name, condition)
    return conditions


def where(
    chosen: Selection, keys: Sequence[str], *, has_days: bool = True, of_users: bool = False
) -> tuple[str, list[object]]:
    """Return the condition of a selection on a table with these keys, and its parameters.
    ``of_users``: people of jobs count only if all chosen streams are of jobs.
    """
    conditions = _conditions(keys)
    if of_users and "stream" in keys:
        if chosen.values("stream"):
            chosen = chosen.with_values("stream", *chosen.streams_of_users)
        else:
            chosen = chosen.with_values("stream", *STREAMS_OF_JOBS)
            conditions["stream"] = "stream NOT IN ({})"
    return chosen.where(conditions, days_too=has_days)
