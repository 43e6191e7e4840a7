"""A limit on the memory of people's queries. DuckDB's own limit leaves out long texts: ``repeat('a', 2000000000)``."""

from __future__ import annotations

import resource
from pathlib import Path
from typing import Final

_STATM: Final = Path("/proc/self/statm")


def limit_memory(more: int) -> None:
    """Let this process take at most ``more`` bytes of data beyond those that it has now, until it ends.

    An allocation beyond them fails. A lower limit that is set already stays. The limit is relative, because allocators
    reserve gigabytes that they never use. Without effect where there is no ``/proc``.
    """
    if not _STATM.is_file():
        return
    soft, hard = resource.getrlimit(resource.RLIMIT_DATA)
    own = int(_STATM.read_text().split()[5]) * resource.getpagesize() + more
    limits = [limit for limit in (soft, hard) if limit != resource.RLIM_INFINITY]
    resource.setrlimit(resource.RLIMIT_DATA, (min([own, *limits]), hard))
