"""Against a real ActiveMQ: what is consumed back is what was to be sent, whatever was
killed on the way.
"""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from cmsspark.base.errors import NotAllowed, NotReady
from cmsspark.publish.credentials import read_broker
from cmsspark.publish.documents import canonical, document
from cmsspark.publish.outbox import Outbox
from cmsspark.publish.publisher import Publisher, RetryPolicy
from cmsspark.publish.sinks.stomp import StompSink, StompTimeouts
from tests.activemq import PASSWORD, USER, ActiveMQ, running_or_skip
from tests.publish.days import SPEC, check_arrived, fill, outbox_in, row, rows, store_day


def sink_to(
    broker: ActiveMQ, folder: Path, queue: str, timeouts: StompTimeouts | None = None, **more: Any
) -> StompSink:
    path = broker.credentials(folder / f"{queue}.json", queue, **more)
    return StompSink(read_broker(path), "data_aggregation", "cms-test", timeouts)


def tls(broker: ActiveMQ, **more: Any) -> dict[str, Any]:
    return {
        "host_and_ports": f"localhost:{broker.tls}",
        "ca": broker.certificates["ca.pem"],
        **more,
    }


def wanted(count: int) -> set[bytes]:
    """The documents of ``rows(count)``, without the completeness document."""
    return {canonical(document(SPEC, made)) for made in rows(count)}


def bodies(messages: list[tuple[dict[str, str], bytes]]) -> Counter[bytes]:
    return Counter(body for _, body in messages if b'"document_count"' not in body)


@pytest.mark.parametrize("way", ["plain", "tls", "client certificate"])
def test_what_is_consumed_back_is_what_was_to_be_sent(
    activemq: ActiveMQ, tmp_path: Path, way: str
) -> None:
    certificates = activemq.certificates
    more: dict[str, Any] = {
        "plain": {},
        "tls": tls(activemq),
        "client certificate": tls(
            activemq,
            host_and_ports=f"localhost:{activemq.tls_client}",
            cert=certificates["client.pem"],
            key=certificates["client.key"],
        ),
    }[way]
    queue = f"back.{way.replace(' ', '-')}"
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, [*rows(1_099), row(1_099, primary_name="Ünïcødé \u2028 \\ : \x00 \r")])
        Publisher(outbox, sink_to(activemq, tmp_path, queue, **more)).run()
        assert outbox.totals().confirmed == 1_101
        sent = {line for batch in outbox.batch_log.batches() for line in outbox.spool.read(batch)}
    messages = activemq.consume(queue, 1_101)
    check_arrived(Counter(body for _, body in messages), sent)
    headers = messages[0][0]
    assert (headers["content-type"], headers["producer"], headers["version"]) == (
        "application/json",
        "cms-test",
        "1",
    )


@pytest.mark.parametrize(
    "case", ["password", "user", "ca", "host", "no client certificate", "no right to write"]
)
def test_what_is_not_allowed_ends_at_once_and_shows_no_secret(
    activemq: ActiveMQ, tmp_path: Path, case: str
) -> None:
    more: dict[str, Any] = {
        "password": {"password": "planted-wrong-password"},
        "user": {"username": "planted-nobody"},
        "ca": tls(activemq, ca=activemq.certificates["other-ca.pem"]),
        "host": tls(activemq, host_and_ports=f"127.0.0.1:{activemq.tls}"),
        "no client certificate": tls(activemq, host_and_ports=f"localhost:{activemq.tls_client}"),
        "no right to write": {"username": "reader"},
    }[case]
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(3))
        lines: list[str] = []
        with pytest.raises(NotAllowed) as caught:
            Publisher(
                outbox, sink_to(activemq, tmp_path, "not.allowed", **more), log=lines.append
            ).run()
        # The broker's refusal ends the run. Now and then ActiveMQ closes before it is
        # sent: that alone is tried again.
        assert all("the broker closed the connection" in line for line in lines), lines
        assert outbox.totals().confirmed == 0 and outbox.totals().open == 4
    text = str(caught.value)
    for secret in (PASSWORD, USER, "planted"):
        assert secret not in text


def test_a_document_over_the_broker_s_frame_limit_is_found_and_the_others_are_there(
    activemq: ActiveMQ, tmp_path: Path
) -> None:
    lines: list[str] = []
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, [*rows(300), row(300, app="x" * 50_000), *rows(200, 301)])
        sink = sink_to(activemq, tmp_path, "narrow", host_and_ports=f"127.0.0.1:{activemq.narrow}")
        Publisher(outbox, sink, log=lines.append).run()
        assert (outbox.totals().confirmed, outbox.totals().refused) == (501, 1)
    assert "maximum frame size" in lines[-1]
    check_arrived(
        bodies(activemq.consume("narrow", 501)),
        wanted(501) - {canonical(document(SPEC, row(300)))},
    )


