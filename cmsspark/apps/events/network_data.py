"""What a worker reads of a sample to train a network: its share of ``train``, scaled,
in a seeded order.

A share is every n-th row group of the part files in order of their names; where there
are few row groups, every n-th row of each. A tenth of the events, of small samples up
to a fifth, is kept for validation. It is chosen by the hash of the event: the same
events for any number of workers.
"""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.events.layout import EventLayout, layout_in
from cmsspark.apps.events.networks import LENGTH_STEP, make_sequences, needs_low_level
from cmsspark.apps.events.root_files import (
    Events,
    event_groups,
    read_events,
    row_group_sizes,
    sample_parts,
)
from cmsspark.apps.events.scalers import CURVE_EVENTS, Scalers
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError, InputMissing, UsageError
from cmsspark.base.memory import is_shortage

if TYPE_CHECKING:
    import pyarrow.parquet as pq


#: Events that choose the best of several rounds well enough, and which hundredths of a
#: sample are kept for them at least and at most.
VALIDATION_EVENTS: Final = 5_000
VALIDATION_PERCENT: Final = (10, 20)
#: Batches whose events are sorted by length.
BATCHES_AT_ONCE: Final = 8

#: The columns of :class:`Rows`.
COLUMNS: Final = ("hlf", "sequence", "label", "weight")


@dataclass(frozen=True)
class Rows:
    """Events of a share: ``hlf``, which is :meth:`Scalers.inputs`, ``sequence`` ``(n, length,
    columns)``, labels, weights.
    """

    hlf: Array
    sequence: Array
    label: Array
    weight: Array


@dataclass
class _Columns:
    """The events of a share, for learning or for validation, ready for batches.

    ``particles`` of all events follow each other, only those that exist, ordered and
    scaled: those of event *i* from ``ends[i] - lengths[i]`` to ``ends[i]``.
    """

    hlf: Array
    label: Array
    weight: Array
    particles: Array
    lengths: Array
    ends: Array

    def rows(self, positions: Array, length: int) -> Rows:
        """Return events as a batch, their sequences filled up to ``length``."""
        sequence = np.zeros((len(positions), length, self.particles.shape[-1]), np.float32)
        for row, position in enumerate(positions):
            count, end = self.lengths[position], self.ends[position]
            sequence[row, :count] = self.particles[end - count : end]
        return Rows(self.hlf[positions], sequence, self.label[positions], self.weight[positions])


