"""What plans of copies are made from: reads of datasets at sites by day, copies on disk,
and the space of each site; from files or from stored days.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from dataclasses import dataclass, field, replace
from datetime import date, timedelta
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark.base.arrays import Array
from cmsspark.base.errors import InputMissing
from cmsspark.base.names import site_and_kind
from cmsspark.base.periods import Period, between
from cmsspark.base.text.sizes import parse_bytes
from cmsspark.cli.options import require_store
from cmsspark.cli.period_options import load_days
from cmsspark.counting.rollup import matches
from cmsspark.settings.settings import load_settings
from cmsspark.store import stored_days
from cmsspark.store.stored_columns import newest, newest_replicas, open_store, table_rows
from cmsspark.store.stored_days import StoredDays
from cmsspark.store.table_files import read_table

if TYPE_CHECKING:
    import polars as pl

#: Columns of a file of reads: name → other names that are taken for it.
_READS: Final = {
    "day": (),
    "dataset": ("dataset_name",),
    "site": ("site_name",),
    "accesses": ("nacc",),
    "bytes": ("read_bytes",),
}
#: The same of replicas; those of ``dbs_phedex`` and ``dbs_rucio`` are.
_REPLICAS: Final = {
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
_SPACE: Final = {"site": ("site_name",), "capacity": ("bytes",), "budget": (), "network_gbits": ()}
#: Where an access counts whose log names no site.
_NO_SITE: Final = "unknown"
_EXPONENT: Final = re.compile(r"\d+(\.\d+)?e\+?\d{1,2}")
#: Bytes that one Gbit/s brings in a week.
_WEEK_OF_GBIT: Final = 1e9 / 8 * 7 * 86_400
#: Weeks of stored days that are read without a period.
WEEKS: Final = 26


@dataclass(frozen=True)
class Reads:
    """Columns with an element for each (day, dataset, site): numbers of the day,
    dataset and site; accesses, and bytes read (0 if unknown), float64.

    ``dropped``: accesses that name no site, which no copy can serve.
    """

    days: tuple[date, ...]
    datasets: tuple[str, ...]
    sites: tuple[str, ...]
    day: Array
    dataset: Array
    site: Array
    accesses: Array
    bytes: Array
    dropped: int = 0

    @property
    def pairs(self) -> Array:
        """A number for the dataset and site of each element, int64."""
        return self.dataset * len(self.sites) + self.site

    def before(self, day: int) -> Reads:
        """Return the reads of the days before day number ``day``; the names stay."""
        names = ("day", "dataset", "site", "accesses", "bytes")
        columns = {name: getattr(self, name)[self.day < day] for name in names}
        return replace(self, days=self.days[:day], **columns, dropped=0)

    def named(self, datasets: Iterable[str], sites: Iterable[str]) -> Reads:
        """Return the same reads with numbers of these names, too."""
        all_datasets = tuple(sorted({*self.datasets, *datasets}))
        all_sites = tuple(sorted({*self.sites, *sites}))
        dataset = np.searchsorted(np.array(all_datasets), self.datasets)[self.dataset]
        site = np.searchsorted(np.array(all_sites), self.sites)[self.site]
        return replace(self, datasets=all_datasets, sites=all_sites, dataset=dataset, site=site)


def read_reads(path: Path) -> Reads:
    """Return the reads of a CSV or Parquet file with the columns day, dataset, site,
    accesses, and optionally bytes. Rows of one day, dataset and site are added up.

    Raises InputMissing (66), UsageError (2) for other files, DataError (65) for damaged
    ones, missing columns, nulls and negative numbers.
    """
    needed = ("day", "dataset", "site", "accesses")
    return make_reads(read_table(path, "reads", _READS, needed, numbers=("accesses", "bytes")))


def make_reads(table: pl.DataFrame, stored: Iterable[date] = ()) -> Reads:
    """Return the reads of rows with the columns of a file, and of the days ``stored``,
    which may have no row.

    Raises InputMissing (66) if no row names a site.
    """
    import polars as pl

    if "bytes" not in table.columns:
        table = table.with_columns(bytes=pl.lit(None, pl.Float64))
    is_somewhere = pl.col("site").is_not_null() & (pl.col("site") != _NO_SITE)
    nowhere = table.filter(~is_somewhere)["accesses"].sum()
    sums = [
        pl.col(name).sum().cast(pl.Float64).fill_null(0).alias(name)
        for name in ("accesses", "bytes")
    ]
    counted = table.filter(is_somewhere).group_by("day", "dataset", "site").agg(sums)
    counted = counted.sort("day", "dataset", "site")
    if counted.is_empty():
        raise InputMissing(
            "no access names a site", next_step="give days whose logs name the sites of jobs"
        )
    all_days = {*table["day"].unique().to_list(), *stored}
    first, last = min(all_days), max(all_days)
    days = tuple(first + timedelta(days=number) for number in range((last - first).days + 1))
    datasets, dataset = np.unique(counted["dataset"].to_numpy().astype(str), return_inverse=True)
    sites, site = np.unique(counted["site"].to_numpy().astype(str), return_inverse=True)
    number = (counted["day"].to_numpy().astype("datetime64[D]") - np.datetime64(first)).astype(int)
    columns = (number, dataset, site, counted["accesses"].to_numpy(), counted["bytes"].to_numpy())
    return Reads(days, tuple(datasets.tolist()), tuple(sites.tolist()), *columns, int(nowhere))


def stored_reads(stored: StoredDays) -> Reads:
    """Return the accesses of stored days, all their streams together. Jobs are no accesses.

    Raises DataError (65) if a day's partials are damaged.
    """
    import polars as pl

    columns = ["dataset_name", "site_name", "nacc", "read_bytes"]
    frames = [
        frame.drop_nulls("dataset_name")
        .group_by(dataset="dataset_name", site="site_name")
        .agg(
            accesses=pl.col("nacc").cast(pl.Float64).sum(),
            bytes=pl.col("read_bytes").cast(pl.Float64).sum(),
            day=pl.lit(day),
        )
        for day, frame in stored.accesses(columns)
    ]
    return make_reads(pl.concat(frames), stored.partials)


@dataclass(frozen=True)
class Replicas:
    """Copies on disk, an element each: numbers of the dataset and the site, bytes
    there, whether it is complete, whether it is fixed (locked, custodial: it never
    goes), and float64 days since it was made, NaN if unknown.

    Of each dataset: ``sizes``, float64 bytes of the whole, 0 if unknown; ``ages``,
    float64 days since it was made, NaN if unknown; ``on_tape``, whether a complete copy
    is on tape. That is no copy on disk, and no plan touches it.
    """

    datasets: tuple[str, ...]
    sites: tuple[str, ...]
    dataset: Array
    site: Array
    bytes: Array
    is_complete: Array
    is_fixed: Array
    made_days: Array
    sizes: Array
    ages: Array
    on_tape: Array

    def used(self) -> Array:
        """Return the bytes on disk at each site, float64."""
        return np.bincount(self.site, self.bytes, len(self.sites)).astype(float)

    def copies(self) -> Array:
        """Return the number of complete copies on disk of each dataset, int64."""
        return np.bincount(self.dataset[self.is_complete], minlength=len(self.datasets))

    def pairs(self) -> Array:
        """Return a number for each copy's dataset and site, int64."""
        return self.dataset * len(self.sites) + self.site


