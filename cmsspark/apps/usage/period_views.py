"""``period_views``: named views of a week, a month or any other range, stored so that
they can be published.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.apps.usage.view_definitions import View, find_view, load_views
from cmsspark.base.errors import UsageError
from cmsspark.base.periods import Period
from cmsspark.base.schemas import stored_table
from cmsspark.cli.job_output import output_options, print_outcome
from cmsspark.cli.options import require_store, store_options
from cmsspark.cli.period_options import allow_missing_option, needed, period_options
from cmsspark.run.period_run import run_on_days, store_period, with_period
from cmsspark.settings.settings import load_settings
from cmsspark.store import results, stored_days
from cmsspark.store.job_index import Job, declare
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.settings.settings import Settings

NAME: Final = "period_views"
JOB: Final = Job(
    NAME,
    "Named views of a week, a month or any range of stored days, to be published",
    (NAME,),
    needs_spark=False,
    of_periods=True,
    of_days="data_aggregation",
    module=__name__,
)


@click.command(NAME, help=f"{JOB.about}. Exit codes: cmsspark help exit-codes.")
@period_options
@click.option(
    "--view",
    "names",
    metavar="NAME",
    multiple=True,
    help="A view; may be repeated. [default: all views]",
)
@click.option(
    "--views",
    "views_file",
    metavar="FILE",
    help="File with own views. [default: `views` in the settings]",
)
@allow_missing_option
@store_options
@output_options
def command(
    period: Period | None,
    names: tuple[str, ...],
    views_file: str | None,
    allow_missing: bool,
    fout: str | None,
    settings_file: str | None,
    as_json: bool,
) -> None:
    settings, interval = load_settings(settings_file), needed(period)
    store = require_store(fout, settings)
    loaded = load_views(views_file or settings.views)
    of_accesses = [name for name, view in loaded.items() if view.job == stored_days.JOB]
    views = [find_view(loaded, name) for name in dict.fromkeys(names or of_accesses)]
    for view in views:
        if view.job != stored_days.JOB:
            raise UsageError(
                f"the view {view.name} is of what jobs cost",
                next_step=f"run_spark {view.job}_period stores that; cmsspark period --view {view.name} prints it",
            )
    print_outcome(
        NAME,
        interval,
        as_json,
        lambda: run(interval, store, settings, views, allow_missing=allow_missing),
    )


def run(
    period: Period,
    fout: str,
    settings: Settings,
    views: Sequence[View],
    *,
    allow_missing: bool = False,
    log: Callable[[str], None] | None = None,
) -> results.CurrentTable:
    """Make the table of a period and store it. Raises as
    :func:`cmsspark.run.period_run.run_on_days`.
    """
    begun = run_on_days(
        settings, fout, NAME, period, log, stored_days.find_days, allow_missing=allow_missing
    )
    with begun as (run_context, days):
        rows, views_entry = build(days, views), {view.name: _definition(view) for view in views}
        entries = {"pseudonym_key_id": days.key_id(), "views": views_entry}
        return store_period(run_context, days, {NAME: rows}, stored_days.TABLE, **entries)


def build(days: StoredDays, views: Sequence[View]) -> pl.DataFrame:
    """Return the rows of all views with the columns of the table; null what a view does not have.

    Raises DataError (65) for two keys of pseudonyms, or damaged days.
    """
    import polars as pl

    schema = pl.Schema(stored_table(NAME).arrow())
    frames = [pl.DataFrame(schema=schema)]
    for view in views:
        rows = view.rows(days)
        if "day" in rows.columns:
            rows = rows.with_columns(access_day=pl.col("day").dt.to_string("%Y-%m-%d"))
        rows = with_period(rows, days.period).with_columns(view=pl.lit(view.name))
        columns = [
            (pl.col(name) if name in rows.columns else pl.lit(None)).cast(kind).alias(name)
            for name, kind in schema.items()
        ]
        frames.append(rows.select(columns))
    return pl.concat(frames)


def _definition(view: View) -> dict[str, Any]:
    """Return what the view counts, for the manifest: a file of views changes."""
    rollup = view.rollup
    return {
        "keys": list(rollup.keys),
        "measures": list(rollup.measures),
        "filter": {column: list(patterns) for column, patterns in rollup.filters.items()},
    }


declare(JOB, lambda: command)
