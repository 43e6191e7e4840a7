"""A job of a user: a function with ``@cms.job``, declared as the built-in jobs are.

The declaration says what the function reads, as :mod:`cmsspark.run.own_inputs` has it,
and which columns it returns. :mod:`cmsspark.run.own_run` runs it.
"""

from __future__ import annotations

import inspect
import re
import types
import typing
from collections.abc import Callable, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal, TypeVar

import click
from msgspec.structs import replace

from cmsspark.base.errors import SettingsError, UsageError
from cmsspark.base.periods import Period
from cmsspark.base.schemas import Column, Table, described_table
from cmsspark.cli.options import (
    engine_option,
    job_options,
    output_options,
    print_outcome,
    reading_options,
    require_store,
    store_options,
    with_sources,
)
from cmsspark.cli.period_options import allow_missing_option, needed, period_options
from cmsspark.run.own_inputs import (
    DAY,
    PERIOD,
    Accesses,
    DumpTable,
    Folder,
    FrameKind,
    JobFunction,
    OwnRequest,
    Read,
    find_beside,
)
from cmsspark.settings.settings import Settings, load_settings
from cmsspark.sources import own_streams
from cmsspark.sources.layout import Epochs
from cmsspark.sources.registry import find_stream
from cmsspark.store import own_jobs
from cmsspark.store.own_jobs import JOBS, Job, OwnJob, declare

if TYPE_CHECKING:
    from cmsspark.store.results import CurrentTable

Function = TypeVar("Function", bound=Callable[..., Any])
_NAME: Final = re.compile(r"[a-z][a-z0-9_]{0,60}")
#: A column in one text: ``long [bytes] not null private: what it means``.
_COLUMN: Final = re.compile(
    r"(?P<type>string|long|int|double|date|boolean)(?: \[(?P<unit>[^\]]+)\])?"
    r"(?P<not_null> not null)?(?P<private> private)?(?:: *(?P<about>.*))?"
)
_COLUMN_RULE: Final = (
    "TYPE [UNIT] not null private: MEANING, of which TYPE is enough: string, long, int, "
    "double, date or boolean"
)
_PERIOD_COLUMNS: Final = (
    Column("period", "string", nullable=False, about="the period: 2026-W46, 2026-11, …"),
    Column("first_day", "date", nullable=False, about="its first day, UTC"),
    Column("last_day", "date", nullable=False, about="its last day, UTC"),
)
_DAY_COLUMN: Final = Column("day", "date", nullable=False, about="the day, UTC")
_TYPES: Final[Mapping[Any, Any]] = {int: click.INT, float: click.FLOAT, str: click.STRING}


def job(
    *,
    columns: Mapping[str, str | Mapping[str, Any]] | str,
    keys: Sequence[str],
    reads: Mapping[str, Read] | None = None,
    name: str | None = None,
    period: bool = False,
    frames: FrameKind = "polars",
) -> Callable[[Function], Function]:
    """Declare a function as a job, whose table has its name; returns the function itself.

    ``columns``: of the rows that it returns, each ``TYPE [UNIT] not null private:
    MEANING`` or a mapping as in the tables' YAML; or the name of a YAML file beside this
    one. The day or the period, and ``timestamp``, are added. ``keys``: the columns that
    identify a row. ``reads``: what it takes, by the names of its arguments; it may also
    take ``day`` or ``period``. Keyword-only arguments with annotations are options.
    ``name``: by default that of the function. ``period``: the job is of weeks, months
    and other ranges. ``frames``: what it takes tables as. It may return any kind.

    Raises SettingsError (78) for a declaration that does not fit together.

    Example:
        >>> import cmsspark as cms
        >>> reads = {"usage": cms.Stored("data_aggregation")}
        >>> columns = {"site_name": "string", "accesses": "long not null"}
        >>> declare = cms.job(reads=reads, columns=columns, keys=["site_name"])
        >>> callable(declare)
        True
    """

    def decorate(function: Function) -> Function:
        code = getattr(function, "__code__", None)
        file = str(Path(code.co_filename).absolute()) if code else function.__module__
        where = f"{file}, line {code.co_firstlineno}" if code else file
        declared = _declaration(
            function, where, file, name, columns, keys, reads or {}, period, frames
        )
        register(declared, own_jobs.find_source(file, function.__module__))
        return function

    return decorate


