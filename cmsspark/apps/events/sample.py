"""``events_sample``: balanced classes, shuffled, split by event hash, with scalers
fitted on the part ``train``.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.events import prepare
from cmsspark.apps.events.layout import SCHEMA_FILE, EventLayout
from cmsspark.apps.events.parts import PartWriter, keep_only, to_matrix
from cmsspark.apps.events.prepare_task import RESULT, task_count
from cmsspark.apps.events.runs import EventRequest, event_run, find_run_folder, finish, latest_run
from cmsspark.apps.events.sample_choice import Choice, SampleOptions, choose
from cmsspark.apps.events.sample_tasks import ROWS_SCHEMA, TEST, TRAIN, ChosenTask, WriteTask
from cmsspark.apps.events.scalers import SCALERS_FILE, Moments, Scalers
from cmsspark.base import dates
from cmsspark.base.errors import DataError, OutputError
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.readable import json_text
from cmsspark.filesystems.storage import Files, join
from cmsspark.store.part_files import list_parts, open_part

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cmsspark.store.results import CurrentTable
    from cmsspark.store.staged_runs import StagedRun

NAME: Final = "events_sample"
TABLE: Final = "event_sample"
#: Rows of a part, with the matrix and without: some 100 MB.
PART_ROWS: Final = {True: 4_000, False: 500_000}


def run(request: EventRequest, options: SampleOptions) -> CurrentTable:
    """Make a sample of the newest prepared events and store it; on any failure the
    previous result stays.

    Raises InputMissing (66) without prepared events, DataError (65) where a class has
    none, OutputError (73).
    """
    with (
        event_run(request, NAME) as (run_context, store, spark),
        run_context.staged(store) as staged,
    ):
        source = latest_run(store, request.fout, prepare.NAME, prepare.TABLE, request.day)
        folder = join(find_run_folder(source), prepare.FOLDER)
        schema = join(find_run_folder(source), SCHEMA_FILE)
        layout = EventLayout.from_json(store.read_bytes(schema), schema)
        entries = list_parts(store, folder)
        parts = tuple(part.path for part in entries)
        choice = choose(
            spark,
            parts,
            source.manifest.document["folders"][prepare.FOLDER]["rows"],
            options,
            layout,
        )
        size = sum(part.size for part in entries)
        written = _write(spark, store, staged, parts, size, choice, options, layout)
        scalers = _scalers(written, layout)
        store.write_bytes(
            join(staged.folder, SCALERS_FILE), json_text(scalers.as_dict(), indent=1).encode()
        )
        description = json_text(layout.document(origin=False), indent=1)
        store.write_bytes(join(staged.folder, SCHEMA_FILE), description.encode())
        folders = _folders(store, staged, written, choice, layout)
        weights = _weights(written, layout)
        for name in (TRAIN, TEST):
            folders[f"small_{name}"] = write_small(
                store, staged.table_path(name), options.small, layout
            )
        staged.write_arrow(_table(choice, request, layout, weights), TABLE)
        inputs = [[path, None, None] for path in parts]
        manifest = {
            "prepared": {"folder": folder, "run": source.manifest.run},
            "inputs": [
                {"stream": None, "table": prepare.TABLE, "folder": folder, "files": inputs}
            ],
            "folders": folders,
            "sample": {
                "seed": options.seed,
                "test_fraction": options.test_fraction,
                "low_level": layout.has_matrix,
            },
            "partial": source.manifest.partial,
        }
        check_weights(weights, layout)
        warnings = (
            [f"{sum(choice.duplicates.values()):,} events are equal to others"]
            if choice.duplicates
            else []
        )
        of_train, of_test = (choice.classes * choice.chosen[test] for test in (False, True))
        counts = f"{of_train:,} events to train and {of_test:,} to test"
        return finish(run_context, staged, manifest, warnings, f"{counts} in {staged.folder}")


def check_weights(weights: Mapping[tuple[str, str], float], layout: EventLayout) -> None:
    """Raises DataError (65) where the weights of a class do not add up to more than 0:
    it cannot be normalised.
    """
    wrong = [
        f"{name} of {part}: {total:g}" for (part, name), total in weights.items() if not total > 0
    ]
    if wrong:
        raise DataError(
            "the weights of each class add up to more than 0",
            found="; ".join(wrong),
            next_step="take more events of it, or a definition with another weight",
        )


def _write(
    spark: SparkSession,
    store: Files,
    staged: StagedRun,
    parts: Sequence[str],
    size: int,
    choice: Choice,
    options: SampleOptions,
    layout: EventLayout,
) -> list[dict[str, Any]]:
    """Write both parts of the sample; return what the tasks say of each part file, in their order.

    ``size``: bytes of the prepared parts.
    """
    from cmsspark.engines.session import unwrap_cause
    from cmsspark.engines.spark_progress import spark_progress

    rows = PART_ROWS[layout.has_matrix]
    counts = tuple(-(-choice.classes * choice.chosen[test] // rows) for test in (False, True))
    folders = (staged.table_path(TRAIN), staged.table_path(TEST))
    for folder in folders:
        store.make_dirs(folder)
    read = ChosenTask(
        tuple(parts),
        options.seed,
        options.test_fraction,
        choice.last_keys,
        (counts[0], counts[1]),
        layout,
    )
    chosen = spark.range(0, len(parts), 1, task_count(spark, len(parts), size)).mapInArrow(
        read, ROWS_SCHEMA
    )
    with _small_batches(spark, layout.has_matrix), spark_progress(spark, "writing the sample"):
        shuffled = chosen.repartition(sum(counts), "part").sortWithinPartitions(
            "part", "key", "label", "weight"
        )
        try:
            task = WriteTask(folders, (counts[0], counts[1]), layout)
            rows_of_parts = shuffled.mapInArrow(task, RESULT).collect()
        except Exception as error:
            raise unwrap_cause(error) from None
    return sorted(
        (json.loads(row["result"]) for row in rows_of_parts), key=lambda row: int(row["number"])
    )


@contextmanager
def _small_batches(spark: SparkSession, low_level: bool) -> Iterator[None]:
    """Spark's batches for Python with at most 500 rows where a row has a matrix."""
    name = "spark.sql.execution.arrow.maxRecordsPerBatch"
    before = spark.conf.get(name)
    spark.conf.set(name, "500" if low_level else "10000")
    try:
        # Adaptive execution would merge partitions into larger ones.
        from cmsspark.engines.session import static_plans

        with static_plans(spark):
            yield
    finally:
        spark.conf.set(name, before or "10000")


