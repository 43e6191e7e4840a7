"""Sums of whole numbers by key: null where nothing is known, and never silently beyond 64 bits.

Tasks, the merge and the rollups of periods add up with these. Numbers are never negative.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cmsspark.errors import DataError

Longs = npt.NDArray[np.int64]
_LIMIT: Final = 2**63 - 1
#: A sum of floats below it is one of integers below the limit: the floats' own error is far smaller than the margin.
_SAFE: Final = 2.0**63 * (1 - 2.0**-20)


class Nullable(NamedTuple):
    """Whole numbers, 0 where they are null; ``known`` is False for these. None: no number is null."""

    values: Longs
    known: npt.NDArray[np.bool_] | None = None

    def at(self, rows: npt.NDArray[np.intp]) -> Nullable:
        """The numbers of these rows."""
        return Nullable(self.values[rows], None if self.known is None else self.known[rows])


class Runs(NamedTuple):
    """Rows in the order of their keys, and where in it each key begins."""

    order: npt.NDArray[np.intp]
    starts: npt.NDArray[np.intp]

    @property
    def first(self) -> npt.NDArray[np.intp]:
        """A row of each key, in the keys' order."""
        return self.order[self.starts]


def runs_of(keys: npt.NDArray[np.signedinteger]) -> Runs:
    """The runs of equal keys."""
    order = np.argsort(keys)
    in_order = keys[order]
    if not len(in_order):
        return Runs(order, np.zeros(0, np.intp))
    return Runs(order, np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1]))))


def sum_by_key(runs: Runs, columns: Mapping[str, Nullable], next_step: str | None = None) -> dict[str, Nullable]:
    """The sums of ``columns`` for each key, in the keys' order; null where each number of a key is.

    Raises DataError (65) where a sum leaves 64 bits; ``next_step`` says what to do then.
    """
    found = {}
    for name, column in columns.items():
        values, known = column.at(runs.order)
        if known is not None:
            known = np.logical_or.reduceat(known, runs.starts) if len(known) else known
        found[name] = Nullable(sum_runs(values, runs.starts, name, next_step), known)
    return found


def sum_runs(values: Longs, starts: npt.NDArray[np.intp], what: str, next_step: str | None = None) -> Longs:
    """Sums of the runs of ``values`` that begin at ``starts``. Raises DataError (65) where one leaves 64 bits."""
    if not len(starts):
        return np.zeros(0, np.int64)
    fits = int(values.max()) <= _LIMIT // len(values)
    if fits or np.add.reduceat(values.astype(np.float64), starts).max() < _SAFE:
        found: Longs = np.add.reduceat(values, starts)
        return found
    exact = np.add.reduceat(values.astype(object), starts)
    if max(exact) > _LIMIT:
        raise DataError(f"a sum of {what} is beyond 2^63-1", next_step=next_step or "look for absurd sizes in the log")
    return exact.astype(np.int64)
