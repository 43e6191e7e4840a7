"""Documents against their JSON Schema.

:mod:`cmsspark.publish.document_schemas` says what a document must be. Checking each of
     millions with a general validator costs more than the rest of publishing together,
     so a compiled check of our own runs first. What it accepts, the validator accepts
     too (a property test verifies this); what it does not accept, the validator judges
     and explains.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Mapping
from functools import cache
from typing import Any

from cmsspark.publish.document_schemas import document_schema
from cmsspark.publish.documents import MAX_BYTES, BadDocument, DocumentSpec, canonical, document

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
