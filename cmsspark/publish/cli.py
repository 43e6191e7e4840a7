"""``cmsspark publish`` and ``run_spark cern_monit``: a stored day or period as
documents, to MONIT or to files.
"""

from __future__ import annotations

import sys
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
import msgspec
from msgspec.structs import replace

from cmsspark.base.errors import DataError, UsageError
from cmsspark.base.periods import Interval, Period, options
from cmsspark.base.private_folders import make_private
from cmsspark.base.reporting import interruptible
from cmsspark.base.text.terminal import drop_stdout, echo_table, printable
from cmsspark.cli.options import store_options
from cmsspark.cli.period_options import when_options
from cmsspark.publish.comparison import Verification, open_comparison
from cmsspark.publish.publication import (
    PublishRequest,
    document_spec,
    find_stored_table,
    public_tables,
)
from cmsspark.publish.search_index import SearchClient, SearchIndex, index_names, search_server
from cmsspark.publish.sink import publishing_settings
from cmsspark.publish.sinks import SINKS
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.store.own_jobs import find_job
from cmsspark.store.stored_columns import stored_rows

if TYPE_CHECKING:
    from cmsspark.publish.publication import PublishRequest


#: What both commands show with --help.
_HELP: Final = """Publish the stored result of a day or a period to MONIT (STOMP or HTTP), or to files.

The command succeeds only when the destination has confirmed every document. Documents are first written to a local
outbox. After an interruption, run the same command again to continue. Documents that have not changed since they were
published are not sent again. --verify sends nothing: it asks the OpenSearch in which the documents end whether it has
all of them and no others."""

_JOB: Final = "Publish the result of this job. [default: data_aggregation; for a period: period]"
_AMQ: Final = (
    "Address and credentials, as in etc/amq_broker.example.json; readable by its owner only."
)
_SPOOL: Final = "Folder of the file sink. [default: published/ in the state directory]"
_VERIFY: Final = (
    "Compare the documents with those in this OpenSearch. [default: verify_url in the settings]"
)
_LOGIN: Final = (
    "The login for --verify, as in etc/opensearch.example.json; readable by its owner only."
)
_INDEX: Final = (
    "Indices or patterns to verify, with commas. [default: monit_prod_PRODUCER_agg_TYPE*]"
)
_OPTIONS: Final = (
    click.option(
        "--json", "as_json", is_flag=True, help="Print the totals as JSON, one table a line."
    ),
    click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks."),
    click.option(
        "--verbose",
        is_flag=True,
        help="Print more: progress messages; with --verify all differences.",
    ),
    click.option("--index", metavar="NAMES", help=_INDEX),
    click.option("--verify-login", metavar="FILE", help=_LOGIN),
    click.option("--verify", metavar="[URL]", is_flag=False, flag_value="", help=_VERIFY),
    click.option(
        "--resend",
        is_flag=True,
        help="Send all documents once more, also those that have not changed.",
    ),
    click.option(
        "--limit", type=click.IntRange(min=1), help="Publish only the first rows, as a trial."
    ),
    click.option(
        "--dry-run", is_flag=True, help="Print the documents and their destination; send nothing."
    ),
    click.option(
        "--resume",
        is_flag=True,
        help="Only send the documents that an earlier run left in the outbox.",
    ),
    click.option("--spool", metavar="DIR", help=_SPOOL),
    click.option("--amq", metavar="FILE", help=_AMQ),
    click.option(
        "--sink",
        type=click.Choice(list(SINKS)),
        help="Destination. [default: stomp with --amq, else file]",
    ),
)


def publish_command(name: str) -> click.Command:
    """Return the command of this name."""

    def command(
        when: Interval,
        job_name: str | None,
        fout: str | None,
        settings_file: str | None,
        sink: str | None,
        amq: str | None,
        spool: str | None,
        resume: bool,
        dry_run: bool,
        limit: int | None,
        resend: bool,
        verify: str | None,
        verify_login: str | None,
        index: str | None,
        verbose: bool,
        as_json: bool,
    ) -> None:
        settings = load_settings(settings_file)
        request = replace(
            build_request(settings, when, job_name, fout, sink, amq, spool, limit, resend),
            as_json=as_json,
        )
        where = _verify_request(request, verify, verify_login, index)
        _refuse_together(
            ("--verify", where), ("--resume", resume), ("--dry-run", dry_run), ("--resend", resend)
        )
        _refuse_together(("--verify", where), ("--limit", limit))
        if where is not None:
            with interruptible():
                verify_documents(request, where, is_verbose=verbose)
        elif dry_run:
            from cmsspark.publish.publication import show_documents

            try:
                show_documents(request)
            except BrokenPipeError:
                drop_stdout()
        else:
            # Publish all public tables of the request; ``resume``: only what is open in
            # the outbox.
            from cmsspark.publish import publication

            with interruptible():
                tables = publication.public_tables(request, resume=resume)
                results = [
                    publication.publish_table(request, table, resume=resume) for table in tables
                ]
            publication.check_results(results)

    decorated: Callable[..., Any] = command
    for option in _OPTIONS:
        decorated = option(decorated)
    decorated = when_options(
        click.option("--job", "job_name", metavar="JOB", help=_JOB)(store_options(decorated))
    )
    return click.command(name, help=_HELP)(decorated)


def _refuse_together(*named: tuple[str, object]) -> None:
    """Raise UsageError (2) if more than one of the options is given."""
    used = [name for name, value in named if value]
    if len(used) > 1:
        raise UsageError(
            f"{used[0]} and {used[1]} cannot be used together", next_step="use one after the other"
        )


