"""Spreads of values over any number of tasks, in memory that does not grow with it."""

from __future__ import annotations

import math

from cmsspark.store.run_metrics import Spread

#: The ratio of the bounds of a bucket: a median from it is exact to half of that, 1 %.
_RATIO = 1.02
_LOG = math.log(_RATIO)


class QuantileSketch:
    """Counts of values in buckets whose bounds grow by 2 %; least and largest are exact. Values are not negative."""

    __slots__ = ("_buckets", "_count", "_max", "_min")

    def __init__(self) -> None:
        self._buckets: dict[int, int] = {}
        self._count = self._max = 0
        self._min: int | None = None

    def add(self, value: int) -> None:
        """Add a value; a negative one counts as 0."""
        value = max(0, value)
        bucket = int(math.log(value) / _LOG) + 1 if value else 0
        self._buckets[bucket] = self._buckets.get(bucket, 0) + 1
        self._count += 1
        self._max = max(self._max, value)
        self._min = value if self._min is None else min(self._min, value)

    def spread(self) -> Spread:
        """Least, median, largest of what was added; zeros where nothing was."""
        if self._min is None:
            return Spread()
        return Spread(min=self._min, median=self._median(), max=self._max)

    def _median(self) -> int:
        remaining = (self._count + 1) // 2
        for bucket in sorted(self._buckets):
            remaining -= self._buckets[bucket]
            if remaining <= 0:
                middle = round(math.exp((bucket - 0.5) * _LOG)) if bucket else 0
                return min(max(middle, self._min or 0), self._max)
        return self._max


class Spans:
    """Intervals of time, merged; where there are too many, gaps between them are closed, the shortest first."""

    def __init__(self, most: int = 2000) -> None:
        self._spans: list[tuple[int, int]] = []
        self._most = most
        self._gap = 0

    def add(self, first: int, last: int) -> None:
        """Add an interval."""
        self._spans.append((first, max(first, last)))
        if len(self._spans) > 10 * self._most:
            self._spans = self.merged()

    def merged(self) -> list[tuple[int, int]]:
        """Return the intervals in order; at most ``most``."""
        while True:
            merged: list[tuple[int, int]] = []
            for first, last in sorted(self._spans):
                if merged and first <= merged[-1][1] + self._gap:
                    merged[-1] = (merged[-1][0], max(last, merged[-1][1]))
                else:
                    merged.append((first, last))
            if len(merged) <= self._most:
                return merged
            self._gap = 2 * self._gap or 10
