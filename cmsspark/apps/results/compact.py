"""``cmsspark lab compact``: merges small files of stored days into new runs."""

from __future__ import annotations

from typing import TYPE_CHECKING

import click

from cmsspark.base.errors import CmssparkError, NotReady
from cmsspark.base.periods import Interval, Period
from cmsspark.base.text.terminal import pluralize
from cmsspark.cli.options import DATE_HELP, DayType, require_store, store_options
from cmsspark.cli.period_options import period_options
from cmsspark.filesystems.storage import Files
from cmsspark.settings.settings import load_settings
from cmsspark.store.job_index import find_job
from cmsspark.store.stored_columns import existing_store, open_store

if TYPE_CHECKING:
    from datetime import date


@click.command("compact")
@click.option("--job", "job_name", metavar="JOB", help="Only results of this job.")
@click.option("--date", "day", type=DayType(), help=DATE_HELP)
@period_options
@click.option("--dry-run", is_flag=True, help="Only list what would be compacted.")
@store_options
def command(
    job_name: str | None,
    day: date | None,
    period: Period | None,
    dry_run: bool,
    fout: str | None,
    settings_file: str | None,
) -> None:
    """Compact days and periods whose tables have more files than they need (one for each 128 MB).

    A compacted result is a new run with the same rows. Nothing is published again, and
    no period becomes out of date. The old runs stay until cmsspark prune removes them.
    Without --date and a period all results are checked.
    """
    settings = load_settings(settings_file)
    store = require_store(fout, settings)
    jobs = (find_job(job_name).name,) if job_name else ()
    files = existing_store(open_store(store, "cmsspark lab compact", settings), store)
    compact(files, store, jobs, day or period, dry_run=dry_run)


def compact(
    files: Files,
    fout: str,
    jobs: tuple[str, ...] = (),
    selected: Interval | None = None,
    *,
    dry_run: bool = False,
) -> int:
    """Compact, or list, what ``selected`` covers of ``jobs`` (default: everything).
    Returns the number of results.

    A result that another process works on is left out. Raises the first other error
    after the rest is done.
    """
    from cmsspark.store import compacted_runs

    count = before = after = 0
    first_error: CmssparkError | None = None
    for job, interval in compacted_runs.stored_results(files, fout, jobs):
        if selected is not None and not _covers(selected, interval):
            continue
        try:
            many = compacted_runs.many_files(files, fout, job, interval)
            if many is None or not (dry_run or compacted_runs.compact(files, fout, job, interval)):
                continue
        except NotReady as error:
            click.echo(f"left out: {job} of {interval}: {error.problem}")
            continue
        except CmssparkError as error:
            click.echo(f"failed: {job} of {interval}: {error.problem}")
            first_error = first_error or error
            continue
        now, then = many.counts
        click.echo(
            f"{'would compact' if dry_run else 'compacted'}: {many.what}: {pluralize(now, 'file')} as {then:,}"
        )
        count, before, after = count + 1, before + now, after + then
    if count:
        done = "would be" if dry_run else "are"
        click.echo(f"{pluralize(count, 'result')}: {pluralize(before, 'file')} {done} {after:,}")
    elif first_error is None:
        click.echo("nothing to compact")
    if first_error is not None:
        raise first_error
    return count


def _covers(span: Interval, interval: Interval) -> bool:
    """Return whether ``when`` is the interval, or a period with that day."""
    return interval == span or (
        isinstance(span, Period) and not isinstance(interval, Period) and interval in span.days
    )
