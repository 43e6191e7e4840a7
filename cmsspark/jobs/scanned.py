"""What a scan tells beside its accesses: where each record went, accepted damage, and samples of the logs' fields."""

from __future__ import annotations

import json
import os
from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any, Final, Protocol
from urllib.parse import unquote

from cmsspark.errors import UsageError
from cmsspark.runs import drift, reconciliation
from cmsspark.runs.reconciliation import StreamBins
from cmsspark.sinks.store import Run
from cmsspark.sources.folders import DayInput
from cmsspark.sources.sample import needed_of
from cmsspark.storage import is_local, local_path
from cmsspark.transforms.prefixes import OTHER

#: A row that is neither access nor quarantined record: kind, stream, name, count, detail. Accesses are ``matched``.
Told = tuple[str, str, str, int, Any]
#: Prefixes of unmatched files that a manifest names of each stream.
PREFIXES_TOLD: Final = 20


class Counted(Protocol):
    """A day that an engine has counted: what stands in its rows beside the accesses, and its tables."""

    engine: str

    def told(self) -> Iterable[Told]: ...
    def known(self) -> dict[str, set[str]]: ...
    def quarantined(self) -> Iterator[tuple[str, str]]: ...
    def write(self, run: Run, table: str, fmt: str) -> int: ...
    def close(self) -> None: ...


@dataclass
class Scanned:
    """What a scan's rows tell. ``damaged``: entries of the manifest, one for each such file."""

    counted: Counted
    bins: dict[str, StreamBins]
    damaged: list[dict[str, Any]] = field(default_factory=list)
    #: Records of each stream that were beyond ``--quarantine-above``.
    outsized: dict[str, int] = field(default_factory=dict)
    sampled: dict[str, drift.Seen] = field(default_factory=dict)
    #: Records whose file is not in DBS, by the beginning of its name; empty where the join is Spark's.
    prefixes: dict[str, Counter[str]] = field(default_factory=dict)
    #: How many readers were at work, each a task's or a process's: by compiled code, or why not.
    readers: Counter[str] = field(default_factory=Counter)

    @classmethod
    def of(cls, counted: Counted, streams: Sequence[str], accepted: Iterable[str] = ()) -> Scanned:
        """Take all rows that are no accesses and no quarantined records, and the number of accesses."""
        binned: list[tuple[str, str, int, str | None]] = []
        found = cls(counted, {})
        for kind, stream, what, count, detail in counted.told():
            if kind == "damaged":
                told = json.loads(detail)
                told["file"] = next((path for path in accepted if path in _spellings(told["file"])), told["file"])
                found.damaged.append({"stream": stream, **told, "records_read": count})
            elif kind == "outsized":
                found.outsized[stream] = found.outsized.get(stream, 0) + count
            elif kind == "sample":
                found.sampled.setdefault(stream, drift.Seen()).add(what, count, detail)
            elif kind == "prefix":
                found.prefixes.setdefault(stream, Counter())[what] += count
            elif kind == "reader":
                found.readers[what] += count
            else:
                binned.append((stream, what, count, detail))
        found.bins = reconciliation.from_rows(binned, streams)
        found.damaged.sort(key=lambda one: str(one["file"]))
        return found

    def drift(self) -> tuple[dict[str, list[dict[str, Any]]], list[str]]:
        """Drift for the manifest, and warnings. Raises DataError (65) for a stream of another schema."""
        return drift.check(self.bins, self.sampled, needed_of, lambda stream, what: what in self._known[stream])

    def unmatched_prefixes(self) -> dict[str, list[list[Any]]]:
        """For the manifest: by stream, the most frequent [prefix, records], and the rest of them as ``other``."""
        told = {}
        for stream, counts in sorted(self.prefixes.items()):
            named = sorted(((name, count) for name, count in counts.items() if name != OTHER), key=_most_first)
            rest = counts[OTHER] + sum(count for _, count in named[PREFIXES_TOLD:])
            told[stream] = [list(one) for one in named[:PREFIXES_TOLD]] + ([[OTHER, rest]] if rest else [])
        return told

    def compiled(self) -> dict[str, Any]:
        """For the manifest: whether all was read by compiled code; if not, how many readers did, or why not."""
        if self.readers.keys() <= {"compiled"}:
            return {"compiled": True}
        return {"compiled": False, "readers": dict(sorted(self.readers.items()))}

    def warnings(self) -> list[str]:
        """What is said of accepted damage, and of records that were left out for their size."""
        outsized = [
            f"{stream}: {count:,} records beyond --quarantine-above are in quarantine"
            for stream, count in sorted(self.outsized.items())
        ]
        return outsized + [
            f"{one['stream']}: {one['file']} is damaged ({one['reason']}); {one['records_read']:,} records before that"
            f" were read{_unverified(one)}"
            for one in self.damaged
        ]

    @cached_property
    def _known(self) -> dict[str, set[str]]:
        """What any counted access has, by stream. Asked only where a sample lacks a field altogether."""
        known = self.counted.known()
        return {stream: known.get(stream, set()) for stream in self.bins}


def _unverified(damage: Mapping[str, Any]) -> str:
    """What no checksum covers of a damaged file, for a warning."""
    count = damage.get("unverified_records", 0)
    return f", {count:,} of them unverified: no checksum covers them, so that any may be altered" if count else ""


def _most_first(one: tuple[str, int]) -> tuple[int, str]:
    return -one[1], one[0]


def accepted_files(named: Sequence[str], inputs: Sequence[DayInput]) -> frozenset[str]:
    """The listed files that ``--accept-damaged`` names, by path or by their name alone.

    Raises UsageError (2) for one that is not in the day's list, or stands for several.
    """
    listed = [file.path for one in inputs for file in one.files]
    found = set()
    for given in named:
        wanted = _spellings(given)
        fits = [path for path in listed if path in wanted or ("/" not in given and path.endswith(f"/{given}"))]
        if len(fits) != 1:
            raise UsageError(
                f"--accept-damaged names {given!r}, a file of the day's logs is wanted",
                where=", ".join(one.folder for one in inputs),
                found=f"{len(fits)} files of that name: {', '.join(fits[:3])}" if fits else "no file of that name",
                next_step="give the path that the error about its damage shows",
            )
        found.add(fits[0])
    return frozenset(found)


def _spellings(path: str) -> set[str]:
    """A path as it may stand in a list of files: Spark names files by URIs with ``%20`` for a space."""
    return {path, os.path.abspath(local_path(path))} if is_local(path) else {path, unquote(path)}