def read_replicas(path: Path) -> pl.DataFrame:
    """Return rows of replicas of a CSV or Parquet file. Names of nodes
    (``T1_US_FNAL_MSS``) become those of their sites, and give the kind if the file has
    none.

    Raises as :func:`cmsspark.store.table_files.read_table`.
    """
    import polars as pl

    flags = ("complete", "locked", "custodial")
    table = read_table(
        path,
        "replicas",
        _REPLICAS,
        ("dataset", "site", "bytes"),
        numbers=("bytes", "size"),
        flags=flags,
        may_be_null=("size", "since", *flags),
    )
    nodes = [site_and_kind(name) for name in table["site"].to_list()]
    sites, kinds = (pl.Series([node[part] for node in nodes], dtype=pl.String) for part in (0, 1))
    return table.with_columns(site=sites, kind=table.get_column("kind", default=kinds))


def make_replicas(
    table: pl.DataFrame,
    *,
    datasets: Iterable[str] = (),
    sites: Iterable[str] = (),
    day: date | None = None,
) -> Replicas:
    """Return the copies of rows as of the start of ``day``. Several rows of one dataset
    and site are added up, and those since ``day`` or later are left out.

    ``datasets``, ``sites``: names that are numbered, too. The size of a dataset is that
    of its rows, else its largest copy. Without a column ``complete``, a copy of that
    size is complete. A dataset is as old as ``created`` says, else as its first copy.
    """
    import polars as pl

    flag, real = pl.Boolean(), pl.Float64()
    kinds = {"complete": flag, "locked": flag, "custodial": flag, "size": real, "since": pl.Date()}
    missing = {name: kind for name, kind in kinds.items() if name not in table.columns}
    table = table.with_columns(pl.lit(None, kind).alias(name) for name, kind in missing.items())
    if "created" not in table.columns:
        table = table.with_columns(created=pl.col("since").min().over("dataset"))
    if day is not None:
        table = table.filter(pl.col("since").is_null() | (pl.col("since") < day))
    table = table.filter(pl.col("bytes") > 0)
    names = tuple(sorted({*table["dataset"].to_list(), *datasets}))
    site_names = tuple(sorted({*table["site"].to_list(), *sites}))
    copies = table.group_by("dataset", "site", "kind").agg(
        pl.col("bytes").sum(),
        pl.any_horizontal(pl.col("locked", "custodial").fill_null(False)).any().alias("is_fixed"),
        pl.col("complete").all(ignore_nulls=False),
        pl.col("since").max(),
    )
    of_dataset = table.group_by("dataset").agg(
        pl.col("size").max(),
        pl.col("created").min(),
        pl.col("bytes").filter(pl.col("kind") == "disk").max().alias("on_disk"),
        pl.col("bytes").max().alias("anywhere"),
    )
    every = pl.DataFrame({"dataset": names}, {"dataset": pl.String}).join(
        of_dataset, "dataset", "left", maintain_order="left"
    )
    given_size = pl.when(pl.col("size") > 0).then("size")
    size = pl.coalesce(given_size, "on_disk", "anywhere", pl.lit(0)).cast(pl.Float64)
    every = every.select("dataset", "created", dataset_size=size)
    # What stored tables call complete may lie on disk and tape of a site together.
    is_whole = pl.col("bytes") >= pl.col("dataset_size")
    is_named_so = pl.col("complete") & (is_whole | (pl.len().over("dataset", "site") == 1))
    copies = copies.join(every, "dataset", "left").with_columns(
        complete=pl.when(pl.col("complete").is_null()).then(is_whole).otherwise(is_named_so)
    )
    disk = copies.filter(pl.col("kind") == "disk").sort("dataset", "site")
    on_tape = copies.filter((pl.col("kind") == "tape") & pl.col("complete"))["dataset"]
    end = day or date.max

    def age(column: str) -> Any:
        return (pl.lit(end) - pl.col(column)).dt.total_days().cast(pl.Float64)

    return Replicas(
        names,
        site_names,
        np.searchsorted(np.array(names, str), disk["dataset"].to_numpy().astype(str)),
        np.searchsorted(np.array(site_names, str), disk["site"].to_numpy().astype(str)),
        disk["bytes"].to_numpy().astype(float),
        disk["complete"].to_numpy().astype(bool),
        disk["is_fixed"].to_numpy().astype(bool),
        disk.select(age("since").fill_null(float("nan"))).to_series().to_numpy(),
        every["dataset_size"].to_numpy(),
        every.select(age("created").fill_null(float("nan"))).to_series().to_numpy(),
        every["dataset"].is_in(on_tape.implode()).to_numpy().astype(bool),
    )


