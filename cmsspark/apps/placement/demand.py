"""What the coming week will read where: from the reads before it, and a forecast of
popularity where one is given.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from cmsspark.apps.placement.reads import Reads
from cmsspark.base.arrays import Array
from cmsspark.base.names import DERIVED

#: What a week counts less than the one after it.
_DECAY: Final = 0.6
#: More than so many times the level is not believed of a forecast: copies outlive a burst.
_MOST_GROWTH: Final = 3.0
#: Weeks that are looked back.
_WEEKS: Final = 8
#: Accesses of siblings that the sites of a dataset are mixed with: many own reads outweigh them.
_PRIOR: Final = 20.0
#: Siblings are taken where at least so many were read; else those of the next, wider group.
_LEAST_SIBLINGS: Final = 3


@dataclass(frozen=True)
class Outlook:
    """A forecast of the coming week, float64 [datasets] each, NaN where it knows
    nothing of a dataset: the probability to be popular, and, where it has them, the
    expected accesses and their 90 % quantile.
    """

    probability: Array
    accesses: Array | None = None
    high: Array | None = None


@dataclass(frozen=True)
class Demand:
    """Expected accesses of the coming week, float64 [datasets], how they spread over
    sites, [datasets, sites] (sum 1), whether a number comes from siblings as the
    dataset was never read, and which share of the reads at a site is remote while it
    has no complete copy, [datasets, sites]: less than 1 where logs say that reads there
    were local. ``bytes_per_access``: float64 [datasets]; None where no read has bytes.
    """

    accesses: Array
    share: Array
    from_siblings: Array
    remote: Array
    bytes_per_access: Array | None = None

    def benefit(self, dataset: int, site: int, lifetime: float) -> float | None:
        """Return the bytes that a copy is expected to serve in ``lifetime`` weeks; None
        where no read has bytes.

        A week is expected to be read as much as the one before it, times what past
        weeks count less than the next.
        """
        if self.bytes_per_access is None:
            return None
        weeks = (1 - _DECAY**lifetime) / (1 - _DECAY)
        of_week = self.accesses[dataset] * self.share[dataset, site] * self.remote[dataset, site]
        return float(of_week * self.bytes_per_access[dataset] * weeks)

    def reads(self, dataset: Array, site: Array) -> Array:
        """Expected accesses of the datasets at the sites, pair by pair."""
        return np.asarray(self.accesses[dataset] * self.share[dataset, site])


def group_datasets(datasets: tuple[str, ...]) -> list[Array]:
    """Groups of siblings as numbers, the closest first: same primary dataset and tier;
    campaign and tier; tier; all.
    """
    primaries, campaigns, tiers = (
        [DERIVED[column].derive(name) or "" for name in datasets]
        for column in ("primary_name", "campaign", "data_tier")
    )
    of_tier = (
        [f"{text}/{tier}" for text, tier in zip(texts, tiers, strict=True)]
        for texts in (primaries, campaigns)
    )
    keys = (*of_tier, tiers, [""] * len(datasets))
    return [np.unique(np.array(key, str), return_inverse=True)[1] for key in keys]


def expected(reads: Reads, groups: list[Array], outlook: Outlook | None = None) -> Demand:
    """Return the demand of the week after the last day of ``reads``, which are all that it knows.

    The level of a dataset is the decaying mean of all weeks since its first read. With
    an ``outlook`` it is damped to the 90 % quantile of the forecast, and the mean of it
    and the expected accesses is taken; where the forecast has no expected accesses, the
    decaying mean of the weeks with a read, times the probability. A dataset that was
    never read has the mean first week, and the sites, of its siblings; without enough
    of them in its tier nothing is expected.
    """
    totals = _weekly(reads)
    is_read = np.bincount(reads.dataset, minlength=len(reads.datasets)) > 0
    first = _first_days(reads)
    # Weeks that a dataset has been there, the first one counted whole.
    weeks_there = np.minimum((len(reads.days) - 1 - first) // 7 + 1, _WEEKS)
    number = np.arange(_WEEKS)[:, None]
    by_probability = outlook is not None and outlook.accesses is None
    weights = (totals > 0 if by_probability else number < weeks_there) * _DECAY**number
    level = (totals * weights).sum(0) / np.maximum(weights.sum(0), 1e-12)
    level = np.where(is_read, level, _of_siblings(*_first_weeks(reads, first), groups[:-1]))
    accesses = level if outlook is None else _foreseen(level, outlook)
    return Demand(
        accesses,
        _shares(reads, groups),
        ~is_read,
        _remote(reads),
        _bytes_per_access(reads, groups),
    )


def _foreseen(level: Array, outlook: Outlook) -> Array:
    """Return the level as the forecast changes it; unchanged where it knows nothing."""
    if outlook.accesses is None or outlook.high is None:
        foreseen = level * outlook.probability
    else:
        foreseen = (
            np.minimum(level, outlook.high)
            + np.minimum(outlook.accesses, _MOST_GROWTH * level + 1)
        ) / 2
    return np.where(np.isnan(foreseen), level, foreseen)


def _bytes_per_access(reads: Reads, groups: list[Array]) -> Array | None:
    """Return the mean bytes of an access of each dataset, of its closest siblings where
    its own reads have none.
    """
    has_bytes = reads.bytes > 0
    if not has_bytes.any():
        return None
    count = len(reads.datasets)
    accesses = np.bincount(reads.dataset[has_bytes], reads.accesses[has_bytes], count)
    volume = np.bincount(reads.dataset[has_bytes], reads.bytes[has_bytes], count)
    result = np.full(count, np.nan)
    for group in (np.arange(count), *groups):
        sums, counts = np.bincount(group, volume), np.bincount(group, accesses)
        means = np.divide(sums, counts, out=np.full(len(sums), np.nan), where=counts > 0)
        result = np.where(np.isnan(result), means[group], result)
    return result


def by_tier(reads: Reads, groups: list[Array], sizes: Array) -> Demand:
    """Return the rule by data tier, as demand: the accesses of the last weeks of all
    datasets of a tier, spread evenly over their bytes. It knows how each tier is used,
    and nothing of single datasets.
    """
    demand = expected(reads, groups)
    tier = groups[2]
    known_sizes = np.where(sizes > 0, sizes, 0.0)
    density = np.bincount(tier, demand.accesses) / np.maximum(np.bincount(tier, known_sizes), 1.0)
    shares = np.zeros((tier.max() + 1, len(reads.sites)))
    np.add.at(shares, tier, demand.share * demand.accesses[:, None])
    shares /= np.maximum(shares.sum(1, keepdims=True), 1e-12)
    return Demand(
        density[tier] * known_sizes,
        shares[tier],
        demand.from_siblings,
        np.ones_like(demand.remote),
        demand.bytes_per_access,
    )


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
    """Return the number of the day of each dataset's first read; that after the last
    day where there is none.
    """
    first = np.full(len(reads.datasets), len(reads.days))
    np.minimum.at(first, reads.dataset, reads.day)
    return first


def _first_weeks(reads: Reads, first: Array) -> tuple[Array, Array]:
    """Accesses in the seven days from each dataset's first read on, and whether that
    week is known: it is over, and the first read is not that of the whole series, which
    may have begun before.
    """
    is_early = reads.day < first[reads.dataset] + 7
    totals = np.bincount(reads.dataset[is_early], reads.accesses[is_early], len(reads.datasets))
    return totals, np.asarray((first > 0) & (first + 7 <= len(reads.days)))


def _of_siblings(values: Array, is_known: Array, groups: list[Array]) -> Array:
    """For each dataset the mean known value of the closest siblings of which enough are
    known; 0 where none are.
    """
    result = np.full(len(values), np.nan)
    for group in groups:
        size = group.max() + 1 if len(group) else 0
        counts = np.bincount(group[is_known], minlength=size)
        means = np.bincount(group[is_known], values[is_known], size) / np.maximum(counts, 1)
        enough = counts >= _LEAST_SIBLINGS
        result = np.where(np.isnan(result) & enough[group], means[group], result)
    return np.asarray(np.nan_to_num(result))


def _shares(reads: Reads, groups: list[Array]) -> Array:
    """float64 [datasets, sites]: the share of each site in a dataset's reads, mixed
    with its siblings' sites.
    """
    counts = np.zeros((len(reads.datasets), len(reads.sites)))
    np.add.at(
        counts,
        (reads.dataset, reads.site),
        reads.accesses * _DECAY ** np.minimum(_weeks_back(reads), 50),
    )
    prior = np.full(counts.shape, 1 / max(counts.shape[1], 1))
    # From the widest group to the closest: each mixes its reads with the sites of the wider one.
    for group in reversed(groups):
        sums = np.zeros((group.max() + 1 if len(group) else 0, counts.shape[1]))
        np.add.at(sums, group, counts)
        group_sums = sums[group]
        prior = (group_sums + _PRIOR * prior) / (group_sums.sum(1, keepdims=True) + _PRIOR)
    return np.asarray((counts + _PRIOR * prior) / (counts.sum(1, keepdims=True) + _PRIOR))


def _remote(reads: Reads) -> Array:
    """float64 [datasets, sites]: the share of remote reads, by the logs that can say;
    near 1 where few do.
    """
    answers, remote = np.full((2, len(reads.datasets), len(reads.sites)), _PRIOR)
    np.add.at(answers, (reads.dataset, reads.site), reads.can_say)
    np.add.at(remote, (reads.dataset, reads.site), reads.remote)
    return np.asarray(remote / answers)
