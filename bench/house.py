"""Figures about the code itself: size, rooms, import circles, where an extension touches, words.

``python -m bench.house [PATH] [--detail]`` reads the checkout at PATH (default: this
one) without importing it, so it also measures other revisions. ``bench/house_names.py``
has the rules about names. Parts of the package that are not Python (``*.pyx``,
``*.pxi``, ``*.pxd``) count as lines, as importers and as text, not as functions.
"""

from __future__ import annotations

import argparse
import ast
import re
import statistics
from collections import Counter, defaultdict
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cached_property
from pathlib import Path

from bench import house_names

TOP = Path(__file__).resolve().parent.parent
PACKAGE = "cmsspark"
SUFFIXES = (".py", ".pyx", ".pxi", ".pxd")
LONG_FUNCTION = 60
#: Names and texts of all streams, in code.
STREAMS = ("aaa", "eos", "cmssw", "crab")
#: Columns of the report that are computed from others.
DERIVED = ("site_tier", "primary_name", "processing_name", "data_tier")
#: Text for people in YAML and JSON.
_DESCRIPTIONS = re.compile(r'#.*$|"?(about|description)"?:.*$', re.MULTILINE)


@dataclass(frozen=True)
class Source:
    """One file of the package: its path below the package, its text, and its tree where
    it is Python.
    """

    path: Path
    text: str

    @property
    def module(self) -> str:
        parts = [*self.path.parts[:-1], self.path.stem]
        return ".".join([PACKAGE, *(parts[:-1] if parts[-1] == "__init__" else parts)])

    @property
    def room(self) -> str:
        """The folder below the package, or the module itself beside the rooms."""
        return self.path.parts[0] if len(self.path.parts) > 1 else self.path.stem

    @property
    def is_of_demo(self) -> bool:
        return "demo" in self.path.parts

    @property
    def lines(self) -> int:
        return len(self.text.splitlines())

    @cached_property
    def tree(self) -> ast.Module:
        return ast.parse(self.text) if self.path.suffix == ".py" else ast.Module([], [])


def sources(top: Path) -> list[Source]:
    """Every source file of the package of a checkout, in order."""
    package = top / PACKAGE
    if not package.is_dir():
        raise SystemExit(f"{top} is no checkout: it has no folder {PACKAGE}")
    files = sorted(
        file
        for file in package.rglob("*")
        if file.suffix in SUFFIXES and "__pycache__" not in file.parts
    )
    return [Source(file.relative_to(package), file.read_text(encoding="utf-8")) for file in files]


def imported(source: Source, modules: set[str], *, for_types: bool = False) -> Iterator[str]:
    """Modules of the package that a file imports, also inside of functions;
    ``for_types``: also for type checkers.
    """
    for name in (
        _python_imports(source.tree, for_types)
        if source.path.suffix == ".py"
        else _cython_imports(source.text)
    ):
        target = name
        while target and target not in modules:
            target = target.rpartition(".")[0]
        if target and target not in (PACKAGE, source.module):
            yield target


def named(source: Source, modules: set[str]) -> Iterator[str]:
    """Modules of the package whose names stand in texts of a file, as ``module`` or
    ``module:attribute``.
    """
    for node in ast.walk(source.tree):
        if isinstance(node, ast.Constant) and str(node.value).partition(":")[0] in modules:
            yield str(node.value).partition(":")[0]


