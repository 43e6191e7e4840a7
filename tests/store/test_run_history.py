"""The run history (R3, R5): recorded runs are found, a damaged file is set aside, runs
of dead processes are marked.
"""

from __future__ import annotations

import sqlite3
import stat
from datetime import date, timedelta
from pathlib import Path

import pytest
from msgspec.structs import replace

from cmsspark.base.errors import DataError, OutputError, UsageError
from cmsspark.base.manifests import Manifest
from cmsspark.store import lease, run_history
from cmsspark.store.run_history import FILE, SILENT_MS, Published, Run, RunHistory, State

DAY = date(2026, 1, 15)
ELSEWHERE = {"host": "other.example.org", "pid": 7, "kernel": "another boot", "started": 1}


def run(name: str = "r1", **changes: object) -> Run:
    given = Run(name, "dbs_aaa", DAY, State.RUNNING, "/store", 1_000, process=lease.identity())
    return replace(given, **changes)  # type: ignore[arg-type]


def test_what_was_entered_is_found_whole(tmp_path: Path) -> None:
    done = run(
        state=State.DONE,
        stored_run="s1",
        ended_ms=3_000,
        seconds=2.0,
        rows=None,
        is_partial=True,
        fingerprint="f",
        exit_code=0,
        details=Manifest.from_dict({"warnings": ["ein Ärger"]}),
    )
    with run_history.open_history(tmp_path) as history:
        history.put(run())
        history.put(done)
    with run_history.open_history(tmp_path) as history:
        assert history.runs() == [done]
        assert history.find("r") == history.find("s1") == done


def test_runs_come_latest_first_and_chosen_by_job_day_and_state(tmp_path: Path) -> None:
    with run_history.open_history(tmp_path) as history:
        for back in range(4):
            history.put(
                run(
                    f"r{back}",
                    day=DAY - timedelta(days=back),
                    began_ms=9_000 - back,
                    state=State.DONE,
                )
            )
        history.put(run("other", job="dbs_eos", state=State.FAILED))
        assert [found.run for found in history.runs(job="dbs_aaa")] == ["r0", "r1", "r2", "r3"]
        span = history.runs(
            job="dbs_aaa", first=DAY - timedelta(days=2), last=DAY - timedelta(days=1)
        )
        assert [found.run for found in span] == ["r1", "r2"]
        assert [found.run for found in history.runs(state=State.FAILED)] == ["other"]
        assert len(history.runs(limit=2)) == 2


@pytest.mark.parametrize("details", ["{", "[]", '{"tables": []}', '{"days": {"yesterday": "r"}}'])
def test_details_that_are_no_part_of_a_manifest_end_in_65(tmp_path: Path, details: str) -> None:
    with run_history.open_history(tmp_path) as history:
        history.put(run("r1"))
    with sqlite3.connect(tmp_path / FILE) as database:
        database.execute("UPDATE runs SET details = ?", (details,))
    database.close()
    with (
        run_history.open_history(tmp_path) as history,
        pytest.raises(DataError, match="run r1 of") as error,
    ):
        history.runs()
    assert error.value.exit_code == 65
    assert error.value.next_step == "cmsspark runs --rebuild"


def test_details_of_another_version_are_kept(tmp_path: Path) -> None:
    details = {"tables": {"t": {"rows": 3, "colour": "blue"}}, "of tomorrow": [1]}
    with run_history.open_history(tmp_path) as history:
        history.put(run(details=Manifest.from_dict(details)))
        (kept,) = history.runs()
    assert kept.details.tables["t"].rows == 3
    assert kept.as_dict()["details"] == details


@pytest.mark.parametrize(
    ("name", "wrong"),
    [("r", "several runs have"), ("", "several"), ("x", "no run has"), ("%", "no"), ("_", "no")],
)
def test_a_name_of_no_run_or_of_several_ends_in_2(tmp_path: Path, name: str, wrong: str) -> None:
    with run_history.open_history(tmp_path) as history:
        history.put(run("r1"))
        history.put(run("r2"))
        with pytest.raises(UsageError, match=f"^{wrong}"):
            history.find(name)


