# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Shared by the compiled readers: accesses in columns, and a memo that numbers distinct texts."""

from cmsspark.sources.values cimport Text, normalise_lfn
from cmsspark.base.xxh64 cimport Bytes, hash64
from cpython.bytes cimport PyBytes_AS_STRING, PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcpy

import numpy as np

include "cmsspark/base/object_memory.pxi"
include "cmsspark/base/source_digest.pxi"

cdef extern from *:
    void prefetch "__builtin_prefetch" (const void*) noexcept nogil

cdef extern from "Python.h":
    const Py_ssize_t PY_SSIZE_T_MAX

cdef enum:
    MEMO_LONGEST = 1024
    MEMO_TEXTS = 50_000
    # Of the buffers that are kept for the next columns.
    SPARE_ROWS = 65536
    SPARE_NAMES = 8388608
    SPARES = 2


cdef struct Buffers:
    Py_ssize_t room, names_room
    uint64_t* hashes
    int64_t* groups
    int64_t* sizes
    int64_t* begins
    int64_t* ends
    Milliseconds* times
    uint8_t* names

# Columns follow each other, and new memory costs as much as what is written into it. The last ones' serves the next: a
# reader makes a batch while the one before is in use. Those without times come first.
cdef Buffers spares[2][SPARES]
cdef int spare_counts[2]
spare_counts[0] = spare_counts[1] = 0


cdef void* more(void* old, Py_ssize_t size) except NULL:
    """Reallocate ``old`` to ``size`` bytes. Raises MemoryError."""
    cdef void* new = realloc(old, size)
    if new == NULL:
        raise MemoryError
    return new


cdef bint is_utf8(Bytes at, Py_ssize_t size) except -1:
    """Whether the text is UTF-8 by Python's decoder."""
    cdef uint8_t high = 0
    cdef Py_ssize_t place
    for place in range(size):
        high |= at[place]
    if high & 128:
        try:
            PyUnicode_DecodeUTF8(<const char*>at, size, NULL)
        except UnicodeDecodeError:
            return False
    return True


