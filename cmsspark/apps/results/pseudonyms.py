"""``cmsspark lab pseudonyms``: the keys of pseudonyms, and their rotation."""

from __future__ import annotations

from contextlib import nullcontext
from datetime import date, timedelta
from pathlib import Path

import click

from cmsspark.base import dates
from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.base.periods import spans
from cmsspark.base.text.terminal import echo_table
from cmsspark.cli.options import SETTINGS_HELP, CommandGroup, DayType, store_options
from cmsspark.settings import pseudonyms
from cmsspark.settings.pseudonyms import KeyFile
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.store import results
from cmsspark.store.stored_columns import open_store
from cmsspark.store.stored_days import JOB, TABLE

_FROM = "First day of logs that the new key is for. [default: the first of the next month]"


class _AnyDay(DayType):
    """A day that may be in the future."""

    def convert(
        self, value: object, param: click.Parameter | None, ctx: click.Context | None
    ) -> date:
        try:
            return dates.parse_day(str(value))
        except UsageError:
            return super().convert(value, param, ctx)


@click.group("pseudonyms", cls=CommandGroup)
def command() -> None:
    """Show, rotate and forget the keys that names of people are replaced with."""


@command.command("list")
@click.option("--settings", "settings_file", metavar="FILE", help=SETTINGS_HELP)
def list_command(settings_file: str | None) -> None:
    """List the keys by their ids, the newest first, with the days of logs that each is for."""
    path = _path(load_settings(settings_file))
    if not path.exists():
        raise InputMissing(
            "there is no pseudonym key",
            where=path,
            next_step="the first count of a day makes one: nothing is to be done",
        )
    keys = pseudonyms.load(path)
    rows = []
    starts = [*(end for end, _ in keys.older), None]
    ends = [None, *(end for end, _ in keys.older)]
    for key, first, end in zip(
        (keys.current, *(key for _, key in keys.older)), starts, ends, strict=True
    ):
        rows.append((key.key_id, first or "–", "–" if end is None else end - timedelta(days=1)))
    echo_table(("key", "first day", "last day"), rows, texts=(0, 1, 2))


@command.command("rotate")
@click.option("--from", "first", type=_AnyDay(), help=_FROM)
@click.option("--yes", is_flag=True, help="Also where keys of later days are dropped.")
@store_options
def rotate_command(
    first: date | None, yes: bool, fout: str | None, settings_file: str | None
) -> None:
    """Make a new key for the logs from a day on. Days before keep their key, also when
    they are counted again.

    A person has another pseudonym under each key. A period with days of two keys is
    refused, so rotate at the first of a month, or of a year.
    """
    settings = load_settings(settings_file)
    path = _path(settings)
    if first is None:
        today = dates.today()
        first = date(today.year + today.month // 12, today.month % 12 + 1, 1)
    with pseudonyms.changing(path):
        before = pseudonyms.load(path)
        after = before.rotated(first)
        dropped = _ids(before) - _ids(after)
        if dropped and not yes:
            raise UsageError(
                f"keys of days from {first} on would be dropped",
                found=", ".join(sorted(dropped)),
                next_step="--yes drops them: days counted with them cannot be counted with the same pseudonyms again",
            )
        pseudonyms.replace(path, after)
    click.echo(
        f"key {after.current.key_id} is for logs from {first} on; key {after.older[0][1].key_id} for those before"
    )
    store = fout or settings.store
    if store is None or first > dates.today():
        return
    files = open_store(store, "cmsspark lab pseudonyms")
    other_keys = []
    for day in results.stored_intervals(files, store, JOB):
        if isinstance(day, date) and day >= first:
            manifest = results.current(files, store, JOB, TABLE, day).manifest
            if manifest.pseudonym_key_id != after.of_day(day).key_id:
                other_keys.append(day)
    if other_keys:
        again = f"cmsspark daily --force --from {min(other_keys)} --to {max(other_keys)}"
        click.echo(f"stored with an earlier key: {spans(other_keys)}")
        click.echo(f"{again} counts them again; then cmsspark prune removes what they replaced")


@command.command("forget")
@click.option(
    "--before",
    type=_AnyDay(),
    required=True,
    help="Forget the keys that are only for logs before this day.",
)
@click.option("--yes", is_flag=True, help="Forget them; without this option only list.")
@click.option("--settings", "settings_file", metavar="FILE", help=SETTINGS_HELP)
def forget_command(before: date, yes: bool, settings_file: str | None) -> None:
    """Remove old keys. Stored results stay readable; nobody can find out any more whose
    pseudonyms they hold.

    A day of a forgotten key that is counted again gets pseudonyms of the next key.
    """
    path = _path(load_settings(settings_file))
    with pseudonyms.changing(path) if yes else nullcontext():
        keys = pseudonyms.load(path)
        forgotten = sorted(_ids(keys) - _ids(keys.without(before)))
        if forgotten and yes:
            pseudonyms.replace(path, keys.without(before))
    for key_id in forgotten:
        click.echo(f"{'forgotten' if yes else 'would forget'}: key {key_id}")
    click.echo("" if forgotten else f"no key is only for logs before {before}", nl=not forgotten)
    if forgotten and not yes:
        click.echo("--yes forgets them, for good")


def _path(settings: Settings) -> Path:
    return settings.state_dir / pseudonyms.KEY_FILE


def _ids(keys: KeyFile) -> set[str]:
    return {keys.current.key_id, *(key.key_id for _, key in keys.older)}
