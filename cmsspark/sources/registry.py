"""The registry of log streams and kinds of dumps.

Jobs, options, readers, samples and reports look up a stream in :data:`STREAMS_BY_NAME`.
A stream's decoder is given as ``module:class`` and imported only when files are read,
so that importing this module is cheap and ``--help`` is quick.
"""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from typing import Final

import msgspec

from cmsspark.base.errors import UsageError


class Format(msgspec.Struct, frozen=True):
    """A format of a stream's records.

    ``name``: the value of ``form`` in ``etc/sources.yaml``, and in
    ``schemas/inputs/<stream>/<name>.yaml``. ``decoder``: the class that reads it, as
    ``module:class``, called with (day, apps, format name); by default the one that
    needs the description alone. ``is_avro``: files are Avro containers, otherwise JSON
    lines. ``aliases``: other names that settings may use for it.
    """

    name: str
    decoder: str = "cmsspark.sources.access_decoder:AccessDecoder"
    is_avro: bool = False
    aliases: tuple[str, ...] = ()


class Stream(msgspec.Struct, frozen=True):
    """A log stream.

    ``title``: a description of its records for ``run_spark --list``. ``formats``: in
    order of preference. ``has_bytes`` and ``has_times``: whether its records carry
    bytes read, and CPU and wall-clock seconds; the columns are null if they do not.
    ``needs_replicas``: whether an access is remote depends on the replicas of the
    file's block (rule 21). ``since`` and ``until``: its first day and the day after its
    last one (UTC), None if it is unlimited. ``has_report``: whether a job
    ``dbs_<name>`` reports on this stream alone. ``report_aliases``: other names of that
    job. ``counts_jobs``: its records are of jobs, each counted once, not of accesses to
    files. ``role``: the role in ``cmsspark.sources.layout`` for which it is a source,
    or has several.
    """

    name: str
    title: str
    formats: tuple[Format, ...]
    has_bytes: bool = True
    has_times: bool = False
    needs_replicas: bool = False
    since: date | None = None
    until: date | None = None
    has_report: bool = True
    report_aliases: tuple[str, ...] = ()
    counts_jobs: bool = False
    role: str = ""
    #: Its records name the site of the reader beside that of the server (rule 63).
    names_readers: bool = False
    #: The bins of its records besides those that every stream, or stream of jobs, has.
    bins: tuple[str, ...] = ()
    #: A record is a file of a job for each of the job's blocks (rule 3).
    has_job_rows: bool = False
    #: Some of its accesses have no bytes of their own (rule 11).
    sets_bytes_aside: bool = False

    @property
    def report(self) -> str:
        """The name of the job and table that report on this stream alone."""
        return f"dbs_{self.name}"

    def covers(self, day: date) -> bool:
        """Return whether the stream is expected to have logs of ``day``."""
        return (self.since is None or day >= self.since) and (
            self.until is None or day < self.until
        )

    def format(self, name: str) -> Format:
        """Return the format of that name. Raises UsageError (2) that lists the formats
        of the stream.
        """
        for format_ in self.formats:
            if name in (format_.name, *format_.aliases):
                return format_
        raise UsageError(
            f"{self.name} has no format {name!r}",
            found=f"formats: {', '.join(format_.name for format_ in self.formats)}",
            next_step=f"check `form` of sources.{self.name} in the settings",
        )


class DumpKind(msgspec.Struct, frozen=True):
    """A kind of dump. ``tables``: all known tables, each with its columns in
    ``schemas/inputs/<name>``.

    ``for_streams``: the tables that are required to count a day of streams.
    ``is_one_folder``: the files of its only table are directly in the dump's folder,
    not in a sub-folder. ``role``: as of a stream. ``is_lower_case``: the folders of its
    tables have their names in lower case.
    """

    name: str
    title: str
    tables: tuple[str, ...]
    for_streams: tuple[str, ...]
    is_one_folder: bool = False
    role: str = ""
    is_lower_case: bool = False

    def table_folder(self, table: str) -> str:
        """Return the name of a table's folder."""
        return table.lower() if self.is_lower_case else table


