"""Number the objects of a trace while it is read: their names are kept once, and requests take four bytes each."""

from __future__ import annotations

from typing import Any, Final

import numpy as np
import pyarrow as pa

from cmsspark.base.arrays import Array
from cmsspark.base.jit import jit

#: Slots of a new table of numbers; a table grows when half of it is full.
_FIRST_SLOTS: Final = 1 << 16


@jit
def _look_up(keys: Array, numbers: Array, count: int, names: Array, out: Array) -> int:
    """Number names by the table and enter new ones while it is at most half full; return how many were numbered."""
    mask = len(keys) - 1
    for i in range(len(names)):
        name = names[i]
        mixed = name ^ (name >> np.uint64(32))
        slot = int(mixed * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(20)) & mask
        while numbers[slot] >= 0 and keys[slot] != name:
            slot = (slot + 1) & mask
        if numbers[slot] < 0:
            if 2 * count >= len(keys):
                return i
            keys[slot] = name
            numbers[slot] = count
            count += 1
        out[i] = numbers[slot]
    return len(names)


@jit
def by_first_request(objects: Array, sizes: Array, count: int) -> tuple[Array, Array, int]:
    """Return the numbers of the objects in the order of their first requests, the size of each by its first request,
    and how many requests name another size. ``objects``: renumbered in place.
    """
    number_of = np.full(count, -1, np.int32)
    first_sizes = np.zeros(count, np.int64)
    following = resized = 0
    for i in range(len(objects)):
        item = objects[i]
        if number_of[item] < 0:
            number_of[item] = following
            first_sizes[following] = sizes[i]
            following += 1
        objects[i] = number_of[item]
        if first_sizes[objects[i]] != sizes[i]:
            resized += 1
    return number_of, first_sizes[:following], resized


class Numbering:
    """Numbers of names, 0 and up, in the order in which they come: of whole numbers, or of texts."""

    def __init__(self) -> None:
        self._keys, self._numbers = np.zeros(_FIRST_SLOTS, np.uint64), np.full(_FIRST_SLOTS, -1, np.int32)
        self._of_text: dict[Any, int] = {}
        self.count = 0

    def numbers(self, names: Array) -> Array:
        """Return int32, the number of each name. Names of one trace are all numbers, or all texts."""
        if names.dtype.kind in "iu":
            return self._number_integers(names.astype(np.uint64))
        coded = pa.array(names).dictionary_encode()
        texts = coded.dictionary.to_pylist()
        table = np.array([self._of_text.setdefault(text, len(self._of_text)) for text in texts], np.int32)
        self.count = len(self._of_text)
        return np.asarray(table[coded.indices.to_numpy()])

    def names(self) -> list[str]:
        """Return the names by their numbers, as texts."""
        if self._of_text:
            return [str(name) for name in self._of_text]
        is_used = self._numbers >= 0
        names = np.zeros(self.count, np.uint64)
        names[self._numbers[is_used]] = self._keys[is_used]
        return [str(name) for name in names.tolist()]

    def _number_integers(self, names: Array) -> Array:
        out = np.empty(len(names), np.int32)
        done = 0
        while done < len(names):
            numbered = _look_up(self._keys, self._numbers, self.count, names[done:], out[done:])
            self.count = max(self.count, int(out[done : done + numbered].max(initial=-1)) + 1)
            done += numbered
            if done < len(names):
                self._grow()
        return out

    def _grow(self) -> None:
        is_used = self._numbers >= 0
        keys = np.empty(self.count, np.uint64)
        keys[self._numbers[is_used]] = self._keys[is_used]
        slots = 4 * len(self._keys)
        self._keys, self._numbers = np.zeros(slots, np.uint64), np.full(slots, -1, np.int32)
        _look_up(self._keys, self._numbers, 0, keys, np.empty(self.count, np.int32))
