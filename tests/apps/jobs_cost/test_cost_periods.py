"""Weeks and months are sums of stored days (rule 55)."""

from __future__ import annotations

from collections import Counter
from datetime import timedelta
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cmsspark.apps.jobs_cost import feeds
from cmsspark.apps.jobs_cost.periods import run
from cmsspark.base import periods
from cmsspark.base.errors import InputMissing
from cmsspark.settings.settings import load_settings
from cmsspark.store.own_jobs import JOBS
from cmsspark.submit.job_help import load_command
from tests.apps.jobs_cost.cells import count, rows
from tests.apps.jobs_cost.test_cost_cells import DAY
from tests.corpus import costs, reports
from tests.corpus.tree import Tree


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, list[Any], list[Any]]:
    """Two stored days of both feeds: the folder and the runs."""
    root = tmp_path_factory.mktemp("period")
    of_jobs, of_reports = [], []
    for back in (1, 0):
        day = DAY - timedelta(days=back)
        Tree(root, day).write_lines("condor", costs.at_random(back, day, 600, 200))
        Tree(root, day).write_lines("wmarchive", reports.at_random(back, day, 300))
        of_jobs.append(count(root, day, root / "fout"))
        of_reports.append(count(root, day, root / "fout", feeds.WMARCHIVE))
    return root / "fout", of_jobs, of_reports


def _period(fout: Path, job: str, **options: Any) -> Any:
    first = DAY - timedelta(days=1)
    period = periods.between(first, DAY)
    settings = load_settings(
        None, {"XDG_STATE_HOME": str(fout), "XDG_CACHE_HOME": str(fout), "HOME": str(fout)}
    )
    return run(job, period, str(fout / "store"), settings, log=lambda text: None, **options)


@pytest.mark.parametrize(
    "table", ["job_efficiency", "core_hours", "step_efficiency", "agent_reports"]
)
def test_rule_55_a_period_is_the_sum_of_its_days(
    store: tuple[Path, list[Any], list[Any]], table: str
) -> None:
    fout, of_jobs, of_reports = store
    runs = of_jobs if table in ("job_efficiency", "core_hours") else of_reports
    done = _period(fout, "job_efficiency" if runs is of_jobs else "step_efficiency")
    expected: dict[Any, Counter[str]] = {}
    for day in runs:
        for key, row in rows(day, table).items():
            expected.setdefault(key, Counter()).update(
                {name: value for name, value in row.items() if value is not None}
            )
    found = rows(done, f"period_{table}")
    assert found.keys() == expected.keys()
    largest = (
        "distinct_schedds",
        "distinct_users",
        "site_count",
        "rss_max_mb",
        "vsize_max_mb",
        "day_count",
    )
    for key, row in found.items():
        for name, value in row.items():
            if name not in (*largest, "period", "first_day", "last_day"):
                assert value == pytest.approx(expected[key].get(name)), (key, name)


def test_rule_55_running_cores_are_averages_over_the_stored_days(
    store: tuple[Path, list[Any], list[Any]],
) -> None:
    fout, runs, _ = store
    found = rows(_period(fout, "job_efficiency"), "period_running_cores")
    days = [rows(day, "running_cores") for day in runs]
    windows = [
        sum(day.manifest.document["job_cost_checks"]["windows_by_hour"][hour] for day in runs)
        for hour in range(24)
    ]
    for key, row in found.items():
        total = sum(day[key]["core_windows_milli"] for day in days if key in day)
        assert (row["core_windows_milli"], row["day_count"]) == (total, 2)
        assert row["average_cores"] == pytest.approx(total / 5000 / 2)
        assert row["window_count"] == windows[key[4]]


def test_a_missing_day_is_66_and_can_be_left_out(store: tuple[Path, list[Any], list[Any]]) -> None:
    fout, _, _ = store
    period = periods.between(DAY - timedelta(days=2), DAY)
    settings = load_settings(
        None, {"XDG_STATE_HOME": str(fout), "XDG_CACHE_HOME": str(fout), "HOME": str(fout)}
    )
    with pytest.raises(InputMissing, match="1 of the 3 days"):
        run("job_efficiency", period, str(fout / "store"), settings, log=lambda text: None)
    done = run(
        "job_efficiency",
        period,
        str(fout / "store"),
        settings,
        log=lambda text: None,
        allow_missing=True,
    )
    assert done.manifest.partial
    assert {row["day_count"] for row in rows(done, "period_running_cores").values()} == {2}


def test_the_command_needs_a_period() -> None:
    assert CliRunner().invoke(load_command(JOBS["job_efficiency_period"]), []).exit_code != 0
