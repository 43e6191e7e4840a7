"""Advice and ``show`` where runs failed, still run, lack figures, or have damaged files
or those of a later format.
"""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.apps.monitor.findings.advice import advise
from cmsspark.main import command
from cmsspark.store import lease, run_metrics
from cmsspark.store.run_metrics import Finding, RunMetrics, StageEntry, TaskTotals
from cmsspark.submit.explanation import memory_lines
from cmsspark.submit.spark_options import Options
from tests.apps.monitor.test_advice import GIB, MIB, measured, of


@pytest.fixture
def state(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path))
    return tmp_path


def put(state: Path, run: RunMetrics, number: int = 0) -> Path:
    run.run = f"20260115T0600{number:02}Z-1a2b{number:02x}"
    path = run_metrics.run_file(state, run.run)
    run_metrics.write(path, run)
    return path


def call(*words: str) -> tuple[str, Any]:
    done = CliRunner().invoke(command, list(words), standalone_mode=False)
    return done.stdout, done.exception


@pytest.mark.parametrize("text", ["1g", "1024m", "1048576k", "1073741824", "1G", "1gb"])
def test_a_heap_is_the_same_however_it_is_written(text: str) -> None:
    runs = [measured(heap=GIB), measured(heap=GIB)]
    runs[0].options["spark.executor.memory"], runs[1].options["spark.executor.memory"] = "1g", text
    assert sizes.heap(runs[1].options, "executor") == GIB
    advice = of("executor heap", *runs)
    assert advice.text.startswith("1g → 1280m") and advice.conf == "spark.executor.memory=1280m"


def test_options_are_read_as_spark_reads_them() -> None:
    off_heap = {"spark.memory.offHeap.enabled": "TRUE", "spark.memory.offHeap.size": "1073741824"}
    assert (
        sizes.off_heap(off_heap) == GIB
        and sizes.off_heap({**off_heap, "spark.memory.offHeap.enabled": "no"}) == 0
    )
    least = {"spark.executor.memory": "1g", "spark.executor.minMemoryOverhead": "600m"}
    assert (
        sizes.overhead(least, "executor") == 600 * MIB
        and sizes.overhead({}, "executor") == 384 * MIB
    )


def test_numbers_without_a_unit_are_what_the_master_takes_them_for() -> None:
    assert sizes.heap({"spark.executor.memory": "4096"}, "executor") == 4 * GIB
    assert sizes.heap({"spark.executor.memory": "4294967296"}, "executor") == 4 * GIB
    pods = {"spark.executor.memory": "10g", "spark.kubernetes.memoryOverheadFactor": "0.4"}
    assert sizes.overhead(pods, "executor") == 4 * GIB
    assert (
        sizes.overhead({**pods, "spark.executor.memoryOverheadFactor": "0.2"}, "executor")
        == 2 * GIB
    )
    assert sizes.KEPT.fullmatch("spark.kubernetes.memoryOverheadFactor")


@pytest.mark.parametrize("now", [450, 500, 512, 600, 700, 716, 768, 1024, 1331, 4096, 20_000])
@pytest.mark.parametrize("share", [0.1, 0.6, 0.69, 0.71, 0.94, 0.96])
@pytest.mark.parametrize("spilled", [0, 1])
def test_a_heap_goes_the_way_of_its_reason(now: int, share: float, spilled: int) -> None:
    run = measured(
        heap=int(share * now * MIB), unified=int(0.9 * share * now * MIB), spilled=spilled
    )
    run.options["spark.executor.memory"] = f"{now}m"
    conf = of("executor heap", run).conf
    advised = sizes.size(conf.partition("=")[2]) if conf else now * MIB
    if share > 0.95 or spilled:
        assert conf and 1.2 * now * MIB <= (advised or 0) <= 1.3 * now * MIB
    else:
        assert (advised or 0) <= now * MIB and (share < 0.7 or conf is None)
        assert (advised or 0) >= min(now * MIB, 512 * MIB, 1.2 * share * now * MIB)


def test_only_a_step_that_has_a_limit_is_said_to_have_one() -> None:
    grown = of("executor overhead", measured(heap=3 * GIB, ProcessTreePythonRSSMemory=8 * GIB))
    assert (
        grown.conf == "spark.executor.memoryOverhead=9984m" and "at most 30%" not in grown.formula
    )
    run = measured(heap=3 * GIB, OffHeapUnifiedMemory=GIB)
    run.options |= {"spark.memory.offHeap.enabled": "true", "spark.memory.offHeap.size": "10g"}
    shrunk = of("off-heap memory", run)
    assert shrunk.conf == "spark.memory.offHeap.size=2560m", "1.2 GiB are needed, of ten"
    assert "to twice the need first" in shrunk.formula


