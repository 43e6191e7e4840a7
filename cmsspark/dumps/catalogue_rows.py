"""Rucio's catalogue beside that of DBS in tasks that share no disk (rule 27): :mod:`cmsspark.dumps.rucio_rows` with
the rows of FILES and BLOCKS, and the comparison of :mod:`cmsspark.dumps.catalogue_differences`.

FILES meet Rucio's files by name. A file that both have leads to a block by its id in DBS and by its name in Rucio;
these pairs, summed, meet the names of BLOCKS by the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.base.buffers import is_there, to_numpy
from cmsspark.base.exact_integers import Longs
from cmsspark.counting.catalogue import name_hash
from cmsspark.dumps.catalogue_differences import COLUMNS, DIFFERENCES, NULL, SUMMED, BothFiles, file_pieces, grouped
from cmsspark.dumps.dataset_contents import KnownDatasets
from cmsspark.dumps.dataset_replicas import Names
from cmsspark.dumps.file_partitions import Arrays
from cmsspark.dumps.keyed_rows import Columns, KeyedRows, by_key, keys_of
from cmsspark.dumps.rucio_rows import BlockNames, FileMerge, FilesOfKey, columns_of, kinds_of, with_own_names

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of FILES and BLOCKS, and pairs of a block's id in DBS and its name's hash in Rucio.
DBS_FILES, DBS_BLOCKS, BLOCK_PAIRS = "dbs_files", "dbs_blocks", "block_pairs"
#: Results: differences of datasets that DBS numbers, and files that only Rucio has, by the dataset's name.
DIFFERING, ONLY_RUCIO = "differing", "only_rucio"
_KEYS: Final = ("difference", "dataset")
_PAIR: Final = ("block_id", "block", "dataset")
_BLOCK: Final = DIFFERENCES.index("block")


@dataclass(frozen=True)
class CheckedFileMapper:
    """Keyed rows of FILES, by the hash of the file's name."""

    known: KnownDatasets
    keys: int

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
        for piece in file_pieces(tables, self.known):
            yield from by_key(DBS_FILES, keys_of(piece["hash"], self.keys), piece)


@dataclass(frozen=True)
class NamedBlockMapper:
    """Keyed rows of BLOCKS that have an id and a name, by the id; of tables of (``block_id``, ``block_name``)."""

    keys: int

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
        for table in tables:
            there = np.flatnonzero(is_there(table["block_id"]) & is_there(table["block_name"]))
            ids = to_numpy(table["block_id"], np.int64)[there]
            names = table["block_name"].take(there).to_pylist()
            columns = {"block_id": ids, "name": np.arange(len(ids))}
            for one in by_key(DBS_BLOCKS, _keys_of_ids(ids, self.keys), columns):
                yield with_own_names(one, "name", names)


