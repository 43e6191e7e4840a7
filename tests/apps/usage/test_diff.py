"""``cmsspark diff``: what appeared, vanished and changed between two days, or two runs of a day."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import polars as pl
import pytest
from click.testing import CliRunner

from cmsspark.apps.usage.diff import Change, group_changes, sum_changes
from cmsspark.base.errors import CmssparkError, DataError, InputMissing, UsageError
from cmsspark.base.manifests import COUNTING_RULES
from cmsspark.main import command
from tests.publish.days import DAY, row, rows, store_day

TEXT = f"{DAY:%Y%m%d}"


def diff(store: Path, *arguments: str) -> dict[str, Any]:
    """What it says as JSON."""
    found: dict[str, Any] = json.loads(output_of(store, *arguments, "--json"))
    return found


def output_of(store: Path, *arguments: str) -> str:
    result = CliRunner().invoke(
        command, ["diff", *arguments, "--fout", str(store)], catch_exceptions=False
    )
    assert result.exit_code == 0, result.output
    return result.stdout


def fails(kind: type[CmssparkError], store: Path, *arguments: str) -> str:
    with pytest.raises(kind) as error:
        output_of(store, *arguments)
    return error.value.text()


@pytest.fixture
def store(tmp_path: Path) -> Path:
    """Two runs of a day: of the first one's rows 0 is gone, 1 has more accesses, 2 is
    the same, 3 is new.
    """
    before = [row(0, nacc=10), row(1, nacc=10, read_bytes=None), row(2, nacc=10)]
    after = [row(1, nacc=15, read_bytes=None), row(2, nacc=10), row(3, nacc=1)]
    store_day(tmp_path, before, "r1")
    store_day(tmp_path, after, "r2")
    return tmp_path


def test_two_runs_of_a_day_differ_by_dataset(store: Path) -> None:
    found = diff(store, f"{TEXT}@r1", TEXT, "--by", "dataset")
    (by,) = found["by"]
    assert (by["appeared"], by["vanished"], by["changed"], by["same"]) == (1, 1, 1, 1)
    assert [change["delta"] for change in by["largest"]] == [-10, 5, 1]
    assert [change["after"] for change in by["largest"]] == [None, 15, 1]
    assert found["totals"][0] == {"key": "nacc", "before": 30, "after": 26, "delta": -4}
    assert (found["a"], found["b"]) == (f"{DAY}@r1", f"{DAY}@r2")


def test_a_partial_side_is_named_as_what_it_lacks_seems_new(tmp_path: Path) -> None:
    store_day(tmp_path, [row(0)], "r1")
    store_day(tmp_path, [row(0), row(1, stream="cmssw")], "r2")
    for run, lacking in (("r1", ["cmssw"]), ("r2", [])):
        file = tmp_path / "data_aggregation" / DAY.isoformat() / "runs" / run / "manifest.json"
        document = json.loads(file.read_text())
        document |= {
            "streams": ["aaa", "cmssw"],
            "missing_streams": lacking,
            "partial": bool(lacking),
        }
        file.write_text(json.dumps(document))
    arguments = ["diff", f"{TEXT}@r1", f"{TEXT}@r2", "--fout", str(tmp_path)]
    stderr = CliRunner().invoke(command, arguments, catch_exceptions=False).stderr
    assert stderr == f"warning: {DAY}@r1 is partial (without cmssw)\n"


def test_a_side_that_was_counted_by_earlier_rules_is_named(tmp_path: Path) -> None:
    store_day(tmp_path, [row(0)], "r1")
    store_day(tmp_path, [row(0)], "r2")
    numbers = {"r1": {}, "r2": {"rules": COUNTING_RULES}}
    for run, versions in numbers.items():
        file = tmp_path / "data_aggregation" / DAY.isoformat() / "runs" / run / "manifest.json"
        document = json.loads(file.read_text())
        document |= {"reconciliation": {"aaa": {"read": 1}}, "versions": versions}
        file.write_text(json.dumps(document))

    def warnings(before: str, after: str) -> str:
        arguments = ["diff", f"{TEXT}@{before}", f"{TEXT}@{after}", "--fout", str(tmp_path)]
        return CliRunner().invoke(command, arguments, catch_exceptions=False).stderr

    assert warnings("r1", "r2") == (
        f"warning: {DAY}@r1 was counted by rules 1, which differ from today's {COUNTING_RULES}: "
        "docs/counting.md lists the changes\n"
    )
    assert warnings("r1", "r1") == warnings("r2", "r2") == ""


def test_the_impact_on_documents_is_reported(store: Path) -> None:
    found = diff(store, f"{TEXT}@r1", TEXT, "--publish-impact")
    assert found["documents"] == {"new": 1, "changed": 1, "unchanged": 1, "gone": 1}


def test_a_result_does_not_differ_from_itself(store: Path) -> None:
    found = diff(store, TEXT, TEXT, "--publish-impact")
    assert found["documents"] == {"new": 0, "changed": 0, "unchanged": 3, "gone": 0}
    assert all(not by["largest"] and not by["changed"] for by in found["by"])


def test_people_see_what_is_new_gone_and_by_how_much_it_changed(store: Path) -> None:
    told = output_of(store, f"{TEXT}@r1", f"{TEXT}@r2", "--by", "dataset", "--publish-impact")
    assert "nacc by dataset_name: 1 appeared, 1 vanished, 1 changed, 1 the same" in told
    lines = [line.split()[1:] for line in told.splitlines() if line.startswith("  /")]
    assert lines == [
        ["10", "–", "-10", "gone"],
        ["10", "15", "+5", "+50.0", "%"],
        ["–", "1", "+1", "new"],
    ]
    assert "documents: 1 new, 1 changed, 1 gone, 1 unchanged" in told


def test_what_would_write_elsewhere_on_a_terminal_is_escaped(tmp_path: Path) -> None:
    store_day(tmp_path, [], "r1")
    store_day(tmp_path, [row(1, site_name="T2_\x1b[2J")], "r2")
    assert "T2_\\x1b[2J" in output_of(tmp_path, f"{TEXT}@r1", TEXT, "--by", "site")


def test_what_is_not_there_is_reported_with_what_is(store: Path) -> None:
    assert "r1, r2" in fails(InputMissing, store, f"{TEXT}@x", TEXT)
    assert str(DAY) in fails(InputMissing, store, "20200101", TEXT)


@pytest.mark.parametrize(
    "wrong",
    [
        *(("2026", TEXT), (f"{TEXT}@", TEXT), ("20260114", TEXT, "--publish-impact")),
        (TEXT, TEXT, "--job", "cern_monit"),
        (TEXT, TEXT, "--by", "no_such"),
        (TEXT, TEXT, "--measure", "no_such"),
    ],
)
def test_a_wrong_command_line_ends_in_2(store: Path, wrong: tuple[str, ...]) -> None:
    fails(UsageError, store, *wrong)


def test_a_damaged_part_is_named(store: Path) -> None:
    part = next((store / "data_aggregation" / DAY.isoformat() / "runs" / "r1").rglob("*.parquet"))
    part.write_bytes(b"garbage")
    assert part.name in fails(DataError, store, f"{TEXT}@r1", TEXT)


def test_sums_over_nothing_are_null_and_null_keys_are_one_group() -> None:
    kinds = {"key": pl.String, "n": pl.Int64}
    nothing, some = (
        pl.DataFrame(schema=kinds),
        pl.DataFrame({"key": [None, None], "n": [1, None]}, schema=kinds),
    )
    assert sum_changes(nothing, some, ["n"]) == [Change("n", None, 1)]
    found = group_changes(some, some, "key", "n", 5)
    assert (found.appeared, found.vanished, found.same) == (0, 0, 1)


def test_a_group_of_which_nothing_is_known_is_not_0(tmp_path: Path) -> None:
    store_day(tmp_path, [row(1, remote_nacc=66), row(2, remote_nacc=5)], "r1")
    store_day(tmp_path, [row(1, remote_nacc=None), row(2, remote_nacc=5)], "r2")
    options = ("--by", "dataset", "--measure", "remote_nacc")
    (by,) = diff(tmp_path, f"{TEXT}@r1", TEXT, *options)["by"]
    assert (by["vanished"], by["changed"], by["same"]) == (0, 1, 1)
    (change,) = by["largest"]
    assert (change["before"], change["after"], change["delta"]) == (66, None, None)
    line = output_of(tmp_path, f"{TEXT}@r1", TEXT, *options).splitlines()[-1]
    assert line.split()[1:] == ["66", "–", "–", "not", "known"]


def test_sums_beyond_64_bits_are_exact(tmp_path: Path) -> None:
    size = 5 * 10**18 + 1
    store_day(tmp_path, [row(1, read_bytes=1), row(2, read_bytes=9)], "r1")
    store_day(tmp_path, [row(1, read_bytes=size), row(1, read_bytes=size, app="x")], "r2")
    found = diff(tmp_path, f"{TEXT}@r1", TEXT, "--by", "dataset", "--measure", "read_bytes")
    total = next(change for change in found["totals"] if change["key"] == "read_bytes")
    assert total == {"key": "read_bytes", "before": 10, "after": 2 * size, "delta": 2 * size - 10}
    (by,) = found["by"]
    assert [change["delta"] for change in by["largest"]] == [2 * size - 1, -9]
    told = output_of(tmp_path, f"{TEXT}@r1", TEXT, "--by", "dataset", "--measure", "read_bytes")
    assert told.count("10.0 EB") == 4 and "+10.0 EB" in told and "-9 B" in told


def test_seconds_are_summed_as_milliseconds_in_totals_and_groups(tmp_path: Path) -> None:
    values = [0.1, 0.2, 0.3, 1e9 + 0.001, 1e-3] * 7
    crab = {"stream": "crab", "read_bytes": None}
    many = [
        row(1, cpu_time=value, app=f"app{number}", **crab) for number, value in enumerate(values)
    ]
    store_day(tmp_path, many, "r1")
    store_day(tmp_path, many[::-1][:-1], "r2")
    found = diff(tmp_path, f"{TEXT}@r1", TEXT, "--by", "dataset", "--measure", "cpu_time")
    total = next(change for change in found["totals"] if change["key"] == "cpu_time")
    assert (total["before"], total["after"], total["delta"]) == (
        7000000004.214,
        7000000004.114,
        -0.1,
    )
    (by,) = found["by"]
    assert [{**change, "key": "cpu_time"} for change in by["largest"]] == [total]
    same = diff(tmp_path, f"{TEXT}@r1", f"{TEXT}@r1", "--by", "dataset", "--measure", "cpu_time")
    assert same["by"][0]["same"] == 1


def test_one_document_of_three_hundred_thousand_that_is_gone_is_found(tmp_path: Path) -> None:
    template = rows(1_000)
    many = [{**one, "app": f"app{number}"} for number in range(300) for one in template]
    store_day(tmp_path, many, "r1")
    store_day(tmp_path, many[:-1], "r2")
    found = diff(tmp_path, f"{TEXT}@r1", TEXT, "--publish-impact")
    assert found["documents"]["gone"] == 1


def test_jobs_are_beside_accesses_and_are_never_added_to_them(tmp_path: Path) -> None:
    def jobs(number: int, count: int, **other: Any) -> dict[str, Any]:
        return row(
            number, stream="condor", nacc=count, read_bytes=7 * count, remote_nacc=count, **other
        )

    accesses = {"read_bytes": 5, "remote_nacc": 2}
    store_day(tmp_path, [row(0, nacc=10, **accesses), jobs(1, 4_000), jobs(2, 100)], "r1")
    store_day(tmp_path, [row(0, nacc=12, **accesses), jobs(1, 9_000)], "r2")
    found = diff(tmp_path, f"{TEXT}@r1", TEXT, "--by", "dataset")
    totals = {change["key"]: (change["before"], change["after"]) for change in found["totals"]}
    assert (
        totals["nacc"] == (10, 12)
        and totals["read_bytes"] == (5, 5)
        and totals["remote_nacc"] == (2, 2)
    )
    assert totals["job_count"] == (4_100, 9_000) and totals["job_read_bytes"] == (28_700, 63_000)
    assert [change["delta"] for change in found["by"][0]["largest"]] == [2]
    (of_jobs,) = diff(tmp_path, f"{TEXT}@r1", TEXT, "--by", "dataset", "--measure", "job_count")[
        "by"
    ]
    assert [change["delta"] for change in of_jobs["largest"]] == [5_000, -100]
    assert (of_jobs["vanished"], of_jobs["changed"]) == (1, 1)


def test_without_jobs_there_is_no_measure_of_them(store: Path) -> None:
    assert "job_count" not in output_of(store, f"{TEXT}@r1", TEXT)
    assert "has no jobs here" in fails(
        UsageError, store, f"{TEXT}@r1", TEXT, "--measure", "job_count"
    )


def test_json_has_the_same_keys_whatever_the_results_have(tmp_path: Path) -> None:
    access, job = row(0, nacc=10), row(1, stream="condor", nacc=4_000)
    contents = {"accesses": [access], "jobs": [job], "both": [access, job], "none": []}
    keys = set()
    for number, (name, stored) in enumerate(contents.items()):
        store_day(tmp_path, stored, f"r{number}a")
        store_day(tmp_path, stored, f"r{number}b")
        found = diff(tmp_path, f"{TEXT}@r{number}a", TEXT)
        keys.add(
            (
                *found,
                *(change["key"] for change in found["totals"]),
                *(key for by in found["by"] for key in by),
            )
        )
        assert found["measure"] == ("job_count" if name == "jobs" else "nacc")
    assert len(keys) == 1 and {"nacc", "job_count", "job_read_bytes"} <= {*keys.pop()}


def test_jobs_alone_are_compared_as_jobs(tmp_path: Path) -> None:
    store_day(tmp_path, [row(1, stream="condor", nacc=40)], "r1")
    store_day(tmp_path, [row(1, stream="condor", nacc=50)], "r2")
    found = diff(tmp_path, f"{TEXT}@r1", TEXT, "--by", "dataset")
    totals = {change["key"]: (change["before"], change["after"]) for change in found["totals"]}
    assert (totals["nacc"], totals["job_count"]) == ((None, None), (40, 50))
    assert [change["delta"] for change in found["by"][0]["largest"]] == [10]
    assert "jobs and no accesses" in fails(
        UsageError, tmp_path, f"{TEXT}@r1", TEXT, "--measure", "nacc"
    )


def test_bytes_and_times_have_units(tmp_path: Path) -> None:
    store_day(tmp_path, [row(0, read_bytes=2_000_000_000_000, cpu_time=7_200.0)], "r1")
    store_day(tmp_path, [row(0, read_bytes=500_000_000_000, cpu_time=9_000.0)], "r2")
    shown = output_of(tmp_path, f"{TEXT}@r1", TEXT, "--by", "dataset", "--measure", "read_bytes")
    assert "2.0 TB  500.0 GB  -1.5 TB  -75.0 %" in shown
    assert "+1800.000 s  +25.0 %" in shown
