"""``period_views``: named views of a week, a month or any other range, stored so that
they can be published.
"""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any, Final, Literal

import click
import msgspec

from cmsspark.base import config_files, dates, efficiency, periods
from cmsspark.base.config_files import ConfigFile, nearest
from cmsspark.base.errors import DataError, InputMissing, NotReady, SettingsError, UsageError
from cmsspark.base.periods import Period, spans
from cmsspark.base.resources import read_text
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.spelling import suggestion
from cmsspark.base.text.terminal import (
    echo_table,
    hanging,
    is_or_are,
    percent,
    pluralize,
    terminal_width,
    volume,
)
from cmsspark.cli.options import (
    output_options,
    print_outcome,
    require_store,
    store_options,
    write_file,
)
from cmsspark.cli.period_options import allow_missing_option, needed, period_options
from cmsspark.filesystems.storage import Files
from cmsspark.run.period_run import run_on_days, store_period, with_period
from cmsspark.settings.settings import load_settings
from cmsspark.sources.registry import of_accesses
from cmsspark.store import results, stored_days
from cmsspark.store.own_jobs import Job, declare, job_of_table
from cmsspark.store.stored_columns import days_with_table, open_store, table_rows
from cmsspark.store.stored_days import JobDays, StoredDays

if TYPE_CHECKING:
    import polars as pl

    from cmsspark.counting.rollup import Rollup
    from cmsspark.settings.settings import Settings


# Named views of the accesses, from ``etc/views.yaml`` and a file of one's own: what is
# counted, by what.

BUILT_IN: Final = "etc/views.yaml"
_MAX_LONG: Final = 2**63 - 1


class View(msgspec.Struct, frozen=True):
    """A view of accesses. ``period``: by default the last whole week or month;
    ``sort``: a key, or a measure downwards.
    """

    name: str
    about: str
    rollup: Rollup
    period: str
    sort: str
    #: The job whose stored days it is made of.
    job: str = stored_days.JOB

    def find(self, files: Files, fout: str, period: Period) -> StoredDays:
        """Return the stored days of a period. Raises DataError (65) where one is damaged."""
        if self.job == stored_days.JOB:
            return stored_days.find_days(files, fout, period)
        return stored_days.find_job_days(files, fout, period, self.job, self.job)

    def last(self, today: date) -> Period:
        """Return the period that it is of where none is given."""
        return (
            periods.week("last", today) if self.period == "week" else periods.month("last", today)
        )

    def rows(self, stored: StoredDays) -> pl.DataFrame:
        """Return its sorted rows, keys and measures, from the partials of stored days.

        Raises DataError (65) where users have pseudonyms of two keys.
        """
        from cmsspark.counting.rollup import roll_up

        if isinstance(stored, JobDays):
            return self._sorted(_cost_rows(self, stored))
        has_users = "distinct_users" in self.rollup.measures
        if has_users:
            stored.key_id()
        rows, aggregated = roll_up(self.rollup, stored.pieces(self.rollup.columns))
        if has_users:
            stored.check_users(aggregated.users)
        return self._sorted(rows)

    def _sorted(self, rows: pl.DataFrame) -> pl.DataFrame:
        is_key = self.sort in self.rollup.keys
        return rows.sort(self.sort, descending=not is_key, nulls_last=True, maintain_order=True)


#: Ratios of the tables on what jobs cost, each of two sums; those of HTCondor's jobs
#: are of the jobs that did not fail.
RATIOS: Final[Mapping[str, Mapping[str, tuple[str, str]]]] = {
    "job_efficiency": {
        "cpu_efficiency": efficiency.CPU,
        "allocated_efficiency": efficiency.ALLOCATED,
    },
    "step_efficiency": {"cpu_efficiency": ("cpu_of_thread_ms", "thread_ms")},
}


def cost_measures(job: str) -> tuple[str, ...]:
    """Return the measures of a table on what jobs cost: its ratios, and its sums but
    for numbers of distinct values and peaks, which do not add up.
    """
    schema = stored_table(job)
    sums = (
        column.name
        for column in schema.columns
        if column.type == "long" and column.name != "timestamp"
    )
    return (*RATIOS[job], *(name for name in sums if not name.startswith("distinct_")))


