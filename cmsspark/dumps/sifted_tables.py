"""The rows and values of CSV tables that can be true, and how many are none (rule 70).

A mapper gets its tables through here: a count below zero and a time in no plausible
year become null, and what was used is counted.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.base.buffers import array, is_there
from cmsspark.counting.row_use import RowUse
from cmsspark.dumps.keyed_rows import KeyedRows, Mapper

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.dumps.dataset_contents import KnownDatasets

#: Rows that hold what a task used, which pass all merges.
ROW_USE: Final = "row_use"
#: Columns of numbers that are never below zero; -1 is how some clients say "not known".
COUNTS: Final = frozenset(
    {
        *("event_count", "file_size", "block_files", "block_bytes"),
        *("br_node_files", "br_node_bytes"),
    }
)
#: Columns of Unix seconds.
TIMES: Final = frozenset({"creation_date", "replica_time_create"})
#: The first second of the year 2100. Milliseconds and microseconds are above it.
LAST_SECOND: Final = 4_102_444_800


@dataclass(frozen=True)
class SiftedMapper:
    """A mapper of a table, which gets values that can be true, and after its rows a row
    of :data:`ROW_USE`.

    ``datasets``: those that rows with a dataset_id must name to be of use.
    """

    table: str
    mapper: Mapper[pa.Table]
    datasets: KnownDatasets | None = None

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
        uses: dict[str, RowUse] = {}
        yield from self.mapper(self._sifted(table, uses) for table in tables)
        yield pack_uses(uses)

    def _sifted(self, table: pa.Table, uses: dict[str, RowUse]) -> pa.Table:
        """Return the table with null for what cannot be true, and count."""
        # Rows are of use that name what they must name.
        names = table.column_names
        if self.datasets is not None and "dataset_id" in names:
            fits, reason = self.datasets.find_positions(table["dataset_id"]) >= 0, "no_dataset"
        else:
            # The keys of the other tables.
            keys = ("dataset", "dataset_id", "dataset_name", "block_name", "node_name")
            fits, reason = np.ones(table.num_rows, np.bool_), "no_name"
            for key in keys:
                if key in names and table[key].null_count:
                    fits &= is_there(table[key])
        used = int(fits.sum())
        uses.setdefault(self.table, RowUse()).add(
            RowUse(table.num_rows, used, Counter({reason: table.num_rows - used}))
        )
        for position, name in enumerate(table.column_names):
            if name in COUNTS or name in TIMES:
                use = uses.setdefault(f"{self.table}.{name}", RowUse(is_of_values=True))
                values = _sift(table[name], name, use)
                if values is not table[name]:
                    table = table.set_column(position, name, values)
        return table


def _sift(column: pa.ChunkedArray, name: str, use: RowUse) -> pa.ChunkedArray:
    """Return a column with null for what cannot be true; the same one where all can."""
    import pyarrow as pa
    import pyarrow.compute as pc

    use.rows += len(column) - column.null_count
    use.used += len(column) - column.null_count
    ends = pc.min_max(column).as_py()
    is_below = ends["min"] is not None and ends["min"] < 0
    is_above = name in TIMES and ends["max"] is not None and ends["max"] >= LAST_SECOND
    checks: tuple[tuple[bool, str, Any, int], ...] = (
        (is_below, "negative", pc.less, 0),
        (is_above, "after_2099", pc.greater_equal, LAST_SECOND),
    )
    for is_odd, reason, compare, limit in checks:
        if is_odd:
            is_wrong = compare(column, limit).fill_null(False)
            count = pc.sum(is_wrong).as_py() or 0
            use.used -= count
            use.set_aside[reason] += count
            column = pc.if_else(is_wrong, pa.scalar(None, column.type), column)
    return column


def pack_uses(uses: dict[str, RowUse]) -> KeyedRows:
    """Return a row of what was used."""
    texts = [
        json.dumps([name, use.rows, use.used, use.set_aside, use.is_of_values])
        for name, use in uses.items()
    ]
    return KeyedRows(0, ROW_USE, {"use": np.arange(len(texts))}, {"use": array(texts, "string")})


def sum_uses(rows: Iterable[KeyedRows]) -> dict[str, RowUse]:
    """Return by input what all tasks used, of rows of any kind."""
    uses: dict[str, RowUse] = {}
    for entry in rows:
        for text in entry.names["use"].to_pylist() if entry.kind == ROW_USE else ():
            name, read, used, set_aside, is_of_values = json.loads(text)
            use = uses.setdefault(name, RowUse(is_of_values=is_of_values))
            use.add(RowUse(read, used, Counter(set_aside)))
    return uses
