"""Which comparisons of a count only ask whether there is any row."""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final


def is_bare_call(node: ast.expr, name: str) -> bool:
    """Return whether it is a call of the method without arguments."""
    is_call = isinstance(node, ast.Call) and not node.args and not node.keywords
    return is_call and isinstance(node.func, ast.Attribute) and node.func.attr == name  # type: ignore[attr-defined]


#: Comparisons of a count that ask whether there is any row: operator and number.
_EMPTINESS: Final = frozenset({(ast.Eq, 0), (ast.NotEq, 0), (ast.Gt, 0), (ast.LtE, 0), (ast.Lt, 1), (ast.GtE, 1)})
#: With the count on the right, ``0 < count()``.
_TURNED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE,
}  # fmt: skip


def is_test_of_emptiness(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool:
    """Return whether a comparison asks of ``count()`` only if there is any row."""
    kind = type(operator)
    if is_bare_call(right, "count"):
        left, right, kind = right, left, _TURNED.get(kind, kind)
    is_number = isinstance(right, ast.Constant) and type(right.value) is int
    return is_bare_call(left, "count") and is_number and (kind, right.value) in _EMPTINESS  # type: ignore[attr-defined]


class CountedNames:
    """Tests of names that stand for a ``count()``: where a name is used for nothing else, its number is not needed."""

    def __init__(self) -> None:
        self._tests: list[tuple[ast.Name, ast.expr]] = []

    def tested(self, name: ast.Name, test: ast.expr) -> None:
        """Note a test of whether a count is 0."""
        self._tests.append((name, test))

    def problems(self, module: ast.Module) -> Iterator[ast.expr]:
        """Yield the tests of names that are used for nothing else in their function."""
        tested = {id(name) for name, _ in self._tests}
        uses = {id(name): _uses(module, name) for name, _ in self._tests}
        yield from (test for name, test in self._tests if uses[id(name)] <= tested)


def _uses(module: ast.Module, name: ast.Name) -> set[int]:
    """Return ``id`` of all uses of a name in the innermost function that has this one."""
    scope: ast.AST = module
    for node in ast.walk(module):
        is_function = isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.Lambda)
        if is_function and any(inner is name for inner in ast.walk(node)):
            scope = node  # a walk comes to outer functions first
    return {
        id(node)
        for node in ast.walk(scope)
        if isinstance(node, ast.Name) and node.id == name.id and isinstance(node.ctx, ast.Load)
    }
