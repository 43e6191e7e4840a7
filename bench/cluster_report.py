"""Days on a cluster as tables: what a run cost, in all and by part, beside the same day
by processes.
"""

from __future__ import annotations

import os
import statistics
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

from bench import profiled_daemon
from bench.event_log import Application
from bench.meter import Cost
from bench.roles import DAEMONS, IN_CLIENT, IN_CONTAINERS, PARTS, Use
from cmsspark.base.text.terminal import table

BEGIN, END = "<!-- cluster: written by bench/cluster.py -->", "<!-- end of the cluster -->"
_HEAD = (
    *(
        "records",
        "job",
        "way",
        "wall s",
        "CPU s",
        "driver",
        "AM",
        "executor",
        "Python",
        "DataNode",
        "jobs",
        "stages",
    ),
    *("tasks", "files", "moved MB", "runs s", "driver s", "heap GB", "Python GB", "load"),
)


@dataclass
class Result:
    """A run: what it cost in all, its application on YARN, and what its containers used."""

    records: int
    job: str
    way: str
    cost: Cost
    files: int
    application: Application | None = None
    uses: dict[str, Use] | None = None

    @property
    def cpu_s(self) -> float:
        """CPU seconds of the client, the driver and all containers, without the cluster's daemons."""
        return self.cost.cpu_s + self._sum(*IN_CONTAINERS)

    def _sum(self, *roles: str) -> float:
        return sum(use.cpu_s for role, use in (self.uses or {}).items() if role in roles)

    @property
    def name(self) -> str:
        """What was run, for a table's head."""
        return (
            f"{self.records:,} records, {self.job}, {self.way}"
            if self.records
            else f"nothing, {self.way}"
        )

    def parts(self) -> dict[str, float]:
        """CPU seconds by part, where there are any: roles of processes, and for JVMs
        their threads.
        """
        parts: dict[str, float] = {}
        for role in (*IN_CLIENT, *IN_CONTAINERS):
            use = (self.uses or {})[role]
            parts[role] = use.cpu_s
            # A thread that has ended since the last sample is in the sum of its process only.
            for part in (*PARTS, *profiled_daemon.PARTS):
                parts[f"– {role}: {part}"] = use.threads.get(part, 0.0)
        parts["not seen (ended between two samples)"] = self.cost.cpu_s - self._sum(*IN_CLIENT)
        parts["sum"] = self.cpu_s
        parts["DataNode and other daemons"] = self._sum(*DAEMONS)
        return parts

    def cells(self) -> tuple[str, ...]:
        """A line of the table."""
        first = (
            f"{self.records:,}",
            self.job,
            self.way,
            f"{self.cost.wall_s:.1f}",
            f"{self.cpu_s:.1f}",
        )
        load = f"{self.cost.load:.1f}"
        if self.application is None or self.uses is None:
            peak = f"{self.cost.peak_bytes / 1e9:.2f}"
            return (*first, *("",) * 8, str(self.files), *("",) * 4, peak, load)
        found, uses = self.application, self.uses
        python = self._sum("Python daemon", "Python workers")
        parts = (
            uses["master JVM"].cpu_s,
            uses["executor JVM"].cpu_s,
            python,
            uses["DataNode"].cpu_s,
        )
        return (
            *first,
            *(f"{seconds:.1f}" for seconds in (self.cost.cpu_s, *parts)),
            *map(str, (found.jobs, found.stages, found.tasks, self.files)),
            f"{found.shuffle_bytes / 1e6:.1f}",
            f"{found.running_s:.1f}",
            f"{found.driver_s:.1f}",
            f"{uses['executor JVM'].peak_bytes / 1e9:.2f}",
            f"{uses['Python workers'].peak_bytes / 1e9:.2f}",
            load,
        )


def medians(results: Sequence[Result]) -> list[str]:
    """A line for each way of a day on YARN: medians of the seconds that it runs and of
    the driver's own.
    """
    runs: dict[str, list[Application]] = {}
    for result in results:
        if result.application is not None:
            runs.setdefault(result.name, []).append(result.application)
    return [
        f"{name}: {statistics.median(application.running_s for application in applications):.1f} s from RUNNING to the"
        f" end, {statistics.median(application.driver_s for application in applications):.1f} s of them the driver's"
        f" own (of {len(applications)})"
        for name, applications in runs.items()
    ]


def parts(results: Sequence[Result]) -> tuple[tuple[str, ...], list[tuple[str, ...]]]:
    """The head and the rows of a table: median CPU seconds of each part of the
    applications, without empty rows.
    """
    columns: dict[str, list[dict[str, float]]] = {}
    for result in results:
        if result.uses is not None:
            columns.setdefault(result.name, []).append(result.parts())
    names = next(iter(columns.values()))[0]
    rows = [
        (name, [statistics.median(run[name] for run in runs) for runs in columns.values()])
        for name in names
    ]
    lines = [
        (name, *(f"{value:.1f}" for value in values))
        for name, values in rows
        if max(map(abs, values)) >= 0.05
    ]
    return ("CPU s", *columns), lines


def ratios(results: Sequence[Result]) -> list[str]:
    """A line for each day: its CPU seconds on YARN beyond an empty application, beside
    those by processes.
    """
    empty = [result.cpu_s for result in results if not result.records]
    lines = []
    for records, job in dict.fromkeys(
        (result.records, result.job) for result in results if result.records
    ):
        warm = [
            result
            for result in results
            if (result.records, result.job) == (records, job) and result.way.endswith("warm")
        ]
        by_processes = statistics.median(result.cpu_s for result in warm if result.uses is None)
        on_yarn = statistics.median(result.cpu_s for result in warm if result.way == "YARN, warm")
        beyond = on_yarn - statistics.median(empty)
        lines.append(
            f"{records:,} records, {job}: {on_yarn:.1f} CPU s on YARN, {on_yarn / by_processes:.2f} times the "
            f"{by_processes:.1f} of processes; {beyond:.1f} beyond an empty application, "
            f"{beyond / by_processes:.2f} times"
        )
    return lines


def written(results: Sequence[Result], cpus: int) -> str:
    """The table as Markdown."""
    lines = [f"| {' | '.join(_HEAD)} |", f"| {' | '.join('---' for _ in _HEAD)} |"]
    lines += [f"| {' | '.join(one.cells())} |" for one in results]
    return "\n".join(
        (
            BEGIN,
            f"{cpus} cores, one node of YARN with one executor, {os.cpu_count()} CPUs.",
            "",
            *lines,
            END,
        )
    )


def write(doc: Path, text: str) -> None:
    """Put the table between its marks, or at the end of the file."""
    old = doc.read_text(encoding="utf-8")
    if BEGIN in old:  # noqa: SIM108
        old = old[: old.index(BEGIN)] + text + old[old.index(END) + len(END) :]
    else:
        old = f"{old.rstrip()}\n\n{text}\n"
    doc.write_text(old, encoding="utf-8")


def report(results: Sequence[Result]) -> str:
    """All tables as text."""
    runs = [*table(_HEAD, [run.cells() for run in results], full=(0,)), "", *medians(results)]
    return "\n".join((*runs, "", *table(*parts(results), full=(0,)), "", *ratios(results)))
