"""The outbox spools whole or not at all, sends only what changed, and finds itself
again after any damage.
"""

from __future__ import annotations

import json
import os
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from cmsspark.base.errors import DataError, NotReady, OutputError
from cmsspark.publish.batch_log import BATCH_DOCUMENTS, BatchState, Spool, SpoolWriter
from cmsspark.publish.comparison import open_changes
from cmsspark.publish.outbox import Outbox
from cmsspark.publish.publisher import Publisher
from tests.publish.days import DAY, Clock, ListSink, fill, ids, outbox_in, row, rows


def publish(
    folder: Path, given: list[dict[str, Any]], source: str = "r1", **more: Any
) -> list[dict[str, Any]]:
    """Publish a day wholly; returns what was sent."""
    sink = ListSink()
    with outbox_in(folder).held() as outbox:
        spooled = fill(outbox, given, source, **more)
        Publisher(outbox, sink, clock=Clock()).run()
        if spooled.snapshot_no is not None:
            outbox.note_confirmed(spooled.snapshot_no)
    return [json.loads(document) for document in sink.arrived]


def test_a_day_is_sent_whole_and_ends_with_its_completeness(tmp_path: Path) -> None:
    sent = publish(tmp_path, rows(3))
    assert [body.get("primary_name") for body in sent] == ["P0", "P1", "P2", None]
    assert sent[-1]["document_count"] == 3
    assert sent[-1]["metadata"]["type"] == "data_aggregation_completeness"


def test_a_day_published_again_sends_nothing(tmp_path: Path) -> None:
    publish(tmp_path, rows(3))
    assert publish(tmp_path, rows(3), "r2") == []
    assert publish(tmp_path, list(reversed(rows(3))), "r3") == []


def test_of_a_changed_day_only_what_changed_is_sent(tmp_path: Path) -> None:
    publish(tmp_path, rows(4))
    sent = publish(tmp_path, [row(0), row(1, nacc=9), row(2), row(3), row(4)], "r2")
    assert [body.get("primary_name") for body in sent] == ["P1", "P4", None]
    assert sent[-1]["document_count"] == 5


def test_what_vanished_is_sent_once_with_zero_measures_and_the_mark(tmp_path: Path) -> None:
    first = publish(tmp_path, rows(3))
    sent = publish(tmp_path, rows(2), "r2")
    assert [
        (body.get("primary_name"), body.get("nacc"), body.get("is_gone")) for body in sent
    ] == [("P2", 0, True), (None, None, None)]
    assert sent[-1]["gone_ids"] == [first[2]["metadata"]["_id"]]
    assert publish(tmp_path, rows(2), "r3") == []


def test_what_comes_back_is_sent_again(tmp_path: Path) -> None:
    publish(tmp_path, rows(3))
    publish(tmp_path, rows(2), "r2")
    sent = publish(tmp_path, rows(3), "r3")
    assert [body.get("primary_name") for body in sent] == ["P2", None]
    assert "is_gone" not in sent[0] and sent[-1]["gone_count"] == 0


def test_a_trial_with_a_limit_makes_nothing_vanish(tmp_path: Path) -> None:
    assert len(publish(tmp_path, rows(5), "r1 2", limit=2)) == 2
    sent = publish(tmp_path, rows(5), "r1")
    assert [body.get("primary_name") for body in sent] == ["P2", "P3", "P4", None]


def test_bad_rows_are_kept_aside_before_anything_is_sent(tmp_path: Path) -> None:
    given = [
        row(0),
        row(1, nacc=-1),
        row(2, site_name="x\ud800"),
        row(3, dataset_name=None),
        row(4, app="x" * 1_000_001),
    ]
    with outbox_in(tmp_path).held() as outbox:
        spooled = fill(outbox, given)
        assert (spooled.documents, spooled.quarantined) == (1, 4)
        kept = (outbox.spool.folder(1) / "quarantine.jsonl").read_text().splitlines()
    assert [json.loads(line)["row"] for line in kept] == [1, 2, 3, 4]
    assert os.stat(outbox.folder).st_mode & 0o077 == 0


def test_two_rows_of_one_key_fail_and_nothing_is_spooled(tmp_path: Path) -> None:
    for given in ([row(1), row(1)], [row(1), row(1, nacc=7)]):
        with outbox_in(tmp_path).held() as outbox:
            with pytest.raises(DataError, match="same document"):
                fill(outbox, given)
            assert outbox.spool.snapshots() == []
    publish(tmp_path, [row(1)])
    with outbox_in(tmp_path).held() as outbox, pytest.raises(DataError, match="same document"):
        fill(outbox, [row(1), row(1)], "r2")


