"""Which engine a job takes, and the way back to Spark."""

from __future__ import annotations

import json
import subprocess
import sys
from dataclasses import replace
from datetime import date
from pathlib import Path

import pytest

from cmsspark.errors import UsageError
from cmsspark.jobs import engine
from cmsspark.jobs.request import DayRequest
from cmsspark.settings import Settings

ASKED = DayRequest("dbs_aaa", date(2026, 1, 15), "/out", Settings(None, None, Path("/state"), Path("/cache")))


def test_processes_count_what_lies_here_and_spark_all_else() -> None:
    assert engine.of(ASKED, True) == "processes"
    assert engine.of(ASKED, False) == "spark"
    for asked in (replace(ASKED, join="shuffle"), replace(ASKED, feed="spark"), replace(ASKED, fmt="csv")):
        assert engine.of(asked, True) == "spark"
        with pytest.raises(UsageError, match="processes cannot"):
            engine.of(replace(asked, engine="processes"), True)
    assert engine.of(replace(ASKED, engine="spark"), True) == "spark"
    with pytest.raises(UsageError, match="not on this host's disks"):
        engine.of(replace(ASKED, engine="processes"), False)


def test_what_spark_submit_started_is_counted_by_spark(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYSPARK_GATEWAY_PORT", "1")
    assert engine.of(ASKED, True) == "spark"
    assert engine.of(replace(ASKED, engine="processes"), True) == "processes"


def test_a_job_that_needs_spark_after_all_becomes_run_spark_again(tmp_path: Path) -> None:
    # The default folders lie on HDFS: what run_spark could not see, the job does.
    code = "import os, sys\nfrom cmsspark.jobs import engine\nengine.go_back_for_spark()\nprint('stays')\n"
    words = ["data_aggregation", "--date", "20260115", "--fout", "hdfs:///out dir", "--dry-run"]
    run = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path), engine.WORDS: json.dumps(words)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert "spark-submit" in run.stdout and "'hdfs:///out dir'" in run.stdout
    alone = subprocess.run(
        [sys.executable, "-c", code],
        env={"PATH": "/usr/bin:/bin", "PYTHONPATH": ":".join(sys.path)},
        capture_output=True,
        text=True,
        check=True,
    )
    assert alone.stdout == "stays\n"
