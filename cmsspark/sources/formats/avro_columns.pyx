# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Columns of the tables of Rucio dumps, from Avro records of plain fields; see :mod:`cmsspark.sources.formats.avro_table`.

A record is accepted only where the values of its required fields are plain. Others are returned to the caller, and a
block with inconsistent content is rejected. This module is optional.
"""

from cmsspark.sources.formats.packed cimport Memo, is_utf8, more
from cmsspark.sources.values cimport Text, is_whole
from cmsspark.xxh64 cimport Bytes, hash64
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int32_t, int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcpy

import numpy as np

include "cmsspark/object_memory.pxi"
include "cmsspark/source_digest.pxi"

cdef enum:
    FIELDS = 256
    BRANCHES = 8
    SLOTS = 16
    WORDS = 4  # 64-bit numbers of a slot in a row, at most
    DIGITS = 18  # of a number that fits 64 bits

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

#: Kinds of slots: a text's number, an id's number, a whole number, a name's hashes, and those of a name and of its dataset.
SLOT_KINDS = {"code": 0, "id": 1, "number": 2, "name": 3, "did": 4}

cdef enum:
    CODE = 0
    ID = 1
    NUMBER = 2
    NAME = 3
    DID = 4


cdef class ColumnReader:
    """Reads records of one schema.

    ``fields``: of each field the numbers of its types (:data:`KINDS`) and its slot, -1 where it is not required.
    ``slots``: the kind of each slot (:data:`SLOT_KINDS`) and, for codes and ids, the function that numbers them: called
    with a text or 16 bytes. ``check_seed``: of a name's second hash.
    """

    cdef int kinds[FIELDS][BRANCHES]
    cdef int branches[FIELDS]
    cdef int field_slots[FIELDS]
    cdef int slot_kinds[SLOTS]
    cdef int count, slots
    cdef uint64_t check_seed
    cdef list memos
    cdef Py_ssize_t rows, room
    #: A row has ``WORDS`` numbers for each slot: a flag (1: it is there) and its values.
    cdef int64_t* values

    def __cinit__(self, fields, slots, uint64_t check_seed):
        cdef int field, branch
        if len(fields) > FIELDS or len(slots) > SLOTS:
            raise ValueError("more fields than there are places")
        self.count, self.slots, self.check_seed = len(fields), len(slots), check_seed
        self.memos = []
        for slot, (kind, number_of) in enumerate(slots):
            self.slot_kinds[slot] = kind
            self.memos.append(None if number_of is None else Memo(number_of, kind == CODE))
        for field, (kinds, slot) in enumerate(fields):
            if not 0 < len(kinds) <= BRANCHES:
                raise ValueError("a field has one type or a few")
            self.branches[field], self.field_slots[field] = len(kinds), slot
            for branch, kind in enumerate(kinds):
                self.kinds[field][branch] = kind

    def __dealloc__(self):
        free(self.values)

    def read(self, block, Py_ssize_t count):
        """Read the ``count`` records of a block.

        Returns the records that are not plain: (number in the block, begin, end). None where the block does not consist
        of exactly so many records.
        """
        cdef Memory memory = Memory(block)
        cdef Bytes begin = <Bytes>memory.view.buf
        cdef Bytes at = begin
        cdef Bytes end = begin + memory.count
        cdef Bytes first
        cdef bint is_plain
        cdef Py_ssize_t row
        left = []
        for row in range(count):
            first = at
            is_plain = True
            if self.rows == self.room:
                self.room = max(4096, 2 * self.room)
                self.values = <int64_t*>more(self.values, self.room * self.slots * WORDS * sizeof(int64_t))
            at = self._record(at, end, self.values + self.rows * self.slots * WORDS, &is_plain)
            if at == NULL:
                return None
            if is_plain:
                self.rows += 1
            else:
                left.append((row, first - begin, at - begin))
        return left if at == end else None

    def take(self):
        """The rows so far as an array of int64: (row, slot, word); the reader forgets them."""
        size = self.rows * self.slots * WORDS * sizeof(int64_t)
        made = PyBytes_FromStringAndSize(<char*>self.values, size)
        found = np.frombuffer(made, np.int64).reshape(self.rows, self.slots, WORDS)
        self.rows = 0
        return found

    cdef Bytes _record(self, Bytes at, Bytes end, int64_t* row, bint* is_plain) except? NULL:
        """The end of the record at ``at``; NULL where it does not end in the block."""
        cdef int field, slot, kind
        cdef int64_t number
        cdef Text text
        for slot in range(self.slots):
            row[slot * WORDS] = 0
        for field in range(self.count):
            number = 0
            if self.branches[field] > 1:
                at = _long(at, end, &number)
                if at == NULL or not 0 <= number < self.branches[field]:
                    return NULL
            kind = self.kinds[field][number]
            slot = self.field_slots[field]
            if kind == STRING or kind == BYTES:
                at = _long(at, end, &number)
                if at == NULL or not 0 <= number <= end - at:
                    return NULL
                text.at, text.size = at, number
                at += number
                if slot >= 0 and is_plain[0]:
                    is_plain[0] = self._text(slot, kind, text, row + slot * WORDS)
            elif kind == LONG:
                at = _long(at, end, &number)
                if at == NULL:
                    return NULL
                if slot >= 0:
                    is_plain[0] &= self.slot_kinds[slot] == NUMBER and number >= 0
                    row[slot * WORDS], row[slot * WORDS + 1] = 1, number
            elif kind != NULL_KIND:
                number = 1 if kind == BOOLEAN else 4 if kind == FLOAT else 8
                if end - at < number:
                    return NULL
                if slot >= 0:
                    if self.slot_kinds[slot] == NUMBER and kind != BOOLEAN:
                        row[slot * WORDS] = 1
                        is_plain[0] &= is_whole(at, kind == FLOAT, row + slot * WORDS + 1)
                    else:
                        is_plain[0] = False
                at += number
        return at

    cdef bint _text(self, int slot, int kind, Text text, int64_t* to) except -1:
        """Write a text or bytes to the slot's words; False where it is not plain."""
        cdef int wanted = self.slot_kinds[slot]
        cdef uint8_t raw[16]
        to[0] = 1
        if wanted == ID:
            if kind == BYTES:
                if text.size != 16:
                    return False
                memcpy(raw, text.at, 16)
            elif not _hex(text, raw):
                return False
            to[1] = (<Memo>self.memos[slot]).number(raw, 16)
            return True
        if kind == BYTES:
            return False
        if wanted == NUMBER:
            return _digits(text, to + 1)
        if not is_utf8(text.at, text.size):
            return False
        if wanted == CODE:
            to[1] = (<Memo>self.memos[slot]).number(text.at, text.size)
            return True
        to[1] = <int64_t>hash64(text.at, text.size, 0)
        to[2] = <int64_t>hash64(text.at, text.size, self.check_seed)
        if wanted == DID:
            to[0] |= _dataset(text, to + 3)
        return True


