"""Reports of periods on CRAB's jobs, from the rows that the days of the stream
``condor`` keep (rules 37 and 38).
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Final

from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.periods import Period
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.storage import Files
from cmsspark.run.period_run import run_on_days, store_period
from cmsspark.sources.registry import CRAB_PARTIALS, STREAMS_BY_NAME, STREAMS_OF_JOBS
from cmsspark.store import results
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import table_rows
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.settings.settings import Settings

#: The jobs that store the rows of a day, in order of preference.
_JOBS: Final = ("data_aggregation", *(STREAMS_BY_NAME[name].report for name in STREAMS_OF_JOBS))
#: Below this the sum of floats is so precise that the sum of integers fits 64 bits.
_SAFE: Final = 2.0**63 * (1 - 2.0**-20)


@dataclass(frozen=True)
class CrabDays(StoredDays):
    """The stored days of a period with CRAB's jobs."""

    @property
    def jobs(self) -> tuple[str, ...]:
        """The jobs that store the days."""
        return _JOBS

    @property
    def missing_text(self) -> str:
        """What is not stored, in words."""
        return f"HTCondor's jobs of {super().missing_text}"

    def rows(self, columns: list[str]) -> Iterator[tuple[date, pl.DataFrame]]:
        """Yield the rows of each day, texts as categories. Raises DataError (65) where
        they are damaged.
        """
        import polars as pl

        for day, current in self.partials.items():
            table = table_rows(self.files, current, CRAB_PARTIALS, columns)
            expected = current.manifest.tables[CRAB_PARTIALS].rows
            if table.num_rows != expected:
                raise DataError(
                    f"the {CRAB_PARTIALS} of {day} have another number of rows than their manifest says",
                    where=current.path,
                    found=f"{pluralize(table.num_rows, 'row')} where {expected:,} were written",
                    next_step=f"run {current.manifest.job} again for {day}",
                )
            frame = pl.from_arrow(table)
            assert isinstance(frame, pl.DataFrame)
            yield day, frame.with_columns(pl.col(pl.String).cast(pl.Categorical))


def find_crab_days(files: Files, fout: str, period: Period) -> CrabDays:
    """Return the stored days of the period. Raises DataError (65) where a day's result is damaged."""
    stored = {
        day: table for day in period.days if (table := _stored(files, fout, day)) is not None
    }
    missing = tuple(day for day in period.days if day not in stored)
    partial = {day: reason for day, table in stored.items() if (reason := _partial_reason(table))}
    return CrabDays(period, files, fout, stored, missing, partial)


def _partial_reason(table: CurrentTable) -> str:
    """Return why jobs of a day may be missing; empty where none are. Other streams of
    the day do not matter.
    """
    manifest = table.manifest
    reasons = (
        ["damaged files"]
        if any(file.get("stream") in STREAMS_OF_JOBS for file in manifest.damaged)
        else []
    )
    if any(source.is_tmp for source in manifest.inputs if source.stream in STREAMS_OF_JOBS):
        reasons.append("a folder that was still being written")
    return "; ".join(reasons)


def _stored(files: Files, fout: str, day: date) -> CurrentTable | None:
    for job in _JOBS:
        try:
            return results.current(files, fout, job, CRAB_PARTIALS, day)
        except InputMissing:
            continue
    return None


def store_report(
    job: str,
    period: Period,
    fout: str,
    settings: Settings,
    build: Callable[[CrabDays], pl.DataFrame],
    *,
    allow_missing: bool,
    log: Callable[[str], None] | None = None,
) -> CurrentTable:
    """Make a table of a period, which has the job's name. Raises as
    :func:`cmsspark.run.period_run.run_on_days`.
    """
    begun = run_on_days(
        settings, fout, job, period, log, find_crab_days, allow_missing=allow_missing
    )
    with begun as (run_context, days):
        key_id = days.key_id()
        return store_period(
            run_context, days, {job: build(days)}, CRAB_PARTIALS, pseudonym_key_id=key_id
        )


def sum_or_null(name: str) -> pl.Expr:
    """Return the sum of a column of integers, null where all are null."""
    import polars as pl

    return pl.when(pl.col(name).count() > 0).then(pl.col(name).sum()).otherwise(None).alias(name)


def check_sums(rows: pl.DataFrame, names: tuple[str, ...]) -> None:
    """Raise DataError (65) where the sum of a column may exceed 64 bits."""
    import polars as pl

    for name in names:
        if float(rows[name].cast(pl.Float64).sum()) >= _SAFE:
            raise DataError(
                f"a sum of {name} is beyond 2^63-1", next_step="look for absurd sizes in the logs"
            )
