"""What cost a run time or memory, or ended it, each with the cause and what to change.
A healthy run has none.

The thresholds are in ``docs/monitoring.md``, their sources in decision 040.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from typing import Final

from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.apps.monitor.findings import named, node_rules
from cmsspark.apps.monitor.findings.driver import PICKLED, driver_findings
from cmsspark.apps.monitor.findings.failures import failure_findings
from cmsspark.apps.monitor.findings.stages import stage_findings
from cmsspark.apps.monitor.logs import plans
from cmsspark.apps.monitor.memory_sizes import executor_container
from cmsspark.base.entry_points import with_packages
from cmsspark.base.text.terminal import volume
from cmsspark.store.run_metrics import Finding, Query, RunMetrics

# Findings on what a program asks of Spark: joins, sorts, files, caches.

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
#: Time of Python functions on rows: this long, and this share of all tasks' time.
PYTHON_MS: Final = 10_000
PYTHON_SHARE: Final = 0.3
#: Cached blocks fill this share of the memory that executes and caches.
CACHE_SHARE: Final = 0.85
#: Results that came to the driver before it gave rows to Spark again.
RETURNED_BYTES: Final = 4 * MB
RETURNED_SHARE: Final = 0.1

#: Stages whose results are rows for the driver.
COLLECTS: Final = re.compile(r"(?:collect|toPandas|toArrow|toLocalIterator|take|head) at ")
_NOT_CACHED: Final = re.compile(r"Not enough space to cache rdd|Persisting block rdd\S* to disk")

Nodes = Mapping[tuple[str, str], int | None]
#: Kind of a node → the kind with its other number, and the same text.
_PARTNERS: Final = {
    plans.PAIRS: plans.SMALLER_ROWS,
    plans.SMALL_SIDE: plans.LARGE_SIDE,
    plans.JOINED_ROWS: plans.SIDE_ROWS,
    plans.UNFILTERED_ROWS: plans.FILTERED_ROWS,
    plans.SCANNED_ROWS: plans.CHOSEN_ROWS,
    plans.FILES_READ: plans.BYTES_READ,
    plans.FILES_WRITTEN: plans.BYTES_WRITTEN,
}


def plan_findings(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield the findings of queries, RDDs, and files that a job reported."""
    scanned = set()
    for query in metrics.queries:
        where = f"SQL {query.execution}, {query.description}"
        nodes: Nodes = {(kind, text): value for kind, text, value in query.nodes}
        for finding in _nodes(nodes, where):
            yield finding
            if finding.code == "full_scan":
                scanned.add(query.execution)
        yield from _sorts(query, where)
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
    yield from _python(metrics, scanned)
    yield from _full_cache(metrics)
    yield from _returned(metrics)


def _nodes(nodes: Nodes, where: str) -> Iterator[Finding]:
    """Yield what a node does with too many rows, or with rows that it need not have."""
    for (kind, text), value in nodes.items():
        if value is None:
            continue
        name = text.partition(" ")[0].partition("(")[0]
        partner = nodes.get((_PARTNERS.get(kind, ""), text))
        second = partner or 0
        if kind == plans.PAIRS:
            least = PAIRS if partner is None or second >= PAIRED_ROWS else MANY_PAIRS
            if value >= least and (partner is None or second > 1):
                title = f"{name} compared {value:,} pairs of rows"
                yield named("cartesian_join", title, where)
        elif kind == plans.SMALL_SIDE:
            limit = next((small for large, small in LARGE_SIDES if second > large), SMALL_SIDE)
            if value < limit and second >= LEAST_LARGE and second >= SIDES_FACTOR * value:
                title = f"{name} shuffled {volume(second)} to join {volume(value)}"
                yield named("small_join_side", title, where)
        elif (rule := node_rules().get(kind)) and value >= rule.least:
            if second <= rule.share * value:
                words = {"name": name, "value": value, "second": second, "volume": volume(value)}
                yield named(rule.code, rule.title.format(**words), where)
        elif kind in (plans.FILES_READ, plans.FILES_WRITTEN) and value and partner is not None:
            verb = "read" if kind == plans.FILES_READ else "written"
            yield from _small_files(value, partner, verb, where)


def _python(metrics: RunMetrics, scanned: Collection[int]) -> Iterator[Finding]:
    """Yield the query that spent the most time in Python functions on rows. ``scanned``:
    queries that read all partitions for such a function, which is named already.
    """
    spent = [
        (value, query, text)
        for query in metrics.queries
        if query.execution not in scanned
        for kind, text, value in query.nodes
        if kind == plans.PYTHON_MS and value is not None
    ]
    total = sum(value for value, _, _ in spent)
    if not spent or total < PYTHON_MS or total < PYTHON_SHARE * metrics.totals.task_ms:
        return
    _, query, text = max(spent, key=lambda entry: entry[0])
    name = text.partition("[")[2].partition("(")[0]
    title = (
        f"Python functions on rows took {total / 1000:.0f} s of the tasks' time, {name}() the most"
    )
    yield named("python_udf", title, f"SQL {query.execution}, {query.description}")