def test_runs_that_all_failed_never_shrink_anything() -> None:
    run = measured(heap=GIB)
    run.state = "FAILED"
    assert [one.conf for one in advise([run]) if one.conf] == []
    assert "no run succeeded" in of("executor heap", run).text
    assert of("executor heap", run, measured(heap=GIB)).conf == "spark.executor.memory=1280m", (
        "one of them succeeded"
    )


@pytest.mark.parametrize(("where", "grows"), [("tasks", True), ("the driver's log", False)])
def test_a_heap_that_ran_out_grows_whatever_its_peak_was(where: str, grows: bool) -> None:
    run = measured(heap=2 * GIB)
    run.state, run.findings = (
        "FAILED",
        [Finding("heap_space", "no heap was left", where, "", "error")],
    )
    advice = of("executor heap", run)
    # What it lacked is not known: twice as much tells more than 30 %.
    assert (advice.conf == "spark.executor.memory=8g") is grows
    assert ("no heap was left" in advice.text) is grows
    run.executors[2].peaks.clear()
    run.executors[1].peaks.clear()
    assert (of("executor heap", run).conf == "spark.executor.memory=8g") is grows, (
        "also without any peak"
    )


def test_a_driver_on_a_cluster_grows_for_results_that_its_heap_did_not_take() -> None:
    run = measured(heap=3 * GIB)
    run.state = "FAILED"
    run.options["spark.driver.memory"] = "1g"
    run.findings = [Finding("heap_space", "no heap was left", "the driver's log", "", "error")]
    confs = [entry.conf for entry in advise([run]) if entry.conf]
    assert confs == ["spark.driver.memory=2g"], "and the executors stay"
    after = measured(heap=3 * GIB)
    after.options["spark.driver.memory"] = "2g"
    after.state, after.findings = "FAILED", run.findings
    assert "did not help" in of("driver heap", after, run).text
    after.state, after.findings = "DONE", []
    assert not [entry for entry in advise([after, run]) if entry.subject == "driver heap"]


def test_executors_of_a_local_cluster_are_no_driver() -> None:
    run = measured(heap=int(3.9 * GIB))
    run.master = "local-cluster[2,4,4096]"
    assert of("executor heap", run).conf == "spark.executor.memory=5g"
    run.master = "local[2]"
    assert of("driver heap", run).subject == "driver heap"


def test_results_beyond_their_limit_have_one_by_their_size() -> None:
    run = measured(heap=3 * GIB)
    run.state = "FAILED"
    run.findings = [Finding("max_result_size", "bigger than …", "stages", "", "error")]
    # Of ten tasks four ended, with 400 MiB.
    totals = TaskTotals(tasks=5, failed_tasks=1, result_bytes=400 << 20)
    run.stages = [StageEntry(0, task_count=10, totals=totals)]
    run.options["spark.driver.maxResultSize"] = "300m"
    assert of("results", run).conf == "spark.driver.maxResultSize=1280m"
    assert "aggregate" in of("results", run).text


def test_a_cache_that_found_no_room_gets_what_it_takes_if_that_is_known() -> None:
    run = measured(heap=3 * GIB, unified=2 * GIB, DiskStorage=GIB)
    assert of("executor heap", run).conf is None, "blocks that were stored there on purpose"
    run.findings = [Finding("cache_does_not_fit", "blocks …", "cache at", "")]
    # 1.2 × 3 GiB / 0.6 + 300 MiB
    assert of("executor heap", run).conf == "spark.executor.memory=6444m"
    assert "cached blocks found no room" in of("executor heap", run).text
    unknown = measured(heap=3 * GIB, unified=2 * GIB)
    unknown.findings = run.findings
    assert of("executor heap", unknown).conf == "spark.executor.memory=5g", "a quarter more"
    after = measured(heap=3 * GIB, unified=2 * GIB, DiskStorage=GIB)
    after.options["spark.executor.memory"] = "6444m"
    after.findings = run.findings
    assert "did not help" in of("executor heap", after, run).text


def test_without_peaks_and_times_nothing_is_said_to_fit() -> None:
    run = measured(heap=0)
    run.totals = TaskTotals()
    for entry in run.executors:
        entry.peaks.clear()
    advice = advise([run])
    assert [one.conf for one in advice if one.conf] == [] and not any(
        "fits" in one.text for one in advice
    )
    assert sum(one.text.startswith("not known") for one in advice) >= 5


