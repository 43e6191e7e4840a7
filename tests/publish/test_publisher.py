"""Draining: nothing lost, at most one batch double for each interruption, and an end to
every wait.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections import Counter
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from cmsspark.base.errors import NotAllowed, NotReady
from cmsspark.publish.batch_log import BatchState
from cmsspark.publish.outbox import Outbox
from cmsspark.publish.publisher import Publisher, RetryPolicy
from cmsspark.publish.sink import ForbiddenError, RejectedError, RetryableError
from tests.publish.days import Clock, ListSink, fill, ids, outbox_in, rows


def half(low: float, high: float) -> float:
    return high / 2


def lost(
    reason: str = "the link broke", *, in_doubt: bool = False, landed: bool = False
) -> RetryableError:
    """A failed send; ``landed``: the batch was committed all the same."""
    trouble = RetryableError(reason, in_doubt=in_doubt)
    trouble.landed = landed  # type: ignore[attr-defined]
    return trouble


def publish_all(
    outbox: Outbox, sink: ListSink, clock: Clock | None = None, policy: RetryPolicy | None = None
) -> list[str]:
    lines: list[str] = []
    Publisher(outbox, sink, policy, clock or Clock(), log=lines.append, jitter=half).run()
    return lines


def test_each_batch_is_confirmed_in_order(tmp_path: Path) -> None:
    sink = ListSink()
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(1_200))
        publish_all(outbox, sink)
        assert outbox.totals().confirmed == 1_201
    assert sink.opened == 1
    assert len(set(ids(sink.arrived))) == len(sink.arrived) == 1_201


def test_a_batch_that_failed_before_its_commit_is_ready_again_and_sent_once(
    tmp_path: Path,
) -> None:
    sink = ListSink(lost())
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(600))
        publish_all(outbox, sink)
    assert max(Counter(ids(sink.arrived)).values()) == 1


def test_a_batch_in_doubt_is_sent_again_with_the_same_bytes(tmp_path: Path) -> None:
    sink = ListSink(None, lost(in_doubt=True, landed=True))
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(1_400))
        publish_all(outbox, sink)
    counts = Counter(sink.arrived)
    assert len(counts) == 1_401
    assert sum(count - 1 for count in counts.values()) == 500


def test_pauses_grow_and_patience_ends_them(tmp_path: Path) -> None:
    clock = Clock()
    sink = ListSink(*[lost("connection refused")] * 100)
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2))
        with pytest.raises(NotReady, match="connection refused"):
            publish_all(outbox, sink, clock, RetryPolicy(patience=300, attempts=1_000))
        assert clock.slept[:7] == [0.5, 1, 2, 4, 8, 12.5, 12.5]
        assert clock.now == pytest.approx(300)
        assert outbox.totals().waiting == 3
        publish_all(outbox, ListSink())
        assert outbox.totals().open == 0


def test_a_batch_tried_too_often_is_stalled_and_the_others_are_sent(tmp_path: Path) -> None:
    sink = ListSink(*[lost()] * 3)
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(600))
        lines = publish_all(outbox, sink, policy=RetryPolicy(attempts=3))
        assert (outbox.totals().stalled, outbox.totals().confirmed) == (500, 101)
        assert any("3 times" in line for line in lines)
        publish_all(outbox, ListSink())
        assert outbox.totals().confirmed == 601


def test_attempts_of_an_earlier_run_do_not_count(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2))
        with pytest.raises(KeyboardInterrupt):
            publish_all(
                outbox,
                ListSink(lost(), lost(), KeyboardInterrupt()),
                policy=RetryPolicy(attempts=3),
            )
        publish_all(outbox, ListSink(lost()), policy=RetryPolicy(attempts=3))
        assert (outbox.totals().stalled, outbox.totals().confirmed) == (0, 3)


def test_what_is_not_allowed_is_not_tried_again(tmp_path: Path) -> None:
    clock = Clock()
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2))
        with pytest.raises(NotAllowed):
            publish_all(outbox, ListSink(NotAllowed("no")), clock)
    assert clock.slept == []


@pytest.mark.parametrize("in_doubt", [False, True])
def test_what_was_forbidden_is_in_doubt_only_where_it_may_have_arrived(
    tmp_path: Path, in_doubt: bool
) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2))
        with pytest.raises(NotAllowed):
            publish_all(outbox, ListSink(ForbiddenError("no", in_doubt=in_doubt)))
        assert (outbox.totals().waiting, outbox.totals().in_doubt) == (
            (0, 3) if in_doubt else (3, 0)
        )


class Picky(ListSink):
    """Refuses batches with a document of which ``word`` is a part."""

    def __init__(self, word: bytes) -> None:
        super().__init__()
        self.word = word

    def send(self, batch: object, documents: object, meanwhile: object = None) -> None:
        if any(self.word in document for document in documents):  # type: ignore[attr-defined]
            raise RejectedError("too large")
        super().send(batch, documents, lambda: None)  # type: ignore[arg-type]


def test_a_document_that_is_refused_is_found_by_halving_and_the_others_are_sent(
    tmp_path: Path,
) -> None:
    sink = Picky(b'"P137"')
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(600))
        publish_all(outbox, sink)
        assert (outbox.totals().confirmed, outbox.totals().refused, outbox.totals().open) == (
            600,
            1,
            0,
        )
        assert [reason for _, reason in outbox.batch_log.reasons(BatchState.QUARANTINED)] == [
            "too large"
        ]
    assert max(Counter(ids(sink.arrived)).values()) == 1


def test_a_destination_that_refuses_everything_is_no_document_s_fault(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(600))
        with pytest.raises(NotReady, match="every document"):
            publish_all(outbox, Picky(b"{"))
        assert outbox.totals().refused <= 5
        assert outbox.totals().open >= 596


class Turning(ListSink):
    """Refuses batches with a document that ``refuses`` picks, once ``good`` batches
    were confirmed.
    """

    def __init__(self, good: int, refuses: Callable[[bytes], bool]) -> None:
        super().__init__()
        self.good, self.refuses, self.sends = good, refuses, 0

    def send(self, batch: object, documents: object, meanwhile: object = None) -> None:
        self.sends += 1
        if self.sends > self.good and any(map(self.refuses, documents)):  # type: ignore[call-overload]
            raise RejectedError("no such index")
        super().send(batch, documents, lambda: None)  # type: ignore[arg-type]


@pytest.mark.parametrize("good", [0, 1, 3])
@pytest.mark.parametrize(
    "refuses", [lambda body: True, lambda body: body[-30] % 2 == 0 or b'"P1' in body]
)
def test_a_destination_that_turns_wrong_ends_soon_and_quarantines_nothing(
    tmp_path: Path, good: int, refuses: Callable[[bytes], bool]
) -> None:
    sink = Turning(good, refuses)
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(5_000))
        with pytest.raises(NotReady, match="refuses"):
            publish_all(outbox, sink)
        assert sink.sends < 150
        totals = outbox.totals()
        assert (totals.refused, totals.confirmed) == (0, len(sink.arrived))
        if good != 3:
            right = ListSink()
            publish_all(outbox, right)
            assert outbox.totals().confirmed == 5_001
            assert (
                len(set(ids([*sink.arrived, *right.arrived])))
                == len(sink.arrived) + len(right.arrived)
                == 5_001
            )


def test_what_was_split_for_a_wrong_destination_is_joined_again(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2_100))
        before = outbox.batch_log.batches()
        with pytest.raises(NotReady):
            publish_all(outbox, Turning(2, lambda body: True))
        after = outbox.batch_log.batches()
        assert [batch.sha256 for batch in after] == [batch.sha256 for batch in before]
        assert [batch.state for batch in after] == [BatchState.ACKED] * 2 + [BatchState.READY] * 3


@pytest.mark.parametrize("bad", [range(40, 60), range(0, 2_000, 100)])
def test_documents_at_fault_within_the_budget_are_quarantined_and_the_others_sent(
    tmp_path: Path, bad: range
) -> None:
    names = [b'"P%d"' % number for number in bad]
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2_000))
        publish_all(outbox, Turning(0, lambda body: any(name in body for name in names)))
        assert (outbox.totals().refused, outbox.totals().confirmed) == (20, 1_981)


def test_the_budget_is_a_setting(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(600))
        policy = RetryPolicy(max_refused=300, max_refused_share=1)
        publish_all(outbox, Turning(0, lambda body: b'"P1' in body), policy=policy)
        assert outbox.totals().refused == 111


def test_what_was_refused_is_sent_again_when_it_is_reopened(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(600))
        publish_all(outbox, Picky(b'"P137"'))
        assert outbox.reopen_refused() == 1
        right = ListSink()
        publish_all(outbox, right)
        assert (outbox.totals().confirmed, len(right.arrived)) == (601, 1)


def test_only_the_batches_that_are_named_are_reopened(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(600))
        publish_all(outbox, Turning(0, lambda body: b'"P137"' in body or b'"P138"' in body))
        snapshot_no = max(outbox.batch_log.snapshots())
        refused = [
            batch.number
            for batch in outbox.batch_log.batches()
            if batch.state == BatchState.QUARANTINED
        ]
        assert outbox.batch_log.reopen_quarantined(snapshot_no, refused[:1]) == 1
        assert outbox.totals().refused == len(refused) - 1 == 1


def test_a_newer_snapshot_takes_the_place_of_what_was_refused(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(600))
        publish_all(outbox, Picky(b'"P137"'))
        fill(outbox, rows(600), "r2")
        publish_all(outbox, ListSink())
        assert (outbox.totals().confirmed, outbox.totals().refused) == (601, 0)


def test_an_interruption_while_sending_leaves_the_batch_in_doubt(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2))
        with pytest.raises(KeyboardInterrupt):
            publish_all(outbox, ListSink(KeyboardInterrupt()))
        assert outbox.totals().in_doubt == 3


EVENTS = st.sampled_from(
    [
        "good",
        "before commit",
        "lost before",
        "lost after",
        "killed before",
        "killed after",
        "new run",
    ]
)


class Killed(BaseException):
    """The publisher's end, as kill -9 makes it: no handler runs."""


