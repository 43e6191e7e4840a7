"""Schemas of every input and stored table, read from ``schemas/``.

A table's file is YAML: ``table``, ``about`` and ``columns``, each ``{name, type,
nullable, about}`` with type one of ``string, long, int, double, date, boolean``; of
logs also ``signed`` (a negative number, too), ``flag`` (0 or 1) and ``any`` (not read).
``keys`` names the columns that identify a document of the table; ``private: true``
marks a table that is never published, and so does a column with ``private: true``.
``person`` names the column of pseudonyms of people that documents add up over (rule 68).
``unit`` is the unit of a column whose name does not say it.

With ``extends: OTHER`` a table inherits the columns and keys of OTHER unless it defines
its own. In its own ``columns`` a plain name inherits the column of that name, and a
mapping with the name of an inherited column overrides parts of it. Spark and Arrow
schemas are made on demand, so importing this module does not import either.
"""

from __future__ import annotations

import hashlib
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import TYPE_CHECKING, Final

import msgspec

from cmsspark.base import config_files
from cmsspark.base.config_files import ConfigFile
from cmsspark.base.resources import read_text

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql.types import StructType

#: The description of the report of a single stream; ``{stream}`` is replaced by the stream's name.
_STREAM_REPORT: Final = "schemas/tables/dbs_STREAM.yaml"
#: Endings of names, or whole names, of columns with numbers → their unit.
_UNITS: Final = {
    **{
        "_bytes": "bytes",
        "_ms": "ms",
        "_count": "number",
        "_share": "share of 1",
        "cpu_time": "s",
        "wc_time": "s",
    },
    **{
        "timestamp": "ms since 1970",
        "bytes": "bytes",
        "accesses": "accesses",
        "remote_nacc": "accesses",
    },
    **{"jobs": "jobs", "distinct_users": "people", "events": "events", "replica_events": "events"},
}
#: Endings of columns with numbers whose sums mean nothing.
_NOT_ADDITIVE: Final = ("_ms", "_share", "_id", "_day", "_days", "_ratio", "_version")
_STREAM_REPORT_NAME: Final = re.compile(r"dbs_([a-z][a-z0-9_]*)")


class Column(msgspec.Struct, frozen=True):
    """One column: its name, its type, whether nulls are allowed, and a description with the unit.

    ``feeds``: for a field of a log that is read, the attribute of an access or of a job
    that it feeds. ``is_required``: a stream in which no record has any required field
    for an attribute has another schema.

    Example:
        >>> Column("read_bytes", "long", about="bytes read").nullable
        True
    """

    name: str
    type: str
    nullable: bool = True
    about: str = ""
    feeds: str = ""
    is_required: bool = False
    #: The unit of its numbers, where its name does not say it.
    own_unit: str = ""
    #: Whether its values are of single people. Such a table is never published.
    is_private: bool = False
    #: Whether its numbers may be negative, in tables of users.
    is_signed: bool = False

    @property
    def unit(self) -> str | None:
        """The unit of its numbers, by its name; None for other values, and for numbers
        without one.

        Example:
            >>> Column("read_bytes", "long").unit
            'bytes'
        """
        if self.type not in ("long", "int", "double"):
            return None
        if self.own_unit:
            return self.own_unit
        endings = (
            unit
            for name, unit in _UNITS.items()
            if name.startswith("_") and self.name.endswith(name)
        )
        return _UNITS.get(self.name) or next(endings, None)


