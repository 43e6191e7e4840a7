"""Stores a counted day: checks its bins, writes its tables and manifest, and makes the
run current.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cmsspark.base import dates
from cmsspark.base.access import JOB_BINS
from cmsspark.base.errors import DataError, InputMissing, NotReady, OutputError
from cmsspark.base.manifests import Manifest
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.terminal import pluralize
from cmsspark.counting import drift, reconciliation, row_use
from cmsspark.counting.catalogue import Report
from cmsspark.counting.reconciliation import StreamBins
from cmsspark.filesystems.storage import Files, is_local, join, unreadable
from cmsspark.pages.day_report import bins_table
from cmsspark.run import catalogue_snapshots
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
from cmsspark.run.scan_summary import (
    FileNotes,
    ScanSummary,
    leave_out_damaged,
    list_records,
    quarantine,
)
from cmsspark.sources.dumps import Dump, dump_at
from cmsspark.sources.folders import DayInput
from cmsspark.sources.registry import DUMPS, JOB_TABLES, STREAMS_BY_NAME, STREAMS_OF_JOBS
from cmsspark.store import results, staged_runs
from cmsspark.store.stored_columns import table_rows

if TYPE_CHECKING:
    from cmsspark.run.spark import SparkResult


class DayOutcome(msgspec.Struct):
    """The result of a count without the rows of its tables."""

    bins: dict[str, StreamBins]
    #: Entries that the manifest takes as they are.
    manifest: dict[str, Any]
    warnings: list[str] = msgspec.field(default_factory=list)
    #: Malformed records without their values.
    examples: dict[str, list[str]] = msgspec.field(default_factory=dict)
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
    for stream, counts in summary.bins.items():
        of_sites = summary.unmatched_sites.get(stream, Counter()).total()
        if of_sites != sum(counts.unmatched.values()):
            raise RuntimeError(
                f"{stream}: {of_sites} unmatched records have a site, of {counts.as_dict()}"
            )
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
        "unmatched_sites": {
            stream: dict(sorted(counts.items()))
            for stream, counts in summary.unmatched_sites.items()
        },
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
    # Raise NotReady (75) for a stream without any record that is not left out: a day of
    # zeros is never stored.
    for source in inputs.streams:
        if not outcome.bins[source.stream].read and source.stream not in inputs.missing:
            raise NotReady(
                f"{source.stream} of {request.day} is there but has no data",
                where=source.folder,
                found=f"{pluralize(len(source.files), 'file')} without any record",
                next_step="run again when the day is written; a job on several streams can leave it out with --streams",
            )
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


# Makes a single-stream report of a day from the rows of ``data_aggregation``, without
# reading the logs again.

#: The job whose runs have the streams of all single-stream reports.
SOURCE: Final = "data_aggregation"


def is_possible(request: DayRequest) -> bool:
    """Return whether the request's options allow another job's result."""
    needs_count = request.recount or request.join != "auto" or bool(request.accept_damaged)
    needs_count = needs_count or request.quarantine_above is not None
    is_default = request.tables[:1] == (request.job,) and not {*request.tables[1:]} - {*JOB_TABLES}
    return request.job != SOURCE and is_default and not needs_count


def find(request: DayRequest, inputs: Inputs) -> results.CurrentTable | None:
    """Return the day's current ``data_aggregation``, where it counted the same streams
    of the same input; else None.
    """
    if not is_possible(request) or inputs.missing:
        return None
    try:
        source = results.current(inputs.files, request.fout, SOURCE, SOURCE, request.day)
    except (InputMissing, DataError):
        return None
    return source if _is_same(source.manifest, request, inputs) else None


def _is_same(manifest: Manifest, request: DayRequest, inputs: Inputs) -> bool:
    table = manifest.tables[SOURCE]
    read = {summary.get("stream"): summary for summary in manifest.document.get("inputs", ())}
    damaged = {file["stream"] for file in manifest.damaged}
    return (
        manifest.versions == versions()
        and _settings(manifest, inputs) == settings_summary(request.settings, inputs.dumps)
        and table.format == "parquet"
        and table.schema == stored_table(SOURCE).fingerprint()
        and stored_table(SOURCE).names == stored_table(request.job).names
        and not damaged & set(request.streams)
        and manifest.document.get("oversized") == {}
        and all(
            table in manifest.tables and manifest.tables[table].format == "parquet"
            for table in request.tables[1:]
        )
        and all(
            _files(_earlier(manifest, day.stream)) == _files(day.as_dict())
            for day in inputs.earlier
        )
        and all(read.get(stream.stream) == input_summary(stream) for stream in inputs.streams)
        and all(_has_dump(manifest, dump, request, inputs.files) for dump in inputs.dumps)
    )


def _settings(manifest: Manifest, inputs: Inputs) -> dict[str, Any]:
    """Return the settings of a run; without sites of RSEs where this request looks up none."""
    settings: dict[str, Any] = manifest.document.get("settings") or {}
    return settings if inputs.replicas or not settings else {**settings, "rses": {}}


def _has_dump(manifest: Manifest, dump: Dump, request: DayRequest, files: Files) -> bool:
    """Return whether a run read a dump. A report of jobs needs fewer tables of DBS than
    a run with accesses read.
    """
    stored = {dump.kind: manifest.document["dumps"].get(dump.kind)}
    if dumps_summary([dump]) == stored:
        return True
    if dump.kind != "dbs" or {*dump.tables} == {*DUMPS["dbs"].for_streams}:
        return False
    all_tables = dump_at(
        files, "dbs", dump.folder, request.day, dump.day, DUMPS["dbs"].for_streams
    )
    return all_tables is not None and dumps_summary([all_tables]) == stored


def restore_outcome(source: results.CurrentTable, streams: tuple[str, ...]) -> DayOutcome:
    """Return the outcome of the run ``source``, restricted to ``streams``."""

    manifest = source.manifest
    bins = {stream: _bins(manifest, stream) for stream in streams}
    has_malformed = any(stream_bins.malformed for stream_bins in bins.values())
    entries: dict[str, Any] = {
        "damaged": [],
        "oversized": {},
        "drift": _of(manifest.drift, streams),
        "quarantine": manifest.quarantine if has_malformed else None,
        "unmatched_prefixes": _of(manifest.unmatched_prefixes, streams),
        "files_read": _of(manifest.document.get("files_read") or {}, streams),
        "made_from": {"job": SOURCE, "run": manifest.run},
    }
    entries["set_aside"] = _of(manifest.set_aside, streams)
    entries["jobs_once"] = _of(manifest.jobs_once, streams)
    if manifest.unmatched_sites is not None:
        entries["unmatched_sites"] = _of(manifest.unmatched_sites, streams)
    if earlier := _of(manifest.document.get("earlier_jobs") or {}, streams):
        entries["earlier_jobs"] = earlier
    entries |= {
        name: manifest.document.get(name)
        for name in ("engine", "compiled", "join", "catalogue", "pseudonym_key_id")
    }
    starts = tuple(f"{stream}: fields are not" for stream in streams)
    warnings = [text for text in manifest.warnings if text.startswith(starts)]
    return DayOutcome(bins, entries, warnings, source=f"the run {manifest.run} of {SOURCE}")


def write(
    source: results.CurrentTable, streams: tuple[str, ...], run: staged_runs.StagedRun, table: str
) -> int:
    """Write the rows of ``streams`` as ``table`` and return their number."""
    import pyarrow.compute as pc

    from cmsspark.base.buffers import scalar

    schema = stored_table(table)
    if table in JOB_TABLES:
        sibling = results.CurrentTable(
            join(source.path.rpartition("/")[0], table), manifest=source.manifest
        )
        return run.write_arrow(table_rows(run.files, sibling, table, schema.names), table)
    rows = table_rows(run.files, source, SOURCE, schema.names)
    chosen = rows.filter(
        reduce(pc.or_, (pc.equal(rows["stream"], scalar(stream, "string")) for stream in streams))
    )
    return run.write_arrow(chosen.cast(schema.arrow()), table)


def _earlier(manifest: Manifest, stream: str) -> Mapping[str, Any]:
    """Return the entry of the manifest on the day before of a stream of jobs."""
    entry: Mapping[str, Any] = (manifest.document.get("earlier_jobs") or {}).get(stream, {})
    return entry


def _files(earlier: Mapping[str, Any]) -> list[Any]:
    """Return where the logs of the day before are, and the sums of their files."""
    return [earlier.get(name) for name in ("folder", "file_count", "bytes", "newest_ms")]


def _of(entries: Mapping[str, Any], streams: tuple[str, ...]) -> dict[str, Any]:
    return {stream: entry for stream, entry in entries.items() if stream in streams}


def _bins(manifest: Manifest, stream: str) -> StreamBins:
    counts = manifest.reconciliation[stream]
    bins = {name: count for name, count in counts.items() if name in JOB_BINS}
    files = (manifest.document.get("files_read") or {}).get(stream, ())
    return StreamBins(
        read=counts["read"],
        matched=counts["matched"],
        unmatched=dict(counts["unmatched"]),
        malformed=counts["malformed"],
        content_bytes=sum(file["content_bytes"] for file in files),
        malformed_bytes=sum(file["malformed_bytes"] for file in files),
        write_only=counts.get("write_only", 0),
        job_bins=bins if stream in STREAMS_OF_JOBS else None,
        own_bins={name: counts.get(name, 0) for name in STREAMS_BY_NAME[stream].bins},
        out_of_day=Counter(manifest.out_of_day_by_day[stream]),
        generations=Counter(manifest.generations.get(stream, {})),
    )
