"""Real runs of Spark that are built to go wrong: each is named, and a healthy one is not.

A run is a JVM of its own. Those marked ``long`` end in figures of a stage or of the
driver's heap as others here do; ``test_findings.py`` and ``test_findings_borders.py``
have the rule behind each finding.
"""

from __future__ import annotations

import os
import subprocess
import sys
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cmsspark.apps.demo import make
from cmsspark.apps.monitor.findings.advice import advise
from cmsspark.apps.monitor.findings.driver import FULL_HEAP
from cmsspark.apps.monitor.measured_runs import measured_runs
from cmsspark.apps.monitor.memory_sizes import size
from cmsspark.store.run_metrics import RunMetrics
from tests.apps.monitor import sampled
from tests.commands import LIGHT_JVM

SCRIPTS = Path(__file__).parent / "scripts"
TOP = Path(__file__).resolve().parents[3]
#: Two cores, and a JVM that compiles little: most of these runs is its start.
LIGHT = ("--master", "local[2]", "--conf", "spark.sql.shuffle.partitions=4", *LIGHT_JVM)


def measured(
    folder: Path, script: str, *options: str, words: tuple[str, ...] = (), code: int | None = 0
) -> RunMetrics:
    """The measurement of a run of ``run_spark``; ``code``: that it must end with, None for any."""
    folder.mkdir(exist_ok=True)
    command = [sys.executable, "-c", sampled.MAIN, *LIGHT, *options, str(SCRIPTS / script), *words]
    environ = {
        **os.environ,
        "CMSSPARK_STATE_DIR": str(folder),
        "CMSSPARK_CACHE_DIR": str(folder),
        "PYTHONPATH": str(TOP),
        sampled.VARIABLE: str(folder / "samples.jsonl"),
    }
    done = subprocess.run(
        command, env=environ, capture_output=True, text=True, timeout=600, check=False, cwd=folder
    )
    assert code is None or done.returncode == code, done.stdout + done.stderr
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
    for area in (
        "JVMHeapMemory",
        "JVMOffHeapMemory",
        "OnHeapUnifiedMemory",
        "ProcessTreeJVMRSSMemory",
    ):
        assert peaks[area] > 0, area
    assert peaks["ProcessTreePythonRSSMemory"] > 50_000_000 and "MinorGCCount" in peaks
    assert max(sample.heap_bytes or 0 for sample in metrics.samples) > 20_000_000
    assert max(sample.driver_python_rss or 0 for sample in metrics.samples) > 20_000_000


@pytest.mark.long
def test_a_skewed_stage_of_40_tasks_is_named_with_its_task(tmp_path: Path) -> None:
    metrics = measured(tmp_path, "skewed.py", "--driver-memory", "1g")
    assert codes(metrics) == ["skewed_stage"]
    stage = next(stage for stage in metrics.stages if stage.task_count == 40)
    assert stage.shuffle_read_bytes.max > 150_000_000 > 50 * stage.shuffle_read_bytes.median
    assert f"stage {stage.stage}," in metrics.findings[0].where
    assert f"task {stage.shuffle_read_bytes.task} " in metrics.findings[0].title


@pytest.mark.long
def test_a_spill_is_named_with_its_stage(tmp_path: Path) -> None:
    words = ("--driver-memory", "600m", "--conf", "spark.memory.fraction=0.15")
    metrics = measured(tmp_path, "spilling.py", *words)
    assert codes(metrics) == ["spill"]
    assert metrics.totals.disk_spilled_bytes > 1_000_000


@pytest.mark.long
def test_an_object_that_py4j_pulls_is_named_though_no_task_ran(tmp_path: Path) -> None:
    metrics = measured(tmp_path, "py4j_object.py", "--driver-memory", "1g", words=("60000000",))
    assert "driver_heap_jump" in codes(metrics)
    finding = next(finding for finding in metrics.findings if finding.code == "driver_heap_jump")
    assert "Py4J" in finding.title and "Arrow" in finding.cure


