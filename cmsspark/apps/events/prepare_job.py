"""``events_prepare``: features of collision events from ROOT files, with a cutflow (``docs/events.md``)."""

from __future__ import annotations

from typing import Final

import click

from cmsspark.apps.events.runs import EventRequest, event_options
from cmsspark.cli.job_output import print_outcome
from cmsspark.store.job_index import JOBS

NAME: Final = "events_prepare"


@click.command(NAME, help=f"{JOBS[NAME].about}. Needs cmsspark[events]. Exit codes: cmsspark help exit-codes.")
@click.option(
    "--input",
    "inputs",
    multiple=True,
    metavar="CLASS=FILES",
    help="ROOT files of a class: a file, a glob in quotes, a folder, a list (.txt) or a URL such as root://. "
    "May be repeated.",
)
@click.option(
    "--definition",
    default="delphes",
    show_default=True,
    metavar="NAME|FILE",
    help="What is read, selected and computed: delphes, nanoaod, or a YAML file of your own.",
)
@click.option("--classes", metavar="A,B,...", help="The classes, in this order. [default: those of the definition]")
@click.option("--low-level", is_flag=True, help="Also store the matrix of particles.")
@click.option(
    "--accept-damaged",
    "accepted",
    multiple=True,
    metavar="FILE",
    help="Leave this file out where it cannot be read, or with `all` every such file; marks the result partial.",
)
@click.option(
    "--range-events", type=click.IntRange(100), default=10_000, show_default=True,
    help="Most events of a range, 100 or more.",
)  # fmt: skip
@click.option("--tree", help="The TTree or RNTuple in the files. [default: that of the definition]")
@event_options
def command(
    request: EventRequest, as_json: bool, inputs: tuple[str, ...], low_level: bool, accepted: tuple[str, ...],
    range_events: int, tree: str | None, definition: str, classes: str | None,
) -> None:  # fmt: skip
    from cmsspark.apps.events import prepare

    names = tuple(name.strip() for name in classes.split(",")) if classes else ()
    options = prepare.PrepareOptions(inputs, low_level, accepted, range_events, tree, definition, names)
    print_outcome(NAME, request.day, as_json, lambda: prepare.run(request, options), prepare.FOLDER)
