"""The ``cmsspark`` command. Subcommands load when they are called, so that ``--help`` is fast."""

from __future__ import annotations

import importlib
from collections.abc import Mapping, Sequence
from types import MappingProxyType
from typing import Final, NoReturn

import click

from cmsspark import __version__
from cmsspark.base import reporting
from cmsspark.base.reporting import interruptible
from cmsspark.base.text.spelling import suggestion

#: A command's module, attribute and line of help.
Entry = tuple[str, str, str]

#: Heading of ``cmsspark --help`` → name → entry. At most 20 names fit one screen; the
#: others are in LAB.
GROUPS: Final[Mapping[str, Mapping[str, Entry]]] = {
    "Run": {
        "demo": (
            "cmsspark.apps.demo.cli",
            "command",
            "Create a small simulated CMS, process and show a day.",
        ),
        "daily": (
            "cmsspark.apps.daily.cli",
            "command",
            "Bring the last days up to date: run, publish. For cron.",
        ),
        "period": (
            "cmsspark.apps.usage.period_cli",
            "command",
            "Make, list and view weeks, months and other ranges.",
        ),
    },
    "Look": {
        "show": (
            "cmsspark.apps.results.show",
            "command",
            "Show a stored table or a run: details, path, manifest.",
        ),
        "ask": (
            "cmsspark.apps.ask.cli",
            "command",
            "Show who reads a dataset, what a site holds, what is unused.",
        ),
        "sql": (
            "cmsspark.apps.results.sql",
            "command",
            "Query the stored tables in SQL, once or at a prompt.",
        ),
        "diff": (
            "cmsspark.apps.usage.diff",
            "command",
            "Compare two days, or two runs of one day.",
        ),
        "dashboard": (
            "cmsspark.apps.dashboard.cli",
            "command",
            "Serve web pages over the stored days, on this host.",
        ),
    },
    "Publish": {
        "publish": (
            "cmsspark.publish.cli",
            "command",
            "Publish a stored day or period to MONIT, or to files.",
        ),
        "outbox": (
            "cmsspark.publish.outbox_cli",
            "command",
            "List, retry or discard documents to be published.",
        ),
        "report": (
            "cmsspark.apps.usage.report",
            "command",
            "Report a day or period: text, page, pictures, web site.",
        ),
    },
    "Plan": {
        "popularity": (
            "cmsspark.apps.popularity.cli",
            "command",
            "Predict which datasets will be popular.",
        ),
        "placement": (
            "cmsspark.apps.placement.cli",
            "command",
            "Plan copies of datasets: what to make, what can go.",
        ),
        "cache": (
            "cmsspark.apps.cache.cli",
            "command",
            "Simulate caches: policies, bounds, the size a site needs.",
        ),
    },
    "Watch": {
        "status": (
            "cmsspark.apps.results.status",
            "command",
            "Show which days are done, published or failed.",
        ),
        "runs": ("cmsspark.apps.results.runs", "command", "List runs of jobs, the latest first."),
        "monitor": (
            "cmsspark.apps.monitor.cli",
            "command",
            "Watch the processes of runs, here and on a cluster.",
        ),
    },
    "Keep": {
        "verify": (
            "cmsspark.apps.results.verify",
            "command",
            "Compare the stored tables with their checksums.",
        ),
        "prune": (
            "cmsspark.apps.results.prune",
            "command",
            "Remove runs that are no longer current from the store.",
        ),
        "doctor": ("cmsspark.submit.doctor", "command", "Check what cmsspark needs on this host."),
    },
}
#: The commands of ``cmsspark lab``.
LAB: Final[Mapping[str, Entry]] = {
    "advise": (
        "cmsspark.apps.monitor.findings.advice",
        "command",
        "Advise on options of Spark for a job, from its runs.",
    ),
    "completion": (
        "cmsspark.submit.job_help",
        "command",
        "Print a script that completes both commands in a shell.",
    ),
    "events": (
        "cmsspark.apps.events.cli",
        "command",
        "Score collision events, judge models, show cutflows.",
    ),
    "lint": (
        "cmsspark.apps.monitor.lint.cli",
        "command",
        "Find what makes a script slow or large, with its cure.",
    ),
    "perf": (
        "cmsspark.apps.monitor.suites.cli",
        "command",
        "Run suites of steps, and compare releases.",
    ),
    "pseudonyms": (
        "cmsspark.apps.results.pseudonyms",
        "command",
        "List, rotate and forget the keys of pseudonyms.",
    ),
    "train": (
        "cmsspark.apps.training.run_command",
        "command",
        "Run a training script here, on Spark or on Kubernetes.",
    ),
}
#: Found by ``cmsspark NAME`` and ``cmsspark help NAME``, and named at the foot of
#: ``cmsspark --help``.
_HELP: Final[Mapping[str, Entry]] = {
    "help": (
        "cmsspark.apps.results.help",
        "command",
        "Show help on a topic (exit-codes) or on a command.",
    ),
    "lab": ("cmsspark.main", "lab", "List the commands that few people need."),
    "new": ("cmsspark.submit.new", "command", "Write the files of a job of your own."),
}
COMMANDS: Final[Mapping[str, Entry]] = {
    name: entry for group in (*GROUPS.values(), _HELP) for name, entry in group.items()
}


