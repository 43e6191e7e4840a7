"""What cost a run time or memory, or ended it, each with the cause and what to change. A healthy run has none.

:data:`CODES` lists them; the thresholds are in ``docs/monitoring.md``.
"""

from __future__ import annotations

import re
from collections.abc import Iterator
from typing import Final

from cmsspark.apps.monitor import event_plans as plans
from cmsspark.apps.monitor.findings_driver import CODES_OF_DRIVER, driver_findings
from cmsspark.apps.monitor.memory_sizes import executor_container, parallel_tasks
from cmsspark.base.text.terminal import volume
from cmsspark.store.run_metrics import Finding, RunMetrics, StageEntry

MB: Final = 1_000_000
#: A finding's code → its meaning.
CODES: Final[dict[str, str]] = {
    **CODES_OF_DRIVER,
    "skewed_stage": "one task of a stage read or ran many times as much as the others",
    "spill": "tasks wrote what did not fit into memory to disk",
    "gc": "the JVM collected garbage for more than 10 % of the tasks' time",
    "few_tasks": "a long stage had fewer tasks than cores",
    "executor_too_large": "an executor is larger than the smallest node",
    "small_files": "many small files were read or written",
    "cartesian_join": "a join made every pair of rows",
    "sort_for_first_rows": "all rows were sorted where the first ones are meant",
    "cached_unused": "something is cached and read by one action only",
    "container_killed": "a container was killed, most likely for its memory",
}
SKEW_FACTOR: Final = 5
SKEW_BYTES: Final = 32 * MB
SKEW_MS: Final = 20_000
SPILL_BYTES: Final = MB
GC_SHARE: Final = 0.10
#: Below this much time of tasks a share of it is noise.
GC_LEAST_MS: Final = 20_000
FEW_TASKS_MS: Final = 30_000
SMALL_FILES: Final = 100
SMALL_FILE_BYTES: Final = MB
PRODUCT_ROWS: Final = 1_000_000
SORTED_ROWS: Final = 100_000
_MOST_OF_A_KIND: Final = 5
_KILLED: Final = re.compile(
    r"[Ee]xit (?:code|status):? (?:is |from container \S+ is ?:? ?)?(?P<code>137|143)(?!\d)"
    r"|(?:exited with code|code) (?P<short>137|143)(?!\d)"
    r"|beyond (?:the )?'?(?:physical|virtual)'? memory|[Cc]ontainer killed|OOMKilled"
)


def find(metrics: RunMetrics) -> list[Finding]:
    """The findings of a run, errors first; at most five of a kind."""
    found = [*driver_findings(metrics), *_of_executors(metrics), *_of_stages(metrics), *_of_plans(metrics)]
    counts: dict[str, int] = {}
    kept = []
    for finding in sorted(found, key=lambda finding: finding.severity != "error"):
        counts[finding.code] = counts.get(finding.code, 0) + 1
        if counts[finding.code] <= _MOST_OF_A_KIND:
            kept.append(finding)
    return kept


def _of_stages(metrics: RunMetrics) -> Iterator[Finding]:
    for stage in metrics.stages:
        yield from _skew(stage)
        if stage.totals.disk_spilled_bytes >= SPILL_BYTES:
            yield _spill(stage)
        # A stage that was never submitted, such as one that failed before, has no duration.
        duration, cores = stage.duration_ms or 0, parallel_tasks(metrics, stage)
        if duration >= FEW_TASKS_MS and 0 < stage.task_count < cores:
            yield Finding(
                "few_tasks",
                f"{stage.task_count} tasks on {cores} cores, for {duration / 1000:.0f} s",
                _where(stage),
                f"repartition({cores} or more) before it, or a larger spark.sql.shuffle.partitions / minPartitions",
            )
    totals = metrics.totals
    if totals.run_ms >= GC_LEAST_MS and totals.gc_ms > GC_SHARE * totals.run_ms:
        yield Finding(
            "gc",
            f"{totals.gc_ms / totals.run_ms:.0%} of the tasks' time was garbage collection",
            "all stages",
            "more heap for an executor (cmsspark lab advise), fewer cores in it, or columns instead of rows of objects",
        )


def _skew(stage: StageEntry) -> Iterator[Finding]:
    if stage.totals.tasks - stage.totals.failed_tasks < 4:
        return
    who = f"task {stage.largest_task} on {stage.largest_task_host}"
    cure = "spread the key (salt it, or aggregate in two steps); spark.sql.adaptive.skewJoin.enabled splits joins"
    for kind, spread in (("read from the shuffle", stage.shuffle_read_bytes), ("of input", stage.input_bytes)):
        # Where most tasks get nothing, a median of 0 would make everything skewed.
        if spread.max >= SKEW_BYTES and spread.max >= SKEW_FACTOR * max(spread.median, MB):
            title = f"one task has {volume(spread.max)} {kind}, the median {volume(spread.median)}"
            yield Finding("skewed_stage", f"{title} ({who})", _where(stage), cure)
            return
    times = stage.task_ms
    # On a busy host a task may take long for nothing: more work must be seen, too.
    spreads = (stage.shuffle_read_bytes, stage.input_bytes)
    has_more = any(spread.max >= MB and spread.max >= 2 * spread.median for spread in spreads)
    if has_more and times.max >= SKEW_MS and times.max >= SKEW_FACTOR * max(times.median, 1000):
        title = f"one task ran {times.max / 1000:.0f} s, the median {times.median / 1000:.1f} s"
        yield Finding("skewed_stage", title, _where(stage), cure)


