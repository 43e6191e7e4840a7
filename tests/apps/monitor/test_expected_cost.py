"""What a run is expected to take, by the runs that were measured before."""

from __future__ import annotations

from pathlib import Path

import pytest

from cmsspark.apps.monitor.expected_cost import (
    Size,
    classify_run,
    comparable,
    deviation,
    estimate,
    plan_lines,
    size_run,
    size_spark_run,
)
from cmsspark.store import run_metrics
from cmsspark.store.run_metrics import ExecutorEntry, Reported, RunMetrics, TaskTotals

GB = 1_000_000_000
YARN = {
    "spark.master": "yarn",
    "spark.executor.cores": "4",
    "spark.dynamicAllocation.enabled": "true",
    "spark.dynamicAllocation.maxExecutors": "50",
    "spark.executor.memory": "4g",
    "spark.executor.memoryOverhead": "3g",
    "spark.driver.memory": "4g",
}


def on_yarn(seconds: float, read: int, began_s: int = 0, **more: object) -> RunMetrics:
    """A run on YARN whose cores read ``read`` bytes together."""
    run = RunMetrics(
        f"2026-{began_s:04}",
        "dbs_aaa",
        "spark",
        began_s * 1000,
        "DONE",
        master="yarn",
        options=YARN,
    )
    run.ended_ms, run.reported = run.began_ms + round(seconds * 1000), [Reported(input_bytes=read)]
    for name, value in more.items():
        setattr(run, name, value)
    return run


def stored(state: Path, *runs: RunMetrics) -> None:
    for run in runs:
        run_metrics.write(run_metrics.run_file(state, run.run), run)


@pytest.mark.parametrize(
    ("read", "slots", "executors"),
    [(1, 1, 1), (GB, 8, 2), (20 * GB, 157, 40), (1000 * GB, 200, 50)],
)
def test_executors_are_as_many_as_tasks_and_the_cap_allow(
    read: int, slots: int, executors: int
) -> None:
    size = size_spark_run(read, YARN)
    assert (size.slots, size.executors) == (slots, executors)


def test_without_dynamic_allocation_the_instances_count_and_locally_the_cores() -> None:
    assert size_spark_run(1, {"spark.master": "yarn"}) == Size(1, 2, 1)
    fixed = {
        "spark.master": "k8s://https://x",
        "spark.executor.instances": "3",
        "spark.executor.cores": "2",
    }
    assert size_spark_run(1, fixed) == Size(1, 6, 2)
    assert size_spark_run(1, {"spark.master": "local[3]"}) == Size(1, 3, 3)


def test_runs_of_different_sizes_give_the_fixed_part_and_that_of_a_byte() -> None:
    # 30 s, and 10 s for each GB of a core.
    runs = [
        on_yarn(30 + 10 * size_spark_run(read, YARN).share, read)
        for read in (300 * GB, 600 * GB, 900 * GB)
    ]
    size = size_spark_run(500 * GB, YARN)
    assert estimate(runs, "yarn", size).expected_s == pytest.approx(30 + 10 * 2.5)


def test_runs_of_one_size_scale_the_figures_of_our_machine() -> None:
    size = size_spark_run(300 * GB, YARN)
    usual = estimate([], "yarn", size)
    assert "no earlier run to compare with" in usual.basis()
    runs = [on_yarn(factor * usual.expected_s, 300 * GB) for factor in (1.9, 2.0, 5.0)]
    assert estimate(runs, "yarn", size).expected_s == pytest.approx(2 * usual.expected_s)
    larger = size_spark_run(600 * GB, YARN)
    assert estimate(runs, "yarn", larger).expected_s == pytest.approx(
        2 * estimate([], "yarn", larger).expected_s
    )


