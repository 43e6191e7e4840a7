"""What the manifest of a day says beside its tables: totals, silent hours, too many
core hours (rule 62).
"""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from cmsspark.apps.jobs_cost import feeds
from cmsspark.apps.jobs_cost.feeds import HpcSites
from cmsspark.base.errors import DataError, NotReady, SettingsError, UsageError
from tests.apps.jobs_cost.cells import count, rows
from tests.apps.jobs_cost.test_cost_cells import DAY
from tests.corpus import costs
from tests.corpus.jobs import job
from tests.corpus.tree import Tree

START = 1_781_481_600_000


def _record(name: str, minute: int, **changes: object) -> bytes:
    time = START + minute * 60_000
    values = {
        "GlobalJobId": name,
        "Status": "Running",
        "RecordTime": time,
        "RequestCpus": 2,
        "Site": "T3_US_NERSC",
    }
    return job({**costs.COSTS, **values, **changes}, {"timestamp": time})


def _count(tmp_path: Path, lines: list[bytes], **options: object) -> object:
    Tree(tmp_path, DAY).write_lines("condor", lines, parts=1)
    return count(tmp_path, DAY, tmp_path / "fout", **options)


def test_rule_54_cores_of_windows_and_silent_hours(tmp_path: Path) -> None:
    lines = [_record("a", minute) for minute in (0, 3, 12, 60)] + [_record("a", 13, RequestCpus=8)]
    lines += [_record("b", 0, Site="T2_CH_CERN"), _record("c", 24, Status="Idle")]
    done = _count(tmp_path, lines)
    found = rows(done, "running_cores")  # type: ignore[arg-type]
    nersc = ("T3_US_NERSC", None, "NERSC", "analysis")
    assert found[*nersc, 0] == {
        "window_count": 3,
        "core_windows_milli": 2000 + 8000,
        "job_windows": 2,
    }
    assert found[*nersc, 1] == {"window_count": 1, "core_windows_milli": 2000, "job_windows": 1}
    manifest = done.manifest  # type: ignore[attr-defined]
    assert manifest.document["job_cost_checks"]["windows_by_hour"][:3] == [3, 1, 0]
    assert any("00 (3 of 5), 01 (1 of 5), 02 (0 of 5)" in text for text in manifest.warnings)


def test_rule_62_core_hours_beyond_a_day_of_the_busiest_hour_are_told(tmp_path: Path) -> None:
    ended = _record("x", 30, Status="Completed", CoreHr=49.0, WallClockHr=3.0)
    done = _count(tmp_path, [_record("a", 0), ended])
    manifest = done.manifest  # type: ignore[attr-defined]
    assert manifest.document["job_cost_checks"]["core_hours"] == 49.0
    assert any("49.0 core hours" in text and "24 h" in text for text in manifest.warnings)
    total = sum(row["core_ms"] for row in rows(done, "job_efficiency").values())  # type: ignore[arg-type]
    assert manifest.document["job_cost_checks"]["core_ms"] == total


def test_a_sum_beyond_64_bits_is_65_and_a_day_without_records_75(tmp_path: Path) -> None:
    huge = _record("x", 30, Status="Completed", WallClockHr=10**12, RequestCpus=10**12)
    with pytest.raises(DataError, match="core_ms in job_efficiency") as caught:
        _count(tmp_path, [huge])
    assert "--quarantine-above SECONDS" in str(caught.value.next_step)
    with pytest.raises(NotReady, match="has no data"):
        _count(tmp_path, [b""])


def test_records_of_jobs_above_a_limit_are_in_quarantine_and_the_result_is_partial(
    tmp_path: Path,
) -> None:
    ended = {"Status": "Completed", "WallClockHr": 3.0, "CpuTimeHr": 1.0}
    lines = [
        _record("a", 0),
        _record("b", 30, **ended),
        _record("x", 30, **{**ended, "WallClockHr": 10**12}),
    ]
    done = _count(tmp_path, lines, quarantine_above=10**10)
    manifest = done.manifest  # type: ignore[attr-defined]
    assert manifest.partial
    assert manifest.document["oversized"] == {"condor_costs": 1}
    assert manifest.reconciliation["condor_costs"]["malformed"] == 1
    assert manifest.reconciliation["condor_costs"]["matched"] == 1
    assert "condor_costs: 1 record beyond --quarantine-above in quarantine" in manifest.warnings
    assert Path(manifest.document["quarantine"]).is_file()


def test_reports_above_a_limit_are_in_quarantine_and_the_result_is_partial(tmp_path: Path) -> None:
    steps = [
        {"name": "cmsRun1", "performance": {"cpu": {"TotalJobTime": seconds}}}
        for seconds in (60, 10**7)
    ]
    lines = [
        json.dumps(
            {
                "data": {
                    "wmaid": str(number),
                    "wmats": START // 1000,
                    "task": "/r/t",
                    "steps": [step],
                    "meta_data": {"jobstate": "success", "jobtype": "Processing", "host": "h"},
                },
                "metadata": {},
            }
        ).encode()
        for number, step in enumerate(steps)
    ]
    Tree(tmp_path, DAY).write_lines("wmarchive", lines, parts=1)
    done = count(tmp_path, DAY, tmp_path / "fout", feeds.WMARCHIVE, quarantine_above=10**6)
    assert done.manifest.partial
    assert done.manifest.document["oversized"] == {"wmarchive": 1}
    assert [row["step_count"] for row in rows(done, "step_efficiency").values()] == [1]


def test_malformed_records_beyond_the_tolerance_fail_the_day_and_are_in_quarantine(
    tmp_path: Path,
) -> None:
    lines = [_record(str(number), 0, RequestCpus="x") for number in range(11)]
    with pytest.raises(DataError, match="11 of 12 records are malformed") as caught:
        _count(tmp_path, [*lines, _record("a", 0)], max_malformed=None)
    assert "RequestCpus" in str(caught.value.found)
    assert len(Path(str(caught.value.where)).read_text().splitlines()) == 11
    with pytest.raises(UsageError, match="--max-malformed"):
        _count(tmp_path, lines, max_malformed="aaa=1%")


@pytest.mark.parametrize(
    "text",
    [
        "sites: [{hpc: X}]",
        "sites: [{site: T1}]",
        "sites: [{hpc: X, site: A, site_suffix: B}]",
        "sites: [{hpc: X, site: ''}]",
        "sites: [{hpc: X, site: []}]",
        "sites: [{hpc: X, site: A, more: B}]",
        "sites: 5",
    ],
)
def test_a_wrong_table_of_hpc_sites_is_78(tmp_path: Path, text: str) -> None:
    file = tmp_path / "hpc.yaml"
    file.write_text(text + "\n")
    with pytest.raises(SettingsError):
        HpcSites.load(str(file))


def test_a_table_of_hpc_sites_of_ones_own_replaces_the_built_in_one(tmp_path: Path) -> None:
    file = tmp_path / "hpc.yaml"
    file.write_text(
        "sites:\n  - {hpc: X, site: [A, B], subsite: C}\n  - {hpc: Y, site_suffix: _Z}\n"
    )
    table = HpcSites.load(str(file))
    places = [("A", "C"), ("B", None), ("B_Z", None), ("T3_US_NERSC", None)]
    assert [table.find(*place) for place in places] == ["X", None, "Y", None]
