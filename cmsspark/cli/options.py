"""Options that jobs share, spelled and explained in one place."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from dataclasses import replace
from datetime import date, timedelta
from types import MappingProxyType
from typing import Any, Final, TypeVar

import click

from cmsspark.base import dates
from cmsspark.base.errors import UsageError
from cmsspark.base.text import progress_line
from cmsspark.base.text.readable import encodable
from cmsspark.settings.settings import Settings
from cmsspark.sources.registry import DUMPS, STREAMS

Command = TypeVar("Command", bound=Callable[..., Any])
#: Help of ``--settings``.
SETTINGS_HELP: Final = "Settings file. [default: CMSSPARK_SETTINGS, else cmsspark.yaml]"
#: What ``--source`` may name: streams, dumps, WMArchive and the caches' records, which
#: are no streams.
_SOURCES: Final = (*STREAMS, *DUMPS, "wmarchive", "xcache")
#: The help of ``--date``.
DATE_HELP: Final = "The day (UTC): 20260115, 2026-01-15, yesterday."


class DayType(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on only
    """A day in UTC: 20260115, 2026-01-15, 2026/01/15, ``yesterday`` or ``today``; not
    in the future.
    """

    name = "day"
    _BACK: Final = {"today": 0, "yesterday": 1}

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> date:
        if isinstance(value, date):
            return value
        text = str(value)
        if text in self._BACK:
            return dates.today() - timedelta(days=self._BACK[text])
        if text == "latest":
            self.fail(
                "latest is for jobs on logs and dumps, and for cmsspark daily; give a date here",
                param,
                ctx,
            )
        if re.search(r"\.\.|,|:|\d{8}-\d{8}", text):
            self.fail(
                f"{text!r} is more than one day; cmsspark daily --date 20260101..20260131 takes several",
                param,
                ctx,
            )
        try:
            return dates.parse_day(text, latest=dates.today())
        except UsageError as error:
            self.fail(f"{error.problem}; {error.next_step}", param, ctx)


class FiniteRange(click.FloatRange):
    """A number within a range, which click's own type takes ``nan`` for."""

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> Any:
        number = super().convert(value, param, ctx)
        if not math.isfinite(number):
            self.fail(f"{value} is not a number", param, ctx)
        return number


class DaysType(click.ParamType):  # type: ignore[type-arg]
    """A day, a range ``20260101..20260131``, or several of both, separated by commas."""

    name = "days"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> frozenset[date]:
        if isinstance(value, frozenset):
            return value
        one_day, chosen = DayType(), set()
        for part in str(value).split(","):
            first, dots, last = re.sub(r"(?<=\d{8})-(?=\d{8})|:", "..", part).partition("..")
            since = one_day.convert(first.strip(), param, ctx)
            until = one_day.convert(last.strip(), param, ctx) if dots else since
            if since > until:
                self.fail(f"{part!r} ends before it begins; swap the days", param, ctx)
            chosen |= {
                since + timedelta(days=number) for number in range((until - since).days + 1)
            }
        return frozenset(chosen)

    @classmethod
    def parse(cls, text: str) -> frozenset[date]:
        """Return the days of a text. Raises UsageError (2)."""
        try:
            return cls().convert(text, None, None)
        except click.UsageError as error:
            raise UsageError(error.message, where="--date") from None


class StreamsType(click.ParamType):  # type: ignore[type-arg]
    """A comma-separated choice of streams."""

    name = "streams"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, ...]:
        if isinstance(value, tuple):
            return value
        named = [part.strip() for part in str(value).split(",") if part.strip()]
        unknown = sorted(set(named) - set(STREAMS))
        if unknown or not named:
            self.fail(
                f"{value!r}: choose from {', '.join(STREAMS)}, separated by commas", param, ctx
            )
        return tuple(stream for stream in STREAMS if stream in named)


class SourceType(click.ParamType):  # type: ignore[type-arg]
    """``SOURCE.NAME=FOLDER``, as a tuple of the three."""

    name = "source"

    def convert(
        self, value: Any, param: click.Parameter | None, ctx: click.Context | None
    ) -> tuple[str, str, str]:
        if isinstance(value, tuple):
            return value
        match = re.fullmatch(r"(\w+)\.([\w-]+)=(.+)", str(value))
        if match is None or match[1] not in _SOURCES:
            self.fail(
                f"{value!r} is not SOURCE.NAME=FOLDER with a source of {', '.join(_SOURCES)}",
                param,
                ctx,
            )
        return match[1], match[2], match[3]


