"""Options that jobs share, spelled and explained in one place."""

from __future__ import annotations

import math
import os
import re
from collections.abc import Callable, Iterable
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, Final, TypeVar

import click
from click.shell_completion import CompletionItem
from msgspec.structs import replace

from cmsspark.base import dates
from cmsspark.base.errors import (
    CmssparkError,
    Exit,
    OutputError,
    UsageError,
    as_ours,
    os_error_number,
)
from cmsspark.base.periods import Interval, Period
from cmsspark.base.text import progress_line
from cmsspark.base.text.readable import encodable, json_text
from cmsspark.base.text.terminal import drop_stdout
from cmsspark.filesystems.storage import LocalFiles, is_local, join
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.sources.registry import DUMPS, STREAMS, TASKS
from cmsspark.store.results import CurrentTable

if TYPE_CHECKING:
    import polars as pl


Command = TypeVar("Command", bound=Callable[..., Any])
#: Help of ``--settings``.
SETTINGS_HELP: Final = "Settings file. [default: CMSSPARK_SETTINGS, else cmsspark.yaml]"
#: What ``--source`` may name: streams, dumps, WMArchive and the caches' records, which
#: are no streams.
_SOURCES: Final = (*STREAMS, *DUMPS, TASKS.name, "wmarchive", "xcache")
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


#: ``--debug`` is read from the command line where an error is reported.
debug_option: Final = click.option(
    "--debug", is_flag=True, expose_value=False, help="Show tracebacks."
)


def run_options(command: Command) -> Command:
    """``--settings`` and ``--debug``, for commands that read the state directory."""
    settings = click.option(
        "--settings", "settings_file", metavar="FILE", help="The settings file."
    )
    return settings(debug_option(command))


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


#: Where inputs are: ``source`` and ``root``.
INPUT_OPTIONS: Final = (
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
)


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
        *INPUT_OPTIONS,
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


# A group of commands whose help shows the whole first sentence of each.

#: No first sentence is longer. click cuts them at the width of the terminal.
_LONGEST = 1_000


class CommandGroup(click.Group):
    """A group that lists its commands with whole sentences, which continue below themselves."""

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        commands = {name: self.get_command(ctx, name) for name in self.list_commands(ctx)}
        with formatter.section("Commands"):
            shown = {
                name: entry
                for name, entry in commands.items()
                if entry is not None and not entry.hidden
            }
            formatter.write_dl(
                [(name, entry.get_short_help_str(_LONGEST)) for name, entry in shown.items()]
            )


# Files that a command writes for its user (``-o FILE``): whole or not at all.

_TABLES: Final = (".parquet", ".csv")


def check_table_path(path: Path | None) -> None:
    """Raise UsageError (2) for a name that does not end in .csv or .parquet: before any
    work is done.
    """
    if path is not None and path.suffix not in _TABLES:
        raise UsageError(
            f"the kind of {path.name} is not known",
            found=path.suffix or "no ending",
            next_step="name it .csv or .parquet",
        )


def write_table(rows: pl.DataFrame, path: Path) -> None:
    """Write rows as CSV or Parquet, by the ending. Raises UsageError (2) for another
    ending, OutputError (73).
    """
    check_table_path(path)
    write_file(path, rows.write_parquet if path.suffix == ".parquet" else rows.write_csv)


def write_text(path: Path, text: str) -> None:
    """Write a text. Raises OutputError (73)."""
    write_file(path, lambda part: part.write_text(text, encoding="utf-8"))


def write_file(path: Path, write: Callable[[Path], object], label: str = "the file") -> None:
    """Have ``write`` write a file aside, which then takes its name: there is never a
    part of it, also on a full disk.

    Raises OutputError (73) that names ``label`` and the path.
    """
    part = path.with_name(f".{path.name}.part")
    try:
        write(part)
        part.replace(path)
    except Exception as error:
        with suppress(OSError):
            part.unlink(missing_ok=True)
        # polars reports errors of the system as its own.
        number = os_error_number(error)
        if not number and not isinstance(error, OSError):
            raise
        raise OutputError(
            f"{label} cannot be written",
            where=path,
            found=os.strerror(number) if number else str(error),
            next_step="make room or get permission there, or name another place",
        ) from None


# Completion of datasets and sites in the shell: the names of the newest stored day.

#: At most this many names are offered.
_MANY = 1_000


