"""Preparation of events against Spark's higher-order functions: ``python -m
bench.events`` from the top of a checkout.

Made events of all classes, two local cores, each way by turns: ROOT files by the
compiled pass in tasks, written as Parquet; and the same events, already as Parquet of
arrays, by higher-order functions, written nowhere. Prints events a second, the ratios
of the medians, the memory of the largest worker, and how far the numbers of both
differ.
"""

from __future__ import annotations

import argparse
import os
import statistics
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from bench.peers import events_higher_order
from cmsspark.apps.events.definition import default_definition
from cmsspark.apps.events.demo_run import MODELS, make_events, write_tree
from cmsspark.apps.events.layout import TOPOLOGY
from cmsspark.apps.events.prepare import PrepareTask, RangeResult, run_tasks
from cmsspark.apps.events.root_files import EntryRange, estimate_bytes, sample_parts, to_matrix

CORES = 2
#: How often each file is read for features without the matrix.
HLF_COPIES = 4


def make(folder: Path, events: int) -> list[EntryRange]:
    """The same events as a ROOT file and as Parquet for each class; the entry ranges of
    the ROOT files.
    """
    ranges = []
    for label, (name, model) in enumerate(MODELS.items()):
        events_of_class = make_events(model, events, np.random.default_rng(label))
        path = folder / f"{name}.root"
        write_tree(path, events_of_class)
        # As many files as tasks: neither way waits for the last one of the other's.
        for number in range(CORES):
            edges = (events * number // CORES, events * (number + 1) // CORES)
            ranges.append(EntryRange(str(path), label, *edges))
            part = {column: rows[edges[0] : edges[1]] for column, rows in events_of_class.items()}
            events_higher_order.write_parquet(part, str(folder / f"{name}_{number}.parquet"))
    return ranges


def fused(
    spark: Any, ranges: list[EntryRange], folder: Path, *, low_level: bool
) -> list[RangeResult]:
    """Run the tasks of the preparation."""
    folder.mkdir(exist_ok=True)
    for path in folder.iterdir():
        path.unlink()
    layout = TOPOLOGY if low_level else TOPOLOGY.without_matrix()
    task, size = PrepareTask(default_definition(), layout, str(folder)), estimate_bytes(ranges)
    return run_tasks(spark, task, list(enumerate(ranges)), RangeResult, size, "preparing")


def higher_order(spark: Any, folder: Path, copies: int, *, low_level: bool) -> None:
    """Compute the same by expressions, and throw it away."""
    way = events_higher_order.with_matrix if low_level else events_higher_order.with_hlf
    names = ["hlf", "low_level"] if low_level else ["hlf"]
    paths = sorted(str(path) for path in folder.glob("*.parquet")) * copies
    way(spark.read.parquet(*paths)).select(*names).write.format("noop").mode("overwrite").save()


def timed(work: Callable[[], Any]) -> float:
    began = time.perf_counter()
    work()
    return time.perf_counter() - began


def difference(spark: Any, folder: Path, written: Path) -> tuple[int, float]:
    """The number of events that are compared, and the largest relative difference of a
    value between both ways.
    """
    import pyarrow.parquet as pq

    rows = events_higher_order.with_matrix(
        spark.read.parquet(str(folder / "qcd_0.parquet"))
    ).limit(200)
    theirs = {
        row["number"]: (row["hlf"], row["low_level"])
        for row in rows.select("number", "hlf", "low_level").collect()
    }
    worst, compared = 0.0, 0
    for part in sample_parts(written):
        table = pq.read_table(part)
        if not table["file"][0].as_py().endswith("qcd.root"):
            continue
        hlf, matrix = (
            to_matrix(table["hlf"], TOPOLOGY.hlf_count),
            to_matrix(table["low_level"], TOPOLOGY.matrix),
        )
        for place, entry in enumerate(table["entry"].to_pylist()):
            if entry in theirs:
                compared += 1
                for ours, other in zip((hlf[place], matrix[place]), theirs[entry], strict=True):
                    worst = max(
                        worst, float(np.max(np.abs(ours - other) / np.maximum(1, np.abs(ours))))
                    )
    return compared, worst


def compare(
    spark: Any, folder: Path, ranges: list[EntryRange], events: int, repeats: int, low_level: bool
) -> int:
    """Run both ways by turns and print their rates; the memory of the largest worker of ours."""
    # Features alone take so little time that starting jobs would be most of it.
    copies, written = (1 if low_level else HLF_COPIES), folder / "written"
    ranges, total = ranges * copies, events * copies
    # Compiled code is loaded, expressions are compiled.
    fused(spark, ranges, written, low_level=low_level)
    higher_order(spark, folder, 1, low_level=low_level)
    ours, theirs, memory = [], [], 0
    for _ in range(repeats):
        began = time.perf_counter()
        results = fused(spark, ranges, written, low_level=low_level)
        ours.append(time.perf_counter() - began)
        memory = max(memory, *(result.memory for result in results))
        theirs.append(timed(lambda: higher_order(spark, folder, copies, low_level=low_level)))
    rates = [total / statistics.median(times) for times in (ours, theirs)]
    what, wanted = ("HLF + matrix", "5, and 4,000 events/s") if low_level else ("HLF", "3")
    print(
        f"{what:<13}{total:>8,} events: fused {rates[0]:>8,.0f} events/s   higher-order {rates[1]:>8,.0f} events/s   "
        f"ratio {rates[0] / rates[1]:.1f} (wanted: {wanted})",
        flush=True,
    )
    return memory


def main() -> None:
    parser = argparse.ArgumentParser(
        description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("--events", type=int, default=4_000, help="events of each class")
    parser.add_argument("--repeats", type=int, default=3, help="runs of each, the medians count")
    arguments = parser.parse_args()
    from cmsspark.apps.events.score_files import quiet_options
    from cmsspark.engines.session import session

    options = {
        "spark.master": f"local[{CORES}]",
        "spark.ui.enabled": "false",
        "spark.driver.memory": "2g",
    }
    spark = session("bench events", **options, **quiet_options())
    with tempfile.TemporaryDirectory(prefix="bench-events-") as name:
        folder = Path(name)
        ranges = make(folder, arguments.events)
        print(
            f"{CORES} cores, load {os.getloadavg()[0]:.1f}, {arguments.repeats} runs", flush=True
        )
        memory = max(
            compare(spark, folder, ranges, 3 * arguments.events, arguments.repeats, low_level)
            for low_level in (False, True)
        )
        print(f"memory of the largest worker: {memory / 1e9:.2f} GB (wanted: 1.5 at most)")
        compared, worst = difference(spark, folder, folder / "written")
        print(
            f"largest relative difference: {worst:.1e} in {compared} events (wanted: 3e-5 at most)"
        )
    spark.stop()


if __name__ == "__main__":
    main()
