"""The ``cmsspark`` command. Subcommands load when they are called, so that ``--help`` answers at once."""

from __future__ import annotations

import importlib
from typing import NoReturn

import click

from cmsspark import __version__, errors

#: name → (module, attribute, one line of help)
COMMANDS: dict[str, tuple[str, str, str]] = {
    "path": ("cmsspark.commands.path", "path_command", "Print the URI of a table's current result for a day."),
    "manifest": (
        "cmsspark.commands.path",
        "manifest_command",
        "Print the manifest of a table's current result as JSON.",
    ),
    "outbox": ("cmsspark.commands.outbox_command", "command", "See what waits to be published, and act on it."),
    "publish": ("cmsspark.commands.publish", "command", "Publish a stored day or period to MONIT, or to a file spool."),
    "runs": ("cmsspark.commands.runs", "runs_command", "List runs of jobs, the latest first."),
    "show": ("cmsspark.commands.runs", "show_command", "Show all that is known of one run."),
    "status": ("cmsspark.commands.status", "command", "Days by jobs at a glance: done, published, failed, missing."),
    "daily": ("cmsspark.commands.daily", "command", "Bring the last days up to date: run, publish, tell. For cron."),
    "diff": ("cmsspark.commands.diff", "command", "Compare two days, or two runs of one day."),
    "period": ("cmsspark.jobs.period", "command", "Make a week, a month or any range from its stored days."),
    "periods": (
        "cmsspark.commands.list_periods",
        "command",
        "List stored weeks, months and ranges, and which are stale.",
    ),
    "view": (
        "cmsspark.commands.view",
        "command",
        "Make a named view of any week, month or range; its time is printed.",
    ),
    "ask": ("cmsspark.commands.ask", "command", "Who reads a dataset, what is read or lies at a site, what is unused."),
    "prune": ("cmsspark.commands.prune", "command", "Remove runs that count no more from the store."),
    "report": ("cmsspark.commands.report", "command", "Where every record of a day went: text, JSON or a page."),
    "help": ("cmsspark.commands.help", "command", "Show help on a topic (exit-codes) or on a command."),
    "demo": ("cmsspark.commands.demo", "command", "Make a small CMS, run its day and show the result."),
}


class LazyGroup(click.Group):
    """A group that imports a subcommand's module only when that subcommand is used."""

    def list_commands(self, ctx: click.Context) -> list[str]:
        return sorted(COMMANDS)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        if cmd_name not in COMMANDS:
            return None
        module, attribute, _ = COMMANDS[cmd_name]
        found = getattr(importlib.import_module(module), attribute)
        assert isinstance(found, click.Command)
        return found

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        with formatter.section("Commands"):
            formatter.write_dl([(name, COMMANDS[name][2]) for name in self.list_commands(ctx)])


@click.group(cls=LazyGroup, context_settings={"help_option_names": ["-h", "--help"]})
@click.version_option(__version__, prog_name="cmsspark")
def command() -> None:
    """What CMS data are used, where, by how many and at what cost. Jobs run with ``run_spark JOB``."""


def main() -> NoReturn:
    """Entry point of the ``cmsspark`` script."""
    errors.run_and_exit(lambda: errors.run_click(command, "cmsspark"))
