"""The rows of a feed that leave a task: blobs of records, one for each partition by the
hash of the records' id.

All records of a job (or report) meet in one partition, where a merge decides which of
them counts. Until then they may hold the name of a user, which decides ties; nothing of
that is stored.
"""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Any, ClassVar, Final

import numpy as np

from cmsspark.base.access import AccessBatch, Group
from cmsspark.base.arrays import Longs
from cmsspark.counting.htcondor_jobs import EARLIER, JOB, JOB_COLUMNS, id_hashes
from cmsspark.counting.pre_aggregate import StreamAggregator

#: Ids of the day before that leave a task together.
_IDS_AT_ONCE: Final = 200_000


@dataclass
class FeedAggregator(StreamAggregator):
    """Collects the records of a feed in one task, and passes them on in blobs."""

    columns: ClassVar = JOB_COLUMNS

    def add(self, batch: AccessBatch) -> None:
        """Count the bins of a batch and keep its records."""
        lfns, packed = batch.lfns, batch.packed
        batch.lfns, batch.packed = [], None
        super().add(batch)
        batch.lfns, batch.packed = lfns, packed
        self.bins.update(batch.job_bins)
        self.keep(batch)

    @abstractmethod
    def keep(self, batch: AccessBatch) -> None:
        """Keep the records of a batch."""

    @abstractmethod
    def is_full(self) -> bool:
        """Return whether the records should leave the task."""

    @abstractmethod
    def blobs(self, groups: Sequence[Any]) -> dict[int, bytes]:
        """Return the records as a blob for each partition that has any, and forget them."""

    def rows(
        self, groups: list[Any], replicas: Any, pseudonym: Callable[[str], str]
    ) -> dict[str, Any]:
        """Return the records that have not left the task."""
        blobs = self.blobs(groups)
        if not blobs:
            return {}
        rows = self._empty(len(blobs))
        rows["kind"] = [JOB] * len(blobs)
        rows["stream"] = [self.stream] * len(blobs)
        rows["id_hash"], rows["record"] = list(blobs), list(blobs.values())
        return rows

    def drain(
        self, groups: list[Any], replicas: Any, pseudonym: Callable[[str], str]
    ) -> dict[str, list[Any]]:
        """Return the records, once they are many, else quarantined records, once they are many."""
        return (
            self.rows(groups, replicas, pseudonym)
            if self.is_full()
            else super().drain(groups, replicas, pseudonym)
        )

    def _side_rows(
        self, named: list[tuple[str, int, str | None]], records: list[Any]
    ) -> dict[str, list[Any]]:
        rows = super()._side_rows(named, records)
        return self._empty(len(rows["kind"])) | rows

    def _empty(self, count: int) -> dict[str, list[Any]]:
        return {name: [None] * count for name, _ in JOB_COLUMNS}


@dataclass
class EarlierIds(FeedAggregator):
    """Collects the ids of the day before, and nothing else: its records were judged on
    their own day.
    """

    _ids: list[Longs] = field(default_factory=list)
    _count: int = 0

    def keep(self, batch: AccessBatch) -> None:
        """Keep the ids of a batch."""
        hashes = id_hashes([record.job_id for record in batch.jobs])
        self._ids.append(hashes)
        self._count += len(hashes)

    def is_full(self) -> bool:
        """Return whether the ids should leave the task."""
        return self._count >= _IDS_AT_ONCE

    def blobs(self, groups: Sequence[Any]) -> dict[int, bytes]:
        """Return nothing: ids leave the task as hashes."""
        return {}

    def rows(
        self, groups: list[Any], replicas: Any, pseudonym: Callable[[str], str]
    ) -> dict[str, Any]:
        """Return the ids that have not left the task."""
        ids = np.unique(np.concatenate([np.zeros(0, np.int64), *self._ids])).tolist()
        self._ids, self._count, self.quarantined = [], 0, []
        rows = self._empty(len(ids))
        rows["kind"] = [EARLIER] * len(ids)
        rows["stream"] = [self.stream] * len(ids)
        rows["id_hash"] = ids
        return rows if ids else {}

    def bin_rows(self) -> dict[str, list[Any]]:
        """Return no rows: bins belong to the day itself."""
        return {}

    def note_rows(
        self, notes: Sequence[tuple[str, str, int, str]], groups: Sequence[Group]
    ) -> dict[str, list[Any]]:
        """Return no rows: notes belong to the day itself."""
        return {}
