"""The pages Efficiency and HPC over a stored day: their numbers, their conditions, and
hostile addresses.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest

from cmsspark.apps.dashboard.page_request import PageRequest, Parameters
from cmsspark.apps.dashboard.pages import efficiency, hpc
from cmsspark.apps.dashboard.widgets import Chart, Content, Table
from cmsspark.apps.jobs_cost.feeds import CONDOR
from cmsspark.base.errors import UsageError
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store import staged_runs
from cmsspark.store.query.database import Database
from tests.apps.jobs_cost.cells import count
from tests.apps.jobs_cost.test_cost_cells import DAY
from tests.corpus import costs
from tests.corpus.jobs import job
from tests.corpus.tree import Tree

NOON = 1_781_524_800_000
HOSTILE = "<b>W&'\"%"


def _record(name: str, **changes: object) -> bytes:
    values = {
        "GlobalJobId": name,
        "Type": "production",
        "Workflow": HOSTILE,
        "RecordTime": NOON,
        "RequestCpus": 4,
        "WallClockHr": 2.0,
        "CpuTimeHr": 6.0,
        "CoreHr": 8.0,
        "CommittedCoreHr": 8.0,
        "CommittedWallClockHr": 2.0,
        "Site": "T3_US_NERSC",
        "Tier": "T3",
    }
    return job({**costs.COSTS, **values, **changes}, {"timestamp": NOON})


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    root = tmp_path_factory.mktemp("pages")
    lines = [
        _record("1"),
        _record("2", JobFailed=1),
        _record("3", Workflow="other", Site="T2_CH_CERN"),
        _record("4", CpuEffOutlier=1, Workflow="short"),
        _record("5", Status="Running"),
    ]
    Tree(root, DAY).write_lines("condor", lines, parts=1)
    done = count(root, DAY, root / "fout", CONDOR)
    return Database(done.path.split("/job_efficiency/")[0])


def _view(database: Database, page: Any, **parameters: str) -> Content:
    request = PageRequest(
        page.PAGE.title.lower(), Parameters(parameters), lambda: None, database, Path("/none")
    )  # type: ignore[arg-type,return-value]
    content: Content = page.PAGE.content(request)
    return content


def _table(content: Content, name: str) -> Table:
    parts = [part for section in content.sections for part in section.items]
    tables = [part.table if isinstance(part, Chart) else part for part in parts]
    return next(table for table in tables if isinstance(table, Table) and table.name == name)


def test_workflows_come_by_wasted_core_hours_with_a_link_to_their_sites(
    database: Database,
) -> None:
    table = _table(_view(database, efficiency), "workflows")
    first, other, short = table.visible
    # 8 - 6 h of the job that is ok, all 8 h of the one that failed.
    assert (first[1], *first[3:6]) == (10, 16, 8, 2)
    assert first[2] == pytest.approx(0.75)
    href = table.links["workflow"]({"workflow": first[0]})
    assert "workflow=" in href and "<" not in href
    assert (other[1], *other[3:6]) == (2, 8, 0, 1)
    # An outlier wastes nothing, and is among the jobs that did not fail.
    assert (short[1], *short[3:6]) == (0, 8, 0, 1)
    assert short[2] == pytest.approx(0.75)
    sites = _table(_view(database, efficiency, workflow=HOSTILE), "sites")
    assert [(row[0], row[5]) for row in sites.visible] == [("T3_US_NERSC", 2)]


def test_conditions_and_search_choose_jobs(database: Database) -> None:
    assert len(_table(_view(database, efficiency, site="T2_CH_CERN"), "workflows").visible) == 1
    assert len(_table(_view(database, efficiency, q="OTH er"), "workflows").visible) == 1
    assert not _table(_view(database, efficiency, q="%"), "outliers").visible
    outliers = _table(_view(database, efficiency), "outliers")
    assert [row[0] for row in outliers.visible] == ["short"]
    for wrong in (
        {"site": "x"},
        {"from": "2026-01-01", "to": "2025-01-01"},
        {"type": "' OR 1=1"},
        {"q": "x" * 2000},
    ):
        with pytest.raises(UsageError):
            _view(database, efficiency, **wrong)


def test_hpc_has_cores_by_hour_and_core_hours_by_month(database: Database) -> None:
    content = _view(database, hpc)
    assert _table(content, "hpc_cores").visible == [("NERSC", 12, 0.8, 4.0, 1)]
    assert _table(content, "hpc_months").visible == [("2026-06", "NERSC", "T3_US_NERSC", 24, 3, 1)]
    figures = {figure.label: figure for figure in content.sections[0].items[0].figures}
    assert (
        figures["Core hours in 2026-06"].value == "24" and figures["Largest HPC"].value == "NERSC"
    )
    assert figures["Core hours in 2026-06"].note == "1 of 30 days stored"
    assert figures["Cores"].value == "0.0333", "a mean below half a core is not none"
    other = _view(database, hpc, day="2026-06-20")
    assert other.sections[0].items[0].figures[0].value == "–", (
        "a day that is not stored has no number"
    )
    assert any("silent" in note.text for note in content.notes)
    with pytest.raises(UsageError):
        _view(database, hpc, hpc="CERN")


def _chart(content: Content, name: str) -> Chart:
    charts = [
        part for section in content.sections for part in section.items if isinstance(part, Chart)
    ]
    return next(chart for chart in charts if chart.name == name)


def _store(store: Path, tables: dict[str, list[dict[str, Any]]]) -> Database:
    """A day of costs with the rows of some tables."""
    run = staged_runs.stage(LocalFiles(), str(store), "job_efficiency", date(2026, 6, 15))
    for name in ("job_efficiency", "core_hours", "running_cores"):
        run.write_arrow(
            pa.Table.from_pylist(tables.get(name, []), stored_table(name).arrow()), name
        )
    run.commit({"warnings": []})
    return Database(str(store))


def test_an_hour_with_records_of_other_jobs_has_no_cores_and_a_silent_one_no_number(
    tmp_path: Path,
) -> None:
    row = {
        "day": date(2026, 6, 15),
        "subsite": None,
        "type": "production",
        "timestamp": 0,
        "job_windows": 1,
    }
    rows = [
        {
            **row,
            "site": "T2_CH_CERN",
            "hpc": None,
            "hour": hour,
            "window_count": 5,
            "core_windows_milli": 5_000,
        }
        for hour in (1, 2)
    ]
    rows.append({**rows[0], "site": "T3_US_NERSC", "hpc": "NERSC"})
    content = _view(_store(tmp_path, {"running_cores": rows}), hpc)
    assert _chart(content, "hpc_cores").series["NERSC"][:4] == [None, 1.0, 0, None]
    (note,) = content.notes
    assert note.text.endswith(": 00, " + ", ".join(f"{hour:02}" for hour in range(3, 24)) + ".")
    assert ("NERSC", "NERSC") in (content.controls[1].choices or ()), (
        "where jobs run and none has ended yet"
    )


def test_days_without_a_job_have_a_place_among_those_with_core_hours(database: Database) -> None:
    last = DAY + timedelta(days=2)
    chart = _chart(
        _view(database, efficiency, **{"from": str(DAY - timedelta(days=1)), "to": str(last)}),
        "outcomes",
    )
    assert chart.labels == [str(DAY + timedelta(days=number)) for number in (-1, 0, 1, 2)]
    assert [values[0] for values in chart.series.values()] == [None] * len(chart.series)


def test_core_hours_of_a_month_are_rounded_after_they_are_added(tmp_path: Path) -> None:
    values = {
        "day": date(2026, 6, 15),
        "subsite": None,
        "hpc": "NERSC",
        "type": "production",
        "timestamp": 0,
    }
    counts = {"job_count": 1, "core_ms": 144_000, "cpu_ms": 0, "hs06_cpu_ms": 0}
    rows = [{**values, **counts, "site": f"T3_US_NERSC_{number}"} for number in range(10)]
    months = _chart(_view(_store(tmp_path, {"core_hours": rows}), hpc), "hpc_months")
    assert months.series == {"NERSC": [0.4]}, "ten sites of 0.04 core hours each"


def test_an_empty_store_says_what_to_run(tmp_path: Path) -> None:
    for page in (efficiency, hpc):
        content = _view(Database(str(tmp_path)), page)
        assert "run_spark job_efficiency" in content.notes[0].text
