"""``cmsspark report``: a stored day or period as text, JSON, HTML page, pictures or web site."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cmsspark.base.errors import Exit, InputMissing, OutputError, UsageError
from cmsspark.base.periods import Interval, Period, first_day
from cmsspark.base.text.readable import encodable, json_text
from cmsspark.cli.options import require_store, store_options, write_file
from cmsspark.cli.period_options import needed_when, optional_when_options
from cmsspark.pages import pictures as pages_pictures
from cmsspark.pages.day_report import text
from cmsspark.pages.pictures import Picture, pictures
from cmsspark.pages.svg import pdf, png, standalone
from cmsspark.run.run_report import of_run, page_of_run
from cmsspark.settings.settings import load_settings
from cmsspark.store import results
from cmsspark.store.daily_state import DailyState
from cmsspark.store.own_jobs import JOBS, job_of_table
from cmsspark.store.stored_columns import open_store, table_rows

if TYPE_CHECKING:
    from cmsspark.filesystems.storage import Files
    from cmsspark.settings.settings import Settings


# ``cmsspark report --pictures``: the pictures of a day or period as SVG, PNG and PDF
# files, for slides.

_FORMATS: Final = ("svg", "png", "pdf")
#: Values of --format → the endings of the files.
FORMATS: Final = {"both": ("svg", "png"), **{name: (name,) for name in _FORMATS}, "all": _FORMATS}
#: The picture of the table crsg_event_counts.
EVENT_COUNTS: Final = "event_counts"
_NEEDS_EXTRA: Final = "pip install 'cmsspark[plot]', or --format svg"


def write_pictures(
    settings: Settings,
    store: str,
    table: str | None,
    interval: Interval,
    folder: Path,
    names: tuple[str, ...],
    fmt: str,
    since: str | None = None,
) -> Iterator[Path]:
    """Write the pictures of a stored day or period, and yield their paths. Raises
    UsageError (2), OutputError (73).
    """
    files = open_store(store, "cmsspark report", settings)
    if EVENT_COUNTS in names:
        for picture in _event_counts(files, store, names, interval, since):
            yield from _written(picture, interval, folder, fmt)
        return
    if since is not None:
        raise UsageError(
            "--since is only for --picture event_counts", next_step="leave out --since"
        )
    job = job_of_table(
        table or ("period_aggregation" if isinstance(interval, Period) else "data_aggregation")
    )
    if not pages_pictures.has_use(job):
        raise UsageError(
            f"{job.name} counts no accesses",
            next_step="give a table such as data_aggregation or dbs_aaa",
        )
    current = results.current(files, store, job.name, job.tables[0], interval)
    use = pages_pictures.load_use(files, store, job, current, interval)
    drawn = pictures(use, pages_pictures.format_when(interval))
    available = [picture.name for picture in drawn]
    for name in names:
        if name not in available:
            raise UsageError(
                f"there is no picture {name!r} here",
                found=", ".join(available),
                next_step="give one of these with --picture, or none for all",
            )
    for picture in drawn:
        if not names or picture.name in names:
            yield from _written(picture, interval, folder, fmt)


def _event_counts(
    files: Files, store: str, names: tuple[str, ...], interval: Interval, since: str | None
) -> list[Picture]:
    """Return the pictures of the C-RSG report."""
    from cmsspark.apps.jobs_cost import crsg_pictures

    if names != (EVENT_COUNTS,) or isinstance(interval, Period):
        step = "cmsspark report --date DAY --pictures DIR --picture event_counts"
        raise UsageError("event_counts is drawn alone, of a --date", next_step=step)
    if since is not None and re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", since) is None:
        raise UsageError("--since is a month such as 2025-11", found=repr(since))
    current = results.current(files, store, crsg_pictures.TABLE, crsg_pictures.TABLE, interval)
    rows = table_rows(
        files, current, crsg_pictures.TABLE, ("selection", "month", "data_tier", "events")
    )
    return crsg_pictures.pictures(rows.to_pylist(), since)


def _written(picture: Picture, interval: Interval, folder: Path, fmt: str) -> list[Path]:
    """Write the files of a picture and return their paths. Raises OutputError (73)."""
    svg = standalone(picture.chart, picture.title, picture.about)
    writers: dict[str, Callable[[], bytes]] = {
        "svg": svg.encode,
        "png": partial(png, svg, _NEEDS_EXTRA),
        "pdf": partial(pdf, svg),
    }
    contents = {name: writers[name]() for name in FORMATS[fmt]}
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for ending, content in contents.items():
            path = folder / f"{interval.isoformat()}-{picture.name}.{ending}"
            write_file(path, partial(Path.write_bytes, data=content), "the picture")
            paths.append(path)
    except OSError as error:
        raise OutputError(
            "the picture cannot be written", where=folder, found=error.strerror
        ) from None
    return paths


@click.command("report")
@click.argument("table", required=False)
@optional_when_options
@click.option(
    "--html",
    "html",
    metavar="FILE",
    type=click.Path(dir_okay=False),
    help="Write an HTML page to FILE.",
)
@click.option(
    "--pictures",
    metavar="DIR",
    help="Write the pictures to DIR as PNG and SVG, and print their paths.",
)
@click.option(
    "--picture",
    "names",
    multiple=True,
    metavar="NAME",
    help="With --pictures: only this. May be repeated.",
)
@click.option(
    "--format",
    "fmt",
    type=click.Choice([*FORMATS]),
    default="both",
    help="With --pictures; both: SVG, PNG.",
)
@click.option(
    "--since", metavar="MONTH", help="First month of the picture event_counts, such as 2025-11."
)
@click.option("--json", "as_json", is_flag=True, help="Print JSON.")
@click.option(
    "--run",
    "run",
    metavar="RUN",
    help="A run of the day that is not current; RUN can be abbreviated.",
)
@store_options
def command(
    table: str | None,
    when: Interval | None,
    html: str | None,
    pictures: str | None,
    names: tuple[str, ...],
    fmt: str,
    since: str | None,
    as_json: bool,
    run: str | None,
    fout: str | None,
    settings_file: str | None,
) -> int:
    """Account for every record of a day of TABLE: counts, joins, inputs, differences
    from the days before.

    The HTML page begins with what was read: datasets, sites, trend, CPU time. A week,
    month or range has one, too. TABLE is data_aggregation by default, for a period
    period_aggregation; job_efficiency and step_efficiency have days and periods.
    Pictures are datasets, sites, trend, heat, remote and cpu; event_counts, drawn
    alone, has the events of the C-RSG report. Exits with 65 if a join lost or
    duplicated rows.
    """
    settings = load_settings(settings_file)
    store = require_store(fout, settings)
    when = needed_when(when)
    if pictures is not None:
        for path in write_pictures(
            settings, store, table, when, Path(pictures), names, fmt, since
        ):
            click.echo(path)
        if html is None and not as_json:
            return 0
    return _report(settings, store, table, when, run, Path(html) if html else None, as_json)


def _report(
    settings: Settings,
    store: str,
    table: str | None,
    interval: Interval,
    run: str | None,
    html: Path | None,
    as_json: bool,
) -> int:
    """Write or print the report of a day or period; the exit code is 65 if a join lost
    or duplicated rows.
    """
    table = table or ("period_aggregation" if isinstance(interval, Period) else "data_aggregation")
    job = job_of_table(table)
    if isinstance(interval, Period) and not job.of_periods:
        # The period's table of the same rows, such as that of job_efficiency.
        name = f"period_{job.tables[0] if table in job.aliases else table}"
        job = next((period_job for period_job in JOBS.values() if name in period_job.tables), job)
        table = name if name in job.tables else table
    files = open_store(store, "cmsspark report", settings)
    name = table if table in job.tables else job.name
    try:
        if run:
            stored = results.run_table(files, store, job.name, name, interval, run)
        else:
            stored = results.current(files, store, job.name, name, interval)
    except InputMissing as error:
        skipped = (
            DailyState(settings.state_dir, store).record(first_day(interval), job.name).skipped
        )
        if skipped is None:
            raise
        raise error.with_parts(
            found=f"the day was skipped by {skipped.user}: {skipped.reason}",
            next_step="cmsspark daily skip … --undo lets cmsspark daily run it",
        ) from None
    folder = stored.path.rsplit("/", 1)[0]
    contents = of_run(files, store, job, stored.manifest, folder)
    if html is not None:
        page = page_of_run(files, store, job, stored.manifest, folder)
        try:
            html.write_text(encodable(page), encoding="utf-8")
        except OSError as error:
            raise OutputError(
                "the page cannot be written", where=html, found=error.strerror
            ) from None
        click.echo(f"the page is {html.absolute()}", err=True)
    if as_json:
        click.echo(json_text(contents, indent=1))
    elif html is None:
        click.echo(text(contents))
    return 0 if all(join["is_right"] for join in contents["joins"]) else int(Exit.DATA)
