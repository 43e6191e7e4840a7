"""The fast line reader: lines that fit a learned template, and which templates are learned.

Where :mod:`cmsspark.sources.formats.template_reader` was not compiled no line fits, and
the decoder reads every line.
"""

from __future__ import annotations

import io
import struct
from collections.abc import Callable, Sequence
from itertools import islice
from operator import getitem
from typing import Any, Final

from cmsspark.base import dates
from cmsspark.base.access import AccessBatch
from cmsspark.base.compiled import compiled
from cmsspark.sources.formats.chunk import Content
from cmsspark.sources.formats.line_template import (
    LineTemplate,
    RequiredFields,
    RequiredFieldsOf,
    learn,
)

_packed: Final[Any] = compiled("sources.formats.packed")
_template_reader: Final[Any] = compiled("sources.formats.template_reader")
#: Whether this installation has the compiled line reader.
COMPILED: Final = _template_reader is not None
#: Lines of a chunk that templates are learned from; learning from one costs as much as
#: reading some tens of lines. One try is earned by so many lines read, and at most so
#: many tries are saved for when new templates appear.
_TRIES, _LINES_A_TRY, _MOST_TRIES = 4, 1000, 256


class Numbers:
    """Numbers for the values that shared texts map to; compiled code builds its groups of them.

    ``meanings``: for each of the shared texts, the function that maps its value;
    ``group``: numbers a group of mapped values.
    """

    def __init__(
        self,
        meanings: Sequence[Callable[[str | None], Any]],
        group: Callable[[tuple[Any, ...]], int],
    ) -> None:
        self._means: list[list[Any]] = [[] for _ in meanings]
        self._group = group
        self._unpack = struct.Struct(f"={len(meanings)}q").unpack
        #: For each of the shared texts: the number of what it means.
        self.shared = [
            _numbered(meaning, values)
            for meaning, values in zip(meanings, self._means, strict=True)
        ]

    def group(self, numbers: bytes) -> int:
        """Return the group of such numbers, given as int64 after each other."""
        return self._group(tuple(map(getitem, self._means, self._unpack(numbers))))


def _numbered(
    meaning: Callable[[str | None], Any], values: list[Any]
) -> Callable[[str | None], int]:
    numbers: dict[Any, int] = {}

    def number(text: str | None) -> int:
        value = meaning(text)
        code = numbers.setdefault(value, len(values))
        if code == len(values):
            values.append(value)
        return code

    return number


class FastLineReader:
    """Reads lines that fit a template into batches, and learns templates from the others.

    ``day``: its number, from 1970 on. ``shared``: for each of the shared texts, what
    its value means; ``group``: the number of a group of such meanings.
    """

    def __init__(
        self,
        day: int,
        required: RequiredFields,
        pick_required: RequiredFieldsOf,
        shared: Sequence[Callable[[str | None], Any]],
        group: Callable[[tuple[Any, ...]], int],
    ) -> None:
        self._pick_required = pick_required
        self._lines_for_tries = _MOST_TRIES * _LINES_A_TRY
        # A line with unusual values does not fit its own template. The template must
        # not be added repeatedly.
        self._templates: set[LineTemplate] = set()
        numbers = Numbers(shared, group)
        self._lines: Any = _template_reader.Lines(
            numbers.shared,
            numbers.group,
            len(required.read),
            len(required.written),
            day,
            required.sizes_add_up,
            1 + required.shared.index(required.program) if required.program else 0,
            bool(required.read_type),
        )

    def read(self, content: Content, batch: AccessBatch) -> tuple[int, bytes, list[int]]:
        """Add the accesses of lines that fit to ``batch``.

        Returns the number of all lines, the lines that do not fit, and the number of
        each of these.
        """
        if batch.packed is None:
            batch.packed = _packed.Columns()
        lines, remaining, numbers = self._lines.read(content, batch.packed)
        read = 0
        for version, count in self._lines.taken():
            read += count
            if version and count:
                batch.generations[version] = batch.generations.get(version, 0) + count
        batch.read += read
        deletion, write_only, no_lfn, out_of_day = self._lines.bins()
        batch.deletion += deletion
        batch.write_only += write_only
        batch.no_lfn += no_lfn
        set_aside, set_aside_bytes = self._lines.set_aside()
        batch.set_aside += set_aside
        batch.set_aside_bytes += set_aside_bytes
        for timestamp in out_of_day:
            batch.count_out_of_day(dates.day_number(timestamp))
        self._lines_for_tries = min(self._lines_for_tries + lines, _MOST_TRIES * _LINES_A_TRY)
        if remaining and not self._lines.is_full:
            self._learn(remaining)
        return lines, remaining, numbers

    def _learn(self, remaining: bytes) -> None:
        """Learn templates from the first lines."""
        for ended in islice(io.BytesIO(remaining), _TRIES):
            if self._lines_for_tries < _LINES_A_TRY or self._lines.is_full:
                return
            line = ended.removesuffix(b"\n")
            if not line or self._lines.knows(line):
                continue
            self._lines_for_tries -= _LINES_A_TRY
            template = learn(line, self._pick_required)
            if template is not None and template not in self._templates:
                self._templates.add(template)
                self._lines.add(template)
