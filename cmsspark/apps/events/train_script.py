"""The command line of ``etc/training/train_events.py``: a network on a sample, as one
of the launcher's workers.
"""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import sys
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NoReturn

import click

from cmsspark.apps.events.network_training import Training, World, train
from cmsspark.apps.events.networks import KINDS, require_jax
from cmsspark.base import extras, reporting
from cmsspark.base.errors import InputMissing, NotReady
from cmsspark.base.resources import resource
from cmsspark.base.text import progress_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cmsspark.apps.training.launch import RunFolder
    from cmsspark.apps.training.script_check import TrainingRun


_FLUSH_SECONDS: Final = 5


@click.command(context_settings={"help_option_names": ["-h", "--help"], "show_default": True})
@click.argument("sample", type=click.Path(path_type=Path))
@click.option("--model", type=click.Choice(list(KINDS)), default="hlf", help="Which network.")
@click.option(
    "--steps",
    type=int,
    default=0,
    show_default="6 epochs; at least 2,000 of hlf, 400 of the others",
    help="Most steps.",
)
@click.option(
    "--epochs", type=int, default=0, show_default="by --steps", help="Most passes over the sample."
)
@click.option("--batch", type=int, default=64, help="Events a step and worker.")
@click.option("--learning-rate", type=float, default=3e-3, help="Learning rate of one worker.")
@click.option(
    "--patience",
    type=int,
    default=5,
    help="Validations in a row without improvement before it stops.",
)
@click.option("--seed", type=int, default=0, help="Seed of weights, order and dropout.")
@click.option(
    "--output",
    type=click.Path(path_type=Path),
    help="Folder of the result. [default: the launcher's]",
)
@click.option(
    "--tensorboard",
    is_flag=True,
    help="Also write OUTPUT/tensorboard; needs cmsspark[tensorboard].",
)
@click.option("--dry-run", is_flag=True, help="Only check the arguments.")
def command(
    sample: Path, output: Path | None, dry_run: bool, tensorboard: bool, **values: object
) -> None:
    """Train a network on the folder SAMPLE, which events_sample made. The model comes
    into OUTPUT/model.
    """
    training = Training(**values)  # type: ignore[arg-type]  # click converted them
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
        train(sample, target, training, world, lambda text: print(text, flush=True), metrics)  # noqa: T201  # a log
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


# The training of networks in barrier tasks of the job's own Spark session, through the
# launcher.

_SCRIPT: Final = "etc/training/train_events.py"


@dataclass(frozen=True)
class BarrierTrainer:
    """Trains networks in the barrier tasks of the job's own session; ``base``: the
    folder of runs of training.

    A run that was killed goes on from its last checkpoint when the same command runs
    again; where tasks run on other hosts, checkpoints come here when an attempt ends.
    """

    base: Path
    workers: int
    arguments: tuple[str, ...] = ()
    retries: int = 1

    def __call__(
        self, spark: SparkSession, sample: Path, kind: str, seed: int, target: Path
    ) -> None:
        """Train a network and move its model to ``target``. Raises what the launcher raises."""
        from cmsspark.apps.events.networks import require_jax
        from cmsspark.apps.events.result_files import write_history
        from cmsspark.apps.training.launch import check, launch
        from cmsspark.apps.training.script_check import TrainingRun
        from cmsspark.apps.training.spark_backend import SparkBackend

        require_jax()
        arguments = (str(sample), "--model", kind, "--seed", str(seed), *self.arguments)
        digest = hashlib.sha256(json.dumps([self.workers, *arguments]).encode()).hexdigest()[:10]
        script = Path(str(resource(_SCRIPT)))
        run = TrainingRun(
            f"events-{kind}-{digest}",
            script,
            arguments,
            self.workers,
            "spark",
            retries=self.retries,
        )
        backend = SparkBackend(session=spark)
        check(run, backend)
        folder = _continued(self.base, run)
        launch(run, backend, folder, progress_line.log)
        model = next(folder.output.glob("*/model"))
        shutil.move(model, target)
        write_history(target, _losses(folder.output))
        folder.remove()


def _losses(output: Path) -> list[dict[str, float]]:
    """Return the losses by epoch from the log of the training that worker 0 leaves."""
    log = next(output.glob("*/training_log.jsonl"), None)
    rows = (
        [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log else []
    )
    return [
        {"train_loss": row["loss"], "validation_loss": row["validation_loss"]}
        for row in rows
        if "loss" in row and "validation_loss" in row
    ]


def _continued(base: Path, run: TrainingRun) -> RunFolder:
    """Return the folder of a run, with the checkpoints of a killed run of the same
    name. Raises NotReady (75).
    """
    from cmsspark.apps.training.launch import RunFolder

    before, earlier = RunFolder(base / run.name), base / f".{run.name}.output"
    if before.path.is_dir():
        if before.is_launcher_alive():
            next_step = f"cmsspark lab train logs {run.name}"
            raise NotReady(
                "the same training runs already", where=before.path, next_step=next_step
            )
        shutil.rmtree(earlier, ignore_errors=True)
        before.output.rename(earlier)
        before.remove()
    folder = RunFolder.create(base, run)
    if earlier.is_dir():
        folder.output.rmdir()
        earlier.rename(folder.output)
    return folder
