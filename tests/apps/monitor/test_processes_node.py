"""Monitors of two nodes and the collector: real process trees, real HTTP, a collector
that goes away and comes back.
"""

from __future__ import annotations

import json
import re
import signal
import socket
import subprocess
import sys
import time
import urllib.error
import urllib.request
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import msgspec
import psutil
import pytest

from cmsspark.apps.monitor.processes.collector import Batch, Collector, check_address
from cmsspark.apps.monitor.processes.node import (
    Buffer,
    collector_server,
    find_node_manager,
    sender_to,
)
from cmsspark.base.errors import SettingsError, UsageError
from cmsspark.store.process_samples import LogEntry, ProcessSample, WatchedRun, open_processes
from tests.apps.monitor.test_processes_watch import until
from tests.ports import free_port

TOKEN = "a-token-of-these-tests-0123456789"
CLI = "from cmsspark.main import main; main()"
#: A tree like a NodeManager's: a shell that starts a container's script with a Python in it.
TREE = (
    "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', 'input()'], stdin=0); "
    "print(p.pid, flush=True); p.wait()"
)


@pytest.fixture
def token_file(tmp_path: Path) -> Path:
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text(TOKEN + "\n")
    return file


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    running = Collector(tmp_path / "state", TOKEN)
    running.start()
    yield running
    running.close()


@pytest.fixture
def trees() -> Iterator[list[subprocess.Popen[str]]]:
    roots = [
        subprocess.Popen(
            [sys.executable, "-c", TREE], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
        )
        for _ in range(2)
    ]
    for root in roots:
        assert root.stdout is not None and root.stdout.readline()
    yield roots
    for root in roots:
        root.communicate("\n", timeout=300)


def node(url: str, token_file: Path, pid: int, folder: Path, *words: str) -> subprocess.Popen[str]:
    command = [
        sys.executable,
        "-c",
        CLI,
        "monitor",
        "node",
        "--collector",
        url,
        "--token-file",
        str(token_file),
    ]
    command += ["--pid", str(pid), "--buffer", str(folder), "--interval", "0.2", *words]
    return subprocess.Popen(command, stderr=subprocess.PIPE, text=True)


def request(
    url: str, body: bytes | None = None, token: str | None = TOKEN, **headers: str
) -> tuple[int, Any]:
    given = {"Content-Type": "application/json"} | (
        {"Authorization": f"Bearer {token}"} if token else {}
    )
    asked = urllib.request.Request(url, body, {**given, **headers})
    try:
        with urllib.request.urlopen(asked, timeout=300) as answer:
            return answer.status, json.load(answer)
    except urllib.error.HTTPError as error:
        with error:
            return error.code, json.load(error)


def stored_pids(folder: Path, run: str) -> set[int]:
    with open_processes(folder) as database:
        return {sample.pid for sample in database.samples(run)}


def test_two_nodes_send_their_trees_and_end_with_their_run(
    tmp_path: Path, collector: Collector, token_file: Path, trees: list[subprocess.Popen[str]]
) -> None:
    state = tmp_path / "state"
    with open_processes(state) as database:
        database.put_run(WatchedRun("suite-1", 1, "here"))
    nodes = [
        node(collector.url, token_file, root.pid, tmp_path / f"node-{n}", "--run", "suite-1")
        for n, root in enumerate(trees)
    ]
    wanted = {
        child.pid for root in trees for child in [root, *psutil.Process(root.pid).children()]
    }
    assert len(wanted) == 4
    until(lambda: stored_pids(state, "suite-1") >= wanted)
    with open_processes(state) as database:
        database.put_run(WatchedRun("suite-1", 1, "here", end_ms=2, status="DONE"))
    for process in nodes:
        _, err = process.communicate(timeout=300)
        assert process.returncode == 0
        assert "ended: its run has ended (DONE)" in err
    with open_processes(state) as database:
        assert (
            len([entry for entry in database.log("suite-1") if "monitor ended" in entry.message])
            >= 1
        )


