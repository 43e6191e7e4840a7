"""Named views of the accesses, from ``etc/views.yaml`` and a file of one's own: what is
counted, by what.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import msgspec

from cmsspark.base import config_files, efficiency, periods
from cmsspark.base.config_files import ConfigFile, nearest
from cmsspark.base.errors import DataError, SettingsError, UsageError
from cmsspark.base.periods import Period
from cmsspark.base.resources import read_text
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.spelling import suggestion
from cmsspark.filesystems.storage import Files
from cmsspark.sources.registry import of_accesses
from cmsspark.store import stored_days
from cmsspark.store.stored_days import JobDays, StoredDays

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.counting.rollup import Rollup

BUILT_IN: Final = "etc/views.yaml"
_MAX_LONG: Final = 2**63 - 1


@dataclass(frozen=True)
class View:
    """A view of accesses. ``period``: by default the last whole week or month;
    ``sort``: a key, or a measure downwards.
    """

    name: str
    about: str
    rollup: Rollup
    period: str
    sort: str
    #: The job whose stored days it is made of.
    job: str = stored_days.JOB

    def find(self, files: Files, fout: str, period: Period) -> StoredDays:
        """Return the stored days of a period. Raises DataError (65) where one is damaged."""
        if self.job == stored_days.JOB:
            return stored_days.find_days(files, fout, period)
        return stored_days.find_job_days(files, fout, period, self.job, self.job)

    def last(self, today: date) -> Period:
        """Return the period that it is of where none is given."""
        return (
            periods.week("last", today) if self.period == "week" else periods.month("last", today)
        )

    def rows(self, stored: StoredDays) -> pl.DataFrame:
        """Return its sorted rows, keys and measures, from the partials of stored days.

        Raises DataError (65) where users have pseudonyms of two keys.
        """
        from cmsspark.counting.rollup import roll_up

        if isinstance(stored, JobDays):
            return self._sorted(_cost_rows(self, stored))
        has_users = "distinct_users" in self.rollup.measures
        if has_users:
            stored.key_id()
        rows, aggregated = roll_up(self.rollup, stored.pieces(self.rollup.columns))
        if has_users:
            stored.check_users(aggregated.users)
        return self._sorted(rows)

    def _sorted(self, rows: pl.DataFrame) -> pl.DataFrame:
        is_key = self.sort in self.rollup.keys
        return rows.sort(self.sort, descending=not is_key, nulls_last=True, maintain_order=True)


#: Ratios of the tables on what jobs cost, each of two sums; those of HTCondor's jobs
#: are of the jobs that did not fail.
RATIOS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "job_efficiency": {
        "cpu_efficiency": efficiency.CPU,
        "allocated_efficiency": efficiency.ALLOCATED,
    },
    "step_efficiency": {"cpu_efficiency": ("cpu_of_thread_ms", "thread_ms")},
}


def cost_measures(job: str) -> tuple[str, ...]:
    """Return the measures of a table on what jobs cost: its ratios, and its sums but
    for numbers of distinct values and peaks, which do not add up.
    """
    schema = stored_table(job)
    sums = (
        column.name
        for column in schema.columns
        if column.type == "long" and column.name != "timestamp"
    )
    return (*RATIOS[job], *(name for name in sums if not name.startswith("distinct_")))


def _cost_rows(view: View, stored: JobDays) -> pl.DataFrame:
    """Return keys and measures of a view on what jobs cost. Raises DataError (65) where
    a sum exceeds 64 bits.
    """
    import polars as pl

    from cmsspark.counting.rollup import matches

    rollup, ratios = view.rollup, RATIOS[view.job]
    pairs = {name: ratios[name] for name in rollup.measures if name in ratios}
    sums = [name for name in rollup.measures if name not in ratios]
    needed = {
        *rollup.keys,
        *rollup.filters,
        *sums,
        *(name for pair in pairs.values() for name in pair),
    }
    names = [
        name
        for name in stored_table(view.job).names
        if name in needed or name == "day" or (pairs and name == "outcome")
    ]
    parts = [pl.from_arrow(rows) for _, rows in stored.rows(view.job, names)]
    rows = pl.concat([part for part in parts if isinstance(part, pl.DataFrame)])
    for column, patterns in rollup.filters.items():
        values = [value for value in rows[column].unique() if matches(value, patterns)]
        rows = rows.filter(pl.col(column).is_in(values))

    def total(name: str, condition: pl.Expr) -> pl.Expr:
        chosen = pl.col(name).cast(pl.Int128).filter(condition)
        return pl.when(chosen.count() > 0).then(chosen.sum())

    population = (
        pl.col("outcome").is_in(efficiency.OUTCOMES) if "outcome" in names else pl.lit(value=True)
    )
    shares = []
    for name, (above, below) in pairs.items():
        divisor = total(below, population).cast(pl.Float64)
        share = total(above, population).cast(pl.Float64) / pl.when(divisor > 0).then(divisor)
        shares.append(share.alias(name))
    everything = pl.lit(value=True)
    grouped = rows.group_by(rollup.keys).agg(
        *shares, *(total(name, everything).alias(name) for name in sums)
    )
    for name in sums:
        if any(value > _MAX_LONG for value in grouped[name].drop_nulls()):
            raise DataError(f"a sum of {name} in the view {view.name} is beyond 2^63-1")
    integers = [pl.col(name).cast(pl.Int64) for name in sums]
    return grouped.with_columns(integers).select(*rollup.keys, *rollup.measures).sort(rollup.keys)


def load_views(path: str | None) -> dict[str, View]:
    """Return the built-in views, and those of the file ``own``, which come before
    built-in ones of the same name.

    Raises SettingsError (78) with file and line for what is unknown or of another form.
    """
    views = parse_views(read_text(BUILT_IN).encode(), BUILT_IN)
    if path is None:
        return views
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(
            "the file of views cannot be read", where=path, found=error.strerror
        ) from None
    return views | parse_views(content, path)


def find_view(views: Mapping[str, View], name: str) -> View:
    """Return the view of a name. Raises UsageError (2) with the nearest name where there is none."""
    if name not in views:
        hint = (
            suggestion(name, views)
            or "cmsspark period --view lists the views; docs/periods.md says how to add one"
        )
        raise UsageError(f"there is no view {name!r}", found=", ".join(views), next_step=hint)
    return views[name]


def parse_views(content: bytes, name: str) -> dict[str, View]:
    """Return the views of a file's content. Raises SettingsError (78)."""
    file = config_files.parse(content, name)
    return {key: _view(file, key) for key in file.values}