def _cost_rows(view: View, stored: JobDays) -> pl.DataFrame:
    """Return keys and measures of a view on what jobs cost. Raises DataError (65) where
    a sum exceeds 64 bits.
    """
    import polars as pl

    from cmsspark.counting.rollup import matches

    rollup, ratios = view.rollup, RATIOS[view.job]
    pairs = {name: ratios[name] for name in rollup.measures if name in ratios}
    sums = [name for name in rollup.measures if name not in ratios]
    needed = {
        *rollup.keys,
        *rollup.filters,
        *sums,
        *(name for pair in pairs.values() for name in pair),
    }
    names = [
        name
        for name in stored_table(view.job).names
        if name in needed or name == "day" or (pairs and name == "outcome")
    ]
    parts = [pl.from_arrow(rows) for _, rows in stored.rows(view.job, names)]
    rows = pl.concat([part for part in parts if isinstance(part, pl.DataFrame)])
    for column, patterns in rollup.filters.items():
        values = [value for value in rows[column].unique() if matches(value, patterns)]
        rows = rows.filter(pl.col(column).is_in(values))

    def total(name: str, condition: pl.Expr) -> pl.Expr:
        chosen = pl.col(name).cast(pl.Int128).filter(condition)
        return pl.when(chosen.count() > 0).then(chosen.sum())

    population = (
        pl.col("outcome").is_in(efficiency.OUTCOMES) if "outcome" in names else pl.lit(value=True)
    )
    shares = []
    for name, (above, below) in pairs.items():
        divisor = total(below, population).cast(pl.Float64)
        share = total(above, population).cast(pl.Float64) / pl.when(divisor > 0).then(divisor)
        shares.append(share.alias(name))
    everything = pl.lit(value=True)
    grouped = rows.group_by(rollup.keys).agg(
        *shares, *(total(name, everything).alias(name) for name in sums)
    )
    for name in sums:
        if any(value > _MAX_LONG for value in grouped[name].drop_nulls()):
            raise DataError(f"a sum of {name} in the view {view.name} is beyond 2^63-1")
    integers = [pl.col(name).cast(pl.Int64) for name in sums]
    return grouped.with_columns(integers).select(*rollup.keys, *rollup.measures).sort(rollup.keys)


def load_views(path: str | None) -> dict[str, View]:
    """Return the built-in views, and those of the file ``own``, which come before
    built-in ones of the same name.

    Raises SettingsError (78) with file and line for what is unknown or of another form.
    """
    views = parse_views(read_text(BUILT_IN).encode(), BUILT_IN)
    if path is None:
        return views
    try:
        content = Path(path).read_bytes()
    except OSError as error:
        raise SettingsError(
            "the file of views cannot be read", where=path, found=error.strerror
        ) from None
    return views | parse_views(content, path)


def find_view(views: Mapping[str, View], name: str) -> View:
    """Return the view of a name. Raises UsageError (2) with the nearest name where there is none."""
    if name not in views:
        hint = (
            suggestion(name, views)
            or "cmsspark period --view lists the views; docs/periods.md says how to add one"
        )
        raise UsageError(f"there is no view {name!r}", found=", ".join(views), next_step=hint)
    return views[name]


def parse_views(content: bytes, name: str) -> dict[str, View]:
    """Return the views of a file's content. Raises SettingsError (78)."""
    file = config_files.parse(content, name)
    return {key: _view(file, key) for key in file.values}


class _Entry(msgspec.Struct, forbid_unknown_fields=True, frozen=True):
    """A view as it is written. ``filter``: column → a pattern, or a list of them. A
    view that neither filters by ``stream`` nor has it as a key counts accesses, without
    jobs. ``of``: what it sums up; else accesses, what jobs cost.
    """

    keys: Annotated[list[str], msgspec.Meta(min_length=1)]
    measures: Annotated[list[str], msgspec.Meta(min_length=1)]
    about: str = ""
    filter: dict[str, Any] | None = None
    period: Literal["week", "month"] = "week"
    sort: str | None = None
    of: Literal["accesses", "job_efficiency", "step_efficiency"] = "accesses"


