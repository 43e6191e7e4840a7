"""Sums of Rucio's files to replicas of blocks, where all sums of a dataset meet (rule 26).

The second merge, after that of :mod:`cmsspark.dumps.rucio_rows`.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Final

import numpy as np

from cmsspark.base.arrays import Longs
from cmsspark.base.buffers import array, from_numpy
from cmsspark.base.exact_integers import joined
from cmsspark.counting.catalogue import Hashes, replica_keys
from cmsspark.dumps.dataset_replicas import REPLICAS
from cmsspark.dumps.keyed_rows import (
    Columns,
    KeyedRows,
    Merge,
    join_columns,
    number_hashes,
    number_names,
    rows_by_kind,
    with_own_names,
)
from cmsspark.dumps.replica_sums import BITS, NAMED
from cmsspark.dumps.rucio_files import COUNTS, LARGEST, SUMS, sum_by, sum_rows
from cmsspark.dumps.rucio_rows import (
    ATTACHMENTS,
    BLOCK_SUMS,
    BLOCK_TOTALS,
    DATASET_ACCESSES,
    OUTSIDE,
    READ_COUNTS,
    hash_names,
)

if TYPE_CHECKING:
    import pyarrow as pa

#: Results: sums by (dataset, RSE), last accesses of datasets, blocks that are not in
#: their dataset.
RSE_SUMS, LAST_ACCESS, UNATTACHED = "rse_sums", "last_access", "unattached"
_MEASURED: Final = (*COUNTS, *SUMS, *LARGEST)


@dataclass(frozen=True)
class BlockMerge:
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


@dataclass(frozen=True)
class _BlocksOfKey:
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
