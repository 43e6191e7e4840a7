"""The rules of the house: rooms and their floors, where jobs and commands stand, and
what may be imported when.

The rooms are in ``docs/architecture.md``. A room imports rooms of lower floors only.
"""

from __future__ import annotations

import ast
import functools
import importlib
import importlib.util
import os
import re
import subprocess
import sys
import tempfile
from collections import Counter, defaultdict
from collections.abc import Iterator
from pathlib import Path

import pytest

from bench import house
from cmsspark.base.schemas import stored_table
from cmsspark.main import COMMANDS, LAB
from cmsspark.sources.registry import STREAMS_BY_NAME
from cmsspark.store.own_jobs import JOBS

TOP = Path(__file__).resolve().parent.parent
PACKAGE = TOP / "cmsspark"
MODULES = sorted(PACKAGE.rglob("*.py"))

#: The rooms from the ground up: each imports rooms before it only. ``main``,
#: ``notebook`` and ``entry`` are files.
_ROOMS = """
    base settings filesystems sources counting engines store cli dumps pages run publish apps submit
    notebook testing main entry __main__
"""
FLOORS = {name: floor for floor, name in enumerate(_ROOMS.split())}
#: Imports from one subsystem to another, with the reason.
BESIDE = {
    ("dashboard", "ask"): "pages and ``ask`` answer questions by the same queries",
    ("ask", "placement"): "``ask deletable`` and ``ask placement`` answer from the same plan",
    (
        "ask",
        "popularity",
    ): "``ask`` says where a baseline was better than the forecast that it shows",
    ("cache", "popularity"): "scores are fitted by the logistic regression of popularity",
    ("jobs_cost", "crab"): "sums of stored days are checked in one way",
    ("usage", "jobs_cost"): "``report --pictures`` draws the C-RSG pictures, too",
    ("demo", "results"): "the demo prints the path of its result as ``cmsspark show`` does",
    ("events", "training"): "``events_train --workers`` trains through the launcher",
    ("results", "monitor"): "``cmsspark show`` prints what a run used",
}
#: ``module`` or ``module:attribute`` in a text: registries name what they import later.
_NAMED = re.compile(r"cmsspark(\.[a-z_0-9]+)+(:\w+)?")
#: Files, and groups of entry points, that are named like modules.
_FILES = {"cmsspark.yaml"} | {
    f"cmsspark.{group}"
    for group in ("jobs", "decoders", "sinks", "pages", "policies", "findings", "runs")
}
#: What a command line does not need before it knows what to do.
HEAVY = "pyspark py4j pandas polars pyarrow numpy stomp fastavro jinja2 msgspec"


@functools.cache
def sources() -> list[house.Source]:
    """Every file of the package, read and parsed once."""
    return house.sources(TOP)


@functools.cache
def trees() -> dict[Path, ast.Module]:
    return {
        PACKAGE / source.path: source.tree for source in sources() if source.path.suffix == ".py"
    }


def names(path: Path, *, at_start_only: bool = False) -> Iterator[str]:
    """What a file imports, as module.attribute; with ``at_start_only`` only what
    importing the file imports.
    """
    for node in _statements(trees()[path]) if at_start_only else ast.walk(trees()[path]):
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


@functools.cache
def imports() -> list[tuple[str, str]]:
    """(module, imported module) of the package; imports in functions and for type
    checkers count, too.
    """
    modules = {source.module for source in sources()}
    return [
        (source.module, target)
        for source in sources()
        for target in sorted(set(house.imported(source, modules, for_types=True)))
    ]


def lazy_imports() -> Iterator[tuple[str, str]]:
    """(module, module that it imports by a name in a text), also by the index of jobs."""
    modules = {source.module for source in sources()}
    #: What a file loads whose names stand in a registry elsewhere.
    registries = {
        "job.module": {job.module for job in JOBS.values()},
        "format_.decoder": {
            form.decoder.partition(":")[0]
            for kind in STREAMS_BY_NAME.values()
            for form in kind.formats
        },
    }
    for source in sources():
        if "import_module(" in source.text:
            targets = set(house.named(source, modules))
            for word, loaded in registries.items():
                targets |= loaded if word in source.text else set()
            yield from ((source.module, target) for target in sorted(targets - {source.module}))


def room(module: str) -> str:
    """The room of a module; ``notebook`` for the package itself, which only names what it has."""
    return module.split(".")[1] if "." in module else "notebook"


def subsystem(module: str) -> str:
    """The subsystem of a module in ``apps``, else an empty text."""
    return module.split(".")[2] if module.startswith("cmsspark.apps.") else ""


def test_the_top_of_the_package_has_rooms_with_floors_and_few_files() -> None:
    rooms = {path.name for path in PACKAGE.iterdir() if (path / "__init__.py").exists()}
    files = {path.stem for path in PACKAGE.glob("*.py")} - {"__init__"}
    assert rooms | files == FLOORS.keys()
    assert len(rooms) <= 14 and len(files) <= 5


def test_imports_point_down_only() -> None:
    wrong = [
        f"{module} imports {target}"
        for module, target in imports()
        if room(module) != room(target) and not FLOORS[room(target)] < FLOORS[room(module)]
    ]
    assert wrong == []


