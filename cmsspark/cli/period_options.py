"""Options that name a period, or a day or a period, and the commands of jobs that make
tables of a period.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from cmsspark.base import dates, periods
from cmsspark.base.errors import UsageError
from cmsspark.base.periods import Interval, Period
from cmsspark.cli.options import (
    DATE_HELP,
    Command,
    DayType,
    output_options,
    print_outcome,
    require_store,
    store_options,
)
from cmsspark.settings.settings import load_settings
from cmsspark.store.own_jobs import Job

if TYPE_CHECKING:
    from cmsspark.store.results import CurrentTable
    from cmsspark.store.stored_days import StoredDays

_OPTIONS = (
    click.option(
        "--to", "period_to", type=DayType(), help="Last day, included. [default: that of --from]"
    ),
    click.option(
        "--from",
        "period_from",
        type=DayType(),
        help="First day of a range, 20261101 or 2026-11-01.",
    ),
    click.option(
        "--month", "period_month", metavar="MONTH", help="A calendar month: 2026-11, or last."
    ),
    click.option("--week", "period_week", metavar="WEEK", help="An ISO week: 2026-W46, or last."),
)


def period_options(command: Command) -> Callable[..., Any]:
    """Add ``--week``, ``--month``, ``--from`` and ``--to``; the command gets
    ``period``, None where none is given.
    """

    @functools.wraps(command)
    def with_period(
        *arguments: Any,
        period_week: str | None,
        period_month: str | None,
        period_from: date | None,
        period_to: date | None,
        **options: Any,
    ) -> Any:
        period = _period(period_week, period_month, period_from, period_to)
        return command(*arguments, period=period, **options)

    wrapped: Callable[..., Any] = with_period
    for option in _OPTIONS:
        wrapped = option(wrapped)
    return wrapped


def when_options(command: Command) -> Callable[..., Any]:
    """Add ``--date`` and a period's options; the command gets ``when``, a day or a
    period. One of them is needed.
    """

    @functools.wraps(command)
    def with_needed(*arguments: Any, when: Interval | None, **options: Any) -> Any:
        return command(*arguments, when=needed_when(when), **options)

    return optional_when_options(with_needed)


def needed_when(when: Interval | None) -> Interval:
    """Return the day or period of the line. Raises UsageError (2) where it names none."""
    if when is None:
        raise UsageError(
            "name a day or a period",
            next_step="give --date, or one of --week, --month, --from … --to",
        )
    return when


def optional_when_options(command: Command) -> Callable[..., Any]:
    """Add the options of :func:`when_options`; ``when`` is None where none of them is given."""

    @functools.wraps(command)
    def with_when(*arguments: Any, day: date | None, period: Period | None, **options: Any) -> Any:
        if day is not None and period is not None:
            raise UsageError(
                "a day and a period exclude each other",
                next_step="give --date alone, or the period",
            )
        return command(*arguments, when=day or period, **options)

    return click.option("--date", "day", type=DayType(), help=DATE_HELP)(period_options(with_when))


def needed(period: Period | None, file: str = "") -> Period:
    """Return the period that was given. Raises UsageError (2) where none was; ``file``:
    what may stand instead.
    """
    if period is None:
        next_step = "give one of --week, --month, --from … --to" + (f", or {file}" if file else "")
        raise UsageError("no period is given", next_step=next_step)
    return period


#: ``--allow-missing`` of jobs of periods.
allow_missing_option = click.option(
    "--allow-missing",
    is_flag=True,
    help="Leave out days that are not stored and mark the result partial.",
)


def period_command(
    job: Job, run: Callable[..., CurrentTable], *, has_allow_missing: bool = True
) -> click.Command:
    """Return the command of a job of periods: it calls ``run(period, store, settings,
    allow_missing=…)``.

    Without ``has_allow_missing`` days that are not stored are always left out.
    """

    def command(
        period: Period | None,
        fout: str | None,
        settings_file: str | None,
        as_json: bool,
        allow_missing: bool = True,
    ) -> None:
        settings, chosen = load_settings(settings_file), needed(period)
        store = require_store(fout, settings)
        print_outcome(
            job.name,
            chosen,
            as_json,
            lambda: run(chosen, store, settings, allow_missing=allow_missing),
        )

    decorated: Callable[..., Any] = store_options(output_options(command))
    if has_allow_missing:
        decorated = allow_missing_option(decorated)
    return click.command(job.name, help=f"{job.about}. Exit codes: cmsspark help exit-codes.")(
        period_options(decorated)
    )


def load_days(store: str, period: Period, command: str) -> StoredDays:
    """Return the stored days of a period, and print their warnings to stderr.

    Raises InputMissing (66) where there is none, as
    :meth:`cmsspark.store.stored_days.StoredDays.check`.
    """
    from cmsspark.store import stored_days
    from cmsspark.store.stored_columns import open_store

    stored = stored_days.find_days(open_store(store, command), store, period)
    stored.check(allow_missing=True)
    for warning in stored.warnings:
        click.echo(f"warning: {warning}", err=True)
    return stored


def _period(
    week: str | None, month: str | None, first: date | None, last: date | None
) -> Period | None:
    names = [
        name
        for name, value in (("--week", week), ("--month", month), ("--from", first))
        if value is not None
    ]
    if last is not None and not names:
        raise UsageError(
            "--to is the last day of a range",
            next_step="give the first one, too: --from DAY --to DAY",
        )
    if len(names) > 1 or (last is not None and names != ["--from"]):
        choices = ", ".join([*names, "--to"] if last is not None else names)
        raise UsageError(
            f"{choices} exclude each other", next_step="give --week, or --month, or --from … --to"
        )
    if week is not None:
        return periods.week(week, dates.today())
    if month is not None:
        return periods.month(month, dates.today())
    return periods.between(first, last or first) if first is not None else None