cdef class Columns:
    """Accesses in columns of ``count`` rows, for :class:`cmsspark.base.access.AccessBatch`."""


    def __cinit__(self, bint has_times=False):
        cdef Buffers* spare
        self.has_times = has_times
        if spare_counts[has_times]:
            spare_counts[has_times] -= 1
            spare = &spares[has_times][spare_counts[has_times]]
            self.room, self.names_room = spare.room, spare.names_room
            self._hashes, self._groups, self._sizes = spare.hashes, spare.groups, spare.sizes
            self._begins, self._ends, self._times, self._names = spare.begins, spare.ends, spare.times, spare.names

    def __dealloc__(self):
        cdef Buffers* spare
        if spare_counts[self.has_times] < SPARES and 0 < self.room <= SPARE_ROWS and self.names_room <= SPARE_NAMES:
            spare = &spares[self.has_times][spare_counts[self.has_times]]
            spare_counts[self.has_times] += 1
            spare.room, spare.names_room = self.room, self.names_room
            spare.hashes, spare.groups, spare.sizes = self._hashes, self._groups, self._sizes
            spare.begins, spare.ends, spare.times, spare.names = self._begins, self._ends, self._times, self._names
            return
        free(self._hashes)
        free(self._groups)
        free(self._sizes)
        free(self._begins)
        free(self._ends)
        free(self._times)
        free(self._names)

    cdef int _grow(self, Py_ssize_t name) except -1:
        # Set the room last: after a MemoryError no buffer is smaller than the room says.
        cdef Py_ssize_t room
        if self.count == self.room:
            room = max(1024, 2 * self.room)
            self._hashes = <uint64_t*>more(self._hashes, room * 8)
            self._groups = <int64_t*>more(self._groups, room * 8)
            if self.has_times:
                self._times = <Milliseconds*>more(self._times, room * sizeof(Milliseconds))
            else:
                self._sizes = <int64_t*>more(self._sizes, room * 8)
            self._begins = <int64_t*>more(self._begins, room * 8)
            self._ends = <int64_t*>more(self._ends, room * 8)
            self.room = room
        if self.names_room - self.names_size < name:
            room = 2 * self.names_room + name + 65536
            self._names = <uint8_t*>more(self._names, room)
            self.names_room = room
        return 0

    cdef Py_ssize_t write(self, Text logged, Bytes* name) except -1:
        """Write a file's normalised name (rule 10) after the others and set ``name`` to its begin. Returns its size.

        The name is kept only when it is appended.
        """
        if logged.size <= 0:
            return 0
        self._grow(logged.size)
        return normalise_lfn(logged, self._names + self.names_size, name)

    cdef int append(self, Bytes name, Py_ssize_t size, int64_t read_bytes) noexcept:
        """Append an access to the file whose name was written last. :meth:`Keys.settle` sets its group."""
        self._sizes[self.count] = read_bytes
        self._append(name, size)
        return 0

    cdef int append_times(self, Bytes name, Py_ssize_t size, Milliseconds times) noexcept:
        """As :meth:`append`, where there are times instead of sizes."""
        self._times[self.count] = times
        self._append(name, size)
        return 0

    cdef void _append(self, Bytes name, Py_ssize_t size) noexcept:
        self._hashes[self.count] = hash64(name, size, 0)
        self._begins[self.count] = name - self._names
        self.names_size = name - self._names + size
        self._ends[self.count] = self.names_size
        self.count += 1

    @property
    def hashes(self):
        """The names' hashes, uint64."""
        return np.frombuffer(PyBytes_FromStringAndSize(<char*>self._hashes, self.count * 8), np.uint64)

    @property
    def groups(self):
        """The groups' numbers, int64."""
        return np.frombuffer(PyBytes_FromStringAndSize(<char*>self._groups, self.count * 8), np.int64)

    @property
    def read_bytes(self):
        """Bytes read, int64; None where there are times."""
        if self.has_times:
            return None
        return np.frombuffer(PyBytes_FromStringAndSize(<char*>self._sizes, self.count * 8), np.int64)

    @property
    def times(self):
        """(cpu_ms, whether it is there, wall_ms, whether it is there), int64; None where there are sizes."""
        if not self.has_times:
            return None
        found = self._jobs()
        return tuple(found[name].astype(np.int64) for name in ("cpu", "has_cpu", "wall", "has_wall"))

    @property
    def jobs(self):
        """(hash of the job's id, number of the record in its file), int64, where there are times."""
        found = self._jobs()
        return found["job"].astype(np.int64), found["position"].astype(np.int64)

    def _jobs(self):
        kind = np.dtype(
            [("cpu", "i8"), ("wall", "i8"), ("has_cpu", "i4"), ("has_wall", "i4"), ("job", "i8"), ("position", "i8")]
        )
        size = self.count * sizeof(Milliseconds)
        return np.frombuffer(PyBytes_FromStringAndSize(<char*>self._times, size), kind)

    def add_heads(self, rows, counts):
        """Add to ``counts`` the number of names in ``rows`` (int64) by their leading directories, as bytes: up to three,
        with the slash after each. Raises IndexError.
        """
        cdef Memory memory = Memory(rows, "lq")
        cdef const int64_t* places = <const int64_t*>memory.view.buf
        cdef Py_ssize_t place, row
        cdef int slashes
        cdef Bytes begin, at, end, slash
        for place in range(memory.count):
            row = places[place]
            if not 0 <= row < self.count:
                raise IndexError(row)
            begin = self._names + self._begins[row]
            end = self._names + self._ends[row]
            at = begin
            slashes = 0
            while slashes < 4:
                slash = <Bytes>memchr(at, b"/", end - at)
                if slash == NULL:
                    break
                at = slash + 1
                slashes += 1
            head = PyBytes_FromStringAndSize(<const char*>begin, at - begin)
            counts[head] = counts.get(head, 0) + 1

    def name(self, Py_ssize_t row):
        """The name in ``row``, as bytes. Raises IndexError."""
        if not 0 <= row < self.count:
            raise IndexError(row)
        return PyBytes_FromStringAndSize(<char*>self._names + self._begins[row], self._ends[row] - self._begins[row])