#: Words that people type for a command, and what to type instead.
_OTHER_WORDS: Final[Mapping[str, str]] = {
    "path": "cmsspark show TABLE --path",
    "manifest": "cmsspark show TABLE --manifest",
    "list": "run_spark --list",
    "jobs": "run_spark --list",
    "run": "run_spark JOB",
    "log": "cmsspark runs",
    "history": "cmsspark runs",
    "skip": "cmsspark daily skip DAY JOB --reason TEXT",
    "acknowledge": "cmsspark daily acknowledge DAY JOB --reason TEXT",
    "resume": "cmsspark publish --resume",
    "version": "cmsspark --version",
}


def with_debug(command: click.Command) -> click.Command:
    """Give a command, and those of a group, the option --debug where they lack it: the
    message of a bug advises it.
    """
    if isinstance(command, click.Group):
        for subcommand in command.commands.values():
            with_debug(subcommand)
        if not command.invoke_without_command:
            return command
    if not any("--debug" in param.opts for param in command.params):
        option = click.Option(
            ["--debug"], is_flag=True, expose_value=False, help="Show tracebacks."
        )
        command.params.append(option)
    return command


class LazyGroup(click.Group):
    """A group that imports a subcommand's module only when that subcommand is used."""

    #: Heading → name → entry.
    groups: Mapping[str, Mapping[str, Entry]] = GROUPS
    entries: Mapping[str, Entry] = COMMANDS
    #: What is printed below the commands.
    foot: str = (
        "All options of a command: cmsspark COMMAND --help. Commands that few people need: cmsspark lab."
        " A job of your own: cmsspark new job NAME. Exit codes: cmsspark help exit-codes."
    )

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.entries)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        entry = self.entries.get(cmd_name)
        if entry is None:
            return None
        module, attribute, _ = entry
        with interruptible():
            subcommand = getattr(importlib.import_module(module), attribute)
        assert isinstance(subcommand, click.Command)
        command = with_debug(subcommand)
        lines = EXAMPLES.get(cmd_name)
        if lines and not command.epilog:
            command.epilog = "\n".join(["\b", "Examples:", *(f"  {line}" for line in lines)])
        return command

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        if args and not args[0].startswith("-") and args[0] not in self.entries:
            ctx.fail(f"there is no command {args[0]!r}. {self._hint(args[0])}")
        return super().resolve_command(ctx, args)

    def _hint(self, name: str) -> str:
        if name in _OTHER_WORDS:
            return f"Type: {_OTHER_WORDS[name]}"
        if name in COMMANDS or name in LAB:
            return f"Type: cmsspark {name}" if name in COMMANDS else f"Type: cmsspark lab {name}"
        hint = (
            _job_hint(name)
            or suggestion(name, self.entries)
            or "the commands are listed by cmsspark --help."
        )
        return f"{hint[0].upper()}{hint[1:]}"

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        widest = max(len(name) for name in self.entries)
        for heading, entries in self.groups.items():
            with formatter.section(heading):
                formatter.write_dl(
                    [(f"{name:<{widest}}", about) for name, (_, _, about) in entries.items()]
                )
        if self.foot:
            formatter.write_paragraph()
            formatter.write_text(self.foot)


class _LabGroup(LazyGroup):
    groups: Mapping[str, Mapping[str, Entry]] = MappingProxyType({"Commands": LAB})
    entries = LAB
    foot = ""


