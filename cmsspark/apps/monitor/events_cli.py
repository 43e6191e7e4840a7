"""``cmsspark monitor events``: the figures and findings of any event log of Spark."""

from __future__ import annotations

import click
import msgspec

from cmsspark.apps.monitor.event_log_search import event_files
from cmsspark.base.errors import DataError
from cmsspark.base.text.readable import json_text, readable
from cmsspark.base.text.terminal import terminal_width


@click.command("events")
@click.argument("location", metavar="FILE")
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option("--debug", is_flag=True, help="Show tracebacks.")
def events_command(location: str, as_json: bool, debug: bool) -> None:
    """Read an event log of Spark 3.5 or 4.x: a file, compressed or not, or a rolling folder (eventlog_v2_…).

    Shows sums over tasks, stages, peaks of memory, findings. FILE may be on HDFS (which takes a JVM).
    """
    from cmsspark.apps.monitor import findings
    from cmsspark.apps.monitor.event_log import read_event_log
    from cmsspark.apps.monitor.event_log_files import find_log
    from cmsspark.apps.monitor.run_report import report

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
