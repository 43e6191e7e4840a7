"""The bench compares what can be compared: its peers count by the rules, its meter and
its check miss nothing.
"""

from __future__ import annotations

import os
import sys
from pathlib import Path

import duckdb
import polars as pl
import pytest

from bench import compare, report
from bench.inputs import DAY, Day, Inputs, files_for
from bench.meter import Cost, measure
from bench.peers import with_duckdb, with_polars
from cmsspark.apps.demo import LogLayout, make
from cmsspark.settings.pseudonyms import Pseudonyms
from tests.oracle.count import DayCount, count_day

KEY = Pseudonyms(b"k" * 32)


@pytest.fixture(scope="module", params=["none", "all"], ids=["plain", "gzip"])
def day(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> Inputs:
    root = tmp_path_factory.mktemp("day")
    layout = LogLayout(gzip=request.param, eos_forms="today", per_part=500)
    made = make(root, DAY, records=8_000, files=9_000, datasets=40, people=60, layout=layout)
    return Inputs(Day(8_000, 9_000), root, made.folders, made.reconciliation(DAY), made.log_bytes)


@pytest.fixture(scope="module")
def counted(day: Inputs) -> DayCount:
    return count_day(day.root, DAY)


def stored(counted: DayCount, folder: Path) -> dict[str, str]:
    """The oracle's tables as the job would store them."""
    users = [
        {**row, "user": KEY.pseudonym(str(row["user"])) if row["user"] else None}
        for row in counted.partials
    ]
    places = {}
    for name, rows in (("data_aggregation", counted.data_aggregation), ("partials", users)):
        (folder / name).mkdir(parents=True)
        pl.DataFrame(rows, infer_schema_length=None).write_parquet(
            folder / name / "part-0.parquet"
        )
        places[name] = str(folder / name)
    return places


def run_peer(name: str, day: Inputs, out: Path) -> None:
    if name == "duckdb":
        with duckdb.connect() as con:
            with_duckdb.tables(con, day, out)
    else:
        with_polars.tables(day, out)


@pytest.mark.parametrize("name", ["duckdb", "polars"])
def test_a_peer_counts_each_cell_as_an_independent_count_does(
    name: str, day: Inputs, counted: DayCount, tmp_path: Path
) -> None:
    run_peer(name, day, tmp_path)
    assert compare.differences(stored(counted, tmp_path / "ours"), tmp_path, KEY) == []


def test_a_cell_that_differs_by_one_is_reported(
    day: Inputs, counted: DayCount, tmp_path: Path
) -> None:
    run_peer("duckdb", day, tmp_path)
    counted.data_aggregation[7]["nacc"] += 1  # type: ignore[operator]  # a count
    told = compare.differences(stored(counted, tmp_path / "ours"), tmp_path, KEY)
    counted.data_aggregation[7]["nacc"] -= 1  # type: ignore[operator]
    assert [line.split(",")[0] for line in told] == [
        "data_aggregation: 1 rows are ours alone",
        "data_aggregation: 1 rows are theirs alone",
    ]


def test_bins_other_than_those_made_are_reported(day: Inputs) -> None:
    other = {**day.reconciliation, "aaa": {**day.reconciliation["aaa"], "matched": 0}}
    assert compare.bins(day.reconciliation, day.reconciliation) == []
    assert len(compare.bins(other, day.reconciliation)) == 1


#: A second of CPU: much more than the start of Python takes, also on a busy machine.
BUSY = "import time; t=time.process_time()\nwhile time.process_time()-t < 1: b = bytearray(60_000_000)\n"


def test_the_meter_counts_children_that_outlive_the_command(tmp_path: Path) -> None:
    leave = f"import subprocess, sys; subprocess.Popen([sys.executable, '-c', {BUSY!r}])"
    cost = measure([sys.executable, "-c", leave], os.environ, tmp_path / "log", 1)
    assert cost.code == 0
    assert 1.0 < cost.cpu_s < 2.0


def test_the_meter_counts_children_whose_parent_never_waits_for_them(tmp_path: Path) -> None:
    ignore = "import signal, subprocess, sys; signal.signal(signal.SIGCHLD, signal.SIG_IGN)\n"
    # The meter sees the time that it lasts longer than its work.
    child = BUSY + "time.sleep(2)"
    command = [
        sys.executable,
        "-c",
        f"{ignore}subprocess.Popen([sys.executable, '-c', {child!r}]).wait()",
    ]
    cost = measure(command, os.environ, tmp_path / "log", 1)
    assert 1.0 < cost.cpu_s < 2.0


def test_the_meter_reports_peak_memory_and_a_failure(tmp_path: Path) -> None:
    cost = measure(
        [sys.executable, "-c", BUSY + "raise SystemExit(3)"], os.environ, tmp_path / "log", 1
    )
    assert cost.code == 3
    assert 60e6 < cost.peak_bytes < 200e6


def test_tables_show_medians_ratios_and_slopes_and_leave_the_text_around_them(
    tmp_path: Path,
) -> None:
    def row(records: int, ours: float) -> report.Row:
        costs = [
            [Cost(wall, 2 * wall, 10**9, 1.0, 0) for wall in (1.0, wall, 50.0)]
            for wall in (ours, 10.0)
        ]
        return report.Row(Day(records, 1), 10**9, {"warm": costs[0], "duckdb": costs[1]}, 2e8)

    table = report.table([row(1_000_000, 5.0), row(3_000_000, 8.0)])
    assert "| 0.50 " in table
    assert "cmsspark, warm, plain: 3.00 CPU s for each million records more" in table
    page = tmp_path / "page.md"
    page.write_text(f"before\n{report.BEGIN}\nold\n{report.END}\nafter\n")
    report.write(page, [row(1_000_000, 5.0)], 2)
    text = page.read_text()
    assert text.startswith("before\n")
    assert text.endswith("\nafter\n")
    assert "old" not in text
    assert "| cmsspark, warm | 3    | 5.00   | 0.20 " in text
    assert "the disk gives 0.2 GB/s" in text


def test_dbs_grows_with_the_day_from_one_to_five_million_files() -> None:
    assert [files_for(n * 1_000_000) for n in (1, 2, 4, 8)] == [
        1_000_000,
        1_250_000,
        2_500_000,
        5_000_000,
    ]
