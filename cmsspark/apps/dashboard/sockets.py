"""The HTTP server's connections: deadlines for what a client owes, and room for new
clients when many are idle.
"""

from __future__ import annotations

import resource
import socket
import time
from collections import Counter
from collections.abc import Callable
from contextlib import suppress
from typing import Any, Final

from waitress.adjustments import Adjustments
from waitress.channel import HTTPChannel
from waitress.server import TcpWSGIServer
from waitress.task import ThreadedTaskDispatcher, WSGITask

from cmsspark.apps.dashboard.security import name_visitor

#: Seconds from the first byte of a request to its last; of a connection without a
#: request; without progress of a client that reads an answer.
HEADER_S, IDLE_S, READ_S = 10.0, 20.0, 60.0
#: Connections at once, and file descriptors that are left for files.
_CONNECTIONS, _FILES = 1_000, 256
#: Seconds that requests which are being answered have at the end.
_END_S: Final = 0.5


#: Downloads of one visitor that are made or read at once, and bytes that wait for all
#: clients together before no download is begun.
DOWNLOADS, WAITING_BYTES = 4, 500_000_000
#: Keys of the environment: who asks, and a function that says why there is no room for
#: a download now.
VISITOR, NO_ROOM = "dashboard.visitor", "dashboard.no_room"


class Request(WSGITask):  # type: ignore[misc]
    """A request, whose environment has its visitor."""

    def get_environment(self) -> Any:
        """Return the environment for the application."""
        environ = super().get_environment()
        environ[VISITOR] = self.channel.visitor
        environ[NO_ROOM] = self.channel.why_no_room
        return environ


class Connection(HTTPChannel):  # type: ignore[misc]
    """One client's connection. ``began``: when the first byte of the request that is
    not complete came; 0 without. ``rank``: how many requests of the same visitor came
    before its request and are not answered.
    """

    task_class = Request
    began = 0.0
    visitor = ""
    rank = 0
    is_download = is_health = False

    def service(self) -> None:
        """Answer a request; the next one of the visitor then has a better rank."""
        visitor, dispatcher = self.visitor, self.server.task_dispatcher
        is_of_pool = not self.is_health
        try:
            super().service()
        finally:
            if is_of_pool:
                dispatcher.finish(visitor)

    def why_no_room(self) -> str:
        """Return why a download is not made now; an empty text where it is."""
        channels = list(self.server.active_channels.values())
        if sum(channel.total_outbufs_len for channel in channels) > WAITING_BYTES:
            return "clients read their downloads slowly"
        download_count = sum(
            channel.is_download
            and channel.visitor == self.visitor
            and bool(channel.requests or channel.total_outbufs_len)
            for channel in channels
        )
        return (
            f"you have {download_count - 1} other downloads" if download_count > DOWNLOADS else ""
        )

    def received(self, data: bytes) -> Any:
        """Take bytes of a request, and note when it began."""
        self.began = self.began or time.time()
        result = super().received(data)
        if self.request is None:
            self.began = 0.0
        return result

    def readable(self) -> bool:
        """Return whether to wait for bytes. The end of a client's bytes is read once."""
        return bool(self.connected and super().readable())

    def waits_since(self) -> float | None:
        """Return since when the server waits for the client; None while the client
        waits for the server.
        """
        if self.requests:
            return None
        return self.began or self.last_activity

    def is_overdue(self, now: float) -> bool:
        """Return whether the client has not done in time what the server waits for."""
        since = self.waits_since()
        if since is None:
            return False
        limit = READ_S if self.total_outbufs_len else HEADER_S if self.began else IDLE_S
        return now - since > limit or not (self.connected or self.total_outbufs_len)

    def drop(self) -> None:
        """Close the connection; the loop then removes it, also where the client does not read."""
        self.will_close = True
        # The loop may have closed it meanwhile.
        if (open_socket := self.socket) is not None:
            with suppress(OSError):
                open_socket.shutdown(socket.SHUT_RDWR)


