"""``cmsspark outbox``: what waits to be published, and what can be done about it."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cmsspark.errors import InputMissing
from cmsspark.jobs.options import DayType, settings_of
from cmsspark.reports.terminal import echo_table

if TYPE_CHECKING:
    from cmsspark.publish.outbox import Outbox


@dataclass(frozen=True)
class Place:
    """An outbox on the disk."""

    destination: str
    table: str
    period: str
    folder: Path


def places(
    state_dir: Path, day: date | None = None, table: str | None = None, to: str | None = None
) -> Iterator[Place]:
    """The outboxes below the state directory, by destination, table and day."""
    for folder in sorted((state_dir / "outbox").glob("*/*/*")):
        if not folder.is_dir():
            continue
        found = Place(folder.parts[-3], folder.parts[-2], folder.name, folder)
        fits = (day is None or found.period == day.isoformat()) and table in (None, found.table)
        if fits and found.destination.startswith(to or ""):
            yield found


def _choice(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--settings", "settings_file", metavar="FILE", help="Settings (else CMSSPARK_SETTINGS)."),
        click.option("--to", metavar="NAME", help="Only destinations whose name begins so."),
        click.option("--table", metavar="TABLE", help="Only this table."),
        click.option("--date", "day", type=DayType(), help="Only this day."),
    ):
        command = option(command)
    return command


def _chosen(settings_file: str | None, day: date | None, table: str | None, to: str | None) -> list[Place]:
    """The outboxes asked for. Raises InputMissing (66) where there is none."""
    state_dir = settings_of(settings_file).state_dir
    found = list(places(state_dir, day, table, to))
    if not found:
        there = ", ".join(sorted({f"{place.table} {place.period}" for place in places(state_dir)})) or "none at all"
        raise InputMissing("no outbox fits", where=state_dir / "outbox", found=there)
    return found


@click.group("outbox")
def command() -> None:
    """What waits to be published: list, show, retry, discard, rebuild."""


@command.command("list")
@_choice
def list_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """One line for each day of a table at a destination."""
    from cmsspark.publish.ledger import Ledger
    from cmsspark.publish.outbox import totals_of

    rows: list[tuple[object, ...]] = []
    for place in places(settings_of(settings_file).state_dir, day, table, to):
        if not (place.folder / "ledger.sqlite").exists():
            said = "no ledger: cmsspark outbox rebuild"
            rows.append((place.period, place.table, None, None, None, None, place.destination, said))
            continue
        ledger = Ledger(place.folder / "ledger.sqlite")
        try:
            totals = totals_of(ledger)
        finally:
            ledger.close()
        counts = (totals.confirmed, totals.waiting + totals.stalled, totals.in_doubt, totals.refused)
        rows.append((place.period, place.table, *counts, place.destination, ""))
    headings = ("day", "table", "confirmed", "to send", "in doubt", "refused", "destination", "")
    echo_table(headings, rows, left=(0, 1, 6, 7), whole=(0, 7))


@command.command("show")
@_choice
def show_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """Each generation of the spool, what became of it, and why documents were refused."""
    from cmsspark.publish.ledger import State

    for place in _chosen(settings_file, day, table, to):
        with _held(place) as outbox:
            click.echo(f"{place.table} {place.period} to {place.destination}\n  {place.folder}")
            for number in outbox.spool.generations():
                manifest = outbox.spool.manifest(number)
                states = ", ".join(
                    f"{documents:,} {state}" for state, (_, documents) in sorted(outbox.ledger.counts(number).items())
                    if state != State.SPLIT
                )  # fmt: skip
                click.echo(
                    f"  g{number:04d} of {manifest['spooled_at']}: {states or 'nothing to send'}; "
                    f"{manifest['unchanged']:,} unchanged, {manifest['gone']:,} gone, "
                    f"{manifest['quarantined']:,} made no valid document"
                )
                if manifest["quarantined"]:
                    click.echo(f"        why: {outbox.spool.folder(number) / 'quarantine.jsonl'}")
            for state in (State.QUARANTINED, State.STALLED, State.IN_DOUBT):
                for batch, reason in outbox.ledger.reasons(state):
                    click.echo(f"  batch {batch} {state}: {reason}")


@command.command("retry")
@_choice
def retry_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """Make batches ready again that were tried too often; ``cmsspark publish --resume`` sends them."""
    for place in _chosen(settings_file, day, table, to):
        with _held(place) as outbox:
            click.echo(f"{place.table} {place.period}: {outbox.ledger.release():,} batches are ready again")


@command.command("discard")
@_choice
@click.confirmation_option(prompt="Give up what is still to be sent?")
def discard_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """Give up what is still to be sent; publishing the day again sends it anew."""
    for place in _chosen(settings_file, day, table, to):
        with _held(place) as outbox:
            click.echo(f"{place.table} {place.period}: {outbox.ledger.discard():,} batches were given up")


@command.command("rebuild")
@_choice
def rebuild_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """Make the ledger anew from the spool; what is not known to be confirmed will be sent again."""
    for place in _chosen(settings_file, day, table, to):
        with _held(place) as outbox:
            outbox.rebuild()
            totals = outbox.totals()
            click.echo(f"{place.table} {place.period}: {totals.confirmed:,} confirmed, {totals.in_doubt:,} in doubt")


def _held(place: Place) -> AbstractContextManager[Outbox]:
    from cmsspark.publish.outbox import Outbox

    return Outbox(place.folder.parents[3], place.destination, place.table, place.period).held()