def test_a_topic_without_listeners_confirms(activemq: ActiveMQ, tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(3))
        Publisher(
            outbox, sink_to(activemq, tmp_path, "t", topic="/topic/test.nobody.listens")
        ).run()
        assert outbox.totals().confirmed == 4


def test_a_broker_that_blocks_is_reported_as_stalled_and_nothing_is_lost(
    activemq: ActiveMQ, tmp_path: Path
) -> None:
    # Half batches of links that we dropped hold the queue's room until the broker
    # misses our heartbeats there.
    sink = sink_to(activemq, tmp_path, "small.queue", StompTimeouts(stall=2, probe=1, heartbeat=1))
    arrived: Counter[bytes] = Counter()
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(3_000))
        with pytest.raises(NotReady, match="broker stalled"):
            Publisher(outbox, sink, RetryPolicy(patience=2)).run()
        assert outbox.totals().open > 0

        def consume() -> None:
            arrived.update(
                bodies(activemq.consume("small.queue", 3_001, while_true=outbox_open.is_set))
            )

        lines: list[str] = []
        outbox_open = threading.Event()
        outbox_open.set()
        reader = threading.Thread(target=consume)
        reader.start()
        try:
            Publisher(outbox, sink, RetryPolicy(patience=300), log=lines.append).run()
        finally:
            outbox_open.clear()
            reader.join()
        assert outbox.totals().open == 0
    arrived.update(bodies(activemq.consume("small.queue")))
    # An interruption by our own patience, and one by its end. More where the machine
    # was busy for seconds meanwhile.
    busy = sum("no receipt of a commit" in line or "no heartbeat" in line for line in lines)
    check_arrived(arrived, wanted(3_000), 1_000 + 500 * busy)


@pytest.fixture
def own_broker(tmp_path: Path) -> Iterator[ActiveMQ]:
    """A broker that the test may end."""
    yield from running_or_skip(tmp_path / "own")


class Attack:
    """Ends the broker when so many documents are confirmed, starts it again, and tells
    how long nothing came.

    ``at_end``: the documents that were confirmed when it had ended. ``recovery`` stays
    0 where all were confirmed before it was seen that the broker is back: its ports
    open one after another.
    """

    def __init__(self, broker: ActiveMQ, after: int, how: str) -> None:
        self.broker, self.after, self.how = broker, after, how
        self.confirmed = self.at_end = 0
        self.back_at = self.recovery = 0.0
        self.thread: threading.Thread | None = None

    def __call__(self, documents: int) -> None:
        self.confirmed += documents
        if self.thread is None and self.confirmed >= self.after:
            self.thread = threading.Thread(target=self.strike)
            self.thread.start()
        elif self.back_at and not self.recovery:
            self.recovery = time.monotonic() - self.back_at

    def strike(self) -> None:
        getattr(self.broker, self.how)()
        self.at_end = self.confirmed
        self.broker.start()
        self.back_at = time.monotonic()


@pytest.mark.parametrize("how", ["kill", pytest.param("stop", marks=pytest.mark.long)])
def test_a_broker_ended_under_load_loses_nothing_and_doubles_one_batch_at_most(
    own_broker: ActiveMQ, tmp_path: Path, how: str
) -> None:
    attack = Attack(own_broker, 3_000, how)
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(12_000))
        Publisher(outbox, sink_to(own_broker, tmp_path, "killed"), progress=attack).run()
        assert attack.thread is not None
        attack.thread.join()
        assert outbox.totals().confirmed == 12_001
    check_arrived(bodies(own_broker.consume("killed", 12_001)), wanted(12_000), 500)
    assert attack.at_end < 12_001, "the broker ended under load"
    assert attack.recovery <= 120


def test_a_stopped_process_is_noticed_by_its_missing_heartbeats(
    own_broker: ActiveMQ, tmp_path: Path
) -> None:
    sink = sink_to(
        own_broker, tmp_path, "halfopen", StompTimeouts(connect=30, login=30, heartbeat=1)
    )
    lines: list[str] = []
    times: list[float] = []

    def stop(documents: int) -> None:
        if not times:
            assert own_broker.process is not None
            own_broker.process.send_signal(signal.SIGSTOP)
            times.append(time.monotonic())

    def hear(text: str) -> None:
        lines.append(text)
        times.append(time.monotonic())
        assert own_broker.process is not None
        own_broker.process.send_signal(signal.SIGCONT)

    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2_000))
        Publisher(outbox, sink, progress=stop, log=hear).run()
        assert outbox.totals().confirmed == 2_001
    assert "no heartbeat" in lines[0]
    # After three beats of a second; without them, by TCP after many minutes.
    assert times[1] - times[0] < 60
    check_arrived(bodies(own_broker.consume("halfopen", 2_001)), wanted(2_000), 500)


