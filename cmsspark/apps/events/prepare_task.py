"""What a task of the preparation does: it reads an entry range, computes features and
writes them as a part.
"""

from __future__ import annotations

import resource
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, TypeVar

import numpy as np
from msgspec import json

from cmsspark.apps.events.chunks import Chunk
from cmsspark.apps.events.definition import Definition
from cmsspark.apps.events.layout import EventLayout
from cmsspark.apps.events.parts import PartWriter
from cmsspark.apps.events.root_files import (
    EntryRange,
    EventFile,
    InspectedFile,
    explain_error,
    inspect,
    read_range,
)
from cmsspark.engines.session import count_cores

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

_T = TypeVar("_T")
#: A task gives one row, a JSON object.
RESULT: Final = "result string"
#: Bytes that a task reads at least, where all cores have work.
TASK_BYTES: Final = 128 * 1024 * 1024
#: What opening a file costs, in bytes that are read meanwhile.
OPEN_BYTES: Final = 4 * 1024 * 1024


@dataclass(frozen=True)
class RangeResult:
    """What became of an entry range. ``cuts``: its events by the cuts of the definition.

    ``reason``: why it could not be read, then there is no part; ``memory``: the
    worker's peak so far, in bytes.
    """

    number: int
    part: str = ""
    rows: int = 0
    cuts: tuple[int, ...] = ()
    reason: str = ""
    memory: int = 0


@dataclass(frozen=True)
class InspectTask:
    """For each id of the batches the file of that number: its :class:`InspectedFile` as JSON."""

    files: tuple[EventFile, ...]
    definition: Definition

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return make_rows(
            inspect(self.files[number], self.definition) for number in read_numbers(batches)
        )


@dataclass(frozen=True)
class PrepareTask:
    """For each id of the batches the entry range of that number: its events as a part
    in ``folder``.
    """

    ranges: tuple[EntryRange, ...]
    definition: Definition
    layout: EventLayout
    folder: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return make_rows(self._prepare(number) for number in read_numbers(batches))

    def _prepare(self, number: int) -> RangeResult:
        part = self.ranges[number]
        chunk = read_or_reason(part, self.definition)
        if isinstance(chunk, str):
            return RangeResult(number, reason=chunk)
        cuts = np.zeros(len(self.definition.cuts), np.int64)
        with PartWriter(self.folder, number, self.layout.schema()) as writer:
            for start, features in chunk.batches(low_level=self.layout.has_matrix):
                cuts += np.bincount(features.outcome, minlength=len(cuts))
                count = len(features.hlf)
                writer.write(
                    {
                        "hlf": features.hlf,
                        "low_level": features.low_level,
                        "label": np.full(count, -1 if part.label is None else part.label, np.int8),
                        "event_hash": features.hashes(),
                        "weight": features.weights,
                        "file": [part.path] * count,
                        "entry": features.entries + (part.start + start),
                    }
                )
        name = writer.name if writer.rows else ""
        return RangeResult(number, name, writer.rows, tuple(cuts.tolist()), memory=peak_memory())


def read_or_reason(part: EntryRange, definition: Definition) -> Chunk | str:
    """Return the events of an entry range, or why it cannot be read: a damaged range
    never ends its task.
    """
    try:
        return read_range(part, definition)
    except MemoryError:
        raise
    except Exception as error:
        return explain_error(error)


def peak_memory() -> int:
    """Return the most memory that this process had so far, in bytes."""
    return resource.getrusage(resource.RUSAGE_SELF).ru_maxrss * 1024


def read_numbers(batches: Iterable[pa.RecordBatch]) -> Iterator[int]:
    """Yield the values of the column ``id``."""
    for batch in batches:
        yield from batch.column("id").to_pylist()


def make_rows(results: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Yield a row for each result of a task: a dataclass or a mapping, as JSON."""
    import pyarrow as pa

    for result in results:
        yield pa.RecordBatch.from_pydict({"result": pa.array([json.encode(result)], pa.string())})


def task_count(spark: SparkSession, items: int, size: int) -> int:
    """Return the number of tasks for ``items`` of ``size`` bytes in all: one for each
    :data:`TASK_BYTES`, and for each core.

    No task is without an item, so there are at most ``items``. A task takes its items
    one after another.
    """
    weight, cores = size + items * OPEN_BYTES, count_cores(spark)
    # Whole rounds: with three tasks on two cores one core would wait for half of the time.
    rounds = max(1, -(-weight // (TASK_BYTES * cores)))
    return max(1, min(items, rounds * cores))


def run_tasks(
    spark: SparkSession, task: Any, result: type[_T], count: int, size: int, label: str
) -> list[_T]:
    """Run ``task`` for the numbers 0 to ``count``, which are ``size`` bytes in all, in Spark.

    Returns the results in the order of the numbers. Raises the errors of tasks as ours
    where they are.
    """
    from cmsspark.engines.session import unwrap_cause
    from cmsspark.engines.spark_progress import spark_progress

    if not count:
        return []
    try:
        with spark_progress(spark, label):
            rows = (
                spark.range(0, count, 1, task_count(spark, count, size))
                .mapInArrow(task, RESULT)
                .collect()
            )
    except Exception as error:
        raise unwrap_cause(error) from None
    return [json.decode(row["result"], type=result) for row in rows]


def inspect_files(
    spark: SparkSession, files: Sequence[EventFile], definition: Definition
) -> list[InspectedFile]:
    """Look into files of events, in tasks; in their order."""
    task = InspectTask(tuple(files), definition)
    return run_tasks(spark, task, InspectedFile, len(files), 0, "opening files of events")
