"""One thread and two connections: what is there on the one is not missed while the
other is waited for.
"""

from __future__ import annotations

import socket
import ssl
import threading
from pathlib import Path
from typing import Any

import pytest

from cmsspark.base.sockets import ConnectionLost
from cmsspark.publish.batch_log import Batch
from cmsspark.publish.publisher import Publisher
from cmsspark.publish.sinks.stomp import StompTimeouts
from cmsspark.publish.stomp_connection import StallTimer, StompConnection
from tests.activemq import Certificates
from tests.publish.days import Clock, fill, ids, outbox_in, rows
from tests.publish.fake_broker import Faults, broker
from tests.publish.test_stomp_faults import BATCH, DOCUMENTS, server, sink_to

NEXT = Batch(2, 1, "part-0001.jsonl", 0, 0, 5, "")
LARGE = [b"x" * 4_000_000] * 5


def test_a_receipt_that_is_there_confirms_however_long_the_next_batch_blocked() -> None:
    with broker(Faults(), Faults(stop_reading_after=1)) as fake:
        sink = sink_to(fake.port, timeouts=StompTimeouts(connect=30, login=30, stall=2, probe=30))
        sink.open()
        sink.send(BATCH, DOCUMENTS, lambda: sink.stage(NEXT, LARGE))
        sink.drop()
        assert fake.stored == DOCUMENTS


@pytest.mark.parametrize("when", ["before", "after"])
@pytest.mark.parametrize("connection", [0, 1])
def test_closed_at_whatever_frame_only_a_commit_that_was_made_is_double(
    tmp_path: Path, connection: int, when: str
) -> None:
    # CONNECT, BEGIN, the two of the empty transaction, COMMIT, DISCONNECT: of two
    # batches one on each connection.
    for number in range(1, 7):
        faults = [Faults(), Faults()]
        faults[connection] = Faults(close_at=(number, when))
        with broker(*faults) as fake, outbox_in(tmp_path / str(number)).held() as outbox:
            fill(outbox, rows(600))
            Publisher(outbox, sink_to(fake.port), clock=Clock()).run()
            assert outbox.totals().confirmed == len(set(ids(fake.stored))) == 601
            doubles = len(fake.stored) - 601
            assert doubles <= ((500, 101)[connection] if (number, when) == (5, "after") else 0)


@pytest.mark.parametrize(
    "blocked", [{"stop_reading_after": 1}, {"silent": True}], ids=["writing", "log-in"]
)
def test_a_commit_s_connection_is_kept_alive_while_the_other_blocks(
    blocked: dict[str, Any],
) -> None:
    # The broker receipts, and goes on with the other connection, once it was given
    # three heartbeats.
    first = Faults(heartbeat="0,50", beats=3)
    with broker(first, Faults(gate=first.gate, **blocked)) as fake:
        sink = sink_to(
            fake.port,
            timeouts=StompTimeouts(connect=30, login=30, stall=30, probe=30, heartbeat=0.05),
        )
        sink.open()
        sink.send(BATCH, DOCUMENTS, lambda: sink.stage(NEXT, LARGE))
        sink.send(NEXT, LARGE)
        sink.drop()
        assert fake.stored == [*DOCUMENTS, *LARGE]


def test_patience_ends_after_a_last_look() -> None:
    clock = Clock()
    patience = StallTimer(clock, 5, lambda text: None, "nothing came")
    clock.sleep(300)  # the process was stopped, say
    assert patience.remaining() == 0
    with pytest.raises(ConnectionLost, match="nothing came for 300 s"):
        patience.remaining()


def test_a_receipt_that_comes_with_the_end_of_the_link_is_seen_when_a_heartbeat_finds_that_end() -> (
    None
):
    near, far = socket.socketpair()

    class Late(socket.socket):
        """The broker receipts and leaves after the link was read, just before the
        heartbeat is written.
        """

        def send(self, piece: Any, flags: int = 0) -> int:
            far.sendall(b"RECEIPT\nreceipt-id:commit-1\n\n\0")
            far.close()
            return super().send(piece, flags)

    late, clock = Late(fileno=near.detach()), Clock()
    late.setblocking(False)
    link = StompConnection(late, "localhost", 0, clock, lambda text: None)
    link.agree_heartbeats(1, "0,1000")
    clock.sleep(1)
    assert link.receive(30).headers == {"receipt-id": "commit-1"}
    with pytest.raises(ConnectionLost):
        link.receive(30)
    link.close()


def test_a_heartbeat_that_tls_puts_off_changes_no_frame(certificates: Certificates) -> None:
    near, far = socket.socketpair()
    near.setsockopt(socket.SOL_SOCKET, socket.SO_SNDBUF, 1)
    taken = bytearray()
    from stomp.utils import Frame

    def take(there: ssl.SSLSocket) -> None:
        while piece := there.recv(65_536):
            taken.extend(piece)

    accepting: list[ssl.SSLSocket] = []
    shaking = threading.Thread(
        target=lambda: accepting.append(server(certificates).wrap_socket(far, server_side=True))
    )
    shaking.start()
    secure = ssl.create_default_context(cafile=certificates["ca.pem"]).wrap_socket(
        near, server_hostname="localhost"
    )
    shaking.join()
    secure.setblocking(False)
    clock = Clock()
    link = StompConnection(secure, "localhost", 0, clock, lambda text: None)  # type: ignore[arg-type]
    link.agree_heartbeats(1, "0,1000")
    beats = 0
    while clock.sleep(1) or link._heartbeat() >= 1:
        beats += 1
    beats += 1  # and the one that is put off
    reading = threading.Thread(target=take, args=accepting)
    reading.start()
    link.transmit(Frame("COMMIT", {"transaction": "b1"}))
    link.flush(30)
    secure.shutdown(socket.SHUT_WR)
    reading.join()
    accepting[0].close()
    secure.close()
    assert bytes(taken) == b"\n" * beats + b"COMMIT\ntransaction:b1\n\n\0"
