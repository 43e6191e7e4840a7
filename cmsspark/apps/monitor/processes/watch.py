"""Watches the processes of a run until its root ends: from a thread of run_spark that
started it, or, where run_spark becomes the job itself, from a process beside it.

It samples each second; where samples cost more than 1 % of a core, or 0.5 % of what the
run uses itself, the interval gets longer. After ten minutes a sample is stored each ten
seconds only. It never fails the run: what goes wrong ends the watch, and is logged where
that is possible.
"""

from __future__ import annotations

import getpass
import os
import select
import signal
import socket
import sys
import threading
import time
from collections.abc import Callable
from contextlib import nullcontext, suppress
from pathlib import Path
from typing import Final

import msgspec

from cmsspark.base import dates
from cmsspark.store.process_samples import (
    DONE,
    ENDED,
    FAILED,
    LogEntry,
    ProcessSample,
    WatchedRun,
    open_processes,
)

#: Seconds between samples, and between those that are stored after ten minutes.
INTERVAL: Final = 1.0
LONG_INTERVAL: Final = 10.0
SHORT_SECONDS: Final = 600.0
#: CPU of the monitor at most, as a share of one core, and of what the run uses; for the
#: latter the interval gets no longer than the last figure, so that a run that waits is
#: seen.
MOST_SHARE: Final = 0.01
MOST_OF_RUN: Final = 0.005
MOST_FOR_RUN: Final = 5.0
#: Seconds between commits.
_FLUSH: Final = 10.0
#: Seconds that a run's exit code is waited for after its root has ended.
_PATIENCE: Final = 2.0
#: Seconds that the end of a run waits for its watch.
_JOIN: Final = 10.0


class WatchOptions(msgspec.Struct, frozen=True):
    """What is watched: ``job`` for people, ``state_dir`` of the database. ``interval``:
    fixed seconds, else None.
    """

    state_dir: Path
    job: str
    interval: float | None = None
    suite: str | None = None
    #: Called with the samples of each tick: live metrics.
    on_samples: Callable[[list[ProcessSample]], None] | None = None
    #: The id of the measured run; a new one without.
    run: str | None = None
    #: A suite stores the samples of its steps itself.
    is_stored: bool = True


class Watch(msgspec.Struct):
    """A started watch; :meth:`end` sends it the run's exit code. ``pid`` is that of the monitor."""

    run: str
    pid: int
    channel: int
    thread: threading.Thread | None = None

    def end(self, code: int) -> None:
        """Send the exit code. Returns at once from a process beside; waits for a thread,
        which stores what it has.
        """
        with suppress(OSError):
            os.write(self.channel, f"{code}\n".encode())
        with suppress(OSError):
            os.close(self.channel)
        if self.thread is not None:
            self.thread.join(_JOIN)


def start_thread(root: int, options: WatchOptions) -> Watch | None:
    """Watch the tree of ``root`` from a thread; None where that cannot be started."""
    try:
        run = options.run or dates.new_run_id()
        reader, writer = os.pipe()

        def work() -> None:
            try:
                watch(run, root, options, reader)
            except Exception as error:
                _log_failure(run, options.state_dir, error)
            finally:
                os.close(reader)

        thread = threading.Thread(target=work, daemon=True, name="cmsspark-watch")
        thread.start()
        return Watch(run, os.getpid(), writer, thread)
    except (OSError, ValueError, RuntimeError):
        return None


#: What a terminal sends to the run. It waits while the monitor is forked: between fork
#: and the end of Python's own work after it, an exception is printed as a trace.
_OF_TERMINALS: Final = (signal.SIGINT, signal.SIGHUP, signal.SIGTERM)


def start(root: int, options: WatchOptions) -> Watch | None:
    """Watch the tree of ``root`` from a process beside it; None where that cannot be started.

    The monitor is no child of the run: nobody waits for it, and signals of the terminal
    do not reach it.
    """
    try:
        run = options.run or dates.new_run_id()
        reader, writer = os.pipe()
        pids, pid_writer = os.pipe()
        # Forked instead of started: an import of all modules would cost more than
        # watching a short run.
        before = signal.pthread_sigmask(signal.SIG_BLOCK, _OF_TERMINALS)
        try:
            child = os.fork()
            if child == 0:
                os.close(writer)
                _detach_and_watch(run, root, options, reader, pid_writer)
        finally:
            signal.pthread_sigmask(signal.SIG_SETMASK, before)
        for descriptor in (reader, pid_writer):
            os.close(descriptor)
        os.waitpid(child, 0)
        pid = int(os.read(pids, 32) or 0)
        os.close(pids)
        return Watch(run, pid, writer)
    except (OSError, ValueError):
        return None


def _detach_and_watch(
    run: str, root: int, options: WatchOptions, channel: int, pid_writer: int
) -> None:
    """Fork again in the forked child, so that init waits for the monitor, and watch.
    Never returns.
    """
    try:
        if os.fork() != 0:
            os._exit(0)
        os.setsid()
        os.write(pid_writer, str(os.getpid()).encode())
        _let_go(channel)
        for number in (*_OF_TERMINALS, signal.SIGCHLD):
            # One that came before setsid() was meant for the run: ignoring drops it.
            signal.signal(number, signal.SIG_IGN)
            signal.signal(number, signal.SIG_DFL)
        signal.pthread_sigmask(signal.SIG_UNBLOCK, _OF_TERMINALS)
        with suppress(OSError):
            Path("/proc/self/comm").write_text("cmsspark-watch", encoding="ascii")
        watch(run, root, options, channel)
    except BaseException as error:
        _log_failure(run, options.state_dir, error)
    finally:
        os._exit(0)


