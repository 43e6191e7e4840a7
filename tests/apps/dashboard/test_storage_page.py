"""The page Storage: elements, accounts and stuck rules of a stored day."""

from __future__ import annotations

from collections.abc import Mapping
from datetime import date
from pathlib import Path
from typing import Any, Final

import pyarrow as pa

from cmsspark.apps.dashboard.page_request import PageRequest, Parameters
from cmsspark.apps.dashboard.pages import storage
from cmsspark.apps.dashboard.widgets import Content, Table
from cmsspark.base.dates import start_ms
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.store import staged_runs
from cmsspark.store.query.database import Database

DAY: Final = date(2026, 1, 15)
ZEROS: Final = {"string": "", "long": 0, "boolean": False}


def store(fout: Path, table: str, rows: list[Mapping[str, Any]]) -> None:
    schema = stored_table(table)
    plain = {
        column.name: None if column.nullable else ZEROS.get(column.type)
        for column in schema.columns
    }
    days = {"day": DAY, "timestamp": start_ms(DAY)}
    run = staged_runs.stage(LocalFiles(), str(fout), table, DAY, lambda: None)
    made = pa.Table.from_pylist([{**plain, **days, **row} for row in rows], schema.arrow())
    run.write_arrow(made, table)
    run.commit({"partial": False})


def view(fout: Path, **parameters: str) -> Content:
    request = PageRequest(
        "storage", Parameters(parameters), lambda: None, Database(str(fout)), Path("/none")
    )  # type: ignore[arg-type,return-value]
    return storage.PAGE.content(request)


def rows(content: Content, name: str) -> list[Any]:
    parts = [part for section in content.sections for part in section.items]
    (table,) = [part for part in parts if isinstance(part, Table) and part.name == name]
    return table.visible


def test_elements_show_pledge_use_and_what_may_go_and_people_are_together(tmp_path: Path) -> None:
    usage = {"kind": "disk", "static_bytes": 100, "rucio_bytes": 80, "free_bytes": 20}
    store(
        tmp_path,
        "rse_usage",
        [
            {**usage, "rse": "T2_A", "locked_bytes": 50, "expired_bytes": 7},
            {**usage, "rse": "T2_A_Test", "is_test": True},
            {"rse": "T1_B_Tape", "kind": "tape", "rucio_bytes": 5, "is_stale": True},
        ],
    )
    content = view(tmp_path)
    assert rows(content, "elements") == [
        ("T2_A", "disk", 100, 80, 20, 0.8, 50, 7, None, False),
        ("T1_B_Tape", "tape", None, 5, None, None, 0, None, None, True),
    ]
    assert [note.text for note in content.notes] == [
        "account_usage of 2026-01-15 is not stored: run_spark account_usage --date 2026-01-15",
        "rules_day of 2026-01-15 is not stored: run_spark rules_day --date 2026-01-15",
    ]
    lock = {"rse": "T2_A", "account_class": "user", "limit_kind": "none"}
    store(
        tmp_path,
        "account_usage",
        [
            {**lock, "account": "k:1", "lock_bytes": 3, "limit_bytes": 10, "limit_kind": "limit"},
            {**lock, "account": "k:2", "lock_bytes": 4, "stuck_bytes": 1},
            {**lock, "account": "wma_prod", "account_class": "production", "lock_bytes": 9},
        ],
    )
    stuck = {"event": "stuck", "account": "wma_prod", "activity": "a", "reason": "No source"}
    store(
        tmp_path,
        "rules_day",
        [
            {**stuck, "rule_count": 2, "lock_stuck": 5, "oldest_ms": 9},
            {**stuck, "account": "k:1", "rule_count": 1, "oldest_ms": 4},
            {**stuck, "event": "new", "reason": "-", "rule_count": 100},
        ],
    )
    store(
        tmp_path,
        "dataset_rses",
        [
            {"rse": "T2_A", "dataset_name": name, "deletable_bytes": size}
            for name, size in (("/a/b/C", 10), ("/a/b/D", 20))
        ],
    )
    content = view(tmp_path)
    assert not content.notes
    assert [row[8] for row in rows(content, "elements")] == [30, None]
    assert rows(content, "account_usage") == [
        ("wma_prod", 1, 9, 0, None, None),
        ("all of class user", 1, 7, 1, 10, 7),
    ]
    assert rows(content, "rules_day") == [("stuck", "No source", "a", 3, 5, 4)]


def test_a_store_without_such_tables_says_what_to_run(tmp_path: Path) -> None:
    store(tmp_path, "rules_day", [])
    (note,) = view(tmp_path).notes
    assert note.text.endswith("run_spark rse_usage --date DAY")
