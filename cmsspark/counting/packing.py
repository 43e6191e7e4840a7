"""Combinations of whole numbers packed into one number each, and quick operations on them."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np

#: Of 64 bits where they are packed, of 32 where they number texts.
Codes = np.ndarray[Any, np.dtype[np.signedinteger[Any]]]
#: From the number of a combination the numbers that it was made of.
Unpack = Callable[[Codes], list[Codes]]


def pack(columns: Sequence[Codes], count: int) -> tuple[Codes, Unpack]:
    """Return one number for the combination of each row, and the function that unpacks it.

    Combinations that exceed 64 bits are renumbered.
    """
    packed = np.zeros(count, np.int64)
    steps: list[tuple[int, Codes | None]] = []
    most = 1
    for column in columns:
        size = int(column.max(initial=0)) + 1
        before = None
        if most * size >= 2**62:
            before, packed = np.unique(packed, return_inverse=True)
            most = len(before)
        packed *= size
        packed += column
        most *= size
        steps.append((size, before))

    def unpack(numbers: Codes) -> list[Codes]:
        columns = []
        for size, before in reversed(steps):
            numbers, column = np.divmod(numbers, size)
            columns.append(column)
            if before is not None:
                numbers = before[numbers]
        return columns[::-1]

    return packed, unpack


def distinct(numbers: Codes) -> Codes:
    """Return the distinct numbers, sorted."""
    in_order = np.sort(numbers)
    values: Codes = in_order[find_starts(in_order)]
    return values


def find_starts(in_order: Codes) -> np.ndarray[Any, np.dtype[np.bool_]]:
    """Return whether each of some sorted numbers differs from the one before."""
    starts = np.ones(len(in_order), np.bool_)
    np.not_equal(in_order[1:], in_order[:-1], out=starts[1:])
    return starts


def joined(arrays: Sequence[Codes]) -> Codes:
    return np.concatenate(arrays) if arrays else np.zeros(0, np.int64)


def rank_values(values: Sequence[Any]) -> Codes:
    """Return the rank of each value among all values in order, null first."""
    order = sorted(range(1, len(values)), key=values.__getitem__)
    ranks = np.zeros(len(values), np.int64)
    ranks[order] = np.arange(1, len(values))
    return ranks
