"""Accesses as they are, one row each, for one's own jobs and notebooks: with file,
block and dataset, unfolded.

Runs in Spark's Python workers; knows no Spark.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

import numpy as np

from cmsspark.base.access import NO_BYTES, AccessBatch, Group, Remote
from cmsspark.counting.catalogue import NOT_THERE, Replicas, site_hashes
from cmsspark.counting.pre_aggregate import StreamAggregator

#: name and type word of each column of unfolded accesses.
ACCESS_COLUMNS: Final = (
    ("stream", "string"),
    ("lfn", "string"),
    ("site_name", "string"),
    ("app", "string"),
    ("user", "string"),
    ("is_remote", "boolean"),
    ("read_bytes", "long"),
    ("cpu_ms", "long"),
    ("wall_ms", "long"),
    ("dataset_name", "string"),
    ("block_id", "long"),
)


class AccessRows(StreamAggregator):
    """Hands on the accesses of each batch; records in bins of the decoder are not
    accesses and are left out.
    """

    _batch: AccessBatch | None = None

    def add(self, batch: AccessBatch) -> None:
        """Keep the batch until it is drained."""
        batch.unpack()
        self._batch = batch

    def drain(
        self, groups: list[Group], replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, list[Any]]:
        """Return the last batch's accesses as columns; dataset and block are null where
        DBS has no such file.
        """
        batch, self._batch = self._batch, None
        if batch is None or not batch.lfns:
            return {}
        catalogue = self._catalogue()
        pairs = catalogue.lookup([lfn.encode() for lfn in batch.lfns])
        is_known = pairs != NOT_THERE
        blocks, datasets = np.full(len(pairs), -1, np.int64), np.zeros(len(pairs), np.int64)
        blocks[is_known] = catalogue.pair_blocks[pairs[is_known]]
        datasets[is_known] = catalogue.pair_datasets[pairs[is_known]]
        unique = np.unique(datasets[is_known])
        names = dict(
            zip(unique.tolist(), catalogue.dataset_names(unique.astype(np.int32)), strict=True)
        )
        of_row = [groups[number] for number in batch.groups]
        has_replica: list[bool | None] = [None] * len(of_row)
        if replicas is not None:
            has_replica = replicas.has_replica(
                blocks, site_hashes([group.site for group in of_row])
            ).tolist()
        count = len(of_row)
        return {
            "stream": [self.stream] * count,
            "lfn": batch.lfns,
            "site_name": [group.site for group in of_row],
            "app": [group.app for group in of_row],
            "user": [pseudonym(group.user) if group.user else None for group in of_row],
            "is_remote": [
                _is_remote(group.remote, is_here, is_in_dbs)
                for group, is_here, is_in_dbs in zip(
                    of_row, has_replica, is_known.tolist(), strict=True
                )
            ],
            "read_bytes": [
                None if size == NO_BYTES else size
                for size in batch.read_bytes or [NO_BYTES] * count
            ],
            "cpu_ms": batch.cpu_ms or [None] * count,
            "wall_ms": batch.wall_ms or [None] * count,
            "dataset_name": [
                names.get(number) if is_in_dbs else None
                for number, is_in_dbs in zip(datasets.tolist(), is_known.tolist(), strict=True)
            ],
            "block_id": [block if block >= 0 else None for block in blocks.tolist()],
        }

    def rows(
        self, groups: list[Group], replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, list[Any]]:
        """Nothing: each batch was drained."""
        return {}

    def bin_rows(self) -> dict[str, list[Any]]:
        """Nothing: bins belong to counted days."""
        return {}


def _is_remote(remote: int, is_here: bool | None, is_known: bool) -> bool | None:
    if not is_known or remote == Remote.UNKNOWN:
        return None
    if remote == Remote.BY_REPLICA:
        return None if is_here is None else not is_here
    return remote == Remote.YES