def _view(file: ConfigFile, name: str) -> View:
    from cmsspark.counting.rollup import KEYS, MEASURES, Rollup

    entry = file.convert(_Entry, name)
    is_of_accesses = entry.of == "accesses"
    allowed = KEYS if is_of_accesses else ("day", *stored_table(entry.of).keys)
    keys = _columns(file, entry.keys, allowed, name, "keys")
    of_costs = () if is_of_accesses else cost_measures(entry.of)
    measures = _columns(file, entry.measures, of_costs or MEASURES, name, "measures")
    sort = measures[0] if entry.sort is None else entry.sort
    if sort not in (*keys, *measures):
        near = nearest(sort, (*keys, *measures))
        raise file.error(
            "a view is sorted by one of its keys or measures",
            name,
            "sort",
            found=sort,
            next_step=near,
        )
    filters = {}
    for column, patterns in (entry.filter or {}).items():
        key = (name, "filter", column)
        if column not in allowed[1:]:
            raise file.error(
                f"a view cannot filter by {column!r}", *key, next_step=nearest(column, allowed[1:])
            )
        # One text stands for a list of one.
        texts = patterns if isinstance(patterns, list) else [patterns]
        if not texts or not all(isinstance(text, str) and text for text in texts):
            raise file.error(
                "patterns are texts, with * and ?",
                *key,
                found=patterns,
                next_step="put them in quotes",
            )
        filters[column] = tuple(texts)
    if not is_of_accesses:
        rollup = Rollup(keys, measures, filters)
        return View(name, entry.about, rollup, entry.period, sort, entry.of)
    # Rows that name their stream cannot add jobs to accesses.
    if "stream" not in keys:
        every = of_accesses(filters)
        filters = {name: every[name] for name in every if name != "app" or "app" not in keys}
    return View(name, entry.about, Rollup(keys, measures, filters), entry.period, sort)


def _columns(
    file: ConfigFile, names: list[str], allowed: tuple[str, ...], *key: str
) -> tuple[str, ...]:
    for name in names:
        if name == "user":
            raise file.error(
                "a view cannot show single people", *key, next_step="count them: distinct_users"
            )
        if name not in allowed:
            problem = f"there is no {name!r} among the {key[-1]}"
            raise file.error(problem, *key, next_step=nearest(name, allowed))
    if len(set(names)) < len(names):
        raise file.error(f"{key[-1]} must not repeat a name", *key, found=names)
    return tuple(names)


NAME: Final = "period_views"
JOB: Final = Job(
    NAME,
    "Named views of a week, a month or any range of stored days, to be published",
    (NAME,),
    needs_spark=False,
    of_periods=True,
    of_days="data_aggregation",
    module=__name__,
)


@click.command(NAME, help=f"{JOB.about}. Exit codes: cmsspark help exit-codes.")
@period_options
@click.option(
    "--view",
    "names",
    metavar="NAME",
    multiple=True,
    help="A view; may be repeated. [default: all views]",
)
@click.option(
    "--views",
    "views_file",
    metavar="FILE",
    help="File with own views. [default: `views` in the settings]",
)
@allow_missing_option
@store_options
@output_options
def command(
    period: Period | None,
    names: tuple[str, ...],
    views_file: str | None,
    allow_missing: bool,
    fout: str | None,
    settings_file: str | None,
    as_json: bool,
) -> None:
    settings, interval = load_settings(settings_file), needed(period)
    store = require_store(fout, settings)
    loaded = load_views(views_file or settings.views)
    of_accesses = [name for name, view in loaded.items() if view.job == stored_days.JOB]
    views = [find_view(loaded, name) for name in dict.fromkeys(names or of_accesses)]
    for view in views:
        if view.job != stored_days.JOB:
            raise UsageError(
                f"the view {view.name} is of what jobs cost",
                next_step=f"run_spark {view.job}_period stores that; cmsspark period --view {view.name} prints it",
            )
    print_outcome(
        NAME,
        interval,
        as_json,
        lambda: run(interval, store, settings, views, allow_missing=allow_missing),
    )


def run(
    period: Period,
    fout: str,
    settings: Settings,
    views: Sequence[View],
    *,
    allow_missing: bool = False,
    log: Callable[[str], None] | None = None,
) -> results.CurrentTable:
    """Make the table of a period and store it. Raises as
    :func:`cmsspark.run.period_run.run_on_days`.
    """
    begun = run_on_days(
        settings, fout, NAME, period, log, stored_days.find_days, allow_missing=allow_missing
    )
    with begun as (run_context, days):
        rows = build(days, views)
        # What each view counts: a file of views changes.
        definitions = {
            view.name: {
                "keys": list(view.rollup.keys),
                "measures": list(view.rollup.measures),
                "filter": {name: list(texts) for name, texts in view.rollup.filters.items()},
            }
            for view in views
        }
        entries = {"pseudonym_key_id": days.key_id(), "views": definitions}
        return store_period(run_context, days, {NAME: rows}, stored_days.TABLE, **entries)


