"""``cmsspark view``: a named view for any week, month or range of stored days, and how long it took."""

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

from cmsspark import days
from cmsspark.errors import InputMissing, NotReady, OutputError, UsageError
from cmsspark.periods import Period
from cmsspark.pipeline import stored_days as stored
from cmsspark.pipeline.options import settings_of, store_of, store_options
from cmsspark.pipeline.period_options import period_options
from cmsspark.pipeline.stored_columns import files_of
from cmsspark.pipeline.stored_days import StoredDays
from cmsspark.pipeline.view_definitions import View, load_views
from cmsspark.reports.terminal import echo_table, volume

if TYPE_CHECKING:
    import polars as pl

#: Counts a day: (day) → exit code.
Counter = Callable[[date], int]
_WRITERS: Final = {".parquet": "write_parquet", ".csv": "write_csv", ".jsonl": "write_ndjson"}


@click.command("view")
@click.argument("name", required=False)
@period_options
@click.option("--views", "own", metavar="FILE", help="One's own views (else `views` in the settings).")
@click.option("--allow-missing", is_flag=True, help="Leave out days that are not stored.")
@click.option("--run-missing", is_flag=True, help="Count days that are not stored first, from their logs.")
@click.option("--root", metavar="URI", help="With --run-missing: put before every default input folder.")
@click.option("--top", type=click.IntRange(1), default=20, show_default=True, help="So many rows at most.")
@click.option("--out", metavar="FILE", help="Write all rows there: .parquet, .csv or .jsonl.")
@click.option("--json", "as_json", is_flag=True, help="All rows as JSON.")
@store_options
def command(
    name: str | None, period: Period | None, own: str | None, allow_missing: bool, run_missing: bool, root: str | None,
    top: int, out: str | None, as_json: bool, fout: str | None, settings_file: str | None,
) -> None:  # fmt: skip
    """Make the view NAME of a period, or list all views. Without a period: the last whole week, or the view's own."""
    began = time.monotonic()
    settings = settings_of(settings_file)
    views = load_views(own or settings.views)
    if name is None:
        for one in views.values():
            click.echo(f"{one.name:<14} by {', '.join(one.rollup.keys)}: {one.about}")
        return
    view = _named(views, name)
    if out and Path(out).suffix not in _WRITERS:
        raise UsageError(f"--out ends in {', '.join(_WRITERS)}", found=out)
    place = store_of(fout, settings)
    files = files_of(place, "cmsspark view")
    wanted = period or view.last(days.today())
    found = stored.find_days(files, place, wanted)
    if run_missing and found.missing:
        count_days(found.missing, lambda day: _count(day, place, settings_file, root))
        found = stored.find_days(files, place, wanted)
    found.check(allow_missing=allow_missing)
    rows = rows_of(view, found)
    for text in found.warnings:
        click.echo(f"warning: {text}", err=True)
    if out:
        _write(rows, out)
    if as_json:
        click.echo(json.dumps(_told(view, found, rows), indent=1, ensure_ascii=False))
    elif not out:
        _print(rows, view, top)
    taken = f"{rows.height:,} rows from {len(found.there)} days in {time.monotonic() - began:.2f} s"
    click.echo(f"{name} of {wanted}: {taken}", err=True)


def rows_of(view: View, found: StoredDays) -> pl.DataFrame:
    """The view's rows, in its order. Raises DataError (65) where people are counted under two keys."""
    from cmsspark.kernel.rollup import roll_up

    has_users = "distinct_users" in view.rollup.measures
    if has_users:
        found.key_id()
    rows, folded = roll_up(view.rollup, found.batches(view.rollup.columns))
    if has_users:
        found.check_users(folded.users)
    is_key = view.sort in view.rollup.keys
    return rows.sort(view.sort, descending=not is_key, nulls_last=True, maintain_order=True)


def count_days(missing: tuple[date, ...], count: Counter) -> None:
    """Count days that are not stored, oldest first. Raises NotReady (75) or InputMissing (66) where one fails."""
    for day in missing:
        code = count(day)
        if code:
            kind = NotReady if code == NotReady.exit_code else InputMissing
            raise kind(
                f"{day} cannot be counted: run_spark {stored.JOB} ended with {code}", next_step="see what it said above"
            )


def _count(day: date, fout: str, settings_file: str | None, root: str | None) -> int:
    """Run the daily job as a user would; what it prints goes to stderr, as stdout is the view's."""
    words = ["--date", days.compact(day), "--fout", fout]
    words += ["--settings", str(Path(settings_file).absolute())] if settings_file else []
    words += ["--root", root] if root else []
    argv = [sys.executable, "-c", "from cmsspark.submit import main; main()", stored.JOB, *words]
    return subprocess.run(argv, stdout=2, check=False).returncode


def _named(views: dict[str, View], name: str) -> View:
    if name not in views:
        raise UsageError(f"there is no view {name!r}", found=", ".join(views), next_step="add it to a file of views")
    return views[name]


def _write(rows: pl.DataFrame, out: str) -> None:
    place = Path(out)
    aside = place.with_name(f".{place.name}.part")
    try:
        getattr(rows, _WRITERS[place.suffix])(aside)
        aside.replace(place)
    except OSError as error:
        aside.unlink(missing_ok=True)
        raise OutputError("the view cannot be written", where=out, found=error.strerror or str(error)) from None


def _told(view: View, found: StoredDays, rows: pl.DataFrame) -> dict[str, Any]:
    return {
        "view": view.name,
        "period": str(found.period),
        "days": len(found.there),
        "missing_days": [day.isoformat() for day in found.missing],
        "partial_days": {day.isoformat(): why for day, why in found.partial.items()},
        "rows": [
            {name: value.isoformat() if isinstance(value, date) else value for name, value in row.items()}
            for row in rows.iter_rows(named=True)
        ],
    }


def _print(rows: pl.DataFrame, view: View, top: int) -> None:
    """Print the first rows for people; measures first, as names are long."""
    names = [*view.rollup.measures, *view.rollup.keys]
    shown = [
        [volume(row[name]) if name == "read_bytes" else row[name] for name in names]
        for row in rows.head(top).iter_rows(named=True)
    ]
    count = len(view.rollup.measures)
    optional = [i for i, name in enumerate(names[:count]) if name != view.sort]
    echo_table(names, shown, left=range(count, len(names)), optional=optional, indent="  ")
    if rows.height > top:
        click.echo(f"  and {rows.height - top:,} more: --top, --out or --json")
