"""The part files of a stored table: writes Parquet parts and counts the rows of what was written."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Final

from cmsspark.errors import OutputError
from cmsspark.schemas import Table
from cmsspark.storage import Entry, Files

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

#: Bytes at the end of a Parquet file, which usually contain its footer.
_FOOTER_BYTES: Final = 65_536


def parts_of(files: Files, folder: str, fmt: str = "parquet") -> list[Entry]:
    """The part files in a table's folder, in the order of their names."""
    return [
        entry for entry in files.list_dir(folder) if entry.name.startswith("part-") and entry.name.endswith(f".{fmt}")
    ]


def write_part(rows: pa.Table, part: Path) -> None:
    """Write a local Parquet file with Spark's types and packing. Raises OutputError (73)."""
    import pyarrow.parquet as pq

    try:
        pq.write_table(rows, part, compression="snappy", store_schema=False)
    except OSError as error:
        raise OutputError("the result cannot be written", where=part, found=error.strerror or error) from None


def count_csv_rows(spark: SparkSession, location: str, schema: Table) -> int:
    """Rows of a table in CSV."""
    return int(spark.read.csv(location, header=True, schema=schema.spark(), escape='"', multiLine=True).count())


def count_part_rows(files: Files, part: Entry, schema: Table) -> int:
    """Rows of a Parquet file, read from its footer alone. Raises OutputError (73) where it has other columns."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    end = files.read_end(part.path, _FOOTER_BYTES)
    # The last 8 bytes are the footer's length and the four letters of the format.
    size = int.from_bytes(end[-8:-4], "little") + 8
    if size > len(end):
        end = files.read_end(part.path, size)
    footer = pq.read_metadata(pa.BufferReader(end))
    names = footer.schema.to_arrow_schema().names
    if names != schema.names:
        raise OutputError("the written part has other columns", where=part.path, found=names)
    return int(footer.num_rows)
