"""``cmsspark prune``: remove runs that count no more from the store. Says what it would do; ``--yes`` does it."""

from __future__ import annotations

import click

from cmsspark import clock
from cmsspark.days import DAY_MS
from cmsspark.errors import NotReady, UsageError
from cmsspark.file_systems import files_for
from cmsspark.pipeline.options import settings_of, store_of, store_options
from cmsspark.settings import Settings
from cmsspark.storage import Files, LocalFiles, is_local, join
from cmsspark.store import lease, leftovers, retention
from cmsspark.store.retention import OldRun


@click.command("prune")
@click.option("--older-than", "age", type=click.IntRange(1), default=30, show_default=True, metavar="DAYS", help="Age.")
@click.option("--yes", is_flag=True, help="Remove them; without it only tell.")
@click.option("--dry-run", is_flag=True, help="Only tell, which is what it does without --yes.")
@store_options
def command(age: int, yes: bool, dry_run: bool, fout: str | None, settings_file: str | None) -> None:
    """Remove old runs of days that were run again, what runs that never ended left, old leases and damaged ledgers.

    A day's current result always stays, and so does all of a day whose current result is damaged. What the publisher
    and the quarantine keep is pruned by themselves.
    """
    if yes and dry_run:
        raise UsageError("--yes removes and --dry-run does not", next_step="give one of them")
    settings = settings_of(settings_file)
    place = store_of(fout, settings)
    files: Files = LocalFiles()
    if not is_local(place):
        from cmsspark.runners.session import small_session

        files = files_for(place, small_session("cmsspark prune"))
    before_ms = clock.now_ms() - age * DAY_MS
    things = prune(files, place, before_ms, remove=yes) + _prune_rest(files, place, settings, before_ms, remove=yes)
    if not things:
        click.echo("nothing is to be removed")
    elif not yes:
        click.echo("--yes removes them")


def _prune_rest(files: Files, fout: str, settings: Settings, before_ms: int, *, remove: bool) -> int:
    """The same for leases, which are told by their number as each is a few bytes, and for ledgers."""
    leases = list(leftovers.old_leases(files, fout, before_ms))
    held = 0
    for one in leases if remove else ():
        try:
            leftovers.remove_lease(files, one)
        except NotReady as error:
            held += 1
            click.echo(f"stays: the lease of {one.what}: {error.wanted}")
    if leases:
        count = len(leases) - held
        told = "1 lease of a day" if count == 1 else f"{count:,} leases of days"
        click.echo(f"{'removed' if remove else 'would go'}: {told} long done")
    ledgers = leftovers.damaged_histories(settings.state_dir, before_ms)
    for path in ledgers:
        if remove:
            path.unlink()
        click.echo(f"{'removed' if remove else 'would go'}: a damaged ledger: {path}")
    return len(leases) + len(ledgers)


def prune(files: Files, fout: str, before_ms: int, *, remove: bool) -> int:
    """Tell, and with ``remove`` delete, runs last written before ``before_ms``. Returns the number looked at."""
    total = 0
    found = list(retention.old_runs(files, fout, before_ms))
    for run in found:
        told = f"{run.job} of {run.interval}: {run.path} ({run.size:,} bytes, {run.why})"
        if not remove:
            click.echo(f"would go: {told}")
        elif (left := _remove(files, fout, run)) is not None:
            click.echo(f"stays: {told}: {left}")
            continue
        else:
            click.echo(f"removed: {told}")
        total += run.size
    if found:
        click.echo(f"{len(found):,} runs looked at, {total:,} bytes {'removed' if remove else 'would go'}")
    return len(found)


def _remove(files: Files, fout: str, run: OldRun) -> str | None:
    """Delete a run under its day's lease; the reason where it must stay."""
    folder = lease.folder_of(fout, run.job, run.interval)
    try:
        with lease.hold(files, folder, f"{run.job} of {run.interval}"):
            # Looked at again: since then a run may have been made current, or the current one been lost.
            counts = retention.current_run(files, join(fout, run.job, run.interval.isoformat()))
            if counts is None or run.path.endswith("/" + counts):
                return "it may be the only copy now"
            files.delete(run.path)
    except NotReady as error:
        return error.wanted
    return None
