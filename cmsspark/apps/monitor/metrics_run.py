"""What a measured run sends to the receiver of live metrics: the counters of our own jobs, and marks on the time axis.

A counter is 0 when the run begins and has its sum when it ends. Between them it has what a job that runs by processes
of this host writes of itself. Marks are sent at the end. A receiver that is away costs a second, and drops it.
"""

from __future__ import annotations

import time
from collections import defaultdict
from collections.abc import Sequence
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final

import msgspec

from cmsspark.apps.monitor.metrics_graphite import GraphiteSender, part, run_annotations
from cmsspark.base import clock, self_metrics
from cmsspark.settings.settings import MetricsSettings
from cmsspark.store import run_metrics
from cmsspark.store.process_samples import ProcessSample
from cmsspark.store.run_metrics import RunMetrics

#: Counter → the field of what a job reports.
COUNTERS: Final = {
    "records_read": "input_records", "records_malformed": "malformed_records", "input_bytes": "input_bytes",
    "input_files": "input_files",
}  # fmt: skip


def counter_lines(prefix: str, metrics: RunMetrics) -> list[str]:
    """Return the counters of each job of the run, ``PREFIX.RUN.driver.jobs.JOB.COUNTER``, at its begin and its end."""
    sums: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTERS, 0))
    for entry in metrics.reported:
        for name, field in COUNTERS.items():
            sums[entry.job or metrics.job][name] += getattr(entry, field)
    began = metrics.began_ms // 1000
    # A rate needs two times: a run of less than a second counts as one.
    ended = max(began + 1, (metrics.ended_ms or metrics.began_ms) // 1000)
    start = _start(prefix, metrics.application or metrics.run)
    lines = []
    for job, counts in sums.items():
        for name, count in counts.items():
            lines += [f"{start}.{part(job)}.{name} 0 {began}", f"{start}.{part(job)}.{name} {count} {ended}"]
    return lines


def _start(prefix: str, run: str) -> str:
    return f"{part(prefix)}.{part(run)}.driver.jobs"


@dataclass
class LiveSender:
    """Sends samples of processes as they are taken, and with them the counters of the running job."""

    sender: GraphiteSender
    #: The folder of the measured run, whose name is that of the run; the job's name, and when it began.
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
        start = f"{_start(self.sender.settings.prefix, self.folder.name)}.{part(self.job)}"
        lines = [f"{start}.{name} {counts[name]} {clock.now_ms() // 1000}" for name in COUNTERS if name in counts]
        if lines and not self._has_begun:
            self._has_begun = True
            lines = [*(f"{start}.{name} 0 {self.began_ms // 1000}" for name in COUNTERS if name in counts), *lines]
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
