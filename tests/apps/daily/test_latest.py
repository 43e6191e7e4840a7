"""``--date latest``: the newest day whose inputs are complete, for run_spark and for daily."""

from __future__ import annotations

import os
import shlex
import shutil
import subprocess
import sys
from datetime import date, timedelta
from pathlib import Path

import pytest

from cmsspark.apps.demo import make
from cmsspark.base import dates
from cmsspark.base.errors import InputMissing
from cmsspark.sources.layout import Layout
from cmsspark.sources.registry import find_dump_kind
from cmsspark.store.own_jobs import JOBS
from cmsspark.submit.wrapper import run_spark

ROOT = Path(__file__).resolve().parents[3]
NEWEST = dates.today() - timedelta(days=2)
RUN_SPARK = "from cmsspark.submit import main; main()"
CMSSPARK = "from cmsspark.main import main; main()"


@pytest.fixture(scope="module")
def world(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Logs of two days, the newer one the day before yesterday, and settings that wait
    for nothing.
    """
    folder = tmp_path_factory.mktemp("latest")
    make(
        folder / "cms",
        NEWEST - timedelta(days=1),
        days=2,
        records=400,
        files=200,
        datasets=20,
        people=10,
    )
    (folder / "cmsspark.yaml").write_text(
        "root: cms\nstore: store\nstate_dir: state\ncache_dir: cache\n"
        "daily: {publish: false, quiet_minutes: 0, dump_wait_days: 0}\n"
    )
    return folder


def run(world: Path, program: str, *words: str) -> subprocess.CompletedProcess[str]:
    environ = {"PATH": os.environ["PATH"], "HOME": str(world), "PYTHONPATH": str(ROOT)}
    command = [sys.executable, "-c", program, *words]
    return subprocess.run(
        command, cwd=world, env=environ, capture_output=True, text=True, check=False
    )


@pytest.mark.parametrize("words", [("--date", "latest"), ("--date=latest",)])
def test_a_job_is_given_the_newest_complete_day(world: Path, words: tuple[str, ...]) -> None:
    done = run(world, RUN_SPARK, "data_aggregation", *words, "--fout", "store", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert f"latest is {NEWEST}" in done.stderr
    assert NEWEST.isoformat() in done.stdout and "--date latest" not in done.stdout


def test_a_day_without_one_of_its_streams_is_not_complete(world: Path, tmp_path: Path) -> None:
    shutil.copytree(world, tmp_path / "other")
    other = tmp_path / "other"
    shutil.rmtree(other / f"cms/project/monitoring/archive/condor/raw/metric/{NEWEST:%Y/%m/%d}")
    done = run(
        other, RUN_SPARK, "data_aggregation", "--date", "latest", "--fout", "store", "--dry-run"
    )
    assert f"latest is {NEWEST - timedelta(days=1)}" in done.stderr, done.stderr
    done = run(other, RUN_SPARK, "dbs_aaa", "--date", "latest", "--fout", "store", "--dry-run")
    assert f"latest is {NEWEST}" in done.stderr


def test_daily_takes_the_same_day(world: Path) -> None:
    done = run(world, CMSSPARK, "daily", "--date", "latest", "--dry-run")
    assert done.returncode == 0, done.stderr
    assert NEWEST.isoformat() in done.stdout
    assert (NEWEST - timedelta(days=1)).isoformat() not in done.stdout


def test_without_a_complete_day_it_is_75_and_other_commands_refuse_the_word(
    world: Path, tmp_path: Path
) -> None:
    (tmp_path / "cms").mkdir()
    shutil.copy(world / "cmsspark.yaml", tmp_path)
    done = run(tmp_path, RUN_SPARK, "data_aggregation", "--date", "latest", "--fout", "store")
    assert done.returncode == 75, done.stderr
    assert "--dry-run" in done.stderr
    for program, words in (
        (RUN_SPARK, ("cern_monit", "--date", "latest")),
        (CMSSPARK, ("report", "--date", "latest")),
    ):
        done = run(tmp_path, program, *words)
        assert done.returncode == 2
        assert "latest is for jobs on logs and dumps" in done.stderr


def _touch_dumps(root: Path, day: date) -> None:
    """Complete dumps of one day, whose parts nobody reads."""
    for kind in ("dbs", "rucio", "crab_tasks"):
        location = Layout.load(None).dump_location(kind, "dated")
        folder = root / location.folder.removeprefix("hdfs:").lstrip("/")
        dump = find_dump_kind(kind)
        for table in map(dump.table_folder, dump.tables):
            place = folder / day.isoformat() / ("" if dump.is_one_folder else table)
            place.mkdir(parents=True)
            (place / "part-m-00000").write_text("x")


@pytest.mark.parametrize("job", [name for name, job in JOBS.items() if job.reads_dumps])
def test_a_job_on_dumps_without_a_date_takes_the_day_of_its_dump(
    job: str, tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    today = dates.today()
    monkeypatch.setattr(dates, "today", lambda: today)  # also when a day ends meanwhile
    fresh, old = today - timedelta(days=7), today - timedelta(days=8)
    environ = {"PATH": os.environ["PATH"], "HOME": str(tmp_path)}
    words = [job, "--root", str(tmp_path), "--fout", "it's", "--dry-run"]
    _touch_dumps(tmp_path, old)
    with pytest.raises(InputMissing) as caught:
        run_spark(words, environ)
    assert f"it is of {old}, 8 days ago" in str(caught.value)
    line = str(caught.value.next_step).removeprefix("name the day: ")
    assert run_spark(shlex.split(line)[1:], environ) == 0
    assert f"--date {old}" in capsys.readouterr().out.replace("'", "")
    _touch_dumps(tmp_path, fresh)
    assert run_spark(words, environ) == 0
    shown = capsys.readouterr()
    assert f"using the day of the newest dump, {fresh}" in shown.err
    assert f"--date {fresh}" in shown.out
