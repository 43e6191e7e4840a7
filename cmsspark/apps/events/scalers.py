"""Scalers: a curve for each high-level feature, mean and deviation of each feature of
particles.

They are fitted on the part ``train`` of a sample only. Padding, rows of a matrix that
are all zero, neither counts nor changes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass, replace
from pathlib import Path
from statistics import NormalDist
from typing import Any, Final, Self

import numpy as np

from cmsspark.apps.events.layout import SCALERS_FILE, EventLayout, layout_in, read_file
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError

#: Events that curves are fitted to, the first of a sample: these are a random choice.
CURVE_EVENTS: Final = 50_000
#: Deviations from its mean within which all values of a feature without tails lie. Its
#: curve is a line: what is linear in it would be bent by quantiles. Counts of what is
#: rare have few values, and lie within more.
_LINE: Final = 6.0
_LINE_OF_COUNTS: Final = 12.0
#: Heights of the knots of a curve, in deviations of a normal distribution.
_HEIGHTS: Final = np.linspace(-3.5, 3.5, 36)
#: Share of the events that has a value which stands for "not known".
_SENTINEL_SHARE: Final = 0.002


@dataclass(frozen=True)
class Curve:
    """How a feature is scaled: linear between knots, constant outside of them.

    Values have mean 0 and deviation 1. A feature without tails has a line. Heights of
    others are those of a normal distribution of the same quantiles, so that a heavy tail
    is as wide as any other. ``sentinel``: a value that stands for "not known", such as
    −999. It becomes 0, and networks have an input that says so. ``sentinel_share``: the
    share of events that have it.
    """

    knots: Array
    heights: Array
    sentinel: float | None = None
    sentinel_share: float = 0.0

    @classmethod
    def fit(cls, values: Array) -> Self:
        """Return the curve of a feature with these values.

        Example:
            >>> curve = Curve.fit(np.array([-999.0] * 10 + [1.0, 2.0, 4.0, 8.0, 16.0] * 20))
            >>> curve.sentinel, round(curve.sentinel_share, 2)
            (-999.0, 0.09)
        """
        values = np.asarray(values, np.float64)
        sentinel = find_sentinel(values)
        measured = values if sentinel is None else values[values != sentinel]
        share = 0.0 if sentinel is None else 1 - len(measured) / len(values)
        mean, deviation = measured.mean(), measured.std()
        is_count = len(np.unique(measured)) <= len(_HEIGHTS)
        limit = _LINE_OF_COUNTS if is_count else _LINE
        if 0 < np.abs(measured - mean).max() <= limit * deviation:
            ends = np.array([-limit, limit])
            return cls(mean + ends * deviation, ends, sentinel, share)
        probabilities = np.array([NormalDist().cdf(height) for height in _HEIGHTS])
        probabilities[[0, -1]] = 0.0, 1.0
        quantiles = np.quantile(measured, probabilities)
        # A value that many events share has several quantiles, and the mean of their heights.
        knots, numbers = np.unique(quantiles, return_inverse=True)
        heights = np.bincount(numbers, _HEIGHTS) / np.bincount(numbers)
        scaled = np.interp(measured, knots, heights)
        deviation = scaled.std()
        heights = (heights - scaled.mean()) / deviation if deviation > 0 else heights * 0.0
        return cls(knots, heights, sentinel, share)

    @property
    def shape(self) -> str:
        """What the feature is scaled by, for the card of a model."""
        sizes = {1: "nothing, as constant", 2: "a line"}
        return sizes.get(len(self.knots), "quantiles")

    def scale(self, values: Array) -> Array:
        """Return values of the feature, scaled."""
        scaled = np.interp(values, self.knots, self.heights)
        return scaled if self.sentinel is None else np.where(values == self.sentinel, 0.0, scaled)

    def as_dict(self) -> dict[str, Any]:
        """Return what ``scalers.json`` has of a curve."""
        return {
            "knots": self.knots.tolist(),
            "heights": self.heights.tolist(),
            "sentinel": self.sentinel,
            "sentinel_share": self.sentinel_share,
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Self:
        """Return the curve of :meth:`as_dict`. Raises KeyError, TypeError, ValueError."""
        knots, heights = (np.asarray(document[name], np.float64) for name in ("knots", "heights"))
        if knots.ndim != 1 or not knots.size or knots.shape != heights.shape:
            raise ValueError("a curve has a height for each knot")
        if not (np.diff(knots) > 0).all() or not np.isfinite([knots, heights]).all():
            raise ValueError("the knots of a curve rise")
        sentinel = document["sentinel"]
        return cls(
            knots,
            heights,
            None if sentinel is None else float(sentinel),
            float(document["sentinel_share"]),
        )


def find_sentinel(values: Array) -> float | None:
    """Return the value of a feature that stands for "not known", or None.

    It is the smallest or the largest value, whole, shared by some events in a thousand,
    and apart from the others: by more than half of their range, or below 0 if no other
    is.
    """
    distinct, counts = np.unique(values, return_counts=True)
    if len(distinct) < 4:
        return None
    for extreme, remaining in ((0, slice(1, None)), (-1, slice(None, -1))):
        value, usual = float(distinct[extreme]), distinct[remaining]
        if counts[extreme] < max(5, _SENTINEL_SHARE * len(values)) or not value.is_integer():
            continue
        low, high = np.quantile(values[values != value], (0.01, 0.99))
        if np.abs(usual - value).min() > (high - low) / 2 or (value < 0 and usual[0] >= 0):
            return value
    return None


@dataclass(frozen=True)
class Scalers:
    """The scalers of a sample. ``mean`` and ``std`` are None without the matrix of particles.

    ``mean_weights``: the mean weight of the events of each class; None where events
    have no weights. ``curves``: how each high-level feature is scaled; None in samples
    and models of earlier versions, whose features are scaled by minimum and maximum.
    """

    minimum: Array
    maximum: Array
    mean: Array | None = None
    std: Array | None = None
    mean_weights: Array | None = None
    curves: tuple[Curve, ...] | None = None

    @property
    def sentinels(self) -> dict[int, Curve]:
        """The curves of the features that have a sentinel, by their number."""
        curves = enumerate(self.curves or ())
        return {number: curve for number, curve in curves if curve.sentinel is not None}

    @property
    def input_count(self) -> int:
        """The width of :meth:`inputs`."""
        return len(self.minimum) + len(self.sentinels)

    def with_curves(self, hlf: Array) -> Self:
        """Return these scalers with curves that are fitted to events of ``train``."""
        return replace(self, curves=tuple(Curve.fit(column) for column in hlf.T))

    def inputs(self, values: Array) -> Array:
        """Return what networks read of high-level features ``(n, features)``: scaled,
        and for each feature with a sentinel 1 where it stands.
        """
        flags = [values[:, number] == curve.sentinel for number, curve in self.sentinels.items()]
        return np.column_stack([self.hlf(values), *flags]).astype(np.float32)

    def weights(self, labels: Array, weights: Array) -> Array:
        """Return weights whose mean is 1 in each class, so that classes of a sample
        have equal sums.
        """
        if self.mean_weights is None:
            return np.ones(len(labels))
        return np.asarray(weights / self.mean_weights[labels])

    def hlf(self, values: Array) -> Array:
        """Return high-level features ``(n, features)`` scaled by their curves, as float32.

        Without curves those of ``train`` are in [0, 1].
        """
        if self.curves is not None:
            columns = zip(self.curves, np.asarray(values, np.float64).T, strict=True)
            scaled = np.stack([curve.scale(column) for curve, column in columns], axis=-1)
            return scaled.astype(np.float32)
        span = self.maximum - self.minimum
        scaled = (np.asarray(values, np.float64) - self.minimum) / np.where(span > 0, span, 1.0)
        return np.where(span > 0, scaled, 0.0).astype(np.float32)

    def low_level(self, values: Array) -> Array:
        """Return particles ``(…, columns)`` with mean 0 and deviation 1, in single
        precision.

        Padding stays 0. Raises DataError (65) where the sample had no matrices.
        """
        if self.mean is None or self.std is None:
            raise DataError(
                "these scalers are not for particles", found="a sample without --low-level"
            )
        values = np.asarray(values, np.float32)
        std = np.where(self.std > 0, self.std, 1.0).astype(np.float32)
        scaled: Array = values - self.mean.astype(np.float32)
        scaled /= std
        scaled[..., self.std <= 0] = 0.0
        scaled[~values.any(axis=-1)] = 0.0
        return scaled

    def as_dict(self) -> dict[str, Any]:
        """Return the content of ``scalers.json``."""
        low_level = None
        if self.mean is not None and self.std is not None:
            low_level = {"mean": self.mean.tolist(), "std": self.std.tolist()}
        hlf: dict[str, Any] = {
            "minimum": self.minimum.tolist(),
            "maximum": self.maximum.tolist(),
        }
        if self.curves is not None:
            hlf["curves"] = [curve.as_dict() for curve in self.curves]
        means = None if self.mean_weights is None else self.mean_weights.tolist()
        return {"format_version": 1, "hlf": hlf, "low_level": low_level, "mean_weights": means}

    @classmethod
    def from_json(cls, text: bytes, where: object = None) -> Self:
        """Return the scalers of a ``scalers.json``. Raises DataError (65) where it is none."""
        try:
            document = json.loads(text)
            hlf, low_level = document["hlf"], document["low_level"]
            parts = [
                np.asarray(hlf["minimum"], np.float64),
                np.asarray(hlf["maximum"], np.float64),
            ]
            sizes = [parts[0].size, parts[0].size]
            if low_level is not None:
                parts += [
                    np.asarray(low_level["mean"], np.float64),
                    np.asarray(low_level["std"], np.float64),
                ]
                sizes += [parts[2].size, parts[2].size]
            if [part.shape for part in parts] != [(size,) for size in sizes]:
                raise ValueError(f"the lists have not {sizes} numbers")
            curves = hlf.get("curves")
            if curves is not None:
                curves = tuple(Curve.from_dict(curve) for curve in curves)
                if len(curves) != sizes[0]:
                    raise ValueError(f"there are {len(curves)} curves of {sizes[0]} features")
            means = document["mean_weights"]
            mean_weights = None if means is None else np.asarray(means, np.float64)
        except (AttributeError, KeyError, TypeError, ValueError) as error:
            raise DataError("these are not scalers", where=where, found=str(error)) from None
        mean, std = parts[2:] or (None, None)
        return cls(parts[0], parts[1], mean, std, mean_weights, curves)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the scalers of a sample's or a model's folder on this host.

        Raises InputMissing (66), DataError (65).
        """
        path = Path(folder, SCALERS_FILE)
        scalers, layout = (
            cls.from_json(read_file(path, "no scalers"), path),
            layout_in(Path(folder)),
        )
        sizes = (len(scalers.minimum), 0 if scalers.mean is None else len(scalers.mean))
        if sizes[0] != layout.hlf_count or sizes[1] not in (0, len(layout.columns)):
            expected = f"{layout.hlf_count} features and {len(layout.columns)} columns"
            raise DataError(
                "these scalers are not of these events",
                where=path,
                found=f"{sizes}, not {expected}",
            )
        return scalers


