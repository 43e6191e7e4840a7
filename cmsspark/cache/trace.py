"""Traces: requests in order of time, of numbered objects with their sizes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.errors import DataError, InputMissing, UsageError

if TYPE_CHECKING:
    import pyarrow as pa

Array = np.ndarray[Any, Any]

#: A request of libCacheSim's oracleGeneral files: seconds, object, bytes, and the number of the next request.
_ORACLE: Final = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
_COLUMNS: Final = ("time", "object", "size")
#: Bytes of all requests of a trace, and of a cache, are whole numbers of 64 bits.
_MOST_BYTES: Final = 2.0**62
#: Times outside of these seconds since 1970 are no seconds: a century before and 130 years after.
_FIRST_S, _LAST_S = -(10**9) * 3, 4 * 10**9 + 10**8
_BATCH_BYTES: Final = 64 << 20
#: Objects are sampled by 24 bits of a hash of their names.
_HASH_BITS: Final = 24


@dataclass(frozen=True)
class Trace:
    """``objects``: int32, the object of each request; ``times_ms``: int64, UTC, ascending; ``sizes``: int64 bytes of
    each object, positive, those of its first request. ``dropped``: requests that could not be used, by reason.
    ``resized``: requests that named another size. ``sample``: the share of objects that is in the trace.
    """

    objects: Array
    times_ms: Array
    sizes: Array
    dropped: dict[str, int] = field(default_factory=dict)
    resized: int = 0
    sample: float = 1.0

    @property
    def footprint(self) -> int:
        """Bytes of all objects: an infinite cache holds them."""
        return int(self.sizes.sum())

    @property
    def requested_bytes(self) -> int:
        """Bytes of all requests."""
        return int(self.sizes[self.objects].sum()) if len(self.objects) else 0


def make_trace(times_ms: Array, names: Array, sizes: Array, *, sample: float = 1.0) -> Trace:
    """A trace from columns: int64 UTC ms, any values that name objects, and int64 bytes. Rows of one time keep their
    order. A size of 0 or less drops the request.
    """
    dropped = {}
    is_sized = sizes > 0
    if not is_sized.all():
        dropped["no_size"] = int((~is_sized).sum())
        times_ms, names, sizes = times_ms[is_sized], names[is_sized], sizes[is_sized]
    order = np.argsort(times_ms, kind="stable")
    times_ms, names, sizes = times_ms[order], names[order], sizes[order]
    _, first, objects = np.unique(names, return_index=True, return_inverse=True)
    own = sizes[first].astype(np.int64)
    resized = int((own[objects] != sizes).sum())
    return Trace(objects.astype(np.int32), times_ms.astype(np.int64), own, dropped, resized, sample)


def read_trace(path: Path, *, sample: float = 1.0) -> Trace:
    """A trace from a file: CSV or Parquet with the columns time, object and size, or libCacheSim's oracleGeneral
    (``.oracleGeneral`` or ``.bin``, plain or ``.zst``).

    ``time``: seconds since 1970, or a timestamp; ``size``: bytes. With ``sample`` < 1 only that share of the objects is
    kept, chosen by a hash of their names, while the file is read. Raises InputMissing (66), DataError (65) for damaged
    files and columns, UsageError (2) for other kinds of files.
    """
    if not path.is_file():
        raise InputMissing("there is no such trace", where=path, next_step="give a CSV, Parquet or oracleGeneral file")
    try:
        columns, nulls = _chosen(path, sample)
    except _MixedNamesError:
        # The first names are numbers, and later ones are not.
        columns, nulls = _chosen(path, sample, names_as_text=True)
    if not columns or not sum(len(times) for times, _, _ in columns):
        if sample < 1 and columns:
            raise DataError("no object of the trace is in the sample", where=path, next_step="give a larger --sample")
        raise DataError("the trace has no requests", where=path, next_step="give a file with requests")
    times, names, sizes = (np.concatenate(parts) for parts in zip(*columns, strict=True))
    _check_ranges(times, sizes, path)
    trace = make_trace(times, names, sizes, sample=sample)
    if nulls:
        trace.dropped["null"] = nulls
    if not len(trace.objects):
        raise DataError("no request of the trace has a size", where=path, next_step="give sizes in bytes, above 0")
    return trace


class _MixedNamesError(Exception):
    """A CSV whose first objects are numbers, and later ones are not."""


def _chosen(path: Path, sample: float, *, names_as_text: bool = False) -> tuple[list[tuple[Array, Array, Array]], int]:
    """(times in ms, names, sizes) of each part of the file, of the sampled objects, and how many rows have a null."""
    columns, nulls = [], 0
    for times, names, sizes, null_count in _batches(path, names_as_text=names_as_text):
        nulls += null_count
        if sample < 1:
            is_chosen = (_hashes(names) >> (64 - _HASH_BITS)) < int(sample * (1 << _HASH_BITS))
            times, names, sizes = times[is_chosen], names[is_chosen], sizes[is_chosen]
        columns.append((times, names, sizes))
    return columns, nulls


def _check_ranges(times_ms: Array, sizes: Array, path: Path) -> None:
    """Raises DataError (65) for times that are no seconds, and for bytes beyond 64 bits."""
    first, last = int(times_ms.min()) // 1000, int(times_ms.max()) // 1000
    if first < _FIRST_S or last > _LAST_S:
        raise DataError(
            "times of the trace are no seconds since 1970", where=path,
            found=f"{first:,} to {last:,}", next_step="write whole or fractional seconds, or timestamps",
        )  # fmt: skip
    total = float(np.maximum(sizes, 0).astype(float).sum())
    if total > _MOST_BYTES:
        raise DataError(
            "the bytes of all requests do not fit into 64 bits", where=path,
            found=f"{total:.3g} bytes", next_step="write sizes in bytes",
        )  # fmt: skip


def _batches(path: Path, *, names_as_text: bool = False) -> Iterator[tuple[Array, Array, Array, int]]:
    """(times in ms, names, sizes, rows with a null) of parts of the file."""
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = suffixes[-1] if suffixes else ""
    if kind == ".zst" or kind in (".oraclegeneral", ".bin"):
        yield from _oracle_batches(path, is_packed=kind == ".zst")
    elif kind in (".csv", ".parquet") or suffixes[-2:] == [".csv", ".gz"]:
        yield from (_columns_of(batch, path) for batch in _arrow_batches(path, kind, names_as_text))
    else:
        raise UsageError(
            f"the kind of {path.name} is not known",
            found=kind or "no ending",
            next_step="name it .csv, .csv.gz, .parquet, .oracleGeneral or .oracleGeneral.zst",
        )


def _oracle_batches(path: Path, *, is_packed: bool) -> Iterator[tuple[Array, Array, Array, int]]:
    import pyarrow as pa

    try:
        with path.open("rb") as plain:
            source = pa.CompressedInputStream(plain, "zstd") if is_packed else plain
            rest = b""
            while chunk := source.read(_BATCH_BYTES):
                chunk = rest + chunk
                whole = len(chunk) - len(chunk) % _ORACLE.itemsize
                rest = chunk[whole:]
                rows = np.frombuffer(chunk[:whole], _ORACLE)
                yield rows["time"].astype(np.int64) * 1000, rows["object"], rows["size"].astype(np.int64), 0
    except (OSError, pa.ArrowException) as error:
        raise DataError("the trace cannot be read", where=path, found=str(error), next_step="fetch it again") from None
    if rest:
        raise DataError(
            "the trace ends inside a request",
            where=path,
            found=f"{len(rest)} bytes after the last request of {_ORACLE.itemsize}",
            next_step="fetch it again",
        )


def _arrow_batches(path: Path, kind: str, names_as_text: bool) -> Iterator[pa.RecordBatch]:
    import pyarrow as pa
    from pyarrow import csv, parquet

    number = -1
    try:
        if kind == ".parquet":
            with parquet.ParquetFile(path) as file:
                _require(path, file.schema_arrow.names)
                yield from file.iter_batches(columns=list(_COLUMNS))
            return
        # Packed by the ending.
        options = csv.ConvertOptions(column_types={"object": pa.string()} if names_as_text else None)
        with csv.open_csv(path, csv.ReadOptions(block_size=_BATCH_BYTES // 4), None, options) as reader:
            number = reader.schema.get_field_index("object")
            yield from reader
    except (pa.ArrowException, OSError) as error:
        text = str(error).splitlines()[0]
        if kind != ".parquet" and not names_as_text and f"In CSV column #{number}:" in text:
            raise _MixedNamesError from None
        raise DataError("the trace cannot be read", where=path, found=text, next_step="fetch it again") from None


def _require(path: Path, names: list[str]) -> None:
    missing = [name for name in _COLUMNS if name not in names]
    if missing:
        raise DataError(
            f"the trace has no column {', '.join(missing)}",
            where=path,
            found=f"columns {', '.join(names)}",
            next_step="name the columns time, object and size",
        )


def _columns_of(batch: pa.RecordBatch, path: Path) -> tuple[Array, Array, Array, int]:
    import pyarrow as pa
    from pyarrow import compute as pc

    _require(path, batch.schema.names)
    time, name, size = (batch.column(column) for column in _COLUMNS)
    is_there = pc.and_(pc.and_(pc.is_valid(time), pc.is_valid(name)), pc.is_valid(size))
    nulls = len(batch) - int(pc.sum(is_there).as_py() or 0)
    time, name, size = time.filter(is_there), name.filter(is_there), size.filter(is_there)
    try:
        if pa.types.is_temporal(time.type) or pa.types.is_string(time.type) or pa.types.is_large_string(time.type):
            times = _instants(time).cast(pa.int64()).to_numpy(zero_copy_only=False)
        else:
            seconds = time.cast(pa.float64()).to_numpy(zero_copy_only=False)
            # What is beyond is refused by its value.
            limit = 4 * max(-_FIRST_S, _LAST_S)
            times = np.rint(np.clip(np.nan_to_num(seconds, nan=limit), -limit, limit) * 1000).astype(np.int64)
        sizes = size.cast(pa.int64()).to_numpy(zero_copy_only=False)
    except pa.ArrowException as error:
        raise DataError(
            "times or sizes of the trace are not numbers",
            where=path,
            found=str(error).splitlines()[0],
            next_step="time: seconds since 1970 or timestamps; size: whole bytes",
        ) from None
    return times, name.to_numpy(zero_copy_only=False), sizes, nulls


def _instants(time: pa.Array) -> pa.Array:
    """Timestamps in ms; texts without a zone are UTC. Raises ArrowInvalid."""
    import pyarrow as pa

    if pa.types.is_temporal(time.type):
        return time.cast(pa.timestamp("ms"))
    try:
        return time.cast(pa.timestamp("ms"))
    except pa.ArrowInvalid:
        return time.cast(pa.timestamp("ms", "UTC")).cast(pa.timestamp("ms"))


def _hashes(names: Array) -> Array:
    """uint64 of each name; equal names, equal hashes, on every machine."""
    if names.dtype.kind in "iu":
        mixed = names.astype(np.uint64)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            mixed = (mixed ^ (mixed >> np.uint64(shift))) * np.uint64(factor)
        return mixed ^ (mixed >> np.uint64(31))
    from xxhash import xxh3_64_intdigest

    different, numbers = np.unique(names.astype(str), return_inverse=True)
    digests = np.array([xxh3_64_intdigest(name.encode()) for name in different.tolist()], np.uint64)
    return digests[numbers]
