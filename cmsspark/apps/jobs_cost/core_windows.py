"""Presences of running jobs: the cores of each job in each 12-minute window (rule 54), in columns."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.base.exact_integers import Longs
from cmsspark.sources.condor_costs import HOUR_WINDOWS

#: What running cores are summed by: site, subsite, type.
Place = tuple[str, str | None, str]
#: Sums of an hour: cores in thousandths over all windows, and pairs of a window and a job.
HourSums = tuple[int, int]
_SAFE: Final = 2**62


@dataclass
class Presences:
    """Jobs in windows: the hash of the job's id, the number of its place, the window, its cores in thousandths."""

    hashes: Longs
    places: Longs
    windows: Longs
    cores: Longs

    @classmethod
    def concatenate(cls, parts: Sequence[Presences]) -> Presences:
        """Return the parts behind each other."""
        columns = [
            np.concatenate([np.zeros(0, np.int64), *(getattr(part, name) for part in parts)])
            for name in ("hashes", "places", "windows", "cores")
        ]
        return cls(*columns)

    def __len__(self) -> int:
        return len(self.hashes)

    def select(self, rows: npt.NDArray[Any]) -> Presences:
        """Return some rows."""
        return Presences(self.hashes[rows], self.places[rows], self.windows[rows], self.cores[rows])

    def largest(self) -> Presences:
        """Return each (job, place, window) once, with its largest cores."""
        ordered = self.select(np.lexsort((self.cores, self.windows, self.places, self.hashes)))
        columns = (ordered.hashes, ordered.places, ordered.windows)
        is_last = np.ones(len(self), np.bool_)
        if len(self) > 1:
            is_last[:-1] = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
        return ordered.select(is_last)

    def pack(self) -> list[bytes]:
        """Return the columns as bytes."""
        kinds = (np.int64, np.uint32, np.uint8, np.int64)
        columns = (self.hashes, self.places, self.windows, self.cores)
        return [column.astype(kind).tobytes() for column, kind in zip(columns, kinds, strict=True)]

    @classmethod
    def unpack(cls, columns: Sequence[bytes]) -> Presences:
        """Return the columns that :meth:`pack` has made bytes of."""
        kinds = (np.int64, np.uint32, np.uint8, np.int64)
        return cls(*(np.frombuffer(column, kind).astype(np.int64) for column, kind in zip(columns, kinds, strict=True)))

    def by_hour(self) -> dict[tuple[int, int], HourSums]:
        """Return the sums of each (place, hour), where each (job, place, window) is there once."""
        keys = self.places * 24 + self.windows // HOUR_WINDOWS
        order = np.argsort(keys, kind="stable")
        unique, starts, counts = np.unique(keys[order], return_index=True, return_counts=True)
        if not len(unique):
            return {}
        cores = self.cores[order]
        # Absurd numbers of cores would overflow: Python's integers do not.
        is_safe = float(cores.max()) * len(cores) < _SAFE
        sums = np.add.reduceat(cores if is_safe else cores.astype(object), starts).tolist()
        rows = zip(unique.tolist(), sums, counts.tolist(), strict=True)
        return {(key // 24, key % 24): (total, count) for key, total, count in rows}


@dataclass
class PlaceNumbers:
    """Numbers for places, in the order in which they come."""

    places: list[Place] = field(default_factory=list)
    _numbers: dict[Place, int] = field(default_factory=dict)

    def number(self, place: Place) -> int:
        """Return the number of a place."""
        number = self._numbers.setdefault(place, len(self.places))
        if number == len(self.places):
            self.places.append(place)
        return number

    def renumber(self, places: Iterable[Place], numbers: Longs) -> Longs:
        """Return numbers in ``places`` as numbers here."""
        own = np.fromiter(map(self.number, map(_as_place, places)), np.int64)
        return own[numbers] if len(numbers) else numbers


def _as_place(place: Sequence[Any]) -> Place:
    site, subsite, type_ = place
    return site, subsite, type_
