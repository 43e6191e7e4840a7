# cython: language_level=3, cdivision=True
"""Shared by the compiled readers: accesses in columns, and a memo that numbers distinct texts."""

from cmsspark.sources.values cimport Text, past_digits, past_exponent
from cmsspark.xxh64 cimport Bytes
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp, memcpy

cdef enum:
    TEXTS = 16  # required texts at most: the name and the parts of a group

cdef struct Milliseconds:
    int64_t cpu, wall
    bint has_cpu, has_wall


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


cdef inline bint is_plain(Bytes at, Bytes end) except -1:
    """Whether a line is UTF-8 without an escape or a control character."""
    cdef uint8_t bad = 0, high = 0
    cdef Py_ssize_t place, size = end - at
    for place in range(size):
        bad |= (at[place] < 32) | (at[place] == 92)
        high |= at[place]
    if bad:
        return False
    return not high & 128 or is_utf8(at, size)


cdef inline Bytes past_scalar(Bytes at, Bytes end) noexcept nogil:
    """The end of a JSON number or literal; NULL where there is none."""
    cdef Bytes begin
    cdef bint is_negative = at < end and at[0] == b"-"
    at += is_negative
    begin = at
    at = past_digits(at, end)
    if at == begin:
        if is_negative:
            return NULL
        if end - at > 4 and (not memcmp(at, b"null", 4) or not memcmp(at, b"true", 4)):
            return at + 4
        if end - at > 5 and not memcmp(at, b"false", 5):
            return at + 5
        return NULL
    if begin[0] == b"0" and at - begin > 1:
        return NULL
    if at < end and at[0] == b".":
        begin = at + 1
        at = past_digits(begin, end)
        if at == begin:
            return NULL
    return past_exponent(at, end)


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
    cdef int append(self, Bytes name, Py_ssize_t size, int64_t group, int64_t read_bytes) noexcept
    cdef int append_times(self, Bytes name, Py_ssize_t size, int64_t group, Milliseconds times) noexcept
    cdef void _append(self, Bytes name, Py_ssize_t size, int64_t group) noexcept


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
    cdef int _empty(self, Py_ssize_t room) except -1
    cdef int _widen(self) except -1
    cdef Known* _place(self, uint64_t hash, Bytes at, Py_ssize_t size) noexcept
    cdef int64_t number(self, Bytes at, Py_ssize_t size) except -1


cdef class Keys:
    cdef readonly int texts
    cdef list memos
    cdef Memo groups
    cdef int64_t no_lfn
    cdef Py_ssize_t write(self, Text* texts, Columns columns, Bytes* name, int64_t* group) except -1
    cdef int64_t unnamed(self) noexcept
