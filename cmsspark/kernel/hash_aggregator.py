"""Folding without the catalogue: rows carry the hashes of their files' names, for Spark's shuffle join."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from cmsspark.access import AccessBatch, Group, Quarantined
from cmsspark.buffers import coded, from_numpy
from cmsspark.kernel.catalogue import Replicas, check_hash, hashes_of
from cmsspark.kernel.pre_aggregate import (
    ACCESS,
    StreamAggregator,
    fold,
    joined,
    measures_of,
    pseudonyms_for,
    there,
    unmatched_bin,
    with_nulls,
)

#: More columns of a hashed scan's result, for the shuffle join.
HASH_COLUMNS: Final = (("hash", "long"), ("check", "long"), ("block_remote", "long"), ("unmatched_bin", "string"))
_UNMATCHED: Final = ("user_file", "temporary", "not_in_dbs")


class HashAggregator(StreamAggregator):
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

    def rows(self, groups: list[Group], replicas: Replicas | None, pseudonym: Callable[[str], str]) -> dict[str, Any]:
        """The accesses as columns of a hashed scan's result."""
        if not self._parts:
            return {}
        whole = joined(self._parts)
        both = np.stack([there(whole.pop("hash")), there(whole.pop("check"))], axis=1)
        files, numbers = np.unique(both, axis=0, return_inverse=True)
        bins = np.zeros(len(files), np.int64)
        bins[numbers.reshape(-1)] = there(whole.pop("bin"))
        sums = fold({"file": numbers.reshape(-1).astype(np.int64), **whole}, "file", "group", self.stream)
        rows, of_file = there(sums["group"]), there(sums["file"])
        stand_ins = pseudonyms_for((group.user for group in groups), pseudonym)
        count = len(rows)
        every = np.zeros(count, np.int32)
        return {
            "kind": coded([ACCESS], every),
            "stream": coded([self.stream], every),
            "dataset_name": coded([None], every),
            "site_name": coded([group.site for group in groups], rows),
            "app": coded([group.app for group in groups], rows),
            "user": coded([stand_ins[group.user] for group in groups], rows),
            "nacc": from_numpy(there(sums["nacc"])),
            "remote_nacc": with_nulls(None, None, count),
            "read_bytes": with_nulls(sums["read_bytes"], sums["nacc"], count),
            "cpu_ms": with_nulls(sums["cpu_ms"], sums["cpu_count"], count),
            "wall_ms": with_nulls(sums["wall_ms"], sums["wall_count"], count),
            "detail": coded([None], every),
            "hash": from_numpy(files[of_file, 0]),
            "check": from_numpy(files[of_file, 1]),
            "block_remote": from_numpy(np.array([group.remote for group in groups], np.int64)[rows]),
            "unmatched_bin": coded(_UNMATCHED, bins[of_file]),
        }

    def _told_rows(self, named: list[tuple[str, int, str | None]], held: list[Quarantined]) -> dict[str, list[Any]]:
        # As for the index, with the hashed columns null.
        rows = super()._told_rows(named, held)
        return rows | {name: [None] * len(rows["kind"]) for name, _ in HASH_COLUMNS}
