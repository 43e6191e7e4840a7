"""Applying a model: to parts of prepared events, to ROOT files, and to files as they arrive in a folder."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.errors import DataError
from cmsspark.events.features import EventFeatures, batches_of
from cmsspark.events.layout import BATCH_ROWS, CLASSES, FEATURES, HLF_COUNT, MATRIX, PARTICLES
from cmsspark.events.models import Model, load
from cmsspark.events.parts import matrix_of
from cmsspark.events.prepare_task import numbers_of
from cmsspark.events.root_files import EntryRange, read_range, reason_of
from cmsspark.events.sample_tasks import row_groups

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Array = np.ndarray[Any, Any]

LABELLED_SCHEMA: Final = "label tinyint, qcd float, ttbar float, wjets float"
#: A row for each selected event; and one for each range that cannot be read, with its reason and no event.
SCORES_SCHEMA: Final = (
    "file string, entry bigint, event_hash bigint, qcd float, ttbar float, wjets float, predicted string, "
    "events bigint, reason string"
)


@dataclass(frozen=True)
class ScorePartsTask:
    """For each id of the batches the part of that number: labels and probabilities of its events."""

    parts: tuple[str, ...]
    model: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        model = load_shipped(self.model)
        for number in numbers_of(batches):
            for labels, scores in scored_part(model, self.parts[number]):
                yield pa.RecordBatch.from_arrays([pa.array(labels), *_score_columns(scores)], ["label", *CLASSES])


@dataclass(frozen=True)
class ScoreFilesTask:
    """For each id of the batches the entry range of that number: :data:`SCORES_SCHEMA`."""

    ranges: tuple[EntryRange, ...]
    tree: str
    model: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        model = load_shipped(self.model)
        for number in numbers_of(batches):
            part = self.ranges[number]
            try:
                collections = read_range(part, self.tree)
            except MemoryError:
                raise
            except Exception as error:
                yield _failed(part, reason_of(error))
                continue
            for start, features in batches_of(collections, low_level=model.needs_low_level):
                yield _scored(part, start, features, model.predict(features.hlf, features.low_level))


def _scored(part: EntryRange, start: int, features: EventFeatures, scores: Array) -> pa.RecordBatch:
    import pyarrow as pa

    count = len(scores)
    columns = [
        pa.array([part.path] * count, pa.string()),
        pa.array(features.entries + (part.start + start), pa.int64()),
        pa.array(features.hashes().view(np.int64)),
        *_score_columns(scores),
        pa.array([CLASSES[guess] for guess in scores.argmax(axis=1)] if count else [], pa.string()),
        pa.array([1] * count, pa.int64()),
        pa.nulls(count, pa.string()),
    ]
    return pa.RecordBatch.from_arrays(columns, _names())


def _failed(part: EntryRange, reason: str) -> pa.RecordBatch:
    import pyarrow as pa

    row = {"file": part.path, "entry": part.start, "events": part.stop - part.start, "reason": reason}
    types = {"string": pa.string(), "bigint": pa.int64(), "float": pa.float32()}
    kinds = dict(text.split() for text in SCORES_SCHEMA.split(", "))
    return pa.RecordBatch.from_pydict({name: pa.array([row.get(name)], types[kind]) for name, kind in kinds.items()})


def _names() -> list[str]:
    return [text.split()[0] for text in SCORES_SCHEMA.split(", ")]


def _score_columns(scores: Array) -> list[pa.Array]:
    import pyarrow as pa

    return [pa.array(np.ascontiguousarray(scores[:, place], np.float32)) for place in range(len(CLASSES))]


def load_shipped(model: str) -> Model:
    """The model of a folder that :func:`cmsspark.runners.shipped.ship` made available."""
    from cmsspark.runners.shipped import local_folder

    return load(local_folder(model))


def predictions(spark: SparkSession, model_folder: Path, parts: Sequence[str]) -> tuple[Array, Array]:
    """Labels ``(n)`` and probabilities ``(n, 3)`` of the events of some parts, scored in Spark's tasks."""
    from cmsspark.runners.session import cause_of
    from cmsspark.runners.shipped import ship
    from cmsspark.runners.spark_progress import spark_progress

    if not parts:
        raise DataError("parts of events are wanted, to judge by", found="none")
    task = ScorePartsTask(tuple(parts), ship(spark, model_folder))
    try:
        with spark_progress(spark, "judging the model"):
            rows = spark.range(0, len(parts), 1, len(parts)).mapInArrow(task, LABELLED_SCHEMA).toPandas()
    except Exception as error:
        raise cause_of(error) from None
    return rows["label"].to_numpy(np.int64), rows[list(CLASSES)].to_numpy(np.float32)


def local_predictions(model: Model, parts: Sequence[str]) -> tuple[Array, Array]:
    """As :func:`predictions`, in this process."""
    rows = [row for part in parts for row in scored_part(model, part)]
    if not rows:
        raise DataError("parts of events are wanted, to judge by", found="none")
    return np.concatenate([labels for labels, _ in rows]), np.concatenate([scores for _, scores in rows])


def scored_part(model: Model, part: str) -> Iterator[tuple[Array, Array]]:
    """Labels and probabilities of the events of a part, in batches of at most 500."""
    names = ["label", "hlf", *(["low_level"] if model.needs_low_level else [])]
    for rows in row_groups(part, names):
        for start in range(0, rows.num_rows, BATCH_ROWS):
            batch = rows.slice(start, BATCH_ROWS)
            low_level = None
            if model.needs_low_level:
                low_level = matrix_of(batch.column("low_level"), MATRIX).reshape(-1, PARTICLES, FEATURES)
            scores = model.predict(matrix_of(batch.column("hlf"), HLF_COUNT), low_level)
            yield batch.column("label").to_numpy(), scores
