"""``cmsspark period --view``: a named view of a week, a month or a range of stored days."""

from __future__ import annotations

import json
import subprocess
import sys
import time
from collections.abc import Callable
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import click

from cmsspark.apps.usage.view_definitions import View, find_view, load_views
from cmsspark.base import dates
from cmsspark.base.errors import InputMissing, NotReady, UsageError
from cmsspark.base.periods import Period, spans
from cmsspark.base.schemas import stored_table
from cmsspark.base.text.terminal import (
    echo_table,
    hanging,
    percent,
    pluralize,
    terminal_width,
    volume,
)
from cmsspark.cli.options import require_store
from cmsspark.cli.output_files import write_file
from cmsspark.settings.settings import load_settings
from cmsspark.store import results, stored_days
from cmsspark.store.job_index import job_of_table
from cmsspark.store.stored_columns import days_with_table, open_store, table_rows
from cmsspark.store.stored_days import StoredDays

if TYPE_CHECKING:
    import polars as pl

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
        click.echo(
            json.dumps(_as_dict(view, stored, rows), indent=1, ensure_ascii=False, default=str)
        )
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


def _as_dict(view: View, stored: StoredDays, rows: pl.DataFrame) -> dict[str, Any]:
    return {
        "view": view.name,
        "period": str(stored.period),
        "days": len(stored.partials),
        "missing_days": stored.missing,
        "partial_days": {day.isoformat(): reason for day, reason in stored.partial.items()},
        "rows": rows.to_dicts(),
    }


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
            f"{pluralize(len(missing), 'day')} of {name} are not stored: {spans(missing)}",
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
