"""Expressions of event definitions: a part of Python's syntax over arrays of events,
parsed once and evaluated safely.

An expression has names, numbers, ``x.column``, ``x[mask]``, arithmetic, comparisons,
``& | ~`` (also ``and or not``), ``a if b else c`` and calls of functions. Nothing else
of Python can be reached from it.
"""

from __future__ import annotations

import ast
import math
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from functools import cache
from typing import Any, Final

import numpy as np

from cmsspark.base.arrays import jit
from cmsspark.base.errors import DataError, SettingsError

_BINARY: Final[Mapping[type[ast.operator], Callable[[Any, Any], Any]]] = {
    # Two conditions add up to 2, as in Python; numpy would take "or".
    ast.Add: lambda x, y: 0 + x + y,
    ast.Sub: operator.sub,
    ast.Mult: operator.mul,
    ast.Div: operator.truediv,
    # Whole numbers would overflow, and those of Python grow without end: 9 ** 9 ** 9.
    ast.Pow: lambda x, y: (1.0 * x) ** y,
    ast.Mod: operator.mod,
    ast.FloorDiv: operator.floordiv,
    ast.BitAnd: operator.and_,
    ast.BitOr: operator.or_,
    ast.BitXor: operator.xor,
}
_COMPARE: Final[Mapping[type[ast.cmpop], Callable[[Any, Any], Any]]] = {
    ast.Lt: operator.lt,
    ast.LtE: operator.le,
    ast.Gt: operator.gt,
    ast.GtE: operator.ge,
    ast.Eq: operator.eq,
    ast.NotEq: operator.ne,
}
#: Letters of an expression, and levels of its nesting: Python's own parser has no limit
#: that is safe.
MAX_LETTERS: Final = 2_000
MAX_DEPTH: Final = 60
Functions = Mapping[str, Callable[..., Any]]


class ExpressionError(ValueError):
    """A text is no expression, or names what there is not."""


@dataclass(frozen=True)
class Expression:
    """A parsed expression. ``names``: the names that it reads, without functions."""

    text: str
    names: frozenset[str] = field(compare=False)
    functions: frozenset[str] = field(compare=False)

    @classmethod
    def parse(cls, text: str) -> Expression:
        """Parse a text. Raises ExpressionError that says what is wrong with it."""
        tree = _tree(text)
        calls = frozenset(node.func.id for node in ast.walk(tree) if isinstance(node, ast.Call))  # type: ignore[attr-defined]
        return cls(text, frozenset(_names(tree)), calls)

    def columns(self, columns_of: Mapping[str, frozenset[str] | None]) -> frozenset[str] | None:
        """Return the columns of the objects that it is, by those of the names in
        ``columns_of``; an empty set for numbers, None if it cannot be told.
        """
        return _columns(_tree(self.text), columns_of)

    def lacking_columns(
        self, columns_of: Mapping[str, frozenset[str] | None]
    ) -> Iterator[tuple[str, str, frozenset[str]]]:
        """Yield each ``x.column`` that is not there, as x, the column and the columns that
        x has; none for numbers.
        """
        for node in ast.walk(_tree(self.text)):
            if isinstance(node, ast.Attribute):
                columns = _columns(node.value, columns_of)
                if columns is not None and node.attr not in columns:
                    yield ast.unparse(node.value), node.attr, columns

    def evaluate(self, values: Mapping[str, Any], functions: Functions) -> Any:
        """Return the value. Raises DataError (65) where arrays do not fit each other."""
        try:
            return _value(_tree(self.text), values, functions)
        except DataError:
            raise
        except (
            Exception
        ) as error:  # awkward has many kinds; all of them mean that the arrays do not fit
            text = str(error).strip().partition("\n")[0] or type(error).__name__
            raise DataError(
                "an expression of the definition does not fit the events",
                where=self.text,
                found=text[:200],
            ) from None


def _tree(text: str) -> ast.expr:
    if len(text) > MAX_LETTERS:
        raise ExpressionError(f"it has {len(text):,} letters, more than {MAX_LETTERS:,}")
    try:
        tree = ast.parse(text.strip(), mode="eval").body
        _check(tree, 0)
    except SyntaxError as error:
        raise ExpressionError(f"it is not an expression: {error.msg}") from None
    except (RecursionError, MemoryError):
        raise ExpressionError("it is nested too deeply") from None
    return tree


