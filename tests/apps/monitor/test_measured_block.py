"""``cms.measure()``: what the stages of a block used, in sparkMeasure's manner."""

from __future__ import annotations

from typing import Any

import pytest

import cmsspark as cms
from cmsspark.apps.monitor.findings import find as findings
from cmsspark.apps.monitor.logs import rest as spark_rest
from cmsspark.apps.monitor.logs.rest import set_stages, stage
from cmsspark.apps.monitor.measured_block import block_lines
from cmsspark.store.run_metrics import Finding, RunMetrics, Spread

ROW = {
    "status": "COMPLETE",
    "stageId": 3,
    "attemptId": 1,
    "numTasks": 4,
    "numCompleteTasks": 4,
    "numFailedTasks": 1,
    "submissionTime": "2026-01-15T06:00:00.000GMT",
    "completionTime": "2026-01-15T06:00:02.500GMT",
    "name": "count at a",
    "executorRunTime": 4000,
    "executorDeserializeTime": 100,
    "executorCpuTime": 2_000_000_000,
    "resultSize": 70,
    "shuffleReadBytes": 90,
    "peakExecutionMemory": 400,
    "diskBytesSpilled": 5,
    "taskMetricsDistributions": {
        "duration": [900.0, 1000.0, 1200.0],
        "shuffleReadMetrics": {"readBytes": [1.0, 2.0, 3.0]},
        "peakExecutionMemory": [90.0, 100.0, 110.0],
    },
}


def test_a_row_of_rest_is_a_stage_with_the_spreads_of_its_tasks() -> None:
    entry = stage(ROW)
    assert (entry.stage, entry.attempt, entry.duration_ms, entry.task_ms) == (
        3,
        1,
        2500,
        Spread(900, 1000, 1200),
    )
    assert (entry.totals.tasks, entry.totals.failed_tasks, entry.totals.cpu_ms) == (5, 1, 2000)
    assert entry.shuffle_read_bytes == Spread(1, 2, 3) and entry.totals.peak_execution_bytes == 110
    metrics = RunMetrics("", "", "spark", 0)
    set_stages(metrics, [entry, stage({**ROW, "stageId": 4})])
    total = metrics.totals
    assert (total.tasks, total.result_bytes, total.peak_execution_bytes) == (10, 140, 110)


def test_a_finding_on_a_row_of_rest_names_no_task() -> None:
    spreads = {"shuffleReadMetrics": {"readBytes": [0.0, 1e6, 9e7]}}
    metrics = RunMetrics("", "", "spark", 0)
    set_stages(metrics, [stage({**ROW, "taskMetricsDistributions": spreads})])
    (finding,) = findings.find(metrics)
    assert finding.title == "one task has 90.0 MB read from the shuffle, the median 1.0 MB"


def test_stages_and_executors_of_a_running_application_come_from_rest(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    answers = {
        "allexecutors": [
            {
                "id": "1",
                "hostPort": "h:1",
                "totalCores": 4,
                "activeTasks": 2,
                "removeReason": "lost",
            }
        ],
        "stages?withSummaries=true&quantiles=0,0.5,1": [ROW, {**ROW, "status": "SKIPPED"}],
    }
    monkeypatch.setattr(
        spark_rest, "fetch_json", lambda url, seconds: answers[url.partition("/a/")[2]]
    )
    poller = spark_rest.RestPoller(1, {})
    poller._base = "http://127.0.0.1:4040/a"
    poller.poll()
    assert (poller.active_tasks, poller.executors[0].reason) == (2, "lost")
    assert [entry.stage for entry in poller.stages] == [3]


def test_the_lines_have_the_names_of_spark_measure() -> None:
    metrics = RunMetrics("", "", "spark", 1000, ended_ms=3000)
    set_stages(metrics, [stage(ROW)])
    metrics.findings = [Finding("spill", "5 B spilled", "stage 3", "more")]
    lines = list(block_lines(metrics))
    assert lines[:4] == [
        "Aggregated Spark stage metrics:",
        "numStages => 1",
        "numTasks => 5",
        "numFailedTasks => 1",
    ]
    assert "elapsedTime => 2000 (2.0 s)" in lines and "executorRunTime => 4000 (4.0 s)" in lines
    assert (
        "Stage 3 duration => 2500 (2.5 s), count at a" in lines and "spill: 5 B spilled" in lines
    )


def test_a_block_has_its_own_stages_also_where_it_raises(
    spark: Any, capsys: pytest.CaptureFixture[str]
) -> None:
    spark.range(10).count()
    with cms.measure(spark) as block:
        assert (
            spark.range(0, 1000, 1, 2).selectExpr("id % 7 as k").groupBy("k").count().count() == 7
        )
    totals = block.metrics.totals
    assert (
        2 <= block.metrics.stage_count <= 4
        and totals.tasks >= 3
        and totals.shuffle_write_records >= 7
    )
    assert "Aggregated Spark stage metrics:" in capsys.readouterr().out
    with pytest.raises(KeyError), cms.measure(spark) as block:
        spark.range(5).collect()
        raise KeyError("mine")
    assert block.metrics.stage_count == 1 and "numStages => 1" in capsys.readouterr().out
