"""The STOMP sink: a batch is one transaction of persistent messages, confirmed by the
receipt of its COMMIT.

Nothing else confirms: a message that was written, a connection that stayed up and a
receipt of a message that is not persistent have all been seen to lose documents.

A broker processes one connection's frames in order, so a second connection sends the
next batch's messages while the broker works on the first one's COMMIT. Only one COMMIT
is ever on its way.
"""

from __future__ import annotations

import re
import socket
import ssl
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Final

import msgspec

from cmsspark.base.dates import Clock, SystemClock
from cmsspark.base.errors import NotAllowed
from cmsspark.base.sockets import ConnectionLost, addresses
from cmsspark.publish.batch_log import Batch
from cmsspark.publish.credentials import Broker, read_broker
from cmsspark.publish.publisher import Destination, known_folder, outbox_folder
from cmsspark.publish.sink import (
    ForbiddenError,
    RejectedError,
    RetryableError,
    SendError,
    SinkOptions,
)
from cmsspark.publish.stomp_connection import NO_STOMP, StallTimer, StompConnection, connect_stomp

# Logging in to a STOMP broker: the first of its addresses that answers.

#: Error texts that mean wrong credentials or rights.
NOT_ALLOWED: Final = re.compile(
    r"password|credential|authenti|authori[sz]|security ?exception|access denied|not permitted|login",
    re.IGNORECASE,
)


class StompTimeouts(msgspec.Struct, frozen=True):
    """Deadlines in seconds. ``connect``: each address with its TLS handshake.
    ``login``: the answer to CONNECT.

    ``stall``: how long a broker that shows life may accept nothing, or owe a receipt.
    ``probe``: when to ask it whether it is only slow. ``heartbeat``: the interval
    between heartbeats.
    """

    connect: float = 5.0
    login: float = 10.0
    stall: float = 300.0
    probe: float = 10.0
    heartbeat: float = 4.0


class StompConnector:
    """Opens connections to ``broker`` and remembers which addresses failed."""

    def __init__(
        self, broker: Broker, timeouts: StompTimeouts, clock: Clock, log: Callable[[str], None]
    ) -> None:
        self._broker = broker
        self._timeouts = timeouts
        self._clock = clock
        self._log = log
        self._failed: dict[tuple[Any, ...], float] = {}
        self._peer: tuple[str, int, tuple[Any, ...], ssl.SSLContext | None] | None = None

    def open(self) -> StompConnection:
        """Connect and log in at the first address that answers; those that failed
        recently are tried last.

        Raises RetryableError with the reason of each address, NotAllowed (77) where a
        broker rejects the login.
        """
        context = self._broker.tls()
        reasons: list[str] = []
        for host, family, address in self._candidates(reasons):
            try:
                connection = self._logged_in(host, family, address, context)
            except ConnectionLost as error:
                if error.forbidden:
                    raise not_allowed(error.reason, f"{host}:{address[1]}") from None
                self._failed[address] = self._clock.monotonic()
                reasons.append(f"{address[0]}:{address[1]}: {error.reason}")
                continue
            self._failed.pop(address, None)
            self._peer = (host, family, address, context)
            return connection
        raise RetryableError(f"could not connect to any broker: {'; '.join(reasons)}")

    def open_standby(self, connection: StompConnection) -> StompConnection:
        """Return a second connection to the address of ``connection``, which
        :meth:`open` returned. Raises as that.
        """
        assert self._peer is not None
        return self._logged_in(*self._peer, standby=connection)

    def _candidates(self, reasons: list[str]) -> list[tuple[str, int, tuple[Any, ...]]]:
        """Return (name, family, address) of every address behind every name: those that
        worked first, IPv4 first.
        """
        candidates: list[tuple[str, int, tuple[Any, ...]]] = []
        for host, port in self._broker.addresses:
            try:
                candidates.extend(
                    (host, family, address) for family, address in addresses(host, port)
                )
            except ConnectionLost as error:
                reasons.append(error.reason)
        return sorted(
            candidates,
            key=lambda candidate: (
                self._failed.get(candidate[2], -1.0),
                candidate[1] != socket.AF_INET,
            ),
        )

    def _logged_in(
        self,
        host: str,
        family: int,
        address: tuple[Any, ...],
        context: ssl.SSLContext | None,
        standby: StompConnection | None = None,
    ) -> StompConnection:
        """Return a connection after a successful login."""
        from stomp.protocol import Protocol12

        connection = connect_stomp(
            host, address, family, context, self._timeouts.connect, self._clock, self._log
        )
        connection.standby = standby
        interval = int(self._timeouts.heartbeat * 1000)
        try:
            connection.protocol = Protocol12(connection, heartbeats=(0, 0))
            connection.protocol.connect(
                self._broker.username,
                self._broker.password,
                headers={"heart-beat": f"{interval},{interval}"},
            )
            connection.flush(self._timeouts.login)
            frame = connection.receive(self._timeouts.login)
            if frame is None:
                raise ConnectionLost(
                    f"it accepts connections and stays silent ({self._timeouts.login:.0f} s)"
                )
            if frame.cmd not in ("CONNECTED", "ERROR"):
                raise ConnectionLost(NO_STOMP)
            if frame.cmd == "ERROR":
                reason = error_text(frame, self._broker)
                if NOT_ALLOWED.search(reason):
                    server, port = connection.current_host_and_port
                    raise not_allowed(reason, f"{server}:{port}")
                raise ConnectionLost(reason)
            connection.agree_heartbeats(
                self._timeouts.heartbeat, frame.headers.get("heart-beat", "0,0")
            )
        except BaseException:
            connection.close()
            raise
        return connection


