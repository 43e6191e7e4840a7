"""The compiler of the simulation: numba, of the extra ``cmsspark[cache]``.

The same functions run without it, some hundred times slower: tests compare both.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar, cast

from cmsspark.base.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])

try:
    from numba import njit as _njit
except ImportError:
    IS_COMPILED = False
else:
    IS_COMPILED = True


def jit(function: Function) -> Function:
    """Compile at the first call. The machine code is kept beside the source, or in the user's cache folder.

    The lock of the interpreter is released, so several replays run in threads.
    """
    if not IS_COMPILED:
        return function
    compiled: Any
    try:
        compiled = _njit(cache=True, nogil=True)(function)
    except RuntimeError:
        # Code that travels in a zip has no folder for it: each process compiles its own.
        compiled = _njit(nogil=True)(function)
    return cast(Function, compiled)


def require_compiler() -> None:
    """Raise UsageError (2) where numba is not installed: replays of real traces would take hours."""
    if not IS_COMPILED:
        raise UsageError("replays need numba", found="numba is missing", next_step="pip install 'cmsspark[cache]'")
