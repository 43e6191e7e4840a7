"""Writes the Parquet files of a segment: rows of numbers become rows of names."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.dashboard.day_rows import Names
from cmsspark.apps.dashboard.segment import NULL, SUMS, About, write_mapped
from cmsspark.counting.packing import Codes

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of few values, beside those of names.
_CODED: Final = ("day", "last_day", "nacc", "remote_nacc", "remote_known_nacc", "job_count")
_ROW_GROUP: Final = 30_720
#: Rows of a group of the files in which pages look up single datasets: a few groups are
#: read for each.
_LOOKUP_GROUP: Final = 10_240
#: Files of up to so many rows, which days of the newest month have, get small groups:
#: there are many such files, and a page reads a group of each. What the server keeps of
#: each group would be too much for those of whole months.
_SMALL_ROWS, _SMALL_GROUP = 400_000, 2_048
#: Texts of a dictionary that every row group may have as it is.
_SHORT: Final = 512
#: A quarter larger than with zstd, and read in two thirds of the time.
_LOOKUP_COMPRESSION: Final = "lz4_raw"


class SegmentWriter:
    """Writes files of a folder. ``totals``: sums of the additive columns, which decide
    their types.
    """

    def __init__(self, folder: Path, names: Names, totals: Mapping[str, int]) -> None:
        import pyarrow as pa

        self._folder = folder
        columns = ("stream", "site_name", "app", "site_tier", "data_tier", "campaign")
        self._names = names
        self.texts = {name: pa.array(names.texts(name), pa.string()) for name in columns}
        #: Of datasets rows have the place in the order of names.
        self.texts["dataset_name"] = pa.array(sorted(names.texts("dataset_name")), pa.string())
        self._kinds = {
            # Files have no larger integers.
            name: pa.int64() if totals[name] < 1 << 63 else pa.decimal128(38, 0)
            for name in SUMS
        }

    def write(
        self,
        name: str,
        batches: Iterable[Mapping[str, Any]],
        group: int = _ROW_GROUP,
        codec: str = "zstd",
    ) -> None:
        """Write a file from batches of rows with the same columns."""
        import pyarrow.parquet as pq

        writer = None
        for rows in batches:
            count = len(next(iter(rows.values())))
            for begin in range(0, max(1, count), group):
                table = self._table(
                    {column: values[begin : begin + group] for column, values in rows.items()}
                )
                if writer is None:
                    coded = [
                        column for column in table.column_names if column in (*self.texts, *_CODED)
                    ]
                    path = self._folder / f"{name}.parquet"
                    writer = pq.ParquetWriter(
                        path,
                        table.schema,
                        compression=codec,
                        use_dictionary=coded,
                        store_schema=False,
                    )
                writer.write_table(table, row_group_size=group)
        if writer is not None:
            writer.close()

    def write_lookup(
        self, name: str, batches: Iterable[Mapping[str, Any]], count: int
    ) -> list[tuple[int, int]]:
        """Write a file of ``count`` rows that is sorted by dataset. Return the first
        and last dataset of each group.
        """
        group = _SMALL_GROUP if count <= _SMALL_ROWS else _LOOKUP_GROUP
        bounds: list[tuple[int, int]] = []

        def noted() -> Iterable[Mapping[str, Any]]:
            for rows in batches:
                datasets = rows["dataset_name"]
                lasts = [*range(group - 1, len(datasets), group), len(datasets) - 1]
                bounds.extend(
                    (int(datasets[n - n % group]), int(datasets[n]))
                    for n in dict.fromkeys(lasts)
                    if n >= 0
                )
                yield rows

        self.write(name, noted(), group, _LOOKUP_COMPRESSION)
        return bounds

    def write_mapped(self, name: str, columns: Mapping[str, Any], **about: Any) -> None:
        """Write an Arrow file; ``about``: fields of :class:`About` beside the names."""
        streams, tiers = (sorted(self._names.texts(column)) for column in ("stream", "site_tier"))
        write_mapped(self._folder / name, columns, About(streams, tiers, **about))

    def with_nulls(self, rows: Mapping[str, Any], name: str) -> Any:
        """Return an additive column with ``NULL`` where it is null, in 32 bits where
        these are enough.
        """
        values = np.where(rows["has"] >> SUMS.index(name) & 1, rows[name], NULL)
        kind = self._kinds[name]
        if values.dtype == object:
            return _numbers(values, np.zeros(len(values), np.bool_), kind)
        return values.astype(np.int32) if values.max(initial=0) < 1 << 31 else values

    def _table(self, rows: Mapping[str, Any]) -> pa.Table:
        import pyarrow as pa

        columns = {}
        for name, values in rows.items():
            if name in SUMS:
                is_null = (rows["has"] >> SUMS.index(name) & 1) == 0
                columns[name] = _numbers(values, is_null, self._kinds[name])
            elif name in ("day", "last_day"):
                columns[name] = pa.array(values.astype(np.int32)).cast(pa.date32())
            elif name in self.texts:
                columns[name] = _coded(values, self.texts[name])
            elif name not in ("has", "place", "part"):
                columns[name] = values
        return pa.table(columns)


def _numbers(values: Any, is_null: Any, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        cells = [None if null else int(value) for value, null in zip(values, is_null, strict=True)]
        return pa.array(cells, kind)
    return pa.array(values, kind, mask=is_null)


def _coded(codes: Codes, texts: pa.Array) -> pa.DictionaryArray:
    """Return texts by their numbers. Of many texts the dictionary has those that occur:
    each row group has a copy.
    """
    import pyarrow as pa

    if len(texts) < _SHORT:
        return pa.DictionaryArray.from_arrays(codes.astype(np.int32), texts)
    used = np.flatnonzero(np.bincount(codes, minlength=len(texts)))
    positions = np.zeros(len(texts), np.int32)
    positions[used] = np.arange(len(used))
    return pa.DictionaryArray.from_arrays(positions[codes], texts.take(pa.array(used)))
