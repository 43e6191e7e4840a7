"""The measured part of ``cmsspark show``: what a run used, and what to change."""

from __future__ import annotations

from pathlib import Path

import click
import msgspec

from cmsspark.apps.monitor.event_files import with_events
from cmsspark.apps.monitor.measured_runs import find_run, require_one
from cmsspark.apps.monitor.run_report import report
from cmsspark.base.text.readable import json_text, readable
from cmsspark.base.text.terminal import terminal_width
from cmsspark.store.run_history import Run
from cmsspark.store.run_metrics import RunMetrics


def echo_measured(state_dir: Path, run: Run) -> None:
    """Print what a run of the run history used, if it was measured and that is kept."""
    name = run.process.get("measured")
    metrics = find_run(state_dir, name) if isinstance(name, str) else None
    if metrics is not None:
        click.echo()
        _echo(with_events(state_dir, metrics))


def only_measured(state_dir: Path, name: str, *, as_json: bool) -> bool:
    """Print a run that is measured and not in the run history, such as a script's; False where there is none.

    Raises DataError (65) where its file cannot be read, UsageError (2) where several ids begin with ``name``.
    """
    metrics = find_run(state_dir, name)
    if metrics is None:
        require_one(state_dir, name)
        return False
    metrics = with_events(state_dir, metrics)
    if as_json:
        click.echo(json_text(msgspec.to_builtins(metrics), indent=1))
    else:
        _echo(metrics)
    return True


def _echo(metrics: RunMetrics) -> None:
    for line in report(metrics, terminal_width()):
        click.echo(readable(line))