def build(days: StoredDays, views: Sequence[View]) -> pl.DataFrame:
    """Return the rows of all views with the columns of the table; null what a view does not have.

    Raises DataError (65) for two keys of pseudonyms, or damaged days.
    """
    import polars as pl

    schema = pl.Schema(stored_table(NAME).arrow())
    frames = [pl.DataFrame(schema=schema)]
    for view in views:
        rows = view.rows(days)
        if "day" in rows.columns:
            rows = rows.with_columns(access_day=pl.col("day").dt.to_string("%Y-%m-%d"))
        rows = with_period(rows, days.period).with_columns(view=pl.lit(view.name))
        columns = [
            (pl.col(name) if name in rows.columns else pl.lit(None)).cast(kind).alias(name)
            for name, kind in schema.items()
        ]
        frames.append(rows.select(columns))
    return pl.concat(frames)


declare(JOB, lambda: command)


# ``cmsspark period --view``: a named view of a week, a month or a range of stored days.

#: Runs the job of a day: (day) → exit code.
Counter = Callable[[date], int]
_WRITERS: Final = {".parquet": "write_parquet", ".csv": "write_csv", ".jsonl": "write_ndjson"}


def echo_views(views_file: str | None) -> None:
    """List the views, each with its keys."""
    for listed in load_views(views_file).values():
        about = f"by {', '.join(listed.rollup.keys)}: {listed.about}"
        click.echo(hanging(f"{listed.name:<14} ", about, 15, terminal_width()))


def make_view(
    name: str,
    period: Period | None,
    *,
    views_file: str | None,
    allow_missing: bool,
    run_missing: bool,
    root: str | None,
    top: int,
    out: str | None,
    as_json: bool,
    fout: str | None,
    settings_file: str | None,
) -> None:
    """Print the view of a period, by default of the last whole week or month; without a
    name list the views.
    """
    began = time.monotonic()
    settings = load_settings(settings_file)
    if not name:
        echo_views(views_file or settings.views)
        return
    view = find_view(load_views(views_file or settings.views), name)
    if out and Path(out).suffix not in _WRITERS:
        raise UsageError(
            f"--out must end in {', '.join(_WRITERS)}",
            found=out,
            next_step="the ending chooses the format",
        )
    store = require_store(fout, settings)
    files = open_store(store, "cmsspark period --view", settings)
    chosen = period or view.last(dates.today())
    stored = view.find(files, store, chosen)
    if run_missing and stored.missing:
        count_days(
            stored.missing, lambda day: _count(view.job, day, store, settings_file, root), view.job
        )
        stored = view.find(files, store, chosen)
    stored.check(allow_missing=allow_missing)
    rows = view.rows(stored)
    for warning in stored.warnings:
        click.echo(f"warning: {warning}", err=True)
    if out:
        write_file(Path(out), getattr(rows, _WRITERS[Path(out).suffix]), "the view")
    if as_json:
        document = {
            "view": view.name,
            "period": str(stored.period),
            "days": len(stored.partials),
            "missing_days": stored.missing,
            "partial_days": {day.isoformat(): reason for day, reason in stored.partial.items()},
            "rows": rows.to_dicts(),
        }
        click.echo(json.dumps(document, indent=1, ensure_ascii=False, default=str))
    elif not out:
        _print(rows, view, top)
    seconds = time.monotonic() - began
    summary = f"{pluralize(rows.height, 'row')} from {pluralize(len(stored.partials), 'day')} in {seconds:.2f} s"
    click.echo(f"{view.name} of {chosen}: {summary}", err=True)


def count_days(missing: tuple[date, ...], count: Counter, job: str = stored_days.JOB) -> None:
    """Run the job of the missing days, oldest first. Raises NotReady (75) or
    InputMissing (66) where a run fails.
    """
    for day in missing:
        code = count(day)
        if code:
            kind = NotReady if code == NotReady.exit_code else InputMissing
            raise kind(
                f"{day} cannot be counted: run_spark {job} ended with {code}",
                next_step="see its output above",
            )


