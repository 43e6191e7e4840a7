"""Sums of whole numbers by key: null where all values are null, and an error where a
sum exceeds 64 bits.

Tasks, the merge and the rollups of periods use these functions. Numbers are never negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cmsspark.base.arrays import Longs
from cmsspark.base.errors import DataError

_LIMIT: Final = 2**63 - 1
#: If a sum of floats is below this, the sum of integers is below the limit: the
#: rounding error is far smaller.
_SAFE: Final = 2.0**63 * (1 - 2.0**-20)


class Nullable(NamedTuple):
    """Whole numbers, 0 where they are null. ``is_valid`` is False for nulls; None: no
    number is null.
    """

    values: Longs
    is_valid: npt.NDArray[np.bool_] | None = None

    def at(self, rows: npt.NDArray[np.intp]) -> Nullable:
        """Return the numbers of these rows."""
        return Nullable(self.values[rows], None if self.is_valid is None else self.is_valid[rows])


class Runs(NamedTuple):
    """Rows in the order of their keys, and the positions in this order where a new key starts."""

    order: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]

    @property
    def first(self) -> npt.NDArray[np.intp]:
        """A row of each key, in the order of keys."""
        return self.order[self.starts]


def find_runs(keys: npt.NDArray[np.signedinteger]) -> Runs:
    """Return the runs of equal keys."""
    order = np.argsort(keys)
    in_order = keys[order]
    if not len(in_order):
        return Runs(order, np.zeros(0, np.intp))
    return Runs(order, np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1]))))


def sum_by_key(
    runs: Runs,
    columns: Mapping[str, Nullable],
    next_step: str | None = None,
    *,
    is_capped: bool = False,
) -> dict[str, Nullable]:
    """Return the sums of ``columns`` for each key, in the order of keys; null where all
    numbers of a key are null.

    Raises DataError (65) if a sum exceeds 64 bits; ``next_step`` is the next step of
    that error. ``is_capped``: such a sum is 2^63-1 instead.
    """
    sums = {}
    for name, column in columns.items():
        values, is_valid = column.at(runs.order)
        if is_valid is not None:
            is_valid = np.logical_or.reduceat(is_valid, runs.starts) if len(is_valid) else is_valid
        sums[name] = Nullable(
            sum_runs(values, runs.starts, name, next_step, is_capped=is_capped), is_valid
        )
    return sums


def sum_runs(
    values: Longs,
    starts: npt.NDArray[np.intp],
    label: str,
    next_step: str | None = None,
    *,
    is_capped: bool = False,
) -> Longs:
    """Return the sums of the runs of ``values`` from ``starts`` on. Raises DataError
    (65) if one exceeds 64 bits; with ``is_capped`` it is 2^63-1.
    """
    if not len(starts):
        return np.zeros(0, np.int64)
    fits = int(values.max()) <= _LIMIT // len(values)
    if fits or np.add.reduceat(values.astype(np.float64), starts).max() < _SAFE:
        sums: Longs = np.add.reduceat(values, starts)
        return sums
    exact = np.add.reduceat(values.astype(object), starts)
    if is_capped:
        exact = np.minimum(exact, _LIMIT)
    if max(exact) > _LIMIT:
        raise overflow_error(label, next_step)
    return exact.astype(np.int64)


def overflow_error(label: str, next_step: str | None = None) -> DataError:
    """Return the error for a sum that exceeds 64 bits."""
    step = next_step or "look for absurd sizes in the log"
    return DataError(f"a sum of {label} is beyond 2^63-1", next_step=step)


def capped_sums(keys: Longs, values: Longs, size: int) -> Longs:
    """Return the sums of ``values`` of each key from 0 to ``size``, 2^63-1 where one
    exceeds 64 bits.

    For few different keys this takes a tenth of the time of sorting them.
    """
    is_safe = int(values.max()) <= _LIMIT // len(values)
    sums = np.zeros(size, np.int64 if is_safe else object)
    np.add.at(sums, keys, values if is_safe else values.astype(object))
    return sums if is_safe else np.minimum(sums, _LIMIT).astype(np.int64)


def in_seconds(milliseconds: Longs) -> npt.NDArray[np.float64]:
    """Seconds of whole milliseconds, each the double nearest to the quotient.

    A whole number beyond 2^53 may have no double of its own: Python divides those few,
    which rounds once.
    """
    seconds = milliseconds / 1000.0
    large = np.flatnonzero(milliseconds > 2**53)
    if len(large):
        seconds[large] = [int(value) / 1000 for value in milliseconds[large]]
    return seconds
