"""The catalogue snapshots of a run: opened from the cache, or built from the dumps that were chosen."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from functools import partial
from itertools import chain
from pathlib import Path
from typing import Any

from cmsspark.kernel.catalogue import Catalogue, Report, open_or_build
from cmsspark.kernel.catalogue_build import Each, Part, build_catalogue, build_replicas
from cmsspark.sources.dbs import read_table_arrow
from cmsspark.sources.dumps import Dump
from cmsspark.sources.phedex import disk_replicas_of
from cmsspark.sources.registry import REPLICAS
from cmsspark.storage import Files, unreadable
from cmsspark.store.part_files import open_part


@dataclass(frozen=True)
class Snapshots:
    """Folders of the snapshots, whether either was built just now, and the report of the catalogue's build."""

    catalogue: Path
    replicas: Path | None
    built: bool
    report: Report


def open_snapshots(files: Files, dbs: Dump, phedex: Dump | None, cache: Path, each: Each = map) -> Snapshots:
    """The snapshots of these dumps; without PhEDEx there is none of replicas. ``each`` works on parts, as ``map`` does.

    Raises DataError (65) naming a damaged file of a dump.
    """
    identity = dbs.fingerprint(("FILES", "DATASETS"))
    catalogue, built = open_or_build(
        cache,
        "catalogue",
        identity,
        lambda folder: _build_catalogue(files, dbs, folder, each),
    )
    if phedex is None:
        return Snapshots(catalogue, None, built, Catalogue(catalogue).report)
    both = dbs.fingerprint(("BLOCKS",)) + phedex.fingerprint()
    replicas, built_too = open_or_build(
        cache,
        "replicas",
        both,
        lambda folder: _build_replicas(files, dbs, phedex, folder, each),
    )
    return Snapshots(catalogue, replicas, built or built_too, Catalogue(catalogue).report)


def warnings_of(report: Report, dbs: Dump) -> list[str]:
    """Warnings about parts of FILES in which columns seem to have moved, with file and row."""
    warnings = []
    for suspect in report.suspects:
        file = dbs.tables["FILES"][suspect["part"]].path
        for count, row, what in (
            (suspect["orphans"], suspect["first_orphan"], "name a dataset that is not in DATASETS"),
            (suspect["odd_names"], suspect["first_odd_name"], "have names that do not begin with a slash"),
        ):
            if count:
                share = f"{count:,} of {suspect['rows']:,} rows of {file}"
                warnings.append(f"dbs: {share} {what}, the first in row {row:,}: have columns moved?")
    return warnings


def _build_catalogue(files: Files, dbs: Dump, folder: Path, each: Each) -> None:
    datasets = chain.from_iterable(part() for part in _parts(files, dbs, "DATASETS", ("dataset_id", "dataset")))
    columns = ("logical_file_name", "block_id", "dataset_id", "file_id")
    build_catalogue(folder, _parts(files, dbs, "FILES", columns), datasets, each=each)


def _build_replicas(files: Files, dbs: Dump, phedex: Dump, folder: Path, each: Each) -> None:
    blocks = _parts(files, dbs, "BLOCKS", ("block_id", "block_name"))
    replicas = [partial(_replicas_of, files, part.path) for part in phedex.tables[REPLICAS]]
    build_replicas(folder, blocks, replicas, each)


def _parts(files: Files, dump: Dump, table: str, columns: tuple[str, ...]) -> list[Part]:
    return [partial(_rows_of, files, table, columns, part.path) for part in dump.tables[table]]


def _rows_of(files: Files, table: str, columns: tuple[str, ...], path: str) -> Iterator[Any]:
    """Arrow tables of one part of a DBS table."""
    with _named(path), open_part(files, path) as stream:
        yield from read_table_arrow(stream, table, columns, path)


def _replicas_of(files: Files, path: str) -> Iterator[Any]:
    """Arrow tables of the disk replicas in one part of a PhEDEx snapshot."""
    with _named(path), open_part(files, path) as stream:
        yield from disk_replicas_of(stream, path)


@contextmanager
def _named(path: str) -> Iterator[None]:
    """Turn an OSError into an error that names the file."""
    try:
        yield
    except OSError as error:
        raise unreadable(path, error) from None
