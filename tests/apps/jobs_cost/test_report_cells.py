"""Every cell of ``step_efficiency`` and ``agent_reports`` equals the oracle's, by both engines."""

from __future__ import annotations

from datetime import date, timedelta
from pathlib import Path

import pytest

from cmsspark.apps.jobs_cost.feeds import WMARCHIVE
from cmsspark.base.errors import DataError
from cmsspark.sources.reader import Reader
from cmsspark.store.results import CurrentTable
from tests.apps.jobs_cost.cells import count, rows
from tests.corpus import reports
from tests.corpus.tree import Tree
from tests.oracle import files
from tests.oracle import reports as oracle

DAY = date(2026, 6, 15)
NOON = (DAY - date(1970, 1, 1)).days * 86_400 + 43_200


@pytest.fixture(scope="module")
def root(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Two days at random with all hostile lines."""
    root = tmp_path_factory.mktemp("reports")
    for back in range(2):
        day = DAY - timedelta(days=back)
        lines = reports.at_random(3 + back, day) + ([] if back else reports.hostile(NOON))
        Tree(root, day).write_lines("wmarchive", lines, parts=4)
    return root


@pytest.fixture(scope="module")
def expected(root: Path) -> oracle.ReportDay:
    lines = []
    for back in range(2):
        folder = Tree(root, DAY - timedelta(days=back)).folder("wmarchive")
        lines.append(
            [
                line
                for file in files.data_files(folder)
                for line in files.records(files.content(file))
            ]
        )
    return oracle.count(lines[0], DAY, lines[1])


def check(done: CurrentTable, expected: oracle.ReportDay) -> None:
    """Compare bins and all cells."""
    bins = done.manifest.reconciliation["wmarchive"]
    assert {name: value for name, value in bins.items() if value and name != "unmatched"} == dict(
        +expected.bins
    )
    for table, wanted in (
        ("step_efficiency", oracle.step_rows(expected)),
        ("agent_reports", expected.agents),
    ):
        cells = rows(done, table)
        assert cells.keys() == wanted.keys(), table
        for key, row in cells.items():
            assert row == wanted[key], (table, key)


def test_rules_56_to_58_processes_give_every_cell(
    root: Path, expected: oracle.ReportDay, tmp_path: Path
) -> None:
    before = count(root, DAY - timedelta(days=1), tmp_path, WMARCHIVE)
    assert before.manifest.document["earlier_jobs"]["wmarchive"]["ids_from"] is None
    stored = count(root, DAY, tmp_path, WMARCHIVE)
    assert stored.manifest.document["earlier_jobs"]["wmarchive"]["ids_from"] == "stored"
    check(stored, expected)


@pytest.mark.parametrize("spark_feed", ["direct", "spark"])
def test_rules_56_to_58_spark_gives_every_cell(
    spark: object, root: Path, expected: oracle.ReportDay, tmp_path: Path, spark_feed: str
) -> None:
    done = count(root, DAY, tmp_path, WMARCHIVE, engine="spark", spark_feed=spark_feed)
    assert done.manifest.document["earlier_jobs"]["wmarchive"]["ids_from"] == "logs"
    check(done, expected)


def test_the_corpus_has_every_bin(expected: oracle.ReportDay) -> None:
    bins = ("malformed", "out_of_day", "failed", "other_type", "repeated", "no_cmsrun", "matched")
    assert all(expected.bins[name] > 3 for name in bins)


def test_rule_57_each_hostile_line_is_malformed_for_both_or_for_neither() -> None:
    for line in reports.hostile(NOON):
        try:
            is_malformed = not oracle.read(line)
        except oracle.Malformed:
            is_malformed = True
        batch = Reader("wmarchive", "json", DAY).chunk(line + b"\n", "f")
        assert bool(batch.malformed) == is_malformed, (line[:1500], batch.malformed)


def test_rule_1_a_report_may_be_nested_deeply_where_nothing_is_needed() -> None:
    line = reports.report("deep", NOON).replace(
        b'"LFNArray":[["x"]]', b'"LFNArray":' + b"[" * 5000 + b"]" * 5000
    )
    assert len(Reader("wmarchive", "json", DAY).chunk(line + b"\n", "f").jobs) == 1


def test_a_sum_beyond_64_bits_fails_the_day_and_names_the_row(tmp_path: Path) -> None:
    lines = [reports.report("a", NOON, steps=[reports.step(cpu={"NumberOfThreads": 2**62})])]
    Tree(tmp_path, DAY).write_lines("wmarchive", lines, parts=1)
    with pytest.raises(DataError, match="thread_ms in step_efficiency of 2026-06-15 is beyond"):
        count(tmp_path, DAY, tmp_path / "fout", WMARCHIVE)
