"""``events_sample``: balanced classes, shuffled, split by event hash, with scalers
fitted on the part ``train``.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from itertools import groupby
from operator import itemgetter
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.apps.events import prepare
from cmsspark.apps.events.layout import SCALERS_FILE, SCHEMA_FILE, EventLayout
from cmsspark.apps.events.prepare import RESULT, make_rows, spread, task_count
from cmsspark.apps.events.root_files import PartWriter, keep_only, row_groups, to_matrix
from cmsspark.apps.events.runs import EventRequest, event_run, find_run_folder, finish
from cmsspark.apps.events.scalers import CURVE_EVENTS, Moments, Scalers
from cmsspark.base import dates
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError, OutputError
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.readable import json_text
from cmsspark.filesystems.storage import Files, join
from cmsspark.store.part_files import list_parts, open_part
from cmsspark.store.stored_columns import newest

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pyarrow as pa
    from pyspark.sql import SparkSession

    from cmsspark.store.results import CurrentTable
    from cmsspark.store.staged_runs import StagedRun


# The tasks of a sample: keys of events, the rows of the chosen ones, and the parts that
# they are written to.

TRAIN: Final = "train"
TEST: Final = "test"
#: Keys are below this number: random, the same for the same event and seed.
KEY_BITS: Final = 63
KEYS_SCHEMA: Final = "key bigint, label tinyint, is_test boolean"
ROWS_SCHEMA: Final = "part int, key bigint, label tinyint, event_hash bigint, weight double, hlf binary, low_level binary"
#: Makes the split independent of every seed of a shuffle.
_SPLIT_SEED: Final = 0x5EED_0F_5917


def mixed(hashes: Array, seed: int) -> Array:
    """Hashes mixed with a seed: random for each seed, equal for equal hashes (the
    finalizer of SplitMix64).
    """
    state = (seed * 0x9E3779B97F4A7C15 + 0x632BE59BD9B4E019) & (2**64 - 1)
    with np.errstate(over="ignore"):
        values = hashes.astype(np.uint64) ^ np.uint64(state)
        for shift, factor in ((30, 0xBF58476D1CE4E5B9), (27, 0x94D049BB133111EB)):
            values = (values ^ (values >> np.uint64(shift))) * np.uint64(factor)
        return values ^ (values >> np.uint64(31))


def make_keys(hashes: Array, seed: int) -> Array:
    """Return the keys of events, whose order is that of the sample."""
    return (mixed(hashes, seed) >> np.uint64(64 - KEY_BITS)).astype(np.int64)


def is_test(hashes: Array, fraction: float) -> Array:
    """Return which events are in the part ``test``: by their hash alone, so for every
    seed the same.
    """
    return mixed(hashes, _SPLIT_SEED) < np.uint64(min(2**64 - 1, round(fraction * 2**64)))


@dataclass(frozen=True)
class KeysTask:
    """Gives the keys of the events of a part: a row for each."""

    seed: int
    test_fraction: float

    def __call__(self, part: str) -> Iterator[pa.RecordBatch]:
        import pyarrow as pa

        for columns in row_groups(part, ["label", "event_hash"]):
            hashes = columns.column("event_hash").to_numpy()
            keys, of_test = make_keys(hashes, self.seed), is_test(hashes, self.test_fraction)
            yield pa.RecordBatch.from_pydict(
                {
                    "key": keys,
                    "label": columns.column("label").combine_chunks(),
                    "is_test": of_test,
                }
            )


@dataclass(frozen=True)
class ChosenTask:
    """Gives the whole chosen events of a part.

    ``last_keys``: by (is test, label) the last key that is chosen; ``counts``: the
    number of parts of train and test.
    """

    seed: int
    test_fraction: float
    last_keys: dict[tuple[bool, int], int]
    counts: tuple[int, int]
    layout: EventLayout

    def __call__(self, part: str) -> Iterator[pa.RecordBatch]:
        names = ["hlf", "label", "weight", "event_hash"]
        names += ["low_level"] if self.layout.has_matrix else []
        yield from map(self._rows, row_groups(part, names))

    def _rows(self, columns: pa.Table) -> pa.RecordBatch:
        import pyarrow as pa

        hashes, labels = (
            columns.column("event_hash").to_numpy(),
            columns.column("label").to_numpy(),
        )
        keys, of_test = make_keys(hashes, self.seed), is_test(hashes, self.test_fraction)
        last = np.full(len(keys), -1, np.int64)
        for (test, label), key in self.last_keys.items():
            last[(of_test == test) & (labels == label)] = key
        positions = np.flatnonzero(keys <= last)
        of_train, test_count = assign_parts(keys, self.counts[0]), self.counts[1]
        part = np.where(of_test, self.counts[0] + assign_parts(keys, test_count), of_train)
        features = columns.take(pa.array(positions))
        return pa.RecordBatch.from_arrays(
            [
                pa.array(part[positions].astype(np.int32)),
                pa.array(keys[positions]),
                pa.array(labels[positions]),
                pa.array(hashes[positions].view(np.int64)),
                features.column("weight").combine_chunks(),
                _as_bytes(to_matrix(features.column("hlf"), self.layout.hlf_count)),
                _as_bytes(to_matrix(features.column("low_level"), self.layout.matrix))
                if self.layout.has_matrix
                else pa.nulls(len(positions), pa.binary()),
            ],
            ["part", "key", "label", "event_hash", "weight", "hlf", "low_level"],
        )


@dataclass(frozen=True)
class WriteTask:
    """Writes rows, sorted by part, key and label, to parts; an event that is twice in a
    class is written once.

    A row of the result is a JSON object: the part's number, name, events and sum of
    weights by class, and its moments.
    """

    folders: tuple[str, str]
    counts: tuple[int, int]
    layout: EventLayout

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        return make_rows(self._results(batches))

    def _results(self, batches: Iterable[pa.RecordBatch]) -> Iterator[dict[str, Any]]:
        for number, slices in groupby(_part_slices(batches), key=itemgetter(0)):
            part = self._open(number)
            for _, rows in slices:
                part.add(rows)
            yield part.close()

    def _open(self, number: int) -> _OpenPart:
        is_train = number < self.counts[0]
        part_number = number if is_train else number - self.counts[0]
        writer = PartWriter(
            self.folders[0 if is_train else 1], part_number, self.layout.schema(origin=False)
        )
        return _OpenPart(
            number, writer, Moments.empty(self.layout) if is_train else None, self.layout
        )


class _OpenPart:
    """A part that is being written."""

    def __init__(
        self, number: int, writer: PartWriter, moments: Moments | None, layout: EventLayout
    ) -> None:
        self.number, self.writer, self.moments, self.layout = number, writer, moments, layout
        self.labels = np.zeros(len(layout.classes), np.int64)
        self.weights = np.zeros(len(layout.classes))
        #: Whether an event has another weight than 1.
        self.is_weighted = False
        self._last_event = (-1, -1)

    def add(self, batch: pa.RecordBatch) -> None:
        keys, classes = batch.column("key").to_numpy(), batch.column("label").to_numpy()
        # Equal events of two classes are an event of each.
        is_new = np.diff(keys, prepend=self._last_event[0]) != 0
        is_new |= np.diff(classes, prepend=np.int8(self._last_event[1])) != 0
        self._last_event = (int(keys[-1]), int(classes[-1]))
        rows = batch.filter(is_new) if not is_new.all() else batch
        layout = self.layout
        hlf = _from_bytes(rows.column("hlf"), layout.hlf_count)
        low_level = (
            _from_bytes(rows.column("low_level"), layout.matrix) if layout.has_matrix else None
        )
        labels, weights = rows.column("label").to_numpy(), rows.column("weight").to_numpy()
        self.labels += np.bincount(labels, minlength=len(self.labels))
        self.weights += np.bincount(labels, weights, minlength=len(self.labels))
        self.is_weighted |= bool((weights != 1).any())
        hashes = rows.column("event_hash").to_numpy().view(np.uint64)
        columns = {
            "hlf": hlf,
            "low_level": low_level,
            "label": labels,
            "event_hash": hashes,
            "weight": weights,
        }
        self.writer.write(columns)
        if self.moments is not None:
            self.moments.add(
                hlf, None if low_level is None else low_level.reshape(-1, *layout.shape)
            )

    def close(self) -> dict[str, Any]:
        self.writer.__exit__(None, None, None)
        moments = self.moments.as_dict() if self.moments is not None and self.writer.rows else None
        return {
            "number": self.number,
            "part": self.writer.name,
            "labels": self.labels.tolist(),
            "weights": self.weights.tolist(),
            "is_weighted": self.is_weighted,
            "moments": moments,
        }


def _part_slices(batches: Iterable[pa.RecordBatch]) -> Iterator[tuple[int, pa.RecordBatch]]:
    """Yield the rows of each part in a batch, with the part's number."""
    for batch in batches:
        numbers = batch.column("part").to_numpy()
        starts = np.flatnonzero(np.diff(numbers, prepend=-1))
        for start, stop in zip(starts, [*starts[1:], len(numbers)], strict=False):
            yield int(numbers[start]), batch.slice(start, stop - start)


