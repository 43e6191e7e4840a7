# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Avro records of plain fields, of which only the required ones are decoded.

As with lines (:mod:`cmsspark.sources.formats.template_reader`), a record is accepted only where its values are plain.
Others are returned to the caller, and a block with inconsistent content is rejected. This module is optional.
"""

from cmsspark.sources.formats.avro_values cimport (BOOLEAN, BYTES, DOUBLE, FLOAT, LONG, NULL_KIND, STRING, Fields, Value, past_value, set_fields)
from cmsspark.sources.formats.packed cimport TEXTS, Columns, Keys, Milliseconds, is_utf8
from cmsspark.sources.values cimport Text, is_long_text, is_seconds, is_whole
from cmsspark.base.xxh64 cimport Bytes, hash64
from libc.stdint cimport int64_t, uint64_t

include "cmsspark/base/object_memory.pxi"
include "cmsspark/base/source_digest.pxi"

cdef enum:
    NUMBERS = 4  # required sizes at most
    MOST_BRANCHES = 2

#: The numbers of the plain types.
KINDS = {
    "null": NULL_KIND,
    "boolean": BOOLEAN,
    "int": LONG,
    "long": LONG,
    "float": FLOAT,
    "double": DOUBLE,
    "bytes": BYTES,
    "string": STRING,
}


cdef class Records:
    """Reads records of one schema.

    ``fields``: of each field the numbers of its types (:data:`KINDS`), one or two, and its slot, -1 where it is not
    required: the name, the shared texts, then sizes (the first that is not 0 counts) or, with ``has_times``, CPU and wall
    time in seconds, as text, and the id of the job. ``shared``, ``group`` and ``rows``: as for lines.
    """

    cdef Fields fields
    cdef int texts, sizes
    cdef bint has_times
    cdef Keys keys

    def __cinit__(self, fields, shared, group, int sizes, bint has_times, rows=None):
        self.keys = Keys(shared, group, rows)
        self.texts, self.sizes, self.has_times = self.keys.texts, sizes, has_times
        if sizes > NUMBERS:
            raise ValueError("more fields than there are places")
        set_fields(&self.fields, fields, MOST_BRANCHES)

    def unnamed(self):
        """The records without a file name since the last call, by their group."""
        return self.keys.unnamed()

    def read(self, block, Py_ssize_t count, Columns columns, int64_t first_record=0):
        """Read the ``count`` records of a block, of which the first has the number ``first_record`` in its file.

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
        self.keys.waiting_count = 0  # what an error or a damaged block left
        for row in range(count):
            first = at
            is_plain = True
            at = self._record(at, end, texts, sizes, &times, &is_plain)
            times.position = first_record + row
            if at == NULL:
                return None
            if not (is_plain and self._take(texts, sizes, times, columns)):
                left.append((row, first - begin, at - begin))
        self.keys.settle(columns)
        return left if at == end else None

    cdef bint _take(self, Text* texts, int64_t* sizes, Milliseconds times, Columns columns) except -1:
        cdef int64_t size = 0
        cdef int number
        cdef Bytes name = NULL
        cdef Py_ssize_t length
        for number in range(self.texts):
            if texts[number].size > 0 and not is_utf8(texts[number].at, texts[number].size):
                return False
        length = self.keys.write(texts, columns, &name)
        if not length:
            return True
        if self.has_times:
            columns.append_times(name, length, times)
            return True
        for number in range(self.sizes):
            if sizes[number]:
                size = sizes[number]
                break
        columns.append(name, length, size)
        return True

    cdef Bytes _record(
        self, Bytes at, Bytes end, Text* texts, int64_t* sizes, Milliseconds* times, bint* is_plain
    ) except? NULL:
        """The end of the record at ``at``; NULL where it does not end in the block."""
        cdef int field, slot
        cdef Value value
        value.text.at, value.text.size, value.number = NULL, 0, 0
        for slot in range(self.texts):
            texts[slot].size = -1
        for slot in range(self.sizes):
            sizes[slot] = 0
        times.cpu = times.wall = 0
        times.has_cpu = times.has_wall = False
        times.job = 0
        for field in range(self.fields.count):
            at = past_value(&self.fields, field, at, end, &value)
            if at == NULL:
                return NULL
            slot = self.fields.slots[field]
            if slot < 0 or value.kind == NULL_KIND:
                continue
            if slot < self.texts:
                if value.kind == STRING:
                    texts[slot] = value.text
                else:
                    is_plain[0] = False
            elif self.has_times and slot == self.texts + 2:
                is_plain[0] &= _take_job(value, &times.job)
            elif self.has_times:
                is_plain[0] &= _take_time(value, times, slot == self.texts)
            else:
                is_plain[0] &= _take_size(value, &sizes[slot - self.texts])
        return at


cdef inline bint _take_time(Value value, Milliseconds* times, bint is_cpu) except -1:
    """Store a time; False where it is not plain. An empty text is none."""
    if value.kind != STRING:
        return False
    if not value.text.size:
        return True
    if is_cpu:
        times.has_cpu = True
        return is_seconds(value.text, &times.cpu)
    times.has_wall = True
    return is_seconds(value.text, &times.wall)


cdef inline bint _take_job(Value value, uint64_t* job) except -1:
    """Store the hash of a job's id, 0 for an empty one; False where it is not plain."""
    if value.kind != STRING or not is_utf8(value.text.at, value.text.size):
        return False
    if value.text.size:
        job[0] = hash64(value.text.at, value.text.size, 0)
    return True


cdef inline bint _take_size(Value value, int64_t* size) except -1:
    """Store a size; False where it is not plain."""
    if value.kind == LONG:
        size[0] = value.number
        return value.number >= 0
    if value.kind == FLOAT or value.kind == DOUBLE:
        return is_whole(value.text.at, value.kind == FLOAT, size)
    if value.kind == STRING:
        return is_long_text(value.text.at, value.text.at + value.text.size, size)
    return False
