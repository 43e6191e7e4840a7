"""``run_spark JOB --date D --plan``: what the run will need, by the listing of its
inputs and the runs before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from cmsspark.apps.monitor import expected_cost
from cmsspark.apps.usage.log_job import day_request
from cmsspark.base.errors import UsageError
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.engines.names import PROCESSES
from cmsspark.filesystems.storage import Files, LocalFiles
from cmsspark.run.inputs import resolve
from cmsspark.run.provenance import is_all_local
from cmsspark.settings.settings import Settings
from cmsspark.sources.folders import DayInput
from cmsspark.sources.layout import Layout
from cmsspark.store.job_index import Job
from cmsspark.submit.command import Command
from cmsspark.submit.host import cores


def plan(job: Job | None, options: Mapping[str, Any], settings: Settings, command: Command) -> str:
    """Return the plan of a job on logs as text. ``options``: the job's own, parsed.

    Raises UsageError (2) for other jobs, InputMissing (66) and NotReady (75) as the run would.
    """
    if job is None or not job.streams:
        raise UsageError("--plan is for jobs on logs", next_step="run_spark --list names them")
    streams = _listed(job, options, settings)
    read = sum(source.size for source in streams)
    files = sum(len(source.files) for source in streams)
    values = (
        {}
        if command.mode == "python"
        else {key: entry.value for key, entry in command.options.chosen.items()}
    )
    kind = expected_cost.classify_run(
        PROCESSES if not values else "spark", values.get("spark.master", "")
    )
    size = (
        expected_cost.size_spark_run(read, values)
        if values
        else expected_cost.Size(read, cores(), cores())
    )
    runs = expected_cost.comparable(settings.state_dir, job.name, kind)
    lines = [
        f"plan of {job.name} of {options['day']}, {'by processes' if not values else f'in Spark on {kind}'}",
        f"input      {volume(read)} in {pluralize(files, 'file')}",
        *expected_cost.plan_lines(runs, kind, size, values),
    ]
    return "\n  ".join(lines)


def _listed(job: Job, options: Mapping[str, Any], settings: Settings) -> list[DayInput]:
    """Return the files of the day. Those on a cluster take a JVM to list."""
    request = day_request(job, options, settings, options["fout"] or settings.store or "")
    layout = Layout.from_settings(request.settings, request.root)
    files: Files = LocalFiles()
    if not is_all_local(layout, request.sources, request.fout):
        from cmsspark.engines.session import small_session
        from cmsspark.filesystems.hadoop import HadoopFiles

        files = HadoopFiles(small_session("cmsspark plan", request.settings))
    return resolve(request, layout, files).streams
