"""Models behind one interface: fit on (rows, labels), then a probability for each row."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Final, Protocol

import numpy as np

from cmsspark.errors import UsageError

Array = np.ndarray[Any, Any]

_RIDGE: Final = 30.0
_BOOSTING: Final = {
    "max_depth": 3,
    "eta": 0.05,
    "subsample": 0.7,
    "colsample_bytree": 0.4,
    "min_child_weight": 8,
    "reg_lambda": 5,
}
_BOOSTING_ROUNDS: Final = 150
_FOREST: Final = {
    "max_depth": 7,
    "eta": 1.0,
    "subsample": 0.6,
    "colsample_bynode": 0.3,
    "min_child_weight": 2,
    "num_parallel_tree": 200,
}


class Model(Protocol):
    """``fit(rows, labels, columns, seed)``, then ``predict(rows)``: float64 probabilities, one a row."""

    def fit(self, rows: Array, labels: Array, columns: Sequence[str], seed: int) -> None: ...
    def predict(self, rows: Array) -> Array: ...


def sigmoid(values: Array) -> Array:
    """The logistic function, without overflow."""
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -30, 30))))


def logistic_weights(rows: Array, labels: Array, penalty: Array, start: Array) -> Array:
    """Weights of a logistic regression, float64 as the columns: Newton's steps from ``start``, halved until they help.

    ``penalty``: what the square of each weight's distance from ``start`` costs, times two.
    """
    weights, loss = start.copy(), _loss(rows, labels, penalty, start, start)
    for _ in range(50):
        expected = sigmoid(rows @ weights)
        slope = rows.T @ (expected - labels) + penalty * (weights - start)
        curvature = (rows * (expected * (1 - expected))[:, None]).T @ rows + np.diag(penalty)
        step = np.linalg.solve(curvature, slope)
        for _ in range(30):
            following = _loss(rows, labels, penalty, start, weights - step)
            if following <= loss:
                break
            step = step / 2
        else:
            break
        weights, loss = weights - step, following
        if np.abs(step).max() < 1e-7:
            break
    return weights


def _loss(rows: Array, labels: Array, penalty: Array, start: Array, weights: Array) -> float:
    odds = rows @ weights
    return float((np.logaddexp(0, odds) - labels * odds).sum() + (penalty * (weights - start) ** 2).sum() / 2)


class Logistic:
    """Logistic regression on standardised columns; ``only`` names the columns that it sees."""

    def __init__(self, only: Sequence[str] = ()) -> None:
        self._only = only

    def fit(self, rows: Array, labels: Array, columns: Sequence[str], seed: int) -> None:
        self._chosen = [columns.index(name) for name in self._only] or list(range(len(columns)))
        chosen = rows[:, self._chosen]
        self._mean, self._spread = chosen.mean(0), chosen.std(0) + 1e-9
        standard = self._standard(rows)
        # The last column is the constant, which is free.
        penalty = np.append(np.full(standard.shape[1] - 1, _RIDGE), 1e-6)
        self._weights = logistic_weights(standard, labels, penalty, np.zeros(standard.shape[1]))

    def predict(self, rows: Array) -> Array:
        return sigmoid(self._standard(rows) @ self._weights)

    def _standard(self, rows: Array) -> Array:
        standard = (rows[:, self._chosen] - self._mean) / self._spread
        return np.concatenate([standard, np.ones((len(rows), 1))], axis=1)


class Persistence:
    """What was popular in the last week will be: the labels are those of the same rule one week earlier."""

    def __init__(self, threshold: float) -> None:
        self._least = np.log1p(threshold)

    def fit(self, rows: Array, labels: Array, columns: Sequence[str], seed: int) -> None:
        self._column = columns.index("accesses_7d")

    def predict(self, rows: Array) -> Array:
        return np.asarray(rows[:, self._column] > self._least, float)


class Trees:
    """Gradient boosting, or a random forest, by xgboost."""

    def __init__(self, options: dict[str, Any], rounds: int) -> None:
        self._options, self._rounds = options, rounds

    def fit(self, rows: Array, labels: Array, columns: Sequence[str], seed: int) -> None:
        xgboost = _xgboost()
        options = {
            "objective": "binary:logistic",
            "tree_method": "hist",
            "seed": seed,
            "nthread": 1,
            "base_score": float(np.clip(labels.mean(), 1e-3, 1 - 1e-3)),
            **self._options,
        }
        self._trees = xgboost.train(options, xgboost.DMatrix(rows, labels), self._rounds)

    def predict(self, rows: Array) -> Array:
        return np.asarray(self._trees.predict(_xgboost().DMatrix(rows)), float)


class Blend:
    """The mean of several models' probabilities."""

    def __init__(self, models: Sequence[Model]) -> None:
        self._models = models

    def fit(self, rows: Array, labels: Array, columns: Sequence[str], seed: int) -> None:
        for number, model in enumerate(self._models):
            model.fit(rows, labels, columns, seed + number)

    def predict(self, rows: Array) -> Array:
        return np.asarray(np.mean([model.predict(rows) for model in self._models], axis=0))


def _boosting() -> Trees:
    return Trees(_BOOSTING, _BOOSTING_ROUNDS)


def _forest() -> Trees:
    return Trees(_FOREST, 1)


_AVERAGE: Final = ("accesses_1d", "accesses_3d", "accesses_7d", "accesses_14d")
MODELS: Final[dict[str, Callable[[float], Model]]] = {
    "persistence": Persistence,
    "average": lambda threshold: Logistic(_AVERAGE),
    "logistic": lambda threshold: Logistic(),
    "forest": lambda threshold: _forest(),
    "boosting": lambda threshold: _boosting(),
    "blend": lambda threshold: Blend([Logistic(), _forest(), _boosting()]),
}
ABOUT: Final = {
    "persistence": "popular last week, popular next week",
    "average": "logistic regression on accesses of the last 1, 3, 7 and 14 days",
    "logistic": "logistic regression on all features",
    "forest": "random forest (xgboost)",
    "boosting": "gradient boosting (xgboost)",
    "blend": "the mean of logistic, forest and boosting",
}


def make_model(name: str, threshold: float) -> Model:
    """A model by name. Raises UsageError (2) for another name."""
    if name not in MODELS:
        raise UsageError(f"there is no model {name!r}", next_step=f"one of {', '.join(MODELS)}")
    return MODELS[name](threshold)


def _xgboost() -> Any:
    try:
        import xgboost
    except ImportError:
        raise UsageError(
            "trees need xgboost",
            found="xgboost is missing",
            next_step="pip install 'cmsspark[popularity]', or --model logistic",
        ) from None
    return xgboost
