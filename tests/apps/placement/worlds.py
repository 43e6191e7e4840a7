"""Hand-made worlds of reads and copies for tests of placement."""

from __future__ import annotations

import math
from datetime import date, timedelta
from typing import Any

import polars as pl
from click.testing import CliRunner, Result

from cmsspark.apps.placement.inputs import (
    PlacementInputs,
    Reads,
    Replicas,
    make_reads,
    make_replicas,
)
from cmsspark.main import command

FIRST = date(2026, 1, 5)  # a Monday
HOT, COLD, NEW = "/Muon/Run1-v1/AOD", "/Old/Run0-v1/AOD", "/Muon/Run2-v1/AOD"
A, B, C = "T1_US_A", "T2_DE_B", "T2_CH_C"
TB = 1e12


def reads_of(*rows: tuple[int, str, str, float], weeks: int = 4, **columns: Any) -> Reads:
    """Reads of rows (day, dataset, site, accesses) of a tenth of a TB each; a read of
    another dataset at A fixes the first and last day.
    """
    rows = (*rows, (0, "/Clock/x/RAW", A, 1), (7 * weeks - 1, "/Clock/x/RAW", A, 1))
    table = {
        "day": [FIRST + timedelta(days=row[0]) for row in rows],
        "dataset": [row[1] for row in rows],
        "site": [row[2] for row in rows],
        "accesses": [float(row[3]) for row in rows],
        "bytes": [row[3] * TB / 10 for row in rows],
    }
    return make_reads(pl.DataFrame({**table, **columns}))


def copies_of(
    *rows: dict[str, Any], day: date = FIRST + timedelta(days=28), locked: tuple[str, ...] = ()
) -> Replicas:
    full = [
        {"kind": "disk", "bytes": TB, "complete": True, "locked": False, "custodial": False, **row}
        for row in rows
    ]
    return make_replicas(pl.DataFrame(full), day, locked)


def copy(dataset: str, site: str, **other: Any) -> dict[str, Any]:
    return {"dataset": dataset, "site": site, **other}


def full(replicas: Replicas, **capacity: float) -> pl.DataFrame:
    """Each site is full with what lies there, except those given."""
    given = {name: (room, None) for name, room in capacity.items()}
    reads = reads_of(*((0, HOT, site, 1) for site in (A, B, C)))
    return PlacementInputs(reads, lambda day: pl.DataFrame(), "made", given).space(replicas)


def space_of(capacity: float, budget: float = math.inf) -> pl.DataFrame:
    """The same room at each site."""
    sites = [A, B, C]
    same = {"used": 0.0, "capacity": capacity, "budget": budget}
    return pl.DataFrame({"site": sites, **{name: [size] * 3 for name, size in same.items()}})


def run(*arguments: str) -> Result:
    return CliRunner().invoke(command, ["placement", *arguments])
