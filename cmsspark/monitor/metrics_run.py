"""What a measured run sends to the receiver of live metrics when it has ended: marks on the time axis, and the counters
of our own jobs.

A counter is 0 when the run begins and has its sum when it ends: its rate is the run's. A receiver that is away costs a
second, and drops it.
"""

from __future__ import annotations

from collections import defaultdict
from contextlib import suppress
from pathlib import Path
from typing import Final

from cmsspark.monitor.metrics_graphite import GraphiteSender, part, run_annotations
from cmsspark.settings import MetricsSettings
from cmsspark.store import run_metrics
from cmsspark.store.run_metrics import RunMetrics

#: Counter → the field of what a job reports.
COUNTERS: Final = {
    "records_read": "input_records", "records_malformed": "malformed_records", "input_bytes": "input_bytes",
    "input_files": "input_files",
}  # fmt: skip


def counter_lines(prefix: str, metrics: RunMetrics) -> list[str]:
    """The counters of each job of the run, ``PREFIX.RUN.driver.jobs.JOB.COUNTER``, at its begin and its end."""
    sums: dict[str, dict[str, int]] = defaultdict(lambda: dict.fromkeys(COUNTERS, 0))
    for entry in metrics.reported:
        for name, field in COUNTERS.items():
            sums[entry.job or metrics.job][name] += getattr(entry, field)
    began = metrics.began_ms // 1000
    # A rate needs two times: a run of less than a second counts as one.
    ended = max(began + 1, (metrics.ended_ms or metrics.began_ms) // 1000)
    start = f"{part(prefix)}.{part(metrics.application or metrics.run)}.driver.jobs"
    lines = []
    for job, counts in sums.items():
        for name, count in counts.items():
            lines += [f"{start}.{part(job)}.{name} 0 {began}", f"{start}.{part(job)}.{name} {count} {ended}"]
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
