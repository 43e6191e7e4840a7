"""What ``run_spark`` does with its command line: help, lists and checks at once, a run
with the job's own exit code.
"""

from __future__ import annotations

import functools
import importlib
import os
import re
import secrets
import sys
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, NoReturn

import click
from msgspec.structs import replace

from cmsspark import __version__
from cmsspark.base import dates, reporting
from cmsspark.base.compiled import unavailable_reason
from cmsspark.base.errors import UsageError
from cmsspark.base.reporting import interruptible
from cmsspark.base.resources import resource
from cmsspark.cli.options import require_store
from cmsspark.run.job_modules import job_in_file
from cmsspark.settings import pseudonyms
from cmsspark.settings.settings import Settings, load_settings, load_typed_settings
from cmsspark.store.own_jobs import JOBS, Job, find_job
from cmsspark.submit import cmsspark_lines, script_lines
from cmsspark.submit.arguments import Request, Signature, split
from cmsspark.submit.command import Command, InstallPaths, build
from cmsspark.submit.days import parse_days, run_days, with_latest, without_date
from cmsspark.submit.explanation import counted_by_spark, explanation, uncompiled
from cmsspark.submit.host import (
    Host,
    check_java,
    declares_avro,
    find_java,
    find_spark,
    this_host,
    write_note,
)
from cmsspark.submit.job_help import help_text, job_help, job_list, load_command

USAGE = "run_spark JOB [wrapper options] [job options]"


def main() -> NoReturn:
    """Run the ``run_spark`` script."""
    if "_RUN_SPARK_COMPLETE" in os.environ:
        from cmsspark.submit.job_help import complete_if_asked

        complete_if_asked()
    reporting.set_program("run_spark")

    def run_interruptible() -> int:
        with interruptible():
            return run_spark(sys.argv[1:], os.environ)

    reporting.run_and_exit(run_interruptible)


def run_spark(argv: Sequence[str], environ: Mapping[str, str]) -> int:
    """Run a command line, without the program's name, and return its exit code."""
    request = _parsed(argv, environ)
    if request.has("--version"):
        return _echo(f"run_spark, version {__version__}")
    if request.has("--list"):
        return _echo(job_list())
    if request.job is None:
        if request.has("--help"):
            return _echo(
                f"Usage: {USAGE}\n{help_text()}\n\n{job_list()}\n\nMore: docs/submitting.md"
            )
        raise UsageError("name a job", next_step=f"{USAGE}; run_spark --list names the jobs")
    job = built_in(request.job)
    if request.has("--help"):
        return _echo(job_help(request.job, job))
    if (days := parse_days(request, job)) is not None:
        return run_days(request, days, environ)
    if job is None:
        if declares_avro(Path(request.job)):
            request.values.setdefault("--avro", [])
        if (path := script_lines.python_path(Path(request.job), environ)) is not None:
            environ = {**environ, "PYTHONPATH": path}
    return submit(request, job, environ)


def _parsed(argv: Sequence[str], environ: Mapping[str, str]) -> Request:
    """Parse a command line, today's or one of CMSSpark."""
    reporting.check_pasted(argv)
    argv = _without_launcher(argv)
    load_typed_settings(argv, environ)
    try:
        request = split(argv, load_signature)
    except script_lines.ScriptNotIncluded as error:
        position = list(argv).index(error.script)
        words = [*argv[position + 1 :], *argv[:position]]
        raise script_lines.answer(
            error.script,
            words,
            load_signature,
            lambda: bool(load_settings(None, environ).root),
            parse_typed,
        ) from None
    job = built_in(request.job) if request.job is not None else None
    if job is None or request.has("--help"):
        return replace(request, argv=list(argv))

    def has_root() -> bool:
        return bool(load_settings(request.last("--settings"), environ).root)

    translation = cmsspark_lines.translate(argv, job, load_signature(job.name) or {}, has_root)
    for note in translation.notes:
        write_note(note)
    request = replace(split(translation.argv, load_signature), argv=translation.argv)
    if translation.default_day is None:
        return request
    return without_date(
        request, job, translation.default_day, environ, functools.partial(job_options, job)
    )


def _without_launcher(argv: Sequence[str]) -> Sequence[str]:
    """Return a line that was pasted with its program, such as ``spark-submit --master
    yarn NAME.py``, without it.
    """
    following = list(argv)
    while following and (
        Path(following[0]).name in _LAUNCHERS or re.fullmatch(r"[A-Z_]+=\S*", following[0])
    ):
        word = following.pop(0)
        write_note(f"{word.partition('=')[0]} is not needed in this line")
    return following


