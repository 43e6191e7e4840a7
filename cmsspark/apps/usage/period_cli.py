"""``cmsspark period``: makes, lists and views weeks, months and other ranges of stored days."""

from __future__ import annotations

import json
from typing import Any, Final

import click

from cmsspark.apps.usage import period as period_job
from cmsspark.apps.usage.period_views import make_view, sum_table
from cmsspark.base.errors import UsageError
from cmsspark.base.periods import Period
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.terminal import echo_table
from cmsspark.cli.options import output_options, print_outcome, require_store, store_options
from cmsspark.cli.period_options import needed, period_options
from cmsspark.filesystems.storage import Files
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.store import results
from cmsspark.store.own_jobs import JOBS, Job
from cmsspark.store.stored_columns import open_store
from cmsspark.store.stored_days import CurrentRuns, stale, stored_periods

#: Options of a view → their parameters.
_KEYS: Final = {"out": "out", "views": "views_file", "run-missing": "run_missing", "root": "root"}


@click.command("period")
@period_options
@click.option(
    "--list", "is_list", is_flag=True, help="List the stored periods, and which are out of date."
)
@click.option(
    "--view",
    "name",
    is_flag=False,
    flag_value="",
    metavar="[NAME]",
    help="Print the view NAME; without NAME list all.",
)
@click.option(
    "--table",
    "table",
    metavar="TABLE",
    help="Print the sums of a stored table of days by its keys, such as that of a job of your own.",
)
@click.option("--allow-missing", is_flag=True, help="Leave out days that are not stored.")
@click.option(
    "--top",
    type=click.IntRange(1),
    default=20,
    show_default=True,
    help="Of a view or table: rows to print.",
)
@click.option(
    "--out",
    metavar="FILE",
    help="Of a view or table: write all rows to FILE: .parquet, .csv or .jsonl.",
)
@click.option(
    "--views",
    "views_file",
    metavar="FILE",
    help="File with your views. [default: `views` in the settings]",
)
@click.option(
    "--run-missing",
    is_flag=True,
    help="Of a view: first run the job for days that are not stored.",
)
@click.option(
    "--root", metavar="URI", help="With --run-missing: root of the default input folders."
)
@store_options
@output_options
def command(
    is_list: bool,
    name: str | None,
    table: str | None,
    period: Period | None,
    fout: str | None,
    settings_file: str | None,
    as_json: bool,
    allow_missing: bool,
    **view_options: Any,
) -> None:
    """Make the table of a week, a month or a range of stored days; or list the stored
    ones; or print a view.

    Distinct users are counted anew over the period. A view without a period is of the
    last whole week or month.
    """
    of_a_view = [
        f"--{option}"
        for option in ("out", "views", "run-missing", "root")
        if view_options[_KEYS[option]]
    ]
    if table is not None:
        of_a_view = [option for option in of_a_view if option != "--out"]
        if is_list or name is not None or of_a_view:
            options = ["--list"] * is_list + ["--view"] * (name is not None) + of_a_view
            raise UsageError(
                f"{', '.join(options)}: not with --table",
                next_step="cmsspark period --table TABLE --week WEEK",
            )
        sum_table(
            table,
            needed(period),
            allow_missing=allow_missing,
            as_json=as_json,
            fout=fout,
            settings_file=settings_file,
            out=view_options["out"],
            top=view_options["top"],
        )
        return
    if name is None and of_a_view:
        raise UsageError(
            f"{', '.join(of_a_view)}: only of a view", next_step="cmsspark period --view NAME …"
        )
    if is_list and (name is not None or period is not None):
        raise UsageError("--list takes no period and no view", next_step="cmsspark period --list")
    if is_list:
        _echo_periods(load_settings(settings_file), fout, as_json)
    elif name is not None:
        make_view(
            name,
            period,
            allow_missing=allow_missing,
            as_json=as_json,
            fout=fout,
            settings_file=settings_file,
            **view_options,
        )
    else:
        settings, chosen = load_settings(settings_file), needed(period)
        store = require_store(fout, settings)
        print_outcome(
            period_job.NAME,
            chosen,
            as_json,
            lambda: period_job.run(chosen, store, settings, allow_missing=allow_missing),
        )


def _echo_periods(settings: Settings, fout: str | None, as_json: bool) -> None:
    """List the stored weeks, months and ranges of each job that sums up days: their
    days and rows, and whether days were run again since.
    """
    store = require_store(fout, settings)
    files = open_store(store, "cmsspark period --list", settings)
    runs = {
        job.of_days: CurrentRuns(files, store, job.of_days) for job in JOBS.values() if job.of_days
    }
    periods = [
        _period_dict(files, store, job, period, runs[job.of_days])
        for job in JOBS.values()
        if job.of_days
        for period in stored_periods(files, store, job.name)
    ]
    if as_json:
        click.echo(json.dumps(periods, indent=1))
        return
    if not periods:
        click.echo(f"no period is stored in {store}; next: cmsspark period --week last")
        return
    rows = []
    for row in periods:
        state = "partial" if row["partial"] else ""
        rows.append(
            (
                row["period"],
                row["job"],
                row["days"],
                row["rows"],
                state,
                "; ".join(row["stale"]) or "up to date",
            )
        )
    echo_table(
        ("period", "job", "days", "rows", "", "changes since then"),
        rows,
        texts=(0, 1, 4, 5),
        full=(0, 1, 4),
        indent="  ",
    )


def _period_dict(
    files: Files, fout: str, job: Job, period: Period, runs: CurrentRuns
) -> dict[str, Any]:
    table = job.tables[0]
    manifest = results.current(files, fout, job.name, table, period).manifest
    changed = stale(manifest, runs.find(period))
    if manifest.tables[table].schema != stored_table(table).fingerprint():
        changed.append("the schema has changed")
    return {
        "period": str(period),
        "job": job.name,
        "run": manifest.run,
        "days": len(manifest.days),
        "rows": manifest.tables[table].rows,
        "partial": manifest.partial,
        "stale": changed,
    }
