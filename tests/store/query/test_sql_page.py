"""``docs/sql.md``: each of its commands answers."""

from __future__ import annotations

import re
import shlex
from datetime import date, timedelta
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from click.testing import CliRunner

from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.main import command
from cmsspark.store import staged_runs
from cmsspark.store.query.database import Database
from tests.store.query.stores import make_store
from tests.store.query.test_dump_views import write_dumps

PAGE = Path(__file__).resolve().parents[3] / "docs" / "sql.md"
LINES = [
    line
    for block in re.findall(
        r"^```\n(.*?)^```", PAGE.read_text(encoding="utf-8"), re.MULTILINE | re.DOTALL
    )
    for line in block.splitlines()
    if line.startswith("cmsspark sql ")
]


@pytest.fixture(scope="module")
def store(tmp_path_factory: pytest.TempPathFactory) -> str:
    return make_store(tmp_path_factory.mktemp("store"), 3)


@pytest.fixture(scope="module")
def dumps(tmp_path_factory: pytest.TempPathFactory) -> Path:
    root = tmp_path_factory.mktemp("dumps")
    write_dumps(root)
    return root


@pytest.mark.parametrize("line", LINES)
def test_a_command_of_the_page_answers(
    line: str, store: str, dumps: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "cmsspark.yaml").write_text(f"store: {store}\nroot: {dumps}\n")
    _, *words = shlex.split(line)
    ended = CliRunner().invoke(command, words, standalone_mode=False)
    assert ended.exception is None
    assert ended.stdout or (tmp_path / words[-1]).stat().st_size > 1_000


def test_the_page_has_commands() -> None:
    assert len(LINES) >= 6


#: Accesses and jobs of 2026-01-05 by stream, dataset, site and app: count, bytes, remote
#: ones. The two other days have ten times these.
_DAY = date(2026, 1, 5)
_CELLS: list[tuple[str, str, str, int, int | None, int | None]] = [
    ("aaa", "/A/x/AOD", "T2_US_MIT", 5, 500, 2),
    ("aaa", "/B/x/AOD", "T2_US_UCSD", 3, 700, 0),
    ("eos", "/A/x/AOD", "T2_CH_CERN", 4, 100, None),
    ("condor", "/A/x/AOD", "T2_US_MIT", 7, 90, None),
]
_PAIRS = [("T2_US_UCSD", "T2_US_MIT", 2, 2, 200), ("T2_US_MIT", "T2_US_MIT", 3, 0, 300)]
#: What each example that adds something up gives, by the beginning of its columns.
_EXPECTED: dict[str, list[tuple[Any, ...]]] = {
    "select stream,": [("aaa", 8, None), ("eos", 4, None), ("condor", None, 7)],
    "select dataset_name,": [("/A/x/AOD", 9, 600, 7), ("/B/x/AOD", 3, 700, None)],
    "select day, count": [(_DAY + timedelta(days=number), 2) for number in range(3)],
    "select site_name,": [("T2_US_MIT", 5, 500), ("T2_US_UCSD", 3, 700)],
    "select reader_site,": [("T2_US_UCSD", "T2_US_MIT", 2, 200)],
}


def _row(table: str, **values: Any) -> dict[str, Any]:
    schema = stored_table(table)
    blank = {
        column.name: None if column.nullable else 0 if column.type in ("long", "double") else "x"
        for column in schema.columns
    }
    return blank | values


def _write_by_hand(store: Path) -> None:
    """Three days of data_aggregation."""
    for number in range(3):
        day, scale = _DAY + timedelta(days=number), 10 if number else 1
        cells = [
            {
                "day": day,
                "stream": stream,
                "dataset_name": dataset,
                "site_name": site,
                "nacc": count * scale,
                "read_bytes": None if size is None else size * scale,
                "remote_nacc": None if remote is None else remote * scale,
            }
            for stream, dataset, site, count, size, remote in _CELLS
        ]
        pairs = [
            {
                "day": day,
                "stream": "aaa",
                "reader_site": reader,
                "source_site": source,
                "nacc": count * scale,
                "remote_nacc": remote * scale,
                "read_bytes": size * scale,
            }
            for reader, source, count, remote, size in _PAIRS
        ]
        users = ["k:1", "k:2", "k:1", None]
        tables = {
            "data_aggregation": cells,
            "partials": [cell | {"user": user} for cell, user in zip(cells, users, strict=True)],
            "site_pairs": pairs,
        }
        run = staged_runs.stage(LocalFiles(), str(store), "data_aggregation", day)
        for name, rows in tables.items():
            full = [_row(name, **row) for row in rows]
            run.write_arrow(pa.Table.from_pylist(full, stored_table(name).arrow()), name)
        run.commit({"warnings": []})


def test_each_example_that_adds_up_gives_the_numbers_of_a_day_on_a_store_of_three(
    tmp_path: Path,
) -> None:
    _write_by_hand(tmp_path)
    database = Database(str(tmp_path))
    queries = [
        query
        for line in LINES
        if "--dumps" not in line and re.search(r"sum\(|count\(", query := shlex.split(line)[2])
    ]
    assert len(queries) == len(_EXPECTED)
    for query in queries:
        (beginning,) = (words for words in _EXPECTED if query.startswith(words))
        assert database.query(query).rows == _EXPECTED[beginning], query
