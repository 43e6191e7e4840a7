"""Memory: what it looks like when there is too little, and the return of what is unused
to the system.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import gc
import os
import re
import resource
import sys
from collections.abc import Mapping
from typing import Final

#: Megabytes of address space that the large libraries need at least: with less they end
#: the process on their own.
_LEAST: Final = {"numpy": 400, "pyarrow": 400, "pandas": 400, "polars": 900}
#: With less than so many megabytes of address space libraries start one thread each, as
#: a thread reserves some 70 MB and ends the process where it gets no memory, and Arrow
#: uses malloc, as its own allocators reserve 1 GB at once.
_ROOMY: Final = 4_000
_SPARING: Final = {
    **dict.fromkeys(
        ("OMP_NUM_THREADS", "ARROW_IO_THREADS", "POLARS_MAX_THREADS", "RAYON_NUM_THREADS"), "1"
    ),
    "ARROW_DEFAULT_MEMORY_POOL": "system",
}
#: Objects between two searches for garbage.
_OBJECTS_A_SEARCH: Final = 50_000
#: The name of glibc's limit of arenas in ``mallopt``; other C libraries have none.
_M_ARENA_MAX: Final = -8
#: What libraries say when they get no memory, no thread or no process.
_SHORTAGE: Final = re.compile(
    r"cannot allocate memory|failed to map segment|malloc of size|out of memory|std::bad_alloc"
    r"|can't (?:start|spawn) (?:new|worker) thread|failed to launch worker thread|failed to spawn thread",
    re.IGNORECASE,
)


def is_shortage(error: BaseException) -> bool:
    """Return whether an error, or one that led to it, says that memory, threads or
    processes ran out.
    """
    seen: list[BaseException] = []
    cause: BaseException | None = error
    while cause is not None and cause not in seen:
        if isinstance(cause, MemoryError):
            return True
        if isinstance(cause, OSError) and (cause.errno == errno.ENOMEM or _is_of_fork(cause)):
            return True
        # Arrow's own errors are none of Python's.
        may_tell = (
            isinstance(cause, ImportError | RuntimeError | OSError)
            or type(cause).__module__ == "pyarrow.lib"
        )
        if may_tell and _SHORTAGE.search(str(cause)):
            return True
        seen.append(cause)
        cause = cause.__cause__ or cause.__context__
    return False


def _is_of_fork(error: OSError) -> bool:
    """Return whether the system refused a new process; it refuses much else by the same number."""
    if error.errno != errno.EAGAIN:
        return False
    trace = error.__traceback__
    while trace is not None and trace.tb_next is not None:
        trace = trace.tb_next
    return trace is not None and trace.tb_frame.f_code.co_name in (
        "_launch",
        "_execute_child",
        "_fork_exec",
    )


def trim() -> None:
    """Return free memory to the system, where the C library and Arrow support it: both
    otherwise keep much of it.

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


def search_garbage_seldom() -> None:
    """Search for cycles of objects less often: imports, readers and tables make many
    objects that stay, or go by their count, and hardly any cycle.
    """
    gc.set_threshold(_OBJECTS_A_SEARCH)


def check_room() -> None:
    """Have the large libraries refused, with MemoryError, where the address space of
    this process is too small for them, and start few threads where it is small.
    """
    # Nothing here computes with matrices, and each thread of OpenBLAS reserves much address space.
    os.environ.setdefault("OPENBLAS_NUM_THREADS", "1")
    limit = resource.getrlimit(resource.RLIMIT_AS)[0]
    if limit == resource.RLIM_INFINITY or limit >= _ROOMY * 1_000_000:
        return
    for name, value in _SPARING.items():
        os.environ.setdefault(name, value)
    with contextlib.suppress(AttributeError, OSError):
        ctypes.CDLL(None).mallopt(_M_ARENA_MAX, 1)
    refused = {name: least for name, least in _LEAST.items() if limit < least * 1_000_000}
    if refused:
        sys.meta_path.insert(0, _NoRoom(refused))


class _NoRoom:
    """Refuses large libraries in a process that has no room for them. ``refused``: the
    megabytes that each needs.
    """

    def __init__(self, refused: Mapping[str, int]) -> None:
        self._refused = refused

    def find_spec(self, name: str, path: object = None, target: object = None) -> None:
        if name in self._refused:
            raise MemoryError(f"{name} needs {self._refused[name]} MB of address space")
