"""Findings: each cause is named with its place and cure, and nothing is said below the thresholds."""

from __future__ import annotations

import re
from collections.abc import Callable
from pathlib import Path

import msgspec
import pytest

from cmsspark.apps.monitor.findings import codes
from cmsspark.apps.monitor.findings.find import find
from cmsspark.apps.monitor.logs import plans
from cmsspark.apps.monitor.memory_sizes import executor_container, size
from cmsspark.store.run_metrics import (
    ExecutorEntry,
    Query,
    Reported,
    RunMetrics,
    Sample,
    Spread,
    StageEntry,
    TaskTotals,
)

MB = 1_000_000
GIB = 1 << 30


def healthy() -> RunMetrics:
    """A run of which nothing is to be said."""
    totals = TaskTotals(tasks=40, run_ms=400_000, task_ms=420_000, gc_ms=20_000)
    stage = StageEntry(
        3,
        0,
        "save at job.py:7",
        40,
        1000,
        50_000,
        totals=totals,
        task_ms=Spread(9_000, 10_000, 14_000),
    )
    stage.shuffle_read_bytes = Spread(90 * MB, 100 * MB, 130 * MB)
    run = RunMetrics(
        "r", "job", "spark", 0, master="yarn", sources=["events", "samples"], stages=[stage]
    )
    run.totals, run.task_spans = totals, [(1000, 50_000)]
    run.executors = [
        ExecutorEntry("driver", "edge"),
        ExecutorEntry("1", "node1", 4),
        ExecutorEntry("2", "node2", 4),
    ]
    run.options = {
        "spark.master": "yarn",
        "spark.executor.memory": "4g",
        "spark.executor.memoryOverhead": "1g",
    }
    run.smallest_node_bytes = 5 * GIB
    heap = [100 * MB + number * 4 * MB for number in range(60)]
    run.samples = [
        Sample(1000 * number, 600 * MB, 150 * MB, 300 * MB, 2, 77, 150 * MB, value)
        for number, value in enumerate(heap)
    ]
    return run


def test_garbage_is_judged_by_the_work_of_the_jvm_not_by_waiting_for_a_core() -> None:
    run = healthy()
    run.totals.gc_ms = 50_000
    assert [finding.code for finding in find(run)] == ["gc"]
    run.totals.gc_ms, run.totals.run_ms, run.totals.cpu_ms = 14_000, 100_000, 5_000
    assert find(run) == [], "19 s of work, most of a JVM's begin"


def test_tiny_tasks_are_known_on_a_host_that_others_load() -> None:
    run = healthy()
    tiny(5000, 500)(run)
    assert find(run) == []
    run.host_cores = 2
    for sample in run.samples:
        sample.host_load = 8.0
    assert "tiny_tasks" in {finding.code for finding in find(run)}