class Table(msgspec.Struct, frozen=True):
    """The columns of a table, in order.

    ``keys``: the columns that identify a document, in the order of document ids.
    ``is_private``: rows describe single people and are never published as they are.
    ``person``: the column of pseudonyms that documents have not: they add up over people.

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
    person: str = ""

    @property
    def is_published(self) -> bool:
        """Whether documents are made of the table."""
        return not self.is_private or bool(self.person)

    @property
    def names(self) -> list[str]:
        """Column names in order."""
        return [column.name for column in self.columns]

    @property
    def additive(self) -> list[str]:
        """The columns whose sums mean something, which are numbers other than keys,
        times, shares and distinct counts.

        Example:
            >>> stored_table("dbs_events").additive[:3]
            ['events', 'file_count', 'invalid_file_count']
        """
        return [
            column.name
            for column in self.columns
            if column.type in ("long", "int", "double")
            and column.name not in (*self.keys, "timestamp", "distinct_users", "hour", "rank")
            and not column.name.endswith(_NOT_ADDITIVE)
        ]

    def fingerprint(self) -> str:
        """Return a digest of names and types, in order, that identifies this version of
        the schema.
        """
        columns = ",".join(f"{column.name}:{column.type}" for column in self.columns)
        return hashlib.sha256(columns.encode()).hexdigest()[:12]

    def spark(self) -> StructType:
        """Return the Spark schema. Every field is nullable, as Parquet round trips do
        not keep the flag.
        """
        from pyspark.sql import types

        kinds: dict[str, types.DataType] = {
            "string": types.StringType(),
            "long": types.LongType(),
            "int": types.IntegerType(),
            "double": types.DoubleType(),
            "date": types.DateType(),
            "boolean": types.BooleanType(),
        }
        return types.StructType(
            [types.StructField(column.name, kinds[column.type]) for column in self.columns]
        )

    def arrow(self) -> pa.Schema:
        """Return the Arrow schema. Every field is nullable, as in the Spark schema."""
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


#: What finds tables that are not in ``schemas/tables``: those of users' jobs.
TABLE_FINDERS: Final[list[Callable[[str], Table | None]]] = []


def stored_table(name: str) -> Table:
    """Return the schema of a stored table, from ``schemas/tables/NAME.yaml``, from
    ``dbs_STREAM.yaml`` for the report of a single stream, or of a user's job. Raises
    FileNotFoundError where none exists, SettingsError (78) for a wrong description.

    Example:
        >>> "dataset_name" in stored_table("data_aggregation").names
        True
    """
    try:
        return _built_in_table(name)
    except FileNotFoundError:
        for find in TABLE_FINDERS:
            if (table := find(name)) is not None:
                return table
        raise


@cache
def _built_in_table(name: str) -> Table:
    try:
        return described_table(f"schemas/tables/{name}.yaml")
    except FileNotFoundError:
        match = _STREAM_REPORT_NAME.fullmatch(name)
        if match is None:
            raise
        return described_table(
            _STREAM_REPORT, lambda path: read_text(path).replace("{stream}", match[1])
        )


#: Input tables that are not in ``schemas/inputs``: those of users' streams.
INPUT_TABLES: Final[dict[str, Table]] = {}


def input_table(path: str) -> Table:
    """Return the schema of an input table, for example ``dbs/FILES`` or ``phedex/block_replicas``.

    Example:
        >>> input_table("dbs/DATASETS").names[:2]
        ['dataset_id', 'dataset']
    """
    return INPUT_TABLES.get(path) or _built_in_input(path)


@cache
def _built_in_input(path: str) -> Table:
    return described_table(f"schemas/inputs/{path}.yaml")


def described_table(
    path: str, read: Callable[[str], str] = read_text, children: tuple[str, ...] = ()
) -> Table:
    """Return the table that the file at ``path`` describes; ``children`` are the files
    that extend it.

    Raises FileNotFoundError, and SettingsError (78) with file and line for a parent
    that does not exist or extends this table, for unknown names, and for missing parts.
    """
    file = config_files.parse(read(path).encode(), path)
    described = file.convert(_TableDescription)
    parent = None
    if described.extends:
        above = f"{path.rpartition('/')[0]}/{described.extends}.yaml"
        if above in (path, *children):
            raise file.error(f"{described.extends} extends this table itself", "extends")
        try:
            parent = described_table(above, read, (path, *children))
        except FileNotFoundError:
            raise file.error(
                f"there is no table {described.extends} to extend", "extends"
            ) from None
    # The table, including what it inherits from ``parent``.
    inherited = {column.name: column for column in parent.columns} if parent else {}
    if described.columns is not None:
        columns = [
            _column(column, inherited, file, number)
            for number, column in enumerate(described.columns)
        ]
    elif parent:
        columns = list(parent.columns)
    else:
        raise file.error("a table needs columns, or a table that it extends")
    names = [column.name for column in columns]
    keys = described.keys or (parent.keys if parent else ())
    for name in {*keys} - {*names}:
        raise file.error(f"the key column {name!r} does not exist", "keys")
    for name in {name for name in names if names.count(name) > 1}:
        raise file.error(f"column {name!r} is defined twice", "columns")
    is_private = described.private or any(column.is_private for column in columns)
    if described.person and described.person not in names:
        raise file.error(f"the column {described.person!r} does not exist", "person")
    return Table(
        described.table,
        described.about,
        tuple(columns),
        tuple(keys),
        is_private,
        described.person,
    )


class _ColumnDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A column as a file describes it; what is None is inherited, or as in :class:`Column`."""

    name: str
    type: str | None = None
    nullable: bool | None = None
    about: str | None = None
    feeds: str | None = None
    is_required: bool | None = msgspec.field(default=None, name="required")
    own_unit: str | None = msgspec.field(default=None, name="unit")
    is_private: bool | None = msgspec.field(default=None, name="private")


class _TableDescription(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """A table as a file describes it. A column that is a text inherits the column of that name."""

    table: str
    about: str
    extends: str | None = None
    columns: list[str | _ColumnDescription] | None = None
    keys: list[str] | None = None
    private: bool = False
    person: str = ""


def _column(
    described: str | _ColumnDescription,
    inherited: Mapping[str, Column],
    file: ConfigFile,
    number: int,
) -> Column:
    name = described if isinstance(described, str) else described.name
    changes = {} if isinstance(described, str) else msgspec.structs.asdict(described)
    changes = {part: value for part, value in changes.items() if value is not None}
    if name in inherited:
        return msgspec.structs.replace(inherited[name], **changes)
    if not changes:
        raise file.error(f"there is no column {name!r} to inherit", "columns", str(number))
    if "type" not in changes:
        raise file.error(f"column {name!r} needs a type", "columns", str(number))
    return Column(**changes)
