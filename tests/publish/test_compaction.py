"""Old snapshots of the spool: what is confirmed is kept in one, and nothing else is ever removed."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import Any

import pytest

from cmsspark.publish import outbox as outboxes
from cmsspark.publish.batch_log import BatchState
from cmsspark.publish.outbox import Outbox
from cmsspark.publish.publisher import Publisher
from cmsspark.publish.sink import RetryableError
from tests.publish.days import Clock, ListSink, fill, ids, outbox_in, row, rows


def publish(
    outbox: Outbox, given: list[dict[str, Any]], source: str, sink: ListSink | None = None
) -> list[bytes]:
    sink = sink or ListSink()
    fill(outbox, given, source)
    Publisher(outbox, sink, clock=Clock()).run()
    return sink.arrived


def day(time: int) -> list[dict[str, Any]]:
    """600 rows, of which one is another each time; one vanishes after three times."""
    return [row(0, nacc=time), *rows(599 if time < 3 else 598, 1)]


def changed_days(outbox: Outbox, times: int) -> None:
    for time in range(times):
        publish(outbox, day(time), f"r{time}")


def numbers(documents: list[bytes]) -> list[str]:
    return [json.loads(document).get("primary_name", "completeness") for document in documents]


def test_many_confirmed_snapshots_become_one_that_knows_the_same(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        changed_days(outbox, 7)
        before = outbox.spool.snapshots()
        assert outbox.compact()
        assert outbox.spool.snapshots() == [before[-1] + 1]
        assert outbox.totals().confirmed == 601 and outbox.totals().open == 0
        assert [p.name for p in sorted(outbox.folder.glob("g*"))] == [f"g{before[-1] + 1:04d}"]
    with outbox_in(tmp_path).held() as outbox:
        assert publish(outbox, day(6), "r9") == []
        arrived = publish(outbox, [*day(6)[:-2], row(597, nacc=99)], "r10")
        assert sorted(numbers(arrived)) == ["P597", "P598", "completeness"]
        assert [json.loads(body).get("is_gone") for body in arrived if b'"P598"' in body] == [True]


def test_few_snapshots_stay(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        changed_days(outbox, 3)
        assert not outbox.compact()
        assert len(outbox.spool.snapshots()) == 3


@pytest.mark.parametrize(
    "state", [BatchState.READY, BatchState.IN_DOUBT, BatchState.STALLED, BatchState.QUARANTINED]
)
def test_while_anything_is_not_confirmed_all_stays(tmp_path: Path, state: BatchState) -> None:
    with outbox_in(tmp_path).held() as outbox:
        changed_days(outbox, 7)
        found = outbox.spool.snapshots()
        outbox.batch_log.mark(outbox.batch_log.batches()[-1], state)
        assert not outbox.compact()
        assert outbox.spool.snapshots() == found


def test_a_completeness_document_that_may_not_have_arrived_is_not_taken_for_sent(
    tmp_path: Path,
) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2), "r0")
        outbox.batch_log.mark(outbox.batch_log.batches()[0], BatchState.IN_DOUBT)
        for time in range(6):  # trials, which end without one
            fill(outbox, [row(0, nacc=time), row(1)], f"r{time} 2", limit=2)
            Publisher(outbox, ListSink(), clock=Clock()).run()
        outbox.compact()
        assert numbers(publish(outbox, rows(2), "r9"))[-1] == "completeness"


def test_what_may_have_arrived_and_is_not_known_keeps_all(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2), "r0")
        lost = RetryableError("gone", in_doubt=True)
        with pytest.raises(KeyboardInterrupt):
            Publisher(outbox, ListSink(lost, KeyboardInterrupt()), clock=Clock()).run()
        for time in range(7):
            fill(outbox, [row(0, nacc=time)], f"t{time}", limit=1)
            Publisher(outbox, ListSink(), clock=Clock()).run()
        assert not outbox.compact()


def test_rows_that_made_no_document_keep_their_snapshot(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        changed_days(outbox, 6)
        publish(outbox, [*rows(500), row(500, nacc=-1)], "bad")
        assert not outbox.compact()


class Killed(BaseException):
    """The end, in the middle."""


@pytest.mark.parametrize(
    "step", ["before the batch log knows", "before anything is removed", "with one half removed"]
)
def test_a_pruning_that_was_killed_is_finished_and_nothing_is_sent_again(
    tmp_path: Path, step: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    with outbox_in(tmp_path).held() as outbox:
        changed_days(outbox, 7)
        with monkeypatch.context() as patch:
            if step == "before the batch log knows":
                patch.setattr(outboxes, "finish_compaction", _killed)
            elif step == "before anything is removed":
                patch.setattr(Path, "unlink", _killed_at_manifest(Path.unlink))
            else:
                patch.setattr(shutil, "rmtree", _killed_below(shutil.rmtree, "g0001"))
            with pytest.raises(Killed):
                outbox.compact()
    with outbox_in(tmp_path).held() as outbox:
        assert len(outbox.spool.snapshots()) == 1
        assert outbox.totals().open == 0
        assert len(list(outbox.folder.glob("g*"))) == 1
        assert publish(outbox, day(6), "r9") == []


@pytest.mark.parametrize("how", ["lost", "rebuilt"])
def test_a_rebuilt_batch_log_knows_that_all_was_confirmed(tmp_path: Path, how: str) -> None:
    with outbox_in(tmp_path).held() as outbox:
        changed_days(outbox, 7)
        assert outbox.compact()
        if how == "rebuilt":
            outbox.rebuild()
        path = outbox.batch_log.path
    if how == "lost":
        path.unlink()
    with outbox_in(tmp_path).held() as outbox:
        assert outbox.totals().open == 0
        sent = publish(outbox, day(7), "r9")
        assert len(ids(sent)) == 2


def _killed(*arguments: object, **named: object) -> None:
    raise Killed


def _killed_at_manifest(real: Any) -> Any:
    def unlink(self: Path, missing_ok: bool = False) -> None:
        if self.name == "manifest.json":
            raise Killed
        real(self, missing_ok)

    return unlink


def _killed_below(real: Any, name: str) -> Any:
    def rmtree(path: Path, **more: Any) -> None:
        if Path(path).name == name:
            raise Killed
        real(path, **more)

    return rmtree
