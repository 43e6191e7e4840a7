"""What the jobs on events share: options, the day that names a result, the sessions,
folders beside tables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any

import click

from cmsspark.base import dates
from cmsspark.base.errors import SettingsError
from cmsspark.cli.options import DayType, output_options, require_store, store_options
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Files, LocalFiles, is_local
from cmsspark.run.provenance import versions
from cmsspark.run.run_context import RunContext, running
from cmsspark.settings.settings import load_settings

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cmsspark.settings.settings import Settings
    from cmsspark.store.results import CurrentTable
    from cmsspark.store.staged_runs import StagedRun


@dataclass(frozen=True)
class EventRequest:
    """What every job on events knows: the store, the day under which its result is
    stored, the settings.
    """

    fout: str
    day: date
    settings: Settings
    log: Callable[[str], None] | None = None


def event_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the options of every job on events; the command gets ``request`` and ``as_json``."""

    @functools.wraps(command)
    def with_request(*arguments: Any, **options: Any) -> Any:
        settings = load_settings(options.pop("settings_file"))
        fout, day = (
            require_store(options.pop("fout"), settings),
            options.pop("day") or dates.today(),
        )
        return command(*arguments, request=EventRequest(fout, day, settings), **options)

    wrapped: Callable[..., Any] = output_options(store_options(with_request))
    date_help = "The day under which the result is stored. [default: today]"
    return click.option("--date", "day", type=DayType(), help=date_help)(wrapped)


def budget_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the options of how long a network learns, and how fast."""
    budget = "6 epochs; at least 2,000 of hlf, 400 of the others"
    options = (
        click.option(
            "--steps",
            type=click.IntRange(1),
            show_default=budget,
            help="Networks: most steps; training stops early where the validation does not improve.",
        ),
        click.option(
            "--epochs",
            type=click.IntRange(1),
            show_default="by --steps",
            help="Networks: most passes over the sample.",
        ),
        click.option(
            "--batch",
            type=click.IntRange(1),
            default=64,
            help="Networks: events of a step and worker.",
        ),
        click.option(
            "--learning-rate",
            type=click.FloatRange(0, min_open=True),
            default=3e-3,
            help="Networks: that of one worker.",
        ),
    )
    for add in reversed(options):
        command = add(command)
    return command


@contextmanager
def event_run(request: EventRequest, job: str) -> Iterator[tuple[RunContext, Files, SparkSession]]:
    """Run the block as a run of ``job``, with its lease, in the Spark session that runs.

    Raises SettingsError (78) where none does, UsageError (2) without the extra,
    NotReady (75) for a lease.
    """
    from cmsspark.apps.events import require_events
    from cmsspark.engines.session import has_session, session

    require_events()
    if not has_session():
        raise SettingsError(
            "Spark is needed for this job",
            found="no Spark session in this process",
            next_step=f"run_spark {job}, or make a session first (cmsspark.session())",
        )
    with running(request.settings, request.fout, job, request.day, request.log) as run_context:
        if is_local(request.fout):
            # Another process that works on the day is an error before a JVM starts.
            run_context.lock(LocalFiles())
        spark = session(f"cmsspark {job} {request.day}")
        files = LocalFiles() if is_local(request.fout) else files_for(request.fout, spark)
        run_context.lock(files)
        yield run_context, files, spark


def find_run_folder(table: CurrentTable) -> str:
    """Return the folder of a run, from one of its tables."""
    return table.path.rstrip("/").rpartition("/")[0]


def finish(
    run_context: RunContext,
    staged: StagedRun,
    manifest: dict[str, Any],
    warnings: list[str],
    outcome: str,
) -> CurrentTable:
    """Make a run current, and log what it is. ``manifest``: what is special to the job."""
    assert isinstance(run_context.interval, date)
    done = staged.commit(
        {
            **manifest,
            "warnings": warnings,
            "versions": versions(),
            "seconds": round(run_context.seconds(), 1),
            "timestamp": dates.start_ms(run_context.interval),
        }
    )
    for text in warnings:
        run_context.log(f"warning: {text}")
    run_context.log(
        f"{run_context.job} of {run_context.interval}: {outcome} after {run_context.seconds():.1f} s"
    )
    run_context.manifest = done.manifest
    return done
