"""Doubly linked lists of objects in two arrays, for policies that keep objects in order
of use or of arrival.

An object is its number, 0 to n − 1. List number k has its two ends in slot n + k:
``following[n + k]`` is the newest object and ``preceding[n + k]`` the oldest; both are
n + k in an empty list. An object is in at most one list.
"""

from __future__ import annotations

import numpy as np

from cmsspark.base.arrays import Flags, Ints, Longs
from cmsspark.base.jit import jit


@jit
def make_lists(object_count: int, list_count: int) -> tuple[Ints, Ints]:
    """Empty lists: (following, preceding), each int32 of object_count + list_count."""
    following = np.arange(object_count + list_count).astype(np.int32)
    return following, following.copy()


@jit
def push(following: Ints, preceding: Ints, end: int, item: int) -> None:
    """Make an object the newest of the list with this end."""
    newest = following[end]
    following[item] = newest
    preceding[item] = end
    preceding[newest] = item
    following[end] = item


@jit
def unlink(following: Ints, preceding: Ints, item: int) -> None:
    """Take an object out of its list."""
    after = following[item]
    before = preceding[item]
    following[before] = after
    preceding[after] = before


@jit
def admit(following: Ints, preceding: Ints, marks: Flags, end: int, item: int, mark: int) -> None:
    """Make an object the newest of the list with this end, and mark it."""
    push(following, preceding, end, item)
    marks[item] = mark


@jit
def evict(following: Ints, preceding: Ints, marks: Flags, sizes: Longs, item: int) -> int:
    """Take an object out of its list and clear its mark; its bytes."""
    unlink(following, preceding, item)
    marks[item] = 0
    freed: int = sizes[item]
    return freed