@dataclass(frozen=True)
class Space:
    """Bytes of each site, float64, by its number: what its disk takes, and what may be
    copied to it in a week.
    """

    capacity: Array
    budget: Array


#: Site → (capacity, budget a week) in bytes; None if not known.
Room = Mapping[str, tuple[float | None, float | None]]


def read_space(path: Path) -> dict[str, tuple[float | None, float | None]]:
    """Return the space of sites, of a CSV or Parquet file with the columns site,
    capacity, budget and network_gbits; all but the site may be empty. Sizes such as
    ``3PB`` are taken, too. The budget is at most what the network brings in a week.

    Raises as the reader of tables, UsageError (2) for what is no size.
    """
    sizes = ("capacity", "budget")
    may_be_null = (*sizes, "network_gbits")
    table = read_table(
        path, "space", _SPACE, ("site",), numbers=("network_gbits",), may_be_null=may_be_null
    )
    rows = {}
    for row in table.to_dicts():
        # Text of a column of floats, as Parquet files and pandas have it, is 1e+15.
        texts = [str(row.get(name) or "") for name in sizes]
        texts = [str(int(float(text))) if _EXPONENT.fullmatch(text) else text for text in texts]
        capacity, budget = (float(parse_bytes(text)) if text else None for text in texts)
        if (gbits := row.get("network_gbits")) is not None:
            network = gbits * _WEEK_OF_GBIT
            budget = network if budget is None else min(budget, network)
        rows[row["site"]] = (capacity, budget)
    return rows


