"""What plans of copies are made from: reads of datasets at sites by day, copies on disk,
and the space of each site; from files or from stored days.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping
from contextlib import suppress
from datetime import date, timedelta
from pathlib import Path
from typing import Final

import msgspec
import polars as pl
from msgspec.structs import replace

from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.names import KINDS, site_and_kind
from cmsspark.base.periods import Period, between
from cmsspark.base.text.sizes import parse_bytes
from cmsspark.cli.options import require_store
from cmsspark.cli.period_options import load_days
from cmsspark.counting.rollup import matches
from cmsspark.settings.settings import load_settings
from cmsspark.store import stored_days
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import newest, newest_replicas, open_store, table_rows
from cmsspark.store.stored_days import StoredDays
from cmsspark.store.table_files import read_table

#: What a demand and a copy are of.
PAIR: Final = ["dataset", "site"]
#: Columns of files: name → other names that are taken for it, those of stored tables too.
_DATASET, _SITE = ("dataset_name",), ("site_name",)
_READS: Final = {
    "day": (),
    "dataset": _DATASET,
    "site": _SITE,
    "accesses": ("nacc",),
    "bytes": ("read_bytes",),
}
_REPLICAS: Final = {
    "dataset": _DATASET,
    "site": (*_SITE, "node", "node_name", "rse"),
    "bytes": ("present_bytes",),
    "kind": (),
    "size": ("dataset_bytes",),
    "complete": ("is_complete",),
    "locked": ("is_locked",),
    "custodial": ("is_custodial",),
    "since": (),
}
_SPACE: Final = {"site": _SITE, "capacity": ("bytes",), "budget": (), "network_gbits": ()}
_FLAGS: Final = ("complete", "locked", "custodial")
#: What replicas may lack, and the types.
_OPTIONAL: Final = {
    **dict.fromkeys(_FLAGS, pl.Boolean()),
    "size": pl.Float64(),
    "since": pl.Date(),
}
#: Where an access counts whose log names no site.
_NO_SITE: Final = "unknown"
#: How a column of floats is written.
_EXPONENT: Final = re.compile(r"\d+(\.\d+)?e\+?\d{1,2}")
#: Bytes that one Gbit/s brings in a week.
_WEEK_OF_GBIT: Final = 1e9 / 8 * 7 * 86_400
#: Weeks of stored days that are read without a period.
WEEKS: Final = 26


class Reads(msgspec.Struct, frozen=True):
    """``rows``: day, dataset, site, accesses, and bytes read (0 if unknown), each (day,
    dataset, site) once; of the days from ``first`` on, before ``end``. ``dropped``:
    accesses that name no site, which no copy can serve.
    """

    rows: pl.DataFrame
    first: date
    end: date
    dropped: int = 0

    @property
    def has_bytes(self) -> bool:
        """Whether any read has bytes."""
        return bool((self.rows["bytes"] > 0).any())

    def before(self, day: date) -> Reads:
        """Return the reads of the days before ``day``."""
        return replace(self, rows=self.rows.filter(pl.col("day") < day), end=day)


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
    which may have no row. Raises InputMissing (66) if no row names a site.
    """
    if "bytes" not in table.columns:
        table = table.with_columns(bytes=0.0)
    is_somewhere = pl.col("site").is_not_null() & (pl.col("site") != _NO_SITE)
    sums = pl.col("accesses", "bytes").cast(pl.Float64).sum()
    rows = table.filter(is_somewhere).group_by("day", "dataset", "site").agg(sums)
    if rows.is_empty():
        raise InputMissing(
            "no access names a site", next_step="give days whose logs name the sites of jobs"
        )
    days = {*table["day"].unique().to_list(), *stored}
    dropped = table.filter(~is_somewhere)["accesses"].sum()
    end = max(days) + timedelta(days=1)
    return Reads(rows.sort("day", "dataset", "site"), min(days), end, int(dropped))