def test_batches_have_at_most_500_documents_and_parts_are_cut(tmp_path: Path) -> None:
    (tmp_path / "day").mkdir()
    writer = SpoolWriter(tmp_path / "day", 1, part_bytes=20_000)
    documents = [b"%05d" % number * 10 for number in range(1_201)]
    for document in documents:
        writer.add(document)
    writer.finish({})
    spool = Spool(tmp_path / "day")
    batches = list(spool.batches(1))
    assert len({batch.part for batch in batches}) > 1
    assert max(batch.count for batch in batches) <= BATCH_DOCUMENTS
    assert [document for batch in batches for document in spool.read(batch)] == documents


def test_a_spool_that_was_not_finished_is_never_seen(tmp_path: Path) -> None:
    writer = SpoolWriter(outbox_in(tmp_path).folder, 1)
    writer.add(b"{}")
    assert writer._stream is not None
    writer._stream.close()  # as the end of the process does
    with outbox_in(tmp_path).held() as outbox:
        assert outbox.spool.snapshots() == []
        assert outbox.unfinished() is None
        assert fill(outbox, rows(2)).snapshot_no == 1


def test_a_spool_that_is_not_in_the_batch_log_is_sent(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2))
        outbox.batch_log._db.executescript("DELETE FROM batches; DELETE FROM snapshots")
    with outbox_in(tmp_path).held() as outbox:
        assert (outbox.totals().waiting, outbox.totals().in_doubt) == (3, 0)


def test_the_same_source_goes_on_where_it_was_left(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2))
    with outbox_in(tmp_path).held() as outbox:
        assert fill(outbox, []).resumed
        assert outbox.spool.snapshots() == [1]


def test_a_newer_run_takes_the_place_of_what_was_not_sent(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(3))
    assert [body.get("primary_name") for body in publish(tmp_path, rows(2), "r2")] == [
        "P0",
        "P1",
        None,
    ]


def test_what_may_have_arrived_and_vanished_is_sent_as_gone(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2))
        batch = outbox.batch_log.first([BatchState.READY])
        assert batch is not None
        outbox.batch_log.mark(batch, BatchState.SENDING)  # and the publisher is killed
    sent = publish(tmp_path, rows(1), "r2")
    assert [(body.get("primary_name"), body.get("is_gone")) for body in sent] == [
        ("P0", None),
        ("P1", True),
        (None, None),
    ]


@pytest.mark.parametrize("damage", ["deleted", "garbage", "truncated"])
def test_a_lost_batch_log_is_rebuilt_and_what_is_unknown_is_in_doubt(
    tmp_path: Path, damage: str
) -> None:
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(2))
        path = outbox.folder / "batches.sqlite"
    if damage == "deleted":
        path.unlink()
    else:
        path.write_bytes(b"garbage" * 1_000 if damage == "garbage" else path.read_bytes()[:5_000])
    with outbox_in(tmp_path).held() as outbox:
        assert outbox.totals().in_doubt == 3
        assert "rebuilt" in outbox.notes[0]


def test_a_rebuilt_batch_log_knows_what_was_confirmed(tmp_path: Path) -> None:
    publish(tmp_path, rows(2))
    (outbox_in(tmp_path).folder / "batches.sqlite").unlink()
    assert publish(tmp_path, rows(2), "r2") == []


def test_a_rebuilding_that_was_ended_half_way_begins_anew(tmp_path: Path) -> None:
    publish(tmp_path, rows(2))
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(3), "r2")
        manifest = outbox.spool.folder(2) / "manifest.json"
    (outbox.folder / "batches.sqlite").unlink()
    content = manifest.read_bytes()
    manifest.write_bytes(b"")
    with pytest.raises(DataError, match="damaged"), outbox_in(tmp_path).held():
        pass
    manifest.write_bytes(content)
    with outbox_in(tmp_path).held() as outbox:
        totals = outbox.totals()
        assert (totals.confirmed, totals.in_doubt, totals.waiting) == (3, 2, 0)


def test_a_damaged_part_is_named_and_nothing_of_it_is_sent(tmp_path: Path) -> None:
    sink = ListSink()
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(1_200))
        part = outbox.spool.folder(1) / "part-0001.jsonl"
        content = bytearray(part.read_bytes())
        content[-20] ^= 1
        part.write_bytes(content)
        with pytest.raises(DataError, match=r"part-0001\.jsonl"):
            Publisher(outbox, sink, clock=Clock()).run()
    assert sink.arrived == []


def test_a_second_publisher_names_the_holder_of_the_day(tmp_path: Path) -> None:
    with (
        outbox_in(tmp_path).held(),
        pytest.raises(NotReady, match=f"process {os.getpid()} on "),
        outbox_in(tmp_path).held(),
    ):
        pass


