"""Compilation of functions by numba, which comes with the extras ``cmsspark[events]``
and ``cmsspark[cache]``.

The same functions run without it, some hundred times slower: tests compare both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

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