def test_the_run_history_is_private(tmp_path: Path) -> None:
    with run_history.open_history(tmp_path):
        assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


def test_runs_of_processes_that_are_gone_are_interrupted_and_others_are_not(
    tmp_path: Path,
) -> None:
    here = lease.identity()
    with run_history.open_history(tmp_path) as history:
        history.put(run("alive"))
        history.put(run("dead", process={**here, "started": 1}))
        history.put(run("before the boot", process={**here, "kernel": "another"}))
        history.put(run("elsewhere", process=ELSEWHERE))
        assert history.sweep(now_ms=2_000) == 2
        assert {found.run for found in history.runs(state=State.RUNNING)} == {"alive", "elsewhere"}
        assert history.sweep(now_ms=2_000 + SILENT_MS) == 1


@pytest.mark.parametrize("harm", ["no database", "pages", "empty"])
def test_a_damaged_run_history_is_set_aside_and_a_new_one_begun(tmp_path: Path, harm: str) -> None:
    with run_history.open_history(tmp_path) as history:
        for number in range(500):
            history.put(run(f"r{number}"))
    path = tmp_path / FILE
    content = path.read_bytes()
    harmed = {
        "no database": b"x" * 5_000,
        "pages": content[:8_192] + b"\xff" * (len(content) - 8_192),
        "empty": b"",
    }
    path.write_bytes(harmed[harm])
    notes: list[str] = []
    with run_history.open_history(tmp_path, notes) as history:
        history.put(run("new"))
        assert [found.run for found in history.runs()] == ["new"]
    assert len(notes) == (0 if harm == "empty" else 1)
    assert len(list(tmp_path.glob("*.damaged-*"))) == len(notes)


def test_a_run_history_that_another_process_has_replaced_is_not_set_aside(tmp_path: Path) -> None:
    path = tmp_path / FILE
    path.write_bytes(b"x" * 5_000)

    class Slow(RunHistory):
        """A process that finds the damage, and another one that replaces the file
        before this one can.
        """

        def _prepare(self) -> None:
            try:
                super()._prepare()
            except sqlite3.DatabaseError:
                with run_history.open_history(tmp_path) as other:
                    other.put(run("other"))
                raise

    notes: list[str] = []
    with Slow.opened(path, notes) as history:
        assert [found.run for found in history.runs()] == ["other"]
    assert not notes and len(list(tmp_path.glob("*.damaged-*"))) == 1


def test_a_run_history_that_cannot_be_written_is_73(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(OutputError), run_history.open_history(tmp_path / "file"):
        pass


def test_a_run_history_of_a_newer_version_is_left_alone(tmp_path: Path) -> None:
    import sqlite3

    with run_history.open_history(tmp_path):
        pass
    db = sqlite3.connect(tmp_path / FILE)
    db.execute("PRAGMA user_version=99")
    db.close()
    with pytest.raises(OutputError, match="another version"), run_history.open_history(tmp_path):
        pass


def test_rebuilding_enters_each_stored_run_once(tmp_path: Path) -> None:
    stored = [run(f"s{number}", stored_run=f"s{number}", state=State.DONE) for number in range(3)]
    with run_history.open_history(tmp_path) as history:
        history.put(run("r1", stored_run="s1", state=State.DONE))
        assert not history.knows_store("/store")
        assert history.rebuild("/store", stored) == 2
        assert history.rebuild("/store", stored) == 0
        assert {found.run for found in history.runs()} == {"r1", "s0", "s2"}
        assert history.knows_store("/store")


def test_the_last_word_on_what_was_published_counts(tmp_path: Path) -> None:
    first = Published("dbs_aaa", "dbs_aaa", DAY, "s1", "/queue/a", 1, 5, 5, 0)
    with run_history.open_history(tmp_path) as history:
        history.note_published(first)
        history.note_published(replace(first, at_ms=2, confirmed=10, waiting=0))
        history.note_published(replace(first, destination="/queue/b"))
        found = sorted(history.published(DAY, DAY), key=lambda one: one.destination)
        assert [(one.destination, one.confirmed) for one in found] == [
            ("/queue/a", 10),
            ("/queue/b", 5),
        ]
        assert history.published(DAY + timedelta(days=1)) == []