@given(st.lists(EVENTS, max_size=12), st.integers(0, 1_200))
@settings(
    max_examples=60, deadline=None, suppress_health_check=[HealthCheck.function_scoped_fixture]
)
def test_whatever_happens_nothing_is_lost_and_little_doubled(
    tmp_path_factory: pytest.TempPathFactory, events: list[str], count: int
) -> None:
    folder = tmp_path_factory.mktemp("machine")
    sink, interruptions, runs, pending = ListSink(), 0, 1, list(events)
    given_rows = rows(count)
    for _ in range(len(events) + 2):
        sink.script = []
        while pending and pending[0] != "new run":
            event = pending.pop(0)
            sink.script.append(_trouble(event))
            interruptions += event != "good"
            if event.startswith("killed"):
                break
        with outbox_in(folder).held() as outbox:
            fill(outbox, given_rows, f"r{runs}")
            ledger = outbox.batch_log
            try:
                publish_all(outbox, sink)
            except Killed:
                # Undo what a handler wrote: a killed process writes nothing.
                ledger._db.execute(
                    "UPDATE batches SET state='SENDING', doubtful=0 WHERE reason='interrupted while sending'"
                )
            still = outbox.totals().open
        if pending and pending[0] == "new run":
            pending.pop(0)
            runs += 1
        elif not pending and not still:
            break
    assert not still
    counts = Counter(ids(sink.arrived))
    bodies = {json.loads(body)["metadata"]["_id"]: json.loads(body) for body in sink.arrived}
    assert len(counts) == count + 1
    assert sum(not body.get("is_gone", False) for body in bodies.values()) == count + 1
    assert sum(number - 1 for number in counts.values()) <= 500 * interruptions


def _trouble(event: str) -> BaseException | None:
    if event == "good":
        return None
    if event.startswith("killed"):
        end = Killed()
        end.landed = event.endswith("after")  # type: ignore[attr-defined]
        return end
    return lost(in_doubt=event != "before commit", landed=event == "lost after")


def test_a_file_sink_on_a_full_disk_leaves_no_part_of_a_file(tmp_path: Path) -> None:
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from cmsspark.publish.batch_log import Batch\n"
        "from cmsspark.publish.sinks.file import FileSink\n"
        "resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "sink = FileSink(Path(sys.argv[1]), 'data_aggregation', '2026-01-15')\n"
        "sink.open()\n"
        "sink.send(Batch(1, 1, 'part-0001.jsonl', 0, 0, 1, ''), [b'x' * 200_000])\n"
    )
    root = Path(__file__).parents[2]
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=root,
        capture_output=True,
        text=True,
        check=False,
    )
    assert "RetryableError" in run.stderr and "g0001-000001.jsonl" in run.stderr
    assert [path for path in tmp_path.rglob("*") if path.is_file()] == []
