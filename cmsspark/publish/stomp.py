"""The STOMP sink: a batch is one transaction of persistent messages, confirmed by the receipt of its COMMIT.

Nothing else confirms: a message that was written, a connection that stayed up and a receipt of a message that is not
persistent have all been seen to lose documents.

A broker works on one connection's frames in order, so a second connection takes the next batch's messages while the
first one's COMMIT is worked on. Only one COMMIT is ever on its way.
"""

from __future__ import annotations

import hashlib
import re
import socket
import ssl
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Final

from cmsspark.errors import NotAllowed
from cmsspark.publish.credentials import Broker
from cmsspark.publish.dial import LinkDown, addresses
from cmsspark.publish.ledger import Batch
from cmsspark.publish.link import NO_STOMP, Link, Patience, connect
from cmsspark.publish.sink import Clock, Refused, SystemClock, Unconfirmed

#: Write out what was made so far from this size on: the broker works while the next frames are made.
_FLUSH_BYTES: Final = 262_144
_NOT_ALLOWED: Final = re.compile(
    r"password|credential|authenti|authori[sz]|security ?exception|access denied|not permitted|login", re.IGNORECASE
)
_PASSING: Final = re.compile(
    r"shutting down|shut ?down|stopp(ed|ing)|dispos|resourceallocation|usage manager|limit reached|slave|timed? ?out"
    r"|inactiv",
    re.IGNORECASE,
)


@dataclass(frozen=True)
class Timeouts:
    """Deadlines in seconds. ``connect`` for each address with its TLS handshake, ``login`` for the answer to CONNECT.

    ``stall``: how long a broker that shows life may take nothing, or owe a receipt. ``probe``: when to ask it whether
    it is only slow. ``beat``: between heartbeats.
    """

    connect: float = 5.0
    login: float = 10.0
    stall: float = 300.0
    probe: float = 10.0
    beat: float = 4.0


