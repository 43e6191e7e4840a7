"""``cmsspark report --site``: a static web site of the pages of all stored days, weeks and months."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click

from cmsspark.base import clock
from cmsspark.base.errors import CmssparkError, InputMissing, OutputError
from cmsspark.base.periods import Interval, Period, first_day
from cmsspark.base.text.readable import encodable
from cmsspark.cli.output_files import write_file
from cmsspark.filesystems.storage import Files
from cmsspark.pages import use_pictures
from cmsspark.pages.page import index_page
from cmsspark.run.run_report import page_of_run
from cmsspark.store import contents, results
from cmsspark.store.job_index import JOBS, Job
from cmsspark.store.stored_columns import files_of

if TYPE_CHECKING:
    from cmsspark.settings.settings import Settings

#: The jobs whose results have pages, and the folder of each.
_FOLDERS: Final = {"period": "periods", "data_aggregation": "days"}
_MARKER: Final = "<!-- cmsspark run {run} -->"


@dataclass(frozen=True)
class SitePage:
    """One page of the site: what it is about, its path below the site, and the error where it cannot be made."""

    interval: Interval
    title: str
    path: str
    fault: str = ""


def write_site(settings: Settings, store: str, out: Path) -> None:
    """Write an index and a page for each stored day, week, month and range to ``out``, and print the index's path.

    A page is written again only where its run is another one; pages of before stay.
    """
    files = files_of(store, "cmsspark report --site", settings)
    pages = [page for job in _FOLDERS for page in _job_pages(files, store, JOBS[job], out)]
    if not pages:
        next_step = "run_spark data_aggregation --date DAY"
        raise InputMissing("no day is stored", where=store, next_step=next_step)
    _write(out / "index.html", index_page(_groups(pages), store, clock.to_minute(clock.now_ms())))
    for page in pages:
        if page.fault:
            click.echo(f"warning: {page.title}: {page.fault}", err=True)
    click.echo(out / "index.html")


def _job_pages(files: Files, store: str, job: Job, out: Path) -> Iterator[SitePage]:
    intervals = contents.stored_intervals(files, store, job.name)
    for interval in sorted(intervals, key=first_day, reverse=True):
        path = f"{_FOLDERS[job.name]}/{interval.isoformat()}.html"
        title = use_pictures.title_of(job, interval)
        try:
            current = results.current(files, store, job.name, job.tables[0], interval)
            marker = _MARKER.format(run=escape(current.manifest.run))
            if not _is_made(out / path, marker):
                folder = current.path.rsplit("/", 1)[0]
                links = '<a href="../index.html">All days, weeks and months</a>'
                content = page_of_run(files, store, job, current.manifest, folder, links)
                _write(out / path, f"{content}{marker}\n")
        except CmssparkError as error:
            if isinstance(error, OutputError):
                raise
            yield SitePage(interval, title, "", f"{error.wanted}: {error.found}" if error.found else error.wanted)
            continue
        yield SitePage(interval, title, path)


def _groups(pages: Sequence[SitePage]) -> list[tuple[str, list[tuple[str, str, str]]]]:
    """The pages under their headings: (name, path, fault) each."""
    kinds: dict[str, list[tuple[str, str, str]]] = {"Months": [], "Weeks": [], "Other ranges": [], "Days": []}
    for page in pages:
        when = page.interval
        kind = "Days"
        if isinstance(when, Period):
            kind = "Weeks" if when.is_week else "Months" if when.is_month else "Other ranges"
        kinds[kind].append((page.title, page.path, page.fault))
    return [(kind, entries) for kind, entries in kinds.items() if entries]


def _is_made(path: Path, marker: str) -> bool:
    try:
        return path.read_text(encoding="utf-8").rstrip().endswith(marker)
    except OSError:
        return False


def _write(path: Path, content: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise OutputError("a page cannot be written", where=path, found=error.strerror) from None
    write_file(path, lambda part: part.write_text(encodable(content), encoding="utf-8"), "a page")
