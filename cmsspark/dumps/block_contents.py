"""FILES of a DBS dump to what each block holds, each file once (rule 18): :mod:`cmsspark.dumps.dataset_contents` with
blocks in the place of datasets.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np
import polars as pl

from cmsspark.base.buffers import flags, from_numpy, is_there, to_numpy
from cmsspark.dumps.dataset_contents import KnownDatasets, dataset_contents, known_datasets
from cmsspark.dumps.dump_frames import exact_sum, month, nullable, one_each
from cmsspark.dumps.partitions import ROWS
from cmsspark.dumps.parts import Each, Part

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of FILES that are read.
FILE_COLUMNS: Final = (
    *("logical_file_name", "file_id", "dataset_id", "block_id", "is_file_valid", "event_count", "file_size"),
)
#: Stands for all blocks that BLOCKS does not have: their files decide which row of a name counts, and count nowhere.
_NO_BLOCK: Final = -(2**62)


def block_contents(
    files: Sequence[Part],
    block_ids: Sequence[int],
    known: KnownDatasets,
    folder: Path,
    each: Each = map,
    *,
    is_valid_only: bool = False,
    rows: int = ROWS,
) -> pl.DataFrame:
    """``block_id`` (those of ``block_ids``), ``file_count``, ``events`` (null where no file says), ``bytes``.

    ``files``: parts of FILES with :data:`FILE_COLUMNS`. Files whose dataset is not ``known`` do not count. Of one name
    the row with the larger file_id counts, and then, with ``is_valid_only``, only if it is valid.
    """
    own = folder / "datasets"
    own.mkdir()
    known.save(own)
    ids = [*block_ids, _NO_BLOCK]
    blocks = known_datasets(ids, range(len(ids)), len(ids))
    np.save(own / "blocks.npy", blocks.ids)
    found = dataset_contents([partial(_by_block, own, is_valid_only, part) for part in files], blocks, folder, each,
                             rows=rows)  # fmt: skip
    count = found.files - found.invalid_files if is_valid_only else found.files
    frame = pl.DataFrame({
        "block_id": pl.Series(ids, dtype=pl.Int64), "file_count": count,
        "events": nullable(found.events, found.has_events), "bytes": found.bytes,
    })  # fmt: skip
    return frame.filter(pl.col("block_id") != _NO_BLOCK)


def sums_by_month(blocks: pl.DataFrame, datasets: pl.DataFrame, contents: pl.DataFrame) -> pl.DataFrame:
    """Blocks of ``datasets`` by ``dataset_id`` and ``month`` (of their creation, or null): ``block_count``, and in 128
    bits ``file_count``, ``events``, ``bytes``, null where no file says.

    ``blocks``: BLOCKS, of which each block_id counts once. ``contents``: of :func:`block_contents`.
    """
    rows = (
        one_each(blocks, "block_id", "block_name", "dataset_id", "creation_date")
        .join(datasets.select("dataset_id"), "dataset_id", "semi")
        .join(contents, "block_id", "left")
    )
    sums = [exact_sum(name) for name in ("file_count", "events", "bytes")]
    count = pl.len().cast(pl.Int64).alias("block_count")
    return rows.with_columns(month("creation_date").alias("month")).group_by("dataset_id", "month").agg(count, *sums)


def _by_block(folder: Path, is_valid_only: bool, part: Part) -> Iterator[pa.Table]:
    """Yield the files of known datasets, with the id of the block in the place of the dataset's."""
    import pyarrow as pa

    known = KnownDatasets.load(folder)
    blocks = np.load(folder / "blocks.npy", mmap_mode="r").view(np.ndarray)
    for table in part():
        some = table.filter(flags(known.places(table["dataset_id"]) >= 0))
        block = to_numpy(some["block_id"], np.int64, _NO_BLOCK)
        place = np.minimum(np.searchsorted(blocks, block), len(blocks) - 1)
        columns = {name: some[name] for name in ("logical_file_name", "file_id")}
        columns["dataset_id"] = from_numpy(np.where(blocks[place] == block, block, _NO_BLOCK))
        columns["is_file_valid"] = some["is_file_valid"]
        counts = np.ones(len(block), np.bool_)
        if is_valid_only:
            counts = (to_numpy(some["is_file_valid"], np.int64) == 1) & is_there(some["is_file_valid"])
        for name in ("event_count", "file_size"):
            columns[name] = from_numpy(to_numpy(some[name], np.int64), is_there(some[name]) & counts)
        yield pa.table(columns)
