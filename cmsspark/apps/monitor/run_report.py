"""The measured part of ``cmsspark show``: what a run used, and what to change, in the
style of sparkMeasure's report: ``name => value (readable)``; and two runs beside each
other.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

import click
import msgspec

from cmsspark.apps.monitor.measured_runs import event_files, find_run, measured_runs, with_events
from cmsspark.base import dates, errors
from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.text.readable import json_text, readable
from cmsspark.base.text.terminal import echo_table, table, terminal_width, volume
from cmsspark.cli.options import debug_option
from cmsspark.store.process_samples import ProcessSample, read_processes
from cmsspark.store.run_history import Run, find_exception
from cmsspark.store.run_metrics import AREAS, GC_METRICS, Finding, RunMetrics, StageEntry

_LONGEST_TITLE = 110
#: Stages that are shown: those with the longest duration.
_MOST_STAGES = 15
_MOST_PROCESSES = 10


def report(metrics: RunMetrics, width: int | None = None) -> Iterator[str]:
    """Yield the lines of the summary: the exception, sums, stages, peaks by executor,
    findings, what is missing.
    """
    yield f"Measured: {metrics.job or metrics.application_name}, {metrics.engine_text}"
    if metrics.state == "RUNNING":
        yield f"It still runs, since {dates.to_second(metrics.began_ms)} UTC: these are the figures so far"
    elif metrics.state == "FAILED":
        code = "" if metrics.exit_code is None else f" with exit code {metrics.exit_code}"
        yield f"It failed{code}: peaks are what was seen until then"
    if (exception := find_exception(metrics)) is not None:
        yield f"Exception: {exception.summary}"
        if "\n" in exception.text:
            command = f"cmsspark show {metrics.run} --trace"
            yield f"  whole trace: {command if metrics.run else '--json, failure_texts'}"
    yield ""
    yield "Aggregated metrics:"
    for name, value, text in sums(metrics):
        yield f"  {name} => {value}{f' ({text})' if text else ''}"
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


def ending_lines(metrics: RunMetrics) -> Iterator[str]:
    """Yield what run_spark says at the end of a run: a line for each finding, with its
    number and the next command.
    """
    shown = set()
    for finding in metrics.findings:
        module, _, kind = finding.title.partition(": ")[0].rpartition(".")
        # The run ended with the exception of its tasks as its own error, and has printed it.
        is_printed = finding.code == "failed_task" and module == errors.__name__
        is_printed = is_printed and getattr(errors, kind).exit_code == metrics.exit_code
        if finding.code not in shown and not is_printed:
            shown.add(finding.code)
            more = "…" if len(finding.title) > _LONGEST_TITLE else ""
            title = f"{finding.title[:_LONGEST_TITLE]}{more}"
            yield f"{finding.code}: {title}: cmsspark show {metrics.run}"


def finding_lines(findings: list[Finding]) -> Iterator[str]:
    """Yield findings, each with where it is and what to change."""
    for finding in findings:
        yield f"{finding.code}: {finding.title}"
        yield f"  where: {finding.where}"
        yield f"  next: {finding.cure}"


def sums(metrics: RunMetrics) -> Iterator[tuple[str, int | str, str]]:
    """Yield (name, value, the value for people) of the sums over tasks; most names are
    those of sparkMeasure.
    """
    totals = metrics.totals
    yield "stages", metrics.stage_count, f"{metrics.jobs} jobs" if metrics.jobs else ""
    again = f" ({totals.resubmitted_tasks} only resubmitted)" if totals.resubmitted_tasks else ""
    unwell = f"{totals.failed_tasks} failed{again}, {totals.killed_tasks} killed"
    yield "tasks", totals.tasks, unwell if totals.failed_tasks + totals.killed_tasks else ""
    if metrics.ended_ms is not None:
        elapsed = max(0, metrics.ended_ms - metrics.began_ms)
        yield "elapsedTime", elapsed, report_time(elapsed)
        if elapsed and totals.tasks:
            yield "averageActiveTasks", f"{totals.task_ms / elapsed:.1f}", ""
    if metrics.cpu_ms is not None:
        text = f"{report_time(metrics.cpu_ms)}, all processes on {metrics.host}"
        yield "processCpuTime", metrics.cpu_ms, text
    times = {"executorRunTime": totals.run_ms}
    if metrics.engine == "spark":
        times |= {
            "stageDuration": sum(stage.duration_ms or 0 for stage in metrics.stages),
            "executorCpuTime": totals.cpu_ms,
            "executorDeserializeTime": totals.deserialize_ms,
            "resultSerializationTime": totals.result_serialize_ms,
            "jvmGCTime": totals.gc_ms,
            "shuffleFetchWaitTime": totals.fetch_wait_ms,
            "shuffleWriteTime": totals.shuffle_write_ms,
        }
    yield from ((name, value, report_time(value)) for name, value in times.items())
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
        yield name, value, str(volume(value))
    records = {
        "recordsRead": totals.input_records,
        "recordsWritten": totals.output_records,
        "shuffleRecordsRead": totals.shuffle_read_records,
        "shuffleRecordsWritten": totals.shuffle_write_records,
    }
    yield from ((name, value, "") for name, value in records.items() if value)
    if metrics.reported:
        size = sum(entry.input_bytes for entry in metrics.reported)
        files = sum(entry.input_files for entry in metrics.reported)
        yield "bytesReadByPath", size, f"{volume(size)} of {files:,} files, reported by the job"


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
    most = ("JVMHeapMemory", "ProcessTreePythonRSSMemory")
    shown = sorted(
        metrics.executors, key=lambda entry: -sum(entry.peaks.get(name, 0) for name in most)
    )[:5]
    rows: list[list[Any]] = []
    for name in (*AREAS, *GC_METRICS):
        values = [entry.peaks.get(name) for entry in shown]
        if any(values):
            rows.append([name, *(_area(name, value) for value in values)])
    # Resident memory is the whole of a process, so it stands first for runs without a JVM, too.
    yield from table(("area", *(entry.executor for entry in shown)), rows, width=width)


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


def echo_measured(state_dir: Path, run: Run, *, trace: bool = False) -> None:
    """Print what a run of the run history used, if it was measured and that is kept;
    its exception with ``trace``.
    """
    name = run.process.get("measured")
    metrics = next(measured_runs(state_dir, name), None) if isinstance(name, str) else None
    if trace:
        echo_trace(with_events(state_dir, metrics or RunMetrics(run.run, run.job, "", 0)))
    elif metrics is not None:
        click.echo()
        _echo(with_events(state_dir, metrics))
        _echo_processes(state_dir, metrics.run)


def only_measured(state_dir: Path, name: str, *, as_json: bool, trace: bool = False) -> bool:
    """Print a run that is measured and not in the run history, such as a script's;
    return False where there is none.

    ``name``: the begin of its id, the application's id, ``latest``, or the script.
    Raises DataError (65) where its file cannot be read, UsageError (2) where several
    ids begin with ``name``.
    """
    metrics = find_run(state_dir, name)
    if metrics is None:
        return not trace and _only_watched(state_dir, name, as_json=as_json)
    metrics = with_events(state_dir, metrics)
    if trace:
        echo_trace(metrics)
    elif as_json:
        click.echo(json_text(msgspec.to_builtins(metrics), indent=1))
    else:
        _echo(metrics)
        _echo_processes(state_dir, metrics.run)
    return True


def _only_watched(state_dir: Path, name: str, *, as_json: bool) -> bool:
    """Print a run of which only the processes were watched, as those of a node or of
    ``monitor watch``; return False where there is none.
    """
    with read_processes(state_dir) as database:
        runs = database.runs() if database is not None else []
        runs = [run for run in runs if name and run.run.startswith(name)]
        if database is None or len(runs) != 1:
            return False
        samples = database.samples(runs[0].run) if as_json else []
    for sample in samples:
        click.echo(json_text(msgspec.structs.asdict(sample)))
    if not as_json:
        run = runs[0]
        label, began = run.job or run.suite or "", dates.to_second(run.start_ms)
        click.echo(f"{run.run}  {label}  {run.status}  {began} UTC")
        _echo_processes(state_dir, run.run)
    return True


def _echo_processes(state_dir: Path, run: str) -> None:
    """Print the processes of a watched run with their peaks, the largest first, and its log."""
    with read_processes(state_dir) as database:
        samples = database.samples(run) if database is not None else []
        log = database.log(run) if database is not None else []
    by_process: dict[tuple[str, int, int], list[ProcessSample]] = {}
    for sample in samples:
        by_process.setdefault((sample.host, sample.pid, sample.create_ms), []).append(sample)

    def peak(rows: Sequence[ProcessSample], name: str) -> Any:
        values = (getattr(row, name) for row in rows)
        return max((value for value in values if value is not None), default=None)

    ordered = sorted(by_process.items(), key=lambda entry: -(peak(entry[1], "rss_bytes") or 0))
    rows = [
        (
            *(f"{pid} {entries[0].short_command}", entries[-1].role, host),
            *(volume(peak(entries, name)) for name in ("rss_bytes", "pss_bytes", "virtual_bytes")),
            *(peak(entries, "cpu_seconds"), peak(entries, "cpu_percent")),
            *(volume(peak(entries, "read_bytes")), volume(peak(entries, "write_bytes"))),
            peak(entries, "fds"),
        )
        for (host, pid, _), entries in ordered[:_MOST_PROCESSES]
    ]
    if rows:
        click.echo("\nProcesses, the largest first:")
        headings = (
            *("process", "role", "host", "RSS max", "PSS max", "virtual max"),
            *("CPU s", "CPU % max", "read", "written", "fds"),
        )
        echo_table(headings, rows, texts=(0, 1, 2), full=(1,), optional=(2, 5, 8, 9, 10, 4))
    if len(ordered) > len(rows):
        click.echo(f"and {len(ordered) - len(rows)} more")
    for entry in log:
        click.echo(f"{dates.to_second(entry.time_ms)}  {entry.type}  {readable(entry.message)}")


def echo_trace(metrics: RunMetrics) -> None:
    """Print all that is known of the exception that ended a run. Raises InputMissing
    (66) where none did.
    """
    exception = find_exception(metrics)
    if exception is None:
        raise InputMissing(
            f"no exception is stored of run {metrics.run}",
            next_step=f"cmsspark show {metrics.run}",
        )
    click.echo(readable(exception.text))


def _echo(metrics: RunMetrics) -> None:
    for line in report(metrics, terminal_width()):
        click.echo(readable(line))


@click.command("events")
@click.argument("location", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@debug_option
def events_command(location: str, as_json: bool) -> None:
    """Read an event log of Spark 3.5 or 4.x: a file, compressed or not, or a rolling
    folder (eventlog_v2_…).

    Shows sums over tasks, stages, peaks of memory, findings. FILE may be on HDFS (which
    takes a JVM).
    """
    from cmsspark.apps.monitor.findings import find as findings
    from cmsspark.apps.monitor.logs.files import find_log
    from cmsspark.apps.monitor.logs.reader import read_event_log

    log = find_log(location, event_files(location))
    reader = read_event_log(log)
    if not reader.lines:
        blank = f"{log.plain_bytes:,} blank bytes" if log.plain_bytes else "an empty file"
        if log.cut:
            blank = f"{log.disk_bytes:,} bytes, which end in their first block ({log.cut[0]})"
        raise DataError(
            "an event log has at least one event",
            where=log.parts[0],
            found=blank,
            next_step="Spark writes its first events some seconds after the application starts: read it again then",
        )
    metrics = reader.metrics()
    # A log has no exit code; one without an end may be of an application that was killed.
    metrics.state = "ENDED" if reader.ended else "UNKNOWN"
    metrics.findings = findings.find(metrics)
    if as_json:
        click.echo(json_text(msgspec.to_builtins(metrics), indent=1))
        return
    _echo(metrics)


#: Sums that are compared.
_SUMS = (
    *("task_ms", "run_ms", "cpu_ms", "gc_ms", "input_bytes", "shuffle_read_bytes"),
    *("shuffle_write_bytes", "memory_spilled_bytes", "disk_spilled_bytes", "result_bytes"),
)


def echo_comparison(state_dir: Path, name: str, earlier: str, *, as_json: bool) -> None:
    """Print a measured run against another one. Raises InputMissing (66) if one of them
    was not measured.
    """
    runs = []
    for run_name in (earlier, name):
        if (metrics := find_run(state_dir, run_name)) is None:
            raise InputMissing(
                f"no run {run_name!r} was measured",
                next_step="cmsspark runs lists runs; the name of a job or script means its latest run",
            )
        runs.append(with_events(state_dir, metrics))
    before, after = runs
    if as_json:
        click.echo(json_text(as_document(before, after), indent=1))
        return
    for line in comparison(before, after, terminal_width()):
        click.echo(readable(line))


def as_document(before: RunMetrics, after: RunMetrics) -> dict[str, Any]:
    """Return the comparison for JSON; each pair is [before, after]."""
    runs = (before, after)
    options = {
        name: [run.options.get(name, "") for run in runs]
        for name in sorted(before.options.keys() | after.options.keys())
    }
    options |= {"Spark": [run.spark_version for run in runs], "host": [run.host for run in runs]}
    compared = {
        "elapsed_ms": [max(0, (run.ended_ms or run.began_ms) - run.began_ms) for run in runs],
        "tasks": [run.totals.tasks for run in runs],
        **{name: [getattr(run.totals, name) for run in runs] for name in _SUMS},
    }
    # The largest of an executor, the driver among them.
    peaks = {
        area: [max((e.peaks.get(area, 0) for e in run.executors), default=0) for run in runs]
        for area in AREAS
        if "VMemory" not in area
    }
    return {
        "before": before.run,
        "after": after.run,
        "options": {name: pair for name, pair in options.items() if pair[0] != pair[1]},
        "sums": {name: pair for name, pair in compared.items() if any(pair)},
        "stages": _stage_pairs(before, after),
        "peaks": {area: pair for area, pair in peaks.items() if any(pair)},
        "findings": {
            kind: [finding.code for finding in findings]
            for kind, findings in _findings(before, after).items()
        },
    }


def comparison(before: RunMetrics, after: RunMetrics, width: int | None = None) -> Iterator[str]:
    """Yield what differs between two runs, as text."""
    for label, run in (("before", before), ("after", after)):
        began = dates.to_second(run.began_ms)
        yield f"{label:<8}{run.run}  {run.job or run.application_name}, {began} UTC, {run.state}"
    document = as_document(before, after)
    yield ""
    yield "Options:" if document["options"] else "Options: the same"
    for name, (old, new) in document["options"].items():
        yield f"  {name}: {old or 'the default'} → {new or 'the default'}"
    for head, pairs in (("", document["sums"]), ("peak", document["peaks"])):
        rows: list[list[Any]] = [
            [name, _shown(name, old), _shown(name, new), _change(old, new)]
            for name, (old, new) in pairs.items()
        ]
        if rows:
            yield ""
            yield from table((head, "before", "after", "change"), rows, width=width)
    if stages := document["stages"]:
        yield ""
        rows = []
        for stage in stages[:_MOST_STAGES]:
            seconds = (None if ms is None else f"{ms / 1000:.1f}" for ms in stage["ms"])
            spilled = (
                None if ms is None else volume(size)
                for ms, size in zip(stage["ms"], stage["spilled"], strict=True)
            )
            rows.append([stage["name"], *seconds, _change(*stage["ms"]), *spilled])
        heads = ("stage", "before s", "after s", "change", "spilled", "after")
        yield from table(heads, rows, texts=(0,), width=width)
        if len(stages) > _MOST_STAGES:
            yield f"and {len(stages) - _MOST_STAGES} more"
    yield ""
    for kind, findings in _findings(before, after).items():
        for finding in findings:
            yield f"{kind}: {finding.code}: {finding.title}"
    if not before.findings and not after.findings:
        yield "Findings: none in either run"


def _stage_pairs(before: RunMetrics, after: RunMetrics) -> list[dict[str, Any]]:
    """Return the stages of both runs, the longest first. Those of one name are paired in
    their order.
    """
    pairs: dict[tuple[str, int], list[StageEntry | None]] = {}
    for side, run in enumerate((before, after)):
        counts: dict[str, int] = {}
        for stage in sorted(run.stages, key=lambda stage: (stage.stage, stage.attempt)):
            counts[stage.name] = counts.get(stage.name, 0) + 1
            pairs.setdefault((stage.name, counts[stage.name]), [None, None])[side] = stage
    rows = [
        {
            "name": f"{name} ({number})" if number > 1 else name,
            "ms": [stage.duration_ms if stage else None for stage in pair],
            "spilled": [stage.totals.disk_spilled_bytes if stage else 0 for stage in pair],
        }
        for (name, number), pair in pairs.items()
    ]
    return sorted(rows, key=lambda row: -max(ms or 0 for ms in row["ms"]))


def _findings(before: RunMetrics, after: RunMetrics) -> Mapping[str, list[Finding]]:
    old = {finding.code for finding in before.findings}
    new = {finding.code for finding in after.findings}
    return {
        "gone": [finding for finding in before.findings if finding.code not in new],
        "new": [finding for finding in after.findings if finding.code not in old],
        "still there": [finding for finding in after.findings if finding.code in old],
    }


def _shown(name: str, value: int) -> str:
    if name in AREAS or name.endswith("_bytes"):
        return str(volume(value))
    return f"{value / 1000:,.1f} s" if name.endswith("_ms") else f"{value:,}"


def _change(before: int | None, after: int | None) -> str | None:
    if not before or after is None:
        return None
    return f"{after / before - 1:+.0%}"
