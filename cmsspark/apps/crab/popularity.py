"""``crab_popularity``: which datasets CRAB's jobs of a period read, and how the jobs ended (rule 37)."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import click

from cmsspark.apps.crab.days import CrabDays, check_sums, store_report, sum_or_null
from cmsspark.base import periods as calendar
from cmsspark.base.periods import Period
from cmsspark.base.schemas import stored_table
from cmsspark.cli.job_output import output_options, print_outcome
from cmsspark.cli.options import settings_of, store_of, store_options
from cmsspark.cli.period_options import needed, period_options
from cmsspark.store.job_index import JOBS

if TYPE_CHECKING:
    import polars as pl

NAME: Final = "crab_popularity"
_COUNTS: Final = ("job_count", "failed_job_count", "removed_job_count")
_MEASURES: Final = ("read_bytes", "cpu_ms", "wall_ms")
_DISTINCT: Final = {"block_count": "block_name", "task_count": "task", "distinct_users": "user"}
_COLUMNS: Final = ["input", "dataset_name", *_DISTINCT.values(), *_COUNTS, *_MEASURES, "first_ms", "last_ms"]


@click.command(NAME, help=f"{JOBS[NAME].about}. Exit codes: cmsspark help exit-codes.")
@period_options
@click.option("--allow-missing", is_flag=True, help="Leave out days that are not stored and mark the result partial.")
@store_options
@output_options
def command(
    period: Period | None,
    allow_missing: bool,
    fout: str | None,
    settings_file: str | None,
    as_json: bool,
) -> None:
    settings = settings_of(settings_file)
    wanted, store = needed(period), store_of(fout, settings)
    print_outcome(
        NAME, wanted, as_json, lambda: store_report(NAME, wanted, store, settings, build, allow_missing=allow_missing)
    )


def build(days: CrabDays) -> pl.DataFrame:
    """Return the rows of the period, by input and dataset, null first.

    Raises DataError (65) for users under two keys.
    """
    import polars as pl

    from cmsspark.base.names import DERIVED
    from cmsspark.counting.sums import in_seconds

    parts = [rows for _, rows in days.rows(_COLUMNS)]
    rows = pl.concat(parts)
    days.check_users(rows["user"].unique().cast(pl.String).to_list())
    check_sums(rows, _MEASURES)
    sums = rows.group_by("input", "dataset_name").agg(
        *(pl.col(name).sum() for name in _COUNTS),
        *(pl.col(column).drop_nulls().n_unique().cast(pl.Int64).alias(name) for name, column in _DISTINCT.items()),
        *(sum_or_null(name) for name in _MEASURES),
        pl.col("first_ms").min(),
        pl.col("last_ms").max(),
    )
    sums = sums.with_columns(pl.col("input", "dataset_name").cast(pl.String)).sort("input", "dataset_name")
    seconds = [
        pl.Series(name, in_seconds(sums[source].fill_null(0).to_numpy())).set(sums[source].is_null(), None)
        for name, source in (("cpu_time", "cpu_ms"), ("wc_time", "wall_ms"))
    ]
    tiers = [None if name is None else DERIVED["data_tier"].of(name) for name in sums["dataset_name"].to_list()]
    period = days.period
    table = sums.with_columns(
        *seconds,
        pl.Series("data_tier", tiers, pl.String),
        period=pl.lit(period.isoformat()),
        first_day=pl.lit(period.first),
        last_day=pl.lit(period.last),
        timestamp=pl.lit(calendar.start_ms(period), pl.Int64),
    )
    return table.select(stored_table(NAME).names)