#: Programs that started jobs of CMSSpark.
_LAUNCHERS = (
    *("spark-submit", "spark3-submit", "run_spark", "run_spark3", "run_spark3.sh"),
    *("python", "python3"),
)


def parse_typed(words: Sequence[str]) -> None:
    """Parse a line as a person would type it, as our commands do. Raises UsageError (2)
    for what they would refuse.
    """
    program, name, *words_of_job = words
    if program == "run_spark":
        if name == "JOB" or name.startswith("/path/to/"):
            return
        job = find_job(name)
        # An answer may have options of CMSSpark that run_spark understands: --inst.
        signature = load_signature(job.name) or {}
        argv = cmsspark_lines.translate([name, *words_of_job], job, signature, lambda: True).argv
        request = replace(split(argv, load_signature), argv=list(argv))
        if (days := parse_days(request, job)) is not None:
            request = split(_with_day(argv, f"--date={dates.compact(days[0])}"), load_signature)
        job_options(job, [word.replace("JOB", job.name) for word in request.arguments])
        return
    module = importlib.import_module(_TYPED[name])
    try:
        module.command.make_context(f"cmsspark {name}", list(words_of_job))
    except click.UsageError as error:
        raise UsageError(error.format_message(), where=f"cmsspark {name}") from None


#: The commands of ``cmsspark`` that answers to old lines name, and their modules.
_TYPED = {
    "daily": "cmsspark.apps.daily.cli",
    "report": "cmsspark.apps.usage.report",
    "sql": "cmsspark.apps.results.sql",
}


def _with_day(words: Sequence[str], day: str) -> list[str]:
    """Return the words with another --date."""
    changed, following = [], list(words)
    while following:
        word = following.pop(0)
        if word == "--date" and following:
            following.pop(0)
            word = day
        changed.append(day if word.startswith("--date=") else word)
    return changed


def submit(request: Request, job: Job | None, environ: Mapping[str, str]) -> int:
    """Build the command, and show or run it."""
    # Not at import: lists and help must answer at once.
    from cmsspark.submit import watching
    from cmsspark.submit.run_command import run

    if job is not None:
        request = with_latest(request, job, environ, functools.partial(job_options, job))
    options = {} if job is None else job_options(job, request.arguments)
    settings = load_settings(options.get("settings_file") or request.last("--settings"), environ)
    host = this_host(environ)
    events = watching.events_folder(request, settings, environ)
    spark = build(request, settings, host, install_paths(host, settings, events), job)
    command, reason = with_engine(spark, request, job, options, settings, host)
    is_shown = request.has("--explain") or request.has("--dry-run")
    if command.mode != "python":
        # Processes of this host need none of these modules.
        from cmsspark.submit import cluster_checks

        if not is_shown:
            check_host(command, job, options, settings, host)
        spark = command = cluster_checks.with_index(command, job, options, settings, environ)
        if command.is_on_yarn and not is_shown:
            command = cluster_checks.checked(command, environ)
    if request.has("--explain"):
        first = [
            *uncompiled(job, host.package, unavailable_reason()),
            *counted_by_spark(job, reason),
        ]
        _echo(
            explanation(
                command,
                spark,
                settings,
                first,
                Path(request.job or "").name if job is None else job.name,
            )
        )
    if request.has("--dry-run"):
        _echo(command.shell() if command is spark else f"{command.shell()}\n\n{instead(spark)}")
    if is_shown:
        return 0
    for note in command.notes:
        write_note(note)
    measure = watching.measuring(command, request, job, settings, environ)
    return run(
        command, environ, watching.watching_processes(request, settings, environ, measure), measure
    )


def check_host(
    command: Command,
    job: Job | None,
    options: Mapping[str, Any],
    settings: Settings,
    host: Host,
) -> None:
    """Check what needs no look at the inputs: Java, the cluster's configuration, locations,
    what travels, tickets, and that something answers. Raises what each check raises.
    """
    from cmsspark.submit import cluster_checks, yarn
    from cmsspark.submit.kubernetes import check_kubernetes
    from cmsspark.submit.spark_options import cluster_defaults

    java = find_java(host.environ)
    is_here = (command.options.get("spark.master") or "").startswith("local")
    if java is None and is_here:
        cluster_checks.check_root(options, settings, job)
    check_java(java, find_spark(host.environ), host.environ)
    cluster_checks.check_yarn(command, host)
    if "fout" in options:
        require_store(options["fout"], settings)
    if not is_here:
        locations = {"--root": options.get("root") or settings.root}
        locations["--fout"] = options.get("fout") or settings.store
        cluster_checks.check_locations(locations, host.environ)
        cluster_checks.check_travelling(command)
    cluster_checks.check_kerberos(command, host)
    check_kubernetes(command, cluster_defaults(host.spark.home, host.environ))
    if command.is_on_yarn:
        yarn.check_nodes(host.environ)
        yarn.check_namenode(host.environ)


