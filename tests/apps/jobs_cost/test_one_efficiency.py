"""One definition of efficiency: the page, the views, MONIT's panels and the lines for
CMSSpark's scripts show the same number, and documented queries that of a day on a store
of three days. All expectations are written by hand.
"""

from __future__ import annotations

import hashlib
import re
import shlex
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cmsspark.apps.dashboard.page_request import PageRequest, Parameters
from cmsspark.apps.dashboard.pages import efficiency as page
from cmsspark.base import efficiency
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store import staged_runs
from cmsspark.store.query.database import Database
from cmsspark.submit.cmsspark_lines import COST_LINES
from cmsspark.submit.old_scripts import OldLine
from tools import panels

HOUR = 3_600_000
DAY = date(2026, 1, 15)
DAYS = [DAY + timedelta(days=number) for number in (-1, 0, 1)]
#: Jobs of a workflow on DAY by outcome: hours of core_ms, last_core_ms, CPU (None: no
#: job reports it) and evicted_core_ms. The other days have ten times these.
JOBS: list[tuple[str, str, float, float, float | None, float]] = [
    ("W", "ok", 48, 16, 15.2, 32),
    ("W", "outlier", 4, 4, 4.8, 0),
    ("W", "failed", 8, 8, 1, 0),
    ("W", "removed", 40, 40, 0, 0),
    # Jobs that do not report their CPU time.
    ("W", "ok", 100, 100, None, 0),
    ("V", "ok", 10, 8, 4, 2),
]
#: CPU 15.2 + 4.8 h, of 16 + 4 h in the last start and 48 + 4 h in all.
CPU, ALLOCATED = 20 / 20, 20 / 52


def jobs_row(day: date, number: int, scale: int) -> dict[str, Any]:
    workflow, outcome, core, last, cpu, evicted = JOBS[number]
    names = [column.name for column in stored_table("job_efficiency").columns]
    row: dict[str, Any] = dict.fromkeys(names, 0)
    texts = {
        "type": "production",
        "job_type": f"kind{number}",
        "workflow": workflow,
        "request": None,
        "site": "T1_US_FNAL",
        "subsite": None,
        "tier": "T1",
        "outcome": outcome,
    }
    hours = {
        "core_ms": core,
        "last_core_ms": last,
        "evicted_core_ms": evicted,
        "cpu_ms": cpu or 0,
        "core_with_cpu_ms": 0 if cpu is None else core,
        "last_core_with_cpu_ms": 0 if cpu is None else last,
        "wall_core_with_cpu_ms": 0 if cpu is None else core,
    }
    sums = {name: round(value * scale * HOUR) for name, value in hours.items()}
    return row | texts | sums | {"day": day, "job_count": scale}


def _cores_row(day: date, hour: int, cores: int) -> dict[str, Any]:
    place = {"site": "T3_US_NERSC", "subsite": None, "hpc": "NERSC", "type": "production"}
    windows = {"hour": hour, "window_count": 5, "core_windows_milli": 5 * cores * 1000}
    return {"day": day, **place, **windows, "job_windows": 5, "timestamp": 0}


def _cache_row(day: date, hit: int, missed: int) -> dict[str, Any]:
    names = [column.name for column in stored_table("xcache").columns]
    counts = {"file_count": 3, "hit_bytes": hit, "missed_bytes": missed, "remote_bytes": missed}
    return dict.fromkeys(names, 0) | {"day": day, "site_name": "T2_US_UCSD"} | counts


def write(
    store: Path,
    job: str,
    interval: Any,
    tables: dict[str, list[dict[str, Any]]],
    more: dict[str, Any] | None = None,
) -> None:
    run = staged_runs.stage(LocalFiles(), str(store), job, interval)
    for name, rows in tables.items():
        run.write_arrow(pa.Table.from_pylist(rows, stored_table(name).arrow()), name)
    run.commit({"warnings": [], **(more or {})})


