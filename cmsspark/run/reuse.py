"""Makes a single-stream report of a day from the rows of ``data_aggregation``, without
reading the logs again.

Only where a count would give the same: the same files (names, sizes, times), dumps,
settings and code.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base.access import JOB_BINS
from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.manifests import Manifest
from cmsspark.base.schemas import stored_table
from cmsspark.counting.reconciliation import StreamBins
from cmsspark.filesystems.storage import Files, join
from cmsspark.run.provenance import dumps_summary, input_summary, settings_summary, versions
from cmsspark.run.request import DayRequest, Inputs
from cmsspark.sources.dumps import Dump, dump_at
from cmsspark.sources.registry import DUMPS, JOB_TABLES, STREAMS_BY_NAME, STREAMS_OF_JOBS
from cmsspark.store import results, staged_runs
from cmsspark.store.stored_columns import table_rows

if TYPE_CHECKING:
    from cmsspark.run.day_result import DayOutcome

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
    from cmsspark.run.day_result import DayOutcome

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
