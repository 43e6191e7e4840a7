"""The rules of the house: rooms and their floors, names that occur once, and what may be imported when.

The rooms are in ``docs/architecture.md``. A room imports rooms of lower floors only; rooms of one floor do not import
each other.
"""

from __future__ import annotations

import ast
import importlib
import importlib.util
import re
import subprocess
import sys
from collections import defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import house
from cmsspark.pipeline.job_index import JOBS, Job
from cmsspark.schemas import stored_table

TOP = Path(__file__).resolve().parent.parent
PACKAGE = TOP / "cmsspark"
MODULES = sorted(PACKAGE.rglob("*.py"))

#: The floor of each room. All other modules directly in the package are the ground floor, 0.
FLOORS = {
    **dict.fromkeys(("sources", "kernel", "store", "checks"), 1),
    **dict.fromkeys(("runners", "publish", "reports"), 2),
    "pipeline": 3,
    # What composes whole days; the subsystems stand beside it and know nothing of each other.
    # Questions to what is stored: commands, notebooks and pages ask them.
    "query": 4,
    **dict.fromkeys(("daily", "demo", *house.SUBSYSTEMS), 5),
    "jobs": 6,
    **dict.fromkeys(("commands", "submit", "notebook"), 7),
    "cli": 8,
    "__main__": 9,
    "entry": 9,
}
#: Imports between rooms of one floor, with the reason. None is needed.
BESIDE: dict[tuple[str, str], str] = {}
#: ``module`` or ``module:attribute`` in a text: registries name what they import later.
_NAMED = re.compile(r"cmsspark(\.[a-z_0-9]+)+(:\w+)?")
#: Files that are named like modules.
_FILES = {"cmsspark.yaml"}
#: What a command line does not need before it knows what to do.
HEAVY = "pyspark py4j pandas polars pyarrow numpy stomp fastavro jinja2 msgspec"


def names(path: Path, *, at_start_only: bool = False) -> Iterator[str]:
    """What a file imports, as module.attribute; with ``at_start_only`` only what importing the file imports."""
    tree = ast.parse(path.read_text(encoding="utf-8"))
    for node in _statements(tree) if at_start_only else ast.walk(tree):
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom):
            assert not node.level, f"{path}: imports are absolute"
            yield from (f"{node.module}.{alias.name}" for alias in node.names)


def _statements(tree: ast.AST) -> Iterator[ast.AST]:
    for node in ast.iter_child_nodes(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda):
            continue
        if isinstance(node, ast.If) and "TYPE_CHECKING" in ast.unparse(node.test):
            continue
        yield node
        yield from _statements(node)


def imports() -> Iterator[tuple[str, str]]:
    """(module, imported module) of the package; imports in functions and for type checkers count, too."""
    files = house.sources(TOP)
    modules = {source.module for source in files}
    for source in files:
        targets = set(house.imported(source, modules, for_types=True))
        yield from ((source.module, target) for target in sorted(targets))


def room(module: str) -> str:
    return module.split(".")[1] if "." in module else ""


def floor(module: str) -> int:
    return FLOORS.get(room(module), 0)


def test_every_room_has_a_floor() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    assert rooms <= FLOORS.keys()


def test_imports_point_down_only() -> None:
    wrong = []
    for module, target in imports():
        if room(module) == room(target) or (room(module), room(target)) in BESIDE:
            continue
        if not (floor(target) < floor(module) or floor(target) == floor(module) == 0):
            wrong.append(f"{module} (floor {floor(module)}) imports {target} (floor {floor(target)})")
    assert wrong == []


def test_modules_do_not_import_each_other_in_circles() -> None:
    arrows = defaultdict(set)
    for module, target in imports():
        arrows[module].add(target)
    assert house.circles(arrows) == []


def test_module_and_class_names_of_the_base_occur_once() -> None:
    """A subsystem's room is a name space of its own."""
    files = house.sources(TOP)
    assert house.doubled_modules(files) == []
    assert house.doubled_classes([source for source in files if source.room not in house.SUBSYSTEMS]) == []


def test_the_rooms_of_jobs_and_commands_hold_nothing_else() -> None:
    """``jobs/`` has the jobs of the index and what spark-submit starts; every command stands in ``cmsspark --help``."""
    jobs = {path.stem for path in (PACKAGE / "jobs").glob("*.py")} - {"__init__"}
    assert len(jobs) <= 32
    assert jobs - {job.module.rpartition(".")[2] for job in JOBS.values()} == {"launch"}


def test_modules_that_are_named_in_texts_exist() -> None:
    texts = {
        (str(path.relative_to(TOP)), node.value)
        for path in MODULES
        for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and _NAMED.fullmatch(node.value)
    }
    assert len(texts) > 20
    for file, text in sorted(texts):
        module, _, attribute = text.partition(":")
        if text not in _FILES:
            assert importlib.util.find_spec(module), f"{file} names {text}"
            assert not attribute or hasattr(importlib.import_module(module), attribute), f"{file} names {text}"


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_no_module_imports_pyspark_when_it_is_imported(path: Path) -> None:
    assert not [name for name in names(path, at_start_only=True) if name.split(".")[0] in ("pyspark", "py4j")]


@pytest.mark.parametrize("path", MODULES, ids=lambda path: str(path.relative_to(PACKAGE)))
def test_every_file_says_what_it_is(path: Path) -> None:
    assert ast.get_docstring(ast.parse(path.read_text(encoding="utf-8")))


def test_files_fit_a_few_screens() -> None:
    lines = {str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines()) for path in MODULES}
    assert {path: count for path, count in lines.items() if count > 370} == {}


def test_names_of_modules_say_what_is_inside() -> None:
    for path in MODULES:
        assert path.stem.rstrip("23") not in {"utils", "helpers", "common", "misc", "util", "helper"}
        assert path.stem[-1] not in "23"


def modules_after(code: str) -> set[str]:
    """Top-level modules that a new Python has imported when it has run ``code``."""
    code += "\nprint(*sorted({name.partition('.')[0] for name in sys.modules}))"
    command = [sys.executable, "-c", f"import sys\n{code}"]
    return set(subprocess.run(command, capture_output=True, text=True, check=True, cwd=TOP).stdout.split())


@pytest.mark.smoke
def test_help_imports_nothing_heavy() -> None:
    code = "import cmsspark.cli\ntry: cmsspark.cli.command(['--help'])\nexcept SystemExit: pass"
    assert not modules_after(code) & set(HEAVY.split())


@pytest.mark.smoke
def test_commands_and_jobs_load_without_spark_and_heavy_packages() -> None:
    code = "import cmsspark.cli, cmsspark.submit\nfrom cmsspark.pipeline.job_index import JOBS, load_command\n"
    code += "[load_command(job) for job in JOBS.values()]"
    assert not modules_after(code) & (set(HEAVY.split()) - {"msgspec"})


@pytest.mark.parametrize("job", JOBS.values(), ids=lambda job: job.name)
def test_every_table_of_a_job_has_a_schema(job: Job) -> None:
    assert [stored_table(table).name for table in job.tables] == list(job.tables)


def test_no_pattern_has_a_possessive_group() -> None:
    """Before Python 3.11.5 (Debian 12 has 3.11.2) such a group matches what it should not."""
    for path in MODULES:
        patterns = [
            ast.unparse(node.args[0])
            for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))
            if isinstance(node, ast.Call) and ast.unparse(node.func).startswith("re.") and node.args
        ]
        assert not [text for text in patterns if ")?+" in text or ")*+" in text or ")++" in text], path
