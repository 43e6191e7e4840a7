"""What ``bench.house`` looks for in names: names that say nothing, docstrings without a
verb, computed columns.
"""

from __future__ import annotations

import ast
import io
import tokenize
from collections.abc import Iterator

#: Words that do not say what a value is: bare participles and pronouns.
_VAGUE = """
    asked beside derived each exactly found given gone held here it kept known lay left made one other others own
    place places rest said same say something such taken tell that them there these thing things this those told
    wanted what when whole why
"""
VAGUE = frozenset(_VAGUE.split())
#: First words of a docstring that is no sentence with a verb.
_NO_VERB = """
    A All An Another Any Each Every How In It Its No Nothing One Only Some Such That The Their These They This Those
    What Whatever When Where Whether Which Who Why
"""
NO_VERB = frozenset(_NO_VERB.split())
_COLUMN_CALLS = frozenset({"alias", "withColumn", "with_columns", "append_column", "set_column"})


def bound_names(tree: ast.AST) -> Iterator[str]:
    """Yield each name that code binds, once for each binding: functions, classes,
    parameters, variables, attributes.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            yield node.name
        elif isinstance(node, ast.arg):
            yield node.arg
        elif isinstance(node, ast.Attribute) and isinstance(node.ctx, ast.Store):
            yield node.attr
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            yield node.id


def vague_names(tree: ast.AST) -> list[str]:
    """Return the bound names of a module that do not say what the value is."""
    return [name for name in bound_names(tree) if name.lstrip("_") in VAGUE]


def docstrings(tree: ast.AST) -> Iterator[tuple[str, str]]:
    """Yield (function, docstring) of the functions of a module that have one;
    properties are attributes.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef):
            is_property = any(
                "property" in ast.unparse(decorator) for decorator in node.decorator_list
            )
            if not is_property and (text := ast.get_docstring(node)):
                yield node.name, text


def without_verb(tree: ast.AST) -> list[str]:
    """Return the functions whose docstring begins without a verb."""
    return [name for name, text in docstrings(tree) if text.split()[0].rstrip(",") in NO_VERB]


def code_texts(tree: ast.AST, text: str) -> Iterator[str]:
    """Names and strings of code, without docstrings; of Cython code everything but comments."""
    if isinstance(tree, ast.Module) and not tree.body:
        yield from (line.partition("#")[0] for line in text.splitlines())
        return
    docstrings = {
        id(statement.value) for statement in ast.walk(tree) if isinstance(statement, ast.Expr)
    }
    for node in ast.walk(tree):
        if (
            isinstance(node, ast.Constant)
            and isinstance(node.value, str)
            and id(node) not in docstrings
        ):
            yield node.value
    for token in tokenize.generate_tokens(io.StringIO(text).readline):
        if token.type == tokenize.NAME:
            yield token.string


def computed_columns(tree: ast.AST, columns: tuple[str, ...]) -> Iterator[str]:
    """The columns that code computes: functions and aliases of that name, and computed
    values with that key.
    """
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef) and node.name in columns:
            yield node.name
        elif isinstance(node, ast.Call) and getattr(node.func, "attr", "") in _COLUMN_CALLS:
            yield from (name for name in columns if node.args and _is(node.args[0], name))
        elif isinstance(node, ast.Dict):
            pairs = zip(node.keys, node.values, strict=True)
            yield from (
                name
                for key, value in pairs
                for name in columns
                if key and _is(key, name) and _computed(value)
            )
        elif isinstance(node, ast.Assign):
            keys = [target.slice for target in node.targets if isinstance(target, ast.Subscript)]
            yield from (
                name
                for key in keys
                for name in columns
                if _is(key, name) and _computed(node.value)
            )
        elif isinstance(node, ast.For) and any(
            isinstance(inner, ast.Assign) for inner in ast.walk(node)
        ):
            yield from (
                name for name in columns if any(_is(inner, name) for inner in ast.walk(node.iter))
            )


def _is(node: ast.AST, text: str) -> bool:
    return isinstance(node, ast.Constant) and node.value == text


def _computed(value: ast.expr) -> bool:
    """Whether a value is more than a name, an attribute or constants."""
    if isinstance(value, ast.Tuple):
        return any(not isinstance(part, ast.Constant) for part in value.elts)
    return any(isinstance(node, ast.Call | ast.Lambda | ast.BinOp) for node in ast.walk(value))
