"""The catalogue snapshots of a run: opened from the cache, or built from the dumps that were chosen."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any

from cmsspark.sources.dbs import read_table_arrow
from cmsspark.sources.dumps import Dump
from cmsspark.sources.phedex import disk_replicas_arrow
from cmsspark.storage import Files, is_local, local_path
from cmsspark.transforms.catalogue import Catalogue, Report, build_catalogue, build_replicas, open_or_build

#: Tables that a snapshot is made from.
DBS_TABLES = ("FILES", "BLOCKS", "DATASETS")


@dataclass(frozen=True)
class Snapshots:
    """Folders of the snapshots, whether either was built just now, and what the catalogue's build found."""

    catalogue: Path
    replicas: Path | None
    built: bool
    report: Report


def open_snapshots(files: Files, dbs: Dump, phedex: Dump | None, cache: Path) -> Snapshots:
    """The snapshots of these dumps; without PhEDEx there is none of replicas.

    Raises DataError (65) naming a damaged file of a dump.
    """
    identity = dbs.fingerprint(("FILES", "DATASETS"))
    catalogue, built = open_or_build(
        cache,
        "catalogue",
        identity,
        lambda folder: _build_catalogue(files, dbs, folder),
    )
    if phedex is None:
        return Snapshots(catalogue, None, built, Catalogue(catalogue).report)
    both = dbs.fingerprint(("BLOCKS",)) + phedex.fingerprint()
    replicas, built_too = open_or_build(
        cache,
        "replicas",
        both,
        lambda folder: _build_replicas(files, dbs, phedex, folder),
    )
    return Snapshots(catalogue, replicas, built or built_too, Catalogue(catalogue).report)


def _build_catalogue(files: Files, dbs: Dump, folder: Path) -> None:
    build_catalogue(
        folder,
        lambda: rows_of(files, dbs, "FILES", ("logical_file_name", "block_id", "dataset_id", "file_id")),
        rows_of(files, dbs, "DATASETS", ("dataset_id", "dataset")),
    )


def _build_replicas(files: Files, dbs: Dump, phedex: Dump, folder: Path) -> None:
    found = disk_replicas_arrow(phedex, lambda path: open_part(files, path))
    build_replicas(folder, rows_of(files, dbs, "BLOCKS", ("block_id", "block_name")), found)


def rows_of(files: Files, dump: Dump, table: str, columns: tuple[str, ...]) -> Iterator[Any]:
    """Arrow tables of a dump's table, part by part."""
    for part in dump.tables[table]:
        with open_part(files, part.path) as stream:
            yield from read_table_arrow(stream, table, columns, part.path)


def open_part(files: Files, path: str) -> IO[bytes]:
    """The file, open on this host; a remote one is fetched and gone when it is closed."""
    if is_local(path):
        return open(local_path(path), "rb")
    with tempfile.TemporaryDirectory(prefix="cmsspark-") as folder:
        target = Path(folder) / "part"
        files.fetch(path, target)
        # An open file outlives its name.
        return target.open("rb")
