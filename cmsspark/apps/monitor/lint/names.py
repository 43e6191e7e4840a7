"""What names of a script mean: Spark's functions or Python's of the same name, UDFs,
objects of other libraries; the last value of each, the methods of a chain, and what
these make of a table.
"""

from __future__ import annotations

import ast
import re
from collections import Counter
from collections.abc import Iterator
from typing import Final

from cmsspark.apps.monitor.lint.rules import WORDS

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
        self._own_classes: set[str] = set()

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
        self._own_classes.add(name)

    def is_own(self, name: str) -> bool:
        """Return whether a name is a class of the script itself."""
        return name in self._own_classes

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


#: A longer chain is followed up to here; a method is two steps.
_MOST_STEPS: Final = 1_000


class Values:
    """The last value that each name was given in the function that is walked. Names are
    followed as of their line.
    """

    def __init__(self) -> None:
        self._values: dict[str, ast.expr] = {}
        #: Names as they were read, by ``id`` of the node: ``df = df.limit(5)`` has the
        #: former ``df`` on its right.
        self._read: dict[int, ast.expr] = {}

    def snapshot(self) -> dict[str, ast.expr]:
        """Return what names stand for now; for :meth:`restore`, at the end of a function."""
        return dict(self._values)

    def restore(self, values: dict[str, ast.expr]) -> None:
        """Take what names stood for before."""
        self._values = values

    def read(self, node: ast.Name) -> None:
        """Note that a name is used."""
        self._read[id(node)] = self._values.get(node.id, node)

    def forget(self, name: str) -> None:
        """Note that a name stands for something that is not known, as parameters do."""
        self._values.pop(name, None)

    def bind(self, target: ast.expr, value: ast.expr) -> list[tuple[str, ast.expr]]:
        """Give a target its value, and the names of a tuple theirs, where those are
        known. Returns (name, value).
        """
        if isinstance(target, ast.Name):
            self._values[target.id] = value
            return [(target.id, value)]
        if isinstance(target, ast.Starred):
            return self.bind(target.value, value)
        if not isinstance(target, ast.Tuple | ast.List):
            return []
        is_each = (
            isinstance(value, ast.Tuple | ast.List)
            and len(value.elts) == len(target.elts)
            and not any(
                isinstance(element, ast.Starred) for element in (*value.elts, *target.elts)
            )
        )
        values = value.elts if is_each else [value] * len(target.elts)  # type: ignore[attr-defined]
        return [
            pair
            for element, part in zip(target.elts, values, strict=True)
            for pair in self.bind(element, part)
        ]

    def resolved(self, node: ast.expr) -> ast.expr:
        """Return what a name stands for; any other expression as it is."""
        if not isinstance(node, ast.Name):
            return node
        return self._read.get(id(node)) or self._values.get(node.id, node)

    def steps(self, node: ast.expr) -> Iterator[ast.expr]:
        """Yield the steps of a chain, the last one first, to what it begins with;
        variables are followed.
        """
        for _ in range(_MOST_STEPS):
            value = self.resolved(node)
            if value is not node:
                node = value
                continue
            yield node
            if isinstance(node, ast.Call):
                node = node.func
            elif isinstance(node, ast.Attribute | ast.Subscript | ast.Await | ast.Starred):
                node = node.value
            else:
                return

    def calls(self, node: ast.expr) -> Iterator[tuple[str, ast.Call]]:
        """Yield (name, call) of the methods that a chain calls, the last one first."""
        for step in self.steps(node):
            if isinstance(step, ast.Call) and isinstance(step.func, ast.Attribute):
                yield step.func.attr, step

    def chain(self, node: ast.expr) -> list[str]:
        """Return the names of the methods of a chain, the last one first."""
        return [step.attr for step in self.steps(node) if isinstance(step, ast.Attribute)]

    def parts(self, node: ast.expr) -> list[ast.expr]:
        """Return the attributes of a chain, the last one first, and what it begins with."""
        passed = (ast.Call, ast.Subscript, ast.Await, ast.Starred)
        return [step for step in self.steps(node) if not isinstance(step, passed)]

    def query(self, node: ast.expr) -> str:
        """Return the literal SQL that a chain begins with; ``0`` stands for what an
        f-string puts in.
        """
        calls = (call for name, call in self.calls(node) if name == "sql" and call.args)
        begin = next(calls, None)
        return "" if begin is None else sql_text(self.resolved(begin.args[0]))


