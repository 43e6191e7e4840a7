"""Chooses what runs a job on logs or dumps: processes of this host, or Spark. Both give
the same cells.

:func:`choose` is the only place where this is decided. ``run_spark`` calls it before it
      starts anything and passes the result to the job (``--engine processes``, or
      spark-submit); a job that Python code calls directly calls it itself.
"""

from __future__ import annotations

import os
from typing import TYPE_CHECKING

import msgspec

from cmsspark.base.errors import CmssparkError, NotReady, SettingsError, UsageError
from cmsspark.engines.names import AUTO, PROCESSES, SPARK
from cmsspark.engines.session import has_session
from cmsspark.filesystems.storage import Files, LocalFiles
from cmsspark.run import inputs
from cmsspark.run.provenance import is_all_local
from cmsspark.run.request import DayRequest, JobRequest
from cmsspark.sources.dumps import Dump
from cmsspark.sources.layout import Layout

if TYPE_CHECKING:
    from cmsspark.run.request import Inputs


class EngineChoice(msgspec.Struct, frozen=True):
    """The engine that counts; ``reason`` says why it is Spark, and is empty for processes."""

    engine: str
    reason: str = ""


def choose(request: JobRequest, layout: Layout, spark_reason: str = "") -> EngineChoice:
    """Return the engine for a request. ``spark_reason``: what else asks for Spark, such
    as a profile or an option of Spark.

    Looks at the dumps' folders where nothing else decides. Raises UsageError (2) if
    processes are requested for what only Spark does.
    """
    if request.engine == SPARK:
        return EngineChoice(SPARK, "--engine spark")
    if request.engine == AUTO and "PYSPARK_GATEWAY_PORT" in os.environ:
        return EngineChoice(SPARK, "spark-submit started the job")
    reason = (
        spark_reason or ", ".join(_option_reasons(request)) or _location_reason(request, layout)
    )
    reason = reason or _dump_reason(request, layout)
    if not reason:
        return EngineChoice(PROCESSES)
    if request.engine == PROCESSES:
        raise UsageError(
            "--engine processes cannot do that", found=reason, next_step="leave --engine out"
        )
    return EngineChoice(SPARK, reason)


def _option_reasons(request: JobRequest) -> list[str]:
    """Return the job's options that only Spark honours, as they are typed."""
    options = [(f"--format {request.fmt}", request.fmt != "parquet")]
    if isinstance(request, DayRequest):
        options = [
            ("--join shuffle", request.join == "shuffle"),
            ("--feed spark", request.feed == "spark"),
            *options,
        ]
    return [option for option, is_set in options if is_set]


def _location_reason(request: JobRequest, layout: Layout) -> str:
    """Say which of the request's paths are not on this host's disks; empty if all are."""
    if is_all_local(layout, request.sources, request.fout):
        return ""
    if not is_all_local(layout, (), request.fout):
        return f"--fout {request.fout} is not on this host's disks"
    root = request.root or request.settings.root
    where = f"--root {root}" if root else "without --root, the input"
    return f"{where} is not on this host's disks"


def _dump_reason(request: JobRequest, layout: Layout) -> str:
    """Say that FILES is too large for an index, where a count needs one; empty if it is not.

    A dump that is missing or damaged is no reason: the job reports it, with its exit
    code, and needs no JVM for that.
    """
    files = LocalFiles()
    if not isinstance(request, DayRequest) or request.join != "auto":
        return ""
    try:
        dbs = inputs.resolve_dbs_dump(request, layout, files)
        if inputs.uses_index(request, dbs, files):
            return ""
        # Not at import: `run_spark` starts quicker without it, and needs it on few hosts.
        from cmsspark.run import day_result

        if day_result.is_possible(request) and day_result.find(
            request, inputs.resolve(request, layout, files)
        ):
            return ""
        return _too_large(request, dbs, files)
    except CmssparkError:
        return ""


def _too_large(request: DayRequest, dbs: Dump, files: Files) -> str:
    count, limit = inputs.files_in_dbs(files, dbs), inputs.index_files(request.settings)
    return f"FILES in {dbs.folder} has some {count:,} files, an index is made of {limit:,} at most"


def check_index(request: DayRequest, resolved: Inputs) -> None:
    """Raise NotReady (75) if processes were chosen and the dump that is read is too
    large for them after all.
    """
    if not inputs.uses_index(request, resolved.dbs, resolved.files):
        raise NotReady(
            "the DBS dump was replaced while the job started, and processes cannot join one of this size",
            where=resolved.dbs.folder,
            found=_too_large(request, resolved.dbs, resolved.files),
            next_step="run it again, or with run_spark --engine spark",
        )


def check_session(choice: EngineChoice) -> None:
    """Raise SettingsError (78) if Spark is chosen in a process that has none.

    A session made here would have neither the profile's memory nor its options.
    """
    if choice.engine == SPARK and not has_session():
        raise SettingsError(
            "Spark is needed for this job",
            found=f"no Spark session in this process; needed because: {choice.reason}",
            next_step="start the job with run_spark --engine spark, which gives Spark the profile's options, or make a "
            "session first, with cmsspark.engines.session.session and options of your own",
        )
