"""What names of a script mean: Spark's functions or Python's of the same name, UDFs,
objects of other libraries.
"""

from __future__ import annotations

import ast
from collections import Counter
from collections.abc import Iterator
from typing import Final

from cmsspark.apps.monitor.lint.rules import WORDS
from cmsspark.apps.monitor.lint.tables import without_alias

SHADOWED: Final = WORDS["shadowed"]
_FUNCTIONS: Final = WORDS["functions"]
_AGGREGATES: Final = WORDS["aggregates_of_both"]
_LITERALS: Final = (
    ast.List,
    ast.Tuple,
    ast.Set,
    ast.Dict,
    ast.ListComp,
    ast.SetComp,
    ast.DictComp,
    ast.GeneratorExp,
)
_OF_VALUES: Final = WORDS["of_values"]
_METHODS_OF_VALUES: Final = WORDS["methods_of_values"]
_PYTHON_KEYWORDS: Final = WORDS["python_keywords"]
_OTHERS: Final = WORDS["others"]
_SESSION: Final = {
    "spark": frozenset(
        {
            *("catalog", "conf", "createDataFrame", "range", "read", "readStream"),
            *("sparkContext", "sql", "table", "udf"),
        }
    ),
    "sqlContext": frozenset({"createDataFrame", "range", "read", "sql", "table", "udf"}),
    "sc": frozenset({"broadcast", "parallelize", "textFile", "wholeTextFiles"}),
}


def uses_spark(tree: ast.AST) -> bool:
    """Return whether a script has to do with Spark: ``count()`` and ``first()`` are
    names of other libraries, too.

    Notebooks have a session that they do not import.
    """
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(
            name == "cmsspark" or name.split(".")[0] in ("pyspark", "CMSSpark") for name in names
        ):
            return True
        if isinstance(node, ast.Attribute) and node.attr in _SESSION.get(
            getattr(node.value, "id", ""), ()
        ):
            return True
    return False


class OtherLibraries:
    """Names that a script imports from libraries other than Spark."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self._modules: set[str] = set()
        self._classes: set[str] = set()

    def imported(self, node: ast.Import | ast.ImportFrom) -> None:
        """Note what an import names."""
        for alias in node.names:
            module = (node.module or "") if isinstance(node, ast.ImportFrom) else alias.name
            name = alias.asname or alias.name.split(".")[0]
            (self._names.add if module.split(".")[0] in _OTHERS else self._names.discard)(name)
            is_class = isinstance(node, ast.ImportFrom) and name[:1].isupper()
            is_ours = module.split(".")[0] not in ("pyspark", "cmsspark", "CMSSpark", "delta")
            (self._classes.add if is_class and is_ours else self._classes.discard)(name)
            (self._modules.add if isinstance(node, ast.Import) else self._modules.discard)(name)

    def makes_local(self, name: str) -> bool:
        """Return whether a name is a class that is none of Spark's, such as ``Counter``."""
        return name in self._classes

    def defined(self, name: str) -> None:
        """Note a class of the script itself."""
        self._classes.add(name)

    def is_module(self, name: str) -> bool:
        """Return whether a name is of ``import name``."""
        return name in self._modules

    def in_annotation(self, annotation: ast.expr | None) -> ast.Name | None:
        """Return the name of another library in an annotation, such as ``pd`` of
        ``Iterator[pd.DataFrame]``.
        """
        names = (
            node for node in ast.walk(annotation or ast.Tuple([])) if isinstance(node, ast.Name)
        )
        return next((name for name in names if name.id in self), None)

    def __contains__(self, name: str) -> bool:
        return name in self._names


