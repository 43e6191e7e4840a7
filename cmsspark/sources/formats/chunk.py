"""The lines of a chunk: their positions, runs that are plainly one object each, and the
line of a parser's error.

A chunk may be a view of a reused buffer: data that must outlive it is copied.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from itertools import pairwise
from typing import Final

import numpy as np

from cmsspark.base.access import RAW_LIMIT, Quarantined

_NEWLINE, _RETURN, _OPENING, _CLOSING = b"\n\r{}"
_POSITION = re.compile(r"at `\$\[([0-9]{1,9})\]|\(byte ([0-9]{1,12})\)")
#: What msgspec says of an object that nothing closes.
_CUT: Final = "Input data was truncated"

Content = bytes | memoryview


class Chunk:
    """Whole lines of ``file``, each with its newline; the first is line ``first_line``
    of the file, the chunk's 0.

    ``numbers``: where lines between them are left out, how many lines each stands
    behind ``first_line``.
    """

    def __init__(
        self, content: Content, file: str, first_line: int, numbers: Sequence[int] | None = None
    ) -> None:
        self.file = file
        self.first_line = first_line
        self._numbers = numbers
        self._index(content)
        if not self._is_plain and (self._last == _RETURN).any():
            self._index(bytes(content).replace(b"\r\n", b"\n"))

    def _index(self, content: Content) -> None:
        self._content = memoryview(content)
        characters = np.frombuffer(content, np.uint8)
        #: Where each line's newline is.
        self._ends = np.flatnonzero(characters == _NEWLINE)
        self._first = characters[np.concatenate((_ZERO, self._ends[:-1] + 1))]
        self._last = characters[self._ends - 1]
        self.lines = len(self._ends)
        counts = self._first.tobytes().count(_OPENING), self._last.tobytes().count(_CLOSING)
        self._is_plain = counts == (self.lines, self.lines)

    def runs(self) -> Iterator[tuple[int, int, bool]]:
        """Lines from, up to, and whether each of them goes from ``{`` to ``}``: as many
        as possible at once.

        No value of JSON holds a newline between ``}`` and ``{``, so in such a run
        records and lines are the same, or decoding fails.
        """
        if self._is_plain:
            yield 0, self.lines, True
            return
        plain = (self._first == _OPENING) & (self._last == _CLOSING)
        cuts = [0, *(np.flatnonzero(plain[1:] != plain[:-1]) + 1).tolist(), self.lines]
        for first, end in pairwise(cuts):
            yield first, end, bool(plain[first])

    def _begin(self, line: int) -> int:
        return int(self._ends[line - 1]) + 1 if line else 0

    def part(self, first: int, end: int) -> memoryview:
        """Lines ``first`` up to ``end``, not copied."""
        return self._content[self._begin(first) : self._begin(end)]

    def line(self, line: int) -> bytes:
        """Return a line without its newline."""
        return bytes(self._content[self._begin(line) : int(self._ends[line])])

    def quarantined(self, line: int, reason: str) -> Quarantined:
        """Return a malformed line."""
        behind = self._numbers[line] if self._numbers else line
        begin, end = self._begin(line), int(self._ends[line])
        raw = bytes(self._content[begin : min(end, begin + RAW_LIMIT)])
        return Quarantined.cut(self.file, self.first_line + behind, reason, raw, end - begin)

    def suspect(self, error: Exception, first: int, end: int) -> int | None:
        """Return the line that msgspec probably rejected in lines ``first`` up to
        ``end``, from its message; None if unknown.

        The caller must read the line alone to be certain.
        """
        if isinstance(error, UnicodeDecodeError):
            # The error has the position in a text, not the text: the first bad byte in
            # the lines is a good guess.
            try:
                str(self.part(first, end), "utf-8")
            except UnicodeDecodeError as found:
                return self._line_at(self._begin(first) + found.start)
            return None
        message = str(error)
        if message == _CUT:
            return end - 1
        position = _POSITION.search(message)
        if position is None:
            return None
        line = (
            first + int(position[1])
            if position[1]
            else self._line_at(self._begin(first) + int(position[2]))
        )
        return line if first <= line < end else None

    def _line_at(self, byte: int) -> int:
        line = int(np.searchsorted(self._ends, byte))
        # A parser that stops at a line's first byte misses something in the line before.
        return line - 1 if byte == self._begin(line) and line else line


_ZERO = np.zeros(1, np.intp)
