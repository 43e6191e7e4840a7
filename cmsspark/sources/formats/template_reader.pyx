# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The fast reader of lines that fit a template (:mod:`cmsspark.sources.formats.fast_json`).

It creates no Python objects for values. It accepts a line only where its result certainly equals that of the decoder:
UTF-8 without escapes, plain values of the right types. Other lines are returned to the caller, and the decoder decides
about them. This module is optional: without it results are the same, only slower.
"""

from cmsspark.sources.formats.json_values cimport is_plain, past_scalar
from cmsspark.sources.formats.packed cimport TEXTS, Columns, Keys, day_of, is_same, more
from cmsspark.sources.values cimport Text, is_long_text, next_quote, past_long
from cmsspark.base.xxh64 cimport Bytes
from cpython.bytes cimport PyBytes_FromStringAndSize
from libc.stdint cimport int64_t, uint8_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp

include "cmsspark/base/object_memory.pxi"
include "cmsspark/base/source_digest.pxi"
include "cmsspark/sources/formats/line_reader.pxi"

cdef enum:
    LONGS = 8  # required numbers of a template at most
    TEMPLATES = 16


cdef struct LineTemplate:
    int count
    Bytes* literals
    Py_ssize_t* sizes
    int* slots
    bint sizes_are_texts, has_parts
    int64_t taken


cdef class Lines(LineReader):
    """Reads lines that fit one of its templates.

    ``shared``, ``group`` and ``rows``: as for :class:`cmsspark.sources.formats.packed.Keys`. ``day``: its number, from
    1970 on. ``sizes_add_up``, ``has_read_type``: as for :class:`cmsspark.sources.formats.fast_json.RequiredFields`.
    ``program``: the number of the text that names a program, 0 for none.
    """

    cdef LineTemplate templates[TEMPLATES]
    cdef int order[TEMPLATES]
    # The length of the common prefix of any two templates; the positions of the literals in the current line.
    cdef int common[TEMPLATES][TEMPLATES]
    cdef Bytes* begins
    cdef int count
    cdef list kept
    # Texts, the read type with them: it is the last one.
    cdef int texts, reads, writes, program, read_type
    cdef bint sizes_add_up
    cdef int64_t write_only, deletion, aside_count
    cdef object aside_bytes

    def __cinit__(
        self, shared, group, int reads, int writes, int64_t day, bint sizes_add_up=False, int program=0,
        bint has_read_type=False, rows=None
    ):
        self.count = 0
        self.kept = []
        self.group_keys = Keys(shared, group, rows)
        self.read_type = self.group_keys.texts if has_read_type else 0
        self.texts, self.reads, self.writes = self.group_keys.texts + has_read_type, reads, writes
        self.sizes_add_up, self.program = sizes_add_up, program
        self.aside_bytes = 0
        if reads + writes + 1 > LONGS or self.texts > TEXTS or not 0 <= program < self.group_keys.texts:
            raise ValueError("more fields than there are places")
        self.day = day
        self.out_of_day = []

    def __dealloc__(self):
        cdef int place
        free(self.begins)
        for place in range(self.count):
            free(self.templates[place].literals)
            free(self.templates[place].sizes)
            free(self.templates[place].slots)

    @property
    def is_full(self):
        """Whether no template can be added."""
        return self.count == TEMPLATES

    def add(self, template):
        """Accept lines that fit ``template`` (:class:`cmsspark.sources.formats.fast_json.LineTemplate`) from now on."""
        required = template.required
        if self.is_full:
            raise ValueError("too many templates")
        found = len(required.texts), len(required.read), len(required.written)
        if found != (self.texts, self.reads, self.writes):
            raise ValueError("a template of other required fields")
        if len(template.literals) != len(template.slots) + 1:
            raise ValueError("a template has one literal more than values")
        if not all(-1 <= slot <= self.texts + self.reads + self.writes for slot in template.slots):
            raise ValueError("a slot for nothing that is needed")
        cdef LineTemplate* new = &self.templates[self.count]
        cdef int place
        new.count = len(template.slots)
        new.literals = <Bytes*>more(NULL, (new.count + 1) * sizeof(Bytes))
        new.sizes = <Py_ssize_t*>more(NULL, (new.count + 1) * sizeof(Py_ssize_t))
        new.slots = <int*>more(NULL, (new.count + 1) * sizeof(int))
        new.sizes_are_texts, new.has_parts = template.required.sizes_are_texts, template.required.data_is_text
        new.taken = 0
        for place, literal in enumerate(template.literals):
            new.literals[place] = <Bytes><char*>literal
            new.sizes[place] = len(literal)
        for place, slot in enumerate(template.slots):
            new.slots[place] = slot
        for place, other in enumerate(self.kept):
            self.common[self.count][place] = self.common[place][self.count] = _common(template, other)
        self.kept.append(template)
        self.begins = <Bytes*>more(self.begins, max([len(one.literals) for one in self.kept]) * sizeof(Bytes))
        self.order[self.count] = self.count
        self.count += 1

    def taken(self):
        """(format version, lines read since the last call) of each template."""
        found = []
        for place, template in enumerate(self.kept):
            found.append((template.required.format_version, self.templates[place].taken))
            self.templates[place].taken = 0
        return found

    def bins(self):
        """Since the last call: deletions, write-only records, records without a name by their group, and timestamps of
        records of other days.
        """
        found = self.deletion, self.write_only, self.group_keys.unnamed(), self.days()
        self.deletion = self.write_only = 0
        return found

    def set_aside(self):
        """Since the last call: accesses without bytes of their own, and the bytes that their records have."""
        found = self.aside_count, self.aside_bytes
        self.aside_count, self.aside_bytes = 0, 0
        return found

    def knows(self, line):
        """Whether a line (without its newline) fits one of the templates, whatever its values mean."""
        cdef Text texts[TEXTS]
        cdef int64_t longs[LONGS]
        cdef Memory memory = Memory(line)
        cdef Bytes at = <Bytes>memory.view.buf
        cdef Bytes end = at + memory.count
        if not self.count or at == end:
            return False
        return is_plain(at, end) and self._find(at, end, texts, longs) >= 0

    cdef bint _take(self, Bytes at, Bytes end, Columns columns) except -1:
        """Whether the line was taken."""
        cdef Text texts[TEXTS]
        cdef int64_t longs[LONGS]
        cdef int place, template
        cdef int64_t size
        cdef Bytes name = NULL
        cdef Py_ssize_t length = 0
        if not self.count or not is_plain(at, end):
            return False
        place = self._find(at, end, texts, longs)
        if place < 0:
            return False
        if self.sizes_add_up and not _add_up(longs, self.reads):
            return False
        template = self.order[place]
        if place:
            # Try the template that fitted last first.
            self.order[place], self.order[0] = self.order[0], template
        self.templates[template].taken += 1
        if not self._is_of_day(longs[self.reads + self.writes]):
            return True
        if self.program and _is_deletion(texts[self.program]):
            self.deletion += 1
            return True
        size = _size_read(longs, self.reads, self.reads + self.writes)
        if size < 0:
            self.write_only += 1
            return True
        length = self.group_keys.write(texts, columns, &name)
        if length:
            if self.read_type and _is_aside(texts[self.read_type]):
                self.aside_count += 1
                self.aside_bytes += size
                size = -1
            columns.append(name, length, size)
        return True

    cdef int _find(self, Bytes at, Bytes end, Text* texts, int64_t* longs) noexcept nogil:
        """The index in ``order`` of the template that the line fits, -1 where it fits none. Stores required values in
        ``texts`` and ``longs``.
        """
        cdef int place, slot, template, before = self.order[0], first = 0, reached = 0
        self.begins[0] = at
        for slot in range(self.texts):
            texts[slot].size = -1
        for slot in range(self.reads + self.writes):
            longs[slot] = 0
        longs[self.reads + self.writes] = -1
        for place in range(self.count):
            template = self.order[place]
            if place:
                # Templates mostly differ late, so skip the common prefix with the template tried before.
                first = min(reached, self.common[before][template])
                for slot in range(first, min(reached + 1, self.templates[before].count)):
                    self._forget(self.templates[before].slots[slot], texts, longs)
            reached = self._reach(&self.templates[template], first, end, texts, longs)
            if reached < 0:
                return place
            before = template
        return -1

    cdef inline void _forget(self, int slot, Text* texts, int64_t* longs) noexcept nogil:
        """Reset a required value to null."""
        if slot >= self.texts:
            longs[slot - self.texts] = -(slot == self.texts + self.reads + self.writes)
        elif slot >= 0:
            texts[slot].size = -1

    cdef int _reach(self, LineTemplate* template, int first, Bytes end, Text* texts, int64_t* longs) noexcept nogil:
        """-1 where the line fits the template from literal ``first`` on, else the index of the first literal that differs
        or whose value is not plain.
        """
        cdef int place, slot
        cdef Py_ssize_t size
        cdef Bytes begin
        # Local copies: otherwise the members are loaded again for every value.
        cdef Bytes* begins = self.begins
        cdef Bytes* literals = template.literals
        cdef Py_ssize_t* sizes = template.sizes
        cdef int* slots = template.slots
        cdef int texts_end = self.texts, timestamp = self.texts + self.reads + self.writes
        cdef bint sizes_are_texts = template.sizes_are_texts, has_parts = template.has_parts
        cdef Bytes at = begins[first]
        for place in range(first, template.count):
            begins[place] = at
            size = sizes[place]
            if end - at <= size or not is_same(at, literals[place], size):
                return place
            at += size
            slot = slots[place]
            if has_parts and (at - 1)[0] == b"=":
                begin = at
                while at < end and at[0] != b"&" and at[0] != b'"':
                    at += 1
                if slot >= texts_end:
                    if not is_long_text(begin, at, &longs[slot - texts_end]):
                        return place
                elif slot >= 0:
                    texts[slot].at, texts[slot].size = begin, at - begin
            elif at[0] == b'"':
                begin = at + 1
                at = next_quote(begin, end)
                if at == NULL:
                    return place
                if slot < 0:
                    pass
                elif slot < texts_end:
                    texts[slot].at, texts[slot].size = begin, at - begin
                else:
                    if not sizes_are_texts or slot == timestamp:
                        return place
                    if not is_long_text(begin, at, &longs[slot - texts_end]):
                        return place
                at += 1
            elif slot < 0:
                at = past_scalar(at, end)
                if at == NULL:
                    return place
            elif end - at > 4 and not memcmp(at, b"null", 4):
                at += 4
            elif slot < texts_end or (sizes_are_texts and slot < timestamp):
                return place
            else:
                begin = at
                at = past_long(begin, end, &longs[slot - texts_end])
                if at == begin:
                    return place
        begins[template.count] = at
        size = sizes[template.count]
        return -1 if end - at == size and is_same(at, literals[template.count], size) else template.count


cdef inline bint _add_up(int64_t* sizes, int reads) noexcept nogil:
    """Make the first size the sum of those read and the others 0; False where the sum is beyond 2^63-1."""
    cdef int place
    for place in range(1, reads):
        if sizes[place] > 9_223_372_036_854_775_807LL - sizes[0]:
            return False
        sizes[0] += sizes[place]
        sizes[place] = 0
    return True


cdef inline bint _is(Text text, const char* other, Py_ssize_t size) noexcept nogil:
    return text.size == size and not memcmp(text.at, other, size)


cdef inline bint _is_deletion(Text program) noexcept nogil:
    """Whether a program removes files (rule 4); what stands behind its first ``?`` is no part of it."""
    cdef Bytes mark
    if program.size < 2:
        return False
    mark = <Bytes>memchr(program.at, b"?", program.size)
    if mark != NULL:
        program.size = mark - program.at
    return _is(program, b"deletion", 8) or _is(program, b"rm", 2) or _is(program, b"recycle", 7)


cdef inline bint _is_aside(Text read_type) noexcept nogil:
    """Whether the bytes of a record are in another one of its process (rule 11)."""
    return _is(read_type, b"secondary", 9) or _is(read_type, b"embedded", 8)


cdef int _common(template, other):
    """The number of leading literals, each with its slot, that two templates have in common."""
    cdef int found = 0
    if template.required.sizes_are_texts != other.required.sizes_are_texts:
        return 0
    for one, another in zip(zip(template.literals, template.slots), zip(other.literals, other.slots)):
        if one != another:
            break
        found += 1
    return found
