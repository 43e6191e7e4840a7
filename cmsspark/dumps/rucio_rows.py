"""Keyed rows of a Rucio dump (rules 24 to 26).

First all rows of a file meet, by the hash of its name: :class:`FileMerge` has its
block, size and replicas, and sums them by (block, RSE). Then all sums of a dataset
meet, by the hash of its name: :mod:`cmsspark.dumps.rucio_rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from functools import cached_property
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np

from cmsspark.base.arrays import Longs, joined, sums_by_group
from cmsspark.base.buffers import array, from_numpy, to_numpy
from cmsspark.counting.catalogue import (
    Hash,
    Hashes,
    check_hash,
    hashes_in,
    name_hash,
    replica_keys,
)
from cmsspark.dumps.dataset_replicas import BITS, NAMED, REPLICAS
from cmsspark.dumps.keyed_rows import (
    Columns,
    KeyedRows,
    Merge,
    by_key,
    find_starts,
    group_rows,
    join_columns,
    keys_of_hashes,
    number_hashes,
    number_names,
    rank_names,
    rows_by_kind,
    with_own_names,
)

if TYPE_CHECKING:
    import pyarrow as pa


# The files of Rucio: their blocks, sizes and replicas, and sums of these by block and
# RSE (rules 24 to 26).

#: Columns of rows of REPLICAS, CONTENTS and DIDS.
REPLICA_COLUMNS: Final = ("hash", "check", "rse", "bytes", "created_ms", "accessed_ms")
CONTENT_COLUMNS: Final = ("hash", "check", "block", "bytes")
ACCESS_COLUMNS: Final = ("hash", "check", "accessed_ms")
#: Counts and sums of a (RSE, block), the latter summed exactly, and its largest values (-1: null).
COUNTS: Final = ("files", "new_files", "accessed_files")
SUMS: Final = ("bytes", "new_bytes")
LARGEST: Final = ("created_ms", "accessed_ms")


class RucioFiles(msgspec.Struct, frozen=True):
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


def replicas_once(ids: Longs, replicas: Columns) -> tuple[Longs, Longs, Columns]:
    """Return each (file, RSE) once, with its largest values."""
    width = int(replicas["rse"].max(initial=0)) + 1
    keys = ids * width + replicas["rse"]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = find_starts(keys)
    names = [name for name in replicas if name not in ("hash", "check", "rse")]
    values = {name: replicas[name][order] for name in names}
    if len(starts) < len(keys):
        values = {name: np.maximum.reduceat(column, starts) for name, column in values.items()}
        keys = keys[starts]
    return keys // width, keys % width, values


def find_blocks(ids: Longs, blocks: Longs, sizes: Longs, count: int) -> tuple[Longs, Longs]:
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


class FileSums(msgspec.Struct, frozen=True):
    """File and byte sums. ``sums``: by (``block``, ``rse``). ``no_block``: by ``rse``,
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


#: Rows of files: of CONTENTS, of REPLICAS, of DIDS.
CONTENTS, FILE_REPLICAS, FILE_ACCESSES = "rucio_contents", "rucio_replicas", "rucio_accesses"
#: Rows of rules: the locks of their blocks, and that they are there.
DATASET_LOCKS, RULES = "dataset_locks", "rules"
#: Rows of datasets, by their name's hash: accesses of it and its blocks and files, and
#: the blocks that are in it.
DATASET_ACCESSES, ATTACHMENTS = "dataset_accesses", "attachments"
#: Sums of the first merge: by (block, RSE), by block, and by RSE of files in no block.
BLOCK_SUMS, BLOCK_TOTALS, OUTSIDE = "block_sums", "block_totals", "outside"
#: Blocks on disk at a site.
DISK_REPLICAS: Final = "disk_replicas"
_PAIR: Final = ("block", "site")
#: The counts of a task that read, which pass both merges.
READ_COUNTS: Final = "read_counts"


def dataset_access_rows(datasets: Hashes, accessed_ms: Longs, keys: int) -> Iterator[KeyedRows]:
    """Yield keyed rows of the largest access of each dataset."""
    hashes, positions = np.unique(datasets, return_inverse=True)
    largest = np.full(len(hashes), -1, np.int64)
    np.maximum.at(largest, positions, accessed_ms)
    return by_key(
        DATASET_ACCESSES, keys_of_hashes(hashes, keys), {"dataset": hashes, "accessed_ms": largest}
    )


