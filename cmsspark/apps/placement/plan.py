"""A plan for one week: copies to make and copies that can go, within the space and the
budget of each site.

A copy is worth the bytes that it is expected to serve in its lifetime, for each byte
that is copied. Copies are made in the order of that worth, and at a full site copies of
less worth go. Plans of past weeks are judged by what their copies would have served.
"""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping
from datetime import date, timedelta
from typing import Any, Final, TypeAlias

import msgspec
import numpy as np
import polars as pl

from cmsspark.apps.placement.inputs import PAIR, PlacementInputs, Reads, Replicas
from cmsspark.base.errors import InputMissing
from cmsspark.base.names import DERIVED
from cmsspark.sources.rucio import SCOPE

#: Days of reads that a demand rests on; what nobody read in them has none.
RECENT_DAYS: Final = 14
#: Accesses in the recent days that a pair needs.
_LEAST_ACCESSES: Final = 10.0
#: What pairs are judged by → values at which the odds of being read again take a step, and
#: that step in their logarithm before a store has shown its own; all pairs take the first
#: one. Days with a read among the recent ones, days since the last read, weeks with a read
#: of the six before, and bytes read in the recent days for each byte of the dataset.
_STEPS: Final[dict[str, dict[float, float]]] = {
    "active": {1: 0.4, 2: 0.7, 3: 0, 4: 1.1, 6: 0, 8: 1.3, 11: 0},
    "idle": {2: 0, 3: 0, 4: -0.6, 6: 0, 9: -1.9},
    "earlier": {1: 0, 2: 0, 4: 0, 6: 0},
    "passes": {0.3: 0, 1: 0, 3: 0},
}
_EARLIER_DAYS: Final = 42
#: How much a week is read of what the week before it was, until a store has shown more; the
#: precision with which that and the steps are believed.
_DECAY, _BELIEF = 0.5, 4.0
#: The most that one pair is believed to grow.
_MOST_GROWTH: Final = 3.0
#: Of pairs so likely to be read again in the lifetime of a copy, and no others, is there demand.
_LEAST_LIKELY: Final = 0.85
#: Siblings are taken if at least so many had their first week, else those of the wider group.
_LEAST_SIBLINGS: Final = 3
_GROUPS: Final = (("primary_name", "data_tier"), ("campaign", "data_tier"), ("data_tier",))

_Numbers: TypeAlias = np.ndarray[Any, np.dtype[np.float64]]
#: A copy replaces others if it is expected to serve so many times what they do.
MARGIN: Final = 1.5


class Limits(msgspec.Struct, frozen=True):
    """What plans keep to. ``min_copies``: complete copies on disk that remain of what
    loses one. ``free_share``: the part of each site's capacity that stays free.
    ``min_benefit``: bytes that a copy is expected to serve in ``lifetime`` weeks, for
    each byte that is copied. A copy that is younger than its lifetime does not go.
    """

    min_copies: int = 1
    free_share: float = 0.0
    min_benefit: float = 1.25
    lifetime: int = 4


DEFAULT: Final = Limits()