def _let_go(keep: int) -> None:
    """Close all files of the parent: a pipe that stays open keeps its reader waiting."""
    null = os.open(os.devnull, os.O_RDWR)
    for number in (0, 1, 2):
        os.dup2(null, number)
    for name in os.listdir("/proc/self/fd"):
        if int(name) > 2 and int(name) != keep:
            with suppress(OSError):
                os.close(int(name))
    sys.stdout = sys.stderr = open(os.devnull, "w", encoding="utf-8")  # noqa: SIM115 -- until the process ends


def watch(run: str, root: int, options: WatchOptions, channel: int | None = None) -> None:
    """Sample the tree of ``root`` into the database until it ends. ``channel``: where
    the exit code comes from.

    Raises UsageError (2) where psutil is missing; ProcessLookupError where there is no
    such process.
    """
    handle = os.pidfd_open(root)
    begun = time.monotonic()
    if _ends_within(
        handle, INTERVAL if options.interval is None else min(options.interval, INTERVAL)
    ):
        return  # too short to be seen
    from cmsspark.apps.monitor.processes.sampler import TreeSampler

    sampler = TreeSampler(run, [root], left_out=[os.getpid()])
    row = WatchedRun(
        run,
        dates.now_ms() - 1000,
        socket.gethostname(),
        options.job,
        root_pid=root,
        suite=options.suite,
    )
    with suppress(Exception):
        row.user = getpass.getuser()
    flush = _FLUSH if options.interval is None else min(_FLUSH, 10 * options.interval)
    with open_processes(options.state_dir) if options.is_stored else nullcontext() as database:
        if database is not None:
            database.prune()
            database.put_run(row)
        begun_cpu, cpu = 0.0, 0.0
        waiting: list[ProcessSample] = []
        flushed = stored = time.monotonic()
        while True:
            samples = sampler.sample()
            cpu = max(cpu, sum(sample.cpu_seconds or 0 for sample in samples))
            age = time.monotonic() - begun
            if age < SHORT_SECONDS or time.monotonic() - stored >= LONG_INTERVAL:
                waiting += samples
                stored = time.monotonic()
            if options.on_samples is not None:
                options.on_samples(samples)
            if time.monotonic() - flushed >= flush or sampler.ticks == 1:
                if database is not None:
                    database.add(waiting)
                waiting, flushed = [], time.monotonic()
            # The first sample has the imports in it.
            begun_cpu = begun_cpu or time.thread_time()
            cost = (time.thread_time() - begun_cpu) / max(1, sampler.ticks - 1)
            if _ends_within(handle, next_interval(cost, options.interval, used=cpu / age)):
                break
        if database is None:
            return
        row.end_ms = dates.now_ms()
        row.exit_code = _exit_code(channel, options.state_dir, row)
        row.status = ENDED if row.exit_code is None else DONE if row.exit_code == 0 else FAILED
        text = f"the monitor used {time.thread_time():.2f} s of CPU, the processes {cpu:.2f} s"
        database.add(waiting, [LogEntry(run, row.end_ms, "info", text, row.host)])
        database.put_run(row)


def next_interval(cost: float, fixed: float | None = None, *, used: float = 1.0) -> float:
    """Seconds to the next sample; ``cost``: CPU seconds of a sample on average.

    ``fixed``: seconds that somebody chose, whatever they cost; ``used``: cores that the
    run uses on average.
    """
    if fixed is not None:
        return fixed
    for_run = min(MOST_FOR_RUN, cost / (MOST_OF_RUN * max(used, 0.01)))
    return max(INTERVAL, cost / MOST_SHARE, for_run)


def _ends_within(handle: int, seconds: float) -> bool:
    """Wait; True as soon as the process of the handle has ended, or the pipe can be read."""
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    return bool(poll.poll(max(0, int(seconds * 1000))))


def _exit_code(channel: int | None, state_dir: Path, row: WatchedRun) -> int | None:
    """Return the code that the parent of the run writes, else that in the run history of
    a job without a parent of ours; None if neither is there.
    """
    if channel is not None and _ends_within(channel, _PATIENCE):
        with suppress(OSError, ValueError):
            return int(os.read(channel, 32))
    from cmsspark.store.run_history import State, read_history

    with suppress(Exception), read_history(state_dir) as history:
        for run in history.runs(limit=50) if history else []:
            if run.process.get("pid") == row.root_pid and run.began_ms >= row.start_ms - 60_000:
                return 0 if run.state is State.DONE else run.exit_code
    return None


def _log_failure(run: str, state_dir: Path, error: BaseException) -> None:
    with suppress(BaseException), open_processes(state_dir) as database:
        text = f"the watch ended: {type(error).__name__}: {error}"
        database.add(
            [], [LogEntry(run, dates.now_ms(), "error", text[:500], socket.gethostname())]
        )