def sql_text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(
            str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values
        )
    return str(node.value) if isinstance(node, ast.Constant) else ""


SMALL: Final = WORDS["small"]
GROUPED: Final = WORDS["grouped"]
GROUPS: Final = WORDS["groups"]
_CHOOSES: Final = WORDS["chooses"]
_JOINS: Final = WORDS["joins"]
_OF_RDD: Final = WORDS["of_rdd"]
_READERS: Final = WORDS["readers"]
_SELECTS: Final = ("select", "selectExpr")
_AGGREGATE_NAMES: Final = re.compile(
    r"(?:count|countDistinct|count_distinct|count_if|approx_count_distinct|approxCountDistinct|sum|sum_distinct"
    r"|sumDistinct|avg|mean|median|mode|max|min|max_by|min_by|stddev\w*|var\w*|skewness|kurtosis|corr|covar_\w+"
    r"|percentile\w*|bool_and|bool_or|every|some|any_value)"
)
_AGGREGATE_TEXT: Final = re.compile(rf"(?i)\s*{_AGGREGATE_NAMES.pattern}\s*\((?!.*\bover\b)")
#: Queries that give few rows.
SMALL_QUERY: Final = re.compile(
    r"(?is)\blimit\s+\d+\s*;?\s*$|\bgroup\s+by\b|^\s*(?:show|desc|describe|explain)\b"
    r"|^\s*select\s+(?:count|sum|min|max|avg)\s*\((?!.*\bover\b)"
)
_CHOOSING_QUERY: Final = re.compile(r"(?is)\b(?:where|join|distinct|having)\b")
_WINDOW_TEXT: Final = re.compile(r"(?is)\bover\s*\(\s*order\s+by\b")


