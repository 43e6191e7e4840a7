"""A run on the stored days before a day: what the jobs of popularity share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base.errors import InputMissing
from cmsspark.base.periods import between
from cmsspark.filesystems.storage import Files
from cmsspark.run.period_run import describe_days, store_tables
from cmsspark.run.run_context import RunContext, running
from cmsspark.store import stored_days as stored
from cmsspark.store.stored_columns import files_of
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.apps.popularity.series import Series
    from cmsspark.apps.popularity.training import Label
    from cmsspark.settings.settings import Settings
    from cmsspark.store.results import CurrentTable, StagedRun

#: Days that are read: half a year, the longest window of the features.
DAYS: Final = 182


@dataclass(frozen=True)
class StoredRun:
    """A run for ``day`` on the stored ``days`` before it. :meth:`store` ends it."""

    day: date
    days: StoredDays
    files: Files
    run_context: RunContext

    def series(self, *, by_site: bool = False) -> Series:
        """Return the daily use of the datasets, or of the datasets at sites, in these days.

        Raises DataError (65), InputMissing (66).
        """
        from cmsspark.apps.popularity.series import stored_series

        return stored_series(self.days, by_site=by_site)

    @property
    def name(self) -> str:
        """The name of the job."""
        return self.run_context.job

    def store(
        self, tables: Mapping[str, pl.DataFrame], series: Series, label: Label, options: Mapping[str, Any],
        summary: str, write: Callable[[StagedRun], Mapping[str, Any]] = lambda staged: {}, *,
        warnings: Sequence[str] = (),
    ) -> CurrentTable:  # fmt: skip
        """Store the tables, the first one as the job's own, with what ``write`` adds to the folder of the run; what it
        returns goes into the manifest. ``warnings``: beside those of the days. Raises OutputError (73).
        """
        days = describe_days(self.days)
        manifest = {
            **days,
            "forecast": {**options, "label": label.describe(by_site=series.by_site)},
            "dataset_tables": {name: dict(runs) for name, runs in series.inputs["tables"].items()},
            "warnings": [*days["warnings"], *warnings],
        }
        return store_tables(self.run_context, self.files, tables, manifest, summary, write)


@contextmanager
def stored_run(
    name: str, day: date, fout: str, settings: Settings, log: Callable[[str], None] | None = None
) -> Iterator[StoredRun]:
    """Yield a run of the job ``name`` on the stored days before ``day``, at most :data:`DAYS`; on any failure the
    previous result stays.

    Raises InputMissing (66) where no day or not the day before is stored, DataError (65), NotReady (75).
    """
    with running(settings, fout, name, day, log) as run_context:
        files = files_of(fout, f"cmsspark {name}")
        run_context.lock(files)
        last = day - timedelta(days=1)
        days = _without_first_gap(stored.find_days(files, fout, between(day - timedelta(days=DAYS), last)))
        days.check(allow_missing=True)
        if last not in days.partials:
            raise InputMissing(
                f"the day before {day} is not stored: the forecast would begin later",
                found=f"days up to {max(days.partials)}",
                next_step=f"cmsspark daily --date {last}",
            )
        yield StoredRun(day, days, files, run_context)


def _without_first_gap(days: StoredDays) -> StoredDays:
    """Return the days from the first stored one on: a store that begins later lacks nothing."""
    if not days.partials:
        return days
    first = min(days.partials)
    missing = tuple(day for day in days.missing if day > first)
    return StoredDays(between(first, days.period.last), days.files, days.fout, days.partials, missing, days.partial)
