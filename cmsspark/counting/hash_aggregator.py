"""Pre-aggregation without the catalogue: rows carry the hashes of file names, for
Spark's shuffle join.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from cmsspark.base.access import AccessBatch, Group, Quarantined
from cmsspark.base.buffers import dictionary_array, from_numpy
from cmsspark.counting.catalogue import Replicas, check_hash, hash_all
from cmsspark.counting.pre_aggregate import (
    StreamAggregator,
    access_columns,
    collect_measures,
    joined,
    pre_aggregate,
    with_nulls,
)
from cmsspark.counting.prefixes import all_shown

#: (name, type) of the additional columns of a hashed scan.
HASH_COLUMNS: Final = (
    ("hash", "long"),
    ("check", "long"),
    ("block_remote", "long"),
    ("prefix", "string"),
)


@dataclass
class HashAggregator(StreamAggregator):
    """Pre-aggregates the accesses of one stream in one task by the hashes of the lfn;
    Spark joins the datasets.

    ``dataset_name`` is null. ``hash`` and ``check`` are the two hashes of the lfn,
    ``block_remote`` is one of ``Remote``, and ``prefix`` is that of the lfn that people
    may see: it counts if the join does not match the row.
    """

    #: The numbers of the prefixes.
    _prefixes: dict[str, int] = field(default_factory=dict)

    def add(self, batch: AccessBatch) -> None:
        """Count the bins of a batch and keep its accesses."""
        batch.unpack()
        super().add(batch)

    def _attach(self, batch: AccessBatch) -> None:
        names = [lfn.encode() for lfn in batch.lfns]
        all_rows = np.arange(len(names))
        prefix_numbers = [
            self._prefixes.setdefault(name, len(self._prefixes)) for name in all_shown(batch.lfns)
        ]
        self._parts.append(
            {
                "hash": hash_all(names, len(names)).view(np.int64),
                "check": hash_all(names, len(names), check_hash).view(np.int64),
                "prefix": np.array(prefix_numbers, np.int64),
                **self._with_read_count(collect_measures(batch, all_rows)),
            }
        )

    def rows(
        self, groups: list[Group], replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, Any]:
        """Return the accesses as columns of a hashed scan's result."""
        if not self._parts:
            return {}
        columns = joined(self._parts)
        both = np.stack([columns.pop("hash"), columns.pop("check")], axis=1)
        files, numbers = np.unique(both, axis=0, return_inverse=True)
        prefix_of = np.zeros(len(files), np.int64)
        prefix_of[numbers.reshape(-1)] = columns.pop("prefix")
        sums = pre_aggregate(
            {"file": numbers.reshape(-1).astype(np.int64), **columns}, "file", "group", self.stream
        )
        rows, of_file = sums["group"], sums["file"]
        count = len(rows)
        return access_columns(self.stream, sums, [group[:3] for group in groups], pseudonym) | {
            "dataset_name": dictionary_array([None], np.zeros(count, np.int32)),
            "remote_nacc": with_nulls(None, None, count),
            # The shuffle join takes it from here to the rows of pairs of sites (rule 63).
            "detail": dictionary_array([group.reader for group in groups], rows),
            "hash": from_numpy(files[of_file, 0]),
            "check": from_numpy(files[of_file, 1]),
            "block_remote": from_numpy(
                np.array([group.remote for group in groups], np.int64)[rows]
            ),
            "prefix": dictionary_array(list(self._prefixes), prefix_of[of_file]),
        }

    def _side_rows(
        self, named: list[tuple[str, int, str | None]], records: list[Quarantined]
    ) -> dict[str, list[Any]]:
        # The columns of the hashes are null in side rows.
        rows = super()._side_rows(named, records)
        return rows | {name: [None] * len(rows["kind"]) for name, _ in HASH_COLUMNS}
