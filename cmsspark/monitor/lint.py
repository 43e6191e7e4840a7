"""Finds in a script for Spark what makes it slow or large, from its text alone: nothing is imported or run.

A line is silenced with ``# noqa`` or ``# noqa: SPK101, SPK104`` at its end.
"""

from __future__ import annotations

import ast
import itertools
import re
import tokenize
from dataclasses import dataclass
from io import BytesIO
from typing import Final, NamedTuple

from cmsspark.monitor.lint_udfs import UdfNames


class Rule(NamedTuple):
    """What a rule finds, why that matters, and the cure."""

    what: str
    why: str
    cure: str


RULES: Final[dict[str, Rule]] = {
    "SPK101": Rule(
        "an action in a loop",
        "each turn starts a Spark job, and computes the same inputs again",
        "one query with groupBy or join, or collect once before the loop",
    ),
    "SPK102": Rule(
        "a row-at-a-time Python UDF",
        "each row is pickled to a Python worker and back, and the plan cannot see into it",
        "functions of pyspark.sql.functions, or pandas_udf / udf(useArrow=True) on batches",
    ),
    "SPK103": Rule(
        "`from pyspark.sql.functions import *` shadows built-in functions of Python",
        "sum, max, min, round, filter … take columns from there on, and fail on lists or give columns",
        "from pyspark.sql import functions as F",
    ),
    "SPK104": Rule(
        "count() to test emptiness",
        "it reads all rows to know whether there is one",
        "df.isEmpty(), or rdd.isEmpty() for an RDD",
    ),
    "SPK105": Rule(
        "repartition(n) before a write of little",
        "it shuffles every row to make few files",
        "coalesce(n), which joins partitions without a shuffle",
    ),
    "SPK106": Rule(
        "toPandas() without a limit",
        "the whole table goes into the memory of the driver's Python",
        "aggregate or limit(n) before it, or write the table and read the file",
    ),
    "SPK107": Rule(
        "all rows are sorted where the first ones are meant",
        "the sort shuffles everything, and the driver throws most of it away",
        "orderBy(…).limit(n) before collect(), takeOrdered(n) of an RDD",
    ),
}
#: Built-in functions that the star import replaces, in Spark 3.5 to 4.x.
SHADOWED: Final = frozenset(
    {"abs", "ascii", "bin", "filter", "hash", "hex", "max", "min", "pow", "round", "slice", "sum"}
)
_ACTIONS: Final = frozenset({"collect", "toPandas", "toArrow", "show", "toLocalIterator", "first", "count", "isEmpty"})
#: Methods that make a result small, whatever it was.
_SMALL: Final = frozenset({"limit", "head", "tail", "take", "agg", "describe", "summary", "sample"})
_GROUPED: Final = frozenset({"count", "sum", "avg", "mean", "min", "max", "agg", "pivot"})
_GROUPS: Final = frozenset({"groupBy", "groupby", "rollup", "cube"})
_FEW_FILES: Final = 32
_NOQA: Final = re.compile(r"#\s*noqa(?P<codes>\s*:\s*[A-Z]+\d+(?:[,\s]+[A-Z]+\d+)*)?", re.IGNORECASE)


@dataclass(frozen=True, order=True)
class Problem:
    """A place in a script. ``line`` and ``column`` begin with 1."""

    line: int
    column: int
    code: str
    detail: str = ""

    @property
    def rule(self) -> Rule:
        """What the code stands for."""
        return RULES[self.code]


def lint(source: bytes) -> list[Problem]:
    """The problems of a script, in the order of its lines, without silenced ones. Raises SyntaxError, ValueError."""
    tree = ast.parse(source)
    visitor = _Visitor()
    if _is_spark(tree):
        visitor.visit(tree)
    silenced = _silenced(source)
    # A decorator is met twice, once with the name of its function.
    problems = {(problem.line, problem.column, problem.code): problem for problem in sorted(visitor.problems)}
    return [problem for problem in problems.values() if not _is_silenced(problem, silenced)]