def test_what_a_script_writes_of_each_result_is_no_closure() -> None:
    """A table for each day goes to a CSV file of 12 MB, or a function of 12 MB to its tasks."""
    for results, expected in ((MB, []), (2_000, ["large_closure"])):
        run = healthy()
        run.stages = [
            StageEntry(number, 0, "toPandas at job.py:7", 40, 1000 + 10_000 * number, 9_000)
            for number in range(5)
        ]
        for stage in run.stages:
            stage.totals.result_bytes = results
        for number, sample in enumerate(run.samples):
            sample.python_written_bytes = 12 * MB * (number // 10)
        assert [finding.code for finding in find(run)] == expected
    returned(8 * MB)(run)
    assert {finding.code for finding in find(run)} == {
        *("large_closure", "collected_and_parallelized"),
    }, "two causes"


def test_executors_that_end_with_their_application_are_no_finding() -> None:
    """The driver needs some seconds to end, in which they get SIGTERM."""
    run = healthy()
    run.ended_ms = 60_000
    run.executors[1].reason, run.executors[1].removed_ms = "Command exited with code 143", 58_000
    assert find(run) == []
    run.executors[1].removed_ms = 20_000
    assert [finding.code for finding in find(run)] == ["container_killed"]
    run.executors[1].removed_ms, run.failures = 58_000, {"ExecutorLostFailure: it is gone": 1}
    assert [finding.code for finding in find(run)] == ["container_killed"]


def test_a_healthy_run_has_no_finding() -> None:
    assert find(healthy()) == []


def skewed(run: RunMetrics) -> None:
    run.stages[0].shuffle_read_bytes = Spread(0, MB, 300 * MB, 17, "node2")


def skewed_of_three_beside_killed_copies(run: RunMetrics) -> None:
    skewed(run)
    run.stages[0].totals = TaskTotals(tasks=6, killed_tasks=3, run_ms=400_000, task_ms=420_000)
    run.stages[0].task_count = 40


def skewed_input(run: RunMetrics) -> None:
    run.stages[0].shuffle_read_bytes = Spread(90 * MB, 100 * MB, 130 * MB, 17, "node2")
    run.stages[0].input_bytes = Spread(0, MB, 300 * MB, 5, "node1")


def slow_and_larger(run: RunMetrics) -> None:
    run.stages[0].task_ms = Spread(1000, 2000, 60_000)
    run.stages[0].input_bytes = Spread(MB, MB, 5 * MB)


def spilled(run: RunMetrics) -> None:
    run.stages[0].totals.disk_spilled_bytes = 2 * MB


def collecting(run: RunMetrics) -> None:
    run.totals.gc_ms = 41_000


def too_few(run: RunMetrics) -> None:
    run.stages[0].task_count = 3


def too_few_of_two_cores(run: RunMetrics) -> None:
    run.options["spark.task.cpus"], run.stages[0].task_count = "2", 3


def repeated_for_three_tasks(run: RunMetrics) -> None:
    """An executor was lost, and the stage runs again for the output that it had."""
    run.stages[0].attempt, run.stages[0].task_count = 1, 3


def busy_with_tasks_of_two_cores(run: RunMetrics) -> None:
    run.options["spark.task.cpus"], run.totals.task_ms = "2", 100_000


def too_large(run: RunMetrics) -> None:
    run.options["spark.executor.memoryOverhead"] = "1025m"


def query(*nodes: tuple[str, str, int | None]) -> Callable[[RunMetrics], None]:
    return lambda run: run.queries.append(Query(4, "save at job.py:9", nodes=[*nodes]))


def pairs(count: int, smaller: int | None) -> Callable[[RunMetrics], None]:
    """A product of so many pairs, of which the smaller side has so many rows."""
    rows = [] if smaller is None else [(plans.SMALLER_ROWS, "CartesianProduct", smaller)]
    return query((plans.PAIRS, "CartesianProduct", count), *rows)


def merge(small: int, large: int) -> Callable[[RunMetrics], None]:
    """A sort-merge join of sides of so many bytes."""
    text = "SortMergeJoin [k#1L], [k#2L], Inner"
    return query((plans.SMALL_SIDE, text, small), (plans.LARGE_SIDE, text, large))


def straggling(
    longest: int, second: int | None = 12_000, read: int = 130 * MB
) -> Callable[[RunMetrics], None]:
    """A task of so many milliseconds beside others of 1 s, which read as much."""

    def change(run: RunMetrics) -> None:
        stage = run.stages[0]
        stage.task_ms, stage.second_task_ms = Spread(900, 1000, longest, 21, "node2"), second
        stage.shuffle_read_bytes = Spread(90 * MB, 100 * MB, read)

    return change


def tiny(tasks: int, median: int, read: int = 10_000) -> Callable[[RunMetrics], None]:
    """A stage of so many tasks of so many milliseconds and bytes each."""

    def change(run: RunMetrics) -> None:
        totals = TaskTotals(tasks=tasks, run_ms=tasks * median, task_ms=tasks * median)
        stage = StageEntry(4, 0, "count at job.py:8", tasks, 51_000, 59_000, totals=totals)
        stage.task_ms, stage.shuffle_read_bytes = (
            Spread(1, median, 3 * median),
            Spread(0, read, 2 * read),
        )
        run.stages.append(stage)

    return change


def idle(task_ms: int) -> Callable[[RunMetrics], None]:
    """Eight cores for 49 s, with tasks of so many milliseconds together."""
    return lambda run: setattr(run.totals, "task_ms", task_ms)


def many_rows(rows: int, seconds: int) -> Callable[[RunMetrics], None]:
    """A task with so many rows of the shuffle, which compress to little, and with so many seconds."""

    def change(run: RunMetrics) -> None:
        stage = run.stages[0]
        stage.shuffle_read_bytes, stage.shuffle_read_records = (
            Spread(0, MB, 3 * MB),
            Spread(0, 20_000, rows),
        )
        stage.task_ms = Spread(100, 200, 1000 * seconds)

    return change


def failing(line: str, *, job: bool = True) -> Callable[[RunMetrics], None]:
    """Tasks that failed with a line."""

    def change(run: RunMetrics) -> None:
        run.failures[line], run.failed_jobs = 2, int(job)

    return change


def stage_failure(text: str) -> Callable[[RunMetrics], None]:
    return lambda run: run.stage_failures.update({text: 1})


def query_error(text: str) -> Callable[[RunMetrics], None]:
    return lambda run: run.queries.append(Query(7, "count at job.py:9", error=text))


def removed(text: str, *, had_work: bool = True) -> Callable[[RunMetrics], None]:
    """An executor that was removed in the middle of the run."""

    def change(run: RunMetrics) -> None:
        run.failures = {"ExecutorLostFailure: it is gone": 1} if had_work else {}
        run.executors[1].reason, run.executors[1].removed_ms, run.ended_ms = text, 49_999, 60_000

    return change


def saved(tasks: int, size: int) -> Callable[[RunMetrics], None]:
    """A stage of saveAsTextFile()."""
    totals = TaskTotals(tasks=tasks, output_bytes=size)
    stage = StageEntry(
        5, 0, "runJob at SparkHadoopWriter.scala:83", tasks, 51_000, 52_000, totals=totals
    )
    return lambda run: run.stages.append(stage)


def reported(run: RunMetrics) -> None:
    run.reported.append(Reported("r", "dbs_aaa", "2026-01-15", 50 * MB, 400))


def hint(kind: str, count: int | None) -> Callable[[RunMetrics], None]:
    return lambda run: run.rdd_hints.append((kind, "sortBy at job.py:3", count))


def killed(run: RunMetrics) -> None:
    run.executors[
        1
    ].reason = "Container from a bad node: container_1 on host: node1. Exit status: 137."


def log(*lines: str) -> Callable[[RunMetrics], None]:
    return lambda run: run.log_lines.extend(lines)


def failure(run: RunMetrics) -> None:
    run.failures["ExceptionFailure: java.lang.OutOfMemoryError Java heap space"] = 3


def full_cache(run: RunMetrics) -> None:
    run.rdd_hints.append((plans.CACHED, "cache at job.py:3", None))
    run.executors[1].peaks["OnHeapStorageMemory"] = 2_200 * MB


def returned(size: int) -> Callable[[RunMetrics], None]:
    """A result of so many bytes, after which a stage reads rows of the driver."""

    def change(run: RunMetrics) -> None:
        again = StageEntry(4, 0, "sum at job.py:9", 4, 55_000, 58_000)
        run.stages[0].name = "collect at job.py:7"
        run.stages[0].totals.result_bytes = size
        run.stages.append(again)
        run.rdd_hints.append((plans.PARALLELIZED, "stage 4", 4))

    return change


def half_cached(run: RunMetrics) -> None:
    full_cache(run)
    run.executors[1].peaks["OnHeapStorageMemory"] = 1_200 * MB


def in_a_shell(name: str) -> Callable[[RunMetrics], None]:
    """Nobody typed for most of the time."""

    def change(run: RunMetrics) -> None:
        run.application_name = name
        run.totals.task_ms = 100_000

    return change


def first_task(run: RunMetrics) -> None:
    """show() looks at one partition first."""
    run.stages[0].task_count = 1


def named(name: str, change: Callable[[RunMetrics], None]) -> Callable[[RunMetrics], None]:
    """The change of a run whose stage has a name."""

    def both(run: RunMetrics) -> None:
        run.stages[0].name = name
        change(run)

    return both


def jump(
    field: str, *, at: int = 55, python: int = 0, pickled: int = 0, moved: int = 0, result: int = 0
) -> Callable[[RunMetrics], None]:
    """A rise of 400 MB, with what is seen beside it: of Python's memory, of bytes
    pickled and moved, of a result.
    """

    def change(run: RunMetrics) -> None:
        for number, sample in enumerate(run.samples):
            is_after = number >= at
            setattr(sample, field, getattr(sample, field) + 400 * MB * is_after)
            sample.driver_python_rss = (sample.driver_python_rss or 0) + python * is_after
            sample.python_written_bytes, sample.jvm_moved_bytes = (
                MB + pickled * is_after,
                MB + moved * is_after,
            )
        run.stages[0].totals.result_bytes = result

    return change


def less_often(run: RunMetrics) -> None:
    """The samples of a run that is older than two minutes: each 5 seconds and a little."""
    jump("driver_python_rss", at=53)(run)
    run.samples = [
        msgspec.structs.replace(sample, at_ms=sample.at_ms + 3) for sample in run.samples[1:51:5]
    ]
    run.samples += [
        Sample(51_100, driver_python_rss=150 * MB, python_written_bytes=0),
        Sample(56_105, driver_python_rss=550 * MB, python_written_bytes=400 * MB),
    ]


def busy_host(cpu_ms: int) -> Callable[[RunMetrics], None]:
    """A rise of 30 MB each second for 10 s, in so much CPU time."""

    def change(run: RunMetrics) -> None:
        run.samples = [
            Sample(
                51_000 + 1000 * second,
                driver_python_rss=(100 + 30 * second) * MB,
                python_written_bytes=30 * second * MB,
                cpu_ms=cpu_ms * second // 10,
            )
            for second in range(11)
        ]

    return change


def arriving_late(run: RunMetrics) -> None:
    """A result that Python unpickles for 40 s after its stage."""
    run.stages[0].completed_ms = 15_000
    run.stages[0].totals.result_bytes = 30 * MB
    run.task_spans = [(1000, 15_000)]
    for second, sample in enumerate(run.samples):
        sample.driver_python_rss = (150 + 20 * min(max(second - 14, 0), 40)) * MB


def of_another_time(run: RunMetrics) -> None:
    """A result of 5 s before, which has arrived, and a rise that is the script's own."""
    jump("driver_python_rss")(run)
    run.stages[0].totals.result_bytes, run.stages[0].completed_ms = 80 * MB, 50_000


def of_an_earlier_stage(run: RunMetrics) -> None:
    """A large result, after which another stage runs, and then a rise."""
    of_another_time(run)
    run.stages.append(StageEntry(4, 0, "count at job.py:8", 4, 51_000, 53_000))
    run.task_spans.append((51_000, 53_000))


def full_heap(run: RunMetrics) -> None:
    run.options["spark.driver.memory"], run.exit_code = "512m", 1
    run.samples[30].heap_bytes = 470 * MB


def leaking(run: RunMetrics) -> None:
    for number, sample in enumerate(run.samples):
        sample.largest_worker_rss = 80 * MB + number * 9 * MB


def leaking_in_few_tasks(run: RunMetrics) -> None:
    """Tasks one after the other are one fewer than it takes, on eight cores."""
    leaking(run)
    run.stages[0].totals.tasks = 39


def leaking_with_rests(run: RunMetrics) -> None:
    """The worker stays alive while no task runs: in the middle, and for a minute at the
    end, when it ends.
    """
    run.task_spans = [(1000, 10_500), (30_500, 40_500)]
    for second, sample in enumerate(run.samples):
        sample.largest_worker_rss = (
            80 + 20 * (min(second, 10) + min(max(second - 30, 0), 10))
        ) * MB
    run.samples += [
        Sample(60_000 + 1000 * n, largest_worker=77, largest_worker_rss=480 * MB)
        for n in range(60)
    ]
    run.samples.append(Sample(120_000, largest_worker=77, largest_worker_rss=0))  # it ends


def loaded_table(run: RunMetrics) -> None:
    """A worker that loads a table in the middle of its tasks, and grows by a byte now and then."""
    for number, sample in enumerate(run.samples):
        sample.largest_worker_rss = (80 + 300 * (number >= 25)) * MB + number


def grown_once(run: RunMetrics) -> None:
    """A worker that grows in its first tasks, and stays so while more of them run."""
    for number, sample in enumerate(run.samples):
        sample.largest_worker_rss = (80 + 20 * min(number, 15)) * MB


def freed_after(run: RunMetrics) -> None:
    """A worker that grows over some tasks and gives it back when they have ended."""
    leaking(run)
    for sample in run.samples[52:]:
        sample.largest_worker_rss = 90 * MB


BAD: list[tuple[str, Callable[[RunMetrics], None], str]] = [
    (
        "skewed_stage",
        skewed,
        "one task has 300.0 MB read from the shuffle, the median 1.0 MB (task 17 on node2)",
    ),
    ("skewed_stage", skewed_input, "300.0 MB of input, the median 1.0 MB (task 5 on node1)"),
    ("skewed_stage", slow_and_larger, "one task ran 60 s, the median 2.0 s"),
    ("spill", spilled, "2.0 MB spilled to disk"),
    ("gc", collecting, "10% of the tasks' time"),
    ("few_tasks", too_few, "3 tasks on 8 cores, for 49 s"),
    ("few_tasks", too_few_of_two_cores, "3 tasks of 2 cores on 8 cores, for 49 s"),
    ("executor_too_large", too_large, "the smallest node has"),
    (
        "small_files",
        query((plans.FILES_READ, "S", 200), (plans.BYTES_READ, "S", 50 * MB)),
        "200 files of 250.0 kB",
    ),
    (
        "small_files",
        query((plans.FILES_WRITTEN, "W", 500), (plans.BYTES_WRITTEN, "W", MB)),
        "500 files of 2.0 kB",
    ),
    ("small_files", saved(150, 30 * MB), "150 files of 200.0 kB each were written"),
    ("small_files", reported, "400 files of 125.0 kB each were read"),
    ("cartesian_join", pairs(6 * MB, 2000), "CartesianProduct compared 6,000,000 pairs of rows"),
    ("cartesian_join", pairs(2_000 * MB, 12), "2,000,000,000 pairs"),
    ("cartesian_join", pairs(6 * MB, None), "6,000,000 pairs"),
    ("small_join_side", merge(8_000, 40 * MB), "SortMergeJoin shuffled 40.0 MB to join 8.0 kB"),
    ("small_join_side", merge(90 << 20, 11 << 30), "to join 94.4 MB"),
    (
        "sort_for_first_rows",
        query((plans.SORT_LIMITED, "Sort [a], true, 0", None)),
        "of which few are kept",
    ),
    (
        "sort_for_first_rows",
        query((plans.SORT_COLLECTED, "Sort", 200_000)),
        "200,000 rows were sorted",
    ),
    ("sort_for_first_rows", hint(plans.SORTED_FOR_FIRST, 5 * MB), "5.0 MB were shuffled"),
    ("cached_unused", hint(plans.CACHED_ONCE, None), "cached, and read once only"),
    ("container_killed", killed, "killed (exit 137)"),
    (
        "driver_unreachable",
        log(
            "ERROR YarnClientSchedulerBackend: The YARN application has already ended!",
            "YARN: Caused by: java.io.IOException: Failed to connect to /192.0.2.1:9",
        ),
        "192.0.2.1",
    ),
    (
        "driver_unreachable",
        log("java.io.IOException: Failed to connect to driver at edge:4040, retrying"),
        "edge:4040",
    ),
    (
        "py4j_object",
        log("\tat py4j.Protocol.getOutputCommand(Protocol.java:316)"),
        "py4j.Protocol.getOutputCommand",
    ),
    ("heap_space", log("java.lang.OutOfMemoryError: Java heap space"), "no heap was left"),
    ("heap_space", failure, "Java heap space"),
    ("heap_space", full_heap, "470.0 MB of 536.9 MB were in use before it failed"),
    (
        "driver_heap_jump",
        jump("heap_bytes", python=90 * MB, moved=80 * MB),
        "the driver's heap rose by 4",
    ),
    (
        "driver_heap_jump",
        jump("heap_bytes", python=90 * MB, moved=80 * MB),
        "and its Python by 90.0 MB",
    ),
    ("driver_python_jump", jump("driver_python_rss", pickled=300 * MB), "by 400.0 MB to 550.0 MB"),
    ("driver_python_jump", jump("driver_python_rss", pickled=300 * MB), "300.0 MB were pickled"),
    ("driver_python_jump", less_often, "to 550.0 MB in 5 s while 400.0 MB were pickled"),
    ("driver_python_jump", busy_host(1_900), "by 300.0 MB to 400.0 MB in 10 s while"),
    (
        "collected_to_driver",
        jump("driver_python_rss", at=51, result=80 * MB),
        "while 80.0 MB of results arrived",
    ),
    (
        "collected_to_driver",
        jump("driver_python_rss", at=30, result=80 * MB),
        "while 80.0 MB of results arrived",
    ),
    (
        "collected_to_driver",
        arriving_late,
        "rose by 800.0 MB to 950.0 MB while 30.0 MB of results arrived",
    ),
    (
        "straggler",
        straggling(45_000),
        "one task ran 45 s, the median 1.0 s, with as much data (task 21 on node2)",
    ),
    (
        "skewed_stage",
        many_rows(900_000, 3),
        "one task has 900,000 rows of the shuffle, the median 20,000",
    ),
    ("tiny_tasks", tiny(800, 40), "800 tasks of 40 ms"),
    ("window_one_task", query((plans.WINDOW_ROWS, "Window [a]", 100_000)), "all 100,000 rows"),
    ("jdbc_one_connection", query((plans.JDBC_ROWS, "Scan JDBC", 200_000)), "200,000 rows came"),
    ("large_broadcast", query((plans.BROADCAST_BYTES, "B", 2_000 * MB)), "2.0 GB were broadcast"),
    (
        "join_multiplies_rows",
        query((plans.JOINED_ROWS, "SortMergeJoin", 5 * MB), (plans.SIDE_ROWS, "SortMergeJoin", 9)),
        "SortMergeJoin made 5,000,000 rows of 9",
    ),
    (
        "filter_after_join",
        query((plans.UNFILTERED_ROWS, "F", 100_000), (plans.FILTERED_ROWS, "F", 20_000)),
        "kept 20,000 of 100,000 rows",
    ),
    (
        "full_scan",
        query((plans.SCANNED_ROWS, "S", 100_000), (plans.CHOSEN_ROWS, "S", 50_000)),
        "for 50,000 rows of some",
    ),
    ("python_udf", query((plans.PYTHON_MS, "Eval [f(a#1)]", 130_000)), "took 130 s"),
    (
        "full_scan",
        query(
            (plans.SCANNED_ROWS, "S", 100_000),
            (plans.CHOSEN_ROWS, "S", 50_000),
            (plans.PYTHON_MS, "Eval [f(day#1)]", 130_000),
        ),
        "for 50,000 rows of some",
    ),
    ("cache_does_not_fit", full_cache, "filled the memory for them: 2.2 GB of 2.4 GB"),
    (
        "cache_does_not_fit",
        log("WARN MemoryStore: Not enough space to cache rdd_4_1 in memory!"),
        "found no room",
    ),
    ("collected_and_parallelized", returned(8 * MB), "8.0 MB of results went to the driver"),
    ("repeated_work", hint(plans.REPEATED, 300_000), "the same shuffle of 300,000 rows"),
    (
        "large_closure",
        log("WARN DAGScheduler: Broadcasting large task binary with size 12.5 MiB"),
        "12.5 MiB of data of its own",
    ),
    (
        "large_closure",
        log("Stage 0 contains a task of very large size (9000 KiB). The maximum is 1000 KiB."),
        "9000 KiB",
    ),
    (
        "python_memory_limit",
        failing("ExceptionFailure: ImportError: libarrow.so: failed to map segment"),
        "failed to map segment",
    ),
    ("idle_cores", idle(100_000), "idle for 74% of their time (292 of 392 s)"),
    (
        "failed_task",
        failing("ExceptionFailure: ValueError: no number"),
        "ValueError: no number (2 tasks failed)",
    ),
    (
        "failed_task",
        failing("ExceptionFailure: ValueError: no number", job=False),
        "ValueError: no number",
    ),
    (
        "lost_executor",
        removed("Command exited with code 134"),
        "lost: Command exited with code 134",
    ),
    (
        "python_worker_killed",
        failing("ExceptionFailure: E Python worker exited unexpectedly (crashed)"),
        "crashed",
    ),
    (
        "max_result_size",
        stage_failure("Results are bigger than spark.driver.maxResultSize (1 GiB)"),
        "bigger",
    ),
    (
        "fetch_failure",
        failing("FetchFailed: java.io.IOException: no such file", job=False),
        "FetchFailed",
    ),
    (
        "no_space",
        failing("ExceptionFailure: java.io.IOException No space left on device"),
        "No space left",
    ),
    (
        "heartbeat",
        removed("Executor heartbeat timed out after 131072 ms"),
        "heartbeat timed out after 131072 ms",
    ),
    (
        "heap_space",
        query_error("Not enough memory to build and broadcast the table to all worker nodes."),
        "no heap was left: Not enough memory to build and broadcast the table",
    ),
    (
        "large_broadcast",
        query_error("Cannot broadcast the table that is larger than 8.0 GiB: 9.3 GiB."),
        "larger than 8.0 GiB",
    ),
    ("broadcast_timeout", query_error("Could not execute broadcast in 300 secs."), "in 300 secs"),
    ("python_worker_leak", leaking, "a Python worker grew from 80.0 MB to 611.0 MB"),
    ("python_worker_leak", leaking_with_rests, "a Python worker grew from 80.0 MB to 480.0 MB"),
]


@pytest.mark.parametrize(
    ("code", "change", "title"), BAD, ids=[f"{code}-{n}" for n, (code, _, _) in enumerate(BAD)]
)
def test_a_cause_is_named(code: str, change: Callable[[RunMetrics], None], title: str) -> None:
    run = healthy()
    change(run)
    (finding,) = find(run)
    assert finding.code == code and title in finding.title
    assert finding.where and finding.cure


def test_every_code_has_a_test_and_a_row_in_the_page() -> None:
    assert {code for code, _, _ in BAD} == codes(), "BAD of this file has a run for each code"
    page = (Path(__file__).resolve().parents[3] / "docs" / "monitoring.md").read_text("utf-8")
    section = page.partition("\n## Findings\n")[2].partition("\n## ")[0]
    assert set(re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)) == codes()


