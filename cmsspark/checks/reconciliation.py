"""Reconciliation: where every record of a stream went, checked on every run (``docs/counting.md``, rules 4 to 8)."""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

from cmsspark.access import UNMATCHED_BINS
from cmsspark.errors import DataError, UsageError

#: Malformed records: more than this share and more than this many fail a run.
MALFORMED_SHARE: Final = 0.001
MALFORMED_RECORDS: Final = 10
#: So many records of which none matched fail a run.
NONE_MATCHED_RECORDS: Final = 1000
#: A larger share of records out of the day is a warning.
OUT_OF_DAY_SHARE: Final = 0.05

#: Unmatched beyond so many times the trailing median is a warning, once so many days are known.
UNMATCHED_FACTOR: Final = 3
#: Less than this share of the trailing median's records is a warning.
FEW_RECORDS_SHARE: Final = 0.5
TRAILING_DAYS: Final = 14
TRAILING_DAYS_NEEDED: Final = 3

_SHARE = re.compile(r"([0-9]*\.?[0-9]+)(%?)", re.ASCII)


@dataclass
class StreamBins:
    """Records of one stream by bin; ``out_of_day`` by the day that records name, ``generations`` by format."""

    read: int = 0
    matched: int = 0
    unmatched: dict[str, int] = field(default_factory=lambda: dict.fromkeys(UNMATCHED_BINS, 0))
    malformed: int = 0
    write_only: int = 0
    out_of_day: Counter[str] = field(default_factory=Counter)
    generations: Counter[str] = field(default_factory=Counter)

    def add(self, name: str, count: int, detail: str | None) -> None:
        """Count ``count`` records in the bin ``name`` of a scan's result."""
        if name in self.unmatched:
            self.unmatched[name] += count
        elif name == "out_of_day":
            self.out_of_day[detail or ""] += count
        elif name.startswith("generation "):
            self.generations[name.removeprefix("generation ")] += count
        elif name in ("read", "matched", "malformed", "write_only"):
            setattr(self, name, getattr(self, name) + count)
        else:
            raise ValueError(f"a bin of no known name: {name}")

    @property
    def binned(self) -> int:
        """Records that some bin holds; every record is in one, so this must be ``read``."""
        out = self.out_of_day.total()
        return self.matched + sum(self.unmatched.values()) + self.malformed + out + self.write_only

    def as_dict(self) -> dict[str, Any]:
        """As it stands in the manifest, zeros written."""
        return {
            "read": self.read,
            "matched": self.matched,
            "unmatched": dict(self.unmatched),
            "malformed": self.malformed,
            "out_of_day": self.out_of_day.total(),
            "write_only": self.write_only,
        }


@dataclass(frozen=True)
class Tolerance:
    """How much may be malformed: ``share`` of the records, or ``records`` of them, whichever is set."""

    share: float | None = MALFORMED_SHARE
    records: int = MALFORMED_RECORDS

    def exceeded(self, bins: StreamBins) -> bool:
        """Whether the run must fail (rule 8)."""
        if self.share is None:
            return bins.malformed > self.records
        return bins.malformed > self.records and bins.malformed > self.share * bins.read

    def __str__(self) -> str:
        return f"{self.records} records" if self.share is None else f"{100 * self.share:.4g} %"


def parse_tolerances(text: str | None, streams: Iterable[str]) -> dict[str, Tolerance]:
    """``--max-malformed`` for each stream: a share (``0.01``, ``1%``), a count above 1, or ``aaa=1%,eos=0.5``.

    Raises UsageError (2).
    """
    streams = list(streams)
    found = dict.fromkeys(streams, Tolerance())
    for part in (text or "").split(","):
        if not part.strip():
            continue
        name, equals, value = part.strip().rpartition("=")
        if equals and name not in streams:
            raise UsageError(f"--max-malformed names {name!r}", found=f"streams of this run: {', '.join(streams)}")
        match = _SHARE.fullmatch(value)
        if match is None or (match[2] and float(match[1]) > 100):
            raise UsageError(
                f"--max-malformed takes a share, not {value!r}",
                next_step="write 0.01, 1%, a number of records above 1, or a list such as aaa=1%,eos=0.5%",
            )
        number = float(match[1]) / (100 if match[2] else 1)
        tolerance = Tolerance(None, int(number)) if number > 1 else Tolerance(number)
        found.update(dict.fromkeys([name] if equals else streams, tolerance))
    return found


