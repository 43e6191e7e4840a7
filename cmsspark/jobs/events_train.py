"""``events_train``: train and judge classifiers on a sample of events (``docs/events.md``)."""

from __future__ import annotations

from typing import Final

import click

from cmsspark.events.runs import EventRequest, event_options
from cmsspark.pipeline.job_index import JOBS
from cmsspark.pipeline.job_output import print_outcome

NAME: Final = "events_train"
#: As in cmsspark.events.models, which loads numpy.
KINDS: Final = ("forest", "boosting", "xgboost", "hlf", "sequence", "inclusive")


@click.command(NAME, help=f"{JOBS[NAME].about}. Needs cmsspark[events]. Exit codes: cmsspark help exit-codes.")
@click.option(
    "--model",
    "kinds",
    type=click.Choice(KINDS),
    multiple=True,
    default=("xgboost",),
    show_default=True,
    help="What to train; may stand several times.",
)
@click.option("--set", "parameters", multiple=True, metavar="NAME=VALUE", help="A parameter of trees, such as depth=6.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the training.")
@event_options
def command(
    request: EventRequest, as_json: bool, kinds: tuple[str, ...], parameters: tuple[str, ...], seed: int
) -> None:
    from cmsspark.events import train

    options = train.TrainOptions(kinds, parameters, seed)
    print_outcome(NAME, request.day, as_json, lambda: train.run(request, options), train.FOLDER)
