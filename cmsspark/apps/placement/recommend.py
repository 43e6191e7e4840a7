"""Recommendations: a plan for the coming week as rows that people and programs read."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Literal

import numpy as np

from cmsspark.apps.placement import demand
from cmsspark.apps.placement.demand import Demand, Outlook
from cmsspark.apps.placement.plan import DEFAULT, Limits, Plan, make_plan
from cmsspark.apps.placement.reads import Reads
from cmsspark.apps.placement.replicas import Replicas, Space
from cmsspark.base.arrays import Array
from cmsspark.sources.rucio import SCOPE

if TYPE_CHECKING:
    import polars as pl


@dataclass(frozen=True)
class Row:
    """A copy to make or to remove. ``bytes``: to be copied, or that become free;
    ``accesses``: expected at the site in the week; ``probability``: that the dataset is
    popular then, None where nothing is known of it; ``copies``: complete ones on disk
    now; ``benefit``: bytes that a copy is expected to serve in its lifetime, None where
    no read has bytes.

    ``why``: ``its reads`` or ``siblings`` (it was never read) for a copy to make;
    ``another copy`` or ``full site`` for one that can go.
    """

    action: Literal["copy", "remove"]
    dataset: str
    site: str
    bytes: int
    accesses: float
    probability: float | None
    copies: int
    is_complete: bool
    why: str
    benefit: float | None = None


@dataclass(frozen=True)
class Advice:
    """The rows of a plan, copies to make first, each kind in the order of worth;
    ``sites``: a row for each site.
    """

    first_day: date
    rows: list[Row]
    sites: list[dict[str, Any]]
    lifetime: float = DEFAULT.lifetime

    def rucio(self) -> dict[str, list[dict[str, Any]]]:
        """Return the plan as rules of Rucio: those to add, as POST /rules takes them
        without an account, and the datasets and RSEs whose rules may be let go.
        """
        rows = [
            (row, {"scope": SCOPE, "name": row.dataset}, rse_of_disk(row.site))
            for row in self.rows
        ]
        return {
            "add": [
                {
                    "dids": [did],
                    "copies": 1,
                    "rse_expression": rse,
                    "grouping": "ALL",
                    "lifetime": round(self.lifetime * 7 * 86_400),
                    "comment": f"cmsspark placement, {self.first_day}",
                }
                for row, did, rse in rows
                if row.action == "copy"
            ],
            "remove": [
                {"did": did, "rse_expression": rse}
                for row, did, rse in rows
                if row.action == "remove"
            ],
        }

    @property
    def schema(self) -> dict[str, pl.DataType]:
        """The types of the rows' columns."""
        import polars as pl

        texts, integers, numbers = pl.String(), pl.Int64(), pl.Float64()
        return {
            "action": texts,
            "dataset": texts,
            "site": texts,
            "bytes": integers,
            "accesses": numbers,
            "probability": numbers,
            "copies": integers,
            "is_complete": pl.Boolean(),
            "why": texts,
            "benefit": numbers,
        }


def rse_of_disk(site: str) -> str:
    """Return the RSE of a site's disk: at sites with tape, those of tier 0 and 1, its
    name ends in ``_Disk``.
    """
    return f"{site}_Disk" if site.startswith(("T0_", "T1_")) else site


def _none_if_nan(value: float) -> float | None:
    return None if value != value else float(value)


def recommend(
    reads: Reads,
    replicas_before: Callable[[date], Replicas],
    space_of: Callable[[Replicas], Space],
    outlook: Outlook,
    limits: Limits = DEFAULT,
) -> Advice:
    """Return the plan for the seven days after the last one of ``reads``, with a
    forecast of their datasets.
    """
    first_day = reads.days[-1] + timedelta(days=1)
    replicas = replicas_before(first_day)
    forecast = demand.expected(reads, demand.group_datasets(reads.datasets), outlook)
    space = space_of(replicas)
    plan = make_plan(replicas, forecast, space, limits)
    rows = _rows(plan, forecast, outlook.probability, limits.lifetime)
    return Advice(first_day, rows, _sites(plan, space), limits.lifetime)


def _rows(plan: Plan, forecast: Demand, probability: Array, lifetime: float) -> list[Row]:
    replicas, copies, freed = plan.replicas, plan.replicas.copies(), set(plan.freed)

    def row(
        action: Literal["copy", "remove"],
        dataset: int,
        site: int,
        size: float,
        is_complete: bool,
        reason: str,
    ) -> Row:
        return Row(
            action,
            replicas.datasets[dataset],
            replicas.sites[site],
            int(size),
            float(forecast.accesses[dataset] * forecast.share[dataset, site]),
            _none_if_nan(probability[dataset]),
            int(copies[dataset]),
            is_complete,
            reason,
            None if action == "remove" else forecast.benefit(dataset, site, lifetime),
        )

    copies_to_make = [
        row(
            "copy",
            dataset,
            site,
            plan.bytes_to_copy(dataset, site),
            True,
            "siblings" if forecast.from_siblings[dataset] else "its reads",
        )
        for dataset, site in plan.added
    ]
    removals = [
        row(
            "remove",
            int(replicas.dataset[number]),
            int(replicas.site[number]),
            replicas.bytes[number],
            bool(replicas.is_complete[number]),
            "full site" if number in freed else "another copy",
        )
        for number in np.nonzero(plan.gone)[0].tolist()
    ]
    return copies_to_make + sorted(
        removals, key=lambda entry: (-entry.bytes, entry.dataset, entry.site)
    )


def _sites(plan: Plan, space: Space) -> list[dict[str, Any]]:
    replicas, after = plan.replicas, plan.result().used()
    used = replicas.used()
    copied, removed = (
        np.zeros(len(used)),
        np.bincount(replicas.site[plan.gone], replicas.bytes[plan.gone], len(used)),
    )
    for dataset, site in plan.added:
        copied[site] += plan.bytes_to_copy(dataset, site)
    columns = {
        "used": used,
        "capacity": space.capacity,
        "copied": copied,
        "removed": removed,
        "used_after": after,
    }
    return [
        {"site": name, **{column: int(values[number]) for column, values in columns.items()}}
        for number, name in enumerate(replicas.sites)
        if used[number] or copied[number] or space.capacity[number]
    ]
