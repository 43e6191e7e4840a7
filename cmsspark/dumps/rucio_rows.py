"""Rows of a Rucio dump that move between tasks which share no disk (rules 24 to 26).

First all rows of a file meet, by the hash of its name: :class:`FileMerge` has its block, size and replicas, and sums
them by (block, RSE). Then all sums of a dataset meet, by the hash of its name: :mod:`cmsspark.dumps.rucio_blocks`.
The rules stand in :mod:`cmsspark.dumps.file_partitions` and :mod:`cmsspark.dumps.block_replicas`, for processes too.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from typing import Any, Final

import numpy as np

from cmsspark.base.buffers import array
from cmsspark.base.exact_integers import Longs
from cmsspark.base.names import block_dataset
from cmsspark.counting.catalogue import Hash, Hashes, check_hash, hashes_in, name_hash
from cmsspark.dumps.block_replicas import FileSums, file_sums
from cmsspark.dumps.dataset_replicas import Names
from cmsspark.dumps.file_partitions import (
    ACCESS_COLUMNS,
    CONTENT_COLUMNS,
    REPLICA_COLUMNS,
    Arrays,
    RucioFiles,
    rucio_files,
)
from cmsspark.dumps.keyed_rows import Columns, KeyedRows, by_key, keys_of

#: Rows of files: of CONTENTS, of REPLICAS, of DIDS.
CONTENTS, FILE_REPLICAS, FILE_ACCESSES = "rucio_contents", "rucio_replicas", "rucio_accesses"
#: Rows of datasets, by their name's hash: accesses of it and its blocks and files, and the blocks that are in it.
DATASET_ACCESSES, ATTACHMENTS = "dataset_accesses", "attachments"
#: Sums of the first merge: by (block, RSE), by block, and by RSE of files in no block.
BLOCK_SUMS, BLOCK_TOTALS, OUTSIDE = "block_sums", "block_totals", "outside"
#: Blocks on disk at a site.
DISK_REPLICAS: Final = "disk_replicas"
#: The counts of a task that read, which pass both merges.
READ_COUNTS: Final = "read_counts"

#: Kinds of each column of rows of files: hashes are unsigned.
_KINDS: Final = {"hash": np.uint64, "check": np.uint64}


def replica_rows(rows: Arrays, keys: int) -> Iterator[KeyedRows]:
    """Keyed rows of REPLICAS, with ``file_partitions.REPLICA_COLUMNS``."""
    return by_key(FILE_REPLICAS, keys_of(rows["hash"], keys), rows)


def access_rows(rows: Arrays, keys: int) -> Iterator[KeyedRows]:
    """Keyed rows of files in DIDS, with ``file_partitions.ACCESS_COLUMNS``."""
    return by_key(FILE_ACCESSES, keys_of(rows["hash"], keys), rows)


def content_rows(rows: Arrays, names: Sequence[str], keys: int) -> Iterator[KeyedRows]:
    """Keyed rows of CONTENTS: ``hash``, ``check``, ``bytes``, and ``parent``, a number among ``names``."""
    for one in by_key(CONTENTS, keys_of(rows["hash"], keys), rows):
        some, places = np.unique(one.columns["parent"], return_inverse=True)
        columns = {name: values for name, values in one.columns.items() if name != "parent"}
        yield one._replace(columns=columns | {"block": places}, names={"blocks": [names[number] for number in some]})


def attachment_rows(blocks: Hashes, datasets: Hashes, keys: int) -> Iterator[KeyedRows]:
    """Keyed rows of blocks (hashes of their names) in datasets."""
    return by_key(ATTACHMENTS, keys_of(datasets, keys), {"block": blocks, "dataset": datasets})


def dataset_access_rows(datasets: Hashes, accessed_ms: Longs, keys: int) -> Iterator[KeyedRows]:
    """Keyed rows of the largest access of each dataset."""
    some, places = np.unique(datasets, return_inverse=True)
    largest = np.full(len(some), -1, np.int64)
    np.maximum.at(largest, places, accessed_ms)
    return by_key(DATASET_ACCESSES, keys_of(some, keys), {"dataset": some, "accessed_ms": largest})


@dataclass(frozen=True)
class BlockNames:
    """Names of blocks, in order of their bytes; of each both hashes, and the number of its dataset."""

    names: Sequence[str]

    @cached_property
    def _numbers(self) -> Names:
        numbers = Names()
        for name in self.names:
            numbers.number(block_dataset(name))
        return numbers

    @cached_property
    def hashes(self) -> Hashes:
        return hashes_of_names(self.names)

    @cached_property
    def checks(self) -> Hashes:
        return hashes_of_names(self.names, check_hash)

    @cached_property
    def datasets(self) -> list[str]:
        return [name for name in self._numbers.numbers if name is not None]

    @cached_property
    def dataset_hashes(self) -> Hashes:
        return hashes_of_names(self.datasets)

    @cached_property
    def dataset(self) -> Longs:
        return np.array([self._numbers.number(block_dataset(name)) for name in self.names], np.int64)

    def rows(self, what: str, columns: Columns, keys: int) -> Iterator[KeyedRows]:
        """Rows by the key of the dataset; ``block`` of ``columns``, a number here, becomes its name's hashes."""
        block = columns["block"]
        dataset = self.dataset[block]
        named = columns | {"block": self.hashes[block], "check": self.checks[block], "dataset": dataset}
        for one in by_key(what, keys_of(self.dataset_hashes[dataset], keys), named):
            yield with_own_names(one, "dataset", self.datasets)


