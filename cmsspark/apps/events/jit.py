"""What events need beyond the base installation: the extra ``cmsspark[events]``, and its compiler."""

from __future__ import annotations

import importlib.util
from collections.abc import Callable
from typing import Any, Final, TypeVar, cast

from cmsspark.base.errors import UsageError

Function = TypeVar("Function", bound=Callable[..., Any])

#: The packages of the extra, by the names of their modules.
PACKAGES: Final = ("uproot", "awkward", "numba")


def jit(function: Function, *, cache: bool = True) -> Function:
    """Compile at the first call. The machine code is kept beside the source, or in the user's cache folder.

    ``cache``: false for functions without a file. Without numba the function stays as it is, some hundred times slower:
    tests compare both.
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


def require_events(*more: str) -> None:
    """Raises UsageError (2) that names the extra where one of its packages is not installed."""
    missing = [name for name in (*PACKAGES, *more) if importlib.util.find_spec(name) is None]
    if missing:
        raise UsageError(
            f"events need {', '.join(missing)}", found="not installed", next_step="pip install 'cmsspark[events]'"
        )
