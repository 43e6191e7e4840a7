"""Findings at their thresholds, one step on either side, and healthy runs of all kinds,
which have none.
"""

from __future__ import annotations

from collections.abc import Callable

import pytest

from cmsspark.apps.monitor.findings import stages as findings
from cmsspark.apps.monitor.findings.driver import JUMP_BYTES, LEAK_BYTES
from cmsspark.apps.monitor.findings.find import SMALL_FILE_BYTES, find
from cmsspark.apps.monitor.logs import plans
from cmsspark.store.run_metrics import (
    ExecutorEntry,
    Finding,
    Query,
    Reported,
    RunMetrics,
    Sample,
    Spread,
    StageEntry,
    TaskTotals,
)
from tests.apps.monitor.test_findings import GIB, healthy, idle, returned

MB = findings.MB


def empty(engine: str, master: str) -> RunMetrics:
    return RunMetrics("r", "job", engine, 0, "DONE", master=master, sources=["events", "samples"])


def by_processes() -> RunMetrics:
    run = empty("processes", "")
    run.stages = [
        StageEntry(
            0,
            0,
            "count",
            8,
            0,
            90_000,
            totals=TaskTotals(tasks=8, run_ms=160_000, task_ms=160_000),
        )
    ]
    run.executors = [
        ExecutorEntry("workers", "h", 2, peaks={"ProcessTreePythonRSSMemory": 300 * MB})
    ]
    run.samples = [
        Sample(1000 * n, driver_python_rss=100 * MB, workers_rss=200 * MB, workers=2)
        for n in range(90)
    ]
    run.reported = [Reported("r", "job", "2026-01-15", 10**9, 99)]
    run.task_spans = [(0, 90_000)]
    return run


def local() -> RunMetrics:
    run = healthy()
    run.master, run.options = "local[4]", {"spark.master": "local[4]", "spark.driver.memory": "4g"}
    run.executors = [ExecutorEntry("driver", "h", 4, peaks={"JVMHeapMemory": 3 * GIB})]
    return run


def tiny() -> RunMetrics:
    """A small job: its shares and ratios are large, and mean nothing."""
    run = empty("spark", "local[2]")
    totals = TaskTotals(
        tasks=8, run_ms=100, task_ms=400, gc_ms=90, disk_spilled_bytes=1, memory_spilled_bytes=1
    )
    stage = StageEntry(
        0, 0, "count at a.py:1", 8, 0, 400, totals=totals, task_ms=Spread(1, 2, 390)
    )
    stage.shuffle_read_bytes, stage.input_bytes = Spread(0, 1, 4000), Spread(0, 0, 900_000)
    run.stages, run.totals, run.task_spans = [stage], totals, [(0, 400)]
    run.samples = [Sample(0, heap_bytes=20 * MB, driver_python_rss=40 * MB)]
    run.queries = [
        Query(0, "q", nodes=[(plans.PAIRS, "CartesianProduct", 100), (plans.FILES_READ, "S", 3)])
    ]
    return run


@pytest.mark.parametrize(
    "run",
    [
        empty("spark", "local[1]"),
        empty("spark", "yarn"),
        empty("processes", ""),
        by_processes(),
        local(),
        tiny(),
    ],
    ids=["empty local", "empty yarn", "empty processes", "processes", "local", "tiny"],
)
def test_healthy_runs_of_all_kinds_have_no_finding(run: RunMetrics) -> None:
    assert find(run) == []


def skew(maximum: int, median: int) -> Callable[[RunMetrics], None]:
    return lambda run: setattr(run.stages[0], "shuffle_read_bytes", Spread(0, median, maximum))


def slow(maximum: int, median: int, read: int = 2 * MB) -> Callable[[RunMetrics], None]:
    def change(run: RunMetrics) -> None:
        run.stages[0].task_ms, run.stages[0].second_task_ms = Spread(0, median, maximum), maximum
        run.stages[0].shuffle_read_bytes = Spread(0, MB, read)

    return change


def spill(count: int) -> Callable[[RunMetrics], None]:
    return lambda run: setattr(run.stages[0].totals, "disk_spilled_bytes", count)


def collected(gc_ms: int, run_ms: int) -> Callable[[RunMetrics], None]:
    return lambda run: setattr(
        run, "totals", TaskTotals(tasks=9, gc_ms=gc_ms, run_ms=run_ms, task_ms=300_000)
    )


def stage_of(tasks: int, ms: int) -> Callable[[RunMetrics], None]:
    def change(run: RunMetrics) -> None:
        run.stages[0].task_count, run.stages[0].completed_ms = (
            tasks,
            (run.stages[0].submitted_ms or 0) + ms,
        )

    return change


def nodes(*entries: tuple[str, str, int | None]) -> Callable[[RunMetrics], None]:
    return lambda run: run.queries.append(Query(1, "q", nodes=[*entries]))


def files(count: int, size: int) -> Callable[[RunMetrics], None]:
    return nodes((plans.FILES_READ, "S", count), (plans.BYTES_READ, "S", size))


def node_of(size: int) -> Callable[[RunMetrics], None]:
    return lambda run: setattr(run, "smallest_node_bytes", size)


def rise(count: int) -> Callable[[RunMetrics], None]:
    def change(run: RunMetrics) -> None:
        for number, sample in enumerate(run.samples):
            sample.driver_python_rss = (sample.driver_python_rss or 0) + count * (number >= 55)
            sample.python_written_bytes = count * (number >= 55)

    return change


def leak(count: int) -> Callable[[RunMetrics], None]:
    def change(run: RunMetrics) -> None:
        last = len(run.samples) - 1
        for number, sample in enumerate(run.samples):
            sample.largest_worker_rss = 80 * MB + count * number // last

    return change


