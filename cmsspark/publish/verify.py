"""Verifies what was published: asks the OpenSearch at the far end for a day's documents
and compares them.
"""

from __future__ import annotations

import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import click

from cmsspark.base.errors import DataError
from cmsspark.base.periods import options
from cmsspark.base.private_folders import make_private
from cmsspark.base.text.terminal import echo_table, printable
from cmsspark.publish.comparison import Comparison, Verification, open_comparison
from cmsspark.publish.publication import (
    PublishRequest,
    document_spec,
    find_stored_table,
    public_tables,
)
from cmsspark.publish.search_client import SearchClient
from cmsspark.publish.search_index import SearchIndex
from cmsspark.publish.search_server import index_names, search_server
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import stored_rows

#: Differences of each kind that are listed without --verbose.
LISTED: Final = 5
_HEADINGS: Final = ("table", "expected", "found", "missing", "extra", "different", "gone")


@dataclass(frozen=True)
class VerifyRequest:
    """Where to look. ``url``: the server; ``login``: its login file; ``index``: names
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

    Raises DataError (65) where documents are missing, extra or different, InputMissing
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
            _print(table, result, client.where)
            if not result.is_same:
                _list(comparison, stored, request, table, None if is_verbose else LISTED)
    finally:
        client.close()
    return result


def _print(table: str, result: Verification, where: str) -> None:
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
        click.echo(f"rows with invalid documents, which are not expected: {result.invalid:,}")
    click.echo(f"at {where}")


def _list(
    comparison: Comparison,
    stored: CurrentTable,
    request: PublishRequest,
    table: str,
    limit: int | None,
) -> None:
    spec = document_spec(request, table)
    for difference in comparison.differences(stored_rows(stored, spec.table), limit):
        click.echo(
            f"  {difference.kind:<9}  {difference.identity}  {printable(difference.about)}".rstrip()
        )
    if limit is not None:
        click.echo(f"  (at most {limit} of each kind; --verbose lists all)")


def _log(text: str) -> None:
    sys.stderr.write(f"verify: {text}\n")
    sys.stderr.flush()
