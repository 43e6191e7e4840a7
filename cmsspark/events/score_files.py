"""``cmsspark events score``: scores for the events of ROOT files, given ones or those that arrive in a folder."""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Final
from urllib.parse import unquote

from cmsspark.errors import DataError, OutputError, UsageError
from cmsspark.events.prepare import check_damaged
from cmsspark.events.prepare_task import InspectTask, inspected, run_tasks
from cmsspark.events.root_files import RANGE_EVENTS, EventFile, InspectedFile, paths_of, ranges_of
from cmsspark.events.scoring import SCORES_SCHEMA, ScoreFilesTask
from cmsspark.store.results import spark_location

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: What a stream of files tells of each of them.
_FILES_SCHEMA: Final = "path string, modificationTime timestamp, length bigint, content binary"
#: Names in the folder of scores that are no batch.
CHECKPOINT: Final = "_checkpoint"
QUARANTINE: Final = "quarantine.jsonl"


@dataclass(frozen=True)
class ScoreRequest:
    """How to score: the folder of the model on this host, the tree, and damaged files that are left out."""

    model: Path
    tree: str
    accepted: Sequence[str] = ()
    range_events: int = RANGE_EVENTS


@dataclass(frozen=True)
class Scored:
    """What became of some files: events in them, selected ones with scores, files that are left out."""

    events: int
    selected: int
    left_out: tuple[InspectedFile, ...]


def score_files(spark: SparkSession, patterns: Sequence[str], request: ScoreRequest, output: str) -> Scored:
    """Score the files that patterns name, and write the scores as Parquet into the new folder ``output``.

    Raises InputMissing (66), DataError (65) for damaged files that are not accepted, OutputError (73).
    """
    check_new(output)
    paths = list(dict.fromkeys(path for pattern in patterns for path in paths_of(pattern)))
    return _score(spark, paths, request, output, lambda left_out: check_damaged(left_out, request.accepted))


def check_new(output: str) -> None:
    """Raises OutputError (73) where a folder of scores is there already."""
    if os.path.isdir(output) and os.listdir(output):
        raise OutputError(
            "a new folder for scores is wanted", where=output, found="files", next_step="remove it, or name another"
        )


def _score(
    spark: SparkSession, paths: Sequence[str], request: ScoreRequest, output: str,
    check: Callable[[list[InspectedFile]], None],
) -> Scored:  # fmt: skip
    """Score files, all but those that cannot be read; ``check`` may refuse to go on without those."""
    from cmsspark.runners.session import cause_of
    from cmsspark.runners.shipped import ship

    files = tuple(EventFile(path, None) for path in paths)
    partitions = min(len(files), 4 * spark.sparkContext.defaultParallelism)
    texts = run_tasks(spark, InspectTask(files, request.tree), len(files), "opening files of events", partitions)
    seen = [file for _, file in sorted((inspected(text) for text in texts), key=lambda pair: pair[0])]
    bad = [file for file in seen if file.reason]
    check(bad)
    ranges = tuple(ranges_of([file for file in seen if not file.reason], request.range_events))
    task = ScoreFilesTask(ranges, request.tree, ship(spark, request.model))
    rows = spark.range(0, len(ranges), 1, max(1, len(ranges))).mapInArrow(task, SCORES_SCHEMA).persist()
    try:
        failed = {row["file"]: row["reason"] for row in rows.where("reason is not null").collect()}
        bad += [InspectedFile(f.path, None, f.events, f.size, failed[f.path]) for f in seen if f.path in failed]
        check(bad)
        selected = _write(rows, sorted(failed), output)
    except DataError:
        raise
    except Exception as error:
        raise cause_of(error) from None
    finally:
        rows.unpersist()
    return Scored(sum(file.events for file in seen), selected, tuple(bad))


def _write(rows: DataFrame, failed: Sequence[str], output: str) -> int:
    """Write the scores of files that were read whole; their number."""
    from pyspark.sql import functions as F

    good = rows.where(F.col("reason").isNull() & ~F.col("file").isin(list(failed))).drop("events", "reason")
    good.write.mode("overwrite").parquet(spark_location(output))
    return int(good.count())


def stream_scores(
    spark: SparkSession, folder: str, request: ScoreRequest, output: str, *, once: bool, seconds: float,
    log: Callable[[str], None],
) -> None:  # fmt: skip
    """Score ROOT files as they arrive in ``folder``, each once, also when the stream is started again.

    Batch *n* is the folder ``batch-n`` of ``output``, written whole or not at all. Files that cannot be read are named
    in ``quarantine.jsonl`` and the stream goes on. ``once``: score what is there, then end. A file must appear in the
    folder complete: write it elsewhere and rename it.
    """
    if not os.path.isdir(folder):
        raise UsageError("a folder to watch is wanted", where=folder, next_step="make it, or name another")
    Path(output).mkdir(parents=True, exist_ok=True)

    def score_batch(batch: DataFrame, number: int) -> None:
        paths = sorted(_path_of(row["path"]) for row in batch.select("path").collect())
        if not paths:
            return
        done = _score(spark, paths, request, os.path.join(output, f"batch-{number:06}"), lambda _: None)
        if done.left_out:
            _note_left_out(Path(output, QUARANTINE), number, done.left_out)
        log(
            f"batch {number}: {done.selected:,} of {done.events:,} events of {len(paths)} files scored"
            + (f", {len(done.left_out)} files left out" if done.left_out else "")
        )

    source = spark.readStream.format("binaryFile").schema(_FILES_SCHEMA).option("pathGlobFilter", "*.root")
    names = source.load(spark_location(folder)).select("path")
    checkpoint = spark_location(f"{output}/{CHECKPOINT}")
    writer = names.writeStream.foreachBatch(score_batch).option("checkpointLocation", checkpoint)
    writer = writer.trigger(availableNow=True) if once else writer.trigger(processingTime=f"{seconds} seconds")
    query = writer.start()
    try:
        query.awaitTermination()
    finally:
        query.stop()


def _note_left_out(path: Path, number: int, files: Sequence[InspectedFile]) -> None:
    """Add the files of a batch to the quarantine; those of a batch that runs again replace its former ones."""
    kept = []
    if path.exists():
        kept = [line for line in path.read_text(encoding="utf-8").splitlines() if json.loads(line)["batch"] != number]
    kept += [json.dumps({"batch": number, "file": file.path, "reason": file.reason}) for file in files]
    aside = path.with_suffix(".part")
    aside.write_text("\n".join(kept) + "\n", encoding="utf-8")
    aside.replace(path)


def _path_of(uri: str) -> str:
    """A path of this host from a URI of Spark's, in which special characters are encoded."""
    path = re.sub(r"^file:/+", "/", uri)
    return path if os.path.exists(path) else unquote(path)


def quiet_options() -> dict[str, str]:
    """Options of a session that a command starts itself: no log lines of Spark, no bar."""
    from cmsspark.resources import resource

    quiet = f'"-Dlog4j2.configurationFile=file:{resource("etc/log4j2.properties")}"'
    return {"spark.driver.defaultJavaOptions": quiet, "spark.ui.showConsoleProgress": "false"}
