"""What the names of a script stand for, the methods of a chain, and what these make of a table."""

from __future__ import annotations

import ast
import re
from collections.abc import Iterator
from typing import Final

from cmsspark.apps.monitor.lint.rules import WORDS

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
        current = node
        for _ in range(_MOST_STEPS):
            if isinstance(current, ast.Call) and isinstance(current.func, ast.Attribute):
                if current.func.attr == "sql" and current.args:
                    return sql_text(self.resolved(current.args[0]))
                current = current.func.value
            elif (value := self.resolved(current)) is not current:
                current = value
            else:
                break
        return ""


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
_AGGREGATES: Final = re.compile(
    r"(?:count|countDistinct|count_distinct|count_if|approx_count_distinct|approxCountDistinct|sum|sum_distinct"
    r"|sumDistinct|avg|mean|median|mode|max|min|max_by|min_by|stddev\w*|var\w*|skewness|kurtosis|corr|covar_\w+"
    r"|percentile\w*|bool_and|bool_or|every|some|any_value)"
)
_AGGREGATE_TEXT: Final = re.compile(rf"(?i)\s*{_AGGREGATES.pattern}\s*\((?!.*\bover\b)")
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
        # A table of `import cmsspark as cms`.
        is_ours = len(parts) > 2 and getattr(parts[-1], "id", "") in self.own_modules
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
    return bool(_AGGREGATES.fullmatch(name)) and name != "over"
