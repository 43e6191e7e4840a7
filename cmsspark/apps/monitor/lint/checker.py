"""Finds in a script for Spark what makes it slow or large, from its text alone: nothing
is imported or run.

A line is silenced with ``# noqa`` or ``# noqa: SPK101, SPK104`` at its end; a statement
over several lines at the end of its last one.
"""

from __future__ import annotations

import ast
import sys
import warnings
from collections.abc import Iterator
from typing import Final

from cmsspark.apps.monitor.lint.habits import (
    CalledFunctions,
    cached_too_early,
    counted_in_tasks,
    deciding_actions,
    filled_names,
    has_one_connection,
    written_tables,
)
from cmsspark.apps.monitor.lint.names import (
    GROUPS,
    OtherLibraries,
    SharedNames,
    Tables,
    UdfNames,
    Values,
    arrow_is_set,
    uses_spark,
)
from cmsspark.apps.monitor.lint.rules import WORDS, Problem, is_silenced, silenced_lines

_FETCHES: Final = WORDS["fetches"]


_SUMS: Final = WORDS["sums_of_python"]


def _needs_all_values(function: ast.expr | ast.FunctionDef) -> bool:
    """Return whether a function needs all values of a key at once: it sorts or lists them."""
    if isinstance(function, ast.Name):
        return function.id not in _SUMS
    if not isinstance(function, ast.Lambda | ast.FunctionDef):
        return False
    calls = [node for node in ast.walk(function) if isinstance(node, ast.Call)]
    names = {getattr(call.func, "id", getattr(call.func, "attr", "")) for call in calls}
    return bool(names) and not names & _SUMS


def _sides(function: ast.expr | ast.FunctionDef) -> set[str] | None:
    """Return which of ``key``, ``left`` and ``right`` a function of a joined pair looks at;
    None where that is not known.
    """
    if not isinstance(function, ast.Lambda | ast.FunctionDef) or len(function.args.args) != 1:
        return None
    name, seen = function.args.args[0].arg, set()
    inside = list(ast.walk(function))
    subscripted = {
        id(node.value)
        for node in inside
        if isinstance(node, ast.Subscript) and isinstance(node.slice, ast.Constant)
    }
    for node in inside:
        if isinstance(node, ast.Name) and node.id == name and id(node) not in subscripted:
            return None
        if not isinstance(node, ast.Subscript) or not isinstance(node.slice, ast.Constant):
            continue
        if isinstance(node.value, ast.Name) and node.value.id == name:
            if node.slice.value == 0:
                seen.add("key")
            elif id(node) not in subscripted:
                return None
        elif isinstance(node.value, ast.Subscript):
            inner = node.value
            if getattr(inner.value, "id", "") == name and getattr(inner.slice, "value", 0) == 1:
                seen.add("left" if node.slice.value == 0 else "right")
    return seen


