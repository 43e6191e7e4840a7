"""From a run to its answer: the exception on top, the lines at the end of run_spark,
one id, names of runs.
"""

from __future__ import annotations

import json
import os
from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.apps.monitor import spark_watch
from cmsspark.apps.monitor.run_report import ending_lines, report
from cmsspark.base import self_metrics
from cmsspark.main import command
from cmsspark.run import run_context
from cmsspark.store import run_metrics
from cmsspark.store.process_samples import (
    LogEntry,
    ProcessSample,
    WatchedRun,
    open_processes,
)
from cmsspark.store.run_history import find_exception
from cmsspark.store.run_metrics import Finding, RunMetrics
from cmsspark.submit.command import Command
from cmsspark.submit.run_command import run

WORKER = "in a worker: Traceback (most recent call last):\n  File 'a.py', line 3\nValueError: no number\nof two lines\n"


def failed(**fields: object) -> RunMetrics:
    run = RunMetrics("20260115-aaa", "my.py", "spark", 1000, "FAILED", exit_code=1, ended_ms=5000)
    for name, value in fields.items():
        setattr(run, name, value)
    return run


def test_the_exception_of_tasks_stands_on_top_with_how_to_see_all_of_it() -> None:
    line = "ExceptionFailure: ValueError: no number"
    run = failed(
        failures={line: 4, "TaskKilled: stage": 9}, failure_texts={line: WORKER}, failed_jobs=1
    )
    run.driver_trace = "Traceback (most recent call last):\n  File 'x'\nPy4JJavaError: o1"
    lines = list(report(run))
    assert lines[2] == "Exception: ValueError: no number (4 tasks)"
    assert lines[3] == "  whole trace: cmsspark show 20260115-aaa --trace"


def test_the_driver_s_own_exception_is_named_where_no_job_failed() -> None:
    trace = "Traceback (most recent call last):\n  File 'x', line 1\nKeyError: 'day'\n"
    exception = find_exception(
        failed(driver_trace=trace, failures={"ExceptionFailure: A: retried": 1})
    )
    assert exception is not None and (exception.line, exception.tasks) == ("KeyError: 'day'", 0)


def test_a_run_without_any_failure_has_no_exception() -> None:
    assert find_exception(RunMetrics("r", "j", "spark", 0, "DONE")) is None
    assert not any(
        line.startswith("Exception") for line in report(RunMetrics("r", "j", "spark", 0, "DONE"))
    )


def test_run_spark_ends_with_one_line_for_each_finding() -> None:
    run = failed(
        findings=[Finding("spill", f"{n} MB spilled", "stage 1", "more") for n in range(3)]
    )
    run.findings.append(Finding("gc", "x" * 500, "all", "more"))
    spill, gc = ending_lines(run)
    assert spill == "spill: 0 MB spilled: cmsspark show 20260115-aaa"
    assert len(gc) < 160 and gc.endswith("…: cmsspark show 20260115-aaa")
    assert list(ending_lines(RunMetrics("r", "j", "spark", 0))) == []


@pytest.mark.parametrize(
    ("title", "code", "lines"),
    [
        ("cmsspark.base.errors.DataError: a gzip file is damaged (1 task failed)", 65, 0),
        ("cmsspark.base.errors.NotReady: a file server is away (1 task failed)", 0, 1),
        ("cmsspark.base.errors.DataError: a gzip file is damaged (1 task failed)", 1, 1),
        ("ValueError: no number (1 task failed)", 1, 1),
    ],
)
def test_run_spark_does_not_repeat_the_error_that_a_job_has_printed(
    title: str, code: int, lines: int
) -> None:
    run = failed(
        exit_code=code, findings=[Finding("failed_task", title, "tasks", "the whole trace")]
    )
    assert len(list(ending_lines(run))) == lines


def test_the_last_trace_of_the_driver_is_stored_and_shown(
    tmp_path: Path, capfd: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    measure = spark_watch.begin(tmp_path, "my.py", {"spark.ui.enabled": "false"}, has_jvm=True)
    assert measure is not None
    script = "printf 'WARN a\\nTraceback (most recent call last):\\n  File \"my.py\", line 1\\nKeyError: 1\\n' >&2; exit 1"
    assert run(Command(["/bin/sh", "-c", script], {}, "client"), os.environ, None, measure) == 1
    stored = run_metrics.read(run_metrics.run_file(tmp_path, measure.metrics.run))
    assert stored.driver_trace is not None and stored.driver_trace.startswith("Traceback")
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path))
    for name in ("latest", "my.py", "some/folder/my.py", stored.run):
        shown = CliRunner().invoke(command, ["show", name], standalone_mode=False)
        assert shown.exit_code == 0 and "\nException: KeyError: 1\n" in shown.output, name
    whole = CliRunner().invoke(command, ["show", "my.py", "--trace"], standalone_mode=False)
    assert (
        whole.output == 'Traceback (most recent call last):\n  File "my.py", line 1\nKeyError: 1\n'
    )


def test_a_run_that_went_well_keeps_no_trace_of_what_it_handled(tmp_path: Path) -> None:
    measure = spark_watch.begin(tmp_path, "my.py", {"spark.ui.enabled": "false"}, has_jvm=True)
    assert measure is not None
    script = "echo 'Traceback (most recent call last):' >&2"
    assert run(Command(["/bin/sh", "-c", script], {}, "client"), os.environ, None, measure) == 0
    assert measure.metrics.driver_trace is None


def test_the_first_run_of_a_measured_process_has_its_id(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(self_metrics.VARIABLE, str(tmp_path / "20260115T000000-abc"))
    assert run_context._run_id(1.0) == "20260115T000000-abc"
    assert run_context._run_id(1.0) != "20260115T000000-abc", "another day of the same process"
    monkeypatch.delenv(self_metrics.VARIABLE)
    assert run_context._run_id(1.0) != "20260115T000000-abc"


def test_show_has_the_processes_of_a_run_also_of_one_that_was_only_watched(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path))
    with open_processes(tmp_path) as database:
        database.put_run(WatchedRun("20260115-watched", 1, "h", job="x", status="DONE"))
        process = ("20260115-watched", 1, "h", 7, 1, 0, "python_worker")
        database.add(
            [ProcessSample(*process, rss_bytes=9_000_000, short_command="python a.py")],
            [LogEntry("20260115-watched", 2, "info", "the monitor used 0.1 s", "h")],
        )
    shown = CliRunner().invoke(command, ["show", "20260115"], standalone_mode=False).output
    assert "7 python a.py" in shown and "9.0 MB" in shown and "the monitor used" in shown
    words = ["show", "20260115", "--json"]
    (line,) = CliRunner().invoke(command, words, standalone_mode=False).output.splitlines()
    assert json.loads(line)["pid"] == 7
