"""The house's own rules: imports point down, no JVM at import, every file says what it is."""

from __future__ import annotations

import ast
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cmsspark.pipeline.job_index import JOBS, Job
from cmsspark.schemas import stored_table

PACKAGE = Path(__file__).resolve().parent.parent / "cmsspark"
MODULES = sorted(PACKAGE.rglob("*.py"))

#: Rooms that stand beside each other: they know the ground floor, and none of the others.
ROOMS = {"sources", "transforms", "sinks", "publish", "runs", "monitor", "dashboard", "popularity", "cache", "demo"}
#: What every room may know beside the ground floor: it imports nothing but the ground floor itself.
REGISTRY = "cmsspark.sources.registry"
#: What stands above the rooms; the lower may not know the higher.
UPPER = {"jobs": 2, "submit": 3, "notebook": 3, "cli": 4}


def floor(part: str) -> int:
    """0 for the ground floor, to which `reports` belongs, 1 for the rooms, then jobs, then the command lines."""
    return UPPER.get(part, 1 if part in ROOMS else 0)


def imports(path: Path, *, at_start_only: bool = False) -> Iterator[str]:
    """Modules that a file imports; with ``at_start_only`` those that importing it imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in _statements(tree) if at_start_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _statements(node)


def part_of(path: Path) -> str:
    return path.relative_to(PACKAGE).parts[0].removesuffix(".py")


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_imports_point_down_only(path: Path) -> None:
    own = part_of(path)
    for name in imports(path):
        parts = name.split(".")
        if parts[0] != "cmsspark" or len(parts) < 2 or parts[1] in (own, "__version__", "errors"):
            continue
        if own in ROOMS and name.startswith(f"{REGISTRY}."):
            continue
        assert floor(parts[1]) < floor(own) or floor(parts[1]) == floor(own) == 0, f"{own} may not know {name}"


def test_the_registry_knows_the_ground_floor_only() -> None:
    own = [name for name in imports(PACKAGE / "sources" / "registry.py") if name.startswith("cmsspark.")]
    assert own
    assert not [name for name in own if floor(name.split(".")[1])]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_imports_pyspark_when_it_is_imported(path: Path) -> None:
    assert not [name for name in imports(path, at_start_only=True) if name.split(".")[0] in ("pyspark", "py4j")]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_files_fit_a_few_screens(path: Path) -> None:
    assert len(path.read_text(encoding="utf-8").splitlines()) <= 400


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_names_say_what_is_inside(path: Path) -> None:
    assert path.stem.rstrip("23") not in {"utils", "helpers", "common", "misc", "util", "helper"}
    assert path.stem[-1] not in "23"


@pytest.mark.smoke
def test_commands_and_jobs_load_without_spark_and_its_heavy_friends() -> None:
    code = (
        "import sys, cmsspark.cli, cmsspark.submit\n"
        "from cmsspark.jobs import JOBS, load_command\n"
        "[load_command(job) for job in JOBS.values()]\n"
        "heavy = {'pyspark', 'py4j', 'pandas', 'polars', 'pyarrow', 'numpy', 'stomp', 'fastavro'}\n"
        "sys.exit(str(sorted(heavy & set(sys.modules)) or ''))\n"
    )
    run = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=False, cwd=PACKAGE.parent)
    assert run.stderr.strip() == ""


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.name)
def test_every_table_of_a_job_has_a_schema(job: Job) -> None:
    assert [stored_table(table).name for table in job.tables] == list(job.tables)


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_pattern_has_a_possessive_group(path: Path) -> None:
    """Before Python 3.11.5 (Debian 12 has 3.11.2) such a group matches what it should not."""
    patterns = [
        node.args[0]
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.") and node.args
    ]
    assert not [text for text in map(ast.unparse, patterns) if ")?+" in text or ")*+" in text or ")++" in text]
