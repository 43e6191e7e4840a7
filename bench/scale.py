"""A model of days on clusters that we do not have: ``python -m bench.scale`` from the
top of a checkout.

Sums what each phase of a day takes on N nodes from costs that were measured on this
machine (docs/performance.md), and names the phase that takes the longest. It checks
itself against days that were measured.
"""

from __future__ import annotations

import argparse
from collections.abc import Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cmsspark.base.text.terminal import table

BEGIN, END = "<!-- scale: written by bench/scale.py -->", "<!-- end of the scale -->"


@dataclass(frozen=True)
class Costs:
    """What was measured. CPU seconds are those of one core of this machine."""

    #: A million records from raw JSON to aggregated rows, by workers that open the
    #: files (bench.daily, marginal).
    record_cpu_s: float = 2.66
    #: A GB of logs on HDFS that workers read with the extra ``hdfs``, besides (0.32 CPU
    #: s on 0.22 GB), and a GB of lines of dumps that Spark reads and passes to the
    #: workers (20 CPU s on 7 GB).
    feed_cpu_s_per_gb: float = 1.5
    lines_cpu_s_per_gb: float = 2.9
    #: A million files of DBS from CSV to the index, and a million rows hashed and moved
    #: by the shuffle join.
    index_cpu_s: float = 1.4
    join_cpu_s: float = 3.0
    #: Bytes of a file in the index, and of a row that the shuffle join moves.
    index_bytes: float = 13.0
    join_bytes: float = 60.0
    #: Start of run_spark, the application and the first executor; of an executor's
    #: Python with its first task.
    start_s: float = 16.0
    executor_s: float = 9.0
    #: Scheduling of a task by the driver, and its start in a worker that runs.
    task_s: float = 0.004
    worker_s: float = 0.15
    #: Listing of a thousand files: a call of the NameNode and its values in Python.
    listing_s: float = 0.012
    #: Rows of partials for each million records, at most so many, and CPU of a million
    #: rows merged, read and written.
    partial_rows: float = 55_000.0
    most_partials: float = 3_000_000.0
    merge_cpu_s: float = 6.0
    write_cpu_s: float = 4.0


@dataclass(frozen=True)
class Cluster:
    """Nodes and what we get of them: cores for executors, and bytes a second of network
    and disk of a node.

    ``driver_rate``: of the host of the driver. ``nodes`` 0: processes of one host, without Spark.
    """

    nodes: int
    cores: int = 16
    node_rate: float = 600e6
    driver_rate: float = 1.1e9
    driver_cores: int = 4

    @property
    def all_cores(self) -> int:
        """Cores of all executors."""
        return max(1, self.nodes) * self.cores


@dataclass(frozen=True)
class Load:
    """A day: records, bytes and files of logs, bytes of all dumps, and files in DBS."""

    name: str
    records: float
    log_bytes: float
    log_files: int
    dump_bytes: float
    dbs_files: float
    dump_parts: int = 500

    def times(self, factor: int, name: str) -> Load:
        """A day of so many times this one."""
        return replace(
            self,
            name=name,
            records=self.records * factor,
            log_bytes=self.log_bytes * factor,
            log_files=self.log_files * factor,
            dump_bytes=self.dump_bytes * factor,
            dbs_files=self.dbs_files * factor,
            dump_parts=self.dump_parts * factor,
        )


#: The paper's day: 130 million records; dumps of 300 GB, of which FILES is two thirds
#: with some 280 bytes a row.
PAPER = Load("130 M records, 300 GB of dumps", 130e6, 236e9, 4_000, 300e9, 700e6)
SMALL_DUMPS = replace(
    PAPER, name="130 M records, 30 GB of dumps", dump_bytes=30e9, dbs_files=70e6, dump_parts=60
)


