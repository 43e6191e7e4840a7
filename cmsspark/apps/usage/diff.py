"""``cmsspark diff A B``: what appeared, vanished or changed most between two days or
periods, or two runs of one.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from msgspec.structs import asdict

from cmsspark.base import dates
from cmsspark.base.errors import UsageError
from cmsspark.base.periods import Interval, Period, named
from cmsspark.base.text.terminal import NOTHING, number, table, terminal_width, volume
from cmsspark.cli.options import require_store, store_options
from cmsspark.settings.settings import load_settings
from cmsspark.sources.registry import STREAMS_OF_JOBS
from cmsspark.store.own_jobs import Job, find_job

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.base.manifests import Manifest
    from cmsspark.base.schemas import Table

COLUMNS: Final = {"dataset": "dataset_name", "site": "site_name", "stream": "stream", "app": "app"}
#: Counts of accesses → those of jobs, which are not accesses and have columns of their own.
_OF_JOBS: Final = {"nacc": "job_count", "read_bytes": "job_read_bytes", "remote_nacc": None}
_STORED: Final = ("nacc", "read_bytes", "remote_nacc", "cpu_time", "wc_time")
#: Measures in bytes, and in seconds.
_BYTES: Final = ("read_bytes", "job_read_bytes", "write_bytes")
_SECONDS: Final = ("cpu_time", "wc_time")
MEASURES_OF_JOBS: Final = ("job_count", "job_read_bytes")
MEASURES: Final = (*_STORED, *MEASURES_OF_JOBS)


class Change(msgspec.Struct, frozen=True):
    """A group's measure before and after; None where the group does not exist or
    nothing is known of it.

    ``is_in_both``: the group exists before and after.
    """

    key: str
    before: int | float | None
    after: int | float | None
    is_in_both: bool = False

    @property
    def delta(self) -> int | float | None:
        """After minus before, of seconds in whole milliseconds. What does not exist is
        0; None where a side of a group in both is not known.
        """
        if self.is_in_both and (self.before is None or self.after is None):
            return None
        before, after = self.before or 0, self.after or 0
        if isinstance(before, int) and isinstance(after, int):
            return after - before
        return (round(after * 1000) - round(before * 1000)) / 1000

    def as_dict(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {"key": self.key, "before": self.before, "after": self.after, "delta": self.delta}


class Grouped(msgspec.Struct, frozen=True):
    """The difference by one column: numbers of groups, and the largest changes first."""

    column: str
    appeared: int
    vanished: int
    changed: int
    same: int
    largest: tuple[Change, ...]

    def as_dict(self) -> dict[str, Any]:
        """As ``--json`` prints it."""
        return {**asdict(self), "largest": [change.as_dict() for change in self.largest]}


class Impact(msgspec.Struct, frozen=True):
    """Documents that publishing the later result over the earlier one sends, or leaves."""

    new: int
    changed: int
    unchanged: int
    gone: int


def sum_changes(
    before: pl.DataFrame, after: pl.DataFrame, measures: Sequence[str]
) -> list[Change]:
    """Return each measure's sum; None where all its values are null."""
    return [Change(name, _sum(before, name), _sum(after, name)) for name in measures]


def group_changes(
    before: pl.DataFrame, after: pl.DataFrame, column: str, measure: str, top: int
) -> Grouped:
    """Return the difference of ``measure`` by ``column``; ``top`` largest changes,
    equal ones by their name.
    """
    import polars as pl

    def sums(rows: pl.DataFrame, name: str) -> pl.DataFrame:
        numbers = rows.select(column, _whole_numbers(rows.get_column(measure)).alias(measure))
        known_sum = pl.when(pl.col(measure).count() > 0).then(pl.col(measure).sum())
        return numbers.group_by(column).agg(
            known_sum.alias(name), pl.lit(True).alias(f"has_{name}")
        )

    both = sums(before, "before").join(
        sums(after, "after"), on=column, how="full", coalesce=True, nulls_equal=True
    )
    has_before, has_after = pl.col("has_before").is_not_null(), pl.col("has_after").is_not_null()
    start, end = (
        pl.when(has).then(name).otherwise(0)
        for has, name in ((has_before, "before"), (has_after, "after"))
    )
    both = both.with_columns(delta=end - start, is_in_both=has_before & has_after)
    is_same = pl.col("is_in_both") & pl.col("before").eq_missing(pl.col("after"))
    moved = both.filter(~is_same)
    moved = moved.sort(
        [pl.col("delta").abs(), column], descending=[True, False], nulls_last=True
    ).head(top)
    in_both = both.filter("is_in_both")
    changed = in_both.filter(~is_same).height
    is_time = before.schema[measure].is_float()
    return Grouped(
        column,
        both.filter(~has_before).height,
        both.filter(~has_after).height,
        changed,
        in_both.height - changed,
        tuple(
            Change(
                str(row[column]),
                _in_units(row["before"], is_time),
                _in_units(row["after"], is_time),
                row["is_in_both"],
            )
            for row in moved.to_dicts()
        ),
    )


