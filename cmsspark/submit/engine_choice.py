"""Chooses the engine of a job on logs or dumps from parsed options, and makes the
command of processes. On a cluster it gives executors the memory of the index.

:func:`cmsspark.run.engine_choice.choose` chooses; this module adds what only
      ``run_spark`` knows: the profile, and the options of Spark from settings,
      ``SPARK_OPTIONS`` and the command line.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from concurrent.futures import TimeoutError as FutureTimeout
from dataclasses import replace
from importlib.util import find_spec
from typing import Any, Final, cast

from cmsspark.apps.monitor import memory_sizes as sizes
from cmsspark.base.errors import CmssparkError, SettingsError, UsageError
from cmsspark.base.text.terminal import pluralize, volume
from cmsspark.engines.names import AUTO, ENGINES, PROCESSES, SPARK
from cmsspark.filesystems.hdfs import MODULE, HdfsView
from cmsspark.filesystems.storage import Files, LocalFiles, is_local
from cmsspark.run.engine_choice import EngineChoice
from cmsspark.run.engine_choice import choose as choose_for_job
from cmsspark.run.inputs import (
    INDEX_BYTES_A_FILE,
    INDEX_FILES_KEY,
    dbs_tables,
    files_in_dbs,
    index_files,
    resolve_dbs_dump,
)
from cmsspark.run.job_modules import load_declaration
from cmsspark.run.request import DayRequest
from cmsspark.settings.settings import Settings
from cmsspark.sources.layout import Layout
from cmsspark.store.own_jobs import Job
from cmsspark.submit import yarn
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


def with_index(
    command: Command,
    job: Job | None,
    options: Mapping[str, Any],
    settings: Settings,
    environ: Mapping[str, str],
) -> Command:
    """Return the command of a cluster with the memory that the index of the files in DBS
    takes in an executor; with the shuffle join where there are too many files for an
    index, or no container has room for it.

    ``options``: the job's own, parsed. What cannot be looked at from here is left to the
    driver, with a note.
    """
    master = command.options.get("spark.master") or "local"
    make_request = None if job is None else load_declaration(job).make_request
    if make_request is None or command.mode == "python" or master.startswith("local"):
        return command
    # Without the store: which dump an earlier run of the day read is not asked.
    request = make_request({**options, "engine": SPARK}, settings, "")
    if not isinstance(request, DayRequest) or request.join == "shuffle":
        return command
    if "FILES" not in dbs_tables(request):
        return command
    layout = Layout.from_settings(request.settings, request.root)
    pool = ThreadPoolExecutor(1)
    try:
        count = pool.submit(_count_files, request, layout).result(_PATIENCE_S)
    except (CmssparkError, FutureTimeout) as error:
        reason = error.problem if isinstance(error, CmssparkError) else "HDFS does not answer"
        return _noted(command, f"the memory of an index is not known before the start: {reason}")
    finally:
        pool.shutdown(wait=False)
    is_chosen = request.join == "auto"
    if is_chosen and count > index_files(settings):
        reason = f"an index is made of {index_files(settings):,} at most"
        return _with_shuffle_join(command, count, reason)
    values = {name: chosen.value for name, chosen in command.options.chosen.items()}
    tasks = sizes.count(values.get("spark.executor.cores"), 1) // sizes.count(
        values.get("spark.task.cpus"), 1
    )
    # YARN counts mapped pages for each process, a container of Kubernetes once.
    times = max(1, tasks) if master == "yarn" else 1
    index_bytes = count * INDEX_BYTES_A_FILE
    needed = sizes.overhead(values, "executor") + times * index_bytes
    container = (sizes.executor_container(values) or 0) + times * index_bytes
    most = yarn.largest_container(environ) if master == "yarn" else None
    about = (
        f"an index of some {count:,} files has {volume(index_bytes)}, which an executor of "
        f"{pluralize(tasks, 'task')} needs {pluralize(times, 'time')} beside its heap"
    )
    if is_chosen and most is not None and container > most:
        reason = f"{about}: {volume(container)} in all, and a container of YARN has {volume(most)} at most"
        return _with_shuffle_join(command, count, reason)
    given = command.options.chosen.get(_OVERHEAD)
    if given is not None:
        is_enough = (sizes.size(given.value, "m") or 0) >= times * index_bytes
        note = f"{about}; {_OVERHEAD} from {given.origin} has {given.value}"
        return command if is_enough else _noted(command, note)
    if times * index_bytes < _LEAST_INDEX_BYTES:
        return command
    value = sizes.as_option(needed, _LEAST_INDEX_BYTES)
    command.options.set_option(_OVERHEAD, value, BUILT_IN, about)
    argv = [command.argv[0], "--conf", f"{_OVERHEAD}={value}", *command.argv[1:]]
    return replace(command, argv=argv)


_OVERHEAD: Final = "spark.executor.memoryOverhead"
#: Bytes of indexes for which no executor gets more memory.
_LEAST_INDEX_BYTES: Final = 64 << 20
#: Seconds for the questions to HDFS.
_PATIENCE_S: Final = 15


def _count_files(request: DayRequest, layout: Layout) -> int:
    is_on_disk = all(is_local(location.folder) for location in layout.locations["dbs"])
    if not is_on_disk and find_spec(MODULE) is None:
        raise SettingsError("cmsspark[hdfs] is not installed here")
    files = cast("Files", LocalFiles() if is_on_disk else HdfsView())
    return files_in_dbs(files, resolve_dbs_dump(request, layout, files))


def _with_shuffle_join(command: Command, count: int, reason: str) -> Command:
    note = f"Spark's shuffle join finds the datasets of some {count:,} files in DBS: {reason}"
    end = command.argv.index("--") if "--" in command.argv else len(command.argv)
    argv = [*command.argv[:end], "--join", "shuffle", *command.argv[end:]]
    return _noted(replace(command, argv=argv), note)


def _noted(command: Command, note: str) -> Command:
    return replace(command, notes=(*command.notes, note))


def runs_in_processes(command: Command, host: Host, job: Job, arguments: Sequence[str]) -> Command:
    """Return the command that counts without Spark, made from the one of Spark."""
    # One thread for each process: the processes are the cores.
    env = {name: value for name, value in command.env.items() if name != "SPARK_HOME"}
    env["OPENBLAS_NUM_THREADS"] = "1"
    argv = [host.python, "-m", LAUNCHER, job.word, "--engine", PROCESSES, *arguments]
    return replace(command, argv=argv, env=env, mode="python")