GOOD: list[Callable[[RunMetrics], None]] = [
    jump("heap_bytes", at=20, python=90 * MB, moved=80 * MB),
    jump("driver_python_rss", at=20, pickled=300 * MB),
    jump("driver_python_rss"),
    jump("heap_bytes"),
    jump("heap_bytes", python=90 * MB, moved=MB),
    of_another_time,
    of_an_earlier_stage,
    straggling(4_900),
    straggling(30_000, 29_000),
    straggling(30_000, None),  # REST has no single tasks
    repeated_for_three_tasks,
    skewed_of_three_beside_killed_copies,
    busy_with_tasks_of_two_cores,
    many_rows(499_000, 3),
    saved(99, MB),
    saved(150, 900 * MB),
    tiny(499, 40),
    tiny(800, 250),
    tiny(800, 40, 2 * MB),
    idle(200_000),
    failing("Resubmitted: the block is gone", job=False),
    failing("TaskCommitDenied: another attempt", job=False),
    failing("TaskKilled: another attempt succeeded", job=False),
    removed("Command exited with code 134", had_work=False),
    removed("Executor decommission: spark scale down"),
    removed("Container container_1 exited from explicit termination request."),
    removed("Executor 1 was idle and is requested to end"),
    loaded_table,
    busy_host(9_000),
    grown_once,
    leaking_in_few_tasks,
    freed_after,
    lambda run: setattr(
        run, "samples", [Sample(51_000, heap_bytes=MB), Sample(66_001, heap_bytes=999 * MB)]
    ),
    pairs(900_000, 900),
    pairs(900 * MB, 1),
    pairs(9 * MB, 99),
    merge(8_000, 900_000),
    merge(5 * MB, 20 * MB),
    merge(11 << 20, 900 << 20),
    query((plans.FILES_READ, "Scan", 99), (plans.BYTES_READ, "Scan", MB)),
    query((plans.FILES_READ, "Scan", 900), (plans.BYTES_READ, "Scan", 9000 * MB)),
    query((plans.SORT_COLLECTED, "Sort", 500)),
    query((plans.SORT_COLLECTED, "Sort", None)),
    query((plans.SORT_LIMITED, "Sort [a], true, 0", 50)),
    hint(plans.SORTED_FOR_FIRST, 1000),
    lambda run: setattr(run.executors[1], "reason", "Executor 1 killed by driver. exit code 143"),
    log("java.io.IOException: Failed to connect to node3/10.0.0.3:7337"),  # a shuffle
    in_a_shell("PySparkShell"),
    in_a_shell("pyspark-shell"),  # a notebook that names nothing
    named("Listing leaf files and directories for 900 paths:", too_few),
    named("showString at NativeMethodAccessorImpl.java:0", first_task),
    query((plans.WINDOW_ROWS, "Window [a]", 99_999)),
    query((plans.JDBC_ROWS, "Scan JDBC", 99_999)),
    query((plans.BROADCAST_BYTES, "B", 900 * MB)),
    query((plans.JOINED_ROWS, "Join", 5 * MB), (plans.SIDE_ROWS, "Join", MB)),
    query((plans.UNFILTERED_ROWS, "F", 100_000), (plans.FILTERED_ROWS, "F", 20_001)),
    query((plans.SCANNED_ROWS, "S", 100_000), (plans.CHOSEN_ROWS, "S", 50_001)),
    query((plans.PYTHON_MS, "Eval [f(a#1)]", 9_000)),
    query((plans.PYTHON_MS, "Eval [f(a#1)]", 100_000)),  # less than 30 % of all tasks
    returned(3 * MB),
    log("WARN DAGScheduler: Broadcasting large task binary with size 1200.0 KiB"),
    half_cached,
]