def find_impact(before: pl.DataFrame, after: pl.DataFrame, keys: Sequence[str]) -> Impact:
    """Return which documents, rows with the keys ``keys``, are new, changed, unchanged and gone."""
    import polars as pl

    values = [name for name in after.columns if name not in keys]
    mark = [pl.lit(True).alias("is_there")]
    both = before.with_columns(mark).join(
        after.with_columns(mark),
        on=list(keys),
        how="full",
        coalesce=True,
        nulls_equal=True,
        suffix="_after",
    )
    has_before, has_after = (
        pl.col("is_there").is_not_null(),
        pl.col("is_there_after").is_not_null(),
    )
    in_both = both.filter(has_before & has_after)
    is_same = pl.all_horizontal(
        [pl.col(name).eq_missing(pl.col(f"{name}_after")) for name in values]
    )
    unchanged = in_both.filter(is_same).height
    added, gone = both.filter(~has_before).height, both.filter(~has_after).height
    return Impact(added, in_both.height - unchanged, unchanged, gone)


def _sum(rows: pl.DataFrame, name: str) -> int | float | None:
    column = rows.get_column(name).drop_nulls()
    return (
        None
        if column.is_empty()
        else _in_units(int(_whole_numbers(column).sum()), column.dtype.is_float())
    )


def _whole_numbers(column: pl.Series) -> pl.Series:
    """Return a measure as whole numbers of 128 bits, whose sums cannot overflow:
    seconds as milliseconds.
    """
    import polars as pl

    return ((column * 1000.0).round(0) if column.dtype.is_float() else column).cast(pl.Int128)


def _in_units(number: int | None, is_time: bool) -> int | float | None:
    """Return a sum in its unit: milliseconds as seconds."""
    return number / 1000 if is_time and number is not None else number


class Comparison(msgspec.Struct, frozen=True):
    """What is compared of tables of one kind: columns by their names in ``--by``, of
    which the first ones are the default, and sums.
    """

    columns: Mapping[str, str]
    measures: tuple[str, ...]
    #: How many of the columns are the default.
    default_count: int = 3


_ACCESSES: Final = Comparison(COLUMNS, MEASURES)
#: The comparison of each table on what jobs cost; the first sum is the default.
_COSTS: Final = {
    "job_efficiency": Comparison(
        {name: name for name in ("workflow", "site", "outcome", "tier", "type")},
        ("core_ms", "last_core_ms", "evicted_core_ms", "cpu_ms", "job_count"),
    ),
    "step_efficiency": Comparison(
        {"task": "task", "site": "site", "step": "step", "type": "job_type"},
        ("thread_ms", "cpu_of_thread_ms", "step_count", "read_bytes", "write_bytes", "events"),
    ),
}


class Side(msgspec.Struct, frozen=True):
    """One side of the comparison: the current result of a day or period, or one of its runs."""

    interval: Interval
    run: str | None

    @classmethod
    def from_text(cls, text: str) -> Side:
        """Return a day, a period by its name, each also with ``@RUN``. Raises UsageError (2)."""
        name, at, run = text.partition("@")
        if at and not run:
            raise UsageError(
                f"a run is needed after the @ of {text!r}", next_step="cmsspark runs lists them"
            )
        try:
            return cls(named(name), run or None)
        except ValueError:
            pass
        try:
            return cls(dates.parse_day(name), run or None)
        except UsageError as error:
            raise UsageError(
                error.problem,
                next_step="give a day (20260115), a week (2026-W46), a month (2026-11) or a range "
                "(2026-11-01--2026-11-10)",
            ) from None

    @property
    def is_period(self) -> bool:
        """Whether it is a period, not a day."""
        return isinstance(self.interval, Period)


