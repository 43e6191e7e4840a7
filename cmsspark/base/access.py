"""The common records of the log streams, an access or an ended job, and the bins of all
other records.

Decoders (``cmsspark.sources``) produce an :class:`AccessBatch` and the kernel consumes
it. This module does not depend on files, formats or Spark.
"""

from __future__ import annotations

from collections import Counter
from typing import TYPE_CHECKING, Any, Final, NamedTuple, Protocol

import msgspec

if TYPE_CHECKING:
    import numpy as np
    import numpy.typing as npt

#: The parts of ``unmatched`` in the reconciliation of a stream of accesses, and of a
#: stream of jobs.
UNMATCHED_BINS: Final = ("no_lfn", "user_file", "temporary", "not_in_dbs")
UNMATCHED_JOB_BINS: Final = ("no_input", "user_file", "not_in_dbs")
#: The bins that only a stream of jobs has, in the order in which they are tried (rule 30).
JOB_BINS: Final = ("not_final", "other_type", "never_ran", "repeated")

#: Bytes read of an access that has none of its own (rule 11): null in sums.
NO_BYTES: Final = -1
#: The hash of no job.
NO_JOB: Final = 0


class Remote:
    """Whether an access is remote, as small integers that can be part of a grouping key."""

    NO: Final = 0
    YES: Final = 1
    #: Null: the stream or the record does not contain it.
    UNKNOWN: Final = 2
    #: The catalogue decides: remote unless the file's block has a disk replica at the
    #: access's site.
    BY_REPLICA: Final = 3


class Group(NamedTuple):
    """The attributes by which one task groups accesses, after the rules for sites, users and apps."""

    site: str
    app: str
    #: The person's name as logged (never leaves the task; outside it there are
    #: pseudonyms only), or None.
    user: str | None
    #: One of :class:`Remote`.
    remote: int
    #: The site of the reader where the record names it as ``site`` is named (rule 63), or None.
    reader: str | None = None


#: Bytes of a malformed record that are kept.
RAW_LIMIT: Final = 100_000
#: The encoding of ``raw`` as text: each byte becomes the character with that number.
RAW_ENCODING: Final = "latin-1"


class Quarantined(NamedTuple):
    """A malformed record: its position, the reason, and its first ``RAW_LIMIT`` raw bytes.

    A line of text is kept as it was read, without its newline; of an Avro record,
    Python's ``repr`` of it in UTF-8.
    """

    file: str
    #: 1-based line number for text, 0-based record number for Avro.
    position: int
    reason: str
    raw: bytes
    #: Bytes of the whole record; None where ``raw`` is all of it.
    whole_size: int | None = None

    @classmethod
    def cut(cls, file: str, position: int, reason: str, start: bytes, size: int) -> Quarantined:
        """Return a record of ``size`` bytes; ``start`` has its first ``RAW_LIMIT``
        bytes or more, or all of them.
        """
        raw = start[:RAW_LIMIT]
        return cls(file, position, reason, raw, size if size > len(raw) else None)

    def as_dict(self) -> dict[str, Any]:
        """Return the row of the quarantine file; ``raw.encode("latin-1")`` gives the bytes again."""
        size = len(self.raw) if self.whole_size is None else self.whole_size
        return {
            "file": self.file,
            "position": self.position,
            "reason": self.reason,
            "raw": self.raw.decode(RAW_ENCODING),
            "raw_encoding": RAW_ENCODING,
            "record_bytes": size,
            "is_cut": size > len(self.raw),
        }


class HtcondorJob(NamedTuple):
    """A record of a job that ended, after the rules for sites, users and apps (rules 29 to 33).

    Several records may be of one job: :mod:`cmsspark.counting.htcondor_jobs` decides
    which of them counts.
    """

    job_id: str
    #: Whether its status is Completed; otherwise it is Removed.
    is_completed: bool
    #: ``RecordTime``, else the time of delivery, else 0; UTC milliseconds.
    time_ms: int
    wall_ms: int
    cpu_ms: int | None
    read_bytes: int | None
    exit_code: int | None
    #: ``CRAB_DataBlock`` and ``DESIRED_CMSDataset`` as logged.
    data_block: str | None
    desired_dataset: str | None
    site: str
    #: The person's name as logged, or None.
    user: str | None
    app: str
    workflow: str | None
    #: Whether its type is analysis; otherwise it is production.
    is_analysis: bool


#: Days since 1970 of 9999-12-31, the last date.
_LAST_DAY: Final = 2_932_897