def _check(node: ast.expr, depth: int) -> None:
    """Raises ExpressionError for syntax that expressions do not have."""
    if depth > MAX_DEPTH:
        raise ExpressionError("it is nested too deeply")
    if isinstance(node, ast.Constant):
        if not isinstance(node.value, bool | int | float) or abs(node.value) > 1e300:
            raise ExpressionError(f"{ast.unparse(node)} is not a number")
    elif isinstance(node, ast.Call):
        if not isinstance(node.func, ast.Name) or node.keywords:
            raise ExpressionError(f"{ast.unparse(node)} is not a call of a function with values")
    elif isinstance(node, ast.BinOp | ast.UnaryOp | ast.Compare | ast.BoolOp):
        operators = node.ops if isinstance(node, ast.Compare) else [node.op]
        for operator in operators:
            if type(operator) not in (
                *_BINARY,
                *_COMPARE,
                ast.USub,
                ast.UAdd,
                ast.Invert,
                ast.Not,
                ast.And,
                ast.Or,
            ):
                raise ExpressionError(
                    f"{ast.unparse(node)} has an operator that expressions do not have"
                )
    elif not isinstance(node, ast.Name | ast.Attribute | ast.Subscript | ast.IfExp):
        raise ExpressionError(f"{ast.unparse(node)} is not a number, name, comparison or call")
    for child in _operands(node):
        _check(child, depth + 1)


def _operands(node: ast.expr) -> Iterable[ast.expr]:
    """Return the expressions that an expression is made of, without the name of a function."""
    if isinstance(node, ast.Call):
        return node.args
    return [child for child in ast.iter_child_nodes(node) if isinstance(child, ast.expr)]


def _names(node: ast.expr) -> Iterator[str]:
    if isinstance(node, ast.Name):
        yield node.id
    for child in _operands(node):
        yield from _names(child)


def _columns(
    node: ast.expr, columns_of: Mapping[str, frozenset[str] | None]
) -> frozenset[str] | None:
    if isinstance(node, ast.Name):
        return columns_of.get(node.id)
    if isinstance(node, ast.Subscript):
        return _columns(node.value, columns_of)
    if isinstance(node, ast.Attribute | ast.Constant | ast.Compare):
        return frozenset()
    if isinstance(node, ast.Call) and isinstance(node.func, ast.Name):
        parts = [_columns(part, columns_of) for part in node.args]
        if node.func.id == "by_falling" and parts:
            return parts[0]
        if node.func.id == "concat" and parts and None not in parts:
            return frozenset.intersection(*(part for part in parts if part is not None))
    return None


def _value(node: ast.expr, values: Mapping[str, Any], functions: Functions) -> Any:
    def evaluate(child: ast.expr) -> Any:
        return _value(child, values, functions)

    if isinstance(node, ast.Constant):
        return node.value
    if isinstance(node, ast.Name):
        return values[node.id]
    if isinstance(node, ast.Attribute):
        return _column(evaluate(node.value), node)
    if isinstance(node, ast.Subscript):
        return evaluate(node.value)[_mask(evaluate(node.slice), node)]
    if isinstance(node, ast.Call):
        return functions[node.func.id](*map(evaluate, node.args))  # type: ignore[attr-defined]
    if isinstance(node, ast.BinOp):
        return _BINARY[type(node.op)](evaluate(node.left), evaluate(node.right))
    if isinstance(node, ast.UnaryOp):
        operand = evaluate(node.operand)
        if isinstance(node.op, ast.Invert | ast.Not):
            return functions["not"](operand)
        return -operand if isinstance(node.op, ast.USub) else operand
    if isinstance(node, ast.IfExp):
        return functions["where"](evaluate(node.test), evaluate(node.body), evaluate(node.orelse))
    return _comparison(node, evaluate) if isinstance(node, ast.Compare) else _logic(node, evaluate)


