"""Spark's REST interface while an application runs on this host: executors, and stages at work.

Only ports of Spark's page are tried, among those on which the driver listens: others would log the attempt.
"""

from __future__ import annotations

import json
import os
import time
from collections.abc import Mapping
from contextlib import suppress
from pathlib import Path
from typing import Any, Final

from cmsspark.apps.monitor.event_stages import merge_peaks
from cmsspark.store.run_metrics import ExecutorEntry, TaskTotals

_FIRST_PORT: Final = 4040
_RETRIES: Final = 16
_LISTENING: Final = "0A"
#: The answer costs the driver CPU time: polling takes at most this share of the time.
_SHARE: Final = 0.005
_LEAST_S: Final = 2.0
_TIMEOUT_S: Final = 3.0
_MOST_BYTES: Final = 32 << 20


class RestPoller:
    """Polls the application of the driver ``pid``. ``executors`` and ``active_tasks`` are those of the last answer."""

    def __init__(self, pid: int, options: Mapping[str, str]) -> None:
        self._pid = pid
        text = options.get("spark.ui.port", "")
        self._first = int(text) if text.isdigit() and int(text) else _FIRST_PORT
        retries = options.get("spark.port.maxRetries", "")
        self._ports = range(self._first, self._first + 1 + (int(retries) if retries.isdigit() else _RETRIES))
        self._base: str | None = None
        self._next = 0.0
        self.executors: list[ExecutorEntry] = []
        self.active_tasks: int | None = None
        self.answers = 0

    def poll(self) -> None:
        """Ask, if it is time to."""
        began = time.monotonic()
        if began < self._next:
            return
        if self._base is None:
            self._base = self._find()
        if self._base is not None:
            with suppress(OSError, ValueError, KeyError, TypeError):
                self._take(_get(f"{self._base}/allexecutors"))
        now = time.monotonic()
        self._next = now + max(_LEAST_S, (now - began) / _SHARE)

    def _take(self, rows: Any) -> None:
        self.executors = [executor(row) for row in rows]
        self.active_tasks = sum(int(row.get("activeTasks", 0)) for row in rows if row.get("isActive", True))
        self.answers += 1

    def _find(self) -> str | None:
        for port in sorted(listening(self._pid) & set(self._ports)):
            with suppress(OSError, ValueError, KeyError, TypeError, IndexError):
                base = f"http://127.0.0.1:{port}/api/v1/applications"
                return f"{base}/{_get(base)[0]['id']}"
        return None


def executor(row: Mapping[str, Any]) -> ExecutorEntry:
    """A row of ``allexecutors``."""
    totals = TaskTotals(
        tasks=row.get("totalTasks", 0), failed_tasks=row.get("failedTasks", 0), task_ms=row.get("totalDuration", 0),
        gc_ms=row.get("totalGCTime", 0), input_bytes=row.get("totalInputBytes", 0),
        shuffle_read_bytes=row.get("totalShuffleRead", 0), shuffle_write_bytes=row.get("totalShuffleWrite", 0),
    )  # fmt: skip
    host = str(row.get("hostPort", "")).rpartition(":")[0]
    entry = ExecutorEntry(str(row["id"]), host, int(row.get("totalCores", 0)), totals=totals)
    entry.reason = row.get("removeReason")
    merge_peaks(entry.peaks, row.get("peakMemoryMetrics"))
    return entry


def listening(pid: int, proc: Path = Path("/proc")) -> set[int]:
    """The TCP ports on which a process listens."""
    inodes = set()
    with suppress(OSError):
        for entry in os.scandir(proc / str(pid) / "fd"):
            with suppress(OSError):
                target = os.readlink(entry.path)
                if target.startswith("socket:["):
                    inodes.add(target[8:-1])
    ports = set()
    for name in ("tcp", "tcp6"):
        with suppress(OSError):
            for line in (proc / str(pid) / "net" / name).read_text(encoding="ascii").splitlines()[1:]:
                fields = line.split()
                if fields[3] == _LISTENING and fields[9] in inodes:
                    ports.add(int(fields[1].rpartition(":")[2], 16))
    return ports


def _get(url: str) -> Any:
    import urllib.request  # `run_spark --help` comes sooner without

    # A proxy of the environment has no business with this host.
    opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))
    with opener.open(url, timeout=_TIMEOUT_S) as answer:
        return json.loads(answer.read(_MOST_BYTES))
