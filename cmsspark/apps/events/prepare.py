"""``events_prepare``: ROOT files of three classes → features of the selected events, with a cutflow."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

from cmsspark.apps.events.kernels import CUTS
from cmsspark.apps.events.layout import CLASSES, schema_document
from cmsspark.apps.events.parts import keep_only
from cmsspark.apps.events.prepare_task import PrepareTask, RangeResult, inspect_files, run_tasks
from cmsspark.apps.events.root_files import RANGE_EVENTS, TREE, InspectedFile, bytes_of, files_of_inputs, ranges_of
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
#: The folder of the features in a run, and the file that describes its columns.
FOLDER: Final = "events"
SCHEMA_FILE: Final = "schema.json"
#: As a name for --accept-damaged: every damaged file.
ALL: Final = "all"


@dataclass(frozen=True)
class PrepareOptions:
    """What to prepare. ``inputs``: ``CLASS=FILES``; ``accepted``: damaged files that are left out, or ``all``."""

    inputs: Sequence[str]
    low_level: bool = False
    accepted: Sequence[str] = ()
    range_events: int = RANGE_EVENTS
    tree: str = TREE


@dataclass(frozen=True)
class FileCounts:
    """A file, its events by :data:`CUTS`, and why it is left out, if it is."""

    file: InspectedFile
    cuts: tuple[int, ...]
    reason: str

    @property
    def damaged(self) -> int:
        """The events that are left out with the file."""
        return self.file.events if self.reason else 0

    @property
    def class_name(self) -> str:
        """The name of the file's class."""
        return CLASSES[self.file.label or 0]


def run(request: EventRequest, options: PrepareOptions) -> CurrentTable:
    """Prepare the events and store them; on any failure the previous result stays.

    Raises UsageError (2), InputMissing (66), DataError (65) for damaged files that are not accepted, OutputError (73).
    """
    if not options.inputs:
        raise UsageError("files of events are wanted", next_step="--input 'qcd=data/qcd*.root', one for each class")
    files = files_of_inputs(options.inputs)
    with event_run(request, NAME) as (run_context, store, spark), run_context.staged(store) as staged:
        looked_at = inspect_files(spark, files, options.tree)
        check_damaged([file for file in looked_at if file.reason], options.accepted)
        ranges = ranges_of([file for file in looked_at if not file.reason], options.range_events)
        target = staged.table_path(FOLDER)
        store.make_dirs(target)
        task = PrepareTask(tuple(ranges), options.tree, target, options.low_level)
        results = [
            RangeResult.of(text) for text in run_tasks(spark, task, len(ranges), bytes_of(ranges), "preparing events")
        ]
        counts = counts_of(looked_at, [ranges[result.number].path for result in results], results)
        left_out = [count for count in counts if count.reason]
        bad = {count.file.path for count in left_out}
        check_damaged([_with_reason(count) for count in left_out], options.accepted)
        kept = [result for result in results if result.part and ranges[result.number].path not in bad]
        size = keep_only(store, target, [result.part for result in kept])
        schema = schema_document(low_level=options.low_level, origin=True)
        store.write_bytes(join(staged.folder, SCHEMA_FILE), json_text(schema, indent=1).encode())
        staged.write_arrow(cutflow_table(counts, request.day), TABLE)
        selected = sum(result.rows for result in kept)
        memory = max((result.memory for result in results), default=0)
        manifest = {
            "inputs": _inputs(looked_at),
            "folders": {FOLDER: {"rows": selected, "files": len(kept), "bytes": size, "low_level": options.low_level}},
            "cutflow": cutflow(counts),
            "damaged": sorted(bad),
            "partial": bool(bad),
            "worker_memory_bytes": memory,
        }
        warnings = [f"{count.file.path} is left out: {count.reason}" for count in left_out]
        total = sum(count.file.events for count in counts)
        what = f"{selected:,} of {total:,} events of {len(files):,} files stored in {staged.folder}"
        return finish(run_context, staged, manifest, warnings, what)


def check_damaged(damaged: Sequence[InspectedFile], accepted: Sequence[str]) -> None:
    """Raises DataError (65) that names the files that cannot be read and are not accepted, with the reasons."""
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


def counts_of(files: Sequence[InspectedFile], paths: Sequence[str], results: Sequence[RangeResult]) -> list[FileCounts]:
    """What became of each file; ``paths``: the file of each result.

    Raises DataError (65) where the cuts of a file do not add up to its events: it changed while it was read.
    """
    sums: dict[str, list[int]] = {}
    reasons = {file.path: file.reason for file in files}
    for path, result in zip(paths, results, strict=True):
        reasons[path] = reasons[path] or result.reason
        known = sums.setdefault(path, [0] * len(CUTS))
        sums[path] = [left + right for left, right in zip(known, result.cuts, strict=True)]
    counts = []
    for file in files:
        reason = reasons[file.path]
        cuts = (0,) * len(CUTS) if reason else tuple(sums.get(file.path, [0] * len(CUTS)))
        if not reason and sum(cuts) != file.events:
            raise DataError(
                "the cuts of a file add up to its events",
                where=file.path,
                found=f"{file.events:,} events, {sum(cuts):,} in the cuts",
                next_step="run it again when no process writes there",
            )
        counts.append(FileCounts(file, cuts, reason))
    return counts


def _with_reason(count: FileCounts) -> InspectedFile:
    return InspectedFile(count.file.path, count.file.label, count.file.events, count.file.size, count.reason)


def cutflow(counts: Iterable[FileCounts]) -> dict[str, dict[str, int]]:
    """By class the number of files and events, and what became of the events; the cuts add up to the events."""
    flow: dict[str, dict[str, int]] = {}
    for count in counts:
        of_class = flow.setdefault(
            count.class_name, dict.fromkeys(("files", "quarantined_files", "events", "damaged", *CUTS), 0)
        )
        of_class["files"] += 1
        of_class["quarantined_files"] += bool(count.reason)
        of_class["events"] += count.file.events
        of_class["damaged"] += count.damaged
        for name, number in zip(CUTS, count.cuts, strict=True):
            of_class[name] += number
    return flow


def cutflow_table(counts: Sequence[FileCounts], day: date) -> pa.Table:
    """``schemas/tables/event_cutflow.yaml``: a row for each file, by class and path."""
    import pyarrow as pa

    rows: list[Mapping[str, Any]] = [
        {
            "day": day,
            "class_name": count.class_name,
            "file": count.file.path,
            "file_bytes": count.file.size,
            "event_count": count.file.events,
            "damaged_count": count.damaged,
            **{f"{name}_count": number for name, number in zip(CUTS, count.cuts, strict=True)},
            "is_quarantined": bool(count.reason),
            "reason": count.reason or None,
            "timestamp": dates.start_ms(day),
        }
        for count in counts
    ]
    return pa.Table.from_pylist(rows, stored_table(TABLE).arrow())


def cutflow_lines(flow: Mapping[str, Mapping[str, int]]) -> tuple[tuple[str, ...], list[tuple[object, ...]]]:
    """The cutflow for a terminal: headings, and a row for each step."""
    steps = ("events", "damaged", *CUTS)
    rows = [(step.replace("_", " "), *(flow[name][step] for name in flow)) for step in steps]
    return ("step", *flow), rows


def _inputs(files: Sequence[InspectedFile]) -> list[dict[str, Any]]:
    listed: dict[str, list[list[Any]]] = {}
    for file in files:
        listed.setdefault(CLASSES[file.label or 0], []).append([file.path, file.size, None])
    return [{"stream": None, "table": name, "folder": None, "files": found} for name, found in listed.items()]