def test_subsystems_import_each_other_only_for_a_reason() -> None:
    pairs = {(subsystem(module), subsystem(target)) for module, target in imports()}
    assert {
        (user, used) for user, used in pairs if user and used and user != used
    } == BESIDE.keys()


def test_modules_do_not_import_each_other_in_circles() -> None:
    """Imports by a name in a text count, too."""
    arrows = defaultdict(set)
    for module, target in (*imports(), *lazy_imports()):
        arrows[module].add(target)
    assert house.circles(arrows) == []


def test_jobs_and_commands_stand_in_their_subsystem() -> None:
    modules = {job.module for job in JOBS.values()} | {
        module for module, _, _ in (*COMMANDS.values(), *LAB.values())
    }
    elsewhere = {
        name for name in modules if not name.startswith(("cmsspark.apps.", "cmsspark.submit."))
    }
    assert elsewhere == {"cmsspark.publish.cli", "cmsspark.publish.outbox_cli", "cmsspark.main"}


def test_modules_that_are_named_in_texts_exist() -> None:
    texts = {
        (str(path.relative_to(TOP)), node.value)
        for path in MODULES
        for node in ast.walk(trees()[path])
        if isinstance(node, ast.Constant)
        and isinstance(node.value, str)
        and _NAMED.fullmatch(node.value)
    }
    assert len(texts) > 20
    for file, text in sorted(texts):
        module, _, attribute = text.partition(":")
        if text not in _FILES:
            assert importlib.util.find_spec(module), f"{file} names {text}"
            assert not attribute or hasattr(importlib.import_module(module), attribute), (
                f"{file} names {text}"
            )


def test_no_module_imports_pyspark_when_it_is_imported() -> None:
    spark = ("pyspark", "py4j")
    assert not {
        (str(path.relative_to(PACKAGE)), name)
        for path in MODULES
        for name in names(path, at_start_only=True)
        if name.split(".")[0] in spark
    }


def test_every_file_says_what_it_is() -> None:
    silent = [path for path in MODULES if not ast.get_docstring(trees()[path])]
    assert silent == []


def test_files_have_one_subject() -> None:
    lines = {
        str(path.relative_to(PACKAGE)): len(path.read_text(encoding="utf-8").splitlines())
        for path in MODULES
    }
    assert {path: count for path, count in lines.items() if count > 800} == {}


def test_pieces_become_fewer() -> None:
    """These limits only fall (decision 013). Files that a registry names, such as a job, a
    sink or a page, do not count: each is one. A private function that is used once stays
    where it names a real step, is tested alone, or keeps its caller readable.
    """
    modules = {source.module for source in sources() if source.path.suffix == ".py"}
    registered = {target for _, target in lazy_imports()}
    registered |= {job.module for job in JOBS.built_in.values()}
    assert len(modules - registered) <= 339
    used_once = functions = 0
    for source in sources():
        words = Counter(re.findall(r"\b_[a-z]\w*\b", source.text))
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                functions += 1
                used_once += not node.name.startswith("__") and words[node.name] == 2
    assert used_once / functions <= 0.202


def test_names_of_modules_say_what_is_inside() -> None:
    for path in MODULES:
        assert path.stem.rstrip("23") not in {
            "utils",
            "helpers",
            "common",
            "misc",
            "util",
            "helper",
        }
        assert path.stem[-1] not in "23"


def modules_after(code: str) -> set[str]:
    """Top-level modules that a new Python has imported when it has run ``code``."""
    code += "\nprint(*sorted({name.partition('.')[0] for name in sys.modules}))"
    command = [sys.executable, "-c", f"import sys\n{code}"]
    with tempfile.TemporaryDirectory() as state:
        # Own jobs of a test before this one import what they want.
        environ = {**os.environ, "XDG_STATE_HOME": state}
        run = subprocess.run(
            command, capture_output=True, text=True, check=True, cwd=TOP, env=environ
        )
    return set(run.stdout.split())


@pytest.mark.smoke
def test_help_imports_nothing_heavy() -> None:
    code = "import cmsspark.main\ntry: cmsspark.main.command(['--help'])\nexcept SystemExit: pass"
    assert not modules_after(code) & set(HEAVY.split())


@pytest.mark.smoke
def test_commands_and_jobs_load_without_spark_and_heavy_packages() -> None:
    code = "import cmsspark.main, cmsspark.submit\nfrom cmsspark.store.own_jobs import JOBS\n"
    code += "from cmsspark.submit.job_help import load_command\n"
    code += "[load_command(job) for job in JOBS.values()]"
    assert not modules_after(code) & (set(HEAVY.split()) - {"msgspec"})


def test_every_table_of_a_job_has_a_schema() -> None:
    for job in JOBS.values():
        assert [stored_table(table).name for table in job.tables] == list(job.tables)


def test_no_pattern_has_a_possessive_group() -> None:
    """Before Python 3.11.5 (Debian 12 has 3.11.2) such a group matches what it should not."""
    for path in MODULES:
        patterns = [
            ast.unparse(node.args[0])
            for node in ast.walk(trees()[path])
            if isinstance(node, ast.Call)
            and ast.unparse(node.func).startswith("re.")
            and node.args
        ]
        assert not [
            text for text in patterns if ")?+" in text or ")*+" in text or ")++" in text
        ], path
