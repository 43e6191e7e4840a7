"""What HTCondor and WMArchive mean, by cases written by hand: hours of all starts and of
the last one, exit codes, bytes, events and repeated reports. Each case is counted by the
package, with and without compiled code, and by the oracle.
"""

from __future__ import annotations

from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cmsspark.apps.jobs_cost import feeds
from cmsspark.counting.htcondor_jobs import CrabSums
from cmsspark.sources.reader import Reader
from tests.apps.jobs_cost.cells import count, rows
from tests.corpus import costs, reports
from tests.corpus.jobs import job
from tests.corpus.json_lines import ABSENT, Raw
from tests.corpus.tree import Tree
from tests.oracle import costs as cost_oracle
from tests.oracle import reports as report_oracle

HOUR = 3_600_000
JULY, AUGUST = date(2026, 7, 1), date(2026, 8, 1)
#: A job of 8 cores that was evicted after 4 h, then ran 2 h with 15.2 h of CPU.
EVICTED = {"RequestCpus": 8, "CoreHr": 48.0, "CpuTimeHr": 15.2, "CommittedCoreHr": 16.0}


def noon(day: date) -> int:
    return (day - date(1970, 1, 1)).days * 86_400 + 43_200


def job_line(day: date, number: int = 1, **changes: object) -> bytes:
    values = {**costs.COSTS, "GlobalJobId": f"j{number}", "RecordTime": noon(day) * 1000}
    return job({**values, **changes}, {"timestamp": noon(day) * 1000})


def day_cells(
    root: Path, day: date, lines: list[bytes], table: str, feed: feeds.Feed = feeds.CONDOR
) -> list[dict[str, Any]]:
    """The rows of a table, which are those of the oracle, too."""
    Tree(root, day).write_lines(feed.source, lines, parts=1)
    cells = rows(count(root, day, root / "fout", feed), table)
    if feed is feeds.CONDOR:
        expected: Any = getattr(
            cost_oracle.count(lines, day, []),
            {"job_efficiency": "efficiency", "core_hours": "core_hours"}[table],
        )
    else:
        of_day = report_oracle.count(lines, day, [])
        expected = of_day.agents if table == "agent_reports" else report_oracle.step_rows(of_day)
    assert cells == {key: dict(row) for key, row in expected.items()}
    return [dict(zip(("key",), (key,), strict=True)) | row for key, row in cells.items()]


