"""Locks of a table keep copies; plans of many datasets fit into memory."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path

import pytest

from cmsspark.apps.placement.inputs import read_locks
from cmsspark.base import errors
from tests.apps.placement.worlds import A, B, run

COLD = "/Cold/x/AOD"


def test_a_lock_of_a_table_is_at_its_site_and_without_a_site_everywhere(tmp_path: Path) -> None:
    table = tmp_path / "locks.csv"
    table.write_text(f"block,rse\n{COLD}#1-2,{A}_Disk\n/Hot/x/AOD,{B}_Tape\n")
    assert read_locks(table) == {(COLD, A)}, "a lock on tape keeps nothing on disk"
    table.write_text(f"dataset,site\n{COLD},\n/Gone/x/AOD,{A}\n")
    assert read_locks(table) == {(COLD, None), ("/Gone/x/AOD", A)}


def test_rows_of_dataset_rses_lock_what_may_not_go_whole(tmp_path: Path) -> None:
    """Rule 67. The storage element says what is on tape, where the site does not."""
    table = tmp_path / "dataset_rses.csv"
    table.write_text(
        "dataset_name,rse,site_name,bytes,deletable_bytes\n"
        f"{COLD},{A}_Disk,{A},10,9\n/Free/x/AOD,{A}_Disk,{A},10,10\n"
        f"/Empty/x/AOD,{A}_Disk,{A},0,0\n/Tape/x/AOD,{A}_Tape,{A},10,0\n"
    )
    assert read_locks(table) == {(COLD, A)}


def test_the_exceptions_of_the_settings_name_the_site_of_a_lock(tmp_path: Path) -> None:
    table, exceptions = tmp_path / "locks.csv", tmp_path / "rses.yaml"
    table.write_text(f"dataset,rse\n{COLD},T2_Odd\n")
    exceptions.write_text("sites:\n  T2_Odd: T2_XX_Even\n")
    assert read_locks(table) == {(COLD, "T2_Odd")}
    assert read_locks(table, str(exceptions)) == {(COLD, "T2_XX_Even")}


def test_the_folder_of_a_dump_is_refused_with_what_to_store(
    files: list[str], tmp_path: Path
) -> None:
    error = run("recommend", *files, "--locks", str(tmp_path)).exception
    assert isinstance(error, errors.UsageError)
    assert "run_spark dataset_rses" in error.text()


def test_a_plan_never_removes_what_is_locked(files: list[str], tmp_path: Path) -> None:
    def removed(*words: str) -> set[tuple[str, str]]:
        rows = json.loads(run("recommend", *files, *words, "--json").stdout)["rows"]
        return {(row["dataset"], row["site"]) for row in rows if row["action"] == "remove"}

    before = removed()
    assert before, "something can go without locks"
    table = tmp_path / "locks.csv"
    table.write_text("dataset,site\n" + "".join(f"{dataset},{site}\n" for dataset, site in before))
    assert not removed("--locks", str(table)) & before
    missing = run("recommend", *files, "--locks", str(tmp_path / "none.csv")).exception
    assert isinstance(missing, errors.InputMissing)


_LARGE = """
import resource
from datetime import date, timedelta
import numpy as np
from cmsspark.apps.placement.inputs import Reads, Replicas, make_space
from cmsspark.apps.placement.plan import expected, make_plan
datasets, sites, reads = 100_000, 100, 1_000_000
generator = np.random.default_rng(1)
names = tuple(sorted(f"/P{i % 3000}/C{i % 60}-v{i}/{('AOD', 'RAW', 'MINIAOD')[i % 3]}" for i in range(datasets)))
places = tuple(f"T2_{i:03}" for i in range(sites))
days = tuple(date(2026, 1, 5) + timedelta(days=i) for i in range(56))
columns = [np.sort(generator.integers(0, 56, reads)), (generator.power(0.3, reads) * datasets).astype(int),
           generator.integers(0, sites, reads), generator.integers(1, 50, reads).astype(float)]
made = Reads(days, names, places, *columns, np.zeros(reads), np.zeros(reads), 1e11 * columns[3])
pairs = np.unique(generator.integers(0, datasets * sites, 200_000))
sizes, unknown = generator.lognormal(26, 1.5, datasets), np.full(datasets, np.nan)
number, site = pairs // sites, pairs % sites
replicas = Replicas(names, places, number, site, sizes[number], np.ones(len(pairs), bool), np.zeros(len(pairs), bool),
                    unknown[number], sizes, unknown, np.zeros(datasets, bool))
plan = make_plan(replicas, expected(made, replicas), make_space(replicas, {}, 1e14))
print(len(plan.added), resource.getrusage(resource.RUSAGE_SELF).ru_maxrss)
"""


@pytest.mark.long
def test_a_plan_of_100_000_datasets_at_100_sites_takes_less_than_a_gigabyte() -> None:
    done = subprocess.run(
        [sys.executable, "-c", _LARGE], capture_output=True, text=True, check=True, timeout=1200
    )
    added, kilobytes = map(int, done.stdout.split())
    assert added > 1_000 and kilobytes < 1_000_000
