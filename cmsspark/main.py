"""The ``cmsspark`` command. Subcommands load when they are called, so that ``--help`` is fast."""

from __future__ import annotations

import importlib
from typing import NoReturn

import click

from cmsspark import __version__
from cmsspark.base import errors
from cmsspark.base.signals import interruptible
from cmsspark.base.text.spelling import suggestion

#: name → (module, attribute, one line of help)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "path": ("cmsspark.apps.results.path", "path_command", "Print the URI of a table's current result for a day."),
    "manifest": (
        "cmsspark.apps.results.path",
        "manifest_command",
        "Print the manifest of a table's current result as JSON.",
    ),
    "outbox": ("cmsspark.publish.outbox_cli", "command", "List, retry or discard documents to be published."),
    "publish": ("cmsspark.publish.cli", "command", "Publish a stored day or period to MONIT, or to files."),
    "runs": ("cmsspark.apps.results.runs", "runs_command", "List runs of jobs, the latest first."),
    "show": ("cmsspark.apps.results.runs", "show_command", "Show all details of one run."),
    "status": (
        "cmsspark.apps.results.status",
        "command",
        "Show which days of which jobs are done, published or failed.",
    ),
    "daily": ("cmsspark.apps.daily.cli", "command", "Bring the last days up to date: run, publish, notify. For cron."),
    "diff": ("cmsspark.apps.usage.diff", "command", "Compare two days, or two runs of one day."),
    "period": ("cmsspark.apps.usage.period", "command", "Make the table of a week, a month or a range of stored days."),
    "periods": (
        "cmsspark.apps.usage.periods_cli",
        "command",
        "List stored weeks, months and ranges, and which are out of date.",
    ),
    "view": (
        "cmsspark.apps.usage.view_cli",
        "command",
        "Make a named view of a week, a month or a range of stored days.",
    ),
    "advise": ("cmsspark.apps.monitor.advise_cli", "command", "Advise on options of Spark for a job, from its runs."),
    "lint": ("cmsspark.apps.monitor.lint_cli", "command", "Find what makes a script slow or large, with its cure."),
    "sql": ("cmsspark.apps.results.sql", "command", "Ask the stored tables in SQL, once or at a prompt."),
    "ask": ("cmsspark.apps.ask.cli", "command", "Show who reads a dataset, what a site holds, what is unused."),
    "popularity": ("cmsspark.apps.popularity.cli", "command", "Predict which datasets will be popular, and how well."),
    "placement": ("cmsspark.apps.placement.cli", "command", "Plan copies of datasets: which to make, which can go."),
    "cache": ("cmsspark.apps.cache.cli", "command", "Simulate caches: policies, bounds, the size that a site needs."),
    "events": ("cmsspark.apps.events.cli", "command", "Score collision events, judge models, show cutflows."),
    "train": (
        "cmsspark.apps.training.cli",
        "command",
        "Run a training script on workers here, on Spark or Kubernetes.",
    ),
    "pseudonyms": (
        "cmsspark.apps.results.pseudonyms",
        "command",
        "List, rotate and forget the keys that names are replaced with.",
    ),
    "dashboard": ("cmsspark.apps.dashboard.cli", "command", "Serve web pages over the stored days, on this host."),
    "plot": ("cmsspark.apps.usage.plot", "command", "Write the pictures of a day or period as PNG and SVG files."),
    "site": ("cmsspark.apps.usage.site", "command", "Write a static web site of all stored days, weeks and months."),
    "monitor": (
        "cmsspark.apps.monitor.cli",
        "command",
        "Watch the processes of runs, here and on the nodes of a cluster.",
    ),
    "perf": (
        "cmsspark.apps.monitor.perf_cli",
        "command",
        "Run suites of steps, watch them, compare releases and sizes.",
    ),
    "compact": ("cmsspark.apps.results.compact", "command", "Store days that have many small files with few files."),
    "verify": ("cmsspark.apps.results.verify", "command", "Compare the stored tables with their checksums."),
    "prune": ("cmsspark.apps.results.prune", "command", "Remove runs that are no longer current from the store."),
    "report": ("cmsspark.apps.usage.report", "command", "Account for every record of a day: text, JSON or HTML."),
    "help": ("cmsspark.apps.results.help", "command", "Show help on a topic (exit-codes) or on a command."),
    "doctor": ("cmsspark.submit.doctor", "command", "Check what cmsspark needs on this host, with the next steps."),
    "completion": ("cmsspark.submit.completion", "command", "Print a script that completes both commands in a shell."),
    "demo": ("cmsspark.apps.demo.cli", "command", "Create a small simulated CMS, process one day, show the results."),
}


class LazyGroup(click.Group):
    """A group that imports a subcommand's module only when that subcommand is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        with interruptible():
            subcommand = getattr(importlib.import_module(module), attribute)
        assert isinstance(subcommand, click.Command)
        return subcommand

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in COMMANDS:
            hint = _job_hint(args[0]) or suggestion(args[0], COMMANDS) or "cmsspark --help lists all commands."
            ctx.fail(f"No such command {args[0]!r}. {hint[0].upper()}{hint[1:]}")
        return super().resolve_command(ctx, args)

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])


def _job_hint(name: str) -> str:
    """How to start the job of that name; an empty text where there is none."""
    # Not at import: only an error needs it.
    from cmsspark.store.job_index import JOBS

    plain = name.removesuffix(".py")
    is_job = any(plain in (job.name, *job.aliases) for job in JOBS.values())
    return f"it is a job: run_spark {plain}" if is_job else ""


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cmsspark")
def command() -> None:
    """Count which CMS data are used, where, by how many people and at what cost. Jobs run with ``run_spark JOB``."""


def main() -> NoReturn:
    """Entry point of the ``cmsspark`` script."""
    errors.run_and_exit(lambda: errors.run_click(command, "cmsspark"))
