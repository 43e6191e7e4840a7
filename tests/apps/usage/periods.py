"""A week over the year's end: made, stored, rolled up and read by tests of periods."""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pyarrow.parquet as pq
from click.testing import CliRunner

from cmsspark.apps.usage import period as job
from cmsspark.base.periods import Period, week
from cmsspark.main import command
from cmsspark.settings.settings import load_settings
from cmsspark.store import results
from tests.counting.test_rollup import FIRST, ROWS
from tests.run.partial_days import Row, store_partials

WEEK = week("2026-W01", date(2026, 11, 21))  # 29 December to 4 January: two years, two months
OF_WEEK = ROWS.map(lambda row: {**row, "day": row["day"] - FIRST + WEEK.first})


def rows_of(found: results.CurrentTable) -> list[Row]:
    return [
        row
        for part in sorted(Path(found.path, job.TABLE).glob("*.parquet"))
        for row in pq.ParquetFile(part).read().to_pylist()
    ]


def run(place: Path, period: Period = WEEK, **options: Any) -> results.CurrentTable:
    return job.run(period, str(place), load_settings(), log=lambda text: None, **options)


def whole_week(place: Path, rows: list[Row] | None = None, **told: Any) -> None:
    """Each day of the week stored; ``rows`` by their day."""
    for day in WEEK.days:
        given = [row for row in rows or [] if row["day"] == day]
        store_partials(place, day, given, **told)


def output_of(*arguments: str) -> str:
    result = CliRunner().invoke(command, arguments, catch_exceptions=False)
    assert result.exit_code == 0, result.output
    return result.stdout