def _full_cache(metrics: RunMetrics) -> Iterator[Finding]:
    callsite = next((where for kind, where, _ in metrics.rdd_hints if kind == plans.CACHED), None)
    line = next((line for line in metrics.log_lines if _NOT_CACHED.search(line)), None)
    if callsite is None and line is None:
        return
    title = None if line is None else f"blocks of a cache found no room: {line[:120]}"
    fraction = sizes.share(metrics.options.get("spark.memory.fraction"), sizes.FRACTION)
    for entry in metrics.executors if title is None else ():
        role = "driver" if entry.executor == "driver" else "executor"
        room = fraction * max(0, sizes.heap(metrics.options, role) - sizes.RESERVED)
        stored = entry.peaks.get("OnHeapStorageMemory", 0)
        if room and stored >= CACHE_SHARE * room:
            title = f"cached blocks filled the memory for them: {volume(stored)} of {volume(room)}"
            break
    if title is not None:
        yield named("cache_does_not_fit", title, callsite or "the driver's log")


def _returned(metrics: RunMetrics) -> Iterator[Finding]:
    """Yield rows that came to the driver and were given to Spark again."""
    again = [stage for kind, _, stage in metrics.rdd_hints if kind == plans.PARALLELIZED]
    begins = [
        stage.submitted_ms
        for stage in metrics.stages
        if stage.stage in again and stage.submitted_ms is not None
    ]
    begins += [
        query.began_ms
        for query in metrics.queries
        if query.began_ms is not None
        and any(kind == plans.LOCAL_ROWS for kind, _, _ in query.nodes)
    ]
    for stage in metrics.stages:
        size, end = stage.totals.result_bytes, stage.completed_ms
        if size < RETURNED_BYTES or end is None or not COLLECTS.match(stage.name):
            continue
        begin = min((begin for begin in begins if begin >= end), default=None)
        if begin is None:
            continue
        written = [
            sample.python_written_bytes
            for sample in metrics.samples
            if end - 2_000 <= sample.at_ms <= begin + 2_000
            and sample.python_written_bytes is not None
        ]
        if len(written) > 1 and written[-1] - written[0] < RETURNED_SHARE * size:
            continue
        title = f"{volume(size)} of results went to the driver, and rows of it to Spark again"
        where = f"stage {stage.stage}, {stage.name}"
        yield named("collected_and_parallelized", title, where)
        return


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
            yield named("sort_for_first_rows", f"{rows} were sorted, {goal}", where)


def _rdds(metrics: RunMetrics) -> Iterator[Finding]:
    for kind, callsite, shuffled in metrics.rdd_hints:
        # A run that failed may not have come to what reads it again.
        if kind == plans.REPEATED:
            title = (
                f"the same shuffle of {shuffled or 0:,} rows was computed again for each output"
            )
            yield named("repeated_work", title, callsite)
        elif kind == plans.CACHED_ONCE and metrics.state != "FAILED" and not metrics.failed_jobs:
            yield named("cached_unused", "cached, and read once only", callsite)
        elif kind == plans.SORTED_FOR_FIRST and (shuffled or 0) >= MB:
            title = f"{volume(shuffled)} were shuffled to sort an RDD for its first rows"
            yield named("sort_for_first_rows.rdd", title, callsite)


def _small_files(count: int, size: int, verb: str, where: str) -> Iterator[Finding]:
    if count >= SMALL_FILES and size < SMALL_FILE_BYTES * count:
        title = f"{count:,} files of {volume(size / count)} each were {verb}"
        yield named(f"small_files.{verb}", title, where)


#: Entry points of packages that find more: functions of the metrics of a run.
GROUP: Final = "cmsspark.findings"
_MOST_OF_A_KIND: Final = 5
#: A code → those that explain it: with one of them it is not named.
_CAUSES: Final = {
    "gc": {"heap_space", "cache_does_not_fit"},
    # While rows become objects of Python, and come back, no task runs.
    "idle_cores": {"collected_to_driver", "collected_and_parallelized"},
    # Rows that are given to Spark again travel in its tasks, and not with functions of
    # several jobs.
    "large_closure": {"collected_and_parallelized"},
}


def find(metrics: RunMetrics) -> list[Finding]:
    """Return the findings of a run, errors first; at most five of a kind."""
    finders = with_packages(GROUP, _BUILT_IN, lambda entry: entry.load())
    findings = [finding for find_some in finders.values() for finding in find_some(metrics)]
    codes = {finding.code for finding in findings}
    # In local mode results lie in the heap in which tasks run.
    in_heap = {"collected_to_driver"} if metrics.is_local else set()
    explained = {**_CAUSES, "gc": _CAUSES["gc"] | in_heap}
    causes = [
        finding
        for finding in findings
        if finding.where == PICKLED or not codes & explained.get(finding.code, set())
    ]
    counts: dict[str, int] = {}
    shown = []
    for finding in sorted(dict.fromkeys(causes), key=lambda finding: finding.severity != "error"):
        counts[finding.code] = counts.get(finding.code, 0) + 1
        if counts[finding.code] <= _MOST_OF_A_KIND:
            shown.append(finding)
    return shown


def _size(metrics: RunMetrics) -> Iterator[Finding]:
    size, node = executor_container(metrics.options), metrics.smallest_node_bytes
    if size is not None and node is not None and size > node:
        title = f"an executor takes {volume(size)}, the smallest node has {volume(node)}"
        where = "spark.executor.memory and its overhead"
        yield named("executor_too_large", title, where, node=volume(node))


#: What finds something in the metrics of a run, in the order of the findings.
_BUILT_IN: Final[Mapping[str, Callable[[RunMetrics], Iterable[Finding]]]] = {
    "failures": failure_findings,
    "driver": driver_findings,
    "size": _size,
    "stages": stage_findings,
    "plans": plan_findings,
}