def test_the_lock_of_a_dead_publisher_is_free(tmp_path: Path) -> None:
    code = (
        "import os, sys; from pathlib import Path; from cmsspark.publish.outbox import Outbox\n"
        "with Outbox(Path(sys.argv[1]), 'somewhere', 'data_aggregation', '2026-01-15').held(): os._exit(9)"
    )
    assert subprocess.run([sys.executable, "-c", code, str(tmp_path)], check=False).returncode == 9
    with outbox_in(tmp_path).held() as outbox:
        assert outbox.unfinished() is None


def test_a_full_disk_leaves_no_half_spool(tmp_path: Path) -> None:
    class Full:
        def write(self, content: bytes) -> int:
            raise OSError(28, "No space left on device")

        def close(self) -> None:
            pass

    writer = SpoolWriter(tmp_path / "day", 1)
    writer.add(b"{}")
    assert writer._stream is not None
    writer._stream.close()
    writer._stream = Full()  # type: ignore[assignment]
    with pytest.raises(OutputError, match="No space left"):
        writer.add(b"{}")
    writer.abandon()
    assert Spool(tmp_path / "day").snapshots() == []
    assert list((tmp_path / "day").iterdir()) == []


def test_a_disk_that_is_full_while_a_day_is_spooled_is_named_and_nothing_stays(
    tmp_path: Path,
) -> None:
    code = (
        "import resource, sys; from pathlib import Path\n"
        "from tests.publish.days import fill, outbox_in, rows\n"
        "with outbox_in(Path(sys.argv[1])).held() as outbox:\n"
        "    resource.setrlimit(resource.RLIMIT_FSIZE, (100_000, 100_000))\n"
        "    fill(outbox, rows(600))\n"
    )
    run = subprocess.run(
        [sys.executable, "-c", code, str(tmp_path)],
        cwd=Path(__file__).parents[2],
        capture_output=True,
        text=True,
        check=False,
    )
    assert "OutputError: the spool cannot be written" in run.stderr
    assert "part-0001.jsonl" in run.stderr
    assert list(outbox_in(tmp_path).folder.glob(".spooling-*")) == []


def test_what_a_killed_process_left_of_a_snapshot_is_removed(tmp_path: Path) -> None:
    left = outbox_in(tmp_path).folder / ".spooling-0007"
    left.mkdir(parents=True)
    (left / "part-0001.jsonl").write_bytes(b"x")
    with outbox_in(tmp_path).held():
        assert not left.exists()


def test_a_scratch_database_without_room_is_named(tmp_path: Path) -> None:
    with (
        outbox_in(tmp_path).held() as outbox,
        pytest.raises(OutputError, match=r"changes\.sqlite"),
        open_changes(tmp_path / "not there", "x", outbox.batch_log, outbox.spool),
    ):
        pass


def test_a_full_disk_below_the_batch_log_is_reported_and_resumable(tmp_path: Path) -> None:
    sink = ListSink()
    with outbox_in(tmp_path).held() as outbox:
        fill(outbox, rows(1_200))
        (pages,) = outbox.batch_log._db.execute("PRAGMA page_count").fetchone()
        outbox.batch_log._db.execute(f"PRAGMA max_page_count={pages}")
        outbox.batch_log._db.execute("CREATE TEMP TABLE t AS SELECT 1")
        batch = outbox.batch_log.first([BatchState.READY])
        assert batch is not None
        with pytest.raises(OutputError, match="full"):
            outbox.batch_log.mark(batch, BatchState.SENDING, "x" * 10_000)
    with outbox_in(tmp_path).held() as outbox:
        Publisher(outbox, sink, clock=Clock()).run()
    assert len(set(ids(sink.arrived))) == len(sink.arrived) == 1_201


def test_states_are_written_with_full_synchronisation(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held() as outbox:
        assert outbox.batch_log._db.execute("PRAGMA synchronous").fetchone() == (2,)
        assert outbox.batch_log._db.execute("PRAGMA journal_mode").fetchone() == ("wal",)


def test_a_batch_log_of_another_version_is_refused_and_not_changed(tmp_path: Path) -> None:
    with outbox_in(tmp_path).held():
        pass
    path = outbox_in(tmp_path).folder / "batches.sqlite"
    with sqlite3.connect(path) as database:
        database.execute("PRAGMA user_version=99")
    database.close()
    with (
        pytest.raises(DataError, match="another version"),
        Outbox(tmp_path, "somewhere", "data_aggregation", DAY.isoformat()).held(),
    ):
        pass
