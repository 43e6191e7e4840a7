# cython: language_level=3, boundscheck=False, wraparound=False
"""Hashes of many texts, and places of many hashes, at once."""

from cmsspark.base.xxh64 cimport Bytes, hash64
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, uint8_t, uint32_t, uint64_t

import numpy as np

include "cmsspark/base/object_memory.pxi"
include "cmsspark/base/source_digest.pxi"

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void*) noexcept nogil

cdef enum:
    AHEAD = 64  # look-ups whose memory is asked for before any of them is made

INT32, UINT32, UINT64 = "i", "I", "LQ"


def hashes_of_texts(text_ends, text_content, uint64_t seed):
    """The hash (uint64) of each text: text ``i`` lies from ``ends[i]`` to ``ends[i + 1]`` (int32), as Arrow has it.

    Raises ValueError where the places do not lie in the content.
    """
    cdef Memory ends_memory = Memory(text_ends, INT32)
    cdef Memory content = Memory(text_content)
    cdef const int32_t* ends = <const int32_t*>ends_memory.view.buf
    cdef Py_ssize_t count = max(0, ends_memory.count - 1), size = content.count, row
    cdef object made = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef uint64_t* hashes = <uint64_t*>PyBytes_AS_STRING(made)
    cdef Bytes begin = <Bytes>content.view.buf
    for row in range(count):
        if not 0 <= ends[row] <= ends[row + 1] <= size:
            raise ValueError(f"text {row} lies outside of the content")
        hashes[row] = hash64(begin + ends[row], ends[row + 1] - ends[row], seed)
    return np.frombuffer(made, np.uint64)


def find_pairs(wanted_hashes, index_hashes, index_pairs, index_starts, int bits, int32_t not_there):
    """The pair (int32) of each given hash (uint64), ``not_there`` where the index has it not.

    ``index_hashes`` (uint64) ascend, each with its ``index_pairs`` (int32); those whose first ``bits`` bits are ``n`` begin
    at ``index_starts[n]`` (uint32). Raises ValueError where the types or lengths do not fit each other, or a look-up would
    leave the arrays.
    """
    cdef Memory wanted_memory = Memory(wanted_hashes, UINT64)
    cdef Memory hashes_memory = Memory(index_hashes, UINT64)
    cdef Memory pairs_memory = Memory(index_pairs, INT32)
    cdef Memory starts_memory = Memory(index_starts, UINT32)
    cdef const uint64_t* wanted = <const uint64_t*>wanted_memory.view.buf
    cdef const uint64_t* hashes = <const uint64_t*>hashes_memory.view.buf
    cdef const int32_t* pairs = <const int32_t*>pairs_memory.view.buf
    cdef const uint32_t* starts = <const uint32_t*>starts_memory.view.buf
    cdef Py_ssize_t count = wanted_memory.count, size = hashes_memory.count, first, row, place, end
    cdef int shift = 64 - bits
    cdef uint64_t hash
    cdef object made = PyBytes_FromStringAndSize(NULL, 4 * count)
    cdef int32_t* found = <int32_t*>PyBytes_AS_STRING(made)
    cdef uint32_t begin[AHEAD]
    cdef uint32_t past[AHEAD]
    cdef bint is_damaged = False
    if not 0 < bits < 33 or starts_memory.count != (1 << bits) + 1 or pairs_memory.count != size:
        raise ValueError("the index's arrays do not fit each other")
    if starts[starts_memory.count - 1] != size:
        raise ValueError("the index's starts do not fit its hashes")
    for first in range(0, count, AHEAD):
        end = min(count, first + AHEAD)
        for row in range(first, end):
            prefetch(&starts[wanted[row] >> shift])
        for row in range(first, end):
            begin[row - first] = starts[wanted[row] >> shift]
            past[row - first] = starts[(wanted[row] >> shift) + 1]
            # The arrays are files: what was damaged there must not lead anywhere.
            is_damaged |= (begin[row - first] > past[row - first]) | (past[row - first] > size)
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