def error_text(frame: Any, broker: Broker) -> str:
    """Return the reason in an ERROR frame, in one line without secrets and control characters."""
    body = (
        frame.body.decode("utf-8", errors="replace")
        if isinstance(frame.body, bytes)
        else str(frame.body or "")
    )
    first = body.strip().splitlines()[0] if body.strip() else ""
    text = str(frame.headers.get("message") or first or "an error without a message")
    return broker.safe_text(text)


def not_allowed(reason: str, where: str, *, in_doubt: bool = False) -> ForbiddenError:
    """Return the error for wrong credentials or rights; ``reason`` holds no secret."""
    return ForbiddenError(
        "the broker does not let us publish",
        where=where,
        found=reason,
        next_step="check user name, password, certificates and topic in the credentials file",
        in_doubt=in_doubt,
    )


#: Frames are written out from this size on: the broker works while the next frames are made.
_FLUSH_BYTES: Final = 262_144
_TEMPORARY: Final = re.compile(
    r"shutting down|shut ?down|stopp(ed|ing)|dispos|resourceallocation|usage manager|limit reached|slave|timed? ?out"
    r"|inactiv",
    re.IGNORECASE,
)


def read_credentials(path: Path | None) -> Broker:
    """Return the broker and login of a credentials file."""
    assert path is not None
    return read_broker(path)


def build(credentials: Broker, options: SinkOptions) -> StompSink:
    """Return the sink that sends to ``credentials``.

    A password on its way to another host without TLS is announced, or refused with
    NotAllowed (77) where the options require TLS.
    """
    exposed = credentials.exposed_host
    if exposed is not None and options.settings.require_tls:
        raise NotAllowed(
            "the password would be sent unencrypted",
            where=credentials.where,
            found=f"no TLS to {exposed}",
            next_step="give `ca` and the broker's TLS port in the credentials file",
        )
    if exposed is not None:
        options.log(
            f"warning: the password is sent to {exposed} unencrypted; `ca` and a TLS port in the credentials file "
            "prevent that, `require_tls: true` under publishing refuses it"
        )
    timeouts = StompTimeouts(stall=options.settings.patience)
    return StompSink(credentials, options.type, options.producer, timeouts, log=options.log)


