"""A state machine drives the publisher against a broker that does anything: nothing
lost, little doubled, whatever the order.
"""

from __future__ import annotations

import json
import ssl
import tempfile
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from hypothesis import HealthCheck, settings
from hypothesis import strategies as st
from hypothesis.stateful import RuleBasedStateMachine, initialize, rule, run_state_machine_as_test

from cmsspark.base.errors import NotReady
from cmsspark.publish.credentials import Broker
from cmsspark.publish.publisher import Publisher, RetryPolicy
from cmsspark.publish.sinks.stomp import StompSink, StompTimeouts
from tests.activemq import Certificates
from tests.ports import free_port
from tests.publish.days import Clock, fill, outbox_in, row
from tests.publish.fake_broker import FakeBroker, Faults

#: Short, as the faults below wait them out. Where a busy machine takes longer, that is
#: an interruption, too.
QUICK = StompTimeouts(connect=10, login=1, stall=2, probe=0.15, heartbeat=4)
FAULTS: dict[str, dict[str, Any]] = {
    "refuse": {"close_at_once": True},
    "silent accept": {"silent": True},
    "login error": {"login_error": "come again later"},
    "close before COMMIT": {"close_after_sends": 300},
    "close in the second batch": {"close_after_sends": 700},
    "close at COMMIT": {"commit": "drop"},
    "close after COMMIT": {"commit": "lost"},
    "ERROR with receipt-id": {"commit": "refuse"},
    "ERROR without receipt-id": {"poison": lambda body: b'"P3"' in body},
    "receipt delayed": {"receipt": "late", "late_by": 0.2},
    "receipt omitted": {"receipt": "never"},
    "receipt twice": {"receipt": "twice"},
    "receipt of another": {"receipt": "stray"},
    "slow reader": {"stop_reading_after": 100, "late_by": 0.2},
    "reader that stops": {"stop_reading_after": 600},
}


class Killed(BaseException):
    """The publisher's end in the middle."""


class PublisherMachine(RuleBasedStateMachine):
    """A day that changes, a broker with faults to come, and a publisher that is ended
    now and then.
    """

    certificates: Certificates

    @initialize(count=st.integers(0, 1_300), is_secure=st.booleans())
    def begin(self, count: int, is_secure: bool) -> None:
        self.place = tempfile.TemporaryDirectory()
        context = None
        if is_secure:
            context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
            context.load_cert_chain(
                self.certificates["server.pem"], self.certificates["server.key"]
            )
        self.fake = FakeBroker([], context)
        # The first address is nobody's: a refused connection is a part of every attempt.
        self.broker = Broker(
            (("localhost", free_port()), ("localhost", self.fake.port)),
            "/queue/test.documents",
            ca=Path(self.certificates["ca.pem"]) if is_secure else None,
        )
        self.value = 1
        self.day = {number: self.value for number in range(count)}
        self.run = 1
        self.kills = 0
        self.stalls = 0
        self.is_whole = False

    @rule(names=st.lists(st.sampled_from(sorted(FAULTS)), min_size=1, max_size=3))
    def next_connections_fail(self, names: list[str]) -> None:
        while len(self.fake.faults) < self.fake.connections:
            self.fake.faults.append(Faults())
        self.fake.faults.extend(Faults(**FAULTS[name]) for name in names)

    @rule(
        changed=st.sets(st.integers(0, 1_299), max_size=600),
        removed=st.sets(st.integers(0, 1_299), max_size=5),
    )
    def the_day_is_computed_again(self, changed: set[int], removed: set[int]) -> None:
        self.value += 1  # no document is ever again what it was: a double is a double
        self.day |= dict.fromkeys(changed, self.value)
        for number in removed:
            self.day.pop(number, None)
        self.run += 1

    @rule(after=st.integers(1, 3))
    def publish_and_be_ended(self, after: int) -> None:
        left = after

        def progress(documents: int) -> None:
            nonlocal left
            left -= 1
            if not left:
                raise Killed

        self.publish(progress)

    @rule()
    def publish_to_the_end(self) -> None:
        self.publish(lambda documents: None)

    def publish(self, progress: Any) -> None:
        with outbox_in(Path(self.place.name)).held() as outbox:
            fill(
                outbox,
                [row(number, nacc=value) for number, value in sorted(self.day.items())],
                f"r{self.run}",
            )
            sink = StompSink(self.broker, "data_aggregation", "cms-test", QUICK)
            lines: list[str] = []
            try:
                Publisher(
                    outbox,
                    sink,
                    RetryPolicy(patience=60),
                    Clock(),
                    log=lines.append,
                    progress=progress,
                ).run()
            except Killed:
                self.kills += 1
            except NotReady as error:
                lines.append(str(error))
            sink.drop()
            self.stalls += sum("broker stalled" in line for line in lines)
            if outbox.totals().open == 0:
                self.everything_is_there()

    def everything_is_there(self) -> None:
        there: dict[str, dict[str, Any]] = {}
        for body in self.fake.stored:
            loaded = json.loads(body)
            there[loaded["metadata"]["_id"]] = loaded
        known = {
            loaded["primary_name"]: loaded["nacc"]
            for loaded in there.values()
            if "primary_name" in loaded and not loaded.get("is_gone")
        }
        assert known == {f"P{number}": value for number, value in self.day.items()}
        used = self.fake.faults[: self.fake.connections]
        interruptions = self.kills + sum(fault != Faults(gate=fault.gate) for fault in used)
        # A stall that no fault ordered is the machine's.
        ordered = sum(fault.stop_reading_after is not None for fault in used)
        interruptions += max(0, self.stalls - ordered)
        counts = Counter(body for body in self.fake.stored if b'"is_gone"' not in body)
        assert sum(number - 1 for number in counts.values()) <= 500 * interruptions

    def teardown(self) -> None:
        if hasattr(self, "fake"):
            del self.fake.faults[self.fake.connections :]
            self.publish(lambda documents: None)
            with outbox_in(Path(self.place.name)).held() as outbox:
                assert outbox.totals().open == 0, "a broker without faults, and something is left"
            self.fake.stop()
            self.place.cleanup()


def drive(certificates: Certificates, examples: int, steps: int) -> None:
    machine = type("Bound", (PublisherMachine,), {"certificates": certificates})
    how = settings(
        max_examples=examples,
        stateful_step_count=steps,
        deadline=None,
        suppress_health_check=list(HealthCheck),
        database=None,
    )
    run_state_machine_as_test(machine, settings=how)


def test_whatever_the_broker_does_nothing_is_lost_and_at_most_a_batch_double(
    certificates: Certificates,
) -> None:
    drive(certificates, examples=12, steps=8)


@pytest.mark.long
def test_whatever_the_broker_does_for_long_nothing_is_lost_and_at_most_a_batch_double(
    certificates: Certificates,
) -> None:
    drive(certificates, examples=150, steps=20)
