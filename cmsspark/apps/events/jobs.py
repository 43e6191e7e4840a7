"""The jobs on events: their options, and what each starts (``docs/events.md``)."""

from __future__ import annotations

import hashlib
import json
import shutil
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click
from click import Choice, FloatRange, IntRange, option

from cmsspark.apps.events.runs import EventRequest, budget_options, event_options
from cmsspark.base.errors import NotReady, UsageError
from cmsspark.base.resources import resource
from cmsspark.base.text import progress_line
from cmsspark.base.text.terminal import echo_table
from cmsspark.cli.options import print_outcome
from cmsspark.store.own_jobs import Job, declare

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

    from cmsspark.apps.training.launch import RunFolder
    from cmsspark.apps.training.script_check import TrainingRun


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
        from cmsspark.apps.events.evaluation import write_history
        from cmsspark.apps.events.networks import require_jax
        from cmsspark.apps.training.launch import check, launch
        from cmsspark.apps.training.script_check import TrainingRun
        from cmsspark.apps.training.spark_backend import SparkBackend

        require_jax()
        options = ("--model", kind, "--seed", str(seed), *self.arguments)
        arguments = (str(sample), *options)
        # A sample that was copied here lies elsewhere each time.
        about = json.dumps([self.workers, sample.name, *options])
        digest = hashlib.sha256(about.encode()).hexdigest()[:10]
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


#: As in cmsspark.apps.events.models, which loads numpy.
KINDS: Final = ("forest", "xgboost", "hlf", "sequence", "inclusive")


def _job(
    name: str, about: str, *tables: str
) -> Callable[[Callable[..., None]], Callable[..., None]]:
    """Declare a job whose command is the function."""
    job = Job(name, about, tables, is_day_optional=True, module=__name__)

    def register(function: Callable[..., None]) -> Callable[..., None]:
        text = f"{about}. Needs cmsspark[events]. Exit codes: cmsspark help exit-codes."
        settings = {"show_default": True}
        command = click.command(name, help=text, context_settings=settings)(function)
        declare(job, lambda: command)
        return function

    return register


def _seed(of_what: str) -> Callable[..., Any]:
    return option("--seed", type=IntRange(0), default=0, help=f"Seed of {of_what}.")


@_job(
    "events_prepare",
    "Features of collision events from ROOT files, with a cutflow",
    "event_cutflow",
)
@option(
    "--input",
    "inputs",
    multiple=True,
    metavar="CLASS=FILES",
    help="ROOT files of a class: a file, a glob in quotes, a folder, a list (.txt) or a URL such as root://. "
    "May be repeated.",
)
@option(
    "--definition",
    default="delphes",
    metavar="NAME|FILE",
    help="What is read, selected and computed: delphes, nanoaod, or a YAML file of your own.",
)
@option(
    "--classes",
    metavar="A,B,...",
    help="The classes, in this order. [default: those of the definition]",
)
@option("--low-level", is_flag=True, help="Also store the matrix of particles.")
@option(
    "--accept-damaged",
    "accepted",
    multiple=True,
    metavar="FILE",
    help="Leave this file out where it cannot be read, or with `all` every such file; marks the result partial.",
)
@option("--range-events", type=IntRange(100), default=10_000, help="Most events of a range.")
@option("--tree", help="The TTree or RNTuple in the files. [default: that of the definition]")
@event_options
def prepare_command(
    request: EventRequest, as_json: bool, classes: str | None, **values: Any
) -> None:
    from cmsspark.apps.events import prepare

    names = tuple(name.strip() for name in classes.split(",")) if classes else ()
    options = prepare.PrepareOptions(classes=names, **values)
    print_outcome(
        prepare.NAME, request.day, as_json, lambda: prepare.run(request, options), prepare.FOLDER
    )


