"""Daily use of datasets: from a user's file, or from stored days."""

from __future__ import annotations

import hashlib
from collections.abc import Iterable, Mapping, Sequence
from datetime import date, timedelta
from pathlib import Path
from typing import Any, Final

import msgspec
import numpy as np
import polars as pl
from msgspec.structs import replace

from cmsspark.apps.popularity.dataset_catalogue import RAW, SITE_TIERS, Catalogue, Snapshot
from cmsspark.apps.popularity.dataset_reads import DatasetReads, DayReads, day_reads, join_reads
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError, InputMissing
from cmsspark.base.periods import start_ms
from cmsspark.base.text.terminal import pluralize
from cmsspark.filesystems.storage import Files
from cmsspark.store import results
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import REPLICA_TABLES, stored_days, table_rows
from cmsspark.store.stored_days import StoredDays
from cmsspark.store.table_files import read_table

#: Measures of a day and dataset; ``accesses`` is needed, others are 0 where a series has none.
MEASURES: Final = ("accesses", "users", "bytes", "cpus")
_NEEDED: Final = ("day", "dataset", "accesses")
#: Columns of a file: name → other names that are taken for it, those of stored tables among them.
COLUMNS: Final = {
    "day": ("date", "access_day"),
    "dataset": ("dataset_name",),
    "accesses": ("nacc", "access_count"),
    "users": ("distinct_users",),
    "bytes": ("read_bytes",),
    "cpus": ("cpu_time", "cpu_seconds"),
}
#: Days for which the creation in DBS alone keeps a dataset in the population: those of
#: the longest stored series.
ENTRY_DAYS: Final = 182
#: Days times datasets of a series: four measures of so many take 6 GB.
_MOST_CELLS: Final = 200_000_000


class Series(msgspec.Struct, frozen=True):
    """``values``: float64 [measures, days, datasets], 0 where nothing was used.
    ``days`` are consecutive.

    ``missing``: days without any row; they count as days without use, and reports name
    them. ``first_rows``: the number of the day of each dataset's first row, which may
    be one without use; without it that of its first use. ``catalogue``: what stored
    tables say of the datasets; ``reads``: from where and by whom they were read. A
    series of a file has neither. ``inputs``: what it was read from: the run of
    each stored day and table, or the name and digest of a file.
    """

    days: tuple[date, ...]
    datasets: tuple[str, ...]
    values: Array
    missing: tuple[date, ...] = ()
    first_rows: Array | None = None
    catalogue: Catalogue | None = None
    reads: DatasetReads | None = None
    inputs: Mapping[str, Any] = msgspec.field(default_factory=dict)

    @property
    def size_text(self) -> str:
        """How many datasets it has, in words."""
        return pluralize(len(self.datasets), "dataset")

    @property
    def is_known(self) -> Array:
        """bool [datasets]: whether a day of the series has a row of the dataset."""
        return np.asarray(self._first_rows < len(self.days))

    def population(self, day: int) -> Array:
        """Return bool [datasets]: which had entered before day number ``day``, by what
        was known on the series' end.

        A dataset enters with its first row, which may be one without use, or, for
        :data:`ENTRY_DAYS` days, with its creation in DBS.
        """
        created = self.created_days(len(self.days))
        is_created = (created < day) & (created >= day - ENTRY_DAYS)
        return np.asarray((self._first_rows < day) | is_created)

    def created_days(self, day: int) -> Array:
        """Return float64 [datasets]: the number of the day on which DBS made each
        dataset, by what is known on day ``day``; NaN where unknown.
        """
        created = None if self.catalogue is None else self.catalogue.created_days(day)
        return np.full(len(self.datasets), np.nan) if created is None else created

    @property
    def _first_rows(self) -> Array:
        if self.first_rows is not None:
            return self.first_rows
        is_used = self.values.any(0)
        return np.where(is_used.any(0), np.argmax(is_used, 0), len(self.days))

    @property
    def accesses(self) -> Array:
        """float64 [days, datasets]."""
        return np.asarray(self.values[0])

    def until(self, count: int) -> Series:
        """Return the series that ends before day number ``count``."""
        return replace(
            self,
            days=self.days[:count],
            values=self.values[:, :count],
            missing=(),
            inputs={},
            catalogue=self.catalogue and self.catalogue.until(count),
            reads=self.reads and self.reads.until(count),
        )

    def only(self, chosen: Array) -> Series:
        """Return the series of the datasets of these numbers, which ascend."""
        numbers = chosen.tolist()
        return replace(
            self,
            datasets=tuple(self.datasets[number] for number in numbers),
            inputs={},
            values=np.ascontiguousarray(self.values[:, :, chosen]),
            first_rows=None if self.first_rows is None else self.first_rows[chosen],
            catalogue=self.catalogue and self.catalogue.only(chosen),
            reads=self.reads and self.reads.only(chosen),
        )

    def mondays(self, weeks: int = 1) -> list[int]:
        """Return numbers of the days on which a week starts whose ``weeks`` weeks are all there."""
        last = len(self.days) - 7 * weeks
        return [
            number for number, day in enumerate(self.days) if day.weekday() == 0 and number <= last
        ]


