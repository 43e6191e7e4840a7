"""``cmsspark prune``: remove runs that are no longer current from the store. Removes
only with ``--yes``.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator

import click
import msgspec

from cmsspark.base import dates
from cmsspark.base.dates import DAY_MS
from cmsspark.base.errors import CmssparkError, InputMissing, NotReady, UsageError
from cmsspark.base.periods import Interval, named
from cmsspark.base.text.progress_line import counted
from cmsspark.base.text.readable import json_text
from cmsspark.base.text.terminal import pluralize
from cmsspark.cli.options import quiet_option, require_store, store_options
from cmsspark.filesystems.storage import Files, join
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.store import lease, results
from cmsspark.store.results import folder_names
from cmsspark.store.run_history import FILE
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
    leases = list(old_leases(files, fout, before_ms))
    held_count = 0
    for old_lease in leases if remove else ():
        try:
            remove_lease(files, old_lease)
        except NotReady as error:
            held_count += 1
            report("kept", f"the lease of {old_lease.label}", error.problem)
    if leases:
        count = len(leases) - held_count
        text = pluralize(count, "old lease")
        report("removed" if remove else "would remove", text)
    # Damaged histories stay where no working one exists.
    histories = sorted(
        path
        for path in settings.state_dir.glob(f"{FILE}*.damaged-*")
        if path.stat().st_mtime_ns // 1_000_000 < before_ms
        and (settings.state_dir / FILE).exists()
    )
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
    runs = list(counted(old_runs(files, fout, before_ms), "looking for old runs", None, "found"))
    for run in counted(
        runs, "removing old runs" if remove else "listing old runs", len(runs), "runs"
    ):
        text = f"{run.job} of {run.interval}: {run.path} ({run.size:,} bytes, {run.reason})"
        about = {
            "job": run.job,
            "interval": str(run.interval),
            "path": run.path,
            "bytes": run.size,
            "why": run.reason,
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
            current = current_run(files, fout, run.job, run.interval)
            if current is None or run.path.endswith("/" + current):
                return "it may be the only copy"
            files.delete(run.path)
    except NotReady as error:
        return error.problem
    return None


# What may be removed: never a day's current run, nor anything of a day without one.


class OldRun(msgspec.Struct, frozen=True):
    """A run that another one replaced, or that never ended; ``size`` in bytes of its files."""

    job: str
    interval: Interval
    path: str
    size: int
    reason: str


def old_runs(files: Files, fout: str, before_ms: int) -> Iterator[OldRun]:
    """Yield runs last written before ``before_ms`` (UTC ms) that are not current, job
    by job, oldest day first.

    Skips days whose current run is unknown, or has lost its manifest or a table: an
    older run may be the only copy.
    """
    for job in folder_names(files, fout):
        for name in folder_names(files, join(fout, job)):
            try:
                interval = named(name)
            except ValueError:
                continue
            current_id = current_run(files, fout, job, interval)
            if current_id is None:
                continue
            for run in files.list_dir(join(fout, job, name, "runs")):
                if run.name != current_id and run.is_dir and run.mtime_ms < before_ms:
                    is_whole = files.stat(join(run.path, "manifest.json")) is not None
                    reason = "replaced by another run" if is_whole else "never ended"
                    yield OldRun(job, interval, run.path, _size(files, run.path), reason)


def current_run(files: Files, fout: str, job: str, interval: Interval) -> str | None:
    """Return the id of the current run of a day or period; None if it is not complete."""
    try:
        run, path, manifest = results.current_run(files, fout, job, interval)
        is_whole = all(files.stat(join(path, table)) is not None for table in manifest.tables)
    except CmssparkError:
        return None
    return run if is_whole else None


def _size(files: Files, path: str) -> int:
    return sum(
        _size(files, entry.path) if entry.is_dir else max(entry.size, 0)
        for entry in files.list_dir(path)
    )


class OldLease(msgspec.Struct, frozen=True):
    """The lease of a job's day or period, last written long ago."""

    job: str
    name: str
    path: str

    @property
    def label(self) -> str:
        """The work that it protected, for messages."""
        return f"{self.job} of {self.name}"


def old_leases(files: Files, fout: str, before_ms: int) -> Iterator[OldLease]:
    """Yield leases last written before ``before_ms`` (UTC ms); a holder renews its
    lease every minute.
    """
    base = join(fout, ".leases")
    if files.stat(base) is None:
        return
    for job in files.list_dir(base):
        for entry in files.list_dir(job.path) if job.is_dir else ():
            if entry.is_dir and all(
                file.mtime_ms < before_ms for file in files.list_dir(entry.path)
            ):
                yield OldLease(job.name, entry.name, entry.path)


def remove_lease(files: Files, old: OldLease) -> None:
    """Take the lease and remove its folder. Raises NotReady (75) if another process holds it.

    A process that listed the folder before finds this holder, or nothing, and starts
    from the first number.
    """
    try:
        with lease.hold(files, old.path, old.label):
            files.delete(old.path)
    except InputMissing:
        return  # another process removed it at the same time
