"""A watch beside a run: what it stores of real processes, and that it ends and leaves
nothing behind.
"""

from __future__ import annotations

import os
import signal
import sqlite3
import stat
import subprocess
import sys
import time
from collections.abc import Callable
from contextlib import closing, suppress
from pathlib import Path

import msgspec
import psutil
import pytest

from cmsspark.apps.monitor.processes import watch as processes_watch
from cmsspark.apps.monitor.processes.sampler import TreeSampler
from cmsspark.apps.monitor.processes.watch import WatchOptions, next_interval
from cmsspark.store.process_samples import FILE, ProcessDatabase, ProcessSample, open_processes
from cmsspark.store.run_history import make_private

#: A Python driver that grows by 60 MB while nothing else runs, and a worker of it that
#: stays as it is.
GROWS = """
import subprocess, sys, time
worker = subprocess.Popen([sys.executable, "-c", "import time; time.sleep(600)"])
sys.stdin.readline()
kept = [bytearray(b"x") * 10_000_000 for _ in range(6)]
print("grown", flush=True)
sys.stdin.read()
worker.kill()
"""

#: The driver while it is small, and its proportional memory, which is measured in the
#: third sample.
SMALL = "SELECT 1 FROM ProcessMonitor WHERE role = 'python_driver' AND pss_bytes > 0"


def until(holds: Callable[[], bool], seconds: float = 300) -> None:
    end = time.monotonic() + seconds
    while not holds():
        assert time.monotonic() < end, "it did not happen in time"
        time.sleep(0.05)


def lives(process: psutil.Process) -> bool:
    """Whether a process is there and no zombie; it may end between the two questions."""
    try:
        return process.is_running() and process.status() != psutil.STATUS_ZOMBIE
    except psutil.NoSuchProcess:
        return False


def started(
    tmp_path: Path, script: str = GROWS, *words: str
) -> tuple[subprocess.Popen[str], processes_watch.Watch]:
    root = subprocess.Popen(
        [sys.executable, "-c", script, *words],
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    )
    watch = processes_watch.start(root.pid, WatchOptions(tmp_path, "grows", interval=0.1))
    assert watch is not None
    return root, watch


def grow(root: subprocess.Popen[str]) -> None:
    """Have the driver grow, and wait until it has."""
    assert root.stdin is not None and root.stdout is not None
    root.stdin.write("\n")
    root.stdin.flush()
    assert root.stdout.readline() == "grown\n"


def rows(folder: Path, query: str) -> list[tuple[object, ...]]:
    """Rows of the database; none while its tables are being made."""
    with (
        closing(sqlite3.connect(f"file:{folder / FILE}?mode=ro", uri=True)) as db,
        suppress(sqlite3.OperationalError),
    ):
        return db.execute(query).fetchall()
    return []


