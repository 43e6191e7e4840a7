"""Reconciliation: the bin of every record of a stream, checked on every run
(``docs/counting.md``, rules 4 to 8).
"""

from __future__ import annotations

import re
import statistics
from collections import Counter
from collections.abc import Collection, Iterable, Mapping, Sequence
from functools import lru_cache
from typing import Any, Final

import msgspec

from cmsspark.base.access import JOB_BINS, UNMATCHED_BINS, UNMATCHED_JOB_BINS
from cmsspark.base.errors import DataError, UsageError
from cmsspark.base.text.terminal import pluralize
from cmsspark.sources.registry import STREAMS_BY_NAME

#: Malformed records: more than this share and more than this many fail a run.
MALFORMED_SHARE: Final = 0.001
MALFORMED_RECORDS: Final = 10
#: So many records of which none matched fail a run.
NONE_MATCHED_RECORDS: Final = 1000
#: A larger share of records out of the day is a warning.
OUT_OF_DAY_SHARE: Final = 0.05

#: Unmatched beyond so many times the trailing median is a warning, once so many days are typical.
UNMATCHED_FACTOR: Final = 3
#: Less than this share of the trailing median's records is a warning.
FEW_RECORDS_SHARE: Final = 0.5
TRAILING_DAYS: Final = 14
TRAILING_DAYS_NEEDED: Final = 3

_SHARE = re.compile(r"([0-9]*\.?[0-9]+)(%?)", re.ASCII)