def with_sources(settings: Settings, sources: Iterable[tuple[str, str, str]]) -> Settings:
    """Return the settings with folders of the command line (``--source``), which come
    before those of the file.
    """
    merged = {name: dict(locations) for name, locations in settings.sources.items()}
    for source, name, folder in sources:
        merged.setdefault(source, {})[name] = folder
    return replace(settings, sources=MappingProxyType(merged))


def date_option(command: Command) -> Command:
    """Add ``--date``: the day to work on."""
    return click.option("--date", "day", type=DayType(), required=True, help=DATE_HELP)(command)


def _set_quiet(context: click.Context, parameter: click.Parameter, value: bool) -> None:
    # Also for the processes that the command starts.
    if value:
        os.environ[progress_line.QUIET] = "1"


#: ``--quiet`` of commands that take long.
quiet_option = click.option(
    "--quiet",
    is_flag=True,
    expose_value=False,
    callback=_set_quiet,
    help="Print no progress and no notes of runs.",
)


def store_options(command: Command) -> Command:
    """Add ``--fout`` and ``--settings``, for commands that read the store."""
    for option in (
        click.option("--settings", "settings_file", metavar="FILE", help=SETTINGS_HELP),
        click.option(
            "--fout", metavar="URI", help="URI of the store. [default: `store` in the settings]"
        ),
    ):
        command = option(command)
    return command


def job_options(command: Command) -> Command:
    """Return the options of every job that reads a day and writes a result."""
    for option in (
        click.option(
            "--format",
            "fmt",
            type=click.Choice(["parquet", "csv"]),
            default="parquet",
            show_default=True,
        ),
        click.option(
            "--source",
            "source",
            type=SourceType(),
            multiple=True,
            metavar="NAME=FOLDER",
            help="Folder of a source, such as aaa.enr=/my/aaa; etc/sources.yaml has the names. May be repeated.",
        ),
        click.option(
            "--root",
            metavar="URI",
            help="Root of the default input folders. [default: CMSSPARK_ROOT]",
        ),
    ):
        command = option(command)
    return date_option(store_options(command))


def listed(text: str | None) -> tuple[str, ...]:
    """Return the names of a list with commas, each once."""
    return tuple(dict.fromkeys(name.strip() for name in (text or "").split(",") if name.strip()))


def require_store(fout: str | None, settings: Settings) -> str:
    """Return the store: ``--fout`` or the settings'. Raises UsageError (2) where
    neither names one, and for a path that is not UTF-8, which no table file can have.
    """
    chosen = fout or settings.store
    if not chosen:
        raise UsageError(
            "name the result folder", next_step="give --fout URI, or `store: URI` in cmsspark.yaml"
        )
    if encodable(chosen) != chosen:
        raise UsageError(
            "the path of the result folder must be UTF-8",
            found=encodable(chosen),
            next_step="give --fout a path in UTF-8, such as a link to the folder",
        )
    return chosen


#: How ``run_spark`` passes on the engine that it chose.
engine_option = click.option(
    "--engine", type=click.Choice(["auto", "processes", "spark"]), default="auto", hidden=True
)


def reading_options(command: Command) -> Command:
    """Add ``--allow-tmp``, ``--max-malformed``, ``--accept-damaged`` and
    ``--quarantine-above`` of jobs on logs.
    """
    options = (
        click.option(
            "--allow-tmp",
            is_flag=True,
            help="Read a day's .tmp folder where there is no final one.",
        ),
        click.option(
            "--max-malformed",
            metavar="SHARE",
            help="Tolerated malformed records: 0.01, 1%, or aaa=1%,eos=0.5%.",
        ),
        click.option(
            "--accept-damaged",
            multiple=True,
            metavar="FILE",
            help="Read this file of the day as far as it is intact; marks the result partial. May be repeated.",
        ),
        click.option(
            "--quarantine-above",
            type=click.IntRange(0, 2**63 - 2),
            metavar="BYTES",
            help="Records that read more bytes or took more seconds are malformed; such ones mark the result partial.",
        ),
    )
    for option in reversed(options):
        command = option(command)
    return command
