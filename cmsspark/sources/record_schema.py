"""The schemas of a format's records, by version, and the form of the notes that samples give."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass
from typing import Any

from cmsspark.base.schemas import Column

#: A kind of row, its subject, a count of records, and details as JSON.
Note = tuple[str, str, int, str]


@dataclass(frozen=True)
class RecordSchema:
    """The schema of a format, or of one version of it: all field names, and the required columns.

    ``prefix``: the prefix in the schema of the fields in a record's ``data``. ``is_open``: records have more fields,
    so that one without a name in the schema is nothing new.
    """

    name: str
    field_names: frozenset[str]
    needed: tuple[Column, ...]
    prefix: str = "data."
    is_open: bool = False

    @classmethod
    def of(cls, name: str, columns: Iterable[Column], prefix: str = "data.", *, is_open: bool = False) -> RecordSchema:
        """Make the schema of ``columns``."""
        listed = tuple(columns)
        needed = tuple(column for column in listed if column.is_needed)
        return cls(name, frozenset(column.name for column in listed), needed, prefix, is_open)


@dataclass(frozen=True)
class FormatVersions:
    """The versions of a format by name. Most formats have one version with the name of the format.

    ``version_of`` takes the ``data`` of a record and returns the name of its version and its fields, or None where the
    version cannot be determined. ``is_flat``: whether a record has no ``data`` and is that itself.
    """

    by_name: Mapping[str, RecordSchema]
    version_of: Callable[[Any], tuple[str, Mapping[str, Any]] | None]
    is_flat: Callable[[Mapping[str, Any]], bool] = lambda record: False