def _weights(
    written: Sequence[Mapping[str, Any]], layout: EventLayout
) -> dict[tuple[str, str], float]:
    """Return the sum of weights by part and class."""
    sums: dict[tuple[str, str], float] = {
        (part, name): 0.0 for part in (TRAIN, TEST) for name in layout.class_names
    }
    for row in written:
        part = TEST if row["moments"] is None else TRAIN
        for name, weight in zip(layout.class_names, row["weights"], strict=True):
            sums[part, name] += weight
    return sums


def _scalers(written: Sequence[Mapping[str, Any]], layout: EventLayout) -> Scalers:
    moments, rows = Moments.empty(layout), [row for row in written if row["moments"] is not None]
    for row in rows:
        moments.merge(Moments.from_dict(row["moments"]))
    scalers = moments.scalers(low_level=layout.has_matrix)
    if not any(row["is_weighted"] for row in written):
        return scalers
    sums, counts = (np.sum([row[name] for row in rows], axis=0) for name in ("weights", "labels"))
    return replace(scalers, mean_weights=sums / counts)


def _folders(
    store: Files,
    staged: StagedRun,
    written: Sequence[Mapping[str, Any]],
    choice: Choice,
    layout: EventLayout,
) -> dict[str, dict[str, Any]]:
    """Return the folders of the parts for the manifest. Raises OutputError (73) where
    other events were written.
    """
    folders: dict[str, dict[str, Any]] = {}
    for name in (TRAIN, TEST):
        rows = [row for row in written if (row["moments"] is not None) == (name == TRAIN)]
        folder = staged.table_path(name)
        size = keep_only(store, folder, [row["part"] for row in rows])
        labels = [sum(row["labels"][label] for row in rows) for label in range(choice.classes)]
        if labels != [choice.chosen[name == TEST]] * choice.classes:
            raise OutputError(
                f"{choice.chosen[name == TEST]:,} events of each class were chosen",
                where=folder,
                found=labels,
            )
        folders[name] = {"rows": sum(labels), "files": len(rows), "bytes": size}
    return folders


def _table(
    choice: Choice,
    request: EventRequest,
    layout: EventLayout,
    weights: Mapping[tuple[str, str], float],
) -> Any:
    import pyarrow as pa

    rows = [
        {
            "day": request.day,
            "part": TEST if test else TRAIN,
            "class_name": layout.class_names[label],
            "available_count": count,
            "duplicate_count": choice.duplicates.get((test, label), 0),
            "chosen_count": choice.chosen[test],
            "chosen_weight": weights[TEST if test else TRAIN, layout.class_names[label]],
            "timestamp": dates.start_ms(request.day),
        }
        for (test, label), count in choice.available.items()
    ]
    return pa.Table.from_pylist(rows, stored_table(TABLE).arrow())


def write_small(files: Files, folder: str, per_class: int, layout: EventLayout) -> dict[str, Any]:
    """Write the first ``per_class`` events of each class of a folder of parts into
    ``small_…`` beside it.

    Returns its entry for the manifest.
    """
    head, _, name = folder.rstrip("/").rpartition("/")
    target, remaining = f"{head}/small_{name}", np.full(len(layout.classes), per_class)
    files.make_dirs(target)
    with PartWriter(target, 0, layout.schema(origin=False)) as writer:
        for rows in _row_groups(files, folder):
            labels = rows.column("label").to_numpy()
            chosen = np.zeros(len(labels), bool)
            for label in range(len(layout.classes)):
                positions = np.flatnonzero(labels == label)[: remaining[label]]
                chosen[positions] = True
                remaining[label] -= len(positions)
            selected = rows.filter(chosen)
            columns = {
                name: selected.column(name).combine_chunks()
                for name in ("label", "event_hash", "weight")
            }
            columns["hlf"] = to_matrix(selected.column("hlf"), layout.hlf_count)
            if layout.has_matrix:
                columns["low_level"] = to_matrix(selected.column("low_level"), layout.matrix)
            writer.write(columns)
            if not remaining.any():
                break
    entries = list_parts(files, target)
    return {
        "rows": writer.rows,
        "files": len(entries),
        "bytes": sum(entry.size for entry in entries),
    }


def _row_groups(files: Files, folder: str) -> Iterator[pa.Table]:
    import pyarrow.parquet as pq

    for part in list_parts(files, folder):
        with open_part(files, part.path) as stream:
            file = pq.ParquetFile(stream)
            yield from (file.read_row_group(number) for number in range(file.num_row_groups))
