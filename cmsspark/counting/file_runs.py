"""Rows of FILES on disk, in runs sorted by hash, so that the memory of a build does not
grow with the dump.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import numpy as np

from cmsspark.base.arrays import Longs
from cmsspark.counting.catalogue import Hashes, Numbers

#: Rows of a run, and about those that are merged at once. A row takes some 60 bytes
#: while it is sorted.
ROWS: Final = 1 << 20
_COLUMNS: Final = {
    "hashes": np.uint64,
    "pairs": np.int32,
    "checks": np.uint64,
    "file_ids": np.int64,
}


@dataclass
class FileRows:
    """Rows of FILES that can match: hashes of their names, number of (block, dataset),
    file_id (-1: none).
    """

    hashes: Hashes
    checks: Hashes
    pairs: Numbers
    file_ids: Longs


@dataclass(frozen=True)
class SortedRun:
    """Rows in a file, column by column, sorted by hash; rows of one hash are in the
    order of the dump.
    """

    path: Path
    rows: int

    @classmethod
    def write(cls, folder: Path, rows: FileRows) -> SortedRun:
        """Write a new file in ``folder``. Raises OSError."""
        order = np.argsort(rows.hashes, kind="stable")
        run = cls(folder / f"{uuid.uuid4().hex}.run", len(order))
        with run.path.open("wb") as sink:
            for name in _COLUMNS:
                getattr(rows, name)[order].tofile(sink)
        return run

    def read(self, name: str, first: int, last: int) -> Any:
        """Return the values of a column in the rows from ``first`` to before ``last``."""
        names = list(_COLUMNS)
        before = (
            sum(np.dtype(_COLUMNS[column]).itemsize for column in names[: names.index(name)])
            * self.rows
        )
        kind: np.dtype[Any] = np.dtype(_COLUMNS[name])
        return np.fromfile(self.path, kind, last - first, offset=before + first * kind.itemsize)


@dataclass(frozen=True)
class Slice:
    """The rows that some runs have in one range of hashes."""

    runs: Sequence[SortedRun]
    #: The first row of each run, and the row after the last.
    row_ranges: Sequence[tuple[int, int]]

    def column(self, name: str) -> Any:
        """Return the values of a column, one run after the other."""
        return np.concatenate(self.columns(name))

    def columns(self, name: str) -> list[Any]:
        """Return the values of a column in each run."""
        return [
            run.read(name, *rows) for run, rows in zip(self.runs, self.row_ranges, strict=True)
        ]


def slices(runs: Sequence[SortedRun], rows: int) -> Iterator[Slice]:
    """Yield the rows of all runs in ascending ranges of hashes of about ``rows`` rows.

    Equal hashes are in one range.
    """
    total = sum(run.rows for run in runs)
    count = -(-total // rows)
    ends = np.array([2**64 * number // max(1, count) for number in range(1, count)], np.uint64)
    spans = []
    for run in runs:
        inner = np.searchsorted(run.read("hashes", 0, run.rows), ends).tolist()
        spans.append([0, *inner, run.rows])
    for number in range(count):
        yield Slice(runs, [(bounds[number], bounds[number + 1]) for bounds in spans])


class RunColumn:
    """An array of a snapshot that is written piece by piece, in the format of ``np.save``."""

    def __init__(self, path: Path, kind: type[np.generic]) -> None:
        self._kind = np.dtype(kind)
        self.rows = 0
        self._sink = path.open("wb")
        self._write_header()

    def append(self, values: Any) -> None:
        """Write more values. Raises OSError."""
        values.astype(self._kind, copy=False).tofile(self._sink)
        self.rows += len(values)

    def close(self) -> None:
        """Write the final length and close the file. Raises OSError."""
        self._sink.seek(0)
        self._write_header()
        self._sink.close()

    def _write_header(self) -> None:
        # numpy leaves room in the header for a longer first dimension.
        shape = {"descr": self._kind.str, "fortran_order": False, "shape": (self.rows,)}
        np.lib.format.write_array_header_1_0(self._sink, shape)
