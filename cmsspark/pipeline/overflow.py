"""A sum that 64 bits do not hold: which record is to blame, and the way on."""

from __future__ import annotations

from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

import numpy as np

from cmsspark.errors import CmssparkError, DataError
from cmsspark.kernel.catalogue import NOT_THERE, Catalogue
from cmsspark.pipeline.request import DayRequest, Inputs
from cmsspark.sources.folders import DayInput
from cmsspark.sources.outsized import largest
from cmsspark.sources.reader import Reader
from cmsspark.storage import is_local, local_path

#: How errors about sums that leave 64 bits are told apart.
_MARK = "beyond 2^63-1"


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

    The logs are read again for that, where they lie on a local disk.
    """
    if not isinstance(error, DataError) or _MARK not in error.wanted:
        return error
    way_on = "--quarantine-above BYTES puts larger records in quarantine and marks the result partial"
    try:
        one = max(_largest(request, inputs, catalogue), key=lambda found: found.value, default=None)
    except (CmssparkError, OSError):
        one = None
    if one is None:
        return DataError(error.wanted, where=error.where, found=error.found, next_step=way_on)
    unit, value = ("seconds", one.value // 1000) if one.stream == "crab" else ("bytes", one.value)
    return DataError(
        f"{one.stream}, dataset {one.dataset}: a sum is {_MARK} ({error.wanted})",
        where=f"{one.file}, {'record' if one.file.endswith('.avro') else 'line'} {one.position}",
        found=f"the largest record of the day, {value:,} {unit}",
        next_step=f"--quarantine-above {max(0, value - 1)} puts it in quarantine and marks the result partial",
    )


def _largest(request: DayRequest, inputs: Inputs, catalogue: Path | None) -> list[Largest]:
    known = None if catalogue is None else Catalogue(catalogue)
    found = [_of_stream(request, one, inputs.accepted, known) for one in inputs.streams]
    return [one for one in found if one is not None]


def _of_stream(request: DayRequest, one: DayInput, accepted: frozenset[str], known: Catalogue | None) -> Largest | None:
    most, file = 0, ""
    for listed in one.files:
        if not is_local(listed.path):
            return None
        reader = reader_of(request)(one.stream, one.format_name, request.day)
        with open(local_path(listed.path), "rb") as stream:
            for batch in reader.file(stream, listed.path, accept_damaged=listed.path in accepted):
                value = largest(batch) if largest(batch) > most else 0
                if value and (known is None or (value := _matched(batch, known)) > most):
                    most, file = value, listed.path
    if not file:
        return None
    # Once more, for its place: what is larger than one less is named.
    limit = (most - 1) // 1000 if one.stream == "crab" else most - 1
    reader = Reader(one.stream, one.format_name, request.day, request.settings.max_line_bytes, limit)
    with open(local_path(file), "rb") as stream:
        for _ in reader.file(stream, file, accept_damaged=file in accepted):
            pass
    for lfn, value, where, position in reader.outsized:
        dataset = "" if known is None else _dataset(lfn, known)
        if value == most and dataset is not None:
            return Largest(one.stream, dataset or "unknown", value, where, position)
    return None


def _matched(batch: Any, known: Catalogue) -> int:
    """The largest value of an access whose file is in the catalogue."""
    whole = batch.unpack()
    is_there = known.lookup([lfn.encode() for lfn in whole.lfns]) != NOT_THERE
    most = 0
    for column in (whole.read_bytes, whole.cpu_ms, whole.wall_ms):
        if column:
            most = max(most, *(value or 0 for value, there in zip(column, is_there.tolist(), strict=True) if there), 0)
    return most


def _dataset(lfn: str, known: Catalogue) -> str | None:
    """The dataset of a file; None where it is not in the catalogue."""
    (pair,) = known.lookup([lfn.encode()]).tolist()
    if pair == NOT_THERE:
        return None
    names: list[str] = known.dataset_names(np.asarray(known.pair_datasets)[[pair]])
    return names[0]
