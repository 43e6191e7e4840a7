"""Replicas of datasets at sites: which lie on disk, which may go, and how much room each site has."""

from __future__ import annotations

import re
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, replace
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Final

import numpy as np

from cmsspark.base.arrays import Array
from cmsspark.base.errors import InputMissing
from cmsspark.base.names import site_and_kind
from cmsspark.base.text.sizes import parse_bytes
from cmsspark.counting.rollup import matches
from cmsspark.store.table_files import read_table

if TYPE_CHECKING:
    import polars as pl

#: Columns of a file: name → other names that are taken for it; those of ``dbs_phedex``
#: and ``dbs_rucio`` are.
COLUMNS: Final = {
    "dataset": ("dataset_name",),
    "site": ("site_name", "node", "node_name", "rse"),
    "bytes": ("present_bytes",),
    "kind": (),
    "size": ("dataset_bytes",),
    "complete": ("is_complete",),
    "locked": ("is_locked",),
    "custodial": ("is_custodial",),
    "since": (),
}
_EXPONENT: Final = re.compile(r"\d+(\.\d+)?e\+?\d{1,2}")


@dataclass(frozen=True)
class Replicas:
    """Copies on disk, an element each: numbers of the dataset and the site, bytes
    there, whether it is complete, and whether it is fixed (locked, custodial: it never
    goes).

    ``sizes``: float64 bytes of each whole dataset, 0 where unknown. ``on_tape``:
    whether each dataset has a copy on tape; it is no copy on disk, and no plan touches
    it.
    """

    datasets: tuple[str, ...]
    sites: tuple[str, ...]
    dataset: Array
    site: Array
    bytes: Array
    is_complete: Array
    is_fixed: Array
    sizes: Array
    on_tape: Array

    def used(self) -> Array:
        """float64 bytes on disk at each site."""
        return np.bincount(self.site, self.bytes, len(self.sites)).astype(float)

    def copies(self) -> Array:
        """int64: complete copies on disk of each dataset."""
        return np.bincount(self.dataset[self.is_complete], minlength=len(self.datasets))

    def has_copy(self) -> Array:
        """bool [datasets, sites]: a complete copy is on disk."""
        matrix = np.zeros((len(self.datasets), len(self.sites)), bool)
        matrix[self.dataset[self.is_complete], self.site[self.is_complete]] = True
        return matrix

    def fixed_too(self, patterns: Sequence[str]) -> Replicas:
        """Also fixes the copies of datasets that match a pattern."""
        is_locked = np.array([matches(name, patterns) for name in self.datasets], bool)
        return replace(self, is_fixed=self.is_fixed | is_locked[self.dataset])

    def changed(
        self,
        removed: Array,
        dataset: Sequence[int],
        site: Sequence[int],
        size: Sequence[float],
        fixed: Sequence[bool],
    ) -> Replicas:
        """Return the copies without those ``removed``, and with complete ones of the
        datasets at the sites, ``fixed`` or not.
        """
        remaining = ~removed
        return replace(
            self,
            dataset=np.append(self.dataset[remaining], np.array(dataset, np.int64)),
            site=np.append(self.site[remaining], np.array(site, np.int64)),
            bytes=np.append(self.bytes[remaining], size),
            is_complete=np.append(self.is_complete[remaining], np.ones(len(dataset), bool)),
            is_fixed=np.append(self.is_fixed[remaining], np.array(fixed, bool)),
        )


@dataclass(frozen=True)
class Space:
    """Bytes of each site, float64, by its number: what its disk takes, and what may be
    copied to it in a week.
    """

    capacity: Array
    budget: Array


def read_replicas(path: Path) -> pl.DataFrame:
    """Return rows with :data:`COLUMNS` of a CSV or Parquet file. Names of nodes
    (``T1_US_FNAL_MSS``) become those of their sites, and give the kind where the file
    has none.

    Raises as :func:`cmsspark.store.table_files.read_table`.
    """
    import polars as pl

    table = read_table(
        path,
        "replicas",
        COLUMNS,
        ("dataset", "site", "bytes"),
        numbers=("bytes", "size"),
        flags=("complete", "locked", "custodial"),
        may_be_null=("size", "since", "complete", "locked", "custodial"),
    )
    nodes = [site_and_kind(name) for name in table["site"].to_list()]
    sites, kinds = (pl.Series([node[part] for node in nodes], dtype=pl.String) for part in (0, 1))
    return table.with_columns(site=sites, kind=table.get_column("kind", default=kinds))


