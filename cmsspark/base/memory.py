"""Memory: what it looks like when there is too little, and the return of what is unused to the system."""

from __future__ import annotations

import contextlib
import ctypes
import errno
import os
import re
import resource
import sys
from typing import Final

#: Megabytes of address space that the large libraries need at least: with less they end the process on their own.
_LEAST: Final = 400
_LARGE: Final = ("numpy", "pyarrow", "polars", "pandas")
#: The name of glibc's limit of arenas in ``mallopt``; other C libraries have none.
_M_ARENA_MAX: Final = -8
#: What libraries say when they get no memory, no thread or no process.
_SHORTAGE: Final = re.compile(
    r"cannot allocate memory|failed to map segment|malloc of size|out of memory|std::bad_alloc"
    r"|can't start new thread|failed to launch worker thread|failed to spawn thread",
    re.IGNORECASE,
)


def is_shortage(error: BaseException) -> bool:
    """Whether an error, or one that led to it, says that the process gets no more memory, threads or processes."""
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if isinstance(cause, MemoryError):
            return True
        if isinstance(cause, OSError) and (cause.errno == errno.ENOMEM or _is_of_fork(cause)):
            return True
        if isinstance(cause, ImportError | RuntimeError | OSError) and _SHORTAGE.search(str(cause)):
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False


def _is_of_fork(error: OSError) -> bool:
    """Whether the system refused a new process; it refuses much else by the same number."""
    if error.errno != errno.EAGAIN:
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_name in ("_launch", "_execute_child", "_fork_exec")


def trim() -> None:
    """Return free memory to the system, where the C library and Arrow support it: both otherwise keep much of it.

    It takes a few milliseconds and pays off between stages that use memory differently.
    """
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).malloc_trim(0)
    if "pyarrow" in sys.modules:
        sys.modules["pyarrow"].default_memory_pool().release_unused()


def share_freed() -> None:
    """Let the threads of a process that serves for long use again what others have freed.

    Arrow's own allocator, and an arena of glibc for each thread, keep it for the thread.
    """
    import pyarrow as pa

    pa.set_memory_pool(pa.system_memory_pool())
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 2)


def check_room() -> None:
    """Have the large libraries refused, with MemoryError, where the address space of this process is too small."""
    # Nothing here computes with matrices, and each thread of OpenBLAS reserves much address space.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit != resource.RLIM_INFINITY and limit < _LEAST * 1_000_000:
        sys.meta_path.insert(0, _NoRoom())


class _NoRoom:
    """Refuses the large libraries in a process that has no room for them."""

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in _LARGE:
            raise MemoryError(f"{name} needs {_LEAST} MB of address space")
