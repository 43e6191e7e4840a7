# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Columns of plain CSV of dumps: no quotes, no escapes, integers as digits.

Numbers with a fraction or an exponent are read where one division or multiplication gives the nearest double. Other text
is rejected, and :mod:`cmsspark.sources.formats.sqoop_csv` reads it otherwise. This module is optional.
"""

from cmsspark.base.xxh64 cimport Bytes
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t
from libc.stdlib cimport free, malloc
from libc.string cimport memchr, memcmp, memcpy

include "cmsspark/base/object_memory.pxi"
include "cmsspark/base/source_digest.pxi"

cdef enum:
    DIGITS = 18  # of a number that fits 64 bits
    COLUMNS = 32  # selected columns at most
    DOUBLE_DIGITS = 15  # of an integer that a double represents exactly
    DOUBLE_EXPONENT = 22  # of the largest power of ten that a double represents exactly

cdef enum Kind:
    LONG, TEXT, DOUBLE

cdef double[23] POWERS = [
    1e0, 1e1, 1e2, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9, 1e10, 1e11, 1e12, 1e13, 1e14, 1e15, 1e16, 1e17, 1e18, 1e19, 1e20,
    1e21, 1e22,
]

#: The maximum number of selected columns.
MOST_COLUMNS = COLUMNS

cdef struct Column:
    int place
    Kind kind
    int64_t* numbers  # or doubles, which are as wide
    int32_t* ends
    uint8_t* texts
    Py_ssize_t size  # of the texts
    uint8_t* there
    Py_ssize_t nulls


cdef class _Columns:
    """Memory of the selected columns while they are read."""

    cdef Column columns[COLUMNS]
    cdef int count

    def __cinit__(self, wanted, Py_ssize_t rows, Py_ssize_t size):
        cdef Column* column
        self.count = 0
        if len(wanted) > COLUMNS:
            raise ValueError("more columns than there are places")
        for place, kind in wanted:
            column = &self.columns[self.count]
            self.count += 1
            column.place, column.kind = place, kind
            column.numbers, column.ends, column.texts = NULL, NULL, NULL
            column.size = column.nulls = 0
            column.there = <uint8_t*>_room(rows)
            if column.kind == TEXT:
                column.ends = <int32_t*>_room(4 * (rows + 1))
                column.ends[0] = 0
                column.texts = <uint8_t*>_room(size)
            else:
                column.numbers = <int64_t*>_room(8 * rows)

    def __dealloc__(self):
        cdef int column
        for column in range(self.count):
            free(self.columns[column].numbers)
            free(self.columns[column].ends)
            free(self.columns[column].texts)
            free(self.columns[column].there)


cdef void* _room(Py_ssize_t size) except NULL:
    cdef void* new = malloc(size + 1)
    if new == NULL:
        raise MemoryError
    return new


def split_columns(content, int width, wanted):
    """The ``wanted`` columns, (place, kind: 0 whole number, 1 text, 2 double) each, of whole lines of ``width`` fields.

    Returns (rows, [(flags of one byte, nulls, numbers of 8 bytes) or (flags, nulls, ends as int32, texts)]), all as bytes;
    None where the text is not plain, a line has another number of fields, or a number is none. Of a null, the flag is 0;
    ``null`` is one. Empty lines are none. ``content`` must end in a newline and have less than 2 GB.
    """
    cdef Memory memory = Memory(content)
    cdef Py_ssize_t size = memory.count
    cdef Bytes at = <Bytes>memory.view.buf
    if not size or size > 0x7FFFFFFF or at[size - 1] != b"\n":
        return None
    cdef Bytes end = at + size
    cdef Bytes line_end
    cdef Py_ssize_t rows = 0
    cdef int column
    # memchr examines many bytes at once: four searches are quicker than one loop.
    if memchr(at, 34, size) or memchr(at, 92, size) or memchr(at, 13, size) or memchr(at, 0, size):
        return None
    # Sort the columns by position, as each line is scanned once.
    order = sorted(range(len(wanted)), key=lambda number: wanted[number][0])
    cdef _Columns found = _Columns([wanted[number] for number in order], _count(at, end, 10), size)
    while at < end:
        line_end = <Bytes>memchr(at, b"\n", end - at)
        if line_end > at:
            if not _line(at, line_end, width, found, rows):
                return None
            rows += 1
        at = line_end + 1
    made = [None] * len(order)
    for column, number in enumerate(order):
        made[number] = _as_bytes(&found.columns[column], rows)
    return rows, made


cdef object _as_bytes(Column* column, Py_ssize_t rows):
    there = PyBytes_FromStringAndSize(<char*>column.there, rows)
    if column.kind == TEXT:
        ends = PyBytes_FromStringAndSize(<char*>column.ends, 4 * (rows + 1))
        return there, column.nulls, ends, PyBytes_FromStringAndSize(<char*>column.texts, column.size)
    return there, column.nulls, PyBytes_FromStringAndSize(<char*>column.numbers, 8 * rows)


cdef bint _line(Bytes at, Bytes end, int width, _Columns found, Py_ssize_t row) noexcept nogil:
    """Whether the line is plain; stores its selected fields in ``row``."""
    cdef int field = 0, column
    cdef Bytes comma
    for column in range(found.count):
        while field < found.columns[column].place:
            at = <Bytes>memchr(at, b",", end - at)
            if at == NULL:
                return False
            at += 1
            field += 1
        comma = <Bytes>memchr(at, b",", end - at)
        if comma == NULL:
            comma = end
        if not _put(&found.columns[column], at, comma, row):
            return False
    return field + _count(at, end, 44) + 1 == width


cdef inline Py_ssize_t _count(Bytes at, Bytes end, uint8_t character) noexcept nogil:
    """The number of occurrences of a character."""
    cdef Py_ssize_t found = 0, place, size
    cdef uint8_t some
    while at < end:
        # A counter of one byte lets the compiler vectorise the loop.
        size = min(end - at, 255)
        some = 0
        for place in range(size):
            some += at[place] == character
        found += some
        at += size
    return found


cdef inline bint _put(Column* column, Bytes at, Bytes end, Py_ssize_t row) noexcept nogil:
    cdef Py_ssize_t size = end - at
    cdef bint is_null = size == 4 and not memcmp(at, b"null", 4)
    cdef int64_t number = 0
    column.there[row] = not is_null
    column.nulls += is_null
    if column.kind == TEXT:
        if not is_null:
            memcpy(column.texts + column.size, at, size)
            column.size += size
        column.ends[row + 1] = column.size
        return True
    if column.kind == DOUBLE:
        (<double*>column.numbers)[row] = 0
        return is_null or _double(at, end, <double*>column.numbers + row)
    if not is_null:
        if not 0 < size <= DIGITS:
            return False
        while at < end:
            if not 48 <= at[0] <= 57:
                return False
            number = 10 * number + (at[0] - 48)
            at += 1
    column.numbers[row] = number
    return True


cdef inline bint _double(Bytes at, Bytes end, double* found) noexcept nogil:
    """Whether the text is a number that converts exactly: digits, an optional fraction and exponent."""
    cdef int64_t digits = 0
    cdef int count = 0, exponent = 0, fraction = 0
    cdef bint is_negative = False
    cdef Bytes begin = at
    while at < end and 48 <= at[0] <= 57 and count <= DOUBLE_DIGITS:
        digits = 10 * digits + (at[0] - 48)
        count += 1
        at += 1
    if at == begin:
        return False
    if at < end and at[0] == b".":
        at += 1
        begin = at
        while at < end and 48 <= at[0] <= 57 and count <= DOUBLE_DIGITS:
            digits = 10 * digits + (at[0] - 48)
            count += 1
            at += 1
        fraction = at - begin
        if not fraction:
            return False
    if count > DOUBLE_DIGITS:
        return False
    if at < end and (at[0] == b"e" or at[0] == b"E"):
        at += 1
        is_negative = at < end and at[0] == b"-"
        if at < end and (at[0] == b"-" or at[0] == b"+"):
            at += 1
        if not 0 < end - at <= 2:
            return False
        while at < end and 48 <= at[0] <= 57:
            exponent = 10 * exponent + (at[0] - 48)
            at += 1
    exponent = (-exponent if is_negative else exponent) - fraction
    if at != end or not -DOUBLE_EXPONENT <= exponent <= DOUBLE_EXPONENT:
        return False
    found[0] = digits * POWERS[exponent] if exponent >= 0 else digits / POWERS[-exponent]
    return True
