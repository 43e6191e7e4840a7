"""Applying a model: to parts of prepared events, to ROOT files, and to files as they arrive in a folder."""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.events.features import EventFeatures, batches_of
from cmsspark.apps.events.layout import BATCH_ROWS, CLASSES, FEATURES, HLF_COUNT, MATRIX, PARTICLES
from cmsspark.apps.events.models import Model, load
from cmsspark.apps.events.parts import PartWriter, matrix_of
from cmsspark.apps.events.prepare_task import RangeResult, numbers_of, peak_memory, read_or_reason, rows_of
from cmsspark.apps.events.root_files import EntryRange
from cmsspark.apps.events.sample_tasks import row_groups
from cmsspark.apps.events.task_counts import task_count
from cmsspark.base.errors import DataError
from cmsspark.filesystems.storage import Entry

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import SparkSession

Array = np.ndarray[Any, Any]

LABELLED_SCHEMA: Final = "label tinyint, qcd float, ttbar float, wjets float"


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


def scores_schema() -> pa.Schema:
    """The Arrow schema of scores: a row for each selected event."""
    import pyarrow as pa

    fields = [("file", pa.string()), ("entry", pa.int64()), ("event_hash", pa.int64())]
    fields += [(name, pa.float32()) for name in CLASSES]
    return pa.schema([*fields, ("predicted", pa.string())])


@dataclass(frozen=True)
class ScoreFilesTask:
    """For each id of the batches the entry range of that number: its scores as a part in ``folder``.

    A row of the result is a :class:`RangeResult` as JSON; a range that cannot be read has a reason and no part.
    """

    ranges: tuple[EntryRange, ...]
    tree: str
    model: str
    folder: str

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        model = load_shipped(self.model)
        return rows_of(json.dumps(asdict(self._score(model, number))) for number in numbers_of(batches))

    def _score(self, model: Model, number: int) -> RangeResult:
        part = self.ranges[number]
        collections = read_or_reason(part, self.tree)
        if isinstance(collections, str):
            return RangeResult(number, reason=collections)
        with PartWriter(self.folder, number, scores_schema()) as writer:
            scored = [
                _scored(part, start, features, model.predict(features.hlf, features.low_level))
                for start, features in batches_of(collections, low_level=model.needs_low_level)
            ]
            # An event takes some 100 bytes: those of a range are one row group.
            writer.write({name: np.concatenate([batch[name] for batch in scored]) for name in writer.schema.names})
        return RangeResult(number, writer.name if writer.rows else "", writer.rows, memory=peak_memory())


def _scored(part: EntryRange, start: int, features: EventFeatures, scores: Array) -> dict[str, Array]:
    return {
        "file": np.full(len(scores), part.path, object),
        "entry": features.entries + (part.start + start),
        "event_hash": features.hashes().view(np.int64),
        **{name: scores[:, place].astype(np.float32) for place, name in enumerate(CLASSES)},
        "predicted": np.array(CLASSES, object)[scores.argmax(axis=1)],
    }


def _score_columns(scores: Array) -> list[pa.Array]:
    import pyarrow as pa

    return [pa.array(np.ascontiguousarray(scores[:, place], np.float32)) for place in range(len(CLASSES))]


def load_shipped(model: str) -> Model:
    """The model of a folder that :func:`cmsspark.engines.broadcast_files.ship` made available."""
    from cmsspark.engines.broadcast_files import local_folder

    return load(local_folder(model))


def predictions(spark: SparkSession, model_folder: Path, parts: Sequence[Entry]) -> tuple[Array, Array]:
    """Labels ``(n)`` and probabilities ``(n, 3)`` of the events of some parts, scored in Spark's tasks."""
    from cmsspark.engines.broadcast_files import ship
    from cmsspark.engines.session import cause_of
    from cmsspark.engines.spark_progress import spark_progress

    if not parts:
        raise DataError("parts of events are wanted, to judge by", found="none")
    task = ScorePartsTask(tuple(part.path for part in parts), ship(spark, model_folder))
    tasks = task_count(spark, len(parts), sum(part.size for part in parts))
    try:
        with spark_progress(spark, "judging the model"):
            rows = spark.range(0, len(parts), 1, tasks).mapInArrow(task, LABELLED_SCHEMA).toPandas()
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
