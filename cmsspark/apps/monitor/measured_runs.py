"""Measured runs as they are stored: the latest of a job, the one of an id, states of runs
that were killed, and the event logs of runs, which are read when they can be reached.

A log on this host's disks is read when the run ends. One on HDFS takes a JVM: it is
read when somebody first wants to see the run, and its figures are stored then. Until it
has an end, it is read each time.
"""

from __future__ import annotations

import itertools
import re
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import click

from cmsspark.apps.monitor.findings import find as findings
from cmsspark.apps.monitor.logs.files import find_log, is_log_name
from cmsspark.apps.monitor.logs.reader import EventLogReader, merge_peaks, read_event_log
from cmsspark.base import dates
from cmsspark.base.errors import CmssparkError, DataError, InputMissing, UsageError
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Entry, Files, LocalFiles, is_local, local_path
from cmsspark.store import run_metrics
from cmsspark.store.run_metrics import RunMetrics, TaskTotals

#: Ids that Spark's masters give.
_APPLICATION: Final = re.compile(r"application_|app-|local-|spark-")


def measured_runs(
    state_dir: Path, start: str = "", *, started_ms: int = 0
) -> Iterator[RunMetrics]:
    """Measured runs whose id begins with ``start`` and that began at ``started_ms`` or
    later, the latest first; files that are damaged are left out.
    """
    folder = run_metrics.runs_folder(state_dir)
    names = (entry.name for entry in folder.iterdir()) if folder.is_dir() else iter(())
    for name in sorted((name for name in names if name.startswith(start)), reverse=True):
        with suppress(OSError, ValueError):
            metrics = run_metrics.as_of_now(
                run_metrics.read(run_metrics.run_file(state_dir, name))
            )
            # Ids begin with the time of the run.
            if metrics.began_ms < started_ms:
                return
            yield metrics


def find_job_runs(state_dir: Path, job: str, count: int) -> list[RunMetrics]:
    """Return the latest ended runs of a job, or of a script by its file's name. Raises
    InputMissing (66) for none.
    """
    name = Path(job).name
    ended = (run for run in measured_runs(state_dir) if run.job == name and run.state != "RUNNING")
    if runs := list(itertools.islice(ended, count)):
        return runs
    measured = list(measured_runs(state_dir))
    where = run_metrics.runs_folder(state_dir)
    if any(run.job == name for run in measured):
        raise InputMissing(
            f"no measured run of {name} has ended",
            where=where,
            found="one that still runs",
            next_step=f"cmsspark lab advise {job}, when it has ended",
        )
    damaged = sum(1 for _ in _unreadable(state_dir))
    jobs = sorted({run.job for run in measured})
    raise InputMissing(
        f"no run of {name} was measured",
        where=where,
        found=(f"runs of {', '.join(jobs[:10])}" if jobs else "no measured run")
        + (f", and {damaged} of which the file cannot be read" if damaged else ""),
        next_step=f"run_spark {job} measures one, unless --no-monitor, settings or CMSSPARK_MONITOR turn it off",
    )


def _unreadable(state_dir: Path, start: str = "") -> Iterator[tuple[Path, str]]:
    """Files of measured runs whose id begins with ``start`` that cannot be read, with the reason."""
    folder = run_metrics.runs_folder(state_dir)
    for file in sorted(folder.glob("*/run.json")) if folder.is_dir() else ():
        if file.parent.name.startswith(start):
            try:
                run_metrics.read(file)
            except OSError as error:
                yield file, error.strerror or type(error).__name__
            except ValueError as error:
                yield file, str(error)


def find_run(state_dir: Path, name: str) -> RunMetrics | None:
    """Return the run of an application, or whose id begins with ``name``, or the latest of
    a script or job; ``latest``: of any. None if there is none.

    Raises UsageError (2) for an id with which several runs begin, DataError (65) for a
    file that cannot be read.
    """
    runs = list(measured_runs(state_dir, name)) if name else []
    if not runs and _APPLICATION.match(name):
        runs = [metrics for metrics in measured_runs(state_dir) if metrics.application == name][:1]
    if len(runs) == 1:
        return runs[0]
    if (latest := find_latest(state_dir, name)) is not None:
        return latest
    if runs:
        more = f" and {len(runs) - 5} more" if len(runs) > 5 else ""
        raise UsageError(
            f"the ids of several measured runs begin with {name!r}",
            found=", ".join(metrics.run for metrics in runs[:5]) + more,
            next_step="write more of the id",
        )
    for file, reason in _unreadable(state_dir, name) if name else ():
        raise DataError(
            "the file of a measured run cannot be read",
            where=file,
            found=reason,
            next_step="a later version of cmsspark may have written it; else delete its folder: it holds "
            "measurements only",
        )
    return None


def find_latest(state_dir: Path, name: str) -> RunMetrics | None:
    """Return the latest measured run of a script or job; ``latest``: of any."""
    runs = measured_runs(state_dir)
    return next((run for run in runs if name == "latest" or run.job == Path(name).name), None)


#: Lines at the begin of a log among which Spark's properties stand.
_HEAD: Final = 30
#: The clock of a file system may be this much behind.
_EARLIER_MS: Final = 5_000
#: Logs without a known application that are opened, the latest first.
_MOST_LOOKED_AT: Final = 200
#: A log without an end that has not changed for so long gets none any more.
_STILL_MS: Final = 3_600_000
_ROLLING: Final = "eventlog_v2_"


