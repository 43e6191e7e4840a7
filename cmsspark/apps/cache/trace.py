"""Traces: requests in order of time, of numbered objects with their sizes, from files
or from stored days.

Stored days keep no time within a day, so the order of datasets in a day is shuffled with
a seed, and the reads of a dataset on a day follow each other.
"""

from __future__ import annotations

from collections.abc import Iterator, Set
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
import polars as pl
import pyarrow as pa
import pyarrow.compute as pc
from msgspec.structs import replace
from pyarrow import csv

from cmsspark.base.arrays import Array, jit
from cmsspark.base.errors import DataError, InputMissing, UsageError
from cmsspark.base.foreign_parquet import open_parquet
from cmsspark.sources.formats import lines
from cmsspark.store.stored_columns import newest, table_rows
from cmsspark.store.stored_days import StoredDays

# Columns of tables of requests as numbers.

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
    time, name, size = (
        column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
        for column in (batch.column(name) for name in COLUMNS)
    )
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


# Requests of files from the records of XRootD caches: JSON lines, one for each file
# that was closed at a cache.

#: Records that are read together.
_BATCH: Final = 100_000
#: More damaged lines than this share, and than ten, are refused.
_DAMAGED_SHARE: Final = 0.001
_ENDINGS: Final = (".json", ".jsonl")


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
    """Return whether the path is a folder, or a file whose ending says JSON lines, plain
    or packed.
    """
    name = path.name.lower()
    plain = name.rpartition(".")[0] if lines.is_packed_name(name) else name
    return path.is_dir() or plain.endswith(_ENDINGS)


def _lines_of_file(file: Path) -> Iterator[bytes]:
    """Yield the lines of a file, plain or packed. Raises DataError (65) for one that is
    damaged or no text, and OSError.
    """
    with file.open("rb") as stream:
        is_first = True
        for chunk in lines.chunks(lines.unpacked(stream, str(file))):
            if is_first:
                lines.check_text(lines.take_head(chunk), str(file))
                is_first = False
            if isinstance(chunk, lines.LongLine):
                yield chunk.head
            else:
                yield from bytes(chunk).split(b"\n")


def xcache_batches(
    path: Path, recorded: list[int]
) -> Iterator[tuple[Array, pa.Array, Array, int]]:
    """Yield (times in ms, names, sizes, lines left out) of the records of a file, or of
    all files below a folder.

    A request is a record, with the time when its file was opened, else that of the
    record; without either, without a file or a size it is left out. Its size is the
    bytes of the blocks that the cache has of the file, if the record says, else of the
    file. ``recorded``: the bytes that the cache had, and those that it missed or passed
    by, are added to it. Raises DataError
    (65) for files that cannot be read and many damaged lines.
    """
    decoder = msgspec.json.Decoder(_Line)
    line_count = damaged = 0
    for file in (
        sorted(file for file in path.rglob("[!._]*") if file.is_file())
        if path.is_dir()
        else [path]
    ):
        rows: list[tuple[int, str, int]] = []
        left_out = 0
        try:
            for line in _lines_of_file(file):
                if not line.strip():
                    continue
                line_count += 1
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
        except OSError as error:
            raise DataError("the records cannot be read", where=file, found=str(error)) from None
        yield *_columns(rows), left_out
    if damaged > max(10, _DAMAGED_SHARE * line_count):
        raise DataError(
            "too many lines are not records of XCache",
            where=path,
            found=f"{damaged:,} of {line_count:,}",
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


class Trace(msgspec.Struct, frozen=True):
    """``objects``: int32, the object of each request; ``times_ms``: int64, UTC,
    ascending; ``sizes``: int64 bytes of each object, positive, those of its first
    request. ``dropped``: requests that could not be used, by reason. ``resized``:
    requests that named another size. ``reads``: int64, how often each request is
    repeated at once; None if never. ``recorded``: bytes that the caches of the trace had
    and missed themselves; None if it does not say.
    """

    objects: Array
    times_ms: Array
    sizes: Array
    dropped: dict[str, int] = msgspec.field(default_factory=dict)
    resized: int = 0
    reads: Array | None = None
    recorded: tuple[int, int] | None = None

    @property
    def footprint(self) -> int:
        """Bytes of all objects: an infinite cache holds them."""
        return int(self.sizes.sum())


def make_trace(times_ms: Array, names: Array, sizes: Array) -> Trace:
    """Return a trace of columns: int64 UTC ms, any values that name objects, and int64
    bytes. Rows of one time keep their order. A size of 0 or less drops the request.
    """
    return _make([times_ms], [_encode(pa.array(names))], [sizes])


def _make(
    times: list[Array],
    coded: list[pa.DictionaryArray],
    sizes: list[Array],
    *,
    takes_largest: bool = False,
) -> Trace:
    """Return the trace of the parts of columns, which are emptied: no column is in
    memory twice for long.
    """
    numbers, count = _numbered(coded)
    coded.clear()
    dropped = 0
    for index, column in enumerate(sizes):
        is_sized = column > 0
        if not is_sized.all():
            dropped += int((~is_sized).sum())
            times[index], numbers[index], sizes[index] = (
                parts[index][is_sized] for parts in (times, numbers, sizes)
            )
    columns = []
    for parts in (times, numbers, sizes):
        columns.append(np.concatenate(parts))
        parts.clear()
    times_ms, objects, requested = columns
    columns.clear()
    if not (times_ms[1:] >= times_ms[:-1]).all():
        order = np.argsort(times_ms, kind="stable")
        times_ms, objects, requested = times_ms[order], objects[order], requested[order]
    first_sizes, resized = _by_first_request(objects, requested, count, takes_largest)
    reasons = {"no_size": dropped} if dropped else {}
    return Trace(objects, times_ms, first_sizes, reasons, resized)


def _numbered(coded: list[pa.DictionaryArray]) -> tuple[list[Array], int]:
    """Return the numbers of names in each part, those of a name the same in all parts,
    and how many names there are.
    """
    if pa.types.is_integer(coded[0].type.value_type):
        # Arrow takes a gigabyte more than this for 4 million names.
        numbers, names = _encode_integers(np.concatenate([part.dictionary for part in coded]))
        ends = np.cumsum([len(part.dictionary) for part in coded]).tolist()
        return [
            numbers[end - len(part.dictionary) : end][part.indices.to_numpy()]
            for part, end in zip(coded, ends, strict=True)
        ], len(names)
    unified = pa.chunked_array(coded).unify_dictionaries()
    parts = [part.indices.to_numpy() for part in unified.chunks]
    return parts, len(unified.chunk(0).dictionary)


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
    """Number integers by open addressing, in a third of the time that Arrow takes."""
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
) -> tuple[Array, int]:
    """Renumber ``objects`` in place, in the order of their first requests. Return the
    size of each by its first request, or its largest, and how many requests name another
    size.
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
    return first_sizes[:following], resized


def read_trace(path: Path) -> Trace:
    """Return a trace from a file: CSV or Parquet with the columns time, object and
    size, or libCacheSim's oracleGeneral (``.oracleGeneral`` or ``.bin``, plain or
    ``.zst``), or JSON lines of XCache (``.json``, ``.json.gz``, or a folder of them),
    whose objects are files.

    ``time``: seconds since 1970, or a timestamp; ``size``: bytes. Objects of a CSV are
    texts: 1 and 01 are two. Raises InputMissing (66), DataError (65) for damaged files
    and columns, UsageError (2) for other kinds of files.
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
        times, coded, sizes = list[Array](), list[pa.DictionaryArray](), list[Array]()
        nulls, kind = 0, None
        try:
            for part_times, names, part_sizes, null_count in _batches(path, as_text, recorded):
                nulls += null_count
                if not len(names):
                    continue
                if kind is not None and names.type != kind:
                    raise _MixedColumnError("object")
                kind = names.type
                times.append(part_times)
                coded.append(_encode(names))
                sizes.append(part_sizes)
            break
        except _MixedColumnError as error:
            # The first values have a type that later ones have not.
            as_text.add(error.column)
    if not sum(map(len, times)):
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
    trace = _make(times, coded, sizes, takes_largest=of_caches)
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


