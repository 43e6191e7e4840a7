"""Traces: requests in order of time, of numbered objects with their sizes."""

from __future__ import annotations

import gzip
from collections.abc import Iterator, Set
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
import pyarrow as pa
from pyarrow import csv

from cmsspark.apps.cache.trace_columns import (
    COLUMNS,
    FIRST_S,
    LAST_S,
    MOST_S,
    hashes,
    read_columns,
    require_columns,
)
from cmsspark.base.arrays import Array, jit
from cmsspark.base.errors import DataError, InputMissing, UsageError
from cmsspark.base.foreign_parquet import open_parquet

# Requests of files from the records of XRootD caches: JSON lines, one for each file
# that was closed at a cache.

#: Records that are read together.
_BATCH: Final = 100_000
#: More damaged lines than this share, and than ten, are refused.
_DAMAGED_SHARE: Final = 0.001
_ENDINGS: Final = (".json", ".jsonl", ".json.gz", ".jsonl.gz")


_Bytes = Annotated[int, msgspec.Meta(ge=-(2**63), le=2**63 - 1)]


class _Record(msgspec.Struct):
    file_path: str | None = None
    size: _Bytes | None = None
    block_size: _Bytes | None = None
    numbers_blocks_done: _Bytes | None = None
    bytes_hit_cache: _Bytes | None = None
    bytes_miss_cache: _Bytes | None = None
    bytes_bypass_cache: _Bytes | None = None
    attach_time: Annotated[float, msgspec.Meta(ge=-MOST_S, le=MOST_S)] | None = None


class _Metadata(msgspec.Struct):
    timestamp: Annotated[int, msgspec.Meta(ge=-int(MOST_S), le=int(MOST_S))] | None = None


class _Line(_Record):
    """A line: a record as its ``data``, or with its fields beside ``metadata`` (rule 48)."""

    data: _Record | None = None
    metadata: _Metadata | None = None


def is_xcache(path: Path) -> bool:
    """Return whether the path is a folder, or a file whose ending says JSON lines."""
    return path.is_dir() or path.name.lower().endswith(_ENDINGS)


def xcache_batches(
    path: Path, recorded: list[int]
) -> Iterator[tuple[Array, pa.Array, Array, int]]:
    """Yield (times in ms, names, sizes, lines left out) of the records of a file, or of
    all files of a folder.

    A request is a record, with the time when its file was opened, else that of the
    record; without either, without a file or a size it is left out. Its size is the
    bytes of the blocks that the cache has of the file, if the record says, else of the
    file. ``recorded``: the bytes that the cache had, and those that it missed or passed
    by, are added to it. Raises DataError
    (65) for files that cannot be read and many damaged lines.
    """
    decoder = msgspec.json.Decoder(_Line)
    lines = damaged = 0
    for file in (
        sorted(entry for entry in path.iterdir() if entry.name[0] not in "._")
        if path.is_dir()
        else [path]
    ):
        rows: list[tuple[int, str, int]] = []
        left_out = 0
        try:
            with gzip.open(file) if file.suffix == ".gz" else file.open("rb") as stream:
                for line in stream:
                    if not line.strip():
                        continue
                    lines += 1
                    try:
                        record = decoder.decode(line)
                        is_record = record.data is not None or record.file_path is not None
                    except (msgspec.DecodeError, UnicodeDecodeError):
                        is_record = False
                    damaged += not is_record
                    row = _row(record) if is_record else None
                    if row and is_record:
                        rows.append(row)
                        data = record.data or record
                        recorded[0] += max(data.bytes_hit_cache or 0, 0)
                        recorded[1] += max(data.bytes_miss_cache or 0, 0)
                        recorded[1] += max(data.bytes_bypass_cache or 0, 0)
                    left_out += row is None
                    if len(rows) >= _BATCH:
                        yield *_columns(rows), left_out
                        rows, left_out = [], 0
        except (OSError, EOFError) as error:
            raise DataError("the records cannot be read", where=file, found=str(error)) from None
        yield *_columns(rows), left_out
    if damaged > max(10, _DAMAGED_SHARE * lines):
        raise DataError(
            "too many lines are not records of XCache",
            where=path,
            found=f"{damaged:,} of {lines:,}",
            next_step="give JSON lines of the feed cms-xrootd-cache",
        )


def _row(line: _Line) -> tuple[int, str, int] | None:
    record, metadata = line.data or line, line.metadata or _Metadata()
    time = None if record.attach_time is None else round(record.attach_time * 1000)
    if not time and metadata.timestamp:
        stamp = metadata.timestamp
        # Seconds, milliseconds or microseconds, by the size of the number.
        time = stamp * 1000 if stamp < 10**11 else stamp if stamp < 10**14 else stamp // 1000
    if not time or not record.file_path or not record.size:
        return None
    blocks = (record.block_size or 0) * (record.numbers_blocks_done or 0)
    return time, record.file_path, min(blocks, record.size) if blocks > 0 else record.size


