"""A connection to a STOMP broker that cannot hang: one thread, a non-blocking socket, a
deadline on every step.

stomp.py makes and parses the frames. Its own transport waits forever on a silent peer,
does not notice a dead TLS connection, and cannot tell how much of a frame was written.
Here reading, writing and heartbeats share one loop, so the code that decides what
became of a batch sees each failure itself. See ``docs/publishing.md``.
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

from cmsspark.base.dates import Clock
from cmsspark.base.sockets import ConnectionLost, connect, connection_lost

# stomp.py resolves the host's own names when it is imported, which takes seconds where
# no name server answers.
os.environ.setdefault("STOMP_SKIP_HOSTNAME_SCAN", "1")

_CHUNK: Final = 65_536
#: Bytes without a complete frame after which the peer cannot be speaking STOMP.
_MAX_FRAME_BYTES: Final = 16_000_000
NO_STOMP: Final = "the server does not speak STOMP; a TLS port needs `ca` in the credentials file"
#: Heartbeats that may be missed before a connection counts as dead.
_MAX_MISSED_HEARTBEATS: Final = 3
#: Seconds before a heartbeat that the socket did not accept is tried again.
_HEARTBEAT_RETRY: Final = 0.01


class StompConnection:
    """What stomp.py's protocol calls a transport: it sends the frames that the protocol makes.

    Heartbeats are kept both ways once the broker agreed to them. ``log`` receives a
    line when the broker stalls.
    """

    vhost = None

    def __init__(
        self,
        connection: socket.socket,
        host: str,
        port: int,
        clock: Clock,
        log: Callable[[str], None],
    ) -> None:
        self.current_host_and_port = (host, port)
        self._socket = connection
        self._clock = clock
        self._log = log
        #: stomp.py's protocol, set at login: it makes the frames.
        self.protocol: Any = None
        #: A second connection of the same thread, kept alive while this one waits.
        self.standby: StompConnection | None = None
        self._out = bytearray()
        self._in = bytearray()
        self._frames: deque[Any] = deque()
        self._lost: ConnectionLost | None = None
        self._send_interval = 0.0
        self._receive_interval = 0.0
        self._last_write = self._last_read = clock.monotonic()
        # Every frame goes through these; one lookup avoids taking the import lock each time.
        from stomp.utils import convert_frame, pack, parse_frame

        self._convert, self._pack, self._parse = convert_frame, pack, parse_frame

    # -- what stomp.py's protocol calls
    # ----------------------------------------------------------------------

    def set_listener(self, name: str, listener: object) -> None:
        """Ignore the listener that the protocol registers for heartbeats: this
        connection keeps them itself.
        """

    def transmit(self, frame: Any) -> None:
        """Queue a frame; :meth:`flush` writes it."""
        self._out += self._pack(self._convert(frame))

    # -- what the sink calls
    # ---------------------------------------------------------------------------------

    @property
    def pending(self) -> int:
        """Bytes queued and not written yet."""
        return len(self._out)

    def flush(self, timeout: float) -> None:
        """Write everything queued.

        Raises ConnectionLost when nothing is accepted for ``timeout`` seconds, or the
        connection breaks.
        """
        stall = StallTimer(self._clock, timeout, self._log, "it takes no data")
        view = memoryview(bytes(self._out))
        self._out.clear()
        while view:
            self._read()
            if self._frames and self._frames[0].cmd == "ERROR":
                raise ConnectionLost("the broker sent an error")
            written = self._write(view[:_CHUNK])
            if written:
                view = view[written:]
                stall.reset()
            else:
                self._wait(stall.remaining(), writing=True)

    def receive(self, timeout: float) -> Any | None:
        """Return the next frame, or None after ``timeout`` seconds. Raises
        ConnectionLost when no frame can follow.
        """
        deadline = self._clock.monotonic() + timeout
        while True:
            self._read()
            if self._frames:
                return self._frames.popleft()
            if self._lost is not None:
                raise self._lost
            remaining = deadline - self._clock.monotonic()
            if remaining <= 0:
                return None
            self._wait(remaining)

    def agree_heartbeats(self, interval: float, header: str) -> None:
        """Keep heartbeats as agreed from our ``interval`` (seconds) and the broker's
        ``heart-beat`` header (ms).
        """
        parts = [part.strip() for part in header.split(",")]
        if len(parts) != 2 or not all(part.isdigit() and len(part) < 9 for part in parts):
            raise ConnectionLost(NO_STOMP)
        sends, wants = (int(part) / 1000 for part in parts)
        self._send_interval = max(interval, wants) if wants else 0.0
        self._receive_interval = max(interval, sends) if sends else 0.0

    def first_error(self) -> Any | None:
        """Return an ERROR frame that has arrived, if any."""
        self._read()
        return next((frame for frame in self._frames if frame.cmd == "ERROR"), None)

    def close(self) -> None:
        """Close at once; what is not written is lost."""
        try:
            self._socket.close()
        except OSError:
            # Nothing depends on how a socket ends: everything that counts was confirmed before.
            self._lost = self._lost or ConnectionLost("closed")

    # -- the loop
    # --------------------------------------------------------------------------------------------

    def _write(self, piece: memoryview) -> int:
        """Return the bytes written, 0 when the socket accepts none now. A deferred TLS
        write must be repeated.
        """
        try:
            written = self._socket.send(piece)
        except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
            return 0
        except OSError as error:
            self._read()  # an ERROR frame may have arrived before the end
            raise self._lost or connection_lost(error) from None
        self._last_write = self._clock.monotonic()
        return written

    def _read(self) -> None:
        """Read what has arrived, without waiting. The end is remembered until the
        frames before it are taken.
        """
        while self._lost is None:
            try:
                piece = self._socket.recv(_CHUNK)
            except (BlockingIOError, ssl.SSLWantReadError, ssl.SSLWantWriteError):
                return
            except OSError as error:
                self._lost = connection_lost(error)
                return
            if not piece:
                self._lost = ConnectionLost("the broker closed the connection")
                return
            self._last_read = self._clock.monotonic()
            self._in += piece
            try:
                self._cut_frames()
            except ConnectionLost as error:
                self._lost = error

    def _cut_frames(self) -> None:
        while True:
            if self._in.startswith((b"\n", b"\r")):
                del self._in[: len(self._in) - len(self._in.lstrip(b"\r\n"))]
            end = self._frame_end()
            if end < 0:
                if len(self._in) > _MAX_FRAME_BYTES:
                    raise ConnectionLost(NO_STOMP)
                return
            frame = self._parse(bytes(self._in[:end]))
            del self._in[: end + 1]
            if frame is not None:
                self._frames.append(frame)

    def _frame_end(self) -> int:
        """Return the position of the first frame's NUL, or -1."""
        head = self._in.find(b"\n\n")
        if head >= 0:
            for line in bytes(self._in[:head]).split(b"\n"):
                if line.startswith(b"content-length:"):
                    length = line[15:].strip()
                    if not length.isdigit() or len(length) > 9:
                        raise ConnectionLost(NO_STOMP)
                    end = head + 2 + int(length)
                    return end if len(self._in) > end else -1
        return self._in.find(b"\0")

    def _wait(self, seconds: float, *, writing: bool = False) -> None:
        """Wait for something to happen, at most until the next heartbeat is due on either side."""
        now = self._clock.monotonic()
        if self._lost is not None:
            raise self._lost
        if self._receive_interval:
            limit = _MAX_MISSED_HEARTBEATS * self._receive_interval
            silent = now - self._last_read
            if silent > limit:
                raise ConnectionLost(
                    f"no heartbeat from the broker for {silent:.0f} s: the connection is dead"
                )
            seconds = min(seconds, limit - silent + 0.01)
        if not writing:  # else the socket may be in the middle of a frame
            seconds = min(seconds, self._heartbeat())
        if self.standby is not None:
            seconds = min(seconds, self.standby._heartbeat())
        if isinstance(self._socket, ssl.SSLSocket) and self._socket.pending():
            return
        # Not select(): it rejects descriptors above 1023, which a driver with many open files has.
        poller = select.poll()
        poller.register(self._socket, select.POLLIN | (select.POLLOUT if writing else 0))
        poller.poll(max(seconds, 0.001) * 1000)

    def _heartbeat(self) -> float:
        """Send a heartbeat if one is due; returns the seconds until the next.

        A connection that breaks here is reported by the next read, after the frames
        that arrived before.
        """
        if self._lost is not None or not self._send_interval:
            return math.inf
        remaining = self._last_write + self._send_interval - self._clock.monotonic()
        if remaining > 0:
            return remaining
        try:
            if self._write(memoryview(b"\n")):
                return self._send_interval
        except ConnectionLost as error:
            self._lost = error
            return 0.0
        # TLS keeps the byte that it could not write and expects it as the first of the next write.
        self._out[:0] = b"" if self._out else b"\n"
        return _HEARTBEAT_RETRY


