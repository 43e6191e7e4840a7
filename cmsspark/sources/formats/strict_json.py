"""One JSON object, read strictly by the counting rules (``docs/counting.md``, rules 1 and 2).

The fast decoders accept plain lines; a line that they reject is parsed here alone. This
parser keeps every value of a repeated key, has no depth limit, and does not check
values: :mod:`cmsspark.sources.values` checks those of needed fields.
"""

from __future__ import annotations

import re
from json.decoder import scanstring  # type: ignore[attr-defined]
from typing import Any, Final

from cmsspark.sources.values import Malformed, Nested, Number

# No possessive groups: before Python 3.11.5 (Debian 12 has 3.11.2) they match what they
# should not.
_NUMBER: Final = r"-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?"
_TOKEN, _TOKEN_OR_NAN = (
    re.compile(rf"""[ \t\n\r]*(?:([{{}}\[\],:])|(")|({number})|(true|false|null))""")
    for number in (_NUMBER, f"{_NUMBER}|NaN")
)
_BLANK = re.compile(r"[ \t\n\r]*")
_LITERALS: Final = {"true": True, "false": False, "null": None}


_OBJECT: Final = Nested("object")
_ARRAY: Final = Nested("array")
#: Open containers whose values nobody needs: a byte each, and what it says (closing
#: character, has a key).
_IN_ARRAY, _IN_OBJECT, _WITH_KEY = range(3)
_DEEP: Final = (("]", False), ("}", False), ("}", True))

#: An object's values by key, each with all that stood under it, in order.
Fields = dict[str, list[Any]]


def parse_object(line: bytes, levels: int = 2, *, has_nan: bool = False) -> Fields:
    """Parse the line as one JSON object: its fields, and those of the objects in it,
    down to ``levels`` objects.

    What lies deeper is :class:`Nested`; so is an array, or with more than two levels a
    list of values. ``has_nan``: a number may be ``NaN``, as Python writes it. Texts may
    hold lone surrogates (from bytes that are not UTF-8, or from escapes): :func:`text`
    refuses them in the fields that matter. Raises Malformed.
    """
    source = line.decode("utf-8", "surrogateescape")
    root: list[Any] = []
    # One entry for each open container: [closing character, fields or None, key waiting
    # for its value]; of those below the second level, whose values nobody needs, one
    # byte: a line may be nothing but opening brackets.
    stack: list[list[Any]] = []
    deep = bytearray()
    position, want_value, after_open = 0, True, False
    tokens = _TOKEN_OR_NAN if has_nan else _TOKEN
    while stack or not root:
        token = tokens.match(source, position)
        if token is None:
            raise Malformed("not a JSON object")
        position = token.end()
        mark, quote, number, literal = token.groups()
        top = stack[-1] if stack else None
        closing, has_key = (
            _DEEP[deep[-1]] if deep else (top[0], top[2] is not None) if top else (None, False)
        )
        if mark is not None and mark in "{[" and want_value:
            _open(mark, root, stack, deep, levels)
            want_value, after_open = mark == "[", True
            continue
        if mark is not None and mark in "}]":
            if closing != mark or not (after_open or not want_value) or has_key:
                raise Malformed("not a JSON object")
            (deep or stack).pop()
            want_value = after_open = False
            continue
        if mark == ",":
            if closing is None or want_value or after_open:
                raise Malformed("not a JSON object")
            if closing == "}":
                position = _take_key(source, position, top, deep)
            want_value = True
            continue
        if closing == "}" and after_open and quote is not None:
            position = _take_key(source, token.start(), top, deep)
            want_value, after_open = True, False
            continue
        if mark is not None or not want_value:
            raise Malformed("not a JSON object")
        value: Any
        if quote is not None:
            value, position = _string(source, position)
        else:
            value = Number(number) if number is not None else _LITERALS[literal]
        _put(root, top, deep, value)
        want_value = after_open = False
    blank = _BLANK.match(source, position)
    if blank is None or blank.end() != len(source):
        raise Malformed("more than one JSON object in the line")
    if not isinstance(root[0], dict):
        raise Malformed("not a JSON object")
    return root[0]


def _open(
    mark: str, root: list[Any], stack: list[list[Any]], deep: bytearray, levels: int
) -> None:
    """Put an object or array into the innermost container, and open it."""
    top = stack[-1] if stack else None
    if len(stack) == levels:
        _put(root, top, deep, _OBJECT if mark == "{" else _ARRAY)
        deep.append(_IN_OBJECT if mark == "{" else _IN_ARRAY)
    else:
        container: Any = {} if mark == "{" else _ARRAY if levels == 2 else []
        _put(root, top, deep, container)
        values = container if isinstance(container, list) else None
        stack.append(["}", container, None] if mark == "{" else ["]", values, None])


def _take_key(source: str, position: int, top: list[Any] | None, deep: bytearray) -> int:
    """Note the key that waits for its value in the innermost object; where it ends."""
    key, position = _key(source, position)
    if deep:
        deep[-1] = _WITH_KEY
    elif top is not None:
        top[2] = key
    return position


def _key(source: str, position: int) -> tuple[str, int]:
    """Return a key with its colon, and if it ends."""
    token = _TOKEN.match(source, position)
    if token is None or token.group(2) is None:
        raise Malformed("not a JSON object")
    key, position = _string(source, token.end())
    colon = _TOKEN.match(source, position)
    if colon is None or colon.group(1) != ":":
        raise Malformed("not a JSON object")
    return key, colon.end()


def _string(source: str, position: int) -> tuple[str, int]:
    """Return the text that begins at ``position``, after its quote, and if it ends."""
    try:
        text_and_end: tuple[str, int] = scanstring(source, position, True)
    except ValueError:
        raise Malformed("not a JSON object") from None
    return text_and_end


def _put(root: list[Any], top: list[Any] | None, deep: bytearray, value: Any) -> None:
    if deep:
        deep[-1] = _IN_OBJECT if deep[-1] == _WITH_KEY else deep[-1]
        return
    if top is None:
        root.append(value)
        return
    fields, key = top[1], top[2]
    if top[0] == "}":
        top[2] = None
        if fields is not None:
            fields.setdefault(key, []).append(value)
    elif fields is not None:
        fields.append(value)


def last(fields: Fields, key: str, check: Any, where: str) -> Any:
    """Return the last value under ``key`` after ``check`` has passed every one of them;
    None if there is none.
    """
    checked = None
    for value in fields.get(key, ()):
        checked = check(value, where + key)
    return checked
