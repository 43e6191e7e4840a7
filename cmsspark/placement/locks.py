"""Locks of Rucio's rules: which dataset is locked at which site. A locked copy never goes."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.errors import DataError, InputMissing
from cmsspark.names import site_and_kind
from cmsspark.pipeline.table_files import read_table
from cmsspark.placement.replicas import Replicas
from cmsspark.sources.rses import Rses, load_sites, rse_of

if TYPE_CHECKING:
    from cmsspark.sources.rses import Rse

#: Columns of a file: name → other names that are taken for it.
COLUMNS: Final = {
    "dataset": ("dataset_name", "name", "block", "block_name"),
    "site": ("site_name", "rse", "node", "node_name"),
}
_TABLES: Final = ("DATASET_LOCKS", "RSES")
#: (dataset, site); the site is None where the dataset is locked everywhere.
Lock = tuple[str, "str | None"]


def read_locks(path: Path) -> frozenset[Lock]:
    """The locks of a table or a dump; those on tape are left out, and a lock counts whatever its state is.

    A table is CSV or Parquet with ``dataset`` (or the name of a block) and ``site`` (or an RSE or node; null: at all
    sites). A dump is a folder with Rucio's Avro tables DATASET_LOCKS and RSES. Raises InputMissing (66), UsageError (2)
    for other kinds of files, DataError (65) for damaged ones.
    """
    if path.is_dir():
        return frozenset(_of_dump(path))
    table = read_table(path, "locks", COLUMNS, ("dataset",), may_be_null=("site",))
    sites = table["site"].to_list() if "site" in table.columns else [None] * len(table)
    exceptions = load_sites()
    found: set[Lock] = set()
    for name, site in zip(table["dataset"].to_list(), sites, strict=True):
        dataset = name.partition("#")[0]
        if site is None:
            found.add((dataset, None))
        elif (rse := rse_of(site, None, exceptions)) is not None and rse.kind == "disk":
            # The name of a site, a node or an RSE.
            found.add((dataset, site_and_kind(rse.site)[0]))
    return frozenset(found)


def locked(replicas: Replicas, locks: frozenset[Lock]) -> Replicas:
    """Also fixes the copies that are locked."""
    names, sites = replicas.datasets, replicas.sites
    pairs = zip(replicas.dataset.tolist(), replicas.site.tolist(), strict=True)
    is_locked = [(names[dataset], sites[site]) in locks or (names[dataset], None) in locks for dataset, site in pairs]
    return replace(replicas, is_fixed=replicas.is_fixed | np.array(is_locked, bool))


def _of_dump(folder: Path) -> Iterator[Lock]:
    rows = {table: _avro_rows(folder, table) for table in _TABLES}
    elements = ((_hex(row["ID"]), row["RSE"], row.get("RSE_TYPE"), row.get("DELETED_AT")) for row in rows["RSES"])
    rses = Rses.of(elements, load_sites())
    for row in rows["DATASET_LOCKS"]:
        number = rses.numbers.get(_hex(row["RSE_ID"]), -1)
        rse: Rse | None = rses.rses[number] if number >= 0 else None
        if rse is not None and rse.kind == "disk" and row["NAME"]:
            yield row["NAME"].partition("#")[0], rse.site


def _avro_rows(folder: Path, table: str) -> Iterator[dict[str, Any]]:
    import fastavro

    places = [place for place in (folder / table, folder / table.lower()) if place.is_dir()]
    files = sorted(places[0].glob("*.avro")) if places else []
    if not files:
        raise InputMissing(
            f"the table {table} of Rucio's dump is wanted", where=folder, found="no folder of it with *.avro files",
            next_step="give the folder of a day's dump, or a CSV or Parquet file of locks",
        )  # fmt: skip
    for path in files:
        try:
            with path.open("rb") as file:
                yield from (row for row in fastavro.reader(file) if isinstance(row, dict))
        except (OSError, ValueError, EOFError, KeyError, TypeError) as error:
            found = str(error) or type(error).__name__
            raise DataError("the dump cannot be read", where=path, found=found, next_step="copy it again") from None


def _hex(value: Any) -> str:
    return value.hex() if isinstance(value, bytes) else str(value).lower()