def _count(job: str, day: date, fout: str, settings_file: str | None, root: str | None) -> int:
    """Run the job of a day as a user would. Its output goes to stderr, as stdout is for the view."""
    options = ["--date", dates.compact(day), "--fout", fout]
    options += ["--settings", str(Path(settings_file).absolute())] if settings_file else []
    options += ["--root", root] if root else []
    argv = [
        sys.executable,
        "-c",
        "from cmsspark.submit import main; main()",
        job,
        *options,
    ]
    return subprocess.run(argv, stdout=2, check=False).returncode


def sum_table(
    name: str,
    period: Period,
    *,
    allow_missing: bool,
    top: int,
    out: str | None,
    as_json: bool,
    fout: str | None,
    settings_file: str | None,
) -> None:
    """Print the sums of a table's additive columns by its keys, over its stored days of
    a period, the largest first.

    Raises UsageError (2) for a table of periods or without such columns, InputMissing
    (66) for days that are not stored.
    """
    import polars as pl

    from cmsspark.dumps.dump_frames import exact_sum, in_64_bits

    if out and Path(out).suffix not in _WRITERS:
        raise UsageError(
            f"--out must end in {', '.join(_WRITERS)}",
            found=out,
            next_step="the ending chooses the format",
        )
    settings = load_settings(settings_file)
    job, schema = job_of_table(name), stored_table(name)
    keys = [key for key in schema.keys if key in schema.names and key != "day"]
    measures = schema.additive
    if job.of_periods or not measures or not keys:
        raise UsageError(
            f"{name} is no table of days with keys and numbers that add up",
            next_step="cmsspark sql sums up other tables",
        )
    store = require_store(fout, settings)
    files = open_store(store, "cmsspark period --table", settings)
    stored = set(days_with_table(files, store, name))
    days = [day for day in period.days if day in stored]
    missing = [day for day in period.days if day not in stored]
    if missing and not (allow_missing and days):
        raise InputMissing(
            f"{pluralize(len(missing), 'day')} of {name} {is_or_are(len(missing))} not stored: {spans(missing)}",
            where=store,
            found=f"{len(days)} of {pluralize(len(period.days), 'day')} of {period}",
            next_step=f"run_spark {job.name} --date {missing[0]} --fout {store}; or --allow-missing",
        )
    parts = [
        table_rows(
            files, results.current(files, store, job.name, name, day), name, [*keys, *measures]
        )
        for day in days
    ]
    frame = pl.concat([pl.DataFrame(part) for part in parts])
    sums = [
        exact_sum(measure)
        if frame.schema[measure].is_integer()
        else pl.when(pl.col(measure).count() > 0).then(pl.col(measure).sum()).alias(measure)
        for measure in measures
    ]
    rows = in_64_bits(frame.group_by(keys).agg(sums))
    rows = rows.sort(
        [measures[0], *keys], descending=[True, *[False] * len(keys)], nulls_last=True
    )
    if out:
        write_file(Path(out), getattr(rows, _WRITERS[Path(out).suffix]), "the sums")
    if as_json:
        document = {
            "table": name,
            "period": period.isoformat(),
            "days": [day.isoformat() for day in days],
            "missing_days": [day.isoformat() for day in missing],
            "rows": rows.to_dicts(),
        }
        click.echo(json.dumps(document, indent=1, ensure_ascii=False, default=str))
    elif not out:
        names = [*measures, *keys]
        shown = [[row[column] for column in names] for row in rows.head(top).iter_rows(named=True)]
        echo_table(names, shown, texts=range(len(measures), len(names)), indent="  ")
        if rows.height > top:
            click.echo(f"  and {rows.height - top:,} more; --top, --out or --json prints them")


def _shown(name: str, value: Any) -> Any:
    """Return a value with its unit: bytes in powers of 1000, times of jobs in hours."""
    if value is not None and name.endswith("_ms"):
        return f"{value / 3_600_000:,.1f} h"
    if name.endswith("_efficiency"):
        return percent(value)
    return volume(value) if name.endswith("_bytes") else value


def _print(rows: pl.DataFrame, view: View, top: int) -> None:
    """Print the first rows, measures first, as names are long."""
    names = [*view.rollup.measures, *view.rollup.keys]
    shown = [
        [_shown(name, row[name]) for name in names] for row in rows.head(top).iter_rows(named=True)
    ]
    count = len(view.rollup.measures)
    optional = [i for i, name in enumerate(names[:count]) if name != view.sort]
    echo_table(names, shown, texts=range(count, len(names)), optional=optional, indent="  ")
    if rows.height > top:
        click.echo(f"  and {rows.height - top:,} more; --top, --out or --json prints them")
