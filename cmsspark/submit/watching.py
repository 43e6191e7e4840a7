"""Whether and how run_spark watches what it runs: what the run used, and its processes."""

from __future__ import annotations

import functools
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING

from cmsspark.apps.monitor import spark_watch
from cmsspark.apps.monitor.processes.sampler import STEP_VARIABLE
from cmsspark.base import self_metrics
from cmsspark.settings.settings import Settings
from cmsspark.store.own_jobs import Job
from cmsspark.submit import yarn
from cmsspark.submit.arguments import Request
from cmsspark.submit.command import Command
from cmsspark.submit.host import write_note
from cmsspark.submit.spark_options import cluster_defaults

if TYPE_CHECKING:
    from cmsspark.apps.monitor.processes.watch import Watch
    from cmsspark.store.process_samples import ProcessSample


def is_watched(request: Request, settings: Settings, environ: Mapping[str, str]) -> bool:
    """Return whether the run is watched: unless the command line, the settings or the
    environment say no.
    """
    is_off = environ.get("CMSSPARK_MONITOR", "").lower() in ("0", "no", "off", "false")
    return settings.monitor and not is_off and not request.has("--no-monitor")


def events_folder(request: Request, settings: Settings, environ: Mapping[str, str]) -> str | None:
    """Return the URI of the folder for the event log of the run; None where it is not
    watched, or cannot be stored.
    """
    return (
        spark_watch.usable_events_folder(settings.state_dir)
        if is_watched(request, settings, environ)
        else None
    )


def measuring(
    command: Command,
    request: Request,
    job: Job | None,
    settings: Settings,
    environ: Mapping[str, str],
) -> spark_watch.RunMeasure | None:
    """Return the measurement of the run; None where it is off, or cannot be stored."""
    if not is_watched(request, settings, environ):
        return None
    name = job.name if job is not None else Path(request.job or "").name
    options = {option: chosen.value for option, chosen in command.options.chosen.items()}
    if command.mode != "python":
        # spark-submit reads these itself, below all others: a site names the folder of
        # event logs there.
        spark_home = Path(command.argv[0]).resolve().parents[1]
        options = {**cluster_defaults(spark_home, environ), **options}
    measure = spark_watch.begin(
        settings.state_dir, name, options, has_jvm=command.mode != "python", log=write_note
    )
    if measure is not None and command.is_on_yarn:
        measure.metrics.smallest_node_bytes = yarn.smallest_node(environ)
        measure.diagnose = functools.partial(yarn.diagnostics, environ)
    if measure is not None and settings.metrics.host is not None:
        from cmsspark.apps.monitor.processes.live_metrics import send_run

        # The job writes its counters there while it runs.
        (measure.folder / self_metrics.LIVE_FILE).touch(mode=0o600)
        measure.on_end = functools.partial(send_run, settings.metrics)
    return measure


def watching_processes(
    request: Request,
    settings: Settings,
    environ: Mapping[str, str],
    measure: spark_watch.RunMeasure | None = None,
) -> Callable[[int], Watch | None] | None:
    """Return what starts to watch the processes of the run below a PID; None where that
    is switched off.

    ``measure``: the measurement of the run, whose counters are sent with the samples
    where live metrics are.
    """
    if not is_watched(request, settings, environ):
        return None

    def start(root: int) -> Watch | None:
        from cmsspark.apps.monitor.processes import watch as processes_watch

        name = Path(request.job or "").name
        takers: list[Callable[[list[ProcessSample]], None]] = []
        # A suite watches the processes of its steps itself.
        is_stored = STEP_VARIABLE not in environ
        if settings.metrics.host is not None and is_stored:
            from cmsspark.apps.monitor.processes.live_metrics import GraphiteSender, LiveSender

            sender = GraphiteSender(settings.metrics)
            takers.append(
                sender.send_samples
                if measure is None
                else LiveSender(
                    sender, measure.folder, measure.metrics.job, measure.metrics.began_ms
                ).send
            )
        if measure is not None and measure.has_jvm:
            takers.append(measure.take)

        def take(samples: list[ProcessSample]) -> None:
            for taker in takers:
                taker(samples)

        run = measure.metrics.run if measure is not None else None
        options = processes_watch.WatchOptions(
            settings.state_dir,
            name,
            on_samples=take if takers else None,
            run=run,
            is_stored=is_stored,
        )
        # This process becomes that of a job in Python: a thread would end with it.
        is_own = root == os.getpid()
        if is_own:
            return processes_watch.start(root, options) if is_stored else None
        return processes_watch.start_thread(root, options)

    return start
