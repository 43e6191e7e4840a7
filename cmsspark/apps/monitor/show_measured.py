"""The measured part of ``cmsspark show``: what a run used, and what to change."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from cmsspark.apps.monitor.event_log_search import event_files, with_events
from cmsspark.apps.monitor.expected_cost import deviation
from cmsspark.apps.monitor.measured_runs import find_run, measured_runs, require_one
from cmsspark.apps.monitor.options import debug_option
from cmsspark.apps.monitor.run_report import report
from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.text.readable import json_text, readable
from cmsspark.base.text.terminal import terminal_width
from cmsspark.store.run_exceptions import find_exception
from cmsspark.store.run_history import Run
from cmsspark.store.run_metrics import RunMetrics


def echo_measured(state_dir: Path, run: Run, *, trace: bool = False) -> None:
    """Print what a run of the run history used, if it was measured and that is kept;
    its exception with ``trace``.
    """
    name = run.process.get("measured")
    metrics = find_run(state_dir, name) if isinstance(name, str) else None
    if trace:
        echo_trace(with_events(state_dir, metrics or RunMetrics(run.run, run.job, "", 0)))
    elif metrics is not None:
        click.echo()
        _echo(state_dir, with_events(state_dir, metrics))


def only_measured(state_dir: Path, name: str, *, as_json: bool, trace: bool = False) -> bool:
    """Print a run that is measured and not in the run history, such as a script's;
    return False where there is none.

    ``name``: the begin of its id, the application's id, ``latest``, or the script.
    Raises DataError (65) where its file cannot be read, UsageError (2) where several
    ids begin with ``name``.
    """
    metrics = find_run(state_dir, name) or find_latest(state_dir, name)
    if metrics is None:
        require_one(state_dir, name)
        return False
    metrics = with_events(state_dir, metrics)
    if trace:
        echo_trace(metrics)
    elif as_json:
        click.echo(json_text(msgspec.to_builtins(metrics), indent=1))
    else:
        _echo(state_dir, metrics)
    return True


def find_latest(state_dir: Path, name: str) -> RunMetrics | None:
    """Return the latest measured run of a script or job; ``latest``: of any."""
    runs = measured_runs(state_dir)
    return next((run for run in runs if name == "latest" or run.job == Path(name).name), None)


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


def _echo(state_dir: Path, metrics: RunMetrics) -> None:
    for line in report(metrics, terminal_width()):
        click.echo(readable(line))
    if expected := deviation(state_dir, metrics):
        click.echo()
    for line in expected:
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
    from cmsspark.apps.monitor import findings
    from cmsspark.apps.monitor.event_log import read_event_log
    from cmsspark.apps.monitor.event_log_files import find_log

    log = find_log(location, event_files(location))
    reader = read_event_log(log)
    if not reader.lines:
        raise DataError(
            "an event log has at least one event",
            where=log.parts[0],
            found=f"{log.plain_bytes:,} blank bytes" if log.plain_bytes else "an empty file",
            next_step="Spark writes its first events some seconds after the application starts: read it again then",
        )
    metrics = reader.metrics()
    # A log has no exit code; one without an end may be of an application that was killed.
    metrics.state = "ENDED" if reader.ended else "UNKNOWN"
    metrics.findings = findings.find(metrics)
    if as_json:
        click.echo(json_text(msgspec.to_builtins(metrics), indent=1))
        return
    for line in report(metrics, terminal_width()):
        click.echo(readable(line))
