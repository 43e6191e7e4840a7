"""Lists as Arrow arrays, by their buffers.

``pa.array`` asks pandas whether a value is of its kind, and so imports it: half a second of CPU in each worker.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import TYPE_CHECKING, Any

import numpy as np

if TYPE_CHECKING:
    import pyarrow as pa


def array(values: Sequence[Any], kind: str) -> pa.Array:
    """``values``, of which any may be None, as an array of ``kind``: ``string``, ``long`` or ``boolean``.

    Raises UnicodeEncodeError for text that UTF-8 cannot hold, OverflowError for a number beyond 64 bits or texts of
    more than 2 GB together.
    """
    import pyarrow as pa

    count = len(values)
    there = pa.py_buffer(_bits([value is not None for value in values]))
    if kind == "string":
        texts = [b"" if value is None else value.encode() for value in values]
        ends = np.fromiter(map(len, texts), np.int64, count).cumsum()
        if count and ends[-1] > np.iinfo(np.int32).max:
            raise OverflowError("texts of one column come to more than 2 GB")
        starts = np.concatenate((np.zeros(1, np.int32), ends.astype(np.int32)))
        return pa.Array.from_buffers(pa.string(), count, [there, pa.py_buffer(starts), pa.py_buffer(b"".join(texts))])
    if kind == "long":
        numbers = np.array([0 if value is None else value for value in values], np.int64)
        return pa.Array.from_buffers(pa.int64(), count, [there, pa.py_buffer(numbers)])
    flags = pa.py_buffer(_bits([bool(value) for value in values]))
    return pa.Array.from_buffers(pa.bool_(), count, [there, flags])


def _bits(flags: list[bool]) -> bytes:
    return np.packbits(np.array(flags, np.bool_), bitorder="little").tobytes()
