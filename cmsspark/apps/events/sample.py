"""``events_sample``: balanced classes, shuffled, split by event hash, with scalers fitted on the part ``train``.

No row passes the driver: it sees counts, and some hundred keys near the last one that is chosen of a class.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.events import prepare
from cmsspark.apps.events.layout import EventLayout
from cmsspark.apps.events.parts import keep_only
from cmsspark.apps.events.prepare_task import RESULT
from cmsspark.apps.events.runs import EventRequest, event_run, find_run_folder, finish, latest_run
from cmsspark.apps.events.sample_tasks import (
    KEY_BITS,
    KEYS_SCHEMA,
    ROWS_SCHEMA,
    TEST,
    TRAIN,
    ChosenTask,
    KeysTask,
    WriteTask,
)
from cmsspark.apps.events.scalers import SCALERS_FILE, Moments, Scalers
from cmsspark.apps.events.small_sample import write_small
from cmsspark.apps.events.task_counts import task_count
from cmsspark.base import dates
from cmsspark.base.errors import DataError, OutputError
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.readable import json_text
from cmsspark.filesystems.storage import Files, join
from cmsspark.store.part_files import list_parts

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import DataFrame, SparkSession

    from cmsspark.store.results import CurrentTable, StagedRun

NAME: Final = "events_sample"
TABLE: Final = "event_sample"
#: Rows of a part, with the matrix and without: some 100 MB.
PART_ROWS: Final = {True: 4_000, False: 500_000}
#: Bytes of an event of which the key is made.
KEY_BYTES: Final = 9
#: Bits of a key that make a bin: so many bins of a class are counted.
_BIN_BITS: Final = 12

#: (is test, label).
Group = tuple[bool, int]


@dataclass(frozen=True)
class SampleOptions:
    """How to sample. ``per_class``: at most so many events of each class in ``train``, and in ``test`` in proportion;
    ``small``: events of each class in the small samples.
    """

    seed: int = 0
    test_fraction: float = 0.2
    per_class: int | None = None
    small: int = 200


@dataclass(frozen=True)
class Choice:
    """What is chosen: by group the distinct events, those equal to others, and the last key; by part the events."""

    available: Mapping[Group, int]
    duplicates: Mapping[Group, int]
    last_keys: dict[Group, int]
    chosen: Mapping[bool, int]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.available) // 2


def run(request: EventRequest, options: SampleOptions) -> CurrentTable:
    """Make a sample of the newest prepared events and store it; on any failure the previous result stays.

    Raises InputMissing (66) without prepared events, DataError (65) where a class has none, OutputError (73).
    """
    with event_run(request, NAME) as (run_context, store, spark), run_context.staged(store) as staged:
        source = latest_run(store, request.fout, prepare.NAME, prepare.TABLE, request.day)
        folder = join(find_run_folder(source), prepare.FOLDER)
        layout = read_layout(store, find_run_folder(source))
        entries = list_parts(store, folder)
        parts = tuple(part.path for part in entries)
        choice = _choose(spark, parts, source.manifest.document["folders"][prepare.FOLDER]["rows"], options, layout)
        size = sum(part.size for part in entries)
        written = _write(spark, store, staged, parts, size, choice, options, layout)
        scalers = _scalers(written, layout)
        store.write_bytes(join(staged.folder, SCALERS_FILE), json_text(scalers.as_dict(), indent=1).encode())
        schema = json_text(layout.document(origin=False), indent=1)
        store.write_bytes(join(staged.folder, prepare.SCHEMA_FILE), schema.encode())
        folders = _folders(store, staged, written, choice, layout)
        weights = _weights(written, layout)
        for name in (TRAIN, TEST):
            folders[f"small_{name}"] = write_small(store, staged.table_path(name), options.small, layout)
        staged.write_arrow(_table(choice, request, layout, weights), TABLE)
        inputs = [[path, None, None] for path in parts]
        manifest = {
            "prepared": {"folder": folder, "run": source.manifest.run},
            "inputs": [{"stream": None, "table": prepare.TABLE, "folder": folder, "files": inputs}],
            "folders": folders,
            "sample": {"seed": options.seed, "test_fraction": options.test_fraction, "low_level": layout.has_matrix},
            "partial": source.manifest.partial,
        }  # fmt: skip
        check_weights(weights, layout)
        warnings = [f"{sum(choice.duplicates.values()):,} events are equal to others"] if choice.duplicates else []
        of_train, of_test = (choice.classes * choice.chosen[test] for test in (False, True))
        counts = f"{of_train:,} events to train and {of_test:,} to test"
        return finish(run_context, staged, manifest, warnings, f"{counts} in {staged.folder}")


def read_layout(files: Files, folder: str) -> EventLayout:
    """Return the layout of the events of a run. Raises DataError (65) where its ``schema.json`` is damaged."""
    path = join(folder, prepare.SCHEMA_FILE)
    try:
        document = json.loads(files.read_bytes(path))
    except ValueError as error:
        raise DataError("the description of events is damaged", where=path, found=str(error)) from None
    return EventLayout.from_document(document, path)


def check_weights(weights: Mapping[tuple[str, str], float], layout: EventLayout) -> None:
    """Raises DataError (65) where the weights of a class do not add up to more than 0: it cannot be normalised."""
    wrong = [f"{name} of {part}: {total:g}" for (part, name), total in weights.items() if not total > 0]
    if wrong:
        raise DataError(
            "the weights of each class add up to more than 0", found="; ".join(wrong),
            next_step="take more events of it, or a definition with another weight",
        )  # fmt: skip


def _choose(
    spark: SparkSession, parts: Sequence[str], events: int, options: SampleOptions, layout: EventLayout
) -> Choice:
    """Count distinct events by group and bin of keys, and find each group's last key. Raises DataError (65)."""
    from pyspark.sql import functions as F

    task = KeysTask(tuple(parts), options.seed, options.test_fraction)
    size = events * KEY_BYTES
    keys = spark.range(0, len(parts), 1, task_count(spark, len(parts), size)).mapInArrow(task, KEYS_SCHEMA)
    # Keys are distinct but for few: they move once, and none of them would merge before.
    keys = keys.repartition(task_count(spark, len(parts), size), "key", "label", "is_test")
    distinct = keys.groupBy("key", "label", "is_test").agg(F.count(F.lit(1)).alias("n"))
    binned = distinct.withColumn("bin", F.shiftright("key", KEY_BITS - _BIN_BITS)).persist()
    try:
        rows = (
            binned.groupBy("is_test", "label", "bin")
            .agg(F.count(F.lit(1)).alias("events"), F.sum(F.col("n") - 1).alias("duplicates"))
            .collect()
        )
        bins: dict[Group, dict[int, int]] = {
            (test, label): {} for test in (False, True) for label in range(len(layout.classes))
        }
        duplicates: dict[Group, int] = {}
        for row in rows:
            group = (row["is_test"], row["label"])
            bins[group][row["bin"]] = row["events"]
            if row["duplicates"]:
                duplicates[group] = duplicates.get(group, 0) + row["duplicates"]
        available = {group: sum(of_group.values()) for group, of_group in bins.items()}
        chosen = chosen_counts(available, options, layout.class_names)
        last = {group: last_bin(of_group, chosen[group[0]]) for group, of_group in bins.items()}
        condition = F.lit(False)
        for (test, label), (number, _) in last.items():
            condition |= (F.col("is_test") == test) & (F.col("label") == label) & (F.col("bin") == number)
        near: dict[Group, list[int]] = {}
        for row in binned.where(condition).select("is_test", "label", "key").collect():
            near.setdefault((row["is_test"], row["label"]), []).append(row["key"])
    finally:
        binned.unpersist()
    last_keys = {group: sorted(near[group])[before - 1] for group, (_, before) in last.items()}
    return Choice(available, duplicates, last_keys, chosen)


