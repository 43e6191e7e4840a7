"""Rows of the tables of a DBS dump, in plain Python and in Spark; the registry names the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, TYPE_CHECKING, Any

from cmsspark.runners.dump_tables import dump_table
from cmsspark.schemas import input_table
from cmsspark.sources.dumps import Dump
from cmsspark.sources.formats.sqoop_csv import read_table

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession


def read_table_arrow(
    source: str | IO[bytes], table: str, columns: Sequence[str], name: str | None = None
) -> Iterator[Any]:
    """``pyarrow.Table`` pieces of one part file of a DBS table, plain or gzip; see ``sqoop.read_table``."""
    return read_table(source, input_table(f"dbs/{table}"), columns, name)


def table(spark: SparkSession, dump: Dump, name: str, columns: Sequence[str], feed: str = "auto") -> DataFrame:
    """A DBS table's rows as a DataFrame of ``columns``; the same rows as :func:`read_table_arrow` gives."""
    return dump_table(spark, dump, name, columns, feed)
