"""What cost a run time or memory, or ended it, each with the cause and what to change.
A healthy run has none.

The thresholds are in ``docs/monitoring.md``, their sources in decision 040.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Mapping
from typing import Final

from cmsspark.apps.monitor.findings.driver import driver_findings
from cmsspark.apps.monitor.findings.failures import failure_findings
from cmsspark.apps.monitor.findings.plans import plan_findings
from cmsspark.apps.monitor.findings.stages import stage_findings
from cmsspark.apps.monitor.memory_sizes import executor_container
from cmsspark.base.entry_points import with_packages
from cmsspark.base.text.terminal import volume
from cmsspark.store.run_metrics import Finding, RunMetrics

#: The codes of all findings; ``docs/monitoring.md`` has their meanings.
CODES: Final = frozenset(
    {
        "failed_task",
        "container_killed",
        "lost_executor",
        "python_worker_killed",
        "max_result_size",
        "fetch_failure",
        "no_space",
        "heartbeat",
        "broadcast_timeout",
        "heap_space",
        "py4j_object",
        "driver_heap_jump",
        "driver_python_jump",
        "collected_to_driver",
        "python_worker_leak",
        "driver_unreachable",
        "skewed_stage",
        "straggler",
        "spill",
        "gc",
        "few_tasks",
        "tiny_tasks",
        "idle_cores",
        "small_files",
        "cartesian_join",
        "small_join_side",
        "sort_for_first_rows",
        "cached_unused",
        "executor_too_large",
        "window_one_task",
        "jdbc_one_connection",
        "large_broadcast",
        "join_multiplies_rows",
        "filter_after_join",
        "full_scan",
        "python_udf",
        "cache_does_not_fit",
        "collected_and_parallelized",
        "repeated_work",
        "large_closure",
        "python_memory_limit",
    }
)
#: Entry points of packages that find more: functions of the metrics of a run.
GROUP: Final = "cmsspark.findings"
_MOST_OF_A_KIND: Final = 5
#: A code → those that explain it: with one of them it is not named.
_CAUSES: Final = {"gc": {"heap_space", "cache_does_not_fit"}}


def find(metrics: RunMetrics) -> list[Finding]:
    """Return the findings of a run, errors first; at most five of a kind."""
    finders = with_packages(GROUP, _BUILT_IN, lambda entry: entry.load())
    findings = [finding for find_some in finders.values() for finding in find_some(metrics)]
    codes = {finding.code for finding in findings}
    causes = [finding for finding in findings if not codes & _CAUSES.get(finding.code, set())]
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
        yield Finding(
            "executor_too_large",
            f"an executor takes {volume(size)}, the smallest node has {volume(node)}",
            "spark.executor.memory and its overhead",
            f"at most {volume(node)} for heap and overhead together; such nodes stay without work",
        )


#: What finds something in the metrics of a run, in the order of the findings.
_BUILT_IN: Final[Mapping[str, Callable[[RunMetrics], Iterable[Finding]]]] = {
    "failures": failure_findings,
    "driver": driver_findings,
    "size": _size,
    "stages": stage_findings,
    "plans": plan_findings,
}
