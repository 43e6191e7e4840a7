"""``cmsspark lab completion``, and the words that a shell offers after ``run_spark``.

click completes both commands. For ``run_spark``, which splits its line itself, a group
stands in that has a command for each job and the wrapper's options at every place.
"""

from __future__ import annotations

import os
import sys
from typing import Any, Final

import click
from click.shell_completion import shell_complete

from cmsspark.store.job_index import JOBS
from cmsspark.submit.arguments import OPTIONS
from cmsspark.submit.job_commands import load_command

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
