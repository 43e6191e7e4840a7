"""The summary of a scan beside its accesses: bins of records, accepted damage, and
samples of the logs' fields.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cmsspark.base.text.terminal import pluralize
from cmsspark.counting import drift, reconciliation
from cmsspark.counting.crab_rows import JOB_COUNT, JOB_SUMS
from cmsspark.counting.merge import (
    HAS,
    QUARANTINE_CUT,
    QUARANTINE_KEPT_BYTES,
    SECONDS,
    SideRow,
)
from cmsspark.counting.pre_aggregate import SET_ASIDE
from cmsspark.counting.prefixes import OTHER
from cmsspark.counting.reconciliation import StreamBins
from cmsspark.run.file_records import FileNotes
from cmsspark.run.inputs import spellings
from cmsspark.sources.file_counts import FILE
from cmsspark.sources.registry import FEEDS, STREAMS_OF_JOBS
from cmsspark.sources.sample import load_needed

#: Prefixes of unmatched files that a manifest names of each stream.
PREFIXES_NAMED: Final = 20


@dataclass
class ScanSummary:
    """The side rows of a scan, summed. ``damaged``: entries of the manifest, one for
    each such file.
    """

    bins: dict[str, StreamBins]
    damaged: list[dict[str, Any]] = field(default_factory=list)
    #: Records of each stream that were beyond ``--quarantine-above``.
    oversized: dict[str, int] = field(default_factory=dict)
    sampled: dict[str, drift.Seen] = field(default_factory=dict)
    #: Records whose file is not in DBS, by the beginning of its name.
    prefixes: dict[str, Counter[str]] = field(default_factory=dict)
    #: Numbers of readers, each of a task or a process: ``compiled``, or the reason why not.
    readers: Counter[str] = field(default_factory=Counter)
    #: The fields that any counted access has, by stream: bytes, site, user, app.
    has: dict[str, set[str]] = field(default_factory=dict)
    #: Malformed records that are counted and not kept, by stream.
    not_kept: Counter[str] = field(default_factory=Counter)
    #: Accesses without bytes of their own, and their bytes, by stream (rule 11).
    set_aside: dict[str, Counter[str]] = field(default_factory=dict)
    #: Jobs of the day and their times, each job once, by stream (rule 11).
    job_sums: dict[str, Counter[str]] = field(default_factory=dict)
    #: The notes about files, by stream.
    files: dict[str, FileNotes] = field(default_factory=dict)

    @classmethod
    def from_rows(
        cls, rows: Iterable[SideRow], streams: Sequence[str], accepted: Iterable[str] = ()
    ) -> ScanSummary:
        """Sum up the side rows of a scan."""
        binned: list[tuple[str, str, int, str | None]] = []
        summary = cls({})
        for kind, stream, name, count, detail in rows:
            if kind == "damaged":
                damage = json.loads(detail or "")
                file = damage["file"]
                damage["file"] = next((path for path in accepted if path in spellings(file)), file)
                summary.damaged.append({"stream": stream, **damage, "records_read": count})
            elif kind == "oversized":
                summary.oversized[stream] = summary.oversized.get(stream, 0) + count
            elif kind == "sample":
                summary.sampled.setdefault(stream, drift.Seen()).add(name, count, detail or "")
            elif kind == FILE:
                summary.files.setdefault(stream, FileNotes()).add(name, count, detail or "")
            elif kind == "prefix":
                summary.prefixes.setdefault(stream, Counter())[name] += count
            elif kind == SET_ASIDE:
                summary.set_aside.setdefault(stream, Counter())[name] += count
            elif kind == JOB_SUMS:
                summary.job_sums.setdefault(stream, Counter())[name] += count
            elif kind == "reader":
                summary.readers[name] += count
            elif kind == HAS:
                summary.has.setdefault(stream, set()).add(name)
            elif kind == QUARANTINE_CUT:
                summary.not_kept[stream] += count
            else:
                binned.append((stream, name, count, detail))
        feeds = {name: FEEDS[name].bins for name in streams if name in FEEDS}
        summary.bins = reconciliation.from_rows(binned, streams, STREAMS_OF_JOBS, feeds)
        summary.damaged.sort(key=lambda damage: str(damage["file"]))
        return summary

    def drift(self) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
        """Return the drift for the manifest, and warnings. Raises DataError (65) for a
        stream of another schema.
        """
        return drift.check(
            self.bins,
            self.sampled,
            load_needed,
            lambda stream, name: name in self.has.get(stream, ()),
        )

    def unmatched_prefixes(self) -> dict[str, list[list[Any]]]:
        """Return for the manifest, by stream, the most frequent [prefix, records], and
        the rest as ``other``.
        """
        prefixes = {}
        for stream, counts in sorted(self.prefixes.items()):
            named = sorted(
                ((name, count) for name, count in counts.items() if name != OTHER), key=_by_count
            )
            other_count = counts[OTHER] + sum(count for _, count in named[PREFIXES_NAMED:])
            prefixes[stream] = [list(pair) for pair in named[:PREFIXES_NAMED]] + (
                [[OTHER, other_count]] if other_count else []
            )
        return prefixes

    def jobs_once(self) -> dict[str, dict[str, Any]]:
        """Return for the manifest, by stream, the jobs of the day and their seconds,
        each job once whatever it reads.
        """
        return {
            stream: {
                JOB_COUNT: sums[JOB_COUNT],
                **{name: sums[source] / 1000 for name, source in SECONDS.items()},
            }
            for stream, sums in self.job_sums.items()
        }

    def compiled(self) -> dict[str, Any]:
        """Return for the manifest whether compiled code read everything; if not, the
        readers by kind or reason.
        """
        if self.readers.keys() <= {"compiled"}:
            return {"compiled": True}
        return {"compiled": False, "readers": dict(sorted(self.readers.items()))}

    def warnings(self) -> list[str]:
        """Return warnings about records beyond a limit, accepted damage, and malformed
        records that are not kept.
        """
        damaged = [
            f"{damage['stream']}: {damage['file']} is damaged ({damage['reason']});"
            f" {damage['records_read']:,} records before that were read{_unverified(damage)}"
            for damage in sorted(self.damaged, key=lambda damage: str(damage["file"]))
        ]
        oversized = [
            f"{stream}: {pluralize(count, 'record')} beyond --quarantine-above in quarantine"
            for stream, count in sorted(self.oversized.items())
        ]
        return (
            oversized
            + damaged
            + [
                f"{stream}: {count:,} malformed records are counted and not in the quarantine, which keeps"
                f" {QUARANTINE_KEPT_BYTES >> 20} MB of each stream"
                for stream, count in sorted(self.not_kept.items())
            ]
        )


def _unverified(damage: Mapping[str, Any]) -> str:
    """Return the records of a damaged file that no checksum covers, for a warning."""
    count = damage.get("unverified_records", 0)
    return (
        f", {count:,} of them unverified: no checksum covers them, so that any may be altered"
        if count
        else ""
    )


def _by_count(pair: tuple[str, int]) -> tuple[int, str]:
    """Return a sort key: the largest count first, equal ones by name."""
    return -pair[1], pair[0]
