"""Models behind one interface: fit on (rows, labels), then a probability for each row."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any, Final, Protocol

import numpy as np

from cmsspark.apps.popularity.training import Label, Training, first_by_bytes
from cmsspark.base import extras
from cmsspark.base.arrays import Array
from cmsspark.base.errors import UsageError

_RIDGE: Final = 30.0
_BOOSTING: Final = {
    "max_depth": 2,
    "eta": 0.05,
    "subsample": 0.7,
    "colsample_bytree": 0.4,
    "min_child_weight": 8,
    "reg_lambda": 5,
}
_BOOSTING_ROUNDS: Final = 120
#: Days after which a row counts half in boosting; a forest gains nothing by it.
_HALF_LIFE: Final = 14.0
_FOREST: Final = {
    "max_depth": 5,
    "eta": 1.0,
    "subsample": 0.6,
    "colsample_bynode": 0.15,
    "min_child_weight": 10,
    "num_parallel_tree": 300,
}


class Model(Protocol):
    """``fit``, then ``predict(rows)``: float64 probabilities, one a row.

    ``contributions(rows)``: by how much each column moved the logarithm of the odds,
    [rows, columns]; None where the model cannot say.

    ``fit`` gets ``training``: its columns' names, labels, how many datasets each row
    stands for, ages of rows in days.
    """

    def fit(self, training: Training, seed: int) -> None: ...
    def predict(self, rows: Array) -> Array: ...
    def contributions(self, rows: Array) -> Array | None: ...


def sigmoid(values: Array) -> Array:
    """Return the logistic function, without overflow."""
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -30, 30))))


def logistic_weights(
    rows: Array, labels: Array, penalty: Array, start: Array, counts: Array | None = None
) -> Array:
    """Weights of a logistic regression, float64 as the columns: Newton's steps from
    ``start``, halved until they help.

    ``penalty``: what the square of each weight's distance from ``start`` costs, times
    two. ``counts``: how often each row counts.
    """
    counts = np.ones(len(rows)) if counts is None else counts
    weights, loss = start.copy(), _loss(rows, labels, penalty, start, start, counts)
    for _ in range(50):
        expected = sigmoid(rows @ weights)
        slope = rows.T @ (counts * (expected - labels)) + penalty * (weights - start)
        curvature = (rows * (counts * expected * (1 - expected))[:, None]).T @ rows + np.diag(
            penalty
        )
        step = np.linalg.solve(curvature, slope)
        for _ in range(30):
            following = _loss(rows, labels, penalty, start, weights - step, counts)
            if following <= loss:
                break
            step = step / 2
        else:
            break
        weights, loss = weights - step, following
        if np.abs(step).max() < 1e-7:
            break
    return weights


def _loss(
    rows: Array, labels: Array, penalty: Array, start: Array, weights: Array, counts: Array
) -> float:
    odds = rows @ weights
    return float(
        (counts * (np.logaddexp(0, odds) - labels * odds)).sum()
        + (penalty * (weights - start) ** 2).sum() / 2
    )


class Persistence:
    """What was popular in the last weeks will be, by the same rule; weeks: the longest
    window of the features that the horizon holds (1, 2, 4, 8 or 26 weeks; for bytes and
    users 1 or 4), the threshold in its share.
    """

    def __init__(self, label: Label) -> None:
        self._label = label

    def fit(self, training: Training, seed: int) -> None:
        self._columns = training.columns

    def predict(self, rows: Array) -> Array:
        label = self._label
        if label.top_bytes is not None:
            return first_by_bytes(self._window("bytes", rows)[0], label.top_bytes)
        values, share = self._window("accesses", rows)
        is_popular = values > np.log1p(label.threshold * share)
        if label.users is not None:
            values, share = self._window("users", rows)
            is_popular &= values > np.log1p(label.users * share)
        return np.asarray(is_popular, float)

    def contributions(self, rows: Array) -> None:
        return None

    def _window(self, measure: str, rows: Array) -> tuple[Array, float]:
        """Return the column of the longest window within the horizon, and its share of it."""
        names = {days: f"log_{measure}_{days}d" for days in (7, 14, 28, 56, 182)}
        days = max(
            days
            for days, name in names.items()
            if days <= self._label.days and name in self._columns
        )
        return rows[:, self._columns.index(names[days])], days / self._label.days


class Logistic:
    """Logistic regression on standardised columns; ``only`` names the columns that it sees."""

    def __init__(self, only: Sequence[str] = ()) -> None:
        self._only = only

    def fit(self, training: Training, seed: int) -> None:
        rows, columns = training.rows, training.columns
        self._chosen = [columns.index(name) for name in self._only] or list(range(len(columns)))
        chosen = rows[:, self._chosen]
        self._mean, self._spread = chosen.mean(0), chosen.std(0) + 1e-9
        standard = self._standard(rows)
        # The last column is the constant, which is free.
        penalty = np.append(np.full(standard.shape[1] - 1, _RIDGE), 1e-6)
        start = np.zeros(standard.shape[1])
        self._weights = logistic_weights(
            standard, training.labels, penalty, start, training.weights
        )

    def predict(self, rows: Array) -> Array:
        return sigmoid(self._standard(rows) @ self._weights)

    def contributions(self, rows: Array) -> Array:
        moved = np.zeros(rows.shape)
        moved[:, self._chosen] = self._standard(rows)[:, :-1] * self._weights[:-1]
        return moved

    def _standard(self, rows: Array) -> Array:
        standard = (rows[:, self._chosen] - self._mean) / self._spread
        return np.concatenate([standard, np.ones((len(rows), 1))], axis=1)


class Trees:
    """Gradient boosting, or a random forest, by xgboost. ``half_life``: days after
    which a row counts half.
    """

    def __init__(self, options: Mapping[str, Any], rounds: int, half_life: float = np.inf) -> None:
        self._options, self._rounds, self._half_life = options, rounds, half_life

    def fit(self, training: Training, seed: int) -> None:
        xgboost = load_xgboost()
        rows, labels = training.rows, training.labels
        weights = training.weights * np.exp2(-training.ages() / self._half_life)
        options = {
            "objective": "binary:logistic",
            "tree_method": "hist",
            "seed": seed,
            "nthread": 1,
            "base_score": float(np.clip(np.average(labels, weights=weights), 1e-3, 1 - 1e-3)),
            **self._options,
        }
        self._trees = xgboost.train(
            options, xgboost.DMatrix(rows, labels, weight=weights), self._rounds
        )

    def predict(self, rows: Array) -> Array:
        return np.asarray(self._trees.predict(load_xgboost().DMatrix(rows)), float)

    def contributions(self, rows: Array) -> Array:
        # The paths through the trees, without the average over orders of columns, which
        # takes minutes for forests.
        matrix = load_xgboost().DMatrix(rows)
        return np.asarray(
            self._trees.predict(matrix, pred_contribs=True, approx_contribs=True)[:, :-1], float
        )


class Blend:
    """The mean of several models' probabilities."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = models

    def fit(self, training: Training, seed: int) -> None:
        for number, model in enumerate(self._models):
            model.fit(training, seed + number)

    def predict(self, rows: Array) -> Array:
        return np.asarray(np.mean([model.predict(rows) for model in self._models], axis=0))

    def contributions(self, rows: Array) -> Array | None:
        moved = [part for model in self._models if (part := model.contributions(rows)) is not None]
        return np.asarray(np.mean(moved, axis=0)) if moved else None


