"""The command line of ``etc/training/train_events.py``: a network on a sample, as one
of the launcher's workers.
"""

from __future__ import annotations

import os
import sys
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any, Final, NoReturn

import click
from click import Choice, option

from cmsspark.apps.events.network_training import Training, World, train
from cmsspark.apps.events.networks import KINDS, require_jax
from cmsspark.apps.events.runs import budget_options
from cmsspark.base import extras, reporting
from cmsspark.base.errors import InputMissing
from cmsspark.settings.settings import load_settings

_FLUSH_SECONDS: Final = 5


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("sample", type=click.Path(path_type=Path))
@option("--model", type=Choice(list(KINDS)), default="hlf", help="Which network.")
@budget_options
@option(
    "--patience",
    type=int,
    default=5,
    help="Validations in a row without improvement before it stops.",
)
@option("--seed", type=int, default=0, help="Seed of weights, order and dropout.")
@option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder of the result. [default: the launcher's]",
)
@option(
    "--tensorboard",
    is_flag=True,
    help="Also write OUTPUT/tensorboard; needs cmsspark[tensorboard].",
)
@option("--dry-run", is_flag=True, help="Only check the arguments.")
def command(
    sample: Path,
    output: Path | None,
    dry_run: bool,
    tensorboard: bool,
    steps: int | None,
    epochs: int | None,
    **values: object,
) -> None:
    """Train a network on the folder SAMPLE, which events_sample made. The model comes
    into OUTPUT/model.
    """
    training = Training(steps=steps or 0, epochs=epochs or 0, **values)  # type: ignore[arg-type]  # click converted them
    require_jax()
    if tensorboard:
        extras.require("metrics for TensorBoard need", "tensorboardX", extra="tensorboard")
    if not (sample / "train").is_dir():
        raise InputMissing(
            "no sample of events", where=sample / "train", next_step="run events_sample.py"
        )
    if dry_run:
        return
    world = World.from_environ()
    world.join()
    target = output or Path(os.environ.get("CMSSPARK_TRAIN_OUTPUT", "output"))
    metrics = None if not tensorboard or world.rank else TensorBoardMetrics(target / "tensorboard")
    try:
        # The next training on this sample reads the arrays that this one makes.
        arrays = load_settings().cache_dir / "events"
        train(sample, target, training, world, partial(print, flush=True), metrics, arrays)
    finally:
        if metrics is not None:
            metrics.close()


def main() -> NoReturn:
    """Run it, and end with its exit code."""
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "2")
    reporting.run_and_exit(lambda: reporting.run_click(command, sys.argv[0]))


class TensorBoardMetrics:
    """Writes the numbers of each round of a training into event files in ``folder``."""

    def __init__(self, folder: Path) -> None:
        from tensorboardX import SummaryWriter

        self._writer = SummaryWriter(str(folder), flush_secs=_FLUSH_SECONDS)

    def __call__(self, line: Mapping[str, Any]) -> None:
        """Write the numbers of a round at its step; they are on disk some seconds later."""
        for name, value in line.items():
            if isinstance(value, float):
                self._writer.add_scalar(name, value, int(line["step"]))

    def close(self) -> None:
        """Write what is left."""
        self._writer.close()
