"""Pages of stored tables leave out no part of their selection: each table and chart, by
each filter and period, beside plain SQL over Parquet of a store whose days are incomplete.
"""

from __future__ import annotations

import html
import io
import json
import random
import re
import urllib.request
from collections.abc import Iterator
from datetime import date, timedelta
from typing import Any
from urllib.parse import urlencode

import duckdb
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store import staged_runs
from tests.apps.dashboard.conftest import Running, serving
from tests.apps.dashboard.stores import LAST, partial_rows, store_day

#: The days that are stored, of eight: one is missing, and one has a table without rows.
DAYS = [LAST - timedelta(days=back) for back in (7, 6, 5, 3, 2, 1, 0)]
EMPTY = DAYS[2]
PERIODS = [(DAYS[0], LAST), (DAYS[1], DAYS[4]), (DAYS[2], DAYS[2] + timedelta(days=1))]
TEXTS = {
    "type": ("production", "analysis"),
    "tier": ("T1", "T2"),
    "site": ("T1_US_FNAL", "T2_CH_CERN", "T2_'x"),
    "workflow": ("alpha_one", "beta_one", None),
    "outcome": ("ok", "outlier", "failed", "removed"),
    "request": ("first_request", "other_request"),
    "task": ("/first/a", "/other/b"),
    "step": ("cmsRun1", "cmsRun2"),
    "hpc": ("NERSC", "PSC"),
    "host": ("agent1", "agent2"),
    "day": DAYS,
}
NUMBERS = {"hour": 24, "window_count": 6}
TABLES = {
    "job_efficiency": ("job_efficiency", "running_cores", "core_hours"),
    "step_efficiency": ("step_efficiency", "agent_reports"),
}


def rows(table: str, day: date, rng: random.Random) -> list[dict[str, Any]]:
    """Made-up rows of a day."""
    result = []
    for _ in range(0 if day == EMPTY else 40):
        row: dict[str, Any] = {"day": day}
        for column in stored_table(table).columns:
            if column.name in TEXTS and column.name != "day":
                row[column.name] = rng.choice(TEXTS[column.name])
            elif column.type in ("long", "double") and column.name != "timestamp":
                row[column.name] = rng.randrange(NUMBERS.get(column.name, 10**7))
        result.append({"timestamp": 0} | row)
    return result


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Running]:
    folder, rng = tmp_path_factory.mktemp("cost_selection"), random.Random(5)
    store = folder / "store"
    for day in DAYS:
        for job, tables in TABLES.items():
            run = staged_runs.stage(LocalFiles(), str(store), job, day)
            for table in tables:
                arrow = pa.Table.from_pylist(rows(table, day, rng), stored_table(table).arrow())
                run.write_arrow(arrow, table)
            run.commit({"warnings": []})
    store_day(store, LAST, partial_rows(LAST))
    with serving(store, folder) as running:
        yield running


def plain(served: Running, table: str, sql: str, *values: Any) -> list[tuple[Any, ...]]:
    """Rows of SQL over all Parquet files of a table, called ``t``."""
    files = f"{served.store}/*/*/runs/*/{table}/*.parquet"
    source = f" read_parquet('{files}', hive_partitioning = false) "
    return duckdb.execute(sql.replace(" t ", source), list(values)).fetchall()


def download(served: Running, page: str, name: str, **parameters: Any) -> list[dict[str, Any]]:
    """Return the rows of a download, which CSV has as many of."""
    query = urlencode({**parameters, "download": name}, doseq=True)
    with urllib.request.urlopen(f"{served.base}/{page}?{query}&format=parquet") as answer:
        result: list[dict[str, Any]] = pq.read_table(io.BytesIO(answer.read())).to_pylist()
    with urllib.request.urlopen(f"{served.base}/{page}?{query}&format=csv") as answer:
        assert answer.read().count(b"\n") == len(result) + 1
    return result


def chart_sums(served: Running, page: str, name: str, **parameters: Any) -> dict[str, float]:
    """Return the sums of the series that the script of a page gets for a chart."""
    with urllib.request.urlopen(f"{served.base}/{page}?{urlencode(parameters)}") as answer:
        text = answer.read().decode()
    charts = map(json.loads, map(html.unescape, re.findall(r'data-chart="([^"]*)"', text)))
    (chart,) = [chart for chart in charts if chart["name"] == name] or [{"series": []}]
    return {
        series["name"]: sum(value or 0 for value in series["values"]) for series in chart["series"]
    }


