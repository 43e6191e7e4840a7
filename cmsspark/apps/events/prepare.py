"""``events_prepare``: ROOT files of some classes → features of the selected events,
with a cutflow.
"""

from __future__ import annotations

import resource
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Self, TypeVar

import numpy as np
from msgspec import json

from cmsspark.apps.events.definition import (
    NOT_FINITE,
    SELECTED,
    Definition,
    chosen_classes,
    load_definition,
)
from cmsspark.apps.events.features import Chunk
from cmsspark.apps.events.layout import SCHEMA_FILE, EventLayout
from cmsspark.apps.events.root_files import (
    RANGE_EVENTS,
    EntryRange,
    EventFile,
    InspectedFile,
    PartWriter,
    estimate_bytes,
    explain_error,
    files_of_inputs,
    inspect,
    keep_only,
    read_range,
    split_input,
    split_ranges,
)
from cmsspark.apps.events.runs import EventRequest, event_run, finish
from cmsspark.base import dates
from cmsspark.base.errors import DataError, UsageError
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.readable import json_text
from cmsspark.engines.session import count_cores
from cmsspark.filesystems.storage import join

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession

    from cmsspark.store.results import CurrentTable


# What a task of the preparation does: it reads an entry range, computes features and
# writes them as a part.

_T = TypeVar("_T")
_Item = TypeVar("_Item")
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
class PrepareTask:
    """Writes the events of an entry range with a number as the part of that number in
    ``folder``.
    """

    definition: Definition
    layout: EventLayout
    folder: str

    def __call__(self, numbered: tuple[int, EntryRange]) -> RangeResult:
        number, part = numbered
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


def make_rows(results: Iterable[Any]) -> Iterator[pa.RecordBatch]:
    """Yield a row for each result of a task: a dataclass or a mapping, as JSON."""
    import pyarrow as pa

    for result in results:
        yield pa.RecordBatch.from_pydict({"result": pa.array([json.encode(result)], pa.string())})


@dataclass(frozen=True)
class _OfItems:
    """Gives the rows that ``work`` makes of each item; its number is in the column ``id``."""

    work: Callable[[Any], Iterable[pa.RecordBatch]]
    items: tuple[Any, ...]

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:
        for batch in batches:
            for number in batch.column("id").to_pylist():
                yield from self.work(self.items[number])


def spread(
    spark: SparkSession,
    work: Callable[[_Item], Iterable[pa.RecordBatch]],
    items: Sequence[_Item],
    size: int,
    schema: str,
    tasks: int | None = None,
) -> DataFrame:
    """Return the rows that ``work`` makes of each item, in so many tasks, by default those
    that the bytes of all items take.
    """
    count = task_count(spark, len(items), size) if tasks is None else tasks
    numbers = spark.range(0, len(items), 1, count)
    return numbers.mapInArrow(_OfItems(work, tuple(items)), schema)


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
    spark: SparkSession,
    work: Callable[[_Item], _T],
    items: Sequence[_Item],
    result: type[_T],
    size: int,
    label: str,
    tasks: int | None = None,
) -> list[_T]:
    """Return what ``work`` makes of each item, in tasks as :func:`spread` has them.

    Raises the errors of tasks as ours where they are.
    """
    from cmsspark.engines.session import spark_progress, unwrap_cause

    if not items:
        return []
    try:
        with spark_progress(spark, label):
            # A row for each item, of some hundred bytes.
            rows = spread(
                spark, lambda item: make_rows([work(item)]), items, size, RESULT, tasks
            ).collect()
    except Exception as error:
        raise unwrap_cause(error) from None
    return [json.decode(row["result"], type=result) for row in rows]


def inspect_files(
    spark: SparkSession, files: Sequence[EventFile], definition: Definition
) -> list[InspectedFile]:
    """Look into files of events, in tasks; in their order."""
    work = partial(inspect, definition=definition)
    return run_tasks(spark, work, files, InspectedFile, 0, "opening files of events")


