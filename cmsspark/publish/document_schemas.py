"""JSON Schemas of published documents, generated from the tables' descriptions.

``schemas/documents/`` holds them as files, for people and for other programs.
Checking each of millions of documents with a general validator costs more than the rest
of publishing together, so a compiled check of our own runs first. What it accepts, the
validator accepts too (a property test verifies this); what it does not accept, the
validator judges and explains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping, Sequence
from functools import cache
from typing import Any, Final

from cmsspark.base.resources import resource
from cmsspark.base.schemas import Table, stored_table
from cmsspark.publish.documents import (
    JOB_COUNT,
    MAX_BYTES,
    MAX_GONE_LISTED,
    TYPE_PREFIX,
    USERS,
    WITHHELD,
    BadDocument,
    DocumentSpec,
    added_fields,
    canonical,
    document,
    field_name,
    is_field,
    select_bins,
)
from cmsspark.sources.registry import STREAMS_BY_NAME

COMPLETENESS: Final = "completeness"
DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_TYPES: Final = {
    "string": {"type": "string"},
    "long": {"type": "integer"},
    "int": {"type": "integer"},
    "double": {"type": "number"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
}
_NUMBERS: Final = ("long", "int", "double")
_WITHHELD: Final = {
    "type": "boolean",
    "enum": [True],
    "description": "distinct_users is left out, because there are fewer than `min_distinct_users` of the settings",
}
#: What fields are that documents have and stored rows have not.
_ADDED: Final = {
    JOB_COUNT: "nacc again, in documents of the stream condor, where it counts jobs; no other document has it",
    USERS: "people whose rows the document adds up; documents of a single account have it not",
}
_COUNT: Final[Mapping[str, Any]] = {"type": "integer", "minimum": 0}
_DIGEST: Final[Mapping[str, Any]] = {"type": "string", "pattern": "^[0-9a-f]{64}$"}
_TEXT: Final[Mapping[str, Any]] = {"type": "string", "minLength": 1}


def document_schema(name: str) -> dict[str, Any]:
    """Return the JSON Schema of a table's documents, or of ``completeness``. Raises
    FileNotFoundError for no such table.

    Example:
        >>> document_schema("data_aggregation")["type"]
        'object'
    """
    return (
        _build_completeness_schema() if name == COMPLETENESS else build_schema(stored_table(name))
    )


def build_schema(table: Table) -> dict[str, Any]:
    """Return the JSON Schema of a table's documents.

    Fields are the table's columns without the day, which is in the id; a number is not
    negative; a column that is never null is required. ``timestamp``, ``is_gone`` and
    ``metadata`` are those of every document.
    """
    properties: dict[str, Any] = {}
    required = []
    for column in table.columns:
        if not is_field(table, column.name):
            continue
        least = {"minimum": 0} if column.type in _NUMBERS and not column.is_signed else {}
        properties[field_name(column.name)] = {
            **_TYPES[column.type],
            **least,
            "description": column.about,
        }
        if column.name == USERS:
            properties[WITHHELD] = _WITHHELD
        if not column.nullable and column.name not in (USERS, table.person):
            required.append(field_name(column.name))
    for name in added_fields(table):
        properties[name] = {**_COUNT, "description": _ADDED[name]}
        if name == USERS:
            properties[WITHHELD] = _WITHHELD
    of = "period" if "period" in table.names else "day"
    properties["timestamp"] = {**_COUNT, "description": f"start of the {of}, UTC milliseconds"}
    properties["is_gone"] = {
        "type": "boolean",
        "enum": [True],
        "description": f"the {of} no longer has this document",
    }
    properties["metadata"] = _metadata()
    return {
        "$schema": DIALECT,
        "title": table.name,
        "description": table.about,
        **_object(properties, [*required, "timestamp", "metadata"]),
    }


def _build_completeness_schema() -> dict[str, Any]:
    """Return the JSON Schema of the document that ends each publication, with a part
    for each stream.
    """
    streams = {name: _bins(name) for name in STREAMS_BY_NAME}
    listed = {"type": "array", "items": dict(_DIGEST), "maxItems": MAX_GONE_LISTED}
    period = "^[0-9]{4}-([0-9]{2}|W[0-9]{2}|[0-9]{2}-[0-9]{2}(--[0-9]{4}-[0-9]{2}-[0-9]{2})?)$"
    described: dict[str, tuple[Mapping[str, Any], str]] = {
        "table": (_TEXT, "the table that the documents are made from"),
        "period": (
            {"type": "string", "pattern": period},
            "the day in UTC, or the period: 2026-11-09, 2026-W46, 2026-11, 2026-11-01--2026-11-10",
        ),
        "document_count": (_COUNT, "documents of the day, those that are gone not counted"),
        "digest": (_DIGEST, "sha256 over ids and sha256s of the documents, in the order of ids"),
        "gone_count": (_COUNT, "documents once published that the day no longer has"),
        "gone_ids": (listed, "the first ids of them"),
        "quarantined_count": (_COUNT, "rows with invalid documents"),
        "left_out_count": (
            _COUNT,
            "rows of datasets of the tier USER, which the settings leave out, and of the app "
            "storage",
        ),
        "is_partial": (
            {"type": "boolean"},
            "an input was missing, still being written or damaged, and allowed to be",
        ),
        "damaged_file_count": (
            _COUNT,
            "log files that were damaged and read as far as they are intact",
        ),
        "reconciliation": (_object(streams), "records by stream and bin"),
        "timestamp": (_COUNT, "start of the day, UTC milliseconds"),
    }
    properties: dict[str, Any] = {
        name: {**rule, "description": about} for name, (rule, about) in described.items()
    }
    properties["metadata"] = _metadata()
    # Documents of earlier versions have none of these, and left_out_count is there only
    # where that is set.
    required = [
        name
        for name in properties
        if name not in ("damaged_file_count", "left_out_count", "reconciliation")
    ]
    about = (
        "How many documents a day of a table has, their digest, and how records became them."
        " It names no dataset, site or person."
    )
    return {
        "$schema": DIALECT,
        "title": COMPLETENESS,
        "description": about,
        **_object(properties, required),
    }


def _bins(stream: str) -> dict[str, Any]:
    """Return the bins of one stream."""
    names, parts = select_bins(stream)
    unmatched = _object({name: dict(_COUNT) for name in parts})
    return _object({**{name: dict(_COUNT) for name in names}, "unmatched": unmatched})


def _metadata() -> dict[str, Any]:
    """Return what MONIT wants to know of every document."""
    parts: dict[str, Any] = {
        "_id": dict(_DIGEST),
        "producer": dict(_TEXT),
        "timestamp": dict(_COUNT),
        "type": dict(_TEXT),
        "type_prefix": {"type": "string", "enum": [TYPE_PREFIX]},
    }
    return _object(parts, list(parts))


def _object(properties: Mapping[str, Any], required: Sequence[str] = ()) -> dict[str, Any]:
    required_part = {"required": list(required)} if required else {}
    return {
        "type": "object",
        "properties": dict(properties),
        **required_part,
        "additionalProperties": False,
    }


def published_tables() -> list[str]:
    """Return the tables that are published: those of ``schemas/tables``, and the report
    of each stream.
    """
    listed = {
        entry.name.removesuffix(".yaml") for entry in resource("schemas/tables").iterdir()
    } - {"dbs_STREAM"}
    listed |= {stream.report for stream in STREAMS_BY_NAME.values() if stream.has_report}
    return sorted(name for name in listed if stored_table(name).is_published)


Check = Callable[[Any], bool]


class Validator:
    """Judges documents against one schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self._quick = compile_check(schema)
        self._slow: Any = None

    def check(self, document: Mapping[str, Any]) -> None:
        """Raise BadDocument that says which field breaks the schema and how, without
        the field's value.
        """
        if self._quick(document):
            return
        error = self.judge(document)
        if error is not None:
            raise BadDocument(error)

    def judge(self, document: Mapping[str, Any]) -> str | None:
        """Return what the general validator has against ``document``, or None."""
        if self._slow is None:
            from jsonschema import Draft202012Validator

            self._slow = Draft202012Validator(self.schema)
        for error in self._slow.iter_errors(document):
            field = ".".join(str(part) for part in error.absolute_path) or "the document"
            if error.validator == "additionalProperties":
                return f"{field} has a field that the schema does not know"
            if error.validator == "required":
                return f"{field}: {error.message}"
            return f"{field} breaks the schema's {error.validator} {error.validator_value!r}"
        return None


