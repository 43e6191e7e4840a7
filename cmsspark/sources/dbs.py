"""Rows of the tables of a DBS dump. The registry lists the tables."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import IO, Any

from cmsspark.base.schemas import input_table
from cmsspark.sources.formats.sqoop_csv import read_table


def read_table_arrow(
    source: str | IO[bytes], table: str, columns: Sequence[str], name: str | None = None
) -> Iterator[Any]:
    """``pyarrow.Table`` pieces of one part file of a DBS table, plain or gzip; see ``sqoop_csv.read_table``."""
    return read_table(source, input_table(f"dbs/{table}"), columns, name)
