"""Two measured runs beside each other, and what is refused."""

from __future__ import annotations

import json
from pathlib import Path

from click.testing import CliRunner, Result

from cmsspark.apps.monitor.run_report import comparison
from cmsspark.main import command
from cmsspark.store import run_metrics
from cmsspark.store.run_metrics import (
    ExecutorEntry,
    Finding,
    RunMetrics,
    StageEntry,
    TaskTotals,
)


def measured(run: str, heap: str, *seconds: int, spilled: int = 0) -> RunMetrics:
    """A run with stages of one name that took so long."""
    metrics = RunMetrics(run, "job", "spark", 0, "DONE", ended_ms=100_000, master="yarn")
    metrics.options = {"spark.executor.memory": heap, "spark.executor.cores": "4"}
    metrics.totals = TaskTotals(tasks=10, task_ms=1000 * sum(seconds), disk_spilled_bytes=spilled)
    metrics.stages = [
        StageEntry(number, 0, "count at job.py:3", 4, 0, 1000 * each)
        for number, each in enumerate(seconds)
    ]
    metrics.executors = [ExecutorEntry("1", "node1", 4, peaks={"JVMHeapMemory": 10**9})]
    if spilled:
        metrics.findings = [Finding("spill", "it spilled", "stage 0", "more heap")]
    return metrics


def test_options_stages_and_findings_of_two_runs_are_compared() -> None:
    before = measured("r1", "2g", 20, 10, spilled=10**8)
    after = measured("r2", "4g", 10, 10, 5)
    lines = list(comparison(before, after))
    text = "\n".join(lines)
    assert "  spark.executor.memory: 2g → 4g" in lines
    assert "cores" not in text, "what is the same is not shown"
    assert any("count at job.py:3" in line and "-50%" in line for line in lines)
    assert "count at job.py:3 (3)" in text
    assert "gone: spill: it spilled" in lines


def show(state: Path, *words: str) -> Result:
    return CliRunner().invoke(
        command,
        ["show", *words],
        env={"CMSSPARK_STATE_DIR": str(state)},
        standalone_mode=False,
    )


def test_show_compares_a_run_with_another_one(tmp_path: Path) -> None:
    for run, heap in (("20260115T060000Z-1a", "2g"), ("20260116T060000Z-2b", "4g")):
        run_metrics.write(run_metrics.run_file(tmp_path, run), measured(run, heap, 10))
    done = show(tmp_path, "job", "--against", "20260115", "--json")
    document = json.loads(done.stdout)
    assert (document["before"], document["after"]) == (
        "20260115T060000Z-1a",
        "20260116T060000Z-2b",
    )
    assert document["options"] == {"spark.executor.memory": ["2g", "4g"]}
    missing = show(tmp_path, "job", "--against", "20990101")
    assert getattr(missing.exception, "exit_code", None) == 66
    mixed = show(tmp_path, "job", "--against", "20260115", "--trace")
    assert getattr(mixed.exception, "exit_code", None) == 2