def chosen_counts(available: Mapping[Group, int], options: SampleOptions, classes: Sequence[str]) -> dict[bool, int]:
    """Return the number of events of each class, by part: as many as the smallest class has. Raises DataError (65)."""
    empty = [f"{TEST if test else TRAIN} {classes[label]}" for (test, label), count in available.items() if not count]
    if empty:
        raise DataError(
            "train and test need events of all classes",
            found=f"none of {', '.join(empty)}",
            next_step="prepare files of every class, with some hundred events each",
        )
    counts = {test: min(available[test, label] for label in range(len(classes))) for test in (False, True)}
    if options.per_class is not None:
        of_test = round(options.per_class * options.test_fraction / (1 - options.test_fraction))
        counts = {False: min(counts[False], options.per_class), True: min(counts[True], max(1, of_test))}
    return counts


def last_bin(bins: Mapping[int, int], count: int) -> tuple[int, int]:
    """Return the bin in which the event number ``count`` by key lies, and its number there, from 1 on."""
    before = 0
    for number in sorted(bins):
        if before + bins[number] >= count:
            return number, count - before
        before += bins[number]
    raise AssertionError("a class has fewer events than are chosen")


def _write(
    spark: SparkSession, store: Files, staged: StagedRun, parts: Sequence[str], size: int, choice: Choice,
    options: SampleOptions, layout: EventLayout,
) -> list[dict[str, Any]]:  # fmt: skip
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
        tuple(parts), options.seed, options.test_fraction, choice.last_keys, (counts[0], counts[1]), layout
    )
    chosen = spark.range(0, len(parts), 1, task_count(spark, len(parts), size)).mapInArrow(read, ROWS_SCHEMA)
    with _small_batches(spark, layout.has_matrix), spark_progress(spark, "writing the sample"):
        shuffled = chosen.repartition(sum(counts), "part").sortWithinPartitions("part", "key")
        try:
            results = _collected(shuffled, WriteTask(folders, (counts[0], counts[1]), layout))
        except Exception as error:
            raise unwrap_cause(error) from None
    return sorted(results, key=lambda row: int(row["number"]))