def _columns(rows: list[tuple[int, str, int]]) -> tuple[Array, pa.Array, Array]:
    times, names, sizes = zip(*rows, strict=True) if rows else ((), (), ())
    return np.array(times, np.int64), pa.array(names, pa.string()), np.array(sizes, np.int64)


#: A request of libCacheSim's oracleGeneral files: seconds, object, bytes, and the
#: number of the next request.
_ORACLE: Final = np.dtype([("time", "<u4"), ("object", "<u8"), ("size", "<u4"), ("next", "<i8")])
#: Bytes of all requests of a trace, and of a cache, at most: policies count twice as
#: many in 64 bits.
MOST_BYTES: Final = 2**61
_BATCH_BYTES: Final = 16 << 20
#: Objects are sampled by 24 bits of a hash of their names.
_HASH_BITS: Final = 24
#: Objects up to which their names are kept.
_MOST_NAMES: Final = 1_000_000


@dataclass(frozen=True)
class Trace:
    """``objects``: int32, the object of each request; ``times_ms``: int64, UTC,
    ascending; ``sizes``: int64 bytes of each object, positive, those of its first
    request. ``dropped``: requests that could not be used, by reason. ``resized``:
    requests that named another size. ``sample``: the share of objects that is in the
    trace. ``names``: of the objects; None if they are too many. ``reads``: int64, how
    often each request is repeated at once; None if never. ``recorded``: bytes that the
    caches of the trace had and missed themselves; None if it does not say.
    """

    objects: Array
    times_ms: Array
    sizes: Array
    dropped: dict[str, int] = field(default_factory=dict)
    resized: int = 0
    sample: float = 1.0
    names: pa.Array | None = None
    reads: Array | None = None
    recorded: tuple[int, int] | None = None

    @property
    def footprint(self) -> int:
        """Bytes of all objects: an infinite cache holds them."""
        return int(self.sizes.sum())

    @property
    def requested_bytes(self) -> int:
        """Bytes of all requests."""
        reads = np.zeros(0, np.int64) if self.reads is None else self.reads
        return int(_sum_requested(self.objects, self.sizes, reads))

    @property
    def request_count(self) -> int:
        """All requests, repeated ones too."""
        return len(self.objects) if self.reads is None else int(self.reads.sum())


@jit
def _sum_requested(objects: Array, sizes: Array, reads: Array) -> int:
    total = 0
    for i in range(len(objects)):
        total += sizes[objects[i]] * (reads[i] if len(reads) else 1)
    return total


def make_trace(times_ms: Array, names: Array, sizes: Array) -> Trace:
    """Return a trace of columns: int64 UTC ms, any values that name objects, and int64
    bytes. Rows of one time keep their order. A size of 0 or less drops the request.
    """
    return _make([times_ms], [_encode(pa.array(names))], [sizes])


def _make(
    times: list[Array],
    coded: list[pa.DictionaryArray],
    sizes: list[Array],
    sample: float = 1.0,
    *,
    takes_largest: bool = False,
) -> Trace:
    """Return the trace of the parts of columns, which are emptied: no column is in
    memory twice for long.
    """
    # A name has one number in all parts.
    unified = pa.chunked_array(coded).unify_dictionaries()
    coded.clear()
    numbers, dictionary = (
        [part.indices.to_numpy() for part in unified.chunks],
        unified.chunk(0).dictionary,
    )
    dropped = 0
    for index, column in enumerate(sizes):
        is_sized = column > 0
        if not is_sized.all():
            dropped += int((~is_sized).sum())
            times[index], numbers[index], sizes[index] = (
                parts[index][is_sized] for parts in (times, numbers, sizes)
            )
    times_ms, objects, requested = (_joined(parts) for parts in (times, numbers, sizes))
    if not (times_ms[1:] >= times_ms[:-1]).all():
        order = np.argsort(times_ms, kind="stable")
        times_ms, objects, requested = times_ms[order], objects[order], requested[order]
    number_of, first_sizes, resized = _by_first_request(
        objects, requested, len(dictionary), takes_largest
    )
    del requested
    names = None
    if len(first_sizes) <= _MOST_NAMES:
        # What has no size has no number.
        names = dictionary.take(
            pa.array(np.argsort(number_of)[len(number_of) - len(first_sizes) :])
        )
    return Trace(
        objects,
        times_ms,
        first_sizes,
        {"no_size": dropped} if dropped else {},
        resized,
        sample,
        names,
    )


def _encode(names: pa.Array) -> pa.DictionaryArray:
    """Return numbers of the names, in the order in which they come, with the names by
    their numbers.
    """
    if pa.types.is_integer(names.type):
        integers = names.to_numpy(zero_copy_only=False).astype(np.uint64, copy=False)
        return pa.DictionaryArray.from_arrays(*_encode_integers(integers))
    return names.dictionary_encode()


