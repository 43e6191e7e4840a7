"""Requests of files from the records of XRootD caches: JSON lines, one for each file
that was closed at a cache.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Final

import msgspec
import numpy as np
import pyarrow as pa

from cmsspark.apps.cache.trace_columns import MOST_S
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError

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