class BlockNames(msgspec.Struct, frozen=True, dict=True):
    """Names of blocks, in order of their bytes; of each both hashes, and the number of
    its dataset.
    """

    names: pa.StringArray

    @cached_property
    def _datasets(self) -> pa.DictionaryArray:
        import pyarrow.compute as pc

        parts = pc.split_pattern(self.names, "#", max_splits=1)
        return parts.flatten().take(parts.offsets.slice(0, len(parts))).dictionary_encode()

    @cached_property
    def hashes(self) -> Hashes:
        return hash_names(self.names)

    @cached_property
    def checks(self) -> Hashes:
        return hash_names(self.names, check_hash)

    @property
    def datasets(self) -> pa.StringArray:
        return self._datasets.dictionary

    @cached_property
    def dataset_hashes(self) -> Hashes:
        return hash_names(self.datasets)

    @cached_property
    def dataset(self) -> Longs:
        return to_numpy(self._datasets.indices, np.int32).astype(np.int64)

    def rows(self, kind: str, columns: Columns, keys: int) -> Iterator[KeyedRows]:
        """Yield rows by the key of the dataset; ``block`` of ``columns``, a number
        here, becomes its name's hashes.
        """
        block = columns["block"]
        dataset = self.dataset[block]
        named = columns | {
            "block": self.hashes[block],
            "check": self.checks[block],
            "dataset": dataset,
        }
        row_keys = keys_of_hashes(self.dataset_hashes, keys)[dataset]
        return by_key(kind, row_keys, named, {"dataset": self.datasets})


class FilesOfKey(msgspec.Struct, frozen=True):
    """All files of a key, and the names of their blocks."""

    files: RucioFiles
    accesses: Columns
    blocks: BlockNames

    @classmethod
    def from_rows(cls, rows: dict[str, list[KeyedRows]]) -> FilesOfKey:
        """Take the rows of files out of rows by kind."""
        contents = rows.pop(CONTENTS, [])
        numbers, names = number_names(contents, "block")
        ranks = rank_names(names)
        columns = join_columns(contents, ("hash", "check", "bytes")) | {"block": ranks[numbers]}
        replicas = join_columns(rows.pop(FILE_REPLICAS, []), REPLICA_COLUMNS)
        accesses = join_columns(rows.pop(FILE_ACCESSES, []), ACCESS_COLUMNS)
        # All rows of a file are among these.
        split = len(columns["hash"])
        hashes = np.concatenate((columns["hash"], replicas["hash"]))
        checks = np.concatenate((columns["check"], replicas["check"]))
        ids, firsts = number_hashes(hashes, checks)
        count = len(firsts)
        file, rse, values = replicas_once(ids[split:], replicas)
        block, size = find_blocks(ids[:split], columns["block"], columns["bytes"], count)
        largest = np.full(count, -1, np.int64)
        np.maximum.at(largest, file, values["bytes"])
        size = np.where(size < 0, largest, size)
        return cls(
            RucioFiles(
                block, size, file, rse, **values, hash=hashes[firsts], check=checks[firsts]
            ),
            accesses,
            BlockNames(names.take(from_numpy(np.argsort(ranks)))),
        )


