"""The summary of a scan beside its accesses: bins of records, accepted damage, and
samples of the logs' fields.
"""

from __future__ import annotations

import json
import os
import tempfile
from collections import Counter
from collections.abc import Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager, suppress
from functools import partial
from heapq import nlargest
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec
import numpy as np

from cmsspark.base import dates
from cmsspark.base.access import NO_BYTES, AccessBatch
from cmsspark.base.errors import CmssparkError, DataError
from cmsspark.base.private_folders import make_private
from cmsspark.base.text.terminal import pluralize
from cmsspark.counting import drift, reconciliation
from cmsspark.counting.catalogue import NOT_THERE, Catalogue
from cmsspark.counting.crab_rows import JOB_COUNT, JOB_SUMS
from cmsspark.counting.merge import (
    HAS,
    QUARANTINE_CUT,
    QUARANTINE_KEPT_BYTES,
    SECONDS,
    SideRow,
)
from cmsspark.counting.pre_aggregate import SET_ASIDE, UNMATCHED_SITE
from cmsspark.counting.reconciliation import MALFORMED_RECORDS, OTHER, StreamBins
from cmsspark.filesystems.storage import Files, is_local, local_path
from cmsspark.run.catalogue_snapshots import open_snapshots
from cmsspark.run.inputs import spellings
from cmsspark.run.request import DayRequest, Inputs
from cmsspark.sources.folders import DayInput
from cmsspark.sources.formats.lines import LEAVE_OUT
from cmsspark.sources.reader import (
    BYTES,
    FILE,
    REASON_PREFIX,
    Reader,
    largest,
    load_needed,
    select_values,
)
from cmsspark.sources.registry import FEEDS, STREAMS_OF_JOBS
from cmsspark.sources.rses import load_storage_sites

# The records of each log file of a day: what the manifest says of them, and files that
# no record can be read from.


class FileNotes(msgspec.Struct):
    """The notes of all tasks about the files of a stream, by the name of the file that a task had."""

    numbers: dict[str, Counter[str]] = msgspec.field(default_factory=dict)
    reasons: dict[str, str] = msgspec.field(default_factory=dict)

    def add(self, file: str, count: int, detail: str) -> None:
        """Add a note of :mod:`cmsspark.sources.reader`; ``file`` is JSON."""
        file = json.loads(file)
        if detail.startswith(REASON_PREFIX):
            self.reasons[file] = detail.removeprefix(REASON_PREFIX)
        else:
            self.numbers.setdefault(file, Counter())[detail] += count


