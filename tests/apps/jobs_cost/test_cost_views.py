"""CMSSpark's own numbers as views (rule 52), beside its formulas on the same jobs."""

from __future__ import annotations

import pytest

from cmsspark.apps.jobs_cost import feeds
from cmsspark.store.query.database import Database
from tests.apps.jobs_cost.cells import count
from tests.apps.jobs_cost.test_cost_cells import DAY
from tests.corpus import costs
from tests.corpus.jobs import job
from tests.corpus.tree import Tree

NOON = 1_781_524_800_000


def _job(number: int, **changes: object) -> bytes:
    values = {
        "GlobalJobId": f"j{number}",
        "Type": "production",
        "Workflow": "W",
        "WMAgent_RequestName": None,
        "RecordTime": NOON,
        "RequestCpus": 4,
        "WallClockHr": 2.0,
        "CpuTimeHr": 6.0,
        "CoreHr": 10.0,
        "CommittedCoreHr": 7.0,
        "CommittedWallClockHr": 1.5,
        "Tier": "T1",
    }
    return job({**costs.COSTS, **values, **changes}, {"timestamp": NOON})


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    root = tmp_path_factory.mktemp("views")
    lines = [
        _job(1),
        _job(2, Tier="T3", CpuTimeHr=2.0),
        _job(3, CpuEffOutlier=1, CpuTimeHr=9.0),
        _job(4, JobFailed=1),
        _job(5, Status="Removed"),
        _job(6, Type="folding@home"),
        _job(7, Workflow="None", CommittedCoreHr=None),
    ]
    Tree(root, DAY).write_lines("condor", lines, parts=1)
    done = count(root, DAY, root / "fout", feeds.CONDOR)
    return Database(done.path.split("/job_efficiency/")[0])


def test_rule_52_the_view_has_cmssparks_numbers_of_jobs_that_did_not_fail(
    database: Database,
) -> None:
    rows = {
        row["Workflow"]: row
        for row in database.query("select * from cmsspark_cpu_efficiency").dicts
    }
    assert rows.keys() == {"W", "None"}
    row = rows["W"]
    # Jobs 1, 2 and 3: CPU 6 + 2 + 9 h; of 3 × 8 core hours by WallClockHr, of 3 × 10 in
    # all starts, of 3 × 7 in the last one.
    assert row["period_kind"] == "day"
    assert row["CpuEfficiency"] == pytest.approx(100 * 17 / 21)
    assert row["AllocatedEfficiency"] == pytest.approx(100 * 17 / 30)
    assert (row["LastCoreHr"], row["EvictedCoreHr"]) == (21, 9)
    assert row["period"] == DAY.isoformat()
    assert row["CpuEff"] == pytest.approx(100 * 17 / 24)
    assert row["NonEvictionEff"] == pytest.approx(100 * 17 / 21)
    assert row["EvictionAwareEffDiff"] == pytest.approx(100 * 17 / 21 - 100 * 17 / 24)
    assert row["ScheduleEff"] == pytest.approx(100 * 4.5 / 6)
    assert row["WastedCpuTimeHr"] == pytest.approx(30 - 17)
    assert row["CpuEffT1T2"] == pytest.approx(100 * 15 / 16)
    assert row["WastedCpuTimeHrT1T2"] == pytest.approx(20 - 15)
    assert rows["None"]["NonEvictionEff"] is None


def test_rule_52_the_view_by_tier(database: Database) -> None:
    rows = database.query(
        'select "Tier", "CpuEff" from cmsspark_cpu_efficiency_by_tier where "Workflow" = \'W\''
    ).rows
    assert dict(rows) == {"T1": pytest.approx(100 * 15 / 16), "T3": pytest.approx(100 * 2 / 8)}


def test_rule_52_the_views_are_listed_and_described(database: Database) -> None:
    listed = {row["table_name"]: row for row in database.query("show tables").dicts}
    for view in ("cmsspark_cpu_efficiency", "cmsspark_cpu_efficiency_by_tier"):
        assert listed[view]["stored_count"] == 1
        assert listed[view]["first_day"] == DAY
        described = database.query(f"describe {view}")
        assert "Stored: 1 day, " in described.note
        columns = database.query(f"select * from {view}").names
        assert [row["column_name"] for row in described.dicts] == columns
        assert all(row["meaning"] for row in described.dicts)
