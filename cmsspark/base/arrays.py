"""Kinds of numpy arrays, for annotations."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

import numpy as np
import numpy.typing as npt

from cmsspark.base.errors import DataError

#: Any values; docstrings say which, and the meaning of the dimensions.
Array = np.ndarray[Any, Any]
Ints = np.ndarray[Any, np.dtype[np.int32]]
Longs = np.ndarray[Any, np.dtype[np.int64]]
Flags = np.ndarray[Any, np.dtype[np.uint8]]
Floats = np.ndarray[Any, np.dtype[np.float64]]


# 64-bit integers that never wrap: sums by group, whose upper and lower 32 bits are
# summed apart, and rounding.

#: Values whose 32 bits a double sums exactly.
_AT_ONCE: Final = 1 << 21
_LOW: Final = 0xFFFFFFFF


def sums_by_group(groups: npt.NDArray[Any], values: Longs, count: int) -> tuple[Longs, Longs]:
    """Return the sums of the upper and of the lower 32 bits of the values of each group
    (numbers below ``count``).
    """
    upper, lower = np.zeros(count, np.int64), np.zeros(count, np.int64)
    for start in range(0, len(values), _AT_ONCE):
        chunk, of_rows = values[start : start + _AT_ONCE], groups[start : start + _AT_ONCE]
        lower += np.bincount(of_rows, chunk & _LOW, count).astype(np.int64)
        high = chunk >> 32
        if high.any():
            upper += np.bincount(of_rows, high, count).astype(np.int64)
    return upper, lower


def joined(upper: Longs, lower: Longs, quantity: str) -> Longs:
    """Return the sums of ``quantity``. Raises DataError (65) on 64-bit overflow."""
    carried = upper + (lower >> 32)
    if len(carried) and (int(carried.max()) >= 2**31 or int(carried.min()) < -(2**31)):
        raise DataError(
            f"the sum of {quantity} of one group does not fit 64 bits",
            next_step="look for absurd sizes in the dump",
        )
    return (carried << 32) + (lower & _LOW)


def rounded(values: npt.NDArray[np.float64]) -> tuple[Longs, npt.NDArray[np.bool_]]:
    """Return the nearest integers, halves away from 0; and where these fit 64 bits (0
    stands where they do not).
    """
    fits = np.abs(values) < 2.0**63
    fitting = np.where(fits, values, 0.0)
    truncated = np.trunc(fitting)
    # Exact, as adding a half to the largest double below one is not.
    truncated += np.sign(fitting) * (np.abs(fitting - truncated) >= 0.5)
    return truncated.astype(np.int64), fits


# Compilation of functions by numba, which comes with the extras ``cmsspark[events]``
# and ``cmsspark[cache]``.

Function = TypeVar("Function", bound=Callable[..., Any])


def jit(function: Function, *, cache: bool = True) -> Function:
    """Compile at the first call. The machine code is kept beside the source, or in the
    user's cache folder.

    ``cache``: false for functions without a file. The lock of the interpreter is
    released, so functions run in threads.
    """
    try:
        from numba import njit
    except ImportError:
        return function
    compiled: Any
    try:
        compiled = njit(cache=cache, nogil=True)(function)
    except RuntimeError:
        # Code that travels in a zip has no folder for it: each process compiles its own.
        compiled = njit(nogil=True)(function)
    return cast(Function, compiled)
