"""WMArchive's reports: their blobs in a task, and the merge with the sums of the tables
(rules 56 to 58).
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import msgspec
import numpy as np

from cmsspark.apps.jobs_cost.ended_jobs import split
from cmsspark.apps.jobs_cost.feed_rows import FeedAggregator
from cmsspark.base.access import AccessBatch
from cmsspark.base.arrays import Longs
from cmsspark.counting.htcondor_jobs import id_hashes
from cmsspark.engines.job_work import PARTITIONS
from cmsspark.sources.condor_costs import TOO_LARGE
from cmsspark.sources.wmarchive import OUT_OF_DAY, JobReport, ReportedStep

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


@dataclass
class ReportAggregator(FeedAggregator):
    """Collects the reports of one task. A blob is compressed: its lines are much alike."""

    _reports: list[JobReport] = field(default_factory=list)
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


def _decode_reports(blob: bytes) -> list[JobReport]:
    import pyarrow as pa

    size = int.from_bytes(blob[:8], "little")
    return _decode(pa.decompress(blob[8:], decompressed_size=size, codec="zstd", asbytes=True))


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
        self.sums = [_plus(total, more) for total, more in zip(self.sums, step.sums, strict=True)]
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


def _plus(total: int | None, more: int | None) -> int | None:
    return more if total is None else total if more is None else total + more


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


@dataclass
class ReportSums:
    """The sums of reports of some partitions."""

    rows: dict[tuple[Any, ...], StepRow] = field(default_factory=dict)
    agents: dict[str, AgentRow] = field(default_factory=dict)
    matched: int = 0
    no_cmsrun: int = 0
    repeated: int = 0
    ids: list[Longs] = field(default_factory=list)

    def merge(self, blobs: Iterable[bytes], earlier: Longs) -> None:
        """Add a partition: ``blobs`` have all records of each report. ``earlier``: ids
        of the day before, sorted.
        """
        counting: dict[str, JobReport] = {}
        of_agents: dict[tuple[str, str], JobReport] = {}
        ids: set[str] = set()
        count = 0
        for blob in blobs:
            for report in _decode_reports(blob):
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
            self._add_report(report)
        for (host, _), report in of_agents.items():
            self._add_agent(
                AgentRow(host, 1, int(report.has_failed), report.step_count, set(report.sites))
            )

    def _add_report(self, report: JobReport) -> None:
        self.matched += bool(report.steps)
        self.no_cmsrun += not report.steps
        for step in report.steps:
            self._add_row(_make_row(report, step))

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
