"""Habits that show in a whole script: what is cached, what functions of tasks count, which
reads of a database have one connection; which actions decide when a loop ends, and which
functions with actions loops call.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from cmsspark.apps.monitor.lint.names import Values
from cmsspark.apps.monitor.lint.rules import WORDS

_HARD: Final = WORDS["hard"]
_FETCHES: Final = WORDS["fetches"]
_CACHES: Final = WORDS["caches"]
_TRANSFORMS: Final = WORDS["transforms"]
_SCOPES: Final = (ast.FunctionDef, ast.AsyncFunctionDef, ast.Lambda, ast.ClassDef)


def scopes(tree: ast.Module) -> Iterator[list[ast.AST]]:
    """Yield the nodes of the script and of each function, without those of functions
    inside of it.
    """
    queue: list[ast.AST] = [tree]
    while queue:
        scope = queue.pop()
        nodes: list[ast.AST] = []
        inside = list(ast.iter_child_nodes(scope))
        while inside:
            node = inside.pop(0)
            nodes.append(node)
            if isinstance(node, _SCOPES):
                queue.append(node)
            else:
                inside += ast.iter_child_nodes(node)
        yield nodes


def cached_too_early(tree: ast.Module) -> Iterator[tuple[ast.AST, str]]:
    """Yield (where, detail) of a cache of which only one table is made by a shuffle, that
    several outputs then compute again.
    """
    for nodes in scopes(tree):
        values: dict[str, list[ast.Assign]] = {}
        uses: dict[str, list[ast.Name]] = {}
        for node in nodes:
            if isinstance(node, ast.Assign) and len(node.targets) == 1:
                if isinstance(node.targets[0], ast.Name):
                    values.setdefault(node.targets[0].id, []).append(node)
            elif isinstance(node, ast.Name) and isinstance(node.ctx, ast.Load):
                uses.setdefault(node.id, []).append(node)
        statements = [
            (node.value.func.value.id, node.value.func.attr)
            for node in nodes
            if isinstance(node, ast.Expr)
            and isinstance(node.value, ast.Call)
            and isinstance(node.value.func, ast.Attribute)
            and isinstance(node.value.func.value, ast.Name)
        ]
        cached_later = {name for name, method in statements if method in _CACHES}
        bare = [name for name, method in statements if method in (*_CACHES, "unpersist", "count")]
        for name, assigns in values.items():
            if len(assigns) != 1:
                continue
            chain = _methods(assigns[0].value)
            source = getattr(Values().parts(assigns[0].value)[-1], "id", "")
            # A dear table that is made of a cached one, is not cached, and is read often.
            if chain[:1] and chain[0] in _FETCHES:
                continue  # rows in Python
            if not _HARD & set(chain) or set(_CACHES) & set(chain) or name in cached_later:
                continue
            before = values.get(source, [])
            if len(before) != 1 or len(uses.get(name, [])) < 2:
                continue
            cached = _methods(before[0].value)
            other_uses = len(uses.get(source, [])) - 1 - bare.count(source)
            is_cached = set(_CACHES) & set(cached[:1]) or source in cached_later
            if is_cached and not _HARD & set(cached) and other_uses == 0:
                yield before[0].value, f"{name} is computed again for each output"


def _methods(node: ast.expr) -> list[str]:
    """Return the methods of a chain as it is written, the last one first."""
    return Values().chain(node)


def filled_names(body: list[ast.stmt]) -> set[str]:
    """Return the names of lists, sets and dictionaries that a loop's body adds to."""
    names = set()
    for statement in body:
        for node in ast.walk(statement):
            target: ast.expr | None = None
            if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
                target = node.func.value if node.func.attr in ("append", "add", "extend") else None
            elif isinstance(node, ast.AugAssign):
                target = node.target
            elif isinstance(node, ast.Assign) and isinstance(node.targets[0], ast.Subscript):
                target = node.targets[0].value
            if isinstance(target, ast.Name):
                names.add(target.id)
    return names


def written_tables(loop: ast.For | ast.AsyncFor) -> set[int]:
    """Return ``id`` of the calls that write the tables over which a loop goes: each is an
    output of its own.
    """
    names = {node.id for node in ast.walk(loop.target) if isinstance(node, ast.Name)}
    written = set()
    for node in ast.walk(loop):
        for step in Values().steps(node) if isinstance(node, ast.Call) else ():
            if isinstance(step, ast.Attribute) and step.attr in ("write", "writeTo"):
                if getattr(step.value, "id", "") in names:
                    written.add(id(node))
                break
    return written