@dataclass(frozen=True)
class PlacementInputs:
    """Reads under the names of all datasets and sites, replicas as of before a day, and
    the space of each site.

    ``about``: where they come from. ``given_space``: capacity and budget of sites whose
    are known; ``budget``: of all others. ``locked``: patterns of datasets whose copies
    never go.
    """

    reads: Reads
    table_before: Callable[[date], pl.DataFrame]
    about: str
    given_space: Room = field(default_factory=dict)
    budget: float | None = None
    locked: tuple[str, ...] = ()

    def replicas_before(self, day: date) -> Replicas:
        """Return the replicas that are known before a day, with what is locked."""
        replicas = make_replicas(
            self.table_before(day), datasets=self.reads.datasets, sites=self.reads.sites, day=day
        )
        if not self.locked:
            return replicas
        is_locked = np.array([matches(name, self.locked) for name in replicas.datasets], bool)
        return replace(replicas, is_fixed=replicas.is_fixed | is_locked[replicas.dataset])

    def space(self, replicas: Replicas) -> Space:
        """Return the space of each site: what is given, else what lies there now, so that
        copies can only take the place of others. A budget that is not given is unlimited.

        Raises InputMissing (66) if a site is given that has no copy and no read.
        """
        capacity = replicas.used()
        weekly = np.full(len(capacity), np.inf if self.budget is None else self.budget)
        position = {name: number for number, name in enumerate(replicas.sites)}
        for name, (room, limit) in self.given_space.items():
            if name not in position:
                raise InputMissing(
                    f"the site {name} of the space has no copy and no read",
                    found=", ".join(replicas.sites[:10]),
                    next_step="give its name as replicas and logs have it",
                )
            number = position[name]
            capacity[number] = capacity[number] if room is None else room
            weekly[number] = min(weekly[number], np.inf if limit is None else limit)
        return Space(capacity, weekly)


