"""Sizes in bytes as people write them."""

from __future__ import annotations

import re
from typing import Final

from cmsspark.base.errors import UsageError

_UNITS: Final = "KMGTP"
_SIZE: Final = re.compile(
    r"(?P<number>\d+(\.\d+)?) ?(?P<unit>[KMGTP]?)(?P<binary>i?)B?", re.IGNORECASE
)


def parse_bytes(text: str, next_step: str = "write it as 500GB, 1.5TB or 3PB") -> int:
    """Return the bytes of ``500GB``, ``1.5TB``, ``2TiB`` or ``1000``. Raises UsageError (2).

    Example:
        >>> parse_bytes("1.5TB"), parse_bytes("2KiB")
        (1500000000000, 2048)
    """
    match = _SIZE.fullmatch(text.strip())
    if match is None:
        raise UsageError(f"{text!r} is not a size", next_step=next_step)
    base = 1024 if match["binary"] else 1000
    power = _UNITS.index(match["unit"].upper()) + 1 if match["unit"] else 0
    size = float(match["number"]) * base**power
    if size >= 2**63:
        raise UsageError(f"{text!r} is beyond 64 bits", next_step=next_step)
    return int(size)
