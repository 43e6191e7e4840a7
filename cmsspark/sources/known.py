"""Lines of known shapes in a stream: which shapes are looked for, and when looking is given up.

Where :mod:`cmsspark.sources.shaped` was not compiled nothing is known, and the decoder reads every line.
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from typing import Any, Final

from cmsspark import days
from cmsspark.access import AccessBatch
from cmsspark.compiled import compiled
from cmsspark.sources.chunk import Content
from cmsspark.sources.shapes import Needs, NeedsOf, Shape, learn

_packed: Final[Any] = compiled("sources.packed")
_shaped: Final[Any] = compiled("sources.shaped")
#: Whether this installation reads known lines by compiled code.
COMPILED: Final = _shaped is not None
#: Lines of a chunk, and of a stream, that shapes are learned from.
_TRIES, _ALL_TRIES = 4, 256
#: Looking is given up where, after so many lines, most have no known shape.
_PATIENCE: Final = 20_000


class Numbers:
    """Small integers for what shared texts mean: compiled code makes its groups of them.

    ``meanings``: for each of the shared texts, what its value means; ``group``: the number of a group of such meanings.
    """

    def __init__(
        self, meanings: Sequence[Callable[[str | None], Any]], group: Callable[[tuple[Any, ...]], int]
    ) -> None:
        self._means: list[list[Any]] = [[] for _ in meanings]
        self._group = group
        self._unpack = struct.Struct(f"={len(meanings)}q").unpack
        #: For each of the shared texts: the number of what it means.
        self.shared = [_numbered(meaning, values) for meaning, values in zip(meanings, self._means, strict=True)]

    def group(self, numbers: bytes) -> int:
        """The group of such numbers, given as int64 after each other."""
        places = self._unpack(numbers)
        return self._group(tuple([values[place] for values, place in zip(self._means, places, strict=True)]))


def _numbered(meaning: Callable[[str | None], Any], values: list[Any]) -> Callable[[str | None], int]:
    numbers: dict[Any, int] = {}

    def number(text: str | None) -> int:
        value = meaning(text)
        found = numbers.setdefault(value, len(values))
        if found == len(values):
            values.append(value)
        return found

    return number


class KnownLines:
    """Reads lines of shapes that were seen before into batches, and learns shapes from the others.

    ``day``: its number, from 1970 on. ``shared``: for each of the shared texts, what its value means; ``group``: the
    number of a group of such meanings.
    """

    def __init__(
        self,
        day: int,
        needs: Needs,
        needs_of: NeedsOf,
        shared: Sequence[Callable[[str | None], Any]],
        group: Callable[[tuple[Any, ...]], int],
    ) -> None:
        self._needs_of = needs_of
        self._tries = _ALL_TRIES
        self._seen = self._left = 0
        self._gave_up = False
        # Of a line with odd values the shape is known and the line is not: it must not be added again and again.
        self._shapes: set[Shape] = set()
        numbers = Numbers(shared, group)
        self._lines: Any = _shaped.Lines(numbers.shared, numbers.group, len(needs.read), len(needs.written), day)

    def read(self, content: Content, batch: AccessBatch) -> tuple[int, list[tuple[int, int, int]]] | None:
        """Add the accesses of known lines to ``batch``; the number of all lines, and the runs of the others as (first
        byte, behind the last byte, number of the first line). None where no line is looked at.
        """
        if self._gave_up:
            return None
        if batch.packed is None:
            batch.packed = _packed.Columns()
        lines, left = self._lines.read(content, batch.packed)
        known = 0
        for generation, taken in self._lines.taken():
            known += taken
            if generation and taken:
                batch.generations[generation] = batch.generations.get(generation, 0) + taken
        batch.read += known
        write_only, no_lfn, out_of_day = self._lines.bins()
        batch.write_only += write_only
        batch.no_lfn += no_lfn
        for timestamp in out_of_day:
            batch.count_out_of_day(days.day_number(timestamp))
        self._seen += lines
        self._left += lines - known
        if left and self._tries:
            self._learn(content, left)
        elif self._seen > _PATIENCE:
            if 2 * self._left > self._seen:
                self._gave_up = True
            self._seen = self._left = 0
        return lines, left

    def _learn(self, content: Content, left: list[tuple[int, int, int]]) -> None:
        """Learn shapes from the first lines of some runs."""
        for begin, end, _ in left[: min(_TRIES, self._tries)]:
            self._tries -= 1
            line = bytes(content[begin:end]).partition(b"\n")[0]
            if self._lines.is_full:
                self._tries = 0
                return
            shape = None if self._lines.knows(line) else learn(line, self._needs_of)
            if shape is not None and shape not in self._shapes:
                self._shapes.add(shape)
                self._lines.add(shape)
