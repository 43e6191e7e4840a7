"""The two feeds of what jobs cost: HTCondor and WMArchive, each with its aggregator,
its merge and its tables.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Mapping, Sequence
from datetime import date
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from cmsspark.apps.jobs_cost.cost_sums import (
    EFFICIENCY_KEYS,
    SUMS,
    CostAggregator,
    CostSums,
    EarlierIds,
    FeedAggregator,
    split,
)
from cmsspark.base import buffers, config_files, dates
from cmsspark.base.access import AccessBatch
from cmsspark.base.arrays import Longs
from cmsspark.base.errors import DataError, SettingsError
from cmsspark.base.resources import resource
from cmsspark.base.schemas import stored_table
from cmsspark.counting.htcondor_jobs import id_hashes
from cmsspark.engines.job_work import PARTITIONS
from cmsspark.sources.condor_costs import CORE, HOUR_WINDOWS, LAST_START, TOO_LARGE
from cmsspark.sources.values import MAX_LONG
from cmsspark.sources.wmarchive import OUT_OF_DAY, JobReport, ReportedStep

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.base.arrays import Longs


# HPC sites: which HPC a job ran at, by its site and the part of the site (rule 53).

DEFAULT_FILE: Final = "etc/hpc_sites.yaml"
_Names = str | list[str]


class HpcSite(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """An entry of the table; null fits everything."""

    hpc: str
    site: _Names | None = None
    site_suffix: _Names | None = None
    subsite: _Names | None = None
    subsite_contains: str | None = None

    def fits(self, site: str, subsite: str | None) -> bool:
        """Return whether the entry describes a site and its part."""
        if self.site is not None and site not in _listed(self.site):
            return False
        if self.site_suffix is not None and not site.endswith(tuple(_listed(self.site_suffix))):
            return False
        if self.subsite is not None and subsite not in _listed(self.subsite):
            return False
        return self.subsite_contains is None or self.subsite_contains in (subsite or "")


def _listed(names: _Names) -> list[str]:
    return [names] if isinstance(names, str) else names


class _HpcFile(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    sites: list[HpcSite]


class HpcSites(msgspec.Struct, frozen=True, dict=True):
    """The table of HPC sites, in the order in which entries are tried."""

    entries: tuple[HpcSite, ...]

    @classmethod
    def load(cls, file: str | None = None) -> HpcSites:
        """Load ``etc/hpc_sites.yaml``, or the ``file`` that replaces it. Raises
        SettingsError (78).
        """
        name = file or DEFAULT_FILE
        try:
            content = (
                resource(DEFAULT_FILE).read_bytes() if file is None else Path(file).read_bytes()
            )
        except OSError as error:
            raise SettingsError(
                "the file that `hpc_sites` names cannot be read", where=name, found=error.strerror
            ) from None
        parsed = config_files.parse(content, name, is_text=lambda key: key[0] == "sites")
        entries = parsed.convert(_HpcFile).sites
        for number, entry in enumerate(entries):
            # Raise SettingsError (78) for an entry that would fit every site, or has an
            # empty name.
            texts: list[Any] = [entry.hpc, entry.subsite_contains]
            for names in (entry.site, entry.site_suffix, entry.subsite):
                texts += [] if names is None else _listed(names) or [""]
            if (entry.site is None) == (entry.site_suffix is None) or "" in texts:
                raise parsed.error(
                    "an HPC site has `hpc`, and either `site` or `site_suffix`; no name is empty",
                    "sites",
                    str(number),
                )
        return cls(tuple(entries))

    @cached_property
    def _memo(self) -> dict[tuple[str, str | None], str | None]:
        return {}

    def find(self, site: str, subsite: str | None) -> str | None:
        """Return the HPC of the first entry that fits; None where none does.

        Example:
            >>> HpcSites.load().find("T1_IT_CNAF", "CNAF-LEONARDO")
            'CINECA'
        """
        key = (site, subsite)
        if key not in self._memo:
            fitting = (entry.hpc for entry in self.entries if entry.fits(site, subsite))
            self._memo[key] = next(fitting, None)
        return self._memo[key]


# WMArchive's reports: their blobs in a task, and the merge with the sums of the tables
# (rules 56 to 58).

#: Bytes of lines that a task keeps before they leave it.
_BYTES_AT_ONCE: Final = 16_000_000
#: The keys of a row of ``step_efficiency``.
STEP_KEYS: Final = ("task", "request", "step", "job_type", "site", "era")
#: The sums of a row that are null where no step has the value, as attributes of a step.
NULLABLE_SUMS: Final = (
    *("cpu_ms", "job_ms", "thread_ms", "cpu_of_thread_ms"),
    *("read_bytes", "write_bytes", "read_ms", "write_ms", "events"),
)
#: Doubles are summed as multiples of the smallest one: exactly, so that their order does not show.
_FRACTION_BITS: Final = 1074

_encode: Final = msgspec.msgpack.Encoder().encode
_decode: Final = msgspec.msgpack.Decoder(list[JobReport]).decode


class ReportAggregator(FeedAggregator):
    """Collects the reports of one task. A blob is compressed: its lines are much alike."""

    _reports: list[JobReport] = msgspec.field(default_factory=list)
    _bytes: int = 0

    @property
    def rows_in_memory(self) -> int:
        """Reports in memory."""
        return len(self._reports)

    def keep(self, batch: AccessBatch) -> None:
        """Keep the reports of a batch."""
        self._reports += batch.jobs
        self._bytes += sum(len(report.line) for report in batch.jobs)

    def is_full(self) -> bool:
        """Return whether the reports should leave the task."""
        return self._bytes >= _BYTES_AT_ONCE

    def blobs(self, groups: Sequence[Any]) -> dict[int, bytes]:
        """Return a blob for each partition that has any report."""
        import pyarrow as pa

        reports, self._reports, self._bytes = self._reports, [], 0
        blobs = {}
        for number, rows in split(id_hashes([report.job_id for report in reports]), PARTITIONS):
            content = _encode([reports[row] for row in rows.tolist()])
            size = len(content).to_bytes(8, "little")
            blobs[number] = size + pa.compress(content, codec="zstd", asbytes=True)
        return blobs


class StepRow(msgspec.Struct, array_like=True):
    """A row of ``step_efficiency``. ``sums``: those of ``NULLABLE_SUMS``; ``rss_sum``:
    an exact sum, in hex.
    """

    key: tuple[Any, ...]
    step_count: int = 0
    threads: int = 0
    streams: int = 0
    failed: int = 0
    sums: list[int | None] = []
    rss_sum: str = "0"
    rss_max: float | None = None
    rss_count: int = 0
    vsize_max: float | None = None
    implausible: int = 0

    def add(self, step: StepRow) -> None:
        """Add another part of the row."""
        self.step_count += step.step_count
        self.threads = self.threads + step.threads
        self.streams = self.streams + step.streams
        self.failed += step.failed
        self.sums = [
            (more if total is None else total if more is None else total + more)
            for total, more in zip(self.sums, step.sums, strict=True)
        ]
        self.rss_sum = f"{int(self.rss_sum, 16) + int(step.rss_sum, 16):x}"
        self.rss_count += step.rss_count
        self.implausible += step.implausible
        self.rss_max, self.vsize_max = (
            _largest(self.rss_max, step.rss_max),
            _largest(self.vsize_max, step.vsize_max),
        )

    @property
    def rss_sum_mb(self) -> float | None:
        """The sum of the resident sizes, rounded once."""
        return int(self.rss_sum, 16) / (1 << _FRACTION_BITS) if self.rss_count else None


def _largest(largest: float | None, value: float | None) -> float | None:
    return value if largest is None else largest if value is None else max(largest, value)


def _exact(number: float) -> int:
    numerator, denominator = number.as_integer_ratio()
    return numerator << (_FRACTION_BITS + 1 - denominator.bit_length())


def _make_row(report: JobReport, step: ReportedStep) -> StepRow:
    parts = report.task.split("/")
    request = parts[1] if len(parts) > 1 and not parts[0] else parts[0]
    cpu_of_thread = None if step.thread_ms is None else step.cpu_ms
    sums = [
        *(step.cpu_ms, step.job_ms, step.thread_ms, cpu_of_thread),
        *(step.read_bytes, step.write_bytes, step.read_ms, step.write_ms, step.events),
    ]
    return StepRow(
        (report.task, request, step.name, report.job_type, step.site, step.era),
        1,
        step.threads or 0,
        step.streams or 0,
        int(step.has_failed),
        sums,
        "0" if step.rss_mb is None else f"{_exact(step.rss_mb):x}",
        step.rss_mb,
        int(step.rss_mb is not None),
        step.vsize_mb,
        step.implausible,
    )


class AgentRow(msgspec.Struct, array_like=True):
    """A row of ``agent_reports``."""

    host: str
    reports: int
    failed: int
    steps: int
    sites: set[str]


class _Partial(msgspec.Struct, array_like=True):
    """The sums of a partition, to leave its task."""

    rows: list[StepRow]
    agents: list[AgentRow]
    matched: int
    no_cmsrun: int
    repeated: int
    ids: bytes


class ReportSums(msgspec.Struct):
    """The sums of reports of some partitions."""

    rows: dict[tuple[Any, ...], StepRow] = msgspec.field(default_factory=dict)
    agents: dict[str, AgentRow] = msgspec.field(default_factory=dict)
    matched: int = 0
    no_cmsrun: int = 0
    repeated: int = 0
    ids: list[Longs] = msgspec.field(default_factory=list)

    def merge(self, blobs: Iterable[bytes], earlier: Longs) -> None:
        """Add a partition: ``blobs`` have all records of each report. ``earlier``: ids
        of the day before, sorted.
        """
        import pyarrow as pa

        counting: dict[str, JobReport] = {}
        of_agents: dict[tuple[str, str], JobReport] = {}
        ids: set[str] = set()
        count = 0
        for blob in blobs:
            size = int.from_bytes(blob[:8], "little")
            reports = pa.decompress(blob[8:], decompressed_size=size, codec="zstd", asbytes=True)
            for report in _decode(reports):
                ids.add(report.job_id)
                if report.bin == OUT_OF_DAY:
                    continue
                _keep_largest(of_agents, (report.host, report.job_id), report)
                if not report.bin:
                    count += 1
                    _keep_largest(counting, report.job_id, report)
        self.ids.append(id_hashes(list(ids)))
        hashes = id_hashes(list(counting))
        new = [
            report
            for report, is_old in zip(counting.values(), np.isin(hashes, earlier), strict=True)
            if not is_old
        ]
        self.repeated += count - len(new)
        for report in new:
            self.matched += bool(report.steps)
            self.no_cmsrun += not report.steps
            for step in report.steps:
                self._add_row(_make_row(report, step))
        for (host, _), report in of_agents.items():
            self._add_agent(
                AgentRow(host, 1, int(report.has_failed), report.step_count, set(report.sites))
            )

    def _add_row(self, row: StepRow) -> None:
        if row.key in self.rows:
            self.rows[row.key].add(row)
        else:
            self.rows[row.key] = row

    def _add_agent(self, row: AgentRow) -> None:
        agent = self.agents.setdefault(row.host, AgentRow(row.host, 0, 0, 0, set()))
        agent.reports += row.reports
        agent.failed += row.failed
        agent.steps += row.steps
        agent.sites |= row.sites

    def encode(self) -> bytes:
        """Return the sums as bytes, to leave a task."""
        for row in self.rows.values():
            row.sums = [None if total is None else min(total, TOO_LARGE) for total in row.sums]
            row.threads, row.streams = min(row.threads, TOO_LARGE), min(row.streams, TOO_LARGE)
        counts = (self.matched, self.no_cmsrun, self.repeated)
        partial = _Partial(
            list(self.rows.values()), list(self.agents.values()), *counts, self.all_ids().tobytes()
        )
        return msgspec.msgpack.encode(partial)

    def add_encoded(self, content: bytes) -> None:
        """Add the sums that :meth:`encode` has made bytes of."""
        partial = msgspec.msgpack.decode(content, type=_Partial)
        for row in partial.rows:
            self._add_row(row)
        for agent in partial.agents:
            self._add_agent(agent)
        self.matched += partial.matched
        self.no_cmsrun += partial.no_cmsrun
        self.repeated += partial.repeated
        self.ids.append(np.frombuffer(partial.ids, np.int64))

    def all_ids(self) -> Longs:
        """Return the hashes of the ids of all well-formed reports, sorted."""
        return np.unique(np.concatenate([np.zeros(0, np.int64), *self.ids]))


def _keep_largest(reports: dict[Any, JobReport], key: Any, report: JobReport) -> None:
    largest = reports.get(key)
    if largest is None or report.rank() > largest.rank():
        reports[key] = report


# The tables of a day, made of the sums of both feeds, and what the manifest says beside
# them.

_HOUR_MS: Final = 3_600_000
_HOURS: Final = 24
_Row = dict[str, Any]


def cost_tables(
    sums: CostSums, day: date, hpc_sites: HpcSites, meanings: Mapping[str, str]
) -> dict[str, pa.Table]:
    """Return the tables of HTCondor's jobs by name. Raises DataError (65) where a sum
    exceeds 64 bits.
    """
    is_of_last_start = meanings[CORE] == LAST_START
    rows = _efficiency_rows(sums, is_of_last_start=is_of_last_start)
    return {
        "job_efficiency": _table("job_efficiency", rows, day),
        "core_hours": _table("core_hours", _core_hour_rows(sums, hpc_sites), day),
        "running_cores": _table("running_cores", _running_rows(sums, hpc_sites), day),
        "job_cost_ids": _ids("job_cost_ids", sums.all_ids()),
    }


def report_tables(sums: ReportSums, day: date) -> dict[str, pa.Table]:
    """Return the tables of WMArchive's reports by name. Raises DataError (65) where a
    sum exceeds 64 bits.
    """
    return {
        "step_efficiency": _table("step_efficiency", _step_rows(sums), day),
        "agent_reports": _table("agent_reports", _agent_rows(sums), day),
        "report_ids": _ids("report_ids", sums.all_ids()),
    }


def _efficiency_rows(sums: CostSums, *, is_of_last_start: bool) -> Iterable[_Row]:
    """Yield rows. ``is_of_last_start``: core hours are those of the last start; what
    earlier starts took is not known.
    """
    names = ("type", "job_type", "workflow", "request", "site", "subsite", "tier", "outcome")
    for row in sums.rows:
        values: dict[str, int | None] = dict(zip(SUMS, row.sums, strict=True))
        del values["core_hours_ms"]
        if not values.pop("chirp_job_count"):
            values["read_ms"] = values["elapsed_ms"] = None
        if is_of_last_start:
            values["evicted_core_ms"] = None
        counts = {"distinct_schedds": len(row.schedds), "distinct_users": len(row.users)}
        yield dict(zip(names, row.key, strict=True)) | values | counts


def _core_hour_rows(sums: CostSums, hpc_sites: HpcSites) -> Iterable[_Row]:
    totals: dict[tuple[Any, ...], Counter[str]] = defaultdict(Counter)
    for row in sums.rows:
        key = dict(zip(EFFICIENCY_KEYS, row.key, strict=True))
        totals[key["site"], key["subsite"], key["type"]].update(
            dict(zip(SUMS, row.sums, strict=True))
        )
    for (site, subsite, type_), total in totals.items():
        yield {
            "site": site,
            "subsite": subsite,
            "hpc": hpc_sites.find(site, subsite),
            "type": type_,
            "job_count": total["job_count"],
            "core_ms": total["core_hours_ms"],
            "cpu_ms": total["cpu_ms"],
            "hs06_cpu_ms": total["hs06_cpu_ms"],
        }


def _running_rows(sums: CostSums, hpc_sites: HpcSites) -> Iterable[_Row]:
    windows = window_counts(sums)
    for ((site, subsite, type_), hour), (cores, pairs) in sums.hours.items():
        yield {
            "site": site,
            "subsite": subsite,
            "hpc": hpc_sites.find(site, subsite),
            "type": type_,
            "hour": hour,
            "window_count": windows[hour],
            "core_windows_milli": cores,
            "job_windows": pairs,
        }


def window_counts(sums: CostSums) -> list[int]:
    """Return the number of 12-minute windows with a record, of each hour."""
    return [
        (sums.windows >> (hour * HOUR_WINDOWS) & (2**HOUR_WINDOWS - 1)).bit_count()
        for hour in range(_HOURS)
    ]


def _step_rows(sums: ReportSums) -> Iterable[_Row]:
    for row in sums.rows.values():
        yield (
            dict(zip(STEP_KEYS, row.key, strict=True))
            | dict(zip(NULLABLE_SUMS, row.sums, strict=True))
            | {
                "step_count": row.step_count,
                "threads_sum": row.threads,
                "streams_sum": row.streams,
                "rss_sum_mb": row.rss_sum_mb,
                "rss_max_mb": row.rss_max,
                "rss_count": row.rss_count,
                "vsize_max_mb": row.vsize_max,
                "failed_step_count": row.failed,
                "implausible_count": row.implausible,
            }
        )


def _agent_rows(sums: ReportSums) -> Iterable[_Row]:
    for row in sums.agents.values():
        yield {
            "host": row.host,
            "report_count": row.reports,
            "failed_count": row.failed,
            "step_sum": row.steps,
            "site_count": len(row.sites),
        }


def _table(name: str, rows: Iterable[_Row], day: date) -> pa.Table:
    """Return rows as a table, sorted by its keys, null first."""
    import pyarrow as pa

    schema = stored_table(name)
    # Null first.
    ordered = sorted(
        rows,
        key=lambda row: tuple(
            (row[key] is not None, row[key] if row[key] is not None else "") for key in schema.keys
        ),
    )
    for row in ordered:
        for column, value in row.items():
            if isinstance(value, int) and value > MAX_LONG:
                raise DataError(
                    f"a sum of {column} in {name} of {day} is beyond 2^63-1",
                    found=", ".join(f"{key} {row[key]}" for key in schema.keys),
                    next_step="--quarantine-above SECONDS puts records with longer times in quarantine and marks the"
                    " result partial",
                )
    start = dates.start_ms(day)
    return pa.Table.from_pylist(
        [{"day": day, **row, "timestamp": start} for row in ordered], schema.arrow()
    )


def _ids(name: str, ids: Longs) -> pa.Table:
    import pyarrow as pa

    return pa.table({"id_hash": buffers.from_numpy(ids)}, schema=stored_table(name).arrow())


def cost_checks(sums: CostSums, day: date) -> tuple[dict[str, Any], list[str]]:
    """Return entries of the manifest and warnings: hours without records, and the check
    of core hours (rule 62).

    Raises RuntimeError, a bug of ours (70), where rows lost or doubled jobs.
    """
    totals = dict(
        zip(SUMS, map(sum, zip(*(row.sums for row in sums.rows), strict=True)), strict=False)
    )
    jobs = totals.get("job_count", 0)
    if jobs != sums.counted:
        raise RuntimeError(f"{sums.counted} jobs count, {jobs} are in job_efficiency")
    windows = window_counts(sums)
    by_hour = [0] * _HOURS
    for (_, hour), (cores, _) in sums.hours.items():
        by_hour[hour] += cores
    averages = [
        cores / count / 1000 for cores, count in zip(by_hour, windows, strict=True) if count
    ]
    busiest = max(averages, default=0.0)
    core_hours = totals.get("core_hours_ms", 0) / _HOUR_MS
    entry = {
        "jobs": jobs,
        "core_ms": totals.get("core_ms", 0),
        "windows_by_hour": windows,
        "busiest_hour_cores": round(busiest, 3),
        "core_hours": round(core_hours, 3),
    }
    warnings = []
    silent = [
        f"{hour:02} ({count} of {HOUR_WINDOWS})"
        for hour, count in enumerate(windows)
        if count < HOUR_WINDOWS
    ]
    if silent:
        warnings.append(
            f"condor: 12-minute windows without any record, by hour of {day}: {', '.join(silent)}"
        )
    if core_hours > _HOURS * busiest:
        warnings.append(
            f"condor: {core_hours:,.1f} core hours of jobs that ended are more than 24 h × the {busiest:,.1f} cores"
            " that ran in the busiest hour: jobs ran on days before, or records are missing"
        )
    return {"job_cost_checks": entry}, warnings


def report_checks(sums: ReportSums, day: date) -> tuple[dict[str, Any], list[str]]:
    """Return the entry of the manifest, and no warning: how many times of reads and
    writes are left out, because they cannot be (rule 56).
    """
    return {"implausible": sum(row.implausible for row in sums.rows.values())}, []


class Feed(msgspec.Struct, frozen=True):
    """A feed. ``name``: in the registry; ``source``: in ``etc/sources.yaml``; ``ids``:
    the table for the next day.

    ``build(sums, day, hpc_sites, meanings)`` makes the tables; ``bins(sums)`` counts records that
    the merge bins; ``check(sums, day)`` returns entries of the manifest and warnings.
    """

    job: str
    name: str
    source: str
    ids: str
    aggregator: type[FeedAggregator]
    new_sums: Callable[[], Any]
    build: Callable[[Any, date, HpcSites, Mapping[str, str]], dict[str, pa.Table]]
    bins: Callable[[Any], dict[str, int]]
    check: Callable[[Any, date], tuple[dict[str, Any], list[str]]]


class MakeAggregator(msgspec.Struct, frozen=True):
    """Makes the aggregators of a task. It is pickled and sent to the workers."""

    kind: type[FeedAggregator]

    def __call__(self, stream: str, is_earlier: bool) -> FeedAggregator:
        return EarlierIds(stream) if is_earlier else self.kind(stream)


CONDOR: Final = Feed(
    "job_efficiency",
    "condor_costs",
    "condor",
    "job_cost_ids",
    CostAggregator,
    CostSums,
    cost_tables,
    lambda sums: {"matched": sums.counted, "repeated": sums.repeated},
    cost_checks,
)
WMARCHIVE: Final = Feed(
    "step_efficiency",
    "wmarchive",
    "wmarchive",
    "report_ids",
    ReportAggregator,
    ReportSums,
    lambda sums, day, hpc_sites, meanings: report_tables(sums, day),
    lambda sums: {"matched": sums.matched, "no_cmsrun": sums.no_cmsrun, "repeated": sums.repeated},
    report_checks,
)
#: Job → the feed that it counts.
FEEDS: Final = {feed.job: feed for feed in (CONDOR, WMARCHIVE)}
