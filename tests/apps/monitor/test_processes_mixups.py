"""Collectors and monitors that meet odd clients: tokens, types, slow senders, other
clocks, names that occur twice.
"""

from __future__ import annotations

import socket
import subprocess
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path

import msgspec
import pytest
from click.testing import CliRunner

from cmsspark.apps.monitor.processes.collector import (
    Batch,
    Collector,
    SenderHeaders,
    SenderNotes,
    check_node_name,
    check_token,
    with_one_clock,
)
from cmsspark.apps.monitor.processes.node import NodeMonitor, collector_server, sender_to
from cmsspark.apps.monitor.suites.results import load_result
from cmsspark.base import dates
from cmsspark.base.errors import SettingsError, UsageError
from cmsspark.main import command
from cmsspark.store.process_samples import LogEntry, ProcessSample, WatchedRun, open_processes
from tests.apps.monitor.test_processes_node import TOKEN, request
from tests.ports import free_port

BATCH = msgspec.json.encode(Batch(WatchedRun("r", 1, "h"), [], [LogEntry("r", 1, "info", "x")]))


@pytest.fixture
def collector(tmp_path: Path) -> Iterator[Collector]:
    running = Collector(tmp_path / "state", TOKEN)
    running.start()
    yield running
    running.close()


def connected(collector: Collector) -> socket.socket:
    return socket.create_connection(("127.0.0.1", int(collector.url.rpartition(":")[2])), 300)


def post(collector: Collector, *headers: str, body: bytes = BATCH) -> bytes:
    """The first line of the answer to a request with exactly these headers."""
    with connected(collector) as raw:
        lines = [
            "POST /v1/batches HTTP/1.1",
            "Host: x",
            f"Content-Length: {len(body)}",
            *headers,
            "",
            "",
        ]
        raw.sendall("\r\n".join(lines).encode("latin-1") + body)
        return raw.recv(1000).partition(b"\r\n")[0]


JSON = "Content-Type: application/json"


@pytest.mark.parametrize(
    "value",
    [
        "",
        "Bearer",
        "Bearer ",
        f"Basic {TOKEN}",
        TOKEN,
        f"Bearer{TOKEN}",
        f"Bearer {TOKEN}x",
        f"Bearer {TOKEN[:-1]}",
        f"Bearer {TOKEN} {TOKEN}",
        "Bearer \xe9\xff\x80",
        f"Bearer {TOKEN.upper()}",
        "Bearer " + "x" * 60_000,
    ],
)
def test_a_malformed_token_is_401(collector: Collector, value: str) -> None:
    assert post(collector, JSON, f"Authorization: {value}").startswith(b"HTTP/1.1 401")


@pytest.mark.parametrize("scheme", ["Bearer", "bearer", "BEARER"])
def test_the_scheme_of_a_token_has_any_case(collector: Collector, scheme: str) -> None:
    assert post(collector, JSON, f"Authorization: {scheme} {TOKEN}").startswith(b"HTTP/1.1 200")


@pytest.mark.parametrize(
    "token",
    ["short", "x" * 15, "é" * 20, "with blanks in it 123", "tab\tin-a-token-of-24", "€" * 20],
)
def test_a_token_that_no_header_carries_is_refused_on_both_sides(
    tmp_path: Path, token: str
) -> None:
    for refuses in (
        lambda: Collector(tmp_path, token),
        lambda: collector_server("http://h:1", token),
    ):
        with pytest.raises(SettingsError, match="a token has") as caught:
            refuses()
        assert token not in str(caught.value)
    check_token(TOKEN)


@pytest.mark.parametrize(
    ("kind", "status"),
    [
        ("application/json", 200),
        ("application/json; charset=utf-8", 200),
        ("Application/JSON", 200),
        ("text/plain", 415),
        ("application/x-www-form-urlencoded", 415),
        ("multipart/form-data; boundary=x", 415),
        ("", 415),
        ("\xff", 415),
    ],
)
def test_a_batch_is_json_by_its_type(collector: Collector, kind: str, status: int) -> None:
    answer = post(collector, f"Content-Type: {kind}", f"Authorization: Bearer {TOKEN}")
    assert answer.startswith(f"HTTP/1.1 {status}".encode())


def test_a_body_in_pieces_beside_a_length_is_refused(collector: Collector) -> None:
    answer = post(collector, JSON, f"Authorization: Bearer {TOKEN}", "Transfer-Encoding: chunked")
    assert answer.startswith(b"HTTP/1.1 411")


def test_a_large_batch_with_a_wrong_token_is_answered_before_the_connection_ends(
    collector: Collector,
) -> None:
    body = b"x" * 7_900_000
    for _ in range(3):
        assert post(collector, JSON, "Authorization: Bearer wrong", body=body).startswith(
            b"HTTP/1.1 401"
        )


