"""``cmsspark lab events score``: scores for the events of ROOT files, given ones or
those that arrive in a folder.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from cmsspark.apps.events.definition import Definition
from cmsspark.apps.events.definition_files import load_definition
from cmsspark.apps.events.layout import layout_in
from cmsspark.apps.events.models import model_digest
from cmsspark.apps.events.parts import file_system, keep_only
from cmsspark.apps.events.prepare import check_damaged, with_tree
from cmsspark.apps.events.prepare_task import RangeResult, inspect_files, run_tasks
from cmsspark.apps.events.root_files import (
    RANGE_EVENTS,
    EventFile,
    InspectedFile,
    estimate_bytes,
    find_inputs,
    split_ranges,
)
from cmsspark.apps.events.scoring import ScoreFilesTask, scores_schema
from cmsspark.base.errors import OutputError, UsageError
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.opening import files_for
from cmsspark.filesystems.storage import Files, LocalFiles, is_local, local_path
from cmsspark.store.results import spark_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What a stream of files knows of each of them.
_FILES_SCHEMA: Final = "path string, modificationTime timestamp, length bigint, content binary"
#: Names in the folder of scores that are no batch.
CHECKPOINT: Final = "_checkpoint"
QUARANTINE: Final = "quarantine.jsonl"
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
    ranges = tuple(split_ranges([file for file in seen if not file.reason], request.range_events))
    output = os.path.abspath(local_path(output)) if is_local(output) else output.rstrip("/")
    head, _, name = output.rpartition("/")
    # Neither Spark nor we take such a name for scores.
    aside = f"{head}/_{name}.incomplete"
    store.delete(aside)
    store.make_dirs(aside)
    try:
        task = ScoreFilesTask(ranges, request.definition, ship(spark, request.model), aside)
        results = run_tasks(
            spark, task, RangeResult, len(ranges), estimate_bytes(ranges), "scoring events"
        )
        failed = {ranges[result.number].path: result.reason for result in results if result.reason}
        bad = [replace(file, reason=file.reason or failed.get(file.path, "")) for file in seen]
        bad = [file for file in bad if file.reason]
        check(bad)
        succeeded = [
            result
            for result in results
            if result.part and ranges[result.number].path not in failed
        ]
        keep_only(store, aside, [result.part for result in succeeded])
        if not succeeded:
            _write_empty(aside, request.model)
        if not _is_new(store, output):
            # A batch that was written, but not noted by Spark, runs again.
            store.delete(output)
        store.replace(aside, output)
    finally:
        store.delete(aside)
    return Scored(
        sum(file.events for file in seen), sum(result.rows for result in succeeded), tuple(bad)
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
