"""Metrics of ours by the Graphite protocol: memory and CPU of processes by role, and
when stages and queries ran.

Spark's own sink cannot see the Python driver and has no figures of stages; these lines
stand beside its own in the same receiver. Names:
``PREFIX.RUN.HOST.processes.ROLE.MEASURE`` and
``PREFIX.APPLICATION.driver.events.NAME.MEASURE``. A receiver that is away never holds
up a run: what cannot be sent at once is dropped and counted.
"""

from __future__ import annotations

import re
import socket
import time
from collections import defaultdict
from collections.abc import Iterable, Mapping, Sequence
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cmsspark.base import dates, self_metrics
from cmsspark.base.errors import DataError, InputMissing, NotReady
from cmsspark.settings.settings import MetricsSettings
from cmsspark.store import run_metrics
from cmsspark.store.process_samples import ProcessSample
from cmsspark.store.run_metrics import RunMetrics

#: Seconds of a connection and of a sending at most.
_TIMEOUT: Final = 1.0
#: Seconds after a failure in which nothing is tried.
_PAUSE: Final = 30.0
_OTHERS: Final = re.compile(r"[^A-Za-z0-9_\-]+")
_LONGEST: Final = 80


def part(text: str) -> str:
    """Return a text as one part of a name: a dot, a blank or a line end in it would
    make another name of it.
    """
    return _OTHERS.sub("_", text).strip("_")[:_LONGEST] or "none"


class GraphiteSender(msgspec.Struct):
    """Sends lines to the receiver of the settings. ``dropped``: lines that could not be sent."""

    settings: MetricsSettings
    dropped: int = 0
    _socket: socket.socket | None = None
    _again: float = 0.0

    def send(self, lines: Sequence[str]) -> bool:
        """Send lines; False where they were dropped."""
        if not lines or self.settings.host is None or time.monotonic() < self._again:
            self.dropped += len(lines)
            return False
        try:
            if self._socket is None:
                address = (self.settings.host, self.settings.port)
                self._socket = socket.create_connection(address, _TIMEOUT)
                self._socket.settimeout(_TIMEOUT)
            self._socket.sendall("".join(f"{line}\n" for line in lines).encode())
            return True
        except OSError:
            self.close()
            self._again = time.monotonic() + _PAUSE
            self.dropped += len(lines)
            return False

    def close(self) -> None:
        """Close the connection."""
        if self._socket is not None:
            with suppress(OSError):
                self._socket.close()
        self._socket = None

    def send_samples(self, samples: Sequence[ProcessSample]) -> None:
        """Send the sums by role of one sample of the processes."""
        self.send(process_lines(self.settings.prefix, samples))


def process_lines(prefix: str, samples: Iterable[ProcessSample]) -> list[str]:
    """Lines for the sums over the processes of each role on each host at each time."""
    groups: dict[tuple[str, str, str, int], list[ProcessSample]] = defaultdict(list)
    for sample in samples:
        groups[sample.run, sample.host, sample.role, sample.time_ms].append(sample)
    lines = []
    for (run, host, role, time_ms), rows in groups.items():
        start = f"{part(prefix)}.{part(run)}.{part(host)}.processes.{role}"
        values = {
            "count": len(rows),
            "rss_bytes": sum(row.rss_bytes or 0 for row in rows),
            "virtual_bytes": sum(row.virtual_bytes or 0 for row in rows),
            "cpu_percent": round(sum(row.cpu_percent or 0 for row in rows), 1),
            "fds": sum(row.fds or 0 for row in rows),
        }
        lines += [f"{start}.{name} {value} {time_ms // 1000}" for name, value in values.items()]
    return lines


class Annotations(msgspec.Struct, frozen=True):
    """Begin and end of stages and queries of a run as lines; ``count``: of stages and queries."""

    run: str
    lines: list[str]
    count: int


