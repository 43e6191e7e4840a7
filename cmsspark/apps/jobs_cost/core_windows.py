"""Presences of running jobs: the cores of each job in each 12-minute window (rule 54), in columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.base.arrays import Longs
from cmsspark.base.exact_integers import sums_by_group
from cmsspark.sources.condor_costs import HOUR_WINDOWS, CoreGroup

#: What running cores are summed by: site, subsite, type.
Place = tuple[str, str | None, str]
#: Sums of an hour: cores in thousandths over all windows, and pairs of a window and a job.
HourSums = tuple[int, int]
_HOURS, _WINDOWS = 24, 128
#: An odd number with bits everywhere, of the golden ratio: it spreads small numbers over 64 bits.
_SPREAD: Final = np.uint64(0x9E3779B97F4A7C15)
_TYPES: Final = (np.int64, np.uint32, np.uint8)


@dataclass
class Presences:
    """Jobs in windows: the hash of the job's id, the number of its :class:`CoreGroup`, the window."""

    hashes: Longs
    groups: npt.NDArray[Any]
    windows: npt.NDArray[Any]

    @classmethod
    def concatenate(cls, parts: Iterable[Presences]) -> Presences:
        """Return the parts behind each other."""
        rows = [cls.unpack([b""] * len(_TYPES)), *parts]
        return cls(
            *(
                np.concatenate([getattr(part, name) for part in rows])
                for name in ("hashes", "groups", "windows")
            )
        )

    def select(self, rows: Any) -> Presences:
        """Return some rows."""
        return Presences(self.hashes[rows], self.groups[rows], self.windows[rows])

    def pack(self) -> list[bytes]:
        """Return the columns as bytes."""
        columns = (self.hashes, self.groups, self.windows)
        return [
            column.astype(kind).tobytes() for column, kind in zip(columns, _TYPES, strict=True)
        ]

    @classmethod
    def unpack(cls, columns: Sequence[bytes]) -> Presences:
        """Return the columns that :meth:`pack` made bytes of."""
        return cls(
            *(np.frombuffer(column, kind) for column, kind in zip(columns, _TYPES, strict=True))
        )

    def by_hour(self, groups: Iterable[CoreGroup]) -> dict[tuple[Place, int], HourSums]:
        """Return the sums of each place and hour: each (job, place, window) once, with
        its largest cores.
        """
        names: dict[Place, int] = {}
        pairs = [(names.setdefault(group[:3], len(names)), group.core_milli) for group in groups]
        numbers, cores = np.array(pairs, np.int64).reshape(-1, 2)[self.groups].T
        windows = self.windows.astype(np.int64)
        rows = _distinct(self.hashes, numbers * _WINDOWS + windows, cores)
        keys = (numbers * _HOURS + windows // HOUR_WINDOWS)[rows]
        size = _HOURS * len(names)
        counts = np.bincount(keys, minlength=size)
        upper, lower = sums_by_group(keys, cores[rows], size)
        of_number = list(names)
        return {
            (of_number[key // _HOURS], key % _HOURS): (
                (int(upper[key]) << 32) + int(lower[key]),
                int(counts[key]),
            )
            for key in np.flatnonzero(counts).tolist()
        }


def _distinct(hashes: Longs, numbers: Longs, cores: Longs) -> npt.NDArray[np.bool_]:
    """Return which rows have the largest cores of their (hash, number), each pair once.

    Nearly all pairs are there once: only those that another row may equal are sorted.
    """
    keys = hashes.view(np.uint64) ^ (numbers.view(np.uint64) * _SPREAD)
    ordered = np.sort(keys)
    again = np.unique(ordered[1:][ordered[1:] == ordered[:-1]])
    is_chosen = np.ones(len(keys), np.bool_)
    if len(again):
        doubtful = np.flatnonzero(np.isin(keys, again))
        order = doubtful[np.lexsort((cores[doubtful], numbers[doubtful], hashes[doubtful]))]
        is_same = (hashes[order][1:] == hashes[order][:-1]) & (
            numbers[order][1:] == numbers[order][:-1]
        )
        is_chosen[order[:-1][is_same]] = False
    return is_chosen
