"""Explains a sum beyond 64 bits: names the largest record, and the option that quarantines it."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cmsspark.base.errors import CmssparkError, DataError
from cmsspark.counting.catalogue import NOT_THERE, Catalogue
from cmsspark.filesystems.storage import Files, is_local, local_path
from cmsspark.run.catalogue_snapshots import open_snapshots
from cmsspark.run.request import DayRequest, Inputs
from cmsspark.sources.folders import DayInput
from cmsspark.sources.outsized import largest
from cmsspark.sources.reader import Reader
from cmsspark.sources.registry import STREAMS_OF_JOBS

#: Marks errors about sums beyond 64 bits.
_MARK = "beyond 2^63-1"
#: Files of a stream that lie elsewhere are copied here one by one, up to so many bytes in all.
MOST_COPIED_BYTES = 20_000_000_000


class Largest(NamedTuple):
    """The largest record of a stream that counts: bytes, or milliseconds of CRAB."""

    stream: str
    dataset: str
    value: int
    file: str
    position: int


def reader_of(request: DayRequest) -> Any:
    """What makes the readers of a run: of (stream, form, day)."""
    return partial(Reader, line_limit=request.settings.max_line_bytes, above=request.quarantine_above)


def explained(error: Exception, request: DayRequest, inputs: Inputs, catalogue: Path | None) -> Exception:
    """The error; for a sum beyond 64 bits, one that names stream, dataset, file and line of the largest record.

    The logs are read again for that, where they lie on a local disk or are no larger than MOST_COPIED_BYTES.
    """
    if not isinstance(error, DataError) or _MARK not in error.wanted:
        return error
    next_step = "--quarantine-above BYTES puts larger records in quarantine and marks the result partial"
    try:
        record = max(_largest(request, inputs, catalogue), key=lambda largest: largest.value, default=None)
    except (CmssparkError, OSError):
        record = None
    if record is None:
        return DataError(error.wanted, where=error.where, found=error.found, next_step=next_step)
    unit, value = ("seconds", record.value // 1000) if record.stream == "crab" else ("bytes", record.value)
    return DataError(
        f"{record.stream}, dataset {record.dataset}: a sum is {_MARK} ({error.wanted})",
        where=f"{record.file}, {'record' if record.file.endswith('.avro') else 'line'} {record.position}",
        found=f"the largest record of the day, {value:,} {unit}",
        next_step=f"--quarantine-above {max(0, value - 1)} puts it in quarantine and marks the result partial",
    )


def _largest(request: DayRequest, inputs: Inputs, catalogue: Path | None) -> list[Largest]:
    with _opened(inputs, catalogue) as in_dbs:
        # Jobs name their dataset: no file is looked up.
        records = [
            _of_stream(
                request, source, inputs.files, inputs.accepted, None if source.stream in STREAMS_OF_JOBS else in_dbs
            )
            for source in inputs.streams
        ]
    return [record for record in records if record is not None]


@contextmanager
def _opened(inputs: Inputs, catalogue: Path | None) -> Iterator[Catalogue | None]:
    """The catalogue; with Spark's shuffle join, which needs none, it is built for this question alone."""
    if catalogue is not None or not inputs.has_accesses:
        yield None if catalogue is None else Catalogue(catalogue)
        return
    with tempfile.TemporaryDirectory(prefix="cmsspark-") as folder:
        built = open_snapshots(inputs.files, inputs.dbs, None, Path(folder)).catalogue
        yield None if built is None else Catalogue(built)


@contextmanager
def _copied(files: Files, path: str) -> Iterator[Path]:
    """A file's local path; of one that lies elsewhere, that of a copy, which is removed at the end."""
    if is_local(path):
        yield Path(local_path(path))
        return
    with tempfile.TemporaryDirectory(prefix="cmsspark-") as folder:
        target = Path(folder, "copy")
        files.fetch(path, target)
        yield target


def _of_stream(
    request: DayRequest, source: DayInput, files: Files, accepted: frozenset[str], catalogue: Catalogue | None
) -> Largest | None:
    most, file = 0, ""
    if sum(listed.size for listed in source.files if not is_local(listed.path)) > MOST_COPIED_BYTES:
        return None
    for listed in source.files:
        reader = reader_of(request)(source.stream, source.format_name, request.day)
        with _copied(files, listed.path) as local, open(local, "rb") as stream:
            for batch in reader.file(stream, listed.path, accept_damaged=listed.path in accepted):
                value = largest(batch) if largest(batch) > most else 0
                if value and (catalogue is None or (value := _matched(batch, catalogue)) > most):
                    most, file = value, listed.path
    if not file:
        return None
    # Read once more for its position: the reader names records above one less.
    limit = (most - 1) // 1000 if source.stream == "crab" else most - 1
    reader = Reader(source.stream, source.format_name, request.day, request.settings.max_line_bytes, limit)
    with _copied(files, file) as local, open(local, "rb") as stream:
        for _ in reader.file(stream, file, accept_damaged=file in accepted):
            pass
    for lfn, value, where, position in reader.outsized:
        dataset = "" if catalogue is None else _dataset(lfn, catalogue)
        if value == most and dataset is not None:
            return Largest(source.stream, dataset or "unknown", value, where, position)
    return None


def _matched(batch: Any, catalogue: Catalogue) -> int:
    """The largest value of an access whose file is in the catalogue."""
    whole = batch.unpack()
    is_there = catalogue.lookup([lfn.encode() for lfn in whole.lfns]) != NOT_THERE
    most = 0
    for column in (whole.read_bytes, whole.cpu_ms, whole.wall_ms):
        if column:
            most = max(
                most, *(value or 0 for value, is_value in zip(column, is_there.tolist(), strict=True) if is_value), 0
            )
    return most


def _dataset(lfn: str, catalogue: Catalogue) -> str | None:
    """The dataset of a file; None where it is not in the catalogue."""
    (pair,) = catalogue.lookup([lfn.encode()]).tolist()
    if pair == NOT_THERE:
        return None
    names: list[str] = catalogue.dataset_names(np.asarray(catalogue.pair_datasets)[[pair]])
    return names[0]