def _collected(rows: DataFrame, task: WriteTask) -> list[dict[str, Any]]:
    return [json.loads(row["result"]) for row in rows.mapInArrow(task, RESULT).collect()]


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


def _weights(written: Sequence[Mapping[str, Any]], layout: EventLayout) -> dict[tuple[str, str], float]:
    """Return the sum of weights by part and class."""
    sums: dict[tuple[str, str], float] = {(part, name): 0.0 for part in (TRAIN, TEST) for name in layout.class_names}
    for row in written:
        part = TEST if row["moments"] is None else TRAIN
        for name, weight in zip(layout.class_names, row["weights"], strict=True):
            sums[part, name] += weight
    return sums


def _scalers(written: Sequence[Mapping[str, Any]], layout: EventLayout) -> Scalers:
    moments = Moments.empty(layout)
    for row in written:
        if row["moments"] is not None:
            moments.merge(Moments.from_dict(row["moments"]))
    scalers = moments.scalers(low_level=layout.has_matrix)
    rows = [row for row in written if row["moments"] is not None]
    sums, counts = (np.sum([row[name] for row in rows], axis=0) for name in ("weights", "labels"))
    return scalers if np.array_equal(sums, counts) else replace(scalers, mean_weights=sums / counts)


def _folders(
    store: Files, staged: StagedRun, written: Sequence[Mapping[str, Any]], choice: Choice, layout: EventLayout
) -> dict[str, dict[str, Any]]:
    """Return the folders of the parts for the manifest. Raises OutputError (73) where other events were written."""
    folders: dict[str, dict[str, Any]] = {}
    for name in (TRAIN, TEST):
        rows = [row for row in written if (row["moments"] is not None) == (name == TRAIN)]
        folder = staged.table_path(name)
        size = keep_only(store, folder, [row["part"] for row in rows])
        labels = [sum(row["labels"][label] for row in rows) for label in range(choice.classes)]
        if labels != [choice.chosen[name == TEST]] * choice.classes:
            raise OutputError(
                f"{choice.chosen[name == TEST]:,} events of each class were chosen", where=folder, found=labels
            )
        folders[name] = {"rows": sum(labels), "files": len(rows), "bytes": size}
    return folders


def _table(choice: Choice, request: EventRequest, layout: EventLayout, weights: Mapping[tuple[str, str], float]) -> Any:
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
