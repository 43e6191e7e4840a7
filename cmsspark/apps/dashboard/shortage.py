"""What the server lacks when it cannot make a page: memory or file descriptors. Its files may be whole all the same."""

from __future__ import annotations

import errno
import os
from typing import Final

from cmsspark.base.errors import NotReady
from cmsspark.base.memory import is_shortage

#: What libraries say of too many open files.
_TOO_MANY: Final = tuple(os.strerror(number) for number in (errno.EMFILE, errno.ENFILE))


class Shortage(NotReady):
    """The server gets no memory, thread or file descriptor (75)."""


def shortage_of(error: Exception) -> Shortage | None:
    """Return a Shortage where an error says that the process gets no memory, thread or file descriptor; else None."""
    import duckdb

    is_of_host = isinstance(error, duckdb.OutOfMemoryException) or is_shortage(error)
    if not is_of_host and not any(text in str(error) for text in _TOO_MANY):
        return None
    return Shortage(
        "the server has too little memory or too few file descriptors now",
        found=" ".join(str(error).split())[:200] or type(error).__name__,
        next_step="ask again, for fewer days; where it stays so, start the server with higher limits (ulimit -a)",
    )