def with_own_names(rows: KeyedRows, what: str, names: Sequence[str]) -> KeyedRows:
    """Rows whose column ``what``, numbers of ``names``, numbers the names that these rows have."""
    some, places = np.unique(rows.columns[what], return_inverse=True)
    return rows._replace(
        columns=rows.columns | {what: places}, names={f"{what}s": [names[number] for number in some.tolist()]}
    )


@dataclass(frozen=True)
class FilesOfKey:
    """All files of a key, and the names of their blocks."""

    files: RucioFiles
    accesses: Arrays
    blocks: BlockNames

    @classmethod
    def of(cls, rows: dict[str, list[KeyedRows]]) -> FilesOfKey:
        """From rows by kind."""
        contents = rows.pop(CONTENTS, [])
        blocks = BlockNames(sorted({name for one in contents for name in one.names["blocks"]}))
        numbers = {name: number for number, name in enumerate(blocks.names)}
        columns = columns_of(contents, tuple(name for name in CONTENT_COLUMNS if name != "block"))
        of_rows = [np.array([numbers[name] for name in one.names["blocks"]], np.int64)[one.columns["block"]]
                   for one in contents]  # fmt: skip
        columns["block"] = np.concatenate([np.zeros(0, np.int64), *of_rows])
        replicas = columns_of(rows.pop(FILE_REPLICAS, []), REPLICA_COLUMNS)
        accesses = columns_of(rows.pop(FILE_ACCESSES, []), ACCESS_COLUMNS)
        return cls(rucio_files(columns, replicas), accesses, blocks)


@dataclass(frozen=True)
class FileMerge:
    """Merges the rows of the files of one key. ``day_ms``: the day in which replicas are new."""

    keys: int
    day_ms: tuple[int, int]

    def __call__(self, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
        """Yield sums by block, by the key of its dataset, and what is of no file as it is. Raises DataError (65)."""
        by_kind = kinds_of(rows)
        found = FilesOfKey.of(by_kind)
        yield from self.sums(found)
        for others in by_kind.values():
            yield from others

    def sums(self, found: FilesOfKey) -> Iterator[KeyedRows]:
        """Yield what the files come to."""
        sums = file_sums(found.files, found.accesses, self.day_ms)
        yield from found.blocks.rows(BLOCK_SUMS, sums.sums, self.keys)
        yield from found.blocks.rows(BLOCK_TOTALS, {"block": sums.blocks, **sums.totals}, self.keys)
        yield from self._accesses(found.blocks, sums)
        if len(sums.no_block["rse"]):
            yield KeyedRows(0, OUTSIDE, sums.no_block)

    def _accesses(self, blocks: BlockNames, sums: FileSums) -> Iterator[KeyedRows]:
        numbers, accessed_ms = sums.accessed
        if len(numbers):
            yield from dataset_access_rows(blocks.dataset_hashes[blocks.dataset[numbers]], accessed_ms, self.keys)


@dataclass(frozen=True)
class DiskReplicaMerge:
    """Merges the rows of the files of one key. ``sites``: of each RSE by number, -1 where it is not disk."""

    keys: int
    sites: tuple[int, ...]

    def __call__(self, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
        """Yield (``block``, ``site``) of replicas on disk, the hash of the name and a number, by the block's key; and
        the counts of tasks that read.
        """
        by_kind = kinds_of(rows)
        yield from by_kind.pop(READ_COUNTS, [])
        found = FilesOfKey.of(by_kind)
        files = found.files
        block, site = files.block[files.file], np.array([*self.sites, -1], np.int64)[files.rse]
        counts = (block >= 0) & (site >= 0)
        pairs = unique_pairs({"block": found.blocks.hashes[block[counts]], "site": site[counts]})
        yield from by_key(DISK_REPLICAS, keys_of(pairs["block"], self.keys), pairs)


def unique_pairs(pairs: Columns) -> Columns:
    """Return each (``block``, ``site``) once."""
    order = np.lexsort((pairs["site"], pairs["block"]))
    block, site = pairs["block"][order], pairs["site"][order]
    starts = np.ones(len(order), np.bool_)
    starts[1:] = (block[1:] != block[:-1]) | (site[1:] != site[:-1])
    return {"block": block[starts], "site": site[starts]}


def merged_disk_replicas(key: int, rows: Sequence[KeyedRows]) -> Iterator[KeyedRows]:
    """Yield each (``block``, ``site``) of some rows once."""
    pairs = {name: np.concatenate([one.columns[name] for one in rows]) for name in ("block", "site")}
    yield KeyedRows(key, DISK_REPLICAS, unique_pairs(pairs))


def kinds_of(rows: Iterable[KeyedRows]) -> dict[str, list[KeyedRows]]:
    """Rows by kind."""
    by_kind: dict[str, list[KeyedRows]] = defaultdict(list)
    for one in rows:
        by_kind[one.what].append(one)
    return by_kind


def columns_of(rows: Sequence[KeyedRows], names: Sequence[str], kind: Any = np.int64) -> Arrays:
    """Columns of rows one after the other, also where there are none."""
    return {
        name: np.concatenate([np.zeros(0, _KINDS.get(name, kind)), *(one.columns[name] for one in rows)])
        for name in names
    }


def hashes_of_names(names: Sequence[str], hash_name: Hash = name_hash) -> Hashes:
    """Return the hashes of some texts."""
    import pyarrow as pa

    return hashes_in(pa.chunked_array([array(list(names), "string")]), hash_name)