def assign_parts(keys: Array, count: int) -> Array:
    """Return the part of each key: parts are ranges of keys, so that all parts together
    are in the order of keys.
    """
    return (keys.astype(np.float64) / 2.0**KEY_BITS * count).astype(np.int64).clip(0, count - 1)


def _as_bytes(rows: Array) -> pa.Array:
    """Rows of floats as binary values."""
    import pyarrow as pa

    width = rows.shape[1] * 4
    offsets = pa.py_buffer(np.arange(len(rows) + 1, dtype=np.int32) * np.int32(width))
    return pa.Array.from_buffers(
        pa.binary(), len(rows), [None, offsets, pa.py_buffer(np.ascontiguousarray(rows))]
    )


def _from_bytes(column: pa.Array, size: int) -> Array:
    """Return the reverse of :func:`_as_bytes`."""
    import pyarrow as pa

    if pa.types.is_large_binary(column.type):
        column = column.cast(pa.binary())
    offsets = np.frombuffer(column.buffers()[1], np.int32)[
        column.offset : column.offset + len(column) + 1
    ]
    data = np.frombuffer(column.buffers()[2], np.uint8) if len(column) else np.zeros(0, np.uint8)
    return data[offsets[0] : offsets[-1]].view(np.float32).reshape(len(column), size)