def run_annotations(prefix: str, file: Path) -> Annotations:
    """Return the annotations of a measured run. Its application's id is used where it
    is known, so that panels find them.

    Raises InputMissing (66) for no such file, DataError (65) for one that is not a measured run.
    """
    try:
        measured = run_metrics.read(file)
    except OSError as error:
        raise InputMissing(
            "the measured run cannot be read", where=file, found=error.strerror
        ) from None
    except ValueError as error:
        raise DataError("the file is not a measured run", where=file, found=str(error)) from None
    start = f"{part(prefix)}.{part(measured.application or measured.run)}.driver.events"
    spans = [
        (
            f"stage_{entry.stage}_{entry.attempt} {entry.name}",
            entry.submitted_ms,
            entry.completed_ms,
        )
        for entry in measured.stages
    ] + [
        (f"query_{entry.execution} {entry.description}", entry.began_ms, entry.ended_ms)
        for entry in measured.queries
    ]
    lines, count = [], 0
    for name, begin, end in spans:
        if begin is None:
            continue
        count += 1
        lines.append(f"{start}.{part(name)}.begin 1 {begin // 1000}")
        if end is not None:
            lines.append(f"{start}.{part(name)}.duration_ms {max(0, end - begin)} {begin // 1000}")
            lines.append(f"{start}.{part(name)}.end 1 {end // 1000}")
    return Annotations(measured.run, lines, count)


def send_annotations(settings: MetricsSettings, annotations: Annotations) -> None:
    """Send annotations. Raises NotReady (75) where the receiver cannot be reached."""
    sender = GraphiteSender(settings)
    try:
        if annotations.lines and not sender.send(annotations.lines):
            raise NotReady(
                "the receiver of metrics could not be reached",
                where=f"{settings.host}:{settings.port}",
                next_step="start it, then send the annotations again",
            )
    finally:
        sender.close()


#: Counter → the field of what a job reports.
COUNTERS: Final = {
    "records_read": "input_records",
    "records_malformed": "malformed_records",
    "input_bytes": "input_bytes",
    "input_files": "input_files",
}


def counter_lines(prefix: str, metrics: RunMetrics) -> list[str]:
    """Return the counters of each job of the run,
    ``PREFIX.RUN.driver.jobs.JOB.COUNTER``, at its begin and its end.
    """
    sums: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTERS, 0))
    for entry in metrics.reported:
        for name, source in COUNTERS.items():
            sums[entry.job or metrics.job][name] += getattr(entry, source)
    began = metrics.began_ms // 1000
    # A rate needs two times: a run of less than a second counts as one.
    ended = max(began + 1, (metrics.ended_ms or metrics.began_ms) // 1000)
    run = metrics.application or metrics.run
    return [
        line
        for job, counts in sums.items()
        for line in (
            *_job_lines(prefix, run, job, dict.fromkeys(counts, 0), began),
            *_job_lines(prefix, run, job, counts, ended),
        )
    ]


def _job_lines(
    prefix: str, run: str, job: str, counts: Mapping[str, int], at_seconds: int
) -> list[str]:
    start = f"{part(prefix)}.{part(run)}.driver.jobs.{part(job)}"
    return [f"{start}.{name} {counts[name]} {at_seconds}" for name in COUNTERS if name in counts]


class LiveSender(msgspec.Struct):
    """Sends samples of processes as they are taken, and with them the counters of the running job."""

    sender: GraphiteSender
    #: The folder of the measured run, whose name is that of the run; the job's name,
    #: and when it began.
    folder: Path
    job: str
    began_ms: int
    _next: float = 0.0
    _has_begun: bool = False

    def send(self, samples: Sequence[ProcessSample]) -> None:
        """Send one sample of all processes."""
        self.sender.send_samples(samples)
        if time.monotonic() >= self._next:
            self._next = time.monotonic() + self.sender.settings.period_seconds
            self.sender.send(self._lines())

    def _lines(self) -> list[str]:
        """Return the counters now; none before the job has counted, or where the file is damaged."""
        counts: dict[str, int] = {}
        with suppress(OSError, msgspec.MsgspecError):
            content = (self.folder / self_metrics.LIVE_FILE).read_bytes()
            counts = msgspec.json.decode(content, type=dict[str, int]) if content else {}
        names = self.sender.settings.prefix, self.folder.name, self.job
        lines = _job_lines(*names, counts, dates.now_ms() // 1000)
        if lines and not self._has_begun:
            self._has_begun = True
            lines += _job_lines(*names, dict.fromkeys(counts, 0), self.began_ms // 1000)
        return lines


def send_run(settings: MetricsSettings, file: Path) -> None:
    """Send what the measured run in ``file`` has. Raises nothing: a measurement never fails a run."""
    if settings.host is None:
        return
    with suppress(Exception):
        lines = counter_lines(settings.prefix, run_metrics.read(file))
        lines += run_annotations(settings.prefix, file).lines
        sender = GraphiteSender(settings)
        try:
            sender.send(lines)
        finally:
            sender.close()
