"""A series of accesses by day and dataset, and the file that it makes."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import numpy as np

from cmsspark.apps.popularity.series import MEASURES, Series

FIRST = date(2026, 1, 1)  # a Thursday


def made_series(days: int = 45, datasets: int = 60, seed: int = 1) -> Series:
    """Return datasets of different popularity, which changes slowly; each has a row on each day."""
    generator = np.random.default_rng(seed)
    level = generator.normal(0, 2, datasets) + np.cumsum(
        generator.normal(0, 0.25, (days, datasets)), axis=0
    )
    values = np.zeros((len(MEASURES), days, datasets))
    values[0] = generator.poisson(np.exp(level))
    values[1] = np.minimum(values[0], generator.poisson(3, (days, datasets)))
    names = tuple(
        sorted(f"/P{i % 7}/C{i % 3}-v{i}/{'AOD' if i % 2 else 'RAW'}" for i in range(datasets))
    )
    first_rows = np.zeros(datasets, int)
    return Series(
        tuple(FIRST + timedelta(days=i) for i in range(days)), names, values, first_rows=first_rows
    )


def write(series: Series, path: Path) -> Path:
    lines = ["day,dataset,accesses,users"]
    for number, day in enumerate(series.days):
        for item, name in enumerate(series.datasets):
            lines.append(
                f"{day},{name},{int(series.values[0, number, item])},{int(series.values[1, number, item])}"
            )
    path.write_text("\n".join(lines) + "\n")
    return path
