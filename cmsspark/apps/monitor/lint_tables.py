"""What a chain of methods makes of a table: little, all of a stored table, or a window over all rows."""

from __future__ import annotations

import ast
import itertools
import re
from typing import Final

from cmsspark.apps.monitor.lint_values import Values

#: Methods that make a result small, whatever it was.
SMALL: Final = frozenset({"limit", "head", "tail", "take", "agg", "describe", "summary", "sample", "crosstab"})
GROUPED: Final = frozenset({"count", "sum", "avg", "mean", "min", "max", "agg", "pivot"})
GROUPS: Final = frozenset({"groupBy", "groupby", "rollup", "cube", "groupingSets"})
#: Methods that may leave few rows, or make others.
_CHOOSES: Final = frozenset(
    {"where", "filter", "distinct", "dropDuplicates", "drop_duplicates", "join", "intersect", "subtract", "exceptAll",
     "dropna", "transform", "randomSplit", "mapInPandas", "mapInArrow", "applyInPandas", "rdd", "semanticHash"}
)  # fmt: skip
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

    def is_small(self, node: ast.expr) -> bool:
        """Return whether what the last method of a chain is called on has few rows."""
        chain = self._values.chain(node)[1:]
        if SMALL & set(chain) or any(pair[0] in GROUPED and pair[1] in GROUPS for pair in itertools.pairwise(chain)):
            return True
        return bool(SMALL_QUERY.search(self._values.query(node))) or self._selects_aggregates(node)

    def is_stored_table(self, node: ast.expr) -> bool:
        """Return whether a chain begins with a stored table, of which all rows are left."""
        chain = self._values.chain(node)[1:]
        query = self._values.query(node)
        begins = "read" in chain or "table" in chain or bool(query)
        if not begins or _CHOOSES & set(chain) or GROUPS & set(chain) or _CHOOSING_QUERY.search(query):
            return False
        return not self.is_small(node)

    def has_no_partition(self, window: ast.expr) -> bool:
        """Return whether a window is one of ``Window`` without ``partitionBy(…)`` of some column."""
        parts = self._values.parts(window)
        begin = parts[-1] if parts else window
        is_window = getattr(begin, "id", "") == "Window" or any(getattr(part, "attr", "") == "Window" for part in parts)
        current: ast.expr = window
        for _ in range(len(parts) * 2 + 2):
            current = self._values.resolved(current)
            if isinstance(current, ast.Call) and isinstance(current.func, ast.Attribute):
                if current.func.attr == "partitionBy" and (current.args or current.keywords):
                    return False
                current = current.func.value
        return is_window

    @staticmethod
    def orders_all(node: ast.Call) -> bool:
        """Return whether a text of SQL among the arguments has a window with an order and without a partition."""
        texts = [argument.value for argument in node.args if isinstance(argument, ast.Constant)]
        return any(isinstance(text, str) and _WINDOW_TEXT.search(text) for text in texts)

    def _selects_aggregates(self, node: ast.expr) -> bool:
        """Return whether a ``select`` of the chain has aggregates only: one row."""
        current = node
        for _ in range(200):
            current = self._values.resolved(current)
            if isinstance(current, ast.Call) and isinstance(current.func, ast.Attribute):
                is_select = current.func.attr in ("select", "selectExpr") and bool(current.args)
                if is_select and all(_is_aggregate(argument) for argument in current.args):
                    return True
                current = current.func.value
            elif isinstance(current, ast.Attribute):
                current = current.value
            else:
                break
        return False


def _is_aggregate(node: ast.expr) -> bool:
    while isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute) and node.func.attr in ("alias", "cast"):
        node = node.func.value
    if isinstance(node, ast.Constant):
        return isinstance(node.value, str) and bool(_AGGREGATE_TEXT.match(node.value))
    if isinstance(node, ast.BinOp):
        return _is_aggregate(node.left) or _is_aggregate(node.right)
    function = node.func if isinstance(node, ast.Call) else None
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return bool(_AGGREGATES.fullmatch(name)) and name != "over"
