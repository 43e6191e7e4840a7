"""What the names of a script stand for, and the methods of a chain, such as ``df.groupBy("a").count()``."""

from __future__ import annotations

import ast
from typing import Final

#: A longer chain is followed up to here; a method is two steps.
_MOST_STEPS: Final = 1_000


class Values:
    """The last value that each name was given in the function that is walked. Names are followed as of their line."""

    def __init__(self) -> None:
        self._values: dict[str, ast.expr] = {}
        #: Names as they were read, by ``id`` of the node: ``df = df.limit(5)`` has the former ``df`` on its right.
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
        """Give a target its value, and the names of a tuple theirs, where those are known. Returns (name, value)."""
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
            and not any(isinstance(element, ast.Starred) for element in (*value.elts, *target.elts))
        )
        values = value.elts if is_each else [value] * len(target.elts)  # type: ignore[attr-defined]
        return [pair for element, part in zip(target.elts, values, strict=True) for pair in self.bind(element, part)]

    def resolved(self, node: ast.expr) -> ast.expr:
        """Return what a name stands for; any other expression as it is."""
        if not isinstance(node, ast.Name):
            return node
        return self._read.get(id(node)) or self._values.get(node.id, node)

    def chain(self, node: ast.expr) -> list[str]:
        """Names of the methods of a chain, the last one first; names of variables are followed."""
        return [part.attr for part in self.parts(node) if isinstance(part, ast.Attribute)]

    def parts(self, node: ast.expr) -> list[ast.expr]:
        """Return the attributes of a chain, the last one first, and what it begins with; variables are followed."""
        parts: list[ast.expr] = []
        current = node
        for _ in range(_MOST_STEPS):
            if isinstance(current, ast.Call):
                current = current.func
            elif isinstance(current, ast.Attribute):
                parts.append(current)
                current = current.value
            elif isinstance(current, ast.Subscript | ast.Await | ast.Starred):
                current = current.value
            elif (value := self.resolved(current)) is not current:
                current = value
            else:
                parts.append(current)
                break
        return parts

    def query(self, node: ast.expr) -> str:
        """Return the text of the SQL that a chain begins with, where it is a literal; ``0`` for what an f-string puts
        in.
        """
        current = node
        for _ in range(_MOST_STEPS):
            if isinstance(current, ast.Call) and isinstance(current.func, ast.Attribute):
                if current.func.attr == "sql" and current.args:
                    return _text(self.resolved(current.args[0]))
                current = current.func.value
            elif (value := self.resolved(current)) is not current:
                current = value
            else:
                break
        return ""


def _text(node: ast.expr) -> str:
    if isinstance(node, ast.JoinedStr):
        return "".join(str(part.value) if isinstance(part, ast.Constant) else "0" for part in node.values)
    return str(node.value) if isinstance(node, ast.Constant) else ""
