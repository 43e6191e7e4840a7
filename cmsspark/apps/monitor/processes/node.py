"""Monitors of nodes: one samples the tree of the NodeManager and prints a JSON line for
each sample; at the other end of its pipe, usually one of ssh, the lines are stored.

The monitor ends with its pipe, with the NodeManager or by a signal. No process of it
stays. ssh is what proves who sends, and what hides it from others.
"""

from __future__ import annotations

import os
import re
import select
import signal
from collections.abc import Callable, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Final

import msgspec
import psutil

from cmsspark.apps.monitor.processes.sampler import YARN_NODE_MANAGER, TreeSampler, find_role
from cmsspark.base import dates
from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.store.process_samples import (
    DONE,
    ENDED,
    RUNNING,
    LogEntry,
    ProcessSample,
    WatchedRun,
    open_processes,
)

#: Seconds for which a pipe may take nothing; whoever reads it is gone then.
_PATIENCE_S: Final = 60.0
#: So many bytes fit into a pipe that can be written.
_PIECE: Final = select.PIPE_BUF
#: The longest line: some thousand processes with all of their command lines.
MOST_BYTES: Final = 8_000_000
#: So many lines that cannot be stored are named, the others are counted.
_MOST_NAMED: Final = 3
#: The type of log entries with the difference of a clock.
CLOCK: Final = "clock"
#: Smaller differences of clocks may be the time that the network takes.
_LEAST_SKEW_MS: Final = 5_000
_CLOCK_TEXT: Final = re.compile(r"([+\-]\d+) ms .*", re.DOTALL)


class Batch(msgspec.Struct, forbid_unknown_fields=True):
    """A line: the samples of one host at one time. ``sent_ms``: by its own clock."""

    run: WatchedRun
    sent_ms: int
    samples: list[ProcessSample] = []
    log: list[LogEntry] = []


def watch_node(pid: int, run: str | None, interval: float, out: int) -> str:
    """Print samples of the tree of ``pid`` to the file ``out`` until there is a reason to
    end, which is returned. ``run``: that which it belongs to, else one of its own.

    Raises InputMissing (66) if there is no such process.
    """
    run_id = run or f"node-{dates.new_run_id()}"
    sampler = TreeSampler(run_id, [pid], left_out=[os.getpid()])
    row = WatchedRun(run_id, dates.now_ms(), sampler.host, "node", root_pid=0 if run else pid)
    try:
        handle = os.pidfd_open(pid)
    except ProcessLookupError:
        raise InputMissing("the process to watch does not exist", where=f"PID {pid}") from None
    poll = select.poll()
    poll.register(handle, select.POLLIN)
    poll.register(out, 0)  # nobody reads it any more
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    reason = ""
    try:
        while not reason:
            _print(out, Batch(row, dates.now_ms(), sampler.sample()))
            events = dict(poll.poll(int(interval * 1000)))
            if events:
                reason = f"process {pid} has ended" if handle in events else "its reader is gone"
    except KeyboardInterrupt:
        reason = "a signal"
    except OSError as error:
        reason = f"its output cannot be written ({error.strerror})"
    row.end_ms, row.status, row.exit_code = dates.now_ms(), DONE, 0
    entry = LogEntry(run_id, row.end_ms, "info", f"monitor ended: {reason}", row.host)
    with suppress(OSError):
        # A signal may have come within a line.
        _print(out, Batch(row, row.end_ms, [], [entry]), b"\n")
    return reason


def _print(out: int, batch: Batch, begin: bytes = b"") -> None:
    """Write a line. Raises TimeoutError if it is not taken, BrokenPipeError if nobody reads."""
    content = begin + msgspec.json.encode(batch) + b"\n"
    poll = select.poll()
    poll.register(out, select.POLLOUT)
    while content:
        if not poll.poll(int(_PATIENCE_S * 1000)):
            raise TimeoutError(0, f"nothing was read for {_PATIENCE_S:.0f} s")
        content = content[os.write(out, content[:_PIECE]) :]


