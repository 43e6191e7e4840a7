"""The rows of a stored table, one after another, as dicts of plain Python values."""

from __future__ import annotations

import csv
import io
from collections.abc import Callable, Iterator
from datetime import date
from typing import IO, Any

from cmsspark.base.errors import DataError
from cmsspark.base.memory import is_shortage
from cmsspark.base.schemas import Table
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Files, LocalFiles, is_local
from cmsspark.store.part_checks import StoredPart, open_stored, stored_parts
from cmsspark.store.results import CurrentTable

Row = dict[str, Any]


def stored_rows(current: CurrentTable, table: Table) -> Iterator[Row]:
    """Yield the rows of a table's current result, in the order of its parts, never more than a few thousand in memory.

    Parts of a store that is not local are fetched one after another, without a Spark job. Raises DataError (65) where
    a part cannot be read.
    """
    fmt = current.manifest.tables[table.name].format
    files: Files = LocalFiles()
    if not is_local(current.path):
        from cmsspark.engines.session import small_session

        files = files_for(current.path, small_session("cmsspark"))
    rows_of = _csv_rows if fmt == "csv" else _parquet_rows
    for part in stored_parts(files, current, table.name):
        try:
            opened = open_stored(files, part)
        except OSError as error:
            if is_shortage(error):
                raise
            raise unreadable(part, error) from None
        with opened as stream:
            yield from rows_of(stream, part, table)


def _parquet_rows(stream: IO[bytes], part: StoredPart, table: Table) -> Iterator[Row]:
    import pyarrow as pa
    import pyarrow.parquet as pq

    try:
        with pq.ParquetFile(stream, page_checksum_verification=True) as file:
            for batch in file.iter_batches(batch_size=2_000, columns=table.names):
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError) as error:
        if is_shortage(error):
            raise
        raise unreadable(part, error) from None


def _csv_rows(stream: IO[bytes], part: StoredPart, table: Table) -> Iterator[Row]:
    kinds = {column.name: _FROM_TEXT[column.type] for column in table.columns}
    try:
        with io.TextIOWrapper(stream, encoding="utf-8", newline="") as lines:
            for texts in csv.DictReader(lines, strict=True):
                yield {name: kinds[name](text) if text else None for name, text in texts.items()}
    except (OSError, ValueError, KeyError, csv.Error) as error:
        raise unreadable(part, error) from None


_FROM_TEXT: dict[str, Callable[[str], Any]] = {
    "string": str,
    "long": int,
    "int": int,
    "double": float,
    "date": date.fromisoformat,
    "boolean": lambda text: {"true": True, "false": False}[text],
}


def unreadable(part: StoredPart, error: Exception) -> DataError:
    """Return the error for a part file that is damaged, or not there any more."""
    return DataError(
        "a part of the stored table cannot be read",
        where=part.path,
        found=" ".join(str(error).split())[:200],
        next_step=part.command,
    )
