"""Texts made safe for terminals and JSON: a file name may contain any bytes except a
slash and a zero byte.
"""

from __future__ import annotations

import json
import re
from typing import Any, Final

#: Lone surrogates. Python decodes bytes of a file name that are not UTF-8 to them.
_SURROGATES: Final = re.compile("[\ud800-\udfff]")
_UNPRINTABLE: Final = re.compile(r"[^\n\t -~]")


def readable(text: str, *, lines: bool = True) -> str:
    """Return the text with unprintable characters, such as terminal control codes,
    escaped as ``\\xff`` or ``\\ud800``.

    With ``lines``, newlines and tabs are kept.

    Example:
        >>> print(readable("/store/\\x1b[31mred.root"))
        /store/\\x1b[31mred.root
    """
    if text.isprintable():
        return text
    if not lines:
        return "".join(letter if letter.isprintable() else _escaped(letter) for letter in text)
    return _UNPRINTABLE.sub(
        lambda match: match[0] if match[0].isprintable() else _escaped(match[0]), text
    )


def encodable(text: str) -> str:
    """Return the text with lone surrogates escaped as ``\\xff``, so that UTF-8 can encode it."""
    return _SURROGATES.sub(lambda match: _escaped(match[0]), text)


def json_text(value: Any, indent: int | None = None) -> str:
    """Return JSON that UTF-8 can encode. Non-ASCII characters are escaped only where a
    text contains a lone surrogate.

    ``json.loads`` restores the value, including file names that are not UTF-8.
    """
    text = json.dumps(value, indent=indent, ensure_ascii=False, allow_nan=False)
    return json.dumps(value, indent=indent, allow_nan=False) if _SURROGATES.search(text) else text


def _escaped(letter: str) -> str:
    number = ord(letter)
    if 0xDC80 <= number <= 0xDCFF:
        number -= 0xDC00
    return (
        f"\\x{number:02x}"
        if number < 256
        else f"\\u{number:04x}"
        if number < 65536
        else f"\\U{number:08x}"
    )
