"""What DBS and the replicas say of datasets, as features: of stored tables that were
known before a week's Monday.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Final

import msgspec
import numpy as np
from msgspec.structs import replace

from cmsspark.base.arrays import Array

#: Tiers of sites whose disk copies have a column.
SITE_TIERS: Final = ("T0", "T1", "T2", "T3")
#: What a snapshot has of each dataset, by its kind, in order; NaN where it is unknown.
RAW: Final[Mapping[str, tuple[str, ...]]] = {
    "dbs": ("bytes", "files", "events", "created_day", "release"),
    "replicas": (*(f"disk_{tier}" for tier in SITE_TIERS), "tape"),
}
#: The features of each kind.
CATALOGUE_COLUMNS: Final[Mapping[str, tuple[str, ...]]] = {
    "dbs": (
        *("log_dbs_bytes", "log_dbs_files", "log_dbs_events", "log_dbs_age_days"),
        *("release", "is_in_dbs", "is_events_known"),
    ),
    "replicas": (
        *(f"log_disk_copies_{tier.lower()}" for tier in SITE_TIERS),
        "log_tape_copies",
        "is_replicas_known",
    ),
}


class Snapshot(msgspec.Struct, frozen=True):
    """A stored table. ``start``: the number of the Monday from which on it counts, all
    of its inputs are older. ``values``: float64 [raw columns, datasets], NaN where
    unknown. ``table``, ``day``, ``run``: of the stored table.
    """

    start: int
    values: Array
    table: str = ""
    day: str = ""
    run: str = ""


class Catalogue(msgspec.Struct, frozen=True):
    """Snapshots of each kind (``dbs``, ``replicas``) that the store has, in order of their starts."""

    snapshots: Mapping[str, tuple[Snapshot, ...]]

    def until(self, count: int) -> Catalogue:
        """Return the catalogue without the snapshots that count from a later day on
        than day number ``count``.
        """
        return Catalogue(
            {
                kind: tuple(snapshot for snapshot in snapshots if snapshot.start <= count)
                for kind, snapshots in self.snapshots.items()
            }
        )

    def only(self, chosen: Array) -> Catalogue:
        """Return the catalogue of the datasets of these numbers."""
        return Catalogue(
            {
                kind: tuple(
                    replace(snapshot, values=snapshot.values[:, chosen]) for snapshot in every
                )
                for kind, every in self.snapshots.items()
            }
        )

    def created_days(self, day: int) -> Array | None:
        """Return float64 [datasets]: the number of the day on which DBS made each
        dataset, NaN where unknown, by the last table of DBS that counts on day number
        ``day``; None without one.
        """
        usable = [snapshot for snapshot in self.snapshots.get("dbs", ()) if snapshot.start <= day]
        return usable[-1].values[RAW["dbs"].index("created_day")] if usable else None

    def inputs(self) -> dict[str, dict[str, str]]:
        """Stored table → its days → the run whose rows were read."""
        runs: dict[str, dict[str, str]] = {}
        for every in self.snapshots.values():
            for snapshot in every:
                runs.setdefault(snapshot.table, {})[snapshot.day] = snapshot.run
        return runs

    def columns(self, day: int, count: int) -> dict[str, Array]:
        """Feature → float64 [datasets] on day number ``day``; ``count``: of datasets.
        Of each kind the last snapshot that counts on that day; without one all its
        columns are 0, those that say what is known among them.
        """
        columns: dict[str, Array] = {}
        for kind, names in CATALOGUE_COLUMNS.items():
            if kind not in self.snapshots:
                continue
            usable = [snapshot for snapshot in self.snapshots[kind] if snapshot.start <= day]
            if not usable:
                columns |= {name: np.zeros(count) for name in names}
            elif kind == "dbs":
                columns |= _make_dbs_features(usable[-1].values, day)
            else:
                values = usable[-1].values
                columns |= {
                    name: np.log1p(row) for name, row in zip(names[:-1], values, strict=True)
                }
                columns[names[-1]] = np.ones(values.shape[1])
        return columns


def _make_dbs_features(values: Array, day: int) -> dict[str, Array]:
    size, files, events, created, release = values
    is_known = ~np.isnan(files)
    return {
        "log_dbs_bytes": np.log1p(np.nan_to_num(size)),
        "log_dbs_files": np.log1p(np.nan_to_num(files)),
        "log_dbs_events": np.log1p(np.nan_to_num(events)),
        "log_dbs_age_days": np.log1p(np.nan_to_num(np.maximum(day - created, 0))),
        "release": np.nan_to_num(release),
        "is_in_dbs": is_known.astype(float),
        "is_events_known": (~np.isnan(events)).astype(float),
    }