cdef int _dataset(Text text, int64_t* to) noexcept nogil:
    """2, and the hash of the dataset, for a block's name ``/a/b/C#x`` (rule 25); 0 for any other."""
    cdef Bytes end = <Bytes>memchr(text.at, b"#", text.size)
    cdef Bytes at = text.at
    cdef int slashes = 0
    to[0] = 0
    if end == NULL or end + 1 == text.at + text.size or text.at[0] != b"/" or end[-1] == b"/":
        return 0
    while at < end:
        if at[0] == b"/":
            slashes += 1
            if at > text.at and at[-1] == b"/":
                return 0
        at += 1
    if slashes != 3:
        return 0
    to[0] = <int64_t>hash64(text.at, end - text.at, 0)
    return 2


cdef bint _digits(Text text, int64_t* to) noexcept nogil:
    """Whether a text is one to ``DIGITS`` digits."""
    cdef Py_ssize_t place
    cdef int64_t found = 0
    if not 0 < text.size <= DIGITS:
        return False
    for place in range(text.size):
        if not 48 <= text.at[place] <= 57:
            return False
        found = 10 * found + (text.at[place] - 48)
    to[0] = found
    return True


cdef bint _hex(Text text, uint8_t* to) noexcept nogil:
    """Whether a text is 32 hex digits, dashes aside."""
    cdef Py_ssize_t place
    cdef int digits = 0, value
    for place in range(text.size):
        value = text.at[place]
        if value == b"-":
            continue
        if 48 <= value <= 57:
            value -= 48
        elif 97 <= (value | 32) <= 102:
            value = (value | 32) - 87
        else:
            return False
        if digits == 32:
            return False
        to[digits // 2] = value << 4 if digits % 2 == 0 else to[digits // 2] | value
        digits += 1
    return digits == 32


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
