"""The panels of MONIT's dashboards: which sums of which documents they show, for
Grafana and OpenSearch alike.

``etc/dashboards/`` has the dashboards as those programs import them;
:mod:`tools.dashboard_files` writes them from this description. Distinct
users of rows and days must not be added: panels show the largest of a row. Bytes of
replicas must not be added over days, as they are the same replicas.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Final

from cmsspark.base import efficiency
from cmsspark.publish.document_schemas import document_schema
from cmsspark.publish.documents import SUFFIX
from cmsspark.sources.registry import STREAMS, STREAMS_BY_NAME, STREAMS_OF_JOBS

#: Filters at the top of a dashboard, on fields that all its documents have.
_USE_FILTERS: Final = ("stream", "site_tier", "site_name", "app", "data_tier", "dataset_name")


@dataclass(frozen=True)
class Placement:
    """Where a document's fields stand in an index: what their names begin with, and the
    field of the time.
    """

    prefix: str
    time: str

    def field(self, name: str) -> str:
        """Return the name of a field in the index. Metadata stand at the same place everywhere."""
        return name if name.startswith("metadata.") else f"{self.prefix}{name}"


#: Name of a folder below ``etc/dashboards`` (empty: that itself) → how documents are
#: stored: as we send them, or as MONIT stores them, with the payload below ``data``.
PLACEMENTS: Final[Mapping[str, Placement]] = {
    "": Placement("", "timestamp"),
    "monit": Placement("data.", "metadata.timestamp"),
}
#: A field of a condition in Lucene's syntax.
_FIELD: Final = re.compile(r"\b([a-z_.]+):")


@dataclass(frozen=True)
class Panel:
    """One panel. ``kind``: stat, bars, lines or table. ``sums``: fields that are added
    up, with their headings; with another ``metric`` (avg, max) their mean or largest
    value.

    ``by``: fields to group by, each with its maximum number of groups, the largest
    first. ``is_daily``: also by day, or by another ``interval``. ``unit``: of Grafana.
    ``size``: width and height in Grafana's grid of 24 columns. ``only``: a condition in
    Lucene's syntax that its documents meet beside the filters. ``divisor``: of every
    value. ``ratio``: two of the sums, whose quotient Grafana shows, beside them in a
    table, instead of them in lines.
    """

    title: str
    kind: str
    sums: dict[str, str]
    by: tuple[tuple[str, int], ...] = ()
    is_daily: bool = False
    unit: str = "short"
    size: tuple[int, int] = (12, 9)
    only: str = ""
    metric: str = "sum"
    interval: str = "1d"
    divisor: int = 1
    ratio: tuple[str, str] | None = None

    @property
    def is_stacked(self) -> bool:
        """Whether bars stand on each other: those of several groups of one sum."""
        return self.kind == "bars" and len(self.sums) == 1

    @property
    def script(self) -> str | None:
        """The script that divides a value, in Painless."""
        return f"_value / {self.divisor}.0" if self.divisor > 1 else None


def arrange(sizes: Iterable[tuple[int, int]], columns: int) -> Iterator[dict[str, int]]:
    """Yield the place of each panel of these sizes (width, height) in a grid, in rows
    from left to right.

    Example:
        >>> list(arrange([(2, 1), (2, 1)], columns=3))
        [{'h': 1, 'w': 2, 'x': 0, 'y': 0}, {'h': 1, 'w': 2, 'x': 0, 'y': 1}]
    """
    x = y = row = 0
    for width, height in sizes:
        if x + width > columns:
            x, y, row = 0, y + row, 0
        yield {"h": height, "w": width, "x": x, "y": y}
        x, row = x + width, max(row, height)


@dataclass(frozen=True)
class DocumentDashboard:
    """A dashboard on documents of one type: the file's name, the title, its panels and
    the fields to filter by.

    ``least``: fields of which a reader sets the least value.
    """

    name: str
    title: str
    about: str
    type: str
    panels: tuple[Panel, ...]
    filters: tuple[str, ...] = ()
    least: tuple[str, ...] = ()

    def is_required(self, field: str) -> bool:
        """Return whether every document has the field."""
        return field in document_schema(self.type)["required"]

    def build_query(self, panel: Panel, placement: Placement) -> str:
        """Return the documents of a panel, without the filters that a reader chooses,
        in Lucene's syntax.
        """
        only = _FIELD.sub(lambda match: f"{placement.field(match[1])}:", panel.only)
        return f"metadata.type:{self.type}" + (f" AND {only}" if only else "")


_STAT: Final = (4, 4)
#: Documents of streams of jobs; their ``nacc`` counts jobs.
_JOBS: Final = f"stream:({' OR '.join(STREAMS_OF_JOBS)})"
_ACCESSES: Final = f"NOT {_JOBS}"
#: Bins of records that a dashboard shows, with their labels.
_BINS: Final = {"read": "read", "matched": "matched to a dataset", "malformed": "malformed"}
_READ: Final = {"read_bytes": "read"}
_USE: Final = {"nacc": "accesses", "remote_nacc": "from another site", "read_bytes": "bytes"}
_USE_BY_JOBS: Final = {
    "nacc": "jobs",
    "remote_nacc": "at another site",
    "read_bytes": "bytes",
    "cpu_time": "CPU s",
}
_ROW: Final = (24, 11)
POPULARITY: Final = DocumentDashboard(
    "popularity",
    "CMS data popularity",
    "Which CMS data are read, where, by which applications and at what cost. Counted from logs by cmsspark.",
    "data_aggregation",
    (
        Panel("Accesses", "stat", {"nacc": "accesses"}, size=_STAT, only=_ACCESSES),
        Panel(
            "Accesses from another site",
            "stat",
            {"remote_nacc": "remote accesses"},
            size=_STAT,
            only=_ACCESSES,
        ),
        Panel(
            "Bytes read by accesses", "stat", _READ, unit="decbytes", size=_STAT, only=_ACCESSES
        ),
        Panel("Jobs", "stat", {"nacc": "jobs"}, size=_STAT, only=_JOBS),
        Panel("Bytes read by jobs", "stat", _READ, unit="decbytes", size=_STAT, only=_JOBS),
        Panel("CPU time of jobs", "stat", {"cpu_time": "CPU time"}, unit="s", size=_STAT),
        Panel(
            "Accesses a day by stream",
            "bars",
            {"nacc": "accesses"},
            (("stream", 10),),
            True,
            only=_ACCESSES,
        ),
        Panel(
            "Bytes read by accesses a day by site tier",
            "bars",
            _READ,
            (("site_tier", 10),),
            True,
            "decbytes",
            only=_ACCESSES,
        ),
        Panel(
            "Accesses a day by data tier",
            "lines",
            {"nacc": "accesses"},
            (("data_tier", 50),),
            True,
            only=_ACCESSES,
        ),
        Panel(
            "CPU time of jobs a day by data tier",
            "lines",
            {"cpu_time": "CPU time"},
            (("data_tier", 50),),
            True,
            "s",
        ),
        Panel(
            "Accesses a day by application",
            "bars",
            {"nacc": "accesses"},
            (("app", 10),),
            True,
            only=_ACCESSES,
        ),
        Panel(
            "Accesses by site and data tier",
            "table",
            {"nacc": "accesses"},
            (("site_name", 500), ("data_tier", 50)),
            only=_ACCESSES,
        ),
        Panel(
            "Most read datasets", "table", _USE, (("dataset_name", 50),), size=_ROW, only=_ACCESSES
        ),
        Panel(
            "Datasets that most jobs use",
            "table",
            _USE_BY_JOBS,
            (("dataset_name", 50),),
            size=_ROW,
            only=_JOBS,
        ),
        Panel("Sites", "table", _USE, (("site_name", 500),), size=_ROW, only=_ACCESSES),
        Panel(
            "Datasets by their users of one site and application, at most",
            "table",
            {"distinct_users": "users of a row, at most"},
            (("dataset_name", 50),),
            size=_ROW,
            only=_ACCESSES,
            metric="max",
        ),
    ),
    _USE_FILTERS,
    ("distinct_users",),
)
_REPLICAS: Final = {
    "replica_bytes": "bytes",
    "replica_file_count": "files",
    "replica_events": "events of replicas",
}
DATA_AT_SITES: Final = DocumentDashboard(
    "data-at-sites",
    "CMS data at sites",
    "How much data sit at the sites of a tier, by data tier and kind of storage. Counted from replicas by cmsspark.",
    "site_tier_usage",
    (
        Panel(
            "Bytes a day by site tier",
            "lines",
            {"replica_bytes": "bytes"},
            (("site_tier", 10),),
            True,
            "decbytes",
        ),
        Panel(
            "Bytes a day by kind of storage",
            "lines",
            {"replica_bytes": "bytes"},
            (("kind", 5),),
            True,
            "decbytes",
        ),
        Panel(
            "Bytes a day by data tier",
            "lines",
            {"replica_bytes": "bytes"},
            (("data_tier", 50),),
            True,
            "decbytes",
        ),
        Panel(
            "Files a day by site tier",
            "lines",
            {"replica_file_count": "files"},
            (("site_tier", 10),),
            True,
        ),
        Panel(
            "By data tier, site tier and kind, mean of the days shown",
            "table",
            _REPLICAS,
            (("data_tier", 50), ("site_tier", 10), ("kind", 5)),
            size=(24, 12),
            metric="avg",
        ),
    ),
    ("site_tier", "data_tier", "kind"),
)
COMPLETENESS: Final = DocumentDashboard(
    "completeness",
    "CMS data popularity: completeness",
    "How many documents each day has, and how its records were counted. Compare document_count with what is indexed.",
    f"data_aggregation{SUFFIX}",
    (
        Panel("Documents a day", "bars", {"document_count": "documents"}, (), True),
        Panel(
            "Documents that are gone or quarantined a day",
            "bars",
            {"gone_count": "gone", "quarantined_count": "quarantined"},
            is_daily=True,
        ),
        *(
            Panel(
                f"{STREAMS_BY_NAME[name].title} records a day",
                "bars",
                {f"reconciliation.{name}.{bin_name}": label for bin_name, label in _BINS.items()},
                is_daily=True,
            )
            for name in STREAMS
        ),
    ),
)
_HOUR_MS: Final = 3_600_000
_LOST: Final = "outcome:(failed OR removed)"
_DONE: Final = f"outcome:({' OR '.join(efficiency.OUTCOMES)})"
_CORE_AND_CPU: Final = {
    efficiency.CPU[1]: "core hours of the last start",
    efficiency.CPU[0]: "CPU hours",
}


def _efficiency(title: str, by: str, groups: int) -> Panel:
    """Return a table of the efficiency of jobs that succeeded."""
    return Panel(
        f"{title}, {efficiency.POPULATION}",
        "table",
        _CORE_AND_CPU,
        ((by, groups),),
        only=_DONE,
        divisor=_HOUR_MS,
        ratio=efficiency.CPU,
        size=(12, 11),
    )


JOB_EFFICIENCY: Final = DocumentDashboard(
    "job-efficiency",
    "CMS jobs: efficiency and wasted core hours",
    "CPU time over core time of the last start of HTCondor's jobs that did not fail, by campaign, site and tier;"
    " core hours of failed, removed and evicted ones.",
    "job_efficiency",
    (
        Panel("Jobs that ended", "stat", {"job_count": "jobs"}, size=(5, 4)),
        Panel("Core hours", "stat", {"core_ms": "core hours"}, size=(5, 4), divisor=_HOUR_MS),
        Panel(
            "Core hours of failed and removed jobs",
            "stat",
            {"core_ms": "core hours"},
            size=(5, 4),
            only=_LOST,
            divisor=_HOUR_MS,
        ),
        Panel(
            "Evicted core hours",
            "stat",
            {"evicted_core_ms": "core hours"},
            size=(5, 4),
            divisor=_HOUR_MS,
        ),
        Panel(
            "CPU hours × HS06",
            "stat",
            {"hs06_cpu_ms": "HS06 hours"},
            size=(4, 4),
            divisor=_HOUR_MS,
        ),
        Panel(
            f"CPU efficiency a day by tier, {efficiency.POPULATION}",
            "lines",
            _CORE_AND_CPU,
            (("tier", 5),),
            True,
            "percentunit",
            only=_DONE,
            divisor=_HOUR_MS,
            ratio=efficiency.CPU,
        ),
        Panel(
            "Core hours a day by outcome",
            "bars",
            {"core_ms": "core hours"},
            (("outcome", 4),),
            True,
            divisor=_HOUR_MS,
        ),
        Panel(
            "Core hours of failed and removed jobs a day by site",
            "bars",
            {"core_ms": "core hours"},
            (("site", 20),),
            True,
            only=_LOST,
            divisor=_HOUR_MS,
        ),
        Panel(
            "Core hours of failed and removed jobs by campaign",
            "table",
            {"core_ms": "core hours"},
            (("workflow", 100), ("outcome", 4)),
            only=_LOST,
            divisor=_HOUR_MS,
        ),
        _efficiency("Efficiency by campaign", "workflow", 100),
        _efficiency("Efficiency by site", "site", 200),
        _efficiency("Efficiency by tier", "tier", 5),
        _efficiency("Efficiency by kind of job", "job_type", 20),
    ),
    ("workload_type", "tier", "site", "job_type"),
)
_HPC: Final = "hpc:*"
_BY_HPC: Final = (("hpc", 20),)
HPC: Final = DocumentDashboard(
    "hpc-core-hours",
    "CMS jobs at HPC sites: core hours",
    "Core hours of HTCondor's jobs at HPC sites, by day and month, when the jobs end.",
    "core_hours",
    (
        Panel(
            "Core hours by month and HPC",
            "bars",
            {"core_ms": "core hours"},
            _BY_HPC,
            True,
            only=_HPC,
            interval="1M",
            divisor=_HOUR_MS,
        ),
        Panel(
            "Core hours a day by HPC",
            "bars",
            {"core_ms": "core hours"},
            _BY_HPC,
            True,
            only=_HPC,
            divisor=_HOUR_MS,
        ),
        Panel(
            "By HPC, site and part of the site",
            "table",
            {"core_ms": "core hours", "cpu_ms": "CPU hours", "hs06_cpu_ms": "HS06 hours"},
            (("hpc", 20), ("site", 50), ("subsite", 20)),
            only=_HPC,
            divisor=_HOUR_MS,
            size=(24, 11),
        ),
    ),
    ("workload_type", "site"),
)
RUNNING_CORES: Final = DocumentDashboard(
    "running-cores",
    "CMS jobs: running cores",
    "Cores of running jobs, from 12-minute windows of HTCondor's collector. Silent windows lower the means.",
    "running_cores",
    (
        Panel(
            "Mean cores of a day by HPC",
            "bars",
            {"core_windows_milli": "cores"},
            _BY_HPC,
            True,
            only=_HPC,
            divisor=120_000,
        ),
        Panel(
            "Mean cores of a day by kind of work",
            "bars",
            {"core_windows_milli": "cores"},
            (("workload_type", 10),),
            True,
            divisor=120_000,
        ),
        Panel(
            "Core hours that ran at HPC sites, by hour of the day (UTC)",
            "table",
            {"core_windows_milli": "core hours"},
            (("hpc", 20), ("hour", 24)),
            only=_HPC,
            divisor=5_000,
            size=(12, 11),
        ),
        Panel(
            "Core hours that ran, by site",
            "table",
            {"core_windows_milli": "core hours"},
            (("site", 200),),
            divisor=5_000,
            size=(12, 11),
        ),
    ),
    ("workload_type", "site"),
)
_ELEMENT: Final = {
    "static_bytes": "pledged",
    "rucio_bytes": "used",
    "locked_bytes": "locked",
    "expired_bytes": "expired",
}
_REAL: Final = "is_test:false"
STORAGE: Final = DocumentDashboard(
    "storage",
    "CMS storage: pledged, used, locked",
    "What Rucio's storage elements pledge, hold, lock and may delete. Elements for tests are left out.",
    "rse_usage",
    (
        Panel("Bytes a day", "lines", _ELEMENT, is_daily=True, unit="decbytes", only=_REAL),
        Panel(
            "Used bytes a day by kind of storage",
            "lines",
            {"rucio_bytes": "used"},
            (("kind", 2),),
            True,
            "decbytes",
            only=_REAL,
        ),
        Panel(
            "By storage element, mean of the days shown",
            "table",
            _ELEMENT,
            (("rse", 500),),
            unit="decbytes",
            only=_REAL,
            metric="avg",
            size=_ROW,
        ),
    ),
    ("kind", "site_name"),
)
_COPIES: Final = {
    "bytes": "there",
    "locked_bytes": "locked",
    "only_copy_bytes": "nowhere else",
    "deletable_bytes": "may go together",
}
COPIES: Final = DocumentDashboard(
    "dataset-copies",
    "CMS datasets at storage elements: locked, last copies, deletable",
    "What rules hold, what is nowhere else, and what may go, all of it together.",
    "dataset_rses",
    (
        Panel("Bytes a day", "lines", _COPIES, is_daily=True, unit="decbytes"),
        Panel(
            "Bytes a day that may go, by site",
            "lines",
            {"deletable_bytes": "may go together"},
            (("site_name", 50),),
            True,
            "decbytes",
        ),
        Panel(
            "By storage element and dataset, mean of the days shown",
            "table",
            {"deletable_bytes": "may go together", **_COPIES},
            (("rse", 100), ("dataset_name", 20)),
            unit="decbytes",
            metric="avg",
            size=_ROW,
        ),
    ),
    ("kind", "site_name", "data_tier", "lock_state"),
)
_LOCKED: Final = {"lock_bytes": "locked"}
ACCOUNTS: Final = DocumentDashboard(
    "account-usage",
    "CMS storage: what accounts lock",
    "Locks of Rucio's accounts and their quota; people together, by class of account.",
    "account_usage",
    (
        Panel(
            "Locked bytes a day by class of account",
            "lines",
            _LOCKED,
            (("account_class", 6),),
            True,
            "decbytes",
        ),
        Panel(
            "Bytes of stuck locks a day by storage element",
            "lines",
            {"stuck_bytes": "stuck"},
            (("rse", 50),),
            True,
            "decbytes",
        ),
        Panel(
            "By storage element and account, mean of the days shown",
            "table",
            {**_LOCKED, "stuck_bytes": "stuck", "limit_bytes": "quota"},
            (("rse", 200), ("account_class", 6), ("account", 50), ("limit_kind", 3)),
            unit="decbytes",
            metric="avg",
            size=_ROW,
        ),
    ),
    ("rse", "account_class"),
)
_HELD_UP: Final = "event:(stuck OR suspended)"
_RULES: Final = {"rule_count": "rules"}
RULES: Final = DocumentDashboard(
    "rules",
    "CMS storage: rules of Rucio",
    "New, expiring, overdue, stuck, suspended and waiting rules. A rule may have several events.",
    "rules_day",
    (
        Panel("Rules a day by event", "lines", _RULES, (("event", 7),), True),
        *(
            Panel(
                f"Stuck and suspended rules a day by {name}",
                "bars",
                _RULES,
                ((field, 20),),
                True,
                only=_HELD_UP,
            )
            for name, field in (
                ("reason", "reason"),
                ("activity", "activity"),
                ("class of account", "account_class"),
            )
        ),
    ),
    ("activity", "account_class", "did_scope"),
)
SILENT_SITES: Final = DocumentDashboard(
    "silent-sites",
    "CMS logs: sites that fell silent",
    "Sites of which a stream has no record, or less than a tenth of the usual ones.",
    "silent_sites",
    (
        Panel(
            "Share of a stream's usual records of sites that fell silent a day",
            "bars",
            {"share": "share"},
            (("stream", 10),),
            True,
            "percentunit",
            only="is_new:true",
        ),
        Panel(
            "Sites, largest numbers of the days shown",
            "table",
            {"usual": "usual records", "today": "records", "silent_days": "silent days"},
            (("stream", 10), ("site_name", 200), ("kind", 2)),
            metric="max",
        ),
    ),
    ("stream", "site_name"),
)
TASKS: Final = DocumentDashboard(
    "crab-tasks",
    "CRAB's tasks",
    "Tasks that started in the 90 days before each dump, by their status then.",
    "crab_tasks",
    tuple(
        Panel(
            f"{heading} of each dump by {name}",
            "lines",
            {field: heading.lower()},
            ((by, 20),),
            True,
        )
        for heading, field in (("Tasks", "task_count"), ("Jobs", "job_count"))
        for name, by in (("status", "status"), ("kind of splitting", "split_algo"))
    ),
    ("status", "job_type", "split_algo"),
)
#: All dashboards.
DASHBOARDS: Final = (
    *(POPULARITY, DATA_AT_SITES, COMPLETENESS, JOB_EFFICIENCY, HPC, RUNNING_CORES),
    *(STORAGE, COPIES, ACCOUNTS, RULES, SILENT_SITES, TASKS),
)