@pytest.fixture(params=[True, False], ids=["compiled", "plain"], autouse=True)
def compiled(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if not request.param:
        monkeypatch.setattr("cmsspark.sources.formats.fast_json._key_reader", None)


@pytest.mark.parametrize(("day", "wall"), [(JULY, 6.0), (AUGUST, 2.0)])
def test_rule_51_an_evicted_job_has_one_efficiency_before_and_after_the_change_of_its_wall_time(
    tmp_path: Path, day: date, wall: float
) -> None:
    lines = [job_line(day, **EVICTED, WallClockHr=wall, JobFailed=0, ExitCode=0)]
    (row,) = day_cells(tmp_path, day, lines, "job_efficiency")
    assert row["core_ms"] == 48 * HOUR
    assert row["last_core_ms"] == 16 * HOUR
    assert row["evicted_core_ms"] == 32 * HOUR
    assert row["cpu_ms"] / row["last_core_ms"] == pytest.approx(0.95)
    assert row["cpu_ms"] / row["core_ms"] == pytest.approx(0.32, abs=0.005)
    assert row["wall_ms"] == wall * HOUR


@pytest.mark.parametrize(
    ("meanings", "day", "hours"),
    [
        ("{WallClockHr: {last_start: {from: 2026-07-01}}}", JULY, (48, 48, 0)),
        ("{WallClockHr: {last_start: {from: never}}}", AUGUST, (48, 16, 32)),
        ("{CoreHr: {last_start: {from: 2026-08-01}}}", AUGUST, (48, 48, None)),
        ("{CoreHr: {last_start: {from: 2026-08-02}}}", AUGUST, (48, 48, 0)),
    ],
)
def test_rule_51_the_days_on_which_fields_change_their_meaning_are_settings(
    tmp_path: Path, meanings: str, day: date, hours: tuple[int | None, ...]
) -> None:
    settings = tmp_path / "cmsspark.yaml"
    settings.write_text(f"sources: {{meanings: {{condor: {meanings}}}}}\n")
    Tree(tmp_path, day).write_lines("condor", [job_line(day, **EVICTED, WallClockHr=6.0)], parts=1)
    done = count(tmp_path, day, tmp_path / "fout", settings_file=settings)
    (row,) = rows(done, "job_efficiency").values()
    names = ("core_ms", "last_core_ms", "evicted_core_ms")
    assert tuple(row[name] for name in names) == tuple(
        None if value is None else value * HOUR for value in hours
    )
    assert done.manifest.document["meanings"].keys() == {"condor.WallClockHr", "condor.CoreHr"}


def test_rule_50_a_job_that_was_removed_while_idle_after_evictions_did_run(
    tmp_path: Path,
) -> None:
    removed = {"Status": "Removed", "CoreHr": 40.0, "CommittedCoreHr": 0, "CpuTimeHr": 0}
    lines = [
        job_line(JULY, number, **removed, WallClockHr=wall)
        for number, wall in enumerate([0, None, Raw(b"0.0")] * 3 + [0])
    ]
    lines += [
        job_line(JULY, 99, **{**removed, "CoreHr": core}, WallClockHr=0) for core in (0, None)
    ]
    (row,) = day_cells(tmp_path, JULY, lines, "job_efficiency")
    assert (row["job_count"], row["core_ms"], row["cpu_ms"]) == (10, 400 * HOUR, 0)
    assert row["key"][7] == "removed"
    # Nobody knows the last start; all of it is of the job.
    assert (row["last_core_ms"], row["evicted_core_ms"]) == (400 * HOUR, 0)


def test_rule_51_both_sums_of_a_ratio_are_of_the_same_jobs(tmp_path: Path) -> None:
    known = {"RequestCpus": 8, "CoreHr": 8.0, "WallClockHr": 1.0, "CpuTimeHr": 6.4}
    lines = [
        job_line(JULY, 1, **known, CommittedCoreHr=8.0, CommittedWallClockHr=1.0),
        job_line(JULY, 2, **known, CommittedCoreHr=None, CommittedWallClockHr=None),
        job_line(JULY, 3, **{**known, "CpuTimeHr": None}, CommittedCoreHr=8.0),
    ]
    (row,) = day_cells(tmp_path, JULY, lines, "job_efficiency")
    assert row["cpu_ms"] / row["last_core_with_cpu_ms"] == pytest.approx(0.8)
    assert row["cpu_ms"] / row["core_with_cpu_ms"] == pytest.approx(0.8)
    assert row["cpu_ms"] / row["wall_core_with_cpu_ms"] == pytest.approx(0.8)
    assert row["cpu_with_committed_ms"] / row["committed_core_with_cpu_ms"] == pytest.approx(0.8)
    assert row["last_core_ms"] == 24 * HOUR


@pytest.mark.parametrize(("day", "code_of_none"), [("2023-06-01", 0), ("2023-08-01", 50666)])
def test_rule_37_a_removed_job_has_not_failed_whatever_its_exit_code(
    day: str, code_of_none: int
) -> None:
    of_day = date.fromisoformat(day)
    lines = [
        job_line(of_day, 1, ExitCode=0),
        job_line(of_day, 2, ExitCode=8021),
        job_line(of_day, 3, Status="Removed", ExitCode=code_of_none),
    ]
    batch = Reader("condor", "json", of_day).chunk(b"".join(line + b"\n" for line in lines), "f")
    sums = CrabSums()
    for entry in batch.jobs:
        sums.add(entry, ("dataset",))
    ((job_count, failed, removed, *_),) = sums._sums.values()
    assert (job_count, failed, removed) == (3, 1, 1)


def report_cells(root: Path, lines: list[bytes], table: str = "step_efficiency") -> list[Any]:
    return day_cells(root, JULY, lines, table, feeds.WMARCHIVE)


def test_rule_56_bytes_are_of_mebibytes(tmp_path: Path) -> None:
    step = reports.step(storage={"readTotalMB": 1000, "writeTotalMB": Raw(b"0.5")})
    (row,) = report_cells(tmp_path, [reports.report("a", noon(JULY), steps=[step])])
    assert (row["read_bytes"], row["write_bytes"]) == (1_048_576_000, 524_288)


def test_rule_56_one_report_counts_once_however_often_it_arrives(tmp_path: Path) -> None:
    same = {"host": "h", "fwjr_id": "12-0"}
    lines = [reports.report(wmaid, noon(JULY), meta=same) for wmaid in ("a", "b")]
    (row,) = report_cells(tmp_path, lines)
    assert row["step_count"] == 1
    (agent,) = report_cells(tmp_path, lines, "agent_reports")
    assert agent["report_count"] == 1
    bins = count(tmp_path, JULY, tmp_path / "bins", feeds.WMARCHIVE).manifest.reconciliation
    assert (bins["wmarchive"]["matched"], bins["wmarchive"]["repeated"]) == (1, 1)


def test_rule_56_a_report_that_arrives_again_on_the_next_day_is_repeated(tmp_path: Path) -> None:
    same = {"host": "h", "fwjr_id": "12-0"}
    for day, wmaid in ((JULY, "a"), (date(2026, 7, 2), "b")):
        lines = [reports.report(wmaid, noon(day), meta=same)]
        Tree(tmp_path, day).write_lines("wmarchive", lines, parts=1)
        done = count(tmp_path, day, tmp_path / "fout", feeds.WMARCHIVE)
    assert done.manifest.reconciliation["wmarchive"]["repeated"] == 1


def test_rule_56_reports_without_a_number_of_the_agent_are_known_by_their_wmaid(
    tmp_path: Path,
) -> None:
    lines = [
        reports.report(wmaid, noon(JULY), meta={"host": "h", "fwjr_id": number})
        for number in (None, "", {}, 5, ABSENT)
        for wmaid in ("a", "b")
    ]
    (row,) = report_cells(tmp_path, lines)
    assert row["step_count"] == 2


def test_rule_56_three_outputs_of_the_same_events_have_them_once(tmp_path: Path) -> None:
    outputs = [{"events": 100, "outputDataset": f"/a/b/{tier}"} for tier in ("X", "Y", "Z")]
    (row,) = report_cells(
        tmp_path,
        [reports.report("a", noon(JULY), steps=[reports.step({"output": outputs})])],
    )
    assert row["events"] == 100


def test_rule_56_minus_one_and_an_empty_object_stand_for_nothing(tmp_path: Path) -> None:
    none = dict.fromkeys(reports.CPU, -1), dict.fromkeys(reports.STORAGE, -1)
    step = reports.step({"site": {}}, *none, {"PeakValueRss": -1, "PeakValueVsize": -1})
    (row,) = report_cells(tmp_path, [reports.report("a", noon(JULY), steps=[step])])
    names = ("cpu_ms", "job_ms", "read_bytes", "write_bytes", "read_ms", "write_ms", "rss_max_mb")
    assert [row[name] for name in names] == [None] * len(names)
    assert row["key"][4] == "unknown"


def test_rule_56_times_that_cannot_be_are_left_out_and_counted(tmp_path: Path) -> None:
    steps = [
        reports.step(
            cpu={"TotalJobTime": 24, "NumberOfThreads": 4},
            storage={"readTotalSecs": read, "writeTotalSecs": 960},
        )
        for read in (844_421, 960)
    ]
    lines = [reports.report("a", noon(JULY), steps=steps)]
    (row,) = report_cells(tmp_path, lines)
    assert (row["read_ms"], row["write_ms"]) == (960_000, 1_920_000)
    assert row["implausible_count"] == 1
    done = count(tmp_path, JULY, tmp_path / "again", feeds.WMARCHIVE)
    assert done.manifest.document["implausible"] == 1