def test_a_heap_that_objects_fill_is_named_as_what_ended_the_run(tmp_path: Path) -> None:
    full = round(FULL_HEAP * (size("500m") or 0))
    metrics = measured(
        tmp_path, "full_heap.py", "--driver-memory", "500m", words=(str(full),), code=1
    )
    assert codes(metrics)[0] == "heap_space" and metrics.findings[0].severity == "error"


@pytest.mark.long
def test_the_same_text_by_arrow_is_no_finding(tmp_path: Path) -> None:
    metrics = measured(tmp_path, "arrow_table.py", "--driver-memory", "1g", words=("60000000",))
    assert metrics.findings == []


def test_a_python_worker_that_leaks_is_named(tmp_path: Path) -> None:
    metrics = measured(
        tmp_path, "leaking_worker.py", "--driver-memory", "1g", "--master", "local[1]"
    )
    assert codes(metrics) == ["python_worker_leak"]


def test_what_plans_say_is_named(tmp_path: Path) -> None:
    metrics = measured(tmp_path, "plans.py", "--driver-memory", "1g")
    assert set(codes(metrics)) == {
        "cartesian_join",
        "small_files",
        "sort_for_first_rows",
        "cached_unused",
    }


@pytest.mark.long
def test_advised_memory_sorts_the_demo_month_and_30_percent_less_hurts(tmp_path: Path) -> None:
    month = tmp_path / "month"
    make(month, date(2026, 1, 1), days=31, records=1000, files=500, datasets=20, people=10)
    logs = (str(month / "project" / "monitoring" / "archive"), "5")

    def run_with(heap: str, **more: Any) -> RunMetrics:
        return measured(
            tmp_path / f"heap-{heap}", "month.py", "--driver-memory", heap, words=logs, **more
        )

    heap, tried, signs = "1536m", [], {"spill", "gc", "heap_space"}
    while True:
        metrics = run_with(heap)
        advice = advise([metrics])[0]
        tried.append((heap, codes(metrics), advice.text, advice.inputs))
        sys.stderr.write(f"{tried[-1]}\n")
        if advice.conf is None:
            break
        assert len(tried) < 8, tried
        heap = advice.conf.partition("=")[2]
    assert metrics.state == "DONE" and not signs & set(codes(metrics)), tried
    less = f"{int(0.7 * (size(heap) or 0)) >> 20}m"
    hurt = run_with(less, code=None)
    sys.stderr.write(f"{less} {hurt.state} {codes(hurt)} {advise([hurt])[0]}\n")
    assert hurt.state == "FAILED" or signs & set(codes(hurt)), tried


FEW = ("--driver-memory", "600m", "--conf", "spark.memory.fraction=0.2")


@pytest.mark.long
@pytest.mark.parametrize(
    ("script", "options", "names"),
    [
        ("spilling.py", (), {"spark.driver.memory"}),
        (
            "spilling_shuffle.py",
            ("--conf", "spark.sql.adaptive.enabled=false"),
            {"spark.sql.shuffle.partitions"},
        ),
        (
            "spilling_shuffle.py",
            (),
            {"spark.sql.shuffle.partitions", "spark.sql.adaptive.advisoryPartitionSizeInBytes"},
        ),
    ],
    ids=["heap", "partitions", "adaptive"],
)
def test_a_run_with_all_of_the_advice_does_not_spill_any_more(
    tmp_path: Path, script: str, options: tuple[str, ...], names: set[str]
) -> None:
    before = measured(tmp_path / "before", script, *FEW, *options)
    assert codes(before) == ["spill"]
    advised = [entry.conf for entry in advise([before]) if entry.conf is not None]
    assert {conf.partition("=")[0] for conf in advised} == names
    words = [word for conf in advised for word in ("--conf", conf)]
    assert codes(measured(tmp_path / "after", script, *FEW, *options, *words)) == []
    if names == {"spark.driver.memory"}:
        less = int(0.7 * (size(advised[0].partition("=")[2]) or 0)) >> 20
        hurt = measured(tmp_path / "less", script, *FEW, *options, "--driver-memory", f"{less}m")
        assert codes(hurt) == ["spill"]
