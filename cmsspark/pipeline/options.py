"""Options that jobs share, spelled and explained in one place."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date, timedelta
from typing import Any, Final, TypeVar

import click

from cmsspark import days
from cmsspark.errors import UsageError
from cmsspark.settings import Settings, load_settings
from cmsspark.sources.registry import STREAMS

Command = TypeVar("Command", bound=Callable[..., Any])
#: Help of ``--settings``.
SETTINGS_HELP: Final = "Settings file. [default: CMSSPARK_SETTINGS, else cmsspark.yaml]"


#: The help of ``--date``.
DATE_HELP: Final = "The day (UTC): 20260115, 2026-01-15, yesterday."


class DayType(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on only
    """A day in UTC: 20260115, 2026-01-15, 2026/01/15, ``yesterday`` or ``today``; not in the future."""

    name = "day"
    _BACK: Final = {"today": 0, "yesterday": 1}

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> date:
        if isinstance(value, date):
            return value
        text = str(value)
        if text in self._BACK:
            return days.today() - timedelta(days=self._BACK[text])
        if text == "latest":
            self.fail("latest is for jobs on logs and dumps, and for cmsspark daily; give a date here", param, ctx)
        if re.search(r"\.\.|,|:|\d{8}-\d{8}", text):
            self.fail(
                f"{text!r} is more than one day; cmsspark daily --date 20260101..20260131 takes several", param, ctx
            )
        try:
            return days.parse_day(text, latest=days.today())
        except UsageError as error:
            self.fail(f"{error.wanted}; {error.next_step}", param, ctx)


class StreamsType(click.ParamType):  # type: ignore[type-arg]
    """A comma-separated choice of streams."""

    name = "streams"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        named = [part.strip() for part in str(value).split(",") if part.strip()]
        unknown = sorted(set(named) - set(STREAMS))
        if unknown or not named:
            self.fail(f"{value!r}: choose from {', '.join(STREAMS)}, separated by commas", param, ctx)
        return tuple(stream for stream in STREAMS if stream in named)


def date_option(command: Command) -> Command:
    """``--date``: the day to work on."""
    return click.option("--date", "day", type=DayType(), required=True, help=DATE_HELP)(command)


def store_options(command: Command) -> Command:
    """``--fout`` and ``--settings``, for commands that read the store."""
    for option in (
        click.option("--settings", "settings_file", metavar="FILE", help=SETTINGS_HELP),
        click.option("--fout", metavar="URI", help="URI of the store. [default: `store` in the settings]"),
    ):
        command = option(command)
    return command


def job_options(command: Command) -> Command:
    """The options of every job that reads a day and writes a result."""
    for option in (
        click.option("--debug", is_flag=True, help="Show tracebacks."),
        click.option("--verbose", is_flag=True, help="Print more progress messages."),
        click.option("--format", "fmt", type=click.Choice(["parquet", "csv"]), default="parquet", show_default=True),
        click.option("--root", metavar="URI", help="Root of the default input folders. [default: CMSSPARK_ROOT]"),
    ):
        command = option(command)
    return date_option(store_options(command))


def store_of(fout: str | None, settings: Settings) -> str:
    """The store: ``--fout`` or the settings'. Raises UsageError (2) where neither names one."""
    chosen = fout or settings.store
    if not chosen:
        raise UsageError("a store is wanted", next_step="give --fout URI, or `store: URI` in cmsspark.yaml")
    return chosen


def settings_of(settings_file: str | None) -> Settings:
    """The settings that a command works with."""
    return load_settings(settings_file)


#: How ``run_spark`` passes on the engine that it chose.
engine_option = click.option("--engine", type=click.Choice(["auto", "processes", "spark"]), default="auto", hidden=True)
