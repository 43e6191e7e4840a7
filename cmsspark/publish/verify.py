"""Verifies what was published: asks the OpenSearch at the far end for a day's documents and compares them.

The server may be a proxy to it such as Grafana's. The login is in a private JSON file with one of ``token`` (sent as
``Bearer``), ``api_key`` (``ApiKey``) or ``username`` and ``password``; ``ca``, ``cert`` and ``key`` as in the
credentials of brokers. A ``url`` in it is the default address, and the only host that the login is sent to.
"""

from __future__ import annotations

import re
import sys
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Final

import click
import msgspec

from cmsspark.base.errors import DataError, NotAllowed, UsageError
from cmsspark.base.periods import options
from cmsspark.base.text.terminal import echo_table, printable
from cmsspark.publish.comparison import Comparison, Verification, open_comparison
from cmsspark.publish.credentials import CredentialsSource, read_credentials_file
from cmsspark.publish.publication import PublishRequest, document_spec, find_stored_table, public_tables
from cmsspark.publish.search_client import SearchClient
from cmsspark.publish.search_index import SearchIndex
from cmsspark.settings.http_client import HttpAddress
from cmsspark.settings.secrets import basic_credentials, safe_text
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import stored_rows

EXAMPLE: Final = "etc/opensearch.example.json"

