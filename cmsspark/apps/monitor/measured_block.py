"""Measures a block of a notebook or script: what its stages used, in the manner of sparkMeasure.

The figures are those of Spark's own status store, as its REST interface has them: no
jar, no listener, no event log.
"""

from __future__ import annotations

import json
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, Final

from cmsspark.apps.monitor.findings import find as findings
from cmsspark.apps.monitor.logs.rest import executor, set_stages, stage
from cmsspark.apps.monitor.run_report import finding_lines, report_time, sums
from cmsspark.base import dates
from cmsspark.engines.session import session
from cmsspark.store.run_metrics import RunMetrics, StageEntry

#: Stages whose duration is printed.
_MOST_STAGES: Final = 20
_ENDED: Final = ("COMPLETE", "FAILED")


class MeasuredBlock:
    """A block that is measured: ``metrics`` has its figures when it has ended."""

    def __init__(self, spark: Any) -> None:
        self._spark = spark
        self._before = {(entry.stage, entry.attempt) for entry in self._stages()}
        self.metrics = RunMetrics(
            "", "", "spark", dates.now_ms(), master=spark.sparkContext.master
        )

    def end(self) -> RunMetrics:
        """Take the figures of the stages that ended since the begin."""
        metrics = self.metrics
        metrics.ended_ms = dates.now_ms()
        stages = [
            entry for entry in self._stages() if (entry.stage, entry.attempt) not in self._before
        ]
        set_stages(metrics, stages)
        metrics.failed_jobs = sum(entry.failure is not None for entry in metrics.stages)
        metrics.executors = [executor(row) for row in self._rows("executorList", False)]
        metrics.options = dict(self._spark.sparkContext.getConf().getAll())
        metrics.findings = findings.find(metrics)
        return metrics

    def _stages(self) -> list[StageEntry]:
        jvm, gateway = self._spark.sparkContext._jvm, self._spark.sparkContext._gateway
        # Spark's listeners hear of a stage some milliseconds after its action has returned.
        self._spark.sparkContext._jsc.sc().listenerBus().waitUntilEmpty()
        quantiles = gateway.new_array(jvm.double, 3)
        quantiles[0], quantiles[1], quantiles[2] = 0.0, 0.5, 1.0
        none = jvm.java.util.ArrayList()
        rows = self._rows("stageList", none, False, True, quantiles, none)
        return sorted(
            (stage(row) for row in rows if row["status"] in _ENDED), key=lambda entry: entry.stage
        )

    def _rows(self, method: str, *arguments: Any) -> list[dict[str, Any]]:
        """Return what a method of the status store gives, as REST would write it."""
        jvm = self._spark.sparkContext._jvm
        values = getattr(self._spark.sparkContext._jsc.sc().statusStore(), method)(*arguments)
        module = getattr(
            getattr(jvm.com.fasterxml.jackson.module.scala, "DefaultScalaModule$"), "MODULE$"
        )
        mapper = jvm.com.fasterxml.jackson.databind.ObjectMapper().registerModule(module)
        rows: list[dict[str, Any]] = json.loads(mapper.writeValueAsString(values))
        return rows


@contextmanager
def measure(spark: Any = None) -> Iterator[MeasuredBlock]:
    """Measure the Spark stages of a block; print what they used, and findings, when it
    ends or raises.

    ``spark``: the session; the running one, or a new local one, without. What is
    yielded has the figures as ``metrics``. Blocks that run at the same time in one
    session measure each other's stages.

    Example:
        >>> with cms.measure() as block:  # doctest: +ELLIPSIS
        ...     numbers = cms.session().range(9).count()
        Aggregated Spark stage metrics:
        ...
    """
    block = MeasuredBlock(spark or session("cmsspark notebook"))
    try:
        yield block
    finally:
        for line in block_lines(block.end()):
            print(line)  # noqa: T201 -- a notebook shows it below its cell


#: Name in reports of runs → that of sparkMeasure.
_NAMES: Final = {
    "stages": "numStages",
    "tasks": "numTasks",
    "shuffleBytesRead": "shuffleTotalBytesRead",
    "averageActiveTasks": "Average number of active tasks",
}


def block_lines(metrics: RunMetrics) -> Iterator[str]:
    """Yield the figures of a block as text, with the names and the form of sparkMeasure's report."""
    yield "Aggregated Spark stage metrics:"
    for name, value, text in sums(metrics):
        if name == "tasks":
            text = ""
        yield f"{_NAMES.get(name, name)} => {value}{f' ({text})' if text else ''}"
        if name == "tasks" and metrics.totals.failed_tasks:
            yield f"numFailedTasks => {metrics.totals.failed_tasks}"
    if metrics.stages:
        yield ""
        yield "Stages and their duration:"
        for entry in metrics.stages[:_MOST_STAGES]:
            duration = entry.duration_ms or 0
            yield f"Stage {entry.stage} duration => {duration} ({report_time(duration)}), {entry.name}"
        if len(metrics.stages) > _MOST_STAGES:
            yield f"and {len(metrics.stages) - _MOST_STAGES} more"
    if metrics.findings:
        yield ""
        yield "Findings:"
        yield from finding_lines(metrics.findings)
