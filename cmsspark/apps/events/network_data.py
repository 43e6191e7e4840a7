"""What a worker reads of a sample to train a network: its share of ``train``, scaled,
in a seeded order.

A share is every n-th row group of the part files in order of their names; where there
are few row groups, every n-th row of each. Events that judge a training are chosen by
their hash: the same events for any number of workers.
"""

from __future__ import annotations

import errno
import hashlib
import json
import os
import shutil
import tempfile
import zipfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cached_property
from itertools import count
from multiprocessing import get_context
from pathlib import Path
from typing import Any, Final, NamedTuple

import numpy as np

from cmsspark.apps.events.gru import scan_reason
from cmsspark.apps.events.layout import EventLayout, layout_in
from cmsspark.apps.events.networks import LENGTH_STEP, needs_low_level, ordered_particles
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

#: Batches whose events are sorted by length.
BATCHES_AT_ONCE: Final = 8
#: Stored arrays of another version are made again.
_ARRAYS_VERSION: Final = 1
#: Samples whose arrays are kept: those that were used last.
_KEPT_ARRAYS: Final = 4
_INDEX_FILE: Final = "events.npz"
_PARTICLES_FILE: Final = "particles.f2"


class Rows(NamedTuple):
    """A batch: ``hlf``, which is :meth:`Scalers.inputs`, ``sequence`` ``(n, length,
    columns)``, labels, weights.
    """

    hlf: Array
    sequence: Array
    label: Array
    weight: Array


class Columns(NamedTuple):
    """The events of a share, ready for batches.

    ``particles`` of all events follow each other, only those that exist, ordered and
    scaled, in half precision: those of event *i* from ``ends[i] - lengths[i]`` to
    ``ends[i]``. ``hundredths``: which hundredth of the sample an event is in, by its hash.
    """

    hlf: Array
    label: Array
    weight: Array
    lengths: Array
    ends: Array
    particles: Array
    hundredths: Array