cdef class Memo:
    """A hash table of the numbers that ``number_of`` returns for texts (or bytes); None numbers them in their order. A
    table of texts is cleared when it is full, as some texts differ in every job.
    """


    def __cinit__(self, number_of=None, bint is_text=False):
        self.number_of = number_of
        self.is_text = is_text
        self.most = MEMO_TEXTS if is_text else PY_SSIZE_T_MAX
        self.of_null = -1
        self.last_size = -1
        self._empty(1024)

    def __dealloc__(self):
        free(self.places)
        free(self.texts)

    cdef int _empty(self, Py_ssize_t room) except -1:
        cdef Py_ssize_t place
        self.places = <Known*>more(self.places, room * sizeof(Known))
        self.room, self.count = room, 0
        for place in range(room):
            self.places[place].number = -1
        return 0

    cdef int _widen(self) except -1:
        """Double the room of the table."""
        cdef Known* old = self.places
        cdef Py_ssize_t place, room = self.room
        cdef Known* new = <Known*>more(NULL, 2 * room * sizeof(Known))
        for place in range(2 * room):
            new[place].number = -1
        self.places, self.room = new, 2 * room
        for place in range(room):
            if old[place].number >= 0:
                self._place(old[place].hash, NULL, 0)[0] = old[place]
        free(old)
        return 0

    cdef Known* _place(self, uint64_t hash, Bytes at, Py_ssize_t size) noexcept:
        """The entry of the text, or the free entry for it."""
        cdef Py_ssize_t place = hash & (self.room - 1)
        cdef Known* known
        while True:
            known = &self.places[place]
            if known.number < 0:
                return known
            if at != NULL and known.hash == hash and known.size == size:
                if is_same(self.texts + known.begin, at, size):
                    return known
            place = (place + 1) & (self.room - 1)

    cdef int64_t number(self, Bytes at, Py_ssize_t size) except -1:
        if size < 0:
            if self.of_null < 0:
                self.of_null = self.number_of(None)
            return self.of_null
        if size == self.last_size and is_same(self.texts + self.last_begin, at, size):
            return self.last_number
        return self._find(at, size, hash64(at, size, 0))

    cdef int find_all(self, const Text* texts, int count, int64_t* numbers, int step) except -1:
        """Set every ``step``-th of ``numbers`` to that of a text. At most ``TOGETHER`` texts.

        The table does not fit a core's cache: memory is requested for all of them before the first is looked up.
        """
        cdef uint64_t hashes[TOGETHER]
        cdef Known* known
        cdef int row
        for row in range(count):
            if texts[row].size >= 0:
                hashes[row] = hash64(texts[row].at, texts[row].size, 0)
                prefetch(&self.places[hashes[row] & (self.room - 1)])
        for row in range(count):
            if texts[row].size >= 0:
                known = &self.places[hashes[row] & (self.room - 1)]
                if known.number >= 0:
                    prefetch(self.texts + known.begin)
                    prefetch(self.texts + known.begin + known.size)
        for row in range(count):
            if texts[row].size >= 0:
                numbers[row * step] = self._find(texts[row].at, texts[row].size, hashes[row])
            else:
                numbers[row * step] = self.number(NULL, -1)
        return 0

    cdef int64_t _find(self, Bytes at, Py_ssize_t size, uint64_t hash) except -1:
        cdef Known* known
        cdef int64_t number
        cdef Py_ssize_t room
        known = self._place(hash, at, size)
        if known.number >= 0:
            self.last_begin, self.last_size, self.last_number = known.begin, size, known.number
            return known.number
        if self.number_of is None:
            number = self.count
        elif self.is_text:
            number = self.number_of(PyUnicode_DecodeUTF8(<const char*>at, size, NULL))
        else:
            number = self.number_of(PyBytes_FromStringAndSize(<const char*>at, size))
        if size > MEMO_LONGEST:
            return number
        if self.count >= self.most:
            self._empty(self.room)
            self.texts_size, self.last_size = 0, -1
        elif 2 * self.count >= self.room:
            self._widen()
        if self.texts_room - self.texts_size <= size:  # an empty text needs an address too
            room = 2 * self.texts_room + 65536
            self.texts = <uint8_t*>more(self.texts, room)
            self.texts_room = room
        known = self._place(hash, at, size)
        memcpy(self.texts + self.texts_size, at, size)
        known.hash, known.begin, known.size, known.number = hash, self.texts_size, size, number
        self.texts_size += size
        self.count += 1
        return number


