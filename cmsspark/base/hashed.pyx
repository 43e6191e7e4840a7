# cython: language_level=3, boundscheck=False, wraparound=False
"""Hashes of many texts, places and order of many hashes, and sums of many rows by key, at once."""

from cmsspark.base.xxh64 cimport Bytes, hash64
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free, realloc

import numpy as np

include "cmsspark/base/object_memory.pxi"
include "cmsspark/base/source_digest.pxi"

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void*) noexcept nogil
    bint overflows "__builtin_add_overflow" (int64_t, int64_t, int64_t*) noexcept nogil

cdef enum:
    AHEAD = 64  # look-ups whose memory is asked for before any of them is made
    SORTED_ALONE = 64  # rows that are sorted by insertion at most

INT32, UINT32, UINT64, INT64 = "i", "I", "LQ", "lq"


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


cdef struct Row:
    uint64_t hash
    int64_t number


def sorted_order(hashes_array):
    """The rows (int64) in the order of their hashes (uint64), those of one hash as they come: a stable ``argsort``.

    None where the hashes do not spread over their range as hashes do: these need another way.
    """
    cdef Memory memory = Memory(hashes_array, UINT64)
    cdef const uint64_t* hashes = <const uint64_t*>memory.view.buf
    cdef Py_ssize_t count = memory.count, row, at, first, past, bucket
    cdef Py_ssize_t buckets = 2  # at least: a shift by 64 bits is none
    cdef uint64_t least = 0xFFFFFFFFFFFFFFFFULL, largest = 0
    cdef int shift = 0
    cdef Row moved
    for row in range(count):
        least, largest = min(least, hashes[row]), max(largest, hashes[row])
    while buckets * 8 < count:
        buckets *= 2
    while count and (largest - least) >> shift >= <uint64_t>buckets:
        shift += 1
    cdef object made = PyBytes_FromStringAndSize(NULL, 8 * count)
    cdef int64_t* order = <int64_t*>PyBytes_AS_STRING(made)
    cdef object ends_memory = bytearray(4 * (buckets + 1))
    cdef uint32_t* ends = <uint32_t*><char*>ends_memory
    cdef object rows_memory = PyBytes_FromStringAndSize(NULL, sizeof(Row) * count)
    cdef Row* rows = <Row*>PyBytes_AS_STRING(rows_memory)
    if count > 0xFFFFFFFF:
        return None
    for row in range(count):
        ends[((hashes[row] - least) >> shift) + 1] += 1
    for bucket in range(buckets):
        if ends[bucket + 1] > SORTED_ALONE:
            return None
        ends[bucket + 1] += ends[bucket]
    # Each row goes to the next place of its bucket; then ``ends`` has where the buckets end.
    for row in range(count):
        bucket = (hashes[row] - least) >> shift
        rows[ends[bucket]].hash, rows[ends[bucket]].number = hashes[row], row
        ends[bucket] += 1
    first = 0
    for bucket in range(buckets):
        past = ends[bucket]
        for row in range(first, past):
            moved = rows[row]
            at = row
            while at > first and rows[at - 1].hash > moved.hash:
                rows[at] = rows[at - 1]
                at -= 1
            rows[at] = moved
        first = past
    for row in range(count):
        order[row] = rows[row].number
    return np.frombuffer(made, np.int64)


cdef void* _more(void* old, Py_ssize_t size) except NULL:
    cdef void* new = realloc(old, size)
    if new == NULL:
        raise MemoryError
    return new


