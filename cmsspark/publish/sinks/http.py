"""The HTTP sink: a batch is one POST of a JSON array, confirmed by a complete answer
with status 2xx.
"""

from __future__ import annotations

import json
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from msgspec.structs import replace

from cmsspark.base.dates import Clock
from cmsspark.base.sockets import ConnectionLost
from cmsspark.publish.batch_log import Batch
from cmsspark.publish.credentials import Endpoint, read_endpoint
from cmsspark.publish.documents import canonical
from cmsspark.publish.publisher import Destination, known_folder, outbox_folder
from cmsspark.publish.sink import ForbiddenError, RejectedError, RetryableError, Sink, SinkOptions
from cmsspark.settings.http_client import (
    HttpAnswer,
    HttpClient,
    HttpLost,
    HttpTimeouts,
    retry_after,
)

_NOT_ALLOWED: Final = (401, 403, 407)
#: RejectedError for what is in the request. Other 4xx mean the address or the moment,
#: and no document's fault.
_CONTENT: Final = (400, 409, 413, 422)
#: Answered before anything was accepted.
_NOT_TAKEN: Final = (429, 503)
#: Bytes of an answer that are kept; the rest is read and dropped.
_KEPT: Final = 2_000
_HEADERS: Final = {"Content-Type": "application/json; charset=UTF-8"}


def read_credentials(path: Path | None) -> Endpoint:
    """Return the address and login of a credentials file."""
    assert path is not None
    return read_endpoint(path)


def build(credentials: Endpoint, options: SinkOptions) -> HttpSink:
    """Return the sink that posts to ``credentials``."""
    defaults, settings = HttpTimeouts(), options.settings
    timeouts = replace(defaults, whole=min(defaults.whole, settings.patience))
    return HttpSink(
        credentials,
        timeouts,
        has_metadata=settings.http_metadata,
        has_top_level=settings.http_top_level,
    )


class HttpSink(Sink):
    """Posts to ``endpoint``. Raises as :class:`cmsspark.publish.sink.Sink` documents."""

    def __init__(
        self,
        endpoint: Endpoint,
        timeouts: HttpTimeouts | None = None,
        clock: Clock | None = None,
        now: Callable[[], float] = time.time,
        *,
        has_metadata: bool = True,
        has_top_level: bool = True,
    ) -> None:
        """``now``: the wall clock, in seconds since 1970: servers may give a date for
        the next attempt.

        ``has_metadata``, ``has_top_level``: whether a document has its metadata under
        that key, and at its top level.
        """
        self._has_metadata, self._has_top_level = has_metadata, has_top_level
        self._endpoint = endpoint
        self._now = now
        self._client = HttpClient(endpoint, timeouts, clock)
        self.where = endpoint.where

    def outbox_name(self, state_dir: Path) -> str:
        """Return the folder of this path, producer and host, or of the endpoint's ``name``."""
        endpoint = self._endpoint
        label = f"{endpoint.host}{endpoint.path}"
        return outbox_folder(state_dir, self._destination, label, endpoint.where)

    def known_outbox(self, state_dir: Path) -> str | None:
        """Return that folder; None if there is none yet."""
        return known_folder(state_dir, self._destination)

    @property
    def _destination(self) -> Destination:
        endpoint = self._endpoint
        return Destination(
            "http", endpoint.path, endpoint.producer, (endpoint.host,), endpoint.name
        )

    def open(self) -> None:
        """Connect to the first address that answers; those that failed recently are tried last."""
        self._connect(self._client.open)

    def _connect(self, connect: Callable[[], None]) -> None:
        try:
            connect()
        except ConnectionLost as error:
            if error.forbidden:
                raise self._not_allowed(error.reason) from None
            raise RetryableError(error.reason) from None

    def close(self) -> None:
        """Close at once: everything sent was confirmed before."""
        self._client.close()

    def send(
        self,
        batch: Batch,
        documents: Sequence[bytes],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Post a batch as one JSON array, and wait for the complete answer."""
        self._connect(self._client.connected)
        try:
            answer = self._client.exchange(
                "POST", self._endpoint.path, _HEADERS, self.content(documents), _KEPT, meanwhile
            )
        except HttpLost as error:
            if error.forbidden:
                raise self._not_allowed(error.reason, in_doubt=error.is_sent) from None
            raise RetryableError(f"no answer: {error.reason}", in_doubt=error.is_sent) from None
        status = answer.status
        if answer.is_success:
            return
        reason = f"the server says: {status} {self._summary(answer)}".strip()
        if status in _NOT_ALLOWED:
            raise self._not_allowed(reason)
        if status in _CONTENT:
            raise RejectedError(reason)
        if 300 <= status < 400:
            host = self._endpoint.safe_text(
                urlsplit(answer.headers.get("Location") or "").hostname or ""
            )
            raise RetryableError(
                f"{reason}: it redirects to {host or 'another path'}, which is not followed"
            )
        raise RetryableError(
            reason,
            in_doubt=status >= 500 and status not in _NOT_TAKEN,
            retry_after=retry_after(answer.headers.get("Retry-After"), self._now()),
        )

    def content(self, documents: Sequence[bytes]) -> bytes:
        """Return the body of a request. A sink for a server of another form overrides it."""
        return b"[" + b",".join(map(self.body, documents)) + b"]"

    def body(self, document: bytes) -> bytes:
        """Return a document of the spool as the server expects it.

        MONIT's page on HTTP asks for producer and type at the top level; its older form
        has them under ``metadata``.
        """
        if not self._has_top_level:
            return document
        body = json.loads(document)
        metadata = body.get("metadata", {})
        if not self._has_metadata:
            body.pop("metadata", None)
        return canonical({**body, **metadata})

    def _summary(self, answer: HttpAnswer) -> str:
        body = " ".join(answer.body.decode("utf-8", errors="replace").split())
        # An error page explains nothing; and an answer may repeat our documents, which
        # must not be logged.
        short = body if body and len(body) <= 200 and not body.startswith("<") else ""
        return self._endpoint.safe_text(f"{answer.reason} {short}")

    def _not_allowed(self, reason: str, *, in_doubt: bool = False) -> ForbiddenError:
        return ForbiddenError(
            "the server does not let us publish",
            where=self.where,
            found=self._endpoint.safe_text(reason),
            next_step="check user name, password, certificates and producer in the credentials file",
            in_doubt=in_doubt,
        )