class SharedNames:
    """Which of the functions that share a name a script calls: Spark's or Python's."""

    def __init__(self) -> None:
        self._star: ast.ImportFrom | None = None
        #: Names of Spark's functions that were imported one by one, with those that
        #: Spark gives them.
        self._of_spark: dict[str, str] = {}
        #: Names that the script gives to anything else.
        self._bound: set[str] = set()

    def imported(self, node: ast.ImportFrom, *, in_function: bool = False) -> None:
        """Note what an import names. What is imported in a function is not known outside of it."""
        names = {alias.asname or alias.name for alias in node.names}
        if node.module not in _FUNCTIONS or in_function:
            self._bound |= names
            for name in names:
                self._of_spark.pop(name, None)
        elif "*" in names:
            self._star = node
            self._bound -= SHADOWED
        else:
            self._of_spark |= {
                alias.asname or alias.name: alias.name
                for alias in node.names
                if alias.name in SHADOWED
            }

    def problems(self, tree: ast.AST) -> Iterator[tuple[ast.AST, str]]:
        """(where, detail) of a star import, and of calls of the function that was not meant."""
        bound = self._bound | _assigned(tree)
        calls = [node for node in ast.walk(tree) if isinstance(node, ast.Call)]
        if self._star is not None:
            uses = [
                f"{name} in line {call.lineno}"
                for call in calls
                if (name := _name(call)) in SHADOWED - bound
            ]
            yield self._star, f"used here: {', '.join(uses[:5])}" if uses else ""
            return
        # Names of lists, sets and numbers only.
        stores = Counter(
            node.id
            for node in ast.walk(tree)
            if isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store)
        )
        literals = Counter(
            node.targets[0].id
            for node in ast.walk(tree)
            if isinstance(node, ast.Assign)
            and isinstance(node.targets[0], ast.Name)
            and (isinstance(node.value, _LITERALS) or _is_number(node.value))
        )
        parameters = {node.arg for node in ast.walk(tree) if isinstance(node, ast.arg)}
        of_values = {
            name for name in literals.keys() - parameters if literals[name] == stores[name]
        }
        for call in calls:
            name = _name(call)
            if name in self._of_spark.keys() - bound and (
                _takes_values(call, self._of_spark[name])
                or getattr(call.args[0] if call.args else None, "id", "") in of_values
            ):
                yield call, f"{name}() is Spark's here, and gets no column"
            if isinstance(call.func, ast.Attribute) and call.func.attr in ("agg", "select"):
                for argument in call.args:
                    inner = without_alias(argument)
                    if _name(
                        inner
                    ) in _AGGREGATES - bound - self._of_spark.keys() and _takes_a_column(inner):
                        yield inner, f"{_name(inner)}() is Python's here, and gets a column"


def _name(node: ast.AST) -> str:
    """Return the name that is called; nothing for a method."""
    return node.func.id if isinstance(node, ast.Call) and isinstance(node.func, ast.Name) else ""


def _assigned(tree: ast.AST) -> set[str]:
    """Names that the script defines or assigns, parameters among them."""
    names = set()
    for node in ast.walk(tree):
        if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef | ast.ClassDef):
            names.add(node.name)
        elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Store):
            names.add(node.id)
        elif isinstance(node, ast.arg):
            names.add(node.arg)
    return names


def _takes_values(call: ast.Call, function: str) -> bool:
    """Return whether the arguments are values of Python, which are no columns, for
    Spark's function of that name.
    """
    has_keyword = any(keyword.arg in _PYTHON_KEYWORDS for keyword in call.keywords)
    if has_keyword or not call.args:
        return has_keyword
    if function in _AGGREGATES and len(call.args) > 1:
        return True
    if function == "pow":
        # pow(2, "x") is Spark's, too.
        return all(_is_number(keyword) for keyword in call.args)
    first = call.args[0]
    is_method = isinstance(first, ast.Call) and isinstance(first.func, ast.Attribute)
    if is_method and first.func.attr in _METHODS_OF_VALUES:  # type: ignore[attr-defined]
        return True
    return (
        _is_number(first)
        or isinstance(first, (*_LITERALS, ast.Lambda))
        or _name(first) in _OF_VALUES
    )


def _is_number(node: ast.expr) -> bool:
    inner = node.operand if isinstance(node, ast.UnaryOp) else node
    return isinstance(inner, ast.Constant) and isinstance(inner.value, int | float)


def _takes_a_column(node: ast.expr) -> bool:
    if not isinstance(node, ast.Call) or len(node.args) != 1 or node.keywords:
        return False
    (value,) = node.args
    if isinstance(value, ast.Attribute | ast.Subscript):
        return True  # df.bytes, df["bytes"]
    if isinstance(value, ast.Call):
        function = value.func
        return (function.attr if isinstance(function, ast.Attribute) else _name(value)) == "col"
    return isinstance(value, ast.Constant) and isinstance(value.value, str)


_ROW: Final = "udf"
_ARROW: Final = "spark.sql.execution.pythonudf.arrow.enabled"
_BATCHES: Final = WORDS["batches"]


class UdfNames:
    """The names under which a script imports ``udf`` and ``pandas_udf``, and its
    functions of the latter.
    """

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
            if alias.name in (_ROW, "UserDefinedFunction"):
                self._row.add(name)
            elif alias.name in _BATCHES:
                self._batches.add(name)
                self._row.discard(name)

    def defined(self, name: str, maker: ast.expr) -> None:
        """Note that ``name`` is what ``maker`` decorates or returns."""
        if self._name(maker) in self._batches or (
            self._name(maker) in self._row and _uses_arrow(maker)
        ):
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
        named = next((keyword.value for keyword in call.keywords if keyword.arg == "f"), None)
        registered = call.args[1] if len(call.args) > 1 else named
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
            values = [
                str(argument.value).lower()
                for argument in node.args
                if isinstance(argument, ast.Constant)
            ]
            if values == [_ARROW, "true"]:
                return True
    return False


def _uses_arrow(node: ast.expr) -> bool:
    keywords = node.keywords if isinstance(node, ast.Call) else []
    # A value that is no constant may be true.
    return any(
        keyword.arg == "useArrow" and getattr(keyword.value, "value", True) for keyword in keywords
    )
