"""Small faults in the code of a room, one at a time, and whether its tests see them.

``python -m bench.mutants ROOM [--count 30] [--seed 1]``: a fault is another comparison,
``or`` for ``and``, another sign, a constant that is one more, a condition negated, or a
statement left out. Each is made in a copy of the tree, where the tests run that import
the module, then all of the room. Prints the faults that no test saw; exit code 1 if
there are any.
"""

from __future__ import annotations

import argparse
import ast
import os
import random
import re
import shutil
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from bench.house import TOP

_COMPARISONS = {
    "==": "!=",
    "!=": "==",
    "<": "<=",
    "<=": "<",
    ">": ">=",
    ">=": ">",
    "is": "is not",
    "is not": "is",
    "in": "not in",
    "not in": "in",
}
_SIGNS = {ast.Add: ("+", "-"), ast.Sub: ("-", "+"), ast.Mult: ("*", "+"), ast.Div: ("/", "*")}


@dataclass(frozen=True)
class Mutant:
    """A fault: in ``text``, the content of a module, what stands at ``start`` to ``end``
    is ``new`` instead.
    """

    module: Path
    line: int
    start: int
    end: int
    new: str

    def describe(self, text: str) -> str:
        """Return where the fault is, what stood there, and what stands there now."""
        old = text.encode()[self.start : self.end].decode()
        return f"{self.module}:{self.line}: {old!r} -> {self.new!r}"


def mutants(module: Path, text: str) -> Iterator[Mutant]:
    """Yield all faults that can be made in a module."""
    lines = [0]
    for line in text.encode().splitlines(keepends=True):
        lines.append(lines[-1] + len(line))

    def at(node: ast.expr | ast.stmt) -> tuple[int, int]:
        end_line, end_column = node.end_lineno or node.lineno, node.end_col_offset or 0
        return lines[node.lineno - 1] + node.col_offset, lines[end_line - 1] + end_column

    def between(left: ast.expr, right: ast.expr, old: str, new: str) -> Iterator[Mutant]:
        start, end = at(left)[1], at(right)[0]
        gap = text.encode()[start:end].decode()
        found = re.search(rf"(?<!\S){re.escape(old)}(?!\S)", gap)
        if found:
            first = start + len(gap[: found.start()].encode())
            yield Mutant(module, left.lineno, first, first + len(old), new)

    tree = ast.parse(text)
    for parent in ast.walk(tree):
        for node in ast.iter_child_nodes(parent):
            if isinstance(node, ast.Compare) and len(node.ops) == 1:
                right = node.comparators[0]
                old = ast.unparse(node)[len(ast.unparse(node.left)) :].strip()
                for name in sorted(_COMPARISONS, key=len, reverse=True):
                    if old.startswith(name):
                        yield from between(node.left, right, name, _COMPARISONS[name])
                        break
            elif isinstance(node, ast.BoolOp):
                old, new = ("and", "or") if isinstance(node.op, ast.And) else ("or", "and")
                yield from between(node.values[0], node.values[1], old, new)
            elif isinstance(node, ast.BinOp) and type(node.op) in _SIGNS:
                if not isinstance(node.left, ast.JoinedStr):
                    yield from between(node.left, node.right, *_SIGNS[type(node.op)])
            elif isinstance(node, ast.Constant) and isinstance(node.value, int):
                value = not node.value if isinstance(node.value, bool) else node.value + 1
                yield Mutant(module, node.lineno, *at(node), repr(value))
            elif isinstance(node, ast.If | ast.IfExp | ast.While):
                start, end = at(node.test)
                test = text.encode()[start:end].decode()
                yield Mutant(module, node.lineno, start, end, f"not ({test})")
            elif (
                isinstance(node, ast.Expr | ast.Assign | ast.AugAssign)
                and isinstance(parent, ast.FunctionDef | ast.If | ast.For | ast.With)
                and not isinstance(getattr(node, "value", None), ast.Constant | ast.Yield)
            ):
                yield Mutant(module, node.lineno, *at(node), "pass")


def find_tests(module: Path, room: str, tree: Path) -> list[str]:
    """Return the tests that import a module, else all of its room."""
    name = ".".join(module.with_suffix("").parts)
    package, _, leaf = name.rpartition(".")
    import_of = re.compile(
        rf"^(?:from {re.escape(name)} import|import {re.escape(name)}\b"
        rf"|from {re.escape(package)} import (?:.*\b)?{leaf}\b)",
        re.MULTILINE,
    )
    folder = tree / "tests" / room
    files = sorted(folder.rglob("test_*.py")) if folder.is_dir() else []
    named = [str(path) for path in files if import_of.search(path.read_text())]
    return named or [str(folder)]


def run_tests(tree: Path, files: list[str], seconds: float) -> bool:
    """Return whether the tests pass. Those that do not end in time fail."""
    command = [sys.executable, "-m", "pytest", "-q", "-x", "-p", "no:cacheprovider"]
    environment = {**os.environ, "PYTHONPATH": str(tree), "PYTHONDONTWRITEBYTECODE": "1"}
    try:
        done = subprocess.run(
            [*command, "-m", "not cluster and not long", *files],
            cwd=tree,
            env=environment,
            capture_output=True,
            timeout=seconds,
        )
    except subprocess.TimeoutExpired:
        return False
    return done.returncode == 0


def main(arguments: list[str]) -> int:
    """Make the faults and print those that no test saw."""
    parser = argparse.ArgumentParser(prog="bin/mutants", description=__doc__)
    parser.add_argument("room", help="a folder below cmsspark, such as store or apps/cache")
    parser.add_argument("--count", type=int, default=30)
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    modules = sorted((TOP / "cmsspark" / options.room).rglob("*.py"))
    if not modules:
        parser.error(f"there is no room cmsspark/{options.room}")
    texts = {path.relative_to(TOP): path.read_text() for path in modules}
    every = [mutant for path, text in texts.items() for mutant in mutants(path, text)]
    chosen = random.Random(options.seed).sample(every, min(options.count, len(every)))
    unseen = 0
    with tempfile.TemporaryDirectory(prefix="mutants-") as folder:
        tree = Path(folder) / "tree"
        left_out = shutil.ignore_patterns(".*", "build", "__pycache__")
        shutil.copytree(TOP, tree, ignore=left_out, symlinks=True)
        seconds: dict[str, float] = {}
        for number, mutant in enumerate(chosen, start=1):
            # Those that import the module see most; the others of the room only run where
            # these see nothing.
            files = [
                find_tests(mutant.module, options.room, tree),
                [str(tree / "tests" / options.room)],
            ]
            for chosen_files in files:
                if " ".join(chosen_files) not in seconds:
                    began = time.monotonic()
                    if not run_tests(tree, chosen_files, 3_600):
                        print(f"the tests fail as they are: {' '.join(chosen_files)}")
                        return 2
                    seconds[" ".join(chosen_files)] = time.monotonic() - began
            text = texts[mutant.module]
            before, after = text.encode()[: mutant.start], text.encode()[mutant.end :]
            (tree / mutant.module).write_bytes(before + mutant.new.encode() + after)
            is_seen = not all(
                run_tests(tree, some, 3 * seconds[" ".join(some)] + 30) for some in files
            )
            (tree / mutant.module).write_text(text)
            if not is_seen:
                unseen += 1
            print(
                f"{number}/{len(chosen)} {'seen  ' if is_seen else 'UNSEEN'} "
                f"{mutant.describe(text)}",
                flush=True,
            )
    print(f"{len(chosen) - unseen} of {len(chosen)} were seen")
    return 1 if unseen else 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
