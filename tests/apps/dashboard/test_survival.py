"""The dashboard goes on answering: idle and slow clients, endless and huge queries, a
signal, a first build.
"""

from __future__ import annotations

import gc
import re
import shutil
import signal
import socket
import subprocess
import sys
import threading
import urllib.error
import urllib.request
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, contextmanager, suppress
from datetime import timedelta
from pathlib import Path
from types import SimpleNamespace
from urllib.parse import urlencode

import pytest

from cmsspark.apps.dashboard import query_process, segment_build, sockets
from cmsspark.apps.dashboard.app import Services, create_app
from cmsspark.apps.dashboard.query_process import Query, QueryPool
from cmsspark.apps.dashboard.rollup_refresher import RollupRefresher
from cmsspark.apps.dashboard.security import Guard
from cmsspark.base.errors import NotReady, UsageError
from cmsspark.store.query.database import Database
from cmsspark.store.query.stored_parts import StoredInterval
from tests.apps.dashboard import stores
from tests.apps.dashboard.conftest import Running, serving
from tests.apps.dashboard.stores import LAST

ENDLESS = "SELECT sum(range % 7) FROM range(10000000000000000)"
UNSTOPPABLE = "SELECT levenshtein(repeat('a', 10000000), repeat('b', 10000000))"


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A store of one day of the month before and one of the newest month."""
    folder = tmp_path_factory.mktemp("survival") / "store"
    for day in (LAST, LAST.replace(month=1, year=2025)):
        stores.store_day(folder, day, stores.partial_rows(day, count=30))
    return folder


@pytest.fixture(scope="module")
def pool(store: Path) -> Iterator[QueryPool]:
    pool = QueryPool(str(store))
    yield pool
    pool.close()


def get(running: Running, path: str) -> tuple[int, str]:
    try:
        with urllib.request.urlopen(running.base + path, timeout=60) as answer:
            return answer.status, answer.read().decode()
    except urllib.error.HTTPError as error:
        return error.code, error.read().decode()


def connect(running: Running, content: bytes = b"") -> socket.socket:
    client = socket.create_connection(("127.0.0.1", running.server.port), timeout=30)
    with suppress(OSError):  # the server may have closed it to make room
        client.sendall(content)
    return client


def test_more_idle_and_dripping_connections_than_there_is_room_for_do_not_stop_pages(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "_CONNECTIONS", 40)
    with serving(store, tmp_path) as running, ExitStack() as clients:
        for content in (b"", b"GET /health HT"):
            for _ in range(60):
                clients.enter_context(connect(running, content))
        assert get(running, "/health") == (200, "ok\n")


@pytest.mark.parametrize(
    "content", [b"", b"GET /health HTTP/1.1\r\nHost: localhost\r\nX: "], ids=["idle", "dripping"]
)
def test_a_connection_without_a_complete_request_is_closed_after_its_deadline(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, content: bytes
) -> None:
    monkeypatch.setattr(sockets, "HEADER_S", 0.1)
    monkeypatch.setattr(sockets, "IDLE_S", 0.1)
    with serving(store, tmp_path) as running, connect(running, content) as client:
        assert client.recv(1) == b""


def test_a_request_that_is_being_answered_has_no_deadline(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "IDLE_S", 0.1)
    with serving(store, tmp_path) as running:
        # The process that answers it takes longer to start.
        assert ">42<" in get(running, "/sql?" + urlencode({"q": "SELECT 6 * 7"}))[1]


def test_a_query_that_cannot_be_interrupted_is_killed_and_the_next_one_answered(
    pool: QueryPool,
) -> None:
    with pytest.raises(NotReady, match=r"longer than 0\.2 s"):
        pool.run(Query(UNSTOPPABLE, 10, 1_000, 0.2))
    assert pool.run(Query("SELECT 42", 10, 1_000, 60)).rows == [(42,)]


@pytest.mark.parametrize("text", ["repeat('a', 2000000000)", "list(range) FROM range(500000000)"])
def test_a_query_beyond_the_memory_limit_is_refused_and_the_next_one_answered(
    pool: QueryPool, text: str
) -> None:
    with pytest.raises(UsageError, match="needs more memory than it may use"):
        pool.run(Query(f"SELECT {text}", 10, 1_000, 60))
    assert pool.run(Query("SELECT 42", 10, 1_000, 60)).rows == [(42,)]


def test_the_query_of_a_client_that_has_left_makes_room(pool: QueryPool) -> None:
    for _ in range(query_process.AT_ONCE + query_process.WAITING):
        with pytest.raises(NotReady):
            pool.run(Query(ENDLESS, 10, 1_000, 600), is_gone=lambda: True)
    assert pool.run(Query("SELECT 42", 10, 1_000, 60)).rows == [(42,)]


def test_pages_answer_while_more_endless_queries_are_asked_than_run(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    # On a busy machine the answers take longer than a query may.
    monkeypatch.setattr("cmsspark.apps.dashboard.pages.sql.SECONDS", 600.0)
    request = f"GET /sql?{urlencode({'q': ENDLESS})} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with serving(store, tmp_path) as running, ExitStack() as clients:
        for _ in range(20):
            clients.enter_context(connect(running, request))
        assert get(running, "/popularity")[0] == 200
        # One visitor has one turn at a time, so another one has the other turn.
        status, text = get(running, "/sql?" + urlencode({"q": "SELECT 6 * 7"}))
        assert status == 200 and ">42<" in text
        with connect(running, request.replace(b"sql?", b"sql?download=query&")) as client:
            answer = client.recv(1_000)
        assert b"503" in answer.split(b"\r\n")[0] and b"Retry-After" in answer


def test_a_page_of_a_query_that_has_no_turn_is_busy_and_keeps_the_query(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(query_process, "WAITING", 0)
    with serving(store, tmp_path) as running:
        status, text = get(running, "/sql?" + urlencode({"q": "SELECT 6 * 7"}))
    assert status == 503 and "other queries are running" in text and "SELECT 6 * 7" in text


def test_queries_take_turns_in_their_order_one_of_each_visitor() -> None:
    turns = query_process._Turns()
    order: list[str] = []

    def ask(visitor: str) -> None:
        with turns.take(visitor, lambda: False):
            order.append(visitor)

    with turns.take("a", lambda: False), turns.take("b", lambda: False):
        threads = [threading.Thread(target=ask, args=(name,)) for name in "acb"]
        for number, thread in enumerate(threads):
            thread.start()
            while len(turns._waiting) <= number:
                threading.Event().wait(0.001)
        with pytest.raises(query_process.Busy, match="your other queries"):
            turns.take("a", lambda: False).__enter__()
        assert order == []
    for thread in threads:
        thread.join(timeout=60)
    assert sorted(order) == ["a", "b", "c"] and not turns._running and not turns._waiting


def test_health_is_answered_while_all_threads_are_busy_and_without_a_name(
    store: Path, tmp_path: Path
) -> None:
    request = f"GET /sql?{urlencode({'q': ENDLESS})} HTTP/1.1\r\nHost: localhost\r\n\r\n".encode()
    with serving(store, tmp_path, threads=1) as running, connect(running, request):
        while not running.server.wsgi.active_channels:
            threading.Event().wait(0.01)
        for text in (b"GET /health HTTP/1.1\r\n\r\n", b"GET /health HTTP/1.0\r\n\r\n"):
            with connect(running, text) as client:
                answer = client.recv(2_000)
                while answer and not answer.endswith(b"ok\n"):
                    answer += client.recv(2_000)
            assert answer.split(b"\r\n")[0].endswith(b"200 OK")


def test_each_visitor_has_one_request_before_another_has_two() -> None:
    dispatcher = sockets.FairDispatcher()
    requests = [SimpleNamespace(visitor=name) for name in "aaaba"]
    for request in requests:
        dispatcher.add_task(request)  # type: ignore[arg-type]
    assert [request.visitor for request in dispatcher.queue] == list("abaaa")
    for name in "aaaba":
        dispatcher.finish(name)
    assert not dispatcher._pending


def test_a_visitor_who_does_not_read_has_few_downloads_and_others_have_theirs(
    store: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(sockets, "DOWNLOADS", 2)
    query = urlencode(
        {"q": "SELECT repeat('x', 1000) FROM range(30000)", "download": "query", "format": "csv"}
    )

    def slow(agent: str) -> bytes:
        lines = (f"GET /sql?{query} HTTP/1.1", "Host: localhost", f"User-Agent: {agent}", "", "")
        return "\r\n".join(lines).encode()

    with serving(store, tmp_path) as running, ExitStack() as clients:
        for _ in range(2):
            client = clients.enter_context(connect(running, slow("one")))
            assert b"200 OK" in client.recv(100)
        with connect(running, slow("one")) as client:
            answer = client.recv(4_000)
        assert b"503" in answer.split(b"\r\n")[0]
        with connect(running, slow("two")) as client:
            assert b"200 OK" in client.recv(100)
        assert get(running, "/popularity")[0] == 200
        monkeypatch.setattr(sockets, "WAITING_BYTES", 1_000_000)
        with connect(running, slow("three")) as client:
            assert b"503" in client.recv(100)


def test_two_servers_on_one_cache_remove_nothing_that_the_other_uses(
    store: Path, tmp_path: Path
) -> None:
    shutil.copytree(store, tmp_path / "store")
    with Database(str(tmp_path / "store")) as database:
        servers = [RollupRefresher(database, tmp_path / "cache") for _ in range(2)]
        for server in servers:
            server.refresh()
        used = [segment.path for segment in servers[0].snapshot().segments]
        stores.store_day(tmp_path / "store", LAST, stores.partial_rows(LAST, seed=7, count=10))
        servers[1].refresh()
        assert all(path.is_file() for path in used)
        servers[0].refresh()
        servers[0].stop()
        servers[1].stop()
        del server, servers
        gc.collect()
        later = RollupRefresher(database, tmp_path / "cache")
        later.refresh()
        paths = [segment.path for segment in later.snapshot().segments]
        assert sorted(later._rollups.folder.glob("*.duckdb")) == sorted(paths)
        later.stop()


def test_a_process_is_ready_for_the_query_of_another_visitor(store: Path) -> None:
    pool = QueryPool(str(store))
    pool.run(Query("SELECT 1", 1, 1_000, 60), visitor="one")
    assert [process.is_alive for process in pool._idle] == [True] * query_process.AT_ONCE
    # Also after both have ended for want of queries.
    for process in pool._idle:
        process.receive()
        process.pipe.close()
        assert process.exit_code == 0
    pool._prepare()
    assert [process.is_alive for process in pool._idle] == [True]
    pool.close()


def test_the_process_of_queries_ends_after_a_time_and_starts_again(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pool = QueryPool(str(store))
    assert pool.run(Query("SELECT 1", 1, 1_000, 60)).rows == [(1,)]
    process = pool._idle[-1]
    process.receive()  # it is ready
    process.pipe.close()
    assert process.exit_code == 0
    # The pipe of a process that has ended: another one answers.
    monkeypatch.setattr(query_process, "_ask", _fails_once(query_process._ask))
    assert pool.run(Query("SELECT 2", 1, 1_000, 60)).rows == [(2,)]
    pool.close()


def _fails_once(run: object) -> object:
    calls: list[None] = []

    def wrapped(*values: object) -> object:
        calls.append(None)
        if len(calls) == 1:
            raise query_process._IdleEnded
        return run(*values)  # type: ignore[operator]

    return wrapped


@contextmanager
def command(store: Path, folder: Path) -> Iterator[subprocess.Popen[str]]:
    """Run ``cmsspark dashboard`` over a store; killed at the end of the block."""
    settings = folder / "cmsspark.yaml"
    settings.write_text(
        f"cache_dir: {folder}/cache\nstate_dir: {folder}/state\n", encoding="utf-8"
    )
    words = ["dashboard", "--port", "0", "--fout", str(store), "--settings", str(settings)]
    call = [sys.executable, "-c", "from cmsspark.main import main; main()", *words]
    with subprocess.Popen(call, stderr=subprocess.PIPE, text=True) as process:
        try:
            yield process
        finally:
            process.kill()


def line_of(process: subprocess.Popen[str], beginning: str) -> str:
    """Return the next line of a command that begins so."""
    assert process.stderr is not None
    return next(line for line in process.stderr if line.startswith(beginning))


def end(process: subprocess.Popen[str]) -> None:
    """End a command. The promise is three seconds; a machine with several tests for
    each processor takes longer.
    """
    process.send_signal(signal.SIGTERM)
    assert process.wait(timeout=20) == 0
    assert process.stderr is not None and "ended" in process.stderr.read()


@pytest.mark.parametrize("query", [ENDLESS, UNSTOPPABLE], ids=["endless", "unstoppable"])
def test_sigterm_ends_the_command_while_twenty_queries_run(
    store: Path, tmp_path: Path, query: str
) -> None:
    request = (
        f"GET /sql?{urlencode({'q': query})} HTTP/1.1\r\nHost: localhost\r\n"
        "User-Agent: loop\r\n\r\n"
    ).encode()
    with command(store, tmp_path) as process, ExitStack() as clients:
        port = int(re.findall(r":(\d+)/", line_of(process, "dashboard of"))[0])
        for _ in range(20):
            clients.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(request)
        # More wait than run: the first answer says that the others run.
        with pytest.raises(urllib.error.HTTPError):
            address = (
                f"http://127.0.0.1:{port}/sql?{urlencode({'q': query, 'download': 'result'})}"
            )
            urllib.request.urlopen(urllib.request.Request(address, headers={"User-Agent": "loop"}))
        end(process)


def test_sigterm_ends_the_command_as_soon_as_rollups_are_begun(
    store: Path, tmp_path: Path
) -> None:
    with command(store, tmp_path) as process:
        line_of(process, "rollups of")
        end(process)


def test_a_new_day_is_on_the_pages_of_a_running_server(store: Path, tmp_path: Path) -> None:
    shutil.copytree(store, tmp_path / "store")
    with serving(tmp_path / "store", tmp_path) as running:
        day = LAST + timedelta(days=1)
        stores.store_day(tmp_path / "store", day, stores.partial_rows(day, count=10))
        while day not in running.snapshot.days:
            assert not running.server.services.refresher._is_over.wait(0.1)
        assert f"to {day}" in get(running, "/popularity")[1]


class Builder:
    """Builds segments and notes, before each, what a page says then."""

    def __init__(self) -> None:
        self.refresher: RollupRefresher | None = None
        self.days: list[list[str]] = []
        self.said: list[str] = []

    def __call__(self, days: Sequence[StoredInterval], folder: Path, name: str) -> Path:
        assert self.refresher is not None
        self.days.append([str(one.interval) for one in days])
        self.said.append(self.refresher.freshness.progress)
        return segment_build.build(days, folder, name)

    def close(self) -> None:
        pass


def test_finished_days_are_shown_while_older_ones_are_built_and_pages_say_how_far_it_is(
    store: Path, tmp_path: Path
) -> None:
    builder = Builder()
    with Database(str(store)) as database:
        refresher = RollupRefresher(database, tmp_path / "cache", builder=builder)  # type: ignore[arg-type]
        builder.refresher = refresher
        pages = create_app(
            Services(refresher, database, tmp_path / "state", Guard())
        ).test_client()
        texts = []
        build = refresher._rollups._build

        def stop_at_the_second(*values: object) -> Path:
            if len(builder.days) == 1:
                answer = pages.get("/popularity?from=2025-01-15&to=2026-01-15")
                texts.append((answer.status_code, answer.text))
            return build(*values)  # type: ignore[arg-type]

        refresher._rollups._build = stop_at_the_second
        before = pages.get("/popularity")
        refresher.refresh()
        after = pages.get("/popularity?from=2025-01-15&to=2026-01-15").text
    assert before.status_code == 503
    assert builder.days == [["2026-01-15"], ["2025-01-15"]]
    assert builder.said[0].startswith("0 of 2 days") and builder.said[1].startswith("1 of 2 days")
    ((status, text),) = texts
    assert (
        status == 200
        and "1 of 2 days are summed up" in text
        and "left" in text
        and 'data-refresh="' in text
    )
    assert "1 of 366 days is not in these numbers yet: 2025-01-15" in text
    assert "summed up" not in after and "not in these numbers" not in after