class _Entry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A view as it is written. ``filter``: column → a pattern, or a list of them. A
    view that neither filters by ``stream`` nor has it as a key counts accesses, without
    jobs. ``of``: what it sums up; else accesses, what jobs cost.
    """

    keys: Annotated[list[str], msgspec.Meta(min_length=1)]
    measures: Annotated[list[str], msgspec.Meta(min_length=1)]
    about: str = ""
    filter: dict[str, Any] | None = None
    period: Literal["week", "month"] = "week"
    sort: str | None = None
    of: Literal["accesses", "job_efficiency", "step_efficiency"] = "accesses"


def _view(file: ConfigFile, name: str) -> View:
    from cmsspark.counting.rollup import KEYS, MEASURES, Rollup

    entry = file.convert(_Entry, name)
    is_of_accesses = entry.of == "accesses"
    allowed = KEYS if is_of_accesses else ("day", *stored_table(entry.of).keys)
    keys = _columns(file, entry.keys, allowed, name, "keys")
    of_costs = () if is_of_accesses else cost_measures(entry.of)
    measures = _columns(file, entry.measures, of_costs or MEASURES, name, "measures")
    sort = measures[0] if entry.sort is None else entry.sort
    if sort not in (*keys, *measures):
        near = nearest(sort, (*keys, *measures))
        raise file.error(
            "a view is sorted by one of its keys or measures",
            name,
            "sort",
            found=sort,
            next_step=near,
        )
    filters = _filters(file, entry.filter or {}, name, allowed[1:])
    if not is_of_accesses:
        rollup = Rollup(keys, measures, filters)
        return View(name, entry.about, rollup, entry.period, sort, entry.of)
    # Rows that name their stream cannot add jobs to accesses.
    if "stream" not in keys:
        every = of_accesses(filters)
        filters = {name: every[name] for name in every if name != "app" or "app" not in keys}
    return View(name, entry.about, Rollup(keys, measures, filters), entry.period, sort)


def _columns(
    file: ConfigFile, names: list[str], allowed: tuple[str, ...], *key: str
) -> tuple[str, ...]:
    for name in names:
        if name == "user":
            raise file.error(
                "a view cannot show single people", *key, next_step="count them: distinct_users"
            )
        if name not in allowed:
            problem = f"there is no {name!r} among the {key[-1]}"
            raise file.error(problem, *key, next_step=nearest(name, allowed))
    if len(set(names)) < len(names):
        raise file.error(f"{key[-1]} must not repeat a name", *key, found=names)
    return tuple(names)


def _filters(
    file: ConfigFile, columns: Mapping[str, Any], name: str, allowed: tuple[str, ...]
) -> dict[str, tuple[str, ...]]:
    """Column → patterns; one text stands for a list of one."""
    filters = {}
    for column, patterns in columns.items():
        key = (name, "filter", column)
        if column not in allowed:
            raise file.error(
                f"a view cannot filter by {column!r}", *key, next_step=nearest(column, allowed)
            )
        texts = patterns if isinstance(patterns, list) else [patterns]
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise file.error(
                "patterns are texts, with * and ?",
                *key,
                found=patterns,
                next_step="put them in quotes",
            )
        filters[column] = tuple(texts)
    return filters
