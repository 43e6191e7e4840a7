"""One line, one JSON object: a small strict reader over bytes that never recurses.

It keeps what the counting rules need to see and a usual JSON library hides: keys that
stand twice, numbers as they are written, and strings whose bytes are only looked at
when somebody asks for their text.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field

_TOKEN = re.compile(
    rb"[ \t\r]*+(?:"
    rb"(?P<mark>[{}\[\],:])"
    rb'|(?P<string>"(?:[^"\\\x00-\x1f]++|\\["\\/bfnrt]|\\u[0-9A-Fa-f]{4})*+")'
    rb"|(?P<number>-?(?:0|[1-9][0-9]*+)(?:\.[0-9]++)?(?:[eE][+-]?[0-9]++)?)"
    rb"|(?P<word>true|false|null)"
    rb")"
)
_END = re.compile(rb"[ \t\r]*+\Z")
_ESCAPE = re.compile(r"\\(?:u([0-9A-Fa-f]{4})|(.))")
_SHORT = {"b": "\b", "f": "\f", "n": "\n", "r": "\r", "t": "\t", '"': '"', "\\": "\\", "/": "/"}

#: Objects deeper than this are checked but not kept: `data` and `metadata` stand at depth 2.
_KEPT_DEPTH = 2


class NotJson(ValueError):
    """The line is not exactly one JSON object."""


@dataclass(frozen=True)
class String:
    """A JSON string as it is written, quotes and escapes included."""

    raw: bytes

    def text(self) -> str:
        """What it says. Raises ValueError for bytes that are not UTF-8 and for
        surrogates without a partner.
        """
        plain = self.raw[1:-1].decode("utf-8")
        if "\\" not in plain:
            return plain
        units = _ESCAPE.sub(lambda m: chr(int(m[1], 16)) if m[1] else _SHORT[m[2]], plain)
        return units.encode("utf-16-le", "surrogatepass").decode("utf-16-le")


@dataclass(frozen=True)
class Number:
    """A JSON number as it is written."""

    raw: bytes


@dataclass(frozen=True)
class Array:
    """An array; what is in it was checked and is not kept."""


@dataclass
class Object:
    """An object with its members in the order in which they stand, repeated keys included."""

    members: list[tuple[str, Value]] = field(default_factory=list)

    def all(self, key: str) -> list[Value]:
        """Every value that stands under ``key``."""
        return [value for name, value in self.members if name == key]

    def names(self) -> list[str]:
        return [name for name, _ in self.members]


Value = None | bool | String | Number | Array | Object


def parse_object(line: bytes) -> Object:
    """The one object that the line holds. Raises NotJson for anything else, trailing
    text and NULs included.
    """
    return _Reader(line).read()


class _Reader:
    """A parser with its own stack: each open container is its closing mark and the
    object kept for it, if any.
    """

    def __init__(self, line: bytes) -> None:
        self.line = line
        self.position = 0
        self.open: list[tuple[bytes, Object | None]] = []

    def token(self) -> tuple[str, bytes]:
        match = _TOKEN.match(self.line, self.position)
        if match is None or match.lastgroup is None:
            raise NotJson(f"no JSON at byte {self.position}")
        self.position = match.end()
        return match.lastgroup, match[match.lastgroup]

    def read(self) -> Object:
        if self.token() != ("mark", b"{"):
            raise NotJson("not an object")
        top = Object()
        self.open.append((b"}", top))
        fresh = True  # the container on top of the stack has no member yet
        while self.open:
            fresh = self.step(fresh)
        if not _END.match(self.line, self.position):
            raise NotJson(f"more than one object: text at byte {self.position}")
        return top

    def step(self, fresh: bool) -> bool:
        """Read one member or one closing mark; true when a container was opened."""
        closing, into = self.open[-1]
        kind, raw = self.token()
        if (kind, raw) == ("mark", closing):
            self.open.pop()
            return False
        if not fresh:
            if (kind, raw) != ("mark", b","):
                raise NotJson(f"a comma is missing before byte {self.position}")
            kind, raw = self.token()
        key = None
        if closing == b"}":
            key = self.key(kind, raw)
            kind, raw = self.token()
        value = self.value(kind, raw)
        if into is not None and key is not None:
            into.members.append((key, value))
        return (kind, raw) in (("mark", b"{"), ("mark", b"["))

    def key(self, kind: str, raw: bytes) -> str:
        if kind != "string" or self.token() != ("mark", b":"):
            raise NotJson(f"a key and a colon are wanted before byte {self.position}")
        try:
            return String(raw).text()
        except ValueError:
            return repr(raw)  # a key that is no text cannot be one that is needed

    def value(self, kind: str, raw: bytes) -> Value:
        if kind == "string":
            return String(raw)
        if kind == "number":
            return Number(raw)
        if kind == "word":
            return {b"true": True, b"false": False, b"null": None}[raw]
        if raw == b"[":
            self.open.append((b"]", None))
            return Array()
        if raw == b"{":
            kept = Object()
            parents_kept = all(into is not None for _, into in self.open)
            self.open.append(
                (b"}", kept if len(self.open) < _KEPT_DEPTH and parents_kept else None)
            )
            return kept
        raise NotJson(f"a value is wanted before byte {self.position}")