def test_silent_clients_hold_up_nobody(collector: Collector) -> None:
    silent = [connected(collector) for _ in range(20)]
    try:
        for number, raw in enumerate(silent):
            raw.sendall(b"POST /v1/batches HTTP/1.1\r\nHost: x\r\n"[: 2 * number])
        assert post(collector, JSON, f"Authorization: Bearer {TOKEN}").startswith(b"HTTP/1.1 200")
    finally:
        for raw in silent:
            raw.close()


def test_a_body_that_trickles_is_ended(collector: Collector) -> None:
    collector.body_seconds = 0.2
    with connected(collector) as raw:
        head = (
            f"POST /v1/batches HTTP/1.1\r\nHost: x\r\n{JSON}\r\nAuthorization: Bearer {TOKEN}\r\n"
        )
        raw.sendall(f"{head}Content-Length: 1000000\r\n\r\n".encode())
        raw.settimeout(0.05)
        answer = b""
        for _ in range(2000):  # it never stops by itself
            try:
                with suppress(ConnectionError):
                    raw.sendall(b"x")
                answer = raw.recv(1000)
                break
            except TimeoutError:
                continue
        assert answer.startswith(b"HTTP/1.1 408")


def test_a_client_that_goes_away_in_its_body_stores_nothing(
    tmp_path: Path, collector: Collector
) -> None:
    with connected(collector) as raw:
        head = (
            f"POST /v1/batches HTTP/1.1\r\nHost: x\r\n{JSON}\r\nAuthorization: Bearer {TOKEN}\r\n"
        )
        raw.sendall(f"{head}Content-Length: {len(BATCH) + 5}\r\n\r\n".encode() + BATCH)
        raw.shutdown(socket.SHUT_WR)
        assert raw.recv(1000).startswith(b"HTTP/1.1 408")
    with open_processes(tmp_path / "state") as database:
        assert database.runs() == []


def sample(time_ms: int, host: str, rss: int, pid: int = 1) -> ProcessSample:
    return ProcessSample("r", time_ms, host, pid, 0, 0, "java", rss_bytes=rss)


def test_a_collector_that_starts_again_with_its_database_stores_each_sample_once(
    tmp_path: Path,
) -> None:
    body = msgspec.json.encode(
        Batch(WatchedRun("r", 1, "h"), [sample(1, "h", 5), sample(2, "h", 6)])
    )
    port = free_port()
    for _ in range(2):
        running = Collector(tmp_path / "state", TOKEN, port=port)
        running.start()
        try:
            assert request(f"{running.url}/v1/batches", body) == (
                200,
                {"stored": 2, "status": "RUNNING"},
            )
            assert request(f"{running.url}/v1/batches", body)[0] == 200
        finally:
            running.close()
    with open_processes(tmp_path / "state") as database:
        assert [(one.time_ms, one.rss_bytes) for one in database.samples("r")] == [(1, 5), (2, 6)]
        assert [run.run for run in database.runs()] == ["r"]


def test_a_sender_goes_on_when_the_collector_was_started_again(tmp_path: Path) -> None:
    said: list[str] = []
    port = free_port()
    first = Collector(tmp_path / "state", TOKEN, port=port)
    first.start()
    sender = sender_to(collector_server(first.url, TOKEN), tmp_path / "buffer", said.append)
    sender.buffer.add(Batch(WatchedRun("r", 1, "h"), [sample(1, "h", 5)]))
    assert sender.send()
    first.close()
    sender.buffer.add(Batch(WatchedRun("r", 1, "h"), [sample(2, "h", 6)]))
    sender.client.close()
    assert not sender.send(at_once=True) and len(sender.buffer.files()) == 1
    second = Collector(tmp_path / "state", TOKEN, port=port)
    second.start()
    try:
        assert sender.send(at_once=True) and sender.buffer.files() == []
        assert "answers again" in said[-1]
    finally:
        sender.client.close()
        second.close()
    with open_processes(tmp_path / "state") as database:
        assert [one.time_ms for one in database.samples("r")] == [1, 2]


def test_another_clock_is_noted_once_and_again_when_it_is_set_right() -> None:
    notes = SenderNotes()

    def sent(skew: int, host: str = "h", received: int = 1_000_000) -> list[str]:
        return [
            one.message
            for one in notes.entries("r", host, SenderHeaders(received, str(received - skew), "a"))
        ]

    assert sent(0) == [] and sent(4_000) == [] and sent(-5_000) == [], "the network takes a moment"
    (text,) = sent(120_000)
    assert text.startswith("+120000 ms to add to the times of h")
    assert sent(120_500) == [] and sent(118_000) == []
    assert sent(-3_600_000, "g")[0].startswith("-3600000 ms")
    assert sent(100)[0].startswith("+0 ms")
    for header in (None, "", "x", "-5", "1" * 40, "１２"):
        assert notes.entries("r", "h", SenderHeaders(1, header, None)) == []


