"""Chooses the engine of a job on logs or dumps from parsed options, and makes the
command of processes.

:func:`cmsspark.run.engine_choice.choose` chooses; this module adds what only
      ``run_spark`` knows: the profile, and the options of Spark from settings,
      ``SPARK_OPTIONS`` and the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from msgspec.structs import replace

from cmsspark.base.errors import UsageError
from cmsspark.engines.names import AUTO, ENGINES, PROCESSES, SPARK
from cmsspark.run.engine_choice import EngineChoice
from cmsspark.run.engine_choice import choose as choose_for_job
from cmsspark.run.inputs import (
    INDEX_FILES_KEY,
)
from cmsspark.run.job_modules import load_declaration
from cmsspark.settings.settings import Settings
from cmsspark.sources.layout import Layout
from cmsspark.store.own_jobs import Job
from cmsspark.submit.arguments import Request
from cmsspark.submit.command import LAUNCHER, Command
from cmsspark.submit.host import Host
from cmsspark.submit.spark_options import BUILT_IN


def choose(
    command_line: Request,
    job: Job | None,
    options: Mapping[str, Any],
    settings: Settings,
    command: Command,
) -> EngineChoice:
    """Return the engine for a command line. ``options``: the job's own, parsed;
    ``command``: the one of Spark.

    Raises UsageError (2) for an engine that is not known, or cannot do what is requested.
    """
    engine = command_line.last("--engine") or options.get("engine") or AUTO
    if engine not in ENGINES:
        raise UsageError("--engine must be auto, processes or spark", found=repr(engine))
    make_request = None if job is None else load_declaration(job).make_request
    if make_request is None:
        if engine == PROCESSES:
            raise UsageError(
                "--engine processes cannot do that",
                found="the job needs Spark",
                next_step="leave --engine out",
            )
        return EngineChoice(SPARK, "the job needs Spark")
    # Without a store the job ends at once, whatever counts.
    fout = options["fout"] or settings.store or ""
    request = make_request({**options, "engine": engine}, settings, fout)
    layout = Layout.from_settings(request.settings, request.root)
    return choose_for_job(request, layout, _spark_reason(command, settings))


def _spark_reason(command: Command, settings: Settings) -> str:
    """Return the profile or first option of Spark that was asked for; empty where all
    are the local profile's.
    """
    if command.profile != "local" or command.mode != "client":
        return f"profile {command.profile}"
    for name, chosen in sorted(command.options.chosen.items()):
        layers = chosen.origin.split(" + ")
        if all(layer == BUILT_IN or layer.startswith("etc/spark/") for layer in layers):
            continue
        # The limit in the settings asks for no engine: it is compared with the dump.
        if name == INDEX_FILES_KEY and chosen.origin == settings.where("spark", name):
            continue
        return f"{name} from {chosen.origin}"
    return ""


def runs_in_processes(command: Command, host: Host, job: Job, arguments: Sequence[str]) -> Command:
    """Return the command that counts without Spark, made from the one of Spark."""
    # One thread for each process: the processes are the cores.
    env = {name: value for name, value in command.env.items() if name != "SPARK_HOME"}
    env["OPENBLAS_NUM_THREADS"] = "1"
    argv = [host.python, "-m", LAUNCHER, job.word, "--engine", PROCESSES, *arguments]
    return replace(command, argv=argv, env=env, mode="python")
