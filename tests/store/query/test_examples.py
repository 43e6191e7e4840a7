"""Each example that gives accesses gives those of the demo's table: in README, docs,
notebooks, advice and pages.
"""

from __future__ import annotations

import ast
import json
import re
import shlex
from datetime import date
from pathlib import Path
from typing import Any

import pandas as pd
import polars as pl
import pyarrow as pa
import pytest
from click.testing import CliRunner

import cmsspark as cms
from cmsspark.apps.dashboard.pages import sql as sql_page
from cmsspark.apps.demo import cli, narration
from cmsspark.apps.demo.narration import store_history
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.main import command
from cmsspark.store import query
from cmsspark.store.staged_runs import stage
from tests.store.query.stores import HISTORY, KEY

TOP = Path(__file__).resolve().parents[3]
#: The day of the examples in docs/sql.md, and that of all others.
DAYS = (date(2026, 1, 5), date(2026, 1, 15))


@pytest.fixture(scope="module")
def out(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """The folder of a demo with two days, which have accesses and jobs."""
    out = tmp_path_factory.mktemp("demo")
    store_history(HISTORY, str(out / "store"), list(DAYS), KEY.key_id)
    (out / "cmsspark.yaml").write_text(f"store: {out}/store\n")
    return out


def demo_table(out: Path, day: date) -> list[tuple[int, int | None, str]]:
    """Accesses, jobs and the shortened name of the datasets in the table that the demo shows."""
    (_, *lines), _ = cli._most_used(cli.DemoPaths.below(out), day)
    rows = []
    for line in lines:
        accesses, jobs, name = re.fullmatch(
            r"\s*([\d,]+) .* ([\d,]+|–)\s+[\d,–]+\s+(/\S+)\s*", line
        ).groups()  # type: ignore[union-attr]
        rows.append((number(accesses), None if jobs == "–" else number(jobs), name))
    assert len(rows) == 10 and any(jobs for _, jobs, _ in rows)
    return rows


def number(text: str) -> int:
    return int(text.replace(",", ""))


def assert_equals_demo(rows: list[tuple[str, Any, Any]], out: Path, day: date) -> None:
    """Compare (dataset, accesses, jobs) with the demo's table."""
    shown = demo_table(out, day)
    assert [int(accesses) for _, accesses, _ in rows] == [accesses for accesses, _, _ in shown]
    counts = [
        (name, int(accesses), None if pd.isna(jobs) else int(jobs) or None)
        for name, accesses, jobs in rows
    ]
    for accesses, jobs, short in shown:
        begin, _, end = short.partition("…")
        fitting = [
            values for name, *values in counts if name.startswith(begin) and name.endswith(end)
        ]
        assert [accesses, jobs] in fitting


def totals(out: Path, *days: date) -> dict[str, int]:
    """The counts of accesses and jobs, and bytes read by accesses, from the Parquet files."""
    return sums(stored_rows(out, *days))


def stored_rows(out: Path, *days: date) -> pl.DataFrame:
    return pl.read_parquet(
        [path for day in days for path in out.glob(f"store/*/{day}/runs/*/partials/*.parquet")]
    )


def sums(rows: pl.DataFrame) -> dict[str, int]:
    accesses, jobs = (
        rows.filter(pl.col("stream").is_in(["condor"]) == is_job) for is_job in (False, True)
    )
    return {
        "accesses": accesses["nacc"].sum(),
        "jobs": jobs["nacc"].sum(),
        "bytes": accesses["read_bytes"].sum(),
    }


def assert_totals(rows: list[dict[str, Any]], out: Path, *days: date) -> None:
    assert_sums(rows, totals(out, *days))


def assert_sums(rows: list[dict[str, Any]], expected: dict[str, int]) -> None:
    for name, total in expected.items():
        if name in rows[0]:
            assert sum(row[name] or 0 for row in rows) == total, name


def result(block: str, names: dict[str, Any]) -> Any:
    """Run Python and return the value of its last line."""
    *lines, last = ast.parse(block).body
    exec(compile(ast.Module(lines, []), "block", "exec"), names)
    return eval(compile(ast.Expression(last.value), "block", "eval"), names)  # type: ignore[attr-defined]


def frame_rows(frame: Any) -> list[tuple[str, Any, Any]]:
    return [(name, row["accesses"], row["jobs"]) for name, row in frame.iterrows()]


def test_the_readmes_pandas(out: Path) -> None:
    blocks = re.findall(
        r"^```python\n(.*?)^```", (TOP / "README.md").read_text(), re.MULTILINE | re.DOTALL
    )
    (block,) = (block for block in blocks if "cms.read(" in block)
    assert_equals_demo(
        frame_rows(result(block.replace("/data/results", f"{out}/store"), {})), out, DAYS[1]
    )


def page_queries(*, of_pairs: bool = False) -> list[str]:
    lines = re.findall(
        r"^cmsspark sql (.*accesses.*)$", (TOP / "docs" / "sql.md").read_text(), re.MULTILINE
    )
    assert len(lines) >= 4
    queries = [shlex.split(line)[0] for line in lines]
    return [query for query in queries if ("from site_pairs" in query) == of_pairs]


def test_the_page_on_sql_ranks_remote_reads_by_pair_of_sites(tmp_path: Path) -> None:
    reads = [
        ("T2_DE_B", "T1_US_A", 3, 3),
        ("T2_DE_B", "T1_US_A", 4, 4),
        ("T2_DE_B", "T2_DE_B", 9, 0),
    ]
    rows = [
        {
            "day": DAYS[0],
            "stream": "aaa",
            "data_tier": tier,
            "reader_site": reader,
            "source_site": source,
            "nacc": count,
            "remote_nacc": remote,
            "read_bytes": 10 * count,
            "timestamp": 0,
        }
        for tier, (reader, source, count, remote) in zip(("AOD", "RAW", "AOD"), reads, strict=True)
    ]
    run = stage(LocalFiles(), str(tmp_path), "data_aggregation", DAYS[0])
    run.write_arrow(pa.Table.from_pylist(rows, stored_table("site_pairs").arrow()), "site_pairs")
    run.commit({"streams": ["aaa"]})
    (sql,) = page_queries(of_pairs=True)
    assert cms.sql(sql, fout=str(tmp_path), to="arrow").to_pylist() == [
        {"reader_site": "T2_DE_B", "source_site": "T1_US_A", "accesses": 7, "bytes": 70}
    ]


@pytest.mark.parametrize("sql", page_queries())
def test_the_commands_of_the_page_on_sql(sql: str, out: Path) -> None:
    rows = cms.sql(sql, fout=f"{out}/store", to="arrow").to_pylist()
    assert rows
    if "dataset_name" in rows[0]:
        assert_equals_demo(
            [(row["dataset_name"], row["accesses"], row["jobs"]) for row in rows], out, DAYS[0]
        )
    else:
        stored = stored_rows(out, DAYS[0])
        is_of_us = pl.col("site_name").str.starts_with("T2_US_")
        assert_sums(rows, sums(stored.filter(is_of_us) if "T2_US_" in sql else stored))


def test_the_example_of_the_dashboards_page(out: Path) -> None:
    assert_totals(
        cms.sql(sql_page._EXAMPLE, fout=f"{out}/store", to="arrow").to_pylist(), out, DAYS[1]
    )


def test_the_advice_of_the_demo(out: Path) -> None:
    lines = "\n".join(narration.next_lines(DAYS[0], DAYS[1], narration.Story()))
    (line,) = re.findall(r'cmsspark sql "(.*?)"', lines)
    rows = [
        dict(zip(("day", "accesses", "jobs"), row.values(), strict=True))
        for row in cms.sql(line, fout=f"{out}/store", to="arrow").to_pylist()
    ]
    for day in DAYS:
        assert_totals([row for row in rows if row["day"] == day], out, day)


def test_the_docstrings(out: Path) -> None:
    ((begin, end),) = re.findall(r'"(select data_tier.*?)"\s*"(.*?)"', str(query.__doc__))
    text = begin + end
    assert_totals(
        cms.sql(text, list(DAYS), fout=f"{out}/store", to="arrow").to_pylist(), out, *DAYS
    )
    parts = re.findall(r'"(select dataset_name.*?)"\s*\n\s*\.\.\.\s*"(.*?)"', str(cms.sql.__doc__))
    rows = cms.sql("".join(parts[0]), [DAYS[1]], fout=f"{out}/store", to="arrow").to_pylist()
    assert_equals_demo(
        [(row["dataset_name"], row["accesses"], row["jobs"]) for row in rows], out, DAYS[1]
    )


def test_the_notebook_of_stored_tables(out: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("CMSSPARK_SETTINGS", str(out / "cmsspark.yaml"))
    monkeypatch.setattr(cms, "days", lambda: list(DAYS))
    cells = json.loads((TOP / "etc" / "notebooks" / "stored-tables.ipynb").read_text())["cells"]
    names: dict[str, Any] = {}
    shown = []
    for cell in cells:
        if cell["cell_type"] == "code":
            # All days of a notebook's range are stored; here there are two.
            source = "".join(cell["source"]).replace(
                "days[0], days[-1])", "days[0], days[-1], allow_missing=True)"
            )
            shown.append(result(source, names))
    assert_equals_demo(frame_rows(shown[2]), out, DAYS[1])
    total = totals(out, *DAYS)
    assert (names["by_tier"]["accesses"].sum(), names["by_tier"]["jobs"].sum()) == (
        total["accesses"],
        total["jobs"],
    )
    assert names["people"]["accesses"].sum() == total["accesses"]
    assert names["trend"]["accesses"].sum().sum() == total["accesses"]
    assert names["trend"]["jobs"].sum().sum() == total["jobs"]
    assert names["sites"]["accesses"].sum() == totals(out, DAYS[1])["accesses"]


def test_no_example_sums_the_stored_count_over_streams() -> None:
    pages = [
        TOP / "README.md",
        *(TOP / "docs").glob("*.md"),
        *(TOP / "etc" / "notebooks").glob("*.ipynb"),
    ]
    modules = [
        path
        for room in ("query", "demo", "dashboard/pages")
        for path in (TOP / "cmsspark" / room).glob("*.py")
    ]
    wrong = re.compile(r"sum\(nacc\)|\.nacc\.sum|\[\"nacc\"\]\.sum|sum\(\\?\"nacc", re.IGNORECASE)
    assert not [
        path.name for path in (*pages, *modules) if wrong.search(path.read_text(encoding="utf-8"))
    ]


def test_a_query_for_the_stored_count_says_what_to_ask_for(out: Path) -> None:
    words = ["sql", "select sum(nacc) from data_aggregation", "--fout", f"{out}/store"]
    ended = CliRunner().invoke(command, words, standalone_mode=False)
    assert "ask for accesses or jobs" in str(ended.exception)
