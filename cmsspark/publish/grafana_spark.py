"""The dashboard of Spark's live metrics for Grafana, with an InfluxDB data source that speaks InfluxQL.

Names are those that ``etc/metrics/influxdb.conf`` makes of Graphite's: a measurement with the tags prefix,
applicationid, process, namespace and, for metrics of cmsspark, role and name. Counters are shown as rates.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

from cmsspark.publish.grafana import COLUMNS, grafana_frame
from cmsspark.publish.panels import arrange

_SOURCE: Final = {"type": "influxdb", "uid": "${source}"}
_TIME: Final = "$timeFilter"
_APPLICATION: Final = '"applicationid" =~ /^$application$/'


@dataclass(frozen=True)
class MetricPanel:
    """A panel: queries by legend. ``unit``: of Grafana; ``stack``: whether its lines add up."""

    title: str
    queries: tuple[tuple[str, str], ...]
    unit: str = "short"
    is_stacked: bool = False
    about: str = ""
    width: int = 12
    height: int = 8


def value(measurement: str, namespace: str, by: str = "process") -> str:
    """Return the largest value in each interval, by process."""
    return (
        f'SELECT max("value") FROM "{measurement}" WHERE {_APPLICATION} AND "namespace" = \'{namespace}\' AND {_TIME} '
        f'GROUP BY time($__interval), "{by}" fill(none)'
    )


def rate(measurement: str, namespace: str = "executor", scale: str = "1s") -> str:
    """Return the growth of a counter in each ``scale`` of time, by process; a counter that begins anew is no negative
    rate.
    """
    return (
        f'SELECT non_negative_derivative(max("value"), {scale}) FROM "{measurement}" WHERE {_APPLICATION} '
        f'AND "namespace" = \'{namespace}\' AND {_TIME} GROUP BY time($__interval), "process" fill(none)'
    )


def by_role(measurement: str) -> str:
    """Return a measure of the processes of runs that cmsspark watches, by role; they are found by their run."""
    return (
        f'SELECT max("value") FROM "{measurement}" WHERE "applicationid" =~ /^$run$/ AND "namespace" = \'processes\' '
        f'AND {_TIME} GROUP BY time($__interval), "role" fill(none)'
    )


def of_jobs(counter: str) -> str:
    """Return the rate of a counter of our own jobs, by run and job, while it runs and when it has ended."""
    return (
        f'SELECT non_negative_derivative(max("value"), 1s) FROM "{counter}" WHERE "namespace" = \'jobs\' AND {_TIME} '
        'GROUP BY time($__interval), "applicationid", "name" fill(none)'
    )


_AREAS: Final = {
    "JVMHeapMemory": "JVM heap", "JVMOffHeapMemory": "JVM off-heap", "OnHeapExecutionMemory": "execution, on heap",
    "OffHeapExecutionMemory": "execution, off heap", "OnHeapStorageMemory": "storage, on heap",
    "OffHeapStorageMemory": "storage, off heap", "DirectPoolMemory": "direct pool", "MappedPoolMemory": "mapped pool",
}  # fmt: skip
_TREES: Final = {
    "ProcessTreeJVMRSSMemory": "JVM", "ProcessTreePythonRSSMemory": "Python", "ProcessTreeOtherRSSMemory": "other",
}  # fmt: skip
PANELS: Final = (
    MetricPanel("Active and waiting stages", (
        ("running", value("runningStages", "DAGScheduler.stage")),
        ("waiting", value("waitingStages", "DAGScheduler.stage")),
        ("failed", value("failedStages", "DAGScheduler.stage")),
        ("active jobs", value("activeJobs", "DAGScheduler.job")),
    )),
    MetricPanel("Active tasks", (("tasks", value("threadpool.activeTasks", "executor")),)),
    MetricPanel("Memory by area", tuple((label, value(name, "ExecutorMetrics")) for name, label in _AREAS.items()),
                "bytes", about="As Spark's executors report it"),
    MetricPanel("Resident memory of process trees", tuple((label, value(name, "ExecutorMetrics"))
                for name, label in _TREES.items()), "bytes",
                about="Below each executor; the Python driver in client mode is in the next panel only"),
    MetricPanel("Resident memory of the run by role", (("", by_role("rss_bytes")),), "bytes", True,
                "As cmsspark watches it: also the Python driver"),
    MetricPanel("CPU of the run by role", (("", by_role("cpu_percent")),), "percent", True, "Of one core"),
    MetricPanel("CPU of tasks and of the JVM, cores", (
        ("tasks (JVM part)", rate("cpuTime.count", scale="1ns")),
        ("JVM", rate("jvmCpuTime", "JVMCPU", "1ns")),
    ), about="Nanoseconds of CPU for each nanosecond"),
    MetricPanel("Garbage collection, share of task time", (("", rate("jvmGCTime.count", scale="1ms")),),
                "percentunit"),
    MetricPanel("Bytes read and written by tasks", (
        ("read", rate("bytesRead.count")), ("written", rate("bytesWritten.count")),
    ), "Bps"),
    MetricPanel("Shuffle", (
        ("read, remote", rate("shuffleRemoteBytesRead.count")), ("read, local", rate("shuffleLocalBytesRead.count")),
        ("written", rate("shuffleBytesWritten.count")),
    ), "Bps"),
    MetricPanel("Spill", (
        ("memory", rate("memoryBytesSpilled.count")), ("disk", rate("diskBytesSpilled.count")),
    ), "Bps"),
    MetricPanel("Records read", (("", rate("recordsRead.count")),), "short"),
    MetricPanel("Records of our jobs", (
        ("read", of_jobs("records_read")), ("malformed", of_jobs("records_malformed")),
    ), "rps", about="While a job runs by processes of its host; of others the mean, when they have ended"),
    MetricPanel("Bytes that our jobs read by path", (("", of_jobs("input_bytes")),), "Bps",
                about="Which Spark's metrics do not count"),
)  # fmt: skip


def spark_dashboard() -> dict[str, Any]:
    """Return the dashboard as Grafana imports it."""
    positions = arrange(((panel.width, panel.height) for panel in PANELS), COLUMNS)
    panels = [
        _panel(panel, number, position)
        for number, (panel, position) in enumerate(zip(PANELS, positions, strict=True), 1)
    ]
    variables = [
        _variable("application", 'SHOW TAG VALUES FROM "JVMHeapMemory" WITH KEY = "applicationid"'),
        _variable("run", 'SHOW TAG VALUES FROM "rss_bytes" WITH KEY = "applicationid"'),
    ]
    return grafana_frame(
        "cmsspark-spark", "Spark applications",
        "Live metrics of Spark and of the processes of runs, by Graphite in an InfluxDB.", _SOURCE, variables, panels,
        tags=["spark", "cmsspark"], since="now-30m", refresh="10s",
        annotations={"list": [_annotation("begin", "green"), _annotation("end", "orange")]},
    )  # fmt: skip


def _panel(panel: MetricPanel, number: int, position: dict[str, int]) -> dict[str, Any]:
    custom = {"drawStyle": "line", "fillOpacity": 60 if panel.is_stacked else 5, "spanNulls": 60_000,
              "stacking": {"mode": "normal" if panel.is_stacked else "none"}}  # fmt: skip
    return {
        "id": number,
        "type": "timeseries",
        "title": panel.title,
        "description": panel.about,
        "datasource": dict(_SOURCE),
        "gridPos": position,
        "fieldConfig": {"defaults": {"unit": panel.unit, "min": 0, "custom": custom}, "overrides": []},
        "options": {"legend": {"displayMode": "list", "placement": "bottom"}, "tooltip": {"mode": "multi"}},
        "targets": [
            {
                "refId": chr(ord("A") + index),
                "datasource": dict(_SOURCE),
                "rawQuery": True,
                "query": query,
                "resultFormat": "time_series",
                "alias": _alias(legend, query),
            }
            for index, (legend, query) in enumerate(panel.queries)
        ],
    }


def _alias(legend: str, query: str) -> str:
    if "'jobs'" in query:
        return f"$tag_name {legend}".strip()
    return f"{legend} $tag_process".strip() if '"process"' in query else "$tag_role"


def _variable(name: str, query: str) -> dict[str, Any]:
    return {
        "name": name, "type": "query", "datasource": dict(_SOURCE), "query": query, "refresh": 2, "includeAll": True,
        "allValue": ".*", "multi": False, "sort": 2, "current": {"text": "All", "value": "$__all"},
    }  # fmt: skip


def _annotation(measurement: str, colour: str) -> dict[str, Any]:
    """Return stages and queries on the time axis; ``cmsspark monitor annotate`` sends them."""
    query = f'SELECT "value", "name" FROM "{measurement}" WHERE {_APPLICATION} AND "namespace" = \'events\' AND {_TIME}'
    return {
        "name": f"{measurement} of stages and queries",
        "datasource": dict(_SOURCE),
        "enable": True,
        "iconColor": colour,
        "query": query,
        "textColumn": "name",
        "tagsColumn": "",
        "titleColumn": "",
    }