@dataclass(frozen=True)
class ReadFiles:
    """What became of files of events: ``files`` with the reasons of those that are left
    out, the result of each entry range, and the file of each result.
    """

    files: list[InspectedFile]
    results: Sequence[RangeResult]
    paths: Sequence[str]

    @classmethod
    def merge(
        cls, seen: Sequence[InspectedFile], paths: Sequence[str], results: Sequence[RangeResult]
    ) -> Self:
        """Return the files that were looked at with what tasks say of them."""
        tried = zip(paths, results, strict=True)
        failed = {path: result.reason for path, result in tried if result.reason}
        files = [replace(file, reason=file.reason or failed.get(file.path, "")) for file in seen]
        return cls(files, results, paths)

    @property
    def left_out(self) -> list[InspectedFile]:
        """The files that cannot be read."""
        return [file for file in self.files if file.reason]

    @property
    def stored(self) -> list[RangeResult]:
        """The results that have a part, without those of files that are left out."""
        bad = {file.path for file in self.left_out}
        results = zip(self.paths, self.results, strict=True)
        return [result for path, result in results if result.part and path not in bad]


def read_files(
    spark: SparkSession,
    seen: Sequence[InspectedFile],
    work: Callable[[tuple[int, EntryRange]], RangeResult],
    range_events: int,
    label: str,
) -> ReadFiles:
    """Let tasks work on all entry ranges of files that can be read."""
    ranges = split_ranges([file for file in seen if not file.reason], range_events)
    numbered, size = list(enumerate(ranges)), estimate_bytes(ranges)
    results = run_tasks(spark, work, numbered, RangeResult, size, label)
    return ReadFiles.merge(seen, [ranges[result.number].path for result in results], results)


NAME: Final = "events_prepare"
TABLE: Final = "event_cutflow"
#: The folder of the features in a run.
FOLDER: Final = "events"
#: As a name for --accept-damaged: every damaged file.
ALL: Final = "all"


@dataclass(frozen=True)
class PrepareOptions:
    """What to prepare. ``inputs``: ``CLASS=FILES``; ``accepted``: damaged files that
    are left out, or ``all``.

    ``definition``: a built-in definition or a file; ``classes`` and ``tree``: in place
    of those of the definition.
    """

    inputs: Sequence[str]
    low_level: bool = False
    accepted: Sequence[str] = ()
    range_events: int = RANGE_EVENTS
    tree: str | None = None
    definition: str = "delphes"
    classes: Sequence[str] = ()


@dataclass(frozen=True)
class FileCounts:
    """A file, its class, and its events by the cuts of the definition."""

    file: InspectedFile
    class_name: str
    cuts: Mapping[str, int]

    @property
    def damaged(self) -> int:
        """The events that are left out with the file."""
        return self.file.events if self.file.reason else 0


def with_tree(definition: Definition, tree: str | None) -> Definition:
    """Return the definition with another tree."""
    if tree is None:
        return definition
    import msgspec

    return replace(definition, spec=msgspec.structs.replace(definition.spec, tree=tree))


