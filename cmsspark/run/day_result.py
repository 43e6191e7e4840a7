"""Stores a counted day: checks its bins, writes its tables and manifest, and makes the
run current.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from cmsspark.base import dates
from cmsspark.base.errors import NotReady, OutputError
from cmsspark.base.manifests import Manifest
from cmsspark.base.text.terminal import pluralize
from cmsspark.counting import drift, reconciliation, row_use
from cmsspark.counting.catalogue import Report
from cmsspark.counting.reconciliation import StreamBins
from cmsspark.filesystems.storage import is_local, unreadable
from cmsspark.pages.text import bins_table
from cmsspark.run import catalogue_snapshots
from cmsspark.run.file_records import FileNotes, leave_out_damaged, list_records, quarantine
from cmsspark.run.local import LocalResult
from cmsspark.run.provenance import (
    check_unchanged,
    dumps_summary,
    input_summary,
    settings_summary,
    versions,
)
from cmsspark.run.request import DayRequest, Inputs, JobRequest
from cmsspark.run.run_context import RunContext
from cmsspark.run.scan_summary import ScanSummary
from cmsspark.run.spark import SparkResult
from cmsspark.sources.folders import DayInput
from cmsspark.store import results, staged_runs


@dataclass
class DayOutcome:
    """The result of a count without the rows of its tables."""

    bins: dict[str, StreamBins]
    #: Entries that the manifest takes as they are.
    manifest: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    #: Malformed records without their values.
    examples: dict[str, list[str]] = field(default_factory=dict)
    #: The dump or run that datasets come from, for errors.
    source: str = ""


def build_outcome(
    request: DayRequest,
    inputs: Inputs,
    result: LocalResult | SparkResult,
    catalogue: Mapping[str, Any] | None,
) -> DayOutcome:
    """Return the outcome of a scan; quarantines malformed records. ``catalogue``: the
    report of its build, None for a shuffle join. Raises DataError (65) for a stream of
    another schema and for a file without a well-formed record.
    """
    summary = ScanSummary.from_rows(result.side_rows(), request.streams, inputs.accepted)
    quarantine_file, examples = quarantine_records(request, result.quarantined(), summary.bins)
    changes, warnings = summary.drift()
    records = {
        source.stream: list_records(source, summary.files.get(source.stream, FileNotes()))
        for source in inputs.streams
    }
    noted = {damage["file"] for damage in summary.damaged}
    left_out = leave_out_damaged(records, summary.bins, inputs.accepted)
    summary.damaged += [damage for damage in left_out if damage["file"] not in noted]
    manifest = {
        "damaged": sorted(summary.damaged, key=lambda damage: str(damage["file"])),
        "files_read": {
            stream: [file.as_dict() for file in files] for stream, files in records.items()
        },
        "oversized": summary.oversized,
        "drift": changes,
        "quarantine": quarantine_file,
        **({"quarantine_not_kept": dict(summary.not_kept)} if summary.not_kept else {}),
        "unmatched_prefixes": summary.unmatched_prefixes(),
        "set_aside": {
            stream: {name: counts[name] for name in ("nacc", "read_bytes")}
            for stream, counts in summary.set_aside.items()
        },
        "jobs_once": summary.jobs_once(),
        "engine": result.engine,
        **summary.compiled(),
        "join": "shuffle" if catalogue is None and inputs.has_accesses else "index",
        "catalogue": catalogue,
    }
    files = f", which names {catalogue['files']:,} files" if catalogue else ""
    if catalogue:
        warnings += catalogue_snapshots.list_warnings(Report(**catalogue), inputs.dbs)
    source = f"DBS dump of {inputs.dbs.day or 'no date'} in {inputs.dbs.folder}{files}"
    return DayOutcome(summary.bins, manifest, summary.warnings() + warnings, examples, source)


def store_day(
    request: DayRequest,
    inputs: Inputs,
    outcome: DayOutcome,
    write: Callable[[staged_runs.StagedRun, str], int],
    staged: staged_runs.StagedRun,
    run_context: RunContext,
) -> results.CurrentTable:
    """Check the bins, write the tables (``write`` returns a table's rows) and make the
    run current.

    Raises DataError (65) beyond the tolerances and where inputs changed, NotReady (75)
    for a stream without any record, OutputError (73).
    """
    tolerances = reconciliation.parse_tolerances(request.max_malformed, request.streams)
    prefixes, quarantined = outcome.manifest["unmatched_prefixes"], outcome.manifest["quarantine"]
    warnings = inputs.warnings + outcome.warnings
    warnings += reconciliation.check(
        outcome.bins, tolerances, outcome.examples, outcome.source, prefixes, quarantined
    )
    warnings += _leave_out_empty(request, inputs, outcome.bins)
    before = results.history(
        inputs.files, request.fout, request.job, request.day, reconciliation.TRAILING_DAYS
    )
    trailing = [manifest.reconciliation for manifest in before]
    warnings += reconciliation.unusual(outcome.bins, trailing, inputs.missing)
    uses = row_use.of_bins(outcome.bins)
    warnings += row_use.check(uses, before)
    warnings += _add_density(inputs, outcome, before)
    _check_not_empty(request, inputs, outcome.bins)
    for table in request.tables:
        run_context.log(f"{table}: {pluralize(write(staged, table), 'row')}")
    check_unchanged(inputs.files, inputs.read)
    manifest = _manifest(request, inputs, outcome, staged, run_context.seconds())
    done = staged.commit({**manifest, **row_use.describe(uses), "warnings": warnings})
    for text in warnings:
        run_context.log(f"warning: {text}")
    run_context.log(bins_table(done.manifest.reconciliation))
    run_context.log(
        f"{request.job} of {request.day} stored in {done.path} after {run_context.seconds():.1f} s"
    )
    return done


def _add_density(inputs: Inputs, outcome: DayOutcome, before: Sequence[Manifest]) -> list[str]:
    """Add streams of unusual density to ``drift``, in place of those of a reused run;
    return warnings.
    """
    formats = {source.stream: source.format_name for source in inputs.streams}
    unusual, warnings = drift.unusual_density(outcome.manifest["files_read"], formats, before)
    entries = outcome.manifest["drift"]
    by_stream = {
        stream: [
            *(
                entry
                for entry in entries.get(stream, ())
                if entry["change"] != drift.DENSITY_CHANGE
            ),
            *unusual.get(stream, ()),
        ]
        for stream in {**entries, **unusual}
    }
    outcome.manifest["drift"] = {
        stream: of_stream for stream, of_stream in by_stream.items() if of_stream
    }
    return warnings


def _leave_out_empty(
    request: DayRequest, inputs: Inputs, bins: Mapping[str, StreamBins]
) -> list[str]:
    """With ``--allow-missing``, treat streams without any record as missing; return
    warnings about them.
    """
    empty = [source for source in inputs.streams if not bins[source.stream].read]
    if not request.allow_missing or len(empty) == len(inputs.streams):
        return []
    inputs.missing += [source.stream for source in empty]
    return [
        f"{source.stream} is left out: {pluralize(len(source.files), 'file')} without any record"
        for source in empty
    ]


def _check_not_empty(request: DayRequest, inputs: Inputs, bins: Mapping[str, StreamBins]) -> None:
    """Raise NotReady (75) for a stream without any record that is not left out: a day
    of zeros is never stored.
    """
    for source in inputs.streams:
        if not bins[source.stream].read and source.stream not in inputs.missing:
            raise NotReady(
                f"{source.stream} of {request.day} is there but has no data",
                where=source.folder,
                found=f"{pluralize(len(source.files), 'file')} without any record",
                next_step="run again when the day is written; a job on several streams can leave it out with --streams",
            )


def quarantine_records(
    request: JobRequest, records: Iterable[tuple[str, str]], bins: Mapping[str, StreamBins]
) -> tuple[str | None, dict[str, list[str]]]:
    """Quarantine malformed records (stream, detail); return the file, and by stream
    some examples without values.
    """
    if not any(stream_bins.malformed for stream_bins in bins.values()):
        return None, {}
    folder = request.settings.state_dir / "quarantine" / request.job / request.day.isoformat()
    try:
        return quarantine(
            folder, ({"stream": stream, **json.loads(detail)} for stream, detail in records)
        )
    except OSError as error:
        raise OutputError(
            "the quarantine cannot be written", where=folder, found=error.strerror
        ) from None


def _manifest(
    request: DayRequest,
    inputs: Inputs,
    outcome: DayOutcome,
    staged: staged_runs.StagedRun,
    seconds: float,
) -> dict[str, Any]:
    bins = outcome.bins
    read = sum(stream_bins.read for stream_bins in bins.values())
    rows = staged.tables[request.tables[0]]["rows"]
    return {
        "streams": list(request.streams),
        "partial": bool(
            inputs.missing or outcome.manifest["damaged"] or outcome.manifest["oversized"]
        )
        or any(source.is_tmp for source in inputs.streams),
        "missing_streams": inputs.missing,
        "reconciliation": {stream: counts.as_dict() for stream, counts in bins.items()},
        "out_of_day_by_day": {
            stream: dict(sorted(counts.out_of_day.items())) for stream, counts in bins.items()
        },
        "generations": {
            stream: dict(counts.generations)
            for stream, counts in bins.items()
            if counts.generations
        },
        "reduction_factor": round(read / rows, 3) if rows else None,
        "dumps": dumps_summary(inputs.dumps),
        "epochs": inputs.epochs,
        "meanings": inputs.meanings,
        "inputs": [input_summary(source) for source in inputs.streams],
        "identical_files": identical_files(inputs.streams),
        **(
            {"earlier_jobs": {day.stream: day.as_dict() for day in inputs.earlier}}
            if inputs.earlier
            else {}
        ),
        **outcome.manifest,
        "settings": settings_summary(request.settings, inputs.dumps),
        "versions": versions(),
        "seconds": round(seconds, 1),
        "timestamp": dates.start_ms(request.day),
    }


def identical_files(sources: Iterable[DayInput]) -> list[list[str]]:
    """Return groups of part files of one stream with the same content (rule 3); all are
    counted. Local folders only.
    """
    identical = []
    for source in sources:
        by_size: dict[int, list[str]] = {}
        for file in source.files:
            if file.size and is_local(file.path):
                by_size.setdefault(file.size, []).append(file.path)
        for paths in by_size.values():
            # Most files of one size differ at their start: few are read whole.
            for candidates in _group_same(paths, _start) if len(paths) > 1 else ():
                identical += _group_same(candidates, _content)
    return identical


def _group_same(paths: list[str], key_of: Callable[[str], Any]) -> list[list[str]]:
    """Return groups of at least two files with the same ``key_of``."""
    groups: dict[Any, list[str]] = {}
    keys: dict[tuple[int, int], Any] = {}
    for path in paths:
        try:
            stat = os.stat(path)
            # Two names of one file are read once.
            file_id = (stat.st_dev, stat.st_ino)
            if file_id not in keys:
                keys[file_id] = key_of(path)
        except OSError as error:
            raise unreadable(path, error) from None
        groups.setdefault(keys[file_id], []).append(path)
    return [group for group in groups.values() if len(group) > 1]


def _start(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(65_536)


def _content(path: str) -> bytes:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "blake2b").digest()
