"""What becomes of a counted day: its bins are checked, its tables written, its manifest told, and all made current."""

from __future__ import annotations

import hashlib
import json
import os
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from typing import Any

from cmsspark import days, pseudonyms
from cmsspark.checks import reconciliation
from cmsspark.checks.reconciliation import StreamBins
from cmsspark.errors import NotReady, OutputError
from cmsspark.kernel.catalogue import Report
from cmsspark.pipeline import catalogue_snapshots
from cmsspark.pipeline.provenance import check_unchanged, dumps_summary, input_summary, versions
from cmsspark.pipeline.quarantine import keep
from cmsspark.pipeline.request import DayRequest, Inputs
from cmsspark.pipeline.scan_summary import ScanSummary
from cmsspark.reports import reconciliation_table
from cmsspark.runners.scan_result import ScanResult
from cmsspark.storage import is_local, unreadable
from cmsspark.store import results


@dataclass
class DayOutcome:
    """What a count found beside the rows of its tables, and how it was made."""

    bins: dict[str, StreamBins]
    #: For the manifest as it is.
    told: dict[str, Any]
    warnings: list[str] = field(default_factory=list)
    #: Malformed records without their values.
    examples: dict[str, list[str]] = field(default_factory=dict)
    #: The dump that files were looked up in, for errors.
    asked: str = ""


def outcome_of(
    request: DayRequest, inputs: Inputs, result: ScanResult, catalogue: Mapping[str, Any] | None
) -> DayOutcome:
    """What an engine found; malformed records go to quarantine here. ``catalogue``: what its build found, None for a
    shuffle join. Raises DataError (65) for a stream of another schema.
    """
    summary = ScanSummary.of(result.side_rows(), request.streams, inputs.accepted)
    quarantine, examples = _quarantine(request, result, summary.bins)
    changes, warnings = summary.drift()
    told = {
        "damaged": summary.damaged,
        "outsized": summary.outsized,
        "drift": changes,
        "quarantine": quarantine,
        **({"quarantine_not_kept": dict(summary.not_kept)} if summary.not_kept else {}),
        "unmatched_prefixes": summary.unmatched_prefixes(),
        "engine": result.engine,
        **summary.compiled(),
        "join": "shuffle" if catalogue is None else "index",
        "catalogue": catalogue,
    }
    known = f", which names {catalogue['files']:,} files" if catalogue else ""
    if catalogue:
        warnings += catalogue_snapshots.warnings_of(Report(**catalogue), inputs.dbs)
    asked = f"DBS dump of {inputs.dbs.day or 'no date'} in {inputs.dbs.folder}{known}"
    return DayOutcome(summary.bins, told, summary.warnings() + warnings, examples, asked)


def store_day(
    request: DayRequest,
    inputs: Inputs,
    outcome: DayOutcome,
    write: Callable[[results.StagedRun, str], int],
    run_now: results.StagedRun,
    tell: Callable[[str], None],
    began: float,
) -> results.CurrentTable:
    """Check the bins, write the tables (``write`` returns a table's rows) and make the run current.

    Raises DataError (65) beyond the tolerances and where inputs changed, NotReady (75) for a stream without any record,
    OutputError (73).
    """
    tolerances = reconciliation.parse_tolerances(request.max_malformed, request.streams)
    prefixes, kept = outcome.told["unmatched_prefixes"], outcome.told["quarantine"]
    warnings = inputs.warnings + outcome.warnings
    warnings += reconciliation.check(outcome.bins, tolerances, outcome.examples, outcome.asked, prefixes, kept)
    warnings += _leave_out_empty(request, inputs, outcome.bins)
    before = results.history(inputs.files, request.fout, request.job, request.day, reconciliation.TRAILING_DAYS)
    trailing = [manifest.get("reconciliation", {}) for manifest in before]
    warnings += reconciliation.unusual(outcome.bins, trailing, inputs.missing)
    _check_not_empty(request, inputs, outcome.bins)
    for table in request.tables:
        tell(f"{table}: {write(run_now, table):,} rows")
    check_unchanged(inputs.files, [*inputs.streams, *inputs.dumps])
    manifest = _manifest(request, inputs, outcome, run_now, began)
    done = run_now.commit({**manifest, "warnings": warnings})
    for text in warnings:
        tell(f"warning: {text}")
    tell(reconciliation_table.table(done.manifest["reconciliation"]))
    tell(f"{request.job} of {request.day} stored in {done.path} after {time.monotonic() - began:.1f} s")
    return done


