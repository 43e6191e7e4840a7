"""Reads a day's documents from an OpenSearch, page by page.

Pages follow the order of ``metadata._id``, which costs the server nothing if that is
a keyword; documents without one follow in the order of their ``_id``.
"""

from __future__ import annotations

import re
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Annotated, Any, Final

import msgspec

from cmsspark.base.dates import Clock, SystemClock
from cmsspark.base.errors import (
    DataError,
    InputMissing,
    NotAllowed,
    NotReady,
    SettingsError,
    UsageError,
)
from cmsspark.base.sockets import ConnectionLost
from cmsspark.publish.credentials import CredentialsSource, read_credentials_file
from cmsspark.settings.http_client import (
    HttpAddress,
    HttpAnswer,
    HttpClient,
    HttpTimeouts,
    retry_after,
)
from cmsspark.settings.secrets import basic_credentials, safe_text

# Searches of an OpenSearch by ``POST _msearch``, the one request that Grafana's proxy
# lets through.

#: Bytes of an answer that are read.
MAX_BYTES: Final = 32_000_000
#: Seconds before the next attempt, doubled each time.
_BACK_OFF: Final = 1.0
_LONGEST: Final = 25.0
_NOT_ALLOWED: Final = (401, 403, 407)
_TEMPORARY: Final = (408, 429, 500, 502, 503, 504)
_HEADERS: Final = {"Content-Type": "application/x-ndjson", "Accept": "application/json"}
_LOGIN: Final = "check the login file (--verify-login): token, api_key, or username and password; and its certificates"


class Hit(msgspec.Struct, frozen=True):
    """A document of an index. ``source`` is None if the index keeps none."""

    id: str = msgspec.field(name="_id")
    index: str = msgspec.field(name="_index")
    source: dict[str, Any] | None = msgspec.field(name="_source", default=None)
    sort: list[Any] = []

    @property
    def body(self) -> Mapping[str, Any]:
        """The document's own fields: MONIT keeps them under ``data``, or beside ``metadata``."""
        source = self.source or {}
        data = source.get("data")
        return data if isinstance(data, dict) else source

    def meta(self, name: str) -> Any:
        """Return a value of ``metadata``, or of the top level, where documents over HTTP have it."""
        source = self.source or {}
        metadata = source.get("metadata")
        value = metadata.get(name) if isinstance(metadata, dict) else None
        return source.get(name) if value is None else value


class Hits(msgspec.Struct, frozen=True):
    """The hits of a search."""

    hits: list[Hit]


class _Shards(msgspec.Struct, frozen=True):
    total: int
    failed: int = 0
    failures: list[Any] = []


class _Response(msgspec.Struct, frozen=True):
    status: int = 200
    error: Any = None
    hits: Hits | None = None
    timed_out: bool = False
    shards: _Shards | None = msgspec.field(name="_shards", default=None)


class _Answer(msgspec.Struct, frozen=True):
    responses: list[_Response]


class NoOrderError(Exception):
    """The server cannot sort by a field."""


class TooLargeError(Exception):
    """The answer to a search has more than MAX_BYTES."""


