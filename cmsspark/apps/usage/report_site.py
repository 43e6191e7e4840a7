"""``cmsspark report --site``: a static web site of the pages of all stored days, weeks and months."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from datetime import date
from html import escape
from pathlib import Path
from typing import TYPE_CHECKING, Final

import click
from markupsafe import Markup

from cmsspark.base import clock
from cmsspark.base.errors import CmssparkError, InputMissing, OutputError
from cmsspark.base.periods import Interval, Period, first_day
from cmsspark.base.text.readable import encodable
from cmsspark.cli.output_files import write_file
from cmsspark.filesystems.storage import Files
from cmsspark.pages import use_pictures
from cmsspark.pages.site_index import SiteEntry, Verdict, judge_day, site_index
from cmsspark.run.run_report import page_of_run
from cmsspark.store import results
from cmsspark.store.job_index import JOBS, Job
from cmsspark.store.stored_columns import open_store

if TYPE_CHECKING:
    from cmsspark.settings.settings import Settings

#: The jobs whose results have pages, and the folder of each.
_FOLDERS: Final = {"period": "periods", "data_aggregation": "days"}
_MARKER: Final = "<!-- cmsspark run {run} -->"


@dataclass(frozen=True)
class SitePage:
    """One page of the site: its day or period, its entry on the first page, and the
    error where it cannot be made.
    """

    interval: Interval
    entry: SiteEntry
    fault: str = ""


def write_site(settings: Settings, store: str, out: Path) -> None:
    """Write a calendar with verdicts and a page for each stored day, week, month and
    range; print the calendar's path.

    A page is written again only where its run is another one; pages of before stay.
    """
    files = open_store(store, "cmsspark report --site", settings)
    pages = [page for job in _FOLDERS for page in _job_pages(files, store, JOBS[job], out)]
    if not pages:
        next_step = "run_spark data_aggregation --date DAY"
        raise InputMissing("no day is stored", where=store, next_step=next_step)
    days = {page.interval: page.entry for page in pages if isinstance(page.interval, date)}
    made_at = clock.to_minute(clock.now_ms())
    _write(out / "index.html", site_index(days, _groups(pages), store, made_at))
    for page in pages:
        if page.fault:
            click.echo(f"warning: {page.entry.title}: {page.fault}", err=True)
    click.echo(out / "index.html")


def _job_pages(files: Files, store: str, job: Job, out: Path) -> Iterator[SitePage]:
    intervals = results.stored_intervals(files, store, job.name)
    for interval in sorted(intervals, key=first_day, reverse=True):
        path = f"{_FOLDERS[job.name]}/{interval.isoformat()}.html"
        title = use_pictures.make_title(job, interval)
        try:
            current = results.current(files, store, job.name, job.tables[0], interval)
            marker = _MARKER.format(run=escape(current.manifest.run))
            if not _is_made(out / path, marker):
                folder = current.path.rsplit("/", 1)[0]
                links = Markup('<a href="../index.html">All days, weeks and months</a>')
                content = page_of_run(files, store, job, current.manifest, folder, links)
                _write(out / path, f"{content}{marker}\n")
        except CmssparkError as error:
            if isinstance(error, OutputError):
                raise
            fault = f"{error.problem}: {error.found}" if error.found else error.problem
            yield SitePage(interval, SiteEntry(title, "", Verdict("bad", "damaged", fault)), fault)
            continue
        yield SitePage(interval, SiteEntry(title, path, judge_day(current.manifest)))


def _groups(pages: Sequence[SitePage]) -> list[tuple[str, list[SiteEntry]]]:
    """Return the pages of periods under their headings."""
    kinds: dict[str, list[SiteEntry]] = {"Months": [], "Weeks": [], "Other ranges": []}
    for page in pages:
        interval = page.interval
        if isinstance(interval, Period):
            kinds[
                "Weeks" if interval.is_week else "Months" if interval.is_month else "Other ranges"
            ].append(page.entry)
    return list(kinds.items())


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