def test_a_python_driver_that_grows_is_visible_in_the_table_of_processes(tmp_path: Path) -> None:
    root, watch = started(tmp_path)
    until(lambda: (tmp_path / FILE).exists() and rows(tmp_path, SMALL) != [])
    grow(root)
    grown = "SELECT 1 FROM ProcessMonitor WHERE rss_bytes > 68000000"
    until(lambda: (tmp_path / FILE).exists() and rows(tmp_path, grown) != [])
    # Of a process that ends while it is sampled some figures are missing: samples until
    # here have all.
    ((last_ms,),) = rows(tmp_path, "SELECT max(time_ms) FROM ProcessMonitor")
    root.communicate("", timeout=300)
    watch.end(root.returncode)
    until(lambda: not psutil.pid_exists(watch.pid))
    (run,) = rows(
        tmp_path, "SELECT run, status, exit_code, root_pid, job FROM Runs WHERE end_ms > start_ms"
    )
    assert run == (watch.run, "DONE", 0, root.pid, "grows")
    first, last = rows(
        tmp_path,
        "SELECT min(rss_bytes), max(rss_bytes) FROM ProcessMonitor WHERE role = 'python_driver' "
        "UNION ALL SELECT min(rss_bytes), max(rss_bytes) FROM ProcessMonitor WHERE role = 'python_worker'",
    )
    assert first[1] - first[0] >= 50_000_000  # type: ignore[operator]
    assert last[1] - last[0] < 30_000_000  # type: ignore[operator]
    figures = "count(*), count(pss_bytes), count(fds), count(cpu_seconds), count(cpu_percent)"
    (measured,) = rows(
        tmp_path, f"SELECT {figures} FROM ProcessMonitor WHERE time_ms <= {last_ms}"
    )
    assert 0 < measured[1] < measured[0] == measured[2] == measured[3]  # type: ignore[operator]
    # A process that began in the moment of its first sample has no share of it yet.
    assert measured[4] >= measured[0] - 2  # type: ignore[operator]
    assert stat.S_IMODE((tmp_path / FILE).stat().st_mode) == 0o600


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_monitor_of_a_killed_run_ends_and_leaves_no_process(
    tmp_path: Path, number: int
) -> None:
    root, watch = started(tmp_path)
    grow(root)
    until(
        lambda: (tmp_path / FILE).exists() and rows(tmp_path, "SELECT 1 FROM ProcessMonitor") != []
    )
    worker = psutil.Process(root.pid).children()[0]
    root.send_signal(number)
    root.wait(300)
    until(lambda: not psutil.pid_exists(watch.pid))
    worker.kill()
    root.communicate(timeout=300)
    # Nobody told an exit code: the process that waits for the run was killed, too.
    os.close(watch.channel)
    assert rows(tmp_path, "SELECT status, exit_code FROM Runs") == [("ENDED", None)]


def test_a_run_that_ends_in_a_moment_is_not_watched_and_nothing_is_written(tmp_path: Path) -> None:
    root, watch = started(tmp_path, "pass")
    root.communicate(timeout=300)
    watch.end(0)
    until(lambda: not psutil.pid_exists(watch.pid))
    assert not (tmp_path / FILE).exists() or rows(tmp_path, "SELECT count(*) FROM Runs")[0][0] <= 1


def test_ctrl_c_while_the_monitor_is_forked_prints_no_trace_and_the_monitor_stays(
    tmp_path: Path,
) -> None:
    code = f"""
import os, signal, time
from pathlib import Path
from cmsspark.apps.monitor.processes import watch
os.register_at_fork(after_in_child=lambda: os.kill(os.getpid(), signal.SIGINT))
started = watch.start(os.getpid(), watch.WatchOptions(Path({str(tmp_path)!r}), "job"))
while Path(f"/proc/{{started.pid}}/comm").read_text() != "cmsspark-watch\\n":
    time.sleep(0.01)
print("watched")
"""
    done = subprocess.run(
        [sys.executable, "-c", code], capture_output=True, text=True, timeout=60, check=False
    )
    assert (done.returncode, done.stdout, done.stderr) == (0, "watched\n", "")


def test_a_watch_that_cannot_write_does_not_concern_the_run(tmp_path: Path) -> None:
    file = tmp_path / "no-folder"
    file.write_text("")
    root, watch = started(file, "import time; time.sleep(0.5)")
    root.communicate(timeout=300)
    watch.end(root.returncode)
    assert root.returncode == 0
    until(lambda: not psutil.pid_exists(watch.pid))


def test_command_lines_are_stored_once_and_without_secrets(tmp_path: Path) -> None:
    root, watch = started(tmp_path, "input()", "--password", "hunter2")
    query = "SELECT long_command FROM ProcessMonitor"
    until(lambda: (tmp_path / FILE).exists() and len(rows(tmp_path, query)) > 2)
    root.communicate("\n", timeout=300)
    watch.end(0)
    until(lambda: not psutil.pid_exists(watch.pid))
    lines = rows(tmp_path, query)
    assert [line for (line,) in lines if line] == [f"{sys.executable} -c input() --password ***"]
    assert b"hunter2" not in (tmp_path / FILE).read_bytes()