def _job_hint(name: str) -> str:
    """Return how to start the job of that name; an empty text where there is none."""
    # Not at import: only an error needs it.
    from cmsspark.store.own_jobs import JOBS

    plain = name.removesuffix(".py")
    is_job = any(plain in (job.name, *job.aliases) for job in JOBS.values())
    if is_job:
        return f"it is a job: run_spark {plain}"
    from cmsspark.submit.script_lines import is_script

    return (
        f"it is a script of CMSSpark: run_spark {name} has what replaces it"
        if is_script(name)
        else ""
    )


_SETTINGS: Final = {"help_option_names": ["-h", "--help"]}


@click.group("lab", cls=_LabGroup, context_settings=_SETTINGS)
def lab() -> None:
    """Do what few people need: tune and check jobs, train models, care for a store."""


@click.group(cls=LazyGroup, context_settings=_SETTINGS)
@click.version_option(__version__, prog_name="cmsspark")
def command() -> None:
    """Count which CMS data are used, where, by how many people and at what cost. Jobs
    run with ``run_spark JOB``; ``run_spark --list`` lists them.
    """


def main() -> NoReturn:
    """Run the ``cmsspark`` script."""
    reporting.run_and_exit(lambda: reporting.run_click(command, "cmsspark"))


#: Command → lines to type.
EXAMPLES: Final[Mapping[str, Sequence[str]]] = {
    "demo": ("cmsspark demo", "cmsspark demo --days 30 --out my-demo"),
    "daily": (
        "cmsspark daily",
        "cmsspark daily --from 20260101 --to 20260131",
        "cmsspark daily --date 20260115 --force",
        'cmsspark daily skip 20260115 data_aggregation --reason "the logs are lost"',
    ),
    "new": ("cmsspark new job my_job",),
    "period": ("cmsspark period --week last", "cmsspark period --month 2026-01 --view sites"),
    "show": (
        "cmsspark show data_aggregation --date 20260115",
        "cmsspark show data_aggregation --date 20260115 --path",
        "cmsspark show latest",
    ),
    "ask": ("cmsspark ask reads 'T2_*' --weeks 4", "cmsspark ask who-reads /ZMM/Run1/AOD"),
    "sql": (
        'cmsspark sql "select stream, sum(accesses) as accesses from data_aggregation group by 1"',
        "cmsspark sql --csv \"select * from dbs_eos where day = '2026-01-15'\"",
    ),
    "diff": ("cmsspark diff 20260114 20260115", "cmsspark diff 20260114 20260115 --by site_name"),
    "dashboard": ("cmsspark dashboard", "cmsspark dashboard --port 8080 --fout store"),
    "publish": (
        "cmsspark publish --date 20260115 --dry-run",
        "cmsspark publish --date 20260115 --amq amq_broker.json",
        "cmsspark publish --date 20260115 --resume",
    ),
    "outbox": ("cmsspark outbox list", "cmsspark outbox show --date 20260115"),
    "report": (
        "cmsspark report --date 20260115",
        "cmsspark report --date 20260115 --html report.html",
    ),
    "popularity": ("cmsspark popularity predict", "cmsspark popularity evaluate"),
    "placement": ("cmsspark placement recommend", "cmsspark placement backtest"),
    "cache": ("cmsspark cache policies", "cmsspark cache compare"),
    "status": ("cmsspark status", "cmsspark status --days 60", "cmsspark status --json"),
    "runs": ("cmsspark runs", "cmsspark runs --state failed", "cmsspark runs --date 20260115"),
    "monitor": ("cmsspark monitor runs", "cmsspark monitor watch"),
    "verify": ("cmsspark verify", "cmsspark verify --all"),
    "prune": ("cmsspark prune", "cmsspark prune --older-than 90 --yes"),
    "doctor": ("cmsspark doctor", "cmsspark doctor --json"),
    "help": ("cmsspark help exit-codes", "cmsspark help publish"),
    "lab": ("cmsspark lab lint my_script.py",),
    "advise": ("cmsspark lab advise data_aggregation",),
    "completion": ("cmsspark lab completion bash",),
    "events": ("cmsspark lab events cutflow",),
    "lint": ("cmsspark lab lint my_script.py",),
    "perf": ("cmsspark lab perf results",),
    "pseudonyms": ("cmsspark lab pseudonyms list",),
    "train": ("cmsspark lab train status",),
}
