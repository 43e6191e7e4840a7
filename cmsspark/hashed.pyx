# cython: language_level=3, boundscheck=False, wraparound=False
"""Hashes of many texts at once."""

from cmsspark.xxh64 cimport Bytes, hash64
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t, uint64_t

import numpy as np


def hashes_of_texts(const int32_t[::1] ends, const uint8_t[::1] content, uint64_t seed):
    """The hash (uint64) of each text: text ``i`` lies from ``ends[i]`` to ``ends[i + 1]``, as Arrow has it.

    Raises ValueError where the places do not lie in ``content``.
    """
    cdef Py_ssize_t count = max(0, ends.shape[0] - 1), size = content.shape[0], row
    cdef object made = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef uint64_t* hashes = <uint64_t*>PyBytes_AS_STRING(made)
    cdef Bytes begin = &content[0] if size else NULL
    for row in range(count):
        if not 0 <= ends[row] <= ends[row + 1] <= size:
            raise ValueError(f"text {row} lies outside of the content")
        hashes[row] = hash64(begin + ends[row], ends[row + 1] - ends[row], seed)
    return np.frombuffer(made, np.uint64)
