"""A run on the stored days before a day: what the jobs of popularity share."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base.errors import InputMissing
from cmsspark.base.periods import between, start_ms
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import Files
from cmsspark.run.provenance import versions
from cmsspark.run.run_context import RunContext, running
from cmsspark.store import stored_days as stored
from cmsspark.store.stored_columns import files_of
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.apps.popularity.series import Series
    from cmsspark.settings.settings import Settings
    from cmsspark.store import results

#: Days that are read: half a year, the longest window of the features.
DAYS: Final = 182


@dataclass
class StoredRun:
    """A run for ``day`` on the stored ``days`` before it. :meth:`store` ends it."""

    day: date
    days: StoredDays
    files: Files
    run_context: RunContext
    #: Stored tables of DBS and replicas that :meth:`series` has read: name → day → run.
    tables: Mapping[str, Mapping[str, str]] = field(default_factory=dict)

    def series(self, *, by_site: bool = False) -> Series:
        """Return the daily use of the datasets, or of the datasets at sites, in these days.

        Raises DataError (65), InputMissing (66).
        """
        from cmsspark.apps.popularity.series import stored_series

        made = stored_series(self.days, by_site=by_site)
        self.tables = made.inputs["tables"]
        return made

    def store(
        self, tables: Mapping[str, pl.DataFrame], options: Mapping[str, Any], summary: str,
        write: Callable[[results.StagedRun], Mapping[str, Any]] | None = None, *, warnings: Sequence[str] = (),
    ) -> results.CurrentTable:  # fmt: skip
        """Store the tables, the first one as the job's own, with what ``write`` adds to the folder of the run; what it
        returns goes into the manifest. ``warnings``: beside those of the days. Raises OutputError (73).
        """
        every = [*self.days.warnings, *warnings]
        context = self.run_context
        with context.staged(self.files) as staged:
            for name, rows in tables.items():
                staged.write_arrow(rows.to_arrow().cast(stored_table(name).arrow()), name)
            added = write(staged) if write is not None else {}
            done = staged.commit({**self._manifest(options), "warnings": every, **added})
        for text in every:
            context.log(f"warning: {text}")
        context.log(f"{context.job} of {self.day}: {summary} stored in {done.path} after {context.seconds():.1f} s")
        context.manifest = done.manifest
        return done

    def _manifest(self, options: Mapping[str, Any]) -> dict[str, Any]:
        days = self.days
        return {
            "day": self.day.isoformat(),
            "forecast": dict(options),
            "days": {each.isoformat(): table.manifest.rows_run for each, table in days.partials.items()},
            "dataset_tables": {name: dict(runs) for name, runs in self.tables.items()},
            "missing_days": [each.isoformat() for each in days.missing],
            "partial_days": {each.isoformat(): why for each, why in days.partial.items()},
            "partial": days.is_partial,
            "versions": versions(),
            "seconds": round(self.run_context.seconds(), 1),
            "timestamp": start_ms(self.day),
        }


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
    missing = tuple(each for each in days.missing if each > first)
    return StoredDays(between(first, days.period.last), days.files, days.fout, days.partials, missing, days.partial)
