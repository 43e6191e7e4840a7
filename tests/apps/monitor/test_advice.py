"""Advice: the formulas by numbers that are written by hand, what is kept, and what
cannot be known.
"""

from __future__ import annotations

from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.apps.monitor import memory_sizes
from cmsspark.apps.monitor.findings.advice import Advice, advise
from cmsspark.apps.monitor.findings.find import find
from cmsspark.apps.monitor.logs.plans import FIXED_PARTITIONS
from cmsspark.main import command
from cmsspark.store import run_metrics
from cmsspark.store.run_metrics import (
    ExecutorEntry,
    Finding,
    Query,
    RunMetrics,
    Spread,
    StageEntry,
    TaskTotals,
)

GIB = 1 << 30
MIB = 1 << 20


def measured(
    *, heap: int, unified: int = 0, gc: float = 0.02, spilled: int = 0, **peaks: int
) -> RunMetrics:
    """A run on YARN with executors of 4 GiB and 1 GiB beside; the worst of two
    executors has these peaks.
    """
    run = RunMetrics(
        "20260115T060000Z-1a2b3c", "job", "spark", 0, "DONE", master="yarn", deploy_mode="client"
    )
    run.options = {
        "spark.master": "yarn",
        "spark.executor.memory": "4g",
        "spark.executor.memoryOverhead": "1g",
        "spark.executor.cores": "4",
        "spark.sql.shuffle.partitions": "200",
    }
    worst = {
        "JVMHeapMemory": heap,
        "OnHeapUnifiedMemory": unified,
        "ProcessTreeJVMRSSMemory": 4 * GIB,
        **peaks,
    }
    run.executors = [
        ExecutorEntry("driver", "edge", peaks={"JVMHeapMemory": 100 * GIB}),
        ExecutorEntry("1", "node1", 4, peaks={"JVMHeapMemory": heap // 2}),
        ExecutorEntry("2", "node2", 4, peaks=worst),
    ]
    run.totals = TaskTotals(
        tasks=100, run_ms=1_000_000, gc_ms=int(1_000_000 * gc), disk_spilled_bytes=spilled
    )
    return run


def of(subject: str, *runs: RunMetrics) -> Advice:
    return next(one for one in advise(runs) if one.subject == subject)


def test_a_heap_grows_by_a_quarter_to_thirty_percent_where_it_is_full() -> None:
    # 1.2 × 3.9 GiB = 4.68 GiB < 4 GiB + 25 % = 5 GiB
    advice = of("executor heap", measured(heap=int(3.9 * GIB)))
    assert advice.conf == "spark.executor.memory=5g"
    assert "above 95%" in advice.text
    # A need of 2.4 GiB / 0.6 + 300 MiB = 4.29 GiB does not count where 25 % are more;
    # nor does one beyond 30 %.
    assert (
        of("executor heap", measured(heap=3 * GIB, spilled=1, unified=int(2.4 * GIB))).conf
        == "spark.executor.memory=5g"
    )
    most = of("executor heap", measured(heap=3 * GIB, gc=0.2, unified=6 * GIB))
    assert most.conf == "spark.executor.memory=5324m", "4 GiB + 30 %, not more"


def test_a_heap_shrinks_to_what_is_needed_in_two_steps_at_most() -> None:
    # 1.2 × 2.6 GiB = 3.12 GiB
    assert of("executor heap", measured(heap=int(2.6 * GIB))).conf == "spark.executor.memory=3328m"
    assert of("executor heap", measured(heap=GIB)).conf == "spark.executor.memory=1280m"
    # A heap of 16 GiB whose peak stays at 700 MB: 840 MB are needed.
    run = measured(heap=700_000_000)
    steps = []
    for size in ("16g", "2g"):
        run.options["spark.executor.memory"] = size
        steps.append(of("executor heap", run).conf)
    assert steps == ["spark.executor.memory=1792m", "spark.executor.memory=1g"]
    run.options["spark.executor.memory"] = "1g"
    assert of("executor heap", run).conf is None
    # 1.9 GiB / 0.6 + 300 MiB = 3.46 GiB: execution needs it, though the peak is low
    assert (
        of("executor heap", measured(heap=2 * GIB, unified=int(1.9 * GIB))).conf
        == "spark.executor.memory=3584m"
    )


@pytest.mark.parametrize("run", [measured(heap=3 * GIB), measured(heap=2 * GIB, gc=0.07)])
def test_a_heap_between_the_limits_stays(run: RunMetrics) -> None:
    assert of("executor heap", run).conf is None
    assert "keep it" in of("executor heap", run).text


def test_the_worst_executor_of_all_runs_counts_and_the_driver_is_none_of_them() -> None:
    runs = [measured(heap=2 * GIB), measured(heap=int(3.95 * GIB)), measured(heap=GIB)]
    advice = of("executor heap", *runs)
    assert advice.conf == "spark.executor.memory=5g" and advice.confidence == "high"
    assert of("executor heap", runs[0]).confidence == "medium"


def test_a_trouble_that_other_options_ended_is_over() -> None:
    before = measured(heap=3 * GIB, spilled=GIB)
    before.options["spark.sql.shuffle.partitions"] = "4"
    assert "tasks spilled" in of("executor heap", before).text
    assert of("executor heap", measured(heap=3 * GIB), before).conf is None
    killed = measured(heap=3 * GIB)
    killed.findings = [Finding("container_killed", "killed (exit 137)", "executor 1", "")]
    killed.options["spark.executor.memoryOverhead"] = "512m"
    assert of("executor overhead", killed).conf == "spark.executor.memoryOverhead=768m"
    assert "it was killed" not in of("executor overhead", measured(heap=3 * GIB), killed).formula


def test_partitions_shrink_only_if_nothing_joins_tiny_ones() -> None:
    run = measured(heap=3 * GIB)
    run.options |= {"spark.sql.shuffle.partitions": "3000"}
    run.executors[2].cores = 4
    run.stages = [StageEntry(1, totals=TaskTotals(shuffle_read_bytes=GIB))]
    run.findings = [Finding("tiny_tasks", "3,000 tasks of 5 ms", "stage 1", "")]
    assert of("partitions", run).conf is None, "adaptive execution does"
    run.options["spark.sql.adaptive.enabled"] = "false"
    assert of("partitions", run).conf == "spark.sql.shuffle.partitions=8"
    assert "adaptive" not in of("partitions", run).text
    assert of("executor heap", run).text.endswith("keep it while the partitions change")
    run.options["spark.executor.memory"] = "1g"
    # (1024 - 300) MiB × 0.6 / 4 tasks / 4: rows take more than in a shuffle
    assert of("partitions", run).conf == "spark.sql.shuffle.partitions=40"
    run.findings = []
    assert of("partitions", run).conf is None, "tasks that work"


def test_runs_with_another_heap_are_not_compared() -> None:
    other = measured(heap=8 * GIB)
    other.options["spark.executor.memory"] = "8g"
    assert of("executor heap", measured(heap=3 * GIB), other).conf is None


def test_the_overhead_covers_what_is_outside_of_the_heap() -> None:
    # 1.2 × (4.5 − 4 + 1.5 + 0.1) GiB = 2.52 GiB
    peaks = {
        "ProcessTreeJVMRSSMemory": int(4.5 * GIB),
        "ProcessTreePythonRSSMemory": int(1.5 * GIB),
    }
    run = measured(heap=3 * GIB, **peaks, ProcessTreeOtherRSSMemory=GIB // 10)
    assert of("executor overhead", run).conf == "spark.executor.memoryOverhead=2816m"
    run.executors[2].peaks |= {
        "ProcessTreeJVMVMemory": 9 * GIB,
        "ProcessTreeOtherVMemory": 9 * GIB,
    }
    run.executors[2].peaks["ProcessTreeOtherRSSMemory"] = 4 * GIB
    assert of("executor overhead", run).conf == "spark.executor.memoryOverhead=2560m", (
        "a copy of the JVM is no memory"
    )
    run.findings.append(Finding("container_killed", "t", "w", "c"))
    run.executors[2].peaks["ProcessTreePythonRSSMemory"] = 0
    assert of("executor overhead", run).conf == "spark.executor.memoryOverhead=1536m", (
        "1.5 × 1 GiB"
    )


def test_a_killed_container_without_figures_gets_one_and_a_half_times_its_overhead() -> None:
    killed = Finding("container_killed", "", "", "", "error")
    metrics = RunMetrics("r", "j", "spark", 0, "FAILED", master="yarn", findings=[killed])
    metrics.executors = [ExecutorEntry("1")]
    metrics.options = {"spark.executor.memory": "1g", "spark.executor.memoryOverhead": "1g"}
    overhead = next(one for one in advise([metrics]) if one.subject == "executor overhead")
    assert overhead.conf == "spark.executor.memoryOverhead=1536m"


def test_without_memory_of_processes_the_overhead_is_not_known() -> None:
    run = measured(heap=3 * GIB)
    del run.executors[2].peaks["ProcessTreeJVMRSSMemory"]
    advice = of("executor overhead", run)
    assert (
        advice.conf is None and advice.text.startswith("not known") and advice.confidence == "none"
    )


def test_the_memory_fraction_changes_only_for_large_heaps_and_never_with_the_heap() -> None:
    assert of("memory fraction", measured(heap=3 * GIB, unified=3 * GIB)).conf is None
    large = measured(heap=15 * GIB, unified=int(9.2 * GIB))
    large.options["spark.executor.memory"] = "16g"
    assert of("memory fraction", large).conf == "spark.memory.fraction=0.7"
    large.totals.gc_ms = 200_000
    assert (
        of("executor heap", large).conf is not None and of("memory fraction", large).conf is None
    )


def spilling(
    tasks: int, *, shuffled: int = 40 * GIB, adaptive: str = "false", fixed: int = 0
) -> RunMetrics:
    """A run whose stage of so many tasks spilled 300 MB of memory a task, beside 500 MB
    that it held.
    """
    run = measured(heap=3 * GIB, spilled=20 * GIB)
    totals = TaskTotals(
        tasks=tasks, disk_spilled_bytes=20 * GIB, memory_spilled_bytes=tasks * 300 * MIB
    )
    totals.peak_execution_bytes, totals.shuffle_read_bytes = 500 * MIB, shuffled
    run.stages = [StageEntry(3, 0, "save at job.py:7", tasks, totals=totals)]
    run.options["spark.sql.adaptive.enabled"] = adaptive
    if fixed:
        run.queries = [Query(1, nodes=[(FIXED_PARTITIONS, "Exchange", fixed)])]
    return run


def test_partitions_give_tasks_that_spilled_what_they_need_and_the_heap_stays() -> None:
    run = spilling(200)
    # A task needs 1.5 × 300 + 500 MiB; it had (4096 − 300) × 0.6 / 4 = 569 MiB: 200 ×
    # 950 / 569, in rounds of 4 or 8.
    assert of("partitions", run).conf == "spark.sql.shuffle.partitions=336"
    assert (
        of("executor heap", run).conf is None
        and "more partitions" in of("executor heap", run).text
    )
    assert not [one for one in advise([run]) if one.subject == "partition size"]


def test_where_adaptive_execution_joined_partitions_their_size_is_advised_too() -> None:
    run = spilling(40, shuffled=4 * GIB, adaptive="true")
    # 40 × 950 / 569 MiB are 68 parts of 60 MiB.
    assert of("partition size", run).conf == "spark.sql.adaptive.advisoryPartitionSizeInBytes=60m"
    assert of("partitions", run).conf is None and of("executor heap", run).conf is None


def test_where_few_of_many_tasks_spilled_their_partitions_get_smaller_not_larger() -> None:
    run = spilling(40, shuffled=4 * GIB, adaptive="true")
    totals = run.stages[0].totals
    totals.memory_spilled_bytes, totals.peak_execution_bytes = 40 * MIB, 300 * MIB
    # A part had 102 MiB: 1.25 × 40 of 80 MiB are 50, in rounds of 4 are 52; 302 MiB a
    # task would be 24 of 170 MiB.
    assert of("partition size", run).conf == "spark.sql.adaptive.advisoryPartitionSizeInBytes=78m"
    assert "needs 746.3 MB and had 597.1 MB" in of("partitions", run).inputs


@pytest.mark.parametrize(
    "run", [spilling(40), spilling(200, shuffled=0), spilling(200, fixed=200)]
)
def test_a_heap_grows_for_tasks_whose_number_is_fixed(run: RunMetrics) -> None:
    # 950 MiB × 4 / 0.6 + 300 MiB
    assert of("executor heap", run).conf == "spark.executor.memory=6633m"
    assert not [
        one.conf
        for one in advise([run])
        if one.conf and "artition" in one.conf and "sql" in one.conf
    ][1:]


def test_cores_and_partitions() -> None:
    assert of("cores", measured(heap=3 * GIB, gc=0.2)).conf is None, "the heap grows instead"
    full = measured(heap=3 * GIB, gc=0.2)
    full.smallest_node_bytes = int(4.7 * GIB)
    assert (
        of("executor heap", full).conf is None
        and of("cores", full).conf == "spark.executor.cores=3"
    )
    assert of("cores", measured(heap=3 * GIB)).conf is None
    run = measured(heap=3 * GIB)
    assert of("partitions", run).text.startswith("not known")
    run.stages = [StageEntry(1, totals=TaskTotals(shuffle_read_bytes=50 * GIB))]
    assert of("partitions", run).conf == "spark.sql.shuffle.partitions=400", (
        "50 GiB / 128 MiB in rounds of 8 cores"
    )


def test_in_local_mode_the_driver_is_what_works() -> None:
    run = measured(heap=GIB)
    run.master, run.options = "local[2]", {"spark.master": "local[2]", "spark.driver.memory": "1g"}
    run.executors = [ExecutorEntry("driver", "here", 2, peaks={"JVMHeapMemory": GIB})]
    assert of("driver heap", run).conf == "spark.driver.memory=1280m"
    assert "of no effect" in of("driver overhead", run).text


def test_runs_without_a_jvm_or_figures_say_why_nothing_is_known() -> None:
    (advice,) = advise([RunMetrics("r", "job", "processes", 0)])
    assert "run it with --engine spark" in advice.text
    (advice,) = advise([RunMetrics("r", "job", "spark", 0, notes=["there is no event log"])])
    assert "there is no event log" in advice.text


def test_the_command_prints_inputs_formula_confidence_and_the_option(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path))
    run_metrics.write(
        run_metrics.run_file(tmp_path, "20260115T060000Z-1a2b3c"), measured(heap=int(3.9 * GIB))
    )
    done = CliRunner().invoke(command, ["lab", "advise", "some/job"], standalone_mode=False)
    assert done.exception is None, done.output
    assert "--conf spark.executor.memory=5g" in done.stdout
    assert "inputs      heap peak 4.2 GB = 97% of 4.3 GB" in done.stdout
    assert (
        "formula     max(unified / 0.6 + 300 MB" in done.stdout
        and "confidence  medium" in done.stdout
    )
    assert "from 1 measured run, the latest" in done.stdout
    smaller = measured(heap=GIB)
    smaller.options["spark.executor.memory"] = "2g"
    run_metrics.write(run_metrics.run_file(tmp_path, "20260114T060000Z-1a2b3c"), smaller)
    done = CliRunner().invoke(command, ["lab", "advise", "some/job"], standalone_mode=False)
    assert (
        "from 1 measured run (1 more had other options, or no figures), the latest" in done.stdout
    )
    missing = CliRunner().invoke(command, ["lab", "advise", "other"], standalone_mode=False)
    assert getattr(missing.exception, "exit_code", None) == 66 and "runs of job" in str(
        missing.exception
    )


def spilling_at(stage: StageEntry, **options: str) -> RunMetrics:
    """A run whose one stage spilled."""
    run = measured(heap=2 * GIB, spilled=stage.totals.disk_spilled_bytes)
    run.stages = [stage]
    run.options |= {name.replace("_", "."): value for name, value in options.items()}
    return run


def spilled_stage(
    *, largest: int = 100 * MIB, tasks: int = 40, is_join: bool = False
) -> StageEntry:
    """A stage of a shuffle of 100 MiB a task but one, which spilled 400 MB."""
    read = 100 * MIB * (tasks - 1) + largest
    totals = TaskTotals(
        tasks=tasks,
        task_ms=10_000 * tasks + (50_000 if largest > 100 * MIB else 0),
        shuffle_read_bytes=read,
        disk_spilled_bytes=400_000_000,
        memory_spilled_bytes=1_200_000_000,
        peak_execution_bytes=200 * MIB,
    )
    stage = StageEntry(3, 0, "save at job.py:7", tasks, 0, 60_000, totals=totals, is_join=is_join)
    stage.shuffle_read_bytes = Spread(100 * MIB, 100 * MIB, largest)
    stage.task_ms = Spread(9_000, 10_000, 60_000 if largest > 100 * MIB else 11_000)
    return stage


def test_a_task_with_more_than_its_share_is_one_cause_with_one_advice() -> None:
    run = spilling_at(spilled_stage(largest=GIB))
    advice = advise([run])
    assert [entry.conf for entry in advice if entry.conf and "overhead" not in entry.subject] == []
    assert "one task has 1.1 GB" in of("skew", run).text
    few = spilling_at(spilled_stage(largest=GIB), **{"spark_sql_shuffle_partitions": "4"})
    assert of("partitions", few).conf is None, "5 GB in 4 partitions of 128 MB would be 40"
    twice = spilling_at(spilled_stage(largest=200 * MIB, tasks=2, is_join=True))
    assert all(entry.subject != "skew" for entry in advise([twice])), "twice another is no skew"
    joined = of("skew", spilling_at(spilled_stage(largest=GIB, is_join=True)))
    assert joined.conf is None, "adaptive execution divides such partitions by itself"
    # Of few partitions none is above five medians, as adaptive execution wants it.
    stage = spilled_stage(tasks=2, is_join=True)
    stage.totals.shuffle_read_bytes = 212 * MIB
    stage.shuffle_read_bytes = Spread(38 * MIB, 38 * MIB, 174 * MIB)
    stage.task_ms = Spread(10_000, 10_000, 60_000)
    stage.totals.task_ms = 70_000
    confs = [
        entry.conf
        for entry in advise([spilling_at(stage, spark_sql_shuffle_partitions="2")])
        if entry.aim
    ]
    assert confs == [
        "spark.sql.adaptive.skewJoin.skewedPartitionThresholdInBytes=87m",
        "spark.sql.shuffle.partitions=8",
    ]


def test_with_off_heap_memory_on_its_size_is_advised_and_not_the_heap() -> None:
    stage = spilled_stage(tasks=8)
    options = {"spark_memory_offHeap_enabled": "true", "spark_memory_offHeap_size": "512m"}
    before = spilling_at(stage, **options)
    assert of("executor heap", before).conf is None
    advised = of("off-heap memory", before).conf or ""
    # A task held 200 MiB and spilled 150 MB, × 1.5; four tasks at once.
    assert advised == "spark.memory.offHeap.size=1792m"
    assert all("partition" not in (entry.conf or "") for entry in advise([before]))


def test_advice_that_did_not_help_is_not_given_again() -> None:
    before = spilling_at(spilled_stage(tasks=200), **{"spark_sql_adaptive_enabled": "false"})
    advised = of("partitions", before).conf or ""
    assert advised.startswith("spark.sql.shuffle.partitions=")
    after = spilling_at(spilled_stage(tasks=200), **{"spark_sql_adaptive_enabled": "false"})
    after.options["spark.sql.shuffle.partitions"] = advised.partition("=")[2]
    after.stages[0].task_count = int(advised.partition("=")[2])
    again = of("partitions", after, before)
    assert again.conf is None and "did not help (400.0 MB spilled before" in again.text
    # One that helped is followed.
    after.totals.disk_spilled_bytes = 100_000_000
    assert "did not help" not in of("partitions", after, before).text


def test_a_size_that_was_too_small_is_not_advised_again() -> None:
    before = measured(heap=GIB)
    before.options["spark.executor.memory"] = "1g"
    before.state = "FAILED"
    before.findings = [Finding("heap_space", "no heap was left", "tasks", "", "error")]
    assert of("executor heap", before).conf == "spark.executor.memory=2g"
    # The peak between two samples was higher.
    after = measured(heap=GIB * 2 // 3)
    after.options["spark.executor.memory"] = "2g"
    assert of("executor heap", after).conf == "spark.executor.memory=1g"
    again = of("executor heap", after, before)
    assert again.conf is None and again.text.startswith("2g; keep it: 1g was too little for ")
    # What lies between both is not known to be.
    after.executors[2].peaks["JVMHeapMemory"] = int(1.2 * GIB)
    assert of("executor heap", after, before).conf == "spark.executor.memory=1536m"


def test_a_worker_at_its_limit_of_addresses_gets_two_gib_for_each_task() -> None:
    run = measured(heap=2 * GIB)
    run.options["spark.executor.pyspark.memory"] = "2g"
    run.failures = {"ExceptionFailure: ImportError: libarrow.so: failed to map segment": 4}
    run.findings = find(run)
    assert [finding.code for finding in run.findings] == ["python_memory_limit"]
    assert "spark.executor.pyspark.memory=2g" in run.findings[0].cure
    assert of("Python workers", run).conf == "spark.executor.pyspark.memory=8g"
    del run.options["spark.executor.pyspark.memory"]
    assert of("Python workers", run).conf is None


@pytest.mark.parametrize("garbage", [0.0, 0.1, 0.3, 0.6])
@pytest.mark.parametrize(("heap", "live"), [("16g", 700 * MIB), ("32g", 2 << 30), ("8g", 1 << 30)])
def test_a_heap_full_of_garbage_settles_in_two_steps(heap: str, live: int, garbage: float) -> None:
    runs: list[RunMetrics] = []
    sizes_text = [heap]
    for _ in range(3):
        now = memory_sizes.size(sizes_text[-1]) or 0
        run = measured(heap=int(live + garbage * (now - live)))
        run.options["spark.executor.memory"] = sizes_text[-1]
        runs.insert(0, run)
        (conf,) = [entry.conf for entry in advise(runs) if entry.subject == "executor heap"]
        if conf is None:
            break
        sizes_text.append(conf.partition("=")[2])
    assert len(sizes_text) <= 3, f"it goes on: {sizes_text}"
    assert live < (memory_sizes.size(sizes_text[-1]) or 0) <= 4 * live
