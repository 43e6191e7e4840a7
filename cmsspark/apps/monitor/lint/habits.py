"""Habits that show in a whole script: what is cached, what functions of tasks count, which
reads of a database have one connection.
"""

from __future__ import annotations

import ast
from collections.abc import Iterator
from typing import Final

from cmsspark.apps.monitor.lint.tables import Values

#: Methods that make a table dear: a shuffle, or Python.
_HARD: Final = frozenset(
    {
        "agg",
        "applyInPandas",
        "crossJoin",
        "distinct",
        "dropDuplicates",
        "groupBy",
        "groupByKey",
        "join",
        "leftOuterJoin",
        "orderBy",
        "reduceByKey",
        "sort",
        "sortBy",
        "sortByKey",
    }
)
_FETCHES: Final = ("collect", "first", "head", "take", "toArrow", "toPandas")
_CACHES: Final = ("cache", "persist", "checkpoint", "localCheckpoint")
#: Methods whose functions run again when a task does: what they count counts twice.
_TRANSFORMS: Final = frozenset(
    {
        "filter",
        "flatMap",
        "flatMapValues",
        "map",
        "mapPartitions",
        *("mapPartitionsWithIndex", "mapInPandas", "mapInArrow", "applyInPandas"),
        "mapValues",
        "reduceByKey",
    }
)
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
            source = _begin(assigns[0].value)
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
    """Return the methods of a chain, the last one first."""
    names = []
    while isinstance(node, ast.Call | ast.Attribute):
        if isinstance(node, ast.Attribute):
            names.append(node.attr)
        node = node.func if isinstance(node, ast.Call) else node.value
    return names


def _begin(node: ast.expr) -> str:
    while isinstance(node, ast.Call | ast.Attribute):
        node = node.func if isinstance(node, ast.Call) else node.value
    return node.id if isinstance(node, ast.Name) else ""


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


_DIVIDES: Final = ("numPartitions", "partitionColumn", "predicates", "column")


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
    from cmsspark.apps.monitor.lint.tables import SMALL_QUERY, sql_text

    return any(
        SMALL_QUERY.search(sql_text(values.resolved(argument_or_call)).strip("() "))
        for argument_or_call in arguments
    )
