"""The page Table shows the rows of any stored table, as the store has them."""

from __future__ import annotations

import csv
import io
from datetime import timedelta
from pathlib import Path

import pytest

from cmsspark.apps.usage import period as period_run
from cmsspark.base.periods import between
from cmsspark.settings.settings import load_settings
from tests.apps.dashboard.conftest import Running, serving
from tests.apps.dashboard.stores import LAST, partial_rows, store_day
from tests.apps.dashboard.test_pages import get


def downloaded(dashboard: Running, name: str, **parameters: object) -> list[dict[str, str]]:
    """The rows of a download of the page."""
    status, text, _ = get(dashboard, "table", download=name, format="csv", **parameters)
    assert status == 200, text[:500]
    return list(csv.DictReader(io.StringIO(text)))


def test_rows_of_a_day_have_the_columns_and_the_condition(dashboard: Running) -> None:
    when = LAST.isoformat()
    every = downloaded(dashboard, "rows", table="data_aggregation", when=when)
    assert {row["day"] for row in every} == {when}
    site = every[0]["site_name"]
    chosen = downloaded(
        dashboard,
        "rows",
        table="data_aggregation",
        when=when,
        columns=["site_name", "accesses"],
        where="site_name",
        value=site,
        **{"is": "is"},
    )
    assert list(chosen[0]) == ["site_name", "accesses"]
    assert len(chosen) == sum(row["site_name"] == site for row in every)
    assert {row["site_name"] for row in chosen} == {site}


def test_its_chart_sums_a_column_by_day(dashboard: Running) -> None:
    sums = downloaded(dashboard, "sums", table="data_aggregation", sum="read_bytes")
    when = LAST.isoformat()
    (of_last,) = [row for row in sums if when in row.values()]
    every = downloaded(dashboard, "rows", table="data_aggregation", when=when)
    total = sum(int(row["read_bytes"] or 0) for row in every)
    assert str(total) in of_last.values() or str(float(total)) in of_last.values()


@pytest.mark.parametrize(
    "wrong",
    [
        {"table": "partials"},
        {"table": "nothing"},
        {"when": "2001-01-01"},
        {"columns": "no_such"},
        {"where": "no_such"},
        {"is": "like"},
        {"sum": "site_name"},
    ],
)
def test_what_is_not_there_is_refused(dashboard: Running, wrong: dict[str, str]) -> None:
    status, text, _ = get(dashboard, "table", **({"table": "data_aggregation"} | wrong))
    assert status == 400, text[:300]


def test_a_table_that_is_not_stored_says_what_to_run_and_offers_the_others(
    dashboard: Running,
) -> None:
    status, text, _ = get(dashboard, "table", table="cache_comparison")
    assert status == 200 and "run_spark cache_comparison --month last" in text
    assert '<option value="data_aggregation"' in text


def test_a_value_is_never_part_of_the_query(dashboard: Running) -> None:
    value = "x' OR 1=1 --"
    parameters = {"table": "data_aggregation", "where": "site_name", "value": value}
    status, text, _ = get(dashboard, "table", **parameters)
    assert status == 200 and "No row fits" in text


def test_a_period_whose_days_have_changed_is_told(tmp_path: Path) -> None:
    store, settings = tmp_path / "store", load_settings(None, {"HOME": str(tmp_path)})
    for back in range(2):
        store_day(store, LAST - timedelta(days=back), partial_rows(LAST, count=20))
    period = between(LAST - timedelta(days=1), LAST)
    period_run.run(period, str(store), settings)
    with serving(store, tmp_path) as running:
        address = {"table": "period_aggregation", "when": str(period)}
        assert "have changed" not in get(running, "table", **address)[1]
        store_day(store, LAST, partial_rows(LAST, count=30))
        text = get(running, "table", **address)[1]
    assert f"Days of {period} have changed since these rows were made (run again: {LAST})" in text
