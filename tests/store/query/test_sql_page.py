"""``docs/sql.md``: each of its commands answers."""

from __future__ import annotations

import re
import shlex
from pathlib import Path

import pytest
from click.testing import CliRunner

from cmsspark.main import command
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
