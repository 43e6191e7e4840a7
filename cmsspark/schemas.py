"""Schemas of every input and stored table, read from ``schemas/``.

A table's file is YAML: ``table``, ``about`` and ``columns``, each ``{name, type, nullable, about}`` with type one of
``string, long, int, double, date, boolean``. ``keys`` names the columns that identify a document of the table;
``private: true`` marks a table that is never published.

With ``extends: OTHER`` a table inherits the columns and keys of OTHER unless it defines its own. In its own ``columns``
a plain name inherits the column of that name, and a mapping with the name of an inherited column overrides parts of it.
Spark and Arrow schemas are made on demand, so importing this module does not import either.
"""

from __future__ import annotations

import dataclasses
import hashlib
import re
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final

import yaml

from cmsspark.errors import SettingsError
from cmsspark.resources import read_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: The description of the report of a single stream; ``{stream}`` is replaced by the stream's name.
_STREAM_REPORT: Final = "schemas/tables/dbs_STREAM.yaml"
_STREAM_REPORT_NAME: Final = re.compile(r"dbs_([a-z][a-z0-9_]*)")


@dataclass(frozen=True)
class Column:
    """One column: its name, its type, whether nulls are allowed, and a description with the unit.

    ``required``: for a field of a log, the attribute that counting takes from it (lfn, bytes, site, user, app). A
    stream in which no record has any field for an attribute has another schema.

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

    ``keys``: the columns that identify a document, in the order of document ids. ``is_private``: rows describe single
    people and are never published.

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
    keys: tuple[str, ...] = ()
    is_private: bool = False

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [column.name for column in self.columns]

    def fingerprint(self) -> str:
        """A digest of names and types, in order, that identifies this version of the schema."""
        columns = ",".join(f"{column.name}:{column.type}" for column in self.columns)
        return hashlib.sha256(columns.encode()).hexdigest()[:12]

    def spark(self) -> StructType:
        """The Spark schema. Every field is nullable, as Parquet round trips do not keep the flag."""
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
        """The Arrow schema. Every field is nullable, as in the Spark schema."""
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
    """The schema of a stored table, from ``schemas/tables/NAME.yaml``, or from ``dbs_STREAM.yaml`` for the report of a
    single stream. Raises FileNotFoundError where neither exists, SettingsError (78) for a wrong description.

    Example:
        >>> "dataset_name" in stored_table("data_aggregation").names
        True
    """
    try:
        return described_table(f"schemas/tables/{name}.yaml")
    except FileNotFoundError:
        match = _STREAM_REPORT_NAME.fullmatch(name)
        if match is None:
            raise
        return described_table(_STREAM_REPORT, lambda path: read_text(path).replace("{stream}", match[1]))


@cache
def input_table(path: str) -> Table:
    """The schema of an input table, for example ``dbs/FILES`` or ``phedex/block_replicas``.

    Example:
        >>> input_table("dbs/DATASETS").names[:2]
        ['dataset_id', 'dataset']
    """
    return described_table(f"schemas/inputs/{path}.yaml")


def described_table(path: str, read: Callable[[str], str] = read_text, children: tuple[str, ...] = ()) -> Table:
    """The table that the file at ``path`` describes; ``children`` are the files that extend it.

    Raises FileNotFoundError, and SettingsError (78) with file and line for a parent that does not exist or extends this
    table, for unknown names, and for missing parts.
    """
    described = _Description(path, read(path))
    parent = None
    if described.extends:
        above = f"{path.rpartition('/')[0]}/{described.extends}.yaml"
        if above in (path, *children):
            raise described.wrong(f"{described.extends} extends this table itself", "extends")
        try:
            parent = described_table(above, read, (path, *children))
        except FileNotFoundError:
            raise described.wrong(f"there is no table {described.extends} to extend", "extends") from None
    return described.table(parent)


class _Description:
    """A table description file, with the line of each part for error messages."""

    _KEYS: Final = ("table", "about", "extends", "columns", "keys", "private")
    _COLUMN_KEYS: Final = tuple(field.name for field in dataclasses.fields(Column))

    def __init__(self, path: str, text: str) -> None:
        self.path = path
        self._loader = yaml.SafeLoader(text)
        self._parts: dict[str, yaml.Node] = {}
        self._parts = self._mapping(self._loader.get_single_node(), self._KEYS, "a table")
        self.extends: str = self._value("extends") or ""

    def wrong(self, text: str, part: str = "", node: Any = None) -> SettingsError:
        """The error about a part of the file, or about a node in it."""
        at = node if node is not None else self._parts.get(part)
        line = f", line {at.start_mark.line + 1}" if at is not None else ""
        return SettingsError(text, where=f"{self.path}{line}", next_step="see the beginning of cmsspark/schemas.py")

    def table(self, parent: Table | None) -> Table:
        """The table, including what it inherits from ``parent``. Raises SettingsError (78)."""
        for part in ("table", "about", *(() if parent else ("columns",))):
            if part not in self._parts:
                raise self.wrong(f"a table needs {part!r}")
        inherited = {column.name: column for column in parent.columns} if parent else {}
        if "columns" in self._parts:
            columns = tuple(self._column(node, inherited) for node in self._parts["columns"].value)
        else:
            columns = tuple(inherited.values())
        names = [column.name for column in columns]
        keys = tuple(self._value("keys") or (parent.keys if parent else ()))
        for name in {*keys} - {*names}:
            raise self.wrong(f"the key column {name!r} does not exist", "keys")
        for name in {name for name in names if names.count(name) > 1}:
            raise self.wrong(f"column {name!r} is defined twice", "columns")
        return Table(self._value("table"), self._value("about"), columns, keys, bool(self._value("private")))

    def _column(self, node: yaml.Node, inherited: Mapping[str, Column]) -> Column:
        if isinstance(node, yaml.ScalarNode):
            if node.value not in inherited:
                raise self.wrong(f"there is no column {node.value!r} to inherit", node=node)
            return inherited[node.value]
        self._mapping(node, self._COLUMN_KEYS, "a column")
        attributes: dict[str, Any] = self._loader.construct_document(node)
        overridden = inherited.get(attributes.get("name", ""))
        if overridden is not None:
            return dataclasses.replace(overridden, **attributes)
        if not {"name", "type"} <= attributes.keys():
            raise self.wrong("a column needs a name and a type", node=node)
        return Column(**attributes)

    def _mapping(self, node: Any, allowed: tuple[str, ...], what: str) -> dict[str, yaml.Node]:
        if not isinstance(node, yaml.MappingNode):
            raise self.wrong(f"{what} is a mapping of {', '.join(allowed)}", node=node)
        for key, _ in node.value:
            if key.value not in allowed:
                raise self.wrong(f"{what} has no {key.value!r}, only {', '.join(allowed)}", node=key)
        return {key.value: value for key, value in node.value}

    def _value(self, part: str) -> Any:
        return self._loader.construct_document(self._parts[part]) if part in self._parts else None