class FileRecords(msgspec.Struct, frozen=True):
    """The records of one file. ``bytes``: as it is stored. ``content_bytes``: after unpacking."""

    file: str
    bytes: int
    content_bytes: int = 0
    read: int = 0
    malformed: int = 0
    malformed_bytes: int = 0
    out_of_day: int = 0
    #: Why the first record is malformed, where all of a task are.
    reason: str = ""

    def has_no_record(self, line_bytes: float) -> bool:
        """Return whether the file has records, and none of them is well-formed. A single
        line of up to ``line_bytes`` is one malformed record, as in any other file.
        """
        is_line = self.read == 1 and self.content_bytes <= line_bytes
        return 0 < self.read == self.malformed and not is_line

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of the manifest. Counted records are neither malformed nor
        of another day.
        """
        return {
            "file": self.file,
            "bytes": self.bytes,
            "content_bytes": self.content_bytes,
            "records_read": self.read,
            "records_counted": self.read - self.malformed - self.out_of_day,
            "malformed_bytes": self.malformed_bytes,
        }


def list_records(source: DayInput, notes: FileNotes) -> list[FileRecords]:
    """Return the records of each listed file of a stream, none for a file that no task
    had a record of.
    """
    # Spark names files by URIs.
    listed = {file.path: file.size for file in source.files}
    names = {
        next((path for path in spellings(noted) if path in listed), noted): noted
        for noted in notes.numbers
    }
    return [
        FileRecords(
            path,
            size,
            reason=notes.reasons.get(names.get(path, ""), ""),
            **notes.numbers[names[path]],
        )
        if path in names
        else FileRecords(path, size)
        for path, size in listed.items()
    ]


def leave_out_damaged(
    records: Mapping[str, list[FileRecords]],
    bins: Mapping[str, StreamBins],
    accepted: Collection[str],
) -> list[dict[str, Any]]:
    """Take the ``accepted`` files without a well-formed record out of ``bins``; return
    their entries of ``damaged``.

    Also fills in the bytes of ``bins``. Raises DataError (65) for a file without a
    well-formed record that is not accepted.
    """
    damaged = []
    for stream, files in records.items():
        # The bytes of as many average well-formed records as may be malformed: a line that
        # is longer may hold more.
        good = sum(file.read - file.malformed for file in files)
        size = sum(file.content_bytes - file.malformed_bytes for file in files)
        line_bytes = MALFORMED_RECORDS * size / good if good else 0.0
        lost = [file for file in files if file.has_no_record(line_bytes)]
        if refused := [file for file in lost if file.file not in accepted]:
            count = len(files)
            first = refused[0]
            more = (
                f", as are {len(refused) - 1} more of {pluralize(count, 'file')}"
                if len(refused) > 1
                else ""
            )
            raise DataError(
                f"{stream}: a file without one well-formed record is damaged{more}",
                where=first.file,
                found=f"{pluralize(first.read, 'malformed line')} of {pluralize(first.content_bytes, 'byte')}: {first.reason}",
                next_step=f"write one JSON object to a line, or fetch the file again; {LEAVE_OUT}",
            )
        for file in lost:
            bins[stream].read -= file.read
            bins[stream].malformed -= file.malformed
            damaged.append(
                {
                    "stream": stream,
                    "file": file.file,
                    "reason": f"no well-formed record: {file.reason}",
                    "left_out_bytes": file.content_bytes,
                    "unverified_records": 0,
                    "records_read": 0,
                }
            )
        readable_files = [file for file in files if not file.has_no_record(line_bytes)]
        bins[stream].content_bytes = sum(file.content_bytes for file in readable_files)
        bins[stream].malformed_bytes = sum(file.malformed_bytes for file in readable_files)
    return damaged


#: Days after which a file is removed: the records contain names of people.
DAYS_KEPT: Final = 90
_EXAMPLES: Final = 5


def quarantine(
    folder: Path, records: Iterator[Mapping[str, Any]]
) -> tuple[str, dict[str, list[str]]]:
    """Write malformed records to a private file in ``folder``,
    ``<state>/quarantine/<job>/<day>``, and prune it.

    Returns the file, and by stream a few examples without values. Raises OSError.
    """
    make_private(folder)
    for private in (folder, *list(folder.parents)[:2]):
        private.chmod(0o700)
    target = folder / f"{dates.now_ms()}-{os.getpid()}.jsonl"
    examples: dict[str, list[str]] = {}
    with os.fdopen(os.open(target, os.O_WRONLY | os.O_CREAT | os.O_EXCL, 0o600), "w") as sink:
        for record in records:
            sink.write(json.dumps(record) + "\n")
            shown = examples.setdefault(record["stream"], [])
            if len(shown) < _EXAMPLES:
                shown.append(
                    f"{Path(record['file']).name}, record {record['position']}: {record['reason']}"
                )
    prune(folder.parents[1], dates.now_ms() / 1000)
    return str(target), examples


def prune(root: Path, now: float, days: int = DAYS_KEPT) -> None:
    """Remove files below the quarantine ``root`` that are older than ``days``; ``now``
    in seconds since 1970.

    Files that cannot be removed stay until the next run.
    """
    for file in root.glob("*/*/*.jsonl"):
        with suppress(OSError):
            if now - file.lstat().st_mtime > days * 86_400:
                file.unlink()
                file.parent.rmdir()  # fails unless the file was the last


#: Prefixes of unmatched files that a manifest names of each stream.
PREFIXES_NAMED: Final = 20


class ScanSummary(msgspec.Struct):
    """The side rows of a scan, summed. ``damaged``: entries of the manifest, one for
    each such file.
    """

    bins: dict[str, StreamBins]
    damaged: list[dict[str, Any]] = msgspec.field(default_factory=list)
    #: Records of each stream that were beyond ``--quarantine-above``.
    oversized: dict[str, int] = msgspec.field(default_factory=dict)
    sampled: dict[str, drift.Seen] = msgspec.field(default_factory=dict)
    #: Records whose file is not in DBS, by the beginning of its name.
    prefixes: dict[str, Counter[str]] = msgspec.field(default_factory=dict)
    #: Unmatched records by site, by stream (rule 73).
    unmatched_sites: dict[str, Counter[str]] = msgspec.field(default_factory=dict)
    #: Numbers of readers, each of a task or a process: ``compiled``, or the reason why not.
    readers: Counter[str] = msgspec.field(default_factory=Counter)
    #: The fields that any counted access has, by stream: bytes, site, user, app.
    has: dict[str, set[str]] = msgspec.field(default_factory=dict)
    #: Malformed records that are counted and not kept, by stream.
    not_kept: Counter[str] = msgspec.field(default_factory=Counter)
    #: Accesses without bytes of their own, and their bytes, by stream (rule 11).
    set_aside: dict[str, Counter[str]] = msgspec.field(default_factory=dict)
    #: Jobs of the day and their times, each job once, by stream (rule 11).
    job_sums: dict[str, Counter[str]] = msgspec.field(default_factory=dict)
    #: The notes about files, by stream.
    files: dict[str, FileNotes] = msgspec.field(default_factory=dict)

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
            elif kind == UNMATCHED_SITE:
                summary.unmatched_sites.setdefault(stream, Counter())[name] += count
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
                f"{stream}: {count:,} malformed records are counted but not kept: the quarantine holds"
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


# Explains a sum beyond 64 bits: names the largest record, and the option that
# quarantines it.

#: Marks errors about sums beyond 64 bits.
_MARK = "beyond 2^63-1"
#: Columns that are summed, and what errors call them.
_COLUMNS: Final = {"read_bytes": "read_bytes", "cpu_ms": "cpu_time", "wall_ms": "wc_time"}
#: The largest values that are compared with the sum of all.
_TOP: Final = 1000
#: Files of a stream that lie elsewhere are copied here one by one, up to so many bytes in all.
MOST_COPIED_BYTES = 20_000_000_000


class Largest(NamedTuple):
    """The largest record of a stream that counts: bytes, or milliseconds."""

    stream: str
    #: The dataset that it read, or the job that it is of.
    what: str
    column: str
    value: int
    file: str
    position: int
    #: Without the records that have so much or more, no sum exceeds 64 bits; and their number.
    least: int
    oversized_count: int


def build_reader(request: DayRequest) -> Any:
    """Return what makes the readers of a run: of (stream, form, day)."""
    return partial(
        Reader,
        line_limit=request.settings.max_line_bytes,
        above=request.quarantine_above,
        storage_sites=load_storage_sites(request.settings.sites),
    )


def explained(
    error: Exception, request: DayRequest, inputs: Inputs, catalogue: Path | None
) -> Exception:
    """Return the error; for a sum beyond 64 bits, one that names stream, dataset, file
    and line of the largest record.

    The logs are read again for that, where they lie on a local disk or are no larger
    than MOST_COPIED_BYTES.
    """
    if not isinstance(error, DataError) or _MARK not in error.problem:
        return error
    columns = [name for name in _COLUMNS if name in error.problem] or list(_COLUMNS)
    try:
        records = [_largest(request, inputs, catalogue, column) for column in columns]
        record = max(chain.from_iterable(records), key=lambda largest: largest.value, default=None)
    except (CmssparkError, OSError):
        record = None
    if record is None:
        next_step = "--quarantine-above BYTES (or seconds) puts larger records in quarantine and marks the result"
        return DataError(
            error.problem, where=error.where, found=error.found, next_step=f"{next_step} partial"
        )
    unit, factor = ("bytes", 1) if record.column == BYTES else ("seconds", 1000)
    more = (
        f" and {pluralize(record.oversized_count - 1, 'other record')}"
        if record.oversized_count > 1
        else ""
    )
    return DataError(
        f"{record.stream}, {record.what}: a sum is {_MARK} ({error.problem})",
        where=f"{record.file}, {'record' if record.file.endswith('.avro') else 'line'} {record.position}",
        found=f"the largest {_COLUMNS[record.column]} of the day, {record.value // factor:,} {unit}",
        next_step=f"--quarantine-above {max(0, (record.least - 1) // factor)} puts it{more} in quarantine and marks"
        " the result partial",
    )


def _largest(
    request: DayRequest, inputs: Inputs, catalogue: Path | None, column: str
) -> list[Largest]:
    with _opened(inputs, catalogue) as in_dbs:
        search = _Search(request, inputs, column, in_dbs)
        return [record for source in inputs.streams if (record := search.find(source)) is not None]


@contextmanager
def _opened(inputs: Inputs, catalogue: Path | None) -> Iterator[Catalogue | None]:
    """Yield the catalogue; with Spark's shuffle join, which needs none, it is built for
    this question alone.
    """
    if catalogue is not None or not inputs.has_accesses:
        yield None if catalogue is None else Catalogue(catalogue)
        return
    with tempfile.TemporaryDirectory(prefix="cmsspark-") as folder:
        built = open_snapshots(inputs.files, inputs.dbs, None, Path(folder)).catalogue
        yield None if built is None else Catalogue(built)


@contextmanager
def _copied(files: Files, path: str) -> Iterator[Path]:
    """Yield a file's local path; of one that lies elsewhere, that of a copy, which is
    removed at the end.
    """
    if is_local(path):
        yield Path(local_path(path))
        return
    with tempfile.TemporaryDirectory(prefix="cmsspark-") as folder:
        target = Path(folder, "copy")
        files.fetch(path, target)
        yield target


class _Search(msgspec.Struct, frozen=True):
    """A search for a column's largest value in a day's logs. ``catalogue``: None if
    no file is looked up.
    """

    request: DayRequest
    inputs: Inputs
    column: str
    catalogue: Catalogue | None

    def find(self, source: DayInput) -> Largest | None:
        """Return the record of a stream with the largest value; None if no value is above 0."""
        if (
            sum(listed.size for listed in source.files if not is_local(listed.path))
            > MOST_COPIED_BYTES
        ):
            return None
        file, total = "", 0
        top: list[int] = []
        for listed in source.files:
            reader = build_reader(self.request)(
                source.stream, source.format_name, self.request.day
            )
            for batch in self._read(reader, listed.path):
                values = self._matched(source, batch)
                if values and max(values) > max(top[:1], default=0):
                    file = listed.path
                total += sum(values)
                top = nlargest(_TOP, chain(top, values))
        return self._locate(source, file, top[0], *_least(top, total)) if file else None

    def _read(self, reader: Reader, path: str) -> Iterator[AccessBatch]:
        with _copied(self.inputs.files, path) as local, open(local, "rb") as stream:
            yield from reader.file(stream, path, accept_damaged=path in self.inputs.accepted)

    def _locate(
        self, source: DayInput, file: str, most: int, least: int, count: int
    ) -> Largest | None:
        """Read a file once more for the position of its record with the largest value."""
        # The reader names records above the limit.
        limit = most - 1 if self.column == BYTES else (most - 1) // 1000
        line_limit = self.request.settings.max_line_bytes
        reader = Reader(source.stream, source.format_name, self.request.day, line_limit, limit)
        for _ in self._read(reader, file):
            pass
        for record in reader.oversized:
            subject = (
                self._name(source, record.name) if record.values[self.column] == most else None
            )
            if subject is not None:
                position = (record.file, record.position)
                return Largest(source.stream, subject, self.column, most, *position, least, count)
        return None

    def _matched(self, source: DayInput, batch: AccessBatch) -> list[int]:
        """Return the values of jobs, which name their dataset, or of accesses whose
        file is in the catalogue.
        """
        if (
            source.stream in STREAMS_OF_JOBS
            or self.catalogue is None
            or not largest(batch, self.column)
        ):
            return select_values(batch, self.column)
        unpacked = batch.unpack()
        is_there = self.catalogue.lookup([lfn.encode() for lfn in unpacked.lfns]) != NOT_THERE
        values = getattr(unpacked, self.column) or [None] * len(unpacked.lfns)
        return [
            value
            for value, is_value in zip(values, is_there.tolist(), strict=True)
            if is_value and value is not None and value != NO_BYTES
        ]

    def _name(self, source: DayInput, name: str) -> str | None:
        """Return the job, or the dataset of a file; None for a file that is not in the catalogue."""
        if source.stream in STREAMS_OF_JOBS:
            return f"job {name}"
        if self.catalogue is None:
            return "dataset unknown"
        (pair,) = self.catalogue.lookup([name.encode()]).tolist()
        if pair == NOT_THERE:
            return None
        (dataset,) = self.catalogue.dataset_names(np.asarray(self.catalogue.pair_datasets)[[pair]])
        return f"dataset {dataset}"


def _least(top: list[int], total: int) -> tuple[int, int]:
    """Return the least of the largest values, ``top``, without which all values fit 64
    bits together, and how many these are.

    Where they do not fit without all of ``top`` either, the least of these.
    """
    count = 0
    while count < len(top) and (count == 0 or total > 2**63 - 1):
        total -= top[count]
        count += 1
    # Equal values exceed a limit together.
    return top[count - 1], sum(value >= top[count - 1] for value in top)
