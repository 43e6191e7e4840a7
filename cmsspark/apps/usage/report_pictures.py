"""``cmsspark report --pictures``: the pictures of a day or period as SVG and PNG files, for slides."""

from __future__ import annotations

from collections.abc import Iterator
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cmsspark.base.errors import OutputError, UsageError
from cmsspark.base.periods import Interval, Period
from cmsspark.cli.output_files import write_file
from cmsspark.pages import charts, use_pictures
from cmsspark.pages.pictures import Picture, pictures
from cmsspark.pages.png import png
from cmsspark.store import results
from cmsspark.store.job_index import job_of_table
from cmsspark.store.stored_columns import files_of

if TYPE_CHECKING:
    from cmsspark.settings.settings import Settings

_NEEDS_EXTRA: Final = "pip install 'cmsspark[plot]', or --format svg"


def write_pictures(
    settings: Settings, store: str, table: str | None, when: Interval, folder: Path, names: tuple[str, ...], fmt: str
) -> Iterator[Path]:
    """Write the pictures of a stored day or period, and yield their paths. Raises UsageError (2), OutputError (73)."""
    files = files_of(store, "cmsspark report", settings)
    job = job_of_table(table or ("period_aggregation" if isinstance(when, Period) else "data_aggregation"))
    if not use_pictures.has_use(job):
        raise UsageError(f"{job.name} counts no accesses", next_step="give a table such as data_aggregation or dbs_aaa")
    current = results.current(files, store, job.name, job.tables[0], when)
    use = use_pictures.use_of_run(files, store, job, current, when)
    for picture in _chosen(pictures(use, use_pictures.when_of(when)), names):
        yield from _written(picture, when, folder, fmt)


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


def _written(picture: Picture, when: Interval, folder: Path, fmt: str) -> list[Path]:
    """Write the files of a picture and return their paths. Raises OutputError (73)."""
    svg = charts.standalone(picture.chart, picture.title, picture.about)
    contents = {"svg": svg.encode()} if fmt != "png" else {}
    if fmt != "svg":
        contents["png"] = png(svg, _NEEDS_EXTRA)
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