def run(request: EventRequest, options: PrepareOptions) -> CurrentTable:
    """Prepare the events and store them; on any failure the previous result stays.

    Raises UsageError (2), InputMissing (66), DataError (65) for damaged files that are
    not accepted, SettingsError (78) for a wrong definition, OutputError (73).
    """
    if not options.inputs:
        raise UsageError(
            "no files of events are named",
            next_step="--input 'qcd=data/qcd*.root', one for each class",
        )
    definition = with_tree(load_definition(options.definition), options.tree)
    classes = chosen_classes(
        definition, options.classes, [split_input(text)[0] for text in options.inputs]
    )
    layout = definition.layout(classes, low_level=options.low_level)
    files = files_of_inputs(options.inputs, layout.class_names)
    with (
        event_run(request, NAME) as (run_context, store, spark),
        run_context.staged(store) as staged,
    ):
        looked_at = inspect_files(spark, files, definition)
        check_damaged([file for file in looked_at if file.reason], options.accepted)
        check_weights([file for file in looked_at if not file.reason], definition, layout)
        target = staged.table_path(FOLDER)
        store.make_dirs(target)
        task = PrepareTask(definition, layout, target)
        done = read_files(spark, looked_at, task, options.range_events, "preparing events")
        check_damaged(done.left_out, options.accepted)
        counts = sum_counts(done, definition.cuts, layout.class_names)
        stored, bad = done.stored, {file.path for file in done.left_out}
        size = keep_only(store, target, [result.part for result in stored])
        weight_sums = sum_weights(counts, layout)
        described = replace(layout, weight_sums=weight_sums).document(origin=True)
        store.write_bytes(
            join(staged.folder, SCHEMA_FILE), json_text(described, indent=1).encode()
        )
        staged.write_arrow(cutflow_table(counts, request.day), TABLE)
        selected = sum(result.rows for result in stored)
        manifest = {
            "inputs": _inputs(looked_at, layout.class_names),
            "definition": definition.document(),
            "classes": classes,
            "folders": {
                FOLDER: {
                    "rows": selected,
                    "files": len(stored),
                    "bytes": size,
                    "low_level": options.low_level,
                }
            },
            "cutflow": cutflow(counts),
            "weight_sums": dict(zip(layout.class_names, weight_sums, strict=True)),
            "damaged": sorted(bad),
            "defaults": _defaults(looked_at),
            "partial": bool(bad),
            "worker_memory_bytes": max((result.memory for result in done.results), default=0),
        }
        warnings = [f"{file.path} is left out: {file.reason}" for file in done.left_out]
        warnings += [
            f"{column} is not in {number:,} of {len(files):,} files: it has its default there"
            for column, number in _defaults(looked_at).items()
            if number < sum(not file.reason for file in looked_at)
        ]
        total = sum(count.file.events for count in counts)
        summary = (
            f"{selected:,} of {total:,} events of {len(files):,} files stored in {staged.folder}"
        )
        return finish(run_context, staged, manifest, warnings, summary)


def _defaults(files: Sequence[InspectedFile]) -> dict[str, int]:
    """Return the columns that files lack, with the number of such files."""
    counts: dict[str, int] = {}
    for file in files:
        for column in file.defaulted if not file.reason else ():
            counts[column] = counts.get(column, 0) + 1
    return counts


def check_weights(
    files: Sequence[InspectedFile], definition: Definition, layout: EventLayout
) -> None:
    """Raises DataError (65) where some files of a class have the branch of the weight,
    or the sum of generator weights, and others do not.
    """
    from cmsspark.apps.events.expressions import Expression

    names = frozenset[str]()
    if definition.spec.weight is not None:
        names = Expression.parse(definition.spec.weight).names
    with_weight: dict[tuple[str, int | None], tuple[bool, str]] = {}
    for file in files:
        for name in (*sorted(names), "weight_sum"):
            has = (
                file.weight_sum is not None if name == "weight_sum" else name not in file.defaulted
            )
            first, path = with_weight.setdefault((name, file.label), (has, file.path))
            if first != has:
                raise DataError(
                    f"all files of {layout.class_names[file.label or 0]} have {name}, or none of them",
                    where=file.path,
                    found=f"it has {'one' if has else 'none'}; {path} has {'one' if first else 'none'}",
                    next_step="give them different classes, or a definition with another weight",
                )


def sum_weights(counts: Sequence[FileCounts], layout: EventLayout) -> tuple[float | None, ...]:
    """Return by class the sum of the generator weights of the files that are not left out."""
    sums: dict[str, float | None] = dict.fromkeys(layout.class_names)
    for count in counts:
        if not count.file.reason and count.file.weight_sum is not None:
            sums[count.class_name] = (sums[count.class_name] or 0.0) + count.file.weight_sum
    return tuple(sums.values())


