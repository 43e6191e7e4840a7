"""``period``: a week, a month or any other range of days, made from the partials of its
stored days.

Sums are those of the days; distinct users are counted again over the whole period, as
they do not add up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Final

from msgspec.structs import replace

from cmsspark.base.periods import Period, spans
from cmsspark.base.schemas import stored_table
from cmsspark.cli.period_options import period_command
from cmsspark.filesystems.storage import join
from cmsspark.run.period_run import run_on_days, store_period, with_period
from cmsspark.run.run_report import write_page
from cmsspark.sources.registry import SITE_PAIRS, STREAMS_NAMING_READERS
from cmsspark.store import results, stored_days
from cmsspark.store.own_jobs import Job, declare
from cmsspark.store.stored_columns import table_rows
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.settings.settings import Settings

NAME: Final = "period"
TABLE: Final = "period_aggregation"
PAIRS_TABLE: Final = f"period_{SITE_PAIRS}"
JOB: Final = Job(
    NAME,
    "A week, a month or any range of stored days, its distinct users counted anew",
    (TABLE, PAIRS_TABLE),
    needs_spark=False,
    of_periods=True,
    of_days="data_aggregation",
    module=__name__,
)
KEYS: Final = ("stream", "dataset_name", "site_name", "app")
_MEASURES: Final = (
    "day_count",
    "nacc",
    "distinct_users",
    "remote_nacc",
    "read_bytes",
    "cpu_time",
    "wc_time",
)


def run(
    period: Period,
    fout: str,
    settings: Settings,
    *,
    allow_missing: bool = False,
    log: Callable[[str], None] | None = None,
) -> results.CurrentTable:
    """Make the period's table and store it. Raises as :func:`cmsspark.run.period_run.run_on_days`."""
    begun = run_on_days(
        settings, fout, NAME, period, log, stored_days.find_days, allow_missing=allow_missing
    )
    with begun as (run_context, days):
        tables = {TABLE: build(days)}
        pairs, warnings = build_site_pairs(days)
        if pairs is not None:
            tables[PAIRS_TABLE] = pairs
        entries = {"warnings": days.warnings + warnings, "pseudonym_key_id": days.key_id()}
        done = store_period(run_context, days, tables, stored_days.TABLE, **entries)
        write_page(fout, NAME, done, run_context.log)
        return done


def build(days: StoredDays) -> pl.DataFrame:
    """Return the period's rows, sorted by their keys. Raises DataError (65) for two
    keys, or damaged days.
    """
    from cmsspark.base.names import DERIVED
    from cmsspark.counting.rollup import Rollup, roll_up

    days.key_id()
    names = stored_table(TABLE).names
    rollup = Rollup((*KEYS, *(name for name in DERIVED if name in names)), _MEASURES)
    rows, totals = roll_up(rollup, days.pieces(rollup.columns))
    days.check_users(totals.users)
    return with_period(rows, days.period).select(names)


def build_site_pairs(days: StoredDays) -> tuple[pl.DataFrame | None, list[str]]:
    """Return the period's pairs of sites (rule 63), None where no day has any, and
    warnings about days without them.
    """
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
    parts = [
        pl.from_arrow(table_rows(days.files, table, SITE_PAIRS, names))
        for table in stored.values()
    ]
    # Of 128 bits: a day's sum is capped at 64 bits, and so is the period's.
    wide = {
        name: pl.col(name).cast(pl.Int128).sum().clip(upper_bound=2**63 - 1).cast(pl.Int64)
        for name in measures
    }
    rows = (
        pl.concat([part for part in parts if isinstance(part, pl.DataFrame)])
        .group_by(schema.keys)
        .agg(
            pl.col("day").n_unique().cast(pl.Int64).alias("day_count"),
            *(
                pl.when(pl.col(name).count() > 0).then(total).alias(name)
                for name, total in wide.items()
            ),
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


command = period_command(JOB, run)
declare(JOB, lambda: command)
