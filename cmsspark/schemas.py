"""Schemas of every input, stored table and document, read from ``schemas/``.

A table's file is YAML: ``table``, ``about`` and ``columns``, each ``{name, type, nullable, about}`` with type one of
``string, long, int, double, date, boolean``. The Spark form is made on demand, so importing this starts nothing.
"""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from cmsspark.resources import read_text, read_yaml

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType


@dataclass(frozen=True)
class Column:
    """One column: its name, type word, whether nulls are allowed, and what it holds (with its unit).

    ``required``: of a log's fields, what the count needs it for (lfn, bytes, site, user, app). A stream in which no
    record has any field for it is of another schema.

    Example:
        >>> Column("read_bytes", "long", about="bytes read").nullable
        True
    """

    name: str
    type: str
    nullable: bool = True
    about: str = ""
    required: str = ""

    @property
    def is_needed(self) -> bool:
        """Whether a decoder reads this field of a log."""
        return self.about.startswith("needed")


@dataclass(frozen=True)
class Table:
    """The columns of a table, in order.

    Example:
        >>> table = stored_table("data_aggregation")
        >>> table.arrow().field("nacc").type
        DataType(int64)
        >>> table.columns[0].name, table.columns[0].type
        ('day', 'date')
    """

    name: str
    about: str
    columns: tuple[Column, ...]

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [column.name for column in self.columns]

    def fingerprint(self) -> str:
        """What tells this schema from an earlier or later one: a digest of names and types, in order."""
        told = ",".join(f"{column.name}:{column.type}" for column in self.columns)
        return hashlib.sha256(told.encode()).hexdigest()[:12]

    def spark(self) -> StructType:
        """The schema as Spark knows it. Every field is nullable there: Parquet round trips do not keep the mark."""
        from pyspark.sql.types import (
            BooleanType,
            DataType,
            DateType,
            DoubleType,
            IntegerType,
            LongType,
            StringType,
            StructField,
            StructType,
        )

        kinds: dict[str, DataType] = {
            "string": StringType(),
            "long": LongType(),
            "int": IntegerType(),
            "double": DoubleType(),
            "date": DateType(),
            "boolean": BooleanType(),
        }
        return StructType([StructField(column.name, kinds[column.type], True) for column in self.columns])

    def arrow(self) -> pa.Schema:
        """The schema as Arrow knows it; every field is nullable, as in Spark's."""
        import pyarrow as pa

        kinds = {
            "string": pa.string(),
            "long": pa.int64(),
            "int": pa.int32(),
            "double": pa.float64(),
            "date": pa.date32(),
            "boolean": pa.bool_(),
        }
        return pa.schema([(column.name, kinds[column.type]) for column in self.columns])


@cache
def stored_table(name: str) -> Table:
    """The schema of a stored table, from ``schemas/tables/NAME.yaml``.

    Example:
        >>> "dataset_name" in stored_table("data_aggregation").names
        True
    """
    return _table(f"schemas/tables/{name}.yaml")


@cache
def input_table(path: str) -> Table:
    """The schema of an input, for example ``dbs/FILES`` or ``phedex/block_replicas``.

    Example:
        >>> input_table("dbs/DATASETS").names[:2]
        ['dataset_id', 'dataset']
    """
    return _table(f"schemas/inputs/{path}.yaml")


@cache
def document_schema(name: str) -> dict[str, Any]:
    """The JSON Schema of a published document, from ``schemas/documents/NAME.json``.

    Example:
        >>> document_schema("data_aggregation")["type"]
        'object'
    """
    loaded = json.loads(read_text(f"schemas/documents/{name}.json"))
    assert isinstance(loaded, dict)
    return loaded


def _table(path: str) -> Table:
    loaded = read_yaml(path)
    columns = tuple(Column(**column) for column in loaded["columns"])
    return Table(loaded["table"], loaded["about"], columns)