class StompSink:
    """Sends to the first address of ``broker`` that answers.

    Raises as :class:`cmsspark.publish.sink.Sink` documents.
    """

    def __init__(
        self,
        broker: Broker,
        kind: str,
        producer: str,
        timeouts: StompTimeouts | None = None,
        clock: Clock | None = None,
        log: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``kind``: the documents' type, for the headers; ``log`` receives a line for
        each problem waited out.
        """
        self._broker = broker
        self._timeouts = timeouts or StompTimeouts()
        self._clock = clock or SystemClock()
        self._log = log
        self._headers = {
            "persistent": "true",
            "version": broker.version,
            "producer": producer,
            "type": kind,
        }
        self._connection: StompConnection | None = None
        self._connector = StompConnector(broker, self._timeouts, self._clock, log)
        self._may_have_standby = True
        self._transactions = 0
        self._sending = False
        self._staged: tuple[tuple[int, int], str] | None = None
        self._staging_error: ConnectionLost | None = None
        self.where = broker.where

    def outbox_name(self, state_dir: Path) -> str:
        """Return the folder of this topic, producer and brokers, or of the broker's ``name``."""
        broker = self._broker
        label = broker.destination.split("/", 2)[2]
        identity = f"{broker.destination} {sorted(broker.addresses)}"
        return outbox_folder(state_dir, self._destination, label, identity)

    def known_outbox(self, state_dir: Path) -> str | None:
        """Return that folder; None if there is none yet."""
        return known_folder(state_dir, self._destination)

    @property
    def _destination(self) -> Destination:
        broker = self._broker
        hosts = tuple(sorted({host for host, _ in broker.addresses}))
        return Destination(
            "stomp", broker.destination, self._headers["producer"], hosts, broker.name
        )

    def open(self) -> None:
        """Connect and log in at the first address that answers; those that failed
        recently are tried last.
        """
        self._connection, self._may_have_standby = self._connector.open(), True
        self._sending, self._staged, self._staging_error = False, None, None

    def close(self) -> None:
        """Disconnect. Everything that counts was confirmed before, so a broker that
        does not answer is not awaited.
        """
        if self._connection is None:
            return
        try:
            # In the middle of a batch the broker may be in the middle of a frame: then
            # only closing is unambiguous.
            if not self._sending:
                for connection in filter(None, (self._connection.standby, self._connection)):
                    connection.protocol.send_frame("DISCONNECT", {})
                    connection.flush(1.0)
        except ConnectionLost:
            self._log(
                "the broker disconnected before the end; everything was confirmed before that"
            )
        finally:
            self.drop()

    def drop(self) -> None:
        """Close both connections at once, without DISCONNECT."""
        connection, self._connection = self._connection, None
        if connection is not None:
            _drop_standby(connection)
            connection.close()

    # -- sending
    # ---------------------------------------------------------------------------------------------

    def send(
        self,
        batch: Batch,
        documents: Sequence[bytes],
        meanwhile: Callable[[], None] = lambda: None,
    ) -> None:
        """Send a batch as one transaction and wait for the receipt of its COMMIT.

        If the batch was staged, the broker has its messages already and only the COMMIT
        is missing.
        """
        assert self._connection is not None
        staged, self._staged = self._staged, None
        committing, self._sending = False, True
        try:
            if self._staging_error is not None:
                self._swap()  # the broker's reason arrived on the other connection
                raise self._staging_error
            if staged is not None and staged[0] == (batch.snapshot_no, batch.number):
                transaction = staged[1]
                self._swap()
            else:
                if staged is not None:
                    _drop_standby(self._connection)  # with messages that will never be committed
                transaction = self._write(batch, documents)
            if self._connection.first_error() is not None:
                raise ConnectionLost("the broker sent an error")
            self._await_taken(transaction)
            committing = True
            self._commit(transaction, meanwhile)
        except ConnectionLost as error:
            frame = self._connection.first_error()
            self.drop()
            if frame is not None:
                raise self._make_error(frame, in_doubt=committing) from None
            raise RetryableError(error.reason, in_doubt=committing) from None
        except SendError:
            self.drop()
            raise
        self._sending = self._is_staging()

    def _is_staging(self) -> bool:
        """Return whether a part of the next batch was written, so that the connection
        cannot end with DISCONNECT.
        """
        return self._staged is not None or self._staging_error is not None

    def stage(self, batch: Batch, documents: Sequence[bytes]) -> None:
        """Write a batch's messages in a transaction of its own, uncommitted: without a
        COMMIT they never count.

        A connection that breaks here is reported when the batch is sent: the one before
        it may still be receipted.
        """
        assert self._connection is not None
        if self._connection.standby is None and self._may_have_standby:
            try:
                self._connection.standby = self._connector.open_standby(self._connection)
            except (ConnectionLost, NotAllowed):
                # The broker allows no second connection: the first does all the work.
                self._may_have_standby = False
        self._swap()
        try:
            self._staged = ((batch.snapshot_no, batch.number), self._write(batch, documents))
        except ConnectionLost as error:
            self._staged, self._staging_error = None, error
        finally:
            self._swap()

    def _swap(self) -> None:
        """Switch to the other connection, where there are two."""
        if self._connection is not None and self._connection.standby is not None:
            self._connection = self._connection.standby

    def _write(self, batch: Batch, documents: Sequence[bytes]) -> str:
        """Write BEGIN and the messages; returns the transaction's name."""
        connection, stall = self._connection, self._timeouts.stall
        assert connection is not None
        protocol = connection.protocol
        self._transactions += 1
        transaction = f"b{batch.snapshot_no}.{batch.number}.{self._transactions}"
        protocol.begin(transaction=transaction)
        headers = {**self._headers, "transaction": transaction}
        for document in documents:
            protocol.send(
                self._broker.destination,
                document,
                content_type="application/json",
                headers=dict(headers),
            )
            if connection.pending > _FLUSH_BYTES:
                connection.flush(stall)
        # No message asks for a receipt itself: a full queue sets such a message aside,
        # loses it, and processes what follows, including the COMMIT. Without one, the
        # broker waits for room and answers this after all messages.
        marker = _taken(transaction)
        protocol.begin(transaction=marker, receipt=marker)
        protocol.abort(transaction=marker)
        connection.flush(stall)
        return transaction

    def _await_taken(self, transaction: str) -> None:
        """Wait until the broker has all messages of a transaction: a COMMIT that it
        never saw leaves no doubt.

        The next batch is not written before that either: two incomplete batches in a
        queue with room for one would wait for each other.
        """
        connection = self._connection
        assert connection is not None
        stall = StallTimer(
            self._clock, self._timeouts.stall, self._log, "no receipt of a batch's messages"
        )
        while True:
            frame = connection.receive(stall.remaining())
            if frame is None:
                continue
            if frame.cmd == "RECEIPT" and frame.headers.get("receipt-id") == _taken(transaction):
                return
            if frame.cmd == "ERROR":
                raise self._make_error(frame, in_doubt=False)

    def _commit(self, transaction: str, meanwhile: Callable[[], None]) -> None:
        connection = self._connection
        assert connection is not None
        receipt, probe = f"commit-{transaction}", f"probe-{transaction}"
        connection.protocol.commit(transaction=transaction, receipt=receipt)
        connection.flush(self._timeouts.stall)
        meanwhile()
        # The timer starts only now: nobody reads receipts while the next batch is written.
        stall = StallTimer(self._clock, self._timeouts.stall, self._log, "no receipt of a commit")
        probe_at, is_probed = self._clock.monotonic() + self._timeouts.probe, False
        while True:
            frame = connection.receive(min(stall.remaining(), self._timeouts.probe))
            if frame is None:
                if not is_probed and self._clock.monotonic() >= probe_at:
                    # Frames are answered in order: a probe answered before the commit
                    # means that its receipt was lost.
                    connection.protocol.begin(transaction=probe, receipt=probe)
                    connection.flush(self._timeouts.stall)
                    is_probed = True
            elif frame.cmd == "RECEIPT" and frame.headers.get("receipt-id") == receipt:
                return
            elif frame.cmd == "RECEIPT" and frame.headers.get("receipt-id") == probe:
                raise RetryableError("the receipt of a commit did not come", in_doubt=True)
            elif frame.cmd == "ERROR":
                is_ours = frame.headers.get("receipt-id") == receipt
                if "rollback only" in error_text(frame, self._broker):
                    frame = _following_error(connection) or frame
                # A refused COMMIT leaves no doubt; but a broker that shuts down may
                # have made it all the same.
                is_refused = is_ours and not _TEMPORARY.search(error_text(frame, self._broker))
                raise self._make_error(frame, in_doubt=not is_refused)

    # -- errors
    # ----------------------------------------------------------------------------------------------

    def _make_error(self, frame: Any, *, in_doubt: bool) -> Exception:
        """Return the exception for an ERROR frame about a batch."""
        reason = error_text(frame, self._broker)
        if NOT_ALLOWED.search(reason):
            return not_allowed(reason, self._broker.where, in_doubt=in_doubt)
        if _TEMPORARY.search(reason):
            return RetryableError(f"the broker says: {reason}", in_doubt=in_doubt)
        return RejectedError(f"the broker says: {reason}", in_doubt=in_doubt)


def _drop_standby(connection: StompConnection) -> None:
    standby, connection.standby = connection.standby, None
    if standby is not None:
        standby.close()


def _following_error(connection: StompConnection) -> Any | None:
    """Return the ERROR that follows another: ActiveMQ may say why it took no message
    after it refused their COMMIT.
    """
    try:
        frame = connection.receive(1.0)
    except ConnectionLost:
        return None
    return frame if frame is not None and frame.cmd == "ERROR" else None


def _taken(transaction: str) -> str:
    """Return the empty transaction whose receipt says that the broker has all messages
    of ``transaction``.
    """
    return f"taken-{transaction}"