def stored_reads(stored: StoredDays) -> Reads:
    """Return the accesses of stored days, all their streams together. Jobs are no accesses.

    Raises DataError (65) if a day's partials are damaged.
    """
    sums = pl.col("nacc", "read_bytes").cast(pl.Float64).sum()
    frames = [
        frame.drop_nulls("dataset_name")
        .group_by(dataset="dataset_name", site="site_name")
        .agg(sums, day=pl.lit(day))
        for day, frame in stored.accesses(["dataset_name", "site_name", "nacc", "read_bytes"])
    ]
    table = pl.concat(frames).rename({"nacc": "accesses", "read_bytes": "bytes"})
    return make_reads(table, stored.partials)


class Replicas(msgspec.Struct, frozen=True):
    """``copies``: those on disk: dataset, site, bytes, is_complete, is_fixed (locked or
    custodial: it never goes), and days since it was made, null if unknown.

    ``datasets``: dataset, size (bytes of the whole), age in days (null if unknown),
    copies (complete ones on disk), and on_tape, whether a complete one is there. That is
    no copy on disk, and no plan touches it. ``sites``: all that have something.
    """

    copies: pl.DataFrame
    datasets: pl.DataFrame
    sites: tuple[str, ...]


def read_replicas(path: Path) -> pl.DataFrame:
    """Return rows of replicas of a CSV or Parquet file. Names of nodes
    (``T1_US_FNAL_MSS``) become those of their sites, and give the kind if the file has
    none.

    Raises as :func:`cmsspark.store.table_files.read_table`; DataError (65) for another kind.
    """
    table = read_table(
        path,
        "replicas",
        _REPLICAS,
        ("dataset", "site", "bytes"),
        numbers=("bytes", "size"),
        flags=_FLAGS,
        may_be_null=("size", "since", *_FLAGS),
    )
    nodes = [site_and_kind(name) for name in table["site"].to_list()]
    sites, kinds = (pl.Series([node[part] for node in nodes], dtype=pl.String) for part in (0, 1))
    kinds = table.get_column("kind", default=kinds).str.to_lowercase()
    if unknown := set(kinds.to_list()) - set(KINDS):
        raise DataError(
            f"{min(unknown)!r} is no kind of storage",
            where=path,
            next_step=f"name kinds {', '.join(KINDS)}, or leave the column out",
        )
    return table.with_columns(site=sites, kind=kinds)


def make_replicas(table: pl.DataFrame, day: date, locked: tuple[str, ...] = ()) -> Replicas:
    """Return the copies of rows as of the start of ``day``. Several rows of one dataset
    and site are added up, and those since ``day`` or later are left out. Copies of
    datasets that match a pattern of ``locked`` are fixed.

    The size of a dataset is that of its rows, else its largest copy, on disk or not.
    Without a column ``complete``, a copy of that size is complete. A dataset is as old as ``created``
    says, else as its first copy.
    """
    missing = {name: kind for name, kind in _OPTIONAL.items() if name not in table.columns}
    table = table.with_columns(pl.lit(None, kind).alias(name) for name, kind in missing.items())
    if "created" not in table.columns:
        table = table.with_columns(created=pl.col("since").min().over("dataset"))
    # A column without a value has no type of its own.
    table = table.with_columns(pl.col("since", "created").cast(pl.Date()))
    table = table.filter(pl.col("since").is_null() | (pl.col("since") < day), pl.col("bytes") > 0)
    copies = table.group_by("dataset", "site", "kind").agg(
        pl.col("bytes").sum(),
        pl.col("complete").all(ignore_nulls=False),
        pl.col("size").max(),
        pl.col("created").min(),
        is_fixed=pl.any_horizontal(pl.col("locked", "custodial").fill_null(False)).any(),
        days=(pl.lit(day) - pl.col("since").max()).dt.total_days(),
    )
    given_size = pl.col("size").filter(pl.col("size") > 0).max()
    datasets = copies.group_by("dataset").agg(
        size=pl.coalesce(given_size, pl.col("bytes").max()).cast(pl.Float64),
        age=(pl.lit(day) - pl.col("created").min()).dt.total_days(),
    )
    is_locked = pl.Series(
        [matches(name, locked) for name in datasets["dataset"]], dtype=pl.Boolean
    )
    copies = copies.drop("size").join(
        datasets.with_columns(is_locked=is_locked), "dataset", "left"
    )
    # What stored tables call complete may lie on disk and tape of a site together.
    is_whole = pl.col("bytes") >= pl.col("size")
    is_named_so = pl.col("complete") & (is_whole | (pl.len().over("dataset", "site") == 1))
    copies = copies.with_columns(
        pl.col("is_fixed") | pl.col("is_locked"),
        is_complete=pl.when(pl.col("complete").is_null()).then(is_whole).otherwise(is_named_so),
    )
    complete = (
        copies.filter("is_complete")
        .group_by("dataset")
        .agg(
            copies=(pl.col("kind") == "disk").sum().cast(pl.Int64),
            on_tape=(pl.col("kind") == "tape").any(),
        )
    )
    datasets = datasets.join(complete, "dataset", "left").with_columns(
        pl.col("copies").fill_null(0), pl.col("on_tape").fill_null(False)
    )
    columns = ("dataset", "site", "bytes", "is_complete", "is_fixed", "days")
    on_disk_now = copies.filter(kind="disk").select(columns).sort("dataset", "site")
    return Replicas(on_disk_now, datasets, tuple(table["site"].unique()))


