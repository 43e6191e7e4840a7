"""Particles of an event as a sequence, for recurrent networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from cmsspark.apps.events.layout import EventLayout
from cmsspark.apps.events.topology import TOPOLOGY

Array = np.ndarray[Any, Any]


def by_falling_delta_r(low_level: Array, layout: EventLayout = TOPOLOGY) -> Array:
    """Return the rows of each matrix by falling ΔR from its first row, the lepton; padding stands last, as zeros.

    ``low_level``: unscaled, ``(n, rows, columns)``. Returns an array of the same shape and type. Particles of equal ΔR
    keep their order. The lepton itself, at ΔR = 0, is the last particle. The order is that of the unscaled matrix:
    scale afterwards.
    """
    return np.take_along_axis(low_level, falling_delta_r_order(low_level, layout)[:, :, None], axis=1)


def falling_delta_r_order(low_level: Array, layout: EventLayout = TOPOLOGY) -> Array:
    """Return the numbers of the rows by falling ΔR from the first row, ``(n, rows)``; padding last."""
    eta, phi = (low_level[:, :, layout.columns.index(name)].astype(np.float64) for name in ("eta", "phi"))
    delta_phi = phi - phi[:, :1]
    delta_phi -= 2 * np.pi * np.round(delta_phi / (2 * np.pi))
    distance = (eta - eta[:, :1]) ** 2 + delta_phi**2
    distance[~low_level.any(axis=-1)] = -1.0
    return np.argsort(-distance, axis=1, kind="stable")


def padding_last(low_level: Array, layout: EventLayout = TOPOLOGY) -> Array:
    """Return the rows of each matrix in their order, padding behind them."""
    order = np.argsort(~low_level.any(axis=-1), axis=1, kind="stable")
    return np.take_along_axis(low_level, order[:, :, None], axis=1)
