"""``cmsspark outbox``: show and manage the documents that wait to be published."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.base.text.terminal import echo_table
from cmsspark.cli.groups import CommandGroup
from cmsspark.cli.options import SETTINGS_HELP, DayType, settings_of
from cmsspark.publish.destinations import OutboxLocation, locations
from cmsspark.settings.secrets import safe_text

if TYPE_CHECKING:
    from cmsspark.publish.outbox import Outbox


def _filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--settings", "settings_file", metavar="FILE", help=SETTINGS_HELP),
        click.option("--to", metavar="NAME", help="Only destinations whose name starts with NAME."),
        click.option("--table", metavar="TABLE", help="Only this table."),
        click.option("--date", "day", type=DayType(), help="Only this day."),
    ):
        command = option(command)
    return command


def _chosen(settings_file: str | None, day: date | None, table: str | None, to: str | None) -> list[OutboxLocation]:
    """Return the outboxes that the options choose. Raises InputMissing (66) where there is none."""
    state_dir = settings_of(settings_file).state_dir
    chosen = list(locations(state_dir, day, table, to))
    if not chosen:
        existing = sorted({f"{location.table} {location.period}" for location in locations(state_dir)})
        raise InputMissing(
            "no outbox matches the options",
            where=state_dir / "outbox",
            found=", ".join(existing) or "none at all",
            next_step="cmsspark outbox list prints all outboxes",
        )
    return chosen


@click.group("outbox", cls=CommandGroup)
def command() -> None:
    """Show and manage the documents that wait to be published."""


@command.command("list")
@_filter_options
def list_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """List outboxes: one line for each table, day and destination."""
    from cmsspark.publish.batch_log import FILE_NAME, BatchLog
    from cmsspark.publish.outbox import sum_totals

    rows: list[tuple[object, ...]] = []
    for location in locations(settings_of(settings_file).state_dir, day, table, to):
        if not (location.folder / FILE_NAME).exists():
            note = "no batch log: cmsspark outbox rebuild"
            rows.append((location.period, location.table, None, None, None, None, location.destination, note))
            continue
        log = BatchLog(location.folder / FILE_NAME)
        try:
            totals = sum_totals(log)
        finally:
            log.close()
        counts = (totals.confirmed, totals.waiting + totals.stalled, totals.in_doubt, totals.refused)
        rows.append((location.period, location.table, *counts, location.destination, ""))
    headings = ("day", "table", "confirmed", "to send", "in doubt", "refused", "destination", "")
    echo_table(headings, rows, texts=(0, 1, 6, 7), full=(0, 7))


@command.command("show")
@_filter_options
def show_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """Show snapshots, the state of their documents, and why documents were refused."""
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
                    f"{manifest['quarantined']:,} invalid documents"
                )
                if manifest["quarantined"]:
                    click.echo(f"        reasons: {outbox.spool.folder(number) / 'quarantine.jsonl'}")
            for state in (BatchState.QUARANTINED, BatchState.STALLED, BatchState.IN_DOUBT):
                for batch, reason in outbox.batch_log.reasons(state):
                    click.echo(f"  batch {batch} {state}: {safe_text(reason)}")


@command.command("retry")
@_filter_options
def retry_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """Make stalled batches ready; `cmsspark publish --resume` sends them."""
    for location in _chosen(settings_file, day, table, to):
        with _locked_outbox(location) as outbox:
            click.echo(f"{location.table} {location.period}: {outbox.batch_log.release():,} batches are ready again")


@command.command("discard")
@_filter_options
@click.confirmation_option(prompt="Discard all documents that are not sent yet?")
def discard_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """Discard unsent documents; publishing the day again sends them."""
    for location in _chosen(settings_file, day, table, to):
        with _locked_outbox(location) as outbox:
            click.echo(f"{location.table} {location.period}: {outbox.batch_log.discard():,} batches were discarded")


@command.command("rebuild")
@_filter_options
def rebuild_command(day: date | None, table: str | None, to: str | None, settings_file: str | None) -> None:
    """Rebuild the batch log from the spool; unconfirmed documents are sent again."""
    for location in _chosen(settings_file, day, table, to):
        with _locked_outbox(location) as outbox:
            outbox.rebuild()
            totals = outbox.totals()
            name = f"{location.table} {location.period}"
            click.echo(f"{name}: {totals.confirmed:,} confirmed, {totals.in_doubt:,} in doubt")


@command.command("move")
@click.option("--from", "source", metavar="NAME", required=True, help="Destination whose outboxes are moved.")
@click.option("--to", "target", metavar="NAME", required=True, help="Destination that gets them.")
@click.option("--table", metavar="TABLE", help="Only this table.")
@click.option("--date", "day", type=DayType(), help="Only this day.")
@click.option("--settings", "settings_file", metavar="FILE", help=SETTINGS_HELP)
def move_command(source: str, target: str, table: str | None, day: date | None, settings_file: str | None) -> None:
    """Move outboxes to another destination, for a broker with a new address.

    Documents sent to the old destination count as sent to the new one. `cmsspark outbox list` prints the names; a name
    can be abbreviated to its first letters.
    """
    from cmsspark.publish.outbox import Outbox

    state_dir = settings_of(settings_file).state_dir
    old, new = (_one_destination(state_dir, name) for name in (source, target))
    if old == new:
        raise UsageError("--from and --to must name different destinations", found=old)
    chosen = list(locations(state_dir, day, table, old))
    if not chosen:
        raise InputMissing(
            "no outbox matches the options",
            where=state_dir / "outbox" / old,
            next_step="cmsspark outbox list prints all outboxes",
        )
    for location in chosen:
        _open_outbox(location).move_to(Outbox(state_dir, new, location.table, location.period))
        click.echo(f"{location.table} {location.period}: moved to {new}")


def _one_destination(state_dir: Path, name: str) -> str:
    """Return the destination with this name or prefix of a name.

    Raises InputMissing (66) where not exactly one matches.
    """
    root = state_dir / "outbox"
    names = sorted(folder.name for folder in root.glob("*") if folder.is_dir())
    matching = [candidate for candidate in names if candidate == name] or [
        candidate for candidate in names if candidate.startswith(name)
    ]
    if len(matching) != 1:
        raise InputMissing(
            f"{'several destinations start' if matching else 'no destination starts'} with {name!r}",
            where=root,
            found=", ".join(matching or names) or "none at all",
            next_step="cmsspark outbox list shows the names; a new destination appears after its first publish",
        )
    return matching[0]


def _locked_outbox(location: OutboxLocation) -> AbstractContextManager[Outbox]:
    return _open_outbox(location).held()


def _open_outbox(location: OutboxLocation) -> Outbox:
    from cmsspark.publish.outbox import Outbox

    return Outbox(location.folder.parents[3], location.destination, location.table, location.period)