class StreamBins(msgspec.Struct):
    """Records of one stream by bin; ``out_of_day`` by the day that records name,
    ``generations`` by format.

    ``job_bins``: the bins that only a stream of jobs has, None for a stream of
    accesses. Jobs write nothing. ``own_bins``: the bins that only this stream of
    accesses has. ``content_bytes``: of the text of all files, after
    unpacking; ``malformed_bytes``: of the malformed records.
    """

    read: int = 0
    matched: int = 0
    unmatched: dict[str, int] = msgspec.field(
        default_factory=lambda: dict.fromkeys(UNMATCHED_BINS, 0)
    )
    malformed: int = 0
    write_only: int = 0
    out_of_day: Counter[str] = msgspec.field(default_factory=Counter)
    generations: Counter[str] = msgspec.field(default_factory=Counter)
    job_bins: dict[str, int] | None = None
    own_bins: dict[str, int] = msgspec.field(default_factory=dict)
    content_bytes: int = 0
    malformed_bytes: int = 0

    @classmethod
    def of_jobs(cls) -> StreamBins:
        """Empty bins of a stream of jobs."""
        return cls(
            unmatched=dict.fromkeys(UNMATCHED_JOB_BINS, 0), job_bins=dict.fromkeys(JOB_BINS, 0)
        )

    @classmethod
    def of_feed(cls, names: Iterable[str]) -> StreamBins:
        """Return empty bins of a feed, whose records match nothing in DBS; ``names``:
        its own bins.
        """
        return cls(unmatched={}, job_bins=dict.fromkeys(names, 0))

    def add(self, name: str, count: int, detail: str | None) -> None:
        """Count ``count`` records in the bin ``name`` of a scan's result."""
        if name in self.unmatched:
            self.unmatched[name] += count
        elif self.job_bins is not None and name in self.job_bins:
            self.job_bins[name] += count
        elif name in self.own_bins:
            self.own_bins[name] += count
        elif name == "out_of_day":
            self.out_of_day[detail or ""] += count
        elif name.startswith("generation "):
            self.generations[name.removeprefix("generation ")] += count
        elif name in ("read", "matched", "malformed", "write_only"):
            setattr(self, name, getattr(self, name) + count)
        else:
            raise ValueError(f"there is no bin {name!r}")

    @property
    def malformed_equivalent(self) -> float:
        """How many well-formed records of average size the malformed bytes are; 0 where
        none is well-formed.
        """
        size = self.content_bytes - self.malformed_bytes
        return self.malformed_bytes * (self.read - self.malformed) / size if size > 0 else 0.0

    @property
    def matched_what(self) -> str:
        """What a record matches in DBS."""
        return "file" if self.job_bins is None else "dataset"

    @property
    def binned(self) -> int:
        """Return the number of records in all bins; every record is in one, so this
        must be ``read``.
        """
        out = self.out_of_day.total()
        of_jobs = sum((self.job_bins or self.own_bins).values())
        return (
            self.matched
            + sum(self.unmatched.values())
            + self.malformed
            + out
            + self.write_only
            + of_jobs
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the bins as the manifest has them, also those of 0."""
        return {
            "read": self.read,
            "matched": self.matched,
            "unmatched": dict(self.unmatched),
            "malformed": self.malformed,
            "out_of_day": self.out_of_day.total(),
            **(
                {**self.own_bins, "write_only": self.write_only}
                if self.job_bins is None
                else self.job_bins
            ),
        }


class Tolerance(msgspec.Struct, frozen=True):
    """How much may be malformed: ``share`` of the records, or ``records`` of them,
    whichever is set.

    The same holds for bytes, as one line may hold what should be many: of ``records``
    those of the average record.
    """

    share: float | None = MALFORMED_SHARE
    records: int = MALFORMED_RECORDS

    def exceeded(self, bins: StreamBins) -> bool:
        """Return whether the run must fail (rule 8)."""
        is_few = max(bins.malformed, bins.malformed_equivalent) <= self.records
        if self.share is None or is_few:
            return not is_few
        by_lines = bins.malformed > self.records and bins.malformed > self.share * bins.read
        by_bytes = (
            bins.malformed_equivalent > self.records
            and bins.malformed_bytes > self.share * bins.content_bytes
        )
        return by_lines or by_bytes

    def __str__(self) -> str:
        return (
            pluralize(self.records, "record")
            if self.share is None
            else f"{100 * self.share:.4g} %"
        )


def parse_tolerances(text: str | None, streams: Iterable[str]) -> dict[str, Tolerance]:
    """``--max-malformed`` for each stream: a share (``0.01``, ``1%``), a count above 1,
    or ``aaa=1%,eos=0.5``.

    Raises UsageError (2).
    """
    streams = list(streams)
    tolerances = dict.fromkeys(streams, Tolerance())
    for part in (text or "").split(","):
        if not part.strip():
            continue
        name, equals, value = part.strip().rpartition("=")
        if equals and name not in streams:
            raise UsageError(
                f"--max-malformed names {name!r}, which this run does not read",
                found=f"streams of this run: {', '.join(streams)}",
            )
        match = _SHARE.fullmatch(value)
        if match is None or (match[2] and float(match[1]) > 100):
            raise UsageError(
                f"--max-malformed takes a share, not {value!r}",
                next_step="write 0.01, 1%, a number of records above 1, or a list such as aaa=1%,eos=0.5%",
            )
        number = float(match[1]) / (100 if match[2] else 1)
        tolerance = Tolerance(None, int(number)) if number > 1 else Tolerance(number)
        tolerances.update(dict.fromkeys([name] if equals else streams, tolerance))
    return tolerances


def from_rows(
    rows: Iterable[tuple[str, str, int, str | None]],
    streams: Iterable[str],
    of_jobs: Collection[str] = (),
    feeds: Mapping[str, Sequence[str]] | None = None,
) -> dict[str, StreamBins]:
    """Sum (stream, bin, count, detail) rows of a scan by stream; ``matched`` counts the
    accesses in the tables, so that the sum of bins also proves that no join lost or
    multiplied counts. ``of_jobs``: streams of jobs; ``feeds``: the bins of feeds.
    """
    of_feeds = feeds or {}
    bins = {
        stream: StreamBins.of_feed(of_feeds[stream])
        if stream in of_feeds
        else StreamBins.of_jobs()
        if stream in of_jobs
        else StreamBins(own_bins=dict.fromkeys(STREAMS_BY_NAME[stream].bins, 0))
        for stream in streams
    }
    for stream, name, count, detail in rows:
        bins[stream].add(name, count, detail)
    return bins


def check(
    bins: Mapping[str, StreamBins],
    tolerances: Mapping[str, Tolerance],
    examples: Mapping[str, Sequence[str]],
    dump: str | None = None,
    prefixes: Mapping[str, Sequence[Sequence[Any]]] | None = None,
    quarantine: str | None = None,
) -> list[str]:
    """Warnings about the day. Raises DataError (65) beyond the tolerances; a wrong sum
    is a bug of ours (70).

    ``dump`` names the DBS dump, ``prefixes`` by stream the beginnings of names that it
    does not contain; ``quarantine`` is the file of all malformed records, ``examples``
    has a few by stream.
    """
    warnings = []
    for stream, counts in bins.items():
        if counts.binned != counts.read:
            raise RuntimeError(
                f"{stream}: {counts.read} records were read and {counts.binned} are in bins: {counts.as_dict()}"
            )
        if tolerances[stream].exceeded(counts):
            raise DataError(
                f"{stream}: {counts.malformed:,} of {counts.read:,} records are malformed"
                f" ({counts.malformed / counts.read:.2%}{_bytes_share(counts)}), {tolerances[stream]} are tolerated",
                where=quarantine,
                found="; ".join(examples.get(stream, ())[:5]) or None,
                next_step="see the records in the quarantine; --max-malformed tolerates more",
            )
        looked_up = counts.read - sum(counts.own_bins.values())
        if counts.unmatched and looked_up >= NONE_MATCHED_RECORDS and not counts.matched:
            raise _none_matched(stream, counts, dump, (prefixes or {}).get(stream, ()))
        out = counts.out_of_day.total()
        if out > OUT_OF_DAY_SHARE * counts.read:
            warnings.append(
                f"{stream}: {out:,} of {counts.read:,} records are of other days ({_other_days(counts)})"
            )
    return warnings


def _bytes_share(bins: StreamBins) -> str:
    if not bins.content_bytes:
        return ""
    return f", {bins.malformed_bytes / bins.content_bytes:.2%} of {bins.content_bytes:,} bytes"


def _none_matched(
    stream: str, counts: StreamBins, dump: str | None, prefixes: Sequence[Sequence[Any]]
) -> DataError:
    """Return the error where no record matched. The dump is to blame only for records
    that were looked up in it.
    """
    observed = _unmatched(counts, prefixes)
    records = pluralize(counts.read, "record")
    if any(
        count for name, count in counts.unmatched.items() if name not in ("no_lfn", "no_input")
    ):
        return DataError(
            f"{stream}: none of {records} matched a {counts.matched_what} in DBS",
            where=dump,
            found=observed,
            next_step="check that the DBS dump is the right one and complete; --refresh-dumps chooses it again",
        )
    if counts.out_of_day.total() + counts.malformed == counts.read:
        return DataError(
            f"{stream}: none of {records} is of the day that is counted",
            found=f"{observed}; days of the records: {_other_days(counts)}",
            next_step="check that the day's folder has the log of this day; --date counts another one",
        )
    return DataError(
        f"{stream}: none of {records} names a {counts.matched_what} that DBS could have",
        found=observed,
        next_step="check that it is the right log, and that its fields are those of schemas/inputs",
    )


def _other_days(bins: StreamBins) -> str:
    return ", ".join(f"{day}: {count:,}" for day, count in bins.out_of_day.most_common(3))


def _unmatched(bins: StreamBins, prefixes: Sequence[Sequence[Any]]) -> str:
    """Return the bins that are not empty, and how names begin, for an error."""
    binned = bins.as_dict()
    counts = {
        **binned.pop("unmatched"),
        **{name: binned[name] for name in binned if name not in ("read", "matched")},
    }
    text = ", ".join(f"{count:,} {name}" for name, count in counts.items() if count)
    if prefixes:
        text += "; names begin with " + ", ".join(
            f"{prefix} ({count:,})" for prefix, count in prefixes[:5]
        )
    return text


class Usual(msgspec.Struct, frozen=True):
    """The usual values of a stream: medians of its records a day and of the share that
    is unmatched, over ``days``.
    """

    days: int
    read: float
    unmatched_share: float


def unmatched_share(stream: str, bins: Mapping[str, Any]) -> float:
    """Return the share of a day's records that is unmatched, of those without the bins
    that only this stream of accesses has: a deletion is no access, and a repeated row
    was looked up once.
    """
    names = STREAMS_BY_NAME[stream].bins if stream in STREAMS_BY_NAME else ()
    own_count = sum(bins.get(name, 0) for name in names)
    return float(sum(bins["unmatched"].values()) / max(1, bins["read"] - own_count))


def usual(stream: str, before: Sequence[Mapping[str, Any]]) -> Usual | None:
    """Return the usual values of a stream in earlier manifests; None with fewer than
    three days with records.
    """
    earlier = [day[stream] for day in before if day.get(stream, {}).get("read")]
    if len(earlier) < TRAILING_DAYS_NEEDED:
        return None
    shares = [unmatched_share(stream, day) for day in earlier]
    return Usual(
        len(earlier), statistics.median(day["read"] for day in earlier), statistics.median(shares)
    )


def unusual(
    bins: Mapping[str, StreamBins],
    before: Sequence[Mapping[str, Any]],
    missing: Collection[str] = (),
) -> list[str]:
    """Warnings about streams of which far more is unmatched (rule 8), or far less is
    there, than on the days before.

    A file that was cut where it stays valid (at a newline, a gzip member's or an Avro
    block's end) shows nowhere else. Raises DataError (65) for a stream without any
    record where the days before had some; those of ``missing`` were left out on
    purpose.
    """
    warnings = []
    for stream, counts in bins.items():
        typical = usual(stream, before)
        if typical is None or stream in missing:
            continue
        if not counts.read:
            raise DataError(
                f"{stream} has no record, the median of the days before is {typical.read:,.0f}",
                next_step="check that its log was written; --streams counts the day without it",
            )
        if counts.read < FEW_RECORDS_SHARE * typical.read:
            warnings.append(
                f"{stream}: {pluralize(counts.read, 'record')}, the median of the days before is {typical.read:,.0f}"
            )
        now = unmatched_share(stream, counts.as_dict())
        if now > UNMATCHED_FACTOR * typical.unmatched_share:
            warnings.append(
                f"{stream}: {now:.1%} of the records are unmatched, the median of the days before is"
                f" {typical.unmatched_share:.1%}"
            )
    return warnings


# Where files lie that are not in DBS, for people: beginnings of their names that name
# nobody.

#: Prefixes that a task keeps of a stream; what comes after these is counted as :data:`OTHER`.
KEPT: Final = 200
OTHER: Final = "other"

_PRODUCED: Final = frozenset(
    (
        "data",
        "mc",
        "hidata",
        "himc",
        "express",
        "hiexpress",
        "relval",
        "generator",
        "lhe",
        "backfill",
        "unmerged",
    )
)
_AREAS: Final = _PRODUCED | frozenset(
    (
        "user",
        "group",
        "temp",
        "results",
        "caf",
        "test",
        "logs",
        "local",
        "phedex_monitoring",
        "accounting",
    )
)
_HEAD: Final = re.compile(r"(?:[^/]*/){0,4}")
_ERA: Final = re.compile(r"(?=[^0-9]*[0-9])[A-Z][A-Za-z0-9_-]{2,79}", re.ASCII)


def heads(lfns: Iterable[str]) -> Counter[str]:
    """Return how many of ``lfns`` begin with which directories: up to three, with the
    slash after each.
    """
    match = _HEAD.match
    return Counter(match(lfn)[0] for lfn in lfns)  # type: ignore[index]  # it matches any text


def all_shown(lfns: Iterable[str]) -> list[str]:
    """Return of each of ``lfns`` the beginning that people may see. Names with one
    beginning have one bin.
    """
    match = _HEAD.match
    return [shown(match(lfn)[0]) for lfn in lfns]  # type: ignore[index]  # it matches any text


@lru_cache(maxsize=10_000)
def shown(head: str) -> str:
    """``head`` as people may see it: ``/store/user/*``, ``/store/mc/Run2018A/*``,
    ``/store/*``; ``*`` for any other.

    What it returns is shown as it is.
    """
    directories = head.split("/")[:-1]
    if directories[:2] != ["", "store"]:
        return "*"
    area = directories[2] if len(directories) > 2 else ""
    if area not in _AREAS:
        return "/store/*"
    era = directories[3] if len(directories) > 3 else ""
    if area in _PRODUCED and _ERA.fullmatch(era):
        return f"/store/{area}/{era}/*"
    return f"/store/{area}/*"


def add(to: Counter[str], counts: Mapping[str, int]) -> None:
    """Count ``counts`` (by head) in ``to`` (by what is shown), which stays small."""
    for head, count in counts.items():
        name = shown(head)
        to[name if name in to or len(to) < KEPT else OTHER] += count
