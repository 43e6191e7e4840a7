"""Values of a query's rows as text and as JSON, and names of its columns, each once."""

from __future__ import annotations

import json
import math
from collections.abc import Sequence
from datetime import date, datetime, time, timedelta
from decimal import Decimal
from typing import Any, Final

#: Numbers from here on are written with an exponent: their digits say more than there is.
_LARGE: Final = 1e15
#: The nanoseconds of a second.
_NANO: Final = 1_000_000_000
#: The days and microseconds of DuckDB's ``infinity``.
_INFINITE: Final = (2**31 - 1, 2**63 - 1)


def distinct(names: Sequence[str]) -> list[str]:
    """Make column names unique by appending ``_1``, ``_2``: JSON, Parquet and dicts
    have each name once.

    Example:
        >>> distinct(["a", "a", "b"])
        ['a', 'a_1', 'b']
    """
    used = set(names)
    unique: list[str] = []
    for name in names:
        chosen, number = name, 0
        while chosen in unique or (number and chosen in used):
            number += 1
            chosen = f"{name}_{number}"
        unique.append(chosen)
    return unique


def to_values(column: Any) -> list[Any]:
    """Return the values of an Arrow column in Python; days and times that Python cannot
    hold are texts.

    DuckDB has days up to the year 5,881,580, and ``infinity``.
    """
    try:
        return list(column.to_pylist())
    except (OverflowError, ValueError):
        return [_python_value(value) for value in column]


def _python_value(value: Any) -> Any:
    """Return the value of an Arrow scalar."""
    try:
        return value.as_py()
    except (OverflowError, ValueError):
        inner = getattr(value, "value", None)
        if not isinstance(inner, int):
            return "a value with a day outside of the years 1 to 9999"
        is_infinite = abs(inner) in _INFINITE
        return (
            f"{'-' if inner < 0 else ''}infinity"
            if is_infinite
            else f"outside of the years 1 to 9999 ({inner})"
        )


def to_text(value: object) -> str:
    """Return a value that is there, as CSV has it."""
    if isinstance(value, bool):
        return "true" if value else "false"
    if isinstance(value, dict | list):
        return json.dumps(to_json(value), ensure_ascii=False)
    if isinstance(value, bytes):
        return value.hex()
    return _interval(value) if hasattr(value, "nanoseconds") else str(value)


def to_cell(value: object) -> object:
    """Return a value as a cell of a table: whole numbers without loss, others to four
    digits or one decimal.

    Example:
        >>> to_cell(0.15456), to_cell(1399.09), to_cell(12)
        ('0.1546', '1,399.1', 12)
    """
    if value is None or (isinstance(value, int) and not isinstance(value, bool)):
        return value
    if isinstance(value, Decimal):
        return (
            int(value)
            if value == value.to_integral_value() and value.as_tuple().exponent == 0
            else f"{value:,}"
        )
    if isinstance(value, float):
        return (
            f"{value:.4g}"
            if abs(value) < 1000
            else f"{value:,.1f}"
            if abs(value) < _LARGE
            else f"{value:g}"
        )
    return to_text(value)


def to_json(value: object) -> Any:
    """Return a value as JSON has it: what is no finite number is null, decimals are
    numbers, anything else is text.
    """
    match value:
        case None | bool() | int() | str():
            return value
        case float():
            return value if math.isfinite(value) else None
        case Decimal():
            return int(value) if value == value.to_integral_value() else float(value)
        case dict():
            return {str(key): to_json(inner) for key, inner in value.items()}
        case list() | tuple() if not hasattr(value, "nanoseconds"):
            return [to_json(inner) for inner in value]
        case date() | datetime() | time():
            return value.isoformat()
    return to_text(value)


def _interval(value: Any) -> str:
    """Return an interval, such as ``1 month 2 days 0:00:03``."""
    parts = [
        f"{count} {unit}{'s' if abs(count) != 1 else ''}"
        for count, unit in ((value.months, "month"), (value.days, "day"))
        if count
    ]
    if value.nanoseconds or not parts:
        sign = "-" if value.nanoseconds < 0 else ""
        parts.append(f"{sign}{timedelta(seconds=abs(value.nanoseconds) / _NANO)}")
    return " ".join(parts)
