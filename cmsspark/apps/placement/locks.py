"""Locks of Rucio's rules: which dataset is locked at which site. A locked copy never goes."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import IO, Final

import numpy as np

from cmsspark.apps.placement.replicas import Replicas
from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.names import site_and_kind
from cmsspark.sources.formats.avro_table import CODE, ID, TablePiece, TableReader
from cmsspark.sources.rses import Rses, load_sites, make_rse
from cmsspark.sources.rucio import SCOPE, RucioReader, TableCounts
from cmsspark.store.table_files import read_table

#: Columns of a file: name → other names that are taken for it.
COLUMNS: Final = {
    "dataset": ("dataset_name", "name", "block", "block_name"),
    "site": ("site_name", "rse", "node", "node_name"),
}
#: The columns of DATASET_LOCKS that are read.
_COLUMNS: Final = {"RSE_ID": ID, "SCOPE": CODE, "NAME": CODE}
#: (dataset, site); the site is None where the dataset is locked everywhere.
Lock = tuple[str, "str | None"]


def read_locks(path: Path, rses_file: str | None = None) -> frozenset[Lock]:
    """Return the locks of a table or a dump; those on tape are left out, and a lock
    counts whatever its state is.

    A table is CSV or Parquet with ``dataset`` (or the name of a block) and ``site`` (or
    an RSE or node; null: at all sites). A dump is a folder with Rucio's Avro tables
    DATASET_LOCKS and RSES, read by rules 22 and 23; ``rses_file``: the exceptions of
    the settings. Raises InputMissing (66), UsageError (2) for other kinds of files,
    DataError (65) for damaged ones.
    """
    if path.is_dir():
        return frozenset(_of_dump(path, rses_file))
    table = read_table(path, "locks", COLUMNS, ("dataset",), may_be_null=("site",))
    sites = table["site"].to_list() if "site" in table.columns else [None] * len(table)
    exceptions = load_sites(rses_file)
    locks: set[Lock] = set()
    for name, site in zip(table["dataset"].to_list(), sites, strict=True):
        dataset = name.partition("#")[0]
        if site is None:
            locks.add((dataset, None))
        elif (rse := make_rse(site, None, exceptions)) is not None and rse.kind == "disk":
            # The name of a site, a node or an RSE.
            locks.add((dataset, site_and_kind(rse.site)[0]))
    return frozenset(locks)


def locked(replicas: Replicas, locks: frozenset[Lock]) -> Replicas:
    """Also fixes the copies that are locked."""
    names, sites = replicas.datasets, replicas.sites
    pairs = zip(replicas.dataset.tolist(), replicas.site.tolist(), strict=True)
    is_locked = [
        (names[dataset], sites[site]) in locks or (names[dataset], None) in locks
        for dataset, site in pairs
    ]
    return replace(replicas, is_fixed=replicas.is_fixed | np.array(is_locked, bool))


def _of_dump(folder: Path, rses_file: str | None) -> Iterator[Lock]:
    of_rses = RucioReader("RSES")
    elements = [
        row
        for path in _files(folder, "RSES")
        for row in of_rses.rse_rows(_pieces(of_rses.pieces, path))
    ]
    of_rses.counts.check("RSES")
    rses = Rses.from_rows(elements, load_sites(rses_file))
    reader, counts = TableReader(_COLUMNS), TableCounts()
    for path in _files(folder, "DATASET_LOCKS"):
        for piece in _pieces(reader.read, path):
            counts.take(piece)
            ids, scopes, names = (list(reader.texts[name]) for name in _COLUMNS)
            rows = np.stack([piece.numbers(name, -1) for name in _COLUMNS], axis=1)
            for rse_id, scope, name in np.unique(rows[(rows >= 0).all(1)], axis=0).tolist():
                number = rses.numbers.get(ids[rse_id], -1)
                if number >= 0 and rses.rses[number].kind == "disk" and scopes[scope] == SCOPE:
                    yield names[name].partition("#")[0], rses.rses[number].site
    counts.check("DATASET_LOCKS")


def _files(folder: Path, table: str) -> list[Path]:
    folders = [path for path in (folder / table, folder / table.lower()) if path.is_dir()]
    files = (
        sorted(path for path in folders[0].iterdir() if path.name[0] not in "._")
        if folders
        else []
    )
    if not any(path.is_file() and path.stat().st_size for path in files):
        raise InputMissing(
            f"no table {table} of Rucio's dump",
            where=folder,
            found="no folder of it with Avro files",
            next_step="give the folder of a day's dump, or a CSV or Parquet file of locks",
        )
    return files


def _pieces(
    read: Callable[[IO[bytes], str], Iterator[TablePiece]], path: Path
) -> Iterator[TablePiece]:
    try:
        with path.open("rb") as stream:
            yield from read(stream, str(path))
    except OSError as error:
        raise DataError("a dump's file cannot be read", where=path, found=error.strerror) from None