def _column(record: Any, node: ast.Attribute) -> Any:
    if node.attr not in (names := getattr(record, "fields", [])):
        raise DataError(
            f"{ast.unparse(node.value)} has no column {node.attr}",
            found=", ".join(names) or "numbers",
            next_step="correct the definition",
        )
    return record[node.attr]


def _mask(mask: Any, node: ast.Subscript) -> Any:
    if not str(getattr(mask, "type", "")).endswith("bool"):
        raise DataError(
            f"what stands in [ ] of {ast.unparse(node)} is a comparison",
            found=str(getattr(mask, "type", mask)),
            next_step="nth(x, 0) is the first of a list",
        )
    return mask


def _comparison(node: ast.Compare, evaluate: Callable[[ast.expr], Any]) -> Any:
    value, result = evaluate(node.left), None
    for comparison, child in zip(node.ops, node.comparators, strict=True):
        right = evaluate(child)
        step = _COMPARE[type(comparison)](value, right)
        result = step if result is None else result & step
        value = right
    return result


def _logic(node: ast.expr, evaluate: Callable[[ast.expr], Any]) -> Any:
    assert isinstance(node, ast.BoolOp)
    result = evaluate(node.values[0])
    for child in node.values[1:]:
        result = (
            result & evaluate(child) if isinstance(node.op, ast.And) else result | evaluate(child)
        )
    return result


# Functions that expressions of event definitions can call: built-in ones, and a user's
# own, compiled.

Array = Any


def _reduced(name: str) -> Callable[[Array], Array]:
    def reduce(values: Array) -> Array:
        import awkward as ak

        return getattr(ak, name)(values, axis=1)

    return reduce


def _count(values: Array) -> Array:
    """Return the number of entries of each event."""
    import awkward as ak

    return ak.num(values, axis=1)


def _nth(values: Array, number: int, default: Array = math.nan) -> Array:
    """Return the entry of that number of each event; ``default`` where there is none."""
    import awkward as ak

    padded = ak.pad_none(values, number + 1, axis=1)[:, number]
    return (
        ak.fill_none(padded, default)
        if np.isscalar(default)
        else ak.where(ak.is_none(padded), default, padded)
    )


def _extreme(name: str) -> Callable[..., Array]:
    def extreme(values: Array, default: float = math.nan) -> Array:
        import awkward as ak

        return ak.fill_none(getattr(ak, name)(values, axis=1, mask_identity=True), default)

    return extreme


def delta_phi(phi: Array, reference: Array) -> Array:
    """Return the difference of angles, in (−π, π]."""
    difference = phi - reference
    return difference - 2 * np.pi * np.ceil((difference - np.pi) / (2 * np.pi))


def _delta_r(eta: Array, phi: Array, other_eta: Array, other_phi: Array) -> Array:
    return np.hypot(eta - other_eta, delta_phi(phi, other_phi))


def _is_near(objects: Array, references: Array, distance: float) -> Array:
    """Return for each object whether one of the others is nearer than that ΔR."""
    import awkward as ak

    mine, theirs = ak.unzip(ak.cartesian([objects, references], axis=1, nested=True))
    return ak.any(_delta_r(mine.eta, mine.phi, theirs.eta, theirs.phi) < distance, axis=-1)


def _concat(*lists: Array) -> Array:
    """Return the objects of all lists of each event, one list after another, with the
    columns that all of them have.
    """
    import awkward as ak

    shared = [name for name in lists[0].fields if all(name in records.fields for records in lists)]
    return ak.zip(
        {name: ak.concatenate([records[name] for records in lists], axis=1) for name in shared}
    )


def _by_falling(objects: Array, key: Array) -> Array:
    """Return the objects of each event by falling key; those of equal keys keep their order."""
    import awkward as ak

    return objects[ak.argsort(-key, axis=1, stable=True)]


def _where(condition: Array, value: Array, otherwise: Array) -> Array:
    import awkward as ak

    return ak.where(condition, value, otherwise)


