"""Runs that make tables of stored days: how they begin, the steps that store them, what
their manifests share.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from datetime import date
from typing import TYPE_CHECKING, Any, TypeVar

from cmsspark.base.periods import Period, start_ms
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.storage import Files
from cmsspark.run.provenance import versions
from cmsspark.run.run_context import RunContext, running
from cmsspark.store.results import CurrentTable
from cmsspark.store.staged_runs import StagedRun
from cmsspark.store.stored_columns import open_store
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.settings.settings import Settings

Days = TypeVar("Days", bound=StoredDays)


@contextmanager
def run_on_days(
    settings: Settings,
    fout: str,
    job: str,
    period: Period,
    log: Callable[[str], None] | None,
    find: Callable[[Files, str, Period], Days],
    *,
    allow_missing: bool,
) -> Iterator[tuple[RunContext, Days]]:
    """Begin a run of a job of periods; yields it with the days that ``find`` finds in the store.

    They are all there unless ``allow_missing``. On any failure the previous result
    stays. Raises InputMissing (66) that names the days that are not stored, DataError
    (65) where they cannot be combined, NotReady (75), OutputError (73).
    """
    with running(settings, fout, job, period, log) as run_context:
        files = open_store(fout, f"cmsspark {job}", settings)
        run_context.lock(files)
        days = find(files, fout, period)
        days.check(allow_missing=allow_missing)
        yield run_context, days


def with_period(rows: pl.DataFrame, period: Period) -> pl.DataFrame:
    """Return the rows with the columns that name their period."""
    import polars as pl

    return rows.with_columns(
        period=pl.lit(period.isoformat()),
        first_day=pl.lit(period.first),
        last_day=pl.lit(period.last),
        timestamp=pl.lit(start_ms(period), pl.Int64),
    )


def store_tables(
    run_context: RunContext,
    files: Files,
    tables: Mapping[str, pl.DataFrame],
    manifest: Mapping[str, Any],
    summary: str,
    write: Callable[[StagedRun], Mapping[str, Any]] = lambda staged: {},
) -> CurrentTable:
    """Store the tables, the first one as the job's own, and log the warnings of the
    manifest and the ``summary``.

    ``write`` adds other files to the folder of the run, and returns entries of the
    manifest. Raises OutputError (73).
    """
    with run_context.staged(files) as staged:
        for name, rows in tables.items():
            staged.write_arrow(rows.to_arrow().cast(stored_table(name).arrow()), name)
        entries = {
            "versions": versions(),
            "timestamp": start_ms(run_context.interval),
            **write(staged),
        }
        done = staged.commit({**manifest, **entries, "seconds": round(run_context.seconds(), 1)})
    for text in done.manifest.warnings:
        run_context.log(f"warning: {text}")
    interval = run_context.interval
    name = (
        f"{run_context.job} of {interval}"
        if isinstance(interval, date)
        else f"{run_context.job} {interval}"
    )
    run_context.log(f"{name}: {summary} stored in {done.path} after {run_context.seconds():.1f} s")
    run_context.manifest = done.manifest
    return done


def store_period(
    run_context: RunContext,
    days: StoredDays,
    tables: Mapping[str, pl.DataFrame],
    source: str | None = None,
    **entries: Any,
) -> CurrentTable:
    """Store tables of a period, made from the rows that its days have of the table
    ``source``, as :func:`store_tables`.

    ``entries``: further ones of the manifest.
    """
    period = days.period
    manifest = {
        "day": period.first.isoformat(),
        "period": period.isoformat(),
        "first_day": period.first.isoformat(),
        "last_day": period.last.isoformat(),
        **describe_days(days),
        **(
            {"inputs": [_describe_input(day, days.partials[day], source) for day in days.partials]}
            if source
            else {}
        ),
        **entries,
    }
    counts = ", ".join(
        f"{pluralize(rows.height, 'row')} of {name}" for name, rows in tables.items()
    )
    summary = f"{counts} from {pluralize(len(days.partials), 'day')}"
    return store_tables(run_context, days.files, tables, manifest, summary)


def describe_days(days: StoredDays) -> dict[str, Any]:
    """Return what a manifest says of the stored days: the run of each, those that are
    missing or partial, warnings.
    """
    return {
        # A run of a day that changes makes what was made from it stale.
        "days": {day.isoformat(): table.manifest.rows_run for day, table in days.partials.items()},
        "missing_days": [day.isoformat() for day in days.missing],
        "partial_days": {day.isoformat(): reason for day, reason in days.partial.items()},
        "partial": days.is_partial,
        "warnings": days.warnings,
    }


def _describe_input(day: date, table: CurrentTable, source: str) -> dict[str, Any]:
    files = [[table.manifest.rows_run, table.manifest.tables[source].bytes, None]]
    return {"table": f"{source} of {day}", "folder": table.path, "files": files}