def file_inputs(accesses: Path, replicas: Path) -> PlacementInputs:
    """Return reads and replicas of files."""
    table = read_replicas(replicas)
    reads = read_reads(accesses).named(table["dataset"].to_list(), table["site"].to_list())
    return PlacementInputs(reads, lambda day: table, f"{accesses.name}, {replicas.name}")


def stored_inputs(
    fout: str | None, settings_file: str | None, period: Period | None, cooldown_days: int
) -> PlacementInputs:
    """Return reads of stored days (the last :data:`WEEKS` weeks without a period), and
    stored replicas with what DBS says of the datasets' age.

    A copy that the replicas of ``cooldown_days`` before have not is since the newer
    ones. Raises InputMissing (66) if no partials or no replicas are stored.
    """
    import polars as pl

    store = require_store(fout, load_settings(settings_file))
    files = open_store(store, "cmsspark placement")
    if period is None:
        last, _ = newest(files, store, stored_days.TABLE)
        period = between(last - timedelta(days=7 * WEEKS - 1), last)
    reads = stored_reads(load_days(store, period, "cmsspark placement"))
    as_of, _, table = newest_replicas(files, store, reads.days[-1])
    names = {
        "dataset_name": "dataset",
        "site_name": "site",
        "kind": "kind",
        "present_bytes": "bytes",
        "dataset_bytes": "size",
        "is_complete": "complete",
    }
    frames: dict[date, pl.DataFrame] = {}

    def snapshot(until: date) -> tuple[date, pl.DataFrame]:
        as_of, current, name = newest_replicas(files, store, until)
        if as_of not in frames:
            frame = pl.DataFrame(pl.from_arrow(table_rows(files, current, name, list(names))))
            frame = frame.rename(names).drop_nulls(["dataset", "site"])
            frames[as_of] = frame.with_columns(pl.col("bytes", "size").cast(pl.Float64))
        return as_of, frames[as_of]

    def before(day: date) -> pl.DataFrame:
        until, keys = day - timedelta(days=1), ["dataset", "site", "kind"]
        as_of, frame = snapshot(until)
        with suppress(InputMissing):
            _, current = newest(files, store, "dbs_events", until)
            columns = table_rows(files, current, "dbs_events", ["dataset_name", "created_ms"])
            created = pl.DataFrame(pl.from_arrow(columns)).select(
                dataset="dataset_name", created=pl.from_epoch("created_ms", "ms").cast(pl.Date)
            )
            frame = frame.join(created.unique("dataset"), "dataset", "left")
        with suppress(InputMissing):
            # Copies of which not all may go (rule 67).
            _, current = newest(files, store, "dataset_rses", until)
            columns = ["dataset_name", "site_name", "kind", "bytes", "deletable_bytes"]
            rows = pl.DataFrame(pl.from_arrow(table_rows(files, current, "dataset_rses", columns)))
            is_held = (pl.col("deletable_bytes") < pl.col("bytes")).any()
            locked = rows.group_by(columns[:3]).agg(locked=is_held)
            frame = frame.join(locked.rename(dict(zip(columns, keys, strict=False))), keys, "left")
        with suppress(InputMissing):
            earlier_day, earlier = snapshot(until - timedelta(days=cooldown_days))
            earlier = earlier.select(keys).unique().with_columns(since=pl.lit(earlier_day))
            frame = frame.join(earlier, keys, "left")
            frame = frame.with_columns(pl.col("since").fill_null(as_of))
        return frame

    frame = before(reads.days[-1] + timedelta(days=1))
    about = f"stored days {reads.days[0]} to {reads.days[-1]}, {table} of {as_of}"
    try:
        held_day, _ = newest(files, store, "dataset_rses", reads.days[-1])
        about += f", dataset_rses of {held_day}"
    except InputMissing:
        about += "; what rules hold is not known, as no dataset_rses is stored"
    reads = reads.named(frame["dataset"].to_list(), frame["site"].to_list())
    return PlacementInputs(reads, before, about)