def from_rows(rows: Iterable[tuple[str, str, int, str | None]], streams: Iterable[str]) -> dict[str, StreamBins]:
    """Bins by stream from (stream, bin, count, detail) rows of a scan; ``matched`` counts the accesses in the tables,
    so that the sum of bins also proves that no join lost or multiplied one.
    """
    found = {stream: StreamBins() for stream in streams}
    for stream, name, count, detail in rows:
        found[stream].add(name, count, detail)
    return found


def check(
    bins: Mapping[str, StreamBins],
    tolerances: Mapping[str, Tolerance],
    examples: Mapping[str, Sequence[str]],
    dump: str | None = None,
    prefixes: Mapping[str, Sequence[Sequence[Any]]] | None = None,
    quarantine: str | None = None,
) -> list[str]:
    """Warnings about the day. Raises DataError (65) beyond the tolerances; a sum that is not right is a bug of ours
    (70).

    ``dump`` says which one of DBS was asked, ``prefixes`` by stream how names of files that it does not know begin;
    ``quarantine`` is the file of all malformed records,
    ``examples`` tells of a few by stream.
    """
    warnings = []
    for stream, one in bins.items():
        if one.binned != one.read:
            raise RuntimeError(f"{stream}: {one.read} records were read and {one.binned} are in bins: {one.as_dict()}")
        if tolerances[stream].exceeded(one):
            raise DataError(
                f"{stream}: {one.malformed:,} of {one.read:,} records are malformed ({one.malformed / one.read:.2%}),"
                f" tolerated are {tolerances[stream]}",
                where=quarantine,
                found="; ".join(examples.get(stream, ())[:5]) or None,
                next_step="see what was kept of them; --max-malformed lets more pass",
            )
        if one.read >= NONE_MATCHED_RECORDS and not one.matched:
            raise DataError(
                f"{stream}: none of {one.read:,} records matched a file in DBS",
                where=dump,
                found=_unmatched(one, (prefixes or {}).get(stream, ())),
                next_step="is the DBS dump the right one, and whole? --refresh-dumps chooses it anew",
            )
        out = one.out_of_day.total()
        if out > OUT_OF_DAY_SHARE * one.read:
            named = ", ".join(f"{day}: {count}" for day, count in one.out_of_day.most_common(3))
            warnings.append(f"{stream}: {out:,} of {one.read:,} records are of other days ({named})")
    return warnings


def _unmatched(bins: StreamBins, prefixes: Sequence[Sequence[Any]]) -> str:
    """The bins that are not empty, and how names begin, for an error."""
    told = bins.as_dict()
    counts = {**told.pop("unmatched"), **{name: told[name] for name in ("malformed", "out_of_day", "write_only")}}
    found = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    if prefixes:
        found += "; names begin with " + ", ".join(f"{prefix} ({count:,})" for prefix, count in prefixes[:5])
    return found


@dataclass(frozen=True)
class Usual:
    """What is usual of a stream: medians of its records a day and of the share that is unmatched, over ``days``."""

    days: int
    read: float
    unmatched_share: float


def usual(stream: str, before: Sequence[Mapping[str, Any]]) -> Usual | None:
    """What reconciliations of earlier manifests say of a stream; fewer than three days with records say nothing."""
    there = [day[stream] for day in before if day.get(stream, {}).get("read")]
    if len(there) < TRAILING_DAYS_NEEDED:
        return None
    shares = [sum(day["unmatched"].values()) / day["read"] for day in there]
    return Usual(len(there), statistics.median(day["read"] for day in there), statistics.median(shares))


def unusual(
    bins: Mapping[str, StreamBins], before: Sequence[Mapping[str, Any]], missing: Collection[str] = ()
) -> list[str]:
    """Warnings about streams of which far more is unmatched (rule 8), or far less is there, than on the days before.

    A file that was cut where it stays valid (at a newline, a gzip member's or an Avro block's end) shows nowhere else.
    Raises DataError (65) for a stream without any record where the days before had some; those of ``missing`` were
    left out on purpose.
    """
    warnings = []
    for stream, one in bins.items():
        known = usual(stream, before)
        if known is None or stream in missing:
            continue
        if not one.read:
            raise DataError(
                f"{stream}: not one record, the median of the days before is {known.read:,.0f}",
                next_step="see whether its log was written; --streams counts the day without it",
            )
        if one.read < FEW_RECORDS_SHARE * known.read:
            warnings.append(f"{stream}: {one.read:,} records, the median of the days before is {known.read:,.0f}")
        now = sum(one.unmatched.values()) / one.read
        if now > UNMATCHED_FACTOR * known.unmatched_share:
            warnings.append(
                f"{stream}: {now:.1%} of the records are unmatched, the median of the days before is"
                f" {known.unmatched_share:.1%}"
            )
    return warnings