def make_replicas(
    table: pl.DataFrame,
    *,
    datasets: Iterable[str] = (),
    sites: Iterable[str] = (),
    until: date | None = None,
) -> Replicas:
    """Return the copies of rows with :data:`COLUMNS`, several of one dataset and site
    added up; those since ``until`` or later are left out.

    ``datasets``, ``sites``: names that are numbered, too. The size of a dataset is that
    of its rows, else its largest copy. Without a column ``complete``, a copy of that
    size is complete.
    """
    import polars as pl

    if until is not None and "since" in table.columns:
        table = table.filter(pl.col("since").is_null() | (pl.col("since") < until))
    flags = [
        pl.col(name).fill_null(False) for name in ("locked", "custodial") if name in table.columns
    ]
    table = table.with_columns(
        is_fixed=pl.any_horizontal(pl.lit(False), *flags),
        complete=pl.col("complete") if "complete" in table.columns else pl.lit(None, pl.Boolean),
        size=pl.col("size") if "size" in table.columns else pl.lit(None, pl.Float64),
    ).filter(pl.col("bytes") > 0)
    names = tuple(sorted({*table["dataset"].to_list(), *datasets}))
    site_names = tuple(sorted({*table["site"].to_list(), *sites}))
    of_name, of_place = (
        {name: number for number, name in enumerate(axis)} for axis in (names, site_names)
    )
    disk = (
        table.filter(pl.col("kind") == "disk")
        .group_by("dataset", "site")
        .agg(
            pl.col("bytes").sum(),
            pl.col("is_fixed").any(),
            pl.col("complete").all(ignore_nulls=False),
        )
        .sort("dataset", "site")
    )
    dataset = np.array([of_name[name] for name in disk["dataset"].to_list()], np.int64)
    listed = dict(table.group_by("dataset").agg(pl.col("size").max()).iter_rows())
    largest = dict(disk.group_by("dataset").agg(pl.col("bytes").max()).iter_rows())
    size = np.array([listed.get(name) or largest.get(name) or 0.0 for name in names])
    present_bytes = disk["bytes"].to_numpy().astype(float)
    elsewhere = set(table.filter(pl.col("kind") != "disk").select("dataset", "site").iter_rows())
    is_whole = present_bytes >= size[dataset]
    # What stored tables call complete may lie on disk and tape of a site together.
    is_alone = [pair not in elsewhere for pair in disk.select("dataset", "site").iter_rows()]
    complete = [
        has_all_bytes if flag is None else flag and (has_all_bytes or alone)
        for has_all_bytes, flag, alone in zip(
            is_whole.tolist(), disk["complete"].to_list(), is_alone, strict=True
        )
    ]
    on_tape = np.zeros(len(names), bool)
    on_tape[
        [of_name[name] for name in table.filter(pl.col("kind") == "tape")["dataset"].to_list()]
    ] = True
    return Replicas(
        names,
        site_names,
        dataset,
        np.array([of_place[name] for name in disk["site"].to_list()], np.int64),
        present_bytes,
        np.array(complete, bool),
        disk["is_fixed"].to_numpy().astype(bool),
        size,
        on_tape,
    )


def make_space(
    replicas: Replicas,
    of_sites: Mapping[str, tuple[float | None, float | None]],
    budget: float | None,
) -> Space:
    """Return the space of each site: of ``given`` (capacity and budget in bytes, None
    where not given), else what lies there now, so that copies can only take the place
    of others; a budget that is not given is ``budget``, None is unlimited.

    Raises InputMissing (66) where ``given`` names a site that has no copy and no read.
    """
    used = replicas.used()
    capacity, weekly = used.copy(), np.full(len(used), np.inf if budget is None else budget)
    position = {name: number for number, name in enumerate(replicas.sites)}
    for name, (room, limit) in of_sites.items():
        if name not in position:
            raise InputMissing(
                f"the site {name} of the space has no copy and no read",
                found=", ".join(replicas.sites[:10]),
                next_step="give its name as replicas and logs have it",
            )
        if room is not None:
            capacity[position[name]] = room
        if limit is not None:
            weekly[position[name]] = limit
    return Space(capacity, weekly)


def read_space(path: Path) -> dict[str, tuple[float | None, float | None]]:
    """Site → (capacity, budget a week) in bytes, of a CSV or Parquet file with the
    columns site, capacity and budget; either may be empty. Sizes such as ``3PB`` are
    taken, too. Raises as the reader of tables, UsageError (2).
    """
    table = read_table(
        path,
        "space",
        {"site": ("site_name",), "capacity": ("bytes",), "budget": ()},
        ("site",),
        may_be_null=("capacity", "budget"),
    )
    rows = {}
    for row in table.to_dicts():
        texts = (row.get(name) for name in ("capacity", "budget"))
        capacity, budget = (None if text in (None, "") else _parse_size(text) for text in texts)
        rows[row["site"]] = (capacity, budget)
    return rows


def _parse_size(text: str) -> float:
    """Return the bytes of a size. Raises UsageError (2)."""
    # Text of a column of floats, as Parquet files and pandas have it.
    number = int(float(text)) if _EXPONENT.fullmatch(text) else text
    return float(parse_bytes(str(number)))
