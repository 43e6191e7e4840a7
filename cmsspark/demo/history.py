"""A made-up past in a store: days with partials and reports, laid out as the daily job leaves them."""

from __future__ import annotations

from collections.abc import Iterable
from datetime import date
from typing import TYPE_CHECKING, Any

from cmsspark import days
from cmsspark.pipeline.provenance import versions
from cmsspark.schemas import stored_table
from cmsspark.sources.registry import STREAMS
from cmsspark.storage import LocalFiles, join
from cmsspark.store import results

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.demo.past import History

JOB = "data_aggregation"


def store_history(history: History, fout: str, chosen: Iterable[date], key_id: str) -> int:
    """Store the days that are not there yet, in a store on the local disk. Returns how many were made."""
    files = LocalFiles()
    made = 0
    for day in chosen:
        if files.stat(join(fout, JOB, day.isoformat(), "CURRENT")) is not None:
            continue
        partials = history.partials(day, stored_table("partials"))
        run = results.stage(files, fout, JOB, day)
        try:
            run.write_arrow(report(partials, day), JOB)
            run.write_arrow(partials, "partials")
            run.commit(_manifest(day, key_id))
        except BaseException:
            run.abandon()
            raise
        made += 1
    return made


def report(partials: pa.Table, day: date) -> pa.Table:
    """``schemas/tables/data_aggregation.yaml`` from a day's partials."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from cmsspark.kernel.merge import SECONDS, SUMS, USER_KEYS, merge
    from cmsspark.kernel.pre_aggregate import ACCESS

    columns = {name: partials[name] for name in partials.column_names}
    columns |= {sums: pc.round(pc.multiply(columns[name], 1000.0)).cast(pa.int64()) for name, sums in SECONDS.items()}
    columns["kind"] = pa.array([ACCESS]).take(pa.array([0] * partials.num_rows, pa.int64()))
    rows = pa.table({name: columns[name] for name in ("kind", *USER_KEYS, *SUMS)})
    return merge(rows.to_batches()).report(day, stored_table(JOB))


def _manifest(day: date, key_id: str) -> dict[str, Any]:
    return {
        "streams": list(STREAMS),
        "missing_streams": [],
        "partial": False,
        "warnings": ["made up, not counted"],
        "pseudonym_key_id": key_id,
        "versions": versions(),
        "timestamp": days.start_ms(day),
    }