def reason(text: str) -> Callable[[RunMetrics], None]:
    return lambda run: setattr(run.executors[1], "reason", text)


BORDERS = [
    ("skewed_stage", skew(findings.SKEW_BYTES - 1, MB), skew(findings.SKEW_BYTES, MB)),
    ("skewed_stage", skew(499 * MB, 100 * MB), skew(500 * MB, 100 * MB)),
    ("skewed_stage", slow(4_999, 1000), slow(5_000, 1000)),
    ("skewed_stage", slow(49_999, 10_000), slow(50_000, 10_000)),
    ("skewed_stage", slow(60_000, 1000, 2 * MB - 1), slow(60_000, 1000, 2 * MB)),
    ("spill", spill(findings.SPILL_BYTES - 1), spill(findings.SPILL_BYTES)),
    ("gc", collected(6_000, 60_000), collected(6_001, 60_000)),
    ("gc", collected(14_000, 59_999), collected(15_000, 59_999)),
    ("gc", collected(19_999, 19_999), collected(20_000, 20_000)),
    ("few_tasks", stage_of(7, 29_999), stage_of(7, 30_000)),
    ("few_tasks", stage_of(8, 60_000), stage_of(7, 60_000)),
    ("executor_too_large", node_of(5 * GIB), node_of(5 * GIB - 1)),
    ("small_files", files(99, 0), files(100, 0)),
    ("small_files", files(100, 100 * SMALL_FILE_BYTES), files(100, 100 * SMALL_FILE_BYTES - 1)),
    ("cartesian_join", nodes((plans.PAIRS, "C", 999_999)), nodes((plans.PAIRS, "C", 1_000_000))),
    (
        "sort_for_first_rows",
        nodes((plans.SORT_COLLECTED, "S", 99_999)),
        nodes((plans.SORT_COLLECTED, "S", 100_000)),
    ),
    ("driver_python_jump", rise(JUMP_BYTES - 1), rise(JUMP_BYTES)),
    ("python_worker_leak", leak(LEAK_BYTES - 1), leak(LEAK_BYTES)),
    ("container_killed", reason("returned code 1370"), reason("exited with code 137")),
    ("container_killed", reason("Exit status: 1"), reason("Exit status: 143")),
    ("container_killed", reason("Completed"), reason("OOMKilled")),
]


@pytest.mark.parametrize(
    ("code", "below", "at"), BORDERS, ids=[f"{code}-{n}" for n, (code, *_) in enumerate(BORDERS)]
)
def test_a_threshold_divides_exactly(
    code: str, below: Callable[[RunMetrics], None], at: Callable[[RunMetrics], None]
) -> None:
    fine, bad = healthy(), healthy()
    below(fine)
    at(bad)
    assert find(fine) == []
    assert [finding.code for finding in find(bad)] == [code]


@pytest.mark.parametrize("tasks", [1, 2, 3])
def test_a_stage_of_few_tasks_has_no_median_to_be_skewed_from(tasks: int) -> None:
    run = healthy()
    skew(900 * MB, MB)(run)
    run.stages[0].totals = TaskTotals(tasks=tasks + 5, failed_tasks=5)
    assert find(run) == []


def test_at_most_five_of_a_kind_and_errors_first() -> None:
    run = healthy()
    run.stages = [
        StageEntry(number, totals=TaskTotals(disk_spilled_bytes=9 * MB)) for number in range(30)
    ]
    run.log_lines = ["java.lang.OutOfMemoryError: Java heap space"]
    found: list[Finding] = find(run)
    assert [finding.code for finding in found] == ["heap_space", *["spill"] * 5]


def in_local_mode(run: RunMetrics) -> None:
    run.master = run.options["spark.master"] = "local[4]"


def result_of(size: int) -> Callable[[RunMetrics], None]:
    def change(run: RunMetrics) -> None:
        run.samples = []
        run.stages[0].name, run.stages[0].totals.result_bytes = "collect at a.py:1", size

    return change


def large_tasks(run: RunMetrics) -> None:
    run.log_lines.append("Stage 4 contains a task of very large size (9000 KiB).")


@pytest.mark.parametrize(
    ("changes", "named", "unnamed"),
    [
        # Sorting more than fits makes garbage; far more of it is a cause of its own.
        ([spill(9 * MB), collected(12_000, 60_000)], "spill", "gc"),
        ([skew(90 * MB, MB), collected(12_000, 60_000)], "skewed_stage", "gc"),
        ([spill(9 * MB), collected(18_000, 60_000)], "gc", "python_udf"),
        # Rows become objects of Python meanwhile, and come back.
        ([returned(8 * MB), idle(100_000)], "collected_and_parallelized", "idle_cores"),
        ([idle(100_000)], "idle_cores", "collected_and_parallelized"),
        # Rows that come back travel in tasks.
        ([returned(8 * MB), large_tasks], "collected_and_parallelized", "large_closure"),
        ([large_tasks], "large_closure", "collected_and_parallelized"),
        # In local mode results lie in the heap in which tasks run.
        (
            [in_local_mode, result_of(300 * MB), collected(18_000, 60_000)],
            "collected_to_driver",
            "gc",
        ),
        ([result_of(300 * MB), collected(18_000, 60_000)], "gc", "python_udf"),
    ],
)
def test_a_finding_that_another_one_explains_is_not_named(
    changes: list[Callable[[RunMetrics], None]], named: str, unnamed: str
) -> None:
    run = healthy()
    for change in changes:
        change(run)
    codes = {finding.code for finding in find(run)}
    assert named in codes and unnamed not in codes
