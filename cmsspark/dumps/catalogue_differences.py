"""The catalogue of Rucio beside that of DBS, file by file (rule 27).

DBS FILES go to the partitions that Rucio's files are in; there the rows of one name meet. Of one name in FILES the row
with the larger file_id counts, and rows whose dataset is not in DATASETS do not (rule 18).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.base.buffers import flags, is_there, to_numpy
from cmsspark.base.exact_integers import joined, sums_by_group
from cmsspark.counting.catalogue import Hashes, check_hash, hashes_in
from cmsspark.dumps.dataset_contents import KnownDatasets
from cmsspark.dumps.file_partitions import Arrays, FilePartitions, RucioFiles, files_of, gathered, numbered
from cmsspark.dumps.partitions import ROWS, PartitionedRun, PartitionRange, partition_of, ranges
from cmsspark.dumps.parts import Each, Part

if TYPE_CHECKING:
    import pyarrow as pa

#: The differences, by number.
DIFFERENCES: Final = ("only_dbs", "only_dbs_invalid", "only_rucio", "block", "size")
#: Columns of FILES that are read.
FILE_COLUMNS: Final = ("logical_file_name", "file_id", "dataset_id", "block_id", "is_file_valid", "file_size")
COLUMNS: Final = ("hash", "check", "file_id", "dataset", "block", "valid", "bytes")
#: Stands for null in columns of FILES.
NULL: Final = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Differences:
    """Sums by (``difference``, ``dataset``), with :data:`SUMMED`. Datasets are numbers of DBS's names, or of Rucio's
    where ``is_rucio``.
    """

    rows: Arrays


def catalogue_differences(
    partitions: FilePartitions,
    files: Iterable[Part],
    known: KnownDatasets,
    blocks: tuple[npt.NDArray[np.int64], Hashes],
    of_rucio: tuple[Hashes, npt.NDArray[np.int64]],
    folder: Path,
    each: Each = map,
    rows: int = ROWS,
) -> Differences:
    """Return the files that only one side knows, or whose block or size differs.

    ``files``: parts of FILES with :data:`FILE_COLUMNS`. ``blocks``: ids of BLOCKS, ascending, and the hashes of their
    names. ``of_rucio``: the hash of each of Rucio's blocks, and the number of its dataset. ``folder`` takes some 60
    bytes for each file meanwhile. Raises DataError (65) where a sum leaves 64 bits, OSError, and whatever the parts
    raise.
    """
    known.save(folder)
    for name, values in (("block-ids", blocks[0]), ("block-names", blocks[1]),
                         ("rucio-blocks", of_rucio[0]), ("rucio-datasets", of_rucio[1])):  # fmt: skip
        np.save(folder / f"check-{name}.npy", values)
    runs = [run for of_part in each(partial(_read_files, folder, rows), files) for run in of_part]
    own = [*partitions.replicas, *(one.run for one in partitions.contents), *runs]
    found = list(each(partial(_of_range, partitions, runs, folder), list(ranges(own, rows))))
    columns = (*KEYS, *SUMMED)
    together = {name: np.concatenate([np.zeros(0, np.int64), *(one[name] for one in found)]) for name in columns}
    return Differences(grouped(together, KEYS))


KEYS: Final = ("difference", "is_rucio", "dataset")
#: ``dbs_sized_count``: files whose size DBS knows; without any, their bytes are null (rule 27).
SUMMED: Final = ("file_count", "dbs_sized_count", "dbs_bytes", "rucio_bytes")


def _read_files(folder: Path, rows: int, part: Part) -> list[PartitionedRun]:
    """Return the runs of a part of FILES: named files of known datasets."""
    known = KnownDatasets.load(folder)
    return [
        PartitionedRun.write(folder, partition_of(together["hash"]), together)
        for together in file_pieces(part(), known, rows)
    ]


def file_pieces(tables: Iterable[pa.Table], known: KnownDatasets, rows: int = ROWS) -> Iterator[Arrays]:
    """Named files of known datasets with :data:`COLUMNS`, about ``rows`` together; of tables of :data:`FILE_COLUMNS`.

    ``dataset``: the number of its name; :data:`NULL` stands for null.
    """
    slices = (table.slice(start, rows) for table in tables for start in range(0, table.num_rows, rows))
    return gathered((_facts(known, table) for table in slices), rows, COLUMNS)


def _facts(known: KnownDatasets, table: pa.Table) -> Arrays:
    places = known.places(table["dataset_id"])
    stays = (places >= 0) & is_there(table["logical_file_name"])
    table, places = table.filter(flags(stays)), places[stays]
    return {
        "hash": hashes_in(table["logical_file_name"]),
        "check": hashes_in(table["logical_file_name"], check_hash),
        "file_id": to_numpy(table["file_id"], np.int64, NULL),
        "dataset": known.numbers[places].astype(np.int64),
        "block": to_numpy(table["block_id"], np.int64, NULL),
        "valid": to_numpy(table["is_file_valid"], np.int64, NULL),
        "bytes": to_numpy(table["file_size"], np.int64, NULL),
    }


def _of_range(partitions: FilePartitions, runs: Sequence[PartitionedRun], folder: Path, task: PartitionRange) -> Arrays:
    """Return the differences of the files in some partitions."""
    rucio = files_of(partitions, task.first, task.last)
    of_dbs = PartitionRange(runs, task.first, task.last)
    dbs = {name: np.concatenate([np.zeros(0, np.uint64 if name in ("hash", "check") else np.int64),
                                 *of_dbs.pieces(name)]) for name in COLUMNS}  # fmt: skip
    files = BothFiles.of(rucio, dbs)
    block_ids, block_names, rucio_blocks, rucio_datasets = (
        np.load(folder / f"check-{name}.npy", mmap_mode="r").view(np.ndarray)
        for name in ("block-ids", "block-names", "rucio-blocks", "rucio-datasets")
    )
    ids = files.dbs["block"]
    place = np.minimum(np.searchsorted(block_ids, ids), max(len(block_ids) - 1, 0))
    has_name = block_ids[place] == ids if len(block_ids) else np.zeros(len(place), np.bool_)
    other = np.zeros(len(place), np.bool_)
    if len(block_ids) and len(rucio_blocks):
        in_other = block_names[place] != rucio_blocks[np.maximum(files.block, 0)]
        other = files.in_dbs & files.in_rucio & has_name & in_other
    return files.differences(rucio_datasets, other)


@dataclass(frozen=True)
class BothFiles:
    """Files that are in DBS or in a block of Rucio. ``dbs``: :data:`COLUMNS` of the row of FILES that counts; ``block``
    (a number) and ``size`` (-1: unknown) by Rucio.
    """

    dbs: Arrays
    in_dbs: npt.NDArray[np.bool_]
    in_rucio: npt.NDArray[np.bool_]
    block: npt.NDArray[np.int64]
    size: npt.NDArray[np.int64]

    @classmethod
    def of(cls, rucio: RucioFiles, dbs: Arrays) -> BothFiles:
        """From all files of Rucio and all rows of FILES of some names."""
        has_block = rucio.block >= 0
        hashes, checks = rucio.hash[has_block], rucio.check[has_block]
        split = len(hashes)
        ids, firsts = numbered(np.concatenate((hashes, dbs["hash"])), np.concatenate((checks, dbs["check"])))
        count = len(firsts)
        block, size = (np.full(count, -1, np.int64) for _ in range(2))
        block[ids[:split]], size[ids[:split]] = rucio.block[has_block], rucio.size[has_block]
        row = _counting(ids[split:], dbs["file_id"], dbs["dataset"], count)
        facts = {name: values[row] if len(values) else np.full(count, NULL, np.int64) for name, values in dbs.items()}
        return cls(facts, row >= 0, block >= 0, block, size)

    def bytes(self, rows: npt.NDArray[np.bool_]) -> Arrays:
        """Return how many files some rows are, and their sizes."""
        return {
            "file_count": np.ones(int(rows.sum()), np.int64),
            "dbs_sized_count": (self.in_dbs & (self.dbs["bytes"] != NULL))[rows].astype(np.int64),
            "dbs_bytes": np.where(self.dbs["bytes"] == NULL, 0, self.dbs["bytes"])[rows],
            "rucio_bytes": np.maximum(self.size, 0)[rows],
        }

    def differences(self, datasets: npt.NDArray[np.int64], other: npt.NDArray[np.bool_]) -> Arrays:
        """Sums over the files that differ, by :data:`KEYS`. ``datasets``: the number of the dataset of each block of
        Rucio; ``other``: files that are in another block by DBS. Raises DataError (65).
        """
        dbs, in_dbs, in_rucio = self.dbs, self.in_dbs, self.in_rucio
        chosen = (
            in_dbs & ~in_rucio & (dbs["valid"] != 0),
            in_dbs & ~in_rucio & (dbs["valid"] == 0),
            in_rucio & ~in_dbs,
            other,
            in_dbs & in_rucio & (dbs["bytes"] != NULL) & (self.size >= 0) & (dbs["bytes"] != self.size),
        )
        own = datasets[np.maximum(self.block, 0)] if len(datasets) else np.zeros(len(self.block), np.int64)
        pieces = []
        for number, rows in enumerate(chosen):
            is_rucio = DIFFERENCES[number] == "only_rucio"
            keys = {
                "difference": np.full(len(rows), number, np.int64),
                "is_rucio": np.full(len(rows), int(is_rucio), np.int64),
                "dataset": own if is_rucio else dbs["dataset"],
            }
            pieces.append({name: values[rows] for name, values in keys.items()} | self.bytes(rows))
        return grouped({name: np.concatenate([one[name] for one in pieces]) for name in (*KEYS, *SUMMED)}, KEYS)


def _counting(ids: npt.NDArray[np.int64], file_ids: Any, datasets: Any, count: int) -> npt.NDArray[np.int64]:
    """Of each name the row that counts, the one with the larger file_id; -1 where it has none."""
    order = np.lexsort((datasets, file_ids, ids))
    row = np.full(count, -1, np.int64)
    # The last of several rows stays.
    row[ids[order]] = order
    return row


def grouped(rows: Arrays, keys: Sequence[str]) -> Arrays:
    """Rows with equal keys as one, :data:`SUMMED` summed. Raises DataError (65) where a sum leaves 64 bits."""
    order = np.lexsort([rows[name] for name in reversed(keys)])
    rows = {name: values[order] for name, values in rows.items()}
    starts = np.zeros(len(order), np.bool_)
    starts[:1] = True
    for name in keys:
        starts[1:] |= rows[name][1:] != rows[name][:-1]
    groups, first = np.cumsum(starts) - 1, np.flatnonzero(starts)
    found = {name: rows[name][first] for name in keys}
    for name in SUMMED:
        found[name] = joined(*sums_by_group(groups, rows[name], len(first)), name)
    return found
