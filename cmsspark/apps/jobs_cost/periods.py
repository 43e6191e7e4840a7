"""Weeks, months and other ranges of the tables on what jobs cost: sums of their stored days (rule 55)."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.apps.crab.days import check_sums, sum_or_null
from cmsspark.base import periods as calendar
from cmsspark.base.errors import InputMissing
from cmsspark.base.periods import Period, spans
from cmsspark.base.schemas import Table, stored_table
from cmsspark.base.text.plurals import number_of
from cmsspark.cli.job_output import output_options, print_outcome
from cmsspark.cli.options import settings_of, store_of, store_options
from cmsspark.cli.period_options import needed, period_options
from cmsspark.filesystems.storage import Files, join
from cmsspark.run.provenance import versions
from cmsspark.run.run_context import running
from cmsspark.store import results
from cmsspark.store.job_index import JOBS
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import files_of, table_rows

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.settings.settings import Settings

#: Columns of which a period has the largest value of a day: they do not add up.
_LARGEST: Final = ("distinct_schedds", "distinct_users", "site_count", "rss_max_mb", "vsize_max_mb")
_OF_PERIOD: Final = ("period", "first_day", "last_day", "timestamp", "day_count", "average_cores")


@dataclass(frozen=True)
class CostDays:
    """The stored days of a period with the tables of a job."""

    job: str
    period: Period
    files: Files
    fout: str
    stored: Mapping[date, CurrentTable]

    @property
    def missing(self) -> list[date]:
        """Days without a result."""
        return [day for day in self.period.days if day not in self.stored]

    @property
    def partial(self) -> list[date]:
        """Days of which something is left out."""
        return [day for day, table in self.stored.items() if table.manifest.partial]

    @property
    def warnings(self) -> list[str]:
        """Warnings about days that are missing or partial."""
        missing = [f"{len(self.missing)} of {len(self.period.days)} days are left out: {spans(self.missing)}"]
        return (missing if self.missing else []) + ([f"partial: {spans(self.partial)}"] if self.partial else [])

    def check(self, *, allow_missing: bool) -> None:
        """Raise InputMissing (66) with the missing days, unless they may be left out and some are stored."""
        if not self.missing or (allow_missing and self.stored):
            return
        raise InputMissing(
            f"{self.job} of {len(self.missing)} of the {number_of(len(self.period.days), 'day')} of {self.period} is"
            f" not stored: {spans(self.missing)}",
            where=join(self.fout, self.job),
            found=f"{number_of(len(self.stored), 'day')}: {spans(list(self.stored))}"
            if self.stored
            else "no day of it",
            next_step=f"run_spark {self.job} --date {min(self.missing)}"
            + ("; or --allow-missing, which marks the result partial" if self.stored else ""),
        )

    def table(self, name: str) -> pl.DataFrame:
        """Return the rows of a table of all days, with their day. Raises DataError (65) where they are damaged."""
        import polars as pl

        schema = stored_table(name)
        frames = [pl.DataFrame(schema=pl.Schema(schema.arrow()))]
        for day, current in self.stored.items():
            # The tables of a run lie beside each other.
            table = replace(current, path=join(current.path.rpartition("/")[0], name))
            rows = pl.from_arrow(table_rows(self.files, table, name, schema.names))
            assert isinstance(rows, pl.DataFrame)
            frames.append(rows.with_columns(day=pl.lit(day)).select(schema.names))
        return pl.concat(frames)

    def window_counts(self) -> pl.DataFrame:
        """Return the windows with a record of each hour, over all days."""
        import polars as pl

        counts = [0] * 24
        for table in self.stored.values():
            for hour, count in enumerate(table.manifest.document["job_cost_checks"]["windows_by_hour"]):
                counts[hour] += count
        return pl.DataFrame(
            {"hour": range(24), "window_count": counts}, schema={"hour": pl.Int64, "window_count": pl.Int64}
        )


def period_command(job: str) -> click.Command:
    """Return the command that makes the tables of a period of the stored days of ``job``."""
    name = f"{job}_period"

    @click.command(name, help=f"{JOBS[name].about}. Exit codes: cmsspark help exit-codes.")
    @period_options
    @click.option("--allow-missing", is_flag=True, help="Leave out days that are not stored; marks the result partial.")
    @store_options
    @output_options
    def command(
        period: Period | None, allow_missing: bool, fout: str | None, settings_file: str | None, as_json: bool
    ) -> None:
        settings, chosen = settings_of(settings_file), needed(period)
        store = store_of(fout, settings)
        print_outcome(name, chosen, as_json, lambda: run(job, chosen, store, settings, allow_missing=allow_missing))

    return command


def run(
    job: str,
    period: Period,
    fout: str,
    settings: Settings,
    *,
    allow_missing: bool = False,
    log: Callable[[str], None] | None = None,
) -> CurrentTable:
    """Make the tables of a period and store them; on any failure the previous result stays.

    Raises InputMissing (66) that names the days that are not stored, DataError (65) where they cannot be combined,
    NotReady (75), OutputError (73).
    """
    name = f"{job}_period"
    with running(settings, fout, name, period, log) as run_context:
        files = files_of(fout, f"cmsspark {name}", settings)
        run_context.lock(files)
        days = find_days(files, fout, job, period)
        days.check(allow_missing=allow_missing)
        with run_context.staged(files) as staged:
            for table in JOBS[name].tables:
                rows = build(days, table).to_arrow().cast(stored_table(table).arrow())
                run_context.log(f"{table}: {number_of(staged.write_arrow(rows, table), 'row')}")
            done = staged.commit(_manifest(days, run_context.seconds()))
        for text in days.warnings:
            run_context.log(f"warning: {text}")
        origin = f"from {number_of(len(days.stored), 'day')}"
        run_context.log(f"{name} {period} {origin} stored in {done.path} after {run_context.seconds():.1f} s")
        run_context.manifest = done.manifest
        return done


def find_days(files: Files, fout: str, job: str, period: Period) -> CostDays:
    """Find the stored days of a period. Raises DataError (65) where a day's result is damaged."""
    stored = {}
    for day in period.days:
        try:
            stored[day] = results.current(files, fout, job, JOBS[job].tables[0], day)
        except InputMissing:
            continue
    return CostDays(job, period, files, fout, stored)


