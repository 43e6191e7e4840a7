"""``crab_popularity``: which datasets CRAB's jobs of a period read, and how the jobs
ended (rule 37). ``crab_users``: how many people had analysis jobs of CRAB in a week or
a month (rule 38).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.base import periods as calendar
from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.periods import Period
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.terminal import pluralize
from cmsspark.cli.period_options import period_command
from cmsspark.filesystems.storage import Files
from cmsspark.run.period_run import run_on_days, store_period, with_period
from cmsspark.sources.registry import CRAB_PARTIALS, STREAMS_BY_NAME, STREAMS_OF_JOBS
from cmsspark.store import results
from cmsspark.store.own_jobs import Job, declare
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import table_rows
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.settings.settings import Settings


# Reports of periods on CRAB's jobs, from the rows that the days of the stream
# ``condor`` keep (rules 37 and 38).

#: The jobs that store the rows of a day, in order of preference.
_JOBS: Final = ("data_aggregation", *(STREAMS_BY_NAME[name].report for name in STREAMS_OF_JOBS))
#: Below this the sum of floats is so precise that the sum of integers fits 64 bits.
_SAFE: Final = 2.0**63 * (1 - 2.0**-20)


class CrabDays(StoredDays, frozen=True):
    """The stored days of a period with CRAB's jobs."""

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that store the days."""
        return _JOBS

    @property
    def content(self) -> str:
        """What the days have, for messages."""
        return "HTCondor's jobs"

    def rows(self, columns: list[str]) -> Iterator[tuple[date, pl.DataFrame]]:
        """Yield the rows of each day, texts as categories. Raises DataError (65) where
        they are damaged.
        """
        import polars as pl

        for day, current in self.partials.items():
            table = table_rows(self.files, current, CRAB_PARTIALS, columns)
            expected = current.manifest.tables[CRAB_PARTIALS].rows
            if table.num_rows != expected:
                raise DataError(
                    f"the {CRAB_PARTIALS} of {day} have another number of rows than their manifest says",
                    where=current.path,
                    found=f"{pluralize(table.num_rows, 'row')} where {expected:,} were written",
                    next_step=f"run {current.manifest.job} again for {day}",
                )
            frame = pl.from_arrow(table)
            assert isinstance(frame, pl.DataFrame)
            yield day, frame.with_columns(pl.col(pl.String).cast(pl.Categorical))


def find_crab_days(files: Files, fout: str, period: Period) -> CrabDays:
    """Return the stored days of the period. Raises DataError (65) where a day's result is damaged."""
    stored = {
        day: table for day in period.days if (table := _stored(files, fout, day)) is not None
    }
    missing = tuple(day for day in period.days if day not in stored)
    partial = {day: reason for day, table in stored.items() if (reason := _partial_reason(table))}
    return CrabDays(period, files, fout, stored, missing, partial)


def _partial_reason(table: CurrentTable) -> str:
    """Return why jobs of a day may be missing; empty where none are. Other streams of
    the day do not matter.
    """
    manifest = table.manifest
    reasons = (
        ["damaged files"]
        if any(file.get("stream") in STREAMS_OF_JOBS for file in manifest.damaged)
        else []
    )
    if any(source.is_tmp for source in manifest.inputs if source.stream in STREAMS_OF_JOBS):
        reasons.append("a folder that was still being written")
    return "; ".join(reasons)


def _stored(files: Files, fout: str, day: date) -> CurrentTable | None:
    for job in _JOBS:
        try:
            return results.current(files, fout, job, CRAB_PARTIALS, day)
        except InputMissing:
            continue
    return None


def store_report(
    job: str,
    period: Period,
    fout: str,
    settings: Settings,
    build: Callable[[CrabDays], pl.DataFrame],
    *,
    allow_missing: bool,
    log: Callable[[str], None] | None = None,
) -> CurrentTable:
    """Make a table of a period, which has the job's name. Raises as
    :func:`cmsspark.run.period_run.run_on_days`.
    """
    begun = run_on_days(
        settings, fout, job, period, log, find_crab_days, allow_missing=allow_missing
    )
    with begun as (run_context, days):
        key_id = days.key_id()
        return store_period(
            run_context, days, {job: build(days)}, CRAB_PARTIALS, pseudonym_key_id=key_id
        )


def sum_or_null(name: str) -> pl.Expr:
    """Return the sum of a column of integers, null where all are null."""
    import polars as pl

    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).otherwise(None).alias(name)


def check_sums(rows: pl.DataFrame, names: tuple[str, ...]) -> None:
    """Raise DataError (65) where the sum of a column may exceed 64 bits."""
    import polars as pl

    for name in names:
        if float(rows[name].cast(pl.Float64).sum()) >= _SAFE:
            raise DataError(
                f"a sum of {name} is beyond 2^63-1", next_step="look for absurd sizes in the logs"
            )