@jit
def _encode_integers(names: Array) -> tuple[Array, Array]:
    """Return the same of integers, in a third of the time that Arrow takes."""
    width = 1
    while width < 2 * len(names):
        width *= 2
    slots = np.full(width, -1, np.int32)
    numbers, different, count = np.empty(len(names), np.int32), np.empty(len(names), np.uint64), 0
    for i in range(len(names)):
        name = names[i]
        mixed = name ^ (name >> np.uint64(32))
        slot = int(mixed * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20)) & (width - 1)
        while slots[slot] >= 0 and different[slots[slot]] != name:
            slot = (slot + 1) & (width - 1)
        if slots[slot] < 0:
            slots[slot] = count
            different[count] = name
            count += 1
        numbers[i] = slots[slot]
    return numbers, different[:count]


@jit
def _by_first_request(
    objects: Array, sizes: Array, count: int, takes_largest: bool
) -> tuple[Array, Array, int]:
    """Return the numbers of the objects in the order of their first requests, the size
    of each by its first request, or its largest, and how many requests name another
    size. ``objects``:
    renumbered in place.
    """
    number_of = np.full(count, -1, np.int32)
    first_sizes = np.zeros(count, np.int64)
    following = resized = 0
    for i in range(len(objects)):
        item = objects[i]
        if number_of[item] < 0:
            number_of[item] = following
            first_sizes[following] = sizes[i]
            following += 1
        objects[i] = number_of[item]
        if first_sizes[objects[i]] != sizes[i]:
            resized += 1
            if takes_largest and sizes[i] > first_sizes[objects[i]]:
                first_sizes[objects[i]] = sizes[i]
    return number_of, first_sizes[:following], resized


def _joined(parts: list[Array]) -> Array:
    joined = np.concatenate(parts)
    parts.clear()
    return joined


def read_trace(path: Path, *, sample: float = 1.0) -> Trace:
    """Return a trace from a file: CSV or Parquet with the columns time, object and
    size, or libCacheSim's oracleGeneral (``.oracleGeneral`` or ``.bin``, plain or
    ``.zst``), or JSON lines of XCache (``.json``, ``.json.gz``, or a folder of them),
    whose objects are files.

    ``time``: seconds since 1970, or a timestamp; ``size``: bytes. Objects of a CSV are
    texts: 1 and 01 are two. With ``sample`` < 1 only that share of the objects is kept,
    chosen by a hash of their names, while the file is read. Raises InputMissing (66),
    DataError (65) for damaged files and columns, UsageError (2) for other kinds of
    files.
    """
    if not path.is_file() and not path.is_dir():
        raise InputMissing(
            "there is no such trace",
            where=path,
            next_step="give a CSV, Parquet, JSON or oracleGeneral file, or no file and --site SITE with a period",
        )
    as_text: set[str] = set()
    recorded = [0, 0]
    while True:
        try:
            columns, nulls = _chosen(path, sample, as_text, recorded)
            break
        except _MixedColumnError as error:
            # The first values have a type that later ones have not.
            as_text.add(error.column)
    times, coded, sizes = columns
    if not sum(map(len, times)):
        if sample < 1 and times:
            raise DataError(
                "no object of the trace is in the sample",
                where=path,
                next_step="give a larger --sample",
            )
        raise DataError(
            "the trace has no requests", where=path, next_step="give a file with requests"
        )
    # Raise DataError (65) for times that are no seconds, and for bytes beyond 64 bits.
    parts = [part for part in times if len(part)]
    first, last = (
        min(int(part.min()) for part in parts) // 1000,
        max(int(part.max()) for part in parts) // 1000,
    )
    if first < FIRST_S or last > LAST_S:
        raise DataError(
            "times of the trace are not seconds since 1970",
            where=path,
            found=f"{first:,} to {last:,}",
            next_step="write whole or fractional seconds, or timestamps",
        )
    check_bytes(*sizes, where=path)
    of_caches = is_xcache(path)
    trace = _make(times, coded, sizes, sample, takes_largest=of_caches)
    if of_caches:
        trace = replace(trace, resized=0, recorded=(recorded[0], recorded[1]))
    if nulls:
        trace.dropped["null"] = nulls
    if not len(trace.objects):
        raise DataError(
            "no request of the trace has a size",
            where=path,
            next_step="give sizes in bytes, above 0",
        )
    return trace


class _MixedColumnError(Exception):
    """A column of a CSV whose first values are numbers, and later ones are others."""

    def __init__(self, column: str) -> None:
        super().__init__(column)
        self.column = column


