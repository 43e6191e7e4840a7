"""The examples in docstrings print what they show. Those that need Spark run in
``tests/test_docs.py``.
"""

from __future__ import annotations

import doctest
import importlib
import re
from datetime import date
from pathlib import Path

import pytest

import cmsspark
from bench.house import TOP, sources
from cmsspark.apps.demo.narration import store_history
from tests.store.query.stores import HISTORY, KEY

MODULES = [
    source.module
    for source in sources(TOP)
    if ">>> " in source.text and source.path.suffix == ".py"
]
_NEEDS_SPARK = re.compile(r"cms\.(session|accesses|table|measure)\(")


@pytest.fixture(scope="module")
def settings(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Settings with a store of one small day."""
    folder = tmp_path_factory.mktemp("examples")
    store_history(HISTORY, str(folder / "results"), [date(2026, 1, 15)], KEY.key_id)
    (folder / "cmsspark.yaml").write_text(f"store: {folder}/results\n")
    return folder / "cmsspark.yaml"


@pytest.mark.parametrize("module", MODULES)
def test_examples_print_what_they_show(
    module: str, settings: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(TOP)
    monkeypatch.setenv("CMSSPARK_SETTINGS", str(settings))
    runner = doctest.DocTestRunner(verbose=False)
    for test in doctest.DocTestFinder().find(
        importlib.import_module(module), extraglobs={"cms": cmsspark}
    ):
        if not _NEEDS_SPARK.search(test.docstring or ""):
            runner.run(test)
    assert runner.failures == 0
