"""Rules on what a call does to all rows of a table, and on counts that only ask whether
there is any row.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from cmsspark.apps.monitor.lint_names import OtherLibraries
from cmsspark.apps.monitor.lint_rules import Problem
from cmsspark.apps.monitor.lint_values import Tables, Values

#: Functions of all values of a key, which groupByKey() alone gives.
_ALL_VALUES: Final = frozenset({"list", "set", "sorted", "tuple"})
#: Methods whose results are in the driver's Python.
_FETCHES: Final = frozenset(
    {"collect", "toPandas", "toArrow", "toLocalIterator", "take", "head", "tail", "first"}
)


class RowRules:
    """What the visitor of a script knows of its names, and the rules that need no more."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._loops = 0
        self._values = Values()
        self._libraries, self._tables = OtherLibraries(), Tables(self._values)
        #: ``id`` of nodes that are judged already, or whose value decides when a loop ends.
        self._passed: set[int] = set()

    def _rows(self, node: ast.Call, name: str) -> None:
        """Judge what a call does to all rows of a table: a window, a group, a collect."""
        is_window = name == "over" and len(node.args) == 1 and id(node) not in self._passed
        if is_window and self._tables.has_no_partition(node.args[0]):
            self._add(node, "SPK108")
        if (
            name in ("sql", "expr", "selectExpr")
            and self._tables.orders_all(node)
            and not self._tables.is_small(node)
        ):
            self._add(node, "SPK108")
        if name in ("withColumn", "withColumns", "select") and self._tables.is_small(node):
            # Of few rows the order of all is cheap.
            self._passed |= {id(inner) for inner in ast.walk(node)}
        if name == "mapValues" and node.args and getattr(node.args[0], "id", "") in _ALL_VALUES:
            self._passed.add(id(getattr(node.func, "value", node)))
        if name == "groupByKey" and id(node) not in self._passed and not self._is_local(node):
            self._add(node, "SPK110")
        is_all = (
            name == "collect" and not (node.args or node.keywords) and id(node) not in self._passed
        )
        if (
            is_all
            and not self._loops
            and self._tables.is_stored_table(node)
            and not self._is_local(node)
        ):
            self._add(node, "SPK111")

    def _adds_columns(self, node: ast.Assign) -> None:
        """Judge ``df = df.withColumn(…)`` in a loop."""
        if not self._loops or len(node.targets) != 1 or not isinstance(node.targets[0], ast.Name):
            return
        current, calls = node.value, []
        while isinstance(current, ast.Call) and isinstance(current.func, ast.Attribute):
            calls.append(current)
            current = current.func.value
        if isinstance(current, ast.Name) and current.id == node.targets[0].id:
            for call in calls:
                if isinstance(call.func, ast.Attribute) and call.func.attr in (
                    "withColumn",
                    "withColumnRenamed",
                ):
                    self._add(call, "SPK109", f"{call.func.attr}()")
                    return

    def _is_local(self, node: ast.expr) -> bool:
        """Return whether a method is one of rows that are in Python already, or of
        another library's object.
        """
        parts = self._values.parts(node)
        begin = parts[-1] if parts else node
        if any(isinstance(part, ast.Attribute) and part.attr in _FETCHES for part in parts[1:]):
            return True
        # `gc.collect()`: no module is a table.
        is_module = (
            len(parts) == 2 and isinstance(begin, ast.Name) and self._libraries.is_module(begin.id)
        )
        return is_module or (isinstance(begin, ast.Name) and begin.id in self._libraries)

    def _add(self, node: ast.AST, code: str, detail: str = "") -> None:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        # In a chain over several lines the method is where its name stands, at the end
        # of what it is called on.
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            line, column = (
                node.func.end_lineno or line,
                (node.func.end_col_offset or 0) - len(node.func.attr) + 1,
            )
        self.problems.append(Problem(line, column, code, detail))


def is_bare_call(node: ast.expr, name: str) -> bool:
    """Return whether it is a call of the method without arguments."""
    is_call = isinstance(node, ast.Call) and not node.args and not node.keywords
    return is_call and isinstance(node.func, ast.Attribute) and node.func.attr == name  # type: ignore[attr-defined]


#: Comparisons of a count that ask whether there is any row: operator and number.
_EMPTINESS: Final = frozenset(
    {(ast.Eq, 0), (ast.NotEq, 0), (ast.Gt, 0), (ast.LtE, 0), (ast.Lt, 1), (ast.GtE, 1)}
)
#: With the count on the right, ``0 < count()``.
_TURNED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.Gt,
    ast.Gt: ast.Lt,
    ast.LtE: ast.GtE,
    ast.GtE: ast.LtE,
}


def is_test_of_emptiness(operand: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool:
    """Return whether a comparison asks of ``count()`` only if there is any row."""
    kind = type(operator)
    if is_bare_call(right, "count"):
        operand, right, kind = right, operand, _TURNED.get(kind, kind)
    is_number = isinstance(right, ast.Constant) and type(right.value) is int
    return is_bare_call(operand, "count") and is_number and (kind, right.value) in _EMPTINESS  # type: ignore[attr-defined]


class CountedNames:
    """Tests of names that stand for a ``count()``: where a name is used for nothing
    else, its number is not needed.
    """

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
