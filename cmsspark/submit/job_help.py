"""What ``run_spark --list`` and ``run_spark JOB --help`` print: jobs by subject, usual
options before advanced ones.
"""

from __future__ import annotations

from collections.abc import Collection, Iterable, Iterator
from typing import Final

import click

from cmsspark.base.text.terminal import hanging, terminal_width
from cmsspark.store import own_jobs
from cmsspark.store.job_index import JOBS, Job
from cmsspark.submit.arguments import GROUPS, Option
from cmsspark.submit.job_commands import load_command

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
