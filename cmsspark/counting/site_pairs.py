"""Sums of a task's accesses by data tier, site of the reader and site of the source (rule 63)."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from cmsspark.base import buffers
from cmsspark.base.access import Group
from cmsspark.base.exact_integers import Longs
from cmsspark.base.names import DERIVED
from cmsspark.counting.catalogue import Catalogue
from cmsspark.sources.fields import UNKNOWN

#: The columns of a scan's rows that hold the keys of a pair.
SCAN_COLUMNS: Final = {
    "stream": "stream", "data_tier": "dataset_name", "reader_site": "user", "source_site": "site_name"
}  # fmt: skip
#: The keys of a row of the table, besides the day.
PAIR_KEYS: Final = tuple(SCAN_COLUMNS)


@dataclass
class PairNumbers:
    """Numbers of the pairs of a decoder's groups, and of the data tiers of a catalogue's datasets."""

    #: The number of each (reader's site, source site), and of each data tier; None is not known.
    pairs: dict[tuple[str | None, str | None], int] = field(default_factory=dict)
    tiers: dict[str | None, int] = field(default_factory=dict)
    _pair_of_group: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    #: -1 where no access of the dataset was seen yet.
    _tier_of_dataset: Longs = field(default_factory=lambda: np.zeros(0, np.int64))

    def of_groups(self, groups: list[Group], numbers: Longs) -> Longs:
        """Return the pairs of accesses whose groups have these ``numbers``. A decoder only appends groups."""
        new = [
            self.pairs.setdefault((group.reader, None if group.site == UNKNOWN else group.site), len(self.pairs))
            for group in groups[len(self._pair_of_group) :]
        ]
        self._pair_of_group = np.append(self._pair_of_group, np.array(new, np.int64))
        return self._pair_of_group[numbers]

    def of_datasets(self, datasets: Longs, catalogue: Catalogue) -> Longs:
        """Return the data tiers of accesses to these ``datasets``, which are numbers in the catalogue."""
        missing = int(datasets.max()) + 1 - len(self._tier_of_dataset)
        if missing > 0:
            self._tier_of_dataset = np.append(self._tier_of_dataset, np.full(missing, -1, np.int64))
        new = np.unique(datasets[self._tier_of_dataset[datasets] < 0])
        for number, name in zip(new.tolist(), catalogue.dataset_names(new.astype(np.int32)), strict=True):
            self._tier_of_dataset[number] = self.tiers.setdefault(DERIVED["data_tier"].of(name), len(self.tiers))
        return self._tier_of_dataset[datasets]

    def key_columns(self, tiers: Longs, pairs: Longs) -> dict[str, Any]:
        """Return the keys of rows as columns of a scan's result."""
        return {
            SCAN_COLUMNS["data_tier"]: buffers.dictionary_array(list(self.tiers), tiers),
            SCAN_COLUMNS["reader_site"]: buffers.dictionary_array([reader for reader, _ in self.pairs], pairs),
            SCAN_COLUMNS["source_site"]: buffers.dictionary_array([source for _, source in self.pairs], pairs),
        }
