"""What models learn from: rows of features with labels, from days whose label is over
before the predicted week.
"""

from __future__ import annotations

from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from typing import Any, Final

import numpy as np

from cmsspark.apps.popularity.features import Names, features
from cmsspark.apps.popularity.series import MEASURES, Series
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.text.terminal import pluralize

#: Days of history before the first row that is learned from.
FIRST_DAY: Final = 7
#: The rule that stands for a model until a history is long enough.
PERSISTENCE: Final = "persistence"
#: Days of history from which on a model makes the forecast.
_MODEL_DAYS: Final = 28
#: Rows that are learned from at most: above, days are left out, then inactive datasets
#: are sampled.
MOST_ROWS: Final = 40_000
#: Rows of features that are kept for later weeks at most: of 130 columns, 0.4 GB.
_MOST_SHARED: Final = 400_000
#: A dataset without an access in so many days is inactive.
_INACTIVE_DAYS: Final = 28


@dataclass(frozen=True)
class Label:
    """What popular means: above ``threshold`` accesses, and above ``users`` users where
    given, in ``weeks`` weeks; or, with ``top_bytes``, among that many datasets with the
    most bytes read in these weeks (of equal bytes the first name).

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

    def describe(self) -> str:
        """Return what it is, in a few words."""
        during = pluralize(self.weeks, "week")
        if self.top_bytes is not None:
            return f"among the {self.top_bytes:,} datasets with the most bytes read in {during}"
        also = f" and more than {self.users:,.15g} users" if self.users is not None else ""
        return f"more than {self.threshold:,.15g} accesses{also} in {during}"

    @property
    def model_days(self) -> int:
        """Days of history from which on a model makes the forecast."""
        return max(_MODEL_DAYS, FIRST_DAY + self.days)

    def rule(self, first: date, model: str = "a model") -> str:
        """Return what makes forecasts of a history from a day on while it is short, with
        the days that changes on.
        """
        begins, changes = (
            first + timedelta(days=number) for number in (FIRST_DAY, self.model_days)
        )
        return (
            f"{FIRST_DAY} days of history are forecast by {PERSISTENCE} (from {begins} on), "
            f"{self.model_days} days by {model} (from {changes} on)"
        )

    def model_on(self, series: Series, day: int, model: str) -> str:
        """Return what forecasts the weeks from day number ``day`` on: ``model``, or
        persistence while the days before it are few. Raises InputMissing (66) for less
        than a week.
        """
        if day < FIRST_DAY:
            raise InputMissing(
                "too few days for a forecast",
                found=f"{pluralize(day, 'day')} from {series.days[0]} on",
                next_step=f"give more days: {self.rule(series.days[0], model)}",
            )
        return model if day >= self.model_days else PERSISTENCE

    def check(self, series: Series) -> None:
        """Raise DataError (65) where the series lacks what the label is made of."""
        lacking = [
            name
            for name, is_needed in (
                ("users", self.users is not None),
                ("bytes", self.top_bytes is not None),
            )
            if is_needed and not series.values[MEASURES.index(name)].any()
        ]
        if lacking:
            name = lacking[0]
            raise DataError(
                f"popular is {self.describe()}, and the series has no {name}",
                found=f"no column {name}, or 0 in all rows",
                next_step=f"give a series with {name}, or another label",
            )

    def mark(self, series: Series, day: int) -> Array:
        """Return float64 [datasets], 1 where popular in the weeks from that day on."""
        after = slice(day, day + self.days)
        if self.top_bytes is not None:
            return first_by_bytes(
                series.values[MEASURES.index("bytes"), after].sum(0), self.top_bytes
            )
        is_popular = series.accesses[after].sum(0) > self.threshold
        if self.users is not None:
            is_popular &= series.values[MEASURES.index("users"), after].sum(0) > self.users
        return np.asarray(is_popular, float)


def first_by_bytes(values: Array, count: int) -> Array:
    """Return float64 [datasets], 1 for the ``count`` largest values above 0; of equal
    values the first ones.
    """
    largest = np.argsort(-values, kind="stable")[:count]
    result = np.zeros(len(values))
    result[largest[values[largest] > 0]] = 1
    return result


@dataclass(frozen=True)
class Training:
    """Rows that are learned from: float32 [rows, columns], labels, the number of each
    row's day, and how many datasets each row stands for (1, more for sampled inactive
    ones). ``total``: the rows that there were. ``datasets``: the number of each row's
    dataset.
    """

    rows: Array
    labels: Array
    days: Array
    weights: Array
    columns: list[str]
    total: int
    datasets: Array

    def ages(self) -> Array:
        """Return float64: days between each row and the latest one."""
        return np.asarray(self.days.max() - self.days, float)


@dataclass
class Shared:
    """What the weeks of one series share: the weeks as known on days, features of days,
    and raw forecasts.
    """

    until: dict[int, Weeks] = field(default_factory=dict)
    rows: dict[tuple[int, tuple[str, ...]], tuple[list[str], Array]] = field(default_factory=dict)
    raw: dict[tuple[Any, ...], Array] = field(default_factory=dict)


@dataclass
class Weeks:
    """Features and labels of each day, made once. A day's features come from a series
    that ends before it.

    All is as known at the end of the series: :meth:`until` gives what was known on an earlier day.
    """

    series: Series
    label: Label
    shared: Shared = field(default_factory=Shared)

    def __post_init__(self) -> None:
        # The common tiers and campaigns are those of datasets that the days have.
        self._names = Names(self.series.datasets, self.series.is_known)
        self.columns, _ = features(self.series.until(FIRST_DAY), self._names)

    def until(self, day: int) -> Weeks:
        """Return the weeks as known on that day: no row, no dataset and no table of it
        or of later days.
        """
        if day >= len(self.series.days):
            return self
        if day not in self.shared.until:
            self.shared.until[day] = replace(self, series=self.series.until(day))
        return self.shared.until[day]

    def population(self, day: int) -> Array:
        """Return bool [datasets]: those that had entered before that day."""
        return self.series.population(day)

    def rows(self, day: int) -> Array:
        """Return float64 [datasets, columns] on that day, also of datasets that have not entered."""
        key = (day, tuple(self._names.columns))
        if key not in self.shared.rows:
            computed = features(self.series.until(day), self._names)
            if (len(self.shared.rows) + 1) * len(self.series.datasets) > _MOST_SHARED:
                return computed[1]
            self.shared.rows[key] = computed
        return self.shared.rows[key][1]

    def training(
        self, day: int, *, seed: int = 0, most: int | None = None, may_be_empty: bool = False
    ) -> Training:
        """Return the rows of earlier days whose horizon is over on that day: the
        population of each day, as far as ``most`` (:data:`MOST_ROWS`) allows, else of
        every second to seventh day, then fewer of the inactive datasets, at last fewer
        of all.

        Raises InputMissing (66) if there is none and it may not be empty.
        """
        days = range(FIRST_DAY, day - self.label.days + 1)
        most = most or MOST_ROWS
        if not len(days) and may_be_empty:
            none = np.zeros(0)
            empty = np.zeros((0, len(self.columns)), np.float32)
            return Training(empty, none, none, none, self.columns, 0, none.astype(int))
        if not len(days):
            raise InputMissing(
                f"nothing can be learned for {self.series.days[day] if day < len(self.series.days) else 'that week'}",
                found=f"{pluralize(day, 'day')} before it",
                next_step=f"give at least {FIRST_DAY + self.label.days} days",
            )
        entered = {row_day: np.nonzero(self.population(row_day))[0] for row_day in days}
        total = sum(map(len, entered.values()))
        stride = min(7, max(1, -(-total // most)))
        used = sorted(days[::-1][::stride])
        share = min(1.0, most / max(sum(len(entered[row_day]) for row_day in used), 1))
        generator = np.random.default_rng(seed)
        rows, labels, weights, numbers, datasets = [], [], [], [], []
        for row_day in used:
            chosen, weight = self._sample(row_day, entered[row_day], share, generator)
            rows.append(self.rows(row_day)[chosen].astype(np.float32))
            labels.append(self.label.mark(self.series, row_day)[chosen])
            weights.append(weight)
            datasets.append(chosen)
            numbers.append(np.full(len(weight), row_day))
        parts = [np.concatenate(column) for column in (rows, labels, numbers, weights, datasets)]
        return Training(parts[0], parts[1], parts[2], parts[3], self.columns, total, parts[4])

    def _sample(
        self, day: int, entered: Array, share: float, generator: np.random.Generator
    ) -> tuple[Array, Array]:
        """Return (numbers of datasets, how many each stands for): all active ones, and
        a share of the others; fewer of the active ones, too, where they alone are more
        than twice the share.
        """
        if share >= 1:
            return entered, np.ones(len(entered))
        is_active = (self.series.accesses[max(day - _INACTIVE_DAYS, 0) : day, entered] > 0).any(0)
        allowed = int(share * len(entered))
        active, of_active = _thinned(entered[is_active], max(allowed * 3 // 4, 1), generator)
        inactive, of_inactive = _thinned(
            entered[~is_active], max(allowed - len(active), 1), generator
        )
        return np.concatenate([active, inactive]), np.concatenate([of_active, of_inactive])


def _thinned(numbers: Array, count: int, generator: np.random.Generator) -> tuple[Array, Array]:
    """Return at most ``count`` of the numbers, in their order, and how many each stands for."""
    if len(numbers) <= count:
        return numbers, np.ones(len(numbers))
    chosen = np.sort(generator.choice(numbers, count, replace=False))
    return chosen, np.full(count, len(numbers) / count)
