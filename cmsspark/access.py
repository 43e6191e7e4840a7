"""The one shape that crosses the house: an access, and the bins that records fall into before they are one.

Decoders (``cmsspark.sources``) end in an :class:`AccessBatch`; transforms begin with one. Nothing here knows
files, formats or Spark.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final, NamedTuple

STREAMS: Final = ("aaa", "eos", "cmssw", "crab")

#: Bins that a decoder decides alone, in the order in which they are tried (``docs/counting.md``, rule 4).
DECODER_BINS: Final = ("malformed", "out_of_day", "write_only", "no_lfn")
#: Bins that need the catalogue.
CATALOGUE_BINS: Final = ("matched", "user_file", "temporary", "not_in_dbs")
#: The parts of ``unmatched`` in a reconciliation.
UNMATCHED_BINS: Final = ("no_lfn", "user_file", "temporary", "not_in_dbs")


class Remote:
    """How an access's remoteness is known: small integers, so that they fold as part of a key."""

    NO: Final = 0
    YES: Final = 1
    #: Null: the stream or the record cannot say.
    UNKNOWN: Final = 2
    #: By the catalogue: remote unless the file's block has a disk replica at the access's site.
    BY_REPLICA: Final = 3


class Group(NamedTuple):
    """What accesses of one task share, after the rules for sites, users and apps."""

    site: str
    app: str
    #: The person's name as logged (never leaves the task; outside it there are pseudonyms only), or None.
    user: str | None
    #: One of :class:`Remote`.
    remote: int


class Quarantined(NamedTuple):
    """A malformed record: where it stands and why, with its raw bytes (cut to ``RAW_LIMIT``)."""

    file: str
    #: 1-based line number for text, 0-based record number for Avro.
    position: int
    reason: str
    raw: bytes


RAW_LIMIT: Final = 100_000


@dataclass
class AccessBatch:
    """Accesses of one chunk of one file, in columns of equal length, and what was binned instead.

    ``lfns``: normalised names, never empty. ``groups``: index into the decoder's ``groups``. ``read_bytes``: bytes,
    or None where the stream has none (CRAB). ``cpu_ms`` and ``wall_ms``: whole milliseconds or None for each
    record, or None where the stream has none.
    """

    lfns: list[str] = field(default_factory=list)
    groups: list[int] = field(default_factory=list)
    read_bytes: list[int] | None = None
    cpu_ms: list[int | None] | None = None
    wall_ms: list[int | None] | None = None
    read: int = 0
    write_only: int = 0
    no_lfn: int = 0
    #: Days since 1970 that records out of the day name, with their counts.
    out_of_day: dict[int, int] = field(default_factory=dict)
    malformed: list[Quarantined] = field(default_factory=list)
    #: Records by generation of the format (EOS: G1, G2, G3), for the report.
    generations: dict[str, int] = field(default_factory=dict)

    def absorb(self, other: AccessBatch) -> None:
        """Append what ``other`` holds, which comes after this in the file."""
        self.lfns += other.lfns
        self.groups += other.groups
        self.read_bytes = _joined(self.read_bytes, other.read_bytes)
        self.cpu_ms = _joined(self.cpu_ms, other.cpu_ms)
        self.wall_ms = _joined(self.wall_ms, other.wall_ms)
        self.read += other.read
        self.write_only += other.write_only
        self.no_lfn += other.no_lfn
        self.malformed += other.malformed
        _add(self.out_of_day, other.out_of_day)
        _add(self.generations, other.generations)


def _add(counts: dict[Any, int], more: dict[Any, int]) -> None:
    for key, count in more.items():
        counts[key] = counts.get(key, 0) + count


def _joined(first: Any, second: Any) -> Any:
    if first is None or second is None:
        return second if first is None else first
    return first + second
