"""What ``run_spark --list`` and ``run_spark JOB --help`` print: jobs by subject, usual
options before advanced ones.
"""

from __future__ import annotations

import functools
import os
import sys
from collections.abc import Collection, Iterable, Iterator
from typing import Any, Final

import click
from click.shell_completion import shell_complete

from cmsspark.base.text.terminal import hanging, terminal_width
from cmsspark.run.job_modules import load_declaration
from cmsspark.store import own_jobs
from cmsspark.store.own_jobs import JOBS, Job
from cmsspark.submit.arguments import GROUPS, OPTIONS, Option

# Loads the click commands of jobs.


@functools.cache
def load_command(job: Job) -> click.Command:
    """Return the job's click command."""
    return load_declaration(job).make_command()


#: Width of help and lists, also in a pipe.
_WIDTH: Final = 80
_LEFT: Final = 27
_OTHER: Final = "Other"
_YOURS: Final = "Yours"
#: The subsystem of a job's module → its heading in the list.
HEADINGS: Final = {
    "usage": "Use of data, from logs and stored days",
    "replicas": "Datasets and replicas, from the dumps of DBS, PhEDEx and Rucio",
    "crab": "CRAB jobs of a period",
    "jobs_cost": "What jobs cost, and the C-RSG report",
    "popularity": "Forecasts of popularity",
    "cache": "Caches",
    "events": "Collision events",
    "results": "Publishing",
}
#: Parameters of jobs that most lines do not need.
_ADVANCED: Final = frozenset(
    {
        "settings_file",
        "source",
        "fmt",
        "quiet",
        "verbose",
        "debug",
        "allow_tmp",
        "max_malformed",
        "accept_damaged",
        "quarantine_above",
        "refresh_dumps",
        "join",
        "recount",
        "seed",
        "spool",
        "resume",
        "limit",
        "resend",
        "verify",
        "verify_login",
        "index",
        "views_file",
        "top_bytes",
        "users",
        "threshold",
        "judged",
        "retries",
    }
)
#: Options of run_spark that most lines need.
_USUAL: Final = ("--yarn", "--dry-run", "--explain", "--help")


def _width() -> int:
    return min(_WIDTH, terminal_width() or _WIDTH)


def job_list() -> str:
    """Return the jobs by subject, a line each: the built-in ones, then users'."""
    groups: dict[str, list[Job]] = {heading: [] for heading in (*HEADINGS.values(), _OTHER)}
    for job in JOBS.built_in.values():
        groups[HEADINGS.get(job.subsystem, _OTHER)].append(job)
    lines = []
    for heading, jobs in groups.items():
        if jobs:
            lines += ["", f"{heading}:", *map(_job_line, jobs)]
    if own_lines := [*_own_lines()]:
        lines += ["", f"{_YOURS}:", *own_lines]
    return "\n".join(["Built-in jobs; run_spark JOB --help has the options of one.", *lines])


def _own_lines() -> Iterator[str]:
    """Yield the lines of users' jobs, and of files with jobs that cannot be used."""
    for name, jobs in own_jobs.names().items():
        if len(jobs) == 1:
            yield _row(name, str(jobs[0].entry["about"]))
        else:
            files = " and ".join(job.where for job in jobs)
            yield _row(name, f"(not usable) two jobs have this name: {files}")
    for where, reason in own_jobs.errors().items():
        yield _row("(broken)", reason if where in reason else f"{where}: {reason}")


def _job_line(job: Job) -> str:
    aliases = f" (also {', '.join(job.aliases)})" if job.aliases else ""
    return _row(job.name, f"{job.about}{aliases}")


def _row(label: str, text: str) -> str:
    """Return ``text`` behind ``label``, or below where ``label`` is too long, in lines that fit."""
    lead = f"  {label:<{_LEFT - 3}} "
    if len(lead) <= _LEFT:
        return hanging(lead, text, _LEFT, _width())
    return f"{lead.rstrip()}\n" + hanging(" " * _LEFT, text, _LEFT, _width())


def wrapper_rows(options: Iterable[Option]) -> Iterator[str]:
    """Yield lines for options of run_spark."""
    for option in options:
        names = ", ".join(filter(None, (option.short, option.name)))
        yield _row(f"{names} {option.metavar}" if option.metavar else names, option.about)


def help_text(*, leave_out: Iterable[str] = ()) -> str:
    """Return the wrapper's options under their headings, as ``run_spark --help`` prints them."""
    lines: list[str] = []
    for heading, options in GROUPS.items():
        remaining = [option for option in options if option.name not in leave_out]
        lines += ["", f"{heading}:", *wrapper_rows(remaining)]
    return "\n".join(lines)


