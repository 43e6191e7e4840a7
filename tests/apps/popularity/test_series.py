"""The daily use of datasets, read from a file and from stored days."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest

from cmsspark.apps.popularity.series import read_series, stored_series
from cmsspark.base import errors
from cmsspark.base.periods import between
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store import stored_days
from tests.run.partial_days import partial, store_partials, user


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("day,dataset\n2026-01-01,a\n", "no column accesses"),
        ("day,dataset,accesses\n2026-01-01,a,-3\n", "negative"),
        ("day,dataset,accesses\n2026-01-01,,3\n", "nulls"),
        ("day,dataset,accesses\nnever,a,3\n", "row 2"),
        ("day,dataset,accesses\n", "no rows"),
    ],
)
def test_bad_series_are_refused(text: str, message: str, tmp_path: Path) -> None:
    file = tmp_path / "a.csv"
    file.write_text(text)
    with pytest.raises(errors.DataError) as caught:
        read_series(file)
    assert message in caught.value.text()


def test_stored_series_are_of_accesses_without_jobs(tmp_path: Path) -> None:
    for number in range(3):
        day = date(2026, 1, 5) + timedelta(days=number)
        rows = [
            partial(day, nacc=3 + number, user=user(1)),
            partial(
                day, stream="condor", nacc=90_000, user=user(2), read_bytes=10**15, cpu_time=5.0
            ),
            partial(
                day, stream="condor", nacc=70_000, dataset_name="/only/jobs/AOD", user=user(3)
            ),
        ]
        store_partials(tmp_path, day, rows)
    stored = stored_days.find_days(
        LocalFiles(), str(tmp_path), between(date(2026, 1, 5), date(2026, 1, 7))
    )
    series = stored_series(stored)
    assert list(series.datasets) == ["/ZMM/Run2026A-v1/AOD"]
    assert series.accesses.tolist() == [[3.0], [4.0], [5.0]]
    assert series.values[1].tolist() == [[1.0]] * 3 and series.values[2].tolist() == [[100.0]] * 3


def test_rows_of_a_dataset_in_several_part_files_of_a_day_are_added_up(tmp_path: Path) -> None:
    day = date(2026, 1, 5)
    rows = [
        partial(day, nacc=number, user=user(number % 3), site_name=f"T2_DE_{number}")
        for number in range(1, 6)
    ]
    store_partials(tmp_path, day, rows)
    assert len(list(tmp_path.rglob("part-*.parquet"))) == 2
    series = stored_series(stored_days.find_days(LocalFiles(), str(tmp_path), between(day, day)))
    assert series.values[:3, 0, 0].tolist() == [15, 3, 500]


def test_a_stored_day_without_accesses_is_a_day_without_use(tmp_path: Path) -> None:
    days = [date(2026, 1, 5) + timedelta(days=number) for number in range(3)]
    store_partials(tmp_path, days[0], [])
    store_partials(tmp_path, days[1], [partial(days[1], nacc=4)])
    store_partials(tmp_path, days[2], [partial(days[2], stream="condor")])
    period = between(days[0] - timedelta(days=1), days[2] + timedelta(days=1))
    series = stored_series(stored_days.find_days(LocalFiles(), str(tmp_path), period))
    assert list(series.days) == days, "a forecast begins on the day after the last stored one"
    assert series.accesses.tolist() == [[0], [4], [0]] and series.missing == (days[0], days[2])