class StoredName(click.ParamType):  # type: ignore[type-arg]  # generic from click 8.5 on only
    """A text, for which a shell offers the stored values of a column of ``data_aggregation``."""

    def __init__(self, column: str) -> None:
        self.name, self.column = column.partition("_")[0], column

    def shell_complete(
        self, ctx: click.Context, param: click.Parameter, incomplete: str
    ) -> list[CompletionItem]:
        # Without a store, or with a damaged one, a shell offers nothing.
        with suppress(Exception):
            from cmsspark.filesystems.storage import LocalFiles
            from cmsspark.store.stored_columns import newest

            settings = load_settings(ctx.params.get("settings_file"))
            _, table = newest(
                LocalFiles(), ctx.params.get("fout") or settings.store or "", "data_aggregation"
            )
            cache = settings.cache_dir / "names" / f"{table.manifest.run}.{self.column}"
            if not cache.exists():
                import pyarrow.compute as pc
                import pyarrow.parquet as pq

                parts = sorted(Path(table.path).glob("part-*.parquet"))
                columns = (
                    pq.read_table(part, columns=[self.column])[self.column] for part in parts
                )
                values = {name for values in columns for name in pc.unique(values).to_pylist()}
                cache.parent.mkdir(parents=True, exist_ok=True)
                for old in cache.parent.glob(f"*.{self.column}"):
                    old.unlink()
                cache.write_text(
                    "\n".join(sorted(name for name in values if name)), encoding="utf-8"
                )
            names = cache.read_text(encoding="utf-8").splitlines()
            return [CompletionItem(name) for name in names if name.startswith(incomplete)][:_MANY]
        return []


DATASET = StoredName("dataset_name")
SITE = StoredName("site_name")


# What a job prints on stdout: the URI of its result, or with ``--json`` its outcome.
# All else goes to stderr.


def output_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add ``--quiet``, ``--verbose``, ``--debug`` and ``--json`` of every job; the
    command gets ``as_json``.

    What they change is not the command's: errors are printed by ``errors``, and
    run_spark sets the level of the log.
    """
    for option in (
        debug_option,
        click.option(
            "--verbose", is_flag=True, expose_value=False, help="Print more progress messages."
        ),
        click.option(
            "--quiet", is_flag=True, expose_value=False, help="Print no progress and no notes."
        ),
        click.option(
            "--json",
            "as_json",
            is_flag=True,
            help="Print the outcome as JSON on stdout, also of a failure.",
        ),
    ):
        command = option(command)
    return command


def print_outcome(
    job: str,
    interval: Interval,
    as_json: bool,
    work: Callable[[], CurrentTable],
    folder: str | None = None,
) -> None:
    """Do ``work``, and print the URI of the job's first table; with ``as_json`` the
    outcome of success or failure.

    ``folder``: a folder of the run whose URI is printed instead; "" is the run's own.
    Raises what the work raises.
    """
    try:
        done = work()
    except Exception as error:
        if as_json:
            click.echo(json_text(_failed(job, interval, error), indent=1))
        raise
    outcome = describe_outcome(job, interval, done)
    if folder is not None:
        outcome["uri"] = _uri(join(done.path, folder) if folder else done.path)
    try:
        click.echo(json_text(outcome, indent=1) if as_json else outcome["uri"])
    except BrokenPipeError:
        drop_stdout()  # the result is stored all the same


def describe_outcome(job: str, interval: Interval, done: CurrentTable) -> dict[str, Any]:
    """Return the outcome of a stored run: ``done.path`` is the run's folder."""
    manifest = done.manifest
    tables = {
        name: {"uri": _uri(join(done.path, name)), "rows": entry.rows, "bytes": entry.bytes}
        for name, entry in manifest.tables.items()
    }
    return {
        **_named(job, interval),
        "state": "done",
        "exit_code": 0,
        "uri": next(iter(tables.values()))["uri"],
        "run": manifest.run,
        "tables": tables,
        "is_partial": manifest.partial,
        "warnings": list(manifest.warnings),
        "seconds": manifest.seconds,
    }


def _failed(job: str, interval: Interval, error: Exception) -> dict[str, Any]:
    ours = as_ours(error) or CmssparkError(
        f"{type(error).__name__}: {' '.join(str(error).split())[:300]}"
    )
    code = Exit.BUG if as_ours(error) is None else ours.exit_code
    return {
        **_named(job, interval),
        "state": "failed",
        "exit_code": int(code),
        "error": {
            "wanted": ours.problem,
            "where": None if ours.where is None else str(ours.where),
            "found": None if ours.found is None else str(ours.found),
            "next": ours.next_step,
        },
    }


def _named(job: str, interval: Interval) -> dict[str, Any]:
    return {"job": job, "period" if isinstance(interval, Period) else "day": interval.isoformat()}


def _uri(path: str) -> str:
    # Other locations are URIs already.
    return LocalFiles().uri(path) if is_local(path) else path