class RowRules:
    """What the visitor of a script knows of its names, and the rules that need no more."""

    def __init__(self) -> None:
        self.problems: list[Problem] = []
        self._loops = 0
        self._values = Values()
        self._libraries, self._tables = OtherLibraries(), Tables(self._values)
        self._defined: dict[str, ast.FunctionDef] = {}
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
        is_mapped = name in ("mapValues", "map", "flatMap") and bool(node.args)
        if name in ("flatMapValues", "cache", "persist") or (
            is_mapped and _needs_all_values(self._resolved_function(node.args[0]))
        ):
            self._passed.add(id(getattr(node.func, "value", node)))
        if (
            name in ("parallelize", "createDataFrame")
            and node.args
            and self._tables.is_fetched(node.args[0])
        ):
            self._add(node, "SPK112")
        if name == "filter" and self._is_late_filter(node):
            self._add(node, "SPK113")
        if has_one_connection(node, name, self._values):
            self._add(node, "SPK115")
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

    def _resolved_function(self, argument: ast.expr) -> ast.expr | ast.FunctionDef:
        """Return the script's function that an argument names, else the argument."""
        return self._defined.get(getattr(argument, "id", ""), argument)

    def _is_late_filter(self, node: ast.Call) -> bool:
        """Return whether an RDD's filter after a join looks at the key or one side only."""
        chain = self._values.chain(node)[1:]
        chain = [method for method in chain if method not in ("cache", "persist")]
        if not node.args or chain[:1] not in (["join"], ["leftOuterJoin"], ["rightOuterJoin"]):
            return False
        sides = _sides(self._resolved_function(node.args[0]))
        allowed = {
            "join": ({"key"}, {"left"}, {"right"}, {"key", "left"}, {"key", "right"}),
            "leftOuterJoin": ({"key"}, {"left"}, {"key", "left"}),
            "rightOuterJoin": ({"key"}, {"right"}, {"key", "right"}),
        }
        return sides in allowed[chain[0]]

    def _adds_columns(self, node: ast.Assign) -> None:
        """Judge ``df = df.withColumn(…)`` in a loop."""
        if not self._loops or len(node.targets) != 1:
            return
        name = ast.unparse(node.targets[0])
        self._unites(name, node.value)
        current, calls = node.value, []
        while isinstance(current, ast.Call) and isinstance(current.func, ast.Attribute):
            calls.append(current)
            current = current.func.value
        if ast.unparse(current) == name:
            for call in calls:
                if isinstance(call.func, ast.Attribute) and call.func.attr in (
                    "withColumn",
                    "withColumnRenamed",
                ):
                    self._add(call, "SPK109", f"{call.func.attr}()")
                    return

    def _unites(self, name: str, value: ast.expr) -> None:
        """Judge ``df = df.union(…)`` in a loop."""
        if {"cache", "persist", "checkpoint", "localCheckpoint"} & set(self._values.chain(value)):
            return  # an iteration that keeps its rows
        for call in ast.walk(value):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            if call.func.attr in ("union", "unionAll", "unionByName"):
                begin = self._values.parts(call.func.value)[-1:]
                names = {ast.unparse(part) for part in (call.func.value, *call.args)}
                if name in names and not (
                    begin and getattr(begin[0], "id", "") in ("set", "frozenset")
                ):
                    self._add(call, "SPK116")

    def _is_local(self, node: ast.expr) -> bool:
        """Return whether a method is one of rows that are in Python already, or of
        another library's object.
        """
        parts = self._values.parts(node)
        begin = parts[-1] if parts else node
        is_method = isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute)
        if is_method and self._is_own(node.func.value):  # type: ignore[attr-defined]
            return True
        if any(isinstance(part, ast.Attribute) and part.attr in _FETCHES for part in parts[1:]):
            return True
        # `gc.collect()`: no module is a table.
        is_module = (
            len(parts) == 2 and isinstance(begin, ast.Name) and self._libraries.is_module(begin.id)
        )
        if not isinstance(begin, ast.Name):
            return False
        # Methods of the script's own classes.
        is_self = begin.id == "self" and len(parts) == 2
        is_class = self._libraries.makes_local(begin.id)
        return is_module or is_self or is_class or begin.id in self._libraries

    def _is_own(self, node: ast.expr) -> bool:
        """Return whether a value is an object of the script's own classes, or holds only
        such objects.
        """
        node = next((step for step in self._values.steps(node)), node)
        if isinstance(node, ast.Subscript):
            return self._is_own(node.value)
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            return node.func.attr in ("items", "values") and self._is_own(node.func.value)
        if isinstance(node, ast.Call):
            name = getattr(node.func, "id", "")
            if name in ("enumerate", "list", "reversed", "sorted", "tuple", "zip"):
                return bool(node.args) and all(map(self._is_own, node.args))
            return self._libraries.is_own(name)
        if isinstance(node, ast.ListComp | ast.SetComp | ast.GeneratorExp):
            return self._is_own(node.elt)
        values = node.values if isinstance(node, ast.Dict) else getattr(node, "elts", [])
        return bool(values) and all(map(self._is_own, values))

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
    if is_number_of_rows(right):
        operand, right, kind = right, operand, _TURNED.get(kind, kind)
    is_number = isinstance(right, ast.Constant) and type(right.value) is int
    return is_number_of_rows(operand) and is_number and (kind, right.value) in _EMPTINESS  # type: ignore[attr-defined]


