"""Documents against their JSON Schema.

``schemas/documents/<table>.json`` is what a document must be. Checking each of millions with a general validator
costs more than the rest of publishing together, so a compiled check of our own runs first. What it accepts, the
validator accepts too (a property test verifies this); what it does not accept, the validator judges and explains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any, Final

from cmsspark.publish.documents import TYPE_PREFIX, BadDocument
from cmsspark.schemas import Table, document_schema, stored_table

Check = Callable[[Any], bool]

DIALECT: Final = "https://json-schema.org/draft/2020-12/schema"
_KINDS: Final = {
    "string": {"type": "string"},
    "long": {"type": "integer"},
    "int": {"type": "integer"},
    "double": {"type": "number"},
    "boolean": {"type": "boolean"},
    "date": {"type": "string", "pattern": "^[0-9]{4}-[0-9]{2}-[0-9]{2}$"},
}
_NUMBER: Final = ("long", "int", "double")
METADATA: Final[Mapping[str, Any]] = {
    "type": "object",
    "properties": {
        "_id": {"type": "string", "pattern": "^[0-9a-f]{64}$"},
        "producer": {"type": "string", "minLength": 1},
        "timestamp": {"type": "integer", "minimum": 0},
        "type": {"type": "string", "minLength": 1},
        "type_prefix": {"type": "string", "enum": [TYPE_PREFIX]},
    },
    "required": ["_id", "producer", "timestamp", "type", "type_prefix"],
    "additionalProperties": False,
}


def schema_of(table: Table) -> dict[str, Any]:
    """The JSON Schema of a table's documents. ``schemas/documents/`` holds it as a file, which a test compares."""
    properties: dict[str, Any] = {}
    required = []
    for column in table.columns:
        if column.name in ("day", "timestamp"):
            continue
        least = {"minimum": 0} if column.type in _NUMBER else {}
        properties[column.name] = {**_KINDS[column.type], **least, "description": column.about}
        if not column.nullable:
            required.append(column.name)
    of = "period" if "period" in table.names else "day"
    properties["timestamp"] = {"type": "integer", "minimum": 0, "description": f"start of the {of}, UTC milliseconds"}
    properties["is_gone"] = {"type": "boolean", "enum": [True], "description": f"the {of} no longer has this document"}
    properties["metadata"] = dict(METADATA)
    return {
        "$schema": DIALECT,
        "title": table.name,
        "description": table.about,
        "type": "object",
        "properties": properties,
        "required": [*required, "timestamp", "metadata"],
        "additionalProperties": False,
    }


class Validator:
    """Judges documents against one schema."""

    def __init__(self, schema: Mapping[str, Any]) -> None:
        self.schema = schema
        self._quick = compile_check(schema)
        self._slow: Any = None

    def check(self, document: Mapping[str, Any]) -> None:
        """Raises BadDocument that says which field breaks the schema and how, without the field's value."""
        if self._quick(document):
            return
        error = self.judge(document)
        if error is not None:
            raise BadDocument(error)

    def judge(self, document: Mapping[str, Any]) -> str | None:
        """The general validator's first objection to ``document``, or None."""
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
    """The validator of a table's documents, or of ``completeness``."""
    try:
        return Validator(document_schema(name))
    except FileNotFoundError:
        return Validator(schema_of(stored_table(name)))


def compile_check(schema: Mapping[str, Any]) -> Check:
    """A quick check that accepts only what ``schema`` accepts. A keyword that it does not know makes it accept
    nothing.
    """
    known = {"type", "properties", "required", "additionalProperties", "minimum", "pattern", "minLength", "enum"}
    if schema.keys() - known - {"$schema", "title", "description"}:
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
    # JSON Schema searches; our patterns are anchored, and `$` must not accept a final newline here.
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