@pytest.fixture(scope="module")
def database(tmp_path_factory: pytest.TempPathFactory) -> Database:
    store = tmp_path_factory.mktemp("three_days")
    for day in DAYS:
        scale = 1 if day == DAY else 10
        jobs = [jobs_row(day, number, scale) for number in range(len(JOBS))]
        cores = [_cores_row(day, hour, 100 * scale) for hour in (0, 23)]
        tables = {"job_efficiency": jobs, "running_cores": cores, "core_hours": []}
        write(store, "job_efficiency", day, tables)
        write(store, "xcache", day, {"xcache": [_cache_row(day, 300 * scale, 100 * scale)]})
    period: dict[str, Any] = {"period": "2026-01", "first_day": DAY, "last_day": DAY}
    rows = [
        {name: value for name, value in jobs_row(DAY, number, 1).items() if name != "day"}
        | period
        | {"day_count": 3}
        for number in range(len(JOBS))
    ]
    from cmsspark.base.periods import month

    write(
        store, "job_efficiency_period", month("2026-01", date.max), {"period_job_efficiency": rows}
    )
    return Database(str(store))


#: The documented queries on what jobs cost.
DOCUMENTED = [
    shlex.split(line)[2]
    for line in (Path(__file__).resolve().parents[3] / "docs" / "jobs.md")
    .read_text(encoding="utf-8")
    .splitlines()
    if line.startswith("cmsspark sql ") and "account_usage" not in line
]
#: The rows of each query of docs/jobs.md on DAY, by a word of it.
EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "xcache": [("T2_US_UCSD", 3, 0.75, 100)],
    "evicted_core_hours": [
        ("W", pytest.approx(CPU), pytest.approx(ALLOCATED), 32),
        ("V", 0.5, pytest.approx(0.4), 2),
    ],
    "lost_core_hours": [("W", 48)],
    "cmsspark_cpu_efficiency": [
        ("V", pytest.approx(50), pytest.approx(40)),
        ("W", pytest.approx(100 * CPU), pytest.approx(100 * ALLOCATED)),
    ],
    "running_cores": [("NERSC", 0, 100), ("NERSC", 23, 100)],
}


@pytest.mark.parametrize("query", DOCUMENTED)
def test_a_documented_query_gives_the_number_of_a_day_on_a_store_of_three(
    database: Database, query: str
) -> None:
    (word,) = [word for word in EXPECTED if word in query]
    assert database.query(query).rows == EXPECTED[word]


def test_each_expectation_is_of_a_documented_query() -> None:
    assert len(DOCUMENTED) == len(EXPECTED)


def test_page_views_panels_and_lines_show_one_efficiency(database: Database) -> None:
    request = PageRequest(
        "efficiency",
        Parameters({"from": str(DAY), "to": str(DAY)}),
        lambda: None,  # type: ignore[arg-type,return-value]
        database,
        Path("/none"),
    )
    content = page.view(request)
    figures = {figure.label: figure for figure in content.sections[0].items[0].figures}
    # W and V: 24 h of CPU of 28 h in the last start.
    assert figures["CPU efficiency"].value == f"{24 / 28:.1%}"
    assert efficiency.POPULATION in str(figures["CPU efficiency"])
    assert figures["Evicted"].value == "34"
    # Idle and evicted hours of ok jobs, and all of the failed and the removed ones.
    assert figures["Wasted"].value == f"{(48 - 15.2) + (10 - 4) + 8 + 40:,.0f}"
    workflows = {row[0]: row for row in content.sections[1].items[0].visible}
    (row,) = (row for name, row in workflows.items() if "W" in name)
    assert row[2] == pytest.approx(CPU)
    assert row[6] == pytest.approx(ALLOCATED)
    (shown,) = database.query(
        'select "CpuEfficiency", "AllocatedEfficiency" from cmsspark_cpu_efficiency'
        f" where period_kind = 'day' and period = '{DAY}' and \"Workflow\" = 'W'"
    ).rows
    assert shown == (pytest.approx(100 * CPU), pytest.approx(100 * ALLOCATED))
    ratios = [panel for panel in panels.JOB_EFFICIENCY.panels if panel.ratio]
    assert {panel.ratio for panel in ratios} == {efficiency.CPU}
    assert all(efficiency.POPULATION in panel.title for panel in ratios)
    assert {panel.only for panel in ratios} == {"outcome:(ok OR outlier)"}
    options = {"--start_date": "2026-01-15", "--end_date": "2026-01-17"}
    script = "condor_cpu_efficiency"
    line = COST_LINES[script](OldLine(script, options=options))[-1]
    of_line = {row[0]: row[1] for row in database.query(shlex.split(line)[2]).rows}
    # CMSSpark's default leaves outliers out, and its end is excluded.
    assert of_line == {"W": pytest.approx(100 * 15.2 / 16), "V": pytest.approx(50)}


