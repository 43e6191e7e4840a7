"""The second report of a day without reading the logs again: what ``data_aggregation`` has counted already is taken.

It is taken only where a count would find the same: the same files (names, sizes, times), the same dumps, the same code.
"""

from __future__ import annotations

from collections import Counter
from functools import reduce
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

from cmsspark.checks.reconciliation import StreamBins
from cmsspark.errors import DataError, InputMissing
from cmsspark.pipeline.provenance import dumps_summary, input_summary, versions
from cmsspark.pipeline.request import DayRequest, Inputs
from cmsspark.schemas import stored_table
from cmsspark.storage import local_path
from cmsspark.store import results

if TYPE_CHECKING:
    from cmsspark.pipeline.day_result import DayOutcome

#: Whose run holds the streams of all single-stream reports.
SOURCE: Final = "data_aggregation"


def is_possible(request: DayRequest) -> bool:
    """Whether the request may be answered from another job's result at all."""
    asks_for_count = request.recount or request.join != "auto" or bool(request.accept_damaged)
    asks_for_count = asks_for_count or request.quarantine_above is not None
    return request.job != SOURCE and request.tables == (request.job,) and not asks_for_count


def find(request: DayRequest, inputs: Inputs) -> results.CurrentTable | None:
    """The day's current ``data_aggregation``, where it has counted the same streams of the same input; else None."""
    if not is_possible(request) or inputs.missing:
        return None
    try:
        found = results.current(inputs.files, request.fout, SOURCE, SOURCE, request.day)
    except (InputMissing, DataError):
        return None
    return found if _is_same(found.manifest, request, inputs) else None


def _is_same(manifest: dict[str, Any], request: DayRequest, inputs: Inputs) -> bool:
    table = manifest["tables"][SOURCE]
    read = {one["stream"]: one for one in manifest.get("inputs", ())}
    damaged = {one["stream"] for one in manifest.get("damaged", ())}
    return (
        manifest.get("versions") == versions()
        and table["format"] == "parquet"
        and table["schema"] == stored_table(SOURCE).fingerprint()
        and stored_table(SOURCE).names == stored_table(request.job).names
        and not damaged & set(request.streams)
        and not manifest.get("outsized")
        and all(read.get(one.stream) == input_summary(one) for one in inputs.streams)
        and all(manifest["dumps"].get(kind) == told for kind, told in dumps_summary(inputs.dumps).items())
    )


def outcome_of(found: results.CurrentTable, streams: tuple[str, ...]) -> DayOutcome:
    """What that run found in ``streams``."""
    from cmsspark.pipeline.day_result import DayOutcome

    manifest = found.manifest
    bins = {stream: _bins(manifest, stream) for stream in streams}
    has_malformed = any(one.malformed for one in bins.values())
    told: dict[str, Any] = {
        "damaged": [],
        "outsized": {},
        "drift": _of(manifest, "drift", streams),
        "quarantine": manifest.get("quarantine") if has_malformed else None,
        "unmatched_prefixes": _of(manifest, "unmatched_prefixes", streams),
        "made_from": {"job": SOURCE, "run": manifest["run"]},
    }
    told |= {name: manifest.get(name) for name in ("engine", "compiled", "join", "catalogue")}
    starts = tuple(f"{stream}: fields are not" for stream in streams)
    warnings = [text for text in manifest.get("warnings", ()) if text.startswith(starts)]
    return DayOutcome(bins, told, warnings, asked=f"the run {manifest['run']} of {SOURCE}")


def write(found: results.CurrentTable, streams: tuple[str, ...], run: results.StagedRun, table: str) -> int:
    """Write the rows of ``streams`` as ``table`` and return how many there are."""
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    from cmsspark.buffers import scalar

    schema = stored_table(table)
    # Part by part: Arrow's datasets would import pandas.
    parts = sorted(Path(local_path(found.path)).glob("part-*.parquet"))
    rows = pa.concat_tables([pq.ParquetFile(part).read(columns=schema.names) for part in parts])
    chosen = rows.filter(reduce(pc.or_, (pc.equal(rows["stream"], scalar(stream, "string")) for stream in streams)))
    return run.write_arrow(chosen.cast(schema.arrow()), table)


def _of(manifest: dict[str, Any], name: str, streams: tuple[str, ...]) -> dict[str, Any]:
    return {stream: told for stream, told in (manifest.get(name) or {}).items() if stream in streams}


def _bins(manifest: dict[str, Any], stream: str) -> StreamBins:
    told = manifest["reconciliation"][stream]
    return StreamBins(
        read=told["read"],
        matched=told["matched"],
        unmatched=dict(told["unmatched"]),
        malformed=told["malformed"],
        write_only=told["write_only"],
        out_of_day=Counter(manifest["out_of_day_by_day"][stream]),
        generations=Counter(manifest["generations"].get(stream, {})),
    )
