"""``cmsspark monitor``: the processes of runs: what was stored, and the monitors of other nodes."""

from __future__ import annotations

import json
import sys

import click
import msgspec

from cmsspark.apps.monitor.run_report import events_command
from cmsspark.base.dates import to_second
from cmsspark.base.errors import DataError, UsageError
from cmsspark.base.text.terminal import echo_table, pluralize
from cmsspark.cli.options import CommandGroup, FiniteRange, debug_option, run_options
from cmsspark.settings.settings import load_settings
from cmsspark.store.process_samples import read_processes


@click.group("monitor", cls=CommandGroup)
def command() -> None:
    """Watch the processes of runs: on this host, and on the nodes of a cluster.

    run_spark watches each run by itself; `runs` lists what is stored, and `cmsspark show
    RUN` prints one.
    """


command.add_command(events_command)


@command.command("runs")
@click.option(
    "--limit",
    type=click.IntRange(min=1),
    default=30,
    show_default=True,
    help="Maximum number of runs.",
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one run a line.")
@run_options
def runs_command(limit: int, as_json: bool, settings_file: str | None) -> None:
    """List the watched runs, the latest first."""
    with read_processes(load_settings(settings_file).state_dir) as database:
        runs = database.runs(limit=limit) if database else []
    if as_json:
        for run in runs:
            click.echo(json.dumps(msgspec.structs.asdict(run)))
        return
    if not runs:
        click.echo("no run was watched yet: run_spark watches each run of more than a second")
        return
    rows = []
    for run in runs:
        seconds = None if run.end_ms is None else round((run.end_ms - run.start_ms) / 1000)
        facts = (to_second(run.start_ms), seconds, run.status, run.exit_code, run.host)
        rows.append((run.run, run.job or run.suite, *facts))
    headings = ("run", "job", "started (UTC)", "seconds", "status", "exit", "host")
    echo_table(headings, rows, texts=(0, 1, 2, 4, 6), full=(0, 2, 4), optional=(5, 6, 3))


@command.command("node")
@click.option("--run", metavar="RUN", help="The run that this belongs to. [default: its own]")
@click.option(
    "--interval",
    type=FiniteRange(min=0.1),
    default=10.0,
    show_default=True,
    help="Seconds between samples.",
)
@click.option(
    "--pid",
    type=click.IntRange(min=1),
    help="Watch below this process. [default: the host's NodeManager]",
)
@debug_option
def node_command(run: str | None, interval: float, pid: int | None) -> None:
    """Watch the NodeManager of this host and all below it, and print what is measured,
    for `cmsspark monitor collect` at the other end of a pipe.

    It ends with its pipe, such as that of ssh, with the NodeManager, or by a signal.
    """
    from cmsspark.apps.monitor.processes.node import find_node_manager, watch_node

    root = find_node_manager() if pid is None else pid
    click.echo(f"watching process {root} and all below it", err=True)
    click.echo(f"ended: {watch_node(root, run, interval, sys.stdout.fileno())}", err=True)


@command.command("collect")
@run_options
def collect_command(settings_file: str | None) -> None:
    """Store what `cmsspark monitor node` prints, from standard input, in the state directory.

    For example: ssh NODE cmsspark monitor node | cmsspark monitor collect
    """
    from cmsspark.apps.monitor.processes.node import NodeReader

    state_dir = load_settings(settings_file).state_dir
    reader = NodeReader(state_dir, lambda text: click.echo(text, err=True))
    reader.read(sys.stdin.buffer)
    if reader.refused:
        raise DataError(
            "standard input has lines that no monitor printed",
            found=f"{pluralize(reader.refused, 'line')}, which {'was' if reader.refused == 1 else 'were'} left out",
            next_step="a shell on the node may print a greeting; both hosts need the same version of cmsspark",
        )


@command.command("watch")
@click.argument("pid", type=click.IntRange(min=1))
@click.option(
    "--interval",
    type=FiniteRange(min=0.1),
    metavar="SECONDS",
    help="Seconds between samples. [default: 1 for 10 minutes, then 10]",
)
@run_options
def watch_command(pid: int, interval: float | None, settings_file: str | None) -> None:
    """Watch the process PID and all below it until it ends: something that run_spark
    did not start.
    """
    import psutil

    from cmsspark.apps.monitor.processes.watch import WatchOptions, watch
    from cmsspark.base.dates import new_run_id

    if not psutil.pid_exists(pid):
        raise UsageError("the process to watch does not exist", where=f"PID {pid}")
    run = new_run_id()
    click.echo(f"watching as run {run}; ends with process {pid}", err=True)
    watch(
        run,
        pid,
        WatchOptions(load_settings(settings_file).state_dir, psutil.Process(pid).name(), interval),
    )
