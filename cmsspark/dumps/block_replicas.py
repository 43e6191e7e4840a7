"""Files of blocks and replicas of files to replicas of blocks, from Rucio (rules 24 to 26).

Parts are read one by one, or by several processes at once, into partitions on disk by the hash of the file's name. In
each partition a file's rows meet: its block, its size, its replicas. What they come to is summed by (RSE, block), goes
to partitions of blocks, and is summed there again. Memory grows with the number of blocks and not with that of files.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from cmsspark.base.buffers import array, from_numpy, to_numpy
from cmsspark.base.exact_integers import Longs, joined, sums_by_group
from cmsspark.base.names import block_dataset
from cmsspark.dumps.file_partitions import (
    ACCESS_COLUMNS,
    Arrays,
    FilePartitions,
    RucioFiles,
    column_of,
    files_of,
    numbered,
)
from cmsspark.dumps.partitions import PARTITIONS, ROWS, PartitionedRun, PartitionRange, ranges
from cmsspark.dumps.parts import Each

if TYPE_CHECKING:
    import pyarrow as pa

#: Counts and sums of a (RSE, block), the latter summed exactly, and its largest values (-1: null).
COUNTS: Final = ("files", "new_files", "accessed_files")
SUMS: Final = ("bytes", "new_bytes")
LARGEST: Final = ("created_ms", "accessed_ms")


@dataclass(frozen=True)
class BlockTotals:
    """Of each block: how many files CONTENTS has of it, and their bytes; and the largest last access of its files in
    DIDS (-1: null).
    """

    files: Longs
    bytes: Longs
    accessed_ms: Longs


@dataclass(frozen=True)
class BlockReplicas:
    """What file replicas come to. ``parts``: each gives tables of (RSE, block), for one process each. ``no_block``: the
    sums of files in no block, by RSE. ``largest``: numbers of the blocks are places in ``blocks``.
    """

    parts: list[Callable[[], Iterator[pa.Table]]]
    no_block: Arrays
    totals: BlockTotals
    blocks: pa.Array


def block_replicas(
    partitions: FilePartitions,
    rses: Sequence[str],
    day_ms: tuple[int, int],
    folder: Path,
    each: Each = map,
    rows: int = ROWS,
) -> BlockReplicas:
    """Return the replicas of blocks. ``rses``: names by number; ``day_ms``: the day in which replicas are new.

    The tables of the parts have ``dataset_name``, ``block_name``, ``node_name``; ``block_files``, ``block_bytes`` of
    the catalogue; ``br_node_files``, ``br_node_bytes`` at the RSE; ``created_ms``, ``accessed_ms`` (null where no file
    has one), ``new_file_count``, ``new_bytes``, ``accessed_file_count``. Raises DataError (65) where a sum leaves 64
    bits.
    """
    count = len(partitions.blocks)
    work = partial(_of_range, partitions, day_ms, folder, count)
    totals = {name: np.zeros(count, np.int64) for name in ("files", "upper", "lower")}
    accessed = np.full(count, -1, np.int64)
    runs: list[PartitionedRun] = []
    no_block: list[Arrays] = []
    for of_range in each(work, partitions.ranges(rows)):
        runs += of_range.runs
        files = of_range.files
        no_block.append(files.no_block)
        for name in totals:
            totals[name][files.blocks] += files.totals[name]
        accessed[files.accessed[0]] = np.maximum(accessed[files.accessed[0]], files.accessed[1])
    whole = BlockTotals(totals["files"], joined(totals["upper"], totals["lower"], "the files of a block"), accessed)
    np.save(folder / "block-files.npy", whole.files)
    np.save(folder / "block-bytes.npy", whole.bytes)
    _save_names(folder, partitions.blocks)
    parts: list[Callable[[], Iterator[pa.Table]]] = [
        partial(_tables_of, folder, tuple(rses), one) for one in ranges(runs, rows)
    ]
    return BlockReplicas(parts, summed_again(no_block, ("rse",)), whole, partitions.blocks)


@dataclass(frozen=True)
class FileSums:
    """What some files come to. ``sums``: by (``block``, ``rse``); ``no_block``: by ``rse``, of files in no block.

    ``totals`` of ``blocks``: ``files``, and their bytes as sums of ``upper`` and ``lower`` 32 bits. ``accessed``:
    blocks of files with a last access in DIDS, and the largest.
    """

    sums: Arrays
    no_block: Arrays
    blocks: Longs
    totals: Arrays
    accessed: tuple[Longs, Longs]


def file_sums(files: RucioFiles, accesses: Arrays, day_ms: tuple[int, int]) -> FileSums:
    """Return the sums of some files. ``accesses``: rows of DIDS, with ``file_partitions.ACCESS_COLUMNS``."""
    sums = _sums_of(files, day_ms)
    has_block = sums["block"] >= 0
    in_block = files.block[files.block >= 0]
    blocks, of_files = np.unique(in_block, return_inverse=True)
    sizes = np.maximum(files.size[files.block >= 0], 0)
    upper, lower = sums_by_group(of_files, sizes, len(blocks))
    totals = {"files": np.bincount(of_files, minlength=len(blocks)).astype(np.int64), "upper": upper, "lower": lower}
    return FileSums(
        {name: values[has_block] for name, values in sums.items()},
        {name: values[~has_block] for name, values in sums.items() if name != "block"},
        blocks,
        totals,
        _accesses(files, accesses),
    )


@dataclass(frozen=True)
class _RangeSums:
    """What a range of file partitions comes to; the sums by (RSE, block) are in runs."""

    runs: list[PartitionedRun]
    files: FileSums


def _of_range(
    partitions: FilePartitions, day_ms: tuple[int, int], folder: Path, block_count: int, task: PartitionRange
) -> _RangeSums:
    rows = PartitionRange(partitions.accesses, task.first, task.last)
    accesses = {name: column_of(rows, name) for name in ACCESS_COLUMNS}
    found = file_sums(files_of(partitions, task.first, task.last), accesses, day_ms)
    runs = []
    if len(found.sums["block"]):
        partition = (found.sums["block"] * PARTITIONS // max(1, block_count)).astype(np.uint8)
        runs = [PartitionedRun.write(folder, partition, found.sums)]
    return _RangeSums(runs, replace(found, sums={}))


def _accesses(files: RucioFiles, rows: Arrays) -> tuple[Longs, Longs]:
    """Return the blocks of files with a last access in DIDS, and its largest value."""
    ids, _ = numbered(np.concatenate((files.hash, rows["hash"])), np.concatenate((files.check, rows["check"])))
    block_of = np.full(int(ids.max(initial=-1)) + 1, -1, np.int64)
    block_of[ids[: len(files.hash)]] = files.block
    block = block_of[ids[len(files.hash) :]]
    blocks, places = np.unique(block[block >= 0], return_inverse=True)
    largest = np.full(len(blocks), -1, np.int64)
    np.maximum.at(largest, places, rows["accessed_ms"][block >= 0])
    return blocks, largest


def _sums_of(files: RucioFiles, day_ms: tuple[int, int]) -> Arrays:
    """Return the sums of the file replicas by (block, RSE); block -1 for files in none."""
    block = files.block[files.file]
    is_new = (files.created_ms >= day_ms[0]) & (files.created_ms < day_ms[1])
    sizes = np.maximum(files.bytes, 0)
    ones = np.ones(len(block), np.int64)
    rows = {
        "block": block, "rse": files.rse, "files": ones, "new_files": is_new.astype(np.int64),
        "accessed_files": (files.accessed_ms >= 0).astype(np.int64), "bytes": sizes,
        "new_bytes": np.where(is_new, sizes, 0), "created_ms": files.created_ms, "accessed_ms": files.accessed_ms,
    }  # fmt: skip
    return summed(rows, ("block", "rse"))


def summed(rows: Arrays, keys: tuple[str, ...]) -> Arrays:
    """Rows with equal keys as one: counts and bytes summed, times the largest. Raises DataError (65)."""
    order = np.lexsort([rows[name] for name in reversed(keys)])
    rows = {name: values[order] for name, values in rows.items()}
    starts = np.zeros(len(order), np.bool_)
    starts[:1] = True
    for name in keys:
        starts[1:] |= rows[name][1:] != rows[name][:-1]
    first = np.flatnonzero(starts)
    groups = np.cumsum(starts) - 1
    found = {name: rows[name][first] for name in keys}
    if not len(first):
        return {name: values[:0] for name, values in rows.items()}
    found |= {name: np.add.reduceat(rows[name], first) for name in COUNTS}
    for name in SUMS:
        found[name] = joined(*sums_by_group(groups, rows[name], len(first)), name)
    return found | {name: np.maximum.reduceat(rows[name], first) for name in LARGEST}


def summed_again(pieces: Sequence[Arrays], keys: tuple[str, ...]) -> Arrays:
    """:func:`summed` of sums in several pieces."""
    columns = (*keys, *COUNTS, *SUMS, *LARGEST)
    return summed(
        {name: np.concatenate([np.zeros(0, np.int64), *(one[name] for one in pieces)]) for name in columns}, keys
    )


def _save_names(folder: Path, blocks: pa.Array) -> None:
    import pyarrow as pa

    whole = pa.table({"name": blocks.cast(pa.large_string())})
    with pa.OSFile(str(folder / "blocks.arrow"), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
        writer.write_table(whole, max_chunksize=max(1, len(blocks)))


def _tables_of(folder: Path, rses: tuple[str, ...], task: PartitionRange) -> Iterator[pa.Table]:
    """Yield the replicas of a range of blocks."""
    import pyarrow as pa

    rows = summed_again(
        [{name: task.column(name) for name in ("block", "rse", *COUNTS, *SUMS, *LARGEST)}], ("block", "rse")
    )
    block, files, sizes = rows["block"], *(np.load(folder / f"block-{name}.npy", mmap_mode="r")
                                           for name in ("files", "bytes"))  # fmt: skip
    with pa.memory_map(str(folder / "blocks.arrow")) as source:
        names = pa.ipc.open_file(source).read_all()["name"].combine_chunks()
    distinct, places = np.unique(block, return_inverse=True)
    block_names = names.take(from_numpy(distinct)).to_pylist()
    dataset_names = array([block_dataset(name) for name in block_names], "string")
    nodes = array(list(rses), "string")
    yield pa.table({
        "dataset_name": dataset_names.take(from_numpy(places.astype(np.int64))),
        "block_name": array(block_names, "string").take(from_numpy(places.astype(np.int64))),
        "node_name": nodes.take(from_numpy(rows["rse"])),
        "block_files": from_numpy(np.ascontiguousarray(files[block])),
        "block_bytes": from_numpy(np.ascontiguousarray(sizes[block])),
        "br_node_files": from_numpy(rows["files"]),
        "br_node_bytes": from_numpy(rows["bytes"]),
        **{name: from_numpy(rows[name], rows[name] >= 0) for name in LARGEST},
        "new_file_count": from_numpy(rows["new_files"]),
        "new_bytes": from_numpy(rows["new_bytes"]),
        "accessed_file_count": from_numpy(rows["accessed_files"]),
    })  # fmt: skip


def dataset_sums(part: Callable[[], Iterator[pa.Table]]) -> pa.Table:
    """Return the replicas of a part's blocks by (``node_name``, ``dataset_name``): ``files``, ``bytes`` and the other
    sums and largest values of :data:`COUNTS`, :data:`SUMS` and :data:`LARGEST`. A dataset may be in several parts.
    """
    import pyarrow as pa

    table = pa.concat_tables(part())
    keys, texts = {}, {}
    for name in ("dataset_name", "node_name"):
        coded = table[name].combine_chunks().dictionary_encode()
        keys[name], texts[name] = to_numpy(coded.indices, np.int32).astype(np.int64), coded.dictionary
    columns = {
        "files": "br_node_files", "bytes": "br_node_bytes", "new_files": "new_file_count", "new_bytes": "new_bytes",
        "accessed_files": "accessed_file_count", "created_ms": "created_ms", "accessed_ms": "accessed_ms",
    }  # fmt: skip
    rows = summed(keys | {name: to_numpy(table[column], np.int64, -1) for name, column in columns.items()}, tuple(keys))
    return pa.table(
        {name: texts[name].take(from_numpy(rows[name])) for name in keys}
        | {name: from_numpy(rows[name]) for name in columns}
    )
