"""``cmsspark monitor``: the processes of runs: what was stored, and the monitors of other nodes."""

from __future__ import annotations

import json
import re
import signal
from pathlib import Path
from typing import Final

import click
import msgspec
from click import option

from cmsspark.apps.monitor.run_report import events_command
from cmsspark.base.dates import to_second
from cmsspark.base.errors import UsageError
from cmsspark.base.text.terminal import echo_table
from cmsspark.cli.options import CommandGroup, FiniteRange, run_options
from cmsspark.settings.settings import load_settings
from cmsspark.store.process_samples import read_processes

_FILE: Final = click.Path(path_type=Path, dir_okay=False)
_TOKEN: Final = option(
    "--token-file",
    type=_FILE,
    required=True,
    help="A private file with the token in its first line, the same on all nodes.",
)


@click.group("monitor", cls=CommandGroup, context_settings={"show_default": True})
def command() -> None:
    """Watch the processes of runs: on this host, and on the nodes of a cluster.

    run_spark watches each run by itself; `runs` lists what is stored, and `cmsspark show
    RUN` prints one.
    """


command.add_command(events_command)


@command.command("runs")
@option("--limit", type=click.IntRange(min=1), default=30, help="Maximum number of runs.")
@option("--json", "as_json", is_flag=True, help="Print JSON, one run a line.")
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
@option("--collector", required=True, metavar="URL", help="The collector: http[s]://HOST:PORT.")
@_TOKEN
@option("--run", metavar="RUN", help="The run that this belongs to: the monitor ends with it.")
@option(
    "--ttl",
    type=FiniteRange(min=0, min_open=True),
    default=86_400,
    help="Seconds after which it ends.",
)
@option("--interval", type=FiniteRange(min=0.1), default=10.0, help="Seconds between samples.")
@option(
    "--patience",
    type=FiniteRange(min=1),
    default=600.0,
    help="With --run: seconds without an answer of the collector after which it ends.",
)
@option(
    "--pid",
    type=click.IntRange(min=1),
    help="Watch below this process. [default: the host's NodeManager]",
)
@option(
    "--name",
    metavar="NAME",
    help="The name of this node, where two have one host name. [default: the host name]",
)
@option(
    "--buffer",
    type=click.Path(path_type=Path, file_okay=False),
    metavar="DIR",
    help="Where samples wait while the collector is away. [default: in the state directory]",
)
@option(
    "--ca",
    type=click.Path(path_type=Path, exists=True, dir_okay=False),
    help="Certificates to trust, for https.",
)
@run_options
def node_command(
    collector: str,
    token_file: Path,
    run: str | None,
    ttl: float,
    interval: float,
    patience: float,
    pid: int | None,
    name: str | None,
    buffer: Path | None,
    ca: Path | None,
    settings_file: str | None,
) -> None:
    """Watch the NodeManager of this host and all below it, and send what is measured to
    a collector.

    It ends with its run, with the NodeManager, after --ttl seconds, by a signal, or,
    with --run, when the collector has not answered for --patience seconds.
    """
    from cmsspark.apps.monitor.processes import node as processes_node
    from cmsspark.apps.monitor.processes.collector import check_node_name
    from cmsspark.settings.secrets import read_password

    server = processes_node.collector_server(collector, read_password(token_file), ca)
    if name is not None:
        check_node_name(name)
    root = processes_node.find_node_manager() if pid is None else pid
    folder = buffer or load_settings(settings_file).state_dir / "monitor" / "buffer"
    sender = processes_node.sender_to(server, folder, lambda text: click.echo(text, err=True))
    click.echo(f"watching process {root} and all below it; sending to {collector}", err=True)
    reason = processes_node.NodeMonitor(root, sender, run, ttl, interval, patience, name).watch()
    click.echo(f"ended: {reason}", err=True)


@command.command("collect")
@_TOKEN
@option("--host", default="127.0.0.1", metavar="ADDRESS", help="The address to listen on.")
@option("--port", type=click.IntRange(0, 65_535), default=8_766, help="0 takes a free port.")
@option("--tls-cert", type=_FILE, help="Certificate; with its key, or --tls-key.")
@option("--tls-key", type=_FILE, help="Private key of the certificate.")
@option("--without-tls", is_flag=True, help="Allow an address of the network without TLS.")
@run_options
def collect_command(
    token_file: Path,
    host: str,
    port: int,
    tls_cert: Path | None,
    tls_key: Path | None,
    without_tls: bool,
    settings_file: str | None,
) -> None:
    """Take what monitors of nodes send, until a signal, and store it in the state directory."""
    from cmsspark.apps.monitor.processes.collector import Collector, check_address, server_tls
    from cmsspark.settings.secrets import read_password

    check_address(host, tls_cert is not None, without_tls)
    tls = server_tls(tls_cert, tls_key)
    state_dir = load_settings(settings_file).state_dir
    collector = Collector(state_dir, read_password(token_file), host, port, tls)
    for number in (signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.default_int_handler)
    click.echo(f"collecting at {collector.url}; Ctrl-C ends it")
    try:
        collector.run()
    except KeyboardInterrupt:
        click.echo("ended", err=True)
    finally:
        collector.close()


@command.command("watch")
@click.argument("pid", type=click.IntRange(min=1))
@option(
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


@command.command("annotate")
@click.argument("run")
@run_options
def annotate_command(run: str, settings_file: str | None) -> None:
    """Send when the stages and queries of the measured RUN ran to the receiver of the
    settings' `metrics`.

    Dashboards draw them over the curves.
    """
    from cmsspark.apps.monitor.processes.live_metrics import run_annotations, send_annotations

    settings = load_settings(settings_file)
    if settings.metrics.host is None:
        raise UsageError(
            "the settings name no receiver of live metrics",
            where=settings.origin or "settings",
            next_step="set metrics.host: docs/monitoring.md",
        )
    if not re.fullmatch(r"[\w.\-]{1,100}", run):
        raise UsageError(
            "RUN must be the id of a measured run",
            found=repr(run),
            next_step="cmsspark monitor runs lists them",
        )
    annotations = run_annotations(
        settings.metrics.prefix, settings.state_dir / "monitor" / "runs" / run / "run.json"
    )
    send_annotations(settings.metrics, annotations)
    click.echo(f"{annotations.count} stages and queries of {annotations.run}")
