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
from cmsspark.apps.placement.inputs import PlacementInputs, Reads, Replicas
from cmsspark.apps.placement.plan import expected, make_plan
datasets, sites, reads = 100_000, 100, 1_000_000
generator = np.random.default_rng(1)
names = tuple(sorted(f"/P{i % 3000}/C{i % 60}-v{i}/{('AOD', 'RAW', 'MINIAOD')[i % 3]}" for i in range(datasets)))
places = tuple(f"T2_{i:03}" for i in range(sites))
days = tuple(date(2026, 1, 5) + timedelta(days=i) for i in range(56))
columns = [np.sort(generator.integers(0, 56, reads)), (generator.power(0.3, reads) * datasets).astype(int),
           generator.integers(0, sites, reads), generator.integers(1, 50, reads).astype(float)]
made = Reads(days, names, places, *columns, 1e11 * columns[3])
pairs = np.unique(generator.integers(0, datasets * sites, 200_000))
sizes, unknown = generator.lognormal(26, 1.5, datasets), np.full(datasets, np.nan)
number, site = pairs // sites, pairs % sites
replicas = Replicas(names, places, number, site, sizes[number], np.ones(len(pairs), bool), np.zeros(len(pairs), bool),
                    unknown[number], sizes, unknown, np.zeros(datasets, bool))
plan = make_plan(replicas, expected(made, replicas), PlacementInputs(made, None, '', budget=1e14).space(replicas))
print(len(plan.added), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.long
def test_a_plan_of_100_000_datasets_at_100_sites_takes_less_than_a_gigabyte() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LARGE], capture_output=True, text=True, check=True, timeout=1200
    )
    added, kilobytes = map(int, done.stdout.split())
    assert added > 1_000 and kilobytes < 1_000_000
