"""``cmsspark verify``: compare the part files of a store with the checksums in its manifests."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date

import click

from cmsspark.base.errors import DataError
from cmsspark.base.periods import Interval, spans
from cmsspark.base.text.progress_line import counted
from cmsspark.base.text.terminal import pluralize
from cmsspark.cli.options import quiet_option, require_store, store_options
from cmsspark.settings.settings import load_settings
from cmsspark.store.run_history import open_history
from cmsspark.store.stored_columns import existing_store, open_store
from cmsspark.store.verification import RunCheck, check_runs


@click.command("verify")
@click.option(
    "--all", "all_runs", is_flag=True, help="Also check runs that are no longer current."
)
@quiet_option
@store_options
def command(all_runs: bool, fout: str | None, settings_file: str | None) -> None:
    """Read the current result of every day and period, and compare each part file with
    the SHA-256 in its manifest. `cmsspark status` shows when that was.

    Prints each damaged part with the command that makes its result again, and ends with
    65 where there is one. Results of versions that wrote no checksums are listed; they
    cannot be checked.
    """
    settings = load_settings(settings_file)
    store = require_store(fout, settings)
    files = existing_store(open_store(store, "cmsspark verify", settings), store)
    with open_history(settings.state_dir) as history:
        checks = check_runs(files, store, history, all_runs=all_runs)
        verify(counted(checks, "verifying", None, "runs"), store)


def verify(checks: Iterable[RunCheck], store: str) -> None:
    """Print what the checks of runs say. Raises DataError (65) where a run is damaged."""
    runs = parts = size = error_count = 0
    unchecked: dict[str, set[Interval]] = {}
    for check in checks:
        runs, parts, size = runs + 1, parts + check.part_count, size + check.byte_count
        error_count += len(check.errors)
        for error in check.errors:
            click.echo(f"damaged: {check.job} of {check.interval}: {error.text()}")
        for table in check.unchecked:
            unchecked.setdefault(
                table if table == check.job else f"{check.job}: {table}", set()
            ).add(check.interval)
    for table, intervals in unchecked.items():
        click.echo(f"not checked, stored without checksums: {table} of {_when(intervals)}")
    click.echo(
        f"checked {pluralize(parts, 'part file')} of {pluralize(runs, 'run')}, {size:,} bytes"
    )
    if error_count:
        raise DataError(
            f"{pluralize(error_count, 'error')} in the stored results",
            where=store,
            next_step="run the commands above that make the damaged results again",
        )


def _when(intervals: Iterable[Interval]) -> str:
    """Return days and periods for display."""
    stored = sorted(intervals, key=str)
    days = [interval for interval in stored if isinstance(interval, date)]
    periods = [str(interval) for interval in stored if not isinstance(interval, date)]
    return ", ".join([*([spans(days)] if days else []), *periods])
