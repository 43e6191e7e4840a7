"""What a job prints on stdout: the URI of its result, or with ``--json`` its outcome.
All else goes to stderr.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import click

from cmsspark.base.errors import CmssparkError, Exit, as_ours
from cmsspark.base.periods import Interval, Period
from cmsspark.base.text.readable import json_text
from cmsspark.base.text.terminal import drop_stdout
from cmsspark.filesystems.storage import LocalFiles, is_local, join
from cmsspark.store.results import CurrentTable


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--quiet``, ``--verbose``, ``--debug`` and ``--json`` of every job; the
    command gets ``as_json``.

    What they change is not the command's: errors are printed by ``errors``, and
    run_spark sets the level of the log.
    """
    for option in (
        click.option("--debug", is_flag=True, expose_value=False, help="Show tracebacks."),
        click.option(
            "--verbose", is_flag=True, expose_value=False, help="Print more progress messages."
        ),
        click.option(
            "--quiet", is_flag=True, expose_value=False, help="Print no progress and no notes."
        ),
        click.option(
            "--json",
            "as_json",
            is_flag=True,
            help="Print the outcome as JSON on stdout, also of a failure.",
        ),
    ):
        command = option(command)
    return command


def print_outcome(
    job: str,
    interval: Interval,
    as_json: bool,
    work: Callable[[], CurrentTable],
    folder: str | None = None,
) -> None:
    """Do ``work``, and print the URI of the job's first table; with ``as_json`` the
    outcome of success or failure.

    ``folder``: a folder of the run whose URI is printed instead; "" is the run's own.
    Raises what the work raises.
    """
    try:
        done = work()
    except Exception as error:
        if as_json:
            click.echo(json_text(_failed(job, interval, error), indent=1))
        raise
    outcome = describe_outcome(job, interval, done)
    if folder is not None:
        outcome["uri"] = _uri(join(done.path, folder) if folder else done.path)
    try:
        click.echo(json_text(outcome, indent=1) if as_json else outcome["uri"])
    except BrokenPipeError:
        drop_stdout()  # the result is stored all the same


def describe_outcome(job: str, interval: Interval, done: CurrentTable) -> dict[str, Any]:
    """Return the outcome of a stored run: ``done.path`` is the run's folder."""
    manifest = done.manifest
    tables = {
        name: {"uri": _uri(join(done.path, name)), "rows": entry.rows, "bytes": entry.bytes}
        for name, entry in manifest.tables.items()
    }
    return {
        **_named(job, interval),
        "state": "done",
        "exit_code": 0,
        "uri": next(iter(tables.values()))["uri"],
        "run": manifest.run,
        "tables": tables,
        "is_partial": manifest.partial,
        "warnings": list(manifest.warnings),
        "seconds": manifest.seconds,
    }


def _failed(job: str, interval: Interval, error: Exception) -> dict[str, Any]:
    ours = as_ours(error) or CmssparkError(
        f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    )
    code = Exit.BUG if as_ours(error) is None else ours.exit_code
    return {
        **_named(job, interval),
        "state": "failed",
        "exit_code": int(code),
        "error": {
            "wanted": ours.problem,
            "where": None if ours.where is None else str(ours.where),
            "found": None if ours.found is None else str(ours.found),
            "next": ours.next_step,
        },
    }


def _named(job: str, interval: Interval) -> dict[str, Any]:
    return {"job": job, "period" if isinstance(interval, Period) else "day": interval.isoformat()}


def _uri(path: str) -> str:
    # Other locations are URIs already.
    return LocalFiles().uri(path) if is_local(path) else path