class FairDispatcher(ThreadedTaskDispatcher):  # type: ignore[misc]
    """Threads that answer the first request of each visitor, then the second ones."""

    def __init__(self) -> None:
        super().__init__()
        self._pending: Counter[str] = Counter()

    def add_task(self, task: Connection) -> None:
        """Put a request behind those of the same rank."""
        with self.lock:
            task.rank = self._pending[task.visitor]
            self._pending[task.visitor] += 1
            behind = (n for n, queued in enumerate(self.queue) if queued.rank > task.rank)
            self.queue.insert(next(behind, len(self.queue)), task)
            self.queue_cv.notify()

    def finish(self, visitor: str) -> None:
        """Note that a request of a visitor was answered."""
        with self.lock:
            self._pending[visitor] -= 1
            if self._pending[visitor] <= 0:
                del self._pending[visitor]


class DeadlineServer(TcpWSGIServer):  # type: ignore[misc]
    """Waitress with deadlines. With as many connections as it takes, those that have
    waited longest are closed. ``health``: the thread that answers ``/health``, also when
    all others are busy.
    """

    channel_class = Connection
    health: ThreadedTaskDispatcher

    def add_task(self, task: Connection) -> None:
        """Have the next request of a connection answered."""
        request = task.requests[0]
        task.visitor = name_visitor(task.addr[0], request.headers)
        # A request that cannot be read has no address.
        task.is_health = getattr(request, "path", "").endswith("/health")
        task.is_download = "download=" in (getattr(request, "query", "") or "")
        (self.health if task.is_health else self.task_dispatcher).add_task(task)

    def readable(self) -> bool:
        """Return whether to accept a connection; closes what is overdue, and makes room."""
        if len(self._map) >= self.adj.connection_limit:
            self._make_room()
        return bool(super().readable())

    def maintenance(self, now: float) -> None:
        """Close the connections whose clients are overdue."""
        for channel in list(self.active_channels.values()):
            if channel.is_overdue(now):
                channel.drop()

    def run(self) -> None:
        """Serve until KeyboardInterrupt; requests that are being answered then have half a second."""
        try:
            self.asyncore.loop(timeout=1, map=self._map, use_poll=True)
        finally:
            self.task_dispatcher.shutdown(timeout=_END_S)

    def close(self) -> None:
        """Close the listening socket and all connections."""
        self.task_dispatcher.shutdown(timeout=_END_S)
        self.health.shutdown(timeout=_END_S)
        for channel in list(self.active_channels.values()):
            channel.drop()
        super().close()

    def _make_room(self) -> None:
        waiting = [
            (since, channel)
            for channel in self.active_channels.values()
            if (since := channel.waits_since())
        ]
        waiting.sort(key=lambda entry: entry[0])
        for _, channel in waiting[: max(1, self.adj.connection_limit // 10)]:
            channel.drop()


def make_server(app: Callable[..., Any], listening: socket.socket, threads: int) -> DeadlineServer:
    """Return a server on a listening socket; :meth:`DeadlineServer.run` serves."""
    adjustments = Adjustments(
        sockets=[listening],
        threads=threads,
        cleanup_interval=1,
        connection_limit=_connection_limit(),
        # The next request of a connection is read while one is answered: so the end of
        # a connection is seen.
        channel_request_lookahead=1,
        # An answer waits in a file for a slow client, and no thread with it.
        outbuf_high_watermark=1 << 40,
        max_request_header_size=32_768,
        max_request_body_size=65_536,
        ident="",
        clear_untrusted_proxy_headers=False,
    )
    dispatcher, health = FairDispatcher(), ThreadedTaskDispatcher()
    dispatcher.set_thread_count(threads)
    health.set_thread_count(1)
    about = (listening.family, listening.type, listening.proto, listening.getsockname())
    server = DeadlineServer(
        app,
        {},
        True,
        listening,
        dispatcher=dispatcher,
        adj=adjustments,
        bind_socket=False,
        sockinfo=about,
    )
    server.health = health
    return server


def _connection_limit() -> int:
    """Return how many connections the file descriptors allow, after raising their soft
    limit as far as is needed.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    needed = _CONNECTIONS + _FILES
    if soft != resource.RLIM_INFINITY and soft < needed:
        soft = needed if hard == resource.RLIM_INFINITY else min(needed, hard)
        resource.setrlimit(resource.RLIMIT_NOFILE, (soft, hard))
    return (
        _CONNECTIONS
        if soft == resource.RLIM_INFINITY
        else max(50, min(_CONNECTIONS, soft - _FILES))
    )