def _spill(stage: StageEntry) -> Finding:
    totals = stage.totals
    title = f"{volume(totals.disk_spilled_bytes)} spilled to disk ({volume(totals.memory_spilled_bytes)} in memory)"
    cure = "more partitions (spark.sql.shuffle.partitions), fewer cores each, or more memory (cmsspark lab advise)"
    return Finding("spill", title, _where(stage), cure)


def _of_executors(metrics: RunMetrics) -> Iterator[Finding]:
    size, node = executor_container(metrics.options), metrics.smallest_node_bytes
    if size is not None and node is not None and size > node:
        yield Finding(
            "executor_too_large",
            f"an executor takes {volume(size)}, the smallest node has {volume(node)}",
            "spark.executor.memory and its overhead",
            f"at most {volume(node)} for heap and overhead together; such nodes stay without work",
        )
    texts = [(f"executor {entry.executor} on {entry.host}", entry.reason or "") for entry in metrics.executors]
    texts += [("the driver's log", line) for line in metrics.log_lines]
    texts += [("tasks", line) for line in metrics.failures]
    for where, text in texts:
        if (match := _KILLED.search(text)) is None or "killed by driver" in text:
            continue
        code = match["code"] or match["short"]
        yield Finding(
            "container_killed",
            f"killed{f' (exit {code})' if code else ''}: {' '.join(text.split())[:160]}",
            where,
            "spark.executor.memoryOverhead × 1.5: its last peak is missing, so it needed at least what was seen",
            "error",
        )
        return


def _of_plans(metrics: RunMetrics) -> Iterator[Finding]:
    for query in metrics.queries:
        values = {(kind, text): value for kind, text, value in query.nodes}
        where = f"SQL {query.execution}, {query.description}"
        for (kind, text), value in values.items():
            if kind == plans.CARTESIAN and (value or 0) >= PRODUCT_ROWS:
                title = f"{text} made {value:,} rows"
                yield Finding("cartesian_join", title, where, "join on equal keys, or filter both sides before")
            elif kind == plans.SORT_LIMITED or (kind == plans.SORT_COLLECTED and (value or 0) >= SORTED_ROWS):
                rows = f"{value:,} rows" if value else "all rows"
                goal = "of which few are kept" if kind == plans.SORT_LIMITED else "which all went to the driver"
                cure = "orderBy(…).limit(n) keeps n rows of each partition; write all rows instead of collecting them"
                yield Finding("sort_for_first_rows", f"{rows} were sorted, {goal}", where, cure)
        for files, size, verb in (
            (plans.FILES_READ, plans.BYTES_READ, "read"),
            (plans.FILES_WRITTEN, plans.BYTES_WRITTEN, "written"),
        ):
            for (kind, text), count in values.items():
                volume_of = values.get((size, text))
                if kind == files and count and volume_of is not None:
                    yield from _small_files(count, volume_of, verb, where)
    for entry in metrics.reported:
        yield from _small_files(entry.input_files, entry.input_bytes, "read", f"{entry.job} of {entry.day}")
    for kind, callsite, shuffled in metrics.rdd_hints:
        if kind == plans.CACHED_ONCE:
            cure = "leave cache() or persist() out, or unpersist() when it is read: it takes memory from others"
            yield Finding("cached_unused", "cached, and read by one action only", callsite, cure)
        elif kind == plans.SORTED_FOR_FIRST and (shuffled or 0) >= MB:
            cure = "takeOrdered(n) or top(n) instead of sortBy(…).take(n)"
            yield Finding(
                "sort_for_first_rows",
                f"{volume(shuffled)} were shuffled to sort an RDD for its first rows",
                callsite,
                cure,
            )


def _small_files(count: int, size: int, verb: str, where: str) -> Iterator[Finding]:
    if count >= SMALL_FILES and size < SMALL_FILE_BYTES * count:
        cure = "coalesce(n) before it is written" if verb == "written" else "merge them where they are written"
        yield Finding("small_files", f"{count:,} files of {volume(size / count)} each were {verb}", where, cure)


def _where(stage: StageEntry) -> str:
    return f"stage {stage.stage}{f'.{stage.attempt}' if stage.attempt else ''}, {stage.name}"
