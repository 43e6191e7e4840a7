"""Publishing a job's stored result: rows of the store, through an outbox, to a sink that confirms."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Any, Final

import click
import msgspec

from cmsspark.base import dates
from cmsspark.base.errors import (
    CmssparkError,
    DocumentsQuarantined,
    InputMissing,
    NotReady,
    SettingsError,
    UsageError,
)
from cmsspark.base.periods import Interval, first_day
from cmsspark.base.schemas import stored_table
from cmsspark.base.text import progress_line
from cmsspark.base.text.progress_line import ProgressLine
from cmsspark.base.text.readable import json_text
from cmsspark.base.text.terminal import drop_stdout, echo_table, pluralize
from cmsspark.cli.options import require_store
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import LocalFiles, is_local
from cmsspark.publish.document_schemas import valid_document
from cmsspark.publish.documents import BadDocument, DocumentSpec
from cmsspark.publish.outbox import Outbox, SpoolResult, Totals
from cmsspark.publish.publisher import Publisher, RetryPolicy, locations
from cmsspark.publish.sink import PublishingSettings, Sink, SinkOptions, publishing_settings
from cmsspark.publish.sinks import SINKS
from cmsspark.run.run_context import note_published
from cmsspark.settings.secrets import safe_text
from cmsspark.settings.settings import Settings
from cmsspark.store.deliveries import Target
from cmsspark.store.own_jobs import Job
from cmsspark.store.results import CurrentTable, current
from cmsspark.store.run_history import Published
from cmsspark.store.stored_columns import require_pyspark, stored_rows

DEFAULT_PRODUCER: Final = "cms-spark"


class PublishRequest(msgspec.Struct, frozen=True):
    """What to publish, and the destination: the command line before the settings.

    ``sink``: a name of :data:`cmsspark.publish.sinks.SINKS`. ``amq``: its credentials
    file. ``spool``: the folder of the file sink. ``limit``: only so many rows.
    ``resend_all``: also documents that have not changed.
    """

    interval: Interval
    job: Job
    settings: Settings
    options: PublishingSettings
    fout: str | None
    sink: str
    amq: Path | None
    spool: Path
    limit: int | None = None
    resend_all: bool = False
    #: Whether the totals are printed as JSON, one table a line.
    as_json: bool = False


class PublishResult(msgspec.Struct, frozen=True):
    """The outcome of publishing one table. ``spooled`` is None when an earlier run was resumed."""

    table: str
    where: str
    spooled: SpoolResult | None
    totals: Totals
    snapshot: Path | None
    quarantined: int


def choose_sink(
    settings: Settings,
    defaults: PublishingSettings,
    sink: str | None = None,
    amq: str | None = None,
) -> tuple[str, Path | None]:
    """Return the sink and its credentials file; the command line comes before the settings.

    Raises SettingsError (78) for a sink that is not there, UsageError (2) where the sink
    needs credentials and none are named.
    """
    chosen = sink or ("stomp" if amq else defaults.sink or "file")
    if chosen not in SINKS:
        raise SettingsError(
            f"there is no sink {chosen!r}",
            where=settings.where("publishing", "sink"),
            next_step=f"name one of {', '.join(SINKS)}",
        )
    credentials, example = amq or defaults.amq, SINKS[chosen].example
    if example and not credentials:
        raise UsageError(
            f"--sink {chosen} needs an address to publish to",
            next_step=f"give --amq FILE with address and credentials (etc/{example} shows the format)",
        )
    return chosen, Path(credentials) if credentials else None


def spool_folder(
    settings: Settings, defaults: PublishingSettings, spool: str | None = None
) -> Path:
    """Return the folder of the file sink."""
    return Path(spool or defaults.spool or settings.state_dir / "published")


def configured_target(settings: Settings) -> Target:
    """Return the destination that the settings name. Nothing is connected to or written.

    Raises as :func:`choose_sink` and the sink's credentials file do.
    """
    defaults = publishing_settings(settings)
    chosen, amq = choose_sink(settings, defaults)
    module, spool = SINKS[chosen].load(), spool_folder(settings, defaults)
    credentials = module.read_credentials(amq)
    producer = getattr(credentials, "producer", None) or defaults.producer or DEFAULT_PRODUCER
    sink = module.build(credentials, SinkOptions("", "", producer, "", spool, defaults))
    outbox = sink.known_outbox(settings.state_dir)
    return Target(chosen, outbox, sink.where.rstrip("/"), _unusable(chosen, amq))


def settings_target(settings: Settings) -> tuple[Target | None, str]:
    """Return the destination of the settings, or why it cannot be told."""
    if not settings.publishing or settings.daily.get("publish") is False:
        return None, ""
    try:
        return configured_target(settings), ""
    except CmssparkError as error:
        where = f": {error.where}" if error.where else ""
        return None, f"the destination of the settings cannot be used: {error.problem}{where}"


def public_tables(request: PublishRequest, *, resume: bool = False) -> list[str]:
    """Return the tables of a job that are published: the first, and those of the others
    that the stored result has.

    ``resume`` reads no store: it returns the first table and the others that have an
    outbox. Raises UsageError (2) if the job has no public table.
    """
    tables = request.job.public_tables
    if not tables:
        private = [
            f"{table}.{column.name}"
            for table in request.job.tables
            for column in stored_table(table).columns
            if column.is_private
        ]
        raise UsageError(
            f"{request.job.name} has no table to publish",
            found=f"the column {private[0]} is private" if private else None,
            next_step="run_spark --list shows the jobs",
        )
    if resume:
        state_dir = request.settings.state_dir
        return [
            tables[0],
            *(table for table in tables[1:] if any(locations(state_dir, table=table))),
        ]
    if tables[1:]:
        # Where nothing is stored, the error comes with the table that is read.
        with suppress(InputMissing):
            stored = find_stored_table(request, tables[0]).manifest.tables
            return [tables[0], *(table for table in tables[1:] if table in stored)]
    return list(tables)


def _open_sink(
    request: PublishRequest, table: str, log: Callable[[str], None] = lambda text: None
) -> tuple[DocumentSpec, Sink]:
    """Return the fields that all documents share, and the sink that they go to."""
    module = SINKS[request.sink].load()
    credentials = module.read_credentials(request.amq)
    spec = _spec(request, table, credentials)
    options = SinkOptions(
        table, spec.period, spec.producer, spec.type, request.spool, request.options, log
    )
    return spec, module.build(credentials, options)


def document_spec(request: PublishRequest, table: str) -> DocumentSpec:
    """Return the fields that all documents of the table share at the request's destination."""
    return _spec(request, table, SINKS[request.sink].load().read_credentials(request.amq))