def register(declared: JobFunction, source: str) -> Job:
    """Enter a job in the index, for the file or module that declares it."""
    is_file = source.endswith(".py")
    entry = Job(
        declared.name,
        declared.table.about.rstrip("."),
        (declared.table.name,),
        needs_spark=declared.needs_spark or not declared.of_periods,
        runs_in_processes=not declared.needs_spark,
        streams=tuple(declared.accesses.streams) if declared.accesses else (),
        module=declared.function.__module__,
        reads_dumps=bool(declared.dump_tables),
        of_periods=declared.of_periods,
        file=source if is_file else "",
        files=tuple(declared.files_beside) if is_file else (),
    )
    own_jobs.register(OwnJob(entry.as_entry(), declared.table, source))
    return declare(
        entry,
        partial(make_command, declared),
        None if declared.of_periods or declared.needs_spark else partial(day_request, declared),
        declared.choose_dumps if declared.dump_tables else None,
    )


def _declaration(
    function: Callable[..., Any],
    where: str,
    file: str,
    name: str | None,
    columns: Mapping[str, str | Mapping[str, Any]] | str,
    keys: Sequence[str],
    reads: Mapping[str, Read],
    period: bool,
    frames: FrameKind,
) -> JobFunction:
    def wrong(problem: str, actual: object = None, next_step: str | None = None) -> SettingsError:
        return SettingsError(problem, where=where, found=actual, next_step=next_step)

    if not hasattr(function, "__code__"):
        raise wrong("@cms.job does not stand above a function", type(function).__name__)
    name = name or function.__name__
    if _NAME.fullmatch(name) is None:
        raise wrong(
            "the name of the job is not of small letters, digits and _, a letter first", name
        )
    if name in JOBS.built_in or any(name in job.tables for job in JOBS.built_in.values()):
        raise wrong(
            f"{name} is the name of a built-in job or table", next_step="take another name"
        )
    about = (inspect.getdoc(function) or "").partition("\n")[0].strip()
    if not about:
        raise wrong(
            f"the job {name} has no docstring",
            next_step="its first line is what run_spark --list prints",
        )
    if frames not in typing.get_args(FrameKind):
        raise wrong("frames is not polars, pandas, arrow or spark", repr(frames))
    for argument, read in reads.items():
        if not isinstance(read, Read):
            raise wrong(
                f"reads[{argument!r}] is none of Accesses, DumpTable, Stored and Folder",
                type(read).__name__,
            )
        if period and isinstance(read, Accesses | DumpTable):
            raise wrong(
                "a job of periods cannot read this: only stored tables and folders",
                f"{argument}: {read}",
            )
        if problem := read.problem(frames):
            raise wrong(f"{argument}: {problem}")
    if sum(isinstance(read, Accesses) for read in reads.values()) > 1:
        raise wrong("the job reads accesses twice: name all keys and sums in one Accesses")
    folder = Path(file).parent
    if isinstance(columns, str):
        path = find_beside(folder, columns)
        try:
            described = described_table(str(path), lambda text: Path(text).read_text("utf-8"))
        except OSError as error:
            raise wrong("the columns' file cannot be read", f"{path}: {error.strerror}") from None
        parsed, is_private = list(described.columns), described.is_private
    elif not isinstance(columns, Mapping):
        raise wrong(f"columns is not a mapping of names to {_COLUMN_RULE}", repr(columns)[:200])
    else:
        is_private = False
        parsed = [_column(column, text, wrong) for column, text in columns.items()]
    if not parsed:
        raise wrong("the job has no columns")
    column_names = [column.name for column in parsed]
    own_keys = [keys] if isinstance(keys, str) else list(keys)
    if unknown := [key for key in own_keys if key not in column_names]:
        raise wrong(f"the key {unknown[0]!r} is no column", f"columns: {', '.join(column_names)}")
    if not own_keys:
        raise wrong("the job has no keys: the columns that identify a row")
    added = _PERIOD_COLUMNS if period else (_DAY_COLUMN,)
    of = PERIOD if period else DAY
    stamp = Column(
        "timestamp", "long", nullable=False, about=f"start of the {of}, UTC milliseconds"
    )
    for column in (*added, stamp):
        if any(entry.name == column.name and entry.type != column.type for entry in parsed):
            raise wrong(f"the column {column.name} is added to every row, as {column.type}")
    every = [
        *(column for column in added if column.name not in column_names),
        *(replace(column, is_signed=True) for column in parsed),
        *([stamp] if "timestamp" not in column_names else []),
    ]
    is_private = is_private or any(column.is_private for column in every)
    table = Table(name, about, tuple(every), tuple(own_keys), is_private)
    options = _check_signature(function, reads, period, wrong)
    own_files = [columns] if isinstance(columns, str) else []
    own_files += [read.path for read in reads.values() if isinstance(read, Folder)]
    return JobFunction(
        name, function, table, dict(reads), period, frames, options, where, tuple(own_files)
    )


