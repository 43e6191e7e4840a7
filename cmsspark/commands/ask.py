"""``cmsspark ask``: the questions that people come with, answered from stored days. How many people, never who."""

from __future__ import annotations

import json
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any, Final

import click

from cmsspark.commands import ask_places, ask_use
from cmsspark.commands.ask_use import Answer
from cmsspark.errors import UsageError
from cmsspark.names import KINDS
from cmsspark.periods import Period, between
from cmsspark.pipeline import stored_days as stored
from cmsspark.pipeline.options import DayType, settings_of, store_of, store_options
from cmsspark.pipeline.period_options import period_options
from cmsspark.pipeline.stored_columns import files_of, newest
from cmsspark.pipeline.stored_days import StoredDays
from cmsspark.reports.terminal import echo_table, printable
from cmsspark.storage import Files

WEEKS: Final = 4


@click.group("ask")
def command() -> None:
    """Who reads a dataset, what is read or lies at a site, what nobody reads. From stored days, without a JVM."""


def _output(of: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--json", "as_json", is_flag=True, help="As JSON, all rows."),
        click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="So many rows at most."),
    ):
        of = option(of)
    return store_options(of)


def _window(of: Callable[..., Any]) -> Callable[..., Any]:
    about = f"So many weeks, up to the newest stored day. [default: {WEEKS}, where no period is given]"
    return click.option("--weeks", type=click.IntRange(1, 520), help=about)(period_options(of))


def days_of(files: Files, fout: str, period: Period | None, weeks: int | None) -> StoredDays:
    """The stored days of the period, or of the last weeks. Raises InputMissing (66) where there is none, UsageError (2)
    where both are given.
    """
    if period is not None and weeks is not None:
        raise UsageError("--weeks and a period are one too many", next_step="give either")
    if period is None:
        last, _ = newest(files, fout, stored.TABLE)
        period = between(last - timedelta(days=7 * (weeks or WEEKS) - 1), last)
    found = stored.find_days(files, fout, period)
    found.check(allow_missing=True)
    return found


@command.command("who-reads")
@click.argument("dataset")
@click.option("--site", metavar="SITE", help="Only there; * and ? as in DATASET.")
@_window
@_output
def who_reads(
    dataset: str, site: str | None, period: Period | None, weeks: int | None, top: int, as_json: bool,
    fout: str | None, settings_file: str | None,
) -> None:  # fmt: skip
    """How many people read DATASET, from where. It may be a pattern: '/ZMM*/*/AOD'."""
    place, files = _store(fout, settings_file)
    found = days_of(files, place, period, weeks)
    _show(ask_use.who_reads(found, dataset, site), top, as_json)


@command.command("what-is-read-at")
@click.argument("site")
@_window
@_output
def what_is_read_at(
    site: str, period: Period | None, weeks: int | None, top: int, as_json: bool, fout: str | None,
    settings_file: str | None,
) -> None:  # fmt: skip
    """What is read from SITE, by how many; a pattern such as 'T2_US_*' is one answer for all such sites."""
    place, files = _store(fout, settings_file)
    found = days_of(files, place, period, weeks)
    _show(ask_use.what_is_read_at(found, site), top, as_json)


def _choice(of: Callable[..., Any]) -> Callable[..., Any]:
    for option in (
        click.option("--date", "day", type=DayType(), help="What lay there on that day. [default: the newest stored]"),
        click.option("--kind", type=click.Choice(KINDS), help="Only this kind of storage."),
        click.option("--data-tier", metavar="TIER", help="Only this data tier: AOD, MINIAODSIM …"),
        click.option("--site", metavar="SITE", help="Only at this site; * and ? stand for others."),
        click.option("--tier", metavar="TIER", help="Only at sites of this tier: T1, T2 …"),
    ):
        of = option(of)
    return of


@command.command("what-lies-at")
@_choice
@_output
def what_lies_at(
    tier: str | None, site: str | None, data_tier: str | None, kind: str | None, day: date | None, top: int,
    as_json: bool, fout: str | None, settings_file: str | None,
) -> None:  # fmt: skip
    """How much data lie at the sites of a tier (site_tier_usage), or at one site (dbs_phedex)."""
    place, files = _store(fout, settings_file)
    _show(ask_places.what_lies_at(files, place, ask_places.Choice(tier, site, data_tier, kind), day), top, as_json)


@command.command("unused")
@click.option("--allow-missing", is_flag=True, help="Also where days are not stored, in which it may have been read.")
@_window
@_choice
@_output
def unused(
    tier: str | None, site: str | None, data_tier: str | None, kind: str | None, day: date | None,
    period: Period | None, weeks: int | None, allow_missing: bool, top: int, as_json: bool, fout: str | None,
    settings_file: str | None,
) -> None:  # fmt: skip
    """Datasets at sites that nobody read there in the last weeks, largest first. On disk, unless --kind."""
    place, files = _store(fout, settings_file)
    found = days_of(files, place, period, weeks)
    found.check(allow_missing=allow_missing)
    choice = ask_places.Choice(tier, site, data_tier, kind or "disk")
    _show(ask_places.unused(found, choice, day), top, as_json)


def _store(fout: str | None, settings_file: str | None) -> tuple[str, Files]:
    place = store_of(fout, settings_of(settings_file))
    return place, files_of(place, "cmsspark ask")


def _show(answer: Answer, top: int, as_json: bool) -> None:
    for text in answer.warnings:
        click.echo(f"warning: {text}", err=True)
    if as_json:
        click.echo(json.dumps(answer.as_dict(), indent=1, ensure_ascii=False))
        return
    click.secho(printable(answer.headline), bold=True)
    for line in answer.facts:
        click.echo(f"  {printable(line)}")
    for part in answer.parts:
        if part.rows:
            click.echo(f"\n{part.title}")
            echo_table(part.headings, part.shown(top), left=part.left, indent="  ")
        if len(part.rows) > top:
            click.echo(f"  and {len(part.rows) - top:,} more: --top, or --json")
