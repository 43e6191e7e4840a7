"""Expressions of event definitions: a part of Python's syntax over arrays of events,
parsed once and evaluated safely.

An expression has names, numbers, ``x.column``, ``x[mask]``, arithmetic, comparisons,
``& | ~`` (also ``and or not``), ``a if b else c`` and calls of functions. Nothing else
of Python can be reached from it.
"""

from __future__ import annotations

import ast
import operator
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Any, Final

from cmsspark.base.errors import DataError

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
