"""Measured costs as tables for people."""

from __future__ import annotations

import os
import platform
import statistics
import subprocess
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from importlib.metadata import version
from pathlib import Path

from bench.inputs import Day
from bench.meter import Cost
from cmsspark.base import dates

BEGIN, END = "<!-- measured: written by bench/daily.py -->", "<!-- end of what was measured -->"
_HEAD = (
    "day",
    "log GB",
    "engine",
    "runs",
    "wall s",
    "GB/s",
    "CPU s",
    "peak GB",
    "CPU s / M",
    "wall / DuckDB",
    "wall / Polars",
    "load",
)
_NAMES = {
    "cold": "cmsspark, cold",
    "warm": "cmsspark, warm",
    "spark": "cmsspark, Spark",
    "second": "cmsspark, a second report",
    "duckdb": "DuckDB",
    "polars": "Polars",
    "chdb": "ClickHouse (chDB)",
}


@dataclass
class Row:
    """A day and what each engine cost on it, run by run. ``disk``: the bytes a second of
    a part that is read past the page cache.
    """

    day: Day
    log_bytes: int
    costs: dict[str, list[Cost]]
    disk: float | None = None

    def median(self, engine: str, figure: Callable[[Cost], float]) -> float:
        """The median of one figure over the runs of an engine."""
        return statistics.median(figure(cost) for cost in self.costs[engine])


def cost(run: Cost) -> str:
    """One run in a line."""
    return f"{run.wall_s:6.2f} s wall  {run.cpu_s:6.2f} s CPU  {run.peak_bytes / 1e9:5.2f} GB  (load {run.load:.1f})"


def table(rows: Sequence[Row]) -> str:
    """Medians of all engines on all days, as a Markdown table, and the slopes below it."""
    cells = [_HEAD, *(_cells(row, engine) for row in rows for engine in row.costs)]
    widths = [max(len(line[column]) for line in cells) for column in range(len(_HEAD))]
    lines = ["| " + " | ".join(map(str.ljust, line, widths)) + " |" for line in cells]
    lines.insert(1, "| " + " | ".join("-" * width for width in widths) + " |")
    disks = [row.disk for row in rows if row.disk is not None]
    if disks:
        rate = f"{statistics.median(disks) / 1e9:.1f} GB/s"
        lines += ["", f"*GB/s* are those of the logs, from the page cache; the disk gives {rate}."]
    return "\n".join([*lines, *_slopes(rows)])


def _cells(row: Row, engine: str) -> tuple[str, ...]:
    wall = row.median(engine, lambda run: run.wall_s)
    cpu = row.median(engine, lambda run: run.cpu_s)
    ratios = [
        f"{wall / row.median(peer, lambda run: run.wall_s):.2f}" if peer in row.costs else ""
        for peer in _RIVALS
    ]
    peak = row.median(engine, lambda run: run.peak_bytes) / 1e9
    load = max(run.load for run in row.costs[engine])
    cells = (
        row.day.name,
        f"{row.log_bytes / 1e9:.2f}",
        _NAMES[engine],
        str(len(row.costs[engine])),
    )
    return (
        *cells,
        f"{wall:.2f}",
        f"{row.log_bytes / 1e9 / wall:.2f}",
        f"{cpu:.1f}",
        f"{peak:.2f}",
        f"{cpu / row.day.records * 1e6:.2f}",
        *ratios,
        f"{load:.1f}",
    )


_RIVALS = ("duckdb", "polars")


def _slopes(rows: Sequence[Row]) -> list[str]:
    """CPU seconds for each million records more, from the smallest to the largest day of a form."""
    lines = []
    for is_packed in (False, True):
        days = sorted(
            (row for row in rows if row.day.gzip == is_packed), key=lambda row: row.day.records
        )
        if len(days) < 2 or days[0].day.records == days[-1].day.records:
            continue
        first, last = days[0], days[-1]
        millions = (last.day.records - first.day.records) / 1e6
        for engine in first.costs:
            per = (
                last.median(engine, lambda run: run.cpu_s)
                - first.median(engine, lambda run: run.cpu_s)
            ) / millions
            packed = "gzip" if is_packed else "plain"
            peaks = [row.median(engine, lambda run: run.peak_bytes) for row in (first, last)]
            lines.append(
                f"- {_NAMES[engine]}, {packed}: {per:.2f} CPU s for each million records more; "
                f"{peaks[1] / peaks[0]:.2f} × the memory of the smallest day"
            )
    return ["", *lines] if lines else []


def machine(cpus: int) -> str:
    """What it was measured on, and with which versions."""
    model = next(
        (
            line.split(":")[1].strip()
            for line in _lines("/proc/cpuinfo")
            if line.startswith("model name")
        ),
        "",
    )
    memory = next(
        int(line.split()[1]) for line in _lines("/proc/meminfo") if line.startswith("MemTotal")
    )
    packages = ", ".join(
        f"{name} {version(name)}" for name in ("pyspark", "duckdb", "polars", "pyarrow", "msgspec")
    )
    return (
        f"{model or platform.machine()}, {cpus} of {os.cpu_count()} CPUs, {memory / 1e6:.0f} GB; "
        f"Linux {platform.release()}; {_java()}; Python {platform.python_version()}; {packages}."
    )


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines()


def _java() -> str:
    said = subprocess.run(
        ["java", "-version"], capture_output=True, text=True, check=False
    ).stderr.splitlines()
    return said[0] if said else "Java"


def write(path: Path, rows: Sequence[Row], cpus: int) -> None:
    """Put the tables between the marks of ``path``; the text around them stays."""
    when = dates.to_minute(dates.now_ms())
    text = f"Measured {when}, medians of runs in turns. {machine(cpus)}\n\n{table(rows)}"
    between(path, BEGIN, END, text)


def between(path: Path, begin: str, end: str, content: str) -> None:
    """Put ``content`` between two marks of ``path``; the text around them stays.
    Without the marks it comes last.
    """
    text = path.read_text() if path.exists() else "# Performance\n"
    if begin not in text:
        text = f"{text.rstrip()}\n\n{begin}\n{end}\n"
    before, _, following = text.partition(begin)
    _, _, after = following.partition(end)
    path.write_text(f"{before}{begin}\n\n{content}\n\n{end}{after}")