@dataclass
class NodeReader:
    """Stores what the monitor of a node prints. ``run`` and ``host``, if given, are those
    under which all of it is stored; ``log`` takes a line for people.
    """

    state_dir: Path
    log: Callable[[str], None]
    run: str | None = None
    host: str | None = None
    #: Lines that were not stored.
    refused: int = 0
    _skew_ms: int = 0
    _runs: set[str] = field(default_factory=set)

    def read(self, stream: IO[bytes]) -> None:
        """Store all lines. Each one that is no batch is named, and counted."""
        while line := stream.readline(MOST_BYTES):
            if not line.strip():
                continue
            try:
                self._store(self._checked(line), dates.now_ms())
            except (ValueError, RecursionError, UsageError) as error:
                self.refused += 1
                if self.refused <= _MOST_NAMED:
                    self.log(f"a line of a monitor was left out: {error}")
        if self.refused > _MOST_NAMED:
            self.log(f"{self.refused:,} lines of a monitor were left out in all")
        self._end()

    def _checked(self, line: bytes) -> Batch:
        """Return the batch of a line. Raises ValueError, UsageError if no table takes it."""
        batch = msgspec.json.decode(line, type=Batch)
        batch.run.run, batch.run.host = self.run or batch.run.run, self.host or batch.run.host
        if not re.fullmatch(r"[\w.\-]{1,100}", batch.run.run, re.ASCII):
            raise UsageError(
                "the id of a run has letters, digits and _.-, at most 100",
                found=repr(batch.run.run[:100]),
            )
        rows: list[WatchedRun | ProcessSample | LogEntry] = [*batch.samples, *batch.log, batch.run]
        for row in rows:
            row.run, row.host = batch.run.run, batch.run.host
            for name in row.__struct_fields__:
                value = getattr(row, name)
                if isinstance(value, int) and not -(1 << 63) <= value < 1 << 63:
                    raise UsageError("a whole number has 64 bits", where=name)
        return batch

    def _store(self, batch: Batch, received_ms: int) -> None:
        run, host = batch.run.run, batch.run.host
        skew = received_ms - batch.sent_ms
        skew = 0 if abs(skew) <= _LEAST_SKEW_MS else skew
        if abs(skew - self._skew_ms) > _LEAST_SKEW_MS:
            self._skew_ms = skew
            text = f"{skew:+d} ms to add to the times of {host}: its clock is another one"
            batch.log.append(LogEntry(run, received_ms, CLOCK, text, host))
        with open_processes(self.state_dir) as database:
            stored = next((entry for entry in database.runs() if entry.run == run), None)
            # A run of the node's own begins and ends with the monitor.
            if stored is None or (stored.job == "node" and batch.run.end_ms):
                database.put_run(batch.run)
            database.add(batch.samples, batch.log)
        self._runs.add(run)

    def _end(self) -> None:
        """Note that the node's own run has ended, if its monitor did not say so."""
        with open_processes(self.state_dir) as database:
            for run in database.runs():
                if run.run in self._runs and run.job == "node" and run.status == RUNNING:
                    run.status, run.end_ms = ENDED, dates.now_ms()
                    text = "the monitor ended without a word: its connection was lost, or it was killed"
                    database.put_run(run)
                    database.add([], [LogEntry(run.run, run.end_ms, "error", text, run.host)])


def with_one_clock(
    samples: Sequence[ProcessSample], log: Iterable[LogEntry]
) -> list[ProcessSample]:
    """Return the samples in the order of times by this host's clock, with the last note
    on each host.
    """
    skews = {}
    for entry in log:
        if entry.type == CLOCK and (match := _CLOCK_TEXT.fullmatch(entry.message)):
            skews[entry.host] = int(match[1])
    if not skews:
        return list(samples)
    shifted = [
        msgspec.structs.replace(sample, time_ms=sample.time_ms + skews.get(sample.host, 0))
        for sample in samples
    ]
    return sorted(shifted, key=lambda sample: (sample.time_ms, sample.host, sample.pid))


def find_node_manager() -> int:
    """Return the PID of this host's NodeManager. Raises InputMissing (66) for none,
    UsageError (2) for several.
    """
    pids = []
    for process in psutil.process_iter():
        with suppress(psutil.Error):
            if find_role(process.name(), process.cmdline(), None) == YARN_NODE_MANAGER:
                pids.append(int(process.pid))
    if not pids:
        raise InputMissing(
            "this account sees no NodeManager on this host",
            next_step="start the monitor as the user of the NodeManager, or name its process with --pid",
        )
    if len(pids) > 1:
        raise UsageError(
            "this host has several NodeManagers",
            found=f"processes {', '.join(map(str, pids))}",
            next_step="name one with --pid",
        )
    return pids[0]
