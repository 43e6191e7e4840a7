# cython: language_level=3, cdivision=True
"""Shared by the compiled readers: accesses in columns, and a memo that numbers distinct texts."""

from cmsspark.sources.values cimport Text
from cmsspark.base.xxh64 cimport Bytes
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcpy

cdef enum:
    TEXTS = 16  # required texts at most: the name and the parts of a group
    TOGETHER = 64  # accesses whose groups are looked up together

cdef struct Milliseconds:
    int64_t cpu, wall
    bint has_cpu, has_wall
    uint64_t job  # the hash of its id, 0 where there is none
    int64_t position  # the number of the record in its file


cdef inline bint is_same(Bytes at, Bytes other, Py_ssize_t size) noexcept nogil:
    """Whether two texts of the same size are equal; quicker than memcmp for short texts."""
    cdef uint64_t one, two
    cdef uint8_t differ = 0
    cdef Py_ssize_t place
    if size >= 8:
        for place in range(0, size - 8, 8):
            memcpy(&one, at + place, 8)
            memcpy(&two, other + place, 8)
            if one != two:
                return False
        memcpy(&one, at + size - 8, 8)
        memcpy(&two, other + size - 8, 8)
        return one == two
    for place in range(size):
        differ |= at[place] ^ other[place]
    return not differ


cdef void* more(void* old, Py_ssize_t size) except NULL
cdef bint is_utf8(Bytes at, Py_ssize_t size) except -1


cdef inline int64_t day_of(int64_t timestamp) noexcept nogil:
    """Days since 1970 of seconds, milliseconds or microseconds, by size."""
    if timestamp < 100_000_000_000LL:
        return timestamp // 86_400
    if timestamp < 100_000_000_000_000LL:
        return timestamp // 86_400_000
    return timestamp // 86_400_000_000LL


cdef class Columns:
    cdef readonly Py_ssize_t count
    cdef bint has_times
    cdef Py_ssize_t room, names_size, names_room
    cdef uint64_t* _hashes
    cdef int64_t* _groups
    cdef int64_t* _sizes
    cdef int64_t* _begins
    cdef int64_t* _ends
    cdef Milliseconds* _times
    cdef uint8_t* _names
    cdef int _grow(self, Py_ssize_t name) except -1
    cdef Py_ssize_t write(self, Text logged, Bytes* name) except -1
    cdef int append(self, Bytes name, Py_ssize_t size, int64_t read_bytes) noexcept
    cdef int append_times(self, Bytes name, Py_ssize_t size, Milliseconds times) noexcept
    cdef void _append(self, Bytes name, Py_ssize_t size) noexcept


cdef struct Known:
    uint64_t hash
    Py_ssize_t begin, size
    int64_t number  # -1: an unused entry


cdef class Memo:
    cdef Known* places
    cdef Py_ssize_t room, count, most
    cdef uint8_t* texts
    cdef Py_ssize_t texts_size, texts_room
    cdef object number_of
    cdef bint is_text
    cdef int64_t of_null
    # The text that was looked up last: many come several times in a row.
    cdef Py_ssize_t last_begin, last_size
    cdef int64_t last_number
    cdef int _empty(self, Py_ssize_t room) except -1
    cdef int _widen(self) except -1
    cdef Known* _place(self, uint64_t hash, Bytes at, Py_ssize_t size) noexcept
    cdef int64_t number(self, Bytes at, Py_ssize_t size) except -1
    cdef int find_all(self, const Text* texts, int count, int64_t* numbers, int step) except -1
    cdef int64_t _find(self, Bytes at, Py_ssize_t size, uint64_t hash) except -1


cdef class GroupRows(Memo):
    pass


cdef class Keys:
    cdef readonly int texts
    cdef list memos
    cdef Memo groups
    cdef GroupRows rows
    cdef dict unnamed_counts  # accesses without a name, by their group
    # The texts of the accesses that have no group yet, by their place in the group.
    cdef Text waiting[TEXTS * TOGETHER]
    cdef int waiting_count
    cdef Py_ssize_t write(self, Text* texts, Columns columns, Bytes* name) except -1
    cdef int settle(self, Columns columns) except -1
    cdef int count_unnamed(self, Text* texts) except -1
    cdef dict unnamed(self)