def test_days_that_were_counted_before_a_sum_existed_are_in_neither_sum(tmp_path: Path) -> None:
    write(
        tmp_path,
        "job_efficiency",
        DAY,
        {"job_efficiency": [jobs_row(DAY, 5, 1)], "running_cores": [], "core_hours": []},
    )
    database = Database(str(tmp_path))
    query = f"SELECT {efficiency.ratio_sql(efficiency.CPU)} FROM ({{}})"
    old = "SELECT * REPLACE (NULL::BIGINT AS last_core_with_cpu_ms) FROM job_efficiency"
    both = f"SELECT * FROM job_efficiency UNION ALL ({old})"
    assert database.query(query.format(both)).rows == [(0.5,)]
    assert database.query(query.format(old)).rows == [(None,)]


def test_the_queries_of_the_documentation_on_sql_name_a_day() -> None:
    text = (Path(__file__).resolve().parents[3] / "docs" / "sql.md").read_text(encoding="utf-8")
    queries = re.findall(r'^cmsspark sql "(select .*?)"', text, re.MULTILINE)
    sums = [query for query in queries if "sum(" in query or "count(" in query]
    assert sums
    assert all("where day " in query for query in sums)


def test_the_page_names_days_whose_sums_an_earlier_version_did_not_have(tmp_path: Path) -> None:
    old = {
        "last_core_ms",
        "evicted_core_ms",
        *(name for name in stored_table("job_efficiency").names if "_with_c" in name),
    }
    for day in DAYS[:2]:
        rows = [jobs_row(day, 5, 1)]
        tables = {"job_efficiency": rows, "running_cores": [], "core_hours": []}
        write(tmp_path, "job_efficiency", day, tables)
    (part,) = (tmp_path / "job_efficiency" / str(DAYS[0]) / "runs").glob("*/job_efficiency/part-*")
    (manifest,) = (tmp_path / "job_efficiency" / str(DAYS[0]) / "runs").glob("*/manifest.json")
    table, size = pq.read_table(part), part.stat().st_size
    digest = hashlib.sha256(part.read_bytes()).hexdigest()
    pq.write_table(table.select([name for name in table.column_names if name not in old]), part)
    text = manifest.read_text()
    for before, after in (
        (digest, hashlib.sha256(part.read_bytes()).hexdigest()),
        (str(size), str(part.stat().st_size)),
        (stored_table("job_efficiency").fingerprint(), "0" * 12),
    ):
        text, count = re.subn(rf"\b{before}\b", after, text)
        assert count
    manifest.write_text(text)
    request = PageRequest(
        "efficiency",
        Parameters({"from": str(DAYS[0]), "to": str(DAYS[1])}),
        lambda: None,  # type: ignore[arg-type,return-value]
        Database(str(tmp_path)),
        Path("/none"),
    )
    content = page.view(request)
    assert any("1 day of these, counted by earlier rules" in note.text for note in content.notes)
    figures = {figure.label: figure for figure in content.sections[0].items[0].figures}
    assert figures["CPU efficiency"].value == "50.0%"
    assert figures["Core hours"].value == "20"