def test_an_executor_does_not_grow_beyond_the_smallest_node() -> None:
    run = measured(heap=int(3.9 * GIB))
    run.smallest_node_bytes = 16 * GIB
    assert of("executor heap", run).conf == "spark.executor.memory=5g"
    run.smallest_node_bytes = int(5.4 * GIB)
    assert of("executor heap", run).conf == "spark.executor.memory=4864m", (
        "beside 512m of overhead"
    )
    run.smallest_node_bytes = int(4.6 * GIB)
    advice = of("executor heap", run)
    assert (
        advice.conf is None
        and "fewer cores" in advice.text
        and "the smallest node has" in advice.text
    )


def test_a_huge_executor_and_nonsense_in_options_do_no_harm() -> None:
    run = measured(heap=900 * GIB, unified=500 * GIB)
    run.options |= {"spark.executor.memory": "1t"}
    assert of("executor heap", run).text.startswith("1024g fits")
    for value in ("lots", "", "-1g", "0", "1g 2g", "nan"):
        run.options |= {
            "spark.executor.memory": value,
            "spark.memory.fraction": value,
            "spark.executor.cores": value,
        }
        assert len(advise([run])) == 6
    run.totals = TaskTotals(run_ms=-5, gc_ms=-1)
    assert of("cores", run).text.startswith("not known")


def test_a_job_that_still_runs_is_not_advised_on(state: Path) -> None:
    run = measured(heap=GIB)
    run.state, run.job, run.process = "RUNNING", "a.py", lease.identity()
    put(state, run)
    _, error = call("lab", "advise", "a.py")
    assert error.exit_code == 66 and "one that still runs" in str(error)
    shown, error = call("show", "20260115T060000Z")
    assert error is None and "It still runs, since" in shown


def test_a_failed_run_says_so(state: Path) -> None:
    run = measured(heap=GIB)
    run.state, run.exit_code = "FAILED", 137
    put(state, run)
    assert "It failed with exit code 137" in call("show", "20260115T060000Z")[0]


def change(**fields: object) -> Callable[[Path], object]:
    return lambda path: path.write_text(json.dumps({**json.loads(path.read_text()), **fields}))


def as_folder(path: Path) -> None:
    path.unlink()
    path.mkdir()


@pytest.mark.parametrize(
    ("damage", "reason"),
    [
        (lambda path: path.write_bytes(path.read_bytes()[:100]), "truncated"),
        (lambda path: path.write_bytes(b""), "truncated"),
        (lambda path: path.write_bytes(b"\xff\xfe{}"), "malformed"),
        (lambda path: path.write_text("[1]"), "Expected `object`"),
        (lambda path: path.write_text("[" * 100_000), ""),
        (change(totals="none"), "Expected `object`"),
        (change(format=3, totals="none"), "format 3; this version reads format 1"),
        (as_folder, "Is a directory"),
    ],
)
def test_a_damaged_file_is_named_with_its_reason(
    state: Path, damage: Callable[[Path], object], reason: str
) -> None:
    path = put(state, measured(heap=GIB))
    damage(path)
    _, error = call("show", "20260115T060000Z")
    assert error.exit_code == 65 and str(path) in str(error) and reason in str(error)
    _, error = call("lab", "advise", "job")
    assert error.exit_code == 66 and "1 of which the file cannot be read" in str(error)
    put(state, measured(heap=GIB), 1)
    assert call("lab", "advise", "job")[1] is None, (
        "the damaged one does not stand in the way of others"
    )


def test_a_later_format_that_can_be_read_is_shown_with_a_note(state: Path) -> None:
    change(format=2, new=1)(put(state, measured(heap=GIB)))
    shown, error = call("show", "20260115T060000Z")
    assert error is None and "format 2 of a later version: what it adds is not shown" in shown


def test_an_id_of_several_runs_names_them(state: Path) -> None:
    for number in range(7):
        put(state, measured(heap=GIB), number)
    _, error = call("show", "20260115T")
    assert error.exit_code == 2 and "1a2b06" in str(error) and "and 2 more" in str(error)
    assert call("show", "nothing")[1].exit_code == 2


def test_explain_shows_only_what_was_measured(state: Path) -> None:
    def last() -> str:
        return list(memory_lines(Options(), state, "job"))[-1]

    assert "nothing yet" in last()
    put(state, measured(heap=GIB))
    assert "heap peak 1.1 GB" in last() and "Python" not in last() and "in the last run;" in last()
    put(state, measured(heap=GIB, ProcessTreePythonRSSMemory=GIB), 1)
    assert "Python 1.1 GB" in last() and "in the last 2 runs;" in last()
    for number in range(2):
        bare = measured(heap=0)
        for entry in bare.executors:
            entry.peaks.clear()
        put(state, bare, number)
    assert "no peaks of memory" in last() and "0 B" not in last()
