"""Sums of a task's accesses by data tier, site of the reader and site of the source (rule 63)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Final

import msgspec
import numpy as np

from cmsspark.base import buffers
from cmsspark.base.arrays import Longs
from cmsspark.base.names import DERIVED
from cmsspark.counting.catalogue import Catalogue
from cmsspark.counting.sums import capped_sums
from cmsspark.sources.formats.fast_json import Groups
from cmsspark.sources.values import UNKNOWN

#: The kind of a scan's rows that are sums of pairs, and the columns that hold their keys.
PAIR: Final = "pair"
SCAN_COLUMNS: Final = {
    "stream": "stream",
    "data_tier": "dataset_name",
    "reader_site": "user",
    "source_site": "site_name",
}
#: The keys of a row of the table, besides the day.
PAIR_KEYS: Final = tuple(SCAN_COLUMNS)
#: The sums of a task. The count is that of accesses which can say whether they are remote.
_SUMS: Final = ("nacc", "remote_nacc", "remote_count", "read_bytes")


def _no_numbers() -> Longs:
    return np.zeros(0, np.int64)


class SitePairs(msgspec.Struct):
    """The sums of one stream in one task. Data tiers and pairs have numbers."""

    #: The number of each data tier, and of each (reader's site, source site); None is not known.
    _tiers: dict[str | None, int] = msgspec.field(default_factory=dict)
    _pairs: dict[tuple[str | None, str | None], int] = msgspec.field(default_factory=dict)
    #: -1 where no access of the dataset was seen yet.
    _tier_of_dataset: Longs = msgspec.field(default_factory=_no_numbers)
    _pair_of_route: Longs = msgspec.field(default_factory=_no_numbers)
    _parts: list[dict[str, Any]] = msgspec.field(default_factory=list)

    def add(
        self,
        groups: Groups,
        datasets: Longs,
        catalogue: Catalogue,
        accesses: Mapping[str, Any],
    ) -> None:
        """Add accesses: the ``route`` of each, its dataset's number in the catalogue,
        and its measures.
        """
        missing = int(datasets.max()) + 1 - len(self._tier_of_dataset)
        if missing > 0:
            self._tier_of_dataset = np.append(
                self._tier_of_dataset, np.full(missing, -1, np.int64)
            )
        # np.unique would import numpy.ma in each worker.
        unseen = np.flatnonzero(np.bincount(datasets[self._tier_of_dataset[datasets] < 0]))
        for number, name in zip(
            unseen.tolist(), catalogue.dataset_names(unseen.astype(np.int32)), strict=True
        ):
            self._tier_of_dataset[number] = self._tiers.setdefault(
                DERIVED["data_tier"].derive(name), len(self._tiers)
            )
        tiers = self._tier_of_dataset[datasets]
        # A decoder only appends routes.
        new = [
            self._pairs.setdefault((reader, None if site == UNKNOWN else site), len(self._pairs))
            for site, _, reader in groups.routes.values_by_number[len(self._pair_of_route) :]
        ]
        self._pair_of_route = np.append(self._pair_of_route, np.array(new, np.int64))
        pairs = self._pair_of_route[accesses["route"]]
        self._parts.append(self._summed({**accesses, "tier": tiers, "pair": pairs}))

    def rows(self, stream: str) -> dict[str, Any]:
        """Return the sums as columns of a scan's result."""
        if not self._parts:
            return {}
        columns = {name: [part[name] for part in self._parts] for name in self._parts[0]}
        sums = self._summed(
            {
                name: None if parts[0] is None else np.concatenate(parts)
                for name, parts in columns.items()
            }
        )
        zeros = np.zeros(len(sums["tier"]), np.int32)
        keys = {
            "data_tier": (list(self._tiers), sums["tier"]),
            "reader_site": ([reader for reader, _ in self._pairs], sums["pair"]),
            "source_site": ([source for _, source in self._pairs], sums["pair"]),
        }
        sizes, has_sizes = sums["read_bytes"], sums["read_bytes"] is not None
        no_text = buffers.dictionary_array([None], zeros)
        no_number = buffers.from_numpy(zeros.astype(np.int64), zeros > 0)
        return {
            "kind": buffers.dictionary_array([PAIR], zeros),
            "stream": buffers.dictionary_array([stream], zeros),
            **{SCAN_COLUMNS[name]: buffers.dictionary_array(*key) for name, key in keys.items()},
            "nacc": buffers.from_numpy(sums["nacc"]),
            "remote_nacc": buffers.from_numpy(sums["remote_nacc"], sums["remote_count"] > 0),
            "read_bytes": buffers.from_numpy(
                sizes if has_sizes else sums["nacc"], np.full(len(zeros), has_sizes)
            ),
            **dict.fromkeys(("app", "detail"), no_text),
            **dict.fromkeys(("cpu_ms", "wall_ms"), no_number),
        }

    def _summed(self, rows: Mapping[str, Any]) -> dict[str, Any]:
        """Return the sums of each tier and pair that has rows. These are few, so
        nothing is sorted.
        """
        width = len(self._pairs)
        keys = rows["tier"] * width + rows["pair"]
        present = np.flatnonzero(np.bincount(keys))
        sums: dict[str, Any] = {"tier": present // width, "pair": present % width}
        for name in _SUMS:
            values, size = rows[name], len(self._tiers) * width
            sums[name] = None if values is None else capped_sums(keys, values, size)[present]
        return sums