def _column(name: str, described: Any, wrong: Callable[..., SettingsError]) -> Column:
    if _NAME.fullmatch(str(name)) is None:
        raise wrong("the name of a column is not of small letters, digits and _", repr(name))
    if isinstance(described, Mapping):
        allowed = {"type", "about", "unit", "nullable", "private"}
        if unknown := sorted(described.keys() - allowed):
            raise wrong(
                f"column {name} has no {unknown[0]!r}", f"known: {', '.join(sorted(allowed))}"
            )
        values = dict(described)
        kind = str(values.get("type", ""))
        text = kind + ("" if values.get("nullable", True) else " not null")
        column = _column(name, text, wrong)
        return replace(
            column,
            about=str(values.get("about", "")),
            own_unit=str(values.get("unit", "")),
            is_private=bool(values.get("private", False)),
        )
    match = _COLUMN.fullmatch(described) if isinstance(described, str) else None
    if match is None:
        raise wrong(f"column {name} is not {_COLUMN_RULE}", repr(described))
    return Column(
        name,
        match["type"],
        nullable=match["not_null"] is None,
        about=match["about"] or "",
        own_unit=match["unit"] or "",
        is_private=match["private"] is not None,
    )


def _check_signature(
    function: Callable[..., Any],
    reads: Mapping[str, Read],
    period: bool,
    wrong: Callable[..., SettingsError],
) -> dict[str, click.Option]:
    """Return the options of a function. Raises SettingsError (78) for arguments that are
    neither inputs nor options.
    """
    try:
        signature = inspect.signature(function, eval_str=True)
    except (NameError, SyntaxError, TypeError) as error:
        raise wrong("an annotation cannot be read", error) from None
    input_names = {*reads, PERIOD if period else DAY}
    options: dict[str, click.Option] = {}
    for name, parameter in signature.parameters.items():
        if parameter.kind is parameter.KEYWORD_ONLY:
            options[name] = _option(parameter, wrong)
        elif parameter.kind is not parameter.POSITIONAL_OR_KEYWORD or name not in input_names:
            raise wrong(
                f"the argument {name} is no input",
                f"inputs: {', '.join(sorted(input_names))}",
                "name it in reads=, or put options behind `*`",
            )
    if missing := sorted(reads.keys() - signature.parameters.keys()):
        raise wrong(f"the function takes no {missing[0]}, which the job reads")
    return options


def _option(parameter: inspect.Parameter, wrong: Callable[..., SettingsError]) -> click.Option:
    name, default, annotation = parameter.name, parameter.default, parameter.annotation
    if isinstance(annotation, types.UnionType):
        kinds = [kind for kind in typing.get_args(annotation) if kind is not type(None)]
        annotation = kinds[0] if len(kinds) == 1 else annotation
    spelling = f"--{name.replace('_', '-')}"
    if default is parameter.empty:
        raise wrong(f"the option {name} has no default: `{name}: int = 10`")
    if annotation is bool:
        return click.Option([spelling, name], is_flag=True, default=bool(default))
    if typing.get_origin(annotation) is Literal:
        kind: Any = click.Choice([str(choice) for choice in typing.get_args(annotation)])
    elif annotation in _TYPES:
        kind = _TYPES[annotation]
    else:
        raise wrong(
            f"the option {name} has no annotation of int, float, str, bool or Literal",
            "none" if annotation is parameter.empty else repr(annotation),
        )
    return click.Option(
        [spelling, name], type=kind, default=default, show_default=default is not None
    )


