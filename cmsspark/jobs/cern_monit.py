"""``cern_monit`` / ``cmsspark publish``: a stored day as documents, to MONIT or to a file spool, each one confirmed."""

from __future__ import annotations

import json
import os
import signal
import sys
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import islice
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import click
import msgspec

from cmsspark.errors import DocumentsQuarantined, InputMissing, NotReady, UsageError
from cmsspark.jobs import Job, find_job
from cmsspark.jobs.options import settings_of, store_of, store_options
from cmsspark.jobs.period_options import when_options
from cmsspark.periods import Period, When, first_day, options
from cmsspark.settings import Settings

if TYPE_CHECKING:
    from cmsspark.publish.credentials import Broker, Endpoint
    from cmsspark.publish.documents import Shape
    from cmsspark.publish.outbox import Outbox, Spooled, Totals
    from cmsspark.publish.sink import Sink
    from cmsspark.sinks.store import CurrentTable

DEFAULT_PRODUCER: Final = "cms-spark"
SINKS: Final = ("file", "stomp", "http")
_Text = Annotated[str, msgspec.Meta(min_length=1)]


class _Section(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """The ``publishing`` section of the settings; ``patience`` in seconds."""

    sink: Literal[SINKS] | None = None  # type: ignore[valid-type]  # a tuple of them
    amq: _Text | None = None
    spool: _Text | None = None
    producer: _Text | None = None
    type: _Text | None = None
    patience: Annotated[float, msgspec.Meta(gt=0)] = 300


@dataclass(frozen=True)
class Order:
    """What was asked for, command line over settings."""

    day: When
    job: Job
    settings: Settings
    fout: str | None
    sink: str
    amq: Path | None
    spool: Path
    producer: str | None
    type: str | None
    patience: float
    limit: int | None = None


@dataclass(frozen=True)
class Result:
    """What publishing one table came to."""

    table: str
    where: str
    spooled: Spooled | None
    totals: Totals
    quarantine: Path | None
    quarantined: int


@click.command("publish")
@when_options
@click.option("--job", "job_name", help="Whose result to publish. [default: data_aggregation; of a period, period]")
@store_options
@click.option("--sink", type=click.Choice(SINKS), help="Where to. [default: stomp with --amq, else file]")
@click.option("--amq", metavar="FILE", help="Address and credentials, in the amq_broker.json form; for its owner only.")
@click.option("--spool", metavar="DIR", help="Folder of the file sink. [default: published/ in the state directory]")
@click.option("--resume", is_flag=True, help="Only send what an earlier run left in the outbox.")
@click.option("--dry-run", is_flag=True, help="Print the documents and where they would go; send nothing.")
@click.option("--limit", type=click.IntRange(min=1), help="Only so many rows, for a trial.")
@click.option("--verbose", is_flag=True, help="Say more on the way.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def command(
    when: When, job_name: str | None, fout: str | None, settings_file: str | None, sink: str | None, amq: str | None,
    spool: str | None, resume: bool, dry_run: bool, limit: int | None, verbose: bool, debug: bool,
) -> None:  # fmt: skip
    """Publish a stored day or period, to MONIT (STOMP or HTTP) or to a file spool.

    Sent means confirmed, or the command fails. Documents are spooled first; whatever interrupts the sending, the same
    command goes on from there. Of what was published before only what has changed is sent.
    """
    order = order_of(settings_of(settings_file), when, job_name, fout, sink, amq, spool, limit)
    if dry_run:
        try:
            show(order)
        except BrokenPipeError:
            # Somebody looked at the first lines only; what Python flushes at its end goes nowhere.
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return
    with interruptible():
        results = [publish(order, table, resume=resume) for table in public_tables(order.job)]
        note_published(order, results)
    finish(results)


def order_of(
    settings: Settings, day: When, job_name: str | None, fout: str | None, sink: str | None, amq: str | None,
    spool: str | None, limit: int | None,
) -> Order:  # fmt: skip
    """The order, from the command line first and the settings second.

    Raises UsageError (2) where STOMP is wanted and no credentials are named, or where a job on days is given a period,
    or the other way round; SettingsError (78) for wrong settings.
    """
    section = settings.section(_Section, "publishing")
    chosen = sink or ("stomp" if amq else section.sink or "file")
    if chosen != "file" and not (amq or section.amq):
        example = "amq_broker.example.json" if chosen == "stomp" else "monit_http.example.json"
        raise UsageError(
            "an address to publish to is wanted",
            next_step=f"give --amq FILE with address and credentials (etc/{example} shows the form)",
        )
    job = _job_of(job_name, day)
    folder = Path(spool) if spool else _place(settings, section.spool) or settings.state_dir / "published"
    return Order(
        day, job, settings, fout, chosen,
        Path(amq) if amq else _place(settings, section.amq),
        folder, section.producer, section.type, section.patience, limit,
    )  # fmt: skip


def _job_of(name: str | None, when: When) -> Job:
    is_period = isinstance(when, Period)
    job = find_job(name or ("period" if is_period else "data_aggregation"))
    if job.of_periods != is_period:
        raise UsageError(
            f"results of {job.name} are of {'periods' if job.of_periods else 'days'}, and {options(when)} is none",
            next_step="give --date for a day, --week, --month or --from … --to for a period",
        )
    return job


def _place(settings: Settings, text: str | None) -> Path | None:
    """A path of the settings; relative ones start at the settings file's folder."""
    if not text:
        return None
    return settings.folder / Path(text).expanduser()


def public_tables(job: Job) -> list[str]:
    """The tables of a job that are published. Raises UsageError (2) where there is none."""
    from cmsspark.publish.documents import PRIVATE

    tables = [table for table in job.tables if table not in PRIVATE]
    if not tables:
        raise UsageError(f"{job.name} has no table to publish", next_step="run_spark --list shows the jobs")
    return tables


def _shape(order: Order, table: str) -> tuple[Shape, Broker | Endpoint | None]:
    """What the documents share, and the broker or endpoint they go to (None for files)."""
    from cmsspark.publish.credentials import read_broker, read_endpoint
    from cmsspark.publish.documents import Shape
    from cmsspark.schemas import stored_table

    to: Broker | Endpoint | None = None
    if order.sink != "file" and order.amq:
        to = read_broker(order.amq) if order.sink == "stomp" else read_endpoint(order.amq)
    producer = (to.producer if to else None) or order.producer or DEFAULT_PRODUCER
    kind = (to.type if to else None) or order.type or table
    return Shape(stored_table(table), order.day, producer, kind), to


def _sink(order: Order, shape: Shape, to: Broker | Endpoint | None, told: Callable[[str], None]) -> Sink:
    from cmsspark.publish.credentials import Endpoint

    if to is None:
        from cmsspark.publish.files import FileSink

        return FileSink(order.spool, shape.table.name, shape.period)
    if isinstance(to, Endpoint):
        from cmsspark.publish import http

        waits = http.Timeouts()
        return http.HttpSink(to, replace(waits, whole=min(waits.whole, order.patience)))
    from cmsspark.publish.stomp import StompSink, Timeouts

    return StompSink(to, shape.type, shape.producer, Timeouts(stall=order.patience), told=told)


def _stored(order: Order, table: str) -> CurrentTable:
    from cmsspark.sinks.store import current
    from cmsspark.storage import LocalFiles, files_for, is_local

    store = store_of(order.fout, order.settings)
    if is_local(store):
        files: Any = LocalFiles()
    else:
        from cmsspark.session import session

        spark = session("cern_monit")
        if spark.conf.get("spark.submit.deployMode", "client") == "cluster":
            raise UsageError(
                "publishing keeps its outbox on one host, so its driver cannot run somewhere on the cluster",
                next_step="use --deploy-mode client",
            )
        files = files_for(store, spark)
    return current(files, store, order.job.name, table, order.day)


def show(order: Order) -> None:
    """Print the documents as JSON Lines on stdout, and on stderr where they would go."""
    from cmsspark.jobs.rows import stored_rows
    from cmsspark.publish.documents import BadDocument, canonical, document
    from cmsspark.publish.validate import validator_for

    bad = 0
    for table in public_tables(order.job):
        shape, to = _shape(order, table)
        count = 0
        for row in islice(stored_rows(_stored(order, table), shape.table), order.limit):
            try:
                made = document(shape, row)
                validator_for(table).check(made)
                click.echo(canonical(made))
                count += 1
            except BadDocument as error:
                bad += 1
                click.echo(f"would be quarantined: {error}", err=True)
        where = _sink(order, shape, to, lambda text: None).where
        click.echo(f"{count:,} documents of {table} for {shape.period} would go to {where}; nothing was sent", err=True)
    if bad:
        raise DocumentsQuarantined(f"{bad:,} rows make no valid document")


def publish(order: Order, table: str, *, resume: bool = False) -> Result:
    """Spool what has changed of a table's day, send what is open, and tell how far it came.

    Prints the table of what became of the documents also when it raises: NotReady (75), NotAllowed (77), DataError
    (65).
    """
    from cmsspark.publish.drain import Drain, Policy
    from cmsspark.publish.outbox import Outbox
    from cmsspark.publish.progress import Progress

    shape, to = _shape(order, table)
    progress = Progress(0, sys.stderr)
    sink = _sink(order, shape, to, lambda text: progress.say(text))
    with Outbox(order.settings.state_dir, sink.slug, table, shape.period).held() as outbox:
        for note in outbox.notes:
            progress.say(note)
        spooled = None if resume else _fill(order, outbox, shape)
        generation = outbox.unfinished() if spooled is None else spooled.generation
        before = outbox.totals(generation)
        progress = Progress(before.open + before.confirmed, sys.stderr, done=before.confirmed)
        try:
            Drain(outbox, sink, Policy(order.patience), told=progress.say, progress=progress.confirmed).run()
            if generation is not None:
                outbox.note_confirmed(generation)
        finally:
            progress.end()
            result = _result(outbox, sink, spooled, generation)
            _print(result)
        outbox.prune()
    return result


def _fill(order: Order, outbox: Outbox, shape: Shape) -> Spooled:
    from cmsspark.jobs.rows import stored_rows

    stored = _stored(order, shape.table.name)
    source = f"{stored.manifest.get('run')} {shape.producer} {shape.type} {order.limit or ''}".strip()
    rows = stored_rows(stored, shape.table)
    try:
        return outbox.fill(shape, rows, stored.manifest, source=source, limit=order.limit)
    except FileNotFoundError as error:
        raise InputMissing("a stored part vanished while it was read", where=error.filename) from None


def _result(outbox: Outbox, sink: Sink, spooled: Spooled | None, generation: int | None) -> Result:
    quarantined = 0 if spooled is None else spooled.quarantined
    if spooled is None and generation is not None:
        quarantined = int(outbox.spool.manifest(generation)["quarantined"])
    folder = None if generation is None else outbox.spool.folder(generation)
    return Result(outbox.table, sink.where, spooled, outbox.totals(generation), folder, quarantined)


def _print(result: Result) -> None:
    totals, spooled = result.totals, result.spooled
    heads = ("table", "sent", "confirmed", "in doubt", "to send", "quarantined")
    if spooled is not None and spooled.generation is None:
        click.echo(f"{result.table}: nothing has changed since it was published to {result.where}")
        return
    if spooled is None and result.quarantine is None:
        click.echo(f"{result.table}: nothing is open in the outbox for {result.where}")
        return
    cells = (
        result.table,
        *(f"{n:,}" for n in (
            totals.confirmed + totals.in_doubt, totals.confirmed, totals.in_doubt, totals.waiting + totals.stalled,
            result.quarantined + totals.refused,
        )),
    )  # fmt: skip
    widths = [max(len(head), len(cell)) for head, cell in zip(heads, cells, strict=True)]
    for line in (heads, cells):
        first, *rest = (f"{text:{'<' if n == 0 else '>'}{widths[n]}}" for n, text in enumerate(line))
        click.echo("  ".join((first, *rest)))
    if spooled is not None and (spooled.unchanged or spooled.gone):
        click.echo(f"unchanged since the last time: {spooled.unchanged:,}; gone from the day: {spooled.gone:,}")
    click.echo(f"to {result.where}")


def note_published(order: Order, results: list[Result]) -> None:
    """Enter in the ledger of runs what became of each table's documents; a ledger that fails stops nothing."""
    from cmsspark.jobs.attended import note_published as note

    if order.limit is not None:
        return
    for result in results:
        totals = result.totals
        if result.quarantine is not None:
            source = json.loads((result.quarantine / "manifest.json").read_bytes())["source"].partition(" ")[0]
        elif result.spooled is not None:
            source = str(_stored(order, result.table).manifest.get("run"))
        else:
            continue  # nothing was open
        refused = result.quarantined + totals.refused
        done = (source, result.where, totals.confirmed, totals.open, refused)
        note(order.settings.state_dir, order.job.name, result.table, first_day(order.day), *done)


def finish(results: list[Result]) -> None:
    """Raises NotReady (75) where documents are still to be confirmed, DocumentsQuarantined (3) where some were
    refused.
    """
    still = sum(result.totals.open for result in results)
    if still:
        raise NotReady(
            f"{still:,} documents are not confirmed yet",
            next_step="they are in the outbox: the same command with --resume sends them",
        )
    bad = sum(result.quarantined + result.totals.refused for result in results)
    if bad:
        raise DocumentsQuarantined(
            f"{bad:,} documents were refused and kept aside; all others are confirmed",
            where=", ".join(str(result.quarantine) for result in results if result.quarantine),
            next_step="cmsspark outbox show says why",
        )


@contextmanager
def interruptible() -> Iterator[None]:
    """SIGTERM ends the command as Ctrl-C does: the batch on the way is in doubt, all else stays as it is."""

    def stop(number: int, frame: object) -> None:
        raise KeyboardInterrupt

    if threading.current_thread() is not threading.main_thread():
        yield
        return
    former = signal.signal(signal.SIGTERM, stop)
    try:
        yield
    finally:
        signal.signal(signal.SIGTERM, former)
