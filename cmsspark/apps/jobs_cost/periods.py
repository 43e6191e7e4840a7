"""Weeks, months and other ranges of the tables on what jobs cost: sums of their stored
days (rule 55).
"""

from __future__ import annotations

from collections.abc import Callable
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from cmsspark.apps.crab.reports import check_sums, sum_or_null
from cmsspark.base.periods import Period
from cmsspark.base.schemas import stored_table
from cmsspark.cli.period_options import period_command
from cmsspark.run.period_run import run_on_days, store_period, with_period
from cmsspark.store.own_jobs import JOBS, Job, declare
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_days import JobDays, find_job_days

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.settings.settings import Settings

#: Columns of which a period has the largest value of a day: they do not add up.
_LARGEST: Final = (
    "distinct_schedds",
    "distinct_users",
    "site_count",
    "rss_max_mb",
    "vsize_max_mb",
)
_OF_PERIOD: Final = ("period", "first_day", "last_day", "timestamp", "day_count", "average_cores")


def window_counts(days: JobDays) -> pl.DataFrame:
    """Return the windows with a record of each hour, over all days."""
    import polars as pl

    counts = [0] * 24
    for table in days.partials.values():
        for hour, count in enumerate(
            table.manifest.document["job_cost_checks"]["windows_by_hour"]
        ):
            counts[hour] += count
    return pl.DataFrame(
        {"hour": range(24), "window_count": counts},
        schema={"hour": pl.Int64, "window_count": pl.Int64},
    )


def make_command(job: Job) -> click.Command:
    """Return the command of ``<job>_period``, which makes the tables of a period of the
    stored days of a job.
    """
    return period_command(job, partial(run, job.name.removesuffix("_period")))


def run(
    job: str,
    period: Period,
    fout: str,
    settings: Settings,
    *,
    allow_missing: bool = False,
    log: Callable[[str], None] | None = None,
) -> CurrentTable:
    """Make the tables of a period and store them. Raises as
    :func:`cmsspark.run.period_run.run_on_days`.
    """
    name = f"{job}_period"
    find = partial(find_job_days, job=job, table=JOBS[job].tables[0])
    with run_on_days(settings, fout, name, period, log, find, allow_missing=allow_missing) as (
        run_context,
        days,
    ):
        return store_period(
            run_context, days, {table: build(days, table) for table in JOBS[name].tables}, job
        )


def build(days: JobDays, name: str) -> pl.DataFrame:
    """Return a period's table. Raises DataError (65) where a sum exceeds 64 bits."""
    import polars as pl
    import pyarrow as pa

    schema, of_days = stored_table(name), stored_table(name.removeprefix("period_"))
    parts = [rows for _, rows in days.rows(of_days.name, of_days.names)]
    rows = pl.from_arrow(pa.concat_tables([of_days.arrow().empty_table(), *parts]))
    assert isinstance(rows, pl.DataFrame)
    measures = [name for name in schema.names if name not in (*schema.keys, *_OF_PERIOD)]
    sums = [name for name in measures if name not in _LARGEST]
    check_sums(rows, tuple(name for name in sums if rows.schema[name] == pl.Int64))
    summed = rows.group_by(schema.keys).agg(
        *(sum_or_null(name) for name in sums),
        *(pl.col(name).max() for name in measures if name in _LARGEST),
    )
    if "hour" in schema.keys:
        summed = summed.drop("window_count").join(
            window_counts(days), "hour", how="left", validate="m:1"
        )
        # Not at import: numpy comes with it.
        from cmsspark.sources.condor_costs import HOUR_WINDOWS

        cores = pl.col("core_windows_milli") / (HOUR_WINDOWS * 1000 * len(days.partials))
        summed = summed.with_columns(average_cores=cores)
    added = with_period(
        summed.with_columns(day_count=pl.lit(len(days.partials), pl.Int64)), days.period
    )
    return added.select(schema.names).sort(schema.keys)


for _feed, _tables in (
    ("job_efficiency", ("job_efficiency", "core_hours", "running_cores")),
    ("step_efficiency", ("step_efficiency", "agent_reports")),
):
    _job = Job(
        f"{_feed}_period",
        f"A week, a month or any range of the stored days of {_feed}",
        tuple(f"period_{name}" for name in _tables),
        needs_spark=False,
        of_periods=True,
        of_days=_feed,
        module=__name__,
    )
    declare(_job, partial(make_command, _job))
