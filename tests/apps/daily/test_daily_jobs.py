"""``cmsspark daily`` on a day of today's sources: jobs on logs, on dumps and on caches,
from the demo to the store.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from datetime import date
from pathlib import Path

import pytest

from cmsspark.apps.daily.config import daily_config
from cmsspark.apps.daily.planner import Planner, Rules
from cmsspark.apps.demo import make
from cmsspark.base import dates
from cmsspark.base.errors import SettingsError
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.settings.settings import load_settings
from cmsspark.sources.folders import Layout
from cmsspark.store.own_jobs import JOBS as ALL_JOBS
from cmsspark.store.own_jobs import Job
from cmsspark.store.results import current

DAY = date(2026, 1, 15)
JOBS = (
    "dbs_condor",
    "xcache",
    "rucio_daily",
    "dataset_last_access",
    "leftovers",
    "job_efficiency",
    "step_efficiency",
)


@pytest.fixture
def place(tmp_path: Path) -> Path:
    make(tmp_path / "cms", DAY, records=2_000, files=600, datasets=20, people=20)
    settings = {
        "root": str(tmp_path / "cms"),
        "store": str(tmp_path / "store"),
        "state_dir": str(tmp_path / "state"),
        "cache_dir": str(tmp_path / "cache"),
        "publishing": {"sink": "file", "spool": str(tmp_path / "spool")},
        "daily": {"jobs": JOBS, "quiet_minutes": 0},
    }
    (tmp_path / "cmsspark.yaml").write_text(json.dumps(settings))
    return tmp_path


def daily(place: Path, *options: str) -> subprocess.CompletedProcess[str]:
    """Run the command as a shell does."""
    arguments = ["daily", "--date", f"{DAY}", "--settings", str(place / "cmsspark.yaml"), *options]
    start = f"from cmsspark.main import main; import sys; sys.argv[1:] = {arguments!r}; main()"
    environment = {**os.environ, "HOME": str(place)}
    return subprocess.run(
        [sys.executable, "-c", start],
        env=environment,
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )


def test_a_day_of_each_kind_of_job_is_stored_published_and_then_done(place: Path) -> None:
    first = daily(place)
    assert first.returncode == 0, first.stdout + first.stderr
    for job in JOBS:
        assert (
            current(LocalFiles(), str(place / "store"), job, job, DAY).manifest.tables[job].rows
            >= 0
        )
    sent = [path for path in (place / "spool").rglob("*") if path.is_file()]
    assert {job for job in JOBS for path in sent if job in str(path)} == set(JOBS)
    again = daily(place)
    assert again.returncode == 0, again.stdout + again.stderr
    assert (
        "0 to do" in again.stdout + again.stderr or "nothing to do" in again.stdout + again.stderr
    )


@pytest.mark.parametrize(
    "job",
    [job for job in ALL_JOBS.values() if job.tables and not job.of_periods],
    ids=lambda job: job.name,
)
def test_each_job_of_a_day_can_be_planned(tmp_path: Path, job: Job) -> None:
    (tmp_path / "cmsspark.yaml").write_text(json.dumps({"daily": {"jobs": [job.name]}}))
    settings = load_settings(str(tmp_path / "cmsspark.yaml"))
    if job.is_day_optional:
        with pytest.raises(SettingsError, match="jobs that work on a day"):
            daily_config(settings)
        return
    (planned,) = daily_config(settings).jobs
    layout = Layout.from_settings(settings, str(tmp_path))
    task = Planner(LocalFiles(), layout, str(tmp_path / "store"), Rules(), {}, None, 0).task(
        planned, DAY
    )
    # Without inputs it waits, and a job on stored results is run.
    assert task is not None and task.reason == "missing" and task.error is None
    on_stored_days = job.name.startswith("popularity_") or job.name == "silent_sites"
    assert task.readiness.is_ready == on_stored_days


def test_records_of_caches_that_change_or_lack_are_reported_as_those_of_logs(place: Path) -> None:
    only = ("--job", "xcache", "--no-publish")
    assert daily(place, *only).returncode == 0
    before = current(LocalFiles(), str(place / "store"), "xcache", "xcache", DAY).manifest
    folder = place / "cms/project/monitoring/archive/cms-xrootd-cache/raw/metric/2026/01/15"
    late = {
        "data": {"file_path": "/store/late", "bytes_hit_cache": 5},
        "metadata": {"timestamp": dates.start_ms(DAY)},
    }
    (folder / "part-late.json").write_text(json.dumps(late) + "\n")
    shown = daily(place, *only, "--dry-run")
    assert "stale: the files of xcache have changed" in shown.stdout
    assert daily(place, *only).returncode == 0
    after = current(LocalFiles(), str(place / "store"), "xcache", "xcache", DAY).manifest
    assert after.run != before.run
    folder.rename(place / "gone")
    waiting = daily(place, *only, "--force")
    assert waiting.returncode == 75, waiting.stdout + waiting.stderr
    assert "xcache" in waiting.stdout + waiting.stderr


@pytest.mark.parametrize("job", ["dbs_condor", "job_efficiency"])
def test_a_day_is_counted_again_when_the_logs_of_the_day_before_arrive(
    place: Path, job: str
) -> None:
    only = ("--job", job, "--no-publish")
    assert daily(place, *only).returncode == 0
    folder = place / "cms/project/monitoring/archive/condor/raw/metric/2026/01"
    shutil.copytree(folder / "15", folder / "14")
    shown = daily(place, *only, "--dry-run")
    assert (
        "stale: condor of 2026-01-14, whose jobs may be counted twice, has arrived" in shown.stdout
    )
    assert daily(place, *only).returncode == 0
    assert "stale" not in daily(place, *only, "--dry-run").stdout
