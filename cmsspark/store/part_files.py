"""The part files of a stored table: writes Parquet parts and counts the rows of what was written."""

from __future__ import annotations

import io
import tempfile
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, TypeVar

from cmsspark.base.errors import DataError, OutputError
from cmsspark.base.schemas import Table
from cmsspark.filesystems.storage import Entry, Files, is_local, local_path

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame

#: Bytes at the end of a Parquet file, which usually contain its footer.
_FOOTER_BYTES: Final = 65_536
#: Bytes of CSV that are parsed at once.
_BLOCK_BYTES: Final = 8 * 1024 * 1024
_Part = TypeVar("_Part", bound=Entry)


def list_parts(files: Files, folder: str, fmt: str = "parquet") -> list[Entry]:
    """Return the part files in a table's folder, in the order of their names."""
    return [
        entry
        for entry in files.list_dir(folder)
        if entry.name.startswith("part-") and entry.name.endswith(f".{fmt}")
    ]


def read_parts(
    files: Files, parts: Sequence[_Part], open_with: Callable[[Files, _Part], IO[bytes]]
) -> pa.Table:
    """Return the rows of Parquet parts, one after another, each opened by
    ``open_with``. Raises DataError (65) where one cannot be read, or parts differ in
    their columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for part in parts:
        try:
            with open_with(files, part) as stream:
                tables.append(pq.read_table(stream, page_checksum_verification=True))
        except (pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(
                "a part of the stored table cannot be read", where=part.path, found=reason
            ) from None
    if any(not table.schema.equals(tables[0].schema) for table in tables):
        raise DataError(
            "the parts have different columns", where=parts[0].path, found="several schemas"
        )
    return pa.concat_tables(tables)


def write_part(rows: pa.Table, part: Path) -> None:
    """Write a local Parquet file with Spark's types and packing. Raises OutputError (73)."""
    import pyarrow.parquet as pq

    try:
        pq.write_table(
            rows, part, compression="snappy", store_schema=False, write_page_checksum=True
        )
    except OSError as error:
        raise OutputError(
            "the result cannot be written", where=part, found=error.strerror or error
        ) from None


def count_csv_rows(files: Files, part: Entry, schema: Table) -> int:
    """Count the rows of a CSV file with a header. Raises OutputError (73) for other
    columns, or where it is damaged.
    """
    import pyarrow as pa
    from pyarrow import csv

    read = csv.ReadOptions(block_size=_BLOCK_BYTES)
    parse = csv.ParseOptions(double_quote=True, newlines_in_values=True)
    convert = csv.ConvertOptions(column_types={name: pa.string() for name in schema.names})
    try:
        with (
            open_part(files, part.path) as stream,
            csv.open_csv(stream, read, parse, convert) as batches,
        ):
            if batches.schema.names != schema.names:
                raise OutputError(
                    "the written part has other columns",
                    where=part.path,
                    found=batches.schema.names,
                )
            return sum(batch.num_rows for batch in batches)
    except pa.ArrowInvalid as error:
        if not part.size:
            return 0
        raise OutputError(
            "the written part cannot be read back", where=part.path, found=str(error)
        ) from None


def open_part(files: Files, path: str) -> io.BufferedReader:
    """Open a file on this host. A remote file is fetched, and deleted when it is closed."""
    if is_local(path):
        return open(local_path(path), "rb")
    with tempfile.TemporaryDirectory(prefix="cmsspark-") as folder:
        target = Path(folder) / "part"
        files.fetch(path, target)
        # The open file stays readable after its folder is removed.
        return target.open("rb")


def count_part_rows(files: Files, part: Entry, schema: Table) -> int:
    """Count the rows of a Parquet file by its footer alone. Raises OutputError (73)
    where it has other columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    end = _read_end(files, part, _FOOTER_BYTES)
    # The last 8 bytes are the footer's length and the four letters of the format.
    size = int.from_bytes(end[-8:-4], "little") + 8
    if size > len(end):
        end = _read_end(files, part, size)
    footer = pq.read_metadata(pa.BufferReader(end))
    names = footer.schema.to_arrow_schema().names
    if names != schema.names:
        raise OutputError("the written part has other columns", where=part.path, found=names)
    return int(footer.num_rows)


def _read_end(files: Files, part: Entry, count: int) -> bytes:
    """Return the last ``count`` bytes of a file, or all of a shorter one."""
    return files.read_range(part.path, max(0, part.size - count), count)


def plain_texts(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    plain = [
        field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field
        for field in schema
    ]
    return pa.schema(plain)


def check_columns(rows: DataFrame, schema: Table) -> None:
    expected = [(f.name, f.dataType.simpleString()) for f in schema.spark().fields]
    columns = [(f.name, f.dataType.simpleString()) for f in rows.schema.fields]
    if expected != columns:
        raise RuntimeError(f"table {schema.name} wants columns {expected}, the job made {columns}")
