"""Recommendations: a plan for the coming week as rows that people and programs read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import asdict, dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cmsspark.apps.placement import demand
from cmsspark.apps.placement.demand import Demand
from cmsspark.apps.placement.plan import Plan, make_plan
from cmsspark.apps.placement.reads import Reads
from cmsspark.apps.placement.replicas import Replicas, Space

if TYPE_CHECKING:
    import polars as pl

Array = np.ndarray[Any, Any]


@dataclass(frozen=True)
class Row:
    """A copy to make or to remove. ``bytes``: to be copied, or that become free; ``accesses``: expected at the site in
    the week; ``probability``: that the dataset is popular then; ``copies``: complete ones on disk now.

    ``why``: ``its reads`` or ``siblings`` (it was never read) for a copy to make; ``another copy`` or ``full site`` for
    one that can go.
    """

    action: Literal["copy", "remove"]
    dataset: str
    site: str
    bytes: int
    accesses: float
    probability: float
    copies: int
    is_complete: bool
    why: str

    def as_dict(self) -> dict[str, Any]:
        """All columns."""
        return asdict(self)


@dataclass(frozen=True)
class Advice:
    """The rows of a plan, copies to make first, each kind in the order of worth; ``sites``: a row for each site."""

    first_day: date
    rows: list[Row]
    sites: list[dict[str, Any]]

    @property
    def summary(self) -> dict[str, Any]:
        """The first day and the sites, as JSON."""
        return {"first_day": self.first_day.isoformat(), "sites": self.sites}

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """The types of the rows' columns."""
        import polars as pl

        texts, whole, numbers = pl.String(), pl.Int64(), pl.Float64()
        return {
            "action": texts, "dataset": texts, "site": texts, "bytes": whole, "accesses": numbers,
            "probability": numbers, "copies": whole, "is_complete": pl.Boolean(), "why": texts,
        }  # fmt: skip


def recommend(
    reads: Reads, replicas_before: Callable[[date], Replicas], space_of: Callable[[Replicas], Space],
    probability: Array, min_copies: int = 1, free_share: float = 0.0,
) -> Advice:  # fmt: skip
    """The plan for the seven days after the last one of ``reads``, with a probability for each of their datasets."""
    first_day = reads.days[-1] + timedelta(days=1)
    replicas = replicas_before(first_day)
    wanted = demand.expected(reads, demand.groups_of(reads.datasets), probability)
    space = space_of(replicas)
    plan = make_plan(replicas, wanted, space, min_copies=min_copies, free_share=free_share)
    return Advice(first_day, _rows(plan, wanted, probability), _sites(plan, space))


def _rows(plan: Plan, wanted: Demand, probability: Array) -> list[Row]:
    replicas, copies, freed = plan.replicas, plan.replicas.copies(), set(plan.freed)

    def row(action: Literal["copy", "remove"], dataset: int, site: int, size: float, whole: bool, why: str) -> Row:
        return Row(
            action, replicas.datasets[dataset], replicas.sites[site], int(size),
            float(wanted.accesses[dataset] * wanted.share[dataset, site]), float(probability[dataset]),
            int(copies[dataset]), whole, why,
        )  # fmt: skip

    made = [
        row("copy", dataset, site, plan.bytes_to_copy(dataset, site), True,
            "siblings" if wanted.from_siblings[dataset] else "its reads")
        for dataset, site in plan.added
    ]  # fmt: skip
    gone = [
        row("remove", int(replicas.dataset[number]), int(replicas.site[number]), replicas.bytes[number],
            bool(replicas.is_complete[number]), "full site" if number in freed else "another copy")
        for number in np.nonzero(plan.gone)[0].tolist()
    ]  # fmt: skip
    return made + sorted(gone, key=lambda each: (-each.bytes, each.dataset, each.site))


def _sites(plan: Plan, space: Space) -> list[dict[str, Any]]:
    replicas, after = plan.replicas, plan.result().used()
    used = replicas.used()
    copied, removed = np.zeros(len(used)), np.bincount(replicas.site[plan.gone], replicas.bytes[plan.gone], len(used))
    for dataset, site in plan.added:
        copied[site] += plan.bytes_to_copy(dataset, site)
    columns = {"used": used, "capacity": space.capacity, "copied": copied, "removed": removed, "used_after": after}
    return [
        {"site": name, **{column: int(values[number]) for column, values in columns.items()}}
        for number, name in enumerate(replicas.sites)
        if used[number] or copied[number] or space.capacity[number]
    ]
