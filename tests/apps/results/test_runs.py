"""``cmsspark runs``, ``show`` and ``status``: what people see of runs, without a JVM,
also when the ledger is gone.
"""

from __future__ import annotations

import json
import shutil
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner, Result
from msgspec.structs import replace

from cmsspark.apps.results import status
from cmsspark.base.errors import DataError, NotReady
from cmsspark.base.manifests import COUNTING_RULES, Manifest
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.main import command
from cmsspark.run.run_context import note_published, running
from cmsspark.store import lease, run_history
from cmsspark.store.day_states import Cell, cell
from cmsspark.store.run_history import FILE, Published, Run, State
from tests.run.killed_run import DAY, JOB, settings, work

MINUTE = 60_000


class Place:
    """A store and a state directory."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.fout = str(folder / "store")
        self.state = folder / "state"
        (folder / "cmsspark.yaml").write_text("state_dir: state\nstore: store\n")

    def work(self, text: str = "rows") -> str:
        """A run; its id in the store."""
        return str(work(self.folder, LocalFiles(), text).manifest.document["run"])

    def fail(self, error: BaseException, tell: Any = lambda text: None) -> None:
        with pytest.raises(type(error)), running(settings(self.folder), self.fout, JOB, DAY, tell):
            raise error

    def cmsspark(self, *arguments: str) -> Result:
        given = [*arguments, "--settings", str(self.folder / "cmsspark.yaml")]
        result = CliRunner().invoke(command, given, catch_exceptions=False)
        assert result.exit_code == 0, result.output
        return result

    def word(self, day: date = DAY) -> str:
        """What status says of the day."""
        told = json.loads(
            self.cmsspark("status", "--days", "1", "--to", day.isoformat(), "--json").stdout
        )
        return str(told[day.isoformat()][JOB])


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_a_run_is_listed_and_shown_with_what_it_came_to(place: Place) -> None:
    stored = place.work()
    listed = json.loads(place.cmsspark("runs", "--json").stdout)
    assert (listed["state"], listed["job"], listed["stored_run"], listed["rows"]) == (
        "DONE",
        JOB,
        stored,
        1,
    )
    shown = place.cmsspark("show", stored).stdout
    assert "data_aggregation of 2026-01-15: DONE" in shown
    assert "cmsspark 1" in shown
    assert listed["run"] in place.cmsspark("runs").stdout


def test_a_run_that_failed_keeps_its_code_and_reason(place: Place) -> None:
    place.fail(DataError("too much is malformed", where="here"))
    place.fail(ValueError("a bug"))
    listed = [
        json.loads(line)
        for line in place.cmsspark("runs", "--state", "failed", "--json").stdout.splitlines()
    ]
    assert [run["exit_code"] for run in listed] == [70, 65]
    assert "too much is malformed\n  where: here" in listed[1]["error"]
    assert "65: too much is malformed" in place.cmsspark("runs").stdout
    assert "where: here" in place.cmsspark("show", listed[1]["run"]).stdout


def test_a_run_that_was_interrupted_says_so(place: Place) -> None:
    place.fail(KeyboardInterrupt())
    assert json.loads(place.cmsspark("runs", "--json").stdout)["state"] == "INTERRUPTED"


def test_a_run_history_that_cannot_be_written_is_reported_once_and_stops_no_run(
    place: Place,
) -> None:
    place.state.write_text("a file where a folder should be")
    told: list[str] = []
    with running(settings(place.folder), place.fout, JOB, DAY, told.append) as run_of_day:
        run_of_day.lock(LocalFiles())
    assert len(told) == 1
    assert "the run history cannot be written" in told[0]
    place.fail(DataError("its own error is told"))


@pytest.mark.parametrize("harm", ["gone", "damaged"])
def test_a_run_history_that_is_gone_or_damaged_is_rebuilt_from_the_manifests(
    place: Place, harm: str
) -> None:
    stored = {place.work(), place.work()}
    for path in place.state.glob(f"{FILE}*"):
        path.unlink() if harm == "gone" else path.write_bytes(b"garbage" * 1_000)
    result = place.cmsspark("runs", "--json")
    assert {json.loads(line)["stored_run"] for line in result.stdout.splitlines()} == stored
    assert "2 runs were added" in result.stderr
    assert place.word() == "done"


def test_rebuilding_is_possible_at_any_time_and_names_manifests_of_another_form(
    place: Place,
) -> None:
    stored = place.work()
    place.cmsspark("runs")
    other = Path(place.fout) / JOB / "2026-01-16" / "runs" / "x"
    other.mkdir(parents=True)
    (other / "manifest.json").write_text('{"run": "x"}')
    result = place.cmsspark("runs", "--rebuild", "--json")
    assert json.loads(result.stdout)["stored_run"] == stored
    assert "skipped a manifest of an unknown format: run x" in result.stderr


def test_status_follows_a_day_through_its_life(place: Place) -> None:
    assert place.word() == "-"
    place.fail(NotReady("the dump is not there yet"))
    assert place.word() == "waiting"
    place.fail(DataError("damaged"))
    assert place.word() == "failed"
    stored = place.work()
    assert place.word() == "done"
    note_published(place.state, Published(JOB, JOB, DAY, stored, "/queue/x", 1, 5, 3, 0))
    assert place.word() == "sending"
    note_published(place.state, Published(JOB, JOB, DAY, stored, "/queue/x", 2, 8, 0, 0))
    assert place.word() == "published"
    place.fail(DataError("damaged"))
    assert place.word() == "kept"
    place.work()
    assert place.word() == "done"
    with running(settings(place.folder), place.fout, JOB, DAY, lambda text: None):
        assert place.word() == "running"
    shutil.rmtree(place.fout)
    assert place.word() == "lost"


def entry(state: State, minute: int, **more: Any) -> Run:
    given = Run(f"r{minute}", JOB, DAY, state, "/store", minute * MINUTE, stored_run=f"s{minute}")
    return replace(given, **more)


@pytest.mark.parametrize(
    ("runs", "word"),
    [
        ([], "-"),
        ([entry(State.DONE, 1, is_partial=True)], "partial"),
        ([entry(State.INTERRUPTED, 2)], "interrupted"),
        ([entry(State.INTERRUPTED, 2), entry(State.DONE, 1)], "done"),
        ([entry(State.FAILED, 2, exit_code=75), entry(State.DONE, 1)], "done"),
        ([entry(State.FAILED, 2, exit_code=75), entry(State.RUNNING, 1)], "running"),
        ([entry(State.FAILED, 2, exit_code=66)], "waiting"),
        ([entry(State.FAILED, 2, exit_code=70)], "failed"),
    ],
)
def test_the_word_for_a_day(runs: list[Run], word: str) -> None:
    assert cell(runs, []).word == word


def test_refused_documents_are_counted_beside_the_word() -> None:
    found = cell([entry(State.DONE, 1)], [Published(JOB, JOB, DAY, "s1", "/queue/x", 1, 5, 0, 2)])
    assert (found.word, found.refused) == ("published", 2)


def test_status_names_days_that_were_counted_by_earlier_rules() -> None:
    def run(day: int, begin: int, **versions: int) -> Run:
        document = {"reconciliation": {"aaa": {"read": 1}}, "versions": versions}
        of = date(2026, 1, day)
        details = Manifest.from_dict(document)
        return Run(f"r{begin}", JOB, of, State.DONE, "store", begin, details=details)

    # The latest start first: of the 2nd the earlier run has the earlier rules.
    runs = [run(2, 3, rules=COUNTING_RULES), run(2, 2), run(1, 1), run(3, 0)]
    cells = {(run.day, JOB): Cell("done") for run in runs}
    assert status.earlier_rules(runs, cells) == [
        f"{JOB}: counted by earlier rules: 2026-01-01, 2026-01-03; "
        f"run_spark {JOB} --date 2026-01-03 counts a day by today's"
    ]
    assert status.earlier_rules(runs[:1], cells) == []


def test_status_says_that_there_is_no_store_where_it_was_asked_for_one(place: Place) -> None:
    place.work()
    assert "no store" not in place.cmsspark("status").stderr
    shutil.rmtree(place.fout)
    assert f"there is no store in {place.fout}" in place.cmsspark("status").stderr


def test_status_finds_a_result_that_a_run_stored_by_a_relative_path(
    place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    """As `bin/demo` does: `run_spark … --fout demo-cms/store`, and then a look from
    another folder.
    """
    monkeypatch.chdir(place.folder)
    place.fout = "store"
    work(Path(), LocalFiles(), "rows")
    monkeypatch.chdir("/")
    place.fout = str(place.folder / "store")
    assert place.word() == "done"
    (run,) = [json.loads(line) for line in place.cmsspark("runs", "--json").stdout.splitlines()]
    assert run["store"] == place.fout


def test_status_is_of_one_store_whatever_was_run_into_others(place: Place) -> None:
    place.work()
    place.fout = str(place.folder / "other")
    place.fail(DataError("too much is malformed", where="here"))
    assert place.word() == "done"
    later = DAY + timedelta(days=1)
    with run_history.open_history(place.state) as book:
        book.put(replace(entry(State.DONE, 1), day=later, store=place.fout))
    assert place.word(later) == "-"
    assert later.isoformat() not in place.cmsspark("status", "--to", DAY.isoformat()).stdout


def test_runs_and_show_are_of_the_store_that_is_named(place: Place) -> None:
    stored = place.work()
    own, place.fout = place.fout, str(place.folder / "other")
    place.fail(DataError("too much is malformed", where="here"))
    nowhere = place.cmsspark("runs", "--fout", f"{place.folder}/nowhere")
    assert (nowhere.stdout, nowhere.stderr) == (
        "",
        f"no such run is recorded of the store {place.folder}/nowhere\n",
    )
    (run,) = place.cmsspark("runs", "--fout", own, "--json").stdout.splitlines()
    assert json.loads(run)["stored_run"] == stored
    assert len(place.cmsspark("runs", "--json").stdout.splitlines()) == 2
    for name in ("latest", JOB):
        assert (
            json.loads(place.cmsspark("show", name, "--fout", own, "--json").stdout)["stored_run"]
            == stored
        )
        assert json.loads(place.cmsspark("show", name, "--json").stdout)["state"] == "FAILED"


def test_every_word_of_status_is_explained_below_it(place: Place) -> None:
    place.work()
    told = place.cmsspark("status", "--to", "2026-01-15").stdout
    assert "2026-01-15  done" in told
    assert status.WORDS["done"][1] in told
    assert status.WORDS["failed"][1] not in told


def test_a_year_of_all_jobs_is_shown(place: Place) -> None:
    jobs = ("data_aggregation", "dbs_aaa", "dbs_eos", "dbs_phedex", "site_tier_usage")
    with run_history.open_history(place.state) as book:
        rows = [
            replace(
                entry(State.DONE, 1),
                run=f"{job}-{back}-{number}",
                job=job,
                day=DAY - timedelta(days=back),
            )
            for job in jobs
            for back in range(365)
            for number in range(2)
        ]
        store = place.folder / "store"
        book.rebuild(
            str(store), [replace(run, stored_run=run.run, store=str(store)) for run in rows]
        )
    for run in rows:
        current = store / run.job / run.day.isoformat() / "CURRENT"
        current.parent.mkdir(parents=True, exist_ok=True)
        current.touch()
    told = place.cmsspark("status", "--days", "365", "--to", DAY.isoformat()).stdout
    assert told.count("done") >= 365 * len(jobs)


def test_a_process_that_was_killed_is_seen_by_the_next_look(place: Place) -> None:
    gone = {**lease.identity(), "started": 1}
    with run_history.open_history(place.state) as book:
        book.put(replace(entry(State.RUNNING, 1), process=gone))
    assert place.word() == "interrupted"


def test_status_ends_at_the_last_stored_day_where_that_is_long_ago(place: Place) -> None:
    place.work()
    assert "2026-01-15  done" in place.cmsspark("status").stdout
    assert "2026-01-15  done" not in place.cmsspark("status", "--to", "2026-02-15").stdout