def _leave_out_empty(request: DayRequest, inputs: Inputs, bins: Mapping[str, StreamBins]) -> list[str]:
    """With ``--allow-missing``, streams whose files hold no record count as missing; warnings about them."""
    empty = [one for one in inputs.streams if not bins[one.stream].read]
    if not request.allow_missing or len(empty) == len(inputs.streams):
        return []
    inputs.missing += [one.stream for one in empty]
    return [f"{one.stream} is left out: {len(one.files)} files without any record" for one in empty]


def _check_not_empty(request: DayRequest, inputs: Inputs, bins: Mapping[str, StreamBins]) -> None:
    """Raises NotReady (75) for a stream without any record that is not left out: a day of zeros is never stored."""
    for one in inputs.streams:
        if not bins[one.stream].read and one.stream not in inputs.missing:
            raise NotReady(
                f"{one.stream} of {request.day} is there but has no data",
                where=one.folder,
                found=f"{len(one.files)} files without any record",
                next_step="run again when the day is written, or leave the stream out with --streams",
            )


def _quarantine(
    request: DayRequest, result: ScanResult, bins: Mapping[str, StreamBins]
) -> tuple[str | None, dict[str, list[str]]]:
    """Keep malformed records in a private folder; return its file, and by stream a few examples without values."""
    if not any(one.malformed for one in bins.values()):
        return None, {}
    folder = request.settings.state_dir / "quarantine" / request.job / request.day.isoformat()
    records = result.quarantined()
    try:
        return keep(folder, ({"stream": stream, **json.loads(detail)} for stream, detail in records))
    except OSError as error:
        raise OutputError("malformed records cannot be kept", where=folder, found=error.strerror) from None


def _manifest(
    request: DayRequest, inputs: Inputs, outcome: DayOutcome, run_now: results.StagedRun, began: float
) -> dict[str, Any]:
    bins = outcome.bins
    read = sum(one.read for one in bins.values())
    rows = run_now.tables[request.tables[0]]["rows"]
    key = pseudonyms.load_or_make(request.settings.state_dir / pseudonyms.KEY_FILE)
    return {
        "streams": list(request.streams),
        "partial": bool(inputs.missing or outcome.told["damaged"] or outcome.told["outsized"])
        or any(one.is_tmp for one in inputs.streams),
        "missing_streams": inputs.missing,
        "reconciliation": {stream: one.as_dict() for stream, one in bins.items()},
        "out_of_day_by_day": {stream: dict(sorted(one.out_of_day.items())) for stream, one in bins.items()},
        "generations": {stream: dict(one.generations) for stream, one in bins.items() if one.generations},
        "reduction_factor": round(read / rows, 3) if rows else None,
        "dumps": dumps_summary(inputs.dumps),
        "inputs": [input_summary(one) for one in inputs.streams],
        "identical_files": _identical(inputs),
        "pseudonym_key_id": key.key_id,
        **outcome.told,
        "versions": versions(),
        "seconds": round(time.monotonic() - began, 1),
        "timestamp": days.start_ms(request.day),
    }


def _identical(inputs: Inputs) -> list[list[str]]:
    """Part files of one folder with the same content (rule 3); told, and counted as found. Local folders only."""
    told = []
    for one in inputs.streams:
        by_size: dict[int, list[str]] = {}
        for file in one.files:
            if file.size and is_local(file.path):
                by_size.setdefault(file.size, []).append(file.path)
        for paths in by_size.values():
            # Most files of one size differ at their begin already: few are read whole.
            for alike in _same(paths, _start) if len(paths) > 1 else ():
                told += _same(alike, _content)
    return told


def _same(paths: list[str], of: Callable[[str], Any]) -> list[list[str]]:
    """Groups of at least two files that ``of`` finds the same of."""
    groups: dict[Any, list[str]] = {}
    files: dict[tuple[int, int], Any] = {}
    for path in paths:
        try:
            stat = os.stat(path)
            # Two names of one file need no second look.
            key = (stat.st_dev, stat.st_ino)
            if key not in files:
                files[key] = of(path)
        except OSError as error:
            raise unreadable(path, error) from None
        groups.setdefault(files[key], []).append(path)
    return [same for same in groups.values() if len(same) > 1]


def _start(path: str) -> bytes:
    with open(path, "rb") as stream:
        return stream.read(65_536)


def _content(path: str) -> bytes:
    with open(path, "rb") as stream:
        return hashlib.file_digest(stream, "blake2b").digest()
