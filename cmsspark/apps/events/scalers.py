"""Scalers: minimum and maximum of each high-level feature, mean and deviation of each
feature of particles.

They are fitted on the part ``train`` of a sample only. Padding, rows of a matrix that
are all zero, neither counts nor changes.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Self

import numpy as np

from cmsspark.apps.events.layout import EventLayout, layout_in
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError, InputMissing

SCALERS_FILE: Final = "scalers.json"


@dataclass(frozen=True)
class Scalers:
    """The scalers of a sample. ``mean`` and ``std`` are None without the matrix of particles.

    ``mean_weights``: the mean weight of the events of each class; None where events
    have no weights.
    """

    minimum: Array
    maximum: Array
    mean: Array | None = None
    std: Array | None = None
    mean_weights: Array | None = None

    def weights(self, labels: Array, weights: Array) -> Array:
        """Return weights whose mean is 1 in each class, so that classes of a sample
        have equal sums.
        """
        if self.mean_weights is None:
            return np.ones(len(labels))
        return np.asarray(weights / self.mean_weights[labels])

    def hlf(self, values: Array) -> Array:
        """Return high-level features ``(n, features)`` scaled so that those of
        ``train`` are in [0, 1], as float32.
        """
        span = self.maximum - self.minimum
        scaled = (np.asarray(values, np.float64) - self.minimum) / np.where(span > 0, span, 1.0)
        return np.where(span > 0, scaled, 0.0).astype(np.float32)

    def low_level(self, values: Array) -> Array:
        """Return matrices ``(n, rows, columns)`` with mean 0 and deviation 1 over
        particles, in single precision.

        Padding stays 0. Raises DataError (65) where the sample had no matrices.
        """
        if self.mean is None or self.std is None:
            raise DataError(
                "these scalers are not for particles", found="a sample without --low-level"
            )
        values = np.asarray(values, np.float32)
        std = np.where(self.std > 0, self.std, 1.0).astype(np.float32)
        scaled = (values - self.mean.astype(np.float32)) / std
        scaled[..., self.std <= 0] = 0.0
        scaled[~values.any(axis=-1)] = 0.0
        return scaled

    def as_dict(self) -> dict[str, Any]:
        """Return the content of ``scalers.json``."""
        low_level = None
        if self.mean is not None and self.std is not None:
            low_level = {"mean": self.mean.tolist(), "std": self.std.tolist()}
        hlf = {"minimum": self.minimum.tolist(), "maximum": self.maximum.tolist()}
        means = None if self.mean_weights is None else self.mean_weights.tolist()
        return {"format_version": 1, "hlf": hlf, "low_level": low_level, "mean_weights": means}

    @classmethod
    def from_dict(cls, document: dict[str, Any], where: object = None) -> Self:
        """Return the scalers of a ``scalers.json``. Raises DataError (65) where it is none."""
        try:
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
            means = document["mean_weights"]
            mean_weights = None if means is None else np.asarray(means, np.float64)
        except (KeyError, TypeError, ValueError) as error:
            raise DataError("these are not scalers", where=where, found=str(error)) from None
        mean, std = parts[2:] or (None, None)
        return cls(parts[0], parts[1], mean, std, mean_weights)

    @classmethod
    def load(cls, folder: str | Path) -> Self:
        """Return the scalers of a sample's or a model's folder on this host.

        Raises InputMissing (66), DataError (65).
        """
        path = Path(folder, SCALERS_FILE)
        try:
            document = json.loads(path.read_text(encoding="utf-8"))
        except FileNotFoundError:
            raise InputMissing(
                "no scalers", where=path, next_step="name the folder of a sample"
            ) from None
        except ValueError as error:
            raise DataError("these are not scalers", where=path, found=str(error)) from None
        scalers, layout = cls.from_dict(document, path), layout_in(Path(folder))
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
        return {
            "minimum": self.minimum.tolist(),
            "maximum": self.maximum.tolist(),
            "count": self.count,
            "mean": self.mean.tolist(),
            "squares": self.squares.tolist(),
        }

    @classmethod
    def from_dict(cls, document: dict[str, Any]) -> Self:
        """Return the sums of :meth:`as_dict`."""
        arrays = {
            name: np.asarray(document[name], np.float64)
            for name in ("minimum", "maximum", "mean", "squares")
        }
        return cls(count=document["count"], **arrays)
