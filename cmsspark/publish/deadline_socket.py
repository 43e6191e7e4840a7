"""A socket for Python's HTTP client, with a deadline on every operation."""

from __future__ import annotations

import io
import select
import socket
import ssl
from collections.abc import Callable
from functools import partial
from typing import Any, Final

from cmsspark.publish.connection import await_ready
from cmsspark.publish.sink import Clock

_CHUNK: Final = 65_536


class DeadlineSocket:
    """The part of a socket that HTTPConnection uses, each operation with a deadline.

    ``deadline``: of the whole exchange; ``is_sent``: the last byte of the request was accepted.
    """

    def __init__(self, connection: socket.socket, move: float, clock: Clock) -> None:
        self.deadline = clock.monotonic() + move
        self.is_sent = False
        self._head = bytearray()
        self._early = b""
        self._error: OSError | None = None
        self._connection = connection
        self._move = move
        self._clock = clock

    def sendall(self, data: bytes) -> None:
        """Keep the head of a request; :meth:`post` writes it with the body."""
        self._head += data

    def post(self, body: bytes) -> bool:
        """Write head and body; False when the server answers before it has everything: it refuses.

        Raises OSError when nothing moves, or the whole takes too long.
        """
        view = memoryview(bytes(self._head) + body)
        self._head.clear()
        until = self._until()
        while view:
            if not self.is_idle():
                return False
            try:
                view = view[self._connection.send(view[:_CHUNK]) :]
                until = self._until()
            except ssl.SSLWantReadError:
                await_ready(self._connection, select.POLLIN, until, self._clock)
            except (BlockingIOError, ssl.SSLWantWriteError):
                # A server that refuses may answer and read no further.
                await_ready(self._connection, select.POLLOUT | select.POLLIN, until, self._clock)
        self.is_sent = True
        return True

    def receive(self, buffer: Any) -> int:
        """Read what has arrived, at least one byte, or 0 at the end."""
        if self._early:
            piece, self._early = self._early[: len(buffer)], self._early[len(buffer) :]
            buffer[: len(piece)] = piece
            return len(piece)
        if self._error is not None:
            raise self._error
        return self._once(partial(self._connection.recv_into, buffer))

    def is_idle(self) -> bool:
        """Return whether nothing is unread: neither an end nor bytes. Does not wait."""
        if not self._early:
            try:
                # Not poll(): under TLS the bytes may be no more than session tickets.
                self._early = self._connection.recv(_CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return True
            except OSError as error:
                self._error = error  # may hold the reason, and would not be raised twice
        return False

    def _until(self) -> float:
        """Return the time by which some byte must have moved."""
        return min(self.deadline, self._clock.monotonic() + self._move)

    def _once(self, read: Callable[[], int]) -> int:
        until = self._until()
        while True:
            try:
                return read()
            except (BlockingIOError, ssl.SSLWantReadError):
                events = select.POLLIN
            except ssl.SSLWantWriteError:
                events = select.POLLOUT
            await_ready(self._connection, events, until, self._clock)

    def makefile(self, mode: str) -> io.BufferedReader:
        """Return the stream that the answer is read from."""
        return io.BufferedReader(_Reader(self))

    def close(self) -> None:
        """HTTPConnection is done with it, perhaps before the body was read; :meth:`end` closes the socket."""

    def end(self) -> None:
        """Close the socket."""
        self._connection.close()


class _Reader(io.RawIOBase):
    def __init__(self, link: DeadlineSocket) -> None:
        self._link = link

    def readable(self) -> bool:
        """Return true: it can be read."""
        return True

    def readinto(self, buffer: Any) -> int:
        """Bytes of the answer."""
        return self._link.receive(buffer)
