"""A connection to a STOMP broker that cannot hang: one thread, a non-blocking socket, a deadline on every step.

stomp.py makes and parses the frames; its own transport waits without end on a silent peer, does not notice a dead TLS
link, and cannot tell what of a frame was written. Here reading, writing and heartbeats share one loop, so that each
failure is seen by the code that has to decide what became of a batch. ``docs/publishing.md`` says more.
"""

from __future__ import annotations

import math
import os
import select
import socket
import ssl
from collections import deque
from collections.abc import Callable
from typing import Any, Final

from cmsspark.publish.dial import LinkDown, dial, down
from cmsspark.publish.sink import Clock

# stomp.py resolves the host's own names when it is imported, which takes seconds where no name server answers.
os.environ.setdefault("STOMP_SKIP_HOSTNAME_SCAN", "1")

_CHUNK: Final = 65_536
#: Bytes without a whole frame after which nobody can be speaking STOMP.
_MOST: Final = 16_000_000
NO_STOMP: Final = "what answers there speaks no STOMP; a port for TLS wants `ca` in the credentials file"
#: Beats that may be missed before a link counts as dead.
_BEATS: Final = 3
#: Seconds before a heartbeat that the socket did not take is tried again.
_RETRY: Final = 0.01


class Link:
    """What stomp.py's protocol calls a transport: it sends the frames that the protocol makes.

    ``beat``: seconds between heartbeats, both ways, once the broker agreed. ``told``: hears when the broker stalls.
    """

    vhost = None

    def __init__(
        self, connection: socket.socket, host: str, port: int, clock: Clock, told: Callable[[str], None]
    ) -> None:
        self.current_host_and_port = (host, port)
        self._socket = connection
        self._clock = clock
        self._told = told
        #: stomp.py's, once the broker let us in: it makes the frames.
        self.protocol: Any = None
        #: A link of the same thread that is kept alive, too, while this one waits.
        self.beside: Link | None = None
        self._out = bytearray()
        self._in = bytearray()
        self._frames: deque[Any] = deque()
        self._down: LinkDown | None = None
        self._send_beat = 0.0
        self._receive_beat = 0.0
        self._last_write = self._last_read = clock.monotonic()
        # Every frame goes through these; looking them up once spares the import lock.
        from stomp.utils import convert_frame, pack, parse_frame

        self._convert, self._pack, self._parse = convert_frame, pack, parse_frame

    # -- what stomp.py's protocol calls ----------------------------------------------------------------------

    def set_listener(self, name: str, listener: object) -> None:
        """The protocol registers itself for heartbeats; this link keeps them itself."""

    def transmit(self, frame: Any) -> None:
        """Take a frame; it is written by :meth:`flush`."""
        self._out += self._pack(self._convert(frame))

    # -- what the sink calls ---------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Bytes taken and not written."""
        return len(self._out)

    def flush(self, timeout: float) -> None:
        """Write all that was taken. Raises LinkDown when nothing moves for ``timeout`` seconds, or the link breaks."""
        patience = Patience(self._clock, timeout, self._told, "it takes no data")
        view = memoryview(bytes(self._out))
        self._out.clear()
        while view:
            self._read()
            if self._frames and self._frames[0].cmd == "ERROR":
                raise LinkDown("the broker sent an error")
            written = self._write(view[:_CHUNK])
            if written:
                view = view[written:]
                patience.renew()
            else:
                self._wait(patience.left(), writing=True)

    def receive(self, timeout: float, what: str) -> Any | None:
        """The next frame, or None after ``timeout`` seconds. Raises LinkDown when there will be none."""
        deadline = self._clock.monotonic() + timeout
        while True:
            self._read()
            if self._frames:
                return self._frames.popleft()
            if self._down is not None:
                raise self._down
            left = deadline - self._clock.monotonic()
            if left <= 0:
                return None
            self._wait(left)

    def agree_beats(self, ours: float, answer: str) -> None:
        """Keep the heartbeats that ours, in seconds, and the broker's ``heart-beat`` header, in ms, come to."""
        parts = [part.strip() for part in answer.split(",")]
        if len(parts) != 2 or not all(part.isdigit() and len(part) < 9 for part in parts):
            raise LinkDown(NO_STOMP)
        sends, wants = (int(part) / 1000 for part in parts)
        self._send_beat = max(ours, wants) if wants else 0.0
        self._receive_beat = max(ours, sends) if sends else 0.0

    def first_error(self) -> Any | None:
        """An ERROR frame that has come, if any."""
        self._read()
        return next((frame for frame in self._frames if frame.cmd == "ERROR"), None)

    def close(self) -> None:
        """Close at once; what is not written is lost."""
        try:
            self._socket.close()
        except OSError:
            # Nothing depends on how a socket ends: what counts was confirmed before.
            self._down = self._down or LinkDown("closed")

    # -- the loop --------------------------------------------------------------------------------------------

    def _write(self, piece: memoryview) -> int:
        """Bytes written, 0 when the socket takes none now. A TLS write that was put off is repeated with the same
        bytes, and perhaps more.
        """
        try:
            written = self._socket.send(piece)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            self._read()  # an ERROR frame may have come before the end
            raise self._down or down(error) from None
        self._last_write = self._clock.monotonic()
        return written

    def _read(self) -> None:
        """Take in what is there, without waiting. An end is remembered until the frames before it are taken."""
        while self._down is None:
            try:
                piece = self._socket.recv(_CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                self._down = down(error)
                return
            if not piece:
                self._down = LinkDown("the broker closed the connection")
                return
            self._last_read = self._clock.monotonic()
            self._in += piece
            try:
                self._cut_frames()
            except LinkDown as error:
                self._down = error

    def _cut_frames(self) -> None:
        while True:
            if self._in.startswith((b"\n", b"\r")):
                del self._in[: len(self._in) - len(self._in.lstrip(b"\r\n"))]
            end = self._frame_end()
            if end < 0:
                if len(self._in) > _MOST:
                    raise LinkDown(NO_STOMP)
                return
            frame = self._parse(bytes(self._in[:end]))
            del self._in[: end + 1]
            if frame is not None:
                self._frames.append(frame)

    def _frame_end(self) -> int:
        """Where the first frame's NUL is, or -1."""
        head = self._in.find(b"\n\n")
        if head >= 0:
            for line in bytes(self._in[:head]).split(b"\n"):
                if line.startswith(b"content-length:"):
                    length = line[15:].strip()
                    if not length.isdigit() or len(length) > 9:
                        raise LinkDown(NO_STOMP)
                    end = head + 2 + int(length)
                    return end if len(self._in) > end else -1
        return self._in.find(b"\0")

    def _wait(self, seconds: float, *, writing: bool = False) -> None:
        """Wait for something to happen, at most until the next heartbeat is due on either side."""
        now = self._clock.monotonic()
        if self._down is not None:
            raise self._down
        if self._receive_beat:
            silent = now - self._last_read
            if silent > _BEATS * self._receive_beat:
                raise LinkDown(f"no heartbeat from the broker for {silent:.0f} s: the link is dead")
            seconds = min(seconds, _BEATS * self._receive_beat - silent + 0.01)
        if not writing:  # else it may be in the middle of a frame
            seconds = min(seconds, self._beat())
        if self.beside is not None:
            seconds = min(seconds, self.beside._beat())
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return
        # Not select(): a driver with many open files has descriptors that it does not take.
        waiter = select.poll()
        waiter.register(self._socket, select.POLLIN | (select.POLLOUT if writing else 0))
        waiter.poll(max(seconds, 0.001) * 1000)

    def _beat(self) -> float:
        """A heartbeat where one is due; returns the seconds until the next.

        A link that breaks here is told when it is next listened to, after what had come before.
        """
        if self._down is not None or not self._send_beat:
            return math.inf
        left = self._last_write + self._send_beat - self._clock.monotonic()
        if left > 0:
            return left
        try:
            if self._write(memoryview(b"\n")):
                return self._send_beat
        except LinkDown as error:
            self._down = error
            return 0.0
        # TLS keeps the byte that it could not write, and counts it as the first of the next write: so it must be.
        self._out[:0] = b"" if self._out else b"\n"
        return _RETRY


class Patience:
    """Time that runs out unless it is renewed; says so once when the broker keeps us waiting.

    When it is over there is one last look at what is there: time also passes while nobody looks.
    """

    TELL_AFTER: Final = 10.0

    def __init__(self, clock: Clock, seconds: float, told: Callable[[str], None], why: str) -> None:
        self._clock = clock
        self._seconds = seconds
        self._told = told
        self._why = why
        self._since = clock.monotonic()
        self._said = self._is_last = False

    def renew(self) -> None:
        """Something moved."""
        self._since, self._is_last = self._clock.monotonic(), False

    def left(self) -> float:
        """Seconds to wait for before asking again, at last 0. Raises LinkDown after that."""
        waited = self._clock.monotonic() - self._since
        if waited >= self._seconds:
            if self._is_last:
                raise LinkDown(f"broker stalled: {self._why} for {waited:.0f} s")
            self._is_last = True
            return 0.0
        if waited >= self.TELL_AFTER and not self._said:
            self._said = True
            self._told(f"broker stalled: {self._why} for {waited:.0f} s; waiting up to {self._seconds:.0f} s")
        return min(self._seconds - waited, self.TELL_AFTER)


def connect(
    host: str,
    address: tuple[Any, ...],
    family: int,
    context: ssl.SSLContext | None,
    timeout: float,
    clock: Clock,
    told: Callable[[str], None],
) -> Link:
    """A link to one address of ``host``; with TLS the certificate is checked against the name ``host``.

    Raises LinkDown within ``timeout`` seconds.
    """
    return Link(dial(host, address, family, context, timeout, clock), host, address[1], clock, told)