cdef class KeyedSums:
    """Sums of ``width`` columns by key, in a table of open addressing. Nothing is sorted: rows are in the order in which
    their keys came first.
    """

    cdef readonly Py_ssize_t count
    cdef Py_ssize_t width, room, rows_room
    cdef uint32_t* places  # the row of a key and one, 0 where there is none
    cdef int64_t* rows  # the key of each row, and its sums

    def __cinit__(self, Py_ssize_t width):
        self.width = width
        self._widen(1024)

    def __dealloc__(self):
        free(self.places)
        free(self.rows)

    cdef int _widen(self, Py_ssize_t room) except -1:
        cdef Py_ssize_t row
        cdef uint32_t* place
        self.places = <uint32_t*>_more(self.places, room * sizeof(uint32_t))
        self.room = room
        for row in range(room):
            self.places[row] = 0
        for row in range(self.count):
            place = self._place(self.rows[row * (self.width + 1)])
            place[0] = <uint32_t>(row + 1)
        return 0

    cdef inline uint32_t* _place(self, int64_t key) noexcept nogil:
        """The place of the key, or the free one for it."""
        cdef Py_ssize_t at = _spread(key) & (self.room - 1)
        while self.places[at] and self.rows[(self.places[at] - 1) * (self.width + 1)] != key:
            at = (at + 1) & (self.room - 1)
        return &self.places[at]

    def add(self, keys, columns):
        """Add rows: their keys and ``width`` columns of numbers from 0 on, all int64.

        Raises ValueError where they do not fit each other, and OverflowError with the number of a column of which a sum
        exceeds 64 bits: the sums are of no use then.
        """
        cdef Memory memory = Memory(keys, INT64)
        cdef const int64_t* of_keys = <const int64_t*>memory.view.buf
        cdef Py_ssize_t count = memory.count, first, row, end, column, size = self.width + 1
        cdef const int64_t* values[16]
        cdef uint32_t* place
        cdef int64_t* sums
        memories = [Memory(values_of_column, INT64) for values_of_column in columns]
        if len(memories) != self.width or self.width > 16:
            raise ValueError("other columns than the table has")
        for column in range(self.width):
            if (<Memory>memories[column]).count != count:
                raise ValueError("a column of another length")
            values[column] = <const int64_t*>(<Memory>memories[column]).view.buf
        for first in range(0, count, AHEAD):
            end = min(count, first + AHEAD)
            self._make_room(end - first)
            for row in range(first, end):
                prefetch(&self.places[_spread(of_keys[row]) & (self.room - 1)])
            for row in range(first, end):
                place = &self.places[_spread(of_keys[row]) & (self.room - 1)]
                if place[0]:
                    prefetch(&self.rows[(place[0] - 1) * size])
            for row in range(first, end):
                place = self._place(of_keys[row])
                if not place[0]:
                    sums = &self.rows[self.count * size]
                    self.count += 1
                    place[0] = <uint32_t>self.count
                    sums[0] = of_keys[row]
                    for column in range(self.width):
                        sums[column + 1] = values[column][row]
                    continue
                sums = &self.rows[(place[0] - 1) * size]
                for column in range(self.width):
                    if overflows(sums[column + 1], values[column][row], &sums[column + 1]):
                        raise OverflowError(column)

    cdef int _make_room(self, Py_ssize_t more) except -1:
        """Have room for so many more rows, with at most half of the places used."""
        cdef Py_ssize_t rows
        if self.count + more > 0xFFFFFFFF:
            raise MemoryError
        if self.count + more > self.rows_room:
            rows = self.rows_room + self.rows_room // 2 + 1024
            self.rows = <int64_t*>_more(self.rows, rows * (self.width + 1) * sizeof(int64_t))
            self.rows_room = rows
        if 2 * (self.count + more) > self.room:
            self._widen(2 * self.room)
        return 0

    def columns(self):
        """Return the keys and the sums of each column, arrays of int64."""
        cdef Py_ssize_t column, row, size = self.width + 1
        cdef int64_t* values
        arrays = []
        for column in range(size):
            made = PyBytes_FromStringAndSize(NULL, self.count * sizeof(int64_t))
            values = <int64_t*>PyBytes_AS_STRING(made)
            for row in range(self.count):
                values[row] = self.rows[row * size + column]
            arrays.append(np.frombuffer(made, np.int64))
        return arrays


cdef inline uint64_t _spread(int64_t key) noexcept nogil:
    """Spread the bits of a key over the lowest ones."""
    cdef uint64_t mixed = <uint64_t>key * 0x9E3779B97F4A7C15ULL
    return mixed ^ (mixed >> 32)
