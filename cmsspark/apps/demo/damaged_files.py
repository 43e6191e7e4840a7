"""Lines that are no records: what cut transfers and confused producers leave in a log."""

from __future__ import annotations

from collections.abc import Sequence

from cmsspark.apps.demo.activity import MALFORMED


def break_lines(lines: list[str], bins: Sequence[int]) -> list[str]:
    """``lines`` with those whose bin is malformed made so, each kind of damage in turn."""
    broken = 0
    for i, number in enumerate(bins):
        if number == MALFORMED:
            lines[i] = _break(lines[i], broken)
            broken += 1
    return lines


def _break(line: str, kind: int) -> str:
    match kind % 5:
        case 0:
            return line[: len(line) * 3 // 5]
        case 1:
            return line + line
        case 2:
            return "ERROR 500 Internal Server Error"
        case 3:
            return '{"data":null,' + line[line.index('"metadata":') :]
        case _:
            return line.replace('"metadata":{', '"metadata":[{', 1)