def is_number_of_rows(node: ast.expr) -> bool:
    """Return whether it is ``….count()`` or ``len(….collect())``."""
    if isinstance(node, ast.Call) and getattr(node.func, "id", "") == "len" and node.args:
        return is_bare_call(node.args[0], "collect")
    return is_bare_call(node, "count")


class PartlyUsedNames:
    """Uses of names that need only a part of what the name stands for, such as tests of
    a ``count()``: where a name is used for nothing else, the rest is not needed.
    """

    def __init__(self) -> None:
        self._uses: list[tuple[ast.Name, ast.expr, str]] = []

    def used(self, name: ast.Name, use: ast.expr, code: str) -> None:
        """Note a test of whether a count is 0, or a subscript of sorted rows."""
        self._uses.append((name, use, code))

    def problems(self, module: ast.Module) -> Iterator[tuple[ast.expr, str]]:
        """Yield (use, code) of names that are used for nothing else in their function."""
        partly = {id(name) for name, _, _ in self._uses}
        for name, use, code in self._uses:
            if _uses(module, name) <= partly:
                yield use, code


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


_ACTIONS: Final = WORDS["actions"]
_ACTIONS_WITH_ARGUMENTS: Final = WORDS["actions_with_arguments"]
_SORTS: Final = WORDS["sorts"]
_KEEPS_ORDER: Final = WORDS["keeps_order"]
_WORK: Final = WORDS["work"]
_SHUFFLES: Final = WORDS["shuffles"]
_POOLS: Final = WORDS["pools"]
#: Functions of this package that return a table.
_TABLES: Final = ("accesses", "read", "table")
_DEEPEST: Final = 6_000
_WRITES: Final = WORDS["writes"]


def lint(source: bytes) -> list[Problem]:
    """Return the problems of a script, in the order of its lines, without silenced ones.

    Raises SyntaxError, ValueError.
    """
    with warnings.catch_warnings():
        # Warnings of the parser, such as of `"\d"`, concern the script's author, not this command.
        warnings.simplefilter("ignore")
        tree = ast.parse(source)
    visitor = _Visitor()
    if uses_spark(tree):
        # A chain may have hundreds of withColumn(): each is two levels, of three calls.
        limit = sys.getrecursionlimit()
        sys.setrecursionlimit(max(limit, _DEEPEST))
        try:
            visitor.visit(tree)
        finally:
            sys.setrecursionlimit(limit)
    if arrow_is_set(tree):
        visitor.problems = [problem for problem in visitor.problems if problem.code != "SPK102"]
    silenced = silenced_lines(source)
    # A decorator is met twice, once with the name of its function.
    problems = {
        (problem.line, problem.column, problem.code): problem
        for problem in sorted(visitor.problems)
    }
    return [
        problem
        for problem in problems.values()
        if not is_silenced(problem.code, problem.line, silenced)
    ]