def test_a_process_with_any_bytes_in_its_name_is_stored_as_text(tmp_path: Path) -> None:
    names = [b"a b) R (c\nd\xff", "été=\u2028\x1b[1m".encode(), b"--password=\xc3secret-hunter2"]
    processes = [subprocess.Popen([name, "600"], executable="/bin/sleep") for name in names]
    try:
        pids = [process.pid for process in processes]
        samples = TreeSampler("x", pids).sample()
        with open_processes(tmp_path) as database:
            database.add(samples)
            stored = {sample.pid: sample for sample in database.samples("x")}
        assert (
            msgspec.json.decode(msgspec.json.encode(samples), type=list[ProcessSample]) == samples
        )
        texts = [f"{stored[pid].short_command} {stored[pid].long_command}" for pid in pids]
        assert "d\\xff 600" in texts[0] and "été=" in texts[1] and "hunter2" not in texts[2]
    finally:
        for process in processes:
            process.kill()
            process.wait()


def test_a_worker_stays_in_the_tree_when_its_parent_ends() -> None:
    start = "import subprocess, sys; p = subprocess.Popen([sys.executable, '-c', {!r}], stdin=0); {}input()"
    script = start.format("input()", "print(p.pid); ")
    child = start.format(script, "")
    with subprocess.Popen(
        [sys.executable, "-c", child], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    ) as root:
        assert root.stdout is not None
        grandchild = int(root.stdout.readline())
        sampler = TreeSampler("x", [root.pid])
        assert {sample.pid for sample in sampler.sample()} >= {root.pid, grandchild}
        parent = psutil.Process(grandchild).ppid()
        psutil.Process(parent).kill()
        # On some systems it is not the first process that adopts it.
        until(
            lambda: (
                grandchild in {sample.pid for sample in sampler.sample()}
                and psutil.Process(grandchild).ppid() not in (parent, root.pid)
            )
        )
        assert sampler.sample()[-1].pid == grandchild
        psutil.Process(grandchild).kill()
        root.kill()


def test_samples_come_each_second_and_cost_one_percent_at_most() -> None:
    assert next_interval(0.001) == 1
    assert next_interval(0.05) == pytest.approx(5)
    assert next_interval(0.05, fixed=2) == 2
    # A run that gets little of the CPU is sampled less, one that waits still each five seconds.
    assert next_interval(0.005, used=2.0) == 1
    assert next_interval(0.005, used=0.5) == pytest.approx(2)
    assert next_interval(0.005, used=0.0) == 5


def test_a_child_is_seen_in_the_next_sample_also_between_looks_at_all_processes() -> None:
    script = "import subprocess, sys; sys.stdin.readline(); subprocess.run(['sleep', '600'])"
    root = subprocess.Popen([sys.executable, "-c", script], stdin=subprocess.PIPE, text=True)
    assert root.stdin is not None
    sampler = TreeSampler("x", [root.pid])
    assert len(sampler.sample()) == 1
    root.stdin.write("\n")
    root.stdin.flush()
    until(lambda: len(psutil.Process(root.pid).children()) == 1)
    child = psutil.Process(root.pid).children()[0]
    assert sampler.ticks % 3 != 0
    assert {sample.pid for sample in sampler.sample()} == {root.pid, child.pid}
    child.kill()
    root.communicate(timeout=300)


def test_pages_are_walked_again_when_memory_has_changed_and_not_before() -> None:
    script = "import sys; print('up', flush=True); sys.stdin.readline(); kept = bytearray(b'x') * 30_000_000; "
    script += "print('grown', flush=True); input()"
    root = subprocess.Popen(
        [sys.executable, "-c", script], stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True
    )
    assert root.stdout is not None and root.stdout.readline() == "up\n"
    sampler = TreeSampler("x", [root.pid])
    measured = [sampler.sample()[0].pss_bytes is not None for _ in range(36)]
    assert [number for number, is_measured in enumerate(measured) if is_measured] == [2, 32], (
        "the latest is the 30th"
    )
    grow(root)
    after = [sampler.sample()[0] for _ in range(3)]
    assert [sample.pss_bytes is not None for sample in after] == [False, False, True]
    assert (after[2].pss_bytes or 0) > 30_000_000
    root.communicate("\n", timeout=300)