def read_series(path: Path) -> Series:
    """Return the series of a CSV or Parquet file with the columns day, dataset,
    accesses, and optionally users, bytes, cpus.

    Rows of one day and dataset are added up; users, bytes and cpus may be null. Raises as
    :func:`cmsspark.store.table_files.read_table`, DataError (65) for more than fits into memory.
    """
    measures = MEASURES[1:]
    table = read_table(path, "accesses", COLUMNS, _NEEDED, numbers=MEASURES, may_be_null=measures)
    first, last = table["day"].min(), table["day"].max()
    assert isinstance(first, date) and isinstance(last, date)
    count = table["dataset"].n_unique()
    days = (last - first).days + 1
    actual = f"{first} to {last}, {count:,} datasets"
    if days * count > _MOST_CELLS:
        raise DataError(
            "the accesses are too many days of too many datasets for the memory of one process",
            where=path,
            found=actual,
            next_step="leave out early days, or days that are mistakes",
        )
    series = make_series(table)
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return replace(series, inputs={"file": {"name": path.name, "sha256": digest}})


def make_series(
    table: pl.DataFrame, names: Sequence[str] = (), stored: Iterable[date] = ()
) -> Series:
    """Build a series of rows (day, dataset, measures), of the datasets ``names`` and of
    the days ``stored``, which may have no row.

    Rows of one day and dataset are added up in their order: the sum of fractions does
    not depend on other rows.
    """
    all_days = {*table["day"].unique().to_list(), *stored}
    first, last = min(all_days), max(all_days)
    days = tuple(first + timedelta(days=number) for number in range((last - first).days + 1))
    datasets = (
        pl.concat([table["dataset"], pl.Series("dataset", names, pl.String)]).unique().sort()
    )
    column = table["dataset"].cast(pl.Enum(datasets)).to_physical().to_numpy()
    row = (table["day"].to_numpy().astype("datetime64[D]") - np.datetime64(first)).astype(int)
    values = np.zeros((len(MEASURES), len(days), len(datasets)))
    for number, name in enumerate(MEASURES):
        if name in table.columns:
            np.add.at(values[number], (row, column), table[name].fill_null(0).to_numpy())
    present = set(row.tolist())
    missing = tuple(day for number, day in enumerate(days) if number not in present)
    first_rows = np.full(len(datasets), len(days))
    np.minimum.at(first_rows, column, row)
    return Series(days, tuple(datasets.to_list()), values, missing, first_rows)