def _example(job: Job, names: Collection[str]) -> str:
    """Return a line to type; empty for a job that needs files of one's own."""
    if job.is_day_optional or "--fout" not in names:
        return ""
    period = "--month 2026-01" if job.of_periods else "--date 20260115"
    return f"run_spark {job.name} {period} --fout DIR"


def job_help(name: str, job: Job | None) -> str:
    """Return the help of a job: its usual options, then the advanced ones; for a script
    what is known of it.
    """
    if job is None:
        own_help = f"Usage: run_spark {name} [wrapper options] [--] [options of {name}]\n\nIts own help: python {name} --help"
        return f"{own_help}\n\nOptions of run_spark{help_text()}"
    command = load_command(job)
    with click.Context(command, info_name=f"run_spark {job.name}") as context:
        formatter = click.HelpFormatter(width=_width())
        command.format_usage(context, formatter)
        command.format_help_text(context, formatter)
        rows = [
            (parameter.name in _ADVANCED, record)
            for parameter in command.params
            if (record := parameter.get_help_record(context)) is not None
        ]
    # A hidden option, such as --engine, carries on a choice of run_spark.
    own_names = {
        spelling
        for parameter in command.params
        if not getattr(parameter, "hidden", False)
        for spelling in parameter.opts
    }
    usual = [option for group in GROUPS.values() for option in group if option.name in _USUAL]
    lines = ["", "Options:", *(_row(*record) for is_advanced, record in rows if not is_advanced)]
    lines += wrapper_rows(option for option in usual if option.name not in own_names)
    if advanced := [_row(*record) for is_advanced, record in rows if is_advanced]:
        lines += ["", f"Advanced options of {job.name}:", *advanced]
    if example := _example(job, own_names):
        lines += ["", "Examples:", f"  {example}", f"  {example} --dry-run"]
    lines += ["", "Advanced options of run_spark:", help_text(leave_out={*_USUAL, *own_names})]
    return formatter.getvalue().rstrip() + "\n" + "\n".join(lines)


# ``cmsspark lab completion``, and the words that a shell offers after ``run_spark``.

VARIABLE: Final = "_RUN_SPARK_COMPLETE"
SHELLS: Final = ("bash", "zsh", "fish")
_PROFILES: Final = ("local", "yarn", "k8s")
_CHOICES: Final = {
    "--engine": ("auto", "processes", "spark"),
    "--deploy-mode": ("client", "cluster"),
    "--profile": _PROFILES,
}


@click.command("completion")
@click.argument("shell", type=click.Choice(SHELLS))
def command(shell: str) -> None:
    """Print a script that completes cmsspark and run_spark in SHELL.

    For bash: cmsspark lab completion bash >
    ~/.local/share/bash-completion/completions/cmsspark, and a link named run_spark to
    it. For zsh and fish: source the output in the shell's own start file.
    """
    from click.shell_completion import get_completion_class

    kind = get_completion_class(shell)
    assert kind is not None
    for name, variable in (("cmsspark", "_CMSSPARK_COMPLETE"), ("run_spark", VARIABLE)):
        click.echo(kind(stand_in(), {}, name, variable).source())


def complete_if_asked() -> None:
    """Print completions and end, where the shell asked for them by the environment."""
    instruction = os.environ.get(VARIABLE)
    if instruction:
        sys.exit(shell_complete(stand_in(), {}, "run_spark", VARIABLE, instruction))


class _JobCompletion(click.Group):
    """A command for each job; loaded when its options are needed."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(JOBS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        job = JOBS.get(cmd_name.removesuffix(".py"))
        if job is None:
            return None
        loaded = load_command(job)
        job_options = {spelling for option in loaded.params for spelling in option.opts}
        return click.Command(
            job.name, params=[*loaded.params, *_wrapper_options(job_options)], short_help=job.about
        )


def stand_in() -> click.Group:
    """Return the group whose completions are those of ``run_spark``."""
    return _JobCompletion("run_spark", params=_wrapper_options(set()))


def _wrapper_options(job_options: set[str]) -> list[click.Parameter]:
    options: list[click.Parameter] = []
    for option in OPTIONS:
        if option.name in job_options:
            continue
        names = [name for name in (option.name, option.short) if name]
        if option.name in _CHOICES:
            kind: Any = click.Choice(_CHOICES[option.name])
        elif option.metavar in ("FILE", "LIST"):
            kind = click.Path()
        else:
            kind = None
        options.append(
            click.Option(
                names,
                is_flag=option.metavar is None,
                help=option.about,
                type=kind,
                multiple=option.many,
            )
        )
    return options