@dataclass
class Share:
    """The events of a sample's ``train`` that worker ``rank`` of ``workers`` reads.

    They are decoded, ordered and scaled once, at the first use. Particles are kept in a
    file without a name, in the folder for temporary files, which is mapped into memory.

    Raises InputMissing (66) where the folder holds no sample, DataError (65) where a
    part is damaged, or lacks what a network of this kind reads.
    """

    folder: Path
    kind: str
    rank: int = 0
    workers: int = 1
    #: The numbers of particles of the events of each worker: to learn from, and to
    #: validate. Batches of all workers are as long as the longest event in one of them.
    #: Only this worker's until they are set.
    lengths: list[tuple[Array, Array]] = field(default_factory=list)
    _groups: list[tuple[Path, int]] = field(default_factory=list)
    _every: int = 1
    _percent: int = 0

    def __post_init__(self) -> None:
        self.scalers, self.layout = Scalers.load(self.folder), layout_in(self.folder)
        files = sorted((self.folder / "train").glob("part-*.parquet"))
        if not files:
            raise InputMissing(
                "no sample of events",
                where=self.folder / "train",
                found="no part-*.parquet",
                next_step="name the folder that events_sample made (train, test, scalers.json)",
            )
        opened = [(file, self._open(file).metadata) for file in files]
        groups = [(file, i) for file, metadata in opened for i in range(metadata.num_row_groups)]
        events = sum(metadata.num_rows for _, metadata in opened)
        least, most = VALIDATION_PERCENT
        self._percent = min(most, max(least, -(-100 * VALIDATION_EVENTS // max(1, events))))
        if self.scalers.curves is None:
            # All workers read the same events, whatever their shares.
            first = read_events(self.folder / "train", limit=CURVE_EVENTS)
            self.scalers = self.scalers.with_curves(first.hlf)
        self._every = 1 if len(groups) >= 4 * self.workers else self.workers
        self._groups = groups if self._every > 1 else groups[self.rank :: self.workers]

    @property
    def own_lengths(self) -> tuple[Array, Array]:
        """The numbers of particles of this worker's events: to learn from, to validate."""
        learned, validated = self._columns
        return learned.lengths, validated.lengths

    def batches(self, size: int, seed: int, epoch: int) -> Iterator[Rows]:
        """Whole batches of events to learn from, in an order that depends on seed,
        epoch and rank only.

        Events of similar length are together: so many batches at once are sorted by it.
        """
        lengths = [learned for learned, _ in self.lengths or [self.own_lengths]]
        ranks = [self.rank] if len(lengths) == 1 else range(len(lengths))
        orders = [
            shuffled(of_rank, size, (seed, epoch, rank))
            for rank, of_rank in zip(ranks, lengths, strict=True)
        ]
        own_order = orders[0 if len(orders) == 1 else self.rank]
        for number, positions in enumerate(own_order):
            longest = max(
                int(of_rank[order[number]].max())
                for of_rank, order in zip(lengths, orders, strict=True)
                if number < len(order)
            )
            yield self._columns[0].rows(positions, self._rounded(longest))

    def validation(self, size: int) -> Iterator[Rows]:
        """Batches of the events that are kept for validation, as many as the worker has
        that has most of them; the last ones may be smaller, or empty.
        """
        lengths = [validated for _, validated in self.lengths or [self.own_lengths]]
        own_order = np.argsort(self._columns[1].lengths, kind="stable")
        ordered = [np.sort(of_rank) for of_rank in lengths]
        for start in range(0, max(map(len, lengths)), size):
            stop = start + size
            longest = max(int(of_rank[start:stop].max(initial=0)) for of_rank in ordered)
            yield self._columns[1].rows(own_order[start:stop], self._rounded(longest))

    def _rounded(self, particles: int) -> int:
        """Round a number of particles up, so that few lengths are compiled."""
        if not needs_low_level(self.kind):
            return 1
        return min(self.layout.particles, max(1, -(-particles // LENGTH_STEP)) * LENGTH_STEP)

    @cached_property
    def _columns(self) -> tuple[_Columns, _Columns]:
        """The events to learn from, and those to validate."""
        parts: tuple[list[tuple[Array, ...]], ...] = ([], [])
        width, sizes = len(self.layout.columns), [0, 0]
        with ExitStack() as stack:
            files = [stack.enter_context(tempfile.TemporaryFile()) for _ in parts]
            for file, group in self._groups:
                hashes = self._column(file, group, "event_hash")
                rows, sequence, lengths = self._read(file, group)
                is_validation = self._is_validation(hashes)
                for number, chosen in enumerate((~is_validation, is_validation)):
                    parts[number].append((*(column[chosen] for column in rows), lengths[chosen]))
                    is_there = np.arange(sequence.shape[1]) < lengths[chosen][:, None]
                    particles = sequence[chosen][is_there]
                    particles.tofile(files[number])
                    sizes[number] += len(particles)
            mapped = [
                np.memmap(file, np.float32, "r", shape=(size, width))
                if size
                else np.zeros((0, width), np.float32)
                for file, size in zip(files, sizes, strict=True)
            ]
        columns = []
        for of_part, particles in zip(parts, mapped, strict=True):
            hlf, label, weight, lengths = map(np.concatenate, zip(*of_part, strict=True))
            columns.append(_Columns(hlf, label, weight, particles, lengths, lengths.cumsum()))
        return columns[0], columns[1]

    def _read(self, file: Path, group: int) -> tuple[tuple[Array, ...], Array, Array]:
        """Return the events of a row group: inputs, labels and weights; sequences; and
        the numbers of particles of these.
        """
        label = self._column(file, group, "label")
        if len(label) and not (
            label.min() >= 0 and label.max() < (count := len(self.layout.classes))
        ):
            raise DataError(
                f"labels are 0 to {count - 1}", where=file, found=f"{set(label.tolist())}"
            )
        hlf = self._column(file, group, "hlf").reshape(-1, self.layout.hlf_count)
        if not np.isfinite(hlf).all():
            raise DataError(
                "the column hlf has finite numbers", where=file, found="infinite, or no number"
            )
        weight = np.ones(len(label))
        if self.scalers.mean_weights is not None:
            weight = self.scalers.weights(label, self._column(file, group, "weight"))
        sequence = np.zeros((len(label), 0, len(self.layout.columns)), np.float32)
        lengths = np.zeros(len(label), np.int64)
        if needs_low_level(self.kind):
            matrices = self._column(file, group, "low_level").reshape(-1, *self.layout.shape)
            lengths = matrices.any(axis=-1).sum(axis=1)
            longest = int(lengths.max(initial=0))
            sequence = make_sequences(self.scalers, matrices, self.layout, longest)
        rows = (self.scalers.inputs(hlf), label.astype(np.int32), weight.astype(np.float32))
        return rows, sequence, lengths

    def _column(self, file: Path, group: int, name: str) -> Array:
        """Read this worker's values of a column of a row group; lists as one row for each event."""
        import pyarrow as pa

        try:
            column = self._open(file).read_row_group(group, [name]).column(name).combine_chunks()
            if column.null_count:
                raise DataError(
                    f"no event may lack the column {name}",
                    where=file,
                    found=f"{column.null_count} nulls",
                )
            width = {"hlf": self.layout.hlf_count, "low_level": self.layout.matrix}.get(name)
            values = (
                column.to_numpy(zero_copy_only=False)
                if width is None
                else column.flatten().to_numpy()
            )
            values = values if width is None else values.reshape(len(column), width)
        except (pa.ArrowException, OSError, ValueError) as error:
            if is_shortage(error):
                raise
            raise DataError(
                f"the column {name} of a sample cannot be read", where=file, found=str(error)[:200]
            ) from None
        return np.asarray(values[self.rank :: self._every] if self._every > 1 else values)

    def _is_validation(self, hashes: Array) -> Array:
        return np.asarray(hashes.astype(np.uint64) % np.uint64(100) < np.uint64(self._percent))

    def _open(self, file: Path) -> pq.ParquetFile:
        import pyarrow as pa
        import pyarrow.parquet as pq

        try:
            parquet = pq.ParquetFile(file)
        except (pa.ArrowException, OSError, ValueError) as error:
            if is_shortage(error):
                raise
            raise DataError(
                "a part of a sample is damaged", where=file, found=str(error)[:200]
            ) from None
        needed = {
            "hlf",
            "label",
            "event_hash",
            *(("low_level",) if needs_low_level(self.kind) else ()),
        }
        needed |= set() if self.scalers.mean_weights is None else {"weight"}
        if missing := sorted(needed - set(parquet.schema_arrow.names)):
            raise DataError(
                f"networks of the kind {self.kind} read the column {missing[0]}",
                where=file,
                found=f"columns {', '.join(parquet.schema_arrow.names)}",
                next_step="prepare the events with --low-level"
                if missing == ["low_level"]
                else None,
            )
        return parquet


def shuffled(lengths: Array, size: int, seed: tuple[int, int, int]) -> list[Array]:
    """Return the positions of the events of whole batches, in a random order by ``seed``,
    whose last number is the rank.

    So many batches at once are sorted by length, and follow each other in an order that
    is the same for all ranks: batches of one step are of similar length.
    """
    order = np.random.default_rng(seed).permutation(len(lengths))
    batches: list[Array] = []
    for start in range(0, len(order) - size + 1, size * BATCHES_AT_ONCE):
        chosen = order[start : start + size * BATCHES_AT_ONCE]
        chosen = chosen[: len(chosen) - len(chosen) % size]
        steps = -(-lengths[chosen] // LENGTH_STEP)
        sorted_batches = chosen[np.argsort(steps, kind="stable")].reshape(-1, size)
        shuffle = np.random.default_rng((*seed[:2], start)).permutation(len(sorted_batches))
        batches += list(sorted_batches[shuffle])
    return batches


# Samples for training scripts in any framework: batches of numpy arrays, and thin
# adapters for PyTorch and TensorFlow.

Batch = dict[str, Array]
#: Iterations of a DataLoader whose number of an epoch is remembered.
_ITERATIONS: Final = 64


@dataclass(frozen=True)
class SampleReader:
    """The events of a part of a sample, such as ``SAMPLE/train``, in batches of scaled features.

    A batch has ``hlf`` ``(n, features)``, with ``low_level`` also ``low_level`` ``(n,
    rows, columns)``, ``label`` and ``weight``, whose mean is 1 in each class. Worker
    ``rank`` of ``workers`` reads its share of each epoch. Shares differ by one event at
    most and have equal numbers of batches. Without numbers those of the variables of
    the launcher or of PyTorch are taken. Raises InputMissing (66), DataError (65),
    UsageError (2).
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
        if self.rank is not None:
            return self.rank
        return int(os.environ.get("CMSSPARK_TRAIN_RANK") or os.environ.get("RANK") or 0)

    @property
    def count(self) -> int:
        """The number of workers."""
        return int(os.environ.get("WORLD_SIZE", "1")) if self.workers is None else self.workers

    @cached_property
    def _groups(self) -> list[tuple[str, int, int]]:
        """Each row group as its part, its number and its events."""
        return [
            (part, number, size)
            for part in sample_parts(self.folder)
            for number, size in enumerate(row_group_sizes(part))
        ]

    def edges(self) -> list[int]:
        """Return where this worker's batches begin in an epoch, and where the last one ends.

        Every worker has as many batches as the others: one with an event less than they
        have may take it from the batch before. Raises UsageError (2) if there are fewer
        events than workers.
        """
        total = sum(size for _, _, size in self._groups)
        if total < self.count:
            raise UsageError(
                "each worker needs an event", found=f"{total} events, {self.count} workers"
            )
        largest = -(-total // self.count)
        batches = min(-(-largest // self.batch), total // self.count)
        first, last = (total * number // self.count for number in (self.place, self.place + 1))
        starts = [
            min(first + number * self.batch, last - batches + number) for number in range(batches)
        ]
        return [*starts, last]

    def epoch(self, number: int = 0, loader: int = 0, loaders: int = 1) -> Iterator[Batch]:
        """Return the batches of an epoch: each event of this worker once, in an order
        by seed and number.

        ``loader`` of ``loaders``: a process that reads a part of these batches. A row
        group is read by one process, or by those between whose parts it lies. The last
        batch may be smaller. Events are shuffled within a row group, whose order is
        that of the epoch.
        """
        edges = self.edges()
        batches = len(edges) - 1
        edges = edges[batches * loader // loaders : batches * (loader + 1) // loaders + 1]
        scalers = Scalers.load(Path(self.folder).parent)
        order = np.random.default_rng((self.seed, number)).permutation(len(self._groups))
        remaining: list[Batch] = []
        at, begin = 0, edges[0]
        for group in order:
            part, number_in_part, size = self._groups[group]
            first, last = max(at, begin) - at, min(at + size, edges[-1]) - at
            at += size
            if first >= last:
                continue
            events = next(
                event_groups(part, self.layout, low_level=self.low_level, number=number_in_part)
            )
            chosen = np.random.default_rng((self.seed, number, int(group))).permutation(size)
            remaining.append(_scaled(events.take(chosen[first:last]), scalers))
            joined = _joined(remaining)
            taken, waiting = 0, len(joined["label"])
            while len(edges) > 1 and taken + edges[1] - edges[0] <= waiting:
                yield _slice(joined, taken, taken + edges[1] - edges[0])
                taken += edges[1] - edges[0]
                del edges[0]
            remaining = [_slice(joined, taken, waiting)]


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

    Give it to a DataLoader with ``batch_size=None``. The DataLoader's workers read
    parts of the same epoch. ``set_epoch(number)`` names the next epoch, for a training
    that goes on. Raises UsageError (2) if PyTorch is not installed.
    """
    try:
        import torch
    except ImportError:
        raise _not_installed("torch", "PyTorch") from None
    # Workers of a DataLoader have copies of the dataset, and share these: the number of
    # the next epoch, and which iterations have which number. A lock of this context can
    # be given to processes of all contexts.
    following = torch.zeros(1, dtype=torch.int64).share_memory_()
    iterations = torch.zeros((_ITERATIONS, 3), dtype=torch.int64).share_memory_()
    return _torch_dataset(reader, following, iterations, get_context("spawn").Lock())


def _torch_dataset(reader: SampleReader, following: Any, iterations: Any, lock: Any) -> Any:
    """Return the dataset of :func:`torch_dataset`, or a copy that shares its state."""
    import torch
    from torch.utils.data import IterableDataset, get_worker_info

    class Dataset(IterableDataset):  # type: ignore[misc]  # it has no types here
        """The batches of one epoch after another."""

        def __init__(self) -> None:
            super().__init__()
            self._begun: dict[int, int] = {}

        def __reduce__(self) -> Any:
            return _torch_dataset, (reader, following, iterations, lock)

        def __len__(self) -> int:
            return len(reader.edges()) - 1

        def set_epoch(self, number: int) -> None:
            """Let the next iteration be this epoch."""
            following[0] = number

        def __iter__(self) -> Iterator[dict[str, Any]]:
            worker = get_worker_info()
            if worker is None:
                number = int(following[0])
                following[0] = number + 1
                batches = reader.epoch(number)
            else:
                batches = reader.epoch(
                    self._epoch_number(int(worker.seed) - worker.id), worker.id, worker.num_workers
                )
            for batch in batches:
                yield {
                    name: torch.from_numpy(np.ascontiguousarray(column))
                    for name, column in batch.items()
                }

        def _epoch_number(self, seed: int) -> int:
            """Return the epoch of the iteration that this worker begins, the same in all
            its workers: they have one seed, and persistent ones as many iterations.
            """
            begun = self._begun[seed] = self._begun.get(seed, 0) + 1
            with lock:
                is_known = (iterations[:, 0] == seed) & (iterations[:, 1] == begun)
                if is_known.any():
                    return int(iterations[is_known][0, 2])
                number = int(following[0])
                following[0] = number + 1
                # The oldest goes: it has ended long ago.
                iterations[:-1] = iterations[1:].clone()
                iterations[-1] = torch.tensor([seed, begun, number])
                return number

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
