"""The tasks of a sample: keys of events, the rows of the chosen ones, and the parts
that they are written to.

Between two tasks features travel as bytes: Spark moves them without looking at single numbers.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.events.layout import EventLayout
from cmsspark.apps.events.parts import PartWriter, row_groups, to_matrix
from cmsspark.apps.events.prepare_task import make_rows, read_numbers
from cmsspark.apps.events.scalers import Moments
from cmsspark.base.arrays import Array

if TYPE_CHECKING:
    import pyarrow as pa

TRAIN: Final = "train"
TEST: Final = "test"
#: Keys are below this number: random, the same for the same event and seed.
KEY_BITS: Final = 63
KEYS_SCHEMA: Final = "key bigint, label tinyint, is_test boolean"
ROWS_SCHEMA: Final = "part int, key bigint, label tinyint, event_hash bigint, weight double, hlf binary, low_level binary"
#: Makes the split independent of every seed of a shuffle.
_SPLIT_SEED: Final = 0x5EED_0F_5917


def mixed(hashes: Array, seed: int) -> Array:
    """Hashes mixed with a seed: random for each seed, equal for equal hashes (the
    finalizer of SplitMix64).
    """
    state = (seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & (2**64 - 1)
    with np.errstate(over="ignore"):
        values = hashes.astype(np.uint64) ^ np.uint64(state)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
        return values ^ (values >> np.uint64(31))


def make_keys(hashes: Array, seed: int) -> Array:
    """Return the keys of events, whose order is that of the sample."""
    return (mixed(hashes, seed) >> np.uint64(64 - KEY_BITS)).astype(np.int64)


def is_test(hashes: Array, fraction: float) -> Array:
    """Return which events are in the part ``test``: by their hash alone, so for every
    seed the same.
    """
    return mixed(hashes, _SPLIT_SEED) < np.uint64(min(2**64 - 1, round(fraction * 2**64)))


@dataclass(frozen=True)
class KeysTask:
    """Reads labels and hashes of parts: a row for each event."""

    parts: tuple[str, ...]
    seed: int
    test_fraction: float

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for number in read_numbers(batches):
            for columns in row_groups(self.parts[number], ["label", "event_hash"]):
                hashes = columns.column("event_hash").to_numpy()
                yield pa.RecordBatch.from_arrays(
                    [
                        pa.array(make_keys(hashes, self.seed)),
                        columns.column("label").combine_chunks(),
                        pa.array(is_test(hashes, self.test_fraction)),
                    ],
                    ["key", "label", "is_test"],
                )


@dataclass(frozen=True)
class ChosenTask:
    """Reads whole events of parts: a row for each chosen one.

    ``last_keys``: by (is test, label) the last key that is chosen; ``counts``: the
    number of parts of train and test.
    """

    parts: tuple[str, ...]
    seed: int
    test_fraction: float
    last_keys: dict[tuple[bool, int], int]
    counts: tuple[int, int]
    layout: EventLayout

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        names = [
            "hlf",
            "label",
            "weight",
            "event_hash",
            *(["low_level"] if self.layout.has_matrix else []),
        ]
        for number in read_numbers(batches):
            for columns in row_groups(self.parts[number], names):
                yield self._rows(columns)

    def _rows(self, columns: pa.Table) -> pa.RecordBatch:
        import pyarrow as pa

        hashes, labels = (
            columns.column("event_hash").to_numpy(),
            columns.column("label").to_numpy(),
        )
        keys, of_test = make_keys(hashes, self.seed), is_test(hashes, self.test_fraction)
        last = np.full(len(keys), -1, np.int64)
        for (test, label), key in self.last_keys.items():
            last[(of_test == test) & (labels == label)] = key
        positions = np.flatnonzero(keys <= last)
        of_train, test_count = assign_parts(keys, self.counts[0]), self.counts[1]
        part = np.where(of_test, self.counts[0] + assign_parts(keys, test_count), of_train)
        features = columns.take(pa.array(positions))
        return pa.RecordBatch.from_arrays(
            [
                pa.array(part[positions].astype(np.int32)),
                pa.array(keys[positions]),
                pa.array(labels[positions]),
                pa.array(hashes[positions].view(np.int64)),
                features.column("weight").combine_chunks(),
                _as_bytes(to_matrix(features.column("hlf"), self.layout.hlf_count)),
                _as_bytes(to_matrix(features.column("low_level"), self.layout.matrix))
                if self.layout.has_matrix
                else pa.nulls(len(positions), pa.binary()),
            ],
            ["part", "key", "label", "event_hash", "weight", "hlf", "low_level"],
        )


@dataclass(frozen=True)
class WriteTask:
    """Writes rows, sorted by part, key and label, to parts; an event that is twice in a
    class is written once.

    A row of the result is a JSON object: the part's number, name, events and sum of
    weights by class, and its moments.
    """

    folders: tuple[str, str]
    counts: tuple[int, int]
    layout: EventLayout

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return make_rows(self._results(batches))

    def _results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        for number, slices in groupby(_part_slices(batches), key=itemgetter(0)):
            part = self._open(number)
            for _, rows in slices:
                part.add(rows)
            yield part.close()

    def _open(self, number: int) -> _OpenPart:
        is_train = number < self.counts[0]
        part_number = number if is_train else number - self.counts[0]
        writer = PartWriter(
            self.folders[0 if is_train else 1], part_number, self.layout.schema(origin=False)
        )
        return _OpenPart(
            number, writer, Moments.empty(self.layout) if is_train else None, self.layout
        )


class _OpenPart:
    """A part that is being written."""

    def __init__(
        self, number: int, writer: PartWriter, moments: Moments | None, layout: EventLayout
    ) -> None:
        self.number, self.writer, self.moments, self.layout = number, writer, moments, layout
        self.labels = np.zeros(len(layout.classes), np.int64)
        self.weights = np.zeros(len(layout.classes))
        #: Whether an event has another weight than 1.
        self.is_weighted = False
        self._last_event = (-1, -1)

    def add(self, batch: pa.RecordBatch) -> None:
        keys, classes = batch.column("key").to_numpy(), batch.column("label").to_numpy()
        # Equal events of two classes are an event of each.
        is_new = np.diff(keys, prepend=self._last_event[0]) != 0
        is_new |= np.diff(classes, prepend=np.int8(self._last_event[1])) != 0
        self._last_event = (int(keys[-1]), int(classes[-1]))
        rows = batch.filter(is_new) if not is_new.all() else batch
        layout = self.layout
        hlf = _from_bytes(rows.column("hlf"), layout.hlf_count)
        low_level = (
            _from_bytes(rows.column("low_level"), layout.matrix) if layout.has_matrix else None
        )
        labels, weights = rows.column("label").to_numpy(), rows.column("weight").to_numpy()
        self.labels += np.bincount(labels, minlength=len(self.labels))
        self.weights += np.bincount(labels, weights, minlength=len(self.labels))
        self.is_weighted |= bool((weights != 1).any())
        hashes = rows.column("event_hash").to_numpy().view(np.uint64)
        columns = {
            "hlf": hlf,
            "low_level": low_level,
            "label": labels,
            "event_hash": hashes,
            "weight": weights,
        }
        self.writer.write(columns)
        if self.moments is not None:
            self.moments.add(
                hlf, None if low_level is None else low_level.reshape(-1, *layout.shape)
            )

    def close(self) -> dict[str, Any]:
        self.writer.__exit__(None, None, None)
        moments = self.moments.as_dict() if self.moments is not None and self.writer.rows else None
        return {
            "number": self.number,
            "part": self.writer.name,
            "labels": self.labels.tolist(),
            "weights": self.weights.tolist(),
            "is_weighted": self.is_weighted,
            "moments": moments,
        }


def _part_slices(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each part in a batch, with the part's number."""
    for batch in batches:
        numbers = batch.column("part").to_numpy()
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=False):
            yield int(numbers[start]), batch.slice(start, stop - start)


def assign_parts(keys: Array, count: int) -> Array:
    """Return the part of each key: parts are ranges of keys, so that all parts together
    are in the order of keys.
    """
    return (keys.astype(np.float64) / 2.0**KEY_BITS * count).astype(np.int64).clip(0, count - 1)


def _as_bytes(rows: Array) -> pa.Array:
    """Rows of floats as binary values."""
    import pyarrow as pa

    width = rows.shape[1] * 4
    offsets = pa.py_buffer(np.arange(len(rows) + 1, dtype=np.int32) * np.int32(width))
    return pa.Array.from_buffers(
        pa.binary(), len(rows), [None, offsets, pa.py_buffer(np.ascontiguousarray(rows))]
    )


def _from_bytes(column: pa.Array, size: int) -> Array:
    """Return the reverse of :func:`_as_bytes`."""
    import pyarrow as pa

    if pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())
    offsets = np.frombuffer(column.buffers()[1], np.int32)[
        column.offset : column.offset + len(column) + 1
    ]
    data = np.frombuffer(column.buffers()[2], np.uint8) if len(column) else np.zeros(0, np.uint8)
    return data[offsets[0] : offsets[-1]].view(np.float32).reshape(len(column), size)
