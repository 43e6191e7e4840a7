"""The rows of a stored table, one after another, as dicts of plain Python values."""

from __future__ import annotations

from collections.abc import Iterator
from typing import IO, Any, Final

from cmsspark.base.errors import DataError
from cmsspark.base.memory import is_shortage
from cmsspark.base.schemas import Table
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Files, LocalFiles, is_local
from cmsspark.store.part_checks import StoredPart, open_stored, stored_parts
from cmsspark.store.results import CurrentTable

Row = dict[str, Any]
#: Bytes of CSV that are parsed at once: no row is longer.
_BLOCK_BYTES: Final = 8 * 1024 * 1024


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
    """Yield the rows of a CSV part as Parquet has them: a text in quotes that is empty is a text, not a null."""
    import pyarrow as pa
    from pyarrow import csv

    if not stream.read(1):
        return
    stream.seek(0)
    parse = csv.ParseOptions(double_quote=True, newlines_in_values=True)
    convert = csv.ConvertOptions(
        column_types=table.arrow(),
        null_values=[""],
        strings_can_be_null=True,
        quoted_strings_can_be_null=False,
        include_columns=table.names,
    )
    try:
        with csv.open_csv(stream, csv.ReadOptions(block_size=_BLOCK_BYTES), parse, convert) as batches:
            for batch in batches:
                yield from batch.to_pylist()
    except (pa.ArrowException, OSError, ValueError, KeyError) as error:
        if is_shortage(error):
            raise
        raise unreadable(part, error) from None


def unreadable(part: StoredPart, error: Exception) -> DataError:
    """Return the error for a part file that is damaged, or not there any more."""
    return DataError(
        "a part of the stored table cannot be read",
        where=part.path,
        found=" ".join(str(error).split())[:200],
        next_step=part.command,
    )
