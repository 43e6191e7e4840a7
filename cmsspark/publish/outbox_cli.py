"""``cmsspark outbox``: show and manage the documents that wait to be published."""

from __future__ import annotations

import functools
from collections.abc import Callable
from contextlib import closing
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.base.text.readable import json_text
from cmsspark.base.text.terminal import echo_table
from cmsspark.cli.options import SETTINGS_HELP, CommandGroup, DayType
from cmsspark.publish.publisher import OutboxLocation, locations
from cmsspark.settings.secrets import safe_text
from cmsspark.settings.settings import load_settings

if TYPE_CHECKING:
    from cmsspark.publish.outbox import Outbox


_SETTINGS: Final = click.option("--settings", "settings_file", metavar="FILE", help=SETTINGS_HELP)
_TABLE: Final = click.option("--table", metavar="TABLE", help="Only this table.")
_DATE: Final = click.option("--date", "day", type=DayType(), help="Only this day.")


def _filter_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add options that choose outboxes; the command gets the state directory and the choice."""

    @_DATE
    @_TABLE
    @click.option("--to", metavar="NAME", help="Only destinations whose name starts with NAME.")
    @_SETTINGS
    @functools.wraps(command)
    def with_chosen(
        settings_file: str | None,
        day: date | None,
        table: str | None,
        to: str | None,
        **others: Any,
    ) -> None:
        command(load_settings(settings_file).state_dir, day, table, to, **others)

    return with_chosen


def _for_each(command: Callable[[str, Outbox], None]) -> Callable[..., Any]:
    """Add the options that choose outboxes; the command gets the name of each and the
    locked outbox.

    Raises InputMissing (66) if the options choose none.
    """

    @functools.wraps(command)
    def for_each(state_dir: Path, day: date | None, table: str | None, to: str | None) -> None:
        for location in _choose(state_dir, day, table, to):
            with _open_outbox(location).held() as outbox:
                command(f"{location.table} {location.period}", outbox)

    return _filter_options(for_each)


def _choose(
    state_dir: Path, day: date | None, table: str | None, to: str | None
) -> list[OutboxLocation]:
    """Return the outboxes that the options choose. Raises InputMissing (66) if they
    choose none.
    """
    if chosen := list(locations(state_dir, day, table, to)):
        return chosen
    existing = sorted({f"{location.table} {location.period}" for location in locations(state_dir)})
    raise InputMissing(
        "no outbox matches the options",
        where=state_dir / "outbox",
        found=", ".join(existing) or "none at all",
        next_step="cmsspark outbox list prints all outboxes",
    )


@click.group("outbox", cls=CommandGroup)
def command() -> None:
    """Show and manage the documents that wait to be published."""


@command.command("list")
@_filter_options
@click.option("--json", "as_json", is_flag=True, help="Print JSON, one outbox a line.")
def list_command(
    state_dir: Path, day: date | None, table: str | None, to: str | None, as_json: bool
) -> None:
    """List outboxes: one line for each table, day and destination."""
    from cmsspark.publish.batch_log import FILE_NAME, BatchLog
    from cmsspark.publish.outbox import sum_totals

    rows: list[tuple[object, ...]] = []
    for location in locations(state_dir, day, table, to):
        if not (location.folder / FILE_NAME).exists():
            note = "no batch log: cmsspark outbox rebuild"
            rows.append(
                (
                    location.period,
                    location.table,
                    None,
                    None,
                    None,
                    None,
                    location.destination,
                    note,
                )
            )
            continue
        with closing(BatchLog(location.folder / FILE_NAME)) as log:
            totals = sum_totals(log)
        counts = (
            totals.confirmed,
            totals.waiting + totals.stalled,
            totals.in_doubt,
            totals.refused,
        )
        rows.append((location.period, location.table, *counts, location.destination, ""))
    headings = ("day", "table", "confirmed", "to send", "in doubt", "refused", "destination", "")
    if as_json:
        names = [*(heading.replace(" ", "_") for heading in headings[:-1]), "note"]
        for row in rows:
            click.echo(json_text(dict(zip(names, row, strict=True))))
        return
    echo_table(headings, rows, texts=(0, 1, 6, 7), full=(0, 7))


@command.command("show")
@_for_each
def show_command(name: str, outbox: Outbox) -> None:
    """Show snapshots, the state of their documents, and why documents were refused."""
    from cmsspark.publish.batch_log import BatchState

    click.echo(f"{name} to {outbox.destination}\n  {outbox.folder}")
    for number in outbox.spool.snapshots():
        manifest = outbox.spool.manifest(number)
        counts = sorted(outbox.batch_log.counts(number).items())
        states = ", ".join(
            f"{documents:,} {state}"
            for state, (_, documents) in counts
            if state != BatchState.SPLIT
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
@_for_each
def retry_command(name: str, outbox: Outbox) -> None:
    """Make stalled batches ready; `cmsspark publish --resume` sends them."""
    click.echo(f"{name}: {outbox.batch_log.release():,} batches are ready again")


@command.command("discard")
@_for_each
@click.confirmation_option(prompt="Discard all documents that are not sent yet?")
def discard_command(name: str, outbox: Outbox) -> None:
    """Discard unsent documents; publishing the day again sends them."""
    click.echo(f"{name}: {outbox.batch_log.discard():,} batches were discarded")


@command.command("rebuild")
@_for_each
def rebuild_command(name: str, outbox: Outbox) -> None:
    """Rebuild the batch log from the spool; unconfirmed documents are sent again."""
    outbox.rebuild()
    totals = outbox.totals()
    click.echo(f"{name}: {totals.confirmed:,} confirmed, {totals.in_doubt:,} in doubt")


@command.command("move")
@click.option(
    "--from", "source", metavar="NAME", required=True, help="Destination whose outboxes are moved."
)
@click.option("--to", "target", metavar="NAME", required=True, help="Destination that gets them.")
@_TABLE
@_DATE
@_SETTINGS
def move_command(
    source: str, target: str, table: str | None, day: date | None, settings_file: str | None
) -> None:
    """Move outboxes to another destination, for a broker with a new address.

    Documents sent to the old destination count as sent to the new one. `cmsspark outbox
    list` prints the names; a name can be abbreviated to its first letters.
    """
    from cmsspark.publish.outbox import Outbox

    state_dir = load_settings(settings_file).state_dir
    old, new = (_one_destination(state_dir, name) for name in (source, target))
    if old == new:
        raise UsageError("--from and --to name the same destination", found=old)
    for location in _choose(state_dir, day, table, old):
        _open_outbox(location).move_to(Outbox(state_dir, new, location.table, location.period))
        click.echo(f"{location.table} {location.period}: moved to {new}")


def _one_destination(state_dir: Path, name: str) -> str:
    """Return the destination with this name or prefix of a name.

    Raises InputMissing (66) if not exactly one matches.
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


def _open_outbox(location: OutboxLocation) -> Outbox:
    from cmsspark.publish.outbox import Outbox

    return Outbox(
        location.folder.parents[3], location.destination, location.table, location.period
    )
