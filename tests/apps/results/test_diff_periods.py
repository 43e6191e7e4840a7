"""``cmsspark diff`` between weeks, months and ranges, and two runs of one."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest

from cmsspark.apps.usage import period as period_job
from cmsspark.apps.usage import period_views
from cmsspark.apps.usage.period_views import load_views
from cmsspark.base.errors import InputMissing, UsageError
from cmsspark.base.periods import between
from cmsspark.settings.settings import load_settings
from tests.apps.usage.test_diff import diff, fails, output_of
from tests.run.partial_days import partial, store_partials, user

FIRST = between(date(2026, 1, 1), date(2026, 1, 3))
SECOND = between(date(2026, 1, 4), date(2026, 1, 6))


@pytest.fixture
def store(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Two ranges of three days: in the second one /A has three accesses more, /B is
    gone, /C is new.
    """
    monkeypatch.setenv("CMSSPARK_STATE_DIR", str(tmp_path / "state"))
    monkeypatch.chdir(tmp_path)
    place = tmp_path / "store"
    for number in range(6):
        day = date(2026, 1, 1) + timedelta(days=number)
        names = ("/A/x/AOD", "/B/x/AOD") if number < 3 else ("/A/x/AOD", "/C/x/AOD")
        rows = [
            partial(day, dataset_name=name, nacc=1 + (number >= 3), user=user(1)) for name in names
        ]
        store_partials(place, day, rows)
    for period in (FIRST, SECOND):
        period_job.run(period, str(place), load_settings(), log=lambda text: None)
    return place


def test_two_ranges_differ_by_dataset(store: Path) -> None:
    found = diff(store, FIRST.isoformat(), SECOND.isoformat(), "--by", "dataset")
    (by,) = found["by"]
    changes = {change["key"]: (change["before"], change["after"]) for change in by["largest"]}
    assert changes == {"/A/x/AOD": (3, 6), "/B/x/AOD": (3, None), "/C/x/AOD": (None, 6)}
    assert found["totals"][0] == {"key": "nacc", "before": 6, "after": 12, "delta": 6}
    assert found["a"].startswith(f"{FIRST.isoformat()}@")


def test_two_runs_of_one_range_and_their_documents(store: Path) -> None:
    before = found_run(store)
    store_partials(
        store,
        date(2026, 1, 3),
        [partial(date(2026, 1, 3), dataset_name="/A/x/AOD", nacc=5)],
        run="r2",
    )
    period_job.run(FIRST, str(store), load_settings(), log=lambda text: None)
    name = FIRST.isoformat()
    found = diff(store, f"{name}@{before}", name, "--by", "dataset", "--publish-impact")
    assert found["totals"][0]["delta"] == 5 - 1 - 1
    assert found["documents"] == {"new": 0, "changed": 2, "unchanged": 0, "gone": 0}


def found_run(store: Path) -> str:
    (run,) = (store / "period" / FIRST.isoformat() / "runs").iterdir()
    return run.name


def test_people_see_the_names_of_the_periods(store: Path) -> None:
    shown = output_of(store, FIRST.isoformat(), SECOND.isoformat())
    assert shown.startswith(f"A {FIRST.isoformat()}@") and f"\nB {SECOND.isoformat()}@" in shown


def test_what_cannot_be_compared_says_what_can(store: Path) -> None:
    assert "two periods" in fails(UsageError, store, "20260101", FIRST.isoformat())
    assert "two days" in fails(
        UsageError, store, FIRST.isoformat(), SECOND.isoformat(), "--job", "data_aggregation"
    )
    assert "two periods" in fails(UsageError, store, "20260101", "20260102", "--job", "period")
    assert "2026-W46" in fails(UsageError, store, "2026-W99", FIRST.isoformat())
    assert "2026-02" in fails(InputMissing, store, "2026-02", FIRST.isoformat())


@pytest.mark.parametrize("job", ["crab_popularity", "crab_users", "cache_comparison"])
def test_results_that_are_not_stored_are_missing(store: Path, job: str) -> None:
    assert f"no result of {job} is stored" in fails(
        InputMissing, store, FIRST.isoformat(), SECOND.isoformat(), "--job", job
    )


def test_views_are_compared_also_where_they_have_no_stream(store: Path) -> None:
    views = [view for name, view in load_views(None).items() if name in ("datasets", "days")]
    for period in (FIRST, SECOND):
        period_views.run(period, str(store), load_settings(), views, log=lambda text: None)
    words = ("--job", "period_views", "--by", "dataset")
    found = diff(store, FIRST.isoformat(), SECOND.isoformat(), *words)
    assert found["totals"][0] == {"key": "nacc", "before": 12, "after": 24, "delta": 12}
