"""``cmsspark prune``: remove runs that are no longer current from the store. Removes
only with ``--yes``.
"""

from __future__ import annotations

from collections.abc import Callable

import click

from cmsspark.base import dates
from cmsspark.base.dates import DAY_MS
from cmsspark.base.errors import NotReady, UsageError
from cmsspark.base.text.progress_line import counted
from cmsspark.base.text.readable import json_text
from cmsspark.base.text.terminal import pluralize
from cmsspark.cli.options import quiet_option, require_store, store_options
from cmsspark.filesystems.storage import Files
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.store import lease, retention
from cmsspark.store.retention import OldRun
from cmsspark.store.stored_columns import existing_store, open_store


@click.command("prune")
@click.option(
    "--older-than",
    "age",
    type=click.IntRange(1),
    default=30,
    show_default=True,
    metavar="DAYS",
    help="Remove only runs older than DAYS.",
)
@click.option("--yes", is_flag=True, help="Remove; without this option only list.")
@click.option("--dry-run", is_flag=True, help="Only list. This is the default.")
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one object a line.")
@quiet_option
@store_options
def command(
    age: int, yes: bool, dry_run: bool, as_json: bool, fout: str | None, settings_file: str | None
) -> None:
    """Remove replaced runs, leftovers of killed runs, old leases and damaged run histories.

    The current result of a day is always kept. If it is damaged, all runs of the day
    are kept. The outbox and the quarantine remove their own old files.
    """
    if yes and dry_run:
        raise UsageError(
            "--yes and --dry-run exclude each other", next_step="give only one of them"
        )
    settings = load_settings(settings_file)
    store = require_store(fout, settings)
    files = existing_store(open_store(store, "cmsspark prune", settings), store)
    before_ms = dates.now_ms() - age * DAY_MS
    report = _as_json if as_json else _as_text
    count = prune(files, store, before_ms, remove=yes, report=report)
    count += _prune_rest(files, store, settings, before_ms, remove=yes, report=report)
    if as_json:
        return
    if not count:
        click.echo("nothing to remove")
    elif not yes:
        click.echo("--yes removes them")


#: Tells what became of something: ``removed``, ``would remove`` or ``kept``, what it is,
#: and why it was kept.
Report = Callable[..., None]


def _as_text(outcome: str, text: str, reason: str = "", **values: object) -> None:
    click.echo(f"{outcome}: {text}" + (f": {reason}" if reason else ""))


def _as_json(outcome: str, text: str, reason: str = "", **values: object) -> None:
    about = values or {"outcome": text}
    click.echo(json_text({"outcome": outcome, **about, **({"reason": reason} if reason else {})}))


def _prune_rest(
    files: Files, fout: str, settings: Settings, before_ms: int, *, remove: bool, report: Report
) -> int:
    """Return the same for leases, of which only the number is printed, and for damaged
    run histories.
    """
    leases = list(retention.old_leases(files, fout, before_ms))
    held_count = 0
    for old_lease in leases if remove else ():
        try:
            retention.remove_lease(files, old_lease)
        except NotReady as error:
            held_count += 1
            report("kept", f"the lease of {old_lease.what}", error.problem)
    if leases:
        count = len(leases) - held_count
        text = pluralize(count, "old lease")
        report("removed" if remove else "would remove", text)
    histories = retention.damaged_histories(settings.state_dir, before_ms)
    for path in histories:
        if remove:
            path.unlink()
        report("removed" if remove else "would remove", f"a damaged run history: {path}")
    return len(leases) + len(histories)


def prune(
    files: Files, fout: str, before_ms: int, *, remove: bool, report: Report = _as_text
) -> int:
    """List, and with ``remove`` delete, runs last written before ``before_ms``. Returns
    the number of these runs.
    """
    total = 0
    runs = list(
        counted(retention.old_runs(files, fout, before_ms), "looking for old runs", None, "found")
    )
    for run in counted(
        runs, "removing old runs" if remove else "listing old runs", len(runs), "runs"
    ):
        text = f"{run.job} of {run.interval}: {run.path} ({run.size:,} bytes, {run.why})"
        about = {
            "job": run.job,
            "interval": str(run.interval),
            "path": run.path,
            "bytes": run.size,
            "why": run.why,
        }
        if not remove:
            report("would remove", text, **about)
        elif (reason := _remove(files, fout, run)) is not None:
            report("kept", text, reason, **about)
            continue
        else:
            report("removed", text, **about)
        total += run.size
    if runs and report is _as_text:
        click.echo(
            f"{pluralize(len(runs), 'run')}, {total:,} bytes {'removed' if remove else 'would remove'}"
        )
    return len(runs)


def _remove(files: Files, fout: str, run: OldRun) -> str | None:
    """Delete a run under its day's lease; the reason where it must stay."""
    folder = lease.lease_folder(fout, run.job, run.interval)
    try:
        with lease.hold(files, folder, f"{run.job} of {run.interval}"):
            # Check again under the lease: a run may have become current, or the current
            # one may be lost.
            current = retention.current_run(files, fout, run.job, run.interval)
            if current is None or run.path.endswith("/" + current):
                return "it may be the only copy"
            files.delete(run.path)
    except NotReady as error:
        return error.problem
    return None
