"""Samples for training scripts in any framework: batches of numpy arrays, and thin
adapters for PyTorch and TensorFlow.

Neither framework is a requirement of this package: each is imported when its adapter is called.
"""

from __future__ import annotations

import os
from collections.abc import Iterator
from dataclasses import dataclass
from itertools import count
from pathlib import Path
from typing import Any

import numpy as np

from cmsspark.apps.events.layout import EventLayout, layout_in
from cmsspark.apps.events.parts import Events, event_groups, sample_parts
from cmsspark.apps.events.scalers import Scalers
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError, InputMissing, UsageError

Batch = dict[str, Array]


@dataclass(frozen=True)
class SampleReader:
    """The events of a part of a sample, such as ``SAMPLE/train``, in batches of scaled features.

    A batch has ``hlf`` ``(n, features)``, with ``low_level`` also ``low_level`` ``(n,
    rows, columns)``, ``label`` and ``weight``, whose mean is 1 in each class. Worker
    ``rank`` of ``workers`` reads each n-th event; without numbers those of the
    launcher's variables are taken. Raises InputMissing (66), DataError (65), UsageError
    (2).
    """

    folder: Path
    batch: int = 128
    low_level: bool = False
    seed: int = 0
    rank: int | None = None
    workers: int | None = None

    def __post_init__(self) -> None:
        if not sample_parts(self.folder):
            raise InputMissing(
                "no parts of events",
                where=self.folder,
                next_step="name SAMPLE/train of events_sample",
            )
        if self.batch < 1 or not 0 <= self.place < self.count:
            raise UsageError(
                "a batch has an event or more, and a rank is below the number of workers",
                found=f"batch {self.batch}, rank {self.place} of {self.count}",
            )
        if self.low_level and not self.layout.has_matrix:
            raise DataError(
                "these events have no matrix of particles",
                where=self.folder,
                next_step="events_prepare --low-level",
            )

    @property
    def layout(self) -> EventLayout:
        """What the columns are: names of features and classes."""
        return layout_in(Path(self.folder).parent)

    @property
    def place(self) -> int:
        """The number of this worker."""
        return int(os.environ.get("CMSSPARK_TRAIN_RANK", "0")) if self.rank is None else self.rank

    @property
    def count(self) -> int:
        """The number of workers."""
        return int(os.environ.get("WORLD_SIZE", "1")) if self.workers is None else self.workers

    def epoch(self, number: int = 0) -> Iterator[Batch]:
        """Return the batches of an epoch: each event of this worker once, in an order
        by seed and number.

        The last batch may be smaller. Events are shuffled within a row group, whose
        order is that of the epoch.
        """
        scalers = Scalers.load(Path(self.folder).parent)
        draw = np.random.default_rng((self.seed, number))
        remaining: list[Batch] = []
        seen = waiting = 0
        for part in draw.permutation(sample_parts(self.folder)):
            for events in event_groups(str(part), self.layout, low_level=self.low_level):
                # Of all events of the epoch each n-th, so that shares differ by one at most.
                count = len(events.labels)
                chosen = events.take(
                    draw.permutation(count)[(self.place - seen) % self.count :: self.count]
                )
                seen += count
                remaining.append(_scaled(chosen, scalers))
                waiting += len(chosen.labels)
                if waiting >= self.batch:
                    joined = _joined(remaining)
                    stop = waiting - waiting % self.batch
                    yield from (
                        _slice(joined, start, start + self.batch)
                        for start in range(0, stop, self.batch)
                    )
                    remaining, waiting = [_slice(joined, stop, waiting)], waiting - stop
        if waiting:
            yield _joined(remaining)


def _scaled(events: Events, scalers: Scalers) -> Batch:
    label = events.labels.astype(np.int64)
    batch = {"hlf": scalers.hlf(events.hlf), "label": label}
    if events.low_level is not None:
        batch["low_level"] = scalers.low_level(events.low_level)
    batch["weight"] = scalers.weights(label, events.weights).astype(np.float32)
    return batch


def _joined(parts: list[Batch]) -> Batch:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


def _slice(batch: Batch, start: int, stop: int) -> Batch:
    return {name: column[start:stop] for name, column in batch.items()}


def torch_dataset(reader: SampleReader) -> Any:
    """Return an IterableDataset of PyTorch: each iteration is the next epoch, each item
    a batch of tensors.

    Give it to a DataLoader with ``batch_size=None``. Raises UsageError (2) where
    PyTorch is not installed.
    """
    try:
        import torch
        from torch.utils.data import IterableDataset
    except ImportError:
        raise _not_installed("torch", "PyTorch") from None

    class Dataset(IterableDataset):  # type: ignore[misc]  # it has no types here
        """The batches of one epoch after another."""

        def __init__(self) -> None:
            super().__init__()
            self._epochs = count()

        def __iter__(self) -> Iterator[dict[str, Any]]:
            for batch in reader.epoch(next(self._epochs)):
                yield {
                    name: torch.from_numpy(np.ascontiguousarray(column))
                    for name, column in batch.items()
                }

    return Dataset()


def tensorflow_dataset(reader: SampleReader) -> Any:
    """Return a tf.data.Dataset of ``(features, label, weight)``: each iteration is the
    next epoch, as Keras takes it.

    Raises UsageError (2) where TensorFlow is not installed.
    """
    try:
        import tensorflow as tf
    except ImportError:
        raise _not_installed("tensorflow", "TensorFlow") from None
    layout, epochs = reader.layout, count()

    def batches() -> Iterator[tuple[dict[str, Array], Array, Array]]:
        for batch in reader.epoch(next(epochs)):
            label, weight = batch.pop("label"), batch.pop("weight")
            yield batch, label, weight

    features = {"hlf": tf.TensorSpec((None, layout.hlf_count), tf.float32)}
    if reader.low_level:
        features["low_level"] = tf.TensorSpec((None, *layout.shape), tf.float32)
    signature = (features, tf.TensorSpec((None,), tf.int64), tf.TensorSpec((None,), tf.float32))
    return tf.data.Dataset.from_generator(batches, output_signature=signature)


def _not_installed(module: str, name: str) -> UsageError:
    return UsageError(
        f"this reader needs {name}", found=f"no module {module}", next_step=f"pip install {module}"
    )
