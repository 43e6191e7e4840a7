"""Real runs of Spark that are built to go wrong: each is named, and a healthy one is not."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cmsspark.monitor.measured_runs import measured_runs
from cmsspark.store.run_metrics import RunMetrics

SCRIPTS = Path(__file__).parent / "scripts"
TOP = Path(__file__).resolve().parents[2]


def measured(folder: Path, script: str, *words: str, code: int = 0) -> RunMetrics:
    """The measurement of a run of ``run_spark``."""
    main = "from cmsspark.submit import main; main()"
    command = [sys.executable, "-c", main, str(SCRIPTS / script), "--master", "local[2]", *words]
    environ = {
        **os.environ,
        "CMSSPARK_STATE_DIR": str(folder),
        "CMSSPARK_CACHE_DIR": str(folder),
        "PYTHONPATH": str(TOP),
    }
    done = subprocess.run(command, env=environ, capture_output=True, text=True, timeout=600, check=False, cwd=folder)
    assert done.returncode == code, done.stdout + done.stderr
    (metrics,) = measured_runs(folder)
    return metrics


def codes(metrics: RunMetrics) -> list[str]:
    return [finding.code for finding in metrics.findings]


def test_a_healthy_run_has_figures_and_no_finding(tmp_path: Path) -> None:
    metrics = measured(tmp_path, "healthy.py", "--driver-memory", "1g")
    assert metrics.findings == [] and metrics.notes == []
    assert metrics.sources == ["samples", "events"] and metrics.state == "DONE"
    assert metrics.totals.tasks > 10 and metrics.totals.failed_tasks == 0 and metrics.jobs > 4
    peaks = metrics.executors[0].peaks
    for area in ("JVMHeapMemory", "JVMOffHeapMemory", "OnHeapUnifiedMemory", "ProcessTreeJVMRSSMemory"):
        assert peaks[area] > 0, area
    assert peaks["ProcessTreePythonRSSMemory"] > 50_000_000 and "MinorGCCount" in peaks
    assert max(sample.heap_bytes or 0 for sample in metrics.samples) > 20_000_000
    assert max(sample.driver_python_rss or 0 for sample in metrics.samples) > 20_000_000


def test_a_skewed_stage_of_40_tasks_is_named_with_its_task(tmp_path: Path) -> None:
    metrics = measured(tmp_path, "skewed.py", "--driver-memory", "1g")
    assert codes(metrics) == ["skewed_stage"]
    stage = next(stage for stage in metrics.stages if stage.task_count == 40)
    assert stage.shuffle_read_bytes.max > 150_000_000 > 50 * stage.shuffle_read_bytes.median
    assert f"stage {stage.stage}," in metrics.findings[0].where
    assert f"task {stage.largest_task} " in metrics.findings[0].title


def test_a_spill_is_named_with_its_stage(tmp_path: Path) -> None:
    words = ("--driver-memory", "1g", "--conf", "spark.memory.fraction=0.15")
    metrics = measured(tmp_path, "spilling.py", *words)
    assert codes(metrics) == ["spill"]
    assert metrics.totals.disk_spilled_bytes > 1_000_000


def test_an_object_that_py4j_pulls_is_named_though_no_task_ran(tmp_path: Path) -> None:
    metrics = measured(tmp_path, "py4j_object.py", "--driver-memory", "1g", "60000000")
    assert "driver_heap_jump" in codes(metrics)
    finding = next(finding for finding in metrics.findings if finding.code == "driver_heap_jump")
    assert "Py4J" in finding.title and "Arrow" in finding.cure


def test_a_heap_that_an_object_fills_is_named_as_what_ended_the_run(tmp_path: Path) -> None:
    metrics = measured(tmp_path, "py4j_object.py", "--driver-memory", "512m", "200000000", code=1)
    assert codes(metrics)[0] == "heap_space" and metrics.findings[0].severity == "error"


@pytest.mark.long
def test_the_same_text_by_arrow_is_no_finding(tmp_path: Path) -> None:
    metrics = measured(tmp_path, "arrow_table.py", "--driver-memory", "1g", "60000000")
    assert metrics.findings == []


def test_a_python_worker_that_leaks_is_named(tmp_path: Path) -> None:
    metrics = measured(tmp_path, "leaking_worker.py", "--driver-memory", "1g")
    assert codes(metrics) == ["python_worker_leak"]


def test_what_plans_say_is_named(tmp_path: Path) -> None:
    metrics = measured(tmp_path, "plans.py", "--driver-memory", "1g")
    assert set(codes(metrics)) == {"cartesian_join", "small_files", "sort_for_first_rows", "cached_unused"}