def test_a_script_that_becomes_a_program_late_has_the_role_of_the_program() -> None:
    program = f"exec -a java {sys.executable} -c 'import time; time.sleep(600)' org.apache.spark.deploy.SparkSubmit"
    root = subprocess.Popen(
        ["bash", "-c", f"read line; {program}"], stdin=subprocess.PIPE, text=True
    )
    assert root.stdin is not None
    sampler = TreeSampler("x", [root.pid])
    assert [sampler.sample()[0].role for _ in range(5)] == ["other"] * 5
    root.stdin.write("\n")
    root.stdin.flush()
    until(lambda: "other" not in {sample.role for sample in sampler.sample()})
    sample = sampler.sample()[0]
    assert (sample.pid, sample.role) == (
        root.pid,
        "java_driver",
    ) and sample.short_command.startswith("java")
    root.kill()
    root.communicate(timeout=300)


def test_a_jvm_that_starts_a_program_counts_once() -> None:
    script = "import os, sys, time; os.fork(); sys.stdout.write('x'); sys.stdout.flush(); time.sleep(600)"
    root = subprocess.Popen(
        ["java", "-c", script], executable=sys.executable, stdout=subprocess.PIPE, text=True
    )
    assert root.stdout is not None and root.stdout.read(2) == "xx"
    (copy,) = psutil.Process(root.pid).children()
    sampler = TreeSampler("x", [root.pid])
    for _ in range(4):
        assert [(sample.pid, sample.role) for sample in sampler.sample()] == [(root.pid, "java")]
    copy.kill()
    root.kill()
    root.communicate(timeout=300)


def test_the_oldest_runs_go_when_there_are_too_many(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    from cmsspark.store import process_samples
    from cmsspark.store.process_samples import LogEntry, ProcessSample, WatchedRun

    monkeypatch.setattr(process_samples, "MOST_ROWS", 25)
    with open_processes(tmp_path) as database:
        for number in range(5):
            database.put_run(WatchedRun(f"r{number}", number, "h"))
            samples = [
                ProcessSample(f"r{number}", tick, "h", 1, 0, 0, "java") for tick in range(10)
            ]
            database.add(samples, [LogEntry(f"r{number}", 1, "info", "x")])
            database.add(samples)  # sent twice, stored once
        assert database.prune() == 3
        assert [run.run for run in database.runs()] == ["r4", "r3"]
        assert [len(database.samples(f"r{number}")) for number in range(5)] == [0, 0, 0, 10, 10]
        assert database.log("r0") == []


def test_a_damaged_database_is_set_aside(tmp_path: Path) -> None:
    (tmp_path / FILE).write_bytes(b"no database" * 100)
    with open_processes(tmp_path) as database:
        assert isinstance(database, ProcessDatabase) and database.runs() == []
    assert len(list(tmp_path.glob(f"{FILE}.damaged-*"))) == 1


def test_a_second_connection_of_a_process_does_not_take_away_the_locks_of_the_first(
    tmp_path: Path,
) -> None:
    other = (
        "import sqlite3, sys; sqlite3.connect(sys.argv[1], timeout=0).execute('BEGIN IMMEDIATE')"
    )
    with open_processes(tmp_path) as first, first._transaction():
        make_private(tmp_path / FILE, "it")
        ended = subprocess.run(
            [sys.executable, "-c", other, str(tmp_path / FILE)],
            capture_output=True,
            text=True,
            check=False,
        )
        assert "database is locked" in ended.stderr
