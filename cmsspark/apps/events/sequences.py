"""Particles of an event as a sequence, for recurrent networks."""

from __future__ import annotations

from typing import Any

import numpy as np

from cmsspark.apps.events.layout import LOW_LEVEL

Array = np.ndarray[Any, Any]


def by_falling_delta_r(low_level: Array) -> Array:
    """The rows of each matrix by falling ΔR from the lepton (row 0); padding stands last, as zeros.

    ``low_level``: unscaled, ``(n, 801, 19)``. Returns an array of the same shape and type. Particles of equal ΔR keep
    their order. The lepton itself, at ΔR = 0, is the last particle. The order is that of the unscaled matrix: scale
    afterwards.
    """
    return np.take_along_axis(low_level, falling_delta_r_order(low_level)[:, :, None], axis=1)


def falling_delta_r_order(low_level: Array) -> Array:
    """The numbers of the rows by falling ΔR from the lepton, ``(n, 801)``; padding last."""
    eta, phi = (low_level[:, :, LOW_LEVEL.index(name)].astype(np.float64) for name in ("eta", "phi"))
    delta_phi = phi - phi[:, :1]
    delta_phi -= 2 * np.pi * np.round(delta_phi / (2 * np.pi))
    distance = (eta - eta[:, :1]) ** 2 + delta_phi**2
    distance[~low_level.any(axis=-1)] = -1.0
    return np.argsort(-distance, axis=1, kind="stable")
