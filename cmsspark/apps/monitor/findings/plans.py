"""Findings on what a program asks of Spark: joins, sorts, files, caches."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Final

from cmsspark.apps.monitor.logs import plans
from cmsspark.base.text.terminal import volume
from cmsspark.store.run_metrics import Finding, Query, RunMetrics

MB: Final = 1_000_000
MIB: Final = 1 << 20
#: DataFlint: more than 100 files below 3 MiB.
SMALL_FILES: Final = 100
SMALL_FILE_BYTES: Final = 3 * MIB
PAIRS: Final = 1_000_000
#: A row of the larger side is compared with so many: below that a product is a look at
#: a small table.
PAIRED_ROWS: Final = 100
#: With so many pairs even a look at a small table takes minutes.
MANY_PAIRS: Final = 1_000_000_000
#: ``spark.sql.autoBroadcastJoinThreshold`` of Spark; DataFlint goes higher beside very
#: large tables.
SMALL_SIDE: Final = 10 * MIB
LARGE_SIDES: Final = ((1 << 40, 5 << 30), (300 << 30, 1000 * MIB), (10 << 30, 100 * MIB))
#: A smaller table saves nothing that could be noticed.
LEAST_LARGE: Final = MIB
SIDES_FACTOR: Final = 10
SORTED_ROWS: Final = 100_000

Nodes = Mapping[tuple[str, str], int | None]


def plan_findings(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield the findings of queries, RDDs, and files that a job reported."""
    for query in metrics.queries:
        where = f"SQL {query.execution}, {query.description}"
        nodes: Nodes = {(kind, text): value for kind, text, value in query.nodes}
        yield from _joins(nodes, where)
        yield from _sorts(query, where)
        for files, size, verb in (
            (plans.FILES_READ, plans.BYTES_READ, "read"),
            (plans.FILES_WRITTEN, plans.BYTES_WRITTEN, "written"),
        ):
            for (kind, text), count in nodes.items():
                total = nodes.get((size, text))
                if kind == files and count and total is not None:
                    yield from _small_files(count, total, verb, where)
    for stage in metrics.stages:
        # Each task of saveAsTextFile() and its like writes one file; queries count
        # theirs in their plans.
        if "SparkHadoopWriter" in stage.name and stage.totals.output_bytes:
            yield from _small_files(
                stage.task_count, stage.totals.output_bytes, "written", f"stage {stage.stage}"
            )
    for entry in metrics.reported:
        yield from _small_files(
            entry.input_files, entry.input_bytes, "read", f"{entry.job} of {entry.day}"
        )
    yield from _rdds(metrics)


def _joins(nodes: Nodes, where: str) -> Iterator[Finding]:
    for (kind, text), value in nodes.items():
        name = text.split(" ")[0].split("(")[0]
        if kind == plans.PAIRS and value is not None:
            smaller = nodes.get((plans.SMALLER_ROWS, text))
            least = PAIRS if smaller is None or smaller >= PAIRED_ROWS else MANY_PAIRS
            if value >= least and (smaller is None or smaller > 1):
                title = f"{name} compared {value:,} pairs of rows"
                yield Finding(
                    "cartesian_join",
                    title,
                    where,
                    "join on equal keys, or filter both sides before",
                )
        elif kind == plans.SMALL_SIDE and value is not None:
            large = nodes.get((plans.LARGE_SIDE, text)) or 0
            limit = next(
                (small for large_side, small in LARGE_SIDES if large > large_side), SMALL_SIDE
            )
            if value < limit and large >= LEAST_LARGE and large >= SIDES_FACTOR * value:
                title = f"{name} shuffled {volume(large)} to join {volume(value)}"
                cure = (
                    "broadcast(small table) in the join, or spark.sql.autoBroadcastJoinThreshold above its size: then "
                    "the large table is not shuffled"
                )
                yield Finding("small_join_side", title, where, cure)


def _sorts(query: Query, where: str) -> Iterator[Finding]:
    for kind, _, value in query.nodes:
        least = {plans.SORT_LIMITED: SORTED_ROWS, plans.SORT_COLLECTED: 0}.get(kind)
        # A sort below a limit is named even where nothing counts its rows.
        if least is not None and (least if value is None else value) >= SORTED_ROWS:
            rows = f"{value:,} rows" if value else "all rows"
            goal = (
                "of which few are kept"
                if kind == plans.SORT_LIMITED
                else "which all went to the driver"
            )
            cure = "orderBy(…).limit(n) keeps n rows of each partition; write all rows instead of collecting them"
            yield Finding("sort_for_first_rows", f"{rows} were sorted, {goal}", where, cure)


def _rdds(metrics: RunMetrics) -> Iterator[Finding]:
    for kind, callsite, shuffled in metrics.rdd_hints:
        # A run that failed may not have come to what reads it again.
        if kind == plans.CACHED_ONCE and metrics.state != "FAILED" and not metrics.failed_jobs:
            cure = "leave cache() or persist() out, or unpersist() when it is read: it takes memory from others"
            yield Finding("cached_unused", "cached, and read once only", callsite, cure)
        elif kind == plans.SORTED_FOR_FIRST and (shuffled or 0) >= MB:
            cure = "takeOrdered(n) or top(n) instead of sortBy(…).take(n)"
            title = f"{volume(shuffled)} were shuffled to sort an RDD for its first rows"
            yield Finding("sort_for_first_rows", title, callsite, cure)


def _small_files(count: int, size: int, verb: str, where: str) -> Iterator[Finding]:
    if count >= SMALL_FILES and size < SMALL_FILE_BYTES * count:
        cure = (
            "coalesce(n) before it is written"
            if verb == "written"
            else "merge them where they are written"
        )
        yield Finding(
            "small_files",
            f"{count:,} files of {volume(size / count)} each were {verb}",
            where,
            cure,
        )