def _is_spark(tree: ast.AST) -> bool:
    """Whether a script has to do with Spark: ``count()`` and ``first()`` are names of other libraries, too."""
    for node in ast.walk(tree):
        names = [alias.name for alias in node.names] if isinstance(node, ast.Import) else []
        if isinstance(node, ast.ImportFrom):
            names = [node.module or ""]
        if any(name == "cmsspark" or name.split(".")[0] in ("pyspark", "CMSSpark") for name in names):
            return True
    return False


def _silenced(source: bytes) -> dict[int, str | None]:
    """Line → codes of its ``# noqa``, None for all."""
    found: dict[int, str | None] = {}
    for token in tokenize.tokenize(BytesIO(source).readline):
        if token.type == tokenize.COMMENT and (match := _NOQA.match(token.string)) is not None:
            found[token.start[0]] = match["codes"]
    return found


def _is_silenced(problem: Problem, silenced: dict[int, str | None]) -> bool:
    if problem.line not in silenced:
        return False
    codes = silenced[problem.line]
    return codes is None or problem.code in codes.upper()


class _Visitor(ast.NodeVisitor):
    """Walks a script. ``_values`` has the last value that a name was given in the function that is walked."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._loops = 0
        self._values: dict[str, ast.expr] = {}
        self._star: ast.ImportFrom | None = None
        self._udfs = UdfNames()
        #: Built-in names that the script imports again, from elsewhere.
        self._restored: set[str] = set()

    def visit_Module(self, node: ast.Module) -> None:
        self.generic_visit(node)
        if self._star is not None:
            uses = [
                f"{call.func.id} in line {call.lineno}"
                for call in ast.walk(node)
                if isinstance(call, ast.Call)
                and isinstance(call.func, ast.Name)
                and call.func.id in SHADOWED - self._restored
            ]
            self._add(self._star, "SPK103", f"used here: {', '.join(uses[:5])}" if uses else "")

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            self._udfs.defined(node.name, decorator)
            if self._udfs.takes_rows(decorator):
                self._add(decorator, "SPK102", node.name)
        loops, values = self._loops, dict(self._values)
        # What a function does in a loop of its caller is not seen; its definition in a loop is no loop.
        self._loops = 0
        self.generic_visit(node)
        self._loops, self._values = loops, values

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        if node.module == "pyspark.sql.functions" and any(alias.name == "*" for alias in node.names):
            self._star = node
        elif self._star is not None and node.module == "builtins":
            self._restored.update(alias.asname or alias.name for alias in node.names)
        self._udfs.imported(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self.generic_visit(node)
        for target in node.targets:
            if isinstance(target, ast.Name):
                self._values[target.id] = node.value
                self._udfs.defined(target.id, node.value)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._in_loop([*node.body])
        for statement in node.orelse:
            self.visit(statement)

    visit_AsyncFor = visit_For  # type: ignore[assignment]

    def visit_While(self, node: ast.While) -> None:
        self._in_loop([node.test, *node.body])
        for statement in node.orelse:
            self.visit(statement)

    def _in_loop(self, nodes: list[ast.AST]) -> None:
        self._loops += 1
        for node in nodes:
            self.visit(node)
        self._loops -= 1

    def _comprehension(self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp) -> None:
        # The first iterable is evaluated once.
        self.visit(node.generators[0].iter)
        elements = [node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt]
        conditions = [condition for generator in node.generators for condition in generator.ifs]
        self._in_loop([*elements, *conditions, *(generator.iter for generator in node.generators[1:])])

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_Compare(self, node: ast.Compare) -> None:
        if len(node.comparators) == 1 and _is_test_of_emptiness(node.left, node.ops[0], node.comparators[0]):
            self._add(node, "SPK104")
        self.generic_visit(node)

    def visit_If(self, node: ast.If) -> None:
        self._test(node.test)
        self.generic_visit(node)

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._test(node.operand)
        self.generic_visit(node)

    def _test(self, node: ast.expr) -> None:
        if _is_bare_call(node, "count") and not self._is_grouped(node):
            self._add(node, "SPK104")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        is_part = isinstance(node.slice, ast.Slice | ast.Constant) and _is_bare_call(node.value, "collect")
        if is_part and self._chain(node.value)[1:2] in (["orderBy"], ["sort"], ["sortBy"]):
            self._add(node, "SPK107")
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        chain = self._chain(node) if name else []
        if self._loops and name in _ACTIONS and (not node.args or name == "show") and not self._is_grouped(node):
            self._add(node, "SPK101", f"{name}()")
        if self._udfs.takes_rows(node) or self._udfs.registers_rows(node):
            self._add(node, "SPK102")
        if name == "toPandas" and not self._is_small(chain[1:]):
            self._add(node, "SPK106")
        if name in ("take", "first") and chain[1:2] == ["sortBy"]:
            self._add(node, "SPK107")
        self.generic_visit(node)

    def visit_Attribute(self, node: ast.Attribute) -> None:
        call = self._resolved(node.value)
        if node.attr == "write" and isinstance(call, ast.Call) and _few_partitions(call):
            self._add(call, "SPK105")
        self.generic_visit(node)

    def _chain(self, node: ast.expr) -> list[str]:
        """Names of the methods of a chain, the last one first; names of variables are followed."""
        found: list[str] = []
        seen = 0
        current: ast.expr | None = node
        while current is not None and seen < 100:
            seen += 1
            if isinstance(current, ast.Call):
                current = current.func
            elif isinstance(current, ast.Attribute):
                found.append(current.attr)
                current = current.value
            elif isinstance(current, ast.Subscript):
                current = current.value
            else:
                resolved = self._resolved(current)
                current = resolved if resolved is not current else None
        return found

    def _resolved(self, node: ast.expr) -> ast.expr:
        return self._values.get(node.id, node) if isinstance(node, ast.Name) else node

    def _is_grouped(self, node: ast.expr) -> bool:
        """Whether the last method makes a table of groups, as ``groupBy(…).count()`` does: no action."""
        return bool(_GROUPS & set(self._chain(node)[1:2]))

    def _is_small(self, chain: list[str]) -> bool:
        if _SMALL & set(chain):
            return True
        pairs = itertools.pairwise(chain)
        return any(last in _GROUPED and before in _GROUPS for last, before in pairs)

    def _add(self, node: ast.AST, code: str, detail: str = "") -> None:
        line, column = getattr(node, "lineno", 1), getattr(node, "col_offset", 0) + 1
        # In a chain over several lines the method is where its name stands, at the end of what it is called on.
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            line, column = node.func.end_lineno or line, (node.func.end_col_offset or 0) - len(node.func.attr) + 1
        self.problems.append(Problem(line, column, code, detail))


def _is_bare_call(node: ast.expr, name: str) -> bool:
    is_call = isinstance(node, ast.Call) and not node.args and not node.keywords
    return is_call and isinstance(node.func, ast.Attribute) and node.func.attr == name  # type: ignore[attr-defined]


#: Comparisons of a count that ask whether there is any row: operator and number.
_EMPTINESS: Final = frozenset({(ast.Eq, 0), (ast.NotEq, 0), (ast.Gt, 0), (ast.LtE, 0), (ast.Lt, 1), (ast.GtE, 1)})
#: With the count on the right, ``0 < count()``.
_TURNED: Final[dict[type[ast.cmpop], type[ast.cmpop]]] = {
    ast.Lt: ast.Gt, ast.Gt: ast.Lt, ast.LtE: ast.GtE, ast.GtE: ast.LtE,
}  # fmt: skip


def _is_test_of_emptiness(left: ast.expr, operator: ast.cmpop, right: ast.expr) -> bool:
    kind = type(operator)
    if _is_bare_call(right, "count"):
        left, right, kind = right, left, _TURNED.get(kind, kind)
    is_number = isinstance(right, ast.Constant) and type(right.value) is int
    return _is_bare_call(left, "count") and is_number and (kind, right.value) in _EMPTINESS  # type: ignore[attr-defined]


def _few_partitions(call: ast.Call) -> bool:
    """``repartition(n)`` by a small number alone."""
    if not (isinstance(call.func, ast.Attribute) and call.func.attr == "repartition"):
        return False
    values = [*call.args, *(keyword.value for keyword in call.keywords)]
    if len(values) != 1 or not isinstance(values[0], ast.Constant):
        return False
    return isinstance(values[0].value, int) and values[0].value <= _FEW_FILES
