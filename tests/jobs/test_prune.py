"""``cmsspark prune``: only what counts no more goes, only when asked for, and never the only copy."""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.cli import command
from cmsspark.jobs.prune import prune
from cmsspark.runs import lease
from cmsspark.runs.lease import Lease
from cmsspark.storage import LocalFiles
from tests.publish.days import DAY, rows, store_day

OLD_S = 1_760_000_000
ELSEWHERE = {"host": "other.example.org", "pid": 7, "kernel": "another boot", "started": 1}


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """A day that was run three times, the last of which counts, and a run that never ended; all old."""
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


def said(store: Path, *arguments: str) -> str:
    result = CliRunner().invoke(command, ["prune", "--fout", str(store), *arguments], catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout


def test_without_yes_it_only_tells(store: Path) -> None:
    told = said(store)
    assert told.count("would go: data_aggregation of 2026-01-15") == 3
    assert "never ended" in told
    assert "--yes removes them" in told
    assert names(store) == ["dead", "r1", "r2", "r3"]


def test_with_yes_all_but_the_current_run_goes(store: Path) -> None:
    assert said(store, "--yes").count("removed: ") == 3
    assert names(store) == ["r3"]
    assert said(store, "--yes") == "nothing is to be removed\n"


def test_young_runs_stay(store: Path) -> None:
    os.utime(runs(store) / "r2")
    said(store, "--yes")
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
    assert said(store, "--yes") == "nothing is to be removed\n"
    assert names(store) == ["dead", "r1", "r2", "r3"]


def test_a_day_that_somebody_works_on_is_left_alone(store: Path) -> None:
    folder = lease.day_folder(str(store), "data_aggregation", DAY)
    Lease(LocalFiles(), folder, "the day", process=ELSEWHERE).take()
    assert said(store, "--yes").count("is being worked on by another process") == 3
    assert names(store) == ["dead", "r1", "r2", "r3"]


def test_a_run_that_became_current_meanwhile_stays(store: Path) -> None:
    class Meanwhile(LocalFiles):
        """The day switches to r1 between the look and the removal."""

        def create(self, path: str, content: bytes) -> bool:
            (runs(store).parent / "CURRENT").write_text(json.dumps({"run": "r1"}))
            return super().create(path, content)

    prune(Meanwhile(), str(store), OLD_S * 1000 + 1, remove=True)
    assert names(store) == ["r1", "r3"]
