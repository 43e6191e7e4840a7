"""Work of the demo in forked processes, which inherit what it needs: it is never copied
through a pipe.
"""

from __future__ import annotations

import gc
import multiprocessing
from collections.abc import Callable, Iterator, Sequence
from typing import Any

_inherited: list[Callable[[Any], Any]] = []


def forked_map(
    function: Callable[[Any], Any], items: Sequence[Any], processes: int
) -> Iterator[Any]:
    """Yield what a function returns for each item, in their order; one process is this one."""
    if processes <= 1:
        yield from map(function, items)
        return
    with multiprocessing.get_context("fork").Pool(processes, _inherit, (function,)) as pool:
        yield from pool.imap(_call, items)


def _inherit(function: Callable[[Any], Any]) -> None:
    _inherited[:] = [function]
    # Millions of objects that stay: looking through them again and again would copy their pages.
    gc.freeze()


def _call(item: Any) -> Any:
    return _inherited[0](item)