def _spec(request: PublishRequest, table: str, credentials: Any) -> DocumentSpec:
    producer = (
        (credentials.producer if credentials else None)
        or request.options.producer
        or DEFAULT_PRODUCER
    )
    kind = (credentials.type if credentials else None) or request.options.type or table
    options = request.options
    return DocumentSpec(
        stored_table(table),
        request.interval,
        producer,
        kind,
        options.min_distinct_users,
        options.user_datasets,
    )


def find_stored_table(request: PublishRequest, table: str) -> CurrentTable:
    """Return the stored result to publish. Raises InputMissing (66) if the day is not stored."""
    store = require_store(request.fout, request.settings)
    if is_local(store):
        files: Any = LocalFiles()
    else:
        require_pyspark(store)
        from cmsspark.engines.session import session

        spark = session("cern_monit")
        if spark.conf.get("spark.submit.deployMode", "client") == "cluster":
            raise UsageError(
                "publishing keeps its outbox on one host, so its driver cannot run somewhere on the cluster",
                next_step="use --deploy-mode client",
            )
        files = files_for(store, spark)
    return current(files, store, request.job.name, table, request.interval)


def show_documents(request: PublishRequest) -> None:
    """Print the documents as JSON Lines on stdout, a terminal gets the first of each
    table; on stderr the destination.

    Raises DocumentsQuarantined (3) where rows are invalid documents.
    """
    bad = 0
    for table in public_tables(request):
        spec, sink = _open_sink(request, table)
        count = 0
        for row in islice(
            spec.published_rows(stored_rows(find_stored_table(request, table), spec.table)),
            request.limit,
        ):
            if spec.leaves_out(row):
                continue
            try:
                _, body = valid_document(spec, row)
                if not (count and sys.stdout.isatty()):
                    click.echo(body)
                count += 1
            except BadDocument as error:
                bad += 1
                click.echo(f"would be quarantined: {error}", err=True)
        click.echo(
            f"{pluralize(count, 'document')} of {table} for {spec.period} would go to {sink.where}; nothing was sent",
            err=True,
        )
        if count > 1 and sys.stdout.isatty():
            click.echo("the first is shown; | less shows all", err=True)
    if bad:
        raise DocumentsQuarantined(
            f"{bad:,} rows are invalid documents",
            next_step="the lines above name each row and its fault",
        )