@dataclass(frozen=True)
class CheckedFileMerge:
    """Merges the files of one key, and compares them with those of DBS. ``count``: how many datasets DBS numbers."""

    merge: FileMerge
    count: int

    def __call__(self, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
        """Yield what ``merge`` yields, differences, and pairs of blocks. Raises DataError (65)."""
        by_kind = kinds_of(rows)
        dbs = columns_of(by_kind.pop(DBS_FILES, []), COLUMNS)
        found = FilesOfKey.of(by_kind)
        yield from self.merge.sums(found)
        for others in by_kind.values():
            yield from others
        files = BothFiles.of(found.files, dbs)
        yield from self._differences(files, found.blocks)
        yield from self._pairs(files, found.blocks)

    def _differences(self, files: BothFiles, blocks: BlockNames) -> Iterator[KeyedRows]:
        rows = files.differences(blocks.dataset, np.zeros(len(files.block), np.bool_))
        is_rucio = rows.pop("is_rucio") > 0
        of_rucio = {name: values[is_rucio] for name, values in rows.items() if name != "difference"}
        for one in by_key(ONLY_RUCIO, keys_of(blocks.dataset_hashes[of_rucio["dataset"]], self.merge.keys), of_rucio):
            yield with_own_names(one, "dataset", blocks.datasets)
        of_dbs = {name: values[~is_rucio] for name, values in rows.items()}
        yield from _by_dataset(of_dbs, self.count, self.merge.keys)

    def _pairs(self, files: BothFiles, blocks: BlockNames) -> Iterator[KeyedRows]:
        both = files.in_dbs & files.in_rucio & (files.dbs["block"] != NULL)
        if not both.any():
            return
        columns: Arrays = {"block_id": files.dbs["block"][both], "dataset": files.dbs["dataset"][both],
                           "block": blocks.hashes[files.block[both]].view(np.int64), **files.bytes(both)}  # fmt: skip
        summed = grouped(columns, _PAIR)
        yield from by_key(BLOCK_PAIRS, _keys_of_ids(summed["block_id"], self.merge.keys), summed)


@dataclass(frozen=True)
class CatalogueMerge:
    """Merges the differences of one key. ``count``: how many datasets DBS numbers."""

    count: int
    keys: int

    def __call__(self, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
        """Yield differences by dataset; those of blocks may belong to another key. Raises DataError (65)."""
        by_kind = kinds_of(rows)
        differences = by_kind[DIFFERING]
        if by_kind[BLOCK_PAIRS]:
            differences += _other_blocks(by_kind[BLOCK_PAIRS], by_kind[DBS_BLOCKS], self.count, self.keys)
        yield from merged_differences(differences, self.count, self.keys)
        if by_kind[ONLY_RUCIO]:
            names = Names()
            numbers = [np.array([*map(names.number, one.names["datasets"])], np.int64)[one.columns["dataset"]]
                       for one in by_kind[ONLY_RUCIO]]  # fmt: skip
            columns = columns_of(by_kind[ONLY_RUCIO], SUMMED) | {"dataset": np.concatenate(numbers)}
            yield KeyedRows(key, ONLY_RUCIO, grouped(columns, ("dataset",)), {"datasets": list(names.numbers)})


def merged_differences(rows: Sequence[KeyedRows], count: int, keys: int) -> Iterator[KeyedRows]:
    """Differences of the ``count`` datasets of DBS, each (difference, dataset) once."""
    return _by_dataset(grouped(columns_of(rows, (*_KEYS, *SUMMED)), _KEYS), count, keys)


def _other_blocks(pairs: Sequence[KeyedRows], blocks: Sequence[KeyedRows], count: int, keys: int) -> list[KeyedRows]:
    """Differences of files whose blocks have other names in DBS than in Rucio; an unknown block differs from none."""
    names: dict[int, str] = {}
    for one in blocks:
        own = one.names["names"]
        for block_id, number in zip(one.columns["block_id"].tolist(), one.columns["name"].tolist(), strict=True):
            # Of two rows with one id the larger name.
            names[block_id] = max(names.get(block_id, ""), own[number])
    rows = columns_of(pairs, (*_PAIR, *SUMMED))
    of_dbs = [names.get(block_id) for block_id in rows["block_id"].tolist()]
    hashes = np.array([0 if name is None else name_hash(name.encode()) for name in of_dbs], np.uint64)
    differs = np.array([name is not None for name in of_dbs], np.bool_) & (hashes.view(np.int64) != rows["block"])
    found = {name: rows[name][differs] for name in ("dataset", *SUMMED)}
    found["difference"] = np.full(len(found["dataset"]), _BLOCK, np.int64)
    return list(_by_dataset(found, count, keys))


def _by_dataset(rows: Columns, count: int, keys: int) -> Iterator[KeyedRows]:
    return by_key(DIFFERING, rows["dataset"] * keys // max(1, count), rows)


def _keys_of_ids(ids: Longs, keys: int) -> Any:
    return keys_of(ids.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15), keys)
