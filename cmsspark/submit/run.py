"""Runs a command and brings back the job's own exit code.

In client mode spark-submit passes the code on. In cluster mode it only knows "failed": the code is in the
application's final report, which it prints. Spark ties a job's stderr to its stdout; ``CMSSPARK_STDERR`` names a way
back to the real one, which ``jobs/launch.py`` takes.
"""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Final, NoReturn

from cmsspark.errors import Exit
from cmsspark.submit.command import Command, with_env

#: Lines that a JVM writes at its start about Spark's own options.
NOISE: Final = (
    b"WARNING: Using incubator modules:",
    b"WARNING: package sun.security.action not in java.base",
)
_STATUS: Final = re.compile(rb"User application exited with (?:status )?(\d+)")
_UNRESOLVED: Final = re.compile(rb"unresolved dependency: ([^\s\]]+): not found")


def run(command: Command, environ: Mapping[str, str]) -> int:
    """Run the command to its end and return its exit code; an interrupted one is 75."""
    if command.mode == "python":
        _become(command, environ)
    reader, writer = os.pipe()
    place = 2 if sys.stderr.isatty() else writer
    command = with_env(command, CMSSPARK_STDERR=f"/proc/{os.getpid()}/fd/{place}")
    sys.stdout.flush()
    with subprocess.Popen(command.argv, env={**environ, **command.env}, stderr=writer) as child:
        watch = Watch(reader, 2)
        with _forwarding(child) as interrupted:
            code = child.wait()
    os.close(writer)
    watch.join(2)
    if interrupted:
        sys.stderr.write("run_spark: interrupted; run the same command again to finish\n")
        return int(Exit.NOT_READY)
    if code < 0:
        name = signal.Signals(-code).name
        sys.stderr.write(f"run_spark: the driver was ended from outside by {name} (out of memory?)\n")
        return int(Exit.NOT_READY)
    if code != 0 and watch.unresolved:
        _tell_unresolved(watch.unresolved)
        return int(Exit.SETTINGS)
    if command.mode == "cluster" and code != 0 and watch.status:
        return watch.status
    return code


def _tell_unresolved(artifact: str) -> None:
    sys.stderr.write(
        f"run_spark: no Maven repository gave {artifact}\n"
        "  next: put the jar into a folder that `jars` in the settings names (--avro looks there first), or name\n"
        "        a mirror with --repositories; or go without: our own jobs read Avro with no jar\n"
    )


def _become(command: Command, environ: Mapping[str, str]) -> NoReturn:
    sys.stdout.flush()
    os.execve(command.argv[0], command.argv, {**environ, **command.env})  # noqa: S606  # no shell is wanted


class Watch(threading.Thread):
    """Copies a child's stderr as it comes, without the noise; keeps the exit status and missing jar that it names."""

    def __init__(self, source: int, target: int) -> None:
        super().__init__(daemon=True)
        self.source, self.target = source, target
        self.status: int | None = None
        self.unresolved: str | None = None
        self._line = b""
        self.start()

    def run(self) -> None:
        held = b""
        while chunk := self._read():
            held = self._pass(held + chunk)
        self._write(held)
        os.close(self.source)

    def _read(self) -> bytes:
        try:
            return os.read(self.source, 65536)
        except OSError:
            return b""

    def _pass(self, data: bytes) -> bytes:
        """Write what is no noise; return the start of a line that may still turn out to be."""
        lines = data.splitlines(keepends=True)
        for position, line in enumerate(lines):
            is_last = position == len(lines) - 1 and not line.endswith(b"\n")
            if is_last and any(noise.startswith(line) or line.startswith(noise) for noise in NOISE):
                return line
            if not line.startswith(NOISE):
                self._note(line)
                self._write(line)
        return b""

    def _note(self, text: bytes) -> None:
        self._line = (self._line + text)[-1000:]
        found = _STATUS.findall(self._line)
        if found:
            self.status = int(found[-1])
        missing = _UNRESOLVED.search(self._line)
        if missing:
            self.unresolved = missing.group(1).decode(errors="replace")
        if text.endswith(b"\n"):
            self._line = b""

    def _write(self, text: bytes) -> None:
        while text:
            try:
                text = text[os.write(self.target, text) :]
            except OSError:
                return  # nobody listens any more; the job goes on


@contextmanager
def _forwarding(child: subprocess.Popen[bytes]) -> Iterator[list[int]]:
    """While the child runs, hand SIGTERM and SIGHUP on to it and all below it; Ctrl-C reaches them by itself."""
    received: list[int] = []

    def note(number: int, frame: FrameType | None) -> None:
        received.append(number)
        if number != signal.SIGINT:
            for pid in [*descendants(child.pid), child.pid]:
                with_signal(pid, number)

    # What is ignored stays so: `nohup run_spark` outlives its terminal.
    numbers = [
        number
        for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)
        if signal.getsignal(number) != signal.SIG_IGN
    ]
    before = [signal.signal(number, note) for number in numbers]
    try:
        yield received
    finally:
        for number, handler in zip(numbers, before, strict=True):
            signal.signal(number, handler)


def with_signal(pid: int, number: int) -> None:
    """Send a signal to a process that may be gone already."""
    try:
        os.kill(pid, number)
    except ProcessLookupError:
        return


def descendants(pid: int, proc: Path = Path("/proc")) -> list[int]:
    """Processes below ``pid``, children before parents' siblings: the driver's Python and its workers."""
    parents: dict[int, list[int]] = {}
    for stat in proc.glob("[0-9]*/stat"):
        try:
            after_name = stat.read_text(encoding="utf-8", errors="replace").rpartition(")")[2].split()
        except OSError:
            continue
        parents.setdefault(int(after_name[1]), []).append(int(stat.parent.name))
    found, queue = [], [pid]
    while queue:
        children = parents.get(queue.pop(), [])
        found += children
        queue += children
    return found
