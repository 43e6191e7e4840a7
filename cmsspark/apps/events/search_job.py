"""``events_search``: the best parameters of a classifier of events, one task a trial (``docs/events.md``)."""

from __future__ import annotations

from typing import Final

import click

from cmsspark.apps.events.runs import EventRequest, event_options
from cmsspark.cli.job_output import print_outcome
from cmsspark.store.job_index import JOBS

NAME: Final = "events_search"


@click.command(NAME, help=f"{JOBS[NAME].about}. Needs cmsspark[events]. Exit codes: cmsspark help exit-codes.")
@click.option("--method", type=click.Choice(["random", "grid"]), default="random", show_default=True)
@click.option("--trials", type=click.IntRange(1, 10_000), default=30, show_default=True, help="Most trials.")
@click.option("--events", type=click.IntRange(100), default=100_000, show_default=True, help="Most events of a trial.")
@click.option("--seed", type=click.IntRange(0), default=0, show_default=True, help="Seed of the trials.")
@click.option("--at-once", "parallel", type=click.IntRange(1), help="Trials at once. [default: one a core]")
@event_options
def command(
    request: EventRequest, as_json: bool, method: str, trials: int, events: int, seed: int, parallel: int | None
) -> None:
    from cmsspark.apps.events import search

    options = search.SearchOptions(method, trials, events, seed, parallel)
    print_outcome(NAME, request.day, as_json, lambda: search.run(request, options), search.FOLDER)
