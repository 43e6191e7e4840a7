"""``popularity_forecast``: which datasets will be popular in the week from a day on, from the stored days before it."""

from __future__ import annotations

from collections.abc import Callable
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.errors import InputMissing
from cmsspark.periods import between, start_ms
from cmsspark.pipeline import stored_days as stored
from cmsspark.pipeline.job_index import JOBS
from cmsspark.pipeline.job_output import output_options, print_outcome
from cmsspark.pipeline.options import date_option, settings_of, store_of, store_options
from cmsspark.pipeline.provenance import versions
from cmsspark.pipeline.run_context import RunContext, running
from cmsspark.pipeline.stored_columns import files_of
from cmsspark.pipeline.stored_days import StoredDays
from cmsspark.schemas import stored_table
from cmsspark.store import results

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.settings import Settings

NAME: Final = "popularity_forecast"
#: Days that are read: half a year, the longest window of the features.
DAYS: Final = 182
#: Options that decide what a forecast says, as its manifest has them.
_DEFAULTS: Final = {"model": "blend", "threshold": 10.0, "weeks": 4, "top": 2000, "seed": 0}


@click.command(NAME, help=f"{JOBS[NAME].about}. Exit codes: cmsspark help exit-codes.")
@date_option
@click.option("--model", default="blend", show_default=True, help="Model; cmsspark popularity models lists them.")
@click.option("--threshold", type=float, default=10, show_default=True, help="Popular: more accesses in the week.")
@click.option("--judged", "weeks", type=click.IntRange(0), default=4, show_default=True, help="Past weeks to judge.")
@click.option("--top", type=click.IntRange(1), default=2000, show_default=True, help="Ranks that can be published.")
@click.option("--seed", type=int, default=0, show_default=True, help="Seed of models and intervals.")
@store_options
@output_options
@click.option("--verbose", is_flag=True, help="Print more progress messages.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def command(
    day: date, fout: str | None, settings_file: str | None, as_json: bool, verbose: bool, debug: bool, **options: Any
) -> None:
    settings = settings_of(settings_file)
    store = store_of(fout, settings)
    print_outcome(NAME, day, as_json, lambda: run(day, store, settings, **options))


def run(
    day: date, fout: str, settings: Settings, *, log: Callable[[str], None] | None = None, **options: Any
) -> results.CurrentTable:
    """Make the tables of a forecast for the week from ``day`` on, and store them under that day; on any failure the
    previous result stays.

    Raises InputMissing (66) where the day before is not stored or there are too few days, DataError (65) where a day
    is damaged or a feature knows its week, NotReady (75), OutputError (73).
    """
    chosen = {**_DEFAULTS, **options}
    with running(settings, fout, NAME, day, log) as run_context:
        files = files_of(fout, f"cmsspark {NAME}")
        run_context.lock(files)
        found = stored.find_days(files, fout, between(day - timedelta(days=DAYS), day - timedelta(days=1)))
        days = _without_first_gap(found)
        days.check(allow_missing=True)
        if day - timedelta(days=1) not in days.partials:
            raise InputMissing(
                f"the day before {day} is not stored: the forecast would begin later",
                found=f"days up to {max(days.partials)}",
                next_step=f"cmsspark daily --date {day - timedelta(days=1)}",
            )
        tables = build(days, day, chosen)
        with run_context.staged(files) as staged:
            for name, rows in tables:
                staged.write_arrow(rows.to_arrow().cast(stored_table(name).arrow()), name)
            done = staged.commit(_manifest(days, day, chosen, run_context))
        for text in days.warnings:
            run_context.log(f"warning: {text}")
        seconds, count = run_context.seconds(), tables[-1][1].height
        run_context.log(f"{NAME} of {day}: {count:,} datasets stored in {done.path} after {seconds:.1f} s")
        run_context.manifest = done.manifest
        return done


def build(days: StoredDays, day: date, options: dict[str, Any]) -> list[tuple[str, pl.DataFrame]]:
    """(name, rows) of the tables."""
    from cmsspark.popularity.forecast import tables_of
    from cmsspark.popularity.series import stored_series
    from cmsspark.popularity.training import Label

    sizes = {name: options[name] for name in ("weeks", "top", "seed")}
    return list(tables_of(stored_series(days), day, Label(options["threshold"]), options["model"], **sizes))


def _without_first_gap(days: StoredDays) -> StoredDays:
    """The days from the first stored one on: a store that begins later lacks nothing."""
    if not days.partials:
        return days
    first = min(days.partials)
    missing = tuple(each for each in days.missing if each > first)
    return StoredDays(between(first, days.period.last), days.files, days.fout, days.partials, missing, days.partial)


def _manifest(days: StoredDays, day: date, options: dict[str, Any], run_context: RunContext) -> dict[str, Any]:
    return {
        "day": day.isoformat(),
        "forecast": options,
        "days": {each.isoformat(): table.manifest.rows_run for each, table in days.partials.items()},
        "missing_days": [each.isoformat() for each in days.missing],
        "partial_days": {each.isoformat(): why for each, why in days.partial.items()},
        "partial": days.is_partial,
        "warnings": days.warnings,
        "versions": versions(),
        "seconds": round(run_context.seconds(), 1),
        "timestamp": start_ms(day),
    }
