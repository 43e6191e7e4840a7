"""What a job reported of itself (``cmsspark.base.self_metrics``), taken into the measured run."""

from __future__ import annotations

from contextlib import suppress
from pathlib import Path

import msgspec

from cmsspark.store.run_metrics import Reported, RunMetrics, StageEntry


class ReportedLine(msgspec.Struct):
    """A line of the file: files that were read, or a stage of processes."""

    read: Reported | None = None
    stage: StageEntry | None = None


def add_reported(metrics: RunMetrics, file: Path) -> None:
    """Take the lines of a file; those that are cut or of another form are left out."""
    try:
        lines = file.read_bytes().splitlines()
    except OSError:
        return
    for line in lines:
        with suppress(msgspec.MsgspecError):
            entry = msgspec.json.decode(line, type=ReportedLine)
            if entry.read is not None:
                metrics.reported.append(entry.read)
            if entry.stage is not None:
                _add_stage(metrics, entry.stage)
    if lines:
        metrics.sources.append("reported")


def _add_stage(metrics: RunMetrics, stage: StageEntry) -> None:
    metrics.stages.append(stage)
    metrics.stage_count += 1
    metrics.totals.tasks += stage.totals.tasks
    metrics.totals.task_ms += stage.totals.task_ms
    metrics.totals.run_ms += stage.totals.run_ms
    if stage.submitted_ms is not None and stage.completed_ms is not None:
        metrics.task_spans.append((stage.submitted_ms, stage.completed_ms))
