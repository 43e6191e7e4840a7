"""A plan for one week: copies to make and copies that can go, within the space and the
budget of each site.

A copy is worth the bytes that it is expected to serve in its lifetime, for each byte
that is copied. Copies are made in the order of that worth, and at a full site copies of
less worth go. Plans of past weeks are judged by what their copies would have served.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass, replace
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final, Literal

import numpy as np

from cmsspark.apps.placement.inputs import PlacementInputs, Reads, Replicas, Space
from cmsspark.base.arrays import Array
from cmsspark.base.errors import InputMissing
from cmsspark.base.names import DERIVED
from cmsspark.sources.rucio import SCOPE

if TYPE_CHECKING:
    import polars as pl

#: Days of reads that a demand rests on; what nobody read in them has none.
RECENT_DAYS: Final = 14
#: Pairs are of one kind by the days with a read among them (1, 2 to 3, 4 to 7, more), the
#: days since the last read (up to 2, up to 6, more), the weeks with a read of the six
#: before them (none, 1 to 2, more) and the share of the dataset that was read.
_ACTIVE, _IDLE, _EARLIER, _SHARE = (2, 4, 8), (3, 7), (1, 3), (0.15, 0.75)
_KINDS, _EARLIER_WEEKS = 4 * 3 * 3 * 3, 6
#: Past weeks that show how far reads go on, and the most that one pair is believed to grow.
_ANCHORS, _MOST_GROWTH = 8, 3.0
#: Before a store has shown more, a week is read half as much as the one before it, and so
#: many pairs are read again, by active days and by idle days. It counts as so many pairs;
#: what all pairs did counts as so many of each kind.
_DECAY, _PRIOR, _PRIOR_OF_KIND = 0.5, 20.0, 3.0
_AGAIN_ACTIVE, _AGAIN_IDLE = (0.6, 0.75, 0.9, 0.97), (1.0, 0.95, 0.7)
#: Of the pairs of a kind, at least so many were read again in the lifetime of a copy.
_LEAST_LIKELY: Final = 0.8
#: Siblings are taken if at least so many had their first week, else those of the wider group.
_LEAST_SIBLINGS: Final = 3
#: Accesses in the recent days that a pair needs.
LEAST_ACCESSES: Final = 10.0
#: A copy replaces others if it is expected to serve so many times what they do.
MARGIN: Final = 1.5


@dataclass(frozen=True)
class Limits:
    """What plans keep to. ``min_copies``: complete copies on disk that remain of what
    loses one. ``free_share``: the part of each site's capacity that stays free.
    ``min_benefit``: bytes that a copy is expected to serve in ``lifetime`` weeks, for
    each byte that is copied. A copy that is younger than its lifetime does not go.
    """

    min_copies: int = 1
    free_share: float = 0.0
    min_benefit: float = 1.0
    lifetime: int = 4


DEFAULT: Final = Limits()


@dataclass(frozen=True)
class Demand:
    """Columns with an element for each pair of a dataset and a site that is expected to
    be read, sorted by ``pairs`` (numbers as :meth:`Replicas.pairs`): accesses in a
    week, bytes in the lifetime of a copy, and whether siblings say so. ``has_bytes``:
    False if no read has bytes; then ``bytes`` are accesses.
    """

    pairs: Array
    accesses: Array
    bytes: Array
    from_siblings: Array
    has_bytes: bool = True

    def bytes_at(self, pairs: Array) -> Array:
        """Return the expected bytes of these pairs, float64; 0 of others."""
        if not len(self.pairs):
            return np.zeros(len(pairs))
        indices = np.minimum(np.searchsorted(self.pairs, pairs), len(self.pairs) - 1)
        return np.where(self.pairs[indices] == pairs, self.bytes[indices], 0.0)


def expected(reads: Reads, replicas: Replicas, lifetime: int = DEFAULT.lifetime) -> Demand:
    """Return the demand after the last day of ``reads``, which are all that it knows.

    A pair is expected to be read as in the last two weeks, times how far pairs of its
    kind went on being read in the store's own past. Pairs with few reads in them, and
    kinds that mostly were not read again, have no demand. A dataset that was made in
    these weeks and not yet read has the first week of its siblings.
    """
    has_bytes, end, horizon = bool(reads.bytes.any()), len(reads.days), 7 * lifetime
    values, every = _fill_bytes(reads) if has_bytes else reads.accesses, reads.pairs
    counts, rates, again = np.zeros((3, _KINDS))
    for anchor in range(end - horizon, RECENT_DAYS - 1, -7)[:_ANCHORS]:
        pairs, kinds, recent, _ = _recent(reads, values, replicas.sizes, anchor)
        later = (reads.day >= anchor) & (reads.day < anchor + horizon) & np.isin(every, pairs)
        after = np.bincount(np.searchsorted(pairs, every[later]), values[later], len(pairs))
        rate = after / np.maximum(recent * horizon / RECENT_DAYS, 1e-12)
        counts += np.bincount(kinds, minlength=_KINDS)
        rates += np.bincount(kinds, np.minimum(rate, _MOST_GROWTH), _KINDS)
        again += np.bincount(kinds, after > 0, _KINDS)
    likely = np.repeat(np.outer(_AGAIN_ACTIVE, _AGAIN_IDLE).ravel(), _KINDS // 12)
    usual = (1 - _DECAY**lifetime) / (1 - _DECAY) * _DECAY / lifetime
    rates, again = (
        (sums + _PRIOR_OF_KIND * (sums.sum() + _PRIOR * prior) / (counts.sum() + _PRIOR))
        / (counts + _PRIOR_OF_KIND)
        for sums, prior in ((rates, usual * likely / 0.8), (again, likely))
    )
    pairs, kinds, recent, accesses = _recent(reads, values, replicas.sizes, end)
    chosen = (again[kinds] >= _LEAST_LIKELY) & (accesses >= LEAST_ACCESSES)
    rate = rates[kinds] / RECENT_DAYS
    of_reads = (pairs, accesses * rate * 7, recent * rate * horizon)
    new = _of_siblings(reads, values, replicas)
    pairs, accesses, volume = (
        np.append(column[chosen], of_new) for column, of_new in zip(of_reads, new, strict=True)
    )
    order = np.argsort(pairs, kind="stable")
    is_new = order >= chosen.sum()
    return Demand(pairs[order], accesses[order], volume[order], is_new, has_bytes)


def _fill_bytes(reads: Reads) -> Array:
    """Return the bytes of each element, if unknown by the mean of the dataset's accesses,
    else of all.
    """
    has_bytes, count = reads.bytes > 0, len(reads.datasets)
    accesses = np.bincount(reads.dataset[has_bytes], reads.accesses[has_bytes], count)
    volume = np.bincount(reads.dataset[has_bytes], reads.bytes[has_bytes], count)
    mean = np.where(accesses > 0, volume / np.maximum(accesses, 1), volume.sum() / accesses.sum())
    return np.where(has_bytes, reads.bytes, reads.accesses * mean[reads.dataset])


def _recent(
    reads: Reads, values: Array, sizes: Array, end: int
) -> tuple[Array, Array, Array, Array]:
    """Return the pairs that were read in the recent days before day number ``end``,
    sorted, with the kind of each, its sum of values, and its accesses.
    """
    first = end - RECENT_DAYS
    recent = (reads.day >= first) & (reads.day < end)
    pairs, number = np.unique(reads.pairs[recent], return_inverse=True)
    last = np.zeros(len(pairs), np.int64)
    np.maximum.at(last, number, reads.day[recent])
    before = (reads.day < first) & (reads.day >= first - 7 * _EARLIER_WEEKS)
    before &= np.isin(reads.pairs, pairs)
    weeks = np.searchsorted(pairs, reads.pairs[before]) * _EARLIER_WEEKS
    weeks = np.unique(weeks + (first - 1 - reads.day[before]) // 7)
    volume = np.bincount(number, values[recent], len(pairs))
    parts = (
        (np.bincount(number, minlength=len(pairs)), _ACTIVE),
        (end - last, _IDLE),
        (np.bincount(weeks // _EARLIER_WEEKS, minlength=len(pairs)), _EARLIER),
        (volume / np.maximum(sizes[pairs // len(reads.sites)], 1), _SHARE),
    )
    kinds = np.zeros(len(pairs), np.int64)
    for column, edges in parts:
        kinds = kinds * (len(edges) + 1) + np.digitize(column, edges)
    return pairs, kinds, volume, np.bincount(number, reads.accesses[recent], len(pairs))


def _of_siblings(reads: Reads, values: Array, replicas: Replicas) -> tuple[Array, Array, Array]:
    """Return pairs, accesses in a week and values of datasets that were made in the
    recent days and not yet read: the mean first week of their siblings, by their bytes,
    at sites where most of them were read.

    Siblings have the same primary dataset and tier, else the same campaign and tier, else
    the same tier, and a first week that is over.
    """
    ages, sites, sizes = replicas.ages, len(reads.sites), replicas.sizes
    is_read = np.bincount(reads.dataset, minlength=len(ages)) > 0
    new = np.nonzero((ages < RECENT_DAYS) & ~is_read & (sizes > 0))[0]
    rows: list[tuple[Array, ...]] = [(np.zeros(0, np.int64), *np.zeros((2, 0)))]
    began = len(reads.days) - ages
    has_first_week = (began >= 0) & (ages >= 7) & (sizes > 0)
    early = has_first_week[reads.dataset] & (reads.day < began[reads.dataset] + 7)
    for rules in (("primary_name", "data_tier"), ("campaign", "data_tier"), ("data_tier",)):
        if not len(new):
            break
        names = [str([DERIVED[rule].derive(name) for rule in rules]) for name in reads.datasets]
        group = np.unique(np.array(names, str), return_inverse=True)[1]
        # Without the dataset itself.
        counts = np.bincount(group[has_first_week], minlength=group.max() + 1)[group]
        counts -= has_first_week
        is_known = counts[new] >= _LEAST_SIBLINGS
        for number in np.unique(group[new[is_known]]).tolist():
            where = early & (group[reads.dataset] == number)
            dataset, site = reads.dataset[where], reads.site[where]
            readers = np.bincount(np.unique(dataset * sites + site) % sites, minlength=sites)
            accesses = np.bincount(site, reads.accesses[where], sites)
            per_byte = np.bincount(site, values[where] / sizes[dataset], sites)
            for chosen in new[is_known & (group[new] == number)].tolist():
                count = counts[chosen]
                at = np.nonzero(readers >= np.maximum(_LEAST_LIKELY * count, 1))[0]
                volume = per_byte[at] * sizes[chosen] / count
                rows.append((chosen * sites + at, accesses[at] / count, volume))
        new = new[~is_known]
    columns = (np.concatenate(column) for column in zip(*rows, strict=True))
    return next(columns), next(columns), next(columns)


class Plan:
    """``added``: (pair, benefit) of copies to make; ``gone``: whether each copy of the
    replicas goes; ``freed``: those that go because the site is too full, not for
    another copy.

    While it is made it knows what is free at each site and how many copies remain of
    each dataset.
    """

    def __init__(self, replicas: Replicas, demand: Demand, space: Space, limits: Limits) -> None:
        self.replicas, self._limits = replicas, limits
        self._least = limits.min_benefit if demand.has_bytes else 0.0
        self._free = space.capacity * (1 - limits.free_share) - replicas.used()
        self._budget = space.budget.copy()
        self._copies = replicas.copies()
        self._worth = demand.bytes_at(replicas.pairs())
        self._stays = replicas.is_fixed | (replicas.made_days < 7 * limits.lifetime)
        self.gone: Array = np.zeros(len(replicas.dataset), bool)
        self.added: list[tuple[int, float]] = []
        self.freed: set[int] = set()
        self._copy_at = {pair: number for number, pair in enumerate(replicas.pairs().tolist())}
        # Of each site, its copies from the least worth for each byte on.
        density = self._worth / np.maximum(replicas.bytes, 1)
        self._of_site: dict[int, list[int]] = defaultdict(list)
        for number in np.lexsort((replicas.dataset, density)).tolist():
            self._of_site[int(replicas.site[number])].append(number)
        for site in range(len(replicas.sites)):
            for number in self._removable(site, -self._free[site], np.inf)[0]:
                self.freed.add(number)
                self._remove(number)

    def _remove(self, number: int, sign: int = 1) -> None:
        """Let a copy go; with ``sign`` -1 let it stay after all."""
        replicas = self.replicas
        self.gone[number] = sign > 0
        self._copies[replicas.dataset[number]] -= sign * int(replicas.is_complete[number])
        self._free[replicas.site[number]] += sign * replicas.bytes[number]

    def _removable(
        self, site: int, missing: float, most: float, dataset: int = -1
    ) -> tuple[list[int], float, float]:
        """Return copies at a site that can go for ``missing`` bytes and serve less than
        ``most``, not of ``dataset``; what they serve; and the bytes that are still missing.

        A copy can go if it is not fixed, lies there for as long as a copy is made for, is
        not completed by the plan, and enough complete ones remain. A copy that is only
        planned is none yet, and tape is none.
        """
        replicas, chosen, lost = self.replicas, list[int](), 0.0
        for number in self._of_site[site]:
            if missing <= 0:
                break
            remaining = self._copies[replicas.dataset[number]] - int(replicas.is_complete[number])
            if (
                self._stays[number]
                or self.gone[number]
                or replicas.dataset[number] == dataset
                or remaining < self._limits.min_copies
            ):
                continue
            if lost + float(self._worth[number]) >= most:
                break
            lost += float(self._worth[number])
            chosen.append(number)
            missing -= float(replicas.bytes[number])
        return chosen, lost, missing

    def bytes_to_copy(self, pair: int) -> float:
        """Return the bytes that a copy takes from elsewhere: those that are not there yet."""
        partial = self._copy_at.get(pair)
        present = 0.0
        if partial is not None and not self.gone[partial]:
            present = float(self.replicas.bytes[partial])
        # An incomplete copy may have all bytes, such as those of files that are no longer valid.
        return max(float(self.replicas.sizes[pair // len(self.replicas.sites)]) - present, 0.0)

    def add(self, pair: int, benefit: float, *, is_weighed: bool = True) -> None:
        """Make the copy if budget and room allow it, and it is worth its bytes and what
        goes for it. Without ``is_weighed`` any copy is.
        """
        dataset, site = divmod(pair, len(self.replicas.sites))
        partial = self._copy_at.get(pair)
        size = self.bytes_to_copy(pair)
        if not 0 < size <= self._budget[site] or (partial is not None and self.gone[partial]):
            return
        most = benefit / MARGIN if is_weighed else np.inf
        victims, lost, missing = self._removable(site, size - self._free[site], most, dataset)
        if missing > 0 or (is_weighed and benefit - lost < self._least * size):
            return
        for number in victims:
            self._remove(number)
        if partial is not None:
            self._stays[partial] = True
        self._free[site] -= size
        self._budget[site] -= size
        self.added.append((pair, benefit))

    def keep_what_fits(self) -> None:
        """Let copies stay after all that the room has become enough for, the most worth
        first: one that goes may be larger than what it had to make room for.
        """
        for number in sorted(
            np.nonzero(self.gone)[0].tolist(), key=lambda copy: -self._worth[copy]
        ):
            if self.replicas.bytes[number] <= self._free[self.replicas.site[number]]:
                self._remove(number, -1)
                self.freed.discard(number)


def candidates(replicas: Replicas, demand: Demand) -> tuple[Array, Array, Array]:
    """Return the pairs that a copy could serve, by the expected bytes for each byte of
    the dataset, the most first: (pairs, these bytes, whether a complete copy is on
    disk). Without such a copy a pair is among them only if one is on tape.
    """
    dataset = demand.pairs // max(len(replicas.sites), 1)
    size, benefit = replicas.sizes[dataset], demand.bytes
    has_source = replicas.copies()[dataset] > 0
    could = (size > 0) & (benefit > 0) & (has_source | replicas.on_tape[dataset])
    could &= ~np.isin(demand.pairs, replicas.pairs()[replicas.is_complete])
    chosen = np.nonzero(could)[0]
    # Of equal worth the names decide: numbers follow their order.
    order = chosen[np.argsort(-benefit[chosen] / size[chosen], kind="stable")]
    return demand.pairs[order], benefit[order], has_source[order]


def make_plan(replicas: Replicas, demand: Demand, space: Space, limits: Limits = DEFAULT) -> Plan:
    """Return the plan for the week of ``demand``, which has the names of the replicas."""
    plan = Plan(replicas, demand, space, limits)
    pairs, benefits, has_source = candidates(replicas, demand)
    for pair, benefit in zip(pairs[has_source], benefits[has_source], strict=True):
        plan.add(int(pair), float(benefit))
    plan.keep_what_fits()
    return plan


_Action = Literal["copy", "remove", "recall"]


@dataclass(frozen=True)
class Row:
    """A copy to make or to remove, or (``recall``) one that would be worth making of a
    dataset that is on tape only. ``bytes``: to be copied, or that become free;
    ``accesses``: expected at the site in the week; ``benefit``: bytes that a copy is
    expected to serve in its lifetime, None if no read has bytes; ``copies``: complete
    ones on disk now.

    ``why``: ``its reads`` or ``siblings`` (it was never read); ``another copy`` or
    ``full site`` for one that can go.
    """

    action: _Action
    dataset: str
    site: str
    bytes: int
    accesses: float
    benefit: float | None
    copies: int
    is_complete: bool
    why: str


@dataclass(frozen=True)
class Advice:
    """The rows of a plan, copies to make first, each kind in the order of worth;
    ``sites``: a row for each site; ``total``: their sums.
    """

    first_day: date
    rows: list[Row]
    sites: list[dict[str, Any]]
    lifetime: int = DEFAULT.lifetime

    @property
    def total(self) -> dict[str, int]:
        """The sums over all sites."""
        return {name: sum(row[name] for row in self.sites) for name in _OF_SITES}

    def frame(self) -> pl.DataFrame:
        """Return the rows as a table."""
        import polars as pl

        kinds = {
            "bytes": pl.Int64(),
            "accesses": pl.Float64(),
            "benefit": pl.Float64(),
            "copies": pl.Int64(),
            "is_complete": pl.Boolean(),
        }
        schema = {name: kinds.get(name, pl.String()) for name in Row.__annotations__}
        return pl.DataFrame([vars(row) for row in self.rows], schema=schema)


_OF_SITES: Final = ("used", "capacity", "copied", "removed", "used_after")


def recommend(inputs: PlacementInputs, limits: Limits = DEFAULT) -> Advice:
    """Return the plan for the week after the last day of the reads."""
    first_day = inputs.reads.days[-1] + timedelta(days=1)
    replicas = inputs.replicas_before(first_day)
    demand, space = expected(inputs.reads, replicas, limits.lifetime), inputs.space(replicas)
    plan = make_plan(replicas, demand, space, limits)
    copies, sites = replicas.copies(), len(replicas.sites)
    siblings = set(demand.pairs[demand.from_siblings].tolist())
    accesses = dict(zip(demand.pairs.tolist(), demand.accesses.tolist(), strict=True))

    def row(action: _Action, pair: int, size: float, value: float | None, **columns: Any) -> Row:
        dataset, site = divmod(pair, sites)
        reason = "siblings" if pair in siblings else "its reads"
        return Row(
            action,
            replicas.datasets[dataset],
            replicas.sites[site],
            int(size),
            accesses.get(pair, 0.0),
            float(value) if value is not None and demand.has_bytes else None,
            int(copies[dataset]),
            **{"is_complete": True, "why": reason, **columns},
        )

    rows = [row("copy", pair, plan.bytes_to_copy(pair), value) for pair, value in plan.added]
    removals = [
        row(
            "remove",
            pair,
            replicas.bytes[number],
            None,
            is_complete=bool(replicas.is_complete[number]),
            why="full site" if number in plan.freed else "another copy",
        )
        for number, pair in enumerate(replicas.pairs().tolist())
        if plan.gone[number]
    ]
    rows += sorted(removals, key=lambda entry: (-entry.bytes, entry.dataset, entry.site))
    pairs, values, has_source = candidates(replicas, demand)
    for pair, value in zip(pairs[~has_source].tolist(), values[~has_source], strict=True):
        size = plan.bytes_to_copy(pair)
        if size > 0 and (value >= limits.min_benefit * size or not demand.has_bytes):
            rows.append(row("recall", pair, size, value))
    used, copied = replicas.used(), np.zeros(sites)
    removed = np.bincount(replicas.site[plan.gone], replicas.bytes[plan.gone], sites)
    for pair, _ in plan.added:
        copied[pair % sites] += plan.bytes_to_copy(pair)
    columns = (used, space.capacity, copied, removed, used + copied - removed)
    of_sites = [
        {"site": name, **dict(zip(_OF_SITES, sizes, strict=True))}
        for name, sizes in zip(
            replicas.sites, np.stack(columns, axis=1).astype(int).tolist(), strict=True
        )
        if any(sizes[:3])
    ]
    return Advice(first_day, rows, of_sites, limits.lifetime)


def rucio_rules(
    advice: Advice, activity: str, holding: Iterable[Mapping[str, Any]] | None = None
) -> dict[str, Any]:
    """Return the plan as Rucio takes it: the bodies of POST /rules that make the copies,
    and the copies that can go, with the rules to end: those of ``holding`` (as
    :func:`cmsspark.dumps.rucio_locks.read_rules`) for the copy, None if not known.
    """
    add, remove = list[dict[str, Any]](), list[dict[str, Any]]()
    rules: dict[Any, list[dict[str, Any]]] = defaultdict(list)
    for rule in holding or ():
        described = {name: rule[name] for name in ("rule_id", "account", "expires_at")}
        rules[rule["dataset_name"], rule["rse"]].append(described)
    for row in advice.rows:
        did, rse = {"scope": SCOPE, "name": row.dataset}, rse_of_disk(row.site)
        copy = {"did": did, "rse_expression": rse, "bytes": row.bytes}
        if row.action == "remove":
            of_copy = None if holding is None else rules[row.dataset, rse]
            remove.append({**copy, "rules": of_copy})
        elif row.action == "copy":
            ratio = None if row.benefit is None else row.benefit / max(row.bytes, 1)
            served = "" if ratio is None else f", {ratio:.2f} bytes a byte expected"
            body = {
                "dids": [did],
                "copies": 1,
                "rse_expression": rse,
                "grouping": "ALL",
                "lifetime": advice.lifetime * 7 * 86_400,
                "activity": activity,
                "ask_approval": True,
                "comment": f"cmsspark placement {advice.first_day}: {row.why}{served}",
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
