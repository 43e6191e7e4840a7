"""Event logs of other programs, other versions and bad days: what they say is read, and
nothing ends the reader.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import cramjam
import msgspec
import pytest
from click.testing import CliRunner

from cmsspark.apps.monitor.findings import find as findings
from cmsspark.apps.monitor.findings.advice import advise, lines
from cmsspark.apps.monitor.logs import files as event_log_files
from cmsspark.apps.monitor.logs.files import find_log
from cmsspark.apps.monitor.logs.reader import EventLogReader, read_event_log
from cmsspark.apps.monitor.run_report import report
from cmsspark.base.errors import DataError
from cmsspark.main import command
from cmsspark.store.run_metrics import RunMetrics
from tests.apps.monitor.event_logs import BEGAN, MB, application, begin, event, stage, task

SQL = "org.apache.spark.sql.execution.ui.SparkListener"
#: Changes an event in place.
Change = Callable[[dict[str, Any]], object]


def read(rows: Iterable[bytes]) -> tuple[RunMetrics, EventLogReader]:
    """The run, after everything that commands do with it."""
    reader = EventLogReader()
    reader.read(rows)
    metrics = reader.metrics()
    metrics.findings = findings.find(metrics)
    assert [*report(metrics, 80)] and [*lines(advise([metrics]))]
    assert msgspec.json.decode(msgspec.json.encode(metrics), type=RunMetrics) == metrics
    return metrics, reader


def changed(change: Change, name: str = "TaskEnd", tasks: int = 40) -> list[bytes]:
    """The lines of an application, with all events of a name changed."""
    events = [json.loads(line) for line in application(tasks)]
    for one in events:
        if one["Event"] == f"SparkListener{name}":
            change(one)
    return [json.dumps(one).encode() for one in events]


def test_null_for_what_is_missing_and_floats_for_whole_numbers_are_read() -> None:
    def nulls(one: dict[str, Any]) -> None:
        one["Task Info"]["Host"] = one["Task End Reason"]["Reason"] = None
        one["Task Metrics"]["Executor Run Time"] = 1.0e3
        one["Task Executor Metrics"] = {"JVMHeapMemory": 1.5e9, "DirectPoolMemory": None}

    metrics, reader = read(changed(nulls))
    assert (reader.damaged, metrics.totals.tasks, metrics.totals.run_ms) == (0, 40, 40_000)
    assert metrics.executors[0].peaks["JVMHeapMemory"] == 1_500_000_000


def test_an_executor_without_metrics_is_an_executor() -> None:
    def bare(one: dict[str, Any]) -> None:
        del one["Task Metrics"], one["Task Executor Metrics"]

    metrics, reader = read([line for line in changed(bare) if b"StageExecutorMetrics" not in line])
    assert (reader.damaged, metrics.totals.tasks, metrics.totals.run_ms) == (0, 40, 0)
    assert metrics.executors[0].peaks == {} and metrics.findings == []


def test_negative_figures_are_none_of_the_sums() -> None:
    def backwards(one: dict[str, Any]) -> None:
        one["Task Info"]["Finish Time"] = BEGAN - 5000
        one["Task Metrics"] |= {
            "Executor Run Time": -5,
            "JVM GC Time": -1,
            "Peak Execution Memory": -1,
        }
        one["Task Metrics"]["Shuffle Read Metrics"]["Remote Bytes Read"] = -(10**12)

    metrics, _ = read(changed(backwards))
    totals = metrics.totals
    assert (totals.task_ms, totals.run_ms, totals.gc_ms, totals.peak_execution_bytes) == (
        0,
        0,
        0,
        0,
    )
    assert 0 <= totals.shuffle_read_bytes < 80 * MB
    early = changed(
        lambda one: one["Stage Info"].update({"Completion Time": BEGAN - 9}), "StageCompleted"
    )
    metrics, _ = read([*early[:-1], event("ApplicationEnd", Timestamp=BEGAN - 10)])
    text = "\n".join(report(metrics, 80))
    assert "elapsedTime => 0" in text and " -" not in text


def test_sums_may_be_larger_than_64_bits() -> None:
    metrics, _ = read(changed(lambda one: one["Task Metrics"].update({"Result Size": 2**63 - 1})))
    assert metrics.totals.result_bytes == 40 * (2**63 - 1)


def test_events_out_of_order_and_twice_are_taken_as_they_come() -> None:
    rows = [*application(40)]
    assert read(rows[::-1])[0].totals.tasks == 40
    twice, _ = read(rows + rows)
    assert (twice.totals.tasks, twice.stage_count) == (80, 2), (
        "the ids of a second context begin again"
    )


def test_attempts_of_a_stage_and_speculative_tasks_are_apart() -> None:
    def rows() -> Iterable[bytes]:
        yield from begin()
        for attempt in range(3):
            info = stage(0, 10, Submission_Time=BEGAN) | {"Stage Attempt ID": attempt}
            yield event("StageSubmitted", Stage_Info=info)
            for number in range(10):
                one = json.loads(task(number, shuffle=MB))
                one["Stage Attempt ID"] = attempt
                one["Task Info"] |= {
                    "Speculative": number == 9,
                    "Killed": number == 9,
                    "Finish Time": BEGAN + 90_000,
                }
                yield json.dumps(one).encode()
            failure = {} if attempt == 2 else {"Failure Reason": "FetchFailed " * 1000}
            yield event(
                "StageCompleted", Stage_Info=info | {"Completion Time": BEGAN + 100} | failure
            )

    metrics, _ = read(rows())
    assert [(one.attempt, bool(one.failure), one.totals.tasks) for one in metrics.stages] == [
        *((0, True, 10), (1, True, 10), (2, False, 10))
    ]
    assert (metrics.totals.speculative_tasks, metrics.totals.killed_tasks) == (3, 3)
    assert [finding.code for finding in metrics.findings] == ["fetch_failure"]
    assert len(metrics.stages[0].failure or "") <= 500


def test_a_stage_without_tasks_is_a_stage() -> None:
    done = stage(0, 0, Submission_Time=BEGAN, Completion_Time=BEGAN + 60_000)
    metrics, _ = read([*begin(), event("StageCompleted", Stage_Info=done)])
    assert (metrics.stage_count, metrics.totals.tasks, metrics.findings) == (1, 0, [])


def test_plans_that_are_huge_or_nested_too_deep_cost_only_themselves(tmp_path: Path) -> None:
    node = b'{"nodeName":"Project","simpleString":"p","metrics":[],"children":['
    deep = node * 5000 + b"]}" * 5000
    start = f'{{"Event":"{SQL}SQLExecutionStart","executionId":1,"description":"d","time":1,"sparkPlanInfo":'.encode()
    wide = [
        {"nodeName": "CartesianProduct", "simpleString": "é" * 3000, "metrics": []}
        for _ in range(1000)
    ]
    plan = {"nodeName": "Union", "children": wide, "simpleString": "U" * 1_000_000}
    rows = [start + deep + b"}", start + json.dumps(plan).encode() + b"}", *application(40)]
    metrics, reader = read(rows)
    assert (reader.damaged, reader.deep, metrics.totals.tasks) == (0, 1, 40)
    assert len(msgspec.json.encode(metrics.queries)) < 1_000_000
    (tmp_path / "log").write_bytes(b"\n".join(rows))
    assert (
        "1 plans are nested too deep to be read, and were left out"
        in read_event_log(find_log(str(tmp_path / "log"))).run.notes
    )


def test_names_in_any_script_are_shown_and_control_characters_are_not(tmp_path: Path) -> None:
    name = "データ \x1b[31m\u202e\x00 é"
    (tmp_path / "log").write_bytes(
        b"\n".join(changed(lambda one: one.update({"App Name": name}), "ApplicationStart"))
    )
    shown = CliRunner().invoke(command, ["monitor", "events", str(tmp_path / "log")])
    assert shown.exit_code == 0 and "データ" in shown.stdout and "\x1b" not in shown.stdout


@pytest.mark.parametrize(
    "options",
    [
        {"spark_memory_fraction": "0", "spark_executor_memory": "0", "spark_executor_cores": "0"},
        {"spark_memory_fraction": "nan", "spark_executor_memoryOverheadFactor": "inf"},
        {
            "spark_memory_fraction": "-1",
            "spark_executor_memoryOverheadFactor": "1e400",
            "spark_task_cpus": "0",
        },
        {
            "spark_executor_memory": "9" * 15 + "g",
            "spark_sql_shuffle_partitions": "-1",
            "spark_executor_cores": "x",
        },
        {
            "spark_executor_memory": "four",
            "spark_executor_memoryOverhead": "",
            "spark_memory_storageFraction": "much",
        },
    ],
)
def test_options_that_no_spark_takes_are_as_good_as_none(options: dict[str, str]) -> None:
    metrics, _ = read(application(40, **options))
    assert [finding.code for finding in metrics.findings] == ["skewed_stage"]


@pytest.mark.parametrize(
    "content",
    [
        b"root:x:0:0\n" * 3,
        b"[1]\n",
        b"\xff\xfe\x00",
        b'{"Event":3}\n{}\n',
        b"[" * 100_000,
        b'"\\ud800"\n',
    ],
)
def test_a_file_that_is_no_event_log_is_refused(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log").write_bytes(content)
    with pytest.raises(DataError, match="none of which is an event"):
        read_event_log(find_log(str(tmp_path / "log")))


@pytest.mark.parametrize("content", [b"", b"\n \n\n" * 100])
def test_an_empty_log_is_65_and_says_when_to_read_it_again(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "log.inprogress").write_bytes(content)
    done = CliRunner().invoke(
        command, ["monitor", "events", str(tmp_path / "log.inprogress")], standalone_mode=False
    )
    assert getattr(done.exception, "exit_code", None) == 65 and "read it again" in str(
        done.exception
    )


def test_blank_lines_that_compress_to_nothing_are_refused_by_their_size_on_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(event_log_files, "_LEAST_PLAIN", 1 << 20)
    blank = bytes(cramjam.zstd.compress(next(iter(application(1))) + b"\n" * (8 << 20)))
    (tmp_path / "log.zstd").write_bytes(blank)
    with pytest.raises(DataError, match="500 times") as raised:
        read_event_log(find_log(str(tmp_path / "log.zstd")))
    assert f"{len(blank):,} bytes" in str(raised.value)
    rows = b"\n".join(application(4_000))
    (tmp_path / "log.zstd").write_bytes(bytes(cramjam.zstd.compress(rows, level=19)))
    assert read_event_log(find_log(str(tmp_path / "log.zstd"))).metrics().totals.tasks == 4_000


def test_a_long_line_of_another_form_is_damaged_and_never_becomes_python_objects(
    tmp_path: Path,
) -> None:
    line = b'{"Event":"SparkListenerTaskEnd","Stage ID":null,"x":[' + b"{}," * 500_000 + b"{}]}"
    (tmp_path / "log").write_bytes(b"\n".join([*application(3), line]))
    assert read_event_log(find_log(str(tmp_path / "log"))).damaged == 1


@pytest.mark.parametrize(
    ("names", "missing"),
    [
        (["events_1_app", "events_2_app"], []),
        (
            ["events_1_app", "events_3_app", "events_7_app"],
            ["part 2 missing", "parts 4 to 6 missing"],
        ),
        (["events_3_app"], ["parts 1 to 2 missing"]),
        (["events_8_app.compact", "events_9_app", "events_11_app"], ["part 10 missing"]),
        (["events_1_app.zstd", "events_8_app.zstd.compact", "events_9_app.zstd"], []),
    ],
)
def test_parts_of_a_rolling_folder_that_are_missing_are_named(
    tmp_path: Path, names: list[str], missing: list[str]
) -> None:
    folder = tmp_path / "eventlog_v2_app"
    folder.mkdir()
    (folder / "appstatus_app.inprogress").touch()
    for name in names:
        (folder / name).write_bytes(b"\n".join(application(4)))
    notes = read_event_log(find_log(str(folder))).run.notes
    notes = [note for note in notes if "compacted" not in note]
    assert notes == [f"the event log is not whole: {text}" for text in missing]


def made(tmp_path: Path, lines: list[bytes], name: str = "app-1") -> EventLogReader:
    """What is read of a log of these lines."""
    path = tmp_path / name
    path.parent.mkdir(exist_ok=True)
    path.write_bytes(b"\n".join(lines) + b"\n")
    return read_event_log(find_log(str(path)))


def test_a_log_without_some_of_its_tasks_says_so(tmp_path: Path) -> None:
    lines = list(application(35))
    ends = [line for line in lines if b"SparkListenerTaskEnd" in line]
    whole, lossy = (
        made(tmp_path, lines),
        made(tmp_path, [line for line in lines if line not in ends[:11]]),
    )
    assert not [note for note in whole.run.notes if "not in the event log" in note]
    (note,) = [note for note in lossy.run.notes if "not in the event log" in note]
    assert note.startswith("11 of 35 tasks of stage 0 are not in the event log")


def test_a_log_without_the_end_of_a_stage_or_job_says_so(tmp_path: Path) -> None:
    lines = list(application(4))
    for name, kind in ((b"StageCompleted", "1 stage"), (b"JobEnd", "1 job")):
        notes = made(tmp_path, [line for line in lines if name not in line]).run.notes
        assert [note for note in notes if note.startswith(f"{kind} of the event log")], name
    assert not [note for note in made(tmp_path, lines).run.notes if "did not end" in note]


@pytest.mark.parametrize(
    ("lost", "note"),
    [
        # Whole jobs with their stages and tasks, as a full queue of Spark's drops them.
        (lambda n, line: 31 < n < 48, "the event log lacks 2 jobs and 5 tasks"),
        (lambda n, line: 42 < n < 47, "the event log lacks 1 task,"),
        (
            lambda n, line: b"JobStart" in line and b'"Job ID":3,' in line,
            "the event log lacks 1 job,",
        ),
        (
            lambda n, line: b"SQLExecutionStart" in line and b'"executionId":3' in line,
            "the event log lacks 1 query,",
        ),
        (
            lambda n, line: b"ExecutorAdded" in line,
            "the event log lacks the start of executor driver:",
        ),
        (lambda n, line: b"SQLExecutionEnd" in line and b'"executionId":3' in line, "1 query of"),
        (lambda n, line: b"EnvironmentUpdate" in line, "the event log does not say"),
    ],
)
def test_what_a_log_lost_is_known_by_the_numbers_of_what_remains(
    tmp_path: Path, lost: Callable[[int, bytes], bool], note: str
) -> None:
    lines = list(find_log("tests/apps/monitor/logs/spark-4.3.0.zstd"))
    assert not made(tmp_path, lines).run.notes
    remaining = [line for n, line in enumerate(lines) if not lost(n, line)]
    (told,) = made(tmp_path, remaining).run.notes
    assert told.startswith(note)


def test_a_log_without_its_begin_counts_from_its_first_task(tmp_path: Path) -> None:
    lines = [line for line in application(3) if b"ApplicationStart" not in line]
    run = made(tmp_path, lines).metrics()
    assert (run.began_ms, run.ended_ms) == (BEGAN + 900, BEGAN + 4000)
    assert any("has no begin" in note for note in run.notes)


def test_a_compacted_part_says_what_it_leaves_out(tmp_path: Path) -> None:
    folder = tmp_path / "eventlog_v2_app-1"
    made(tmp_path, list(application(2)), "eventlog_v2_app-1/events_2_app-1.compact")
    notes = read_event_log(find_log(str(folder))).run.notes
    assert any(note.startswith("events_2_app-1.compact is what Spark kept") for note in notes)


def test_tasks_that_only_lost_their_output_are_told_from_failed_ones(tmp_path: Path) -> None:
    lines = list(application(4))
    again = json.loads(next(line for line in lines if b"SparkListenerTaskEnd" in line))
    again["Task End Reason"] = {"Reason": "Resubmitted"}
    position = next(n for n, line in enumerate(lines) if b"StageCompleted" in line)
    lines.insert(position, json.dumps(again).encode())
    run = made(tmp_path, lines).metrics()
    assert (run.totals.failed_tasks, run.totals.resubmitted_tasks) == (1, 1)
    assert any("1 of 1 failed tasks were only resubmitted" in note for note in run.notes)
    assert "(1 failed (1 only resubmitted), 0 killed)" in "\n".join(report(run))


def test_a_log_that_is_cut_in_its_first_block_is_no_empty_file(tmp_path: Path) -> None:
    path = tmp_path / "app-1.zstd"
    content = bytes(cramjam.zstd.compress(b"\n".join(application(300))))
    path.write_bytes(content[:40])
    done = CliRunner().invoke(command, ["monitor", "events", str(path)])
    assert isinstance(done.exception, DataError)
    assert "which end in their first block" in str(done.exception.found)
