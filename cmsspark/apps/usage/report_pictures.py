"""``cmsspark report --pictures``: the pictures of a day or period as SVG, PNG and PDF
files, for slides.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cmsspark.base.errors import OutputError, UsageError
from cmsspark.base.periods import Interval, Period
from cmsspark.cli.output_files import write_file
from cmsspark.pages import use_pictures
from cmsspark.pages.pdf import pdf
from cmsspark.pages.pictures import Picture, pictures
from cmsspark.pages.png import png
from cmsspark.pages.svg import standalone
from cmsspark.store import results
from cmsspark.store.job_index import job_of_table
from cmsspark.store.stored_columns import open_store, table_rows

if TYPE_CHECKING:
    from cmsspark.filesystems.storage import Files
    from cmsspark.settings.settings import Settings

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
            "--since is an option of the picture event_counts", next_step="leave out --since"
        )
    job = job_of_table(
        table or ("period_aggregation" if isinstance(interval, Period) else "data_aggregation")
    )
    if not use_pictures.has_use(job):
        raise UsageError(
            f"{job.name} counts no accesses",
            next_step="give a table such as data_aggregation or dbs_aaa",
        )
    current = results.current(files, store, job.name, job.tables[0], interval)
    use = use_pictures.load_use(files, store, job, current, interval)
    for picture in _chosen(pictures(use, use_pictures.format_when(interval)), names):
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


def _chosen(drawn: list[Picture], names: tuple[str, ...]) -> list[Picture]:
    available = [picture.name for picture in drawn]
    for name in names:
        if name not in available:
            raise UsageError(
                f"there is no picture {name!r} here",
                found=", ".join(available),
                next_step="give one of these with --picture, or none for all",
            )
    return [picture for picture in drawn if not names or picture.name in names]


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
