"""Sums over the rows of an Arrow table by key, for pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa


def sum_rows(rows: pa.Table, keys: Sequence[str], measures: Sequence[str]) -> list[dict[str, Any]]:
    """Return a row for each combination of ``keys``, which are texts; the sum of nulls is None.

    ``Table.group_by`` would import pandas, a quarter of a second of each run that writes a page.
    """
    import numpy as np

    from cmsspark.base.buffers import is_there, to_numpy
    from cmsspark.counting.sums import Nullable, find_runs, sum_by_key

    def to_values(column: pa.ChunkedArray) -> Nullable:
        kind = np.float64 if str(column.type) == "double" else np.int64
        values = column if kind is np.float64 else column.cast("int64")
        return Nullable(to_numpy(values, kind), is_there(column) if column.null_count else None)

    numbers, texts = [], []
    group = np.zeros(rows.num_rows, np.int64)
    for name in keys:
        column = rows[name].cast("string").combine_chunks().dictionary_encode()
        texts.append([*column.dictionary.to_pylist(), None])
        numbers.append(to_numpy(column.indices, np.int32, len(texts[-1]) - 1))
        group = group * len(texts[-1]) + numbers[-1]
    runs = find_runs(group)
    columns = {name: to_values(rows[name]) for name in measures}
    sums = sum_by_key(runs, columns, is_capped=True)
    first = runs.first
    result = [
        [values[row] for row in of_rows[first].tolist()]
        for values, of_rows in zip(texts, numbers, strict=True)
    ]
    for total, is_valid in sums.values():
        is_sum = [True] * len(total) if is_valid is None else is_valid.tolist()
        result.append(
            [value if valid else None for value, valid in zip(total.tolist(), is_sum, strict=True)]
        )
    return [dict(zip((*keys, *measures), row, strict=True)) for row in zip(*result, strict=True)]