#: Site → (capacity, budget a week) in bytes; None if not known.
Room = Mapping[str, tuple[float | None, float | None]]


def read_space(path: Path) -> dict[str, tuple[float | None, float | None]]:
    """Return the space of sites, of a CSV or Parquet file with the columns site,
    capacity, budget and network_gbits; all but the site may be empty. Sizes such as
    ``3PB`` are taken, too. The budget is at most what the network brings in a week.

    Raises as the reader of tables, DataError (65) for a site with several rows, UsageError
    (2) for what is no size.
    """
    sizes = ("capacity", "budget")
    may_be_null = (*sizes, "network_gbits")
    table = read_table(
        path, "space", _SPACE, ("site",), numbers=("network_gbits",), may_be_null=may_be_null
    )
    rows = {}
    for row in table.to_dicts():
        if row["site"] in rows:
            raise DataError(
                f"the space has the site {row['site']} more than once",
                where=path,
                next_step="keep one of its rows",
            )
        texts = [str(row.get(name) or "") for name in sizes]
        texts = [str(int(float(text))) if _EXPONENT.fullmatch(text) else text for text in texts]
        capacity, budget = (float(parse_bytes(text)) if text else None for text in texts)
        if (gbits := row.get("network_gbits")) is not None:
            network = gbits * _WEEK_OF_GBIT
            budget = network if budget is None else min(budget, network)
        rows[row["site"]] = (capacity, budget)
    return rows


class PlacementInputs(msgspec.Struct, frozen=True):
    """Reads, replicas as of before a day, and the space of each site.

    ``about``: where they come from. ``given_space``: capacity and budget of sites whose
    are known; ``budget``: of all others. ``locked``: patterns of datasets whose copies
    never go.
    """

    reads: Reads
    table_before: Callable[[date], pl.DataFrame]
    about: str
    given_space: Room = msgspec.field(default_factory=dict)
    budget: float | None = None
    locked: tuple[str, ...] = ()

    def replicas_before(self, day: date) -> Replicas:
        """Return the replicas that are known before a day, with what is locked."""
        return make_replicas(self.table_before(day), day, self.locked)

    def space(self, replicas: Replicas) -> pl.DataFrame:
        """Return a row for each site: site, used, capacity, budget. The capacity is what
        is given, else what lies there now, so that copies can only take the place of
        others. A budget that is not given is infinite.

        Raises InputMissing (66) if a site is given that has no copy and no read.
        """
        sites = sorted({*replicas.sites, *self.reads.rows["site"].unique()})
        if unknown := [name for name in self.given_space if name not in sites]:
            raise InputMissing(
                f"the site {unknown[0]} of the space has no copy and no read",
                found=", ".join(sites[:10]),
                next_step="give its name as replicas and logs have it",
            )
        numbers = dict.fromkeys(("capacity", "budget"), pl.Float64())
        given = [(name, *room) for name, room in self.given_space.items()]
        used = replicas.copies.group_by("site").agg(used=pl.col("bytes").sum())
        most = pl.lit(math.inf if self.budget is None else self.budget)
        return (
            pl.DataFrame({"site": sites}, {"site": pl.String()})
            .join(used, "site", "left")
            .join(
                pl.DataFrame(given, {"site": pl.String(), **numbers}, orient="row"), "site", "left"
            )
            .with_columns(pl.col("used").fill_null(0.0), budget=pl.min_horizontal("budget", most))
            .select("site", "used", pl.coalesce("capacity", "used"), "budget")
        )