def phases(
    load: Load, cluster: Cluster, join: str, costs: Costs = Costs(), *, is_shared: bool = True
) -> dict[str, float]:
    """Seconds of each phase. ``join``: ``index`` or ``shuffle``; ``is_shared``:
    executors fetch the index from HDFS.
    """
    cores = cluster.all_cores
    found = {
        "start": costs.start_s + costs.executor_s,
        "listing": (load.log_files + load.dump_parts) / 1e3 * costs.listing_s,
    }
    if join == "index":
        read = max(
            0.75 * load.dump_bytes / cluster.driver_rate, costs.index_cpu_s * load.dbs_files / 1e6
        )
        size = costs.index_bytes * load.dbs_files
        served = cluster.nodes * cluster.node_rate / 3 if is_shared else cluster.driver_rate
        found["index is built"] = read
        found["index is fetched"] = max(
            cluster.nodes * size / max(served, 1.0), size / cluster.node_rate
        )
    scan_cpu = (
        costs.record_cpu_s * load.records / 1e6 + costs.feed_cpu_s_per_gb * load.log_bytes / 1e9
    )
    moved = 0.0
    if join == "shuffle":
        scan_cpu += costs.lines_cpu_s_per_gb * load.dump_bytes / 1e9
        scan_cpu += costs.join_cpu_s * (load.dbs_files + load.records / 4) / 1e6
        moved = costs.join_bytes * (load.dbs_files + load.records / 4)
    read_bytes = load.log_bytes + (load.dump_bytes if join == "shuffle" else 0.0)
    tasks = max(read_bytes / 2e9, min(read_bytes / 128e6, 2.0 * cores))
    waves = -(-tasks // cores)
    longest = scan_cpu / max(1.0, tasks)
    found["scan"] = (
        max(scan_cpu / cores, longest, read_bytes / (cluster.nodes * cluster.node_rate))
        + waves * costs.worker_s
    )
    found["tasks are scheduled"] = tasks * costs.task_s
    found["rows move"] = 2 * moved / (cluster.nodes * cluster.node_rate)
    rows = min(costs.most_partials, costs.partial_rows * load.records / 1e6)
    found["merge"] = costs.merge_cpu_s * rows / 1e6
    found["driver writes"] = costs.write_cpu_s * rows / 1e6
    return found


def estimate(
    load: Load, cluster: Cluster, join: str, *, is_shared: bool = True
) -> tuple[float, str]:
    """Seconds of a day, and the phase that takes the longest besides the scan that more
    nodes shorten.
    """
    found = phases(load, cluster, join, is_shared=is_shared)
    bound = max((name for name in found), key=lambda name: found[name])
    return sum(found.values()), f"{bound} ({found[bound]:,.0f} s)"


def rows() -> list[tuple[str, ...]]:
    """A line for each day and number of nodes, with the minutes of both joins."""
    lines = []
    for load in (SMALL_DUMPS, PAPER, PAPER.times(10, "1.3 G records, 3 TB of dumps")):
        for nodes in (10, 50, 200):
            line = [load.name, str(nodes)]
            for join in ("index", "shuffle"):
                seconds, bound = estimate(load, Cluster(nodes), join)
                line += [f"{seconds / 60:.1f}", bound]
            from_driver, _ = estimate(load, Cluster(nodes), "index", is_shared=False)
            lines.append((*line, f"{from_driver / 60:.1f}"))
    return lines


def checks(costs: Costs = Costs()) -> list[tuple[str, ...]]:
    """Days that were measured beside the model: CPU seconds of the scan, which a busy
    machine changes least.
    """
    lines = []
    for name, records, log_bytes, measured, is_fed, slower in (
        ("8 M on one host by processes, warm", 8e6, 14.55e9, 22.5, False, 1.0),
        ("130 M on one host by processes", 130e6, 236e9, 303.0, False, 1.0),
        # Executor and Python of both days on YARN; the load made a CPU second of
        # processes 2.3 times as long.
        ("0.95 M more on YARN, on a busy machine", 0.95e6, 1.73e9, 11.9, True, 2.3),
    ):
        model = slower * (
            costs.record_cpu_s * records / 1e6 + costs.feed_cpu_s_per_gb * log_bytes / 1e9 * is_fed
        )
        lines.append((name, f"{model:,.0f}", f"{measured:,.0f}", f"{model / measured:.2f}"))
    return lines


_HEAD = (
    "day",
    "nodes",
    "index: minutes",
    "longest phase",
    "shuffle join: minutes",
    "longest phase",
    "index from the driver: minutes",
)
_CHECKED = ("day", "CPU s, model", "CPU s, measured", "ratio")


def written() -> str:
    """Both tables as Markdown."""
    parts = []
    for head, lines in ((_HEAD, rows()), (_CHECKED, checks())):
        parts += [f"| {' | '.join(head)} |", f"| {' | '.join('---' for _ in head)} |"]
        parts += [f"| {' | '.join(line)} |" for line in lines]
        parts.append("")
    return "\n".join((BEGIN, "", *parts, END))


def write(doc: Path) -> None:
    """Put the tables between their marks."""
    old = doc.read_text(encoding="utf-8")
    doc.write_text(
        old[: old.index(BEGIN)] + written() + old[old.index(END) + len(END) :], encoding="utf-8"
    )


def main(arguments: Sequence[str] | None = None) -> None:
    parser = argparse.ArgumentParser(description=__doc__.split("\n\n")[0] if __doc__ else None)
    parser.add_argument(
        "--doc", type=Path, help="write the tables to this file, as docs/scaling.md has them"
    )
    given = parser.parse_args(arguments)
    for head, lines in ((_HEAD, rows()), (_CHECKED, checks())):
        print("\n".join(table(head, lines, full=(0,))), end="\n\n")
    if given.doc:
        write(given.doc)


if __name__ == "__main__":
    main()
