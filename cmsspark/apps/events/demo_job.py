"""``events_demo``: makes ROOT files and goes all the way to a trained classifier (``docs/events.md``)."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Final

import click

from cmsspark.apps.events.runs import EventRequest, event_options
from cmsspark.apps.events.train_job import KINDS, BarrierTrainer
from cmsspark.base.text.terminal import echo_table
from cmsspark.store.job_index import JOBS

NAME: Final = "events_demo"


@click.command(NAME, help=f"{JOBS[NAME].about}. Needs cmsspark[events]. Exit codes: cmsspark help exit-codes.")
@click.option(
    "--folder",
    type=click.Path(path_type=Path, file_okay=False),
    default=Path("events_demo"),
    show_default=True,
    help="Folder for ROOT files and scores.",
)
@click.option(
    "--events", type=click.IntRange(100), default=3_000, show_default=True, help="Events of each class that are made."
)
@click.option(
    "--model",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    default=("xgboost", "hlf", "inclusive"),
    show_default=True,
    help="What to train; may be repeated.",
)
@click.option(
    "--steps", type=click.IntRange(1), default=200, show_default=True,
    help="Most steps of a network: fewer than events_train takes, as the inclusive one takes 0.1 s for each.",
)  # fmt: skip
@click.option("--trials", type=click.IntRange(1), default=4, show_default=True, help="Trials of the search.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of everything.")
@event_options
def command(
    request: EventRequest, as_json: bool, folder: Path, events: int, kinds: tuple[str, ...], steps: int,
    trials: int, seed: int,
) -> None:  # fmt: skip
    from cmsspark.apps.events import demo_run

    networks = BarrierTrainer(request.settings.state_dir / "training", 1, ("--steps", str(steps)))
    options = demo_run.DemoOptions(folder.absolute(), events, seed, kinds, trials, networks)
    done = demo_run.run(request, options)
    if as_json:
        click.echo(json.dumps([vars(step) for step in done], indent=1))
        return
    rows = [(step.name, step.result, f"{step.seconds:.1f} s") for step in done]
    echo_table(("step", "result", "time"), rows, texts=(0, 1))