@cache
def validator_for(name: str) -> Validator:
    """Return the validator of a table's documents, or of ``completeness``."""
    return Validator(document_schema(name))


def valid_document(spec: DocumentSpec, row: Mapping[str, Any]) -> tuple[dict[str, Any], bytes]:
    """Return the document of a stored row, and its canonical form.

    Raises BadDocument where the row makes none, or one that breaks the schema or is too large.
    """
    fields = document(spec, row)
    validator_for(spec.table.name).check(fields)
    body = canonical(fields)
    if len(body) > MAX_BYTES:
        raise BadDocument(f"the document has {len(body)} bytes, more than {MAX_BYTES}")
    return fields, body


def compile_check(schema: Mapping[str, Any]) -> Check:
    """Return a quick check that accepts only what ``schema`` accepts.

    A keyword that it does not know makes it accept nothing.
    """
    keywords = {
        "type",
        "properties",
        "required",
        "additionalProperties",
        "minimum",
        "pattern",
        "minLength",
        "enum",
    }
    if schema.keys() - keywords - {"$schema", "title", "description"}:
        return lambda value: False
    kind = schema.get("type")
    if kind == "object":
        return _object_check(schema)
    if kind == "string":
        return _string_check(schema)
    if kind == "boolean":
        allowed = schema.get("enum", [True, False])
        return lambda value: type(value) is bool and value in allowed
    if kind in ("integer", "number") and "enum" not in schema:
        return _number_check(schema, (int,) if kind == "integer" else (int, float))
    return lambda value: False


def _object_check(schema: Mapping[str, Any]) -> Check:
    if schema.get("additionalProperties") is not False:
        return lambda value: False
    checks = {name: compile_check(part) for name, part in schema.get("properties", {}).items()}
    required = frozenset(schema.get("required", ()))

    def check(value: Any) -> bool:
        if type(value) is not dict or not required <= value.keys():
            return False
        for name, field in value.items():
            judge = checks.get(name)
            if judge is None or not judge(field):
                return False
        return True

    return check


def _string_check(schema: Mapping[str, Any]) -> Check:
    pattern = schema.get("pattern")
    allowed = schema.get("enum")
    least = schema.get("minLength", 0)
    # JSON Schema searches; our patterns are anchored, and `$` must not accept a final
    # newline here.
    match = re.compile(pattern).search if pattern else None

    def check(value: Any) -> bool:
        if type(value) is not str or len(value) < least:
            return False
        if allowed is not None and value not in allowed:
            return False
        return match is None or (match(value) is not None and not value.endswith("\n"))

    return check


def _number_check(schema: Mapping[str, Any], kinds: tuple[type, ...]) -> Check:
    least = schema.get("minimum", -math.inf)

    def check(value: Any) -> bool:
        return type(value) in kinds and value >= least

    return check