def stored_series(stored: StoredDays) -> Series:
    """Return the series of stored days: accesses, distinct users, bytes and CPU seconds
    of each dataset over all streams of accesses. Jobs are another measure, and are not
    among them. Its catalogue comes from stored tables of DBS and replicas, where there
    are some.

    Raises DataError (65) where a day's partials are damaged, or two keys of pseudonyms
    are mixed.
    """

    stored.key_id()
    frames, reads = [], list[DayReads]()
    names_of_columns = ("stream", "dataset_name", "site_name", "user")
    counted = ("nacc", "remote_nacc", "read_bytes", "cpu_time")
    for day, frame in stored.accesses([*names_of_columns, *counted]):
        reads.append(day_reads(day, frame))
        frames.append(
            frame.group_by(dataset=pl.col("dataset_name")).agg(
                day=pl.lit(day),
                accesses=pl.col("nacc").sum().cast(pl.Float64),
                users=pl.col("user").drop_nulls().n_unique().cast(pl.Float64),
                bytes=pl.col("read_bytes").cast(pl.Float64).sum(),
                cpus=pl.col("cpu_time").cast(pl.Float64).sum(),
            )
        )
    table = pl.concat(frames)
    if table.is_empty():
        raise InputMissing("the stored days have no accesses", next_step="choose other days")
    names: Sequence[str] = ()
    tables = stored_tables(stored.files, stored.fout, stored.period.days)
    if tables is not None:
        names = tables.created_since(min(stored.partials) - timedelta(days=ENTRY_DAYS))
    series = make_series(table, names, stored.partials)
    series = replace(series, reads=join_reads(reads, series.days[0], series.datasets))
    catalogue = None if tables is None else tables.catalogue(series.days, series.datasets)
    days = {
        day.isoformat(): table.manifest.rows_run for day, table in sorted(stored.partials.items())
    }
    inputs = {} if catalogue is None else catalogue.inputs()
    return replace(series, catalogue=catalogue, inputs={"days": days, "tables": inputs})


# The catalogue of datasets from the stored tables ``dbs_events``, ``dbs_phedex`` and
# ``dbs_rucio``.

#: The tables of each kind; of tables that are known since the same day the first one is taken.
_TABLES: Final = {"dbs": ("dbs_events",), "replicas": REPLICA_TABLES}
_DBS: Final = (
    "dataset_name",
    "dataset_bytes",
    "file_count",
    "events",
    "created_ms",
    "release_versions",
)
_REPLICAS: Final = (
    "dataset_name",
    "site_name",
    "kind",
    "site_tier",
    "present_bytes",
    "dataset_bytes",
    "is_complete",
)
#: Days before the series whose tables may be the newest ones on its first Monday.
_EARLIER_DAYS: Final = 35
_RELEASE: Final = r"CMSSW_(\d+)_(\d+)_"
_MS: Final = 86_400_000


class _StoredTable(msgspec.Struct, frozen=True):
    """A stored table. ``day``: its own; ``known_since``: that of its newest input,
    maybe a later dump.
    """

    name: str
    day: date
    known_since: date
    current: CurrentTable


class StoredTables(msgspec.Struct, frozen=True):
    """The stored tables of DBS and replicas that count in the weeks of ``days``: kind →
    (Monday, table).
    """

    files: Files
    fout: str
    days: Sequence[date]
    by_kind: Mapping[str, Sequence[tuple[date, _StoredTable]]]

    def created_since(self, first: date) -> list[str]:
        """Return the datasets that DBS made on ``first`` or later, by any of the tables."""
        names: set[str] = set()
        for _, table in self.by_kind.get("dbs", ()):
            columns = table_rows(
                self.files, table.current, table.name, ("dataset_name", "created_ms")
            )
            rows = pl.DataFrame(pl.from_arrow(columns))
            names.update(
                rows.filter(pl.col("created_ms") >= start_ms(first))["dataset_name"].to_list()
            )
        return sorted(names)

    def catalogue(self, days: Sequence[date], datasets: Sequence[str]) -> Catalogue:
        """Return the snapshots of these datasets; numbers of days count from the first
        of ``days``.

        Raises DataError (65) where a table is damaged.
        """
        return Catalogue(
            {
                kind: tuple(
                    Snapshot(
                        (monday - days[0]).days,
                        _values(self.files, table, days[0], datasets),
                        table.name,
                        table.day.isoformat(),
                        table.current.manifest.rows_run,
                    )
                    for monday, table in chosen
                )
                for kind, chosen in self.by_kind.items()
            }
        )


