"""The command line of ``etc/training/train_events.py``: a network on a sample, as one of the launcher's workers."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import NoReturn

import click

from cmsspark.apps.events.network_training import Training, World, train
from cmsspark.apps.events.networks import KINDS, require_jax
from cmsspark.base import errors
from cmsspark.base.errors import InputMissing


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("sample", type=click.Path(path_type=Path))
@click.option("--model", type=click.Choice(list(KINDS)), default="hlf", help="Which network.")
@click.option("--epochs", type=int, default=6, help="Epochs at most.")
@click.option("--batch", type=int, default=128, help="Events a step and worker.")
@click.option("--learning-rate", type=float, default=1e-3, help="Learning rate of one worker.")
@click.option("--patience", type=int, default=3, help="Epochs without a better validation before it stops.")
@click.option("--seed", type=int, default=0, help="Seed of weights, order and dropout.")
@click.option("--output", type=click.Path(path_type=Path), help="Folder of the result. [default: the launcher's]")
@click.option("--dry-run", is_flag=True, help="Only check the arguments.")
def command(sample: Path, output: Path | None, dry_run: bool, **values: object) -> None:
    """Train a network on the folder SAMPLE, which events_sample made. The model comes into OUTPUT/model."""
    training = Training(**values)  # type: ignore[arg-type]  # click converted them
    require_jax()
    if not (sample / "train").is_dir():
        raise InputMissing("a sample of events is wanted", where=sample / "train", next_step="run events_sample.py")
    if dry_run:
        return
    world = World.of()
    world.join()
    target = output or Path(os.environ.get("CMSSPARK_TRAIN_OUTPUT", "output"))
    train(sample, target, training, world, lambda text: print(text, flush=True))  # noqa: T201  # a worker's log


def main() -> NoReturn:
    """Run it, and end with its exit code."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    errors.run_and_exit(lambda: errors.run_click(command, sys.argv[0]))
