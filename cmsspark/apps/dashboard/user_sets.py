"""Distinct users of any choice of days and groups, counted exactly from stored sets.

Numbers of distinct users do not add up (``docs/counting.md``), so the rollups keep who
was there, as numbers of a list, and a count is the size of a union. Only counts leave
this module.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

from cmsspark.apps.dashboard.segment import join_ranges

if TYPE_CHECKING:
    import pyarrow as pa

Codes = npt.NDArray[np.int32]
Mask = npt.NDArray[np.bool_]


@dataclass(frozen=True)
class UserTable:
    """The sets of one segment: a row for each combination of the keys.

    ``keys``: column → codes of its values (``day``: days since 1970). Users are either
    ``bits``, a row of 64-bit words for each combination, or lists: ``lengths`` for each
    combination and ``users``, all lists one after another. ``global_ids``: for each
    user of the segment its number over all segments.
    """

    keys: Mapping[str, Codes]
    global_ids: npt.NDArray[np.int64]
    bits: npt.NDArray[np.uint64] | None = None
    lengths: npt.NDArray[np.int64] | None = None
    users: npt.NDArray[np.unsignedinteger[Any]] | None = None

    def union(self, rows: npt.NDArray[np.int64], groups: Codes) -> tuple[Codes, Mask]:
        """Return the values of ``groups``, and for each the flags of the union of the
        sets of its ``rows``.
        """
        if self.bits is not None:
            order = np.argsort(groups, kind="stable")
            values, starts = np.unique(groups[order], return_index=True)
            words = np.bitwise_or.reduceat(self.bits[rows[order]], starts, axis=0)
            flags = np.unpackbits(words.view(np.uint8), axis=1, bitorder="little")
            return values.astype(np.int32), flags[:, : len(self.global_ids)].astype(bool)
        assert self.lengths is not None and self.users is not None
        values, codes = np.unique(groups, return_inverse=True)
        size = len(self.global_ids)
        flat = np.zeros(len(values) * size, dtype=bool)
        positions = _positions(self.lengths, rows)
        flat[np.repeat(codes * size, self.lengths[rows]) + self.users[positions]] = True
        return values.astype(np.int32), flat.reshape(len(values), size)


def _positions(lengths: npt.NDArray[np.int64], rows: npt.NDArray[np.int64]) -> Any:
    """Return where the lists of ``rows`` stand among all lists one after another."""
    if len(rows) == len(lengths):
        return slice(None)
    return join_ranges((np.cumsum(lengths) - lengths)[rows], lengths[rows])


class DistinctCounter:
    """Counts distinct users of groups over several segments; groups are numbers from 0
    to ``groups`` - 1.
    """

    def __init__(self, groups: int, users: int) -> None:
        self._flags = np.zeros((groups, users), dtype=bool)

    def add(self, table: UserTable, rows: npt.NDArray[np.int64], groups: Codes) -> None:
        """Add the sets of some rows of a segment, each to its group."""
        if len(rows):
            values, flags = table.union(rows, groups)
            index = np.ix_(values, table.global_ids)
            self._flags[index] |= flags

    def counts(self) -> npt.NDArray[np.int64]:
        """Return the distinct users of each group."""
        counts: npt.NDArray[np.int64] = self._flags.sum(axis=1, dtype=np.int64)
        return counts


def from_bits(
    rows: pa.Table, keys: Mapping[str, Codes], global_ids: npt.NDArray[np.int64]
) -> UserTable:
    """Return the sets of a file whose column ``users`` has bits."""
    column = rows.column("users").combine_chunks()
    column = column.chunk(0) if hasattr(column, "chunk") else column
    width = column.type.byte_width
    start = column.offset * width
    data = np.frombuffer(column.buffers()[1], dtype=np.uint8)[start : start + len(column) * width]
    return UserTable(
        keys, global_ids, bits=data.copy().view(np.uint64).reshape(len(column), width // 8)
    )


def from_lists(
    rows: pa.Table, keys: Mapping[str, Codes], global_ids: npt.NDArray[np.int64]
) -> UserTable:
    """Return the sets of a file whose column ``users`` has lists."""
    column = rows.column("users").combine_chunks()
    chunks = column.chunks if hasattr(column, "chunks") else [column]
    lengths = [chunk.value_lengths().to_numpy().astype(np.int64) for chunk in chunks]
    users = [chunk.flatten().to_numpy() for chunk in chunks]
    # A year has tens of millions of these numbers.
    kind: Any = np.uint16 if len(global_ids) <= 1 << 16 else np.uint32
    return UserTable(
        keys,
        global_ids,
        lengths=np.concatenate(lengths) if lengths else np.zeros(0, np.int64),
        users=np.concatenate([np.zeros(0, np.uint32), *users]).astype(kind),
    )


def chosen_rows(
    table: UserTable, codes_of: Mapping[str, Sequence[int]], first: int, last: int
) -> npt.NDArray[np.int64]:
    """Return the rows of days from ``first`` to ``last`` whose keys have one of the wanted codes."""
    days = table.keys["day"]
    mask: Mask = (days >= first) & (days <= last)
    for name, codes in codes_of.items():
        key_codes = table.keys[name]
        mask &= (
            np.logical_or.reduce([key_codes == code for code in codes]) if len(codes) else False
        )
    return np.flatnonzero(mask)
