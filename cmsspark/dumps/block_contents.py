"""FILES of a DBS dump to what blocks hold, by dataset and month (rule 39).

Files are summed by the id of their block, each file once, by
:class:`cmsspark.dumps.dataset_contents.FileMapper`. These sums meet the rows of BLOCKS
by the id.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Final

import numpy as np
import numpy.typing as npt

from cmsspark.base.arrays import Longs
from cmsspark.base.buffers import flags, is_there, to_numpy
from cmsspark.dumps.dataset_contents import SUMS, TOTALS, sum_totals
from cmsspark.dumps.keyed_rows import (
    Columns,
    KeyedRows,
    by_key,
    group_rows,
    join_columns,
    keys_of_ids,
    number_names,
    rank_names,
    rows_by_kind,
)
from cmsspark.dumps.sifted_tables import ROW_USE

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of BLOCKS, and sums of blocks by dataset and month.
NAMED_BLOCKS, MONTH_SUMS = "named_blocks", "month_sums"
#: Stands for no month, and for no dataset.
NULL: Final = np.iinfo(np.int64).min
#: The first and the last Unix second of the years from 1 to 9999.
_TIMES: Final = (-62_135_596_800, 253_402_300_799)
_KEYS: Final = ("dataset", "month")
_SUMMED: Final = ("block_count", *SUMS)


def map_blocks(keys: int, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
    """Yield keyed rows of BLOCKS that have an id, by the id."""
    for table in tables:
        blocks = table.filter(flags(is_there(table["block_id"])))
        ids, created = to_numpy(blocks["block_id"], np.int64), blocks["creation_date"]
        columns = {
            "block_id": ids,
            "name": np.arange(len(ids)),
            "dataset": to_numpy(blocks["dataset_id"], np.int64, NULL),
            "created": np.where(is_there(created), to_numpy(created, np.float64), -np.inf),
        }
        names = {"name": blocks["block_name"].combine_chunks()}
        yield from by_key(NAMED_BLOCKS, keys_of_ids(ids, keys), columns, names)


def merge_blocks(keys: int, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
    """Yield sums of a key's blocks by ``dataset`` (id) and ``month`` (from 1970-01), by
    the dataset's key.
    """
    by_kind = rows_by_kind(rows)
    yield from by_kind[ROW_USE]
    blocks = _blocks_once(by_kind[NAMED_BLOCKS])
    totals = sum_totals(by_kind[TOTALS])
    ids, block_ids = totals.pop("group"), blocks.pop("block_id")
    positions = np.minimum(np.searchsorted(ids, block_ids), max(0, len(ids) - 1))
    has_files = ids[positions] == block_ids if len(ids) else np.zeros(len(block_ids), np.bool_)
    sums = {name: np.zeros(len(block_ids), np.int64) for name in SUMS}
    for name, values in totals.items():
        sums[name][has_files] = values[positions[has_files]]
    columns = group_rows(
        blocks | {"block_count": np.ones(len(block_ids), np.int64)} | sums, _KEYS, counts=_SUMMED
    )
    yield from by_key(MONTH_SUMS, keys_of_ids(columns["dataset"], keys), columns)


def merge_months(key: int, rows: Sequence[KeyedRows]) -> Iterator[KeyedRows]:
    """Yield one row of the sums of several."""
    yield KeyedRows(
        key, MONTH_SUMS, group_rows(join_columns(rows, (*_KEYS, *_SUMMED)), _KEYS, counts=_SUMMED)
    )


def _blocks_once(rows: Sequence[KeyedRows]) -> Columns:
    """Return ``block_id``, each once, ``dataset`` and ``month``: of several rows the
    largest values.
    """
    numbers, names = number_names(rows, "name")
    columns = join_columns(rows, ("block_id", "dataset")) | join_columns(
        rows, ("created",), np.float64
    )
    order = np.lexsort(
        (columns["created"], columns["dataset"], rank_names(names)[numbers], columns["block_id"])
    )
    ids = columns["block_id"][order]
    last = order[np.append(ids[1:] != ids[:-1], np.ones(min(1, len(ids)), np.bool_))]
    created = columns.pop("created")[last]
    return {name: values[last] for name, values in columns.items()} | {"month": _months(created)}


def _months(seconds: npt.NDArray[np.float64]) -> Longs:
    """Return the months since 1970-01 of Unix seconds; :data:`NULL` where they are in
    no year from 1 to 9999.
    """
    is_time = (seconds >= _TIMES[0]) & (seconds <= _TIMES[1])
    times = np.floor(np.where(is_time, seconds, 0)).astype(np.int64).astype("datetime64[s]")
    return np.where(is_time, times.astype("datetime64[M]").astype(np.int64), NULL)