@_job("events_sample", "A balanced sample of prepared events, split, with scalers", "event_sample")
@_seed("the choice and the order")
@option(
    "--test-fraction",
    type=FloatRange(0.01, 0.9),
    default=0.2,
    help="Share of events to judge by; which ones does not depend on the seed.",
)
@option("--per-class", type=IntRange(1), help="Most events of a class in train. [default: all]")
@option("--small", type=IntRange(1), default=200, help="Events of a class in the small samples.")
@event_options
def sample_command(request: EventRequest, as_json: bool, **values: Any) -> None:
    from cmsspark.apps.events import sample

    options = sample.SampleOptions(**values)
    print_outcome(sample.NAME, request.day, as_json, lambda: sample.run(request, options), "")


@_job("events_train", "Classifiers of events, trained and judged on a sample", "event_models")
@option(
    "--model",
    "kinds",
    type=Choice(KINDS),
    multiple=True,
    default=("xgboost",),
    help="What to train; may be repeated. Networks (hlf, sequence, inclusive) need cmsspark[training].",
)
@option(
    "--set",
    "parameters",
    multiple=True,
    metavar="NAME=VALUE",
    help="A parameter of trees, such as depth=6.",
)
@option("--workers", type=IntRange(1), default=1, help="Networks: workers at once.")
@budget_options
@option("--retries", type=IntRange(0), default=1, help="Networks: after a lost worker.")
@_seed("the training")
@event_options
def train_command(
    request: EventRequest,
    as_json: bool,
    kinds: tuple[str, ...],
    parameters: tuple[str, ...],
    seed: int,
    workers: int,
    retries: int,
    **budget: Any,
) -> None:
    from cmsspark.apps.events import train

    if budget["steps"] and budget["epochs"]:
        raise UsageError("--steps and --epochs are both the budget", next_step="give one of them")
    typed = {f"--{name.replace('_', '-')}": str(value) for name, value in budget.items() if value}
    arguments = tuple(word for pair in typed.items() for word in pair)
    networks = BarrierTrainer(request.settings.state_dir / "training", workers, arguments, retries)
    options = train.TrainOptions(kinds, parameters, seed, networks)
    print_outcome(
        train.NAME, request.day, as_json, lambda: train.run(request, options), train.FOLDER
    )


@_job(
    "events_search",
    "The best parameters of a classifier of events, one task a trial",
    "event_search",
)
@option("--method", type=Choice(["random", "grid"]), default="random")
@option("--trials", type=IntRange(1, 10_000), default=30, help="Most trials.")
@option("--events", type=IntRange(100), default=100_000, help="Most events of a trial.")
@_seed("the trials")
@option("--at-once", "parallel", type=IntRange(1), help="Trials at once. [default: one a core]")
@event_options
def search_command(request: EventRequest, as_json: bool, **values: Any) -> None:
    from cmsspark.apps.events import search

    options = search.SearchOptions(**values)
    print_outcome(
        search.NAME, request.day, as_json, lambda: search.run(request, options), search.FOLDER
    )


@_job("events_demo", "Makes events in ROOT files, and a trained classifier of them")
@option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False, resolve_path=True),
    default=Path("events_demo"),
    help="Folder for ROOT files and scores.",
)
@option("--events", type=IntRange(100), default=3_000, help="Events of each class that are made.")
@option(
    "--model",
    "kinds",
    type=Choice(KINDS),
    multiple=True,
    default=("xgboost", "hlf", "inclusive"),
    help="What to train; may be repeated.",
)
@option(
    "--steps",
    type=IntRange(1),
    default=200,
    help="Most steps of a network: fewer than events_train takes, as the inclusive one takes 0.1 s for each.",
)
@option("--trials", type=IntRange(1), default=4, help="Trials of the search.")
@_seed("everything")
@event_options
def demo_command(request: EventRequest, as_json: bool, steps: int, **values: Any) -> None:
    from cmsspark.apps.events import demo_run

    networks = BarrierTrainer(request.settings.state_dir / "training", 1, ("--steps", str(steps)))
    done = demo_run.run(request, demo_run.DemoOptions(networks=networks, **values))
    if as_json:
        click.echo(json.dumps([vars(step) for step in done], indent=1))
        return
    rows = [(step.name, step.result, f"{step.seconds:.1f} s") for step in done]
    echo_table(("step", "result", "time"), rows, texts=(0, 1))
