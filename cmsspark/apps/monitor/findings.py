"""What cost a run time or memory, or ended it, each with the cause and what to change. A healthy run has none.

:data:`CODES` lists them; the thresholds and their sources are in ``docs/monitoring.md``.
"""

from __future__ import annotations

from collections.abc import Iterator
from typing import Final

from cmsspark.apps.monitor.findings_driver import CODES_OF_DRIVER, driver_findings
from cmsspark.apps.monitor.findings_failures import CODES_OF_FAILURES, failure_findings
from cmsspark.apps.monitor.findings_plans import CODES_OF_PLANS, plan_findings
from cmsspark.apps.monitor.findings_stages import CODES_OF_STAGES, stage_findings
from cmsspark.apps.monitor.memory_sizes import executor_container
from cmsspark.base.text.terminal import volume
from cmsspark.store.run_metrics import Finding, RunMetrics

#: A finding's code → its meaning.
CODES: Final[dict[str, str]] = {
    **CODES_OF_FAILURES,
    **CODES_OF_DRIVER,
    **CODES_OF_STAGES,
    **CODES_OF_PLANS,
    "executor_too_large": "an executor is larger than the smallest node",
}
_MOST_OF_A_KIND: Final = 5
#: A code → those that explain it: with one of them it is not named.
_CAUSES: Final = {"gc": {"heap_space"}}


def find(metrics: RunMetrics) -> list[Finding]:
    """Return the findings of a run, errors first; at most five of a kind."""
    findings = [
        *failure_findings(metrics),
        *driver_findings(metrics),
        *_size(metrics),
        *stage_findings(metrics),
        *plan_findings(metrics),
    ]
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
