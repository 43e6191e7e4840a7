"""Hand-made events: collections as the reader of ROOT files gives them."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import awkward as ak
import numpy as np

from cmsspark.apps.events.definition import default_definition
from cmsspark.apps.events.features import (
    Collection,
    EventFeatures,
    compute_features,
    flatten_collections,
)
from cmsspark.apps.events.kernels import KERNEL_COLUMNS
from cmsspark.apps.events.layout import TOPOLOGY

DELPHES = default_definition()
CUTS = DELPHES.cuts
CLASSES, HLF, LOW_LEVEL = TOPOLOGY.class_names, TOPOLOGY.feature_names, TOPOLOGY.columns
HLF_COUNT, MATRIX, PARTICLES, FEATURES = TOPOLOGY.hlf_count, TOPOLOGY.matrix, *TOPOLOGY.shape

#: An event of nothing but an isolated muon and missing energy.
MUON: dict[str, list[tuple[float, ...]]] = {
    "MuonTight": [(30.0, 0.5, 1.0, -1)],
    "EFlowTrack": [(30.0, 0.5, 1.0, -1, 0.0, 0.0, 0.0)],
    "MissingET": [(40.0, -2.0)],
}


def event(**collections: Sequence[tuple[float, ...]]) -> dict[str, list[tuple[float, ...]]]:
    """The event of :data:`MUON` with other collections."""
    return {**MUON, **{name: list(rows) for name, rows in collections.items()}}


def collections_of(
    events: Sequence[Mapping[str, Sequence[tuple[float, ...]]]],
) -> dict[str, Collection]:
    """Collections of some events; a collection that an event does not name is empty."""
    arrays: dict[str, dict[str, Any]] = {}
    for name, columns in KERNEL_COLUMNS.items():
        rows = [event.get(name, ()) for event in events]
        counts = [len(of_event) for of_event in rows]
        flat = np.array([row for of_event in rows for row in of_event], np.float32).reshape(
            -1, len(columns)
        )
        arrays[name] = {
            column: ak.unflatten(flat[:, place], counts) for place, column in enumerate(columns)
        }
    return flatten_collections(arrays)


def features(
    *events: Mapping[str, Sequence[tuple[float, ...]]], low_level: bool = True
) -> EventFeatures:
    """The features of some events."""
    return compute_features(collections_of(events), low_level=low_level)


def write_schema(folder: Path, *, low_level: bool) -> None:
    """Write the ``schema.json`` of events of Delphes."""
    layout = DELPHES.layout(DELPHES.spec.classes or {}, low_level=low_level)
    (folder / "schema.json").write_text(
        json.dumps(layout.document(origin=False)), encoding="utf-8"
    )


def event_schema(*, low_level: bool, origin: bool = True) -> Any:
    """The Arrow schema of events of Delphes."""
    return (TOPOLOGY if low_level else TOPOLOGY.without_matrix()).schema(origin=origin)