def test_samples_of_a_node_with_another_clock_count_in_the_step_in_which_they_were_taken(
    tmp_path: Path, collector: Collector
) -> None:
    now = dates.now_ms()
    marks = [
        LogEntry("r", now - 2000, "mark", "begin a"),
        LogEntry("r", now + 60_000, "mark", "end a exit 0"),
    ]
    with open_processes(tmp_path / "state") as database:
        database.put_run(WatchedRun("r", now, "here", suite="s"))
        database.add([sample(now, "here", 1)], marks)
    late = now - 600_000
    body = msgspec.json.encode(Batch(WatchedRun("r", 1, "node1"), [sample(late, "node1", 777)]))
    headers = {
        "Content-Type": "application/json",
        "Cmsspark-Sent-Ms": str(dates.now_ms() - 600_000),
    }
    assert request(f"{collector.url}/v1/batches", body, **headers)[0] == 200
    with open_processes(tmp_path / "state") as database:
        found = load_result(database, database.runs()[0])
        assert [entry.type for entry in database.log("r")].count("clock") == 1
        assert [one.time_ms for one in database.samples("r")] == [late, now], (
            "what was sent is stored as it is"
        )
        shifted = with_one_clock(database.samples("r"), database.log("r"))
    assert found.maxima["a", "all"].rss_bytes == 777
    assert abs(shifted[-1].time_ms - now) < 60_000 and {
        one.time_ms for one in shifted if one.host == "here"
    } == {now}


def test_two_machines_under_one_name_are_noted_and_one_that_starts_again_is_not() -> None:
    notes = SenderNotes()

    def entries(boot: str, host: str = "h") -> list[LogEntry]:
        return notes.entries("r", host, SenderHeaders(5, None, boot))

    assert entries("aaaa") == [] and entries("aaaa") == [] and entries("bbbb", "g") == []
    (entry,) = entries("bbbb")
    assert (
        entry.type == "error"
        and "2 machines send as h: start their monitors with --name" in entry.message
    )
    assert entries("aaaa") == [] and entries("bbbb") == []
    assert entries("") == [] and entries("no id\n") == []


def test_a_monitor_sends_under_its_name(tmp_path: Path, collector: Collector) -> None:
    sender = sender_to(
        collector_server(collector.url, TOKEN), tmp_path / "buffer", lambda text: None
    )
    with subprocess.Popen(["sleep", "600"]) as process:
        try:
            NodeMonitor(process.pid, sender, None, 0.3, 0.1, name="rack1-node2").watch()
        finally:
            process.kill()
    sender.client.close()
    with open_processes(tmp_path / "state") as database:
        (run,) = database.runs()
        assert {one.host for one in database.samples(run.run)} == {"rack1-node2"} == {run.host}
        # A request that takes long on a busy machine looks like another clock.
        assert {entry.type for entry in database.log(run.run)} <= {"info", "clock"}, "one machine"
        assert [entry.message for entry in database.log(run.run) if entry.type == "info"] != []
    for name in ("", "a b", "a/b", "x" * 101, "nöde"):
        with pytest.raises(UsageError, match="--name"):
            check_node_name(name)


def test_times_are_as_they_are_where_no_clock_differs() -> None:
    rows = [sample(5, "h", 1), sample(6, "g", 1)]
    assert (
        with_one_clock(
            rows,
            [LogEntry("r", 1, "clock", "nonsense", "h"), LogEntry("r", 1, "info", "+5 ms x", "h")],
        )
        == rows
    )


@pytest.mark.parametrize("words", [("--ttl", "nan"), ("--interval", "inf"), ("--patience", "nan")])
def test_seconds_are_finite(tmp_path: Path, words: tuple[str, str]) -> None:
    file = tmp_path / "token"
    file.touch(mode=0o600)
    file.write_text(TOKEN)
    node = [
        "monitor",
        "node",
        "--collector",
        "http://127.0.0.1:1",
        "--token-file",
        str(file),
        "--pid",
        "1",
    ]
    for command_line in ([*node, *words], ["monitor", "watch", "1", "--interval", "nan"]):
        done = CliRunner().invoke(command, command_line, standalone_mode=False)
        assert getattr(done.exception, "exit_code", None) == 2 and "is not a number" in str(
            done.exception
        )