@dataclass
class Share:
    """The events of a sample's ``train`` that worker ``rank`` of ``workers`` reads.

    They are decoded, ordered and scaled once, at the first use, and mapped into memory.
    ``arrays``: a folder where they stay for other trainings with the same events and
    scalers; without it they go when this process ends.

    Raises InputMissing (66) where the folder holds no sample, DataError (65) where a
    part is damaged, or lacks what a network of this kind reads.
    """

    folder: Path
    kind: str
    rank: int = 0
    workers: int = 1
    arrays: Path | None = None
    #: Numbers of particles and hundredths of the events of each worker. Batches of all
    #: workers are as long as the longest event in one of them. Only this worker's until
    #: they are set.
    everyone: list[tuple[Array, Array]] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.scalers, self.layout = Scalers.load(self.folder), layout_in(self.folder)
        self._parts = sample_parts(self.folder / "train")
        if not self._parts:
            raise InputMissing(
                "no sample of events",
                where=self.folder / "train",
                found="no part-*.parquet",
                next_step="name the folder that events_sample made (train, test, scalers.json)",
            )
        sizes = [row_group_sizes(part) for part in self._parts]
        #: The events of all workers.
        self.events = sum(map(sum, sizes))
        if not self.events:
            raise DataError("a sample has events", where=self.folder / "train", found="none")
        groups = [
            (part, number)
            for part, of_part in zip(self._parts, sizes, strict=True)
            for number in range(len(of_part))
        ]
        if self.scalers.curves is None:
            # All workers read the same events, whatever their shares.
            first = read_events(self.folder / "train", limit=CURVE_EVENTS)
            self.scalers = self.scalers.with_curves(first.hlf)
        self._every = 1 if len(groups) >= 4 * self.workers else self.workers
        self._groups = groups if self._every > 1 else groups[self.rank :: self.workers]

    @cached_property
    def columns(self) -> Columns:
        """The events, from the folder of arrays if it has them."""
        if self.arrays is not None:
            folder = self.arrays / self._digest() / f"{self.rank}-of-{self.workers}"
            with suppress(OSError, ValueError, KeyError, EOFError, zipfile.BadZipFile):
                columns = self._load(folder)
                os.utime(folder.parent)
                return columns
            # Where arrays cannot be stored, they are not.
            with suppress(OSError):
                folder.parent.mkdir(parents=True, exist_ok=True)
                # At most: of each event all particles that its matrix has room for.
                size = 2 * self.events * self.layout.matrix // self.workers
                if needs_low_level(self.kind) and 2 * size > shutil.disk_usage(folder.parent).free:
                    raise OSError(errno.ENOSPC, "the disk would be half full of them")
                aside = Path(tempfile.mkdtemp(prefix=".new-", dir=folder.parent))
                try:
                    self._write(aside)
                    columns = self._load(aside)
                    shutil.rmtree(folder, ignore_errors=True)
                    aside.rename(folder)
                    self._forget_old(folder.parent)
                    return columns
                finally:
                    shutil.rmtree(aside, ignore_errors=True)
        # Files that are mapped outlive their names.
        with tempfile.TemporaryDirectory(prefix="cmsspark-arrays-") as aside_name:
            self._write(Path(aside_name))
            return self._load(Path(aside_name))

    def _digest(self) -> str:
        """Return the name of what arrays are made of: the part files, scalers, columns."""
        digest = hashlib.sha256()
        document = self.layout.document(origin=False)["columns"]
        kind = "particles" if needs_low_level(self.kind) else "features"
        described = [_ARRAYS_VERSION, kind, document, self.scalers.as_dict()]
        digest.update(json.dumps(described, sort_keys=True).encode())
        for part in self._parts:
            stat = os.stat(part)
            digest.update(f"{Path(part).name} {stat.st_size} {stat.st_mtime_ns} ".encode())
            with open(part, "rb") as stream:
                # What Parquet says of its columns: sizes, and the range of hashes.
                stream.seek(-8, os.SEEK_END)
                size = int.from_bytes(stream.read(4), "little")
                stream.seek(-8 - size, os.SEEK_END)
                digest.update(stream.read(size))
        return digest.hexdigest()[:24]

    def _forget_old(self, newest: Path) -> None:
        """Remove the arrays of samples that were not used for long."""
        old_folders = [path for path in newest.parent.iterdir() if path != newest]
        for path in sorted(old_folders, key=os.path.getmtime)[: -(_KEPT_ARRAYS - 1)]:
            shutil.rmtree(path, ignore_errors=True)

    def _load(self, folder: Path) -> Columns:
        """Map stored arrays. Raises OSError, ValueError, KeyError … if they are not whole."""
        with open(folder / _INDEX_FILE, "rb") as stream, np.load(stream) as stored:
            columns = {name: stored[name] for name in stored.files}
        shape = (int(columns["lengths"].sum()), len(self.layout.columns))
        path = folder / _PARTICLES_FILE
        if path.stat().st_size != 2 * shape[0] * shape[1]:
            raise ValueError("particles are missing")
        # An empty file cannot be mapped.
        particles = np.zeros(shape, np.float16)
        if shape[0]:
            particles = np.memmap(path, np.float16, "r", shape=shape)
        return Columns(**columns, ends=columns["lengths"].cumsum(), particles=particles)

    def _write(self, folder: Path) -> None:
        """Read the events of this worker, and store them as arrays."""
        rows: list[dict[str, Array]] = []
        threads = len(os.sched_getaffinity(0))
        with (
            open(folder / _PARTICLES_FILE, "wb") as stream,
            ThreadPoolExecutor(threads) as pool,
        ):
            for start in range(0, len(self._groups), 2 * threads):
                some = self._groups[start : start + 2 * threads]
                for columns, particles in pool.map(self._read, some):
                    rows.append(columns)
                    # Not tofile, which hides the number of an error.
                    stream.write(particles.tobytes())
        joined: Any = {name: np.concatenate([part[name] for part in rows]) for name in rows[0]}
        with open(folder / _INDEX_FILE, "wb") as stream:
            np.savez(stream, **joined)

    def _read(self, group: tuple[str, int]) -> tuple[dict[str, Array], Array]:
        """Return the events of a row group, and their particles."""
        part, number = group
        has_particles = needs_low_level(self.kind)
        events = next(
            event_groups(
                part, self.layout, low_level=has_particles, number=number, with_hashes=True
            )
        )
        if self._every > 1:
            events = events.take(slice(self.rank, None, self._every))
        assert events.hashes is not None
        hundredths = events.hashes.astype(np.uint64) % np.uint64(100)
        columns = {
            "hlf": self.scalers.inputs(events.hlf),
            "label": events.labels.astype(np.int32),
            "weight": self.scalers.weights(events.labels, events.weights).astype(np.float32),
            "lengths": np.zeros(len(events.labels), np.int64),
            "hundredths": hundredths.astype(np.uint8),
        }
        if events.low_level is None:
            return columns, np.zeros(0, np.float16)
        particles, columns["lengths"] = ordered_particles(
            self.scalers, events.low_level, self.layout
        )
        largest = float(np.finfo(np.float16).max)
        particles.clip(-largest, largest, out=particles)
        return columns, particles.astype(np.float16)

    def rows(self, positions: Array, length: int) -> Rows:
        """Return events as a batch, their sequences filled up to ``length``; the position
        -1 stands for no event, which has the weight 0.
        """
        columns = self.columns
        is_event = positions >= 0
        sequence = np.zeros((len(positions), length, len(self.layout.columns)), np.float32)
        if needs_low_level(self.kind):
            for row, position in enumerate(positions[is_event]):
                size, end = columns.lengths[position], columns.ends[position]
                sequence[row, :size] = columns.particles[end - size : end]
        weight = np.where(is_event, columns.weight[positions], np.float32(0))
        return Rows(columns.hlf[positions], sequence, columns.label[positions], weight)

    def split(self, first: int = 0, last: int = 0) -> Split:
        """Return the events to learn from, and those of the hundredths from ``first`` to
        ``last``, which judge.
        """
        own_events = (self.columns.lengths, self.columns.hundredths)
        everyone = self.everyone or [own_events]
        chosen = [(first <= of_rank) & (of_rank < last) for _, of_rank in everyone]
        lengths = [
            (of_rank[~judges], of_rank[judges])
            for (of_rank, _), judges in zip(everyone, chosen, strict=True)
        ]
        judges = chosen[self.rank if self.everyone else 0]
        return Split(self, np.flatnonzero(~judges), np.flatnonzero(judges), lengths)