def publish_table(request: PublishRequest, table: str, *, resume: bool = False) -> PublishResult:
    """Spool the documents of a table that changed, send those that are open, report the
    totals, and record them in the run history.

    Prints and records the totals also when it raises: NotReady (75), NotAllowed (77),
    DataError (65). A destination that cannot be used is recorded with the reason.
    """
    try:
        spec, sink = _open_sink(request, table, _log)
    except CmssparkError as error:
        _record_refusal(request, table, error, resume=resume)
        raise
    state_dir = request.settings.state_dir
    if not resume:
        find_stored_table(request, spec.table.name)  # a day that is not stored leaves no outbox
    name = sink.outbox_name(state_dir)
    with Outbox(state_dir, name, table, spec.period).held() as outbox:
        for note in outbox.notes:
            _log(note)
        spooled = None if resume else _fill(request, outbox, spec)
        if spooled is None or spooled.resumed:
            outbox.reopen_refused()
        snapshot_no = outbox.unfinished() if spooled is None else spooled.snapshot_no
        before = outbox.totals(snapshot_no)
        settings = request.options
        policy = RetryPolicy(
            settings.patience,
            max_refused=settings.max_refused,
            max_refused_share=settings.max_refused_share,
        )
        reason = ""
        try:
            with ProgressLine("publish", before.open, "documents") as line:
                Publisher(outbox, sink, policy, log=_log, progress=line.add).run()
            if snapshot_no is not None:
                outbox.note_confirmed(snapshot_no)
            reason = outbox.last_reason()
        except CmssparkError as error:
            reason = str(error.found or error.problem)
            raise
        except KeyboardInterrupt:
            reason = "interrupted while sending"
            raise
        finally:
            quarantined = 0 if spooled is None else spooled.quarantined
            if spooled is None and snapshot_no is not None:
                quarantined = int(outbox.spool.manifest(snapshot_no)["quarantined"])
            folder = None if snapshot_no is None else outbox.spool.folder(snapshot_no)
            result = PublishResult(
                outbox.table, sink.where, spooled, outbox.totals(snapshot_no), folder, quarantined
            )
            record_publication(request, result, name, safe_text(reason))
            _print(result, safe_text(reason), as_json=request.as_json)
        outbox.compact()
    _report_others(request, name, table, spec.period, is_error=resume and snapshot_no is None)
    return result


def _log(text: str) -> None:
    progress_line.log(f"publish: {text}")


def _report_others(
    request: PublishRequest, name: str, table: str, period: str, *, is_error: bool
) -> None:
    """Name other destinations of the same sink where documents of the day are still open.

    With ``is_error`` raises NotReady (75): there was nothing to resume here.
    """
    open_counts = {
        location.destination: location.open_documents()
        for location in locations(request.settings.state_dir, table=table, to=f"{request.sink}-")
        if location.period == period and location.destination != name
    }
    waiting = {destination: count for destination, count in open_counts.items() if count}
    if not waiting:
        return
    counts = ", ".join(f"{count:,} for {destination}" for destination, count in waiting.items())
    next_step = f"if it is the same destination: cmsspark outbox move --from {next(iter(waiting))} --to {name}"
    if is_error:
        raise NotReady(
            f"nothing of {table} {period} is open for {name}, but documents wait for another destination",
            where=request.settings.state_dir / "outbox",
            found=counts,
            next_step=next_step,
        )
    click.echo(
        f"publish: documents of {table} {period} wait for another destination: {counts}; {next_step}",
        err=True,
    )


def _fill(request: PublishRequest, outbox: Outbox, spec: DocumentSpec) -> SpoolResult:
    stored = find_stored_table(request, spec.table.name)
    # What the documents are made from: the run that made the rows, and whatever else
    # changes documents. A snapshot that is half sent is continued only if its documents
    # would be the same.
    parts = [stored.manifest.rows_run, spec.producer, spec.type, request.limit]
    parts += [
        name
        for name, is_on in (("again", request.resend_all), ("no-USER", not spec.has_user_datasets))
        if is_on
    ]
    parts += [f"users>={spec.min_users}"] if spec.min_users else []
    source = " ".join(str(part) for part in parts if part)
    rows = stored_rows(stored, spec.table)
    try:
        return outbox.fill(
            spec,
            rows,
            stored.manifest.document,
            source=source,
            limit=request.limit,
            resend_all=request.resend_all,
        )
    except FileNotFoundError as error:
        raise InputMissing(
            "a stored part vanished while it was read", where=error.filename
        ) from None


