"""The rows of a stored table, one after another, as dicts of plain Python values."""

from __future__ import annotations

import csv
from collections.abc import Callable, Iterator
from datetime import date
from pathlib import Path
from typing import Any

from cmsspark.errors import DataError
from cmsspark.memory import is_shortage
from cmsspark.schemas import Table
from cmsspark.storage import is_local, local_path
from cmsspark.store.results import CurrentTable

Row = dict[str, Any]


def stored_rows(current: CurrentTable, table: Table) -> Iterator[Row]:
    """The rows of a table's current result, in the order of its parts, never more than a few thousand in memory.

    Local stores are read without a JVM; others through the running Spark session, one partition at a time. Raises
    DataError (65) where a part cannot be read.
    """
    fmt = current.manifest.tables[table.name].format
    if not is_local(current.path):
        return _spark_rows(current.path, table, fmt)
    parts = sorted(Path(local_path(current.path)).glob(f"part-*.{fmt}"))
    return _csv_rows(parts, table) if fmt == "csv" else _parquet_rows(parts, table)


def _parquet_rows(parts: list[Path], table: Table) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    for part in parts:
        try:
            with pq.ParquetFile(part) as file:
                for batch in file.iter_batches(batch_size=2_000, columns=table.names):
                    yield from batch.to_pylist()
        except (pa.ArrowException, OSError) as error:
            if is_shortage(error):
                raise
            raise unreadable(part, error) from None


def _csv_rows(parts: list[Path], table: Table) -> Iterator[Row]:
    kinds = {column.name: _FROM_TEXT[column.type] for column in table.columns}
    for part in parts:
        try:
            with open(part, encoding="utf-8", newline="") as stream:
                for texts in csv.DictReader(stream, strict=True):
                    yield {name: kinds[name](text) if text else None for name, text in texts.items()}
        except (OSError, ValueError, KeyError, csv.Error) as error:
            raise unreadable(part, error) from None


def _spark_rows(path: str, table: Table, fmt: str) -> Iterator[Row]:
    from cmsspark.runners.session import session

    reader = session("cern_monit").read.schema(table.spark())
    rows = reader.csv(path, header=True, escape='"', multiLine=True) if fmt == "csv" else reader.parquet(path)
    for row in rows.select(*table.names).toLocalIterator(prefetchPartitions=True):
        yield row.asDict()


_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "string": str,
    "long": int,
    "int": int,
    "double": float,
    "date": date.fromisoformat,
    "boolean": lambda text: {"true": True, "false": False}[text],
}


def unreadable(part: object, error: Exception) -> DataError:
    """The error for a part file that is damaged, or not there any more."""
    return DataError(
        "a part of the stored table cannot be read",
        where=part,
        found=" ".join(str(error).split())[:200],
        next_step="run the day's job again",
    )
