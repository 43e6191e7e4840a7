# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""Lines of known shapes (:mod:`cmsspark.sources.shapes`), read as fast as the machine goes through their bytes.

No Python object is made of a value. A line is taken only where this module is sure of what the decoder would say of it:
plain values of the right types, a record of the day, a name that stands as logged. All others are handed back, and the
decoder's word on them is final. So this module may be missing (no C compiler at hand): all stays the same, only slower.
"""

from cmsspark.xxh64 cimport Bytes, hash64
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint64_t
from libc.stdlib cimport free, realloc
from libc.string cimport memchr, memcmp, memcpy

import numpy as np

cdef enum:
    TEXTS = 8  # of a shape that are needed, at most: the name and what groups are made of
    LONGS = 8
    SHAPES = 16
    MEMO_LONGEST = 1024
    MEMO_TEXTS = 50_000
    DIGITS = 18  # of a number that surely fits 64 bits
    DOUBLE_DIGITS = 15  # of one that a double holds to the last

cdef struct Text:
    Bytes at
    Py_ssize_t size  # -1: null


def hash_of(const uint8_t[::1] name):
    """The hash of a name, as the catalogue has it."""
    return hash64(&name[0], name.shape[0], 0) if name.shape[0] else hash64(NULL, 0, 0)


# --- columns that grow ---

cdef class Columns:
    """Accesses that were read, in columns of ``count``: what :class:`cmsspark.access.AccessBatch` keeps of them."""

    cdef readonly Py_ssize_t count
    cdef Py_ssize_t room, names_size, names_room
    cdef uint64_t* _hashes
    cdef int64_t* _groups
    cdef int64_t* _sizes
    cdef int64_t* _begins
    cdef int64_t* _ends
    cdef uint8_t* _names

    def __dealloc__(self):
        free(self._hashes)
        free(self._groups)
        free(self._sizes)
        free(self._begins)
        free(self._ends)
        free(self._names)

    cdef int _grow(self, Py_ssize_t name) except -1:
        # The room is told last: where memory ends on the way, what is there is no smaller than it says.
        cdef Py_ssize_t room
        if self.count == self.room:
            room = max(1024, 2 * self.room)
            self._hashes = <uint64_t*>_more(self._hashes, room * 8)
            self._groups = <int64_t*>_more(self._groups, room * 8)
            self._sizes = <int64_t*>_more(self._sizes, room * 8)
            self._begins = <int64_t*>_more(self._begins, room * 8)
            self._ends = <int64_t*>_more(self._ends, room * 8)
            self.room = room
        if self.names_room - self.names_size < name:
            room = 2 * self.names_room + name + 65536
            self._names = <uint8_t*>_more(self._names, room)
            self.names_room = room
        return 0

    cdef Py_ssize_t _write(self, Text logged, Bytes* name) except -1:
        """Write a file's name, as rule 10 has it, behind the others; ``name`` is where it begins. Returns its size.

        It counts once :meth:`_append` is called.
        """
        cdef Bytes at = logged.at
        cdef Bytes end = at + logged.size
        cdef Bytes slash
        cdef uint8_t* to
        if logged.size <= 0:
            return 0
        self._grow(logged.size)
        to = self._names + self.names_size
        if end - at >= 5 and not memcmp(at, b"file:", 5):
            at += 5
        if end - at > 7 and not memcmp(at, b"root://", 7):
            slash = <Bytes>memchr(at + 7, b"/", end - at - 7)
            if slash != NULL and slash > at + 7:
                at = slash
        if _has_two_slashes(at, end - at):
            while at < end:
                to[0] = at[0]
                to += 1
                at += 1
                if (to - 1)[0] == b"/":
                    while at < end and at[0] == b"/":
                        at += 1
        else:
            memcpy(to, at, end - at)
            to += end - at
        at = self._names + self.names_size
        if to - at >= 9 and not memcmp(at, b"/eos/cms/", 9):
            at += 8
        name[0] = at
        return to - at

    cdef int _append(self, Bytes name, Py_ssize_t size, int64_t group, int64_t read_bytes) noexcept:
        self._hashes[self.count] = hash64(name, size, 0)
        self._groups[self.count] = group
        self._sizes[self.count] = read_bytes
        self._begins[self.count] = name - self._names
        self.names_size = name - self._names + size
        self._ends[self.count] = self.names_size
        self.count += 1
        return 0

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
        """Bytes read, int64."""
        return np.frombuffer(PyBytes_FromStringAndSize(<char*>self._sizes, self.count * 8), np.int64)

    def name(self, Py_ssize_t row):
        """The name in ``row``, as bytes. Raises IndexError."""
        if not 0 <= row < self.count:
            raise IndexError(row)
        return PyBytes_FromStringAndSize(<char*>self._names + self._begins[row], self._ends[row] - self._begins[row])


cdef void* _more(void* old, Py_ssize_t size) except NULL:
    cdef void* new = realloc(old, size)
    if new == NULL:
        raise MemoryError
    return new


# --- numbers of texts, remembered ---

cdef struct Known:
    uint64_t hash
    Py_ssize_t begin, size
    int64_t number  # -1: nothing is known here


cdef class Memo:
    """Numbers of texts, which ``number_of`` says once; all is forgotten before there are more than ``most``."""

    cdef Known* places
    cdef Py_ssize_t room, count, most
    cdef uint8_t* texts
    cdef Py_ssize_t texts_size, texts_room
    cdef object number_of
    cdef bint is_text
    cdef int64_t of_null

    def __cinit__(self, number_of, bint is_text, Py_ssize_t most):
        self.number_of = number_of
        self.is_text = is_text
        self.most = most
        self.of_null = -1
        self._empty(1024)

    def __dealloc__(self):
        free(self.places)
        free(self.texts)

    cdef int _empty(self, Py_ssize_t room) except -1:
        cdef Py_ssize_t place
        self.places = <Known*>_more(self.places, room * sizeof(Known))
        self.room, self.count = room, 0
        for place in range(room):
            self.places[place].number = -1
        return 0

    cdef int _widen(self) except -1:
        """Twice the room for what is known."""
        cdef Known* old = self.places
        cdef Py_ssize_t place, room = self.room
        cdef Known* new = <Known*>_more(NULL, 2 * room * sizeof(Known))
        for place in range(2 * room):
            new[place].number = -1
        self.places, self.room = new, 2 * room
        for place in range(room):
            if old[place].number >= 0:
                self._place(old[place].hash, NULL, 0)[0] = old[place]
        free(old)
        return 0

    cdef Known* _place(self, uint64_t hash, Bytes at, Py_ssize_t size) noexcept:
        """Where the text is, or the free place where it goes."""
        cdef Py_ssize_t place = hash & (self.room - 1)
        cdef Known* known
        while True:
            known = &self.places[place]
            if known.number < 0:
                return known
            if at != NULL and known.hash == hash and known.size == size:
                if not memcmp(self.texts + known.begin, at, size):
                    return known
            place = (place + 1) & (self.room - 1)

    cdef int64_t number(self, Bytes at, Py_ssize_t size) except -1:
        cdef uint64_t hash
        cdef Known* known
        cdef int64_t number
        cdef Py_ssize_t room
        if size < 0:
            if self.of_null < 0:
                self.of_null = self.number_of(None)
            return self.of_null
        hash = hash64(at, size, 0)
        known = self._place(hash, at, size)
        if known.number >= 0:
            return known.number
        if self.is_text:
            number = self.number_of(PyUnicode_DecodeUTF8(<const char*>at, size, NULL))
        else:
            number = self.number_of(PyBytes_FromStringAndSize(<const char*>at, size))
        if size > MEMO_LONGEST:
            return number
        if self.count >= self.most:
            self._empty(self.room)
            self.texts_size = 0
        elif 2 * self.count >= self.room:
            self._widen()
        if self.texts_room - self.texts_size < size:
            room = 2 * self.texts_room + 65536
            self.texts = <uint8_t*>_more(self.texts, room)
            self.texts_room = room
        known = self._place(hash, at, size)
        memcpy(self.texts + self.texts_size, at, size)
        known.hash, known.begin, known.size, known.number = hash, self.texts_size, size, number
        self.texts_size += size
        self.count += 1
        return number


# --- shapes ---

cdef struct Shape:
    int count
    Bytes* literals
    Py_ssize_t* sizes
    int* slots
    bint sizes_are_texts
    int64_t taken


cdef class Lines:
    """Reads lines of the shapes that it was told.

    ``shared``: what the number of each shared text is. ``group``: the group of such numbers (int64, as bytes).
    ``day``: its number, from 1970 on.
    """

    cdef Shape shapes[SHAPES]
    cdef int order[SHAPES]
    cdef int count
    cdef list kept
    cdef list memos
    cdef Memo groups
    cdef int texts, reads, writes
    cdef int64_t day
    cdef int64_t write_only, no_lfn
    cdef list out_of_day

    def __cinit__(self, shared, group, int reads, int writes, int64_t day):
        self.count = 0
        self.kept = []
        self.memos = [Memo(number_of, True, MEMO_TEXTS) for number_of in shared]
        self.groups = Memo(group, False, 1 << 62)
        self.texts, self.reads, self.writes = 1 + len(shared), reads, writes
        if self.texts > TEXTS or reads + writes + 1 > LONGS:
            raise ValueError("more fields than there are places")
        self.day = day
        self.out_of_day = []

    def __dealloc__(self):
        cdef int place
        for place in range(self.count):
            free(self.shapes[place].literals)
            free(self.shapes[place].sizes)
            free(self.shapes[place].slots)

    @property
    def is_full(self):
        """Whether no shape can be added."""
        return self.count == SHAPES

    def add(self, shape):
        """Take lines of ``shape`` (:class:`cmsspark.sources.shapes.Shape`) from now on."""
        needs = shape.needs
        if self.is_full:
            raise ValueError("too many shapes")
        if (1 + len(needs.shared), len(needs.read), len(needs.written)) != (self.texts, self.reads, self.writes):
            raise ValueError("a shape of other needs")
        if len(shape.literals) != len(shape.slots) + 1:
            raise ValueError("a shape has one literal more than values")
        if not all(-1 <= slot <= self.texts + self.reads + self.writes for slot in shape.slots):
            raise ValueError("a slot for nothing that is needed")
        cdef Shape* new = &self.shapes[self.count]
        cdef int place
        new.count = len(shape.slots)
        new.literals = <Bytes*>_more(NULL, (new.count + 1) * sizeof(Bytes))
        new.sizes = <Py_ssize_t*>_more(NULL, (new.count + 1) * sizeof(Py_ssize_t))
        new.slots = <int*>_more(NULL, (new.count + 1) * sizeof(int))
        new.sizes_are_texts = shape.needs.sizes_are_texts
        new.taken = 0
        for place, literal in enumerate(shape.literals):
            new.literals[place] = <Bytes><char*>literal
            new.sizes[place] = len(literal)
        for place, slot in enumerate(shape.slots):
            new.slots[place] = slot
        self.kept.append(shape)
        self.order[self.count] = self.count
        self.count += 1

    def taken(self):
        """(generation, lines taken since this was asked last) of each shape."""
        found = []
        for place, shape in enumerate(self.kept):
            found.append((shape.needs.generation, self.shapes[place].taken))
            self.shapes[place].taken = 0
        return found

    def bins(self):
        """Records since this was asked last: written only, without a name, the timestamps of those out of the day."""
        found = self.write_only, self.no_lfn, self.out_of_day
        self.write_only, self.no_lfn, self.out_of_day = 0, 0, []
        return found

    def knows(self, line):
        """Whether a line (without its newline) has one of the shapes, whatever its values mean."""
        cdef Text texts[TEXTS]
        cdef int64_t longs[LONGS]
        cdef const uint8_t[::1] content = line
        cdef int shape
        if not content.shape[0] or not _is_plain(&content[0], &content[0] + content.shape[0]):
            return False
        for shape in range(self.count):
            if self._fits(&self.shapes[shape], &content[0], &content[0] + content.shape[0], texts, longs):
                return True
        return False

    def read(self, const uint8_t[::1] content, Columns columns):
        """Take lines of ``content``, each with its newline.

        Returns the number of lines and those that are left: (first byte, behind the last byte, number of the first
        line) of each run of them.
        """
        cdef Bytes begin = &content[0] if content.shape[0] else NULL
        cdef Bytes at = begin
        cdef Bytes end = begin + content.shape[0]
        cdef Bytes line_end
        cdef Py_ssize_t lines = 0, left_from = -1, left_line = 0
        left = []
        while at < end:
            line_end = <Bytes>memchr(at, b"\n", end - at)
            # A last line that nothing ends is not this module's.
            if line_end != NULL and self._take(at, line_end, columns):
                if left_from >= 0:
                    left.append((left_from, at - begin, left_line))
                    left_from = -1
            elif left_from < 0:
                left_from, left_line = at - begin, lines
            lines += 1
            at = line_end + 1 if line_end != NULL else end
        if left_from >= 0:
            left.append((left_from, end - begin, left_line))
        return lines, left

    cdef bint _take(self, Bytes at, Bytes end, Columns columns) except -1:
        """Whether the line was taken."""
        cdef Text texts[TEXTS]
        cdef int64_t longs[LONGS]
        cdef int64_t numbers[TEXTS]
        cdef int place, shape, number
        cdef int64_t size = 0, written = 0, timestamp
        cdef Bytes name = NULL
        cdef Py_ssize_t length = 0
        if not self.count or not _is_plain(at, end):
            return False
        for place in range(self.count):
            shape = self.order[place]
            if self._fits(&self.shapes[shape], at, end, texts, longs):
                break
        else:
            return False
        if place:
            # The shape that fitted last comes first.
            self.order[place], self.order[0] = self.order[0], shape
        self.shapes[shape].taken += 1
        timestamp = longs[self.reads + self.writes]
        if timestamp >= 0 and _day(timestamp) != self.day:
            self.out_of_day.append(timestamp)
            return True
        for number in range(self.reads):
            if longs[number] > 0:
                size = longs[number]
                break
        for number in range(self.reads, self.reads + self.writes):
            written |= longs[number] > 0
        if written and not size:
            self.write_only += 1
            return True
        length = columns._write(texts[0], &name)
        if not length:
            self.no_lfn += 1
            return True
        for number in range(1, self.texts):
            numbers[number] = (<Memo>self.memos[number - 1]).number(texts[number].at, texts[number].size)
        columns._append(name, length, self.groups.number(<Bytes>&numbers[1], 8 * (self.texts - 1)), size)
        return True

    cdef bint _fits(self, Shape* shape, Bytes at, Bytes end, Text* texts, int64_t* longs) noexcept nogil:
        """Whether the line has the shape; what is needed of it goes to ``texts`` and ``longs``."""
        cdef int place, slot
        cdef Py_ssize_t size
        cdef Bytes begin
        for place in range(self.texts):
            texts[place].size = -1
        for place in range(self.reads + self.writes):
            longs[place] = 0
        longs[self.reads + self.writes] = -1
        for place in range(shape.count):
            size = shape.sizes[place]
            if end - at <= size or memcmp(at, shape.literals[place], size):
                return False
            at += size
            slot = shape.slots[place]
            if at[0] == b'"':
                begin = at + 1
                at = <Bytes>memchr(begin, b'"', end - begin)
                if at == NULL:
                    return False
                if 0 <= slot < self.texts:
                    texts[slot].at, texts[slot].size = begin, at - begin
                elif slot >= self.texts:
                    slot -= self.texts
                    if not shape.sizes_are_texts or slot == self.reads + self.writes:
                        return False
                    if at > begin and _whole(begin, at, &longs[slot]) != at:
                        return False
                at += 1
            elif slot < 0:
                at = _unneeded(at, end)
                if at == NULL:
                    return False
            elif end - at > 4 and not memcmp(at, b"null", 4):
                at += 4
            elif slot < self.texts:
                return False
            else:
                slot -= self.texts
                if shape.sizes_are_texts and slot < self.reads + self.writes:
                    return False
                begin = at
                at = _whole(begin, end, &longs[slot])
                if at == begin or (at - begin > 1 and begin[0] == b"0"):
                    return False
                if at - begin <= DOUBLE_DIGITS:
                    at = _past_zeros(at, end)
        return end - at == shape.sizes[shape.count] and not memcmp(at, shape.literals[shape.count], end - at)


cdef inline int64_t _day(int64_t timestamp) noexcept nogil:
    """Days since 1970 of seconds, milliseconds or microseconds, told by size."""
    if timestamp < 100_000_000_000LL:
        return timestamp // 86_400
    if timestamp < 100_000_000_000_000LL:
        return timestamp // 86_400_000
    return timestamp // 86_400_000_000LL


cdef inline bint _is_plain(Bytes at, Bytes end) except -1:
    """Whether a line is UTF-8 without an escape or a control character."""
    cdef uint8_t bad = 0, high = 0
    cdef Py_ssize_t place, size = end - at
    for place in range(size):
        bad |= (at[place] < 32) | (at[place] == 92)
        high |= at[place]
    if bad:
        return False
    if high & 128:
        try:
            PyUnicode_DecodeUTF8(<const char*>at, size, NULL)
        except UnicodeDecodeError:
            return False
    return True


cdef inline bint _has_two_slashes(Bytes at, Py_ssize_t size) noexcept nogil:
    cdef uint8_t found = 0
    cdef Py_ssize_t place
    for place in range(size - 1):
        found |= (at[place] == 47) & (at[place + 1] == 47)
    return found


cdef inline Bytes _digits(Bytes at, Bytes end) noexcept nogil:
    """Behind the digits that begin at ``at``."""
    while at < end and 48 <= at[0] <= 57:
        at += 1
    return at


cdef inline Bytes _whole(Bytes at, Bytes end, int64_t* value) noexcept nogil:
    """Behind a number of up to ``DIGITS`` digits; where there is none, ``at``."""
    cdef Bytes begin = at
    cdef int64_t found = 0
    while at < end and 48 <= at[0] <= 57:
        found = 10 * found + (at[0] - 48)
        at += 1
        if at - begin > DIGITS:
            return begin
    value[0] = found
    return at


cdef inline Bytes _past_zeros(Bytes at, Bytes end) noexcept nogil:
    """Behind a fraction of zeros that begins at ``at``, where one does."""
    cdef Bytes begin = at + 1
    if at >= end or at[0] != b".":
        return at
    at = begin
    while at < end and at[0] == b"0":
        at += 1
    return at if at > begin else begin - 1


cdef inline Bytes _unneeded(Bytes at, Bytes end) noexcept nogil:
    """Behind a number or word of JSON; NULL where there is none."""
    cdef Bytes begin
    cdef bint is_negative = at < end and at[0] == b"-"
    at += is_negative
    begin = at
    at = _digits(at, end)
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
        at = _digits(begin, end)
        if at == begin:
            return NULL
    if at < end and (at[0] == b"e" or at[0] == b"E"):
        at += 1
        if at < end and (at[0] == b"+" or at[0] == b"-"):
            at += 1
        begin = at
        at = _digits(begin, end)
        if at == begin:
            return NULL
    return at
