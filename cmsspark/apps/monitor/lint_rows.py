"""Rules on what a call does to all rows of a table: a window, a group, a collect, columns one after another."""

from __future__ import annotations

import ast
from typing import Final

from cmsspark.apps.monitor.lint_names import OtherLibraries
from cmsspark.apps.monitor.lint_rules import Problem
from cmsspark.apps.monitor.lint_tables import Tables
from cmsspark.apps.monitor.lint_values import Values

#: Functions of all values of a key, which groupByKey() alone gives.
_ALL_VALUES: Final = frozenset({"list", "set", "sorted", "tuple"})
#: Methods whose results are in the driver's Python.
_FETCHES: Final = frozenset({"collect", "toPandas", "toArrow", "toLocalIterator", "take", "head", "tail", "first"})


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
        if name in ("sql", "expr", "selectExpr") and self._tables.orders_all(node) and not self._tables.is_small(node):
            self._add(node, "SPK108")
        if name in ("withColumn", "withColumns", "select") and self._tables.is_small(node):
            # Of few rows the order of all is cheap.
            self._passed |= {id(inner) for inner in ast.walk(node)}
        if name == "mapValues" and node.args and getattr(node.args[0], "id", "") in _ALL_VALUES:
            self._passed.add(id(getattr(node.func, "value", node)))
        if name == "groupByKey" and id(node) not in self._passed and not self._is_local(node):
            self._add(node, "SPK110")
        is_all = name == "collect" and not (node.args or node.keywords) and id(node) not in self._passed
        if is_all and not self._loops and self._tables.is_stored_table(node) and not self._is_local(node):
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
                if isinstance(call.func, ast.Attribute) and call.func.attr in ("withColumn", "withColumnRenamed"):
                    self._add(call, "SPK109", f"{call.func.attr}()")
                    return

    def _is_local(self, node: ast.expr) -> bool:
        """Return whether a method is one of rows that are in Python already, or of another library's object."""
        parts = self._values.parts(node)
        begin = parts[-1] if parts else node
        if any(isinstance(part, ast.Attribute) and part.attr in _FETCHES for part in parts[1:]):
            return True
        # `gc.collect()`: no module is a table.
        is_module = len(parts) == 2 and isinstance(begin, ast.Name) and self._libraries.is_module(begin.id)
        return is_module or (isinstance(begin, ast.Name) and begin.id in self._libraries)

    def _add(self, node: ast.AST, code: str, detail: str = "") -> None:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        # In a chain over several lines the method is where its name stands, at the end of what it is called on.
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            line, column = node.func.end_lineno or line, (node.func.end_col_offset or 0) - len(node.func.attr) + 1
        self.problems.append(Problem(line, column, code, detail))
