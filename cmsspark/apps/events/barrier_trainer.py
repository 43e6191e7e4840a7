"""The training of networks in barrier tasks of the job's own Spark session, through the launcher."""

from __future__ import annotations

import hashlib
import json
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cmsspark.base.errors import NotReady
from cmsspark.base.resources import resource
from cmsspark.base.text import progress_line

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cmsspark.apps.training.launch import RunFolder
    from cmsspark.apps.training.script_check import TrainingRun

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
