"""``cern_monit`` / ``cmsspark publish``: a stored day as documents, to MONIT or to a file spool, each one confirmed."""

from __future__ import annotations

import os
import signal
import sys
import threading
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import click

from cmsspark.errors import SettingsError, UsageError
from cmsspark.periods import Interval, Period, options
from cmsspark.pipeline.job_index import Job, find_job
from cmsspark.pipeline.options import settings_of, store_options
from cmsspark.pipeline.period_options import when_options
from cmsspark.pipeline.publication import (
    PublishRequest,
    check_results,
    public_tables,
    publish_table,
    record_publication,
    show_documents,
)
from cmsspark.publish.publishing_settings import publishing_settings
from cmsspark.publish.sinks import SINKS
from cmsspark.settings import Settings


@click.command("publish")
@when_options
@click.option("--job", "job_name", help="Whose result to publish. [default: data_aggregation; of a period, period]")
@store_options
@click.option("--sink", type=click.Choice(list(SINKS)), help="Where to. [default: stomp with --amq, else file]")
@click.option("--amq", metavar="FILE", help="Address and credentials, in the amq_broker.json form; for its owner only.")
@click.option("--spool", metavar="DIR", help="Folder of the file sink. [default: published/ in the state directory]")
@click.option("--resume", is_flag=True, help="Only send what an earlier run left in the outbox.")
@click.option("--dry-run", is_flag=True, help="Print the documents and where they would go; send nothing.")
@click.option("--limit", type=click.IntRange(min=1), help="Only so many rows, for a trial.")
@click.option("--verbose", is_flag=True, help="Say more on the way.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def command(
    when: Interval, job_name: str | None, fout: str | None, settings_file: str | None, sink: str | None,
    amq: str | None, spool: str | None, resume: bool, dry_run: bool, limit: int | None, verbose: bool, debug: bool,
) -> None:  # fmt: skip
    """Publish a stored day or period, to MONIT (STOMP or HTTP) or to a file spool.

    Sent means confirmed, or the command fails. Documents are spooled first; whatever interrupts the sending, the same
    command continues from there. Of what was published before only what has changed is sent.
    """
    request = request_of(settings_of(settings_file), when, job_name, fout, sink, amq, spool, limit)
    if dry_run:
        try:
            show_documents(request)
        except BrokenPipeError:
            # The reader of stdout took the first lines only; what Python flushes at its end goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    with interruptible():
        results = [publish_table(request, table, resume=resume) for table in public_tables(request.job)]
        record_publication(request, results)
    check_results(results)


def request_of(
    settings: Settings, day: Interval, job_name: str | None, fout: str | None, sink: str | None, amq: str | None,
    spool: str | None, limit: int | None,
) -> PublishRequest:  # fmt: skip
    """The request, from the command line first and the settings second.

    Raises UsageError (2) where the sink needs credentials and none are named, or where a job on days is given a
    period, or the other way round; SettingsError (78) for wrong settings.
    """
    defaults = publishing_settings(settings)
    chosen = sink or ("stomp" if amq else defaults.sink or "file")
    if chosen not in SINKS:
        raise SettingsError(
            f"sink is one of {', '.join(SINKS)}", where=settings.where("publishing", "sink"), found=repr(chosen)
        )
    example = SINKS[chosen].example
    if example and not (amq or defaults.amq):
        raise UsageError(
            f"--sink {chosen} needs an address to publish to",
            next_step=f"give --amq FILE with address and credentials (etc/{example} shows the form)",
        )
    credentials = amq or defaults.amq
    folder = spool or defaults.spool or settings.state_dir / "published"
    return PublishRequest(
        day, _job_of(job_name, day), settings, defaults, fout, chosen,
        Path(credentials) if credentials else None, Path(folder), limit,
    )  # fmt: skip


def _job_of(name: str | None, when: Interval) -> Job:
    is_period = isinstance(when, Period)
    job = find_job(name or ("period" if is_period else "data_aggregation"))
    if job.of_periods != is_period:
        raise UsageError(
            f"results of {job.name} are of {'periods' if job.of_periods else 'days'}, and {options(when)} is none",
            next_step="give --date for a day, --week, --month or --from … --to for a period",
        )
    return job


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: the batch in flight is in doubt, everything else is unchanged."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    previous = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, previous)