_BY: Final = (
    "Group by this column: dataset, site, stream or app; of other tables any. Can be given several times. "
    "[default: dataset, site, stream; of costs: workflow or task, site, outcome or step; of other tables the keys]"
)


@click.command("diff")
@click.argument("before", metavar="A")
@click.argument("after", metavar="B")
@click.option(
    "--job",
    "job_name",
    help="Compare results of this job, such as job_efficiency. [default: data_aggregation; of periods: period]",
)
@click.option("--by", metavar="COLUMN", multiple=True, help=_BY)
@click.option(
    "--measure",
    metavar="COLUMN",
    help=f"Measure to compare: {', '.join(MEASURES)}; of other tables a column of numbers. "
    "[default: nacc; of jobs: job_count; of costs: core_ms or thread_ms]",
)
@click.option(
    "--top",
    type=click.IntRange(0),
    default=10,
    show_default=True,
    help="Number of largest changes.",
)
@click.option(
    "--publish-impact",
    is_flag=True,
    help="Also count changed documents (two runs of one day or period).",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@store_options
def command(
    before: str,
    after: str,
    job_name: str | None,
    by: tuple[str, ...],
    measure: str | None,
    top: int,
    publish_impact: bool,
    as_json: bool,
    fout: str | None,
    settings_file: str | None,
) -> None:
    """Compare results A and B: two days (20260115), or two periods (2026-W46, 2026-11,
    2026-11-01--2026-11-10).

    @RUN after one of them names a run of it (20260115@RUN; RUN can be abbreviated).

    Prints the sums of all measures and, by dataset, site and stream, groups that
    appeared, vanished or changed most. Results on what jobs cost have sums of their own.
    """
    import polars as pl

    from cmsspark.base.schemas import stored_table
    from cmsspark.publish.documents import key_columns

    sides = Side.from_text(before), Side.from_text(after)
    job = _find_job(job_name, sides)
    schema = stored_table(job.tables[0])
    kind = _comparison(job, schema)
    _check_names(job, kind, by, measure)
    if publish_impact and sides[0].interval != sides[1].interval:
        raise UsageError(
            "documents of two days cannot be compared",
            next_step="give two runs of one day: DAY@RUN",
        )
    store = require_store(fout, load_settings(settings_file))
    stored = [_rows(store, job.name, schema, side) for side in sides]
    names = [
        f"{side.interval.isoformat()}@{manifest.run}"
        for side, (manifest, _) in zip(sides, stored, strict=True)
    ]
    rows = [frame for _, frame in stored]
    for warning in _warnings(
        dict(zip(names, (manifest for manifest, _ in stored), strict=True)), job
    ):
        click.echo(f"warning: {warning}", err=True)
    if kind is _ACCESSES:
        rows_before, rows_after = _jobs_apart(rows)
        measure = _measure(measure, rows, job)
    else:
        rows_before, rows_after = rows
        measure = measure or kind.measures[0]
    sums = sum_changes(rows_before, rows_after, kind.measures)
    if kind is _ACCESSES and measure in (*_OF_JOBS, *MEASURES_OF_JOBS):
        # The measure is of accesses alone, or of jobs alone.
        is_job = pl.col("stream").is_in(STREAMS_OF_JOBS).fill_null(False)
        of_kind = ~is_job if measure in _OF_JOBS else is_job
        rows_before, rows_after = rows_before.filter(of_kind), rows_after.filter(of_kind)
    groups = [
        group_changes(rows_before, rows_after, kind.columns[name], measure, top)
        for name in by or [*kind.columns][: kind.default_count]
    ]
    impact = None
    if publish_impact:
        published = [frame.drop("day", strict=False) for frame in rows]
        impact = find_impact(published[0], published[1], key_columns(schema))
    if as_json:
        click.echo(
            json.dumps(
                _as_dict(names, sums, groups, measure, impact), indent=1, ensure_ascii=False
            )
        )
    else:
        click.echo(f"A {names[0]}\nB {names[1]}\n")
        has_values = [
            change for change in sums if change.before is not None or change.after is not None
        ]
        _table([_line(change, change.key) for change in has_values], ("", "A", "B", "B - A", ""))
        for group in groups:
            click.echo(
                f"\n{measure} by {group.column}: {group.appeared:,} appeared, {group.vanished:,} vanished, "
                f"{group.changed:,} changed, {group.same:,} the same"
            )
            if group.largest:
                _table([_line(change, measure) for change in group.largest])
        if impact is not None:
            counts = f"{impact.new:,} new, {impact.changed:,} changed, {impact.gone:,} gone, {impact.unchanged:,} unchanged"
            click.echo(f"\ndocuments: {counts}")


def _find_job(name: str | None, sides: tuple[Side, Side]) -> Job:
    """Return the job whose results are compared. Raises UsageError (2) for a day and a
    period, or no job on logs.
    """
    is_period = sides[0].is_period
    if is_period != sides[1].is_period:
        raise UsageError(
            "a day and a period cannot be compared", next_step="give two days, or two periods"
        )
    job = find_job(name or ("period" if is_period else "data_aggregation"))
    if is_period and job.name in _COSTS:
        job = find_job(f"{job.name}_period")
    if job.of_periods != is_period:
        kind = "periods" if job.of_periods else "days"
        raise UsageError(f"results of {job.name} are of {kind}", next_step=f"give two {kind}")
    if not job.tables:
        raise UsageError(f"{job.name} stores no table", next_step="give another job")
    return job


def _comparison(job: Job, schema: Table) -> Comparison:
    """Return what is compared of a job's table. Raises UsageError (2) where it has no
    sums.
    """
    if {"stream", "nacc"} <= {*schema.names}:
        return _ACCESSES
    if (costs := _COSTS.get(job.of_days or job.name)) is not None:
        return costs
    if not schema.additive:
        raise UsageError(
            f"{schema.name} has no column of numbers that can be added up",
            next_step="cmsspark sql compares other values",
        )
    keys = [name for name in schema.keys if name in schema.names]
    names = [*keys, *(name for name in schema.names if name not in keys)]
    return Comparison({name: name for name in names}, tuple(schema.additive), len(keys))


def _check_names(job: Job, kind: Comparison, by: Sequence[str], measure: str | None) -> None:
    """Raise UsageError (2) for a column or a measure of another kind of tables."""
    for name in by:
        if name not in kind.columns:
            raise UsageError(
                f"results of {job.name} have no {name}",
                next_step=f"--by takes {', '.join(kind.columns)}",
            )
    if measure and measure not in kind.measures:
        raise UsageError(
            f"results of {job.name} have no {measure}",
            next_step=f"--measure takes {', '.join(kind.measures)}",
        )


def _warnings(manifests: Mapping[str, Manifest], job: Job) -> list[str]:
    """Return which results are partial, and why: what they lack appears or vanishes in
    the comparison. Results of different rules differ by the rules, too.
    """
    from cmsspark.base.manifests import COUNTING_RULES
    from cmsspark.store.stored_days import partial_reasons

    if job.of_periods:
        return [
            f"{name}: {text}" for name, manifest in manifests.items() for text in manifest.warnings
        ]
    warnings = [
        f"{name} is partial ({reason})" for name, reason in partial_reasons(manifests).items()
    ]
    earlier = {
        name: manifest.rules for name, manifest in manifests.items() if manifest.has_earlier_rules
    }
    if earlier and len({manifest.rules for manifest in manifests.values()}) > 1:
        warnings += [
            f"{name} was counted by rules {number}, which differ from today's {COUNTING_RULES}: "
            "docs/counting.md lists the changes"
            for name, number in earlier.items()
        ]
    return warnings


def _rows(store: str, job: str, schema: Table, side: Side) -> tuple[Manifest, pl.DataFrame]:
    """Return the manifest of a run, and the columns that are compared or published.

    Raises DataError (65) for a damaged part.
    """
    import polars as pl
    import pyarrow as pa

    from cmsspark.store import results
    from cmsspark.store.part_files import stored_parts
    from cmsspark.store.stored_columns import conformed_rows, open_store, table_rows

    files = open_store(store, "cmsspark diff")
    if side.run is None:
        result = results.current(files, store, job, schema.name, side.interval)
    else:
        result = results.run_table(files, store, job, schema.name, side.interval, side.run)
    if result.manifest.tables[schema.name].schema in ("", None, schema.fingerprint()):
        stored = table_rows(files, result, schema.name, schema.names)
    else:
        # Stored with other columns: those that are new are not known.
        parts = stored_parts(files, result, schema.name)
        stored = pa.concat_tables(
            [
                schema.arrow().empty_table(),
                *(conformed_rows(files, part, schema) for part in parts),
            ]
        )
    rows = pl.from_arrow(stored)
    assert isinstance(rows, pl.DataFrame)
    return result.manifest, rows


def _measure(name: str | None, rows: list[pl.DataFrame], job: Job) -> str:
    """Return the measure to compare. Raises UsageError (2) for one of accesses or jobs
    of which there are none.
    """
    is_job = [stream in STREAMS_OF_JOBS for frame in rows for stream in frame["stream"].unique()]
    has_jobs, has_accesses = any(is_job), not all(is_job) or not is_job
    if name in _OF_JOBS and not has_accesses:
        raise UsageError(
            f"{job.name} has jobs and no accesses here", next_step="give --measure job_count"
        )
    if name in MEASURES_OF_JOBS and not has_jobs:
        raise UsageError(f"{job.name} has no jobs here", next_step="give --measure nacc")
    return name or ("nacc" if has_accesses else "job_count")


def _jobs_apart(rows: list[pl.DataFrame]) -> tuple[pl.DataFrame, pl.DataFrame]:
    """Return the rows with the counts of jobs in columns of their own."""
    import polars as pl

    is_job = pl.col("stream").is_in(STREAMS_OF_JOBS).fill_null(False)
    of_jobs = [
        pl.when(is_job).then(pl.col(name)).alias(column)
        for name, column in _OF_JOBS.items()
        if column
    ]
    of_accesses = [pl.when(~is_job).then(pl.col(name)).alias(name) for name in _OF_JOBS]
    before, after = (frame.with_columns(*of_jobs, *of_accesses) for frame in rows)
    return before, after


def _as_dict(
    names: list[str],
    sums: list[Change],
    groups: list[Grouped],
    measure: str,
    impact: Impact | None,
) -> dict[str, Any]:
    return {
        "a": names[0],
        "b": names[1],
        "measure": measure,
        "totals": [change.as_dict() for change in sums],
        "by": [group.as_dict() for group in groups],
        "documents": None if impact is None else asdict(impact),
    }


def _line(change: Change, measure: str) -> tuple[str, ...]:
    if change.before is None and change.after is None:
        return (change.key, NOTHING, NOTHING, "", "")
    share = (
        f"{100 * change.delta / change.before:+.1f} %"
        if change.before and change.delta is not None
        else ""
    )
    change_text = "new" if change.before is None else "gone" if change.after is None else share
    change_text = "not known" if change.delta is None else change_text
    before, after, delta = (
        _with_unit(value, measure) for value in (change.before, change.after, change.delta)
    )
    return (
        change.key,
        before,
        after,
        delta if delta.startswith(("-", NOTHING)) else f"+{delta}",
        change_text,
    )


def _with_unit(value: float | None, measure: str) -> str:
    """Return a sum of a measure with its unit: bytes in powers of 1000; seconds, from
    an hour on as hours; milliseconds of costs as hours.
    """
    if value is not None and measure.endswith("_ms"):
        return f"{value / 3_600_000:,.1f} h"
    if value is None or measure not in (*_BYTES, *_SECONDS):
        return number(value)
    if measure in _SECONDS:
        return f"{value / 3_600:,.1f} h" if abs(value) >= 3_600 else f"{value:.3f} s"
    return f"-{volume(-value)}" if value < 0 else volume(value)


def _table(rows: list[tuple[str, ...]], headings: tuple[str, ...] = ("",) * 5) -> None:
    lines = table(headings, rows, width=terminal_width())
    click.echo("\n".join(lines if any(headings) else lines[1:]))