@pytest.mark.parametrize("change", GOOD)
def test_what_only_looks_alike_is_not_named(change: Callable[[RunMetrics], None]) -> None:
    run = healthy()
    change(run)
    assert find(run) == []


def test_one_long_task_may_well_need_much_memory() -> None:
    run = healthy()
    leaking(run)
    run.stages[0].task_ms = Spread(40_000, 40_000, 40_000)
    assert find(run) == []


def test_without_an_event_log_nothing_is_said_of_times_without_tasks() -> None:
    run = healthy()
    jump("heap_bytes")(run)
    run.sources = ["samples"]
    assert find(run) == []


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("4g", 4 * GIB),
        ("1536m", 1536 << 20),
        ("512", 512),
        ("1.5GB", 1536 << 20),
        ("", None),
        ("much", None),
        (None, None),
    ],
)
def test_sizes_of_spark_are_bytes(text: str | None, expected: int | None) -> None:
    assert size(text) == expected


def test_a_container_is_heap_overhead_and_off_heap() -> None:
    options = {"spark.master": "yarn", "spark.executor.memory": "8g"}
    assert executor_container(options) == 8 * GIB + int(0.1 * 8 * GIB)
    options |= {"spark.memory.offHeap.enabled": "true", "spark.memory.offHeap.size": "1g"}
    assert executor_container({**options, "spark.executor.memoryOverhead": "500"}) == 9 * GIB + (
        500 << 20
    )
    assert executor_container({"spark.master": "local[2]"}) is None