def test_only_runs_that_can_be_compared_count(tmp_path: Path) -> None:
    here = on_yarn(
        9, GB, 5, engine="processes", master="", executors=[ExecutorEntry("workers", cores=2)]
    )
    here.totals = TaskTotals(tasks=4)
    reused = on_yarn(1, GB, 6, engine="processes", master="")
    failed, other, read_nothing = (
        on_yarn(9, GB, 2, state="FAILED"),
        on_yarn(9, GB, 3, job="dbs_eos"),
        on_yarn(9, 0, 4),
    )
    stored(
        tmp_path, on_yarn(40, GB, 1), failed, other, read_nothing, here, reused, on_yarn(50, GB, 7)
    )
    assert [run.began_ms for run in comparable(tmp_path, "dbs_aaa", "yarn")] == [7000, 1000]
    assert [run.began_ms for run in comparable(tmp_path, "dbs_aaa", "yarn", 7000)] == [1000]
    assert [
        run.began_ms for run in comparable(tmp_path, "dbs_aaa", classify_run("processes", ""))
    ] == [5000]
    assert size_run(here) == Size(GB, 2, 2)


def test_a_plan_names_executors_memory_time_and_cost() -> None:
    executors = [ExecutorEntry("1", peaks={"ProcessTreePythonRSSMemory": 2 * GB})]
    run = on_yarn(120, GB, totals=TaskTotals(run_ms=150_000), executors=executors)
    assert list(plan_lines([run], "yarn", size_spark_run(GB, YARN), YARN)) == [
        "executors  2 executors of 4 cores, 8 tasks at once",
        "memory     2 × 7.5 GB for executors, 4.3 GB of heap for the driver; 2.0 GB of Python expected in an executor",
        "time       120 s, by 1 measured run of 1.0 GB, which took 120 s",
        "cost       0.042 core hours of tasks, at most 0.27 with what waits; 0.5 GB hours of executors",
    ]


def test_a_plan_by_processes_tells_the_memory_of_each(tmp_path: Path) -> None:
    run = on_yarn(20, GB, engine="processes", master="", totals=TaskTotals(tasks=4, run_ms=30_000))
    run.executors = [
        ExecutorEntry("driver", cores=1, peaks={"ProcessTreePythonRSSMemory": GB}),
        ExecutorEntry("workers", cores=2, peaks={"ProcessTreePythonRSSMemory": 3 * GB}),
    ]
    assert list(plan_lines([run], "processes", Size(GB, 2, 2), {}))[1:] == [
        "memory     3.0 GB of Python in each process",
        "time       20 s, by 1 measured run of 1.0 GB, which took 20 s",
        "cost       0.0083 core hours of tasks, at most 0.011 with what waits",
    ]
    first, unknown = Size(GB, 2, 2), "memory     not known before the first measured run"
    assert list(plan_lines([], "processes", first, {}))[1] == unknown
    small = list(plan_lines([], "processes", Size(GB // 10, 1, 1), {}))[-1]
    assert small == "cost       0.0012 core hours of tasks, at most 0.0012 with what waits"


def test_a_run_that_ended_is_compared_with_what_was_expected_before_it(tmp_path: Path) -> None:
    def run(seconds: float, began_s: int, tasks_s: int, python: int) -> RunMetrics:
        peaks = {"ProcessTreePythonRSSMemory": python}
        totals, executors = TaskTotals(run_ms=tasks_s * 1000), [ExecutorEntry("1", peaks=peaks)]
        return on_yarn(seconds, GB, began_s, totals=totals, executors=executors)

    last = run(110, 300, 45, 3 * GB)
    stored(
        tmp_path, run(90, 1, 40, GB), run(110, 100, 60, 3 * GB), last, run(900, 500, 900, 9 * GB)
    )
    assert deviation(tmp_path, last) == [
        "Expected: 100 s, by 2 measured runs of 1.0 GB, which took 90 to 110 s",
        "  time    110 s instead of 100 s: 10% more",
        "  tasks   45 core seconds instead of 50 core seconds: 10% less",
        "  Python  3.0 GB instead of 2.0 GB: 50% more",
    ]
    assert deviation(tmp_path, on_yarn(1, GB, state="FAILED")) == []
    short = on_yarn(0.4, GB, 600)
    stored(tmp_path / "short", on_yarn(0.8, GB), short)
    assert deviation(tmp_path / "short", short) == [
        "Expected: 0.8 s, by 1 measured run of 1.0 GB, which took 0.8 s",
        "  time    0.4 s instead of 0.8 s: 50% less",
    ]
    # Nothing but the time of a run was measured.
    assert [line.split()[0] for line in deviation(tmp_path, on_yarn(110, GB, 300))] == [
        "Expected:",
        "time",
    ]
