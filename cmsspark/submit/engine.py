"""Whether a job that reads a day of logs, or dumps, is run here by processes, without Spark.

It is where nobody asked for Spark: the local profile as it is, no Spark option from settings or command line, and
paths on this host's disks. What only the job can see (where the default folders lie), it tells by starting
``run_spark`` again.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import replace

from cmsspark.errors import UsageError
from cmsspark.jobs import Job
from cmsspark.jobs.engine import PROCESSES, SPARK, WORDS
from cmsspark.settings import Settings
from cmsspark.storage import is_local
from cmsspark.submit.arguments import Request
from cmsspark.submit.command import Command
from cmsspark.submit.host import Host
from cmsspark.submit.options import BUILT_IN

ENGINES = ("auto", PROCESSES, SPARK)


def why_spark(
    request: Request, settings: Settings, job: Job | None, command: Command, environ: Mapping[str, str]
) -> str:
    """Why Spark runs this job; empty where processes of this host do.

    Raises UsageError (2) for an engine that is not known, or cannot do what is asked.
    """
    asked = request.last("--engine") or "auto"
    if asked not in ENGINES:
        raise UsageError("--engine is auto, processes or spark", found=repr(asked))
    reason = _reason(asked, request, settings, job, command, environ)
    if asked == PROCESSES and reason:
        raise UsageError("--engine processes cannot do that", found=reason, next_step="leave --engine out")
    return reason


def _reason(
    asked: str, request: Request, settings: Settings, job: Job | None, command: Command, environ: Mapping[str, str]
) -> str:
    if job is None or not (job.streams or job.by_processes):
        return "the job needs Spark"
    if asked == SPARK:
        return "--engine spark"
    if command.profile != "local" or command.mode != "client":
        return f"profile {command.profile}"
    given = [
        f"{name} from {chosen.origin}"
        for name, chosen in sorted(command.options.chosen.items())
        if not all(part == BUILT_IN or part.startswith("etc/spark/") for part in chosen.origin.split(" + "))
    ]
    if given:
        return given[0]
    words = request.arguments
    for option, value in (("--join", "shuffle"), ("--feed", "spark"), ("--format", "csv")):
        if _value(words, option) == value:
            return f"{option} {value}"
    places = {
        "--fout": _value(words, "--fout") or settings.store,
        "--root": _value(words, "--root") or environ.get("CMSSPARK_ROOT") or settings.root,
    }
    return next((f"{option} {place}" for option, place in places.items() if place and not is_local(place)), "")


def _value(words: Sequence[str], option: str) -> str | None:
    found = None
    for place, word in enumerate(words):
        if word == option and place + 1 < len(words):
            found = words[place + 1]
        elif word.startswith(f"{option}="):
            found = word.partition("=")[2]
    return found


def by_processes(command: Command, words: Sequence[str], host: Host, job: Job, arguments: Sequence[str]) -> Command:
    """The command that counts without Spark; from there ``words`` lead back to Spark where it is needed after all."""
    # One thread for each process: the processes are the cores.
    env = {name: value for name, value in command.env.items() if name != "SPARK_HOME"}
    again = [word for word in words if word not in ("--dry-run", "--explain")]
    env |= {WORDS: json.dumps(again), "OPENBLAS_NUM_THREADS": "1"}
    argv = [host.python, "-m", "cmsspark.jobs.launch", job.name, *arguments]
    return replace(command, argv=argv, env=env, mode="python")