def test_a_finding_about_time_says_what_load_the_host_had() -> None:
    run = healthy()
    straggling(45_000)(run)
    assert "load" not in find(run)[0].title
    run.host_cores = 2
    for sample in run.samples:
        sample.host_load = 7.5
    assert find(run)[0].title.endswith("; the host had a load of 7.5 on 2 cores")


def test_cores_that_others_had_were_not_idle() -> None:
    run = healthy()
    idle(100_000)(run)
    assert "idle_cores" in {finding.code for finding in find(run)}
    run.host_cores = 2
    for sample in run.samples:
        sample.host_load = 7.5
    assert "idle_cores" not in {finding.code for finding in find(run)}


def test_a_skewed_stage_is_not_named_for_its_spills() -> None:
    run = healthy()
    skewed(run)
    spilled(run)
    assert [finding.code for finding in find(run)] == ["skewed_stage"]


@pytest.mark.parametrize(
    ("sizes", "is_skewed"),
    [((84, 19, 14), True), ((84, 20), True), ((64, 60, 2), False), ((30, 4, 4), False)],
)
def test_few_tasks_are_compared_with_the_share_of_the_others(
    sizes: tuple[int, ...], is_skewed: bool
) -> None:
    run = healthy()
    stage = run.stages[0]
    stage.totals = TaskTotals(
        tasks=len(sizes),
        task_ms=100 * sum(sizes),
        shuffle_read_bytes=sum(sizes) * MB,
    )
    stage.task_count = len(sizes)
    stage.shuffle_read_bytes = Spread(sizes[-1] * MB, sizes[1] * MB, sizes[0] * MB)
    stage.task_ms = Spread(100 * sizes[-1], 100 * sizes[1], 100 * sizes[0])
    found = {finding.code for finding in find(run)}
    assert ("skewed_stage" in found) is is_skewed
    # A size to which adaptive execution fills partitions leaves a rest.
    run.options["spark.sql.adaptive.coalescePartitions.parallelismFirst"] = "false"
    run.options["spark.sql.adaptive.advisoryPartitionSizeInBytes"] = "128m"
    assert "skewed_stage" not in {finding.code for finding in find(run)}


