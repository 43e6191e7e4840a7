"""Loops of a script: which actions decide when they end, and which functions with
actions they call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

_ENDLESS: Final = frozenset({"range", "count"})
#: Modules of functions on numbers.
_NUMERIC: Final = frozenset({"np", "numpy", "math"})
_NESTED: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def deciding_actions(loop: ast.While | ast.For | ast.AsyncFor) -> set[int]:
    """Return ``id`` of the expressions in a loop whose value decides when it ends, as
    in an iteration that converges.

    A loop over values is none, nor is an expression that uses the loop's own variable:
    that asks for each value.
    """
    return _tried_again(loop) | _deciding(loop) | _carried(loop)


def _tried_again(loop: ast.While | ast.For | ast.AsyncFor) -> set[int]:
    """Return ``id`` of the expressions that a loop only tries again: it ends as soon as one
    has worked.
    """
    passed: set[int] = set()
    for node in _nodes_of_loop(loop.body):
        if isinstance(node, ast.Try) and node.handlers:
            ends = [*node.body, *node.orelse]
            position = loop.body.index(node) if node in loop.body else None
            if position is not None and position + 1 < len(loop.body):
                ends.append(loop.body[position + 1])
            if any(isinstance(end, ast.Break | ast.Return) for end in ends):
                passed |= {id(inner) for part in node.body for inner in ast.walk(part)}
    return passed


def _carried(loop: ast.While | ast.For | ast.AsyncFor) -> set[int]:
    """Return ``id`` of the expressions of an iteration: what they give is what the next
    turn begins with.
    """
    if isinstance(loop, ast.For | ast.AsyncFor) and not _is_counted(loop.iter):
        return set()
    assigned = [
        (names, value) for node in _nodes_of_loop(loop.body) for names, value in _assignments(node)
    ]
    passed: set[int] = set()
    for targets, value in assigned:
        for call in ast.walk(value):
            if not (isinstance(call, ast.Call) and isinstance(call.func, ast.Attribute)):
                continue
            sources = _names(call)
            while more := {
                name
                for names, assigned_value in assigned
                if names & sources
                for name in _names(assigned_value) - sources
            }:
                sources |= more
            # A sum over the turns is no iteration: the call itself does not use it.
            if targets & (sources - _names(call)) or targets & _names(call):
                passed |= {id(inner) for inner in ast.walk(call)}
    return passed


def _deciding(loop: ast.While | ast.For | ast.AsyncFor) -> set[int]:
    bound: set[str] = set()
    if isinstance(loop, ast.While):
        control = _names(loop.test)
    elif _is_counted(loop.iter):
        control, bound = set(), _names(loop.target)
    else:
        return set()
    tests: list[ast.expr] = []
    steps: set[str] = set()
    for node in _nodes_of_loop(loop.body):
        if isinstance(node, ast.If) and any(
            isinstance(inner, ast.Break | ast.Return) for inner in ast.walk(node)
        ):
            control |= _names(node.test)
            tests.append(node.test)
        elif isinstance(node, ast.AugAssign):
            steps |= _names(node.target)
    tests = [test for test in tests if not _names(test) & (bound | steps)]
    return {
        id(inner)
        for value in (*_values(loop.body, control, bound), *tests)
        for inner in ast.walk(value)
    }


def _values(body: list[ast.stmt], control: set[str], bound: set[str]) -> list[ast.expr]:
    """Return the expressions that the names in ``control`` get in a loop, and those
    that these come from.
    """
    assigned = [
        (names, value) for node in _nodes_of_loop(body) for names, value in _assignments(node)
    ]
    values: list[ast.expr] = []
    while True:
        more = [value for names, value in assigned if names & control and value not in values]
        if not more:
            return [value for value in values if not _names(value) & bound]
        values += more
        # A table that an action is called on decides nothing: only plain values are followed.
        control = control | {
            name for value in more if not _calls_method(value) for name in _names(value)
        }


def _assignments(node: ast.AST) -> Iterator[tuple[set[str], ast.expr]]:
    if isinstance(node, ast.Assign):
        for target in node.targets:
            if isinstance(target, ast.Tuple) and isinstance(node.value, ast.Tuple):
                yield from (
                    (_names(part), value)
                    for part, value in zip(target.elts, node.value.elts, strict=False)
                )
            else:
                # Of `result[year] = …` the year is only read.
                base = target.value if isinstance(target, ast.Subscript) else target
                yield _names(base), node.value
    elif (
        isinstance(node, ast.AugAssign | ast.NamedExpr | ast.AnnAssign) and node.value is not None
    ):
        yield _names(node.target), node.value


def _calls_method(value: ast.expr) -> bool:
    return any(
        isinstance(node, ast.Call)
        and isinstance(node.func, ast.Attribute)
        and getattr(node.func.value, "id", "") not in _NUMERIC
        for node in ast.walk(value)
    )


def _is_counted(iterable: ast.expr) -> bool:
    function = iterable.func if isinstance(iterable, ast.Call) else None
    name = function.attr if isinstance(function, ast.Attribute) else getattr(function, "id", "")
    return name in _ENDLESS


def _names(node: ast.AST) -> set[str]:
    return {inner.id for inner in ast.walk(node) if isinstance(inner, ast.Name)}


def _nodes_of_loop(body: list[ast.stmt]) -> Iterator[ast.AST]:
    """Yield the nodes of a loop's body, without those of functions that are defined in it."""
    queue: list[ast.AST] = [*body]
    while queue:
        node = queue.pop(0)
        yield node
        if not isinstance(node, _NESTED):
            queue += ast.iter_child_nodes(node)


class CalledFunctions:
    """Functions of a script that start actions, themselves or through others, and calls
    of them in loops.
    """

    def __init__(self) -> None:
        self._actions: dict[str, str] = {}
        self._calls: dict[str, set[str]] = {}
        self._in_loops: list[tuple[ast.Call, str]] = []
        self._defined: set[str] = set()

    def defined(self, name: str) -> None:
        """Note that the script defines a function."""
        self._defined.add(name)

    def action(self, function: str | None, action: str) -> None:
        """Note an action in the body of a function."""
        if function is not None:
            self._actions.setdefault(function, action)

    def called(self, function: str | None, call: ast.Call, *, in_loop: bool) -> None:
        """Note a call in a function, or at the top of the script; of methods those of ``self``."""
        target = call.func
        if (
            isinstance(target, ast.Attribute)
            and isinstance(target.value, ast.Name)
            and target.value.id == "self"
        ):
            name = target.attr
        elif isinstance(target, ast.Name):
            name = target.id
        else:
            return
        if function is not None:
            self._calls.setdefault(function, set()).add(name)
        if in_loop:
            self._in_loops.append((call, name))

    def mapped(self, function: ast.expr, call: ast.Call) -> None:
        """Note that a pool of threads calls a function for each of many values."""
        if isinstance(function, ast.Name):
            self._in_loops.append((call, function.id))

    def problems(self) -> Iterator[tuple[ast.Call, str]]:
        """Yield (call in a loop, the function and its action)."""
        for call, name in self._in_loops:
            if name in self._defined and (action := self._find_action(name)) is not None:
                yield call, f"{name}() calls {action}"

    def _find_action(self, name: str) -> str | None:
        queue, seen = [name], {name}
        while queue:
            function = queue.pop()
            if function in self._actions:
                return self._actions[function]
            more = self._calls.get(function, set()) & self._defined - seen
            seen |= more
            queue += sorted(more)
        return None
