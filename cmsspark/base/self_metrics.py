"""What a job says of itself to the measurement that it runs in, so that bytes read by
path are not missing from it.

``run_spark`` names the folder of the measured run in ``CMSSPARK_MEASURED``; without it
nothing is written. A job on another host, in cluster mode, has no such folder.
"""

from __future__ import annotations

import json
import os
import time
from array import array
from collections.abc import Iterable, Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, ClassVar, Final

from cmsspark.base import dates

VARIABLE: Final = "CMSSPARK_MEASURED"
FILE: Final = "reported.jsonl"
#: The counters of a job while it runs. To have them, run_spark makes the file, empty,
#: before the job starts.
LIVE_FILE: Final = "live.json"
_LIVE_EVERY_S: Final = 1.0


def measured_run() -> str | None:
    """Return the id of the measured run that this process belongs to, or None."""
    folder = os.environ.get(VARIABLE)
    return Path(folder).name if folder else None


def report_read(
    run: str,
    job: str,
    day: str,
    sizes: Iterable[int],
    counts: Mapping[str, Mapping[str, Any]] | None = None,
) -> None:
    """Report the files that the run ``run`` of the run history read, by their bytes,
    and its records.

    ``counts``: the reconciliation of the run: for each stream how many records were
    ``read`` and ``malformed``.
    """
    if os.environ.get(VARIABLE):
        files = list(sizes)
        read: dict[str, Any] = {
            "run": run,
            "job": job,
            "day": day,
            "input_bytes": sum(files),
            "input_files": len(files),
        }
        for name, key in (("input_records", "read"), ("malformed_records", "malformed")):
            read[name] = sum(int(stream.get(key, 0)) for stream in (counts or {}).values())
        _report({"read": read})


class LiveCounters:
    """What this job has read until now, for live metrics: written to the measured run
    at most once a second.
    """

    _sums: ClassVar[dict[str, int]] = {}

    def __init__(self) -> None:
        folder = os.environ.get(VARIABLE)
        file = Path(folder, LIVE_FILE) if folder else None
        self._file = file if file is not None and file.exists() else None
        self._next = 0.0

    def add(self, **counts: int) -> None:
        """Add to counters: ``records_read``, ``input_files``, ``input_bytes``."""
        if self._file is None:
            return
        for name, count in counts.items():
            self._sums[name] = self._sums.get(name, 0) + count
        if time.monotonic() >= self._next:
            self.write()

    def write(self) -> None:
        """Write them now."""
        if self._file is not None and self._sums:
            self._next = time.monotonic() + _LIVE_EVERY_S
            aside = self._file.with_suffix(".new")
            with suppress(OSError):
                aside.write_text(json.dumps(self._sums), encoding="ascii")
                aside.replace(self._file)


class StageTimes:
    """Work that many processes share, measured like a stage of Spark: ``task_done`` for
    each task, then ``end``.
    """

    _count = 0

    def __init__(self, name: str, tasks: int) -> None:
        self.name, self.tasks = name, tasks
        self._submitted = dates.now_ms()
        self._durations: array[int] = array("q")

    @staticmethod
    def now() -> float:
        """Return the time that ``task_done`` takes as a begin: seconds by a clock that
        does not jump.
        """
        return time.monotonic()

    def task_done(self, began: float) -> None:
        """Note that a task that began at ``began`` is done."""
        self._durations.append(round(1000 * (time.monotonic() - began)))

    def end(self) -> None:
        """Report the stage, if this process belongs to a measured run."""
        if not os.environ.get(VARIABLE):
            return
        times = sorted(self._durations) or [0]
        totals = {"tasks": len(self._durations), "task_ms": sum(times), "run_ms": sum(times)}
        spread = {"min": times[0], "median": times[(len(times) - 1) // 2], "max": times[-1]}
        stage = {
            "stage": StageTimes._count,
            "name": self.name,
            "task_count": self.tasks,
            "totals": totals,
        }
        StageTimes._count += 1
        ended = dates.now_ms()
        _report(
            {
                "stage": {
                    **stage,
                    "submitted_ms": self._submitted,
                    "completed_ms": ended,
                    "task_ms": spread,
                }
            }
        )


def _report(values: Mapping[str, Any]) -> None:
    """Add a line to the measured run. What cannot be written is left out: a measurement
    never fails a job.
    """
    folder = os.environ.get(VARIABLE, "")
    with suppress(OSError), Path(folder, FILE).open("a", encoding="utf-8") as file:
        file.write(json.dumps(values) + "\n")