#: A publisher whose disk takes 0.25 s for each batch: the signal arrives long before
#: the last of 17 batches.
SLOW_PUBLISHER = """
import time
from cmsspark.main import main
from cmsspark.publish.batch_log import BatchLog

advance = BatchLog.advance
BatchLog.advance = lambda *batches: (time.sleep(0.5), advance(*batches))[1]
main()
"""


@pytest.mark.parametrize("how", [signal.SIGKILL, signal.SIGTERM])
def test_a_publisher_ended_under_load_goes_on_with_resume(
    activemq: ActiveMQ, tmp_path: Path, how: signal.Signals
) -> None:
    queue = f"publisher.{how.name}"
    store = store_day(tmp_path / "store", rows(8_000))
    amq = activemq.credentials(tmp_path / "amq.json", queue)
    words = ["publish", "--date", "20260115", "--amq", str(amq)]
    environment = {**os.environ, "XDG_STATE_HOME": str(tmp_path / "state"), "HOME": str(tmp_path)}
    first = subprocess.Popen(
        [sys.executable, "-c", SLOW_PUBLISHER, *words, "--fout", store],
        env=environment,
        stderr=subprocess.PIPE,
        stdout=subprocess.PIPE,
    )
    _wait_for_acks(tmp_path / "state", 1_500)
    first.send_signal(how)
    _, errors = first.communicate(timeout=300)
    assert first.returncode == (75 if how == signal.SIGTERM else -signal.SIGKILL), errors
    again = [sys.executable, "-m", "cmsspark", *words, "--resume"]
    done = subprocess.run(again, env=environment, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert "8,001" in done.stdout
    check_arrived(bodies(activemq.consume(queue, 8_001)), wanted(8_000), 500)
    for secret in (PASSWORD, USER):
        assert secret not in done.stdout + done.stderr + errors.decode()
        assert secret.encode() not in b"".join(
            p.read_bytes() for p in (tmp_path / "state").rglob("*") if p.is_file()
        )


def _wait_for_acks(state: Path, documents: int) -> None:
    """Until the ledger says that so many are confirmed."""
    import sqlite3

    deadline = time.monotonic() + 300
    while time.monotonic() < deadline:
        for path in state.rglob("batches.sqlite"):
            database = sqlite3.connect(f"file:{path}?mode=ro", uri=True, timeout=5)
            try:
                (count,) = database.execute(
                    "SELECT sum(count) FROM batches WHERE state='ACKED'"
                ).fetchone()
            except sqlite3.OperationalError:
                count = 0
            finally:
                database.close()
            if (count or 0) >= documents:
                return
        time.sleep(0.02)
    raise AssertionError("the publisher did not get so far")


def test_published_documents_are_those_of_the_store_through_the_command(
    activemq: ActiveMQ, tmp_path: Path
) -> None:
    from cmsspark.base.reporting import run_click
    from cmsspark.publish.cli import publish_command

    settings = tmp_path / "cmsspark.yaml"
    settings.write_text(
        f"state_dir: {tmp_path}/state\nstore: {store_day(tmp_path / 'store', rows(700))}\n"
    )
    amq = activemq.credentials(tmp_path / "amq.json", "command")
    run_click(
        publish_command("cern_monit"),
        "publish",
        ["--date", "20260115", "--amq", str(amq), "--settings", str(settings)],
    )
    messages = activemq.consume("command", 701)
    check_arrived(bodies(messages), wanted(700))
    last = json.loads(next(body for _, body in messages if b'"document_count"' in body))
    assert last["document_count"] == 700


def test_an_outbox_of_one_destination_is_not_another_s(activemq: ActiveMQ, tmp_path: Path) -> None:
    one, two = sink_to(activemq, tmp_path, "one"), sink_to(activemq, tmp_path, "two")
    assert one.outbox_name(tmp_path) != two.outbox_name(tmp_path)
    for sink, queue in ((one, "one"), (two, "two")):
        with Outbox(
            tmp_path, sink.outbox_name(tmp_path), "data_aggregation", SPEC.period
        ).held() as outbox:
            fill(outbox, rows(2))
            Publisher(outbox, sink).run()
        check_arrived(bodies(activemq.consume(queue, 3)), wanted(2))