def stored_tables(files: Files, fout: str, days: Sequence[date]) -> StoredTables | None:
    """Choose the tables that count on the ``days``; None where the store has none.

    On a day the newest table counts that was known before its week's Monday: a dump
    that served a day may be of the day after it. A table whose dump has no date is left
    out.
    """
    by_kind = {}
    for kind, names in _TABLES.items():
        tables = [table for name in names for table in _tables(files, fout, name, days)]
        if tables:
            by_kind[kind] = _by_monday(tables, days)
    return StoredTables(files, fout, days, by_kind) if by_kind else None


def _tables(files: Files, fout: str, name: str, days: Sequence[date]) -> list[_StoredTable]:
    first, last = days[0] - timedelta(days=_EARLIER_DAYS), days[-1]
    tables = []
    for day in stored_days(files, fout, name):
        if first <= day <= last:
            current = results.current(files, fout, name, name, day)
            # The day of the newest that the table was made from; None where a dump has
            # no date.
            dumps = [dump.day for dump in current.manifest.dumps.values()]
            dated = [dump_day for dump_day in dumps if dump_day is not None]
            known_since = max([day, *dated]) if len(dated) == len(dumps) else None
            if known_since is not None:
                tables.append(_StoredTable(name, day, known_since, current))
    return tables


def _by_monday(
    tables: Sequence[_StoredTable], days: Sequence[date]
) -> list[tuple[date, _StoredTable]]:
    """(Monday, the newest table known before it) for the weeks of the days and the
    next, where tables change.
    """
    monday = days[0] - timedelta(days=days[0].weekday())
    chosen: list[tuple[date, _StoredTable]] = []
    while monday <= days[-1] + timedelta(days=1):
        before = [table for table in tables if table.known_since < monday]
        if before:
            newest = max(before, key=lambda table: table.known_since)
            if not chosen or chosen[-1][1] is not newest:
                chosen.append((monday, newest))
        monday += timedelta(days=7)
    return chosen


def _values(files: Files, table: _StoredTable, first: date, datasets: Sequence[str]) -> Array:
    """Return float64 [raw columns, datasets] of a table."""
    is_dbs = table.name in _TABLES["dbs"]
    columns = _DBS if is_dbs else _REPLICAS
    rows = pl.DataFrame(pl.from_arrow(table_rows(files, table.current, table.name, columns)))
    requested = pl.DataFrame({"dataset_name": list(datasets)}, schema={"dataset_name": pl.String})
    rows = rows.join(requested, "dataset_name", "semi")
    frame = _select_dbs(rows, first) if is_dbs else _copies(rows)
    names = RAW["dbs" if is_dbs else "replicas"]
    joined = requested.join(frame, "dataset_name", "left", maintain_order="left")
    joined = joined.select(pl.col(names).cast(pl.Float64))
    # What the replicas do not name has no copy; what DBS does not name is unknown.
    filled = joined.fill_null(float("nan") if is_dbs else 0.0)
    return np.ascontiguousarray(filled.to_numpy().T)


def _select_dbs(rows: pl.DataFrame, first: date) -> pl.DataFrame:
    # The newest of several as a number: 10.06 of CMSSW_10_6_8.
    major, minor = (pl.element().str.extract(_RELEASE, group).cast(pl.Float64) for group in (1, 2))
    releases = pl.col("release_versions").str.extract_all(_RELEASE).list.eval(major + minor / 100)
    return rows.select(
        "dataset_name",
        "events",
        release=releases.list.max(),
        bytes="dataset_bytes",
        files="file_count",
        created_day=(pl.col("created_ms") - start_ms(first)).floordiv(_MS),
    )


def _copies(rows: pl.DataFrame) -> pl.DataFrame:
    """dataset_name and the number of sites with a complete copy on disk, by tier, and
    with one on tape.

    What the table calls complete may lie on several kinds of storage of a site
    together: then the bytes decide.
    """
    complete = rows.filter(
        pl.col("is_complete")
        & (
            (pl.col("present_bytes") >= pl.col("dataset_bytes"))
            | (pl.len().over("dataset_name", "site_name") == 1)
        )
    )
    disk = {
        f"disk_{tier}": ((pl.col("kind") == "disk") & (pl.col("site_tier") == tier)).sum()
        for tier in SITE_TIERS
    }
    return complete.group_by("dataset_name").agg(**disk, tape=(pl.col("kind") == "tape").sum())
