"""What is read of a record, made of its description in ``schemas/inputs``, and the form
of the notes that samples give.

A column that feeds an attribute of an access or a job is needed. Types for msgspec,
strict checks, and the keys that the compiled readers look for are all made of these
columns, so that a field is described once. Fields are checked in the order of the
columns.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from functools import cache, cached_property
from typing import Annotated, Any, Final, Literal, NamedTuple

import msgspec

from cmsspark.base.schemas import Column, input_table
from cmsspark.sources.formats.strict_json import Fields, last
from cmsspark.sources.values import (
    Flag,
    Hours,
    Long,
    Malformed,
    PlainText,
    WholeNumber,
    flag,
    hours,
    integer,
    long,
    long_text,
    name_type,
    signed,
    text,
)

#: A kind of row, its subject, a count of records, and details as JSON.
Note = tuple[str, str, int, str]
#: The type of a key that must be absent: no record has this value.
Never = Literal["\0 no such value"] | msgspec.UnsetType

#: The type of a column → the type for msgspec and the strict check of its values.
_KINDS: Final[Mapping[str, tuple[Any, Any]]] = {
    "string": (str, text),
    "long": (Long, long),
    "signed": (WholeNumber, signed),
    "flag": (Flag, flag),
    "double": (Hours, hours),
}
#: The types that a column of a record may have.
TYPES: Final = tuple(_KINDS)
#: Attributes that are sizes: in a text column these are numbers as text.
SIZES: Final = ("read_bytes", "write_bytes")


class Field(NamedTuple):
    """A needed field of ``data``: its column, its attribute, its key, its type for
    msgspec, and its strict check.
    """

    column: Column
    attribute: str
    key: str
    type: Any
    check: Any


class RecordSchema(msgspec.Struct, frozen=True, dict=True):
    """The schema of a format, or of one version of it.

    ``is_open``: records have more fields, so that one without a name in the schema is nothing new.
    """

    name: str
    columns: tuple[Column, ...]
    is_open: bool = False

    @cached_property
    def field_names(self) -> frozenset[str]:
        """The names of all columns."""
        return frozenset(column.name for column in self.columns)

    @cached_property
    def needed(self) -> tuple[Column, ...]:
        """The columns that feed an attribute."""
        return tuple(column for column in self.columns if column.feeds)

    @cached_property
    def prefix(self) -> str:
        """The prefix of the columns that are in a record's ``data``."""
        return "data." if any(column.name.startswith("data.") for column in self.columns) else ""

    @cached_property
    def fields(self) -> tuple[Field, ...]:
        """The needed fields of ``data``. Of several for one attribute the second has
        ``_2`` behind its name.
        """
        numbers: Counter[str] = Counter()
        fields = []
        for column in self.needed:
            if not column.name.startswith("metadata."):
                numbers[column.feeds] += 1
                number = numbers[column.feeds]
                fields.append(
                    _field(column, column.feeds if number == 1 else f"{column.feeds}_{number}")
                )
        return tuple(fields)

    def fed(self, *attributes: str) -> list[Field]:
        """Return the fields that feed these attributes, in the order of the attributes."""
        return [
            field
            for attribute in attributes
            for field in self.fields
            if field.column.feeds == attribute
        ]

    def keys(self, *attributes: str) -> tuple[str, ...]:
        """Return the keys of the fields that feed these attributes, in the order of the
        attributes.
        """
        return tuple(field.key for field in self.fed(*attributes))

    def struct(self, name: str, more: Iterable[tuple[Any, ...]] = (), **options: Any) -> Any:
        """Return the type of ``data``. ``more``: attribute, type and default of fields
        beside it, or in their place.
        """
        fields: dict[str, Any] = {
            field.attribute: (
                field.attribute,
                field.type,
                *([None] if field.column.nullable else ()),
            )
            for field in self.fields
        }
        fields |= {field[0]: field for field in more}
        renamed = {field.attribute: field.key for field in self.fields}
        return msgspec.defstruct(name, fields.values(), gc=False, rename=renamed, **options)

    def check(self, values: Fields, where: str = "data.") -> dict[str, Any]:
        """Return the values of a strictly parsed object by attribute. Raises Malformed."""
        return {
            field.attribute: last(values, field.key, field.check, where) for field in self.fields
        }

    def check_all(self, values: Iterable[Any], where: str = "data.") -> dict[str, Any]:
        """Return those of the last of some values, each of which must be an object that
        passes. Raises Malformed.
        """
        checked: dict[str, Any] = {}
        for value in values:
            if not isinstance(value, dict):
                raise Malformed(f"data: expected an object, found {name_type(value)}")
            checked = self.check(value, where)
        return checked


@cache
def load_schema(path: str, name: str = "", *, is_open: bool = False) -> RecordSchema:
    """Return the schema in ``schemas/inputs/PATH.yaml``, by default with the name of the file."""
    return RecordSchema(name or path.rpartition("/")[2], input_table(path).columns, is_open)


def _field(column: Column, attribute: str) -> Field:
    key = column.name.removeprefix("data.")
    kind, check = _KINDS[column.type]
    if column.feeds in SIZES and column.type == "string":
        kind, check = PlainText, long_text
    if column.feeds == "record_time":
        check = integer
    if not column.nullable:
        return Field(column, attribute, key, Annotated[kind, msgspec.Meta(min_length=1)], check)
    return Field(column, attribute, key, kind | None, check)


class FormatVersions(msgspec.Struct, frozen=True):
    """The versions of a format by name. Most formats have one version with the name of the format.

    ``version_of`` takes the ``data`` of a record and returns the name of its version
    and its fields, or None if the version cannot be determined. ``is_flat``: whether
    a record has no ``data`` and is that itself.
    """

    by_name: Mapping[str, RecordSchema]
    version_of: Callable[[Any], tuple[str, Mapping[str, Any]] | None]
    is_flat: Callable[[Mapping[str, Any]], bool] = lambda record: False

    @classmethod
    def from_schema(cls, schema: RecordSchema, **options: Any) -> FormatVersions:
        """Return the only version of a format."""
        by_name = {schema.name: schema}
        return cls(
            by_name,
            lambda data: (schema.name, data) if isinstance(data, dict) else None,
            **options,
        )
