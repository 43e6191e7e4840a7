"""The demo's records of what jobs cost, counted by the jobs."""

from __future__ import annotations

from datetime import date
from pathlib import Path

import numpy as np

from cmsspark.apps.demo.condor_records import condor_lines, report_folder, report_lines
from cmsspark.apps.demo.world import make_world
from cmsspark.apps.jobs_cost.feeds import CONDOR, WMARCHIVE
from tests.apps.jobs_cost.cells import count, rows
from tests.corpus.tree import Tree

DAY = date(2026, 1, 15)


def test_the_jobs_count_the_demos_records(tmp_path: Path) -> None:
    rng = np.random.default_rng(1)
    world = make_world(rng, datasets=30, files=300, people=20)
    tree = Tree(tmp_path, DAY)
    lines, bins = condor_lines(world, rng, DAY, 0, 2000, is_first=True, fields=5)
    tree.write_lines("condor", [line.encode() for line in lines])
    tree.write_lines("wmarchive", [line.encode() for line in report_lines(world, rng, DAY, 600)])
    assert report_folder(tmp_path, DAY) == tree.folder("wmarchive")
    jobs = count(tmp_path, DAY, tmp_path / "fout", CONDOR)
    found = jobs.manifest.reconciliation["condor_costs"]
    # Of other types, and without an input, jobs cost all the same.
    counted = sum(
        bins[name] for name in ("matched", "other_type", "no_input", "user_file", "not_in_dbs")
    )
    assert (found["matched"], found["repeated"], found["malformed"]) == (
        counted,
        bins["repeated"],
        bins["malformed"],
    )
    outcomes = {key[7] for key in rows(jobs, "job_efficiency")}
    assert outcomes == {"ok", "outlier", "failed", "removed"}
    assert {key[2] for key in rows(jobs, "core_hours")} >= {None, "CINECA", "HOREKA"}
    assert rows(jobs, "running_cores")
    reports = count(tmp_path, DAY, tmp_path / "fout", WMARCHIVE)
    assert reports.manifest.reconciliation["wmarchive"]["repeated"] > 5
    assert len(rows(reports, "agent_reports")) == 3
