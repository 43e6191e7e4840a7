"""The reconciliation report of a stored run, and the page that a run on log streams leaves beside its tables."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

from cmsspark.checks.reconciliation import TRAILING_DAYS
from cmsspark.errors import CmssparkError
from cmsspark.file_systems import files_for
from cmsspark.pipeline.job_index import Job, find_job
from cmsspark.readable import encodable
from cmsspark.reports.day_report import report
from cmsspark.reports.page import page
from cmsspark.runners.session import session
from cmsspark.storage import Files, LocalFiles, is_local, join, local_path
from cmsspark.store import results
from cmsspark.store.results import CurrentTable

#: The page that each run of a job on log streams leaves beside its tables.
PAGE: Final = "report.html"


_EXAMPLES: Final = 5


def leave(fout: str, job: str, done: CurrentTable, tell: Callable[[str], None]) -> None:
    """Leave the report of a run that was just stored beside its tables; one that cannot be made fails no run."""
    try:
        # The run's own session, where there is one: it is not to start another.
        files = LocalFiles() if is_local(fout) else files_for(fout, session(f"cmsspark {job}"))
        told = of_run(files, fout, find_job(job), done.manifest, done.path)
        files.write_bytes(join(done.path, PAGE), encodable(page(told)).encode())
        tell(f"where every record went: {join(done.path, PAGE)}")
    except Exception as error:
        # The result counts already, and the report can be made at any time.
        why = error.text() if isinstance(error, CmssparkError) else f"{type(error).__name__}: {error}"
        tell(f"warning: the report of the run cannot be made: {' '.join(why.split())[:300]}")


def of_run(files: Files, fout: str, job: Job, manifest: Mapping[str, Any], folder: str) -> dict[str, Any]:
    """The report of the run in ``folder``, with what is told by the days before, the table and the quarantine."""
    day = date.fromisoformat(manifest["day"])
    before = results.history(files, fout, job.name, day, TRAILING_DAYS) if manifest.get("reconciliation") else []
    return report(manifest, before, _stored(job, manifest, folder), _kept(manifest))


def _stored(job: Job, manifest: Mapping[str, Any], folder: str) -> dict[str, int] | None:
    """Accesses by stream in the stored report, read back from the local disk; None for other stores and formats."""
    name = job.tables[0]
    told = manifest["tables"].get(name, {})
    if not job.streams or not is_local(folder) or told.get("format", "parquet") != "parquet":
        return None
    import pyarrow as pa
    import pyarrow.parquet as pq

    from cmsspark.pipeline.stored_rows import unreadable

    counted: Counter[str] = Counter()
    for part in sorted(Path(local_path(folder), name).glob("part-*.parquet")):
        try:
            with pq.ParquetFile(part) as file:
                rows = file.read(columns=["stream", "nacc"])
        except (pa.ArrowException, OSError) as error:
            raise unreadable(part, error) from None
        for one in rows.group_by("stream").aggregate([("nacc", "sum")]).to_pylist():
            counted[one["stream"]] += one["nacc_sum"]
    return dict(counted)


def _kept(manifest: Mapping[str, Any]) -> dict[str, Any] | None:
    """What the quarantine holds of the run: reasons and places, never what stands in a record."""
    file = manifest.get("quarantine")
    if not file:
        return None
    reasons: Counter[str] = Counter()
    examples: list[str] = []
    try:
        with open(file, encoding="utf-8") as stream:
            for line in stream:
                record = json.loads(line)
                reasons[record["reason"]] += 1
                if len(examples) < _EXAMPLES:
                    place = f"{Path(record['file']).name}, record {record['position']}"
                    examples.append(f"{record['stream']}: {place}: {record['reason']}")
    except (OSError, ValueError, KeyError):
        return {"file": file, "is_there": False}
    ordered = [{"reason": reason, "records": count} for reason, count in reasons.most_common()]
    return {
        "file": file,
        "is_there": True,
        "records": reasons.total(),
        "reasons": ordered,
        "examples": examples,
    }