def expected(reads: Reads, replicas: Replicas, lifetime: int = DEFAULT.lifetime) -> pl.DataFrame:
    """Return the pairs of a dataset and a site that are expected to be read after the
    days of ``reads``, which are all that it knows: ``accesses`` in a week, ``worth`` in
    the lifetime of a copy, ``benefit`` and ``why``. The worth is in bytes and is the
    benefit; if no read has bytes it is in accesses, and the benefit is null.

    A pair is expected to be read as in the last two weeks, times how far pairs like it
    went on being read in the store's own past. Pairs with few reads, and those that are
    less than :data:`_LEAST_LIKELY` to be read again, have no demand. A dataset that was
    made in these weeks and not yet read has the first week of its siblings.
    """
    rows, end, days = _with_worth(reads, replicas), reads.end, 7 * lifetime
    weeks = ((end - reads.first).days - days - RECENT_DAYS) // 7
    mondays = (end - timedelta(days=days + 7 * week) for week in range(weeks + 1))
    past = []
    # Before the first day there is nothing, in the same columns.
    for anchor in (reads.first, *mondays):
        is_later = pl.col("day").is_between(anchor, anchor + timedelta(days=days), closed="left")
        later = rows.filter(is_later).group_by(PAIR).agg(after=pl.col("worth").sum())
        pairs = _recent_pairs(rows, anchor).join(later, PAIR, "left", maintain_order="left")
        past.append(pairs.with_columns(pl.col("after").fill_null(0.0)))
    growth = pl.col("after") * (RECENT_DAYS / days) / pl.max_horizontal("recent", 1e-12)
    kinds = (
        pl.concat(past)
        .group_by(list(_STEPS))
        .agg(
            count=pl.len(),
            again=(pl.col("after") > 0).sum(),
            growth=growth.clip(0, _MOST_GROWTH).sum(),
        )
    )
    priors = [step for column in _STEPS.values() for step in column.values()]
    again = _fit(kinds, "again", _share, np.array(priors))
    decay = np.zeros(len(priors))
    decay[0] = np.log(sum(_DECAY**week for week in range(1, lifetime + 1)) / lifetime)
    rates = _fit(kinds, "growth", _exponential, decay)
    pairs = _recent_pairs(rows, end)
    steps = _steps(pairs)
    demand = (
        pairs.with_columns(again=_share(steps @ again)[0], rate=_exponential(steps @ rates)[0])
        .filter(pl.col("again") >= _LEAST_LIKELY)
        .select(
            *PAIR,
            accesses=pl.col("accesses") * pl.col("rate") * 7 / RECENT_DAYS,
            worth=pl.col("recent") * pl.col("rate") * days / RECENT_DAYS,
            why=pl.lit("its reads"),
        )
    )
    benefit = pl.col("worth") if reads.has_bytes else pl.lit(None, pl.Float64)
    return pl.concat([demand, *_of_siblings(reads, rows, replicas)]).with_columns(benefit=benefit)


def _steps(pairs: pl.DataFrame) -> _Numbers:
    """Return a row for each pair: for each step 1 if it is taken, else 0."""
    flags = [
        pairs[name].to_numpy()[:, None] >= np.arange(1, len(edges) + 1)
        for name, edges in _STEPS.items()
    ]
    return np.hstack(flags).astype(np.float64)


