"""A declared function of a user's job, and the request to run it for a day."""

from __future__ import annotations

import inspect
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, Literal

from cmsspark.base.periods import Period
from cmsspark.base.schemas import Table
from cmsspark.filesystems.storage import Files, is_local
from cmsspark.run.own_inputs import Accesses, DumpTable, Folder, Read
from cmsspark.run.request import DayRequest
from cmsspark.sources import dumps
from cmsspark.sources.dumps import Dump
from cmsspark.sources.layout import Layout

if TYPE_CHECKING:
    import click

#: What a job takes its tables as.
FrameKind = Literal["polars", "pandas", "arrow", "spark"]
#: Arguments that a function may have beside its inputs.
DAY: Final = "day"
PERIOD: Final = "period"


@dataclass(frozen=True)
class JobFunction:
    """A declared function. ``reads``: what it takes by the names of its arguments.
    ``options``: its own options, by the names of keyword arguments. ``own_files``: paths
    that it names, of its columns and of own folders.
    """

    name: str
    function: Callable[..., Any]
    table: Table
    reads: Mapping[str, Read]
    of_periods: bool
    frames: FrameKind
    options: Mapping[str, click.Option]
    where: str
    own_files: tuple[str, ...] = ()

    @property
    def accesses(self) -> Accesses | None:
        """What it reads of accesses."""
        return next((read for read in self.reads.values() if isinstance(read, Accesses)), None)

    @property
    def dump_tables(self) -> dict[str, DumpTable]:
        """The tables of dumps that it reads."""
        return {name: read for name, read in self.reads.items() if isinstance(read, DumpTable)}

    @property
    def needs_spark(self) -> bool:
        """Whether it takes DataFrames of Spark, or reads a folder on a cluster."""
        return self.frames == "spark" or any(
            isinstance(read, Folder) and not is_local(read.path) for read in self.reads.values()
        )

    @property
    def files_beside(self) -> list[str]:
        """The files beside that of the job that it names; folders are left out."""
        folder = Path(self.function.__code__.co_filename).absolute().parent
        paths = [folder / name for name in self.own_files if not Path(name).is_absolute()]
        return [str(path) for path in paths if path.is_file()]

    def choose_dumps(self, files: Files, layout: Layout, day: date) -> list[Dump]:
        """Return the dumps of a day with the tables that the job reads.

        Raises InputMissing (66) and NotReady (75).
        """
        tables: dict[str, set[str]] = {}
        for read in self.dump_tables.values():
            tables.setdefault(read.kind, set()).add(read.table)
        chosen = []
        for kind, names in sorted(tables.items()):
            if kind == "dbs":
                chosen.append(dumps.choose_dbs_dump(files, layout, day, names))
            elif kind == "rucio":
                chosen.append(dumps.choose_rucio_dump(files, layout, day, names))
            else:
                chosen.append(dumps.choose_phedex_dump(files, layout, day))
        return chosen

    def arguments(self, interval: date | Period, inputs: Mapping[str, Any]) -> dict[str, Any]:
        """Return the positional arguments of the function by name."""
        parameters = inspect.signature(self.function).parameters
        both = {**inputs, (PERIOD if isinstance(interval, Period) else DAY): interval}
        return {name: both[name] for name in parameters if name in both}


@dataclass(frozen=True)
class OwnRequest(DayRequest):
    """A request to a user's job of days. ``own_options``: values of its own options."""

    reads_dumps: bool = False
    own_options: Mapping[str, Any] = field(default_factory=dict)

    def __post_init__(self) -> None:
        """Keep the streams as they are: a job may read none."""

    @property
    def sources(self) -> tuple[str, ...]:
        kinds = ("dbs", "phedex", "rucio") if self.reads_dumps or self.streams else ()
        return (*self.streams, *kinds)


def function_module(declared: JobFunction) -> Any:
    """Return the module of a job's function."""
    return sys.modules.get(declared.function.__module__)