BUILT_IN: Final[Mapping[str, Callable[..., Any]]] = {
    "sqrt": np.sqrt,
    "exp": np.exp,
    "log": np.log,
    "sin": np.sin,
    "cos": np.cos,
    "tan": np.tan,
    "sinh": np.sinh,
    "cosh": np.cosh,
    "tanh": np.tanh,
    "hypot": np.hypot,
    "abs": np.abs,
    "min": np.minimum,
    "max": np.maximum,
    "atan2": np.arctan2,
    "sum": _reduced("sum"),
    "any": _reduced("any"),
    "all": _reduced("all"),
    "count": _count,
    "largest": _extreme("max"),
    "smallest": _extreme("min"),
    "nth": _nth,
    "where": _where,
    "not": np.logical_not,
    "delta_phi": delta_phi,
    "delta_r": _delta_r,
    "is_near": _is_near,
    "concat": _concat,
    "by_falling": _by_falling,
}


def own_functions(source: str, where: str) -> dict[str, Callable[..., Any]]:
    """Return the functions of a user's module, each compiled and applied to one event
    after another.

    A function takes for each argument the values of one event, an array of a list and a
    number otherwise, and returns a number. Raises SettingsError (78) where the module
    cannot be executed.
    """
    return {name: _PerEvent(name, function) for name, function in _module(source, where).items()}


@cache
def _module(source: str, where: str) -> dict[str, Callable[..., Any]]:
    names: dict[str, Any] = {"__name__": "event_functions", "math": math, "np": np}
    try:
        exec(compile(source, where, "exec"), names)  # noqa: S102  # the user's own code, which they named
    except Exception as error:
        raise SettingsError(
            "the functions of a definition cannot be loaded",
            where=where,
            found=f"{type(error).__name__}: {error}",
        ) from None
    mine = {
        name: value
        for name, value in names.items()
        if callable(value) and not name.startswith("_")
    }
    # Functions call each other: each is compiled under its own name.
    compiled = {
        name: jit(value, cache=False)
        for name, value in mine.items()
        if getattr(value, "__module__", None) == "event_functions" and hasattr(value, "__code__")
    }
    names.update(compiled)
    return compiled


class _PerEvent:
    """Applies a compiled function to each event."""

    def __init__(self, name: str, function: Callable[..., Any]) -> None:
        self.name, self.function = name, function

    def __call__(self, *arguments: Array) -> Array:
        import awkward as ak

        length = max((len(value) for value in arguments if not np.isscalar(value)), default=0)
        kinds, flat = [], []
        for value in arguments:
            array = ak.Array(np.broadcast_to(value, (length,)) if np.isscalar(value) else value)
            if array.fields or array.ndim > 2:
                raise DataError(
                    f"{self.name} takes columns such as jet.pt", found=str(array.type)[:100]
                )
            counts = ak.num(array) if array.ndim == 2 else np.ones(length)
            kinds.append(array.ndim == 2)
            values = ak.to_numpy(ak.flatten(array) if array.ndim == 2 else array).astype(
                np.float64
            )
            flat += [
                values,
                np.concatenate(([0], np.cumsum(ak.to_numpy(counts)))).astype(np.int64),
            ]
        results = np.zeros(length)
        try:
            _driver(tuple(kinds))(self.function, results, *flat)
        except Exception as error:  # numba's own, and those of the function
            text = str(error).strip().splitlines()
            raise DataError(
                f"the function {self.name} of the definition fails",
                found=(text[0] if text else repr(error))[:200],
                next_step="a function takes arrays and numbers of one event, and returns a number",
            ) from None
        return ak.Array(results)


@cache
def _driver(kinds: tuple[bool, ...]) -> Callable[..., None]:
    """Return the loop over events for arguments that are lists or numbers. Numba needs
    their number in the source.
    """
    names = ", ".join(f"v{i}, o{i}" for i in range(len(kinds)))
    values = ", ".join(
        f"v{i}[o{i}[event]:o{i}[event + 1]]" if is_list else f"v{i}[event]"
        for i, is_list in enumerate(kinds)
    )
    source = (
        f"def run(function, results{', ' if names else ''}{names}):\n"
        f"    for event in range(len(results)):\n        results[event] = function({values})\n"
    )
    scope: dict[str, Any] = {}
    exec(source, scope)  # noqa: S102  # made of numbers only
    driver: Callable[..., None] = jit(scope["run"], cache=False)
    return driver
