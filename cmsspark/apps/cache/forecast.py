"""Scores for :mod:`cmsspark.apps.cache.replay` from a trace's own past: the share of
the coming days on which an object is likely to be requested. No score of a day uses
that day or a later one.
"""

from __future__ import annotations

from typing import Final

import numpy as np

from cmsspark.base.arrays import Array, Ints

DAY_MS: Final = 86_400_000
HORIZON: Final = 7
#: Times that are divided together: whole columns would be in memory twice more.
_PIECE: Final = 1 << 20
#: Half-lives, in days, of the decayed shares of days on which an object was requested.
_HALF_LIVES: Final = np.array([1, 2, 4, 8, 16, 32], float)
#: Objects of a day that the model learns from, at most; a logistic model of nine
#: numbers needs no more.
_ROWS_OF_DAY: Final = 5_000
_RIDGE: Final = 1.0
#: What is assumed before anything is known, and its weight in days.
_PRIOR: Final = (0.5, 0.5)


def number_days(times_ms: Array) -> Ints:
    """Return the day of each request, from 0, UTC; int32 as ``times_ms``, which ascends."""
    if not len(times_ms):
        return np.zeros(0, np.int32)
    first = int(times_ms[0]) // DAY_MS
    days = np.empty(len(times_ms), np.int32)
    for start in range(0, len(days), _PIECE):
        days[start : start + _PIECE] = times_ms[start : start + _PIECE] // DAY_MS - first
    return days


class _History:
    """What is known of each object at the start of a day."""

    def __init__(self, count: int) -> None:
        self.is_seen = np.zeros(count, bool)
        self.requested = np.zeros((len(_HALF_LIVES), count))
        self.weight = np.zeros((len(_HALF_LIVES), count))
        self.idle_days = np.zeros(count)
        self.age_days = np.zeros(count)

    def features(self, items: Array) -> Array:
        """Return float64 [items, 9]: decayed shares of days, log of idle and age days, and 1."""
        prior, weight = _PRIOR
        shares = (self.requested[:, items] + prior * weight) / (self.weight[:, items] + weight)
        logs = [
            np.log1p(self.idle_days[items]),
            np.log1p(self.age_days[items]),
            np.ones(len(items)),
        ]
        return np.concatenate([shares.T, np.stack(logs, axis=1)], axis=1)

    def end_day(self, is_requested: Array) -> None:
        """Take in the requests of a day that is over."""
        self.is_seen |= is_requested
        decay = (0.5 ** (1 / _HALF_LIVES))[:, None]
        self.requested = self.requested * decay + is_requested
        self.weight = (self.weight * decay + 1) * self.is_seen
        self.idle_days = np.where(is_requested, 0, self.idle_days + 1)
        self.age_days = np.where(self.is_seen, self.age_days + 1, 0)


def learned_scores(objects: Ints, periods: Ints, object_count: int) -> Array:
    """Return float64 [days, objects]: the expected share of the :data:`HORIZON` days
    from that day on with a request.

    A logistic model is fitted at the start of each day on earlier days whose horizon is
    over; before there is one, the decayed share of four days stands for it. An object
    that was never requested has the share of such objects so far.
    """
    day_count = int(periods[-1]) + 1 if len(periods) else 0
    scores = np.zeros((day_count, object_count))
    generator = np.random.default_rng(0)
    history = _History(object_count)
    requested_days = [np.zeros(object_count)]  # up to the start of each day
    rows: list[tuple[Array, Array]] = []
    firsts: list[Array] = []
    examples: list[tuple[Array, Array]] = []
    new_sum = new_count = 0.0
    model: Array | None = None
    starts = np.searchsorted(periods, np.arange(day_count + 1))
    for day in range(day_count):
        learned = day - HORIZON
        if learned >= 0:
            share = (requested_days[day] - requested_days[learned]) / HORIZON
            items, features = rows[learned]
            examples.append((features, share[items]))
            rows[learned] = (items[:0], features[:0])
        if learned >= 1:
            share = (requested_days[day] - requested_days[learned]) / HORIZON
            new_sum += float(share[firsts[learned - 1]].sum())
            new_count += len(firsts[learned - 1])
        if day > HORIZON:
            requested_days[day - HORIZON - 1] = requested_days[day][:0]
        seen = np.nonzero(history.is_seen)[0]
        features = history.features(seen)
        scores[day] = new_sum / new_count if new_count else _PRIOR[0]
        model = _fit(examples, model)
        scores[day, seen] = _sigmoid(features @ model) if model is not None else features[:, 2]
        chosen = np.arange(len(seen))
        if len(seen) > _ROWS_OF_DAY:
            chosen = generator.choice(len(seen), _ROWS_OF_DAY, replace=False)
        rows.append((seen[chosen], features[chosen]))
        is_requested = np.zeros(object_count, bool)
        is_requested[objects[starts[day] : starts[day + 1]]] = True
        firsts.append(np.nonzero(is_requested & ~history.is_seen)[0])
        history.end_day(is_requested)
        requested_days.append(requested_days[day] + is_requested)
    return scores


def _sigmoid(values: Array) -> Array:
    return np.asarray(1 / (1 + np.exp(-np.clip(values, -30, 30))))


def _fit(examples: list[tuple[Array, Array]], start: Array | None) -> Array | None:
    """Logistic regression on shares by Newton's steps from ``start``, with a ridge;
    None without examples.
    """
    features = [rows for rows, _ in examples if len(rows)]
    if not features:
        return None
    inputs, target = (
        np.concatenate(features),
        np.concatenate([share for rows, share in examples if len(rows)]),
    )
    model = np.zeros(inputs.shape[1]) if start is None else start.copy()
    for _ in range(15):
        expected = _sigmoid(inputs @ model)
        slope = inputs.T @ (expected - target) + _RIDGE * model
        curvature = (inputs * (expected * (1 - expected))[:, None]).T @ inputs + _RIDGE * np.eye(
            len(model)
        )
        step = np.linalg.solve(curvature, slope)
        # A whole step may overshoot; half of it, or less, always helps.
        before = _loss(inputs, target, model)
        while _loss(inputs, target, model - step) > before and np.abs(step).max() >= 1e-6:
            step = step / 2
        model = model - step
        if np.abs(step).max() < 1e-6:
            break
    return model


def _loss(inputs: Array, target: Array, model: Array) -> float:
    odds = inputs @ model
    return float((np.logaddexp(0, odds) - target * odds).sum() + _RIDGE * (model**2).sum() / 2)
