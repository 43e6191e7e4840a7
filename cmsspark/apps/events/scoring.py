"""Applying a model: to parts of prepared events, to ROOT files, and to files as they
arrive in a folder.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple

import numpy as np

from cmsspark.apps.events.definition import Definition
from cmsspark.apps.events.evaluation import Evaluation, evaluate
from cmsspark.apps.events.features import EventFeatures
from cmsspark.apps.events.layout import BATCH_ROWS, EventLayout, layout_in
from cmsspark.apps.events.models import Model, load
from cmsspark.apps.events.parts import PartWriter, event_groups
from cmsspark.apps.events.prepare_task import (
    RangeResult,
    make_rows,
    peak_memory,
    read_numbers,
    read_or_reason,
    task_count,
)
from cmsspark.apps.events.root_files import EntryRange
from cmsspark.apps.events.scalers import Scalers
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError
from cmsspark.filesystems.storage import Entry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

LABELLED_SCHEMA: Final = "label tinyint, weight double, probabilities array<float>"


class Judged(NamedTuple):
    """Events with known classes and their scores: ``(n)``, ``(n)`` and ``(n, classes)``."""

    labels: Array
    weights: Array
    probabilities: Array


@dataclass(frozen=True)
class ScorePartsTask:
    """For each id of the batches the part of that number: labels, weights and
    probabilities of its events.
    """

    parts: tuple[str, ...]
    model: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        model = load_shipped(self.model)
        for number in read_numbers(batches):
            for labels, weights, scores in scored_part(model, self.parts[number]):
                ends = pa.array(np.arange(len(scores) + 1, dtype=np.int32) * scores.shape[1])
                flat = pa.array(np.ascontiguousarray(scores, np.float32).reshape(-1))
                probabilities = pa.ListArray.from_arrays(ends, flat)
                columns = [pa.array(labels), pa.array(weights), probabilities]
                yield pa.RecordBatch.from_arrays(columns, ["label", "weight", "probabilities"])


def scores_schema(layout: EventLayout) -> pa.Schema:
    """Return the Arrow schema of scores: a row for each selected event."""
    import pyarrow as pa

    fields = [
        ("file", pa.string()),
        ("entry", pa.int64()),
        ("event_hash", pa.int64()),
        ("weight", pa.float64()),
    ]
    fields += [(name, pa.float32()) for name in layout.class_names]
    return pa.schema([*fields, ("predicted", pa.string())])


@dataclass(frozen=True)
class ScoreFilesTask:
    """For each id of the batches the entry range of that number: its scores as a part
    in ``folder``.

    A row of the result is a :class:`RangeResult` as JSON; a range that cannot be read
    has a reason and no part.
    """

    ranges: tuple[EntryRange, ...]
    definition: Definition
    model: str
    folder: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        model = load_shipped(self.model)
        return make_rows(self._score(model, number) for number in read_numbers(batches))

    def _score(self, model: Model, number: int) -> RangeResult:
        part = self.ranges[number]
        chunk = read_or_reason(part, self.definition)
        if isinstance(chunk, str):
            return RangeResult(number, reason=chunk)
        with PartWriter(self.folder, number, scores_schema(model.layout)) as writer:
            scored = [
                _scored(
                    part,
                    start,
                    features,
                    model.predict(features.hlf, features.low_level),
                    model.layout,
                )
                for start, features in chunk.batches(low_level=model.needs_low_level)
            ]
            # An event takes some 100 bytes: those of a range are one row group.
            writer.write(
                {
                    name: np.concatenate([batch[name] for batch in scored])
                    for name in writer.schema.names
                }
            )
        return RangeResult(
            number, writer.name if writer.rows else "", writer.rows, memory=peak_memory()
        )


def _scored(
    part: EntryRange, start: int, features: EventFeatures, scores: Array, layout: EventLayout
) -> dict[str, Array]:
    return {
        "file": np.full(len(scores), part.path, object),
        "entry": features.entries + (part.start + start),
        "event_hash": features.hashes().view(np.int64),
        "weight": features.weights,
        **{
            name: scores[:, index].astype(np.float32)
            for index, name in enumerate(layout.class_names)
        },
        "predicted": np.array(layout.class_names, object)[scores.argmax(axis=1)],
    }


def load_shipped(model: str) -> Model:
    """Return the model of a folder that :func:`cmsspark.engines.broadcast_files.ship`
    made available.
    """
    from cmsspark.engines.broadcast_files import local_folder

    return load(local_folder(model))


def predictions(spark: SparkSession, model_folder: Path, parts: Sequence[Entry]) -> Judged:
    """Return labels, weights and probabilities of the events of some parts, scored in
    Spark's tasks.
    """
    from cmsspark.engines.broadcast_files import ship
    from cmsspark.engines.session import unwrap_cause
    from cmsspark.engines.spark_progress import spark_progress

    if not parts:
        raise DataError("there are no events to judge by")
    task = ScorePartsTask(tuple(part.path for part in parts), ship(spark, model_folder))
    tasks = task_count(spark, len(parts), sum(part.size for part in parts))
    try:
        with spark_progress(spark, "judging the model"):
            rows = (
                spark.range(0, len(parts), 1, tasks).mapInArrow(task, LABELLED_SCHEMA).toPandas()
            )
    except Exception as error:
        raise unwrap_cause(error) from None
    labels = rows["label"].to_numpy(np.int64)
    probabilities = np.concatenate(list(rows["probabilities"])).reshape(len(labels), -1)
    return Judged(labels, rows["weight"].to_numpy(np.float64), probabilities)


def judge(spark: SparkSession, model_folder: Path, parts: Sequence[Entry]) -> Evaluation:
    """Return how good a model is on the events of some parts."""
    return load_evaluation(model_folder, predictions(spark, model_folder, parts))


def load_evaluation(model_folder: Path, judged: Judged) -> Evaluation:
    """Return how good a model is, by its scores; weights are scaled so that classes
    have equal sums.
    """
    weights = Scalers.load(model_folder).weights(judged.labels, judged.weights)
    return evaluate(judged.labels, judged.probabilities, layout_in(model_folder).classes, weights)


def local_predictions(model: Model, parts: Sequence[str]) -> Judged:
    """Return the same as :func:`predictions`, in this process."""
    rows = [row for part in parts for row in scored_part(model, part)]
    if not rows:
        raise DataError("there are no events to judge by")
    return Judged(*(np.concatenate([row[index] for row in rows]) for index in range(3)))


def scored_part(model: Model, part: str) -> Iterator[tuple[Array, Array, Array]]:
    """Return labels, weights and probabilities of the events of a part, in batches of at most 500."""
    for events in event_groups(part, model.layout, low_level=model.needs_low_level):
        for start in range(0, len(events.labels), BATCH_ROWS):
            batch = events.take(slice(start, start + BATCH_ROWS))
            yield batch.labels, batch.weights, model.predict(batch.hlf, batch.low_level)