def _chosen(
    path: Path, sample: float, as_text: Set[str], recorded: list[int]
) -> tuple[tuple[list[Array], list[pa.DictionaryArray], list[Array]], int]:
    """Return (times in ms, names in dictionaries, sizes), a column for each part of the
    file, of the sampled objects, and how many rows have a null.
    """
    columns: tuple[list[Array], list[pa.DictionaryArray], list[Array]] = ([], [], [])
    nulls, kind = 0, None
    for times, names, sizes, null_count in _batches(path, as_text, recorded):
        nulls += null_count
        if not len(names):
            continue
        if kind is not None and names.type != kind:
            raise _MixedColumnError("object")
        kind = names.type
        if sample < 1:
            is_chosen = (hashes(names) >> np.uint64(64 - _HASH_BITS)) < np.uint64(
                int(sample * (1 << _HASH_BITS))
            )
            times, names, sizes = (
                times[is_chosen],
                names.filter(pa.array(is_chosen)),
                sizes[is_chosen],
            )
        for column, values in zip(columns, (times, _encode(names), sizes), strict=True):
            column.append(values)
    return columns, nulls


def check_bytes(*sizes: Array, where: Path | None = None) -> None:
    """Raise DataError (65) where the bytes of all requests are beyond 64 bits.
    ``sizes``: of requests, in parts.
    """
    total = sum(float(np.maximum(part, 0).sum(dtype=float)) for part in sizes)
    if total > MOST_BYTES:
        raise DataError(
            "the bytes of all requests do not fit into 64 bits",
            where=where,
            found=f"{total:.3g} bytes",
            next_step="write sizes in bytes",
        )


def _batches(
    path: Path, as_text: Set[str], recorded: list[int]
) -> Iterator[tuple[Array, pa.Array, Array, int]]:
    """Return (times in ms, names, sizes, rows with a null) of parts of the file.
    ``recorded``: bytes that caches had and missed are added to it.
    """
    if is_xcache(path):
        yield from xcache_batches(path, recorded)
        return
    suffixes = [suffix.lower() for suffix in path.suffixes]
    kind = suffixes[-1] if suffixes else ""
    is_packed_table = kind == ".zst" and suffixes[-2:-1] in ([".csv"], [".parquet"])
    if (kind == ".zst" and not is_packed_table) or kind in (".oraclegeneral", ".bin"):
        is_packed = kind == ".zst"
        try:
            with path.open("rb") as plain:
                source = pa.CompressedInputStream(plain, "zstd") if is_packed else plain
                remainder = b""
                while chunk := source.read(_BATCH_BYTES):
                    chunk = remainder + chunk
                    end = len(chunk) - len(chunk) % _ORACLE.itemsize
                    remainder = chunk[end:]
                    rows = np.frombuffer(chunk[:end], _ORACLE)
                    times, sizes = rows["time"].astype(np.int64) * 1000, rows["size"].copy()
                    yield times, pa.array(rows["object"]), sizes, 0
        except (OSError, pa.ArrowException) as error:
            raise DataError(
                "the trace cannot be read",
                where=path,
                found=str(error),
                next_step="fetch it again",
            ) from None
        if remainder:
            raise DataError(
                "the trace ends inside a request",
                where=path,
                found=f"{len(remainder)} bytes after the last request of {_ORACLE.itemsize}",
                next_step="fetch it again",
            )
    elif kind in (".csv", ".parquet") or suffixes[-2:] == [".csv", ".gz"]:
        batches = _arrow_batches(path, kind, as_text)
        yield from (
            read_columns(batch, path, numbers_too="object" not in as_text) for batch in batches
        )
    else:
        raise UsageError(
            f"the kind of {path.name} is not known",
            found="".join(suffixes[-2:]) if is_packed_table else kind or "no ending",
            next_step="name it .csv, .csv.gz, .parquet, .json, .json.gz, .oracleGeneral or .oracleGeneral.zst",
        )


def _arrow_batches(path: Path, kind: str, as_text: Set[str]) -> Iterator[pa.RecordBatch]:
    number = -1
    try:
        if kind == ".parquet":
            with open_parquet(path, "trace", COLUMNS) as (names, _, batches):
                require_columns(path, names)
                yield from batches
            return
        # Packed by the ending. Names that look like numbers, days or flags are names.
        options = csv.ConvertOptions(column_types=dict.fromkeys(("object", *as_text), pa.string()))
        with csv.open_csv(path, csv.ReadOptions(block_size=_BATCH_BYTES), None, options) as reader:
            number = reader.schema.get_field_index("time")
            yield from reader
    except (pa.ArrowException, OSError) as error:
        text = str(error).splitlines()[0]
        if kind != ".parquet" and "time" not in as_text and f"In CSV column #{number}:" in text:
            raise _MixedColumnError("time") from None
        raise DataError(
            "the trace cannot be read", where=path, found=text, next_step="fetch it again"
        ) from None
