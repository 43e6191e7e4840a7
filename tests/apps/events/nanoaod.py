"""Small files as other programs write them: NanoAOD of several versions as TTree and
RNTuple, and default Delphes.
"""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np

Array = np.ndarray[Any, Any]


def nano_events(count: int, seed: int, *, v15: bool = False, shift: float = 0.0) -> dict[str, Any]:
    """Collections and columns of events as NanoAOD names them; ``shift`` moves a class
    away from others.
    """
    draw = np.random.default_rng(seed)

    def collection(mean: float, **columns: Callable[[int], Array]) -> dict[str, Any]:
        counts = draw.poisson(mean, count)
        return {
            name: ak.unflatten(make(int(counts.sum())), counts) for name, make in columns.items()
        }

    def falling(least: float, mean: float) -> Callable[[int], Array]:
        return lambda size: (least + draw.exponential(mean, size)).astype(np.float32)

    def even(low: float, high: float) -> Callable[[int], Array]:
        return lambda size: draw.uniform(low, high, size).astype(np.float32)

    direction = {"eta": even(-2.4, 2.4), "phi": even(-np.pi, np.pi)}
    charge = {"charge": lambda size: draw.choice([-1, 1], size).astype(np.int32)}
    electron = collection(
        0.5,
        pt=falling(20, 25),
        **direction,
        **charge,
        pfRelIso03_all=falling(0, 0.05),
        cutBased=lambda size: draw.integers(0, 5, size).astype(np.uint8),
    )
    muon = collection(
        0.7,
        pt=falling(15, 25),
        **direction,
        **charge,
        pfRelIso04_all=falling(0, 0.06),
        tightId=lambda size: draw.random(size) > 0.2,
    )
    identifier = {} if v15 else {"jetId": lambda size: np.full(size, 6, np.int32)}
    jet = collection(
        3 + shift,
        pt=falling(20, 40 + 20 * shift),
        **direction,
        mass=falling(1, 6),
        btagDeepFlavB=even(0, 1),
        **identifier,
    )
    met = "PFMET" if v15 else "MET"
    return {
        "Electron": electron,
        "Muon": muon,
        "Jet": jet,
        f"{met}_pt": (draw.exponential(30 + 30 * shift, count)).astype(np.float32),
        f"{met}_phi": draw.uniform(-np.pi, np.pi, count).astype(np.float32),
        "genWeight": (12.5 * draw.choice([-1, 1], count, p=[0.2, 0.8])).astype(np.float32),
        "run": np.ones(count, np.uint32),
        "luminosityBlock": np.ones(count, np.uint32),
        "event": np.uint64(2**63) + np.arange(count, dtype=np.uint64),
    }


def write_nano(
    path: Path,
    events: dict[str, Any],
    *,
    as_ntuple: bool = False,
    weight_sums: tuple[float, ...] = (),
) -> Path:
    """Write events as NanoAOD; returns the path. ``weight_sums``: of the runs."""
    import uproot

    runs = {"run": np.arange(len(weight_sums)), "genEventSumw": np.array(weight_sums)}

    whole = {
        name: ak.zip(rows) if isinstance(rows, dict) else rows for name, rows in events.items()
    }
    with uproot.recreate(path) as file:
        if as_ntuple:
            file.mkrntuple("Events", whole)
            if weight_sums:
                file.mkrntuple("Runs", runs)
            return path
        kinds = {
            name: rows.dtype if isinstance(rows, np.ndarray) else rows.type.content
            for name, rows in whole.items()
        }
        file.mktree(
            "Events",
            kinds,
            counter_name=lambda name: f"n{name}",
            field_name=lambda outer, inner: f"{outer}_{inner}" if outer else inner,
        )
        file["Events"].extend(whole)
        if weight_sums:
            file.mktree("Runs", runs)
    return path