_AVERAGE: Final = ("log_accesses_1d", "log_accesses_3d", "log_accesses_7d", "log_accesses_14d")


def _measure(label: Label) -> str:
    return "accesses" if label.top_bytes is None else "bytes"


MODELS: Final[dict[str, Callable[[Label], Model]]] = {
    "persistence": lambda label: Persistence(label),
    "last-week": lambda label: Logistic([f"log_{_measure(label)}_7d"]),
    "decayed": lambda label: Logistic([f"log_{_measure(label)}_decayed"]),
    "average": lambda label: Logistic(_AVERAGE),
    "logistic": lambda label: Logistic(),
    "forest": lambda label: Trees(_FOREST, 1),
    "boosting": lambda label: Trees(_BOOSTING, _BOOSTING_ROUNDS, _HALF_LIFE),
    "blend": lambda label: Blend(
        [Trees(_FOREST, 1), Trees(_BOOSTING, _BOOSTING_ROUNDS, _HALF_LIFE)]
    ),
}
ABOUT: Final = {
    "persistence": "popular last week, popular next week",
    "last-week": "by the accesses, or bytes, of the last week",
    "decayed": "by the mean accesses, or bytes, of the last days, half the weight for each two days",
    "average": "logistic regression on accesses of the last 1, 3, 7 and 14 days",
    "logistic": "logistic regression on all features",
    "forest": "random forest (xgboost)",
    "boosting": "gradient boosting (xgboost)",
    "blend": "the mean of forest and boosting",
}


def check_model(name: str) -> None:
    """Raise UsageError (2) for a name of no model."""
    if name not in MODELS:
        raise UsageError(f"there is no model {name!r}", next_step=f"one of {', '.join(MODELS)}")


def make_model(name: str, label: Label) -> Model:
    """Return a model by name. Raises UsageError (2) for another name."""
    check_model(name)
    return MODELS[name](label)


def load_xgboost() -> Any:
    """Return the module. Raises UsageError (2) where it is missing."""
    extras.require(
        "trees need", "xgboost", extra="popularity", alternative=", or --model logistic"
    )
    import xgboost

    return xgboost