class Packed(Protocol):
    """Accesses in columns of 64-bit integers. A stream has either sizes or times."""

    @property
    def count(self) -> int: ...

    @property
    def hashes(self) -> npt.NDArray[np.uint64]:
        """The names' hashes, made by the catalogue's hash function."""

    @property
    def groups(self) -> npt.NDArray[np.int64]: ...

    @property
    def read_bytes(self) -> npt.NDArray[np.int64] | None:
        """Bytes, ``NO_BYTES`` for null; None where there are times."""

    @property
    def times(self) -> tuple[npt.NDArray[np.int64], ...] | None:
        """CPU ms, whether it is valid (1 or 0), wall ms, whether it is valid; a null time is 0."""

    @property
    def jobs(self) -> tuple[npt.NDArray[np.int64], npt.NDArray[np.int64]]:
        """The hash of each access's job, ``NO_JOB`` where it names none, and the number
        of its record in the file; where there are times.
        """

    def name(self, row: int) -> bytes: ...

    def add_heads(self, rows: npt.NDArray[np.int64], counts: dict[bytes, int]) -> None:
        """Add to ``counts`` the names in ``rows`` by their leading directories: up to
        three, each with its slash.
        """


class AccessBatch(msgspec.Struct):
    """Accesses of some lines of one file, in columns of equal length, and counts of the
    other records.

    ``lfns``: normalised names, never empty. ``groups``: index into the decoder's
    ``groups``. ``read_bytes``: bytes, ``NO_BYTES`` for null, or None where the stream
    has none (CRAB).
    ``cpu_ms`` and ``wall_ms``: whole milliseconds or None for each record, or None
    where the stream has none. ``packed``: more accesses, in no order relative to these.
    """

    lfns: list[str] = msgspec.field(default_factory=list)
    groups: list[int] = msgspec.field(default_factory=list)
    read_bytes: list[int] | None = None
    cpu_ms: list[int | None] | None = None
    wall_ms: list[int | None] | None = None
    #: Where there are times: the hash of each access's job, and the number of its record
    #: in the file.
    job_hashes: list[int] | None = None
    positions: list[int] | None = None
    packed: Packed | None = None
    #: The time of each access, UTC milliseconds, or None; only of decoders that keep
    #: times (``JsonDecoder.keep_times``).
    times_ms: list[int | None] | None = None
    read: int = 0
    #: Bytes of the text that the batch was read from, after unpacking; of Avro those of the file.
    content_bytes: int = 0
    #: Records of files that were removed, not read (EOS).
    deletion: int = 0
    write_only: int = 0
    #: Records without a name of a file, by their group.
    unnamed: Counter[int] = msgspec.field(default_factory=Counter)
    #: Accesses whose bytes are in another record of their process (CMSSW), and these bytes.
    set_aside: int = 0
    set_aside_bytes: int = 0
    #: Jobs that ended (:class:`HtcondorJob`), or the records of a feed; a stream has
    #: either accesses or these.
    jobs: list[Any] = msgspec.field(default_factory=list)
    #: The 12-minute windows of the day with a record, as bits (rule 54).
    windows: int = 0
    #: Records of jobs by bin: those of ``JOB_BINS`` that a record alone decides.
    job_bins: dict[str, int] = msgspec.field(default_factory=dict)
    #: Days since 1970 of the records of other days, with their counts.
    out_of_day: dict[int, int] = msgspec.field(default_factory=dict)
    malformed: list[Quarantined] = msgspec.field(default_factory=list)
    #: Records by format version (EOS: G1, G2, G3), for the report.
    generations: dict[str, int] = msgspec.field(default_factory=dict)

    @property
    def no_lfn(self) -> int:
        """Records without a name of a file."""
        return self.unnamed.total()

    @property
    def malformed_bytes(self) -> int:
        """Bytes of the malformed records."""
        return sum(
            len(record.raw) if record.whole_size is None else record.whole_size
            for record in self.malformed
        )

    def count_job(self, name: str, count: int = 1) -> None:
        """Count records of jobs in the bin ``name``."""
        if count:
            self.job_bins[name] = self.job_bins.get(name, 0) + count

    def count_out_of_day(self, day: int) -> None:
        """Count a record of another day (days since 1970). Days after the last date
        share one count.
        """
        day = min(day, _LAST_DAY)
        self.out_of_day[day] = self.out_of_day.get(day, 0) + 1

    def unpack(self) -> AccessBatch:
        """Return this batch, with the packed accesses appended to the others as Python objects."""
        packed, self.packed = self.packed, None
        if packed is not None and packed.count:
            self.lfns += [packed.name(row).decode() for row in range(packed.count)]
            self.groups += packed.groups.tolist()
            if packed.read_bytes is not None:
                self.read_bytes = [*(self.read_bytes or ()), *packed.read_bytes.tolist()]
            if packed.times is not None:
                cpu, has_cpu, wall, has_wall = packed.times
                self.cpu_ms = [*(self.cpu_ms or ()), *_with_nulls(cpu, has_cpu)]
                self.wall_ms = [*(self.wall_ms or ()), *_with_nulls(wall, has_wall)]
                jobs, positions = packed.jobs
                self.job_hashes = [*(self.job_hashes or ()), *jobs.tolist()]
                self.positions = [*(self.positions or ()), *positions.tolist()]
        return self


def _with_nulls(values: npt.NDArray[np.int64], valid: npt.NDArray[np.int64]) -> list[int | None]:
    return [
        value if is_valid else None
        for value, is_valid in zip(values.tolist(), valid.tolist(), strict=True)
    ]
