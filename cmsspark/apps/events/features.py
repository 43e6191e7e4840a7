"""Features of a chunk of events: from awkward arrays of branches to numpy arrays, in one compiled pass."""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import xxhash

from cmsspark.apps.events.kernels import CUTS, SELECTED, fill
from cmsspark.apps.events.layout import BATCH_ROWS, FEATURES, HLF_BATCH_ROWS, HLF_COUNT, PARTICLES
from cmsspark.base.errors import DataError

Array = np.ndarray[Any, Any]

#: The collections in the order of :func:`cmsspark.apps.events.kernels.fill`: the branches of their columns.
#: Where a branch has two names, the first that the tree has is read.
BRANCHES: Final[Mapping[str, tuple[tuple[str, ...], ...]]] = {
    "Electron": (("PT",), ("Eta",), ("Phi",), ("Charge",)),
    "MuonTight": (("PT",), ("Eta",), ("Phi",), ("Charge",)),
    "EFlowTrack": (("PT",), ("Eta",), ("Phi",), ("Charge",), ("X",), ("Y",), ("Z",)),
    "EFlowPhoton": (("ET", "PT"), ("Eta",), ("Phi",)),
    "EFlowNeutralHadron": (("ET", "PT"), ("Eta",), ("Phi",)),
    "Jet": (("PT",), ("Eta",), ("BTag",)),
    "MissingET": (("MET",), ("Phi",)),
}
#: Types of awkward arrays with a number, or a list of numbers, for each event.
_NUMBERS: Final = re.compile(r"\d+ \* (?:(?:var|\d+) \* )?(?:bool|u?int\d+|float\d+)")


@dataclass(frozen=True)
class Collection:
    """Particles of one kind in a chunk: ``(particles, columns)`` in double precision, and ``(events + 1)`` offsets."""

    values: Array
    offsets: Array

    def part(self, start: int, stop: int) -> Collection:
        """The particles of the events from ``start`` to ``stop``."""
        offsets = self.offsets[start : stop + 1]
        return Collection(self.values[offsets[0] : offsets[-1]], offsets - offsets[0])


@dataclass(frozen=True)
class EventFeatures:
    """The selected events of a chunk, in their order, and what became of each event.

    ``hlf``: ``(n, 14)``; ``low_level``: ``(n, 801, 19)`` or None; ``entries``: their places in the chunk; ``outcome``:
    for every event of the chunk its place in :data:`cmsspark.apps.events.kernels.CUTS`.
    """

    hlf: Array
    low_level: Array | None
    entries: Array
    outcome: Array

    def hashes(self) -> Array:
        """A 64-bit hash of each selected event, by its high-level features: equal events have equal hashes."""
        # -0.0 and 0.0 are one number with two forms in memory.
        rows = self.hlf.astype("<f4") + np.float32(0)
        return np.fromiter((xxhash.xxh64_intdigest(row.tobytes()) for row in rows), np.uint64, len(rows))

    def cuts(self) -> Array:
        """The number of events of each cut."""
        return np.bincount(self.outcome, minlength=len(CUTS))


def columns_of(arrays: Mapping[str, Mapping[str, Any]]) -> dict[str, Collection]:
    """The collections of a chunk; ``arrays``: by collection, its columns as awkward or numpy arrays, a list an event.

    Raises DataError (65) where the columns of a collection have different numbers of particles, or no numbers.
    """
    collections = {}
    for name, columns in arrays.items():
        flat = [_flattened(column, f"{name}.{branch}") for branch, column in columns.items()]
        counts = flat[0][0]
        for branch, (other, _) in zip(columns, flat, strict=True):
            if not np.array_equal(counts, other):
                raise DataError(f"the branches of {name} do not fit each other", where=f"{name}.{branch}")
        values = np.empty((len(flat[0][1]), len(flat)))
        for place, (_, content) in enumerate(flat):
            values[:, place] = content
        collections[name] = Collection(values, np.concatenate(([0], np.cumsum(counts))).astype(np.int64))
    return collections


def _flattened(column: Any, branch: str) -> tuple[Array, Array]:
    """The number of values of each event, and all values. Raises DataError (65) for what is no list of numbers."""
    import awkward as ak

    array = ak.Array(column)
    if _NUMBERS.fullmatch(kind := str(array.type)) is None:
        raise DataError(f"{branch} is a number, or a list of numbers, for each event", found=kind)
    if array.ndim == 1:
        return np.ones(len(array), np.int64), ak.to_numpy(array)
    return ak.to_numpy(ak.num(array)), ak.to_numpy(ak.flatten(array))


def features_of(collections: Mapping[str, Collection], *, low_level: bool) -> EventFeatures:
    """The features of the events of some collections, one for each name of :data:`BRANCHES`."""
    count = len(collections["MissingET"].offsets) - 1
    hlf = np.zeros((count, HLF_COUNT), np.float32)
    matrices = np.zeros((count if low_level else 0, PARTICLES, FEATURES), np.float32)
    outcome = np.zeros(count, np.int64)
    flat = [part for name in BRANCHES for part in (collections[name].values, collections[name].offsets)]
    selected = fill(*flat, hlf, matrices, outcome)  # type: ignore[call-arg]  # two for each of seven collections
    entries = np.flatnonzero(outcome == SELECTED)
    return EventFeatures(hlf[:selected], matrices[:selected] if low_level else None, entries, outcome)


def batches_of(collections: Mapping[str, Collection], *, low_level: bool) -> Iterator[tuple[int, EventFeatures]]:
    """The features of a chunk in batches, each with the place of its first event.

    A batch has at most 500 events with the matrix, and 20,000 without.
    """
    count = len(collections["MissingET"].offsets) - 1
    rows = BATCH_ROWS if low_level else HLF_BATCH_ROWS
    for start in range(0, count, rows):
        stop = min(count, start + rows)
        part = {name: collection.part(start, stop) for name, collection in collections.items()}
        yield start, features_of(part, low_level=low_level)
