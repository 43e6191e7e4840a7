"""Stages and tasks at the edges of an event log: late, resubmitted, without a begin,
shorter than a millisecond.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cmsspark.apps.monitor.findings import find as findings
from cmsspark.apps.monitor.logs.files import find_log
from cmsspark.apps.monitor.logs.plans import SCANNED_ROWS, PlanFacts
from cmsspark.apps.monitor.logs.reader import EventLogReader, read_event_log
from cmsspark.apps.monitor.logs.records import PlanMetric, PlanNode
from cmsspark.apps.monitor.memory_sizes import parallel_tasks
from cmsspark.main import command
from cmsspark.store.run_metrics import RunMetrics
from tests.apps.monitor.event_logs import BEGAN, MB, application, begin, event, stage, task


def read(rows: list[bytes]) -> tuple[RunMetrics, EventLogReader]:
    reader = EventLogReader()
    reader.read(rows)
    return reader.metrics(), reader


def changed(row: bytes, reason: str = "", **info: Any) -> bytes:
    one = json.loads(row)
    one["Task Info"] |= {name.replace("_", " "): value for name, value in info.items()}
    if reason:
        one["Task End Reason"] = {"Reason": reason, "Message": "the block is gone\nat x"}
    return json.dumps(one).encode()


def test_a_task_that_ends_after_its_stage_counts_in_it() -> None:
    rows = [*application(4)]
    metrics, _ = read(
        [
            *rows,
            changed(task(9, shuffle=70 * MB), Killed=True),
            task(10, run=9000, shuffle=90 * MB),
        ]
    )
    (entry,) = metrics.stages
    assert (entry.totals.tasks, entry.totals.killed_tasks, entry.shuffle_read_bytes.task) == (
        6,
        1,
        10,
    )
    assert (entry.task_ms.max, entry.shuffle_read_bytes.max, metrics.stage_count) == (
        9000,
        90 * MB,
        1,
    )


def test_tasks_that_were_only_killed_are_named(tmp_path: Path) -> None:
    (tmp_path / "log").write_bytes(b"\n".join([*application(4), changed(task(9), Killed=True)]))
    assert "tasks => 5 (0 failed, 1 killed)" in print_events(tmp_path / "log")


def test_the_attempts_of_a_stage_have_names_of_their_own(tmp_path: Path) -> None:
    again = changed(task(9), Attempt=1).replace(b'"Stage Attempt ID": 0', b'"Stage Attempt ID": 1')
    (tmp_path / "log").write_bytes(b"\n".join([*application(4), again]))
    lines = print_events(tmp_path / "log").partition("Stages:")[2].splitlines()
    assert [line.split()[0] for line in lines[2:4]] == ["0", "0.1"]


def test_a_second_context_begins_its_stages_anew() -> None:
    metrics, _ = read([*application(4), *application(7)])
    assert [(one.stage, one.totals.tasks) for one in metrics.stages] == [(0, 4), (0, 7)]


def test_tasks_of_a_stage_without_a_begin_are_its_tasks() -> None:
    metrics, _ = read([row for row in application(40) if b"StageSubmitted" not in row])
    (entry,) = metrics.stages
    assert (entry.totals.tasks, entry.shuffle_read_bytes.max, entry.name) == (
        40,
        40 * MB,
        "save at job.py:1",
    )
    metrics, _ = read([task(number) for number in range(3)])
    assert [(one.totals.tasks, one.duration_ms) for one in metrics.stages] == [(3, None)]


def test_a_resubmitted_task_has_failed_and_is_none_of_the_spread() -> None:
    rows = [*application(4)]
    lost = json.loads(task(1, run=50_000)) | {"Task Metrics": None}
    metrics, _ = read([*rows[:-4], changed(json.dumps(lost).encode(), "Resubmitted"), *rows[-4:]])
    (entry,) = metrics.stages
    assert (entry.totals.tasks, entry.totals.failed_tasks, entry.task_ms.max) == (5, 1, 1000)
    assert entry.totals.task_ms == 4000, "its time was added when it ended first"
    assert entry.shuffle_read_bytes.min == MB and metrics.failures == {
        "Resubmitted: the block is gone": 1
    }


@pytest.mark.parametrize(
    ("reason", "failed", "killed"),
    [
        ("FetchFailed", 1, 0),
        ("TaskKilled", 0, 1),
        ("ExecutorLostFailure", 1, 0),
        ("Success", 0, 0),
    ],
)
def test_a_reason_counts_where_the_flags_are_missing(
    reason: str, failed: int, killed: int
) -> None:
    one = json.loads(changed(task(0), reason))
    del one["Task Info"]["Failed"], one["Task Info"]["Killed"]
    totals = read([json.dumps(one).encode()])[0].totals
    assert (totals.failed_tasks, totals.killed_tasks) == (failed, killed)


def test_nanoseconds_of_short_tasks_are_summed_before_they_are_milliseconds() -> None:
    def short(number: int) -> bytes:
        one = json.loads(task(number))
        one["Task Metrics"]["Executor CPU Time"] = 600_000
        one["Task Metrics"]["Shuffle Write Metrics"]["Shuffle Write Time"] = 300_000
        return json.dumps(one).encode()

    metrics, _ = read([short(number) for number in range(1000)])
    for totals in (metrics.totals, metrics.stages[0].totals, metrics.executors[0].totals):
        assert (totals.cpu_ms, totals.shuffle_write_ms) == (600, 300)


def test_numbers_that_java_does_not_have_are_damage() -> None:
    big, end = 10**400, json.loads([*application(1)][-1])
    rows = [
        changed(task(0), Finish_Time=big),
        event("ApplicationStart", App_Name="a", Timestamp=2**63 - 1),
        json.dumps(
            json.loads(task(1)) | {"Task Executor Metrics": {"JVMHeapMemory": big}}
        ).encode(),
        json.dumps(end | {"Timestamp": big}).encode(),
    ]
    metrics, reader = read([*application(40), *rows])
    assert (reader.damaged, metrics.totals.tasks, metrics.application_name) == (4, 40, "made")


def print_events(log: Path, *words: str) -> str:
    """Return what ``cmsspark monitor events`` prints of a log."""
    ended = CliRunner().invoke(command, ["monitor", "events", str(log), *words])
    assert ended.exit_code == 0, (ended.output, ended.exception)
    return ended.stdout


def test_a_stage_that_was_never_submitted_has_no_duration(tmp_path: Path) -> None:
    failed = stage(7, 2, Completion_Time=BEGAN + 10, Failure_Reason="task not serializable")
    rows = [*application(40), event("StageCompleted", Stage_Info=failed)]
    metrics, _ = read(rows)
    assert [one.code for one in findings.find(metrics)] == ["skewed_stage"]
    (tmp_path / "log").write_bytes(b"\n".join(rows))
    shown = print_events(tmp_path / "log")
    assert "  0.0      0" in shown and str(BEGAN // 1000) not in shown


def executor(name: str, added: int, removed: int | None = None, cores: int = 4) -> list[bytes]:
    info = {"Host": "n", "Total Cores": cores}
    rows = [event("ExecutorAdded", Timestamp=BEGAN + added, Executor_ID=name, Executor_Info=info)]
    if removed is not None:
        rows.append(
            event(
                "ExecutorRemoved",
                Timestamp=BEGAN + removed,
                Executor_ID=name,
                Removed_Reason="lost",
            )
        )
    return rows


def test_cores_of_executors_that_replaced_others_are_not_added_up() -> None:
    rows = [
        row
        for name in range(2, 12)
        for row in executor(str(name), 1000 * name, 1000 * name + 1000)
    ]
    metrics, _ = read([*begin(cores=4), *rows])
    assert parallel_tasks(metrics) == 8, "executor 1 and one other at a time"
    info = stage(0, 6, Submission_Time=BEGAN + 60_000, Completion_Time=BEGAN + 120_000)
    metrics, _ = read([*begin(cores=4), *rows, event("StageCompleted", Stage_Info=info)])
    assert parallel_tasks(metrics, metrics.stages[0]) == 4 and findings.find(metrics) == []
    metrics, _ = read(
        [*begin(cores=4), *executor("2", 70_000), event("StageCompleted", Stage_Info=info)]
    )
    assert [one.title for one in findings.find(metrics)] == ["6 tasks on 8 cores, for 60 s"]


def test_a_log_alone_does_not_say_that_its_application_runs(tmp_path: Path) -> None:
    rows = [*application(4)]
    for name, content, state in (("whole", rows, "ENDED"), ("cut", rows[:-1], "UNKNOWN")):
        (tmp_path / name).write_bytes(b"\n".join(content))
        shown = print_events(tmp_path / name)
        assert "still runs" not in shown and "failed" not in shown
        assert ("the application runs, or was killed" in shown) is (state == "UNKNOWN")
        printed = print_events(tmp_path / name, "--json")
        assert json.loads(printed)["state"] == state


def test_a_file_that_repeats_a_part_is_read_once_and_named(tmp_path: Path) -> None:
    folder = tmp_path / "eventlog_v2_app"
    folder.mkdir()
    rows = [*application(4)]
    for name, content in (
        ("events_1_app", rows[:5]),
        ("events_1_app.copy", rows[:5]),
        ("events_2_app", []),
        ("events_2_app.new", rows[5:]),
        ("events_2_app.compact.inprogress", rows),
    ):
        (folder / name).write_bytes(b"\n".join(content))
    metrics = read_event_log(find_log(str(folder))).metrics()
    assert (metrics.totals.tasks, len(metrics.executors)) == (4, 1)
    assert metrics.notes == [
        f"{name} repeats a part of the event log, and was left out"
        for name in ("events_1_app.copy", "events_2_app")
    ]


def test_a_stage_of_spark_s_own_threads_gets_the_program_s_line(tmp_path: Path) -> None:
    own = "$anonfun$withThreadLocalCaptured$1 at CompletableFuture.java:1768"
    lines = [
        *begin(),
        event(
            "JobStart",
            Job_ID=0,
            Stage_IDs=[0],
            Properties={"spark.sql.execution.id": "7", "callSite.short": "collect at job.py:9"},
        ),
        event("StageSubmitted", Stage_Info=stage(0, 1, own, Submission_Time=BEGAN)),
        task(0),
        event(
            "StageCompleted",
            Stage_Info=stage(0, 1, own, Submission_Time=BEGAN, Completion_Time=BEGAN + 5),
        ),
    ]
    path = tmp_path / "app-1"
    path.write_bytes(b"\n".join(lines))
    (entry,) = read_event_log(find_log(str(path))).metrics().stages
    assert (entry.name, entry.query) == ("collect at job.py:9", 7)


def scan_below(*between: str) -> PlanNode:
    """A filter on the day above a scan that reads all days, with nodes between both."""
    node = PlanNode(
        "Scan parquet ",
        "FileScan parquet [b#1,day#2] Batched: true",
        metrics=[
            PlanMetric("number of output rows", 1),
            PlanMetric("number of partitions read", 2),
        ],
        metadata={"PartitionFilters": "[]", "ReadSchema": "struct<b:bigint>"},
    )
    for name in between:
        node = PlanNode(name, name, [node])
    rows = [PlanMetric("number of output rows", 3)]
    return PlanNode("Filter", "Filter (day#2 = 7)", [node], metrics=rows)


@pytest.mark.parametrize(
    "name", ["Window", "HashAggregate", "GlobalLimit 5", "TakeOrderedAndProject"]
)
def test_a_filter_of_what_all_rows_gave_is_no_filter_of_the_scan(name: str) -> None:
    facts = PlanFacts({1: 900_000, 2: 30, 3: 30_000}, {}, {})

    def kinds(root: PlanNode) -> set[str]:
        return {kind for _, node_facts in facts.nodes(root) for kind in node_facts}

    assert SCANNED_ROWS in kinds(scan_below("Project", "Exchange", "Sort"))
    assert SCANNED_ROWS not in kinds(scan_below("Project", name, "Project"))
