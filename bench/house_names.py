"""What ``bench.house`` looks for in names: words that the project replaced, texts of code, computed columns."""

from __future__ import annotations

import ast
import io
import tokenize
from collections import Counter, defaultdict
from collections.abc import Callable, Iterable, Iterator

#: Words that standard terms have replaced, compared without leading underscores.
_OLD_WORDS = """
    attended Attended morning mornings_end Crew Shift said Kit by_processes by_spark Counted Scanned
    told tell say asked words derived former exactly known KnownLines Needs Shape made_of why_not
    fold Folded HashFold Unfold hash_fold unfold unfolded stand_ins_of nulled coded there dial Link LinkDown
    beside beat Patience Drain turn settle Refused Unconfirmed ledger Ledger form generation When
    Place Places Look Verdict HOPELESS GRAVEST_FIRST ASK_REPLICAS found one place given lay instead_of by_the_letter
"""
OLD_WORDS = frozenset(_OLD_WORDS.split())
_COLUMN_CALLS = frozenset({"alias", "withColumn", "with_columns", "append_column", "set_column"})


def old_words(trees: Iterable[tuple[str, ast.AST]], kind: Callable[[ast.AST], Iterator[str]]) -> list[str]:
    """``word: times in files`` for each old word among the names of that kind, by word."""
    times: Counter[str] = Counter()
    places: dict[str, set[str]] = defaultdict(set)
    for path, tree in trees:
        stem = path.rpartition("/")[2].partition(".")[0]
        for name in [*kind(tree), *([stem] if kind is public_names else [])]:
            if name.lstrip("_") in OLD_WORDS:
                times[name.lstrip("_")] += 1
                places[name.lstrip("_")].add(path)
    return [f"{word}: {times[word]} in {', '.join(sorted(places[word])[:4])}" for word in sorted(times)]


def public_names(tree: ast.AST) -> Iterator[str]:
    """Names of functions, classes, parameters, attributes and constants of a module."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        if isinstance(node, ast.ClassDef | ast.Module):
            for statement in node.body:
                yield from _assigned(statement)


def _assigned(statement: ast.stmt) -> Iterator[str]:
    targets = statement.targets if isinstance(statement, ast.Assign) else [getattr(statement, "target", None)]
    for target in targets:
        if isinstance(target, ast.Name) and isinstance(statement, ast.Assign | ast.AnnAssign):
            yield target.id


def variables(tree: ast.AST) -> Iterator[str]:
    """Names that functions assign: one for each function and name."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            names = (inner for inner in ast.walk(node) if isinstance(inner, ast.Name))
            yield from {name.id for name in names if isinstance(name.ctx, ast.Store)}


def code_texts(tree: ast.AST, text: str) -> Iterator[str]:
    """Names and strings of code, without docstrings; of Cython code everything but comments."""
    if isinstance(tree, ast.Module) and not tree.body:
        yield from (line.partition("#")[0] for line in text.splitlines())
        return
    docstrings = {id(statement.value) for statement in ast.walk(tree) if isinstance(statement, ast.Expr)}
    for node in ast.walk(tree):
        if isinstance(node, ast.Constant) and isinstance(node.value, str) and id(node) not in docstrings:
            yield node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.string


def computed_columns(tree: ast.AST, columns: tuple[str, ...]) -> Iterator[str]:
    """The columns that code computes: functions and aliases of that name, and computed values with that key."""
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in columns:
            yield node.name
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _COLUMN_CALLS:
            yield from (name for name in columns if node.args and _is(node.args[0], name))
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            yield from (name for key, value in pairs for name in columns if key and _is(key, name) and _computed(value))
        elif isinstance(node, ast.Assign):
            keys = [target.slice for target in node.targets if isinstance(target, ast.Subscript)]
            yield from (name for key in keys for name in columns if _is(key, name) and _computed(node.value))
        elif isinstance(node, ast.For) and any(isinstance(inner, ast.Assign) for inner in ast.walk(node)):
            yield from (name for name in columns if any(_is(inner, name) for inner in ast.walk(node.iter)))


def _is(node: ast.AST, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def _computed(value: ast.expr) -> bool:
    """Whether a value is more than a name, an attribute or constants."""
    if isinstance(value, ast.Tuple):
        return any(not isinstance(part, ast.Constant) for part in value.elts)
    return any(isinstance(node, ast.Call | ast.Lambda | ast.BinOp) for node in ast.walk(value))
