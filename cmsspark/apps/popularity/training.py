"""What models learn from: rows of features with labels, from days whose label is over before the predicted week."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any, Final

import numpy as np

from cmsspark.apps.popularity.features import Names, features
from cmsspark.apps.popularity.series import MEASURES, Series
from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.text.plurals import number_of

Array = np.ndarray[Any, Any]

#: Days of history before the first row that is learned from.
FIRST_DAY: Final = 7
#: Rows that are learned from at most: above, days are left out, then inactive datasets are sampled.
MOST_ROWS: Final = 600_000
#: A dataset without an access in so many days is inactive.
_INACTIVE_DAYS: Final = 28


@dataclass(frozen=True)
class Label:
    """What popular means: above ``threshold`` accesses, and above ``users`` users where given, in ``weeks`` weeks; or,
    with ``top_bytes``, among that many datasets with the most bytes read in these weeks (of equal bytes the first
    name).

    Users of a file are summed over days: who comes back on another day counts again.
    """

    threshold: float = 10
    users: float | None = None
    weeks: int = 1
    top_bytes: int | None = None

    @property
    def days(self) -> int:
        """The horizon in days."""
        return 7 * self.weeks

    @property
    def least_accesses(self) -> float | None:
        """The threshold of accesses; None where the label is by bytes."""
        return None if self.top_bytes is not None else float(self.threshold)

    @property
    def text(self) -> str:
        """What it is, in a few words."""
        return self.text_of(by_site=False)

    def text_of(self, *, by_site: bool) -> str:
        """What it is, in a few words; ``by_site``: for datasets at sites."""
        during = number_of(self.weeks, "week")
        if self.top_bytes is not None:
            what = "pairs of dataset and site" if by_site else "datasets"
            return f"among the {self.top_bytes:,} {what} with the most bytes read in {during}"
        also = f" and more than {self.users:g} users" if self.users is not None else ""
        where = " at the site" if by_site else ""
        return f"more than {self.threshold:g} accesses{also}{where} in {during}"

    def check(self, series: Series) -> None:
        """Raises DataError (65) where the series lacks what the label is made of."""
        lacking = [
            name for name, is_needed in (("users", self.users is not None), ("bytes", self.top_bytes is not None))
            if is_needed and not series.values[MEASURES.index(name)].any()
        ]  # fmt: skip
        if lacking:
            name = lacking[0]
            raise DataError(
                f"popular is {self.text}, and the series has no {name}",
                found=f"no column {name}, or 0 in all rows",
                next_step=f"give a series with {name}, or another label",
            )

    def of(self, series: Series, day: int) -> Array:
        """float64 [datasets], 1 where popular in the weeks from that day on."""
        after = slice(day, day + self.days)
        if self.top_bytes is not None:
            return first_by_bytes(series.values[MEASURES.index("bytes"), after].sum(0), self.top_bytes)
        is_popular = series.accesses[after].sum(0) > self.threshold
        if self.users is not None:
            is_popular &= series.values[MEASURES.index("users"), after].sum(0) > self.users
        return np.asarray(is_popular, float)


def first_by_bytes(values: Array, count: int) -> Array:
    """float64 [datasets], 1 for the ``count`` largest values above 0; of equal values the first ones."""
    largest = np.argsort(-values, kind="stable")[:count]
    result = np.zeros(len(values))
    result[largest[values[largest] > 0]] = 1
    return result


@dataclass(frozen=True)
class Training:
    """Rows that are learned from: float64 [rows, columns], labels, the number of each row's day, and how many datasets
    each row stands for (1, more for sampled inactive ones). ``total``: the rows that there were.
    """

    rows: Array
    labels: Array
    days: Array
    weights: Array
    columns: list[str]
    total: int

    def where(self, chosen: Array) -> Training:
        """The rows where ``chosen``."""
        parts = (self.rows[chosen], self.labels[chosen], self.days[chosen], self.weights[chosen])
        return Training(*parts, self.columns, self.total)

    def ages(self) -> Array:
        """float64: days between each row and the latest one."""
        return np.asarray(self.days.max() - self.days, float)


@dataclass
class Weeks:
    """Features and labels of each day, made once. A day's features come from a series that ends before it."""

    series: Series
    label: Label
    _made: dict[int, Array] = field(default_factory=dict)

    def __post_init__(self) -> None:
        # The common tiers and campaigns are those of datasets that the days have.
        self._names = Names(self.series.datasets, self.series.is_known, self.series.sites)
        self.columns, _ = features(self.series.until(FIRST_DAY), self._names)

    def rows(self, day: int) -> Array:
        """float64 [datasets, columns] on that day."""
        if day in self._made:
            return self._made[day]
        _, rows = features(self.series.until(day), self._names)
        if len(self.series.datasets) * len(self.series.days) <= MOST_ROWS:
            self._made[day] = rows
        return rows

    def training(self, day: int, *, seed: int = 0) -> Training:
        """The rows of earlier days whose horizon is over on that day: all datasets of all days, as far as
        :data:`MOST_ROWS` allow, else of every second to seventh day, then fewer of the inactive datasets.

        Raises InputMissing (66) where there is none.
        """
        days = range(FIRST_DAY, day - self.label.days + 1)
        count = len(self.series.datasets)
        if not len(days):
            raise InputMissing(
                f"nothing can be learned for {self.series.days[day] if day < len(self.series.days) else 'that week'}",
                found=f"{number_of(day, 'day')} before it",
                next_step=f"give at least {FIRST_DAY + self.label.days} days",
            )
        stride = min(7, max(1, -(-len(days) * count // MOST_ROWS)))
        used = sorted(days[::-1][::stride])
        share = min(1.0, MOST_ROWS / (len(used) * count))
        generator = np.random.default_rng(seed)
        rows, labels, weights, numbers = [], [], [], []
        for each in used:
            chosen, weight = self._sample(each, share, generator)
            rows.append(self.rows(each)[chosen])
            labels.append(self.label.of(self.series, each)[chosen])
            weights.append(weight)
            numbers.append(np.full(len(weight), each))
        parts = [np.concatenate(each) for each in (rows, labels, numbers, weights)]
        return Training(parts[0], parts[1], parts[2], parts[3], self.columns, len(days) * count)

    def _sample(self, day: int, share: float, generator: np.random.Generator) -> tuple[Array, Array]:
        """(numbers of datasets, how many each stands for): all active ones, and a share of the others."""
        count = len(self.series.datasets)
        if share >= 1:
            return np.arange(count), np.ones(count)
        is_active = (self.series.accesses[max(day - _INACTIVE_DAYS, 0) : day] > 0).any(0)
        active, inactive = np.nonzero(is_active)[0], np.nonzero(~is_active)[0]
        kept = min(len(inactive), max(int(share * count) - len(active), int(share * len(inactive) / 4), 1))
        chosen = np.sort(generator.choice(inactive, kept, replace=False)) if kept else inactive
        weights = np.append(np.ones(len(active)), np.full(len(chosen), len(inactive) / max(kept, 1)))
        return np.append(active, chosen), weights
