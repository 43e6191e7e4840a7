"""``period``: a week, a month or any other range of days, made from the partials of its stored days.

Sums are those of the days; distinct users are counted again over the whole period, as they do not add up.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Final

import click

from cmsspark.base import periods as calendar
from cmsspark.base.periods import Period, spans
from cmsspark.base.schemas import stored_table
from cmsspark.cli.job_output import output_options, print_outcome
from cmsspark.cli.options import require_store, store_options
from cmsspark.cli.period_options import needed, period_options
from cmsspark.filesystems.storage import join
from cmsspark.run.period_run import store_period
from cmsspark.run.run_context import RunContext, running
from cmsspark.run.run_report import write_page
from cmsspark.settings.settings import load_settings
from cmsspark.sources.registry import SITE_PAIRS, STREAMS_NAMING_READERS
from cmsspark.store import results, stored_days
from cmsspark.store.job_index import JOBS
from cmsspark.store.stored_columns import open_store, table_rows
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.settings.settings import Settings

NAME: Final = "period"
TABLE: Final = "period_aggregation"
PAIRS_TABLE: Final = f"period_{SITE_PAIRS}"
KEYS: Final = ("stream", "dataset_name", "site_name", "app")
_MEASURES: Final = ("day_count", "nacc", "distinct_users", "remote_nacc", "read_bytes", "cpu_time", "wc_time")


@click.command(NAME, help=f"{JOBS[NAME].about}. Exit codes: cmsspark help exit-codes.")
@period_options
@click.option("--allow-missing", is_flag=True, help="Leave out days that are not stored and mark the result partial.")
@store_options
@output_options
def command(
    period: Period | None, allow_missing: bool, fout: str | None, settings_file: str | None, as_json: bool,
) -> None:  # fmt: skip
    settings, interval = load_settings(settings_file), needed(period)
    store = require_store(fout, settings)
    print_outcome(NAME, interval, as_json, lambda: run(interval, store, settings, allow_missing=allow_missing))


def run(
    period: Period,
    fout: str,
    settings: Settings,
    *,
    allow_missing: bool = False,
    log: Callable[[str], None] | None = None,
) -> results.CurrentTable:
    """Make the period's table and store it; on any failure the previous result stays.

    Raises InputMissing (66) that names the days that are not stored, DataError (65) where they cannot be combined,
    NotReady (75), OutputError (73).
    """
    with run_on_days(settings, fout, NAME, period, log, allow_missing=allow_missing) as (run_context, days):
        tables = {TABLE: build(days)}
        pairs, warnings = build_site_pairs(days)
        if pairs is not None:
            tables[PAIRS_TABLE] = pairs
        entries = {"warnings": days.warnings + warnings, "pseudonym_key_id": days.key_id()}
        done = store_period(run_context, days, tables, stored_days.TABLE, **entries)
        write_page(fout, NAME, done, run_context.log)
        return done


@contextmanager
def run_on_days(
    settings: Settings, fout: str, job: str, period: Period, log: Callable[[str], None] | None, *, allow_missing: bool
) -> Iterator[tuple[RunContext, StoredDays]]:
    """Begin a run of a job of periods; yields it with the stored days, which are all there unless ``allow_missing``."""
    with running(settings, fout, job, period, log) as run_context:
        files = open_store(fout, f"cmsspark {job}", settings)
        run_context.lock(files)
        days = stored_days.find_days(files, fout, period)
        days.check(allow_missing=allow_missing)
        yield run_context, days


def build(days: StoredDays) -> pl.DataFrame:
    """Return the period's rows, sorted by their keys. Raises DataError (65) for two keys, or damaged days."""
    from cmsspark.base.names import DERIVED
    from cmsspark.counting.rollup import Rollup, roll_up

    days.key_id()
    names = stored_table(TABLE).names
    rollup = Rollup((*KEYS, *(name for name in DERIVED if name in names)), _MEASURES)
    rows, totals = roll_up(rollup, days.pieces(rollup.columns))
    days.check_users(totals.users)
    return with_period(rows, days.period).select(names)


def build_site_pairs(days: StoredDays) -> tuple[pl.DataFrame | None, list[str]]:
    """Return the period's pairs of sites (rule 63), None where no day has any, and warnings about days without them."""
    import polars as pl

    schema = stored_table(PAIRS_TABLE)
    measures = ("nacc", "remote_nacc", "read_bytes")
    stored = {
        day: replace(table, path=join(table.path.rpartition("/")[0], SITE_PAIRS))
        for day, table in days.partials.items()
        if SITE_PAIRS in table.manifest.tables
    }
    if not stored:
        return None, []
    names = ("day", *schema.keys, *measures)
    parts = [pl.from_arrow(table_rows(days.files, table, SITE_PAIRS, names)) for table in stored.values()]
    # Of 128 bits: a day's sum is capped at 64 bits, and so is the period's.
    wide = {name: pl.col(name).cast(pl.Int128).sum().clip(upper_bound=2**63 - 1).cast(pl.Int64) for name in measures}
    rows = (
        pl.concat([part for part in parts if isinstance(part, pl.DataFrame)])
        .group_by(schema.keys)
        .agg(
            pl.col("day").n_unique().cast(pl.Int64).alias("day_count"),
            *(pl.when(pl.col(name).count() > 0).then(total).alias(name) for name, total in wide.items()),
        )
        .sort(schema.keys)
    )
    missing = [
        day
        for day, table in days.partials.items()
        if day not in stored and {*table.manifest.streams} & {*STREAMS_NAMING_READERS}
    ]
    lacking = f"{SITE_PAIRS} of {spans(missing)} is not stored and left out: run {stored_days.JOB} again for it"
    return with_period(rows, days.period).select(schema.names), [lacking] if missing else []


def with_period(rows: pl.DataFrame, period: Period) -> pl.DataFrame:
    """Return the rows with the columns that name their period."""
    import polars as pl

    return rows.with_columns(
        period=pl.lit(period.isoformat()),
        first_day=pl.lit(period.first),
        last_day=pl.lit(period.last),
        timestamp=pl.lit(calendar.start_ms(period), pl.Int64),
    )
