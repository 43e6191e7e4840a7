"""The STOMP sink against a broker that fails on demand: what each failure means for the batch."""

from __future__ import annotations

import json
import socket
import ssl
import threading
import time
from contextlib import suppress
from pathlib import Path

import pytest

from cmsspark.base.errors import NotAllowed, NotReady
from cmsspark.publish.batch_log import Batch
from cmsspark.publish.credentials import Broker
from cmsspark.publish.outbox import Outbox
from cmsspark.publish.publisher import Publisher, RetryPolicy
from cmsspark.publish.sink import RejectedError, RetryableError
from cmsspark.publish.sinks.stomp import StompSink, StompTimeouts
from tests.activemq import Certificates
from tests.ports import free_port
from tests.publish.days import Clock, fill, ids, outbox_in, rows
from tests.publish.fake_broker import FakeBroker, Faults, broker

BATCH = Batch(1, 1, "part-0001.jsonl", 0, 0, 3, "")
DOCUMENTS = [b'{"a":1}', b'{"b":"\xc3\xa9"}', b'{"c":3}']
#: Only what shows life is waited for so long: these tests hold on a busy machine, too.
PATIENT = StompTimeouts(connect=30, login=30, stall=30, probe=0.2, heartbeat=4)
#: For a silent broker: its deadlines are short, and those that it must not cost are long.
SILENT = StompTimeouts(connect=30, login=2, stall=30, probe=0.2, heartbeat=4)


def sink_to(
    *ports: int, timeouts: StompTimeouts = PATIENT, log: list[str] | None = None
) -> StompSink:
    addresses = tuple(("127.0.0.1", port) for port in ports)
    lines = log if log is not None else []
    there = Broker(
        addresses, "/queue/test.documents", username="somebody", password="planted-secret"
    )
    return StompSink(there, "data_aggregation", "cms-test", timeouts, log=lines.append)


def send(
    fake: FakeBroker, timeouts: StompTimeouts = PATIENT, documents: list[bytes] | None = None
) -> None:
    sink = sink_to(fake.port, timeouts=timeouts)
    sink.open()
    try:
        sink.send(BATCH, documents or DOCUMENTS)
    finally:
        sink.close()


def test_a_batch_is_there_byte_for_byte_when_send_returns() -> None:
    with broker() as fake:
        send(fake)
        assert fake.stored == DOCUMENTS


def test_refused_by_all_names_each_address() -> None:
    first, second = free_port(), free_port()
    with pytest.raises(RetryableError) as caught:
        sink_to(first, second).open()
    assert f"127.0.0.1:{first}: Connection refused" in caught.value.reason
    assert f"127.0.0.1:{second}: Connection refused" in caught.value.reason


def test_a_name_that_does_not_resolve_is_reported() -> None:
    with pytest.raises(RetryableError, match="does not resolve"):
        StompSink(Broker((("no-such-host.invalid", 1),), "/queue/x"), "t", "p", PATIENT).open()


def test_a_dead_address_is_passed_over_and_comes_last_the_next_time() -> None:
    with broker() as fake:
        sink = sink_to(free_port(), fake.port)
        for _ in range(2):
            sink.open()
            sink.send(BATCH, DOCUMENTS)
            sink.close()
        assert len(fake.stored) == 6
        assert sink._connector._candidates([])[0][2][1] == fake.port


def test_a_silent_peer_costs_its_own_deadline_and_no_more() -> None:
    with broker(Faults(silent=True)) as fake:
        started = time.monotonic()
        with pytest.raises(RetryableError, match="stays silent"):
            sink_to(fake.port, timeouts=SILENT).open()
        assert time.monotonic() - started < 300


def test_a_wrong_password_is_reported_at_once_and_the_password_is_not() -> None:
    with (
        broker(
            Faults(login_error="User name [somebody] or password planted-secret is invalid")
        ) as fake,
        pytest.raises(NotAllowed) as caught,
    ):
        sink_to(fake.port).open()
    assert "or password *** is invalid" in str(caught.value)
    assert "planted-secret" not in str(caught.value) and "somebody" not in str(caught.value)
    assert fake.connections == 1


@pytest.mark.parametrize(
    "answer",
    [
        b"HTTP/1.1 400 Bad Request\n\n\0",
        b"CONNECTED\ncontent-length:-1\n\n\0",
        b"CONNECTED\ncontent-length:1e9\n\n\0",
        b"CONNECTED\nheart-beat:soon\n\n\0",
        b"CONNECTED\nheart-beat:1\n\n\0",
        b"x" * 17_000_000,
    ],
)
def test_what_speaks_no_stomp_is_reported(answer: bytes) -> None:
    with socket.create_server(("127.0.0.1", 0)) as server:

        def serve() -> None:
            connection, _ = server.accept()
            with connection, suppress(OSError):
                connection.recv(65_536)
                connection.sendall(answer)

        thread = threading.Thread(target=serve)
        thread.start()
        with pytest.raises(RetryableError, match="does not speak STOMP"):
            sink_to(server.getsockname()[1], timeouts=PATIENT).open()
        thread.join()