def _python_imports(tree: ast.AST, for_types: bool) -> Iterator[str]:
    for node in ast.iter_child_nodes(tree):
        if (
            not for_types
            and isinstance(node, ast.If)
            and "TYPE_CHECKING" in ast.unparse(node.test)
        ):
            continue
        if isinstance(node, ast.Import):
            yield from (alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and not node.level:
            yield from (f"{node.module}.{alias.name}" for alias in node.names)
        yield from _python_imports(node, for_types)


def _cython_imports(text: str) -> Iterator[str]:
    for module, names in re.findall(
        r"^\s*from ([\w.]+) c?import \(?([\w, ]+)", text, re.MULTILINE
    ):
        yield from (f"{module}.{name.strip().split(' ')[0]}" for name in names.split(","))


def circles(arrows: dict[str, set[str]]) -> list[list[str]]:
    """Groups of nodes that reach each other (strongly connected components of more than
    one), by Tarjan.
    """
    index: dict[str, int] = {}
    low: dict[str, int] = {}
    stack: list[str] = []
    found: list[list[str]] = []

    def visit(node: str) -> None:
        index[node] = low[node] = len(index)
        stack.append(node)
        for target in sorted(arrows.get(node, ())):
            if target not in index:
                visit(target)
                low[node] = min(low[node], low[target])
            elif target in stack:
                low[node] = min(low[node], index[target])
        if low[node] == index[node]:
            group = stack[stack.index(node) :]
            del stack[stack.index(node) :]
            if len(group) > 1:
                found.append(sorted(group))

    for node in sorted(arrows):
        if node not in index:
            visit(node)
    return sorted(found)


def module_circles(files: list[Source]) -> list[list[str]]:
    modules = {source.module for source in files}
    return circles({source.module: set(imported(source, modules)) for source in files})


def room_circles(files: list[Source]) -> list[list[str]]:
    rooms = {source.module: source.room for source in files}
    arrows: dict[str, set[str]] = defaultdict(set)
    for source in files:
        arrows[source.room] |= {rooms[name] for name in imported(source, set(rooms))} - {
            source.room
        }
    return circles(arrows)


def long_functions(files: list[Source]) -> list[str]:
    """Functions of more than 60 lines, decorators excluded."""
    found = []
    for source in files:
        for node in ast.walk(source.tree):
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
                length = (node.end_lineno or node.lineno) - node.lineno + 1
                if length > LONG_FUNCTION:
                    found.append(f"{source.path}:{node.lineno} {node.name} ({length})")
    return found


def files_of_stream(top: Path, files: list[Source], stream: str) -> list[str]:
    """Files outside of tests, docs and the demo whose code, keys or name contain the
    stream's name as a word.
    """
    word = re.compile(rf"(?<![a-z]){stream}(?![a-z])", re.IGNORECASE)
    found = [
        f"{PACKAGE}/{source.path}"
        for source in files
        if not source.is_of_demo
        and any(map(word.search, house_names.code_texts(source.tree, source.text)))
    ]
    for folder in ("etc", "schemas"):
        for file in sorted((top / folder).rglob("*")):
            if file.suffix in (".yaml", ".json"):
                name = str(file.relative_to(top))
                if word.search(name) or word.search(
                    _DESCRIPTIONS.sub("", file.read_text(encoding="utf-8"))
                ):
                    found.append(name)
    return found


def derivations(files: list[Source]) -> list[str]:
    """``file: columns`` where code computes derived columns of the report, outside of the demo."""
    found: dict[str, set[str]] = defaultdict(set)
    for source in files:
        if not source.is_of_demo:
            for column in house_names.computed_columns(source.tree, DERIVED):
                found[str(source.path)].add(column)
    return [f"{path}: {', '.join(sorted(columns))}" for path, columns in sorted(found.items())]


@dataclass(frozen=True)
class Figure:
    """One line of the result: what, how many, and which."""

    name: str
    value: str
    details: list[str]

    @classmethod
    def of(cls, name: str, details: list[str]) -> Figure:
        return cls(name, f"{len(details):,}", details)


def figures(top: Path) -> Iterator[Figure]:
    """All figures of a checkout."""
    files = sources(top)
    lines: Counter[str] = Counter()
    for source in files:
        lines[source.path.suffix] += source.lines
    modules = [source for source in files if source.path.suffix in (".py", ".pyx")]
    rooms = Counter(
        source.room if len(source.path.parts) > 1 else "(beside the rooms)" for source in modules
    )
    yield Figure(
        "package lines",
        f"{lines.total():,}",
        [f"{kind}: {count:,}" for kind, count in sorted(lines.items())],
    )
    yield Figure(
        "modules", f"{len(modules):,}", [f"{room}: {count}" for room, count in rooms.most_common()]
    )
    sizes = [source.lines for source in modules if source.path.suffix == ".py"]
    widths = sorted(len(line) for source in modules for line in source.text.splitlines())
    yield Figure("line width, 90 of 100", f"{widths[len(widths) * 9 // 10] if widths else 0}", [])
    yield Figure(
        "median module lines",
        f"{statistics.median(sizes or [0]):.0f}",
        [f"largest: {max(sizes, default=0)}"],
    )
    yield Figure.of("functions over 60 lines", long_functions(files))
    yield Figure.of(
        "import circles of modules", [" ".join(group) for group in module_circles(files)]
    )
    yield Figure.of("import circles of rooms", [" ".join(group) for group in room_circles(files)])
    for stream in STREAMS:
        yield Figure.of(f"files that mention {stream}", files_of_stream(top, files, stream))
    yield Figure.of("files that derive columns", derivations(files))
    pages = docs_words(top)
    yield Figure(
        "words of the docs",
        f"{sum(pages.values()):,}",
        [f"{name}: {count:,}" for name, count in pages.items()],
    )
    yield from words(files)


def docs_words(top: Path) -> dict[str, int]:
    """Return the words of each page in ``docs/``, as a reader counts: without decision
    records, comments, and the bars of tables.
    """
    return {
        page.name: len(
            re.sub(r"<!--.*?-->|\|(?:\s*-+\s*\|)*", " ", page.read_text(encoding="utf-8")).split()
        )
        for page in sorted((top / "docs").glob("*.md"))
    }


def words(files: list[Source]) -> Iterator[Figure]:
    """Yield the shares of vague names and of docstrings without a verb, with the counts
    of each file.
    """
    for title, kind, everything in (
        ("vague names", house_names.vague_names, house_names.bound_names),
        ("docstrings without a verb", house_names.without_verb, house_names.docstrings),
    ):
        by_file = {
            str(source.path): (len(kind(source.tree)), len(list(everything(source.tree))))
            for source in files
        }
        count, total = (sum(numbers) for numbers in zip(*by_file.values(), strict=True))
        details = [f"{path}: {number}" for path, (number, _) in by_file.items() if number]
        yield Figure(title, f"{count / max(total, 1):.1%}", details)


def main() -> None:
    parser = argparse.ArgumentParser(description=(__doc__ or "").partition("\n")[0])
    parser.add_argument(
        "path", nargs="?", type=Path, default=TOP, help="a checkout (default: this one)"
    )
    parser.add_argument("--detail", action="store_true", help="also list what each figure counts")
    chosen = parser.parse_args()
    for figure in figures(chosen.path):
        print(f"{figure.name:<28} {figure.value:>8}")
        if chosen.detail:
            print("".join(f"    {line}\n" for line in figure.details), end="")


if __name__ == "__main__":
    main()
