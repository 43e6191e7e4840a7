"""A plan for one week: copies to make and copies to remove, within the space and the
budget of each site.

A copy is worth the accesses that are expected at its site, per byte. Copies are made in
the order of that worth; where a site is full, copies of less worth go. What never goes:
fixed copies, copies of which too few complete ones would remain elsewhere on disk (a
copy that is only planned is none yet, and tape is none), and copies not worth less.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Final

import numpy as np

from cmsspark.apps.placement.demand import Demand
from cmsspark.apps.placement.replicas import Replicas, Space
from cmsspark.base.arrays import Array

#: A copy replaces others where it is expected to serve so many times the accesses that
#: they are: moving costs, too.
MARGIN: Final = 1.5
#: Pairs of a dataset and a site that are looked at, those of most worth.
_MOST: Final = 200_000
#: Datasets that are looked at together.
_BLOCK: Final = 4_096


@dataclass(frozen=True)
class Limits:
    """What plans keep to. ``min_copies``: complete copies on disk that remain of what
    loses one. ``free_share``: the part of each site's capacity that stays free.
    ``min_benefit``: bytes that a copy is expected to serve in ``lifetime`` weeks, for
    each byte that is copied; where no read has bytes it cannot be told, and every copy
    passes. ``least_accesses``: a copy that is expected to serve fewer accesses a week
    is not made.
    """

    min_copies: int = 1
    free_share: float = 0.0
    min_benefit: float = 0.0
    lifetime: float = 4.0
    least_accesses: float = 5.0


DEFAULT: Final = Limits()


class Plan:
    """``added``: (dataset, site) of copies to make; ``gone``: whether each copy of the
    replicas goes; ``freed``: those that go because the site is too full, not for
    another copy; ``completed``: (dataset, site) of added copies → the incomplete copy
    that is there and becomes complete.

    While it is made it knows what is free at each site and how many copies remain of each dataset.
    """

    def __init__(self, replicas: Replicas, demand: Demand, space: Space, limits: Limits) -> None:
        self.replicas, self._min_copies = replicas, limits.min_copies
        self._free = space.capacity * (1 - limits.free_share) - replicas.used()
        self._budget = space.budget.copy()
        self._copies = replicas.copies()
        self._worth = demand.reads(replicas.dataset, replicas.site)
        self.gone: Array = np.zeros(len(replicas.dataset), bool)
        self.added: list[tuple[int, int]] = []
        self.freed: list[int] = []
        self.completed: dict[tuple[int, int], int] = {}
        # Of each site, its copies from the least accesses for each byte on.
        density = self._worth / np.maximum(replicas.bytes, 1)
        self._of_site: dict[int, list[int]] = defaultdict(list)
        self._copy_at = {}
        for number in np.lexsort((replicas.dataset, density)).tolist():
            self._of_site[int(replicas.site[number])].append(number)
            self._copy_at[int(replicas.dataset[number]), int(replicas.site[number])] = number

    def _may_go(self, number: int) -> bool:
        dataset, site = int(self.replicas.dataset[number]), int(self.replicas.site[number])
        if (dataset, site) in self.completed:
            return False
        remaining = self._copies[dataset] - int(self.replicas.is_complete[number])
        return (
            not (self.gone[number] or self.replicas.is_fixed[number])
            and remaining >= self._min_copies
        )

    def _remove(self, number: int) -> None:
        self.gone[number] = True
        self._copies[self.replicas.dataset[number]] -= int(self.replicas.is_complete[number])
        self._free[self.replicas.site[number]] += self.replicas.bytes[number]

    def make_room(self, site: int) -> None:
        """Remove what is worth least at a site that is too full, as far as it may go."""
        for number in self._of_site[site]:
            if self._free[site] >= 0:
                break
            if self._may_go(number):
                self._remove(number)
                self.freed.append(number)

    def bytes_to_copy(self, dataset: int, site: int) -> float:
        """Return the bytes that a copy takes from elsewhere: those that are not there yet."""
        partial = self._copy_at.get((dataset, site))
        present = (
            0.0 if partial is None or self.gone[partial] else float(self.replicas.bytes[partial])
        )
        # An incomplete copy may have all bytes, such as those of files that are no longer valid.
        return max(float(self.replicas.sizes[dataset]) - present, 0.0)

    def add(self, dataset: int, site: int, worth: float) -> None:
        """Make the copy, where the budget allows it and copies of clearly less worth
        leave the room for it.
        """
        partial = self._copy_at.get((dataset, site))
        if partial is not None:
            if self.gone[partial]:
                return
            # The incomplete copy stays and becomes complete.
            self.completed[dataset, site] = partial
        size = self.bytes_to_copy(dataset, site)
        victims = (
            None
            if size > self._budget[site]
            else self._victims(dataset, site, size, worth / MARGIN)
        )
        if victims is None:
            self.completed.pop((dataset, site), None)
            return
        for number in victims:
            self._remove(number)
        self._free[site] -= size
        self._budget[site] -= size
        self.added.append((dataset, site))

    def _victims(self, dataset: int, site: int, size: float, most: float) -> list[int] | None:
        """Return the copies that go for ``size`` bytes, with fewer than ``most``
        accesses; None where too few.
        """
        missing, chosen, lost = size - self._free[site], list[int](), 0.0
        for number in self._of_site[site]:
            if missing <= 0:
                return chosen
            if self.replicas.dataset[number] == dataset or not self._may_go(number):
                continue
            lost += float(self._worth[number])
            if lost >= most:
                return None
            chosen.append(number)
            missing -= float(self.replicas.bytes[number])
        return chosen if missing <= 0 else None

    def result(self) -> Replicas:
        """Return the replicas once the plan is carried out."""
        replaced, sizes, fixed = self.gone.copy(), [], []
        for pair in self.added:
            number, size = self.completed.get(pair), self.bytes_to_copy(*pair)
            sizes.append(size if number is None else size + float(self.replicas.bytes[number]))
            fixed.append(number is not None and bool(self.replicas.is_fixed[number]))
            if number is not None:
                replaced[number] = True
        datasets, sites = [dataset for dataset, _ in self.added], [site for _, site in self.added]
        return self.replicas.changed(replaced, datasets, sites, sizes, fixed)

    @property
    def moved_bytes(self) -> float:
        """Bytes to be copied."""
        return sum(self.bytes_to_copy(*pair) for pair in self.added)

    @property
    def removed_bytes(self) -> float:
        """Bytes of copies that go."""
        return float(self.replicas.bytes[self.gone].sum())


def make_plan(replicas: Replicas, demand: Demand, space: Space, limits: Limits = DEFAULT) -> Plan:
    """Return the plan for the week of ``demand``, which has the names of the replicas."""
    plan = Plan(replicas, demand, space, limits)
    for site in range(len(replicas.sites)):
        plan.make_room(site)
    for dataset, site, worth in _candidates(replicas, demand, space, limits.least_accesses):
        benefit = demand.benefit(dataset, site, limits.lifetime) if limits.min_benefit else None
        if benefit is None or benefit >= limits.min_benefit * plan.bytes_to_copy(dataset, site):
            plan.add(dataset, site, worth)
    return plan


def _candidates(
    replicas: Replicas, demand: Demand, space: Space, least_accesses: float
) -> Iterator[tuple[int, int, float]]:
    """(dataset, site, expected accesses) of copies that could be made, by accesses for
    each byte, the most first.
    """
    has_copy, room = replicas.has_copy(), np.minimum(space.capacity, space.budget)
    parts = []
    for first in range(0, len(replicas.datasets), _BLOCK):
        # Few pairs of a block remain: no array of floats holds all datasets at all sites.
        rows = slice(first, first + _BLOCK)
        reads = demand.accesses[rows, None] * demand.share[rows] * demand.remote[rows]
        sizes = replicas.sizes[rows, None]
        reads[has_copy[rows] | (sizes <= 0) | (sizes > room[None, :])] = 0
        numbers, sites = np.nonzero(reads >= max(least_accesses, 1e-9))
        parts.append((numbers + first, sites, reads[numbers, sites]))
    if not parts:
        return
    dataset, site, worth = (np.concatenate(columns) for columns in zip(*parts, strict=True))
    # Of equal worth the names decide: numbers follow their order.
    order = np.argsort(-worth / replicas.sizes[dataset], kind="stable")[:_MOST]
    yield from zip(
        dataset[order].tolist(), site[order].tolist(), worth[order].tolist(), strict=True
    )