# What is chosen for a sample: as many events of each class, by the order of their keys.

#: Bytes of an event of which the key is made.
KEY_BYTES: Final = 9
#: Bits of a key that make a bin: so many bins of a class are counted.
_BIN_BITS: Final = 12

#: (is test, label).
Group = tuple[bool, int]


@dataclass(frozen=True)
class SampleOptions:
    """How to sample. ``per_class``: at most so many events of each class in ``train``,
    and in ``test`` in proportion; ``small``: events of each class in the small samples.
    """

    seed: int = 0
    test_fraction: float = 0.2
    per_class: int | None = None
    small: int = 200


@dataclass(frozen=True)
class Choice:
    """What is chosen: by group the distinct events, those equal to others, and the last
    key; by part the events.
    """

    available: Mapping[Group, int]
    duplicates: Mapping[Group, int]
    last_keys: dict[Group, int]
    chosen: Mapping[bool, int]

    @property
    def classes(self) -> int:
        """The number of classes."""
        return len(self.available) // 2


def choose(
    spark: SparkSession,
    parts: Sequence[str],
    events: int,
    options: SampleOptions,
    layout: EventLayout,
) -> Choice:
    """Count distinct events by group and bin of keys, and find each group's last key.
    Raises DataError (65).
    """
    from pyspark.sql import functions as F

    task, size = KeysTask(options.seed, options.test_fraction), events * KEY_BYTES
    keys = spread(spark, task, parts, size, KEYS_SCHEMA)
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
            condition |= (
                (F.col("is_test") == test) & (F.col("label") == label) & (F.col("bin") == number)
            )
        near: dict[Group, list[int]] = {}
        for row in binned.where(condition).select("is_test", "label", "key").collect():
            near.setdefault((row["is_test"], row["label"]), []).append(row["key"])
    finally:
        binned.unpersist()
    last_keys = {group: sorted(near[group])[before - 1] for group, (_, before) in last.items()}
    return Choice(available, duplicates, last_keys, chosen)


