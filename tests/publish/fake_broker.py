"""A STOMP broker that fails on demand: what a real one does once a year, here at the
wanted moment.
"""

from __future__ import annotations

import socket
import ssl
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Any


@dataclass
class Faults:
    """What one connection does wrong; the default does nothing wrong."""

    silent: bool = False  # accepts, and never says a word
    close_at_once: bool = False
    login_error: str | None = None
    heartbeat: str = "0,0"  # promised in CONNECTED, and not sent
    beats: int = (
        0  # heartbeats that must come after a COMMIT before it is receipted and `gate` opens
    )
    close_after_sends: int | None = None
    close_at: tuple[int, str] | None = (
        None  # "before" or "after" it works on its n-th frame that is no SEND
    )
    poison: Callable[[bytes], bool] | None = None  # ERROR without receipt-id, then the end
    poison_error: str = ""  # its text
    commit: str = (
        "apply"  # apply, drop (close without applying), lost (apply and close), refuse (ERROR with receipt-id),
        # go down (apply, and the same), forbid (refuse, then ERROR with the reason)
    )
    receipt: str = "once"  # once, never, twice, stray (another id first), late (when `gate` opens)
    gate: threading.Event = field(default_factory=threading.Event)
    late_by: float = 30  # seconds after which what waits for the gate goes on without it
    stop_reading_after: int | None = None  # SENDs; then waits for `gate`
    is_full: bool = False  # as ActiveMQ: a SEND that asks for a receipt is lost, which is told after the COMMIT


@dataclass
class FakeBroker:
    """Connection n behaves as ``faults[n]``; those after the list as they should.
    ``stored``: what was committed.
    """

    faults: list[Faults] = field(default_factory=list)
    context: ssl.SSLContext | None = None
    stored: list[bytes] = field(default_factory=list)
    connections: int = 0
    port: int = 0

    def __post_init__(self) -> None:
        self._listener = socket.create_server(("127.0.0.1", 0))
        self.port = self._listener.getsockname()[1]
        self._open: list[socket.socket] = []
        self._threads: list[threading.Thread] = []
        self._lock = threading.Lock()
        self._threads.append(threading.Thread(target=self._accept, daemon=True))
        self._threads[0].start()

    def stop(self) -> None:
        """Close everything and wait for the threads."""
        for fault in self.faults:
            fault.gate.set()
        with suppress(OSError):
            self._listener.shutdown(socket.SHUT_RDWR)
        self._listener.close()
        for connection in self._open:
            with suppress(OSError):
                connection.shutdown(socket.SHUT_RDWR)
            connection.close()
        for thread in self._threads:
            thread.join(120)

    def _accept(self) -> None:
        while True:
            try:
                connection, _ = self._listener.accept()
            except OSError:
                return
            fault = (
                self.faults[self.connections] if self.connections < len(self.faults) else Faults()
            )
            self.connections += 1
            thread = threading.Thread(target=self._serve, args=(connection, fault), daemon=True)
            self._threads.append(thread)
            thread.start()

    def _serve(self, connection: socket.socket, fault: Faults) -> None:
        with suppress(OSError, ssl.SSLError):
            if fault.close_at_once:
                connection.close()
                return
            if self.context is not None:
                connection = self.context.wrap_socket(connection, server_side=True)
            self._open.append(connection)
            if fault.silent:
                fault.gate.wait(fault.late_by)
            else:
                _Session(self, connection, fault).run()
        with suppress(OSError, ValueError):
            if isinstance(connection, ssl.SSLSocket):
                connection.settimeout(1)
                connection.unwrap()  # a clean close: the other side is told
        with suppress(OSError):
            connection.shutdown(socket.SHUT_RDWR)
        connection.close()

    def store(self, bodies: list[bytes]) -> None:
        """Take a transaction in."""
        with self._lock:
            self.stored.extend(bodies)


