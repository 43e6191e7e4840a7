"""What the coming week will read where: from the reads before it, and a forecast of popularity where one is given."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any, Final

import numpy as np

from cmsspark.apps.placement.reads import Reads

Array = np.ndarray[Any, Any]

#: What a week counts less than the one after it.
_DECAY: Final = 0.6
#: Weeks that are looked back.
_WEEKS: Final = 8
#: Accesses of siblings that the sites of a dataset are mixed with: many own reads outweigh them.
_PRIOR: Final = 20.0
#: Siblings are taken where at least so many were read; else those of the next, wider group.
_LEAST_SIBLINGS: Final = 3


@dataclass(frozen=True)
class Demand:
    """Expected accesses of the coming week, float64 [datasets], how they spread over sites, [datasets, sites] (sum 1),
    whether a number comes from siblings as the dataset was never read, and which share of the reads at a site is remote
    while it has no complete copy, [datasets, sites]: less than 1 where logs say that reads there were local.
    """

    accesses: Array
    share: Array
    from_siblings: Array
    remote: Array

    def reads(self, dataset: Array, site: Array) -> Array:
        """Expected accesses of the datasets at the sites, pair by pair."""
        return np.asarray(self.accesses[dataset] * self.share[dataset, site])


def groups_of(datasets: tuple[str, ...]) -> list[Array]:
    """Groups of siblings as numbers, the closest first: same primary dataset and tier; campaign and tier; tier; all."""
    parts = [(*name.split("/"), "", "", "")[1:4] for name in datasets]
    tiers = [tier for _, _, tier in parts]
    closest = [f"{primary}/{tier}" for primary, _, tier in parts]
    campaigns = [f"{processed.partition('-')[0]}/{tier}" for _, processed, tier in parts]
    keys = (closest, campaigns, tiers, [""] * len(parts))
    return [np.unique(np.array(key, str), return_inverse=True)[1] for key in keys]


def expected(reads: Reads, groups: list[Array], probability: Array | None = None) -> Demand:
    """The demand of the week after the last day of ``reads``, which are all that it knows.

    The level of a dataset is the decaying mean of its weeks with a read, times its ``probability`` to be popular;
    without one, the decaying mean of all weeks since its first read. A dataset that was never read has the mean first
    week, and the sites, of its siblings; without enough of them in its tier nothing is expected of it.
    """
    totals = _weekly(reads)
    is_read = np.bincount(reads.dataset, minlength=len(reads.datasets)) > 0
    first = _first_days(reads)
    # Weeks that a dataset has been there, the first one counted whole.
    weeks_there = np.minimum((len(reads.days) - 1 - first) // 7 + 1, _WEEKS)
    number = np.arange(_WEEKS)[:, None]
    counted = (number < weeks_there) if probability is None else totals > 0
    weights = counted * _DECAY**number
    level = (totals * weights).sum(0) / np.maximum(weights.sum(0), 1e-12)
    level = np.where(is_read, level, _of_siblings(*_first_weeks(reads, first), groups[:-1]))
    accesses = level if probability is None else level * probability
    return Demand(accesses, _shares(reads, groups), ~is_read, _remote(reads))


def by_tier(reads: Reads, groups: list[Array], sizes: Array) -> Demand:
    """The rule by data tier, as demand: the accesses of the last weeks of all datasets of a tier, spread evenly over
    their bytes. It knows how each tier is used, and nothing of single datasets.
    """
    demand = expected(reads, groups)
    tier = groups[2]
    known = np.where(sizes > 0, sizes, 0.0)
    density = np.bincount(tier, demand.accesses) / np.maximum(np.bincount(tier, known), 1.0)
    shares = np.zeros((tier.max() + 1, len(reads.sites)))
    np.add.at(shares, tier, demand.share * demand.accesses[:, None])
    shares /= np.maximum(shares.sum(1, keepdims=True), 1e-12)
    return Demand(density[tier] * known, shares[tier], demand.from_siblings, np.ones_like(demand.remote))


def _weekly(reads: Reads) -> Array:
    """float64 [weeks, datasets]: accesses of the last weeks, the latest first."""
    totals = np.zeros((_WEEKS, len(reads.datasets)))
    back = _weeks_back(reads)
    recent = back < _WEEKS
    np.add.at(totals, (back[recent], reads.dataset[recent]), reads.accesses[recent])
    return totals


def _weeks_back(reads: Reads) -> Array:
    return np.asarray((len(reads.days) - 1 - reads.day) // 7)


def _first_days(reads: Reads) -> Array:
    """The number of the day of each dataset's first read; that after the last day where there is none."""
    first = np.full(len(reads.datasets), len(reads.days))
    np.minimum.at(first, reads.dataset, reads.day)
    return first


def _first_weeks(reads: Reads, first: Array) -> tuple[Array, Array]:
    """Accesses in the seven days from each dataset's first read on, and whether that week is known: it is over, and
    the first read is not that of the whole series, which may have begun before.
    """
    is_early = reads.day < first[reads.dataset] + 7
    totals = np.bincount(reads.dataset[is_early], reads.accesses[is_early], len(reads.datasets))
    return totals, np.asarray((first > 0) & (first + 7 <= len(reads.days)))


def _of_siblings(values: Array, known: Array, groups: list[Array]) -> Array:
    """For each dataset the mean known value of the closest siblings of which enough are known; 0 where none are."""
    result = np.full(len(values), np.nan)
    for group in groups:
        size = group.max() + 1 if len(group) else 0
        counts = np.bincount(group[known], minlength=size)
        means = np.bincount(group[known], values[known], size) / np.maximum(counts, 1)
        enough = counts >= _LEAST_SIBLINGS
        result = np.where(np.isnan(result) & enough[group], means[group], result)
    return np.asarray(np.nan_to_num(result))


def _shares(reads: Reads, groups: list[Array]) -> Array:
    """float64 [datasets, sites]: the share of each site in a dataset's reads, mixed with its siblings' sites."""
    counts = np.zeros((len(reads.datasets), len(reads.sites)))
    np.add.at(counts, (reads.dataset, reads.site), reads.accesses * _DECAY ** np.minimum(_weeks_back(reads), 50))
    prior = np.full(counts.shape, 1 / max(counts.shape[1], 1))
    # From the widest group to the closest: each mixes its reads with the sites of the wider one.
    for group in reversed(groups):
        sums = np.zeros((group.max() + 1 if len(group) else 0, counts.shape[1]))
        np.add.at(sums, group, counts)
        own = sums[group]
        prior = (own + _PRIOR * prior) / (own.sum(1, keepdims=True) + _PRIOR)
    return np.asarray((counts + _PRIOR * prior) / (counts.sum(1, keepdims=True) + _PRIOR))


def _remote(reads: Reads) -> Array:
    """float64 [datasets, sites]: the share of remote reads, by the logs that can say; near 1 where few do."""
    said, remote = np.full((2, len(reads.datasets), len(reads.sites)), _PRIOR)
    np.add.at(said, (reads.dataset, reads.site), reads.can_say)
    np.add.at(remote, (reads.dataset, reads.site), reads.remote)
    return np.asarray(remote / said)
