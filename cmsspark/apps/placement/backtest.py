"""What plans of past weeks would have served, beside simple rules with the same budgets."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, replace
from typing import Any, Final

import numpy as np

from cmsspark.apps.placement.inputs import PlacementInputs, Reads, Replicas, Space
from cmsspark.apps.placement.plan import (
    LEAST_ACCESSES,
    RECENT_DAYS,
    Limits,
    Plan,
    expected,
    make_plan,
)
from cmsspark.base.arrays import Array
from cmsspark.base.errors import InputMissing
from cmsspark.base.names import DERIVED

#: Rule → what it copies.
RULES: Final = {
    "recommend": "the plan of cmsspark placement recommend",
    "ten-reads": "pairs with 10 reads in 14 days, by bytes read for each byte",
    "tier": "by the bytes read of the data tier at the site for each byte",
    "random": "at random",
}
#: The share of a site's copies that may be copied to it in a week without a budget.
_BUDGET_SHARE: Final = 0.05
_FIRST_DAYS: Final = 28
#: Pairs that a simple rule tries at most: budgets end long before.
_MOST_PAIRS: Final = 200_000


@dataclass
class Outcome:
    """What the copies of a rule served in their lifetime, over all weeks."""

    rule: str
    weeks: int = 0
    copies: int = 0
    copied_bytes: float = 0.0
    served_bytes: float = 0.0
    unread_bytes: float = 0.0

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers, with the bytes served for each byte that was copied and the
        share of bytes that nobody read; None if nothing was copied.
        """
        copied = self.copied_bytes
        ratio = self.served_bytes / copied if copied else None
        unread = self.unread_bytes / copied if copied else None
        return {**vars(self), "served_per_byte": ratio, "unread_share": unread}


def backtest(inputs: PlacementInputs, limits: Limits, weeks: int, seed: int = 0) -> list[Outcome]:
    """Return the outcome of each rule for the last ``weeks`` Mondays whose lifetime of a
    copy is over. Each plan knows the days before its Monday only.

    Raises InputMissing (66) if no week has four weeks and replicas before it, or if no
    read has bytes.
    """
    reads, horizon = inputs.reads, 7 * limits.lifetime
    if not reads.bytes.any():
        raise InputMissing("no read has bytes", next_step="give accesses with the column bytes")
    mondays = [
        day
        for day in range(_FIRST_DAYS, len(reads.days) - horizon + 1)
        if reads.days[day].weekday() == 0
    ]
    outcomes = {rule: Outcome(rule) for rule in RULES}
    for day in reversed(mondays):
        try:
            replicas = inputs.replicas_before(reads.days[day])
        except InputMissing:
            break
        past, space = reads.before(day), inputs.space(replicas)
        share = np.where(np.isinf(space.budget), replicas.used() * _BUDGET_SHARE, space.budget)
        space = replace(space, budget=share)
        later = (reads.day >= day) & (reads.day < day + horizon)
        pairs = reads.pairs[later]
        served = np.bincount(pairs, reads.bytes[later], len(reads.datasets) * len(reads.sites))
        is_read = np.bincount(pairs, reads.accesses[later], len(served)) > 0
        for rule, plan in _plans(past, replicas, space, limits, seed + day):
            outcome = outcomes[rule]
            outcome.weeks += 1
            for pair, _ in plan.added:
                size = plan.bytes_to_copy(pair)
                outcome.copies += 1
                outcome.copied_bytes += size
                outcome.served_bytes += float(served[pair])
                outcome.unread_bytes += 0.0 if is_read[pair] else size
        if outcomes["random"].weeks == weeks:
            break
    if not outcomes["random"].weeks:
        raise InputMissing(
            "no week can be judged",
            found=f"{len(reads.days)} days from {reads.days[0]} on",
            next_step=f"give at least {_FIRST_DAYS // 7 + 1 + limits.lifetime} weeks, "
            "and replicas from before the last ones",
        )
    return list(outcomes.values())


def _plans(
    past: Reads, replicas: Replicas, space: Space, limits: Limits, seed: int
) -> Iterator[tuple[str, Plan]]:
    """Yield each rule with its plan. What makes room for a copy is the same in all."""
    demand = expected(past, replicas, limits.lifetime)
    yield "recommend", make_plan(replicas, demand, space, limits)
    sites, every = len(replicas.sites), len(replicas.datasets) * len(replicas.sites)
    orders = {
        "ten-reads": _ten_reads(past, replicas),
        "tier": _by_tier(past, replicas),
        "random": np.random.default_rng(seed).permutation(every),
    }
    complete = replicas.pairs()[replicas.is_complete]
    for rule, pairs in orders.items():
        plan = Plan(replicas, demand, space, limits)
        could = (replicas.copies()[pairs // sites] > 0) & ~np.isin(pairs, complete)
        for pair in pairs[could][:_MOST_PAIRS].tolist():
            plan.add(pair, 0.0, is_weighed=False)
        yield rule, plan


def _ten_reads(past: Reads, replicas: Replicas) -> Array:
    count = len(replicas.datasets) * len(replicas.sites)
    recent = past.day >= len(past.days) - RECENT_DAYS
    pairs = past.pairs[recent]
    accesses = np.bincount(pairs, past.accesses[recent], count)
    volume = np.bincount(pairs, past.bytes[recent], count)
    chosen = np.nonzero(accesses >= LEAST_ACCESSES)[0]
    size = np.maximum(replicas.sizes[chosen // len(replicas.sites)], 1)
    return chosen[np.argsort(-volume[chosen] / size, kind="stable")]


def _by_tier(past: Reads, replicas: Replicas) -> Array:
    sites = len(replicas.sites)
    names = [DERIVED["data_tier"].derive(name) or "" for name in replicas.datasets]
    tier = np.unique(np.array(names, str), return_inverse=True)[1]
    recent = past.day >= len(past.days) - RECENT_DAYS
    volume = np.zeros((tier.max() + 1, sites))
    np.add.at(volume, (tier[past.dataset[recent]], past.site[recent]), past.bytes[recent])
    density = volume / np.maximum(np.bincount(tier, replicas.sizes), 1)[:, None]
    return np.argsort(-density[tier].ravel(), kind="stable")
