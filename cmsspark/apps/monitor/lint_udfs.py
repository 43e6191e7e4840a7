"""Which names of a script make Python UDFs: those that take rows, and those that take Arrow batches."""

from __future__ import annotations

import ast
from typing import Final

_ROW: Final = "udf"
_ARROW: Final = "spark.sql.execution.pythonudf.arrow.enabled"
_BATCHES: Final = frozenset({"pandas_udf", "arrow_udf"})


class UdfNames:
    """The names under which a script imports ``udf`` and ``pandas_udf``, and its functions of the latter."""

    def __init__(self) -> None:
        self._row = {_ROW}
        self._batches = set(_BATCHES)
        self._of_batches: set[str] = set()

    def imported(self, node: ast.ImportFrom) -> None:
        """Note what an import names; ``from … import pandas_udf as udf`` is one of batches."""
        if not (node.module or "").startswith("pyspark.sql"):
            return
        for alias in node.names:
            name = alias.asname or alias.name
            if alias.name == _ROW:
                self._row.add(name)
            elif alias.name in _BATCHES:
                self._batches.add(name)
                self._row.discard(name)

    def defined(self, name: str, maker: ast.expr) -> None:
        """Note that ``name`` is what ``maker`` decorates or returns."""
        if self._name(maker) in self._batches or (self._name(maker) in self._row and _uses_arrow(maker)):
            self._of_batches.add(name)
            self._row.discard(name)

    def takes_rows(self, node: ast.expr) -> bool:
        """``udf``, ``F.udf``, called or not, without ``useArrow=True``."""
        return self._name(node) in self._row and not _uses_arrow(node)

    def registers_rows(self, call: ast.Call) -> bool:
        """``spark.udf.register(name, function)`` of a function that does not take batches."""
        function = call.func
        if not (isinstance(function, ast.Attribute) and function.attr == "register"):
            return False
        if not (isinstance(function.value, ast.Attribute) and function.value.attr == _ROW):
            return False
        registered = call.args[1] if len(call.args) > 1 else _keyword(call, "f")
        if isinstance(registered, ast.Name) and registered.id in self._of_batches:
            return False
        if not isinstance(registered, ast.Call):
            return True
        name = self._name(registered)
        return name not in self._batches and not (name in self._row and _uses_arrow(registered))

    @staticmethod
    def _name(node: ast.expr) -> str:
        function = node.func if isinstance(node, ast.Call) else node
        return function.id if isinstance(function, ast.Name) else getattr(function, "attr", "")


def arrow_is_set(tree: ast.AST) -> bool:
    """Return whether a script sets that all its UDFs take Arrow batches."""
    for node in ast.walk(tree):
        if isinstance(node, ast.Call):
            values = [str(argument.value).lower() for argument in node.args if isinstance(argument, ast.Constant)]
            if values == [_ARROW, "true"]:
                return True
    return False


def _keyword(call: ast.Call, name: str) -> ast.expr | None:
    return next((keyword.value for keyword in call.keywords if keyword.arg == name), None)


def _uses_arrow(node: ast.expr) -> bool:
    keywords = node.keywords if isinstance(node, ast.Call) else []
    # A value that is no constant may be true.
    return any(keyword.arg == "useArrow" and getattr(keyword.value, "value", True) for keyword in keywords)
