"""Names of files as people and JSON readers can take them: a name on disk is any bytes but a slash and a zero byte."""

from __future__ import annotations

import json
import re
from typing import Any, Final

#: Bytes of a name that are no UTF-8, as Python holds them, and other halves of pairs.
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_UNPRINTABLE: Final = re.compile(r"[^\n\t -~]")


def readable(text: str, *, lines: bool = True) -> str:
    """The text with what would write elsewhere on a terminal, or nowhere at all, as ``\\xff`` or ``\\ud800``.

    With ``lines``, newlines and tabs stay.
    """
    if not lines:
        return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)
    return _UNPRINTABLE.sub(lambda match: match[0] if match[0].isprintable() else _escaped(match[0]), text)


def encodable(text: str) -> str:
    """The text with bytes that are no UTF-8 written as ``\\xff``; all else stays."""
    return _SURROGATES.sub(lambda match: _escaped(match[0]), text)


def json_text(value: Any, indent: int | None = None) -> str:
    """JSON that can be encoded: as it is read best, or with escapes for all where a text is no Unicode.

    ``json.loads`` gives the value again, also with names of files that are no UTF-8.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    return json.dumps(value, indent=indent, allow_nan=False) if _SURROGATES.search(text) else text


def _escaped(letter: str) -> str:
    number = ord(letter)
    if 0xDC80 <= number <= 0xDCFF:
        number -= 0xDC00
    return f"\\x{number:02x}" if number < 256 else f"\\u{number:04x}" if number < 65536 else f"\\U{number:08x}"