def file_inputs(accesses: Path, replicas: Path) -> PlacementInputs:
    """Return reads and replicas of files."""
    table = read_replicas(replicas)
    about = f"{accesses.name}, {replicas.name}"
    return PlacementInputs(read_reads(accesses), lambda day: table, about)


#: Stored columns of replicas → their names here.
_STORED: Final = {
    "dataset_name": "dataset",
    "site_name": "site",
    "kind": "kind",
    "present_bytes": "bytes",
    "dataset_bytes": "size",
    "is_complete": "complete",
}


def stored_inputs(
    fout: str | None, settings_file: str | None, period: Period | None, cooldown_days: int
) -> PlacementInputs:
    """Return reads of stored days (the last :data:`WEEKS` weeks without a period), and
    stored replicas with what DBS says of the datasets' age.

    A copy that the replicas of ``cooldown_days`` before have not is since the newer
    ones. Raises InputMissing (66) if no partials or no replicas are stored.
    """
    store = require_store(fout, load_settings(settings_file))
    files = open_store(store, "cmsspark placement")
    if period is None:
        last, _ = newest(files, store, stored_days.TABLE)
        period = between(last - timedelta(days=7 * WEEKS - 1), last)
    reads = stored_reads(load_days(store, period, "cmsspark placement"))
    keys = ["dataset", "site", "kind"]

    def rows(current: CurrentTable, table: str, *columns: str) -> pl.DataFrame:
        frame = pl.DataFrame(pl.from_arrow(table_rows(files, current, table, columns)))
        return frame.rename(_STORED, strict=False)

    snapshots: dict[date, pl.DataFrame] = {}

    def snapshot(until: date) -> tuple[date, pl.DataFrame]:
        as_of, current, table = newest_replicas(files, store, until)
        if as_of not in snapshots:
            frame = rows(current, table, *_STORED).drop_nulls(["dataset", "site"])
            snapshots[as_of] = frame.with_columns(pl.col("bytes", "size").cast(pl.Float64))
        return as_of, snapshots[as_of]

    def before(day: date) -> pl.DataFrame:
        until = day - timedelta(days=1)
        as_of, frame = snapshot(until)
        with suppress(InputMissing):
            _, current = newest(files, store, "dbs_events", until)
            created = rows(current, "dbs_events", "dataset_name", "created_ms").select(
                "dataset", created=pl.from_epoch("created_ms", "ms").cast(pl.Date)
            )
            frame = frame.join(created.unique("dataset"), "dataset", "left")
        with suppress(InputMissing):
            # Copies of which not all may go (rule 67).
            _, current = newest(files, store, "dataset_rses", until)
            names = ("dataset_name", "site_name", "kind", "bytes", "deletable_bytes")
            is_held = (pl.col("deletable_bytes") < pl.col("bytes")).any()
            locked = rows(current, "dataset_rses", *names).group_by(keys).agg(locked=is_held)
            # Of a copy that it does not have nothing is known.
            frame = frame.join(locked, keys, "left").with_columns(pl.col("locked").fill_null(True))
        with suppress(InputMissing):
            earlier_day, earlier = snapshot(until - timedelta(days=cooldown_days))
            earlier = earlier.select(keys).unique().with_columns(since=pl.lit(earlier_day))
            frame = frame.join(earlier, keys, "left")
            frame = frame.with_columns(pl.col("since").fill_null(as_of))
        return frame

    last = reads.end - timedelta(days=1)
    as_of, _, table = newest_replicas(files, store, last)
    about = f"stored days {reads.first} to {last}, {table} of {as_of}"
    try:
        about += f", dataset_rses of {newest(files, store, 'dataset_rses', last)[0]}"
    except InputMissing:
        about += "; what rules hold is not known, as no dataset_rses is stored"
    return PlacementInputs(reads, before, about)