def make_command(declared: JobFunction) -> click.Command:
    """Return the click command of a job."""
    command = _period_command(declared) if declared.of_periods else _day_command(declared)
    parameter_names = {parameter.name for parameter in command.params}
    for name, option in declared.options.items():
        if name in parameter_names or {*option.opts} & {
            spelling for parameter in command.params for spelling in parameter.opts
        }:
            raise SettingsError(
                f"the option {option.opts[0]} is one that every job has",
                where=declared.where,
                next_step="give the argument another name",
            )
    command.params[:0] = declared.options.values()
    return command


def _help(declared: JobFunction) -> str:
    return f"{declared.table.about.rstrip('.')}. Exit codes: cmsspark help exit-codes."


def _day_command(declared: JobFunction) -> click.Command:
    def command(
        settings_file: str | None, fout: str | None, as_json: bool, **options: Any
    ) -> None:
        # Not at import: `--help` must answer at once.
        from cmsspark.run.own_run import run_day

        settings = load_settings(settings_file)
        request = day_request(declared, options, settings, require_store(fout, settings))
        print_outcome(declared.name, request.day, as_json, lambda: run_day(declared, request))

    decorated: Callable[..., Any] = engine_option(command)
    if declared.accesses is not None:
        decorated = click.option(
            "--allow-missing",
            is_flag=True,
            help="Leave out streams that are not there; marks the result partial.",
        )(reading_options(decorated))
    decorated = job_options(output_options(decorated))
    return click.command(declared.name, help=_help(declared))(decorated)


def _period_command(declared: JobFunction) -> click.Command:
    def command(
        period: Period | None,
        fout: str | None,
        settings_file: str | None,
        as_json: bool,
        allow_missing: bool,
        **options: Any,
    ) -> None:
        from cmsspark.run.own_run import run_period

        settings, chosen = load_settings(settings_file), needed(period)
        store = require_store(fout, settings)

        def work() -> CurrentTable:
            return run_period(
                declared, chosen, store, settings, options, allow_missing=allow_missing
            )

        print_outcome(declared.name, chosen, as_json, work)

    decorated = allow_missing_option(store_options(output_options(command)))
    return click.command(declared.name, help=_help(declared))(period_options(decorated))


def day_request(
    declared: JobFunction, options: Mapping[str, Any], settings: Settings, fout: str
) -> OwnRequest:
    """Return the request that the parsed ``options`` of a job make (click's names and values)."""
    settings = with_sources(settings, options.get("source", ()))
    own_streams.load(settings)
    epochs = Epochs.load(settings.sources, settings.where)
    streams: tuple[str, ...] = ()
    if declared.accesses is not None:
        chosen = tuple(declared.accesses.streams)
        for stream in chosen:
            try:
                find_stream(stream)
            except UsageError as error:
                raise SettingsError(
                    error.problem,
                    where=declared.where,
                    found=f"streams: {error.found}",
                    next_step="correct streams= of cms.Accesses, then run it again",
                ) from None
        streams = epochs.streams_of_day(options["day"], chosen) or chosen
    own_options = {name: options[name] for name in declared.options if name in options}
    reading_values = {
        name: options[name]
        for name in (
            "allow_tmp",
            "allow_missing",
            "max_malformed",
            "accept_damaged",
            "quarantine_above",
        )
        if name in options
    }
    return OwnRequest(
        declared.name,
        options["day"],
        fout,
        settings,
        options["root"],
        fmt=options["fmt"],
        engine="spark" if declared.needs_spark else options["engine"],
        streams=streams,
        tables=(declared.name,),
        reads_dumps=bool(declared.dump_tables),
        own_options=own_options,
        **reading_values,
    )