FILTERS: list[dict[str, str]] = [
    {},
    {"type": "analysis"},
    {"site": "T2_'x"},
    {"tier": "T1", "type": "production"},
    {"q": "ONE alp"},
    {"workflow": "beta_one", "site": "T1_US_FNAL"},
]


def where(filters: dict[str, str], period: tuple[date, date], text: str) -> tuple[str, list[Any]]:
    """Return the condition and its values; ``text``: the column of the search."""
    conditions, values = ["day BETWEEN ? AND ?"], [*period]
    for name, value in filters.items():
        words = value.split() if name == "q" else [value]
        conditions += [f"{text} ILIKE '%' || ? || '%'" if name == "q" else f"{name} = ?"] * len(
            words
        )
        values += words
    return " AND ".join(conditions), values


def near(value: float | None) -> Any:
    return None if value is None else pytest.approx(value)


@pytest.mark.parametrize("period", PERIODS, ids=str)
@pytest.mark.parametrize("filters", FILTERS, ids=str)
def test_efficiency(served: Running, filters: dict[str, str], period: tuple[date, date]) -> None:
    condition, values = where(filters, period, "workflow")
    address: dict[str, Any] = {"from": period[0], "to": period[1], **filters}
    for key in ("site",) if "workflow" in filters else ("site", "workflow"):
        shown = download(served, "efficiency", f"{key}s", **address)
        expected = plain(
            served,
            "job_efficiency",
            f"SELECT {key}, sum(job_count), sum(core_ms) / 3.6e6, sum(evicted_core_ms) / 3.6e6, "
            "sum(core_ms) FILTER (outcome IN ('failed', 'removed')) / 3.6e6 "
            f"FROM t WHERE {condition} GROUP BY 1",
            *values,
        )
        names = ("jobs", "core_hours", "evicted", "lost")
        assert {row[key]: tuple(row[name] for name in names) for row in shown} == {
            row[0]: (row[1], near(row[2]), near(row[3]), near(row[4] or 0)) for row in expected
        }
    expected = plain(
        served,
        "job_efficiency",
        f"SELECT day, outcome, sum(core_ms) / 3.6e6 FROM t WHERE {condition} GROUP BY 1, 2",
        *values,
    )
    shown = download(served, "efficiency", "outcomes", **address)
    cells = {(row["day"], row["outcome"]): row["core_hours"] for row in shown}
    assert cells == {row[:2]: near(row[2]) for row in expected}
    sums: dict[str, float] = {}
    for _, outcome, hours in expected:
        sums[outcome] = sums.get(outcome, 0) + hours
    # Pictures have tenths.
    drawn = chart_sums(served, "efficiency", "outcomes", **address)
    assert drawn == {name: pytest.approx(total, abs=0.5) for name, total in sums.items()}
    shown = download(served, "efficiency", "outliers", **address)
    expected = plain(
        served,
        "job_efficiency",
        f"SELECT workflow, site, sum(job_count) FROM t WHERE {condition} "
        "AND outcome = 'outlier' GROUP BY 1, 2",
        *values,
    )
    assert {(row["workflow"], row["site"], row["jobs"]) for row in shown} == {*expected}
    # All stored months, as the page says.
    every, own_values = where(filters, (date.min, date.max), "workflow")
    shown = download(served, "efficiency", "hs23", **address)
    expected = plain(
        served,
        "job_efficiency",
        "SELECT strftime(day, '%Y-%m'), tier, sum(hs06_cpu_ms) / 3.6e6 "
        f"FROM t WHERE {every} GROUP BY 1, 2",
        *own_values,
    )
    assert {(row["month"], row["tier"]): row["hs23_hours"] for row in shown} == {
        row[:2]: near(row[2]) for row in expected
    }