cdef class GroupRows(Memo):
    """Numbers the rows of (user, application, place), which are numbers themselves, in the order in which they come."""

    def add(self, int64_t user, int64_t app, int64_t place):
        """Return the number of a row."""
        cdef int64_t[3] row
        row[0], row[1], row[2] = user, app, place
        return self._find(<Bytes>row, sizeof(row), hash64(<Bytes>row, sizeof(row), 0))

    def add_all(self, rows):
        """Return the numbers of rows (int64), given as three numbers each (int64) behind each other."""
        cdef Memory memory = Memory(rows, "lq")
        cdef Bytes at = <Bytes>memory.view.buf
        cdef Py_ssize_t count = memory.count // 3, row
        cdef object made = PyBytes_FromStringAndSize(NULL, 8 * count)
        cdef int64_t* numbers = <int64_t*>PyBytes_AS_STRING(made)
        for row in range(count):
            numbers[row] = self._find(at + 24 * row, 24, hash64(at + 24 * row, 24, 0))
        return np.frombuffer(made, np.int64)

    def columns(self, Py_ssize_t first):
        """Return users, applications and places of the rows from ``first`` on, arrays of int64."""
        if not 0 <= first <= self.count:
            raise IndexError(first)
        size = (self.count - first) * 24
        rows = np.frombuffer(PyBytes_FromStringAndSize(<const char*>self.texts + first * 24, size), np.int64)
        return tuple(rows.reshape(-1, 3).T)

    def __len__(self):
        return self.count


cdef class Keys:
    """The name and the group of an access, from its texts.

    ``shared``: a function for each shared text that returns its number. ``group``: returns the group of such numbers
    (int64, as bytes). With ``rows`` the first two are those of a user and an application, ``group`` returns the place of
    the others, and the group is the number of the row of all three.
    """

    def __cinit__(self, shared, group, rows=None):
        self.texts = 1 + len(shared)
        self.rows = rows
        if rows is not None and len(shared) < 2:
            raise ValueError("rows need a user and an application")
        if self.texts > TEXTS:
            raise ValueError("more texts than there are places")
        self.memos = [Memo(number_of, True) for number_of in shared]
        self.groups = Memo(group, False)
        self.unnamed_counts = {}

    cdef Py_ssize_t write(self, Text* texts, Columns columns, Bytes* name) except -1:
        """Write the name into ``columns``. Returns its size; counts an access without a name.

        The group of the access, which is appended next, is set by ``settle``: until then the texts stay where they are.
        """
        cdef int place
        cdef Py_ssize_t size
        if self.waiting_count == TOGETHER:
            self.settle(columns)
        size = columns.write(texts[0], name)
        if not size:
            self.count_unnamed(texts)
            return 0
        for place in range(1, self.texts):
            self.waiting[place * TOGETHER + self.waiting_count] = texts[place]
        self.waiting_count += 1
        return size

    cdef int settle(self, Columns columns) except -1:
        """Set the groups of the accesses that were appended last."""
        cdef int64_t numbers[TEXTS * TOGETHER]
        cdef int64_t places[3 * TOGETHER]
        cdef Text groups[TOGETHER]
        cdef int row, place, parts = self.texts - 1, count = self.waiting_count, persons = 0 if self.rows is None else 2
        self.waiting_count = 0
        for place in range(parts):
            (<Memo>self.memos[place]).find_all(&self.waiting[(place + 1) * TOGETHER], count, &numbers[place], parts)
        for row in range(count):
            groups[row].at, groups[row].size = <Bytes>&numbers[row * parts + persons], 8 * (parts - persons)
        if self.rows is None:
            self.groups.find_all(groups, count, columns._groups + columns.count - count, 1)
            return 0
        self.groups.find_all(groups, count, &places[2], 3)
        for row in range(count):
            places[3 * row], places[3 * row + 1] = numbers[row * parts], numbers[row * parts + 1]
            groups[row].at, groups[row].size = <Bytes>&places[3 * row], 24
        self.rows.find_all(groups, count, columns._groups + columns.count - count, 1)
        return 0

    cdef int count_unnamed(self, Text* texts) except -1:
        """Count an access without a name in its group."""
        cdef int64_t numbers[TEXTS]
        cdef int place, parts = self.texts - 1, persons = 0 if self.rows is None else 2
        for place in range(parts):
            numbers[place] = (<Memo>self.memos[place]).number(texts[place + 1].at, texts[place + 1].size)
        group = self.groups.number(<Bytes>&numbers[persons], 8 * (parts - persons))
        if self.rows is not None:
            group = self.rows.add(numbers[0], numbers[1], group)
        self.unnamed_counts[group] = self.unnamed_counts.get(group, 0) + 1
        return 0

    cdef dict unnamed(self):
        """The accesses without a name since the last call, by their group."""
        counts = self.unnamed_counts
        self.unnamed_counts = {}
        return counts
