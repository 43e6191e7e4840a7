"""The files of Rucio: their blocks, sizes and replicas, and sums of these by block and
RSE (rules 24 to 26).

All rows of a file meet by the hash of its name. A file is told from others by both hashes.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final

import numpy as np

from cmsspark.base.arrays import Longs
from cmsspark.base.exact_integers import sums_by_group
from cmsspark.counting.catalogue import Hashes
from cmsspark.dumps.keyed_rows import (
    Columns,
    KeyedRows,
    find_starts,
    group_rows,
    join_columns,
    number_hashes,
)

#: Columns of rows of REPLICAS, CONTENTS and DIDS.
REPLICA_COLUMNS: Final = ("hash", "check", "rse", "bytes", "created_ms", "accessed_ms")
CONTENT_COLUMNS: Final = ("hash", "check", "block", "bytes")
ACCESS_COLUMNS: Final = ("hash", "check", "accessed_ms")
#: Counts and sums of a (RSE, block), the latter summed exactly, and its largest values (-1: null).
COUNTS: Final = ("files", "new_files", "accessed_files")
SUMS: Final = ("bytes", "new_bytes")
LARGEST: Final = ("created_ms", "accessed_ms")


@dataclass(frozen=True)
class RucioFiles:
    """The files of one key, by number."""

    #: Of each file: its block (-1: in none), and its size by CONTENTS, else by its
    #: largest replica (-1: unknown).
    block: Longs
    size: Longs
    #: Each (file, RSE) once.
    file: Longs
    rse: Longs
    bytes: Longs
    created_ms: Longs
    accessed_ms: Longs
    hash: Hashes
    check: Hashes


def join_files(of_contents: Columns, of_replicas: Columns) -> RucioFiles:
    """Return the files of some rows of CONTENTS (:data:`CONTENT_COLUMNS`; numbers of
    blocks are in the order of the names' bytes) and of REPLICAS
    (:data:`REPLICA_COLUMNS`). All rows of a file are among them.
    """
    split = len(of_contents["hash"])
    hashes = np.concatenate((of_contents["hash"], of_replicas["hash"]))
    checks = np.concatenate((of_contents["check"], of_replicas["check"]))
    ids, firsts = number_hashes(hashes, checks)
    count = len(firsts)
    file, rse, values = _replicas_once(ids[split:], of_replicas)
    block, size = _find_blocks(ids[:split], of_contents["block"], of_contents["bytes"], count)
    largest = np.full(count, -1, np.int64)
    np.maximum.at(largest, file, values["bytes"])
    size = np.where(size < 0, largest, size)
    return RucioFiles(block, size, file, rse, **values, hash=hashes[firsts], check=checks[firsts])


def _replicas_once(ids: Longs, replicas: Columns) -> tuple[Longs, Longs, Columns]:
    """Return each (file, RSE) once, with its largest values."""
    width = int(replicas["rse"].max(initial=0)) + 1
    keys = ids * width + replicas["rse"]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = find_starts(keys)
    values = {name: replicas[name][order] for name in ("bytes", "created_ms", "accessed_ms")}
    if len(starts) < len(keys):
        values = {name: np.maximum.reduceat(column, starts) for name, column in values.items()}
        keys = keys[starts]
    return keys // width, keys % width, values


def _find_blocks(ids: Longs, blocks: Longs, sizes: Longs, count: int) -> tuple[Longs, Longs]:
    """Return the smallest block of each file, and its size in the rows of that block;
    -1 where there is none.
    """
    none = np.iinfo(np.int64).max
    smallest = np.full(count, none, np.int64)
    np.minimum.at(smallest, ids, blocks)
    size = np.full(count, -1, np.int64)
    is_it = blocks == smallest[ids]
    np.maximum.at(size, ids[is_it], sizes[is_it])
    return np.where(smallest == none, -1, smallest), size


@dataclass(frozen=True)
class FileSums:
    """File and byte sums. ``sums``: by (``block``, ``rse``); ``no_block``: by ``rse``,
    of files in no block.

    ``totals`` of ``blocks``: ``files``, and their bytes as sums of ``upper`` and
    ``lower`` 32 bits. ``accessed``: blocks of files with a last access in DIDS, and the
    largest.
    """

    sums: Columns
    no_block: Columns
    blocks: Longs
    totals: Columns
    accessed: tuple[Longs, Longs]


def sum_files(files: RucioFiles, accesses: Columns, day_ms: tuple[int, int]) -> FileSums:
    """Return the sums of some files. ``accesses``: rows of DIDS, with :data:`ACCESS_COLUMNS`."""
    sums = _sum_replicas(files, day_ms)
    has_block = sums["block"] >= 0
    in_block = files.block[files.block >= 0]
    blocks, of_files = np.unique(in_block, return_inverse=True)
    sizes = np.maximum(files.size[files.block >= 0], 0)
    upper, lower = sums_by_group(of_files, sizes, len(blocks))
    totals = {
        "files": np.bincount(of_files, minlength=len(blocks)).astype(np.int64),
        "upper": upper,
        "lower": lower,
    }
    return FileSums(
        {name: values[has_block] for name, values in sums.items()},
        {name: values[~has_block] for name, values in sums.items() if name != "block"},
        blocks,
        totals,
        _find_accesses(files, accesses),
    )


def _find_accesses(files: RucioFiles, rows: Columns) -> tuple[Longs, Longs]:
    """Return the blocks of files with a last access in DIDS, and its largest value."""
    ids, _ = number_hashes(
        np.concatenate((files.hash, rows["hash"])), np.concatenate((files.check, rows["check"]))
    )
    block_of = np.full(int(ids.max(initial=-1)) + 1, -1, np.int64)
    block_of[ids[: len(files.hash)]] = files.block
    block = block_of[ids[len(files.hash) :]]
    blocks, positions = np.unique(block[block >= 0], return_inverse=True)
    largest = np.full(len(blocks), -1, np.int64)
    np.maximum.at(largest, positions, rows["accessed_ms"][block >= 0])
    return blocks, largest


def _sum_replicas(files: RucioFiles, day_ms: tuple[int, int]) -> Columns:
    """Return the sums of the file replicas by (block, RSE); block -1 for files in none."""
    block = files.block[files.file]
    is_new = (files.created_ms >= day_ms[0]) & (files.created_ms < day_ms[1])
    sizes = np.maximum(files.bytes, 0)
    ones = np.ones(len(block), np.int64)
    rows = {
        "block": block,
        "rse": files.rse,
        "files": ones,
        "new_files": is_new.astype(np.int64),
        "accessed_files": (files.accessed_ms >= 0).astype(np.int64),
        "bytes": sizes,
        "new_bytes": np.where(is_new, sizes, 0),
        "created_ms": files.created_ms,
        "accessed_ms": files.accessed_ms,
    }
    return sum_by(rows, ("block", "rse"))


def sum_by(rows: Columns, keys: Sequence[str]) -> Columns:
    """Join rows with equal keys: counts and bytes summed, times the largest. Raises
    DataError (65).
    """
    return group_rows(rows, keys, counts=COUNTS, sums=SUMS, largest=LARGEST)


def sum_rows(rows: Sequence[KeyedRows], keys: Sequence[str]) -> Columns:
    """Return :func:`sum_by` of sums in several rows."""
    return sum_by(join_columns(rows, (*keys, *COUNTS, *SUMS, *LARGEST)), keys)