class StompSink:
    """Publishes to the first address of ``broker`` that answers. Raises as :class:`cmsspark.publish.sink.Sink` says."""

    def __init__(
        self,
        broker: Broker,
        kind: str,
        producer: str,
        timeouts: Timeouts | None = None,
        clock: Clock | None = None,
        told: Callable[[str], None] = lambda text: None,
    ) -> None:
        """``kind``: the documents' type, for the headers; ``told``: hears of trouble that is waited out."""
        self._broker = broker
        self._timeouts = timeouts or Timeouts()
        self._clock = clock or SystemClock()
        self._told = told
        self._headers = {"persistent": "true", "version": broker.version, "producer": producer, "type": kind}
        self._link: Link | None = None
        self._dialled: tuple[str, int, tuple[Any, ...], ssl.SSLContext | None] | None = None
        self._may_have_other = True
        self._failed: dict[tuple[Any, ...], float] = {}
        self._receipts = 0
        self._sending = False
        self._staged: tuple[tuple[int, int], str] | None = None
        self._trouble: LinkDown | None = None
        self.where = broker.where
        name = f"{broker.destination} {sorted(broker.addresses)}"
        plain = re.sub(r"[^A-Za-z0-9.-]", "-", broker.destination.split("/", 2)[2])
        self.slug = f"stomp-{plain}-{hashlib.sha256(name.encode()).hexdigest()[:8]}"

    # -- connecting ------------------------------------------------------------------------------------------

    def open(self) -> None:
        """Connect and log in, at one address after another: those that failed lately come last."""
        context = self._broker.tls()
        reasons: list[str] = []
        for host, family, address in self._candidates(reasons):
            try:
                self._link = self._connected(host, family, address, context)
            except LinkDown as error:
                if error.forbidden:
                    raise self._not_allowed(error.reason, f"{host}:{address[1]}") from None
                self._failed[address] = self._clock.monotonic()
                reasons.append(f"{address[0]}:{address[1]}: {error.reason}")
                continue
            self._failed.pop(address, None)
            self._dialled, self._may_have_other = (host, family, address, context), True
            self._sending, self._staged, self._trouble = False, None, None
            return
        raise Unconfirmed(f"no broker takes us: {'; '.join(reasons)}")

    def _candidates(self, reasons: list[str]) -> list[tuple[str, int, tuple[Any, ...]]]:
        """(name, family, address) of every address behind every name: those that worked first, IPv4 first."""
        found: list[tuple[str, int, tuple[Any, ...]]] = []
        for host, port in self._broker.addresses:
            try:
                found.extend((host, family, address) for family, address in addresses(host, port))
            except LinkDown as error:
                reasons.append(error.reason)
        return sorted(found, key=lambda one: (self._failed.get(one[2], -1.0), one[1] != socket.AF_INET))

    def _connected(
        self, host: str, family: int, address: tuple[Any, ...], context: ssl.SSLContext | None,
        beside: Link | None = None,
    ) -> Link:  # fmt: skip
        """A link that was let in."""
        link = connect(host, address, family, context, self._timeouts.connect, self._clock, self._told)
        link.beside = beside
        self._log_in(link)
        return link

    def _log_in(self, link: Link) -> None:
        from stomp.protocol import Protocol12

        beat = int(self._timeouts.beat * 1000)
        try:
            link.protocol = Protocol12(link, heartbeats=(0, 0))
            link.protocol.connect(
                self._broker.username, self._broker.password, headers={"heart-beat": f"{beat},{beat}"}
            )
            link.flush(self._timeouts.login)
            frame = link.receive(self._timeouts.login, "CONNECTED")
            if frame is None:
                raise LinkDown(f"it accepts connections and stays silent ({self._timeouts.login:.0f} s)")
            if frame.cmd not in ("CONNECTED", "ERROR"):
                raise LinkDown(NO_STOMP)
            if frame.cmd == "ERROR":
                reason = self._reason(frame)
                if _NOT_ALLOWED.search(reason):
                    raise self._not_allowed(reason, f"{link.current_host_and_port[0]}:{link.current_host_and_port[1]}")
                raise LinkDown(reason)
            link.agree_beats(self._timeouts.beat, frame.headers.get("heart-beat", "0,0"))
        except BaseException:
            link.close()
            raise

    def close(self) -> None:
        """Leave. All that counts was confirmed before, so a broker that does not answer is not waited for."""
        if self._link is None:
            return
        try:
            # In the middle of a batch the broker may be in the middle of a frame: then only the end of the link is
            # clear.
            if not self._sending:
                for link in filter(None, (self._link.beside, self._link)):
                    link.protocol.send_frame("DISCONNECT", {})
                    link.flush(1.0)
        except LinkDown:
            self._told("the broker was gone before the end; everything was confirmed before that")
        finally:
            self.drop()

    def drop(self) -> None:
        """Close at once, without a word: for links of which one failed."""
        link, self._link = self._link, None
        if link is not None:
            _drop_other(link)
            link.close()

    # -- sending ---------------------------------------------------------------------------------------------

    def send(self, batch: Batch, documents: Sequence[bytes], meanwhile: Callable[[], None] = lambda: None) -> None:
        """Send a batch as one transaction and wait for the receipt of its COMMIT.

        When it was staged its messages are there already, and only the COMMIT is missing.
        """
        assert self._link is not None
        staged, self._staged = self._staged, None
        committing, self._sending = False, True
        try:
            if self._trouble is not None:
                self._swap()  # the broker's word on it is there
                raise self._trouble
            if staged is not None and staged[0] == (batch.generation, batch.number):
                transaction = staged[1]
                self._swap()
            else:
                if staged is not None:
                    _drop_other(self._link)  # with what nobody will commit
                transaction = self._write(batch, documents)
            if self._link.first_error() is not None:
                raise LinkDown("the broker sent an error")
            self._await_taken(transaction)
            committing = True
            self._commit(transaction, meanwhile)
        except LinkDown as error:
            answer = self._link.first_error()
            self.drop()
            if answer is not None:
                raise self._verdict(answer, in_doubt=committing) from None
            raise Unconfirmed(error.reason, in_doubt=committing) from None
        except Unconfirmed:
            self.drop()
            raise
        self._sending = self._is_ahead()

    def _is_ahead(self) -> bool:
        """Whether a part of the next batch was written, so that the link cannot end with a word."""
        return self._staged is not None or self._trouble is not None

    def stage(self, batch: Batch, documents: Sequence[bytes]) -> None:
        """Write a batch's messages in a transaction of its own, uncommitted: if nothing follows, they never were.

        A link that breaks here is found when the batch has its turn: the batch before it may still be receipted.
        """
        assert self._link is not None
        if self._link.beside is None and self._may_have_other:
            self._open_other(self._link)
        self._swap()
        try:
            self._staged = ((batch.generation, batch.number), self._write(batch, documents))
        except LinkDown as error:
            self._staged, self._trouble = None, error
        finally:
            self._swap()

    def _swap(self) -> None:
        """The one connection for the other, where there are two."""
        if self._link is not None and self._link.beside is not None:
            self._link = self._link.beside

    def _open_other(self, link: Link) -> None:
        """A second connection to the same address; each is kept alive while the other is waited for.

        Where there is none to have, one must do.
        """
        assert self._dialled is not None
        try:
            link.beside = self._connected(*self._dialled, beside=link)
        except (LinkDown, NotAllowed):
            self._may_have_other = False

    def _write(self, batch: Batch, documents: Sequence[bytes]) -> str:
        """BEGIN and the messages; returns the transaction."""
        link, stall = self._link, self._timeouts.stall
        assert link is not None
        protocol = link.protocol
        self._receipts += 1
        transaction = f"b{batch.generation}.{batch.number}.{self._receipts}"
        protocol.begin(transaction=transaction)
        headers = {**self._headers, "transaction": transaction}
        for document in documents:
            protocol.send(self._broker.destination, document, content_type="application/json", headers=dict(headers))
            if link.pending > _FLUSH_BYTES:
                link.flush(stall)
        # No message asks for a receipt itself: a full queue puts such a one aside, loses it, and works on what follows,
        # the COMMIT too. Without, the broker waits for room, and answers this after all messages.
        marker = _taken(transaction)
        protocol.begin(transaction=marker, receipt=marker)
        protocol.abort(transaction=marker)
        link.flush(stall)
        return transaction

    def _await_taken(self, transaction: str) -> None:
        """Wait until the broker has all messages of a transaction: a COMMIT that it never saw leaves no doubt.

        Nor is the next batch written before: two half batches in a queue that has no room for both would wait for each
        other.
        """
        link = self._link
        assert link is not None
        patience = Patience(self._clock, self._timeouts.stall, self._told, "no receipt of a batch's messages")
        while True:
            frame = link.receive(patience.left(), "RECEIPT")
            if frame is None:
                continue
            if frame.cmd == "RECEIPT" and frame.headers.get("receipt-id") == _taken(transaction):
                return
            if frame.cmd == "ERROR":
                raise self._verdict(frame, in_doubt=False)

    def _commit(self, transaction: str, meanwhile: Callable[[], None]) -> None:
        link = self._link
        assert link is not None
        receipt, probe = f"commit-{transaction}", f"probe-{transaction}"
        link.protocol.commit(transaction=transaction, receipt=receipt)
        link.flush(self._timeouts.stall)
        meanwhile()
        # Only now: while the next batch is written nobody looks for the receipt, which may be there.
        patience = Patience(self._clock, self._timeouts.stall, self._told, "no receipt of a commit")
        ask_at, asked = self._clock.monotonic() + self._timeouts.probe, False
        while True:
            frame = link.receive(min(patience.left(), self._timeouts.probe), "RECEIPT")
            if frame is None:
                if not asked and self._clock.monotonic() >= ask_at:
                    # Answered in order: a probe that is answered before the commit says that its receipt got lost.
                    link.protocol.begin(transaction=probe, receipt=probe)
                    link.flush(self._timeouts.stall)
                    asked = True
            elif frame.cmd == "RECEIPT" and frame.headers.get("receipt-id") == receipt:
                return
            elif frame.cmd == "RECEIPT" and frame.headers.get("receipt-id") == probe:
                raise Unconfirmed("the receipt of a commit did not come", in_doubt=True)
            elif frame.cmd == "ERROR":
                is_ours = frame.headers.get("receipt-id") == receipt
                if "rollback only" in self._reason(frame):
                    frame = _behind(link) or frame
                # A refusal of the COMMIT leaves no doubt; but a broker that goes down may have made it all the same.
                is_refused = is_ours and not _PASSING.search(self._reason(frame))
                raise self._verdict(frame, in_doubt=not is_refused)

    # -- judging ---------------------------------------------------------------------------------------------

    def _verdict(self, frame: Any, *, in_doubt: bool) -> Exception:
        """What an ERROR frame about a batch means."""
        reason = self._reason(frame)
        if _NOT_ALLOWED.search(reason):
            return self._not_allowed(reason, self._broker.where)
        if _PASSING.search(reason):
            return Unconfirmed(f"the broker says: {reason}", in_doubt=in_doubt)
        return Refused(f"the broker says: {reason}", in_doubt=in_doubt)

    def _reason(self, frame: Any) -> str:
        body = frame.body.decode("utf-8", errors="replace") if isinstance(frame.body, bytes) else str(frame.body or "")
        first = body.strip().splitlines()[0] if body.strip() else ""
        text = str(frame.headers.get("message") or first or "an error without a word")
        return self._broker.without_secrets(" ".join(text.split())[:300])

    def _not_allowed(self, reason: str, where: str) -> NotAllowed:
        return NotAllowed(
            "the broker does not let us publish",
            where=where,
            found=self._broker.without_secrets(reason),
            next_step="check user name, password, certificates and topic in the credentials file",
        )


def _drop_other(link: Link) -> None:
    other, link.beside = link.beside, None
    if other is not None:
        other.close()


def _behind(link: Link) -> Any | None:
    """The ERROR that comes behind another: ActiveMQ may say why it took no message after it refused their COMMIT."""
    try:
        frame = link.receive(1.0, "ERROR")
    except LinkDown:
        return None
    return frame if frame is not None and frame.cmd == "ERROR" else None


def _taken(transaction: str) -> str:
    """The empty transaction whose receipt says that the broker has taken all messages of ``transaction``."""
    return f"taken-{transaction}"
