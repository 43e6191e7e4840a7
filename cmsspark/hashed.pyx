# cython: language_level=3, boundscheck=False, wraparound=False
"""Hashes of many texts, and places of many hashes, at once."""

from cmsspark.xxh64 cimport Bytes, hash64
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

import numpy as np

include "cmsspark/source_digest.pxi"

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void*) noexcept nogil

cdef enum:
    AHEAD = 64  # look-ups whose memory is asked for before any of them is made


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


def pairs_of(
    const uint64_t[::1] wanted,
    const uint64_t[::1] hashes,
    const int32_t[::1] pairs,
    const uint32_t[::1] starts,
    int bits,
    int32_t not_there,
):
    """The pair (int32) of each hash that is wanted, ``not_there`` where ``hashes`` has it not.

    ``hashes`` ascend; those whose first ``bits`` bits are ``n`` begin at ``starts[n]``. Raises ValueError where the
    lengths do not fit each other, or a look-up would leave the arrays.
    """
    cdef Py_ssize_t count = wanted.shape[0], first, row, place, end
    cdef int shift = 64 - bits
    cdef uint64_t hash
    cdef object made = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef int32_t* found = <int32_t*>PyBytes_AS_STRING(made)
    cdef uint32_t begin[AHEAD]
    cdef uint32_t past[AHEAD]
    cdef bint is_damaged = False
    if not 0 < bits < 33 or starts.shape[0] != (1 << bits) + 1 or pairs.shape[0] != hashes.shape[0]:
        raise ValueError("the index's arrays do not fit each other")
    if starts[starts.shape[0] - 1] != hashes.shape[0]:
        raise ValueError("the index's starts do not fit its hashes")
    for first in range(0, count, AHEAD):
        end = min(count, first + AHEAD)
        for row in range(first, end):
            prefetch(&starts[wanted[row] >> shift])
        for row in range(first, end):
            begin[row - first] = starts[wanted[row] >> shift]
            past[row - first] = starts[(wanted[row] >> shift) + 1]
            # The arrays are files: what was damaged there must not lead anywhere.
            is_damaged |= (begin[row - first] > past[row - first]) | (past[row - first] > hashes.shape[0])
            prefetch(&hashes[begin[row - first]])
            prefetch(&pairs[begin[row - first]])
        if is_damaged:
            raise ValueError("the index's starts do not fit its hashes: they do not ascend, or lead past the end")
        for row in range(first, end):
            hash = wanted[row]
            found[row] = not_there
            for place in range(begin[row - first], past[row - first]):
                if hashes[place] >= hash:
                    if hashes[place] == hash:
                        found[row] = pairs[place]
                    break
    return np.frombuffer(made, np.int32)
