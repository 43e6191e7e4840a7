"""Weeks, months and other ranges of the tables on what jobs cost: sums of their stored
days (rule 55).
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, replace
from functools import partial
from typing import TYPE_CHECKING, Final

import click

from cmsspark.apps.crab.days import check_sums, sum_or_null
from cmsspark.base.errors import InputMissing
from cmsspark.base.periods import Period
from cmsspark.base.schemas import Table, stored_table
from cmsspark.cli.period_options import period_command
from cmsspark.filesystems.storage import Files, join
from cmsspark.run.period_run import run_on_days, store_period, with_period
from cmsspark.store import results
from cmsspark.store.job_index import JOBS, Job, declare
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import table_rows
from cmsspark.store.stored_days import StoredDays

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


@dataclass(frozen=True)
class CostDays(StoredDays):
    """The stored days of a period with the tables of ``job``."""

    job: str = ""

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that store the days."""
        return (self.job,)

    @property
    def missing_text(self) -> str:
        """What is not stored, in words."""
        return f"{self.job} of {super().missing_text}"

    @property
    def next_step(self) -> str:
        """The command that stores the first of the missing days."""
        return f"run_spark {self.job} --date {min(self.missing)} --fout {self.fout}"

    def table(self, name: str) -> pl.DataFrame:
        """Return the rows of a table of all days, with their day. Raises DataError (65)
        where they are damaged.
        """
        import polars as pl

        schema = stored_table(name)
        frames = [pl.DataFrame(schema=pl.Schema(schema.arrow()))]
        for day, current in self.partials.items():
            # The tables of a run lie beside each other.
            table = replace(current, path=join(current.path.rpartition("/")[0], name))
            rows = pl.from_arrow(table_rows(self.files, table, name, schema.names))
            assert isinstance(rows, pl.DataFrame)
            frames.append(rows.with_columns(day=pl.lit(day)).select(schema.names))
        return pl.concat(frames)

    def window_counts(self) -> pl.DataFrame:
        """Return the windows with a record of each hour, over all days."""
        import polars as pl

        counts = [0] * 24
        for table in self.partials.values():
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
    find = partial(find_days, job=job)
    with run_on_days(settings, fout, name, period, log, find, allow_missing=allow_missing) as (
        run_context,
        days,
    ):
        return store_period(
            run_context, days, {table: build(days, table) for table in JOBS[name].tables}, job
        )


def find_days(files: Files, fout: str, period: Period, job: str) -> CostDays:
    """Find the stored days of a period. Raises DataError (65) where a day's result is damaged."""
    stored = {}
    for day in period.days:
        with suppress(InputMissing):
            stored[day] = results.current(files, fout, job, JOBS[job].tables[0], day)
    missing = tuple(day for day in period.days if day not in stored)
    partial = {
        day: "something of it is left out"
        for day, table in stored.items()
        if table.manifest.partial
    }
    return CostDays(period, files, fout, stored, missing, partial, job)


def build(days: CostDays, name: str) -> pl.DataFrame:
    """Return a period's table. Raises DataError (65) where a sum exceeds 64 bits."""
    import polars as pl

    schema = stored_table(name)
    rows = days.table(name.removeprefix("period_"))
    summed = _sums(rows, schema)
    if "hour" in schema.keys:
        summed = summed.drop("window_count").join(
            days.window_counts(), "hour", how="left", validate="m:1"
        )
        # Not at import: numpy comes with it.
        from cmsspark.sources.condor_costs import HOUR_WINDOWS

        cores = pl.col("core_windows_milli") / (HOUR_WINDOWS * 1000 * len(days.partials))
        summed = summed.with_columns(average_cores=cores)
    added = with_period(
        summed.with_columns(day_count=pl.lit(len(days.partials), pl.Int64)), days.period
    )
    return added.select(schema.names).sort(schema.keys)


def _sums(rows: pl.DataFrame, schema: Table) -> pl.DataFrame:
    import polars as pl

    measures = [name for name in schema.names if name not in (*schema.keys, *_OF_PERIOD)]
    sums = [name for name in measures if name not in _LARGEST]
    check_sums(rows, tuple(name for name in sums if rows.schema[name] == pl.Int64))
    return rows.group_by(schema.keys).agg(
        *(sum_or_null(name) for name in sums),
        *(pl.col(name).max() for name in measures if name in _LARGEST),
    )


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
        module=__name__,
    )
    declare(_job, partial(make_command, _job))
