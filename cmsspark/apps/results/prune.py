"""``cmsspark prune``: remove runs that are no longer current from the store. Removes
only with ``--yes``.
"""

from __future__ import annotations

import click

from cmsspark.base import clock
from cmsspark.base.dates import DAY_MS
from cmsspark.base.errors import NotReady, UsageError
from cmsspark.base.text.progress_line import counted
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
    help="Age.",
)
@click.option("--yes", is_flag=True, help="Remove; without this option only list.")
@click.option("--dry-run", is_flag=True, help="Only list. This is the default.")
@quiet_option
@store_options
def command(
    age: int, yes: bool, dry_run: bool, fout: str | None, settings_file: str | None
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
    before_ms = clock.now_ms() - age * DAY_MS
    count = prune(files, store, before_ms, remove=yes) + _prune_rest(
        files, store, settings, before_ms, remove=yes
    )
    if not count:
        click.echo("nothing to remove")
    elif not yes:
        click.echo("--yes removes them")


def _prune_rest(
    files: Files, fout: str, settings: Settings, before_ms: int, *, remove: bool
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
            click.echo(f"kept: the lease of {old_lease.what}: {error.problem}")
    if leases:
        count = len(leases) - held_count
        text = pluralize(count, "old lease")
        click.echo(f"{'removed' if remove else 'would remove'}: {text}")
    histories = retention.damaged_histories(settings.state_dir, before_ms)
    for path in histories:
        if remove:
            path.unlink()
        click.echo(f"{'removed' if remove else 'would remove'}: a damaged run history: {path}")
    return len(leases) + len(histories)


def prune(files: Files, fout: str, before_ms: int, *, remove: bool) -> int:
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
        if not remove:
            click.echo(f"would remove: {text}")
        elif (reason := _remove(files, fout, run)) is not None:
            click.echo(f"kept: {text}: {reason}")
            continue
        else:
            click.echo(f"removed: {text}")
        total += run.size
    if runs:
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