def _print(result: PublishResult, reason: str, *, as_json: bool) -> None:
    try:
        if as_json:
            totals, spooled = result.totals, result.spooled
            click.echo(
                json_text(
                    {
                        "table": result.table,
                        "destination": result.where,
                        "confirmed": totals.confirmed,
                        "in_doubt": totals.in_doubt,
                        "to_send": totals.waiting + totals.stalled,
                        "quarantined": result.quarantined + totals.refused,
                        "unchanged": 0 if spooled is None else spooled.unchanged,
                        "gone": 0 if spooled is None else spooled.gone,
                        "reason": reason,
                    }
                )
            )
        else:
            _print_totals(result)
    except OSError:
        # Documents are sent and recorded also where nobody reads this.
        drop_stdout()


def _print_totals(result: PublishResult) -> None:
    totals, spooled = result.totals, result.spooled
    if spooled is not None and spooled.snapshot_no is None:
        click.echo(f"{result.table}: nothing has changed since it was published to {result.where}")
        return
    if spooled is None and result.snapshot is None:
        click.echo(f"{result.table}: nothing is open in the outbox for {result.where}")
        return
    headings = ("table", "sent", "confirmed", "in doubt", "to send", "quarantined")
    counts = (
        totals.confirmed + totals.in_doubt,
        totals.confirmed,
        totals.in_doubt,
        totals.waiting + totals.stalled,
        result.quarantined + totals.refused,
    )
    echo_table(headings, [(result.table, *counts)], full=(0,))
    if spooled is not None and (spooled.unchanged or spooled.gone):
        click.echo(
            f"unchanged since the last time: {spooled.unchanged:,}; gone from the day: {spooled.gone:,}"
        )
    if spooled is not None and spooled.left_out:
        click.echo(f"left out, of the tier USER, or read by EOS itself: {spooled.left_out:,}")
    click.echo(f"to {result.where}")


def record_publication(
    request: PublishRequest, result: PublishResult, outbox: str, reason: str
) -> None:
    """Record the outcome of a table in the run history; an error there is ignored.

    ``outbox``: the destination's folder in the outbox. ``reason``: why documents wait
    or were refused.
    """
    if request.limit is not None:
        return
    totals = result.totals
    if result.snapshot is not None:
        manifest = json.loads((result.snapshot / "manifest.json").read_bytes())
        run = manifest["source"].partition(" ")[0]
    elif result.spooled is not None:
        run = find_stored_table(request, result.table).manifest.rows_run
    else:
        return  # nothing was open
    refused = result.quarantined + totals.refused
    _note(
        request,
        Published(
            request.job.name,
            result.table,
            first_day(request.interval),
            run,
            destination=result.where,
            at_ms=dates.now_ms(),
            confirmed=totals.confirmed,
            waiting=totals.open,
            refused=refused,
            outbox=outbox,
            reason=reason if totals.open or refused else "",
        ),
    )


def _record_refusal(
    request: PublishRequest, table: str, error: CmssparkError, *, resume: bool
) -> None:
    """Record that a destination could not be used, so that nothing was spooled for it."""
    if resume or request.limit is not None:
        return
    with suppress(CmssparkError):
        manifest = find_stored_table(request, table).manifest
        rows = manifest.tables[table].rows if table in manifest.tables else 0
        where = _unusable(request.sink, request.amq)
        reason = safe_text(": ".join(str(part) for part in (error.problem, error.found) if part))
        _note(
            request,
            Published(
                request.job.name,
                table,
                first_day(request.interval),
                manifest.rows_run,
                destination=where,
                at_ms=dates.now_ms(),
                confirmed=0,
                waiting=max(rows or 0, 1),
                refused=0,
                reason=reason,
            ),
        )


def _unusable(sink: str, amq: Path | None) -> str:
    """Return the name of a destination in a publication that could not log in."""
    return f"{sink} {amq or ''}".strip()


def _note(request: PublishRequest, published: Published) -> None:
    note_published(request.settings.state_dir, published)


def check_results(results: list[PublishResult]) -> None:
    """Raise NotReady (75) for documents still to be confirmed, DocumentsQuarantined (3)
    for refused ones.
    """
    waiting = sum(result.totals.open for result in results)
    if waiting:
        raise NotReady(
            f"{waiting:,} documents are not confirmed yet",
            next_step="they are in the outbox: the same command with --resume sends them",
        )
    invalid = sum(result.quarantined for result in results)
    refused = sum(result.totals.refused for result in results)
    if invalid or refused:
        raise DocumentsQuarantined(
            f"{invalid + refused:,} documents were refused and kept aside; all others are confirmed",
            where=", ".join(str(result.snapshot) for result in results if result.snapshot),
            found=f"{invalid:,} rows with invalid documents, {refused:,} documents that the destination refused",
            next_step="cmsspark outbox show prints the reasons"
            + ("; --resume sends them once more" if refused else ""),
        )