def test_what_cannot_be_sent_waits_on_disk_and_is_sent_later_once(
    tmp_path: Path, token_file: Path, trees: list[subprocess.Popen[str]]
) -> None:
    port = free_port()
    buffer = tmp_path / "buffer"
    process = node(f"http://127.0.0.1:{port}", token_file, trees[0].pid, buffer)
    until(lambda: len(list(buffer.glob("*.json"))) >= 4)
    first = time.time() * 1000
    collector = Collector(tmp_path / "state", TOKEN, port=port)
    collector.start()
    try:
        # The end of the monitor is a time to send at once.
        process.send_signal(signal.SIGTERM)
        _, err = process.communicate(timeout=300)
    finally:
        collector.close()
    assert process.returncode == 0 and "kept for later" in err and "ended: a signal" in err
    assert list(buffer.iterdir()) == []
    with open_processes(tmp_path / "state") as database:
        (run,) = database.runs()
        samples = database.samples(run.run)
    assert run.status == "DONE" and run.job == "node" and run.root_pid == trees[0].pid
    assert min(sample.time_ms for sample in samples) < first
    assert len({(sample.time_ms, sample.pid) for sample in samples}) == len(samples)


def test_a_monitor_that_cannot_send_at_its_end_says_what_waits_and_the_next_one_sends_it(
    tmp_path: Path,
    token_file: Path,
    trees: list[subprocess.Popen[str]],
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    buffer = Buffer(tmp_path / "buffer")
    row = WatchedRun("r", 1, "h")
    buffer.add(Batch(row, [ProcessSample("r", 1, "h", 1, 0, 0, "java")]))
    collector = Collector(tmp_path / "state", TOKEN)
    collector.start()
    try:
        process = node(collector.url, token_file, trees[0].pid, buffer.folder, "--ttl", "0.5")
        assert process.communicate(timeout=300) is not None and process.returncode == 0
    finally:
        collector.close()
    assert stored_pids(tmp_path / "state", "r") == {1}


def test_the_monitor_of_a_node_ends_with_the_process_that_it_watches(
    tmp_path: Path, collector: Collector, token_file: Path
) -> None:
    with subprocess.Popen(
        [sys.executable, "-c", "input()"], stdin=subprocess.PIPE, text=True
    ) as root:
        process = node(collector.url, token_file, root.pid, tmp_path / "buffer")
        until(lambda: bool(stored_runs(tmp_path / "state")))
        root.communicate("\n")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 0 and f"process {root.pid} has ended" in err


def stored_runs(folder: Path) -> list[WatchedRun]:
    with open_processes(folder) as database:
        return database.runs()


def test_the_monitor_of_a_run_whose_collector_was_killed_ends_and_keeps_what_it_has(
    tmp_path: Path, trees: list[subprocess.Popen[str]], token_file: Path
) -> None:
    with socket.socket() as free:
        free.bind(("127.0.0.1", 0))
        url = f"http://127.0.0.1:{free.getsockname()[1]}"
        words = ("--run", "suite-1", "--patience", "1")
        process = node(url, token_file, trees[0].pid, tmp_path / "buffer", *words)
        _, err = process.communicate(timeout=300)
    assert process.returncode == 75 and "batches wait there" in err
    assert Buffer(tmp_path / "buffer").files() != []
    assert trees[0].poll() is None


def test_a_wrong_token_ends_the_monitor_with_77(
    tmp_path: Path, collector: Collector, token_file: Path, trees: list[subprocess.Popen[str]]
) -> None:
    token_file.write_text("another-token-0123456789")
    process = node(collector.url, token_file, trees[0].pid, tmp_path / "buffer")
    _, err = process.communicate(timeout=300)
    assert process.returncode == 77 and "refuses the token" in err
    assert stored_runs(tmp_path / "state") == []


def test_requests_without_token_too_large_or_damaged_are_refused_and_nothing_is_stored(
    tmp_path: Path, collector: Collector
) -> None:
    batch = msgspec.json.encode(
        Batch(WatchedRun("r", 1, "h"), [], [LogEntry("r", 1, "info", "x")])
    )
    url = f"{collector.url}/v1/batches"
    assert request(f"{collector.url}/health", token=None) == (200, {"status": "ok"})
    assert request(url, batch, token=None)[0] == 401
    assert request(url, batch, token="wrong")[0] == 401
    assert request(url, b"{")[0] == 400
    assert request(url, batch.replace(b'"h"', b"5"))[0] == 400
    assert request(url, batch.replace(b'"log":[{"run":"r"', b'"log":[{"run":"other"'))[0] == 400
    assert request(f"{collector.url}/v1/other", batch)[0] == 404
    assert request(f"{collector.url}/v1/runs/none")[0] == 404
    with socket.create_connection(("127.0.0.1", int(collector.url.rpartition(":")[2]))) as raw:
        raw.sendall(b"POST /v1/batches HTTP/1.1\r\nHost: x\r\nContent-Length: 99999999999\r\n\r\n")
        assert raw.recv(100).startswith(b"HTTP/1.1 413")
    assert stored_runs(tmp_path / "state") == []
    assert request(url, batch) == (200, {"stored": 0, "status": "RUNNING"})
    assert request(f"{collector.url}/v1/runs/r") == (200, {"status": "RUNNING"})


@pytest.mark.parametrize(
    ("body", "why"),
    [
        (b'{"run":{"run":"r","start_ms":1000000000000000000000000,"host":"h"}}', "64 bits"),
        (
            b'{"run":{"run":"r","start_ms":1,"host":"h"},"log":[{"run":"r","time_ms":-9e30,"type":"","message":""}]}',
            "",
        ),
        (b'{"run":{"run":"../../x","start_ms":1,"host":"h"}}', "id of a run"),
        (b'{"run":{"run":"","start_ms":1,"host":"h"}}', "id of a run"),
        (b'{"run":{"run":"a\\u0000","start_ms":1,"host":"h"}}', "id of a run"),
        (b'{"run":' * 100_000, "no batch"),
        (b"[" * 100_000, "no batch"),
        (b"\xff\xfe", "no batch"),
        (b'{"run":{"run":"r","start_ms":1,"host":"h\xff"}}', "no batch"),
        (b"", "no batch"),
    ],
)
def test_a_batch_that_no_table_takes_is_refused_for_good(
    tmp_path: Path, collector: Collector, body: bytes, why: str
) -> None:
    status, answer = request(f"{collector.url}/v1/batches", body)
    assert status == 400 and why in str(answer), (
        "a node that gets no answer would send it for ever"
    )
    assert stored_runs(tmp_path / "state") == []


@pytest.mark.parametrize("length", ["9000000", "9" * 5000])
def test_a_request_that_is_too_large_is_answered(collector: Collector, length: str) -> None:
    with socket.create_connection(
        ("127.0.0.1", int(collector.url.rpartition(":")[2])), 300
    ) as raw:
        raw.sendall(
            f"POST /v1/batches HTTP/1.1\r\nHost: x\r\nContent-Length: {length}\r\n\r\n".encode()
        )
        raw.sendall(b"x" * 9_000_000)
        assert raw.recv(100).startswith(b"HTTP/1.1 413")


def test_a_batch_that_is_too_large_does_not_hold_up_those_after_it(
    tmp_path: Path, collector: Collector
) -> None:
    said: list[str] = []
    sender = sender_to(collector_server(collector.url, TOKEN), tmp_path / "buffer", said.append)
    sender.buffer.add(
        Batch(WatchedRun("r", 1, "h"), [], [LogEntry("r", 1, "info", "x" * 9_000_000)])
    )
    sender.buffer.add(Batch(WatchedRun("r", 1, "h"), [], [LogEntry("r", 2, "info", "y")]))
    assert sender.send() and sender.buffer.files() == [] and "left out" in said[0]
    sender.client.close()
    assert stored_runs(tmp_path / "state") != []


def test_an_address_of_the_network_needs_tls() -> None:
    check_address("127.0.0.1", False, False)
    check_address("localhost", False, False)
    check_address("0.0.0.0", True, False)
    check_address("10.0.0.1", False, True)
    with pytest.raises(UsageError, match="needs TLS"):
        check_address("0.0.0.0", False, False)


def test_a_short_token_is_refused(tmp_path: Path) -> None:
    with pytest.raises(SettingsError, match="at least 16 characters"):
        Collector(tmp_path, "short")


@pytest.mark.parametrize(
    "url", ["host:1", "ftp://host", "http://u:p@host", "http://host/path", "http://host:x", ""]
)
def test_an_address_that_is_none_is_refused(url: str) -> None:
    with pytest.raises(UsageError, match="--collector is"):
        collector_server(url, TOKEN)


def test_a_full_buffer_loses_its_oldest_batches_and_counts_them(tmp_path: Path) -> None:
    buffer = Buffer(tmp_path / "b", most_bytes=2_000)
    for number in range(50):
        buffer.add(
            Batch(WatchedRun(f"r{number}", 1, "h"), [ProcessSample("r", 1, "h", 1, 0, 0, "java")])
        )
    assert sum(file.stat().st_size for file in buffer.files()) <= 2_000
    assert buffer.dropped == 50 - len(buffer.files())
    assert b'"r49"' in buffer.files()[-1].read_bytes()
    assert Buffer(tmp_path / "b").files() == buffer.files()


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
