"""Reduces the partials of days to the groups, sums and users that the files of a segment have."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.apps.dashboard.day_rows import DERIVATIONS, Names, Rows, read_day
from cmsspark.apps.dashboard.segment import BIT_FILES, SUM_FILES, SUMS
from cmsspark.apps.dashboard.sorted_parts import SortedParts
from cmsspark.counting.packing import Codes, distinct, find_starts, pack
from cmsspark.store.query.stored_parts import StoredInterval

_CUBE: Final = SUM_FILES["cube"][1:]
#: Sums that are smaller as floats fit into 64 bits.
_SAFE: Final = 2.0**62


def _sorted(numbers: Codes) -> tuple[npt.NDArray[np.intp], Codes]:
    """Return the order of numbers, and the numbers in it."""
    bits, largest = len(numbers).bit_length(), int(numbers.max(initial=0))
    if largest < 1 << 16:
        # Short numbers are sorted in one pass.
        order = np.argsort(numbers.astype(np.uint16), kind="stable")
        return order, numbers[order]
    if largest >= 1 << (62 - bits):
        order = np.argsort(numbers)
        return order, numbers[order]
    # Numbers are sorted several times as fast as their positions.
    both = np.sort(numbers << bits | np.arange(len(numbers)), kind="stable")
    return both & (1 << bits) - 1, both >> bits


class Groups:
    """Rows with the same keys: ``keys`` has those of each group, in order."""

    def __init__(self, keys: Sequence[Codes]) -> None:
        packed, _ = pack(keys, len(keys[0]))
        self._order, in_order = _sorted(packed)
        self._starts = np.flatnonzero(find_starts(in_order)[: len(packed)])
        first = self._order[self._starts]
        self.keys = [column[first] for column in keys]

    def largest(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the largest value of each group."""
        return np.maximum.reduceat(values[self._order], self._starts) if len(values) else values

    def sums(self, rows: Rows) -> Rows:
        """Return the additive columns of each group."""
        if not len(self._order):
            return {name: rows[name] for name in (*SUMS, "has")}
        sums = {name: self._sum(rows[name]) for name in SUMS}
        return {**sums, "has": np.bitwise_or.reduceat(rows["has"][self._order], self._starts)}

    def _sum(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if values.dtype != object and values.sum(dtype=np.float64) > _SAFE:
            # Such numbers are absurd, but what a log says is summed exactly.
            values = values.astype(object)
        sums: npt.NDArray[Any] = np.add.reduceat(values[self._order], self._starts)
        return sums


class Days:
    """What the files of a segment need of its days. Rows by dataset or site are in
    files of the folder ``scratch``.
    """

    def __init__(self, scratch: Path) -> None:
        self.names = Names()
        self.days: list[int] = []
        self.totals = dict.fromkeys(SUMS, 0)
        self.cube: list[Rows] = []
        #: The keys of each day's sets, the number of users of each, and these one set
        #: after another.
        self.cube_users: list[tuple[Rows, Codes, npt.NDArray[np.uint32]]] = []
        #: File of ``BIT_FILES`` → the keys of each day's sets, and a row of flags of
        #: users for each set.
        self.sets: dict[str, list[tuple[Rows, npt.NDArray[np.uint8]]]] = {
            name: [] for name in BIT_FILES
        }
        self.detail = SortedParts(scratch / "detail")
        self.users = SortedParts(scratch / "users")
        self.site_days = SortedParts(scratch / "site_days")

    def add(self, entry: StoredInterval) -> list[str]:
        """Add a day, and return the ids of its pseudonym keys. Raises DataError (65)
        where it is damaged.
        """
        day = read_day(entry, self.names)
        self.days.append(day.day)
        self._add_sums(day.rows)
        has_user = day.rows["user"] >= 0
        self._add_users(
            {
                name: day.rows[name][has_user]
                for name in ("dataset_name", "stream", "site_name", "user")
            }
        )
        return day.keys

    def _add_sums(self, rows: Rows) -> None:
        groups, keys = self._grouped(rows, ("dataset_name", "stream", "site_name", "app"))
        sums = groups.sums(rows)
        with_derived = keys | self._derive(keys)
        self.detail.add(keys.pop("dataset_name"), keys | sums)
        groups, keys = self._grouped(with_derived, _CUBE)
        of_cube = groups.sums(sums)
        self.cube.append({"day": self._day(keys), **keys, **of_cube})
        for name in SUMS:
            self.totals[name] += sum(of_cube[name].tolist())
        groups, keys = self._grouped(with_derived, ("site_name", "stream", "data_tier", "app"))
        self.site_days.add(keys.pop("site_name"), keys | groups.sums(sums))

    def _add_users(self, rows: Rows) -> None:
        self._add_sets("site_users", rows)
        keys = self._distinct(
            rows | self._derive(rows), ("dataset_name", "stream", "site_tier", "user")
        )
        rows = keys | self._derive(keys)
        self.users.add(keys.pop("dataset_name"), keys)
        for name in ("tier_users", "campaign_users"):
            self._add_sets(name, rows)
        keys = self._distinct(rows, (*_CUBE, "user"))
        user = keys.pop("user").astype(np.uint32)
        starts = np.flatnonzero(find_starts(pack(list(keys.values()), len(user))[0])[: len(user)])
        sets = {name: column[starts] for name, column in {"day": self._day(keys), **keys}.items()}
        self.cube_users.append((sets, np.diff(starts, append=len(user)), user))

    def _grouped(self, rows: Rows, columns: Sequence[str]) -> tuple[Groups, Rows]:
        """Return the groups of rows by some columns, in the order of the names of the
        first, and their keys.
        """
        order, positions = self.names.order(columns[0])
        groups = Groups([positions[rows[columns[0]]], *(rows[name] for name in columns[1:])])
        first, *remaining = groups.keys
        return groups, dict(zip(columns, (order[first], *remaining), strict=True))

    def _distinct(self, rows: Rows, columns: Sequence[str]) -> Rows:
        """Return the distinct rows of some columns, in the order of the names of the first."""
        order, positions = self.names.order(columns[0])
        packed, unpack = pack(
            [positions[rows[columns[0]]], *(rows[key] for key in columns[1:])],
            len(rows[columns[0]]),
        )
        first, *remaining = (column.astype(np.int32) for column in unpack(distinct(packed)))
        return dict(zip(columns, (order[first], *remaining), strict=True))

    def _derive(self, rows: Rows) -> Rows:
        return {
            name: self.names.derived_codes(name)[rows[source]]
            for source, names in DERIVATIONS.items()
            for name in names
            if source in rows
        }

    def _day(self, rows: Rows) -> Codes:
        return np.full(len(rows["stream"]), self.days[-1], np.int32)

    def _add_sets(self, name: str, rows: Rows) -> None:
        columns = BIT_FILES[name][1:]
        packed, unpack = pack([rows[column] for column in columns], len(rows["user"]))
        is_set = np.bincount(packed) > 0
        flags = np.zeros((is_set.sum(), len(self.names.texts("user"))), np.bool_)
        flags[(np.cumsum(is_set) - 1)[packed], rows["user"]] = True
        keys = dict(zip(columns, unpack(np.flatnonzero(is_set)), strict=True))
        self.sets[name].append(
            ({"day": self._day(keys), **keys}, np.packbits(flags, axis=1, bitorder="little"))
        )