def _verify_request(
    request: PublishRequest, url: str | None, login: str | None, index: str | None
) -> VerifyRequest | None:
    """Return where to verify: the command line before the settings; None if --verify
    is not given.
    """

    if url is None:
        if login or index:
            raise UsageError(
                "--verify-login and --index are for --verify", next_step="add --verify URL"
            )
        return None
    options = request.options
    chosen = login or options.verify_login
    return VerifyRequest(
        url or options.verify_url, Path(chosen) if chosen else None, index or options.verify_index
    )


def build_request(
    settings: Settings,
    day: Interval,
    job_name: str | None,
    fout: str | None,
    sink: str | None,
    amq: str | None,
    spool: str | None,
    limit: int | None,
    resend_all: bool,
) -> PublishRequest:
    """Return the request; the command line comes before the settings.

    Raises UsageError (2) if the sink needs credentials and none are named, or where
    a job on days gets a period or a job on periods gets a day; SettingsError (78) for
    wrong settings.
    """
    # Not at import: `--help` must answer at once.
    from cmsspark.publish.publication import PublishRequest, choose_sink, spool_folder

    defaults = publishing_settings(settings)
    chosen, credentials = choose_sink(settings, defaults, sink, amq)
    is_period = isinstance(day, Period)
    job = find_job(job_name or ("period" if is_period else "data_aggregation"))
    if job.of_periods != is_period:
        kind = "periods" if job.of_periods else "days"
        raise UsageError(
            f"{job.name} has results of {kind}, and {options(day)} names a {'period' if is_period else 'day'}",
            next_step="give --date for a day, --week, --month or --from … --to for a period",
        )
    return PublishRequest(
        day,
        job,
        settings,
        defaults,
        fout,
        chosen,
        credentials,
        spool_folder(settings, defaults, spool),
        limit,
        resend_all,
    )


command = publish_command("publish")


# Verifies what was published: asks the OpenSearch at the far end for a day's documents
# and compares them.

#: Differences of each kind that are listed without --verbose.
LISTED: Final = 5
_HEADINGS: Final = ("table", "expected", "found", "missing", "extra", "different", "gone")


class VerifyRequest(msgspec.Struct, frozen=True):
    """Where to look. ``url``: the server. ``login``: its login file. ``index``: names
    or patterns of indices.
    """

    url: str | None
    login: Path | None
    index: str | None


def verify_documents(
    request: PublishRequest, where: VerifyRequest, *, is_verbose: bool = False
) -> None:
    """Compare the documents of all public tables with those at the far end, and print
    the outcome. Sends nothing.

    Raises DataError (65) if documents are missing, extra or different, InputMissing
    (66) where the day is not stored or an index does not exist, NotReady (75) where no
    whole answer comes, NotAllowed (77) for a refused login.
    """
    results = [
        _verify_table(request, where, table, is_verbose) for table in public_tables(request)
    ]
    missing, extra, different = (
        sum(getattr(result, name) for result in results)
        for name in ("missing", "extra", "different")
    )
    if not (missing or extra or different):
        return
    resend = f"cmsspark publish --job {request.job.name} {options(request.interval)} --resend"
    raise DataError(
        f"{missing:,} documents are missing, {extra:,} are extra, {different:,} differ",
        found=_hint(results),
        next_step=(
            "documents take some minutes to arrive: verify again later"
            if missing and not (extra or different)
            else "see above which they are"
        )
        + (
            f"; {resend} sends all documents of the day once more, under their ids"
            if missing or different
            else ""
        ),
    )


def _hint(results: list[Verification]) -> str | None:
    if all(result.found == 0 for result in results):
        foreign = sum(result.others for result in results)
        but = f", but {foreign:,} of another producer" if foreign else ""
        return f"none of the day at all{but}: is it the right index?"
    return None


def _verify_table(
    request: PublishRequest, where: VerifyRequest, table: str, is_verbose: bool
) -> Verification:
    spec = document_spec(request, table)
    server = search_server(where.url, where.login)
    names = index_names(where.index or f"monit_prod_{spec.producer}_agg_{spec.type}*".lower())
    stored = find_stored_table(request, table)
    client = SearchClient(server, names, patience=request.options.patience, log=_log)
    folder = request.settings.state_dir
    make_private(folder)
    try:
        with open_comparison(folder, spec) as comparison:
            comparison.expect(stored_rows(stored, spec.table), stored.manifest.partial)
            result = comparison.compare(SearchIndex(client))
            row = (
                table,
                result.expected,
                result.found,
                result.missing,
                result.extra,
                result.different,
                result.gone,
            )
            echo_table(_HEADINGS, [row], full=(0,))
            if result.invalid:
                click.echo(
                    f"rows with invalid documents, which are not expected: {result.invalid:,}"
                )
            click.echo(f"at {client.where}")
            if not result.is_same:
                limit = None if is_verbose else LISTED
                for difference in comparison.differences(stored_rows(stored, spec.table), limit):
                    text = f"{difference.identity}  {printable(difference.about)}"
                    click.echo(f"  {difference.kind:<9}  {text}".rstrip())
                if limit is not None:
                    click.echo(f"  (at most {limit} of each kind; --verbose lists all)")
    finally:
        client.close()
    return result


def _log(text: str) -> None:
    sys.stderr.write(f"verify: {text}\n")
    sys.stderr.flush()