class _Session:
    def __init__(self, broker: FakeBroker, connection: socket.socket, fault: Faults) -> None:
        self.broker, self.connection, self.fault = broker, connection, fault
        self.pending: dict[str, list[bytes]] = {}
        self.sends = 0
        self.frames = 0
        self.aside: list[str] = []
        self.beats = 0
        self.owed: list[str] = []

    def run(self) -> None:
        for frame in _frames(self.connection, self.beat):
            self.frames += frame.cmd != "SEND"
            at = frame.cmd != "SEND" and self.fault.close_at
            if (
                at == (self.frames, "before")
                or not self.handle(frame)
                or at == (self.frames, "after")
            ):
                return

    def beat(self) -> None:
        """A heartbeat came."""
        self.beats += 1
        if self.owed and self.beats >= self.fault.beats:
            self.fault.gate.set()
            self.say("RECEIPT", receipt_id=self.owed.pop())

    def say(self, command: str, body: str = "", **headers: str) -> None:
        lines = "".join(f"{key.replace('_', '-')}:{value}\n" for key, value in headers.items())
        self.connection.sendall(f"{command}\n{lines}\n{body}".encode() + b"\0\n")

    def handle(self, frame: Any) -> bool:
        fault, headers = self.fault, frame.headers
        if frame.cmd in ("CONNECT", "STOMP"):
            if fault.login_error:
                self.say("ERROR", message=fault.login_error)
                return False
            self.say("CONNECTED", version="1.2", heart_beat=fault.heartbeat)
        elif frame.cmd == "BEGIN":
            self.pending[headers["transaction"]] = []
            if "receipt" in headers:
                self.say("RECEIPT", receipt_id=headers["receipt"])
        elif frame.cmd == "ABORT":
            del self.pending[headers["transaction"]]
        elif frame.cmd == "SEND":
            return self.take(frame)
        elif frame.cmd == "COMMIT":
            return self.commit(headers)
        return frame.cmd != "DISCONNECT"

    def take(self, frame: Any) -> bool:
        assert frame.headers["persistent"] == "true", "a message that does not survive the broker"
        self.sends += 1
        if self.fault.poison and self.fault.poison(frame.body):
            self.say("ERROR", message=self.fault.poison_error or "this one I do not take")
            return False
        if self.fault.is_full and "receipt" in frame.headers:
            self.aside.append(frame.headers["receipt"])
            return True
        self.pending[frame.headers["transaction"]].append(frame.body)
        if self.sends == self.fault.close_after_sends:
            return False
        if self.sends == self.fault.stop_reading_after:
            self.fault.gate.wait(self.fault.late_by)
        if "receipt" in frame.headers:
            self.say("RECEIPT", receipt_id=frame.headers["receipt"])
        return True

    def commit(self, headers: dict[str, str]) -> bool:
        fault, receipt = self.fault, headers["receipt"]
        self.beats = 0
        if fault.commit == "drop":
            return False
        if fault.commit == "refuse":
            self.say("ERROR", message="the transaction is refused", receipt_id=receipt)
            return True
        if fault.commit == "forbid":
            self.say(
                "ERROR",
                message="COMMIT FAILED: Transaction marked rollback only",
                receipt_id=receipt,
            )
            self.say(
                "ERROR",
                message="User somebody is not authorized to write to: queue://test.documents",
            )
            return False
        self.broker.store(self.pending.pop(headers["transaction"]))
        if fault.commit == "go down":
            self.say("ERROR", message="the broker is shutting down", receipt_id=receipt)
            return False
        if fault.commit == "lost":
            return False
        if fault.beats:
            self.owed.append(receipt)
            return True
        if fault.receipt == "never":
            return True
        if fault.receipt == "late":
            fault.gate.wait(fault.late_by)
        if fault.receipt == "stray":
            self.say("RECEIPT", receipt_id="another-receipt")
        for _ in range(2 if fault.receipt == "twice" else 1):
            self.say("RECEIPT", receipt_id=receipt)
        for lost in self.aside:
            self.say(
                "ERROR",
                message="Send transaction completed while waiting for space",
                receipt_id=lost,
            )
        return True


def _frames(connection: socket.socket, beat: Callable[[], None]) -> Iterator[Any]:
    from stomp.utils import parse_frame

    buffer = b""
    while piece := connection.recv(65_536):
        buffer += piece
        while True:
            while buffer.startswith((b"\r", b"\n")):
                beat()
                buffer = buffer[1:]
            head = buffer.find(b"\n\n")
            if head < 0:
                break
            size = next(
                (
                    int(h[15:])
                    for h in buffer[:head].split(b"\n")
                    if h.startswith(b"content-length:")
                ),
                None,
            )
            end = buffer.find(b"\0", head) if size is None else head + 2 + size
            if end < 0 or len(buffer) <= end:
                break
            yield parse_frame(buffer[:end])
            buffer = buffer[end + 1 :]


@contextmanager
def broker(*faults: Faults, context: ssl.SSLContext | None = None) -> Iterator[FakeBroker]:
    """A fake broker whose connections have ``faults``, one after another; stopped at the end."""
    made = FakeBroker(list(faults), context)
    try:
        yield made
    finally:
        made.stop()
