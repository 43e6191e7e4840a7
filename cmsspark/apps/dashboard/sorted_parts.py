"""Rows that arrive in parts, each sorted by one column, and are read back in its order
over all parts.

They are in a file meanwhile, so memory holds one batch.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final

import numpy as np
import numpy.typing as npt

from cmsspark.counting.packing import Codes, find_starts

#: Rows of a batch, about.
_BATCH: Final = 250_000


@dataclass(frozen=True)
class _Stored:
    """Where a column of a part stands in the file."""

    kind: np.dtype[Any]
    offset: int


@dataclass(frozen=True)
class _Part:
    """A part: its keys in order, where the rows of each begin, where those of the last
    end, and its columns.
    """

    keys: Codes
    starts: npt.NDArray[np.int64]
    columns: Mapping[str, _Stored | npt.NDArray[Any]]


class SortedParts:
    """Rows with keys, which are codes of names."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: list[_Part] = []

    def add(self, keys: Codes, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add a part; its rows are in the order of the names of its keys."""
        starts = np.flatnonzero(find_starts(keys)) if len(keys) else np.zeros(0, np.int64)
        with open(self._path, "ab") as file:
            stored = {name: _store(file, column) for name, column in columns.items()}
        self._parts.append(_Part(keys[starts], np.append(starts, len(keys)), stored))

    @property
    def rows(self) -> int:
        """The number of all rows."""
        return sum(int(part.starts[-1]) for part in self._parts)

    def batches(self, order: Codes) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Return all rows sorted by key, those of a key by part. ``order``: the keys in
        the order of their names.

        The columns of a batch are those of the parts, ``place``, the key's position in
        ``order``, and ``part``. A key is in one batch.
        """
        ranks = np.empty(len(order), np.int64)
        ranks[order] = np.arange(len(order))
        counts = np.zeros(len(order), np.int64)
        for part in self._parts:
            counts[part.keys] += np.diff(part.starts)
        batch = np.cumsum(counts[order]) // _BATCH
        # Without rows there is one batch, whose columns make an empty file.
        firsts = np.flatnonzero(find_starts(batch)).tolist() or [0]
        for first, end in zip(firsts, [*firsts[1:], len(order)], strict=True):
            yield self._batch(ranks, first, end)

    def _batch(self, ranks: Codes, first: int, end: int) -> dict[str, npt.NDArray[Any]]:
        bounds, own_places = [], []
        for part in self._parts:
            part_ranks = ranks[part.keys]
            begin, stop = np.searchsorted(part_ranks, (first, end))
            bounds.append((part.starts[begin], part.starts[stop]))
            own_places.append(
                np.repeat(part_ranks[begin:stop], np.diff(part.starts[begin : stop + 1]))
            )
        joined_ranks = np.concatenate(own_places)
        # Numbers are sorted faster than positions by them, and parts in order are only merged.
        order = (
            np.sort(joined_ranks << 32 | np.arange(len(joined_ranks)), kind="stable") & 0xFFFFFFFF
        )
        number = np.repeat(np.arange(len(bounds)), [len(part_ranks) for part_ranks in own_places])
        rows = {"place": joined_ranks[order], "part": number[order]}
        with open(self._path, "rb", buffering=0) as file:
            for name in self._parts[0].columns:
                parts = [
                    _read(file, part.columns[name], *span)
                    for part, span in zip(self._parts, bounds, strict=True)
                ]
                rows[name] = np.concatenate(parts)[order]
        return rows


def _store(file: BinaryIO, column: npt.NDArray[Any]) -> _Stored | npt.NDArray[Any]:
    """Append a column to a file. Python's integers stay in memory."""
    if column.dtype == object:
        return column
    offset = file.tell()
    column.tofile(file)
    return _Stored(column.dtype, offset)


def _read(
    file: BinaryIO, stored: _Stored | npt.NDArray[Any], begin: int, end: int
) -> npt.NDArray[Any]:
    if not isinstance(stored, _Stored):
        return stored[begin:end]
    file.seek(stored.offset + int(begin) * stored.kind.itemsize)
    return np.fromfile(file, stored.kind, end - begin)
