"""Every cell of ``job_efficiency``, ``core_hours`` and ``running_cores`` equals the
oracle's, by both engines.
"""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pytest

from cmsspark.store.results import CurrentTable
from tests.apps.jobs_cost.cells import count, rows
from tests.corpus import costs
from tests.corpus.hostile import DAY as LEGACY_DAY
from tests.corpus.tree import Tree
from tests.oracle import costs as oracle
from tests.oracle import jobs

DAY = LEGACY_DAY.replace(year=2026)


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days at random with all malformed and odd lines."""
    root = tmp_path_factory.mktemp("costs")
    for back in range(2):
        day = DAY - timedelta(days=back)
        moved = [_moved(line) for line in (*costs.malformed(), *costs.odd())] if not back else []
        Tree(root, day).write_lines("condor", costs.at_random(7 + back, day) + moved, parts=4)
    return root


def _moved(line: bytes) -> bytes:
    """A line of the corpus's legacy day on this file's day."""
    from tests.corpus.json_lines import NOON_MS

    shift = (DAY - LEGACY_DAY).days * 86_400_000
    return line.replace(str(NOON_MS).encode(), str(NOON_MS + shift).encode())


@pytest.fixture(scope="module")
def expected(root: Path) -> oracle.CostDay:
    lines = [
        list(jobs.condor_lines(files_of))
        for back in range(2)
        if (files_of := jobs.condor_folder(root, DAY - timedelta(days=back)))
    ]
    return oracle.count(lines[0], DAY, lines[1])


def check(done: CurrentTable, expected: oracle.CostDay) -> None:
    """Compare bins and all cells."""
    found = done.manifest.reconciliation["condor_costs"]
    assert {name: value for name, value in found.items() if value and name != "unmatched"} == dict(
        +expected.bins
    )
    for table, wanted in (
        ("job_efficiency", expected.efficiency),
        ("core_hours", expected.core_hours),
        ("running_cores", expected.running),
    ):
        cells = rows(done, table)
        assert cells.keys() == wanted.keys(), table
        for key, row in cells.items():
            assert row == dict(wanted[key]), (table, key)


@pytest.mark.parametrize("is_compiled", [True, False], ids=["compiled", "plain"])
def test_rules_49_to_54_processes_give_every_cell(
    root: Path,
    expected: oracle.CostDay,
    tmp_path: Path,
    is_compiled: bool,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    if not is_compiled:
        monkeypatch.setattr("cmsspark.sources.formats.fast_json._key_reader", None)
    done = count(root, DAY, tmp_path)
    assert done.manifest.document["compiled"] is True
    check(done, expected)


def test_rule_51_each_cell_of_a_day_whose_wall_time_is_of_the_last_start(
    tmp_path: Path,
) -> None:
    day = date(2026, 7, 27)
    lines = costs.at_random(11, day)
    Tree(tmp_path, day).write_lines("condor", lines, parts=2)
    expected = oracle.count(lines, day, [])
    check(count(tmp_path, day, tmp_path / "fout"), expected)
    assert any(row["evicted_core_ms"] for row in expected.efficiency.values())


@pytest.mark.parametrize("spark_feed", ["direct", "spark"])
def test_rules_49_to_54_spark_gives_every_cell(
    spark: object, root: Path, expected: oracle.CostDay, tmp_path: Path, spark_feed: str
) -> None:
    check(count(root, DAY, tmp_path, engine="spark", spark_feed=spark_feed), expected)


def test_the_corpus_has_every_bin_and_outcome(expected: oracle.CostDay) -> None:
    assert all(
        expected.bins[name]
        for name in ("malformed", "out_of_day", "not_final", "never_ran", "repeated", "matched")
    )
    assert {key[7] for key in expected.efficiency} == {"ok", "outlier", "failed", "removed"}
    assert {key[2] for key in expected.core_hours} >= {
        "CINECA",
        "VEGA",
        "CHULA",
        "BSC",
        "HOREKA",
        "RWTH",
        "NERSC",
        None,
    }


def test_rule_49_each_ill_typed_field_of_costs_makes_a_record_malformed_here_and_not_in_the_stream() -> (
    None
):
    from cmsspark.sources.reader import Reader

    for line in costs.malformed():
        assert (
            len(Reader("condor_costs", "json", LEGACY_DAY).chunk(line + b"\n", "f").malformed) == 1
        ), line
        assert (
            not Reader("condor", "json", LEGACY_DAY).chunk(line + b"\n", "f").malformed
            or b"NaN" in line
        ), line


def test_rule_31_stored_ids_of_the_day_before_serve_as_its_logs_do(
    root: Path, tmp_path: Path, expected: Any
) -> None:
    before = count(root, DAY - timedelta(days=1), tmp_path)
    done = count(root, DAY, tmp_path)
    assert done.manifest.document["earlier_jobs"]["condor_costs"]["ids_from"] == "stored"
    assert before.manifest.document["earlier_jobs"]["condor_costs"]["ids_from"] is None
    check(done, expected)
