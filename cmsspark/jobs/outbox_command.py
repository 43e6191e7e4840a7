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
from cmsspark.secrets import safe_text

if TYPE_CHECKING:
    from cmsspark.publish.outbox import Outbox


@dataclass(frozen=True)
class OutboxLocation:
    """An outbox on the disk."""

    destination: str
    table: str
    period: str
    folder: Path


def locations(
    state_dir: Path, day: date | None = None, table: str | None = None, to: str | None = None
) -> Iterator[OutboxLocation]:
    """The outboxes below the state directory, by destination, table and day."""
    for folder in sorted((state_dir / "outbox").glob("*/*/*")):
        if not folder.is_dir():
            continue
        location = OutboxLocation(folder.parts[-3], folder.parts[-2], folder.name, folder)
        is_chosen = (day is None or location.period == day.isoformat()) and table in (None, location.table)
        if is_chosen and location.destination.startswith(to or ""):
            yield location


def _filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--settings", "settings_file", metavar="FILE", help="Settings (else CMSSPARK_SETTINGS)."),
        click.option("--to", metavar="NAME", help="Only destinations whose name begins so."),
        click.option("--table", metavar="TABLE", help="Only this table."),
        click.option("--date", "day", type=DayType(), help="Only this day."),
    ):
        command = option(command)
    return command


def _chosen(settings_file: str | None, day: date | None, table: str | None, to: str | None) -> list[OutboxLocation]:
    """The outboxes that the options choose. Raises InputMissing (66) where there is none."""
    state_dir = settings_of(settings_file).state_dir
    chosen = list(locations(state_dir, day, table, to))
    if not chosen:
        existing = sorted({f"{location.table} {location.period}" for location in locations(state_dir)})
        raise InputMissing(
            "no outbox matches the options", where=state_dir / "outbox", found=", ".join(existing) or "none at all"
        )
    return chosen


@click.group("outbox")
def command() -> None:
    """What waits to be published: list, show, retry, discard, rebuild."""


@command.command("list")
@_filter_options
def list_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """One line for each day of a table at a destination."""
    from cmsspark.publish.batch_log import FILE_NAME, BatchLog
    from cmsspark.publish.outbox import totals_of

    rows: list[tuple[object, ...]] = []
    for location in locations(settings_of(settings_file).state_dir, day, table, to):
        if not (location.folder / FILE_NAME).exists():
            note = "no batch log: cmsspark outbox rebuild"
            rows.append((location.period, location.table, None, None, None, None, location.destination, note))
            continue
        log = BatchLog(location.folder / FILE_NAME)
        try:
            totals = totals_of(log)
        finally:
            log.close()
        counts = (totals.confirmed, totals.waiting + totals.stalled, totals.in_doubt, totals.refused)
        rows.append((location.period, location.table, *counts, location.destination, ""))
    headings = ("day", "table", "confirmed", "to send", "in doubt", "refused", "destination", "")
    echo_table(headings, rows, left=(0, 1, 6, 7), whole=(0, 7))


@command.command("show")
@_filter_options
def show_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """Each snapshot of the spool, what became of it, and why documents were refused."""
    from cmsspark.publish.batch_log import BatchState

    for location in _chosen(settings_file, day, table, to):
        with _locked_outbox(location) as outbox:
            click.echo(f"{location.table} {location.period} to {location.destination}\n  {location.folder}")
            for number in outbox.spool.snapshots():
                manifest = outbox.spool.manifest(number)
                counts = sorted(outbox.batch_log.counts(number).items())
                states = ", ".join(
                    f"{documents:,} {state}" for state, (_, documents) in counts if state != BatchState.SPLIT
                )
                click.echo(
                    f"  g{number:04d} of {manifest['spooled_at']}: {states or 'nothing to send'}; "
                    f"{manifest['unchanged']:,} unchanged, {manifest['gone']:,} gone, "
                    f"{manifest['quarantined']:,} made no valid document"
                )
                if manifest["quarantined"]:
                    click.echo(f"        why: {outbox.spool.folder(number) / 'quarantine.jsonl'}")
            for state in (BatchState.QUARANTINED, BatchState.STALLED, BatchState.IN_DOUBT):
                for batch, reason in outbox.batch_log.reasons(state):
                    click.echo(f"  batch {batch} {state}: {safe_text(reason)}")


@command.command("retry")
@_filter_options
def retry_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """Make STALLED batches ready again; ``cmsspark publish --resume`` sends them."""
    for location in _chosen(settings_file, day, table, to):
        with _locked_outbox(location) as outbox:
            click.echo(f"{location.table} {location.period}: {outbox.batch_log.release():,} batches are ready again")


@command.command("discard")
@_filter_options
@click.confirmation_option(prompt="Give up what is still to be sent?")
def discard_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """Give up what is still to be sent; publishing the day again sends it anew."""
    for location in _chosen(settings_file, day, table, to):
        with _locked_outbox(location) as outbox:
            click.echo(f"{location.table} {location.period}: {outbox.batch_log.discard():,} batches were given up")


@command.command("rebuild")
@_filter_options
def rebuild_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """Make the batch log anew from the spool; what is not known to be confirmed will be sent again."""
    for location in _chosen(settings_file, day, table, to):
        with _locked_outbox(location) as outbox:
            outbox.rebuild()
            totals = outbox.totals()
            name = f"{location.table} {location.period}"
            click.echo(f"{name}: {totals.confirmed:,} confirmed, {totals.in_doubt:,} in doubt")


def _locked_outbox(location: OutboxLocation) -> AbstractContextManager[Outbox]:
    from cmsspark.publish.outbox import Outbox

    return Outbox(location.folder.parents[3], location.destination, location.table, location.period).held()