def build(days: CostDays, name: str) -> pl.DataFrame:
    """Return a period's table. Raises DataError (65) where a sum exceeds 64 bits."""
    import polars as pl

    schema, period = stored_table(name), days.period
    rows = days.table(name.removeprefix("period_"))
    summed = _sums(rows, schema)
    if "hour" in schema.keys:
        summed = summed.drop("window_count").join(days.window_counts(), "hour", how="left", validate="m:1")
        # Not at import: numpy comes with it.
        from cmsspark.sources.condor_costs import HOUR_WINDOWS

        cores = pl.col("core_windows_milli") / (HOUR_WINDOWS * 1000 * len(days.stored))
        summed = summed.with_columns(average_cores=cores)
    added = summed.with_columns(
        period=pl.lit(period.isoformat()),
        first_day=pl.lit(period.first),
        last_day=pl.lit(period.last),
        day_count=pl.lit(len(days.stored), pl.Int64),
        timestamp=pl.lit(calendar.start_ms(period), pl.Int64),
    )
    return added.select(schema.names).sort(schema.keys)


def _sums(rows: pl.DataFrame, schema: Table) -> pl.DataFrame:
    import polars as pl

    measures = [name for name in schema.names if name not in (*schema.keys, *_OF_PERIOD)]
    sums = [name for name in measures if name not in _LARGEST]
    check_sums(rows, tuple(name for name in sums if rows.schema[name] == pl.Int64))
    return rows.group_by(schema.keys).agg(
        *(sum_or_null(name) for name in sums), *(pl.col(name).max() for name in measures if name in _LARGEST)
    )


def _manifest(days: CostDays, seconds: float) -> dict[str, Any]:
    period = days.period
    return {
        "day": period.first.isoformat(),
        "period": period.isoformat(),
        "first_day": period.first.isoformat(),
        "last_day": period.last.isoformat(),
        "days": {day.isoformat(): table.manifest.rows_run for day, table in days.stored.items()},
        "missing_days": [day.isoformat() for day in days.missing],
        "partial_days": {day.isoformat(): "something of it is left out" for day in days.partial},
        "partial": bool(days.missing or days.partial),
        "inputs": [
            {
                "table": f"{days.job} of {day}",
                "folder": table.path,
                "files": [[table.manifest.rows_run, table.manifest.tables[days.job].bytes, None]],
            }
            for day, table in days.stored.items()
        ],
        "warnings": days.warnings,
        "versions": versions(),
        "seconds": round(seconds, 1),
        "timestamp": calendar.start_ms(period),
    }
