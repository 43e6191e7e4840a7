"""Monitors of nodes: real process trees, real pipes, readers that go away, lines that
are none, other clocks.
"""

from __future__ import annotations

import io
import os
import re
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import msgspec
import psutil
import pytest
from click.testing import CliRunner

from cmsspark.apps.monitor.processes import node as node_monitor
from cmsspark.apps.monitor.processes.node import (
    Batch,
    NodeReader,
    find_node_manager,
    with_one_clock,
)
from cmsspark.apps.monitor.suites.results import load_result
from cmsspark.base import dates
from cmsspark.base.errors import UsageError
from cmsspark.main import command
from cmsspark.store.process_samples import LogEntry, ProcessSample, WatchedRun, open_processes

CLI = "from cmsspark.main import main; main()"
#: A tree like a NodeManager's: a shell that starts a container's script with a Python in it.
TREE = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0); "
    "print(p.pid, flush=True); p.wait()"
)


@pytest.fixture
def tree() -> Iterator[subprocess.Popen[str]]:
    root = subprocess.Popen(
        [sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert root.stdout is not None and root.stdout.readline()
    yield root
    root.communicate("\n", timeout=300)


def monitor(pid: int, *words: str, interval: str = "0.2") -> subprocess.Popen[bytes]:
    line = [sys.executable, "-c", CLI, "monitor", "node", "--pid", str(pid)]
    return subprocess.Popen(
        [*line, "--interval", interval, *words], stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )


def collect(state: Path, lines: bytes) -> subprocess.CompletedProcess[str]:
    environ = {**os.environ, "CMSSPARK_STATE_DIR": str(state)}
    done = subprocess.run(
        [sys.executable, "-c", CLI, "monitor", "collect"],
        input=lines,
        env=environ,
        capture_output=True,
        timeout=300,
    )
    return subprocess.CompletedProcess("", done.returncode, "", done.stderr.decode())


def lines_of(process: subprocess.Popen[bytes], count: int) -> bytes:
    assert process.stdout is not None
    return b"".join(process.stdout.readline() for _ in range(count))


def test_a_tree_is_printed_and_stored_as_a_run_that_ends_with_a_signal(
    tmp_path: Path, tree: subprocess.Popen[str]
) -> None:
    expected = {tree.pid, *(child.pid for child in psutil.Process(tree.pid).children())}
    process = monitor(tree.pid)
    lines = lines_of(process, 3)
    process.send_signal(signal.SIGTERM)
    rest, err = process.communicate(timeout=300)
    assert process.returncode == 0 and b"ended: a signal" in err
    done = collect(tmp_path, lines + rest)
    assert done.returncode == 0, done.stderr
    with open_processes(tmp_path) as database:
        (run,) = database.runs()
        samples, log = database.samples(run.run), database.log(run.run)
    assert len(expected) == 2 and {sample.pid for sample in samples} == expected
    assert (run.status, run.job, run.root_pid) == ("DONE", "node", tree.pid)
    assert "monitor ended: a signal" in [entry.message for entry in log]


def test_the_monitor_of_a_node_ends_with_the_process_that_it_watches() -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True
    ) as root:
        process = monitor(root.pid, interval="300")
        lines_of(process, 1)
        root.communicate("\n")
        _, err = process.communicate(timeout=300)
    assert process.returncode == 0 and f"process {root.pid} has ended".encode() in err


def test_a_monitor_whose_reader_is_gone_ends_at_once_whatever_its_interval(
    tree: subprocess.Popen[str],
) -> None:
    process = monitor(tree.pid, interval="300")
    lines_of(process, 1)
    assert process.stdout is not None and process.stderr is not None
    process.stdout.close()
    with process.stderr:
        assert b"ended: its reader is gone" in process.stderr.read()
    assert process.wait(300) == 0 and tree.poll() is None


def test_a_monitor_whose_reader_takes_nothing_ends(
    tree: subprocess.Popen[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_monitor, "_PATIENCE_S", 0.2)
    reader, writer = os.pipe()
    before = [signal.getsignal(number) for number in (signal.SIGTERM, signal.SIGHUP)]
    try:
        reason = node_monitor.watch_node(tree.pid, None, 0.001, writer)
    finally:
        for number, handler in zip((signal.SIGTERM, signal.SIGHUP), before, strict=True):
            signal.signal(number, handler)
        os.close(reader)
        os.close(writer)
    assert "nothing was read" in reason


def sample(time_ms: int, host: str = "h", rss: int = 5, run: str = "r") -> ProcessSample:
    return ProcessSample(run, time_ms, host, 1, 0, 0, "java", rss_bytes=rss)


def line(
    *samples: ProcessSample, host: str = "h", sent_ms: int | None = None, job: str = "node"
) -> bytes:
    sent_ms = dates.now_ms() if sent_ms is None else sent_ms
    row = WatchedRun("r", 1, host, job)
    return msgspec.json.encode(Batch(row, sent_ms, list(samples))) + b"\n"


def test_a_run_whose_connection_is_lost_has_ended_and_says_so(tmp_path: Path) -> None:
    NodeReader(tmp_path, print).read(io.BytesIO(line(sample(1)) + line(sample(2))))
    with open_processes(tmp_path) as database:
        (run,) = database.runs()
        assert run.status == "ENDED" and run.end_ms is not None
        assert [entry.time_ms for entry in database.samples("r")] == [1, 2]
        assert "without a word" in database.log("r")[-1].message


def test_a_node_is_stored_under_the_run_and_the_name_that_its_reader_has(tmp_path: Path) -> None:
    with open_processes(tmp_path) as database:
        database.put_run(WatchedRun("suite-1", 1, "here", suite="s"))
    NodeReader(tmp_path, print, "suite-1", "rack1-node2").read(io.BytesIO(line(sample(1))))
    with open_processes(tmp_path) as database:
        assert [(run.run, run.status) for run in database.runs()] == [("suite-1", "RUNNING")]
        assert {entry.host for entry in database.samples("suite-1")} == {"rack1-node2"}


@pytest.mark.parametrize(
    ("content", "reason"),
    [
        (b"Welcome to node1!\n", "malformed"),
        (b"{}\n", "missing required field"),
        (line(sample(1))[:-20] + b"\n", "JSON is malformed"),
        (line(sample(1)).replace(b'"host":"h"', b'"host":5'), "Expected `str`"),
        (line(sample(1)).replace(b'"time_ms":1', b'"time_ms":1' + b"0" * 24), ""),
        (line().replace(b'"run":"r"', b'"run":"../x"'), "id of a run"),
        (line().replace(b'"run":"r"', b'"run":""'), "id of a run"),
        (b"[" * 100_000 + b"\n", ""),
        (b"\xff\xfe\n", "malformed"),
    ],
)
def test_a_line_that_no_monitor_printed_is_65_named_counted_and_hides_no_other(
    tmp_path: Path, content: bytes, reason: str
) -> None:
    done = collect(tmp_path, line(sample(1)) + content + line(sample(2)))
    assert done.returncode == 65 and "1 line, which was left out" in done.stderr
    assert "a line of a monitor was left out: " in done.stderr and reason in done.stderr
    with open_processes(tmp_path) as database:
        assert [entry.time_ms for entry in database.samples("r")] == [1, 2]


def test_a_line_without_end_takes_no_memory_and_many_are_counted(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(node_monitor, "MOST_BYTES", 1000)
    said: list[str] = []
    reader = NodeReader(tmp_path, said.append)
    reader.read(io.BytesIO(b"x" * 9_500 + b"\n" + line(sample(1))))
    assert reader.refused == 10 and len(said) == 4 and "10 lines" in said[-1]
    with open_processes(tmp_path) as database:
        assert len(database.samples("r")) == 1


def test_samples_of_a_node_with_another_clock_count_in_the_step_in_which_they_were_taken(
    tmp_path: Path,
) -> None:
    now = dates.now_ms()
    marks = [
        LogEntry("r", now - 2000, "mark", "begin a"),
        LogEntry("r", now + 60_000, "mark", "end a exit 0"),
    ]
    with open_processes(tmp_path) as database:
        database.put_run(WatchedRun("r", now, "here", suite="s"))
        database.add([sample(now, "here", 1)], marks)
    late = now - 600_000
    content = line(sample(late, rss=777), sent_ms=now - 600_000) + line(sent_ms=now - 600_500)
    NodeReader(tmp_path, print, "r", "node1").read(io.BytesIO(content))
    with open_processes(tmp_path) as database:
        result = load_result(database, database.runs()[0])
        assert [entry.type for entry in database.log("r")].count("clock") == 1, "noted once"
        assert [entry.time_ms for entry in database.samples("r")] == [late, now], (
            "what was printed is stored as it is"
        )
        shifted = with_one_clock(database.samples("r"), database.log("r"))
    assert result.maxima["a", "all"].rss_bytes == 777
    assert abs(shifted[-1].time_ms - now) < 60_000
    assert {entry.time_ms for entry in shifted if entry.host == "here"} == {now}


def test_times_are_as_they_are_where_no_clock_differs(tmp_path: Path) -> None:
    NodeReader(tmp_path, print).read(io.BytesIO(line(sample(1), sent_ms=dates.now_ms() - 3_000)))
    with open_processes(tmp_path) as database:
        assert "clock" not in {entry.type for entry in database.log("r")}, "a network takes time"
    rows = [sample(5), sample(6, "g")]
    noise = [LogEntry("r", 1, "clock", "nonsense", "h"), LogEntry("r", 1, "info", "+5 ms x", "h")]
    assert with_one_clock(rows, noise) == rows


def test_seconds_are_finite() -> None:
    for words in (
        ["monitor", "node", "--pid", "1", "--interval", "inf"],
        ["monitor", "watch", "1", "--interval", "nan"],
    ):
        done = CliRunner().invoke(command, words, standalone_mode=False)
        assert getattr(done.exception, "exit_code", None) == 2 and "is not a number" in str(
            done.exception
        )


def test_the_nodemanager_is_found_by_its_command_line(tmp_path: Path) -> None:
    name = "org.apache.hadoop.yarn.server.nodemanager.NodeManager"
    others = [p.pid for p in psutil.process_iter(["cmdline"]) if name in (p.info["cmdline"] or [])]
    with subprocess.Popen(
        ["java", "-c", "read x", name], executable="/bin/sh", stdin=subprocess.PIPE
    ) as process:
        try:
            found = {find_node_manager()}
        except UsageError as error:
            # Others of this host, such as those of a cluster for tests: the error names them all.
            found = set(map(int, re.findall(r"\d+", str(error.found))))
        assert found >= {process.pid, *others}
        process.communicate(b"\n")
