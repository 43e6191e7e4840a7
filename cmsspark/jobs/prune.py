"""``cmsspark prune``: remove runs that count no more from the store. Says what it would do; ``--yes`` does it."""

from __future__ import annotations

import time

import click

from cmsspark.days import DAY_MS
from cmsspark.errors import NotReady
from cmsspark.jobs.options import settings_of, store_of, store_options
from cmsspark.runs import lease
from cmsspark.sinks import retention
from cmsspark.sinks.retention import OldRun
from cmsspark.storage import Files, LocalFiles, files_for, is_local, join


@click.command("prune")
@click.option("--older-than", "age", type=click.IntRange(1), default=30, show_default=True, metavar="DAYS", help="Age.")
@click.option("--yes", is_flag=True, help="Remove them; without it only tell.")
@store_options
def command(age: int, yes: bool, fout: str | None, settings_file: str | None) -> None:
    """Remove old runs of days that were run again, and what runs that never ended left.

    A day's current result always stays, and so does all of a day whose current result is damaged. What the publisher
    and the quarantine keep is pruned by themselves.
    """
    place = store_of(fout, settings_of(settings_file))
    files: Files = LocalFiles()
    if not is_local(place):
        from cmsspark.session import small_session

        files = files_for(place, small_session("cmsspark prune"))
    prune(files, place, int(time.time() * 1000) - age * DAY_MS, remove=yes)


def prune(files: Files, fout: str, before_ms: int, *, remove: bool) -> int:
    """Tell, and with ``remove`` delete, runs last written before ``before_ms``. Returns the bytes that (would) go."""
    total = 0
    found = list(retention.old_runs(files, fout, before_ms))
    for run in found:
        told = f"{run.job} of {run.day}: {run.path} ({run.size:,} bytes, {run.why})"
        if not remove:
            click.echo(f"would go: {told}")
        elif (left := _remove(files, fout, run)) is not None:
            click.echo(f"stays: {told}: {left}")
            continue
        else:
            click.echo(f"removed: {told}")
        total += run.size
    words = "removed" if remove else "would go; --yes removes them"
    click.echo(f"{len(found):,} runs looked at, {total:,} bytes {words}" if found else "nothing is to be removed")
    return total


def _remove(files: Files, fout: str, run: OldRun) -> str | None:
    """Delete a run under its day's lease; the reason where it must stay."""
    folder = lease.day_folder(fout, run.job, run.day)
    try:
        with lease.held(files, folder, f"{run.job} of {run.day}"):
            # Looked at again: since then a run may have been made current, or the current one been lost.
            counts = retention.current_run(files, join(fout, run.job, run.day.isoformat()))
            if counts is None or run.path.endswith("/" + counts):
                return "it may be the only copy now"
            files.delete(run.path)
    except NotReady as error:
        return error.wanted
    return None