@pytest.mark.parametrize(
    ("fault", "in_doubt", "stored"),
    [
        (Faults(close_after_sends=2), None, 0),
        (Faults(commit="drop"), True, 0),
        (Faults(commit="lost"), True, 3),
        (Faults(receipt="never"), True, 3),
    ],
    ids=["before-commit", "at-commit", "after-commit", "no-receipt"],
)
def test_a_batch_without_a_receipt_is_not_confirmed(
    fault: Faults, in_doubt: bool | None, stored: int
) -> None:
    with broker(fault) as fake, pytest.raises(RetryableError) as caught:
        send(fake)
    assert not isinstance(caught.value, RejectedError)
    assert in_doubt is None or caught.value.in_doubt is in_doubt
    assert len(fake.stored) == stored


def test_a_close_while_sending_leaves_no_doubt() -> None:
    with broker(Faults(close_after_sends=1)) as fake, pytest.raises(RetryableError) as caught:
        send(fake, documents=[b"x" * 4_000_000] * 3)
    assert not caught.value.in_doubt


@pytest.mark.parametrize("receipt", ["twice", "stray"])
def test_receipts_that_mean_nothing_are_ignored(receipt: str) -> None:
    with broker(Faults(receipt=receipt)) as fake:
        sink = sink_to(fake.port)
        sink.open()
        sink.send(BATCH, DOCUMENTS)
        sink.send(BATCH, DOCUMENTS)
        sink.close()
        assert len(fake.stored) == 6


def test_a_receipt_that_is_late_is_waited_for() -> None:
    fault = Faults(receipt="late")
    with broker(fault) as fake:
        timer = threading.Timer(0.5, fault.gate.set)
        timer.start()
        send(fake)
        timer.join()
        assert len(fake.stored) == 3


def test_a_lost_receipt_is_noticed_by_asking_and_not_by_the_long_deadline() -> None:
    with (
        broker(Faults(receipt="never")) as fake,
        pytest.raises(RetryableError, match="receipt of a commit did not come"),
    ):
        send(fake, StompTimeouts(connect=30, login=30, stall=60, probe=0.1))


def test_a_refused_transaction_counts_nothing_and_says_why() -> None:
    with (
        broker(Faults(commit="refuse")) as fake,
        pytest.raises(RejectedError, match="the transaction is refused") as caught,
    ):
        send(fake)
    assert not caught.value.in_doubt
    assert fake.stored == []


def test_a_missing_right_that_is_reported_after_the_commit_is_no_document_s_fault() -> None:
    with (
        broker(Faults(commit="forbid")) as fake,
        pytest.raises(NotAllowed, match="not authorized to write"),
    ):
        send(fake)


def test_a_broker_that_goes_down_at_a_commit_may_have_made_it() -> None:
    with (
        broker(Faults(commit="go down")) as fake,
        pytest.raises(RetryableError, match="shutting down") as caught,
    ):
        send(fake)
    assert caught.value.in_doubt and not isinstance(caught.value, RejectedError)
    assert fake.stored == DOCUMENTS


def test_a_broker_that_takes_no_data_is_reported_as_stalled() -> None:
    fault = Faults(stop_reading_after=1)
    with (
        broker(fault) as fake,
        pytest.raises(RetryableError, match="broker stalled: it takes no data") as caught,
    ):
        send(
            fake, StompTimeouts(connect=30, login=30, stall=0.8), documents=[b"x" * 4_000_000] * 10
        )
    assert not caught.value.in_doubt


def test_a_full_queue_loses_no_message_of_a_batch_that_it_confirms() -> None:
    with broker(Faults(is_full=True)) as fake:
        send(fake)
        assert fake.stored == DOCUMENTS


def test_no_commit_is_sent_before_the_broker_has_all_messages() -> None:
    with (
        broker(Faults(stop_reading_after=1)) as fake,
        pytest.raises(RetryableError, match="broker stalled") as caught,
    ):
        send(fake, StompTimeouts(connect=30, login=30, stall=0.8))
    assert not caught.value.in_doubt
    assert fake.stored == []


def test_a_half_open_link_is_noticed_by_its_heartbeats() -> None:
    # The link is dead after three beats: enough for a busy machine to come to the commit.
    fault = Faults(receipt="late", heartbeat="500,500")
    with broker(fault) as fake, pytest.raises(RetryableError, match="no heartbeat") as caught:
        send(fake, StompTimeouts(connect=30, login=30, stall=60, probe=60, heartbeat=0.5))
    assert caught.value.in_doubt


# -- TLS
# -------------------------------------------------------------------------------------------------------


