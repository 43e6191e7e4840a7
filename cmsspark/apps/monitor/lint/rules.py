"""The rules of ``cmsspark lab lint``, the problems that they find, and the lines that
``# noqa`` silences.
"""

from __future__ import annotations

import re
import tokenize
from contextlib import suppress
from io import BytesIO
from typing import Final

import msgspec

from cmsspark.base.resources import read_yaml


class Rule(msgspec.Struct, frozen=True, forbid_unknown_fields=True):
    """What a rule finds, why that matters, and the cure."""

    what: str
    why: str
    cure: str


class _Data(msgspec.Struct, forbid_unknown_fields=True):
    """The file ``schemas/lint.yaml``. ``words``: names of methods, functions and modules."""

    rules: dict[str, Rule]
    words: dict[str, frozenset[str]]


_DATA: Final = msgspec.convert(read_yaml("schemas/lint.yaml"), _Data)
RULES: Final = _DATA.rules
WORDS: Final = _DATA.words


class Problem(msgspec.Struct, frozen=True, order=True):
    """A place in a script. ``line`` and ``column`` begin with 1."""

    line: int
    column: int
    code: str
    detail: str = ""

    @property
    def rule(self) -> Rule:
        """What the code stands for."""
        return RULES[self.code]


#: It may follow another comment, such as one for the types.
_NOQA: Final = re.compile(
    r"(?:^|\s)#\s*noqa\b(?P<codes>\s*:\s*[A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*)?", re.IGNORECASE
)


def silenced_lines(source: bytes) -> dict[int, list[str | None]]:
    """Line → codes of each ``# noqa``, None for all.

    At the end of a statement over several lines it is for all of them: a line that ends
    with a backslash has no comment. Within one it is for its line.
    """
    silenced: dict[int, list[str | None]] = {}
    first = 0
    at_end: tuple[int, str | None] | None = None
    with suppress(tokenize.TokenError):
        for token in tokenize.tokenize(BytesIO(source).readline):
            line = token.start[0]
            if token.type == tokenize.COMMENT:
                if (match := _NOQA.search(token.string)) is not None:
                    silenced.setdefault(line, []).append(match["codes"])
                    at_end = line, match["codes"]
            elif token.type == tokenize.NEWLINE:
                if at_end is not None and at_end[0] == line:
                    for number in range(first or line, line):
                        silenced.setdefault(number, []).append(at_end[1])
                first = 0
            elif token.type not in (
                tokenize.NL,
                tokenize.INDENT,
                tokenize.DEDENT,
                tokenize.ENCODING,
            ):
                first = first or line
    return silenced


def is_silenced(code: str, line: int, silenced: dict[int, list[str | None]]) -> bool:
    """Return whether a code is silenced in a line."""
    return any(codes is None or code in codes.upper() for codes in silenced.get(line, ()))
