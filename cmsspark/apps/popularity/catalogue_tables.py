"""The catalogue of datasets from the stored tables ``dbs_events``, ``dbs_phedex`` and
``dbs_rucio``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import date, timedelta
from typing import Final

import numpy as np
import polars as pl

from cmsspark.apps.popularity.dataset_catalogue import RAW, SITE_TIERS, Catalogue, Snapshot
from cmsspark.base.arrays import Array
from cmsspark.base.periods import start_ms
from cmsspark.filesystems.storage import Files
from cmsspark.store import results
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import REPLICA_TABLES, stored_days, table_rows

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


@dataclass(frozen=True)
class _StoredTable:
    """A stored table. ``day``: its own; ``known_since``: that of its newest input,
    maybe a later dump.
    """

    name: str
    day: date
    known_since: date
    current: CurrentTable


@dataclass(frozen=True)
class StoredTables:
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
            known_since = _newest_input(day, current)
            if known_since is not None:
                tables.append(_StoredTable(name, day, known_since, current))
    return tables


def _newest_input(day: date, table: CurrentTable) -> date | None:
    """Return the day of the newest that the table was made from; None where a dump has no date."""
    dumps = [dump.day for dump in table.manifest.dumps.values()]
    dated = [dump_day for dump_day in dumps if dump_day is not None]
    return max([day, *dated]) if len(dated) == len(dumps) else None


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
