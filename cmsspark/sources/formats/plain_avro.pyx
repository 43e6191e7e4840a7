# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Avro records of plain fields, of which only the required ones are decoded.

As with lines (:mod:`cmsspark.sources.formats.template_reader`), a record is accepted only where its values are plain.
Others are returned to the caller, and a block with inconsistent content is rejected. This module is optional.
"""

from cmsspark.sources.formats.packed cimport TEXTS, Columns, Keys, Milliseconds, is_utf8
from cmsspark.sources.values cimport Text, is_seconds, is_whole
from cmsspark.xxh64 cimport Bytes
from libc.stdint cimport int64_t, uint8_t, uint64_t

include "cmsspark/object_memory.pxi"
include "cmsspark/source_digest.pxi"

cdef enum:
    NUMBERS = 4  # required sizes at most
    FIELDS = 256
    BRANCHES = 2

#: The numbers of the plain types.
KINDS = {"null": 0, "boolean": 1, "int": 2, "long": 2, "float": 4, "double": 5, "bytes": 6, "string": 7}

cdef enum:
    NULL_KIND = 0
    BOOLEAN = 1
    LONG = 2
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    STRING = 7


cdef class Records:
    """Reads records of one schema.

    ``fields``: of each field the numbers of its types (:data:`KINDS`), one or two, and its slot, -1 where it is not
    required: the name, the shared texts, then sizes (the first that is not 0 counts) or, with ``has_times``, CPU and wall
    time in seconds, as text. ``shared`` and ``group``: as for lines.
    """

    cdef int kinds[FIELDS][BRANCHES]
    cdef int branches[FIELDS]
    cdef int slots[FIELDS]
    cdef int count, texts, sizes
    cdef bint has_times
    cdef Keys keys

    def __cinit__(self, fields, shared, group, int sizes, bint has_times):
        cdef int field, branch
        self.keys = Keys(shared, group)
        self.texts, self.sizes, self.has_times = self.keys.texts, sizes, has_times
        if len(fields) > FIELDS or sizes > NUMBERS:
            raise ValueError("more fields than there are places")
        self.count = len(fields)
        for field, (kinds, slot) in enumerate(fields):
            if not 0 < len(kinds) <= BRANCHES:
                raise ValueError("a field has one type or two")
            self.branches[field], self.slots[field] = len(kinds), slot
            for branch, kind in enumerate(kinds):
                self.kinds[field][branch] = kind

    def unnamed(self):
        """The number of records without a file name since the last call."""
        return self.keys.unnamed()

    def read(self, block, Py_ssize_t count, Columns columns):
        """Read the ``count`` records of a block.

        Returns the records that are not plain: (number in the block, begin, end). None where the block does not consist
        of exactly so many records.
        """
        cdef Memory memory = Memory(block)
        cdef Bytes begin = <Bytes>memory.view.buf
        cdef Bytes at = begin
        cdef Bytes end = begin + memory.count
        cdef Bytes first
        cdef Text texts[TEXTS]
        cdef int64_t sizes[NUMBERS]
        cdef Milliseconds times
        cdef bint is_plain
        cdef Py_ssize_t row
        left = []
        for row in range(count):
            first = at
            is_plain = True
            at = self._record(at, end, texts, sizes, &times, &is_plain)
            if at == NULL:
                return None
            if not (is_plain and self._take(texts, sizes, times, columns)):
                left.append((row, first - begin, at - begin))
        return left if at == end else None

    cdef bint _take(self, Text* texts, int64_t* sizes, Milliseconds times, Columns columns) except -1:
        cdef int64_t size = 0, group
        cdef int number
        cdef Bytes name = NULL
        cdef Py_ssize_t length
        for number in range(self.texts):
            if texts[number].size > 0 and not is_utf8(texts[number].at, texts[number].size):
                return False
        length = self.keys.write(texts, columns, &name, &group)
        if not length:
            return True
        if self.has_times:
            columns.append_times(name, length, group, times)
            return True
        for number in range(self.sizes):
            if sizes[number]:
                size = sizes[number]
                break
        columns.append(name, length, group, size)
        return True

    cdef Bytes _record(
        self, Bytes at, Bytes end, Text* texts, int64_t* sizes, Milliseconds* times, bint* is_plain
    ) except? NULL:
        """The end of the record at ``at``; NULL where it does not end in the block."""
        cdef int field, slot, kind
        cdef int64_t number
        cdef Text text
        for slot in range(self.texts):
            texts[slot].size = -1
        for slot in range(self.sizes):
            sizes[slot] = 0
        times.cpu = times.wall = 0
        times.has_cpu = times.has_wall = False
        for field in range(self.count):
            number = 0
            if self.branches[field] > 1:
                at = _long(at, end, &number)
                if at == NULL or not 0 <= number < self.branches[field]:
                    return NULL
            kind = self.kinds[field][number]
            slot = self.slots[field]
            if kind == STRING or kind == BYTES:
                at = _long(at, end, &number)
                if at == NULL or not 0 <= number <= end - at:
                    return NULL
                text.at, text.size = at, number
                at += number
                if slot < 0:
                    continue
                if kind == BYTES:
                    is_plain[0] = False
                elif slot < self.texts:
                    texts[slot] = text
                elif not self.has_times:
                    is_plain[0] = False
                elif text.size:
                    if slot == self.texts:
                        times.has_cpu = True
                        is_plain[0] &= is_seconds(text, &times.cpu)
                    else:
                        times.has_wall = True
                        is_plain[0] &= is_seconds(text, &times.wall)
            elif kind == LONG:
                at = _long(at, end, &number)
                if at == NULL:
                    return NULL
                if slot >= self.texts and not self.has_times and number >= 0:
                    sizes[slot - self.texts] = number
                elif slot >= 0:
                    is_plain[0] = False
            elif kind != NULL_KIND:
                number = 1 if kind == BOOLEAN else 4 if kind == FLOAT else 8
                if end - at < number:
                    return NULL
                if slot >= self.texts and not self.has_times and kind != BOOLEAN:
                    is_plain[0] &= is_whole(at, kind == FLOAT, &sizes[slot - self.texts])
                elif slot >= 0:
                    is_plain[0] = False
                at += number
        return at


cdef inline Bytes _long(Bytes at, Bytes end, int64_t* number) noexcept nogil:
    """The end of an Avro integer; NULL where it is cut or has more than 64 bits."""
    cdef uint64_t found = 0
    cdef int shift = 0
    while at < end:
        if shift == 63 and at[0] > 1:
            return NULL
        found |= <uint64_t>(at[0] & 127) << shift
        if at[0] < 128:
            number[0] = <int64_t>((found >> 1) ^ (0 - (found & 1)))
            return at + 1
        at += 1
        shift += 7
    return NULL
