"""Keyed rows of a Rucio dump (rules 24 to 26).

First all rows of a file meet, by the hash of its name: :class:`FileMerge` has its
block, size and replicas, and sums them by (block, RSE). Then all sums of a dataset
meet, by the hash of its name: :mod:`cmsspark.dumps.rucio_blocks`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import TYPE_CHECKING, Final

import numpy as np

from cmsspark.base.arrays import Longs
from cmsspark.base.buffers import from_numpy, to_numpy
from cmsspark.counting.catalogue import Hash, Hashes, check_hash, hashes_in, name_hash
from cmsspark.dumps.keyed_rows import (
    Columns,
    KeyedRows,
    by_key,
    group_rows,
    join_columns,
    keys_of_hashes,
    number_names,
    rank_names,
    rows_by_kind,
)
from cmsspark.dumps.rucio_files import (
    ACCESS_COLUMNS,
    REPLICA_COLUMNS,
    FileSums,
    RucioFiles,
    join_files,
    sum_files,
)

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of files: of CONTENTS, of REPLICAS, of DIDS.
CONTENTS, FILE_REPLICAS, FILE_ACCESSES = "rucio_contents", "rucio_replicas", "rucio_accesses"
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


@dataclass(frozen=True)
class BlockNames:
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


@dataclass(frozen=True)
class FilesOfKey:
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
        return cls(
            join_files(columns, replicas),
            accesses,
            BlockNames(names.take(from_numpy(np.argsort(ranks)))),
        )


@dataclass(frozen=True)
class FileMerge:
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
        yield from self._accesses(of_key.blocks, sums)
        if len(sums.no_block["rse"]):
            yield KeyedRows(0, OUTSIDE, sums.no_block)

    def _accesses(self, blocks: BlockNames, sums: FileSums) -> Iterator[KeyedRows]:
        numbers, accessed_ms = sums.accessed
        if len(numbers):
            yield from dataset_access_rows(
                blocks.dataset_hashes[blocks.dataset[numbers]], accessed_ms, self.keys
            )


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
