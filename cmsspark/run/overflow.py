"""Explains a sum beyond 64 bits: names the largest record, and the option that quarantines it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from heapq import nlargest
from itertools import chain
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from cmsspark.base.access import NO_BYTES, AccessBatch
from cmsspark.base.errors import CmssparkError, DataError
from cmsspark.base.text.terminal import pluralize
from cmsspark.counting.catalogue import NOT_THERE, Catalogue
from cmsspark.filesystems.storage import Files, is_local, local_path
from cmsspark.run.catalogue_snapshots import open_snapshots
from cmsspark.run.request import DayRequest, Inputs
from cmsspark.sources.folders import DayInput
from cmsspark.sources.oversized import BYTES, largest, select_values
from cmsspark.sources.reader import Reader
from cmsspark.sources.registry import STREAMS_OF_JOBS
from cmsspark.sources.storage_sites import load_storage_sites

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


@dataclass(frozen=True)
class _Search:
    """A search for a column's largest value in a day's logs. ``catalogue``: None where
    no file is looked up.
    """

    request: DayRequest
    inputs: Inputs
    column: str
    catalogue: Catalogue | None

    def find(self, source: DayInput) -> Largest | None:
        """Return the record of a stream with the largest value; None where no value is above 0."""
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