def tls_sink(fake: FakeBroker, certificates: Certificates, ca: str = "ca.pem") -> StompSink:
    there = Broker((("localhost", fake.port),), "/queue/test.documents", ca=Path(certificates[ca]))
    return StompSink(there, "data_aggregation", "cms-test", PATIENT)


def server(certificates: Certificates, name: str = "server") -> ssl.SSLContext:
    context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    context.load_cert_chain(certificates[f"{name}.pem"], certificates[f"{name}.key"])
    return context


@pytest.mark.parametrize(
    ("name", "ca", "word"),
    [
        ("server", "other-ca.pem", "unable to get local issuer"),
        ("elsewhere", "ca.pem", "[Hh]ostname mismatch"),
        ("expired", "ca.pem", "expired"),
    ],
)
def test_a_certificate_that_does_not_fit_is_never_accepted(
    certificates: Certificates, name: str, ca: str, word: str
) -> None:
    with broker(context=server(certificates, name)) as fake, pytest.raises(NotAllowed, match=word):
        tls_sink(fake, certificates, ca).open()


@pytest.mark.parametrize(
    ("fault", "in_doubt"), [(Faults(close_after_sends=1), False), (Faults(commit="lost"), True)]
)
def test_a_clean_tls_close_in_the_middle_is_a_failure_like_any_other(
    certificates: Certificates, fault: Faults, in_doubt: bool
) -> None:
    documents = [b"x" * 4_000_000] * 3 if not in_doubt else DOCUMENTS
    with broker(fault, context=server(certificates)) as fake:
        sink = tls_sink(fake, certificates)
        sink.open()
        with pytest.raises(RetryableError) as caught:
            sink.send(BATCH, documents)
        assert caught.value.in_doubt is in_doubt
        sink.open()
        sink.send(BATCH, documents)
        sink.close()
        assert fake.stored[-3:] == documents


# -- the whole way: outbox, drain, broker
# ----------------------------------------------------------------------


def publish(outbox: Outbox, fake: FakeBroker, policy: RetryPolicy | None = None) -> None:
    timeouts = SILENT if any(fault.silent for fault in fake.faults) else PATIENT
    Publisher(outbox, sink_to(fake.port, timeouts=timeouts), policy, Clock()).run()


@pytest.mark.parametrize(
    ("fault", "doubles"),
    [
        (Faults(close_at_once=True), 0),
        (Faults(silent=True), 0),
        (Faults(close_after_sends=700), 0),
        (Faults(commit="drop"), 0),
        (Faults(commit="lost"), 500),
        (Faults(receipt="never"), 500),
        (Faults(commit="refuse"), 0),
    ],
)
def test_after_one_failure_all_is_there_and_at_most_one_batch_double(
    tmp_path: Path, fault: Faults, doubles: int
) -> None:
    with broker(fault) as fake, outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(1_200))
        publish(outbox, fake)
        assert outbox.totals().confirmed == 1_201
        assert len(set(ids(fake.stored))) == 1_201
        assert len(fake.stored) - 1_201 == doubles


@pytest.mark.parametrize("guilty", [0, 77, 499, 500, 577])
def test_an_error_without_receipt_finds_the_guilty_document(tmp_path: Path, guilty: int) -> None:
    def poison(body: bytes) -> bool:
        return json.loads(body).get("primary_name") == f"P{guilty}"

    with (
        broker(*[Faults(poison=poison) for _ in range(40)]) as fake,
        outbox_in(tmp_path).held() as outbox,
    ):
        fill(outbox, rows(600))
        publish(outbox, fake)
        assert (outbox.totals().confirmed, outbox.totals().refused) == (600, 1)
        assert len(fake.stored) == len(set(ids(fake.stored))) == 600


def test_with_no_broker_at_all_nothing_is_lost_and_the_addresses_are_named(tmp_path: Path) -> None:
    port = free_port()
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2))
        with pytest.raises(NotReady, match=f"127.0.0.1:{port}: Connection refused"):
            Publisher(outbox, sink_to(port), RetryPolicy(patience=30), Clock()).run()
        assert outbox.totals().waiting == 3


@pytest.mark.parametrize(
    "second",
    [Faults(close_at_once=True), Faults(silent=True), Faults(login_error="one is enough")],
)
def test_where_there_is_no_second_connection_one_must_do(tmp_path: Path, second: Faults) -> None:
    with broker(Faults(), second) as fake, outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2_200))
        publish(outbox, fake)
        assert fake.connections == 2
        assert len(fake.stored) == len(set(ids(fake.stored))) == outbox.totals().confirmed == 2_201


def test_two_connections_take_turns_and_one_commit_is_on_its_way(tmp_path: Path) -> None:
    with broker() as fake, outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2_200))
        publish(outbox, fake)
        assert fake.connections == 2
        spooled = [
            line for batch in outbox.batch_log.batches() for line in outbox.spool.read(batch)
        ]
        assert fake.stored == spooled
