"""Return of unused memory to the system."""

from __future__ import annotations

import contextlib
import ctypes
import sys


def trim() -> None:
    """Return free memory to the system, where the C library and Arrow support it: both otherwise keep much of it.

    It takes a few milliseconds and pays off between stages that use memory differently.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
