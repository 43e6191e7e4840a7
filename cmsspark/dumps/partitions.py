"""Rows of numbers on disk, partitioned, so that memory does not grow with a dump.

A run holds some rows of one part file, ordered by partition. Rows that must meet have the same partition in all runs; a
range of partitions is read from all runs at once.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.base.errors import OutputError

#: Partitions of a run: as many as a byte numbers, which numpy sorts by counting.
PARTITIONS: Final = 256
#: Rows of a run, and about those of a range that is read at once. A row takes some 60 bytes on disk.
ROWS: Final = 1 << 20


@dataclass(frozen=True)
class PartitionedRun:
    """Rows in a file, one column after the other, ordered by partition."""

    path: Path
    #: Name and numpy type of each column, in the file's order.
    columns: tuple[tuple[str, str], ...]
    #: Where each partition begins; one more number says where the last one ends.
    starts: npt.NDArray[np.int64]

    @classmethod
    def write(
        cls, folder: Path, partitions: npt.NDArray[np.uint8], columns: Mapping[str, npt.NDArray[Any]]
    ) -> PartitionedRun:
        """Write a new file in ``folder``. Raises OutputError (73) where it cannot be written."""
        order = np.argsort(partitions, kind="stable")
        counts = np.bincount(partitions, minlength=PARTITIONS)
        starts = np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        path = folder / f"{uuid.uuid4().hex}.run"
        try:
            with path.open("wb") as sink:
                for values in columns.values():
                    # Not tofile: its error does not say what is wrong.
                    sink.write(values[order].data)
        except OSError as error:
            raise OutputError(
                "there is no room for the dump's rows, which are kept on disk while they are counted",
                where=folder,
                found=error.strerror,
                next_step="free 60 bytes for each file and block replica, or name another folder in the settings, as "
                "cache_dir",
            ) from None
        return cls(path, tuple((name, values.dtype.str) for name, values in columns.items()), starts)

    @property
    def rows(self) -> int:
        """Rows of all partitions."""
        return int(self.starts[-1])

    def count(self, first: int, last: int) -> int:
        """Rows of the partitions from ``first`` to before ``last``."""
        return int(self.starts[last] - self.starts[first])

    def read(self, name: str, first: int, last: int) -> npt.NDArray[Any]:
        """Return a column of the partitions from ``first`` to before ``last``. Raises OSError."""
        offset = 0
        for column, kind in self.columns:
            dtype = np.dtype(kind)
            if column == name:
                offset += int(self.starts[first]) * dtype.itemsize
                return np.fromfile(self.path, dtype, self.count(first, last), offset=offset)
            offset += self.rows * dtype.itemsize
        raise KeyError(name)


@dataclass(frozen=True)
class PartitionRange:
    """The rows that some runs have in the partitions from ``first`` to before ``last``."""

    runs: Sequence[PartitionedRun]
    first: int
    last: int

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column, one run after the other."""
        return np.concatenate(self.pieces(name))

    def pieces(self, name: str) -> list[npt.NDArray[Any]]:
        """Return a column of each run."""
        return [run.read(name, self.first, self.last) for run in self.runs]


def ranges(runs: Sequence[PartitionedRun], rows: int = ROWS) -> Iterator[PartitionRange]:
    """Yield all partitions in ranges of about ``rows`` rows, or of one partition that has more."""
    counts = sum((np.diff(run.starts) for run in runs), np.zeros(PARTITIONS, np.int64))
    first, held = 0, 0
    for partition in range(PARTITIONS):
        if held and held + counts[partition] > rows:
            yield PartitionRange(runs, first, partition)
            first, held = partition, 0
        held += int(counts[partition])
    if held:
        yield PartitionRange(runs, first, PARTITIONS)


def partition_of(hashes: npt.NDArray[np.uint64]) -> npt.NDArray[np.uint8]:
    """Return the partition of each hash: its first bits."""
    return (hashes >> np.uint64(56)).astype(np.uint8)