@dataclass
class Moments:
    """Sums over the events of a part; those of several parts add up to the scalers of all."""

    minimum: Array
    maximum: Array
    mean: Array
    #: Sums of squared differences from the mean.
    squares: Array
    count: int = 0

    @classmethod
    def empty(cls, layout: EventLayout) -> Self:
        """Return the sums over no event."""
        features, columns = layout.hlf_count, len(layout.columns)
        return cls(
            np.full(features, np.inf),
            np.full(features, -np.inf),
            np.zeros(columns),
            np.zeros(columns),
        )

    def add(self, hlf: Array, low_level: Array | None) -> None:
        """Add events: ``(n, features)`` and ``(n, rows, columns)`` or None."""
        if len(hlf):
            self.minimum = np.minimum(self.minimum, hlf.min(axis=0))
            self.maximum = np.maximum(self.maximum, hlf.max(axis=0))
        if low_level is not None:
            particles = low_level[low_level.any(axis=-1)].astype(np.float64)
            if len(particles):
                mean = particles.mean(axis=0)
                self._merge(len(particles), mean, ((particles - mean) ** 2).sum(axis=0))

    def merge(self, moments: Moments) -> None:
        """Add what another part has."""
        self.minimum = np.minimum(self.minimum, moments.minimum)
        self.maximum = np.maximum(self.maximum, moments.maximum)
        if moments.count:
            self._merge(moments.count, moments.mean, moments.squares)

    def _merge(self, count: int, mean: Array, squares: Array) -> None:
        # Chan's formula: stable where the mean is large beside the deviation.
        total, delta = self.count + count, mean - self.mean
        self.squares = self.squares + squares + delta**2 * (self.count * count / total)
        self.mean = self.mean + delta * (count / total)
        self.count = total

    def scalers(self, *, low_level: bool) -> Scalers:
        """Return the scalers of all events that were added."""
        if not low_level:
            return Scalers(self.minimum, self.maximum)
        return Scalers(
            self.minimum, self.maximum, self.mean, np.sqrt(self.squares / max(1, self.count))
        )

    def as_dict(self) -> dict[str, Any]:
        """Return the sums as JSON can hold them."""
        return {name: np.asarray(sums).tolist() for name, sums in vars(self).items()}

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Self:
        """Return the sums of :meth:`as_dict`."""
        arrays: Any = {name: np.asarray(sums, np.float64) for name, sums in document.items()}
        return replace(cls(**arrays), count=document["count"])