@dataclass(frozen=True)
class Split:
    """A share's events to learn from, and those that judge, by their positions in it.

    ``lengths``: of each worker the numbers of particles of both. A batch is positions,
    and the length of its sequences.
    """

    share: Share
    learned: Array
    validated: Array
    lengths: list[tuple[Array, Array]]

    def batches(self, size: int, seed: int, epoch: int) -> Iterator[tuple[Array, int]]:
        """Whole batches of events to learn from, as many for each worker, in an order that
        depends on seed, epoch and rank only.

        Events of similar length are together: so many batches at once are sorted by it.
        """
        ranks = [self.share.rank] if len(self.lengths) == 1 else range(len(self.lengths))
        orders = [
            shuffled(learned, size, (seed, epoch, rank))
            for rank, (learned, _) in zip(ranks, self.lengths, strict=True)
        ]
        own_order = orders[self.share.rank if len(orders) > 1 else 0]
        for number in range(min(map(len, orders))):
            longest = max(
                int(learned[order[number]].max())
                for (learned, _), order in zip(self.lengths, orders, strict=True)
            )
            yield self.learned[own_order[number]], self._rounded(longest)

    def validation(self, size: int) -> Iterator[tuple[Array, int]]:
        """Batches of the events that judge, as many as the worker has that has most of
        them, filled up with -1.
        """
        own_order = np.argsort(self.share.columns.lengths[self.validated], kind="stable")
        ordered = [np.sort(validated) for _, validated in self.lengths]
        for start in range(0, max(map(len, ordered)), size):
            longest = max(int(sizes[start : start + size].max(initial=0)) for sizes in ordered)
            positions = self.validated[own_order[start : start + size]]
            yield (
                np.pad(positions, (0, size - len(positions)), constant_values=-1),
                self._rounded(longest),
            )

    def _rounded(self, particles: int) -> int:
        """Round a number of particles up, so that few lengths are compiled."""
        if not needs_low_level(self.share.kind):
            return 1
        steps = max(1, -(-particles // LENGTH_STEP))
        if scan_reason(len(self.share.layout.columns)) is None:
            # It ends with the longest of its events, so that padding costs memory only.
            steps = 1 << (steps - 1).bit_length()
        return min(self.share.layout.particles, steps * LENGTH_STEP)


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
            joined = {
                name: np.concatenate([part[name] for part in remaining]) for name in remaining[0]
            }
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