_COUNTS: Final = ("job_count", "failed_job_count", "removed_job_count")
_MEASURES: Final = ("read_bytes", "cpu_ms", "wall_ms")
_DISTINCT: Final = {"block_count": "block_name", "task_count": "task", "distinct_users": "user"}
_POPULARITY_COLUMNS: Final = [
    *("input", "dataset_name", *_DISTINCT.values(), *_COUNTS, *_MEASURES, "first_ms", "last_ms")
]
_USER_COLUMNS: Final = ["user", "is_analysis", "job_count"]


def make_command(job: Job) -> click.Command:
    """Return the command of a report. Only ``crab_popularity`` has ``--allow-missing``:
    weeks and months of ``crab_users`` say how many of their days are stored.
    """

    def run(
        period: Period, store: str, settings: Settings, *, allow_missing: bool
    ) -> CurrentTable:
        return store_report(
            job.name, period, store, settings, BUILDERS[job.name], allow_missing=allow_missing
        )

    return period_command(job, run, has_allow_missing=job.name == "crab_popularity")


def build_popularity(days: CrabDays) -> pl.DataFrame:
    """Return the rows of the period, by input and dataset, null first.

    Raises DataError (65) for users under two keys.
    """
    import polars as pl

    from cmsspark.base.names import DERIVED
    from cmsspark.counting.sums import in_seconds

    rows = pl.concat([rows for _, rows in days.rows(_POPULARITY_COLUMNS)])
    days.check_users(rows["user"].unique().cast(pl.String).to_list())
    check_sums(rows, _MEASURES)
    sums = rows.group_by("input", "dataset_name").agg(
        *(pl.col(name).sum() for name in _COUNTS),
        *(
            pl.col(column).drop_nulls().n_unique().cast(pl.Int64).alias(name)
            for name, column in _DISTINCT.items()
        ),
        *(sum_or_null(name) for name in _MEASURES),
        pl.col("first_ms").min(),
        pl.col("last_ms").max(),
    )
    sums = sums.with_columns(pl.col("input", "dataset_name").cast(pl.String)).sort(
        "input", "dataset_name"
    )
    seconds = [
        pl.Series(name, in_seconds(sums[source].fill_null(0).to_numpy())).set(
            sums[source].is_null(), None
        )
        for name, source in (("cpu_time", "cpu_ms"), ("wc_time", "wall_ms"))
    ]
    tiers = [
        None if name is None else DERIVED["data_tier"].derive(name)
        for name in sums["dataset_name"].to_list()
    ]
    table = with_period(
        sums.with_columns(*seconds, pl.Series("data_tier", tiers, pl.String)), days.period
    )
    return table.select(stored_table("crab_popularity").names)


def build_users(days: CrabDays) -> pl.DataFrame:
    """Return a row for a week or a month; for another range, one for each week and
    month with a stored day of the range.

    Counts are over the stored days of the range. Raises DataError (65) for users under two keys.
    """
    import polars as pl

    by_day = {day: rows.filter("is_analysis") for day, rows in days.rows(_USER_COLUMNS)}
    rows: list[dict[str, Any]] = []
    for kind, period in _periods(days):
        stored = [day for day in period.days if day in by_day]
        jobs = pl.concat([by_day[day] for day in stored])
        users = jobs["user"].drop_nulls().unique()
        days.check_users(users.cast(pl.String).to_list())
        rows.append(
            {
                "period_kind": kind,
                "period": period.isoformat(),
                "distinct_users": len(users),
                "job_count": int(jobs["job_count"].sum()),
                "day_count": len(stored),
                "is_complete": len(stored) == len(period.days),
                "timestamp": calendar.start_ms(period),
            }
        )
    schema = stored_table("crab_users")
    return pl.DataFrame(rows, schema=pl.Schema(schema.arrow())).select(schema.names)


def _periods(days: CrabDays) -> Iterator[tuple[str, Period]]:
    """Yield the weeks, then the months, with a stored day."""
    is_week, is_month = days.period.is_week, days.period.is_month
    if not is_month:
        for week in dict.fromkeys(day.isocalendar()[:2] for day in days.partials):
            yield "week", calendar.week(f"{week[0]:04}-W{week[1]:02}", date.max)
    if not is_week:
        for month in dict.fromkeys(f"{day:%Y-%m}" for day in days.partials):
            yield "month", calendar.month(month, date.max)


#: Job → what makes its table.
BUILDERS: Final[dict[str, Callable[[CrabDays], pl.DataFrame]]] = {
    "crab_popularity": build_popularity,
    "crab_users": build_users,
}
_ABOUT: Final = {
    "crab_popularity": "Which datasets CRAB's jobs of a period read, and how the jobs ended",
    "crab_users": "How many people had analysis jobs of CRAB in a week or month",
}
for _name, _about in _ABOUT.items():
    _job = Job(_name, _about, (_name,), needs_spark=False, of_periods=True, module=__name__)
    declare(_job, partial(make_command, _job))
