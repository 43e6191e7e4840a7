"""Plans never remove what is locked; plans of many datasets fit into memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from tests.apps.placement.worlds import run


def test_a_plan_never_removes_what_is_locked(files: list[str]) -> None:
    replicas = Path(files[3])

    def removed() -> set[tuple[str, str]]:
        rows = json.loads(run("recommend", *files, "--json").stdout)["rows"]
        return {(row["dataset"], row["site"]) for row in rows if row["action"] == "remove"}

    before = removed()
    assert before, "something can go without locks"
    replicas.write_text(replicas.read_text().replace(",disk,1e12,y,n", ",disk,1e12,y,y"))
    assert not removed()


_LARGE = """
import resource
from datetime import date, timedelta
import numpy as np
import polars as pl
from cmsspark.apps.placement.inputs import PlacementInputs, make_reads, make_replicas
from cmsspark.apps.placement.plan import Limits, recommend
datasets, sites, reads = 100_000, 100, 1_000_000
generator = np.random.default_rng(1)
names = np.array([f"/P{i % 3000}/C{i % 60}-v{i}/{('AOD', 'RAW', 'MINIAOD')[i % 3]}" for i in range(datasets)])
places = np.array([f"T2_{i:03}" for i in range(sites)])
days = np.datetime64('2026-01-05') + np.sort(generator.integers(0, 56, reads))
accesses = generator.integers(1, 50, reads).astype(float)
table = pl.DataFrame({
    "day": days, "dataset": names[(generator.power(0.2, reads) * datasets).astype(int)],
    "site": places[generator.integers(0, sites, reads)], "accesses": accesses, "bytes": 1e11 * accesses,
})
pairs = np.unique(generator.integers(0, datasets * sites, 200_000))
sizes = generator.lognormal(26, 1.5, datasets)[pairs // sites]
replicas = pl.DataFrame({
    "dataset": names[pairs // sites], "site": places[pairs % sites], "kind": "disk", "bytes": sizes, "size": sizes,
})
inputs = PlacementInputs(make_reads(table), lambda day: replicas, "", budget=1e14)
advice = recommend(inputs, Limits())
print(len(advice.rows.filter(action="copy")), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.long
def test_a_plan_of_100_000_datasets_at_100_sites_takes_less_than_a_gigabyte() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LARGE], capture_output=True, text=True, check=True, timeout=1200
    )
    added, kilobytes = map(int, done.stdout.split())
    assert added > 1_000 and kilobytes < 1_000_000
