"""Event logs on another file system for commands: what reaches it, and measured runs whose log is read there."""

from __future__ import annotations

from pathlib import Path

import click

from cmsspark.base.errors import CmssparkError
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Files, is_local
from cmsspark.store.run_metrics import RunMetrics


def event_files(location: str) -> Files:
    """Return what reads ``location``; a JVM starts for one that is not local."""
    if is_local(location):
        return files_for(location)
    from cmsspark.engines.session import has_session, small_session

    if not has_session():
        click.echo(f"reading event logs in {location}: starting a JVM", err=True)
    return files_for(location, small_session("cmsspark monitor events"))


def with_events(state_dir: Path, metrics: RunMetrics) -> RunMetrics:
    """Return the run with its event log, read now where it is on another file system and was not read yet.

    Where it cannot be read, a message on stderr names the reason, and the run is returned without it.
    """
    from cmsspark.apps.monitor.event_log_search import completed

    try:
        return completed(state_dir, metrics, event_files)
    except CmssparkError as error:
        click.echo(f"without the event log: {error}", err=True)
        return metrics
