"""Parts of a dump's tables, worked on one by one or by several processes at once."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    import pyarrow as pa

#: The Arrow tables of one part, read when it is called. It must pickle where :data:`Each` has other processes.
Part = Callable[[], "Iterator[pa.Table]"]
#: ``map``, or something like it: results in order, whoever worked them out.
Each = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]


def read_whole(part: Part) -> list[pa.Table]:
    """Return all tables of a part."""
    return list(part())
