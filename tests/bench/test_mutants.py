"""The faults that ``bin/mutants`` makes: each is one change that still compiles."""

from __future__ import annotations

import ast
from pathlib import Path

from bench.mutants import find_tests, mutants

MODULE = Path("cmsspark/store/toy.py")
TEXT = '''"""Größe."""
LIMIT = 3

def work(rows, is_new):
    """Return the rows."""
    total = 0
    for row in rows:
        if row.size >= LIMIT and is_new:
            total += row.size - 1
    return total if rows else None
'''


def changed() -> list[str]:
    raw = TEXT.encode()
    return [
        (raw[: one.start] + one.new.encode() + raw[one.end :]).decode()
        for one in mutants(MODULE, TEXT)
    ]


def test_each_fault_changes_the_code_and_compiles() -> None:
    texts = changed()
    assert len(set(texts)) == len(texts) > 8
    for text in texts:
        assert ast.dump(ast.parse(text)) != ast.dump(ast.parse(TEXT))


def test_every_kind_of_fault_is_made() -> None:
    lines = {line.strip() for text in changed() for line in text.splitlines()}
    assert lines >= {
        "LIMIT = 4",
        "if row.size > LIMIT and is_new:",
        "if row.size >= LIMIT or is_new:",
        "if not (row.size >= LIMIT and is_new):",
        "total += row.size + 1",
        "pass",
        "return total if not (rows) else None",
    }


def test_the_tests_that_import_a_module_are_run_and_else_those_of_its_room(tmp_path: Path) -> None:
    folder = tmp_path / "tests/store"
    folder.mkdir(parents=True)
    (folder / "test_other.py").write_text("from cmsspark.store import results\n")
    assert find_tests(MODULE, "store", tmp_path) == [str(folder)]
    (folder / "test_a.py").write_text("from cmsspark.store import results, toy\n")
    (folder / "test_b.py").write_text("from cmsspark.store.toy import work\n")
    assert find_tests(MODULE, "store", tmp_path) == [
        str(folder / "test_a.py"),
        str(folder / "test_b.py"),
    ]