def chosen_counts(
    available: Mapping[Group, int], options: SampleOptions, classes: Sequence[str]
) -> dict[bool, int]:
    """Return the number of events of each class, by part: as many as the smallest class
    has. Raises DataError (65).
    """
    empty = [
        f"{TEST if test else TRAIN} {classes[label]}"
        for (test, label), count in available.items()
        if not count
    ]
    if empty:
        raise DataError(
            "train and test need events of all classes",
            found=f"none of {', '.join(empty)}",
            next_step="prepare files of every class, with some hundred events each",
        )
    counts = {
        test: min(available[test, label] for label in range(len(classes)))
        for test in (False, True)
    }
    if options.per_class is not None:
        of_test = round(options.per_class * options.test_fraction / (1 - options.test_fraction))
        counts = {
            False: min(counts[False], options.per_class),
            True: min(counts[True], max(1, of_test)),
        }
    return counts


def last_bin(bins: Mapping[int, int], count: int) -> tuple[int, int]:
    """Return the bin in which the event number ``count`` by key lies, and its number
    there, from 1 on.
    """
    before = 0
    for number in sorted(bins):
        if before + bins[number] >= count:
            return number, count - before
        before += bins[number]
    raise AssertionError("a class has fewer events than are chosen")


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
        _, source = newest(store, request.fout, prepare.TABLE, request.day)
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
        rows = _row_groups(store, staged.table_path(TRAIN), ["hlf"])
        scalers = _with_curves(_scalers(written, layout), rows, layout)
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
    from cmsspark.engines.session import spark_progress, unwrap_cause

    rows = PART_ROWS[layout.has_matrix]
    counts = tuple(-(-choice.classes * choice.chosen[test] // rows) for test in (False, True))
    folders = (staged.table_path(TRAIN), staged.table_path(TEST))
    for folder in folders:
        store.make_dirs(folder)
    read = ChosenTask(
        options.seed, options.test_fraction, choice.last_keys, (counts[0], counts[1]), layout
    )
    chosen = spread(spark, read, parts, size, ROWS_SCHEMA)
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


def _with_curves(scalers: Scalers, train: Iterator[pa.Table], layout: EventLayout) -> Scalers:
    """Return scalers with curves that are fitted to the first events of ``train``."""
    first: list[Array] = []
    while sum(map(len, first)) < CURVE_EVENTS and (group := next(train, None)) is not None:
        first.append(to_matrix(group.column("hlf"), layout.hlf_count))
    return scalers.with_curves(np.concatenate(first)[:CURVE_EVENTS])


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
            writer.write({name: selected.column(name) for name in writer.schema.names})
            if not remaining.any():
                break
    entries = list_parts(files, target)
    return {
        "rows": writer.rows,
        "files": len(entries),
        "bytes": sum(entry.size for entry in entries),
    }


def _row_groups(files: Files, folder: str, columns: list[str] | None = None) -> Iterator[pa.Table]:
    import pyarrow.parquet as pq

    for part in list_parts(files, folder):
        with open_part(files, part.path) as stream:
            file = pq.ParquetFile(stream)
            yield from (
                file.read_row_group(number, columns) for number in range(file.num_row_groups)
            )
