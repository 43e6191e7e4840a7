"""Replays: plans for past weeks, each from what was known on its Monday, judged by the
reads of the week.

Every rule begins with the same replicas, space and budgets, and carries its own copies
from week to week. A read is remote where its site has no complete copy of the dataset
on disk when the week begins.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import date
from typing import Any, Final

import numpy as np

from cmsspark.apps.placement import demand
from cmsspark.apps.placement.demand import Demand, Outlook
from cmsspark.apps.placement.plan import DEFAULT, Limits, make_plan
from cmsspark.apps.placement.reads import Reads
from cmsspark.apps.placement.replicas import Replicas, Space
from cmsspark.base.arrays import Array
from cmsspark.base.errors import InputMissing, UsageError

#: A forecast for the week after the last day of the reads.
Forecast = Callable[[Reads], Outlook]

#: The rules, with a line each.
ABOUT: Final = {
    "as-is": "nothing is copied or removed",
    "tier": "by data tier: how much its datasets were read per byte in the last weeks, and where",
    "recent": "how much each dataset was read in the last weeks, and where",
    "predicted": "the same, and how much the forecast expects it to be read",
    "oracle": "the reads of the coming week themselves, which no rule can know",
}
#: Weeks of reads before the first week that is judged.
FIRST_WEEKS: Final = 4


@dataclass(frozen=True)
class Week:
    """What one week was like under a rule: its accesses and bytes read, those of them
    that were remote, bytes that were copied and removed before it, and bytes on disk in
    it.
    """

    week: date
    rule: str
    reads: float
    remote_reads: float
    read_bytes: float
    remote_bytes: float
    copied_bytes: float
    removed_bytes: float
    disk_bytes: float
    copies_made: int
    copies_removed: int

    def as_dict(self) -> dict[str, Any]:
        """Return all numbers; the week as text."""
        return {**asdict(self), "week": self.week.isoformat()}


@dataclass(frozen=True)
class Replay:
    """What a replay needs. ``arrivals(day)``: the replicas as a snapshot from before
    that day has them, under the names of ``reads``; datasets that first appear in one
    arrive with its copies.
    """

    reads: Reads
    replicas_before: Callable[[date], Replicas]
    space: Space
    forecast: Forecast | None = None
    limits: Limits = DEFAULT

    def run(self, rules: Sequence[str], *, weeks: int | None = None) -> list[Week]:
        """Return a row for each week and rule. Raises InputMissing (66) where no week
        has enough days, and replicas, before it.
        """
        for rule in rules:
            if rule not in ABOUT:
                raise UsageError(
                    f"there is no rule {rule!r}", next_step=f"one of {', '.join(ABOUT)}"
                )
        mondays = [day for day in self.reads.mondays() if day >= 7 * FIRST_WEEKS]
        chosen = self._since_replicas(mondays[-weeks:] if weeks else mondays)
        if not chosen:
            raise InputMissing(
                "no week can be replayed",
                found=f"{len(self.reads.days)} days from {self.reads.days[0]} on",
                next_step=f"give at least {FIRST_WEEKS + 2} weeks",
            )
        groups = demand.group_datasets(self.reads.datasets)
        states = dict.fromkeys(rules, self.replicas_before(self.reads.days[chosen[0]]))
        rows = []
        for day in chosen:
            snapshot = self.replicas_before(self.reads.days[day])
            past = self.reads.before(day)
            outlook = self.forecast(past) if self.forecast and "predicted" in rules else None
            for rule in rules:
                state = with_arrivals(states[rule], snapshot)
                forecast = self._demand(rule, past, groups, outlook, day, snapshot)
                row, states[rule] = self._week(rule, day, state, forecast)
                rows.append(row)
        return rows

    def _since_replicas(self, mondays: list[int]) -> list[int]:
        """Return the Mondays from the first one on before which replicas are known, at
        least the last one.
        """
        for number, day in enumerate(mondays[:-1]):
            with suppress(InputMissing):
                self.replicas_before(self.reads.days[day])
                return mondays[number:]
        return mondays[-1:]

    def _demand(
        self,
        rule: str,
        past: Reads,
        groups: list[Array],
        outlook: Outlook | None,
        day: int,
        replicas: Replicas,
    ) -> Demand | None:
        if rule == "as-is":
            return None
        if rule == "tier":
            return demand.by_tier(past, groups, replicas.sizes)
        if rule == "oracle":
            return _of_week(self.reads.week(day))
        return demand.expected(past, groups, outlook if rule == "predicted" else None)

    def _week(
        self, rule: str, day: int, state: Replicas, forecast: Demand | None
    ) -> tuple[Week, Replicas]:
        moved_bytes = removed_bytes = 0.0
        copied = removed = 0
        if forecast is not None:
            plan = make_plan(state, forecast, self.space, self.limits)
            moved_bytes, removed_bytes = plan.moved_bytes, plan.removed_bytes
            copied, removed = len(plan.added), int(plan.gone.sum())
            state = plan.result()
        week = self.reads.week(day)
        is_remote = ~state.has_copy()[week.dataset, week.site]
        row = Week(
            self.reads.days[day],
            rule,
            float(week.accesses.sum()),
            float(week.accesses[is_remote].sum()),
            float(week.bytes.sum()),
            float(week.bytes[is_remote].sum()),
            moved_bytes,
            removed_bytes,
            float(state.used().sum()),
            copied,
            removed,
        )
        return row, state


def with_arrivals(state: Replicas, snapshot: Replicas) -> Replicas:
    """Return ``state`` with the copies that ``snapshot`` has of datasets that are new:
    no plan removes the last copy of a dataset, so one that a snapshot lacked in between
    is in ``state``.
    """
    had = np.zeros(len(snapshot.datasets), bool)
    had[state.dataset] = True
    is_new = ~had[snapshot.dataset]
    columns = {
        name: np.append(getattr(state, name), getattr(snapshot, name)[is_new])
        for name in ("dataset", "site", "bytes", "is_complete", "is_fixed")
    }
    sizes = np.where(snapshot.sizes > 0, snapshot.sizes, state.sizes)
    return Replicas(state.datasets, state.sites, **columns, sizes=sizes, on_tape=snapshot.on_tape)


def _of_week(week: Reads) -> Demand:
    """Return the demand that a week turned out to have."""
    counts = np.zeros((len(week.datasets), len(week.sites)))
    np.add.at(counts, (week.dataset, week.site), week.accesses)
    totals = counts.sum(1)
    shares = counts / np.maximum(totals, 1e-12)[:, None]
    return Demand(totals, shares, np.zeros(len(totals), bool), np.ones_like(shares))


def sums(rows: Sequence[Week]) -> list[dict[str, Any]]:
    """Return a row for each rule over all weeks: its sums, disk_bytes as the mean,
    remote reads and bytes against those of the rule by data tier and of doing nothing
    (-0.1 is a tenth fewer; null where there is nothing to compare with).
    """
    totals: dict[str, dict[str, Any]] = {}
    for rule in dict.fromkeys(row.rule for row in rows):
        weeks = [row.as_dict() for row in rows if row.rule == rule]
        names = [name for name, value in weeks[0].items() if isinstance(value, int | float)]
        totals[rule] = {
            "rule": rule,
            "weeks": len(weeks),
            **{name: sum(row[name] for row in weeks) for name in names},
        }
        totals[rule]["disk_bytes"] /= len(weeks)
    for name, baseline in (("tier", totals.get("tier")), ("as_is", totals.get("as-is"))):
        for row in totals.values():
            for measure in ("remote_reads", "remote_bytes"):
                base = baseline[measure] if baseline else 0
                row[f"{measure}_against_{name}"] = row[measure] / base - 1 if base else None
    return list(totals.values())