# Traces from stored days.


class SiteTraces(msgspec.Struct, frozen=True):
    """The requests of stored days, of all sites. ``requests``: a row with its accesses
    for each day, dataset and site; ``sizes``: bytes and files of datasets by DBS.
    """

    requests: pl.DataFrame
    sizes: pl.DataFrame

    @property
    def site_names(self) -> list[str]:
        """All sites, in order."""
        return self.requests["site_name"].unique().sort().to_list()

    def select(self, site: str | None = None, *, seed: int = 0) -> Trace:
        """Return the trace of one site; of all sites together, as if they shared a
        cache, without one.

        Datasets without a size in DBS are dropped and counted as ``no_size``. Raises
        InputMissing (66) for a site without requests, DataError (65) for bytes beyond
        64 bits.
        """
        requests = (
            self.requests if site is None else self.requests.filter(pl.col("site_name") == site)
        )
        if requests.is_empty():
            raise InputMissing(
                f"the stored days have no access{'' if site is None else f' at {site}'}",
                found=f"accesses at {', '.join(self.site_names)}"
                if len(self.requests)
                else "no accesses",
                next_step="give one of these sites, or no --site"
                if len(self.requests)
                else "give other days",
            )
        rows = requests.group_by("day", "dataset_name").agg(pl.col("nacc").sum())
        rows = rows.sort("day", "dataset_name")
        rows = rows.join(self.sizes, "dataset_name", "left", maintain_order="left")
        rows = rows[np.random.default_rng(seed).permutation(len(rows))]
        sizes = rows["dataset_bytes"].fill_null(0).to_numpy()
        # An access reads a file: so many of them are one read of the dataset.
        files = rows["file_count"].fill_null(1).to_numpy()
        reads = -(-rows["nacc"].to_numpy() // np.maximum(files, 1))
        times = rows["day"].dt.epoch("ms").to_numpy()
        check_bytes(sizes * reads.astype(float))
        trace = make_trace(times, rows["dataset_name"].to_numpy(), sizes)
        is_sized = sizes > 0
        order = np.argsort(times[is_sized], kind="stable")
        return replace(trace, reads=reads[is_sized][order])


def site_traces(stored: StoredDays) -> SiteTraces:
    """Return the requests of the stored days, with sizes of the newest ``dbs_events``.

    Raises InputMissing (66) where that table is not stored, DataError (65) where a
    day's partials are damaged.
    """
    _, current = newest(stored.files, stored.fout, "dbs_events")
    columns = ["dataset_name", "dataset_bytes", "file_count"]
    sizes = pl.DataFrame(table_rows(stored.files, current, "dbs_events", columns))
    requests = []
    # Jobs are not accesses: their reads are in the logs of the file systems.
    for day, rows in stored.accesses(["dataset_name", "site_name", "nacc"]):
        reads = rows.filter(pl.col("nacc") > 0).group_by("dataset_name", "site_name")
        requests.append(reads.agg(pl.col("nacc").cast(pl.Int64).sum(), day=pl.lit(day)))
    return SiteTraces(pl.concat(requests), sizes)