def _share(odds: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Return the probabilities of logarithms of odds, and their slopes."""
    share = 1 / (1 + np.exp(-odds))
    return share, share * (1 - share)


def _exponential(logarithms: _Numbers) -> tuple[_Numbers, _Numbers]:
    """Return the numbers with these logarithms, which are their slopes, too."""
    numbers = np.exp(logarithms)
    return numbers, numbers


def _fit(
    kinds: pl.DataFrame,
    observed: str,
    link: Callable[[_Numbers], tuple[_Numbers, _Numbers]],
    prior: _Numbers,
) -> _Numbers:
    """Return the weight of each step that makes the sums that were observed of kinds most
    likely, where weights are normally distributed around the prior: Newton's method.
    """
    steps, weights = _steps(kinds), prior
    count, total = (kinds[name].to_numpy() for name in ("count", observed))
    for _ in range(12):
        mean, slope = link(steps @ weights)
        pull = steps.T @ (total - count * mean) - _BELIEF * (weights - prior)
        curvature = (steps.T * (count * slope)) @ steps + _BELIEF * np.eye(len(prior))
        weights = weights + np.clip(np.linalg.solve(curvature, pull), -1, 1)
    return weights


def _with_worth(reads: Reads, replicas: Replicas) -> pl.DataFrame:
    """Return the rows with the size of their dataset and their worth: bytes, if unknown by
    the mean of the dataset's accesses, else of all; accesses if no read has bytes.
    """
    rows = reads.rows.join(
        replicas.datasets.select("dataset", "size"), "dataset", "left", maintain_order="left"
    )
    if not reads.has_bytes:
        return rows.with_columns(worth="accesses")
    volume, accesses = (
        pl.col(name).filter(pl.col("bytes") > 0).sum() for name in ("bytes", "accesses")
    )
    of_dataset = volume.over("dataset") / accesses.over("dataset")
    of_all = volume / pl.col("accesses").sum()
    # Accesses with bytes may be 0.
    mean = pl.when(of_dataset.is_finite()).then(of_dataset).otherwise(of_all)
    worth = pl.when(pl.col("bytes") > 0).then("bytes").otherwise(pl.col("accesses") * mean)
    return rows.with_columns(worth=worth)


def _recent_pairs(rows: pl.DataFrame, end: date) -> pl.DataFrame:
    """Return the pairs with enough reads in the recent days before ``end``: how many
    steps of each of :data:`_STEPS` they take, accesses, and ``recent``, their sum of worth.
    """
    ago = (pl.lit(end) - pl.col("day")).dt.total_days()
    lately = rows.with_columns(ago=ago).filter(ago.is_between(1, RECENT_DAYS + _EARLIER_DAYS))
    is_recent = pl.col("ago") <= RECENT_DAYS
    week = (pl.col("ago") - RECENT_DAYS - 1) // 7
    return (
        lately.group_by(PAIR)
        .agg(
            pl.col("accesses").filter(is_recent).sum(),
            recent=pl.col("worth").filter(is_recent).sum(),
            active=is_recent.sum(),
            idle=pl.col("ago").min(),
            earlier=week.filter(~is_recent).n_unique(),
            passes=pl.col("bytes").filter(is_recent).sum() / pl.col("size").first(),
        )
        .filter(pl.col("accesses") >= _LEAST_ACCESSES)
        .with_columns(
            # The passes of a dataset that no replica names are not known.
            pl.sum_horizontal((pl.col(name) >= edge).fill_null(False) for edge in edges).alias(
                name
            )
            for name, edges in _STEPS.items()
        )
        # Sums of floats follow this order.
        .sort(PAIR)
    )


def _of_siblings(reads: Reads, rows: pl.DataFrame, replicas: Replicas) -> Iterator[pl.DataFrame]:
    """Yield the demand of datasets that were made in the recent days and not yet read:
    the mean first week of their siblings, by their bytes, at sites where most of them
    were read.

    Siblings have the same primary dataset and tier, else the same campaign and tier, else
    the same tier, and a first week that is over.
    """
    names = replicas.datasets["dataset"].to_list()
    groups = {
        rule: pl.Series([DERIVED[rule].derive(name) for name in names], dtype=pl.String)
        for rule in ("primary_name", "campaign", "data_tier")
    }
    is_known = pl.col("age").is_between(7, (reads.end - reads.first).days)
    datasets = replicas.datasets.with_columns(**groups, is_known=is_known)
    born = pl.lit(reads.end) - pl.duration(days="age")
    siblings = datasets.filter("is_known").with_columns(second_week=born + timedelta(days=7))
    first_week = (
        rows.drop("size").join(siblings, "dataset").filter(pl.col("day") < pl.col("second_week"))
    )
    new = datasets.filter(pl.col("age") < RECENT_DAYS).join(rows, "dataset", "anti")
    for group in _GROUPS:
        # Without the dataset itself.
        counts = siblings.group_by(group).agg(count=pl.len())
        placed = (
            new.join(counts, group)
            .with_columns(count=pl.col("count").cast(pl.Int64) - pl.col("is_known"))
            .filter(pl.col("count") >= _LEAST_SIBLINGS)
        )
        sums = first_week.group_by(*group, "site").agg(
            readers=pl.col("dataset").n_unique(),
            accesses=pl.col("accesses").sum(),
            density=(pl.col("worth") / pl.col("size")).sum(),
        )
        yield (
            placed.join(sums, group)
            .filter(pl.col("readers") >= _LEAST_LIKELY * pl.col("count"))
            .select(
                *PAIR,
                accesses=pl.col("accesses") / pl.col("count"),
                worth=pl.col("density") * pl.col("size") / pl.col("count"),
                why=pl.lit("siblings"),
            )
        )
        new = new.join(placed, "dataset", "anti")


def _candidates(replicas: Replicas, pairs: pl.DataFrame) -> pl.DataFrame:
    """Return the pairs that a copy could serve, in their order: ``bytes`` that it takes
    from elsewhere, those that are not there yet; its ``size``; the complete ``copies``
    on disk. If there is none, one is on tape.
    """
    present = replicas.copies.select(*PAIR, "is_complete", present="bytes")
    return (
        pairs.join(replicas.datasets, "dataset", maintain_order="left")
        .join(present, PAIR, "left", maintain_order="left")
        # An incomplete copy may have all bytes, such as those of files no longer valid.
        .with_columns(bytes=pl.col("size") - pl.col("present").fill_null(0.0))
        .filter(~pl.col("is_complete").fill_null(False), pl.col("bytes") > 0)
        .filter((pl.col("copies") > 0) | pl.col("on_tape"))
        .with_columns(is_complete=pl.lit(True))
    )


class Plan:
    """``added``: rows of copies to make; ``recalls``: those that only tape could be the
    source of. :meth:`removed` has the copies that go, each with why.

    While it is made it knows what is free at each site and how many copies remain of
    each dataset.
    """

    def __init__(
        self, replicas: Replicas, demand: pl.DataFrame, space: pl.DataFrame, limits: Limits
    ) -> None:
        self._limits = limits
        self.added, self.recalls = list[dict[str, Any]](), list[dict[str, Any]]()
        free = pl.col("capacity") * (1 - limits.free_share) - pl.col("used")
        self._free = dict(space.select("site", free).iter_rows())
        self._budget = dict(space.select("site", "budget").iter_rows())
        self._remaining = dict(replicas.datasets.select("dataset", "copies").iter_rows())
        # A copy stays that is fixed, or lies there for less than a copy is made for.
        stays = pl.col("is_fixed") | (pl.col("days") < 7 * limits.lifetime).fill_null(False)
        worth = demand.select(*PAIR, "worth", "accesses")
        copies = (
            replicas.copies.join(replicas.datasets.select("dataset", "copies"), "dataset")
            .join(worth, PAIR, "left")
            .with_columns(pl.col("worth", "accesses").fill_null(0.0), stays=stays, why=pl.lit(""))
        )
        # Of each site from the least worth for each byte on.
        rows = copies.sort(pl.col("worth") / pl.col("bytes"), *PAIR).to_dicts()
        self._copies = {(row["dataset"], row["site"]): row for row in rows}
        self._of_site = defaultdict[str, list[dict[str, Any]]](list)
        for row in rows:
            self._of_site[row["site"]].append(row)
        for site in self._of_site:
            for copy in self._removable(site, -self._free[site])[0]:
                self._remove(copy, "full site")

    def removed(self) -> list[dict[str, Any]]:
        """Return the copies that go, the largest first.

        Those stay that the room is enough for once all others are gone, the most worth
        first: one that goes may be larger than what it had to make room for.
        """
        for copy in sorted(self._copies.values(), key=lambda copy: -copy["worth"]):
            if copy["why"] and copy["bytes"] <= self._free[copy["site"]]:
                self._remove(copy, "")
        gone = [copy for copy in self._copies.values() if copy["why"]]
        return sorted(gone, key=lambda copy: (-copy["bytes"], copy["dataset"], copy["site"]))

    def _remove(self, copy: dict[str, Any], reason: str) -> None:
        """Let a copy go for a reason; for an empty one let it stay after all."""
        copy["why"], sign = reason, 1 if reason else -1
        self._remaining[copy["dataset"]] -= sign * copy["is_complete"]
        self._free[copy["site"]] += sign * copy["bytes"]

    def _removable(
        self, site: str, missing: float, most: float = math.inf, dataset: str = ""
    ) -> tuple[list[dict[str, Any]], float]:
        """Return copies at a site that can go for ``missing`` bytes and serve at most
        ``most``, not of ``dataset``; and the bytes that are still missing.

        Enough complete copies remain. One that is only planned is none yet, and tape is none.
        """
        chosen = list[dict[str, Any]]()
        for copy in self._of_site[site]:
            if missing <= 0:
                break
            remaining = self._remaining[copy["dataset"]] - copy["is_complete"]
            is_free = not copy["stays"] and not copy["why"] and copy["dataset"] != dataset
            if not is_free or remaining < self._limits.min_copies:
                continue
            most -= copy["worth"]
            if most < 0:
                break
            chosen.append(copy)
            missing -= copy["bytes"]
        return chosen, missing

    def add(self, row: dict[str, Any]) -> None:
        """Make the copy of a candidate if budget and room allow it, and it is worth its
        bytes and what goes for it.
        """
        dataset, site, size = row["dataset"], row["site"], row["bytes"]
        most = row["worth"] / MARGIN
        if row["benefit"] is not None:
            most = min(most, row["benefit"] - self._limits.min_benefit * size)
        partial = self._copies.get((dataset, site))
        if most < 0 or (partial and partial["why"]):
            return
        if not row["copies"]:
            self.recalls.append(row)
            return
        victims, missing = self._removable(site, size - self._free[site], most, dataset)
        if missing > 0 or size > self._budget[site]:
            return
        for copy in victims:
            self._remove(copy, "another copy")
        if partial:
            partial["stays"] = True
        self._free[site] -= size
        self._budget[site] -= size
        self.added.append(row)


def make_plan(
    replicas: Replicas, demand: pl.DataFrame, space: pl.DataFrame, limits: Limits = DEFAULT
) -> Plan:
    """Return the plan for the week of ``demand``."""
    plan = Plan(replicas, demand, space, limits)
    density = pl.col("worth") / pl.col("size")
    could = _candidates(replicas, demand.filter(pl.col("worth") > 0))
    for row in could.sort(-density, *PAIR).to_dicts():
        plan.add(row)
    return plan


#: Columns of a plan. ``action``: ``copy``, ``remove``, or ``recall`` for one that would be
#: worth making of a dataset that is on tape only. ``bytes``: to be copied, or that become
#: free; ``accesses``: expected at the site in the week; ``benefit``: bytes that a copy is
#: expected to serve in its lifetime, null if no read has bytes; ``copies``: complete ones on
#: disk now. ``why``: ``its reads`` or ``siblings`` (it was never read); ``another copy`` or
#: ``full site`` for one that can go.
_COLUMNS: Final = {
    "action": pl.String(),
    "dataset": pl.String(),
    "site": pl.String(),
    "bytes": pl.Int64(),
    "accesses": pl.Float64(),
    "benefit": pl.Float64(),
    "copies": pl.Int64(),
    "is_complete": pl.Boolean(),
    "why": pl.String(),
}


class Advice(msgspec.Struct, frozen=True):
    """``rows``: those of a plan, copies to make first, each action in the order of worth;
    ``sites``: a row for each site.
    """

    first_day: date
    rows: pl.DataFrame
    sites: pl.DataFrame
    lifetime: int = DEFAULT.lifetime

    @property
    def total(self) -> dict[str, int]:
        """The sums over all sites."""
        return self.sites.select(pl.exclude("site").sum()).row(0, named=True)


def recommend(inputs: PlacementInputs, limits: Limits = DEFAULT) -> Advice:
    """Return the plan for the week after the last day of the reads."""
    replicas = inputs.replicas_before(inputs.reads.end)
    demand, space = expected(inputs.reads, replicas, limits.lifetime), inputs.space(replicas)
    plan = make_plan(replicas, demand, space, limits)
    actions = {"copy": plan.added, "remove": plan.removed(), "recall": plan.recalls}
    rows = pl.DataFrame(
        [{**row, "action": name} for name, chosen in actions.items() for row in chosen],
        _COLUMNS,
        strict=False,
    )
    copied, removed = (pl.col("bytes").filter(action=name).sum() for name in ("copy", "remove"))
    sites = (
        space.select("site", pl.col("used", "capacity").cast(pl.Int64))
        .join(rows.group_by("site").agg(copied=copied, removed=removed), "site", "left")
        .with_columns(pl.col("copied", "removed").fill_null(0))
        .with_columns(used_after=pl.col("used") + pl.col("copied") - pl.col("removed"))
        .filter(pl.any_horizontal(pl.col("used", "capacity", "copied") > 0))
    )
    return Advice(inputs.reads.end, rows, sites, limits.lifetime)


def rucio_rules(
    advice: Advice, activity: str, holding: Iterable[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the plan as Rucio takes it: the bodies of POST /rules that make the copies,
    and the copies that can go, with the rules to end: those of ``holding`` (as
    :func:`cmsspark.dumps.rucio_locks.read_rules`) for the copy, None if not known.
    """
    add, remove = list[dict[str, Any]](), list[dict[str, Any]]()
    rules = defaultdict[Any, list[dict[str, Any]]](list)
    for rule in holding or ():
        described = {name: rule[name] for name in ("rule_id", "account", "expires_at")}
        rules[rule["dataset_name"], rule["rse"]].append(described)
    for row in advice.rows.iter_rows(named=True):
        did, rse = {"scope": SCOPE, "name": row["dataset"]}, rse_of_disk(row["site"])
        if row["action"] == "remove":
            of_copy = None if holding is None else rules[row["dataset"], rse]
            copy = {"did": did, "rse_expression": rse, "bytes": row["bytes"], "rules": of_copy}
            remove.append(copy)
        elif row["action"] == "copy":
            served = (
                ""
                if row["benefit"] is None
                else f", {row['benefit'] / row['bytes']:.2f} bytes a byte expected"
            )
            body = {
                "dids": [did],
                "copies": 1,
                "rse_expression": rse,
                "grouping": "ALL",
                "lifetime": advice.lifetime * 7 * 86_400,
                "activity": activity,
                "ask_approval": True,
                "comment": f"cmsspark placement {advice.first_day}: {row['why']}{served}",
            }
            add.append(body)
    return {"add": add, "remove": remove}


def rse_of_disk(site: str) -> str:
    """Return the RSE of a site's disk: at sites with tape, those of tier 0 and 1, its
    name ends in ``_Disk``.
    """
    return f"{site}_Disk" if site.startswith(("T0_", "T1_")) else site


# What plans of past weeks would have served, beside simple rules with the same budgets.

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


def backtest(inputs: PlacementInputs, limits: Limits, weeks: int) -> pl.DataFrame:
    """Return a row for each rule: what the copies of the last ``weeks`` Mondays whose
    lifetime of a copy is over served in it. Each plan knows the days before its Monday
    only. ``served_per_byte`` and ``unread_share`` are null if nothing was copied.

    Raises InputMissing (66) if no week has four weeks and replicas before it, or if no
    read has bytes.
    """
    reads, lifetime = inputs.reads, timedelta(days=7 * limits.lifetime)
    if not reads.has_bytes:
        raise InputMissing("no read has bytes", next_step="give accesses with the column bytes")
    monday, copies = reads.end - lifetime, list[pl.DataFrame]()
    monday -= timedelta(days=monday.weekday())
    while len(copies) < weeks and monday >= reads.first + timedelta(days=_FIRST_DAYS):
        try:
            replicas = inputs.replicas_before(monday)
        except InputMissing:
            break
        share = pl.when(pl.col("budget").is_infinite()).then(pl.col("used") * _BUDGET_SHARE)
        space = inputs.space(replicas).with_columns(budget=share.otherwise("budget"))
        is_later = pl.col("day").is_between(monday, monday + lifetime, closed="left")
        later = (
            reads.rows.filter(is_later)
            .group_by(PAIR)
            .agg(served=pl.col("bytes").sum(), is_read=pl.col("accesses").sum() > 0)
        )
        added = [
            {"rule": rule, **{name: row[name] for name in (*PAIR, "bytes")}}
            for rule, plan in _plans(reads.before(monday), replicas, space, limits)
            for row in plan.added
        ]
        schema = {
            "rule": pl.String(),
            "dataset": pl.String(),
            "site": pl.String(),
            "bytes": pl.Float64(),
        }
        copies.append(pl.DataFrame(added, schema).join(later, PAIR, "left"))
        monday -= timedelta(days=7)
    if not copies:
        raise InputMissing(
            "no week can be judged",
            found=f"{(reads.end - reads.first).days} days from {reads.first} on",
            next_step=f"give at least {_FIRST_DAYS // 7 + 1 + limits.lifetime} weeks, "
            "and replicas from before the last ones",
        )
    sums = (
        pl.concat(copies)
        .group_by("rule")
        .agg(
            copies=pl.len().cast(pl.Int64),
            copied_bytes=pl.col("bytes").sum(),
            served_bytes=pl.col("served").sum(),
            unread_bytes=pl.col("bytes").filter(~pl.col("is_read").fill_null(False)).sum(),
        )
    )
    copied = pl.when(pl.col("copied_bytes") > 0).then("copied_bytes")
    return (
        pl.DataFrame({"rule": list(RULES), "weeks": len(copies)})
        .join(sums, "rule", "left", maintain_order="left")
        .fill_null(0)
        .with_columns(
            served_per_byte=pl.col("served_bytes") / copied,
            unread_share=pl.col("unread_bytes") / copied,
        )
    )


def _plans(
    past: Reads, replicas: Replicas, space: pl.DataFrame, limits: Limits
) -> Iterator[tuple[str, Plan]]:
    """Yield each rule with its plan. What makes room for a copy is the same in all."""
    demand = expected(past, replicas, limits.lifetime)
    yield "recommend", make_plan(replicas, demand, space, limits)
    tiers = [DERIVED["data_tier"].derive(name) or "" for name in replicas.datasets["dataset"]]
    datasets = replicas.datasets.select("dataset", "size", tier=pl.Series(tiers, dtype=pl.String))
    recent = _recent_pairs(_with_worth(past, replicas), past.end).join(datasets, "dataset")
    every = datasets.join(space.select("site"), how="cross").sort(PAIR)
    volume = recent.group_by("tier", "site").agg(pl.col("recent").sum())
    of_tier = volume.join(datasets.group_by("tier").agg(pl.col("size").sum()), "tier")
    density = of_tier.select("tier", "site", density=pl.col("recent") / pl.col("size"))
    orders = {
        "ten-reads": recent.sort(-pl.col("recent") / pl.col("size"), *PAIR),
        "tier": every.join(density, ["tier", "site"], "left", maintain_order="left").sort(
            -pl.col("density"), nulls_last=True, maintain_order=True
        ),
        "random": every.sample(fraction=1.0, shuffle=True, seed=past.end.toordinal()),
    }
    for rule, pairs in orders.items():
        plan = Plan(replicas, demand, space, limits)
        # Whatever goes for it, a copy is made.
        chosen = pairs.select(*PAIR, worth=math.inf, benefit=pl.lit(None, pl.Float64))
        could = _candidates(replicas, chosen).filter(pl.col("copies") > 0)
        for row in could.head(_MOST_PAIRS).iter_rows(named=True):
            plan.add(row)
        yield rule, plan
