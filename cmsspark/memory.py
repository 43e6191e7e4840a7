"""Memory that a process no longer needs."""

from __future__ import annotations

import contextlib
import ctypes
import sys


def trim() -> None:
    """Give memory that is free back to the system, where the C library and Arrow can: both keep a good part otherwise.

    A few milliseconds; worth it between stages of work whose memory is of different kinds.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()