def test_a_scan_has_no_key_to_spread() -> None:
    run = healthy()
    skewed_input(run)
    assert "a scan has no key" in find(run)[0].cure
    run = healthy()
    skewed(run)
    run.stages[0].is_join = True
    run.stages[0].shuffle_read_bytes = Spread(0, MB, 200 * MB)
    assert "skewedPartitionThresholdInBytes=96m" in find(run)[0].cure


@pytest.mark.parametrize(
    ("largest", "other", "seconds", "is_skewed"),
    [
        (70, 30, 20, True),
        (70, 30, 11, False),  # as fast as the other one
        (62, 38, 20, False),
        (50, 50, 20, False),
    ],
)
@pytest.mark.parametrize("cores", [2, 8])
def test_a_partition_of_one_key_is_seen_where_the_others_were_joined(
    largest: int, other: int, seconds: int, is_skewed: bool, cores: int
) -> None:
    run = healthy()
    run.master, run.executors = f"local[{cores}]", [ExecutorEntry("driver", "node1", cores)]
    (stage,) = run.stages
    stage.task_count, stage.query = 2, 0
    stage.task_ms = Spread(10_000, 10_000, seconds * 1000)
    stage.shuffle_read_bytes = Spread(other * MB, other * MB, largest * MB)
    stage.totals = TaskTotals(
        tasks=2, task_ms=10_000 + seconds * 1000, shuffle_read_bytes=(largest + other) * MB
    )
    assert ("skewed_stage" in {finding.code for finding in find(run)}) is is_skewed
    run.options["spark.sql.shuffle.partitions"] = "2"
    assert "skewed_stage" not in {finding.code for finding in find(run)}, "nothing was joined"


def test_a_file_that_cannot_be_divided_is_skewed_input() -> None:
    run = healthy()
    (stage,) = run.stages
    stage.shuffle_read_bytes, stage.task_ms = Spread(), Spread(20_000, 20_000, 40_000)
    stage.input_bytes = Spread(11 * MB, 11 * MB, 40 * MB)
    stage.totals = TaskTotals(tasks=2, task_ms=60_000, input_bytes=51 * MB)
    (finding,) = [finding for finding in find(run) if finding.code == "skewed_stage"]
    assert "40.0 MB of input" in finding.title and "row groups" in finding.cure