def find_event_log(location: str, metrics: RunMetrics, files: Files) -> str | None:
    """Return a run's event log in a folder, by its application's id or by the run's id
    in its head.
    """
    try:
        entries = [entry for entry in files.list_dir(location) if is_log_name(entry.name)]
    except (CmssparkError, OSError):
        if is_local(location):
            return None
        raise
    entries.sort(key=lambda entry: entry.mtime_ms, reverse=True)
    if metrics.application is not None:
        for entry in entries:
            bare_name = entry.name.removeprefix(_ROLLING)
            suffix = bare_name.removeprefix(metrics.application)
            if suffix != bare_name and suffix[:1] in ("", "_", "."):
                return entry.path  # of several attempts the last one
    young = [entry for entry in entries if entry.mtime_ms >= metrics.began_ms - _EARLIER_MS]
    return next(
        (entry.path for entry in young[:_MOST_LOOKED_AT] if _names_run(entry, metrics.run, files)),
        None,
    )


def _names_run(entry: Entry, run: str, files: Files) -> bool:
    with suppress(OSError, CmssparkError):
        reader = EventLogReader()
        for number, line in enumerate(find_log(entry.path, files)):
            reader.take(line)
            if reader.measured_run or number > _HEAD:
                break
        return reader.measured_run == run
    return False


def with_event_log(metrics: RunMetrics, location: str, files: Files | None = None) -> RunMetrics:
    """Return the run with its event log in the folder ``location``, which adds to the
    figures of REST and samples.

    ``files`` serves what is not on this host's disks. ``notes`` of the run name a log
    that is missing.
    """
    local = is_local(location)
    log = find_event_log(
        local_path(location) if local else location, metrics, files or LocalFiles()
    )
    if log is None:
        where = (
            "the driver's host has it, if there is one" if metrics.deploy_mode == "cluster" else ""
        )
        reason = where or "it did not start, or was ended before it did"
        metrics.notes.append(
            f"Spark wrote no event log {'here' if where else ''}".rstrip() + f": {reason}"
        )
        return metrics
    return _with_lines(metrics, log, files)


def _with_lines(metrics: RunMetrics, log: str, files: Files | None) -> RunMetrics:
    before = {entry.executor: entry for entry in metrics.executors}
    began_ms, ended_ms = metrics.began_ms, metrics.ended_ms
    metrics.event_log = log
    # The log has all that REST answered, and its end.
    metrics.stages, metrics.stage_count, metrics.stage_failures = [], 0, {}
    metrics.totals = TaskTotals()
    result = read_event_log(find_log(log, files), metrics).metrics()
    # The run is longer than its application, unless nobody waited for that.
    result.began_ms, result.ended_ms = began_ms, max(ended_ms or 0, result.ended_ms or 0) or None
    for entry in result.executors:
        # Spark logs no peak of a driver without tasks; REST has it.
        if (earlier := before.pop(entry.executor, None)) is not None:
            merge_peaks(entry.peaks, earlier.peaks)
    result.executors += before.values()
    return result


def pending_note(location: str) -> str:
    """Return the note of a run whose event log is not on this host."""
    return f"the event log is in {location}: cmsspark show and cmsspark lab advise read it there"


def completed(
    state_dir: Path, metrics: RunMetrics, open_store: Callable[[str], Files]
) -> RunMetrics:
    """Return the run with its event log on another file system, where it is not read
    yet. ``open_store`` reaches a location.

    Once the log has an end, its figures are stored. Raises CmssparkError where the log
    cannot be reached, InputMissing (66) where it is not there.
    """
    location = metrics.pending_events
    if location is None or metrics.state == "RUNNING":
        return metrics
    files = open_store(location)
    log = find_event_log(location, metrics, files)
    if log is None:
        raise InputMissing(
            "the run has no event log there",
            where=location,
            found=f"none of {metrics.application}"
            if metrics.application
            else f"none that names run {metrics.run}",
            next_step="the history server may have removed it, or the application never started",
        )
    metrics.pending_events = None
    metrics.notes = [note for note in metrics.notes if note != pending_note(location)]
    result = _with_lines(metrics, log, files)
    result.findings = findings.find(result)
    # Whether the log that was read gets longer.
    entry = files.stat(log)
    is_old = entry is None or dates.now_ms() - entry.mtime_ms > _STILL_MS
    if is_old or not any(note.startswith("the event log has no end") for note in result.notes):
        run_metrics.write(run_metrics.run_file(state_dir, result.run), result)
    return result


def event_files(location: str) -> Files:
    """Return what reads ``location``; a JVM starts for one that is not local."""
    if is_local(location):
        return files_for(location)
    from cmsspark.engines.session import has_session, small_session

    if not has_session():
        click.echo(f"reading event logs in {location}: starting a JVM", err=True)
    return files_for(location, small_session("cmsspark monitor events"))


def with_events(state_dir: Path, metrics: RunMetrics) -> RunMetrics:
    """Return the run with its event log, read now where it is on another file system
    and was not read yet.

    Where it cannot be read, a message on stderr names the reason, and the run is
    returned without it.
    """
    try:
        return completed(state_dir, metrics, event_files)
    except CmssparkError as error:
        click.echo(f"without the event log: {error}", err=True)
        return metrics