class Tables:
    """Judges chains of methods by the names of a script."""

    def __init__(self, values: Values) -> None:
        self._values = values
        #: Names under which a script imports this package.
        self.own_modules: set[str] = set()
        #: Names of this package's functions that return a table.
        self.own_functions: set[str] = set()
        #: Names of what a script fills with fetched rows, one by one.
        self.filled: set[str] = set()

    def is_small(self, node: ast.expr) -> bool:
        """Return whether what the last method of a chain is called on has few rows."""
        calls = list(self._values.calls(node))[1:]
        names = [name for name, _ in calls]
        for (name, call), before in zip(calls, [*names[1:], ""], strict=False):
            if name in SMALL or (name in GROUPED and before in GROUPS):
                return True
            if name in _JOINS and call.args:
                # What is joined with a whole stored table may be as large.
                action = ast.Call(ast.Attribute(call.args[0], "collect"), [], [])
                if self.is_stored_table(action):
                    return False
        if names[:2] == ["distinct", "select"] and len(calls[1][1].args) == 1:
            return True  # the values of one column
        if self._is_of_values(node) and not _JOINS & set(names):
            return True
        if SMALL_QUERY.search(self._values.query(node)):
            return True
        # A select of aggregates only gives one row.
        selects = [call for name, call in self._values.calls(node) if name in _SELECTS]
        return any(call.args and all(map(_is_aggregate, call.args)) for call in selects)

    def _is_of_values(self, node: ast.expr) -> bool:
        """Return whether a chain begins with values that are in Python already."""
        calls = [(name, call) for name, call in self._values.calls(node) if call.args]
        if not calls:
            return False
        name, begin = calls[-1]
        first = self._values.resolved(begin.args[0])
        if name == "range":
            numbers = [getattr(argument, "value", None) for argument in begin.args]
            return all(isinstance(number, int) and number < 1_000_000 for number in numbers)
        methods = self._values.chain(first)
        return name == "createDataFrame" and not _OF_RDD & set(methods)

    def is_stored_table(self, node: ast.expr) -> bool:
        """Return whether a chain begins with a stored table, of which all rows are left."""
        chain = self._values.chain(node)[1:]
        query = self._values.query(node)
        parts = self._values.parts(node)
        # A table of `import cmsspark as cms`, or of `from cmsspark import accesses`.
        name = getattr(parts[-1], "id", "") if parts else ""
        is_ours = (len(parts) > 2 and name in self.own_modules) or name in self.own_functions
        begins = bool(_READERS & set(chain)) or bool(query) or is_ours
        if chain[:1] == ["textFile"] and "*" not in ast.unparse(list(self._values.steps(node))[2]):
            return False  # lines as they are: a list of names, not the logs
        if (
            not begins
            or _CHOOSES & set(chain)
            or GROUPS & set(chain)
            or _CHOOSING_QUERY.search(query)
        ):
            return False
        return not self.is_small(node)

    def has_no_partition(self, window: ast.expr) -> bool:
        """Return whether a window is one of ``Window`` without ``partitionBy(…)`` of some column."""
        parts = self._values.parts(window)
        begin = parts[-1] if parts else window
        is_window = getattr(begin, "id", "") == "Window" or any(
            getattr(part, "attr", "") == "Window" for part in parts
        )
        calls = self._values.calls(window)
        return is_window and not any(
            name == "partitionBy" and not all(map(_is_literal, call.args)) for name, call in calls
        )

    @staticmethod
    def orders_all(node: ast.Call) -> bool:
        """Return whether a text of SQL among the arguments has a window with an order
        and without a partition.
        """
        texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        return any(isinstance(text, str) and _WINDOW_TEXT.search(text) for text in texts)

    def is_fetched(self, node: ast.expr, depth: int = 6) -> bool:
        """Return whether rows of a large table went to Python to make a value."""
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            chain = self._values.chain(node)
            if node.func.attr in ("collect", "toPandas", "toArrow", "toLocalIterator"):
                is_few = self.is_small(node) or {"distinct", "dropDuplicates"} & set(chain)
                return not is_few and not node.args
        if depth == 0:
            return False
        if isinstance(node, ast.Name):
            value = self._values.resolved(node)
            if node.id in self.filled:
                return True
            return value is not node and self.is_fetched(value, depth - 1)
        return any(
            self.is_fetched(child.iter if isinstance(child, ast.comprehension) else child, depth)
            for child in ast.iter_child_nodes(node)
            if isinstance(child, ast.expr | ast.comprehension)
        )


def _is_literal(column: ast.expr) -> bool:
    """Return whether a column is ``lit(…)``: one value for all rows."""
    function = column.func if isinstance(column, ast.Call) else None
    return (getattr(function, "attr", None) or getattr(function, "id", "")) == "lit"


def without_alias(node: ast.expr) -> ast.expr:
    """``sum("x")`` of ``sum("x").alias("y")``."""
    while (
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and node.func.attr in ("alias", "cast")
    ):
        node = node.func.value
    return node


def _is_aggregate(node: ast.expr) -> bool:
    node = without_alias(node)
    if isinstance(node, ast.Starred):
        return _is_aggregate(node.value)
    if isinstance(node, ast.ListComp | ast.GeneratorExp):
        return _is_aggregate(node.elt)
    if isinstance(node, ast.List | ast.Tuple):
        return bool(node.elts) and all(map(_is_aggregate, node.elts))
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and bool(_AGGREGATE_TEXT.match(node.value))
    if isinstance(node, ast.BinOp):
        return _is_aggregate(node.left) or _is_aggregate(node.right)
    function = node.func if isinstance(node, ast.Call) else None
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return bool(_AGGREGATE_NAMES.fullmatch(name)) and name != "over"