#: In the order of reports.
_STREAMS: Final = (
    Stream(
        "aaa",
        "AAA (XRootD) accesses",
        (Format("enr"), Format("raw"), Format("aaa-ng", "cmsspark.sources.aaa_ng:AaaNgDecoder")),
        role="aaa",
        names_readers=True,
    ),
    Stream(
        "eos",
        "EOS accesses",
        (Format("eos", "cmsspark.sources.eos:EosDecoder", aliases=("json",)),),
        bins=("deletion",),
    ),
    Stream(
        "cmssw",
        "CMSSW reports",
        (Format("json"), Format("avro", is_avro=True)),
        needs_replicas=True,
        sets_bytes_aside=True,
    ),
    Stream(
        "crab",
        "CRAB jobs",
        (Format("avro", "cmsspark.sources.crab:CrabDecoder", is_avro=True),),
        has_bytes=False,
        has_times=True,
        needs_replicas=True,
        report_aliases=("dbs_jm",),
        role="jobs",
        bins=("repeated",),
        has_job_rows=True,
    ),
    Stream(
        "condor",
        "HTCondor jobs (jobs, not accesses)",
        (Format("json", "cmsspark.sources.condor_costs:CondorDecoder"),),
        has_times=True,
        needs_replicas=True,
        role="jobs",
        counts_jobs=True,
    ),
)

#: All streams by name; :mod:`cmsspark.sources.own_streams` adds those of users, which no
#: other name here has.
STREAMS_BY_NAME: Final[dict[str, Stream]] = {stream.name: stream for stream in _STREAMS}
#: The places of users' streams, as ``etc/sources.yaml`` has those of the built-in ones.
OWN_PLACES: Final[dict[str, dict[str, str]]] = {}
#: Names of all log streams.
STREAMS: Final = tuple(STREAMS_BY_NAME)
#: Streams for which replicas of the file's block decide whether an access is remote (rule 21).
STREAMS_NEEDING_REPLICAS: Final = tuple(
    stream.name for stream in _STREAMS if stream.needs_replicas
)
#: Streams whose records are a file of a job for each of the job's blocks.
STREAMS_OF_JOB_ROWS: Final = tuple(stream.name for stream in _STREAMS if stream.has_job_rows)
#: Streams of which some accesses have no bytes of their own.
STREAMS_SETTING_BYTES_ASIDE: Final = tuple(
    stream.name for stream in _STREAMS if stream.sets_bytes_aside
)
#: Streams whose records are jobs.
STREAMS_OF_JOBS: Final = tuple(stream.name for stream in _STREAMS if stream.counts_jobs)
#: Streams whose records are accesses to files.
ACCESS_STREAMS: Final = tuple(stream.name for stream in _STREAMS if not stream.counts_jobs)
#: The app of EOS's own programs, which popularity leaves out (rule 14).
STORAGE_APP: Final = "storage"
#: Streams whose accesses have a reader's site and a server's, and the table of these pairs.
STREAMS_NAMING_READERS: Final = tuple(stream.name for stream in _STREAMS if stream.names_readers)
SITE_PAIRS: Final = "site_pairs"
#: The private tables that a day with such a stream stores beside its report: CRAB's
#: jobs, and the ids of all jobs.
CRAB_PARTIALS, JOB_IDS = "crab_partials", "condor_ids"
JOB_TABLES: Final = (CRAB_PARTIALS, JOB_IDS)

#: Feeds of records about jobs, which are not accesses: tables of their own are made of them.
FEEDS: Final[Mapping[str, Stream]] = {
    feed.name: feed
    for feed in (
        Stream(
            "condor_costs",
            "HTCondor jobs with what they cost",
            (Format("json", "cmsspark.sources.condor_costs:CostDecoder"),),
            bins=("not_final", "never_ran", "repeated"),
        ),
        Stream(
            "wmarchive",
            "WMArchive: framework job reports",
            (Format("json", "cmsspark.sources.wmarchive:ReportDecoder"),),
            bins=("failed", "other_type", "repeated", "no_cmsrun"),
        ),
    )
}

