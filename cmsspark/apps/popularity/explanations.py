"""Why a forecast is what it is: the columns that moved it, and what it rests on."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

import numpy as np

from cmsspark.apps.popularity.features import Names
from cmsspark.apps.popularity.series import Series
from cmsspark.base.arrays import Array

#: Columns that are named as reasons of a forecast, at most, and the least change of the
#: logarithm of the odds.
_REASONS: Final = 3
_LEAST: Final = 0.05
#: Columns of a name whose siblings say something of a new dataset.
_SIBLINGS: Final = ("primary", "processed", "campaign")


def reasons(columns: Sequence[str], moved: Array | None) -> list[str | None]:
    """Return for each row the columns that moved it most, as ``log_accesses_7d +1.2,
    log_recency_days -0.4``.

    None where the model cannot say. ``moved``: of
    :meth:`cmsspark.apps.popularity.models.Model.contributions`.
    """
    if moved is None:
        return []
    largest = np.argsort(-np.abs(moved), axis=1, kind="stable")[:, :_REASONS]
    texts: list[str | None] = []
    for row, chosen in zip(moved, largest.tolist(), strict=True):
        parts = [
            f"{columns[number]} {row[number]:+.1f}"
            for number in chosen
            if abs(row[number]) >= _LEAST
        ]
        texts.append(", ".join(parts) or None)
    return texts


def importance(columns: Sequence[str], moved: Array) -> list[tuple[str, float]]:
    """Return (column, mean absolute change of the logarithm of the odds), the largest first."""
    means = np.abs(moved).mean(0)
    return [
        (columns[number], float(means[number]))
        for number in np.argsort(-means, kind="stable").tolist()
    ]


def bases(series: Series) -> list[str]:
    """Return for each dataset what its forecast rests on, on the day after the series.

    ``use``: its own; of a dataset without any, ``siblings``: another dataset with its
    primary dataset, its processed dataset or its campaign has a row; ``creation``: only
    what DBS says of it; ``unknown``: nothing.
    """
    used, is_known = np.asarray((series.accesses > 0).any(0)), series.is_known
    groups = Names(series.datasets, is_known).groups
    has_siblings: Array = np.zeros(len(used), bool)
    for name in _SIBLINGS:
        counts = np.bincount(groups[name], is_known)
        has_siblings |= counts[groups[name]] - is_known > 0
    is_created = ~np.isnan(series.created_days(len(series.days)))
    texts = np.where(
        used,
        "use",
        np.where(has_siblings, "siblings", np.where(is_created, "creation", "unknown")),
    )
    names: list[str] = texts.tolist()
    return names
