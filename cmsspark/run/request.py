"""The request of a job, and the fixed list of its inputs."""

from __future__ import annotations

import re
from collections.abc import Callable
from datetime import date
from typing import TYPE_CHECKING, Any

import click
import msgspec

from cmsspark.filesystems.storage import Files
from cmsspark.sources.folders import DayInput, Dump
from cmsspark.sources.layout import Epochs
from cmsspark.sources.registry import DUMPS, STREAMS_OF_JOBS
from cmsspark.store.own_jobs import JOBS

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.run.earlier_jobs import EarlierDay
    from cmsspark.settings.settings import Settings


class JobRequest(msgspec.Struct, frozen=True):
    """The request of a job on a day's logs or dumps: what to make, where to store it,
    and with which engine.
    """

    job: str
    day: date
    fout: str
    settings: Settings
    root: str | None = None
    fmt: str = "parquet"
    #: ``processes`` of this host, ``spark``, or ``auto``: processes where they can and
    #: nothing requests Spark.
    engine: str = "auto"
    #: Which datasets are in the result of a job on dumps; None: all.
    datasets: NamePatterns | None = None

    @property
    def sources(self) -> tuple[str, ...]:
        """The names of the streams, feeds and dumps that the job reads."""
        job = JOBS.get(self.job)
        return (job.feed,) if job is not None and job.feed else tuple(DUMPS)


class DayRequest(JobRequest, frozen=True):
    """A request to a job on log streams. ``tables``: the report's name, and
    ``partials`` where they are kept.

    ``streams``: by default those that serve the day.
    """

    streams: tuple[str, ...] = ()
    tables: tuple[str, ...] = ("data_aggregation", "partials")
    allow_tmp: bool = False
    allow_missing: bool = False
    max_malformed: str | None = None
    accept_damaged: tuple[str, ...] = ()
    #: Records that read more bytes, or took more seconds, count as malformed; None:
    #: whatever fits 64 bits counts.
    quarantine_above: int | None = None
    refresh_dumps: bool = False
    #: Read the logs, whatever another job has counted already.
    recount: bool = False
    join: str = "auto"
    feed: str = "auto"

    def __post_init__(self) -> None:
        if not self.streams:
            served = Epochs.load(self.settings.sources, self.settings.where).streams_of_day(
                self.day
            )
            msgspec.structs.force_setattr(self, "streams", served)

    @property
    def sources(self) -> tuple[str, ...]:
        return (*self.streams, *DUMPS)


class Inputs(msgspec.Struct):
    """The fixed list of what a run reads."""

    files: Files
    streams: list[DayInput]
    missing: list[str]
    dbs: Dump
    #: The replicas' dump; None where no stream of the run needs it.
    replicas: Dump | None
    warnings: list[str] = msgspec.field(default_factory=list)
    #: Files that are read as far as they are intact.
    accepted: frozenset[str] = frozenset()
    #: The source of each role that the run has (rule 28).
    epochs: dict[str, str] = msgspec.field(default_factory=dict)
    #: The meaning of each ``feed.field`` whose producer changed it.
    meanings: dict[str, str] = msgspec.field(default_factory=dict)
    #: The day before of each stream of jobs.
    earlier: list[EarlierDay] = msgspec.field(default_factory=list)

    @property
    def has_accesses(self) -> bool:
        """Whether any stream has accesses to files."""
        return any(source.stream not in STREAMS_OF_JOBS for source in self.streams)

    @property
    def read(self) -> list[DayInput | Dump]:
        """All that is read: the streams, the dumps, and logs of the day before."""
        return [
            *self.streams,
            *self.dumps,
            *(day.to_read for day in self.earlier if day.to_read is not None),
        ]

    @property
    def dumps(self) -> list[Dump]:
        """The dumps that are read."""
        return [self.dbs] if self.replicas is None else [self.dbs, self.replicas]


# ``--patterns`` and ``--antipatterns`` of jobs on dumps: which datasets are in the
# result, by their names.


def pattern_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Return the options; the command gets ``patterns`` and ``antipatterns``, None
    if not given.
    """
    for option in (
        click.option(
            "--antipatterns",
            metavar="LIST",
            help="Leave out datasets with these names, such as *RelVal*.",
        ),
        click.option(
            "--patterns",
            metavar="LIST",
            help="Only datasets with these names: /*/*/AOD,/ZMM*; marks it partial.",
        ),
    ):
        command = option(command)
    return command


class NamePatterns(msgspec.Struct, frozen=True):
    """Names of datasets: of ``patterns`` one must match, of ``antipatterns`` none may.
    ``*`` stands for any characters, ``?`` for one; the whole name must match. An empty
    tuple of patterns matches every name.
    """

    patterns: tuple[str, ...] = ()
    antipatterns: tuple[str, ...] = ()

    @classmethod
    def from_options(cls, patterns: str | None, antipatterns: str | None) -> NamePatterns | None:
        """Return the patterns of the options; None if neither is given.

        Example:
            >>> NamePatterns.from_options("/*/*/AOD, /ZMM*", None).patterns
            ('/*/*/AOD', '/ZMM*')
        """
        compiled = cls(_split(patterns), _split(antipatterns))
        return compiled if compiled.patterns or compiled.antipatterns else None

    def as_dict(self) -> dict[str, list[str]]:
        """Return the patterns as the manifest has them."""
        return {"patterns": list(self.patterns), "antipatterns": list(self.antipatterns)}

    def select(self, rows: pl.DataFrame) -> pl.DataFrame:
        """Return the rows whose ``dataset_name`` stays; a null name stays only if
        there are no patterns.
        """
        import polars as pl

        name = pl.col("dataset_name")
        if self.patterns:
            rows = rows.filter(name.str.contains(_expression(self.patterns)).fill_null(False))
        if self.antipatterns:
            rows = rows.filter(~name.str.contains(_expression(self.antipatterns)).fill_null(False))
        return rows


def _split(text: str | None) -> tuple[str, ...]:
    return tuple(part.strip() for part in (text or "").split(",") if part.strip())


def _expression(patterns: tuple[str, ...]) -> str:
    """Return a regular expression."""
    return r"^(?:" + "|".join(_to_regex(pattern) for pattern in patterns) + r")$"


def _to_regex(pattern: str) -> str:
    return "".join(
        {"*": r"[^\n]*", "?": r"[^\n]"}.get(character) or re.escape(character)
        for character in pattern
    )
