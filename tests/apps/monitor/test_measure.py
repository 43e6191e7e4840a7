"""The measurement of a run: what is stored, and that nothing of it can change how a run ends."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner
from msgspec import structs

from cmsspark.apps.monitor import spark_watch
from cmsspark.apps.monitor.logs.rest import executor, listening
from cmsspark.apps.monitor.measured_runs import find_job_runs, find_run, measured_runs
from cmsspark.apps.monitor.processes.sampler import (
    DriverSamples,
    JvmCounters,
    TreeSampler,
    thinned,
)
from cmsspark.base import self_metrics
from cmsspark.main import command
from cmsspark.store import run_metrics
from cmsspark.store.process_samples import ProcessSample
from cmsspark.store.run_metrics import RunMetrics, Sample
from cmsspark.submit.arguments import split
from cmsspark.submit.command import Command
from cmsspark.submit.run_command import run
from cmsspark.submit.watching import is_watched
from tests.apps.monitor.event_logs import application
from tests.submit.hosts import SETTINGS

OPTIONS = {
    "spark.master": "local[2]",
    "spark.ui.enabled": "false",
    "spark.eventLog.enabled": "true",
}


def begin(state: Path, **options: str) -> spark_watch.RunMeasure:
    measure = spark_watch.begin(state, "job.py", {**OPTIONS, **options}, has_jvm=True)
    assert measure is not None
    return measure


def stored(state: Path) -> RunMetrics:
    (metrics,) = measured_runs(state)
    return metrics


def sh(script: str) -> Command:
    return Command(["/bin/sh", "-c", script], {}, "client")


def test_a_run_is_stored_with_its_event_log_samples_and_what_the_job_reported(
    tmp_path: Path,
) -> None:
    events = tmp_path / "events"
    events.mkdir()
    measure = begin(tmp_path, **{"spark.eventLog.dir": events.as_uri()})
    (events / "of_another").write_bytes(b"\n".join(application(3, measured="another")))
    (events / "mine").write_bytes(b"\n".join(application(40, measured=measure.metrics.run)))
    script = 'echo "$SPARK_SUBMIT_OPTS" | grep -q -- "-Dcmsspark-run=" || exit 9; echo "{\\"read\\":{\\"input_bytes\\":7}}" '
    assert (
        run(sh(script + '> "$CMSSPARK_MEASURED/reported.jsonl"'), os.environ, None, measure) == 0
    )
    metrics = stored(tmp_path)
    assert (metrics.job, metrics.state, metrics.exit_code, metrics.totals.tasks) == (
        "job.py",
        "DONE",
        0,
        40,
    )
    assert [entry.input_bytes for entry in metrics.reported] == [7]
    assert [finding.code for finding in metrics.findings] == ["skewed_stage"]
    assert oct(run_metrics.run_file(tmp_path, metrics.run).stat().st_mode)[-3:] == "600"


def test_lines_of_the_log_that_name_a_cause_are_kept(tmp_path: Path) -> None:
    script = "printf 'a\\nException in thread java.lang.OutOfMemoryError: Java heap space\\nlast' >&2; exit 3"
    assert run(sh(script), os.environ, None, begin(tmp_path)) == 3
    metrics = stored(tmp_path)
    assert (metrics.state, metrics.exit_code) == ("FAILED", 3)
    assert metrics.log_lines == ["Exception in thread java.lang.OutOfMemoryError: Java heap space"]
    assert metrics.findings[0].code == "heap_space"


#: A driver that ended by itself could not be reached, either.
@pytest.mark.parametrize(
    ("code", "line", "expected"),
    [
        (1, "ERROR X: The YARN application has already ended!", ["driver_unreachable"]),
        (1, "", []),
        (0, "", []),
    ],
)
def test_what_yarn_says_of_an_application_that_failed_is_among_the_lines(
    tmp_path: Path, code: int, line: str, expected: list[str]
) -> None:
    measure = begin(tmp_path)
    measure.line(line)
    said = "Uncaught exception: E\n\tat a.b(c)\nCaused by: java.io.IOException: Failed to connect to /192.0.2.1:369\n"
    measure.diagnose = {"application_1_0001": said}.__getitem__
    measure.ended(code, "application_1_0001")
    assert [finding.code for finding in stored(tmp_path).findings] == expected


@pytest.mark.parametrize("broken", ["started", "environment", "_write"])
def test_whatever_breaks_the_run_ends_as_it_would(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, broken: str
) -> None:
    measure = begin(tmp_path)

    def fail(*_: Any) -> None:
        raise OSError("no room")

    if broken in ("started", "environment"):
        monkeypatch.setattr("cmsspark.apps.monitor.processes.sampler.DriverSamples.take", fail)
        monkeypatch.setattr("cmsspark.apps.monitor.processes.sampler.DriverSamples.end", fail)
        monkeypatch.setattr("cmsspark.apps.monitor.measured_runs.find_event_log", fail)
    else:
        monkeypatch.setattr(spark_watch.RunMeasure, broken, fail)
    assert run(sh("exit 7"), os.environ, None, measure) == 7


def test_a_state_folder_that_cannot_be_written_is_said_and_no_error(tmp_path: Path) -> None:
    (tmp_path / "file").touch()
    said: list[str] = []
    assert (
        spark_watch.begin(tmp_path / "file", "job", OPTIONS, has_jvm=True, log=said.append) is None
    )
    assert "the run is not measured" in said[0]
    assert spark_watch.usable_events_folder(tmp_path / "file") is None
    uri = spark_watch.usable_events_folder(tmp_path / "with blank")
    assert uri is not None and uri.endswith("with%20blank/monitor/events")


def test_measuring_is_turned_off_by_the_line_the_environment_or_the_settings() -> None:
    from msgspec.structs import replace

    on, off = (
        split(["./job.py"], lambda _: None),
        split(["./job.py", "--no-monitor"], lambda _: None),
    )
    assert is_watched(on, SETTINGS, {})
    assert not is_watched(off, SETTINGS, {})
    assert not is_watched(on, SETTINGS, {"CMSSPARK_MONITOR": "0"})
    assert not is_watched(on, replace(SETTINGS, monitor=False), {})


def test_a_run_whose_process_is_gone_has_failed(tmp_path: Path) -> None:
    measure = begin(tmp_path)
    assert stored(tmp_path).state == "RUNNING"
    measure.metrics.process["started"] = 1
    measure._write()
    assert stored(tmp_path).state == "FAILED"
    assert "was killed" in stored(tmp_path).notes[0]
    assert find_run(tmp_path, measure.metrics.run[:12]) is not None
    assert find_job_runs(tmp_path, "somewhere/job.py", 5)[0].run == measure.metrics.run


def test_old_runs_and_event_logs_are_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(spark_watch, "MOST_RUNS", 3)
    monkeypatch.setattr(spark_watch, "MOST_EVENT_BYTES", 2500)
    events = run_metrics.events_folder(tmp_path)
    events.mkdir(parents=True)
    for number in range(6):
        run_metrics.write(
            run_metrics.run_file(tmp_path, f"run{number}"),
            RunMetrics(f"run{number}", "j", "spark", 0),
        )
        (events / f"log{number}").write_bytes(b"x" * 1000)
        os.utime(events / f"log{number}", (number, number))
    spark_watch.prune(tmp_path)
    assert sorted(entry.name for entry in run_metrics.runs_folder(tmp_path).iterdir()) == [
        "run3",
        "run4",
        "run5",
    ]
    assert sorted(entry.name for entry in events.iterdir()) == ["log4", "log5"]


def test_a_tree_is_sampled_by_roles(tmp_path: Path) -> None:
    """A shell that is named like it stands for the JVM, a Python below it for the
    driver's, one named like the daemon for that.
    """
    worker = (
        "import sys, time\ndata = b'x' * 30_000_000\nprint('up', flush=True)\nsys.stdin.read()"
    )
    daemon = f"import subprocess, sys\nsubprocess.run([sys.executable, '-c', {worker!r}]) # pyspark.daemon"
    script = (
        f'"{sys.executable}" -c "$DRIVER" & exec 3<&0; "{sys.executable}" -c "$DAEMON" <&3; wait'
    )
    environ = {**os.environ, "DRIVER": "import sys\nsys.stdin.read()", "DAEMON": daemon}
    with subprocess.Popen(
        ["/bin/sh", "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, env=environ
    ) as root:
        assert root.stdout is not None and root.stdout.readline() == b"up\n"
        driver = DriverSamples(root.pid)
        sampler = TreeSampler("r", [root.pid])
        sample = driver.take(sampler.sample())
        root.stdin.close()  # type: ignore[union-attr]
    assert sample is not None
    assert sample.workers == 1 and sample.largest_worker_rss == sample.workers_rss
    assert (sample.workers_rss or 0) > 30_000_000 > (sample.driver_jvm_rss or 0)
    assert sample.heap_bytes is None, "a shell has no heap"
    assert driver.peaks["ProcessTreePythonRSSMemory"] > 30_000_000
    assert driver.take(sampler.sample()) is None


def test_a_process_without_pages_is_no_sample() -> None:
    """It ends: its memory is gone, its entry is not yet."""
    sampled = ProcessSample("r", 5, "h", os.getpid(), 0, 0, "java_driver", rss_bytes=0)
    assert DriverSamples(os.getpid()).take([sampled]) is None
    with_pages = structs.replace(sampled, rss_bytes=7, cpu_seconds=1.5)
    sample = DriverSamples(os.getpid()).take([with_pages])
    assert sample is not None and (sample.driver_jvm_rss, sample.cpu_ms) == (7, 1500)


def test_of_many_samples_those_with_the_most_memory_stay() -> None:
    samples = [Sample(number, driver_jvm_rss=number % 7) for number in range(10)]
    assert [sample.at_ms for sample in thinned(samples)] == [1, 3, 5, 6, 9]


def test_counters_of_no_jvm_are_none(tmp_path: Path) -> None:
    (tmp_path / "hsperfdata_me").mkdir()
    assert JvmCounters(4711, tmp_path).heap() is None
    (tmp_path / "hsperfdata_me" / "4711").write_bytes(
        b"\xca\xfe\xc0\xc0\x01\x02\x00\x01" + b"\0" * 24
    )
    assert JvmCounters(4711, tmp_path).heap() is None


def test_rest_rows_and_ports() -> None:
    row = {"id": "1", "hostPort": "node1:4711", "totalCores": 4, "totalTasks": 9, "totalGCTime": 5}
    entry = executor({**row, "peakMemoryMetrics": {"JVMHeapMemory": 77}})
    assert (entry.executor, entry.host, entry.cores, entry.totals.tasks) == ("1", "node1", 4, 9)
    assert entry.peaks == {"JVMHeapMemory": 77}
    import socket

    with socket.create_server(("127.0.0.1", 0)) as server:
        assert server.getsockname()[1] in listening(os.getpid())


def test_processes_report_their_work_like_a_stage(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv(self_metrics.VARIABLE, str(tmp_path))
    stage = self_metrics.StageTimes("reading", 3)
    began = stage.now() - 2
    for _ in range(3):
        stage.task_done(began)
    most_ms = round(1000 * (stage.now() - began))
    stage.end()
    counts = {"aaa": {"read": 10, "malformed": 1, "matched": 9}, "eos": {"read": 5}}
    self_metrics.report_read("r", "dbs_aaa", "2026-01-15", [5, 6], counts)
    from cmsspark.apps.monitor.spark_watch import add_reported

    metrics = RunMetrics("r", "j", "processes", 0)
    add_reported(metrics, tmp_path / self_metrics.FILE)
    assert metrics.stages[0].name == "reading" and metrics.totals.tasks == 3
    assert 2000 <= metrics.stages[0].task_ms.median <= most_ms
    assert (metrics.reported[0].input_bytes, metrics.reported[0].input_files) == (11, 2)
    assert (metrics.reported[0].input_records, metrics.reported[0].malformed_records) == (15, 1)


def test_show_has_the_measured_run_of_a_script(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path))
    measure = begin(tmp_path)
    run(sh("exit 0"), os.environ, None, measure)
    done = CliRunner().invoke(command, ["show", measure.metrics.run])
    assert "Measured: job.py" in done.stdout and "Not known:" in done.stdout
    assert (
        json.loads(CliRunner().invoke(command, ["show", measure.metrics.run, "--json"]).stdout)[
            "job"
        ]
        == "job.py"
    )
