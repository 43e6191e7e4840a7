"""``cmsspark plot``: the pictures of a day or period as SVG, PNG and PDF files, for slides."""

from __future__ import annotations

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path
from typing import Final

import click

from cmsspark.base.errors import OutputError, UsageError
from cmsspark.base.periods import Interval, Period
from cmsspark.cli.options import settings_of, store_of, store_options
from cmsspark.cli.output_files import write_file
from cmsspark.cli.period_options import when_options
from cmsspark.filesystems.storage import Files
from cmsspark.pages import charts, use_pictures
from cmsspark.pages.pdf import pdf
from cmsspark.pages.pictures import Picture, pictures
from cmsspark.pages.png import png
from cmsspark.store import results
from cmsspark.store.job_index import job_of_table
from cmsspark.store.stored_columns import files_of, table_rows

_FORMATS: Final = ("svg", "png", "pdf")
_NEEDS_EXTRA: Final = "pip install 'cmsspark[plot]', or --format svg"


@click.command("plot")
@click.argument("names", nargs=-1, metavar="[PICTURE]…")
@when_options
@click.option("--table", metavar="TABLE", help="Another table of accesses, such as dbs_aaa. [default: all streams]")
@click.option("-o", "--out", metavar="DIR", default=".", show_default=True, help="Folder of the files.")
@click.option("--format", "fmt", type=click.Choice(["both", *_FORMATS, "all"]), default="both", show_default=True)
@click.option("--since", metavar="MONTH", help="First month of event_counts, such as 2025-11.")
@store_options
def command(
    names: tuple[str, ...], when: Interval, table: str | None, out: str, fmt: str, since: str | None,
    fout: str | None, settings_file: str | None,
) -> None:  # fmt: skip
    """Write the pictures of a stored day, week, month or range as PNG and SVG files, and print their paths.

    PICTURE is one of datasets, sites, trend, heat, remote, cpu. Default: all of them. event_counts draws the events of
    the C-RSG report by month, from the table crsg_event_counts. --format both is SVG and PNG.
    """
    settings = settings_of(settings_file)
    store = store_of(fout, settings)
    files = files_of(store, "cmsspark plot", settings)
    if "event_counts" in names:
        _write_event_counts(files, store, names, when, since, Path(out), fmt)
        return
    if since is not None:
        raise UsageError("--since is an option of the picture event_counts", next_step="leave out --since")
    job = job_of_table(table or ("period_aggregation" if isinstance(when, Period) else "data_aggregation"))
    if not use_pictures.has_use(job):
        raise UsageError(f"{job.name} counts no accesses", next_step="give a table such as data_aggregation or dbs_aaa")
    current = results.current(files, store, job.name, job.tables[0], when)
    use = use_pictures.use_of_run(files, store, job, current, when)
    for picture in _chosen(pictures(use, use_pictures.when_of(when)), names):
        for path in _written(picture, when, Path(out), fmt):
            click.echo(path)


def _write_event_counts(
    files: Files, store: str, names: tuple[str, ...], when: Interval, since: str | None, folder: Path, fmt: str
) -> None:
    """Write the pictures of the C-RSG report, and print their paths."""
    from cmsspark.apps.jobs_cost import crsg_pictures

    if names != ("event_counts",) or isinstance(when, Period):
        raise UsageError("event_counts is drawn alone, of a --date", next_step="cmsspark plot event_counts --date DAY")
    if since is not None and re.fullmatch(r"\d{4}-(0[1-9]|1[0-2])", since) is None:
        raise UsageError("--since is a month such as 2025-11", found=repr(since))
    current = results.current(files, store, crsg_pictures.TABLE, crsg_pictures.TABLE, when)
    rows = table_rows(files, current, crsg_pictures.TABLE, ("selection", "month", "data_tier", "events"))
    for picture in crsg_pictures.pictures(rows.to_pylist(), since):
        for path in _written(picture, when, folder, fmt):
            click.echo(path)


def _chosen(drawn: list[Picture], names: tuple[str, ...]) -> list[Picture]:
    known = [picture.name for picture in drawn]
    for name in names:
        if name not in known:
            raise UsageError(
                f"there is no picture {name!r} here",
                found=", ".join(known),
                next_step="name some of these, or none for all",
            )
    return [picture for picture in drawn if not names or picture.name in names]


def _written(picture: Picture, when: Interval, folder: Path, fmt: str) -> list[Path]:
    """The files of a picture, written. Raises OutputError (73)."""
    svg = charts.standalone(picture.chart, picture.title, picture.about)
    formats = {"both": ("svg", "png"), "all": _FORMATS}.get(fmt, (fmt,))
    writers: dict[str, Callable[[], bytes]] = {
        "svg": svg.encode,
        "png": partial(png, svg, _NEEDS_EXTRA),
        "pdf": partial(pdf, svg),
    }
    contents = {name: writers[name]() for name in formats}
    paths = []
    try:
        folder.mkdir(parents=True, exist_ok=True)
        for ending, content in contents.items():
            path = folder / f"{when.isoformat()}-{picture.name}.{ending}"
            write_file(path, partial(Path.write_bytes, data=content), "the picture")
            paths.append(path)
    except OSError as error:
        raise OutputError("the picture cannot be written", where=folder, found=error.strerror) from None
    return paths