class SearchClient:
    """Searches the indices ``names`` of ``server``."""

    def __init__(
        self,
        server: HttpAddress,
        names: Sequence[str],
        *,
        patience: float = 300.0,
        timeouts: HttpTimeouts | None = None,
        clock: Clock | None = None,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``patience``: seconds of failed attempts before a search fails; ``log``
        receives a line for each.
        """
        self._server = server
        self._names = list(names)
        self._patience = patience
        self._clock = clock or SystemClock()
        self._log = log
        defaults = timeouts or HttpTimeouts()
        deadline = min(defaults.whole, patience)
        self._client = HttpClient(
            server,
            HttpTimeouts(defaults.connect, min(defaults.move, deadline), deadline),
            self._clock,
        )
        self.where = f"{server.where} {','.join(names)}"

    def close(self) -> None:
        """Close the connection."""
        self._client.close()

    def search(self, body: Mapping[str, Any]) -> Hits:
        """Return the hits of one search over all shards.

        Raises NotReady (75) if no whole answer comes within the patience, NotAllowed
        (77) for a refused login, InputMissing (66) for an index that does not exist,
        SettingsError (78) where no OpenSearch answers, NoOrderError, TooLargeError.
        """
        head = {"index": self._names, "ignore_unavailable": False, "allow_no_indices": False}
        content = msgspec.json.encode(head) + b"\n" + msgspec.json.encode(body) + b"\n"
        answer = self._answer(content)
        if answer.is_cut:
            raise TooLargeError
        try:
            (response,) = msgspec.json.decode(answer.body, type=_Answer).responses
        except (msgspec.DecodeError, UnicodeDecodeError, ValueError):
            raise self.no_search("an answer of another form") from None
        # Raise what an answer means that is no whole result.
        if response.error is not None or response.status >= 300:
            text = self._server.safe_text(_reason(response.error))
            if "fielddata" in text.lower() or "per-document field data" in text.lower():
                raise NoOrderError(text)
            if response.status in _NOT_ALLOWED:
                raise self._not_allowed(f"{response.status} {text}")
            if response.status == 404:
                raise InputMissing(
                    "an index to verify does not exist",
                    where=self.where,
                    found=text,
                    next_step="name the index with --index NAME, several separated by commas; `*` stands for anything",
                )
            if response.status in _TEMPORARY:
                raise self._incomplete(f"{response.status} {text}")
            raise self.no_search(f"{response.status} {text}")
        shards = response.shards
        if response.timed_out or (shards is not None and shards.failed):
            failed = (
                f"{shards.failed} of {shards.total} shards failed"
                if shards is not None and shards.failed
                else ""
            )
            if shards is not None and "fielddata" in str(shards.failures).lower():
                raise NoOrderError(failed)
            # A part of the documents would be reported as missing.
            raise self._incomplete(failed or "the search timed out")
        if response.hits is None:
            raise self.no_search("an answer without hits")
        return response.hits

    def _answer(self, content: bytes) -> HttpAnswer:
        """Return the answer to a request, asked for again until it comes or the patience ends."""
        deadline, wait = self._clock.monotonic() + self._patience, _BACK_OFF
        while True:
            try:
                self._client.connected()
                answer = self._client.exchange(
                    "POST", f"{self._server.path}/_msearch", _HEADERS, content, MAX_BYTES
                )
            except ConnectionLost as error:
                if error.forbidden:
                    raise self._not_allowed(error.reason) from None
                reason, pause = error.reason, 0.0
            else:
                if answer.is_success:
                    return answer
                if answer.status not in _TEMPORARY:
                    raise self._refused(answer)
                reason = f"the server says: {answer.status} {answer.reason}"
                pause = retry_after(answer.headers.get("Retry-After"), time.time())
            pause = max(pause, wait)
            if self._clock.monotonic() + pause > deadline:
                raise NotReady(
                    "the documents cannot be verified now",
                    where=self.where,
                    found=self._server.safe_text(reason),
                    next_step="run the same command again later",
                )
            self._log(f"{self._server.safe_text(reason)}; next attempt in {pause:.0f} s")
            self._clock.sleep(pause)
            wait = min(2 * wait, _LONGEST)

    def _incomplete(self, actual: str) -> NotReady:
        return NotReady(
            "the server searched only a part of its shards",
            where=self.where,
            found=actual,
            next_step="run the same command again later",
        )

    def _refused(self, answer: HttpAnswer) -> Exception:
        """Return the error for an answer that no other attempt changes."""
        reason = f"{answer.status} {self._server.safe_text(answer.reason)}".strip()
        if answer.status in _NOT_ALLOWED:
            return self._not_allowed(reason)
        if 300 <= answer.status < 400:
            return self._not_allowed(
                f"{reason}: it redirects, as to a page for the login; that is not followed"
            )
        return self.no_search(reason)

    def _not_allowed(self, actual: str) -> NotAllowed:
        return NotAllowed(
            "the server does not let us search",
            where=self.where,
            found=self._server.safe_text(actual),
            next_step=_LOGIN,
        )

    def no_search(self, actual: str) -> SettingsError:
        """Return the error for a server that does not answer as OpenSearch does."""
        return SettingsError(
            "no OpenSearch answers POST /_msearch at this address",
            where=self.where,
            found=actual,
            next_step="check --verify: Grafana's is https://HOST/api/datasources/proxy/NUMBER",
        )


def _reason(error: Any) -> str:
    """Return what OpenSearch says of an error: its cause, and the cause of that."""
    if not isinstance(error, dict):
        return str(error)
    causes = [
        error,
        *(cause for cause in error.get("root_cause") or [] if isinstance(cause, dict)),
    ]
    if isinstance(error.get("caused_by"), dict):
        causes.append(error["caused_by"])
    texts = dict.fromkeys(f"{cause.get('type')}: {cause.get('reason')}" for cause in causes)
    return "; ".join(texts)


#: Documents of a page. Their number is halved where an answer is too large.
PAGE: Final = 1_000
#: Where MONIT and its older form have a document's time, and its type.
_TIMES: Final = ("metadata.timestamp", "data.timestamp", "timestamp")
_TYPES: Final = ("metadata.type", "type")
_ID: Final = "metadata._id"
#: The fields that may hold the order of pages: a keyword, or the keyword that
#: OpenSearch adds to a text.
_ORDERS: Final = (_ID, f"{_ID}.keyword")


class SearchIndex:
    """The documents that ``client`` finds. Every call raises as :meth:`SearchClient.search` does."""

    def __init__(self, client: SearchClient, page: int = PAGE) -> None:
        self._client = client
        self._page = page
        self.where = client.where

    def documents(
        self, filters: Sequence[Mapping[str, Any]], fields: Sequence[str]
    ) -> Iterator[Hit]:
        """Yield the documents that pass all filters, each once; of their content only
        ``fields`` and the metadata.
        """
        source = ["metadata", "type", "producer", *fields, *(f"data.{name}" for name in fields)]
        excluded: list[dict[str, Any]] = []
        for order in _ORDERS:
            has_order = {"exists": {"field": order}}
            count = 0
            try:
                for hit in self._pages([*filters, has_order], order, source):
                    count += 1
                    yield hit
            except NoOrderError:
                if count:
                    raise self._sort_error(order) from None
                continue
            if count:
                excluded = [{"bool": {"must_not": [has_order]}}]
                break
        try:
            yield from self._pages([*filters, *excluded], "_id", source)
        except NoOrderError as error:
            raise self._sort_error(str(error)) from None

    def _pages(
        self, filters: Sequence[Mapping[str, Any]], order: str, source: Sequence[str]
    ) -> Iterator[Hit]:
        sort = {"order": "asc"}
        if order != "_id":
            sort |= {"unmapped_type": "keyword", "missing": "_last"}
        after: list[Any] | None = None
        while True:
            size = self._page
            body: dict[str, Any] = {
                "query": {"bool": {"filter": list(filters)}},
                "sort": [{order: sort}],
                "_source": list(source),
            }
            body |= {"size": size, "track_total_hits": False} | (
                {} if after is None else {"search_after": after}
            )
            try:
                hits = self._client.search(body).hits
            except TooLargeError:
                if size == 2:
                    raise DataError(
                        "a document is larger than an answer may be",
                        where=self.where,
                        next_step="name another --index",
                    ) from None
                self._page = max(2, size // 2)
                continue
            if any(not hit.sort or hit.sort[0] is None for hit in hits):
                raise NoOrderError(f"documents without a value of {order}")
            if len(hits) < size:
                yield from hits
                return
            # Documents of the page's last key may follow on the next page: there all of
            # them are read.
            last = hits[-1].sort
            complete = [hit for hit in hits if hit.sort != last]
            if not complete:
                raise DataError(
                    f"{size} documents or more have one id",
                    where=self.where,
                    found=f"{order} {last[0]}",
                )
            yield from complete
            after = complete[-1].sort

    def _sort_error(self, actual: str) -> SettingsError:
        return SettingsError(
            "the documents of these indices cannot be sorted by their ids",
            where=self.where,
            found=actual,
            next_step=f"have {_ID} mapped as a keyword, or sorting by _id allowed",
        )


def at_time(timestamp: int) -> dict[str, Any]:
    """Return the filter for documents of a timestamp, in every form that MONIT keeps documents in."""
    return {
        "bool": {
            "should": [{"term": {name: timestamp}} for name in _TIMES],
            "minimum_should_match": 1,
        }
    }


def of_type(kind: str) -> dict[str, Any]:
    """Return the filter for documents of a type, or without any; exact where the type
    is a keyword.
    """
    without = {"bool": {"must_not": [{"exists": {"field": name}} for name in _TYPES]}}
    should = [*({"match_phrase": {name: kind}} for name in _TYPES), without]
    return {"bool": {"should": should, "minimum_should_match": 1}}


def of_id(identity: str) -> dict[str, Any]:
    """Return the filter for the documents of an id, whether or not the index has them under it."""
    should = [{"ids": {"values": [identity]}}, {"match_phrase": {_ID: identity}}]
    return {"bool": {"should": should, "minimum_should_match": 1}}


# The OpenSearch that documents end in, or a proxy to it such as Grafana's: its address
# and a login.

EXAMPLE: Final = "etc/opensearch.example.json"

Text = Annotated[
    str, msgspec.Meta(min_length=1, pattern=r"^[\x21-\x7e]([\x20-\x7e]*[\x21-\x7e])?$")
]
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

    Raises UsageError (2) for a wrong or missing address, SettingsError (78) with file
    and line for a wrong login file, NotAllowed (77) where others can read it, or where
    it would be sent unencrypted or to another host than its own.
    """
    file, source = (_LoginFile(), None) if login is None else _login(login)
    chosen = url or file.url
    if chosen is None:
        raise UsageError(
            "--verify needs the address of an OpenSearch",
            next_step=f"--verify URL, or url in {EXAMPLE}",
        )
    address = _address(chosen)
    login_host = address.host if file.url is None else _address(file.url).host
    if login_host != address.host:
        raise NotAllowed(
            "the login file is of another server: a login is sent to its own only",
            where=login,
            found=f"a login for {login_host}, and {address.host} to verify",
            next_step="name the login file of that server with --verify-login",
        )
    authorization, secrets = _authorization(file, source)
    if authorization is not None and address.is_exposed:
        raise NotAllowed(
            "the address has no TLS: a login is never sent unencrypted to another host",
            where=f"http://{address.host}",
            next_step="use https://",
        )
    folder = Path() if login is None else login.parent
    named = {"ca": file.ca, "cert": file.cert, "key": file.key}
    files = {
        name: (folder / value).absolute() for name, value in named.items() if value is not None
    }
    path = address.path.rstrip("/")
    return msgspec.structs.replace(
        address, path=path, authorization=authorization, secrets=secrets, **files
    )


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
    raise UsageError(
        "this is no address of an OpenSearch: it is https://host:port/prefix, without user, `?` and `#`"
    )


def _authorization(
    file: _LoginFile, source: CredentialsSource | None
) -> tuple[str | None, tuple[str, ...]]:
    """Return the ``Authorization`` header, and the texts that no message may hold, the
    longest first.
    """
    if source is None:
        return None, ()
    kinds = [name for name in ("token", "api_key", "password") if getattr(file, name) is not None]
    if len(kinds) > 1:
        raise source.error(
            "one login: token, api_key, or username and password", f"`{'` and `'.join(kinds)}`"
        )
    if (file.username is None) != (file.password is None):
        raise source.error(
            "a password needs a `username`, and a username a `password`", "one of them", "username"
        )
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
    """Return the indices of ``--index``: names or patterns, separated by commas. Raises
    UsageError (2) for others.
    """
    names = [name.strip() for name in text.split(",")]
    for name in names:
        # What OpenSearch allows in a name, with `*`; `-NAME` would exclude one, and `_`
        # begins what is no index.
        if not re.fullmatch(r"[a-z0-9.*][a-z0-9._*:+-]*", name) or name in (".", ".."):
            raise UsageError(
                "--index is no name or pattern of OpenSearch, or several separated by commas",
                found=safe_text(name),
                next_step="for example --index monit_prod_cms-popularity_agg_data_aggregation*",
            )
    return names
