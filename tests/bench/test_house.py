"""``bench.house`` counts what it says, on a small package made for the purpose and on
this checkout.
"""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from bench import house

TOP = Path(__file__).resolve().parents[2]
FILES = {
    "cmsspark/__init__.py": "",
    "cmsspark/alone.py": '"""About crab."""\nCRAB = 1  # aaa\n',
    "cmsspark/jobs/__init__.py": "STREAMS = ('aaa', 'crab')\n",
    "cmsspark/jobs/day.py": "def run(told):\n    from cmsspark.runs import day\n    found = told\n",
    "cmsspark/jobs/long.py": "def much():\n" + "    print()\n" * 60,
    "cmsspark/runs/day.py": "from cmsspark.jobs import day\nclass Crew: ...\n",
    "cmsspark/runs/types.py": "if TYPE_CHECKING:\n    from cmsspark.jobs import long\nclass Crew: ...\n",
    "cmsspark/apps/cache/day.py": "row = {'site_tier': site.split('_')[0], 'data_tier': tier}\n",
    "cmsspark/apps/demo/made.py": "ROOT = 'crab'\n",
    "cmsspark/fast.pyx": "# crab\nfrom cmsspark.packed cimport Rows, other\n",
    "cmsspark/packed.pxd": "cdef class Rows: pass\n",
    "etc/sources.yaml": "# crab\naaa: {about: crab}\n",
    "schemas/inputs/crab/avro.yaml": "table: x\n",
}


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    for name, text in FILES.items():
        file = tmp_path / name
        file.parent.mkdir(parents=True, exist_ok=True)
        file.write_text(text)
    return tmp_path


def test_each_figure_counts_what_it_names(tree: Path) -> None:
    figures = {figure.name: figure for figure in house.figures(tree)}
    expected = {
        "functions over 60 lines": ["jobs/long.py:1 much (61)"],
        "import circles of modules": ["cmsspark.jobs.day cmsspark.runs.day"],
        "import circles of rooms": ["jobs runs"],
        "files that mention aaa": ["cmsspark/jobs/__init__.py", "etc/sources.yaml"],
        "files that mention crab": [
            "cmsspark/alone.py",
            "cmsspark/jobs/__init__.py",
            "schemas/inputs/crab/avro.yaml",
        ],
        "files that derive columns": ["apps/cache/day.py: site_tier"],
    }
    assert {name: figures[name].details for name in expected} == expected
    assert {name: figures[name].value for name in expected} == {
        name: str(len(expected[name])) for name in expected
    }
    lines = sum(
        len(text.splitlines()) for name, text in FILES.items() if name.startswith("cmsspark/")
    )
    assert figures["package lines"].value == str(lines)


def test_words_are_counted_by_use(tree: Path) -> None:
    (tree / "cmsspark/words.py").write_text(
        'def load(path):\n    """Load it."""\n    found = path\n    found = found\n'
        'class Held:\n    @property\n    def size(self):\n        """The size."""\n'
        'def whole(self):\n    """The whole."""\n'
    )
    figures = {figure.name: figure for figure in house.figures(tree)}
    assert figures["vague names"].details == ["jobs/day.py: 2", "words.py: 3"]
    assert figures["docstrings without a verb"].details == ["words.py: 1"]
    assert figures["docstrings without a verb"].value == "50.0%"


def test_what_cython_imports_is_seen(tree: Path) -> None:
    files = house.sources(tree)
    fast = next(source for source in files if source.path.name == "fast.pyx")
    assert set(house.imported(fast, {source.module for source in files})) == {"cmsspark.packed"}


def test_the_command_prints_the_figures_of_a_checkout(tree: Path) -> None:
    command = [sys.executable, "-m", "bench.house", str(tree), "--detail"]
    ended = subprocess.run(command, cwd=TOP, capture_output=True, text=True, check=True)
    assert "import circles of rooms             1\n    jobs runs\n" in ended.stdout
