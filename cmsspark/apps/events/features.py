"""Features of a chunk of events: from awkward arrays of branches to numpy arrays, in
one compiled pass.
"""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xxhash

from cmsspark.apps.events.kernels import KERNEL_COLUMNS, LIMITS, SELECTED, fill
from cmsspark.apps.events.topology import TOPOLOGY
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError

#: Types of awkward arrays with a number, or a list of numbers, for each event.
_NUMBERS: Final = re.compile(r"\d+ \* (?:(?:var|\d+) \* )?(?:bool|u?int\d+|float\d+)")


@dataclass(frozen=True)
class Collection:
    """Particles of one kind in a chunk: ``(particles, columns)`` in double precision,
    and ``(events + 1)`` offsets.
    """

    values: Array
    offsets: Array

    def part(self, start: int, stop: int) -> Collection:
        """Return the particles of the events from ``start`` to ``stop``."""
        offsets = self.offsets[start : stop + 1]
        return Collection(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])


@dataclass(frozen=True)
class EventFeatures:
    """The selected events of a chunk, in their order, and what became of each event.

    ``hlf``: ``(n, features)``; ``low_level``: ``(n, rows, columns)`` or None;
    ``entries``: their numbers in the chunk; ``outcome``: for every event of the chunk
    its place in the cuts of the definition; ``weights``: signed; ``identity``: whole
    numbers of each event that its hash covers, too.
    """

    hlf: Array
    low_level: Array | None
    entries: Array
    outcome: Array
    weights: Array
    identity: Array

    def hashes(self) -> Array:
        """Return a 64-bit hash of each selected event, by its high-level features:
        equal events have equal hashes.
        """
        # -0.0 and 0.0 are one number with two forms in memory.
        rows = self.hlf.astype("<f4") + np.float32(0)
        if self.identity.shape[1]:
            rows = np.concatenate(
                [rows.view(np.uint8), self.identity.astype("<u8").view(np.uint8)], axis=1
            )
        return np.fromiter(
            (xxhash.xxh64_intdigest(row.tobytes()) for row in rows), np.uint64, len(rows)
        )


def flatten_collections(arrays: Mapping[str, Mapping[str, Any]]) -> dict[str, Collection]:
    """Return the collections of a chunk; ``arrays``: by collection, its columns as
    awkward or numpy arrays.

    Raises DataError (65) where the columns of a collection have different numbers of
    particles, or no numbers.
    """
    collections = {}
    for name, columns in arrays.items():
        flat = [flattened(column, f"{name}.{branch}") for branch, column in columns.items()]
        counts = flat[0][0]
        for branch, (branch_counts, _) in zip(columns, flat, strict=True):
            if not np.array_equal(counts, branch_counts):
                raise DataError(
                    f"the branches of {name} do not fit each other", where=f"{name}.{branch}"
                )
        values = np.empty((len(flat[0][1]), len(flat)))
        for index, (_, content) in enumerate(flat):
            values[:, index] = content
        collections[name] = Collection(
            values, np.concatenate(([0], np.cumsum(counts))).astype(np.int64)
        )
    return collections


def flattened(column: Any, branch: str) -> tuple[Array, Array]:
    """Return the number of values of each event, and all values. Raises DataError (65)
    for other lists.
    """
    import awkward as ak

    array = ak.Array(column)
    if _NUMBERS.fullmatch(kind := str(array.type)) is None:
        raise DataError(f"{branch} is a number, or a list of numbers, for each event", found=kind)
    if array.ndim == 1:
        return np.ones(len(array), np.int64), ak.to_numpy(array)
    return ak.to_numpy(ak.num(array)), ak.to_numpy(ak.flatten(array))


def compute_features(
    collections: Mapping[str, Collection], *, low_level: bool, limits: Mapping[str, float] = LIMITS
) -> EventFeatures:
    """Compute what the kernel ``lepton_topology`` does: the collections are those of
    its columns, by name.
    """
    count = len(collections["MissingET"].offsets) - 1
    hlf = np.zeros((count, TOPOLOGY.hlf_count), np.float32)
    matrices = np.zeros((count if low_level else 0, *TOPOLOGY.shape), np.float32)
    outcome = np.zeros(count, np.int64)
    flat = [
        part
        for name in KERNEL_COLUMNS
        for part in (collections[name].values, collections[name].offsets)
    ]
    numbers = np.array([limits[name] for name in LIMITS])
    selected = fill(*flat, numbers, hlf, matrices, outcome)  # type: ignore[call-arg]  # two for each of seven collections
    entries = np.flatnonzero(outcome == SELECTED)
    return EventFeatures(
        hlf[:selected],
        matrices[:selected] if low_level else None,
        entries,
        outcome,
        np.ones(selected),
        np.zeros((selected, 0), np.uint64),
    )
