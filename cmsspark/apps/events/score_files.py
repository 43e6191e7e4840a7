"""``cmsspark lab events score``: scores for the events of ROOT files, given ones or
those that arrive in a folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import unquote

import numpy as np

from cmsspark.apps.events.definition import Definition, load_definition
from cmsspark.apps.events.evaluation import Evaluation, evaluate
from cmsspark.apps.events.features import EventFeatures
from cmsspark.apps.events.layout import BATCH_ROWS, EventLayout, layout_in
from cmsspark.apps.events.models import Model, load, model_digest
from cmsspark.apps.events.prepare import (
    RangeResult,
    check_damaged,
    inspect_files,
    peak_memory,
    read_files,
    read_or_reason,
    spread,
    with_tree,
)
from cmsspark.apps.events.root_files import (
    RANGE_EVENTS,
    EntryRange,
    EventFile,
    InspectedFile,
    PartWriter,
    event_groups,
    file_system,
    find_inputs,
    keep_only,
)
from cmsspark.apps.events.scalers import Scalers
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError, OutputError, UsageError
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Entry, Files, LocalFiles, is_local, join, local_path
from cmsspark.store.results import spark_location

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


# Applying a model: to parts of prepared events, to ROOT files, and to files as they
# arrive in a folder.

LABELLED_SCHEMA: Final = "label tinyint, weight double, probabilities array<float>"


class Judged(NamedTuple):
    """Events with known classes and their scores: ``(n)``, ``(n)`` and ``(n, classes)``."""

    labels: Array
    weights: Array
    probabilities: Array


@dataclass(frozen=True)
class ModelTask:
    """What a task does with a model, which it loads once."""

    model: str

    @cached_property
    def loaded(self) -> Model:
        """The model. Each task loads it: another one may stand in its folder then."""
        return load_shipped(self.model)


@dataclass(frozen=True)
class ScorePartTask(ModelTask):
    """Gives labels, weights and probabilities of the events of a part."""

    def __call__(self, part: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for labels, weights, scores in scored_part(self.loaded, part):
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
class ScoreRangeTask(ModelTask):
    """Writes the scores of an entry range with a number as a part in ``folder``; a range
    that cannot be read has a reason and no part.
    """

    definition: Definition
    folder: str

    def __call__(self, numbered: tuple[int, EntryRange]) -> RangeResult:
        number, part = numbered
        model, chunk = self.loaded, read_or_reason(part, self.definition)
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
    from cmsspark.engines.session import spark_progress, unwrap_cause

    if not parts:
        raise DataError("there are no events to judge by")
    task, paths = ScorePartTask(ship(spark, model_folder)), [part.path for part in parts]
    size = sum(part.size for part in parts)
    try:
        with spark_progress(spark, "judging the model"):
            rows = spread(spark, task, paths, size, LABELLED_SCHEMA).toPandas()
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


#: What a stream of files knows of each of them.
_FILES_SCHEMA: Final = "path string, modificationTime timestamp, length bigint, content binary"
#: Names in the folder of scores that are no batch.
CHECKPOINT: Final = "_checkpoint"
QUARANTINE: Final = "quarantine.jsonl"
#: The files that were scored, also those of which no event is selected, with their events
#: and the sums of their generator weights. Readers of Parquet pass such a name over.
FILES: Final = "_files.json"
MODEL: Final = "_model.sha256"


@dataclass(frozen=True)
class ScoreRequest:
    """How to score: the folder of the model on this host, its definition, and damaged
    files that are left out.
    """

    model: Path
    definition: Definition
    accepted: Sequence[str] = ()
    range_events: int = RANGE_EVENTS


def definition_of_model(model: Path, name: str | None, tree: str | None) -> Definition:
    """Return the definition that a model learned from, or the one that is named, which
    must have the same features.

    Raises DataError (65), UsageError (2) for another definition, or a model that needs it named.
    """
    layout = layout_in(model)
    if name is None and layout.definition is None:
        name = "delphes"
    if name is None:
        return with_tree(Definition.from_document(layout.definition, model), tree)
    definition = load_definition(name)
    stored = layout.definition or definition.document()
    # The model may have learned from another tree: --tree.
    definition = with_tree(definition, stored["spec"]["tree"])
    named = definition.document()
    if (stored["spec"], stored["python_sha256"]) != (named["spec"], named["python_sha256"]):
        raise UsageError(
            "the definition is not the one that the model learned from",
            where=name,
            found=f"the model has {stored['name']}",
            next_step="name the same file as for events_prepare, unchanged",
        )
    return with_tree(definition, tree)


@dataclass(frozen=True)
class Scored:
    """What became of some files: events in them, selected ones with scores, files that
    are left out.
    """

    events: int
    selected: int
    left_out: tuple[InspectedFile, ...]


def score_files(
    spark: SparkSession, patterns: Sequence[str], request: ScoreRequest, output: str
) -> Scored:
    """Score the files that patterns name, and write the scores as Parquet into the new
    folder ``output``.

    Raises InputMissing (66), DataError (65) for damaged files that are not accepted,
    OutputError (73).
    """
    files = LocalFiles() if is_local(output) else files_for(output, spark)
    check_new(files, output)
    paths = list(dict.fromkeys(path for pattern in patterns for path in find_inputs(pattern)))
    return _score(
        spark,
        files,
        paths,
        request,
        output,
        lambda left_out: check_damaged(left_out, request.accepted),
    )


def check_new(files: Files, output: str) -> None:
    """Raises OutputError (73) where a folder of scores, or a file, is there already."""
    if not _is_new(files, output):
        raise OutputError(
            "the folder for scores is not empty",
            where=output,
            found="files",
            next_step="remove it, or name another",
        )


def _is_new(files: Files, output: str) -> bool:
    """Return whether there is nothing, or an empty folder."""
    entry = files.stat(output)
    return entry is None or (entry.is_dir and not files.list_dir(output))


def _score(
    spark: SparkSession,
    store: Files,
    paths: Sequence[str],
    request: ScoreRequest,
    output: str,
    check: Callable[[list[InspectedFile]], None],
) -> Scored:
    """Score files, all but those that cannot be read; ``check`` may refuse to go on without those.

    Two jobs: a look into all files, and tasks that score and write. The scores appear as a whole.
    """
    from cmsspark.engines.broadcast_files import ship

    seen = inspect_files(spark, [EventFile(path, None) for path in paths], request.definition)
    check([file for file in seen if file.reason])
    output = os.path.abspath(local_path(output)) if is_local(output) else output.rstrip("/")
    head, _, name = output.rpartition("/")
    # Neither Spark nor we take such a name for scores.
    aside = f"{head}/_{name}.incomplete"
    store.delete(aside)
    store.make_dirs(aside)
    try:
        task = ScoreRangeTask(ship(spark, request.model), request.definition, aside)
        done = read_files(spark, seen, task, request.range_events, "scoring events")
        check(done.left_out)
        succeeded = done.stored
        keep_only(store, aside, [result.part for result in succeeded])
        if not succeeded:
            _write_empty(aside, request.model)
        listed = [
            {"file": file.path, "event_count": file.events, "weight_sum": file.weight_sum}
            for file in done.files
            if not file.reason
        ]
        store.write_bytes(join(aside, FILES), json.dumps(listed, indent=1).encode())
        if not _is_new(store, output):
            # A batch that was written, but not noted by Spark, runs again.
            store.delete(output)
        store.replace(aside, output)
    finally:
        store.delete(aside)
    return Scored(
        sum(file.events for file in seen),
        sum(result.rows for result in succeeded),
        tuple(done.left_out),
    )


def _write_empty(folder: str, model: Path) -> None:
    """Write a part without rows: readers find the columns."""
    import pyarrow.parquet as pq

    system, path = file_system(folder)
    pq.write_table(
        scores_schema(layout_in(model)).empty_table(),
        f"{path}/part-000000.snappy.parquet",
        filesystem=system,
    )


def stream_scores(
    spark: SparkSession,
    folder: str,
    request: ScoreRequest,
    output: str,
    *,
    once: bool,
    seconds: float,
    log: Callable[[str], None],
) -> None:
    """Score ROOT files as they arrive in ``folder``, each once, also when the stream is
    started again.

    Batch *n* is the folder ``batch-n`` of ``output``, written whole or not at all.
    Files that cannot be read are named in ``quarantine.jsonl`` and the stream goes on.
    ``once``: score what is there, then end. A file must appear in the folder complete:
    write it elsewhere and rename it. Raises OutputError (73) where ``output`` has
    scores of another model.
    """
    if not is_local(folder) or not os.path.isdir(folder := os.path.abspath(local_path(folder))):
        raise UsageError(
            "no folder to watch on this host", where=folder, next_step="make it, or name another"
        )
    if not is_local(output):
        raise UsageError("scores of a stream go into a folder on this host", where=output)
    output = os.path.abspath(local_path(output))
    store = LocalFiles()
    store.make_dirs(output)
    _check_model(Path(output), request.model)

    def score_batch(batch: DataFrame, number: int) -> None:
        paths = sorted(_to_path(row["path"]) for row in batch.select("path").collect())
        if not paths:
            return
        target = os.path.join(output, f"batch-{number:06}")
        done = _score(spark, store, paths, request, target, lambda _: None)
        if done.left_out:
            _note_left_out(Path(output, QUARANTINE), number, done.left_out)
        log(
            f"batch {number}: {done.selected:,} of {done.events:,} events of {pluralize(len(paths), 'file')} scored"
            + (f", {pluralize(len(done.left_out), 'file')} left out" if done.left_out else "")
        )

    source = (
        spark.readStream.format("binaryFile")
        .schema(_FILES_SCHEMA)
        .option("pathGlobFilter", "*.root")
    )
    names = source.load(spark_location(folder)).select("path")
    checkpoint = spark_location(f"{output}/{CHECKPOINT}")
    writer = names.writeStream.foreachBatch(score_batch).option("checkpointLocation", checkpoint)
    writer = (
        writer.trigger(availableNow=True)
        if once
        else writer.trigger(processingTime=f"{seconds} seconds")
    )
    query = writer.start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _check_model(output: Path, model: Path) -> None:
    """Note whose scores a stream writes, once. Raises OutputError (73) where they are
    those of another model.
    """
    path, digest = output / MODEL, model_digest(model)
    if not path.exists():
        aside = path.with_suffix(".part")
        aside.write_text(digest, encoding="utf-8")
        aside.replace(path)
    elif path.read_text(encoding="utf-8") != digest:
        raise OutputError(
            "the folder has scores of another model",
            where=output,
            found=f"the model now: {model}",
            next_step="name another folder with --output",
        )


def _note_left_out(path: Path, number: int, files: Sequence[InspectedFile]) -> None:
    """Add the files of a batch to the quarantine; those of a batch that runs again
    replace its former ones.
    """
    lines = []
    if path.exists():
        lines = [
            line
            for line in path.read_text(encoding="utf-8").splitlines()
            if json.loads(line)["batch"] != number
        ]
    lines += [
        json.dumps({"batch": number, "file": file.path, "reason": file.reason}) for file in files
    ]
    aside = path.with_suffix(".part")
    aside.write_text("\n".join(lines) + "\n", encoding="utf-8")
    aside.replace(path)


def _to_path(uri: str) -> str:
    """Return a path of this host from a URI of Spark's, in which special characters are encoded."""
    path = re.sub(r"^file:/+", "/", uri)
    return path if os.path.exists(path) else unquote(path)


def quiet_options() -> dict[str, str]:
    """Options of a session that a command starts itself: no log lines of Spark, no bar."""
    from cmsspark.base.resources import resource

    quiet = f'"-Dlog4j2.configurationFile=file:{resource("etc/log4j2.properties")}"'
    return {"spark.driver.defaultJavaOptions": quiet, "spark.ui.showConsoleProgress": "false"}