class _Visitor(RowRules, ast.NodeVisitor):
    """Walks a script in the order of its lines."""

    def __init__(self) -> None:
        super().__init__()
        self._functions = 0
        self._udfs, self._shared = UdfNames(), SharedNames()
        self._called, self._partly = CalledFunctions(), PartlyUsedNames()
        self._function: str | None = None
        #: Names of ``pyspark.pandas``.
        self._pandas: set[str] = set()

    def visit_Module(self, node: ast.Module) -> None:
        self.generic_visit(node)
        for call, detail in self._called.problems():
            self._add(call, "SPK101", detail)
        for use, code in self._partly.problems(node):
            self._add(use, code)
        for where, detail in cached_too_early(node):
            self._add(where, "SPK114", detail)
        for where in counted_in_tasks(node):
            self._add(where, "SPK117")
        for where, detail in self._shared.problems(node):
            self._add(where, "SPK103", detail)

    def visit_FunctionDef(self, node: ast.FunctionDef) -> None:
        for decorator in node.decorator_list:
            self._udfs.defined(node.name, decorator)
            if self._udfs.takes_rows(decorator):
                self._add(decorator, "SPK102", node.name)
        self._called.defined(node.name)
        self._defined[node.name] = node
        outer, self._function = self._function, node.name
        self._in_function(node)
        self._function = outer

    visit_AsyncFunctionDef = visit_FunctionDef  # type: ignore[assignment]

    def visit_Lambda(self, node: ast.Lambda) -> None:
        self._in_function(node)

    def _in_function(self, node: ast.FunctionDef | ast.Lambda) -> None:
        loops, values = self._loops, self._values.snapshot()
        # The definition of a function in a loop is no loop.
        self._loops = 0
        self._functions += 1
        arguments = node.args
        for parameter in (
            *arguments.posonlyargs,
            *arguments.args,
            *arguments.kwonlyargs,
            arguments.vararg,
            arguments.kwarg,
        ):
            if parameter is not None:
                self._values.forget(parameter.arg)
                if (library := self._libraries.in_annotation(parameter.annotation)) is not None:
                    self._values.bind(ast.Name(parameter.arg), library)
                elif self._libraries.is_own(getattr(parameter.annotation, "id", "")):
                    instance = ast.Call(ast.Name(parameter.annotation.id), [], [])  # type: ignore[union-attr]
                    self._values.bind(ast.Name(parameter.arg), instance)
        self.generic_visit(node)
        self._functions -= 1
        self._loops = loops
        self._values.restore(values)

    def visit_ImportFrom(self, node: ast.ImportFrom) -> None:
        self._shared.imported(node, in_function=bool(self._functions))
        self._libraries.imported(node)
        self._udfs.imported(node)
        if node.module in ("cmsspark", "cmsspark.notebook"):
            self._tables.own_functions |= {
                alias.asname or alias.name for alias in node.names if alias.name in _TABLES
            }

    def visit_Import(self, node: ast.Import) -> None:
        self._libraries.imported(node)
        self._pandas |= {
            alias.asname or alias.name for alias in node.names if alias.name == "pyspark.pandas"
        }
        self._tables.own_modules |= {
            alias.asname or alias.name for alias in node.names if alias.name == "cmsspark"
        }

    def visit_ClassDef(self, node: ast.ClassDef) -> None:
        self._libraries.defined(node.name)
        self.generic_visit(node)

    def visit_Name(self, node: ast.Name) -> None:
        if isinstance(node.ctx, ast.Load):
            self._values.read(node)

    def visit_Assign(self, node: ast.Assign) -> None:
        self._adds_columns(node)
        self.generic_visit(node)
        for target in node.targets:
            self._bind(target, node.value)

    def visit_AnnAssign(self, node: ast.AnnAssign) -> None:
        self.generic_visit(node)
        if node.value is not None:
            self._bind(node.target, node.value)

    def visit_NamedExpr(self, node: ast.NamedExpr) -> None:
        self.generic_visit(node)
        self._bind(node.target, node.value)

    def visit_withitem(self, node: ast.withitem) -> None:
        self.generic_visit(node)
        if node.optional_vars is not None:
            self._bind(node.optional_vars, node.context_expr)

    def _bind(self, target: ast.expr, value: ast.expr) -> None:
        for name, part in self._values.bind(target, value):
            self._udfs.defined(name, part)

    def visit_For(self, node: ast.For) -> None:
        self.visit(node.iter)
        self._passed |= deciding_actions(node) | written_tables(node)
        # What comes out of rows in Python, or of another library, is as local as those.
        self._values.bind(node.target, node.iter)
        if self._tables.is_fetched(node.iter):
            self._tables.filled |= filled_names(node.body)
        self._in_loop([*node.body])
        for statement in node.orelse:
            self.visit(statement)

    visit_AsyncFor = visit_For  # type: ignore[assignment]

    def visit_While(self, node: ast.While) -> None:
        self._test(node.test)
        self._passed |= deciding_actions(node)
        self._in_loop([node.test, *node.body])
        for statement in node.orelse:
            self.visit(statement)

    def _in_loop(self, nodes: list[ast.AST]) -> None:
        self._loops += 1
        for node in nodes:
            self.visit(node)
        self._loops -= 1

    def _comprehension(
        self, node: ast.ListComp | ast.SetComp | ast.GeneratorExp | ast.DictComp
    ) -> None:
        values = self._values.snapshot()
        for number, generator in enumerate(node.generators):
            # The first iterable is evaluated once.
            if number:
                self._in_loop([generator.iter])
            else:
                self.visit(generator.iter)
            self._values.bind(generator.target, generator.iter)
            self._in_loop([*generator.ifs])
        self._in_loop([node.key, node.value] if isinstance(node, ast.DictComp) else [node.elt])
        self._values.restore(values)

    visit_ListComp = visit_SetComp = visit_GeneratorExp = visit_DictComp = _comprehension

    def visit_Compare(self, node: ast.Compare) -> None:
        sides = (node.left, *node.comparators)
        is_test = len(sides) == 2 and is_test_of_emptiness(sides[0], node.ops[0], sides[1])
        if is_test and not any(self._is_local(side) for side in sides):
            self._add(node, "SPK104")
        for side, opposite in (sides, sides[::-1]) if len(sides) == 2 else ():
            if isinstance(side, ast.Name) and self._is_count(call := self._values.resolved(side)):
                turned = (call, opposite) if side is sides[0] else (opposite, call)
                if is_test_of_emptiness(turned[0], node.ops[0], turned[1]):
                    self._partly.used(side, node, "SPK104")
        self.generic_visit(node)

    def _is_count(self, call: ast.expr) -> bool:
        return (
            is_bare_call(call, "count") and not self._is_grouped(call) and not self._is_local(call)
        )

    def visit_If(self, node: ast.If) -> None:
        self._test(node.test)
        self.generic_visit(node)

    visit_IfExp = visit_Assert = visit_If  # type: ignore[assignment]

    def visit_UnaryOp(self, node: ast.UnaryOp) -> None:
        if isinstance(node.op, ast.Not):
            self._test(node.operand)
        self.generic_visit(node)

    def _test(self, node: ast.expr) -> None:
        if isinstance(node, ast.BoolOp):
            for value in node.values:
                self._test(value)
        elif self._is_count(node):
            self._add(node, "SPK104")
        elif isinstance(node, ast.Name) and self._is_count(self._values.resolved(node)):
            self._partly.used(node, node, "SPK104")

    def visit_Subscript(self, node: ast.Subscript) -> None:
        # -1 is the last row: the first one of the other order.
        rows = self._values.resolved(node.value)
        is_part = isinstance(node.slice, ast.Slice | ast.Constant | ast.UnaryOp)
        if is_part and is_bare_call(rows, "collect") and self._is_sorted(rows):
            if isinstance(node.value, ast.Name):
                self._partly.used(node.value, node, "SPK107")
            else:
                self._add(node, "SPK107")
                self._passed.add(id(rows))
        self.generic_visit(node)

    def visit_Call(self, node: ast.Call) -> None:
        name = node.func.attr if isinstance(node.func, ast.Attribute) else ""
        chain = self._values.chain(node) if name else []
        if name == "append" and node.args and self._is_own(node.args[0]):
            filled = self._values.resolved(node.func.value)  # type: ignore[attr-defined]
            if isinstance(filled, ast.List) and all(map(self._is_own, filled.elts)):
                self._bind(node.func.value, ast.List(node.args))  # type: ignore[attr-defined]
        self._action(node, name, chain)
        self._called.called(
            self._function, node, in_loop=bool(self._loops) and id(node) not in self._passed
        )
        if self._udfs.takes_rows(node) or self._udfs.registers_rows(node):
            self._add(node, "SPK102")
        if isinstance(node.func, ast.Name) and node.func.id == "bool" and len(node.args) == 1:
            self._test(node.args[0])
        is_pandas = name in ("toPandas", "toArrow") or (
            name == "to_pandas" and ("pandas_api" in chain or self._begin(node) in self._pandas)
        )
        if is_pandas and not self._tables.is_small(node):
            self._add(node, "SPK106")
        self._functional(node, name or getattr(node.func, "id", ""))
        self._rows(node, name)
        # A pool runs what it is given: for each value of ``map``, or submitted in a loop.
        is_each = name in ("map", "imap", "imap_unordered", "starmap") or (
            name == "submit" and self._loops
        )
        if is_each and self._is_pool(node):
            self._called.mapped(node.args[0], node)
            if isinstance(node.args[0], ast.Lambda):
                self._in_loop([node.args[0].body])
        elif self._loops and node.args and getattr(node.func, "id", "") == "delayed":
            self._called.mapped(node.args[0], node)
        if name == "coalesce" and self._is_alone_after_work(node, chain):
            self._add(node, "SPK105")
        # DataFrame.take() and first() after orderBy() keep the first rows only; those
        # of an RDD after sortBy() do not.
        if (
            name in ("take", "first")
            and self._is_sorted(node)
            and _SORTS & set(chain) <= {"sortBy", "sortByKey"}
        ):
            self._add(node, "SPK107")
        self.generic_visit(node)

    def _functional(self, node: ast.Call, name: str) -> None:
        """Judge Python's own ``map``, ``filter`` and ``reduce``: they are loops."""
        function = node.args[0] if node.args else None
        if isinstance(node.func, ast.Name) and name in ("map", "filter") and function is not None:
            self._called.mapped(function, node)
            if isinstance(function, ast.Lambda):
                self._in_loop([function.body])
        if name == "reduce" and len(node.args) > 1 and isinstance(function, ast.Lambda):
            calls = dict(self._values.calls(function.body))
            if [self._begin(function.body)] == [item.arg for item in function.args.args[:1]]:
                for method in ("withColumn", "withColumnRenamed"):
                    if method in calls:
                        self._add(calls[method], "SPK109", f"{method}()")

    def _action(self, node: ast.Call, name: str, chain: list[str]) -> None:
        """Judge a call that may start a job."""
        has_arguments = bool(node.args or node.keywords)
        is_action = name in (_ACTIONS_WITH_ARGUMENTS if has_arguments else _ACTIONS)
        is_write = name in _WRITES and bool({"write", "writeTo"} & set(chain[1:]))
        if not (is_action or is_write) or self._is_grouped(node) or self._is_local(node):
            return
        self._called.action(self._function, f"{name}()")
        if self._loops and id(node) not in self._passed:
            self._add(node, "SPK101", f"write.{name}()" if is_write else f"{name}()")

    def _begin(self, node: ast.expr) -> str:
        """Return the name that a chain begins with."""
        parts = self._values.parts(node)
        return getattr(parts[-1], "id", "") if parts else ""

    def _is_pool(self, node: ast.Call) -> bool:
        """Return whether a method is one of a pool of threads."""
        return bool(node.args and _POOLS & {self._begin(node), *self._values.chain(node)})

    def _is_alone_after_work(self, node: ast.Call, chain: list[str]) -> bool:
        """Return whether ``coalesce(1)`` follows work on many rows that no shuffle ends."""
        values = [*node.args, *(keyword.value for keyword in node.keywords)]
        is_one = len(values) == 1 and getattr(self._values.resolved(values[0]), "value", 0) == 1
        work: set[str] = set()
        for method in chain[1:]:
            if method in _SHUFFLES:
                break
            work.add(method)
        return is_one and bool(work & _WORK) and not self._tables.is_small(node)

    def _is_grouped(self, node: ast.expr) -> bool:
        """Return whether the last method makes a table of groups, as
        ``groupBy(…).count()`` does: no action.
        """
        before = [name for name in self._values.chain(node)[1:] if name != "pivot"]
        return bool(GROUPS & set(before[:1]))

    def _is_sorted(self, node: ast.expr) -> bool:
        """Return whether the last method gets rows in the order of a sort."""
        before = [name for name in self._values.chain(node)[1:] if name not in _KEEPS_ORDER]
        return bool(_SORTS & set(before[:1]))
