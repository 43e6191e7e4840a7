"""``cmsspark verify``: compare the part files of a store with the checksums in its manifests."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack
from datetime import date
from pathlib import Path

import click

from cmsspark.base import dates
from cmsspark.base.errors import CmssparkError, DataError, parts_of_text
from cmsspark.base.periods import Interval, spans
from cmsspark.base.text.progress_line import counted
from cmsspark.base.text.readable import json_text
from cmsspark.base.text.terminal import pluralize
from cmsspark.cli.options import quiet_option, require_store, store_options
from cmsspark.settings.settings import load_settings
from cmsspark.store.part_files import RunCheck, check_runs
from cmsspark.store.run_history import RunHistory, open_history
from cmsspark.store.stored_columns import existing_store, open_store


@click.command("verify")
@click.option(
    "--all", "all_runs", is_flag=True, help="Also check runs that are no longer current."
)
@click.option(
    "--json", "as_json", is_flag=True, help="Print JSON: what was checked and what is damaged."
)
@quiet_option
@store_options
def command(all_runs: bool, as_json: bool, fout: str | None, settings_file: str | None) -> None:
    """Read the current result of every day and period, and compare each part file with
    the SHA-256 in its manifest. `cmsspark status` shows when that was.

    Prints each damaged part with the command that makes its result again, and ends with
    65 where there is one. Results of versions that wrote no checksums are listed; they
    cannot be checked.
    """
    settings = load_settings(settings_file)
    store = require_store(fout, settings)
    files = existing_store(open_store(store, "cmsspark verify", settings), store)
    checks = _recorded(check_runs(files, store, all_runs=all_runs), settings.state_dir, store)
    verify(counted(checks, "verifying", None, "runs"), store, as_json=as_json)


def _recorded(checks: Iterable[RunCheck], state_dir: Path, store: str) -> Iterator[RunCheck]:
    """Yield the checks, each in the run history; one that cannot be written keeps none back."""
    with ExitStack() as stack:
        history: RunHistory | None = None
        try:
            history = stack.enter_context(open_history(state_dir))
        except CmssparkError as error:
            _warn(error)
        for check in checks:
            if check.is_current and history is not None:
                try:
                    history.note_check(store, check.as_note(dates.now_ms()))
                except CmssparkError as error:
                    _warn(error)
                    history = None
            yield check


def _warn(error: CmssparkError) -> None:
    text = f"warning: status will not show this verification: {error.problem}: {error.where}"
    click.echo(text, err=True)


def verify(checks: Iterable[RunCheck], store: str, *, as_json: bool = False) -> None:
    """Print what the checks of runs say. Raises DataError (65) where a run is damaged."""
    damaged: list[dict[str, str]] = []
    runs = parts = size = error_count = 0
    unchecked: dict[str, set[Interval]] = {}
    for check in checks:
        runs, parts, size = runs + 1, parts + check.part_count, size + check.byte_count
        error_count += len(check.errors)
        for error in check.errors:
            damaged.append(
                {"job": check.job, "interval": str(check.interval), **parts_of_text(error.text())}
            )
            if not as_json:
                click.echo(f"damaged: {check.job} of {check.interval}: {error.text()}")
        for table in check.unchecked:
            unchecked.setdefault(
                table if table == check.job else f"{check.job}: {table}", set()
            ).add(check.interval)
    if as_json:
        document = {
            "store": store,
            "runs": runs,
            "part_files": parts,
            "bytes": size,
            "damaged": damaged,
            "without_checksums": {
                table: sorted(map(str, intervals)) for table, intervals in unchecked.items()
            },
        }
        click.echo(json_text(document, indent=1))
    else:
        for table, intervals in unchecked.items():
            stored = sorted(intervals, key=str)
            days = [interval for interval in stored if isinstance(interval, date)]
            texts = [spans(days)] if days else []
            texts += [str(interval) for interval in stored if not isinstance(interval, date)]
            about = f"{table} of {', '.join(texts)}"
            click.echo(f"not checked, stored without checksums: {about}")
        click.echo(
            f"checked {pluralize(parts, 'part file')} of {pluralize(runs, 'run')}, {size:,} bytes"
        )
    if error_count:
        raise DataError(
            f"{pluralize(error_count, 'error')} in the stored results",
            where=store,
            next_step="run the commands above that make the damaged results again",
        )
