"""``cmsspark lab train``: start a training script on several workers, look at its runs,
and bring back what it made.
"""

from __future__ import annotations

import os
import shutil
import signal
import time
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cmsspark.apps.training.run_command import run_command, settings_option
from cmsspark.base import clock
from cmsspark.base.errors import InputMissing, NotReady, OutputError, UsageError
from cmsspark.base.text.terminal import echo_table, pluralize
from cmsspark.cli.groups import CommandGroup
from cmsspark.settings.settings import load_settings

if TYPE_CHECKING:
    from cmsspark.apps.training.run_folder import RunFolder

#: Seconds that `train stop` waits for the launcher.
_STOP_SECONDS: Final = 60


@click.group("train", cls=CommandGroup)
def command() -> None:
    """Start a training script on several workers of this host, of Spark or of Kubernetes.

    Each worker gets its rank and the addresses of all: TF_CONFIG for TensorFlow,
    JAX_COORDINATOR_ADDRESS … for JAX, MASTER_ADDR, RANK … for PyTorch. What it leaves
    in CMSSPARK_TRAIN_OUTPUT is brought back.
    """


command.add_command(run_command)


def _find(name: str, settings_file: str | None) -> RunFolder:
    """Return the folder of a run. Raises InputMissing (66) where there is none of that name."""
    from cmsspark.apps.training.run_folder import RunFolder

    return RunFolder.find(load_settings(settings_file).state_dir / "training", name)


@command.command("status")
@click.argument("name", required=False)
@settings_option
def status_command(name: str | None, settings_file: str | None) -> None:
    """List runs, or show one with its workers."""
    from cmsspark.apps.training.run_folder import runs

    if name is None:
        rows = []
        for folder in runs(load_settings(settings_file).state_dir / "training"):
            record, state = folder.record, folder.state()
            began = clock.to_second(record.began_ms)
            rows.append(
                (
                    record.name,
                    state.state,
                    record.backend,
                    record.workers,
                    state.attempt,
                    began,
                    state.reason,
                )
            )
        echo_table(
            ("run", "state", "on", "workers", "attempt", "began (UTC)", "reason"),
            rows,
            texts=(0, 1, 2, 5, 6),
            optional=(6, 5, 4),
        )
        return
    folder = _find(name, settings_file)
    record, state = folder.record, folder.state()
    click.echo(f"{name}: {state.state}" + (f": {state.reason}" if state.reason else ""))
    click.echo(
        f"  script: {record.script}\n  on: {record.backend}, attempt {state.attempt}\n  folder: {folder.path}"
    )
    echo_table(
        ("worker", "state"),
        [(f"worker {i}", now) for i, now in enumerate(state.workers)],
        texts=(0, 1),
        indent="  ",
    )


@command.command("logs")
@click.argument("name")
@click.option("--worker", type=click.IntRange(0), help="Only this worker's lines.")
@click.option("--follow", "-f", is_flag=True, help="Go on until the run ends.")
@settings_option
def logs_command(name: str, worker: int | None, follow: bool, settings_file: str | None) -> None:
    """Print the lines of all workers, each with the worker's name."""
    from cmsspark.apps.training.run_folder import ENDED

    folder = _find(name, settings_file)
    if worker is not None and worker >= folder.record.workers:
        raise UsageError(
            f"workers of {name} are 0 to {folder.record.workers - 1}", found=str(worker)
        )
    path = folder.merged_log if worker is None else folder.worker_log(worker)
    position = 0
    while True:
        is_over = folder.state().state in ENDED
        if path.exists():
            with open(path, "rb") as stream:
                stream.seek(position)
                click.echo(stream.read().decode("utf-8", "replace"), nl=False)
                position = stream.tell()
        if is_over or not follow:
            return
        time.sleep(0.3)


@command.command("stop")
@click.argument("name")
@settings_option
def stop_command(name: str, settings_file: str | None) -> None:
    """Stop a run: its workers end, and what was made for it is removed."""
    folder = _find(name, settings_file)
    state = folder.state()
    if state.state == "lost" and folder.record.backend == "k8s":
        _remove_lost(folder)
        return
    if state.state != "running":
        click.echo(f"{name}: {state.state}; nothing to stop")
        return
    with suppress(ProcessLookupError):
        os.kill(folder.record.process, signal.SIGTERM)
    deadline = time.monotonic() + _STOP_SECONDS
    while folder.is_launcher_alive():
        if time.monotonic() > deadline:
            raise NotReady(
                f"the launcher of {name} has not ended yet",
                next_step=f"cmsspark lab train status {name}",
            )
        time.sleep(0.1)
    click.echo(f"{name}: {folder.state().state}")


def _remove_lost(folder: RunFolder) -> None:
    """Delete what a launcher that is gone left in its cluster: its Jobs, which own all else."""
    from cmsspark.apps.training.k8s_backend import K8sBackend

    record, state = folder.record, folder.state()
    names = [record.name, *(f"{record.name}-r{number}" for number in range(2, state.attempt + 1))]
    K8sBackend("", record.namespace, context=record.context).remove(names)
    state.state, state.reason = "stopped", "its launcher was gone"
    folder.write_state(state)
    click.echo(f"{record.name}: stopped; removed from {record.namespace}: {', '.join(names)}")


@command.command("fetch")
@click.argument("name")
@click.option(
    "--to",
    "target",
    type=click.Path(path_type=Path),
    required=True,
    help="Folder to copy into; it is made.",
)
@settings_option
def fetch_command(name: str, target: Path, settings_file: str | None) -> None:
    """Copy what the workers left: worker 0's files into the folder, those of others
    into worker-N below it.
    """
    from cmsspark.apps.training.launch import brought_back

    folder = _find(name, settings_file)
    files = brought_back(folder)
    if not files:
        raise InputMissing(
            f"{name} left no files",
            where=folder.output,
            found=f"it is {folder.state().state}",
            next_step="a script writes into the folder CMSSPARK_TRAIN_OUTPUT",
        )
    copies = {
        file: target / (Path(*file.parts[1:]) if file.parts[0] == "worker-0" else file)
        for file in files
    }
    if existing := [to for to in copies.values() if to.exists()]:
        raise OutputError(
            "a file is there already", where=existing[0], next_step="give --to another folder"
        )
    for file, to in copies.items():
        to.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy2(folder.output / file, to)
    click.echo(f"{pluralize(len(files), 'file')} in {target}")


@command.command("forget")
@click.argument("name")
@settings_option
def forget_command(name: str, settings_file: str | None) -> None:
    """Remove the folder of a run that has ended: its logs and what its workers left."""
    folder = _find(name, settings_file)
    if folder.state().state == "running":
        raise NotReady(f"{name} is running", next_step=f"cmsspark lab train stop {name}")
    folder.remove()
    click.echo(f"{name}: removed")