def check_damaged(damaged: Sequence[InspectedFile], accepted: Sequence[str]) -> None:
    """Raises DataError (65) that names the files that cannot be read and are not
    accepted, with the reasons.
    """
    refused = [
        file
        for file in damaged
        if ALL not in accepted and not {file.path, file.path.rpartition("/")[2]} & set(accepted)
    ]
    if refused:
        shown = "; ".join(f"{file.path}: {file.reason}" for file in refused[:10])
        raise DataError(
            f"{len(refused):,} of the files of events cannot be read",
            where=refused[0].path,
            found=shown + (f"; and {len(refused) - 10} more" if len(refused) > 10 else ""),
            next_step=f"repair them, or leave them out: --accept-damaged FILE, or --accept-damaged {ALL}",
        )


def sum_counts(done: ReadFiles, cuts: Sequence[str], classes: Sequence[str]) -> list[FileCounts]:
    """Return what became of each file.

    Raises DataError (65) where the cuts of a file do not add up to its events: it
    changed while it was read.
    """
    sums = {file.path: dict.fromkeys(cuts, 0) for file in done.files}
    for path, result in zip(done.paths, done.results, strict=True):
        for name, number in zip(cuts, result.cuts, strict=False):
            sums[path][name] += number
    counts = []
    for file in done.files:
        numbers = dict.fromkeys(cuts, 0) if file.reason else sums[file.path]
        if not file.reason and sum(numbers.values()) != file.events:
            raise DataError(
                "the cuts of a file add up to its events",
                where=file.path,
                found=f"{file.events:,} events, {sum(numbers.values()):,} in the cuts",
                next_step="run it again when no process writes there",
            )
        counts.append(FileCounts(file, classes[file.label or 0], numbers))
    return counts


def cutflow(counts: Iterable[FileCounts]) -> dict[str, dict[str, int]]:
    """Return by class the number of files and events, and what became of the events;
    the cuts add up to the events.
    """
    flow: dict[str, dict[str, int]] = {}
    for count in counts:
        of_class = flow.setdefault(
            count.class_name,
            dict.fromkeys(("files", "quarantined_files", "events", "damaged", *count.cuts), 0),
        )
        of_class["files"] += 1
        of_class["quarantined_files"] += bool(count.file.reason)
        of_class["events"] += count.file.events
        of_class["damaged"] += count.damaged
        for name, number in count.cuts.items():
            of_class[name] += number
    return flow


def cutflow_table(counts: Sequence[FileCounts], day: date) -> pa.Table:
    """Return ``schemas/tables/event_cutflow.yaml``: a row for each file, by class and path."""
    import pyarrow as pa

    rows: list[Mapping[str, Any]] = [
        {
            "day": day,
            "class_name": count.class_name,
            "file": count.file.path,
            "file_bytes": count.file.size,
            "event_count": count.file.events,
            "damaged_count": count.damaged,
            "not_finite_count": count.cuts[NOT_FINITE],
            "cut_counts": json_text(
                {name: n for name, n in count.cuts.items() if name not in (NOT_FINITE, SELECTED)}
            ),
            "selected_count": count.cuts[SELECTED],
            "is_quarantined": bool(count.file.reason),
            "weight_sum": count.file.weight_sum,
            "reason": count.file.reason or None,
            "timestamp": dates.start_ms(day),
        }
        for count in counts
    ]
    return pa.Table.from_pylist(rows, stored_table(TABLE).arrow())


def cutflow_lines(
    flow: Mapping[str, Mapping[str, int]],
) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """Return the cutflow for a terminal: headings, and a row for each step."""
    names = [name for of_class in flow.values() for name in of_class]
    steps = [name for name in dict.fromkeys(names) if name not in ("files", "quarantined_files")]
    rows = [(step.replace("_", " "), *(flow[name][step] for name in flow)) for step in steps]
    return ("step", *flow), rows


def _inputs(files: Sequence[InspectedFile], classes: Sequence[str]) -> list[dict[str, Any]]:
    listed: dict[str, list[list[Any]]] = {}
    for file in files:
        listed.setdefault(classes[file.label or 0], []).append([file.path, file.size, None])
    return [
        {"stream": None, "table": name, "folder": None, "files": paths}
        for name, paths in listed.items()
    ]
