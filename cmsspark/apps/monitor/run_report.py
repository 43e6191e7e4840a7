"""The summary of a measured run as text, in the style of sparkMeasure's report: ``name
=> value (readable)``.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

from cmsspark.base import clock, errors
from cmsspark.base.text.terminal import pluralize, table, volume
from cmsspark.store.run_exceptions import find_exception
from cmsspark.store.run_metrics import AREAS, GC_METRICS, Finding, RunMetrics

_LONGEST_TITLE = 110
#: Stages that are shown: those with the longest duration.
_MOST_STAGES = 15


def report(metrics: RunMetrics, width: int | None = None) -> Iterator[str]:
    """Yield the lines of the summary: the exception, sums, stages, peaks by executor,
    findings, what is missing.
    """
    engine = (
        f"Spark {metrics.spark_version}".strip()
        if metrics.engine == "spark"
        else "processes of this host"
    )
    name = f" {metrics.application}" if metrics.application else ""
    yield f"Measured: {metrics.job or metrics.application_name}, {engine}{name}, {metrics.master}".rstrip(
        ", "
    )
    if metrics.state == "RUNNING":
        yield f"It still runs, since {clock.to_second(metrics.began_ms)} UTC: these are the figures so far"
    elif metrics.state == "FAILED":
        code = "" if metrics.exit_code is None else f" with exit code {metrics.exit_code}"
        yield f"It failed{code}: peaks are what was seen until then"
    yield from _exception(metrics)
    yield ""
    yield "Aggregated metrics:"
    for label, value, readable in _sums(metrics):
        yield f"  {label} => {value}{f' ({readable})' if readable else ''}"
    if metrics.stages:
        yield ""
        yield from _stages(metrics, width)
    if any(entry.peaks for entry in metrics.executors):
        yield ""
        yield from _peaks(metrics, width)
    for title, lines in (
        ("Findings:", list(finding_lines(metrics.findings))),
        ("Not known:", metrics.notes),
    ):
        if lines:
            yield ""
            yield title
            yield from (f"  {line}" for line in lines)


def _exception(metrics: RunMetrics) -> Iterator[str]:
    if (exception := find_exception(metrics)) is not None:
        tasks = f" ({pluralize(exception.tasks, 'task')})" if exception.tasks else ""
        yield f"Exception: {exception.line}{tasks}"
        if "\n" in exception.text:
            yield (
                f"  whole trace: cmsspark show {metrics.run} --trace"
                if metrics.run
                else "  whole trace: --json, failure_texts"
            )


def ending_lines(metrics: RunMetrics) -> Iterator[str]:
    """Yield what run_spark says at the end of a run: a line for each finding, with its
    number and the next command.
    """
    shown = set()
    for finding in metrics.findings:
        if finding.code not in shown and not _is_reported(metrics, finding):
            shown.add(finding.code)
            title = (
                finding.title
                if len(finding.title) <= _LONGEST_TITLE
                else f"{finding.title[:_LONGEST_TITLE]}…"
            )
            yield f"{finding.code}: {title}: cmsspark show {metrics.run}"


def _is_reported(metrics: RunMetrics, finding: Finding) -> bool:
    """Return whether the run ended with the exception of its tasks as its own error,
    which it has printed.
    """
    module, _, kind = finding.title.partition(": ")[0].rpartition(".")
    if finding.code != "failed_task" or module != errors.__name__:
        return False
    return bool(getattr(errors, kind).exit_code == metrics.exit_code)


def finding_lines(findings: list[Finding]) -> Iterator[str]:
    """Yield findings, each with where it is and what to change."""
    for finding in findings:
        yield f"{finding.code}: {finding.title}"
        yield f"  where: {finding.where}"
        yield f"  next: {finding.cure}"


def _sums(metrics: RunMetrics) -> Iterator[tuple[str, str, str]]:
    totals, tasks = metrics.totals, metrics.totals.tasks
    yield "stages", f"{metrics.stage_count}", f"{metrics.jobs} jobs" if metrics.jobs else ""
    unwell = f"{totals.failed_tasks} failed, {totals.killed_tasks} killed"
    yield "tasks", f"{tasks}", unwell if totals.failed_tasks + totals.killed_tasks else ""
    if metrics.ended_ms is not None:
        elapsed = max(0, metrics.ended_ms - metrics.began_ms)
        yield "elapsedTime", f"{elapsed}", report_time(elapsed)
        if elapsed and tasks:
            yield "averageActiveTasks", f"{totals.task_ms / elapsed:.1f}", ""
    if metrics.cpu_ms is not None:
        yield (
            "processCpuTime",
            f"{metrics.cpu_ms}",
            f"{report_time(metrics.cpu_ms)}, all processes on {metrics.host}",
        )
    times = {"executorRunTime": totals.run_ms}
    if metrics.engine == "spark":
        times |= {"executorCpuTime": totals.cpu_ms, "jvmGCTime": totals.gc_ms}
        times |= {
            "shuffleFetchWaitTime": totals.fetch_wait_ms,
            "shuffleWriteTime": totals.shuffle_write_ms,
        }
    for name, value in times.items():
        yield name, f"{value}", report_time(value)
    volumes = {
        "resultSize": totals.result_bytes,
        "bytesRead": totals.input_bytes,
        "bytesWritten": totals.output_bytes,
        "shuffleBytesRead": totals.shuffle_read_bytes,
        "shuffleBytesWritten": totals.shuffle_write_bytes,
        "memoryBytesSpilled": totals.memory_spilled_bytes,
        "diskBytesSpilled": totals.disk_spilled_bytes,
        "peakExecutionMemory": totals.peak_execution_bytes,
    }
    for name, value in volumes.items() if metrics.engine == "spark" else ():
        yield name, f"{value}", str(volume(value))
    for name, value in (
        ("recordsRead", totals.input_records),
        ("recordsWritten", totals.output_records),
    ):
        if value:
            yield name, f"{value}", ""
    if metrics.reported:
        size, files = (
            sum(getattr(entry, name) for entry in metrics.reported)
            for name in ("input_bytes", "input_files")
        )
        yield (
            "bytesReadByPath",
            f"{size}",
            f"{volume(size)} of {files:,} files, reported by the job",
        )


def _stages(metrics: RunMetrics, width: int | None) -> Iterator[str]:
    longest = sorted(metrics.stages, key=lambda stage: stage.duration_ms or 0, reverse=True)[
        :_MOST_STAGES
    ]
    remaining = metrics.stage_count - len(longest)
    yield f"Stages{f', the longest of {metrics.stage_count}' if remaining else ''}:"
    rows: list[list[Any]] = []
    for stage in sorted(longest, key=lambda stage: (stage.stage, stage.attempt)):
        times, totals = stage.task_ms, stage.totals
        read = totals.shuffle_read_bytes + totals.input_bytes
        row = [
            f"{stage.stage}.{stage.attempt}" if stage.attempt else stage.stage,
            stage.name,
            (stage.duration_ms or 0) / 1000,
            totals.tasks,
            times.median / 1000,
            times.max / 1000,
        ]
        rows.append(
            [
                *row,
                volume(read),
                volume(totals.disk_spilled_bytes),
                "failed" if stage.failure else "",
            ]
        )
    headings = ("stage", "name", "s", "tasks", "median s", "max s", "read", "spilled", "")
    yield from table(headings, rows, texts=(1,), width=width)


def _peaks(metrics: RunMetrics, width: int | None) -> Iterator[str]:
    yield "Peak memory (sampled):"
    shown = sorted(metrics.executors, key=_memory, reverse=True)[:5]
    rows: list[list[Any]] = []
    for name in (*AREAS, *GC_METRICS):
        values = [entry.peaks.get(name) for entry in shown]
        if any(values):
            rows.append([name, *(_area(name, value) for value in values)])
    # Resident memory is the whole of a process, so it stands first for runs without a JVM, too.
    yield from table(("area", *(entry.executor for entry in shown)), rows, width=width)


def _memory(entry: Any) -> int:
    peaks: Mapping[str, int] = entry.peaks
    return peaks.get("JVMHeapMemory", 0) + peaks.get("ProcessTreePythonRSSMemory", 0)


def _area(name: str, value: int | None) -> str | None:
    if value is None:
        return None
    if name.endswith("Count"):
        return f"{value:,}"
    return report_time(value) if name.endswith("Time") else volume(value)


def report_time(ms: int) -> str:
    """Return milliseconds as people write them."""
    if ms < 60_000:
        return f"{ms / 1000:.1f} s"
    minutes, seconds = divmod(ms // 1000, 60)
    hours, minutes = divmod(minutes, 60)
    return f"{hours} h {minutes} min" if hours else f"{minutes} min {seconds} s"