def with_engine(
    spark: Command,
    request: Request,
    job: Job | None,
    options: Mapping[str, Any],
    settings: Settings,
    host: Host,
) -> tuple[Command, str]:
    """Return the command of the engine that is chosen, and why that is Spark: ``spark``
    itself, or the same job counted by processes of this host. ``options``: the job's
    own, parsed.
    """
    if spark.mode == "python":
        return spark, ""
    from cmsspark.engines.names import SPARK
    from cmsspark.submit import engine_choice

    choice = engine_choice.choose(request, job, options, settings, spark)
    if job is None or choice.engine == SPARK:
        return spark, choice.reason
    return engine_choice.runs_in_processes(spark, host, job, request.arguments), ""


def instead(spark: Command) -> str:
    """Return the command of Spark as a comment for a shell."""
    return "\n".join(
        ["# With --engine spark:", *(f"# {line}" for line in spark.shell().splitlines())]
    )


def built_in(name: str) -> Job | None:
    """Return the job of that name or file, or None for the path of one's own script.

    Raises UsageError (2) for neither.
    """
    if "://" in name:
        return None
    if (job := job_in_file(name)) is not None:
        return job
    if script_lines.is_shell_script(name) and not _is_job(name):
        raise script_lines.ScriptNotIncluded(name)
    if "/" in name:
        if Path(name).is_file():
            return None
        if name.endswith(".py") and Path(name).stem in script_lines.BUILT_IN:
            return find_job(Path(name).stem)
        if script_lines.is_script(name):
            raise script_lines.ScriptNotIncluded(name)
        raise UsageError(
            "the script cannot be read",
            where=name,
            found="no such file",
            next_step="check the path; run_spark --list names the built-in jobs",
        )
    try:
        return find_job(name)
    except UsageError as error:
        if Path(name).is_file():
            return None
        if script_lines.is_script(name):
            raise script_lines.ScriptNotIncluded(name) from None
        raise UsageError(
            f"{error.problem}, and no file of that name here", next_step=error.next_step
        ) from None


def _is_job(name: str) -> bool:
    """Return whether a name without a folder is a job's: ``cern_monit``, ``dbs_spark``."""
    return "/" not in name and any(name in (job.name, *job.aliases) for job in JOBS.values())


def load_signature(name: str) -> Signature | None:
    """Return a built-in job's options and whether each takes a value; None for one's own script."""
    job = built_in(name)
    if job is None:
        return None
    options = [option for option in load_command(job).params if isinstance(option, click.Option)]
    return {
        spelling: not (getattr(option, "is_flag", False) or getattr(option, "count", False))
        for option in options
        # --engine is run_spark's, which passes its choice on by the job's hidden option
        # of that name.
        if option.name != "engine"
        for spelling in (*option.opts, *option.secondary_opts)
    }


def job_options(job: Job, arguments: Sequence[str]) -> dict[str, Any]:
    """Return the job's own options as its command parses them: a wrong date is reported
    before a JVM starts.

    Raises UsageError (2) with click's message.
    """
    try:
        return load_command(job).make_context(f"run_spark {job.name}", list(arguments)).params
    except click.UsageError as error:
        raise reporting.usage_error(error, f"run_spark {job.name}") from None


def install_paths(host: Host, settings: Settings, events: str | None) -> InstallPaths:
    """Return the files of this installation."""
    from cmsspark.submit.package import ship, ship_own

    return InstallPaths(
        launcher=str(host.package / "submit" / "launch.py"),
        log4j=str(resource("etc/log4j2.properties")),
        ship=functools.partial(ship, host.package, settings.cache_dir),
        key=functools.partial(private_key, settings),
        events=events,
        ship_own=functools.partial(ship_own, settings=settings),
        run=secrets.token_hex(4),
    )


def private_key(settings: Settings) -> str:
    """Return the pseudonyms' key as a file that travels: Spark keeps it in a folder
    that only this user reads.
    """
    path = settings.state_dir / pseudonyms.KEY_FILE
    pseudonyms.load_or_make(path)
    return str(path)


def _echo(text: str) -> int:
    try:
        sys.stdout.write(text + "\n")
        sys.stdout.flush()
    except BrokenPipeError:
        # `run_spark --help | head` is no error; nothing may be flushed into the closed
        # pipe at exit.
        os.dup2(os.open(os.devnull, os.O_WRONLY), 1)
    return 0
