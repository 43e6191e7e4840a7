"""``events_train``: train and judge classifiers on a sample of events (``docs/events.md``)."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cmsspark.apps.events.runs import EventRequest, event_options
from cmsspark.base.errors import NotReady, UsageError
from cmsspark.base.resources import resource
from cmsspark.base.text import progress_line
from cmsspark.cli.job_output import print_outcome
from cmsspark.store.job_index import JOBS

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cmsspark.apps.training.run_folder import RunFolder
    from cmsspark.apps.training.spec import TrainingRun

NAME: Final = "events_train"
#: As in cmsspark.apps.events.models, which loads numpy.
KINDS: Final = ("forest", "boosting", "xgboost", "hlf", "sequence", "inclusive")
_SCRIPT: Final = "etc/training/train_events.py"


@click.command(NAME, help=f"{JOBS[NAME].about}. Needs cmsspark[events]. Exit codes: cmsspark help exit-codes.")
@click.option(
    "--model",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    default=("xgboost",),
    show_default=True,
    help="What to train; may be repeated. Networks (hlf, sequence, inclusive) need cmsspark[training].",
)
@click.option("--set", "parameters", multiple=True, metavar="NAME=VALUE", help="A parameter of trees, such as depth=6.")
@click.option("--workers", type=click.IntRange(1), default=1, show_default=True, help="Networks: workers at once.")
@click.option(
    "--steps", type=click.IntRange(1), show_default="6 epochs; at least 2,000 of hlf, 400 of the others",
    help="Networks: most steps; training stops early where the validation does not improve.",
)  # fmt: skip
@click.option(
    "--epochs", type=click.IntRange(1), show_default="by --steps", help="Networks: most passes over the sample."
)
@click.option("--batch", type=click.IntRange(1), default=64, show_default=True, help="Networks: events of a step.")
@click.option(
    "--learning-rate", type=click.FloatRange(0, min_open=True), default=3e-3, show_default=True,
    help="Networks: that of one worker.",
)  # fmt: skip
@click.option("--retries", type=click.IntRange(0), default=1, show_default=True, help="Networks: after a lost worker.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the training.")
@event_options
def command(
    request: EventRequest, as_json: bool, kinds: tuple[str, ...], parameters: tuple[str, ...], seed: int, workers: int,
    steps: int | None, epochs: int | None, batch: int, learning_rate: float, retries: int,
) -> None:  # fmt: skip
    from cmsspark.apps.events import train

    if steps and epochs:
        raise UsageError("--steps and --epochs are both the budget", next_step="give one of them")
    values = {"--steps": steps, "--epochs": epochs, "--batch": batch, "--learning-rate": learning_rate}
    arguments = tuple(word for name, value in values.items() if value for word in (name, str(value)))
    networks = BarrierTrainer(request.settings.state_dir / "training", workers, arguments, retries)
    options = train.TrainOptions(kinds, parameters, seed, networks)
    print_outcome(NAME, request.day, as_json, lambda: train.run(request, options), train.FOLDER)


@dataclass(frozen=True)
class BarrierTrainer:
    """Trains networks in the barrier tasks of the job's own session; ``base``: the folder of runs of training.

    A run that was killed goes on from its last checkpoint when the same command runs again.
    """

    base: Path
    workers: int
    arguments: tuple[str, ...] = ()
    retries: int = 1

    def __call__(self, spark: SparkSession, sample: Path, kind: str, seed: int, target: Path) -> None:
        """Train a network and move its model to ``target``. Raises what the launcher raises."""
        from cmsspark.apps.events.networks import require_jax
        from cmsspark.apps.events.result_files import write_history
        from cmsspark.apps.training.launch import check, launch
        from cmsspark.apps.training.spark_backend import SparkBackend
        from cmsspark.apps.training.spec import TrainingRun

        require_jax()
        arguments = (str(sample), "--model", kind, "--seed", str(seed), *self.arguments)
        digest = hashlib.sha256(json.dumps([self.workers, *arguments]).encode()).hexdigest()[:10]
        script = Path(str(resource(_SCRIPT)))
        run = TrainingRun(f"events-{kind}-{digest}", script, arguments, self.workers, "spark", retries=self.retries)
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
    rows = [json.loads(line) for line in log.read_text(encoding="utf-8").splitlines()] if log else []
    return [
        {"train_loss": row["loss"], "validation_loss": row["validation_loss"]}
        for row in rows
        if "loss" in row and "validation_loss" in row
    ]


def _continued(base: Path, run: TrainingRun) -> RunFolder:
    """Return the folder of a run, with the checkpoints of a killed run of the same name. Raises NotReady (75)."""
    from cmsspark.apps.training.run_folder import RunFolder

    before, earlier = RunFolder(base / run.name), base / f".{run.name}.output"
    if before.path.is_dir():
        if before.is_launcher_alive():
            next_step = f"cmsspark lab train logs {run.name}"
            raise NotReady("the same training runs already", where=before.path, next_step=next_step)
        shutil.rmtree(earlier, ignore_errors=True)
        before.output.rename(earlier)
        before.remove()
    folder = RunFolder.create(base, run)
    if earlier.is_dir():
        folder.output.rmdir()
        earlier.rename(folder.output)
    return folder