class FileMerge(msgspec.Struct, frozen=True):
    """Merges the rows of the files of one key. ``day_ms``: the day in which replicas are new."""

    keys: int
    day_ms: tuple[int, int]

    def __call__(self, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
        """Yield sums by block, by the key of its dataset, and what is of no file as it
        is. Raises DataError (65).
        """
        by_kind = rows_by_kind(rows)
        yield from self.sums(FilesOfKey.from_rows(by_kind))
        for of_kind in by_kind.values():
            yield from of_kind

    def sums(self, of_key: FilesOfKey) -> Iterator[KeyedRows]:
        """Yield the sums of the files."""
        sums = sum_files(of_key.files, of_key.accesses, self.day_ms)
        yield from of_key.blocks.rows(BLOCK_SUMS, sums.sums, self.keys)
        yield from of_key.blocks.rows(
            BLOCK_TOTALS, {"block": sums.blocks, **sums.totals}, self.keys
        )
        numbers, accessed_ms = sums.accessed
        if len(numbers):
            yield from dataset_access_rows(
                of_key.blocks.dataset_hashes[of_key.blocks.dataset[numbers]],
                accessed_ms,
                self.keys,
            )
        if len(sums.no_block["rse"]):
            yield KeyedRows(0, OUTSIDE, sums.no_block)


def find_disk_replicas(
    keys: int, sites: tuple[int, ...], key: int, rows: Iterable[KeyedRows]
) -> Iterator[KeyedRows]:
    """Yield (``block``, ``site``) of replicas on disk, the hash of the name and a
    number, by the block's key; and the counts of tasks that read. ``sites``: of each
    RSE by number, -1 where it is not disk.
    """
    by_kind = rows_by_kind(rows)
    yield from by_kind.pop(READ_COUNTS, [])
    of_key = FilesOfKey.from_rows(by_kind)
    files = of_key.files
    block, site = files.block[files.file], np.array([*sites, -1], np.int64)[files.rse]
    counts = (block >= 0) & (site >= 0)
    pairs = group_rows({"block": of_key.blocks.hashes[block[counts]], "site": site[counts]}, _PAIR)
    yield from by_key(DISK_REPLICAS, keys_of_hashes(pairs["block"], keys), pairs)


def merge_disk_replicas(key: int, rows: Sequence[KeyedRows]) -> Iterator[KeyedRows]:
    """Yield each (``block``, ``site``) of some rows once."""
    pairs = {name: np.concatenate([entry.columns[name] for entry in rows]) for name in _PAIR}
    yield KeyedRows(key, DISK_REPLICAS, group_rows(pairs, _PAIR))


def hash_names(names: pa.StringArray, hash_name: Hash = name_hash) -> Hashes:
    """Return the hashes of some texts."""
    import pyarrow as pa

    return hashes_in(pa.chunked_array([names], pa.string()), hash_name)


# Sums of Rucio's files to replicas of blocks, where all sums of a dataset meet (rule
# 26).

#: Results: sums by (dataset, RSE), last accesses of datasets, blocks that are not in
#: their dataset.
RSE_SUMS, LAST_ACCESS, UNATTACHED = "rse_sums", "last_access", "unattached"
_MEASURED: Final = (*COUNTS, *SUMS, *LARGEST)


class BlockMerge(msgspec.Struct, frozen=True):
    """Merges the sums of the blocks of one key. ``rses``: the names of storage elements by number.

    ``merge``: takes the replicas of blocks, and rows of other kinds; None: only the
    sums of Rucio are made.
    """

    rses: tuple[str, ...]
    merge: Merge | None

    def __call__(self, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
        """Yield the results of Rucio, and those of ``merge``. Raises DataError (65)."""
        by_kind = rows_by_kind(rows)
        yield from by_kind.pop(READ_COUNTS, [])
        if outside := by_kind.pop(OUTSIDE, []):
            yield KeyedRows(key, OUTSIDE, sum_rows(outside, ("rse",)))
        sums, totals = by_kind.pop(BLOCK_SUMS, []), by_kind.pop(BLOCK_TOTALS, [])
        attached, accesses = by_kind.pop(ATTACHMENTS, []), by_kind.pop(DATASET_ACCESSES, [])
        if totals:
            blocks = _BlocksOfKey.from_rows(sums, totals)
            yield KeyedRows(
                key, UNATTACHED, {"count": np.array([blocks.unattached(attached)], np.int64)}
            )
            if len(blocks.sums["block"]):
                yield blocks.rse_sums(key)
                yield from blocks.last_access(key, accesses)
                by_kind[REPLICAS] = [blocks.replicas(key, self.rses)]
        if self.merge is not None:
            yield from self.merge(
                key, [entry for of_kind in by_kind.values() for entry in of_kind]
            )


class _BlocksOfKey(msgspec.Struct, frozen=True):
    """The blocks of some datasets by number. ``sums``: by (``block``, ``rse``)."""

    hashes: Hashes
    dataset: Longs
    datasets: pa.StringArray
    files: Longs
    bytes: Longs
    sums: Columns

    @classmethod
    def from_rows(cls, sums: Sequence[KeyedRows], totals: Sequence[KeyedRows]) -> _BlocksOfKey:
        """Join sums of several tasks. Each block of ``sums`` has totals."""
        both = [*totals, *sums]
        columns = join_columns(both, ("block", "check"), np.uint64)
        ids, firsts = number_hashes(columns["block"], columns["check"])
        dataset, datasets = number_names(both, "dataset")
        split = sum(len(entry.columns["block"]) for entry in totals)
        of_rows = join_columns(totals, ("files", "upper", "lower"))
        of_blocks = {name: np.zeros(len(firsts), np.int64) for name in of_rows}
        for name, values in of_rows.items():
            np.add.at(of_blocks[name], ids[:split], values)
        rows = sum_by(
            {"block": ids[split:], **join_columns(sums, ("rse", *_MEASURED))}, ("block", "rse")
        )
        sizes = joined(of_blocks["upper"], of_blocks["lower"], "the files of a block")
        return cls(
            columns["block"][firsts], dataset[firsts], datasets, of_blocks["files"], sizes, rows
        )

    def replicas(self, key: int, rses: Sequence[str]) -> KeyedRows:
        """Return the replicas of blocks, as
        :class:`cmsspark.dumps.dataset_replicas.ReplicaMapper` makes them.
        """
        rows, block = self.sums, self.sums["block"]
        has_time = rows["created_ms"] >= 0
        all_but_time = (
            NAMED
            | BITS["block_files"]
            | BITS["block_bytes"]
            | BITS["node_files"]
            | BITS["node_bytes"]
        )
        columns: Columns = {
            "dataset": self.dataset[block],
            "node": rows["rse"],
            "block": self.hashes[block],
            "block_files": self.files[block],
            "block_bytes": self.bytes[block],
            "node_files": rows["files"],
            "node_bytes": rows["bytes"],
            "created_ms": np.where(has_time, rows["created_ms"], 0),
            "there": (all_but_time | has_time * BITS["created_ms"]).astype(np.uint8),
        }
        return KeyedRows(
            key, REPLICAS, columns, {"dataset": self.datasets, "node": array(list(rses), "string")}
        )

    def rse_sums(self, key: int) -> KeyedRows:
        """Return the sums by (``dataset``, ``rse``)."""
        rows = {name: self.sums[name] for name in ("rse", *_MEASURED)}
        sums = sum_by({"dataset": self.dataset[self.sums["block"]], **rows}, ("dataset", "rse"))
        return KeyedRows(key, RSE_SUMS, sums, {"dataset": self.datasets})

    def last_access(self, key: int, accesses: Sequence[KeyedRows]) -> Iterator[KeyedRows]:
        """Yield the largest access in DIDS of each dataset with replicas that has one."""
        (accessed_ms,) = join_columns(accesses, ("accessed_ms",)).values()
        (accessed,) = join_columns(accesses, ("dataset",), np.uint64).values()
        numbers = np.unique(self.dataset[self.sums["block"]])
        hashes = hash_names(self.datasets.take(from_numpy(numbers)))
        order = np.argsort(hashes)
        positions = np.minimum(np.searchsorted(hashes[order], accessed), len(order) - 1)
        is_it = hashes[order][positions] == accessed
        largest = np.full(len(self.datasets), -1, np.int64)
        np.maximum.at(largest, numbers[order][positions[is_it]], accessed_ms[is_it])
        accessed_rows = np.flatnonzero(largest >= 0)
        if len(accessed_rows):
            columns = {"dataset": accessed_rows, "accessed_ms": largest[accessed_rows]}
            yield with_own_names(KeyedRows(key, LAST_ACCESS, columns, {"dataset": self.datasets}))

    def unattached(self, attachments: Sequence[KeyedRows]) -> int:
        """Return how many blocks are not in their own dataset."""
        rows = join_columns(attachments, ("block", "dataset"), np.uint64)
        attached = replica_keys(rows["block"].view(np.int64), rows["dataset"])
        block_keys = replica_keys(
            self.hashes.view(np.int64), hash_names(self.datasets)[self.dataset]
        )
        return int((~np.isin(block_keys, attached)).sum())