def counted_in_tasks(tree: ast.Module) -> Iterator[ast.AST]:
    """Yield where a function of a transformation adds to an accumulator."""
    accumulators = {
        target.id
        for node in ast.walk(tree)
        if isinstance(node, ast.Assign)
        and isinstance(node.value, ast.Call)
        and _methods(node.value)[:1] == ["accumulator"]
        for target in node.targets
        if isinstance(target, ast.Name)
    }
    if not accumulators:
        return
    functions = {node.name: node for node in ast.walk(tree) if isinstance(node, ast.FunctionDef)}
    bodies: list[ast.AST] = []
    for node in ast.walk(tree):
        if isinstance(node, ast.Call) and isinstance(node.func, ast.Attribute):
            for argument in node.args if node.func.attr in _TRANSFORMS else ():
                if isinstance(argument, ast.Lambda):
                    bodies.append(argument)
                elif isinstance(argument, ast.Name) and argument.id in functions:
                    bodies.append(functions[argument.id])
    seen: set[int] = set()
    while bodies:
        body = bodies.pop(0)
        if id(body) in seen:
            continue
        seen.add(id(body))
        for node in ast.walk(body):
            if isinstance(node, ast.AugAssign) and getattr(node.target, "id", "") in accumulators:
                yield node
            elif isinstance(node, ast.Call):
                function = node.func
                if isinstance(function, ast.Name) and function.id in functions:
                    bodies.append(functions[function.id])
                elif getattr(function, "attr", "") == "add" and (
                    getattr(getattr(function, "value", None), "id", "") in accumulators
                ):
                    yield node


_DIVIDES: Final = WORDS["divides"]


def has_one_connection(call: ast.Call, name: str, values: Values) -> bool:
    """Return whether a call reads a table of a database through one connection."""
    calls = list(values.calls(call))
    names = {method for method, _ in calls}
    if "read" not in values.chain(call):
        return False
    if name == "jdbc":
        is_divided = any(keyword.arg in (*_DIVIDES, None) for keyword in call.keywords)
        return not is_divided and len(call.args) < 4 and not _is_query(call.args, values)
    if name != "load" or "format" not in names:
        return False
    formats = [
        argument_or_call.args[0]
        for method, argument_or_call in calls
        if method == "format" and argument_or_call.args
    ]
    if not any(getattr(form, "value", "") == "jdbc" for form in formats):
        return False
    for method, argument_or_call in calls:
        if method not in ("option", "options"):
            continue
        option_names = {keyword.arg for keyword in argument_or_call.keywords}
        if method == "option" and argument_or_call.args:
            option_names.add(getattr(argument_or_call.args[0], "value", None))
            if getattr(argument_or_call.args[0], "value", "") in (
                "dbtable",
                "query",
            ) and _is_query(argument_or_call.args[1:], values):
                return False
        for keyword in argument_or_call.keywords:
            if keyword.arg is None:
                mapping = values.resolved(keyword.value)
                if not isinstance(mapping, ast.Dict):
                    return False  # not known
                option_names |= {getattr(key, "value", None) for key in mapping.keys}
        if option_names & {*_DIVIDES}:
            return False
    return True


def _is_query(arguments: list[ast.expr], values: Values) -> bool:
    """Return whether a table is a query that the database makes small."""
    from cmsspark.apps.monitor.lint.names import SMALL_QUERY, sql_text

    return any(
        SMALL_QUERY.search(sql_text(values.resolved(argument_or_call)).strip("() "))
        for argument_or_call in arguments
    )


_ENDLESS: Final = WORDS["endless"]
_NUMERIC: Final = WORDS["numeric"]


def deciding_actions(loop: ast.While | ast.For | ast.AsyncFor) -> set[int]:
    """Return ``id`` of the expressions in a loop whose value decides when it ends, as
    in an iteration that converges.

    A loop over values is none, nor is an expression that uses the loop's own variable:
    that asks for each value.
    """
    # What a loop only tries again: it ends as soon as one has worked.
    passed: set[int] = set()
    for node in _nodes_of_loop(loop.body):
        if isinstance(node, ast.Try) and node.handlers:
            ends = [*node.body, *node.orelse]
            position = loop.body.index(node) if node in loop.body else None
            if position is not None and position + 1 < len(loop.body):
                ends.append(loop.body[position + 1])
            if any(isinstance(end, ast.Break | ast.Return) for end in ends):
                passed |= {id(inner) for part in node.body for inner in ast.walk(part)}
    return passed | _deciding(loop) | _carried(loop)


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
        if not isinstance(node, _SCOPES):
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
