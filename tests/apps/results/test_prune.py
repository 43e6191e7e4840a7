"""``cmsspark prune``: only what counts no more goes, only when asked for, and never the only copy."""

from __future__ import annotations

import json
import os
from datetime import date, timedelta
from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.apps.results.prune import prune
from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.main import command
from cmsspark.store import lease
from cmsspark.store.lease import Lease
from tests.publish.days import DAY, rows, store_day

OLD_S = 1_760_000_000
ELSEWHERE = {"host": "other.example.org", "pid": 7, "kernel": "another boot", "started": 1}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A day that was run three times, the last of which counts, and a run that never
    ended; all old.
    """
    for number in (1, 2, 3):
        store_day(tmp_path, rows(number), f"r{number}")
    (runs(tmp_path) / "dead").mkdir()
    for run in runs(tmp_path).iterdir():
        os.utime(run, (OLD_S, OLD_S))
    return tmp_path


def runs(store: Path) -> Path:
    return store / "data_aggregation" / DAY.isoformat() / "runs"


def names(store: Path) -> list[str]:
    return sorted(path.name for path in runs(store).iterdir())


def output_of(store: Path, *arguments: str) -> str:
    result = CliRunner().invoke(
        command, ["prune", "--fout", str(store), *arguments], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def test_without_yes_it_only_lists(store: Path) -> None:
    told = output_of(store)
    assert told.count("would remove: data_aggregation of 2026-01-15") == 3
    assert "never ended" in told
    assert "--yes removes them" in told
    assert names(store) == ["dead", "r1", "r2", "r3"]


def test_with_yes_all_but_the_current_run_goes(store: Path) -> None:
    assert output_of(store, "--yes").count("removed: data_aggregation") == 3
    assert names(store) == ["r3"]
    assert output_of(store, "--yes") == "nothing to remove\n"


def test_young_runs_stay(store: Path) -> None:
    os.utime(runs(store) / "r2")
    output_of(store, "--yes")
    assert names(store) == ["r2", "r3"]


@pytest.mark.parametrize("harm", ["no CURRENT", "another CURRENT", "no manifest", "no table"])
def test_of_a_day_whose_current_result_is_not_whole_all_stays(store: Path, harm: str) -> None:
    current = runs(store).parent / "CURRENT"
    if harm == "no CURRENT":
        current.unlink()
    elif harm == "another CURRENT":
        current.write_text(json.dumps({"run": "r9"}))
    elif harm == "no manifest":
        (runs(store) / "r3" / "manifest.json").unlink()
    else:
        (runs(store) / "r3" / "data_aggregation").rename(store / "elsewhere")
    assert output_of(store, "--yes") == "nothing to remove\n"
    assert names(store) == ["dead", "r1", "r2", "r3"]


def test_a_day_that_somebody_works_on_is_left_alone(store: Path) -> None:
    folder = lease.lease_folder(str(store), "data_aggregation", DAY)
    Lease(LocalFiles(), folder, "the day", process=ELSEWHERE).take()
    assert output_of(store, "--yes").count("another process is working on") == 3
    assert names(store) == ["dead", "r1", "r2", "r3"]


def test_a_run_that_became_current_meanwhile_stays(store: Path) -> None:
    class Meanwhile(LocalFiles):
        """The day switches to r1 between the look and the removal."""

        def create(self, path: str, content: bytes) -> bool:
            (runs(store).parent / "CURRENT").write_text(json.dumps({"run": "r1"}))
            return super().create(path, content)

    prune(Meanwhile(), str(store), OLD_S * 1000 + 1, remove=True)
    assert names(store) == ["r1", "r3"]


# Leases and ledgers
# ------------------------------------------------------------------------------------------------


def old_lease(
    store: Path, day: date = DAY, process: dict[str, object] | None = None, released: bool = True
) -> Path:
    """The lease of a day, last written long ago."""
    folder = lease.lease_folder(str(store), "data_aggregation", day)
    held = Lease(LocalFiles(), folder, "the day", **({"process": process} if process else {}))
    held.take()
    if released:
        held.release()
    for path in Path(folder).iterdir():
        os.utime(path, (OLD_S, OLD_S))
    return Path(folder)


def test_old_leases_go_and_young_ones_stay(tmp_path: Path) -> None:
    old, young = old_lease(tmp_path), old_lease(tmp_path, DAY + timedelta(days=1))
    os.utime(next(young.iterdir()))
    assert output_of(tmp_path) == "would remove: 1 old lease\n--yes removes them\n"
    assert old.exists()
    assert output_of(tmp_path, "--yes") == "removed: 1 old lease\n"
    assert (old.exists(), young.exists()) == (False, True)
    assert output_of(tmp_path, "--yes") == "nothing to remove\n"


def test_a_lease_that_a_living_process_holds_stays_however_old(tmp_path: Path) -> None:
    folder = old_lease(tmp_path, released=False)
    assert "kept: the lease of data_aggregation of 2026-01-15" in output_of(tmp_path, "--yes")
    assert folder.exists()


def test_after_a_lease_was_removed_the_day_can_be_taken_again(tmp_path: Path) -> None:
    folder = old_lease(tmp_path, process=ELSEWHERE, released=True)
    output_of(tmp_path, "--yes")
    with lease.hold(LocalFiles(), str(folder), "the day") as held:
        held.check()


def test_old_damaged_run_histories_are_removed_while_one_works(tmp_path: Path) -> None:
    state = tmp_path / "state"
    state.mkdir()
    settings = tmp_path / "cmsspark.yaml"
    settings.write_text("state_dir: state\n")
    aside = [
        state / "runs.sqlite.damaged-20250101T000000",
        state / "runs.sqlite-wal.damaged-20250101T000000",
    ]
    young = state / "runs.sqlite.damaged-20260101T000000"
    for path in (*aside, young):
        path.write_bytes(b"x")
    for path in aside:
        os.utime(path, (OLD_S, OLD_S))
    arguments = ("--yes", "--settings", str(settings))
    assert output_of(tmp_path, *arguments) == "nothing to remove\n"
    (state / "runs.sqlite").touch()
    assert output_of(tmp_path, *arguments).count("removed: a damaged run history: ") == 2
    assert sorted(path.name for path in state.iterdir()) == ["runs.sqlite", young.name]


def test_yes_and_dry_run_exclude_each_other(tmp_path: Path) -> None:
    with pytest.raises(UsageError):
        words = ["prune", "--fout", str(tmp_path), "--yes", "--dry-run"]
        CliRunner().invoke(command, words, catch_exceptions=False)
    assert output_of(tmp_path, "--dry-run") == "nothing to remove\n"


def test_a_store_that_is_not_there_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="there is no store"):
        CliRunner().invoke(
            command, ["prune", "--fout", str(tmp_path / "none")], catch_exceptions=False
        )
