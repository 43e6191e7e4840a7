"""The state directory, whichever part of the program makes it first, is its owner's alone."""

from __future__ import annotations

import stat
from collections.abc import Callable
from datetime import date
from pathlib import Path

import pytest

from cmsspark.base.private_folders import make_private
from cmsspark.publish.outbox import Outbox
from cmsspark.run.scan_summary import quarantine
from cmsspark.settings import pseudonyms
from cmsspark.store.daily_state import DailyState
from cmsspark.store.run_history import open_history
from cmsspark.store.run_metrics import RunMetrics, run_file, write

DAY = date(2026, 1, 5)


def mode(path: Path) -> int:
    return stat.S_IMODE(path.stat().st_mode)


def test_all_missing_folders_are_private_and_one_that_is_there_stays(tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir(mode=0o755)
    make_private(shared / "a" / "b")
    make_private(shared / "a" / "b")
    assert [mode(path) for path in (shared, shared / "a", shared / "a" / "b")] == [
        0o755,
        0o700,
        0o700,
    ]


def history(state: Path) -> None:
    with open_history(state):
        pass


def daily(state: Path) -> None:
    with DailyState(state, "/store").change():
        pass


def outbox(state: Path) -> None:
    with Outbox(state, "file-x", "dbs_eos", DAY.isoformat()).held():
        pass


MAKERS: dict[str, Callable[[Path], object]] = {
    "key": lambda state: pseudonyms.load(state / pseudonyms.KEY_FILE),
    "history": history,
    "daily": daily,
    "outbox": outbox,
    "measures": lambda state: write(run_file(state, "r"), RunMetrics("r", "dbs_eos", "", 0)),
    "quarantine": lambda state: quarantine(state / "quarantine" / "j" / "d", iter(())),
}


@pytest.mark.parametrize("maker", MAKERS)
def test_whoever_makes_the_state_directory_makes_it_private(maker: str, tmp_path: Path) -> None:
    state = tmp_path / "share" / "cmsspark"
    MAKERS[maker](state)
    assert mode(state) == 0o700