#: The one table of a PhEDEx snapshot.
REPLICAS: Final = "block_replicas"

DUMPS: Final[Mapping[str, DumpKind]] = {
    kind.name: kind
    for kind in (
        DumpKind(
            "dbs",
            "DBS: datasets, blocks and files",
            (
                "ACQUISITION_ERAS",
                "BLOCKS",
                "DATASETS",
                "DATASET_ACCESS_TYPES",
                "DATASET_OUTPUT_MOD_CONFIGS",
                "DATA_TIERS",
                "FILES",
                "FILE_LUMIS",
                "OUTPUT_MODULE_CONFIGS",
                "PHYSICS_GROUPS",
                "PROCESSING_ERAS",
                "RELEASE_VERSIONS",
            ),
            for_streams=("FILES", "BLOCKS", "DATASETS"),
        ),
        DumpKind(
            "phedex",
            "PhEDEx: replicas of blocks",
            (REPLICAS,),
            for_streams=(REPLICAS,),
            is_one_folder=True,
            role="replicas",
        ),
        DumpKind(
            "rucio",
            "Rucio: replicas of files, and what blocks and datasets contain",
            (
                "ACCOUNTS",
                "ACCOUNT_LIMITS",
                "CONTENTS",
                "DATASET_LOCKS",
                "DIDS",
                "LOCKS",
                "REPLICAS",
                "RSES",
                "RSE_ATTR_MAP",
                "RSE_USAGE",
                "RULES",
                "RULES_HISTORY",
            ),
            for_streams=("CONTENTS", "REPLICAS", "RSES"),
            role="replicas",
            is_lower_case=True,
        ),
    )
}


#: Since when the dumps of Rucio have each table.
RUCIO_SINCE: Final[Mapping[str, str]] = {
    "DIDS": "2022-01-01",
    "DATASET_LOCKS": "2022-03-04",
    "RULES": "2022-03-04",
    "LOCKS": "2022-04-18",
    "RSES": "2022-04-18",
    "CONTENTS": "2022-05-31",
    "REPLICAS": "2022-05-31",
    "RULES_HISTORY": "2022-05-31",
    "ACCOUNTS": "2023-10-13",
    "ACCOUNT_LIMITS": "2023-10-13",
    "RSE_ATTR_MAP": "2025-01-31",
    "RSE_USAGE": "2026-07-14",
}
#: The tasks of CRAB, which only jobs on them read.
TASKS: Final = DumpKind(
    "crab_tasks", "CRAB: tasks", ("TASKS",), for_streams=("TASKS",), is_one_folder=True
)


def find_dump_kind(name: str) -> DumpKind:
    """Return the kind of dump of that name."""
    return TASKS if name == TASKS.name else DUMPS[name]


def find_stream(name: str) -> Stream:
    """Return the stream or feed of that name. Raises UsageError (2) that lists all streams."""
    if name in STREAMS_BY_NAME or name in FEEDS:
        return STREAMS_BY_NAME.get(name) or FEEDS[name]
    raise UsageError(
        f"there is no stream {name!r}", found=", ".join(STREAMS), next_step="name one of these"
    )


def of_accesses(filters: Mapping[str, tuple[str, ...]]) -> dict[str, tuple[str, ...]]:
    """Filters on partials (column → patterns) that leave out jobs, as those are not
    accesses, and what storage systems read for themselves; filters that choose streams
    or apps stay as they are.
    """
    return {"stream": ACCESS_STREAMS, "app": (f"!{STORAGE_APP}",), **filters}


def streams_of_day(day: date, streams: tuple[str, ...] = STREAMS) -> tuple[str, ...]:
    """Return those of ``streams`` that exist on ``day``;
    :meth:`cmsspark.sources.layout.Epochs.streams_of_day` leaves out those that another
    source replaces.
    """
    return tuple(name for name in streams if STREAMS_BY_NAME[name].covers(day))


def find_source(stream: str) -> str:
    """Return the name of the source that has the records of a stream or feed.

    Example:
        >>> find_source("condor_costs"), find_source("eos")
        ('condor', 'eos')
    """
    return "condor" if stream == "condor_costs" else stream
