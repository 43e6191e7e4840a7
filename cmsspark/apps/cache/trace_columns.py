"""Columns of tables of requests as numbers: times, names of objects, sizes."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np
import pyarrow as pa
import pyarrow.compute as pc

from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError

COLUMNS: Final = ("time", "object", "size")
#: Times outside of these seconds since 1970 are no seconds: a century before and 130 years after.
FIRST_S, LAST_S = -(10**9) * 3, 4 * 10**9 + 10**8
#: Seconds, and milliseconds and microseconds too, that are milliseconds of 64 bits.
MOST_S: Final = 9e15


def require_columns(path: Path, names: list[str]) -> None:
    """Raise DataError (65) where one of :data:`COLUMNS` is missing, or is there more than once."""
    missing = [name for name in COLUMNS if name not in names]
    doubled = [name for name in COLUMNS if names.count(name) > 1]
    if missing or doubled:
        raise DataError(
            f"the trace has no column {', '.join(missing)}"
            if missing
            else f"the trace has the column {doubled[0]} more than once",
            where=path,
            found=f"columns {', '.join(names)}",
            next_step="name the columns time, object and size, each once",
        )


def read_columns(
    batch: pa.RecordBatch, path: Path, *, numbers_too: bool
) -> tuple[Array, pa.Array, Array, int]:
    """Return (times in ms, names, sizes, rows with a null) of some rows. A name of no
    characters is a null.

    ``numbers_too``: texts that are all whole numbers as written, from 0 to 2^64-1,
    become these numbers, which take less memory. Raises DataError (65).
    """
    require_columns(path, batch.schema.names)
    time, name, size = (_plain(batch.column(column)) for column in COLUMNS)
    if pa.types.is_nested(name.type):
        raise DataError(
            "the objects of the trace are not names",
            where=path,
            found=f"{name.type}",
            next_step="write texts or numbers",
        )
    is_null = [pc.is_null(column, nan_is_null=True) for column in (time, name, size)]
    if _is_text(name):
        is_null.append(pc.fill_null(pc.equal(name, ""), False))
    is_there = pc.invert(pc.or_(*is_null[:2]))
    for column_is_null in is_null[2:]:
        is_there = pc.and_not(is_there, column_is_null)
    nulls = len(batch) - int(pc.sum(is_there).as_py() or 0)
    time, name, size = time.filter(is_there), name.filter(is_there), size.filter(is_there)
    try:
        return (
            _times(time),
            _names(name, numbers_too),
            size.cast(pa.int64()).to_numpy(zero_copy_only=False),
            nulls,
        )
    except pa.ArrowException as error:
        raise DataError(
            "times or sizes of the trace are not numbers, or objects no texts",
            where=path,
            found=str(error).splitlines()[0],
            next_step="time: seconds since 1970 or timestamps; size: whole bytes",
        ) from None


def _plain(column: pa.Array) -> pa.Array:
    return column.dictionary_decode() if pa.types.is_dictionary(column.type) else column


def _is_text(column: pa.Array) -> bool:
    return bool(pa.types.is_string(column.type) or pa.types.is_large_string(column.type))


def _names(names: pa.Array, numbers_too: bool) -> pa.Array:
    """Return the names, or whole numbers. Raises ArrowException for texts that are not UTF-8."""
    names.validate(full=True)
    if numbers_too and _is_text(names):
        try:
            numbers = names.cast(pa.uint64())
        except pa.ArrowInvalid:
            pass
        else:
            # 007 and 7 are two names.
            if pc.all(pc.equal(numbers.cast(names.type), names), min_count=0).as_py():
                return numbers
    return names


def _times(time: pa.Array) -> Array:
    """Return int64 ms, rounded down. Texts are seconds or timestamps. Raises ArrowException."""
    if _is_text(time):
        try:
            time = time.cast(pa.float64())
        except pa.ArrowInvalid:
            return _instants(time)
    if pa.types.is_temporal(time.type):
        return _instants(time)
    seconds = time.cast(pa.float64()).to_numpy(zero_copy_only=False)
    # What is beyond is refused by its value, as far as milliseconds of 64 bits have it.
    return np.asarray(np.rint(np.clip(seconds, -MOST_S, MOST_S) * 1000).astype(np.int64))


def _instants(time: pa.Array) -> Array:
    """Return int64 ms of timestamps; texts without a zone are UTC. Raises ArrowException."""
    if _is_text(time):
        try:
            time = time.cast(pa.timestamp("ns"))
        except pa.ArrowInvalid:
            time = time.cast(pa.timestamp("ns", "UTC"))
    if pa.types.is_timestamp(time.type) and time.type.unit in ("us", "ns"):
        parts = 1_000 if time.type.unit == "us" else 1_000_000
        return np.asarray(time.cast(pa.int64()).to_numpy(zero_copy_only=False) // parts)
    return np.asarray(
        time.cast(pa.timestamp("ms")).cast(pa.int64()).to_numpy(zero_copy_only=False)
    )


def hashes(names: pa.Array) -> Array:
    """uint64 of each name; equal names, equal hashes, on every machine."""
    if pa.types.is_integer(names.type):
        mixed = names.to_numpy(zero_copy_only=False).astype(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return np.asarray(mixed ^ (mixed >> np.uint64(31)))
    from xxhash import xxh3_64_intdigest

    coded = names.dictionary_encode()
    texts = (
        name if isinstance(name, bytes) else str(name).encode()
        for name in coded.dictionary.to_pylist()
    )
    digests = np.array([xxh3_64_intdigest(text) for text in texts], np.uint64)
    return np.asarray(digests[coded.indices.to_numpy()])