class StallTimer:
    """A time limit that any progress resets; logs one line when the broker keeps us waiting.

    After the limit ``remaining`` returns 0 once more, for one last read: time also
    passes while nobody reads.
    """

    LOG_AFTER: Final = 10.0

    def __init__(
        self, clock: Clock, seconds: float, log: Callable[[str], None], reason: str
    ) -> None:
        self._clock = clock
        self._seconds = seconds
        self._log = log
        self._reason = reason
        self._since = clock.monotonic()
        self._is_logged = self._is_last = False

    def reset(self) -> None:
        """Note that something moved."""
        self._since, self._is_last = self._clock.monotonic(), False

    def remaining(self) -> float:
        """Return seconds to wait before the next call, finally 0. Raises ConnectionLost
        after that.
        """
        waited = self._clock.monotonic() - self._since
        if waited >= self._seconds:
            if self._is_last:
                raise ConnectionLost(f"broker stalled: {self._reason} for {waited:.0f} s")
            self._is_last = True
            return 0.0
        if waited >= self.LOG_AFTER and not self._is_logged:
            self._is_logged = True
            self._log(
                f"broker stalled: {self._reason} for {waited:.0f} s; waiting up to {self._seconds:.0f} s"
            )
        return min(self._seconds - waited, self.LOG_AFTER)


def connect_stomp(
    host: str,
    address: tuple[Any, ...],
    family: int,
    context: ssl.SSLContext | None,
    timeout: float,
    clock: Clock,
    log: Callable[[str], None],
) -> StompConnection:
    """Return a connection to one address of ``host``; with TLS the certificate is
    checked against the name ``host``.

    Raises ConnectionLost within ``timeout`` seconds.
    """
    return StompConnection(
        connect(host, address, family, context, timeout, clock), host, address[1], clock, log
    )
