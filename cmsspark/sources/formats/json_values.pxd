# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Shared by the compiled readers of JSON: lines of plain values.

The functions return the end of what begins at ``at``, and NULL (or ``begin``) where it is not plain. Lines that they read
passed ``is_plain``: a quote ends a text.
"""

from cmsspark.sources.formats.packed cimport is_utf8
from cmsspark.sources.values cimport next_quote, past_digits, past_exponent, past_long, past_short_number
from cmsspark.base.xxh64 cimport Bytes
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.string cimport memcmp

cdef extern from *:
    """
    #include <stddef.h>
    #include <stdint.h>

    /* Twice as fast where a CPU has AVX2; which function that is gets decided when the module is loaded. */
    #if defined(__GNUC__) && !defined(__clang__) && defined(__x86_64__) && defined(__gnu_linux__) && defined(__GLIBC__)
    __attribute__((target_clones("avx2", "default")))
    #endif
    static uint8_t cmsspark_odd_bytes(const uint8_t* at, size_t size) {
        uint8_t bad = 0, high = 0;
        for (size_t place = 0; place < size; place++) {
            bad |= (at[place] < 32) | (at[place] == 92);
            high |= at[place] & 128;
        }
        return bad | high;
    }
    """
    uint8_t odd_bytes "cmsspark_odd_bytes"(Bytes at, size_t size) noexcept nogil

cdef enum:
    DEEPEST = 60  # open containers of a value that nobody needs
    HOUR_DIGITS = 12  # before the point; so many hours fit 64 bits of milliseconds
    WHOLE_DIGITS = 18


cdef struct Member:
    Bytes key
    Py_ssize_t size
    int place  # of the needed key, -1 for another


cdef inline bint is_plain(Bytes at, Bytes end) except -1:
    """Whether a line is UTF-8 without an escape or a control character."""
    cdef uint8_t odd = odd_bytes(at, end - at)
    if odd & 1:
        return False
    return not odd or is_utf8(at, end - at)


cdef inline Bytes past_scalar(Bytes at, Bytes end) noexcept nogil:
    """The end of a JSON number or literal; NULL where there is none."""
    cdef Bytes begin = past_short_number(at, end)
    cdef bint is_negative
    if begin != NULL:
        return begin
    is_negative = at < end and at[0] == b"-"
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


cdef inline Bytes past_spaces(Bytes at, Bytes end) noexcept nogil:
    while at < end and at[0] == b" ":
        at += 1
    return at


cdef inline Bytes past_key(Bytes at, Bytes end, Member* member) noexcept nogil:
    """The begin of the value of the member at ``at``, whose key is kept; NULL where there is none."""
    at = past_spaces(at, end)
    if at == end or at[0] != b'"':
        return NULL
    member.key = at + 1
    at = next_quote(member.key, end)
    if at == NULL:
        return NULL
    member.size = at - member.key
    at = past_spaces(at + 1, end)
    if at == end or at[0] != b":":
        return NULL
    at = past_spaces(at + 1, end)
    return at if at < end else NULL


cdef inline Bytes past_plain(Bytes at, Bytes end) noexcept nogil:
    """The end of a text, number or literal; NULL where there is none."""
    if at[0] == b'"':
        at = next_quote(at + 1, end)
        return at + 1 if at != NULL else NULL
    return past_scalar(at, end)


cdef inline Bytes past_value(Bytes at, Bytes end) noexcept nogil:
    """The end of a value that nobody needs; NULL where it is not JSON, or too deep."""
    if at[0] == b"{" or at[0] == b"[":
        return past_container(at, end)
    return past_plain(at, end)


cdef inline Bytes past_container(Bytes at, Bytes end) noexcept nogil:
    cdef uint64_t objects = 0  # a bit for each open container, whether it is an object; the lowest is the innermost
    cdef int depth = 0
    cdef Member member
    cdef bint is_object  # it ends in }, 125, else in ], 93
    while True:
        if at == end:
            return NULL
        if at[0] == b"{" or at[0] == b"[":
            if depth == DEEPEST:
                return NULL
            is_object = at[0] == b"{"
            depth += 1
            objects = (objects << 1) | is_object
            at = past_spaces(at + 1, end)
            if at == end:
                return NULL
            if at[0] != (125 if is_object else 93):
                if is_object:
                    at = past_key(at, end, &member)
                    if at == NULL:
                        return NULL
                continue
        else:
            at = past_plain(at, end)
            if at == NULL:
                return NULL
        # Behind a value, or at the end of an empty container.
        while True:
            at = past_spaces(at, end)
            if at == end:
                return NULL
            if at[0] == (125 if objects & 1 else 93):
                at += 1
                depth -= 1
                objects >>= 1
                if not depth:
                    return at
                continue
            if at[0] != b",":
                return NULL
            at = past_spaces(at + 1, end)
            if objects & 1:
                at = past_key(at, end, &member)
                if at == NULL:
                    return NULL
            break


cdef inline Bytes past_metadata(Bytes at, Bytes end, int64_t* timestamp) noexcept nogil:
    """The end of ``metadata``, whose timestamp is kept; NULL where it is not plain."""
    cdef Member member
    cdef Bytes begin
    cdef bint is_seen = False
    if end - at > 4 and not memcmp(at, b"null", 4):
        return at + 4
    if at[0] != b"{":
        return NULL
    at = past_spaces(at + 1, end)
    if at < end and at[0] == b"}":
        return at + 1
    while True:
        at = past_key(at, end, &member)
        if at == NULL:
            return NULL
        if member.size == 9 and not memcmp(member.key, b"timestamp", 9):
            if is_seen:
                return NULL
            is_seen = True
            begin = at
            if end - at > 4 and not memcmp(at, b"null", 4):
                at += 4
            else:
                at = past_long(begin, end, timestamp)
            if at == begin:
                return NULL
        else:
            at = past_value(at, end)
        if at == NULL:
            return NULL
        at = past_spaces(at, end)
        if at == end:
            return NULL
        if at[0] == b"}":
            return at + 1
        if at[0] != b",":
            return NULL
        at += 1


cdef inline Bytes past_hours(Bytes begin, Bytes end) noexcept nogil:
    """The end of plain hours from 0 on, with at most ``HOUR_DIGITS`` digits before the point; ``begin`` for all else."""
    cdef Bytes at = past_digits(begin, end)
    cdef Bytes point
    if at == begin or at - begin > HOUR_DIGITS or (begin[0] == b"0" and at - begin > 1):
        return begin
    if at < end and at[0] == b".":
        point = at + 1
        at = past_digits(point, end)
        if at == point:
            return begin
    return at


cdef inline Bytes past_whole_number(Bytes begin, Bytes end) noexcept nogil:
    """The end of a whole number in digits, perhaps negative; ``begin`` for all else."""
    cdef Bytes digits = begin + (begin[0] == b"-")
    cdef Bytes at = past_digits(digits, end)
    if at == digits or at - digits > WHOLE_DIGITS or (digits[0] == b"0" and at - digits > 1):
        return begin
    return at
