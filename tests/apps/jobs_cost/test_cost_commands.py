"""Periods of what jobs cost go stale, are listed, and serve ``diff``, ``report --week``
and ``period --view``: a store of three days, whose numbers are written by hand.
"""

from __future__ import annotations

import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cmsspark.apps.jobs_cost.periods import run
from cmsspark.base import periods
from cmsspark.main import command
from cmsspark.settings.settings import load_settings
from tests.apps.jobs_cost.test_one_efficiency import (
    ALLOCATED,
    CPU,
    DAY,
    DAYS,
    HOUR,
    JOBS,
    jobs_row,
    write,
)

WEEK = periods.week("2026-W03", date(2027, 1, 1))


def _write_day(store: Path, day: date, scale: int) -> None:
    jobs = [jobs_row(day, number, scale) for number in range(len(JOBS))]
    checks = {"job_cost_checks": {"windows_by_hour": [5] * 24}}
    tables = {"job_efficiency": jobs, "core_hours": [], "running_cores": []}
    write(store, "job_efficiency", day, tables, checks)


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Three days, of which the one in the middle is a tenth of the others."""
    for day in DAYS:
        _write_day(tmp_path, day, 1 if day == DAY else 10)
    return tmp_path


def _make_week(store: Path) -> None:
    settings = load_settings(
        None, {"XDG_STATE_HOME": str(store), "XDG_CACHE_HOME": str(store), "HOME": str(store)}
    )
    run("job_efficiency", WEEK, str(store), settings, allow_missing=True, log=lambda text: None)


def _output(store: Path, *words: str, code: int = 0) -> str:
    ended = CliRunner().invoke(command, [*words, "--fout", str(store)], catch_exceptions=True)
    assert getattr(ended.exception, "exit_code", ended.exit_code) == code, ended.exception
    return ended.stdout


def test_a_period_of_costs_is_listed_and_out_of_date_once_a_day_is_run_again(store: Path) -> None:
    _make_week(store)
    (entry,) = json.loads(_output(store, "period", "--list", "--json"))
    assert (entry["period"], entry["job"], entry["days"]) == (
        "2026-W03",
        "job_efficiency_period",
        3,
    )
    assert entry["stale"] == []
    _write_day(store, DAY, 2)
    _write_day(store, date(2026, 1, 12), 1)
    (entry,) = json.loads(_output(store, "period", "--list", "--json"))
    assert entry["stale"] == ["run again: 2026-01-15", "new: 2026-01-12"]
    assert "run again: 2026-01-15" in _output(store, "period", "--list")


def test_a_view_of_costs_has_the_efficiency_of_jobs_that_did_not_fail(store: Path) -> None:
    day = str(DAY)
    options = ("--view", "efficiency", "--from", day, "--to", day, "--json")
    rows = json.loads(_output(store, "period", *options))["rows"]
    assert rows[0] == {
        "workflow": "W",
        "evicted_core_ms": 32 * HOUR,
        "cpu_efficiency": pytest.approx(CPU),
        "allocated_efficiency": pytest.approx(ALLOCATED),
        "core_ms": (48 + 4 + 8 + 40 + 100) * HOUR,
        "job_count": 5,
    }
    options = ("--view", "efficiency", "--from", str(DAYS[0]), "--to", str(DAYS[2]), "--json")
    whole = json.loads(_output(store, "period", *options))["rows"]
    assert whole[0]["job_count"] == 21 * 5
    assert whole[0]["cpu_efficiency"] == pytest.approx(CPU)
    assert "not stored" in str(
        CliRunner()
        .invoke(
            command,
            ["period", "--view", "efficiency", "--week", "2026-W03", "--fout", str(store)],
            standalone_mode=False,
        )
        .exception
    )


def test_a_view_of_costs_of_ones_own_filters_by_its_columns(store: Path, tmp_path: Path) -> None:
    file = tmp_path / "own.yaml"
    file.write_text(
        "mine: {of: job_efficiency, keys: [outcome], measures: [core_ms, cpu_efficiency],"
        " filter: {workflow: 'W*', outcome: [ok, failed]}}\n"
    )
    options = ("--view", "mine", "--views", str(file), "--from", str(DAY), "--json")
    rows = json.loads(_output(store, "period", *options))["rows"]
    assert rows == [
        {"outcome": "ok", "core_ms": 148 * HOUR, "cpu_efficiency": pytest.approx(15.2 / 16)},
        {"outcome": "failed", "core_ms": 8 * HOUR, "cpu_efficiency": None},
    ]
    file.write_text("mine: {of: job_efficiency, keys: [dataset_name], measures: [core_ms]}\n")
    _output(store, "period", "--view", "mine", "--views", str(file), code=78)
    file.write_text("mine: {of: job_efficiency, keys: [site], measures: [nacc]}\n")
    _output(store, "period", "--view", "mine", "--views", str(file), code=78)


def test_views_of_costs_are_not_stored_with_those_of_accesses(store: Path) -> None:
    from cmsspark.apps.usage.period_views import command as period_views

    ended = CliRunner().invoke(
        period_views, ["--view", "efficiency", "--week", "2026-W03", "--fout", str(store)]
    )
    assert "is of what jobs cost" in str(ended.exception)


def test_report_of_a_week_says_what_jobs_cost_by_the_one_definition(store: Path) -> None:
    _make_week(store)
    for table in ("job_efficiency", "core_hours", "period_job_efficiency"):
        contents = json.loads(_output(store, "report", table, "--week", "2026-W03", "--json"))
        assert contents["costs"]["cpu_efficiency"] == pytest.approx(24 / 28)
        assert contents["costs"]["allocated_efficiency"] == pytest.approx(24 / 62)
        assert contents["costs"]["job_count"] == 21 * len(JOBS)
    day = json.loads(_output(store, "report", "job_efficiency", "--date", str(DAY), "--json"))
    assert day["costs"]["evicted_core_ms"] == 34 * HOUR
    assert "of jobs that did not fail" in _output(
        store, "report", "job_efficiency", "--week", "2026-W03"
    )


def _diff(store: Path, *words: str) -> Any:
    return json.loads(_output(store, "diff", *words, "--json"))


def test_diff_compares_days_and_periods_of_costs(store: Path) -> None:
    _make_week(store)
    first, second = str(DAYS[0]), str(DAYS[1])
    result = _diff(store, first, second, "--job", "job_efficiency")
    totals = {entry["key"]: (entry["before"], entry["after"]) for entry in result["totals"]}
    assert totals["core_ms"] == (2100 * HOUR, 210 * HOUR)
    assert totals["evicted_core_ms"] == (340 * HOUR, 34 * HOUR)
    assert [group["column"] for group in result["by"]] == ["workflow", "site", "outcome"]
    (largest, _) = result["by"][0]["largest"]
    assert (largest["key"], largest["delta"]) == ("W", -1800 * HOUR)
    same = _diff(store, "2026-W03", "2026-W03", "--job", "job_efficiency", "--measure", "cpu_ms")
    assert {entry["delta"] for entry in same["totals"]} == {0}
    _output(store, "diff", first, second, "--job", "job_efficiency", "--by", "dataset", code=2)
    _output(store, "diff", first, second, "--job", "job_efficiency", "--measure", "nacc", code=2)


def test_a_day_that_was_stored_with_other_columns_is_named_for_a_period(
    store: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("cmsspark.base.schemas.Table.fingerprint", lambda self: "another")
    ended = CliRunner().invoke(
        command,
        ["period", "--view", "efficiency", "--from", str(DAY), "--fout", str(store)],
        standalone_mode=False,
    )
    assert "job_efficiency of 2026-01-15 was stored with other columns" in str(ended.exception)
    assert "run_spark job_efficiency --date 2026-01-15" in str(ended.exception)
