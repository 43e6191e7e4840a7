"""The catalogue of Rucio beside that of DBS, file by file (rule 27).

FILES meet Rucio's files by name. Of one name in FILES the row with the larger file_id
counts, and rows whose dataset is not in DATASETS do not (rule 18). A file that both
have leads to a block by its id in DBS and by its name in Rucio; these pairs, summed,
meet the names of BLOCKS by the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.base.buffers import flags, is_there, to_numpy
from cmsspark.counting.catalogue import check_hash, hashes_in
from cmsspark.dumps.dataset_contents import ROW_USE, KnownDatasets
from cmsspark.dumps.keyed_rows import (
    Columns,
    KeyedRows,
    by_key,
    group_rows,
    join_columns,
    keys_of_hashes,
    keys_of_ids,
    map_slices,
    number_hashes,
    number_names,
    rank_names,
    rows_by_kind,
)
from cmsspark.dumps.rucio_rows import BlockNames, FileMerge, FilesOfKey, RucioFiles, hash_names

if TYPE_CHECKING:
    import pyarrow as pa

#: The differences, by number.
DIFFERENCES: Final = ("only_dbs", "only_dbs_invalid", "only_rucio", "block", "size")
#: Columns of FILES that are read.
FILE_COLUMNS: Final = (
    "logical_file_name",
    "file_id",
    "dataset_id",
    "block_id",
    "is_file_valid",
    "file_size",
)
COLUMNS: Final = ("hash", "check", "file_id", "dataset", "block", "valid", "bytes")
#: Stands for null in columns of FILES.
NULL: Final = np.iinfo(np.int64).min
#: Rows of FILES and BLOCKS, and pairs of a block's id in DBS and its name's hash in Rucio.
DBS_FILES, DBS_BLOCKS, BLOCK_PAIRS = "dbs_files", "dbs_blocks", "block_pairs"
#: Results: differences of datasets that DBS numbers, and files that only Rucio has, by
#: the dataset's name.
DIFFERING, ONLY_RUCIO = "differing", "only_rucio"
#: ``dbs_sized_count``: files whose size DBS knows; without any, their bytes are null (rule 27).
SUMMED: Final = ("file_count", "dbs_sized_count", "dbs_bytes", "rucio_bytes")
_KEYS: Final = ("difference", "dataset")
_PAIR: Final = ("block_id", "block", "dataset")


class CheckedFileMapper(msgspec.Struct, frozen=True):
    """Makes keyed rows of FILES, by the hash of the file's name: named files of
    ``datasets`` with :data:`COLUMNS`.

    ``dataset``: the number of its name; :data:`NULL` stands for null.
    """

    datasets: KnownDatasets
    keys: int

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
        for piece in map_slices(self._facts, tables):
            yield from by_key(DBS_FILES, keys_of_hashes(piece["hash"], self.keys), piece)

    def _facts(self, table: pa.Table) -> Columns:
        positions = self.datasets.find_positions(table["dataset_id"])
        stays = (positions >= 0) & is_there(table["logical_file_name"])
        table, positions = table.filter(flags(stays)), positions[stays]
        return {
            "hash": hashes_in(table["logical_file_name"]),
            "check": hashes_in(table["logical_file_name"], check_hash),
            "file_id": to_numpy(table["file_id"], np.int64, NULL),
            "dataset": self.datasets.numbers[positions].astype(np.int64),
            "block": to_numpy(table["block_id"], np.int64, NULL),
            "valid": to_numpy(table["is_file_valid"], np.int64, NULL),
            "bytes": to_numpy(table["file_size"], np.int64, NULL),
        }


def map_named_blocks(keys: int, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
    """Yield keyed rows of BLOCKS that have an id and a name, by the id; of tables of
    (``block_id``, ``block_name``).
    """
    for table in tables:
        blocks = table.filter(flags(is_there(table["block_id"]) & is_there(table["block_name"])))
        ids = to_numpy(blocks["block_id"], np.int64)
        columns = {"block_id": ids, "name": np.arange(len(ids))}
        names = blocks["block_name"].combine_chunks()
        yield from by_key(DBS_BLOCKS, keys_of_ids(ids, keys), columns, {"name": names})


class CheckedFileMerge(msgspec.Struct, frozen=True):
    """Merges the files of one key, and compares them with those of DBS. ``count``: how
    many datasets DBS numbers.
    """

    merge: FileMerge
    count: int

    def __call__(self, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
        """Yield what ``merge`` yields, differences, and pairs of blocks. Raises DataError (65)."""
        by_kind = rows_by_kind(rows)
        dbs = join_columns(by_kind.pop(DBS_FILES, []), COLUMNS)
        of_key = FilesOfKey.from_rows(by_kind)
        yield from self.merge.sums(of_key)
        for of_kind in by_kind.values():
            yield from of_kind
        files = BothFiles.join(of_key.files, dbs)
        yield from self._differences(files, of_key.blocks)
        yield from self._pairs(files, of_key.blocks)

    def _differences(self, files: BothFiles, blocks: BlockNames) -> Iterator[KeyedRows]:
        only_rucio = files.in_rucio & ~files.in_dbs
        dataset = blocks.dataset[files.block[only_rucio]]
        of_rucio = group_rows(
            {"dataset": dataset, **files.bytes(only_rucio)}, ("dataset",), sums=SUMMED
        )
        row_keys = keys_of_hashes(blocks.dataset_hashes, self.merge.keys)[of_rucio["dataset"]]
        yield from by_key(ONLY_RUCIO, row_keys, of_rucio, {"dataset": blocks.datasets})
        for name, rows in files.differences():
            columns = {"dataset": files.dbs["dataset"][rows], **files.bytes(rows)}
            yield from _by_dataset(name, columns, self.count, self.merge.keys)

    def _pairs(self, files: BothFiles, blocks: BlockNames) -> Iterator[KeyedRows]:
        both = files.in_dbs & files.in_rucio & (files.dbs["block"] != NULL)
        if not both.any():
            return
        columns: Columns = {
            "block_id": files.dbs["block"][both],
            "dataset": files.dbs["dataset"][both],
            "block": blocks.hashes[files.block[both]].view(np.int64),
            **files.bytes(both),
        }
        summed = group_rows(columns, _PAIR, sums=SUMMED)
        yield from by_key(BLOCK_PAIRS, keys_of_ids(summed["block_id"], self.merge.keys), summed)


def merge_catalogues(
    count: int, keys: int, key: int, rows: Iterable[KeyedRows]
) -> Iterator[KeyedRows]:
    """Yield the differences of one key by dataset; those of blocks may belong to
    another key. ``count``: how many datasets DBS numbers. Raises DataError (65).
    """
    by_kind = rows_by_kind(rows)
    yield from by_kind[ROW_USE]
    differences = by_kind[DIFFERING]
    if by_kind[BLOCK_PAIRS]:
        differences += _compare_blocks(by_kind[BLOCK_PAIRS], by_kind[DBS_BLOCKS], count, keys)
    yield from merge_differences(count, keys, key, differences)
    if by_kind[ONLY_RUCIO]:
        numbers, names = number_names(by_kind[ONLY_RUCIO], "dataset")
        columns = join_columns(by_kind[ONLY_RUCIO], SUMMED) | {"dataset": numbers}
        yield KeyedRows(
            key, ONLY_RUCIO, group_rows(columns, ("dataset",), sums=SUMMED), {"dataset": names}
        )


def merge_differences(
    count: int, keys: int, key: int, rows: Sequence[KeyedRows]
) -> Iterator[KeyedRows]:
    """Yield each (difference, dataset) once. ``count``: how many datasets DBS numbers.
    Raises DataError (65).
    """
    sums = group_rows(join_columns(rows, (*_KEYS, *SUMMED)), _KEYS, sums=SUMMED)
    return by_key(DIFFERING, sums["dataset"] * keys // max(1, count), sums)


def _compare_blocks(
    pairs: Sequence[KeyedRows], blocks: Sequence[KeyedRows], count: int, keys: int
) -> list[KeyedRows]:
    """Return differences of files whose blocks DBS and Rucio name otherwise; unknown
    blocks differ from none.
    """
    numbers, names = number_names(blocks, "name")
    ids = join_columns(blocks, ("block_id",))["block_id"]
    # Of two rows with one id the larger name is the last.
    order = np.lexsort((rank_names(names)[numbers], ids))
    ids, hashes = ids[order], hash_names(names)[numbers[order]]
    rows = join_columns(pairs, (*_PAIR, *SUMMED))
    last = np.searchsorted(ids, rows["block_id"], "right") - 1
    has_name = (
        (last >= 0) & (ids[last] == rows["block_id"])
        if len(ids)
        else np.zeros(len(last), np.bool_)
    )
    differs = has_name & (hashes[last].view(np.int64) != rows["block"]) if len(ids) else has_name
    return list(
        _by_dataset(
            "block", {name: rows[name][differs] for name in ("dataset", *SUMMED)}, count, keys
        )
    )


def _by_dataset(difference: str, rows: Columns, count: int, keys: int) -> Iterator[KeyedRows]:
    """Yield the sums of some files that differ, by ranges of datasets."""
    sums = group_rows(rows, ("dataset",), sums=SUMMED)
    sums["difference"] = np.full(len(sums["dataset"]), DIFFERENCES.index(difference))
    return by_key(DIFFERING, sums["dataset"] * keys // max(1, count), sums)


class BothFiles(msgspec.Struct, frozen=True):
    """Files that are in DBS or in a block of Rucio. ``dbs``: :data:`COLUMNS` of the row
    of FILES that counts; ``block`` (a number) and ``size`` (-1: unknown) by Rucio.
    """

    dbs: Columns
    in_dbs: npt.NDArray[np.bool_]
    in_rucio: npt.NDArray[np.bool_]
    block: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]

    @classmethod
    def join(cls, rucio: RucioFiles, dbs: Columns) -> BothFiles:
        """Join all files of Rucio and all rows of FILES of some names."""
        has_block = rucio.block >= 0
        hashes, checks = rucio.hash[has_block], rucio.check[has_block]
        split = len(hashes)
        ids, firsts = number_hashes(
            np.concatenate((hashes, dbs["hash"])), np.concatenate((checks, dbs["check"]))
        )
        count = len(firsts)
        block, size = (np.full(count, -1, np.int64) for _ in range(2))
        block[ids[:split]], size[ids[:split]] = rucio.block[has_block], rucio.size[has_block]
        # The row of each name that counts: the one with the larger file_id; -1 where it
        # has none.
        names = ids[split:]
        order = np.lexsort((dbs["dataset"], dbs["file_id"], names))
        row = np.full(count, -1, np.int64)
        # The last of several rows stays.
        row[names[order]] = order
        facts = {
            name: values[row] if len(values) else np.full(count, NULL, np.int64)
            for name, values in dbs.items()
        }
        return cls(facts, row >= 0, block >= 0, block, size)

    def bytes(self, rows: npt.NDArray[np.bool_]) -> Columns:
        """Return how many files some rows are, and their sizes."""
        return {
            "file_count": np.ones(int(rows.sum()), np.int64),
            "dbs_sized_count": (self.in_dbs & (self.dbs["bytes"] != NULL))[rows].astype(np.int64),
            "dbs_bytes": np.where(self.dbs["bytes"] == NULL, 0, self.dbs["bytes"])[rows],
            "rucio_bytes": np.maximum(self.size, 0)[rows],
        }

    def differences(self) -> Iterator[tuple[str, npt.NDArray[np.bool_]]]:
        """Yield each difference that these rows decide, and the files that have it."""
        dbs, in_dbs, in_rucio = self.dbs, self.in_dbs, self.in_rucio
        yield "only_dbs", in_dbs & ~in_rucio & (dbs["valid"] != 0)
        yield "only_dbs_invalid", in_dbs & ~in_rucio & (dbs["valid"] == 0)
        yield (
            "size",
            in_dbs
            & in_rucio
            & (dbs["bytes"] != NULL)
            & (self.size >= 0)
            & (dbs["bytes"] != self.size),
        )
