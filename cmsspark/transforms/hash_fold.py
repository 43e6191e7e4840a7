"""Folding without the catalogue: rows carry the hashes of their files' names, for Spark's shuffle join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from cmsspark.access import AccessBatch, Group, Quarantined
from cmsspark.transforms.catalogue import Replicas, check_hash, hashes_of
from cmsspark.transforms.fold import (
    ACCESS,
    COLUMNS,
    StreamFold,
    fold,
    measures_of,
    stand_ins_of,
    there,
    unmatched_bin,
    where,
)

#: More columns of a hashed scan's result, for the shuffle join.
HASH_COLUMNS: Final = (("hash", "long"), ("check", "long"), ("block_remote", "long"), ("unmatched_bin", "string"))
_UNMATCHED: Final = ("user_file", "temporary", "not_in_dbs")


class HashFold(StreamFold):
    """One stream's accesses in one task, their datasets left to Spark's shuffle join: rows carry the lfn's hashes.

    ``dataset_name`` stays null; ``hash`` and ``check`` are the two hashes, ``block_remote`` is one of ``Remote``, and
    ``unmatched_bin`` names the bin of the rows that the join does not match.
    """

    def add(self, batch: AccessBatch) -> None:
        """Bin the batch's records and keep its accesses."""
        batch.unpack()
        super().add(batch)

    def _attach(self, batch: AccessBatch) -> None:
        names = [lfn.encode() for lfn in batch.lfns]
        every = np.arange(len(names))
        self._parts.append(
            {
                "hash": hashes_of(names, len(names)).view(np.int64),
                "check": hashes_of(names, len(names), check_hash).view(np.int64),
                "bin": np.array([_UNMATCHED.index(unmatched_bin(lfn)) for lfn in batch.lfns], np.int64),
                **measures_of(batch, every),
            }
        )

    def rows(
        self, groups: list[Group], replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, list[Any]]:
        """The accesses as columns of a hashed scan's result."""
        if not self._parts:
            return {}
        whole = self._joined()
        both = np.stack([there(whole.pop("hash")), there(whole.pop("check"))], axis=1)
        files, numbers = np.unique(both, axis=0, return_inverse=True)
        bins = np.zeros(len(files), np.int64)
        bins[numbers.reshape(-1)] = there(whole.pop("bin"))
        sums = fold({"file": numbers.reshape(-1).astype(np.int64), **whole}, "file", "group", self.stream)
        of_row = [groups[number] for number in there(sums["group"]).tolist()]
        of_file = there(sums["file"])
        stand_ins = stand_ins_of((group.user for group in groups), pseudonym)
        count = len(of_row)
        rows: dict[str, list[Any]] = {name: [None] * count for name, _ in (*COLUMNS, *HASH_COLUMNS)}
        rows |= {
            "kind": [ACCESS] * count,
            "stream": [self.stream] * count,
            "site_name": [group.site for group in of_row],
            "app": [group.app for group in of_row],
            "user": [stand_ins[group.user] for group in of_row],
            "nacc": there(sums["nacc"]).tolist(),
            "read_bytes": where(sums["read_bytes"], sums["nacc"], count),
            "cpu_ms": where(sums["cpu_ms"], sums["cpu_count"], count),
            "wall_ms": where(sums["wall_ms"], sums["wall_count"], count),
            "hash": files[of_file, 0].tolist(),
            "check": files[of_file, 1].tolist(),
            "block_remote": [group.remote for group in of_row],
            "unmatched_bin": [_UNMATCHED[number] for number in bins[of_file].tolist()],
        }
        return rows

    def _told_rows(self, named: list[tuple[str, int, str | None]], held: list[Quarantined]) -> dict[str, list[Any]]:
        # As for the index, with the hashed columns null.
        rows = super()._told_rows(named, held)
        return rows | {name: [None] * len(rows["kind"]) for name, _ in HASH_COLUMNS}
