"""Searches of an OpenSearch by ``POST _msearch``, the one request that Grafana's proxy
lets through.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final

import msgspec

from cmsspark.base.clock import Clock, SystemClock
from cmsspark.base.errors import InputMissing, NotAllowed, NotReady, SettingsError
from cmsspark.base.sockets import ConnectionLost
from cmsspark.settings.http_client import (
    HttpAddress,
    HttpAnswer,
    HttpClient,
    HttpTimeouts,
    retry_after,
)

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
    """A document of an index. ``source`` is None where the index keeps none."""

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

        Raises NotReady (75) where no whole answer comes within the patience, NotAllowed
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
        self._check(response)
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

    def _check(self, response: _Response) -> None:
        """Raise what an answer means that is no whole result."""
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

    def _incomplete(self, actual: str) -> NotReady:
        return NotReady(
            "the server must search all of its shards",
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
            "the address must answer POST /_msearch as OpenSearch does",
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
