# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Columns of the tables of Rucio dumps, from Avro records of plain fields; see :mod:`cmsspark.sources.formats.avro_table`.

A record is accepted only where the values of its required fields are plain. Others are returned to the caller, and a
block with inconsistent content is rejected. This module is optional.
"""

from cmsspark.sources.formats.avro_values cimport (BOOLEAN, BRANCHES, BYTES, DOUBLE, FLOAT, LONG, NULL_KIND, STRING, Fields, Value, past_value, set_fields)
from cmsspark.sources.formats.packed cimport Memo, is_utf8, more
from cmsspark.sources.values cimport Text, is_whole
from cmsspark.base.xxh64 cimport Bytes, hash64
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcpy

import numpy as np

include "cmsspark/base/object_memory.pxi"
include "cmsspark/base/source_digest.pxi"

cdef enum:
    SLOTS = 20
    WORDS = 4  # 64-bit numbers of a slot in a row, at most
    DIGITS = 18  # of a number that fits 64 bits

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

    ``fields``: of each field the numbers of its types (as in :mod:`cmsspark.sources.formats.plain_avro`) and its slot, -1 where it is not required.
    ``slots``: the kind of each slot (:data:`SLOT_KINDS`) and, for codes and ids, the function that numbers them: called
    with a text or 16 bytes. ``check_seed``: of a name's second hash.
    """

    cdef Fields fields
    cdef int slot_kinds[SLOTS]
    cdef int slots
    cdef uint64_t check_seed
    cdef list memos
    cdef Py_ssize_t rows, room
    #: A row has ``WORDS`` numbers for each slot: a flag (1: it is there) and its values.
    cdef int64_t* values

    def __cinit__(self, fields, slots, uint64_t check_seed):
        if len(slots) > SLOTS:
            raise ValueError("more fields than there are places")
        set_fields(&self.fields, fields, BRANCHES)
        self.slots, self.check_seed = len(slots), check_seed
        self.memos = []
        for slot, (kind, number_of) in enumerate(slots):
            self.slot_kinds[slot] = kind
            self.memos.append(None if number_of is None else Memo(number_of, kind == CODE))

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
        cdef int field, slot
        cdef Value value
        value.text.at, value.text.size, value.number = NULL, 0, 0
        for slot in range(self.slots):
            row[slot * WORDS] = 0
        for field in range(self.fields.count):
            at = past_value(&self.fields, field, at, end, &value)
            if at == NULL:
                return NULL
            slot = self.fields.slots[field]
            if slot >= 0 and value.kind != NULL_KIND and is_plain[0]:
                is_plain[0] = self._value(slot, &value, row + slot * WORDS)
        return at

    cdef bint _value(self, int slot, Value* value, int64_t* to) except -1:
        """Write a value to the slot's words; False where it is not plain."""
        if value.kind == STRING or value.kind == BYTES:
            return self._text(slot, value.kind, value.text, to)
        if self.slot_kinds[slot] != NUMBER or value.kind == BOOLEAN:
            return False
        to[0], to[1] = 1, value.number
        return value.number >= 0 if value.kind == LONG else is_whole(value.text.at, value.kind == FLOAT, to + 1)

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
