"""``crab_users``: how many people had analysis jobs of CRAB in a week or a month (rule 38)."""

from __future__ import annotations

from collections.abc import Iterator
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.apps.crab.days import CrabDays, store_report
from cmsspark.base import periods as calendar
from cmsspark.base.periods import Period
from cmsspark.base.schemas import stored_table
from cmsspark.cli.job_output import output_options, print_outcome
from cmsspark.cli.options import settings_of, store_of, store_options
from cmsspark.cli.period_options import needed, period_options
from cmsspark.store.job_index import JOBS

if TYPE_CHECKING:
    import polars as pl

NAME: Final = "crab_users"
_COLUMNS: Final = ["user", "is_analysis", "job_count"]


@click.command(NAME, help=f"{JOBS[NAME].about}. Exit codes: cmsspark help exit-codes.")
@period_options
@store_options
@output_options
def command(period: Period | None, fout: str | None, settings_file: str | None, as_json: bool) -> None:
    settings = settings_of(settings_file)
    wanted, store = needed(period), store_of(fout, settings)
    print_outcome(NAME, wanted, as_json, lambda: store_report(NAME, wanted, store, settings, build, allow_missing=True))


def build(days: CrabDays) -> pl.DataFrame:
    """Return a row for a week or a month; for another range, one for each week and month with a stored day of the
    range.

    Counts are over the stored days of the range. Raises DataError (65) for users under two keys.
    """
    import polars as pl

    by_day = {day: rows.filter("is_analysis") for day, rows in days.rows(_COLUMNS)}
    rows: list[dict[str, Any]] = []
    for kind, period in _periods(days):
        stored = [day for day in period.days if day in by_day]
        jobs = pl.concat([by_day[day] for day in stored])
        users = jobs["user"].drop_nulls().unique()
        days.check_users(users.cast(pl.String).to_list())
        rows.append({
            "period_kind": kind,
            "period": period.isoformat(),
            "distinct_users": len(users),
            "job_count": int(jobs["job_count"].sum()),
            "day_count": len(stored),
            "is_complete": len(stored) == len(period.days),
            "timestamp": calendar.start_ms(period),
        })  # fmt: skip
    schema = stored_table(NAME)
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
