"""A made-up past in a store: days with partials and reports, laid out as the daily job
leaves them.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable
from datetime import date
from functools import partial
from typing import TYPE_CHECKING, Any, Protocol

from cmsspark.apps.demo.forked import forked_map
from cmsspark.base import dates
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles, join
from cmsspark.run.provenance import versions
from cmsspark.sources.epochs import Epochs
from cmsspark.store import results, staged_runs

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.base.schemas import Table

JOB = "data_aggregation"
#: Called with the number of days made and of all days.
Progress = Callable[[int, int], None]


class Past(Protocol):
    """What makes the partials of a day, with texts plain or as dictionaries."""

    def partials(self, day: date, schema: Table) -> pa.Table: ...


def store_history(
    history: Past,
    fout: str,
    chosen: Iterable[date],
    key_id: str,
    *,
    processes: int = 1,
    progress: Progress | None = None,
) -> int:
    """Store the days that are not there yet, in a store on the local disk. Returns how
    many were made.

    With more ``processes``, which are forked, each makes days of its own; a caller that
    runs threads keeps to one. ``progress(made, all)`` is called after each day.
    """
    files = LocalFiles()
    missing = [
        day for day in chosen if files.stat(join(fout, JOB, day.isoformat(), "CURRENT")) is None
    ]
    make = partial(store_day, history, fout, key_id)
    is_forked = len(missing) >= 2 * processes
    for number, _ in enumerate(forked_map(make, missing, processes if is_forked else 1), 1):
        if progress:
            progress(number, len(missing))
    return len(missing)


def store_day(
    history: Past,
    fout: str,
    key_id: str,
    day: date,
    partials: pa.Table | None = None,
    began_ms: int | None = None,
    **manifest: Any,
) -> results.CurrentTable:
    """Store one day, by default with the history's partials, and make it current.

    ``began_ms``: when its run began, by default now. ``manifest``: what differs in it.
    """
    partials = history.partials(day, stored_table("partials")) if partials is None else partials
    run = staged_runs.stage(LocalFiles(), fout, JOB, day, began_ms=began_ms)
    try:
        run.write_arrow(report(partials, day), JOB)
        run.write_arrow(partials, "partials")
        return run.commit(_manifest(day, key_id) | manifest)
    except BaseException:
        run.abandon()
        raise


def report(partials: pa.Table, day: date) -> pa.Table:
    """``schemas/tables/data_aggregation.yaml`` from a day's partials."""
    import pyarrow as pa
    import pyarrow.compute as pc

    from cmsspark.counting.merge import SECONDS, SUMS, USER_KEYS, merge
    from cmsspark.counting.pre_aggregate import ACCESS

    columns = {name: partials[name] for name in partials.column_names}
    columns |= {
        sums: pc.round(pc.multiply(columns[name], 1000.0)).cast(pa.int64())
        for name, sums in SECONDS.items()
    }
    columns["kind"] = pa.array([ACCESS]).take(pa.array([0] * partials.num_rows, pa.int64()))
    rows = pa.table({name: columns[name] for name in ("kind", *USER_KEYS, *SUMS)})
    return merge(rows.to_batches()).report(day, stored_table(JOB))


def served_streams(day: date) -> tuple[str, ...]:
    """Return the streams that serve a day."""
    return Epochs.load().streams_of_day(day)


def _manifest(day: date, key_id: str) -> dict[str, Any]:
    streams = served_streams(day)
    return {
        "streams": list(streams),
        "epochs": Epochs.load().of_day(day, streams),
        "missing_streams": [],
        "partial": False,
        "warnings": ["simulated results"],
        "pseudonym_key_id": key_id,
        "versions": versions(),
        "timestamp": dates.start_ms(day),
    }