@pytest.mark.parametrize("period", PERIODS, ids=str)
@pytest.mark.parametrize(
    "filters",
    [{}, {"site": "T2_CH_CERN"}, {"q": "FIRST"}, {"request": "other_request", "site": "T2_'x"}],
    ids=str,
)
def test_steps(served: Running, filters: dict[str, str], period: tuple[date, date]) -> None:
    condition, values = where(filters, period, "request")
    address: dict[str, Any] = {"from": period[0], "to": period[1], **filters}
    for key in ("task", "step", "site") if "request" in filters else ("request", "site"):
        shown = download(served, "steps", f"{key}s", **address)
        expected = plain(
            served,
            "step_efficiency",
            f"SELECT {key}, sum(step_count), sum(thread_ms) / 3.6e6, sum(read_bytes), "
            f"(max(rss_max_mb) * 1048576)::BIGINT FROM t WHERE {condition} GROUP BY 1",
            *values,
        )
        assert {
            row[key]: (row["steps"], row["thread_hours"], row["read_bytes"], row["peak_bytes"])
            for row in shown
        } == {row[0]: (row[1], near(row[2]), *row[3:]) for row in expected}
    ((thread_hours,),) = plain(
        served,
        "step_efficiency",
        f"SELECT sum(thread_ms) / 3.6e6 FROM t WHERE {condition}",
        *values,
    )
    drawn = sum(chart_sums(served, "steps", "thread_hours", **address).values())
    assert drawn == pytest.approx(thread_hours or 0, abs=1)
    if "request" not in filters:
        # Of every site and request, as the page says.
        shown = download(served, "steps", "agents", **address)
        expected = plain(
            served,
            "agent_reports",
            "SELECT host, sum(report_count), sum(failed_count) FROM t "
            "WHERE day BETWEEN ? AND ? GROUP BY 1",
            *period,
        )
        assert {(row["host"], row["reports"], row["failed"]) for row in shown} == {*expected}


@pytest.mark.parametrize("hpc", ["", "PSC"])
def test_hpc(served: Running, hpc: str) -> None:
    of_hpc = f"hpc = '{hpc}'" if hpc else "hpc IS NOT NULL"
    for day in (DAYS[1], LAST):
        shown = download(served, "hpc", "hpc_cores", day=day, hpc=hpc)
        expected = plain(
            served,
            "running_cores",
            "SELECT hpc, hour, sum(core_windows_milli) / 5000 FROM t "
            f"WHERE {of_hpc} AND day = ? GROUP BY 1, 2",
            day,
        )
        assert {(row["hpc"], row["hour"]): row["cores"] for row in shown} == {
            row[:2]: near(row[2]) for row in expected
        }
    shown = download(served, "hpc", "hpc_months", hpc=hpc)
    expected = plain(
        served,
        "core_hours",
        "SELECT strftime(day, '%Y-%m'), hpc, site, sum(core_ms) / 3.6e6, sum(job_count) FROM t "
        f"WHERE {of_hpc} GROUP BY 1, 2, 3",
    )
    assert {(row["month"], row["hpc"], row["site"]): row["core_hours"] for row in shown} == {
        row[:3]: near(row[3]) for row in expected
    }


@pytest.mark.parametrize(
    ("column", "word", "value", "condition"),
    [
        ("", "is", "", "true"),
        ("site", "is", "T2_'x", "site = 'T2_''x'"),
        ("site", "is not", "T1_US_FNAL", "site <> 'T1_US_FNAL'"),
        ("workflow", "is null", "", "workflow IS NULL"),
        ("workflow", "contains", "_one", "contains(workflow, '_one')"),
        ("job_count", "at least", "5000000", "job_count >= 5000000"),
        ("job_count", "at most", "5000000", "job_count <= 5000000"),
    ],
)
def test_a_table(served: Running, column: str, word: str, value: str, condition: str) -> None:
    address = {"table": "job_efficiency", "where": column, "is": word, "value": value}
    for day in (LAST, EMPTY):
        shown = download(served, "table", "rows", **address, when=day)
        expected = plain(
            served, "job_efficiency", f"SELECT job_count FROM t WHERE {condition} AND day = ?", day
        )
        assert sorted(row["job_count"] for row in shown) == sorted(row[0] for row in expected)
    shown = download(served, "table", "sums", **address, sum="job_count")
    expected = plain(
        served, "job_efficiency", f"SELECT day, sum(job_count) FROM t WHERE {condition} GROUP BY 1"
    )
    assert {row["day"]: row["job_count"] for row in shown} == {
        str(day): total for day, total in expected
    }
