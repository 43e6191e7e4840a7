"""Templates of lines: the literals between the values of a record, learned from one
line and matched in others.

A producer writes its records' keys in one order, so lines differ in their values only.
A :class:`LineTemplate` is such an order.
:mod:`cmsspark.sources.formats.template_reader` reads a line that fits a template
without a parser: the bytes between the values must be those of the template and each
value must be plain. Any other line is left to the decoder.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

#: Templates are not learned from longer lines.
LONGEST: Final = 64 * 1024

_TOKEN: Final = re.compile(r' *(?:([{}\[\],:])|("[^"]*")|([^ {}\[\],:"]+))')
_PART: Final = re.compile(r"([^=&]*)=([^&]*)")
_PLAIN_TEXT: Final = re.compile(rb"[\x20-\x5b\x5d-\xff]*")


class RequiredFields(NamedTuple):
    """The keys of a record's ``data`` that a stream requires."""

    #: The file's name.
    name: str
    #: Texts that make an access's group.
    shared: tuple[str, ...]
    #: Sizes read.
    read: tuple[str, ...]
    #: Sizes written.
    written: tuple[str, ...] = ()
    #: Sizes are texts (EOS, G1 and G2).
    sizes_are_texts: bool = False
    #: Sizes read add up (EOS); otherwise the first that is not 0 counts.
    sizes_add_up: bool = False
    #: The shared text that names a program, some of which remove files (EOS), else empty.
    program: str = ""
    #: A text that tells whether an access has bytes of its own (CMSSW), else empty.
    read_type: str = ""
    #: The format version (EOS), else empty.
    format_version: str = ""
    #: ``data`` is a text ``key=value&...`` (EOS, G1).
    data_is_text: bool = False

    @property
    def texts(self) -> tuple[str, ...]:
        """The texts, in the order of their slots."""
        return (self.name, *self.shared, *([self.read_type] if self.read_type else ()))


#: The required fields of a record, by its ``data``; None where that does not identify
#: the format version.
RequiredFieldsOf = Callable[[Mapping[str, Any] | str], RequiredFields | None]


class LineTemplate(NamedTuple):
    """``literals[i]`` comes before value ``i``, the last one after the last value.
    ``slots[i]`` is the slot of a required value, -1 for others: the texts, sizes read,
    sizes written, the timestamp.

    A literal that ends in ``=`` comes before a part of a text, which ends at ``&`` or a quote.
    """

    literals: tuple[bytes, ...]
    slots: tuple[int, ...]
    required: RequiredFields


class _DuplicateKey(Exception):
    """An object has a duplicate key."""


def learn(line: bytes, pick_required: RequiredFieldsOf) -> LineTemplate | None:
    """Return the template of a line (without its newline); None where it has none that
    other lines could fit.

    It must be one JSON object, its ``data`` and ``metadata`` objects, without escapes,
    tabs and duplicate keys. Its required values must not be objects or arrays, which
    are ill-typed there. Where ``data`` is a text, all its parts must be ``key=value``.
    """
    if len(line) > LONGEST or _PLAIN_TEXT.fullmatch(line) is None:
        return None
    try:
        text = line.decode()
        record = json.loads(text, object_pairs_hook=_once, parse_constant=_refused)
    except (ValueError, RecursionError, _DuplicateKey):
        return None
    if not isinstance(record, dict) or not isinstance(record.get("data"), dict | str):
        return None
    if not isinstance(record.get("metadata", {}), dict):
        return None
    required = pick_required(record["data"])
    data = _parts(record["data"]) if isinstance(record["data"], str) else record["data"]
    if (
        required is None
        or required.data_is_text != isinstance(record["data"], str)
        or required.name not in data
    ):
        return None
    names = (*required.texts, *required.read, *required.written)
    position_of: dict[tuple[str | None, ...], int] = {
        ("data", name): position for position, name in enumerate(names)
    }
    position_of["metadata", "timestamp"] = len(names)
    values = [data.get(name) for name in names]
    values.append(record.get("metadata", {}).get("timestamp"))
    if any(isinstance(value, dict | list) for value in values):
        return None
    literals, paths = _cut(text, required.data_is_text)
    return LineTemplate(literals, tuple(position_of.get(path, -1) for path in paths), required)


def _parts(text: str) -> dict[str, str]:
    """Return the parts of ``key=value&...`` by their keys; empty where another part is
    there, or a key twice.
    """
    parts = [part.partition("=") for part in text.split("&")]
    by_key = {key: value for key, _, value in parts}
    return by_key if len(by_key) == len(parts) and all(equals for _, equals, _ in parts) else {}


def _once(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    record = dict(pairs)
    if len(record) < len(pairs):
        raise _DuplicateKey
    return record


def _refused(constant: str) -> Any:
    raise ValueError(f"{constant} is not JSON")


def _cut(text: str, data_is_text: bool) -> tuple[tuple[bytes, ...], list[tuple[str | None, ...]]]:
    """Return the literals around the values of valid JSON, and the path of each value,
    with None for an array.

    ``data_is_text``: each part of the text ``data`` is a value.
    """
    literals: list[bytes] = []
    paths: list[tuple[str | None, ...]] = []
    # One entry for each open container: its key, None in an array.
    path: list[str | None] = []
    in_object: list[bool] = []
    begin = 0
    wants_key = False
    for token in _TOKEN.finditer(text):
        mark, quoted, _ = token.groups()
        if mark is None:
            if wants_key and quoted is not None:
                path[-1] = quoted[1:-1]
                continue
            at = token.end() - len(token[0].lstrip(" "))
            if data_is_text and path == ["data"]:
                for part in _PART.finditer(text, at + 1, token.end() - 1):
                    literals.append(text[begin : part.start(2)].encode())
                    paths.append(("data", part[1]))
                    begin = part.end()
            else:
                literals.append(text[begin:at].encode())
                paths.append(tuple(path))
                begin = token.end()
        elif mark in "{[":
            in_object.append(mark == "{")
            path.append(None)
        elif mark in "}]":
            in_object.pop()
            path.pop()
        wants_key = bool(in_object) and in_object[-1] and mark in ("{", ",")
    literals.append(text[begin:].encode())
    return tuple(literals), paths
