"""A run and its end: killed anywhere it leaves the previous result, and the next one
finishes right (R1, R2).
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from cmsspark.base import self_metrics
from cmsspark.base.errors import NotReady
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.run.run_context import running
from cmsspark.store import lease, results, run_history, staged_runs
from cmsspark.store.lease import Lease
from tests.run.killed_run import DAY, JOB, settings, work
from tests.run.places import Place

ELSEWHERE = {"host": "other.example.org", "pid": 7, "kernel": "another boot", "started": 1}


def killed_at(folder: Path, step: int) -> bool:
    """Whether the run reached the step, where it was killed."""
    command = [sys.executable, "-m", "tests.run.killed_run", str(folder), str(step)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode in (0, -9), done.stderr
    return done.returncode == -9


def text_of(folder: Path) -> str:
    found = results.current(LocalFiles(), str(folder / "store"), JOB, JOB, DAY)
    return (Path(found.path) / "part-0.txt").read_text(encoding="utf-8")


def check(folder: Path, step: int) -> bool:
    """Kill at ``step`` of a run over an earlier result, look, run again, look. False
    when there is no such step.
    """
    work(folder, LocalFiles(), "before")
    killed = killed_at(folder, step)
    assert text_of(folder) in (("before", "killed") if killed else ("killed",))
    work(folder, LocalFiles(), "after")
    assert text_of(folder) == "after"
    day = folder / "store" / JOB / DAY.isoformat()
    assert not [path for path in day.rglob("*.part")]
    assert all((run / "manifest.json").exists() for run in (day / "runs").iterdir())
    return killed


@pytest.mark.parametrize("step", [2, 4, 5, 7, 8, 9, 10, 11, 12])
def test_killed_at_a_step_the_result_before_stays_and_the_next_run_finishes_right(
    tmp_path: Path, step: int
) -> None:
    assert check(tmp_path, step)


@pytest.mark.long
def test_killed_at_every_step_the_next_run_finishes_right(tmp_path: Path) -> None:
    step = 1
    while check(tmp_path / str(step), step):
        step += 1
    assert step > 12


def test_a_day_that_another_host_works_on_is_refused_before_anything_starts(place: Place) -> None:
    folder = lease.lease_folder(place.fout, "dbs_aaa", DAY.replace(year=2019, month=6, day=15))
    Lease(LocalFiles(), folder, "dbs_aaa", process=ELSEWHERE).take()
    error = place.fails(NotReady, "dbs_aaa")
    assert "process 7 on other.example.org" in error.text()


#: A run on a full disk: no file grows beyond ROOM bytes, which ends a write as a full disk does.
FULL = """
import resource, signal, sys
from pathlib import Path
from cmsspark.base.errors import OutputError
from cmsspark.filesystems.storage import LocalFiles
from tests.run.killed_run import work
signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
folder, room, size = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
resource.setrlimit(resource.RLIMIT_FSIZE, (room, room))
try:
    work(folder, LocalFiles(), "x" * size)
except OutputError as error:
    print(error.text())
    sys.exit(error.exit_code)
"""


@pytest.mark.parametrize(
    ("room", "size", "code"), [(50_000, 60_000, 73), (10, 1, 73), (4_000, 1, 0)]
)
def test_on_a_full_disk_the_result_before_stays_and_only_a_run_history_may_fail(
    tmp_path: Path, room: int, size: int, code: int
) -> None:
    work(tmp_path, LocalFiles(), "before")
    command = [sys.executable, "-c", FULL, str(tmp_path), str(room), str(size)]
    done = subprocess.run(
        command, capture_output=True, text=True, check=False, cwd=Path(__file__).parents[2]
    )
    assert done.returncode == code, done.stderr
    assert text_of(tmp_path) == ("before" if code else "x")
    assert "File too large" in done.stdout or not code
    work(tmp_path, LocalFiles(), "after")
    assert text_of(tmp_path) == "after"


def test_an_error_of_spark_is_told_in_our_words_wherever_in_a_run_it_is_raised(
    tmp_path: Path,
) -> None:
    import pyspark  # noqa: F401  # as in each run that has a session

    text = "org.apache.spark.SparkException: Job 0 cancelled because SparkContext was shut down"
    chosen = settings(tmp_path)
    with (
        pytest.raises(NotReady, match="application ended before the job did"),
        running(chosen, str(tmp_path / "store"), JOB, DAY),
    ):
        raise RuntimeError(f"An error occurred while calling o981.collectToPython.\n: {text}")
    with run_history.open_history(chosen.state_dir) as history:
        (run,) = history.runs()
    assert run.exit_code == 75


def test_a_run_that_was_overtaken_changes_nothing(tmp_path: Path) -> None:
    work(tmp_path, LocalFiles(), "before")
    fout = str(tmp_path / "store")
    with running(settings(tmp_path), fout, JOB, DAY, lambda text: None) as run_context:
        run_context.lock(LocalFiles())
        staged = staged_runs.stage(LocalFiles(), fout, JOB, DAY, run_context.check)
        folder = Path(lease.lease_folder(fout, JOB, DAY))
        (folder / "00000099.json").write_bytes(b"another's")
        with pytest.raises(NotReady, match="took over"):
            staged.commit({})
    assert text_of(tmp_path) == "before"


def test_the_runs_of_several_days_name_the_measured_run_that_they_belong_to(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(self_metrics.VARIABLE, str(tmp_path / "metrics" / "measured-1"))
    for _ in range(2):
        work(tmp_path, LocalFiles(), "text")
    with run_history.open_history(settings(tmp_path).state_dir) as history:
        runs = list(history.runs())
    assert [(run.process or {})["measured"] for run in runs] == ["measured-1"] * 2
    assert len({run.run for run in runs}) == 2


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)