Text = Annotated[str, msgspec.Meta(min_length=1, pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$")]
_Name = Annotated[str, msgspec.Meta(min_length=1)]


class _LoginFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    url: Text | None = None
    token: Text | None = None
    api_key: Text | None = None
    username: _Name | None = None
    password: _Name | None = None
    ca: _Name | None = None
    cert: _Name | None = None
    key: _Name | None = None


def search_server(url: str | None, login: Path | None) -> HttpAddress:
    """Return the server at ``url``, by default the one that the file ``login`` names.

    Raises UsageError (2) for a wrong or missing address, SettingsError (78) with file and line for a wrong login file,
    NotAllowed (77) where others can read it, or where it would be sent unencrypted or to another host than its own.
    """
    file, source = (_LoginFile(), None) if login is None else _login(login)
    chosen = url or file.url
    if chosen is None:
        raise UsageError("--verify needs the address of an OpenSearch", next_step=f"--verify URL, or url in {EXAMPLE}")
    address = _address(chosen)
    login_host = address.host if file.url is None else _address(file.url).host
    if login_host != address.host:
        raise NotAllowed(
            "a login is sent to its own server only",
            where=login,
            found=f"a login for {login_host}, and {address.host} to verify",
            next_step="name the login file of that server with --verify-login",
        )
    authorization, secrets = _authorization(file, source)
    if authorization is not None and address.is_exposed:
        raise NotAllowed(
            "a login is never sent unencrypted to another host",
            where=f"http://{address.host}",
            next_step="use https://",
        )
    folder = Path() if login is None else login.parent
    named = {"ca": file.ca, "cert": file.cert, "key": file.key}
    files = {name: (folder / value).absolute() for name, value in named.items() if value is not None}
    path = address.path.rstrip("/")
    return msgspec.structs.replace(address, path=path, authorization=authorization, secrets=secrets, **files)


def _login(path: Path) -> tuple[_LoginFile, CredentialsSource]:
    file, source = read_credentials_file(path, _LoginFile, EXAMPLE)
    try:
        _address(file.url or "http://localhost")
    except UsageError:
        form = "url is https://host:port/prefix, without user, `?` and `#`"
        raise source.error(form, "something else", "url") from None
    return file, source


def _address(url: str) -> HttpAddress:
    with suppress(ValueError):
        address = HttpAddress.from_url(url)
        if "?" not in address.path:
            return address
    # The text is not repeated: it may hold a password.
    raise UsageError("the address of an OpenSearch is https://host:port/prefix, without user, `?` and `#`")


def _authorization(file: _LoginFile, source: CredentialsSource | None) -> tuple[str | None, tuple[str, ...]]:
    """Return the ``Authorization`` header, and the texts that no message may hold, the longest first."""
    if source is None:
        return None, ()
    kinds = [name for name in ("token", "api_key", "password") if getattr(file, name) is not None]
    if len(kinds) > 1:
        raise source.error("one login: token, api_key, or username and password", f"`{'` and `'.join(kinds)}`")
    if (file.username is None) != (file.password is None):
        raise source.error("a password needs a `username`, and a username a `password`", "one of them", "username")
    if file.token is not None:
        return f"Bearer {file.token}", (file.token,)
    if file.api_key is not None:
        return f"ApiKey {file.api_key}", (file.api_key,)
    if file.password is not None:
        assert file.username is not None
        basic = basic_credentials(file.username, file.password)
        return f"Basic {basic}", (basic, file.password, file.username)
    return None, ()


def index_names(text: str) -> list[str]:
    """Return the indices of ``--index``: names or patterns, separated by commas. Raises UsageError (2) for others."""
    names = [name.strip() for name in text.split(",")]
    for name in names:
        # What OpenSearch allows in a name, with `*`; `-NAME` would exclude one, and `_` begins what is no index.
        if not re.fullmatch(r"[a-z0-9.*][a-z0-9._*:+-]*", name) or name in (".", ".."):
            raise UsageError(
                "an index is a name or pattern of OpenSearch, several separated by commas",
                found=safe_text(name),
                next_step="for example --index monit_prod_cms-popularity_agg_data_aggregation*",
            )
    return names


#: Differences of each kind that are listed without --verbose.
LISTED: Final = 5
_HEADINGS: Final = ("table", "expected", "found", "missing", "extra", "different", "gone")


@dataclass(frozen=True)
class VerifyRequest:
    """Where to look. ``url``: the server; ``login``: its login file; ``index``: names or patterns of indices."""

    url: str | None
    login: Path | None
    index: str | None


def verify_documents(request: PublishRequest, where: VerifyRequest, *, is_verbose: bool = False) -> None:
    """Compare the documents of all public tables with those at the far end, and print the outcome. Sends nothing.

    Raises DataError (65) where documents are missing, extra or different, InputMissing (66) where the day is not stored
    or an index does not exist, NotReady (75) where no whole answer comes, NotAllowed (77) for a refused login.
    """
    results = [_verify_table(request, where, table, is_verbose) for table in public_tables(request)]
    missing, extra, different = (
        sum(getattr(result, name) for result in results) for name in ("missing", "extra", "different")
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
        + (f"; {resend} sends all documents of the day once more, under their ids" if missing or different else ""),
    )


def _hint(results: list[Verification]) -> str | None:
    if all(result.found == 0 for result in results):
        foreign = sum(result.others for result in results)
        but = f", but {foreign:,} of another producer" if foreign else ""
        return f"none of the day at all{but}: is it the right index?"
    return None


def _verify_table(request: PublishRequest, where: VerifyRequest, table: str, is_verbose: bool) -> Verification:
    spec = document_spec(request, table)
    server = search_server(where.url, where.login)
    names = index_names(where.index or f"monit_prod_{spec.producer}_agg_{spec.type}*".lower())
    stored = find_stored_table(request, table)
    client = SearchClient(server, names, patience=request.options.patience, log=_log)
    folder = request.settings.state_dir
    folder.mkdir(mode=0o700, parents=True, exist_ok=True)
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
    row = (table, result.expected, result.found, result.missing, result.extra, result.different, result.gone)
    echo_table(_HEADINGS, [row], full=(0,))
    if result.invalid:
        click.echo(f"rows with invalid documents, which are not expected: {result.invalid:,}")
    click.echo(f"at {where}")


def _list(comparison: Comparison, stored: CurrentTable, request: PublishRequest, table: str, limit: int | None) -> None:
    spec = document_spec(request, table)
    for difference in comparison.differences(stored_rows(stored, spec.table), limit):
        click.echo(f"  {difference.kind:<9}  {difference.identity}  {printable(difference.about)}".rstrip())
    if limit is not None:
        click.echo(f"  (at most {limit} of each kind; --verbose lists all)")


def _log(text: str) -> None:
    sys.stderr.write(f"verify: {text}\n")
    sys.stderr.flush()
