"""``events_sample``: a balanced, shuffled sample of prepared events, split and with scalers (``docs/events.md``)."""

from __future__ import annotations

from typing import Final

import click

from cmsspark.apps.events.runs import EventRequest, event_options
from cmsspark.cli.job_output import print_outcome
from cmsspark.store.job_index import JOBS

NAME: Final = "events_sample"


@click.command(NAME, help=f"{JOBS[NAME].about}. Needs cmsspark[events]. Exit codes: cmsspark help exit-codes.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the choice and the order.")
@click.option(
    "--test-fraction",
    type=click.FloatRange(0.01, 0.9),
    default=0.2,
    show_default=True,
    help="Share of events to judge by; which ones does not depend on the seed.",
)
@click.option("--per-class", type=click.IntRange(1), help="Most events of a class in train. [default: all]")
@click.option(
    "--small", type=click.IntRange(1), default=200, show_default=True, help="Events of a class in the small samples."
)
@event_options
def command(
    request: EventRequest, as_json: bool, seed: int, test_fraction: float, per_class: int | None, small: int
) -> None:
    from cmsspark.apps.events import sample

    options = sample.SampleOptions(seed, test_fraction, per_class, small)
    print_outcome(NAME, request.day, as_json, lambda: sample.run(request, options), "")
