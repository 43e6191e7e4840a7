"""``events_prepare``: ROOT files of some classes → features of the selected events,
with a cutflow.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from cmsspark.apps.events.definition import NOT_FINITE, SELECTED, Definition
from cmsspark.apps.events.definition_files import chosen_classes, load_definition
from cmsspark.apps.events.layout import SCHEMA_FILE, EventLayout
from cmsspark.apps.events.parts import keep_only
from cmsspark.apps.events.prepare_task import PrepareTask, RangeResult, inspect_files, run_tasks
from cmsspark.apps.events.root_files import (
    RANGE_EVENTS,
    InspectedFile,
    estimate_bytes,
    files_of_inputs,
    split_input,
    split_ranges,
)
from cmsspark.apps.events.runs import EventRequest, event_run, finish
from cmsspark.base import dates
from cmsspark.base.errors import DataError, UsageError
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.readable import json_text
from cmsspark.filesystems.storage import join

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.store.results import CurrentTable

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
    """A file, its class, its events by the cuts of the definition, and why it is left
    out, if it is.
    """

    file: InspectedFile
    class_name: str
    cuts: Mapping[str, int]
    reason: str

    @property
    def damaged(self) -> int:
        """The events that are left out with the file."""
        return self.file.events if self.reason else 0


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
        ranges = split_ranges(
            [file for file in looked_at if not file.reason], options.range_events
        )
        target = staged.table_path(FOLDER)
        store.make_dirs(target)
        task = PrepareTask(tuple(ranges), definition, layout, target)
        results = run_tasks(
            spark, task, RangeResult, len(ranges), estimate_bytes(ranges), "preparing events"
        )
        paths = [ranges[result.number].path for result in results]
        counts = sum_counts(looked_at, paths, results, definition.cuts, layout.class_names)
        left_out = [count for count in counts if count.reason]
        bad = {count.file.path for count in left_out}
        check_damaged(
            [replace(count.file, reason=count.reason) for count in left_out], options.accepted
        )
        stored = [
            result for result in results if result.part and ranges[result.number].path not in bad
        ]
        size = keep_only(store, target, [result.part for result in stored])
        store.write_bytes(
            join(staged.folder, SCHEMA_FILE),
            json_text(layout.document(origin=True), indent=1).encode(),
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
            "damaged": sorted(bad),
            "defaults": _defaults(looked_at),
            "partial": bool(bad),
            "worker_memory_bytes": max((result.memory for result in results), default=0),
        }
        warnings = [f"{count.file.path} is left out: {count.reason}" for count in left_out]
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
    """Raises DataError (65) where some files of a class have the branch of the weight
    and others do not.
    """
    from cmsspark.apps.events.expressions import Expression

    if definition.spec.weight is None:
        return
    names = Expression.parse(definition.spec.weight).names
    with_weight: dict[tuple[str, int | None], tuple[bool, str]] = {}
    for file in files:
        for name in sorted(names):
            has = name not in file.defaulted
            first, path = with_weight.setdefault((name, file.label), (has, file.path))
            if first != has:
                raise DataError(
                    f"all files of {layout.class_names[file.label or 0]} have {name}, or none of them",
                    where=file.path,
                    found=f"it has {'one' if has else 'none'}; {path} has {'one' if first else 'none'}",
                    next_step="give them different classes, or a definition with another weight",
                )


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


def sum_counts(
    files: Sequence[InspectedFile],
    paths: Sequence[str],
    results: Sequence[RangeResult],
    cuts: Sequence[str],
    classes: Sequence[str],
) -> list[FileCounts]:
    """Return what became of each file; ``paths``: the file of each result.

    Raises DataError (65) where the cuts of a file do not add up to its events: it
    changed while it was read.
    """
    sums = {file.path: dict.fromkeys(cuts, 0) for file in files}
    reasons = {file.path: file.reason for file in files}
    for path, result in zip(paths, results, strict=True):
        reasons[path] = reasons[path] or result.reason
        for name, number in zip(cuts, result.cuts, strict=False):
            sums[path][name] += number
    counts = []
    for file in files:
        reason = reasons[file.path]
        numbers = dict.fromkeys(cuts, 0) if reason else sums[file.path]
        if not reason and sum(numbers.values()) != file.events:
            raise DataError(
                "the cuts of a file add up to its events",
                where=file.path,
                found=f"{file.events:,} events, {sum(numbers.values()):,} in the cuts",
                next_step="run it again when no process writes there",
            )
        counts.append(FileCounts(file, classes[file.label or 0], numbers, reason))
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
        of_class["quarantined_files"] += bool(count.reason)
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
            "is_quarantined": bool(count.reason),
            "reason": count.reason or None,
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
