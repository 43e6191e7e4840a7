# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True, initializedcheck=False
"""The fast reader of lines by their keys (:mod:`cmsspark.sources.formats.fast_json`).

Records of some producers leave out what is empty, so that their keys come in thousands of orders and no template fits.
This reader walks over the members of a record and keeps the values of needed keys. As the reader of templates it accepts
a line only where its result certainly equals that of the decoder: one JSON object in UTF-8 without escapes, no needed key
twice, plain values of the right types. Other lines are returned to the caller. This module is optional.
"""

from cmsspark.sources.formats.json_values cimport (Member, is_plain, past_hours, past_key, past_metadata, past_spaces, past_value, past_whole_number)
from cmsspark.sources.formats.packed cimport Columns, Keys, day_of, is_same, more
from cmsspark.sources.values cimport Text, next_quote, past_long
from cmsspark.base.xxh64 cimport Bytes, hash64
from cpython.bytes cimport PyBytes_FromStringAndSize
from cpython.unicode cimport PyUnicode_DecodeUTF8
from libc.stdint cimport int64_t, uint8_t, uint32_t, uint64_t
from libc.stdlib cimport free
from libc.string cimport memchr, memcmp, memcpy

cdef extern from "Python.h":
    double PyOS_string_to_double(const char*, char**, void*) except? -1.0

include "cmsspark/base/object_memory.pxi"
include "cmsspark/base/source_digest.pxi"
include "cmsspark/sources/formats/line_reader.pxi"

cdef enum:
    KEYS = 32  # needed keys at most
    TEXT_SLOTS = 32
    LONG_SLOTS = 8
    BUCKETS = 256
    NO_NAMES = 4
    # Learned keys, a table of their hashes, and the bytes of all of them.
    LEARNED = 4096
    HASHES = 16384
    LEARNED_BYTES = 262144
    # The entries of the begin of an object, and of a record without ``data``.
    BEGIN_OF_DATA = 0
    BEGIN_OF_RECORD = 1

cdef enum:
    IS_TEXT, IS_LONG, IS_HOURS, IS_WHOLE


cdef struct Key:
    Bytes at
    Py_ssize_t size
    int kind, slot, after  # after: the next key with this hash, -1 for none


cdef struct Found:
    # Needed values of one object. Hours and whole numbers stay texts; a long that is null is -1.
    Text texts[TEXT_SLOTS]
    int64_t longs[LONG_SLOTS]
    uint32_t seen


cdef struct Learned:
    # A key with its quotes and what stands before its value, the needed key that it is (-1: none), and the two keys that
    # came behind it last (-1: none yet).
    Py_ssize_t begin, size, key_size
    int place, after, before_that


cdef class KeyLines(LineReader):
    """Reads the needed members of lines. ``texts``, ``hours``, ``wholes`` and ``longs`` are keys of a record's ``data``.

    ``may_be_flat``: where a record has no ``data``, its fields are the record's own; the first text must be among them.

    Most keys come behind the same key as in the lines before, or behind that one where a field between them is empty. So
    each key that was seen knows which two came behind it last; where one of them stands there again, nothing is searched.
    """

    cdef Key keys[KEYS]
    cdef int first[BUCKETS]
    cdef int count, texts, longs
    cdef bint may_be_flat
    cdef list kept
    cdef int64_t lines_taken
    cdef Learned* learned
    cdef int* hashes
    cdef unsigned char* learned_bytes
    cdef int learned_count
    cdef Py_ssize_t learned_size

    def __dealloc__(self):
        free(self.learned)
        free(self.hashes)
        free(self.learned_bytes)

    def __cinit__(self, texts, hours, wholes, longs, bint may_be_flat, int64_t day, *rest):
        cdef int place
        for place in range(BUCKETS):
            self.first[place] = -1
        spans = len(texts) + len(hours) + len(wholes)
        if spans > TEXT_SLOTS or len(longs) > LONG_SLOTS or spans + len(longs) > KEYS:
            raise ValueError("more keys than there are places")
        self.kept = []
        self.count = 0
        self.texts, self.longs = spans, len(longs)
        kinds = [(name, IS_TEXT) for name in texts] + [(name, IS_HOURS) for name in hours]
        kinds += [(name, IS_WHOLE) for name in wholes]
        for place, (name, kind) in enumerate(kinds):
            self._add(name.encode(), kind, place)
        for place, name in enumerate(longs):
            self._add(name.encode(), IS_LONG, place)
        self.learned = <Learned*>more(NULL, LEARNED * sizeof(Learned))
        self.hashes = <int*>more(NULL, HASHES * sizeof(int))
        self.learned_bytes = <unsigned char*>more(NULL, LEARNED_BYTES)
        for place in range(HASHES):
            self.hashes[place] = -1
        for place in (BEGIN_OF_DATA, BEGIN_OF_RECORD):
            self.learned[place].after = self.learned[place].before_that = -1
        self.learned_count, self.learned_size = 2, 0
        self.may_be_flat = may_be_flat
        self.day = day
        self.lines_taken = 0
        self.out_of_day = []

    def _add(self, name, int kind, int slot):
        cdef Key* key = &self.keys[self.count]
        cdef int bucket
        self.kept.append(name)
        key.at, key.size = <Bytes><char*>name, len(name)
        key.kind, key.slot = kind, slot
        bucket = _bucket(key.at, key.size)
        key.after = self.first[bucket]
        self.first[bucket] = self.count
        self.count += 1

    def taken(self):
        """Lines read since the last call."""
        found, self.lines_taken = self.lines_taken, 0
        return found

    cdef bint _take(self, Bytes at, Bytes end, Columns columns) except -1:
        cdef Found of_data, of_record
        cdef Found* found
        cdef int64_t timestamp
        cdef int way
        if at == end or not is_plain(at, end):
            return False
        way = self._scan(at, end, &of_data, &of_record, &timestamp)
        if not way:
            return False
        found = &of_data if way == 1 else &of_record
        if not self._count(found, timestamp, columns):
            return False
        self.lines_taken += 1
        return True

    cdef bint _count(self, Found* found, int64_t timestamp, Columns columns) except -1:
        """Count the record; whether the result is certain."""
        return False

    cdef int _scan(self, Bytes at, Bytes end, Found* of_data, Found* of_record, int64_t* timestamp) noexcept nogil:
        """1 where the needed values are in ``of_data``, 2 where they are in ``of_record``, 0 where that is uncertain."""
        cdef Member member
        cdef bint has_data = False, has_metadata = False, has_more = True
        cdef int last = BEGIN_OF_RECORD
        timestamp[0] = -1
        self._forget(of_data)
        if self.may_be_flat:
            self._forget(of_record)
        if at[0] != b"{":
            return 0
        at += 1
        while True:
            at = self._next(at, end, &member, &last)
            if at == NULL:
                return 0
            if member.size == 4 and not memcmp(member.key, b"data", 4):
                if has_data or at[0] != b"{":
                    return 0
                has_data = True
                at = self._object(at, end, of_data)
            elif member.size == 8 and not memcmp(member.key, b"metadata", 8):
                if has_metadata:
                    return 0
                has_metadata = True
                at = past_metadata(at, end, timestamp)
            elif self.may_be_flat:
                at = self._value(at, end, &member, of_record)
            else:
                at = past_value(at, end)
            if at == NULL:
                return 0
            at = _past_comma(at, end, &has_more)
            if at == NULL:
                return 0
            if not has_more:
                break
        if at != end:
            return 0
        if has_data:
            return 1
        # The first key is that of the name, which a record without data must have.
        return 2 if self.may_be_flat and of_record.seen & 1 else 0

    cdef inline void _forget(self, Found* found) noexcept nogil:
        cdef int place
        for place in range(self.texts):
            found.texts[place].size = -1
        for place in range(self.longs):
            found.longs[place] = -1
        found.seen = 0

    cdef Bytes _object(self, Bytes at, Bytes end, Found* found) noexcept nogil:
        """The end of the object at ``at``, whose needed values are kept; NULL where it is not plain."""
        cdef Member member
        cdef bint has_more = True
        cdef int last = BEGIN_OF_DATA
        at = past_spaces(at + 1, end)
        if at < end and at[0] == b"}":
            return at + 1
        while True:
            at = self._next(at, end, &member, &last)
            if at == NULL:
                return NULL
            at = self._value(at, end, &member, found)
            if at == NULL:
                return NULL
            at = _past_comma(at, end, &has_more)
            if at == NULL or not has_more:
                return at

    cdef inline Bytes _next(self, Bytes at, Bytes end, Member* member, int* last) noexcept nogil:
        """The begin of the value of the member at ``at``, whose key is kept; NULL where there is none.

        ``last``: the learned key before it, -1 for none; it becomes that of this member.
        """
        cdef Learned* previous = &self.learned[last[0]] if last[0] >= 0 else NULL
        cdef int number
        cdef Bytes value
        at = past_spaces(at, end)
        if previous != NULL:
            value = self._past_learned(at, end, previous.after, member, last)
            if value == NULL:
                value = self._past_learned(at, end, previous.before_that, member, last)
            if value != NULL:
                return past_spaces(value, end)
        value = past_key(at, end, member)
        if value == NULL:
            return NULL
        member.place = self._place_of(member)
        number = self._learn(at, value - at, member)
        if previous != NULL and number != previous.after:
            previous.before_that, previous.after = previous.after, number
        last[0] = number
        return value

    cdef inline Bytes _past_learned(self, Bytes at, Bytes end, int number, Member* member, int* last) noexcept nogil:
        """The end of the learned key ``number`` (-1: none) where it stands at ``at``, else NULL."""
        cdef Learned* learned
        if number < 0:
            return NULL
        learned = &self.learned[number]
        if end - at <= learned.size or not is_same(at, self.learned_bytes + learned.begin, learned.size):
            return NULL
        member.key, member.size, member.place = at + 1, learned.key_size, learned.place
        last[0] = number
        return at + learned.size

    cdef int _place_of(self, Member* member) noexcept nogil:
        """The place of a needed key, -1 for another."""
        cdef int place = self.first[_bucket(member.key, member.size)]
        while place >= 0:
            if self.keys[place].size == member.size and is_same(self.keys[place].at, member.key, member.size):
                return place
            place = self.keys[place].after
        return -1

    cdef int _learn(self, Bytes at, Py_ssize_t size, Member* member) noexcept nogil:
        """The number of a key with all that stands before its value, -1 where there is no room for another one."""
        cdef Py_ssize_t place = hash64(at, size, 0) & (HASHES - 1)
        cdef Learned* learned
        while self.hashes[place] >= 0:
            learned = &self.learned[self.hashes[place]]
            if learned.size == size and is_same(self.learned_bytes + learned.begin, at, size):
                return self.hashes[place]
            place = (place + 1) & (HASHES - 1)
        if self.learned_count == LEARNED or LEARNED_BYTES - self.learned_size < size:
            return -1
        learned = &self.learned[self.learned_count]
        memcpy(self.learned_bytes + self.learned_size, at, size)
        learned.begin, learned.size, learned.key_size = self.learned_size, size, member.size
        learned.place, learned.after, learned.before_that = member.place, -1, -1
        self.learned_size += size
        self.hashes[place] = self.learned_count
        self.learned_count += 1
        return self.learned_count - 1

    cdef inline Bytes _value(self, Bytes at, Bytes end, Member* member, Found* found) noexcept nogil:
        """The end of a member's value, which is kept where its key is needed; NULL where it is not plain."""
        cdef int place = member.place
        cdef Key* key
        cdef Bytes begin
        cdef uint32_t bit
        if at == end:
            return NULL
        if place < 0:
            return past_value(at, end)
        key = &self.keys[place]
        bit = <uint32_t>1 << place
        if found.seen & bit:
            return NULL
        found.seen |= bit
        if end - at > 4 and not memcmp(at, b"null", 4):
            return at + 4
        if key.kind == IS_TEXT:
            if at[0] != b'"':
                return NULL
            begin = at + 1
            at = next_quote(begin, end)
            if at == NULL:
                return NULL
            found.texts[key.slot].at, found.texts[key.slot].size = begin, at - begin
            return at + 1
        begin = at
        if key.kind == IS_LONG:
            at = past_long(begin, end, &found.longs[key.slot])
        elif key.kind == IS_HOURS:
            at = past_hours(begin, end)
        else:
            at = past_whole_number(begin, end)
        if at == begin:
            return NULL
        if key.kind != IS_LONG:
            found.texts[key.slot].at, found.texts[key.slot].size = begin, at - begin
        return at


cdef class AccessLines(KeyLines):
    """Reads accesses. ``longs`` are the sizes read, ``reads`` of them, then the sizes written.

    ``shared``, ``group`` and ``rows``: as for :class:`cmsspark.sources.formats.packed.Keys`. ``no_names``: values of the first text
    that are no name. ``ends``: the numbers of the texts of :class:`cmsspark.sources.formats.fast_json.AccessKeys`.
    """

    cdef int reads, site, server, source, target, source_status, target_status, no_name_count
    cdef int64_t write_only
    cdef tuple no_names
    cdef Text no_name_texts[NO_NAMES]

    def __init__(self, texts, hours, wholes, longs, may_be_flat, day, int reads, shared, group, rows, no_names, ends):
        self.group_keys = Keys(shared, group, rows)
        if self.group_keys.texts != len(texts):
            raise ValueError("give a function for each text behind the name")
        self.reads = reads
        self.write_only = 0
        self.no_names = tuple(name.encode() for name in no_names)
        if len(self.no_names) > NO_NAMES:
            raise ValueError("more names than there are places")
        for place, name in enumerate(self.no_names):
            self.no_name_texts[place].at, self.no_name_texts[place].size = <Bytes><char*>name, len(name)
        self.no_name_count = len(self.no_names)
        self.site, self.server, self.source, self.target, self.source_status, self.target_status = ends

    def bins(self):
        """Since the last call: write-only records, and records without a name by their group."""
        found = self.write_only, self.group_keys.unnamed()
        self.write_only = 0
        return found

    cdef bint _count(self, Found* found, int64_t timestamp, Columns columns) except -1:
        cdef int64_t size
        cdef Bytes name = NULL
        cdef Py_ssize_t length
        cdef int place
        if not self._is_of_day(timestamp):
            return True
        size = _size_read(found.longs, self.reads, self.longs)
        if size < 0:
            self.write_only += 1
            return True
        for place in range(self.no_name_count):
            length = self.no_name_texts[place].size
            if found.texts[0].size == length and is_same(found.texts[0].at, self.no_name_texts[place].at, length):
                found.texts[0].size = -1
                break
        self._shorten(found.texts)
        length = self.group_keys.write(found.texts, columns, &name)
        if length:
            columns.append(name, length, size)
        return True

    cdef inline void _shorten(self, Text* texts) noexcept nogil:
        """Leave of the texts what decides the site and whether an access is remote (rules 44, 45): groups of texts that
        mean the same are one, which is looked up once.
        """
        cdef Text* source = &texts[self.source]
        cdef Text* target = &texts[self.target]
        cdef bint is_same_site
        if _is_known(texts[self.site]):
            texts[self.server].size = -1
        if (source.size <= 0 or target.size <= 0 or not _is_resolved(texts[self.source_status])
                or not _is_resolved(texts[self.target_status])):
            source.size = target.size = -1
        else:
            is_same_site = source.size == target.size and is_same(source.at, target.at, source.size)
            source.at, source.size = <Bytes><const char*>b"a", 1
            target.at, target.size = <Bytes><const char*>(b"a" if is_same_site else b"b"), 1
        texts[self.source_status].size = texts[self.target_status].size = -1


cdef class JobLines(KeyLines):
    """Reads jobs: the first texts are id, status, type and site, the first hours the CPU and wall-clock times, ``wholes``
    begin with the exit code, ``longs`` with the record's time; all others stand for themselves.
    """

    cdef int plain_texts, hours, ran  # ran: a job whose time here is not 0 ran, too
    cdef list rows
    cdef int64_t not_final, other_type, never_ran

    def __init__(self, texts, hours, wholes, longs, may_be_flat, day, *rest):
        if len(texts) < 4 or len(hours) < 2 or not wholes or not longs:
            raise ValueError("four texts, two times, an exit code and the record's time are needed")
        self.plain_texts, self.hours = len(texts), len(hours)
        self.ran = self.plain_texts + 1
        self.rows = []
        self.not_final = self.other_type = self.never_ran = 0

    def bins(self):
        """Return records by bin since the last call."""
        counts = {"not_final": self.not_final, "other_type": self.other_type, "never_ran": self.never_ran}
        self.not_final = self.other_type = self.never_ran = 0
        return counts

    def ended(self):
        """Return the records in no bin since the last call: the values of all keys, and the record's time in ms."""
        rows, self.rows = self.rows, []
        return rows

    cdef bint _count(self, Found* found, int64_t timestamp, Columns columns) except -1:
        cdef Text* texts = found.texts
        # Malformed, as Python says.
        if texts[0].size <= 0:
            return False
        if not self._is_of_day(timestamp):
            pass
        elif not _is_final(texts[1]):
            self.not_final += 1
        elif not (_is_lower(texts[2], b"analysis", 8) or _is_lower(texts[2], b"production", 10)):
            self.other_type += 1
        else:
            self._add_ended(found, timestamp)
        return True

    cdef int _add_ended(self, Found* found, int64_t timestamp) except -1:
        cdef int place, numbers = self.plain_texts + self.hours
        cdef int64_t time_ms = _record_ms(found, timestamp)
        cdef Text* texts = found.texts
        cdef char* number_end
        if _is_zero(texts[self.plain_texts + 1]) and _is_zero(texts[self.ran]):
            self.never_ran += 1
            return 0
        row = []
        for place in range(self.texts):
            if texts[place].size < 0:
                row.append(None)
            elif place < self.plain_texts:
                row.append(PyUnicode_DecodeUTF8(<const char*>texts[place].at, texts[place].size, NULL))
            elif place < numbers:
                # What stands behind the number ends it.
                row.append(PyOS_string_to_double(<const char*>texts[place].at, &number_end, NULL))
            else:
                row.append(_whole(texts[place]))
        for place in range(self.longs):
            row.append(None if found.longs[place] < 0 else found.longs[place])
        row.append(None if time_ms < 0 else time_ms)
        self.rows.append(tuple(row))
        return 0


cdef class CostLines(JobLines):
    """Reads jobs with what they cost: the fifth text is the subsite, the third of the hours the cores, the fourth the core
    hours; behind the exit code are two flags.

    Running jobs become rows of columns: the id's hash, the group of ``shared`` texts and cores, the 12-minute window.
    """

    cdef uint8_t seen[120]

    def __init__(self, texts, hours, wholes, longs, may_be_flat, day, shared, group):
        cdef int place
        if len(texts) < 5 or len(hours) < 4 or len(wholes) != 3 or len(shared) != 4:
            raise ValueError("a subsite, cores, core hours, two flags and four shared texts are needed")
        super().__init__(texts, hours, wholes, longs, may_be_flat, day)
        self.ran = self.plain_texts + 3
        self.group_keys = Keys(shared, group)
        for place in range(120):
            self.seen[place] = 0

    def windows(self):
        """Return the windows with a record since the begin, as bits."""
        return sum(1 << place for place in range(120) if self.seen[place])

    cdef bint _count(self, Found* found, int64_t timestamp, Columns columns) except -1:
        cdef Text* texts = found.texts
        cdef int flags = self.plain_texts + self.hours + 1
        cdef int64_t time_ms, window
        # Malformed, as Python says; and names that are normalised as if they were of files.
        if texts[0].size <= 0 or texts[0].at[0] == b"f" or memchr(texts[0].at, b"/", texts[0].size) != NULL:
            return False
        if not (_is_flag(texts[flags]) and _is_flag(texts[flags + 1])):
            return False
        if not self._is_of_day(timestamp):
            return True
        time_ms = _record_ms(found, timestamp)
        window = time_ms - self.day * 86_400_000
        if time_ms >= 0 and 0 <= window < 86_400_000:
            self.seen[window // 720_000] = 1
            if _is(texts[1], b"Running", 7):
                self._append_presence(texts, columns, window // 720_000)
        if _is_final(texts[1]):
            self._add_ended(found, timestamp)
        else:
            self.not_final += 1
        return True

    cdef int _append_presence(self, Text* texts, Columns columns, int64_t window) except -1:
        cdef Text group_texts[5]
        cdef Bytes name = NULL
        cdef Py_ssize_t size
        group_texts[0], group_texts[1], group_texts[2] = texts[0], texts[3], texts[4]
        group_texts[3], group_texts[4] = texts[2], texts[self.plain_texts + 2]
        size = self.group_keys.write(group_texts, columns, &name)
        columns.append(name, size, window)
        return 0


cdef inline int64_t _whole(Text text) noexcept nogil:
    """The value of a plain whole number."""
    cdef bint is_negative = text.at[0] == b"-"
    cdef Py_ssize_t place
    cdef int64_t value = 0
    for place in range(is_negative, text.size):
        value = 10 * value + text.at[place] - 48
    return -value if is_negative else value


cdef inline int64_t _record_ms(Found* found, int64_t timestamp) noexcept nogil:
    """The time of a record in ms, else of its delivery; -1 without both."""
    return _in_ms(found.longs[0] if found.longs[0] >= 0 else timestamp)


cdef inline bint _is_final(Text status) noexcept nogil:
    return _is(status, b"Completed", 9) or _is(status, b"Removed", 7)


cdef inline int64_t _in_ms(int64_t time) noexcept nogil:
    """Milliseconds of seconds, milliseconds or microseconds, by size; -1 stays."""
    if time < 0:
        return -1
    if time < 100_000_000_000LL:
        return time * 1000
    return time if time < 100_000_000_000_000LL else time // 1000


cdef inline bint _is_flag(Text text) noexcept nogil:
    """Whether a whole number is null, 0 or 1."""
    return text.size < 0 or (text.size == 1 and (text.at[0] == b"0" or text.at[0] == b"1"))


cdef inline Bytes _past_comma(Bytes at, Bytes end, bint* has_more) noexcept nogil:
    """The begin of the next member behind a value, or the end of the object; NULL for anything else."""
    if at < end and at[0] == b",":
        return at + 1
    at = past_spaces(at, end)
    if at == end or (at[0] != b"," and at[0] != b"}"):
        return NULL
    has_more[0] = at[0] == b","
    return at + 1


cdef inline int _bucket(Bytes at, Py_ssize_t size) noexcept nogil:
    """A hash of a key, of three characters and its size."""
    if not size:
        return 0
    return (at[0] * 31 + at[size >> 1] * 7 + at[size - 1] * 3 + size) & (BUCKETS - 1)


cdef inline bint _is(Text text, const char* wanted, Py_ssize_t size) noexcept nogil:
    return text.size == size and not memcmp(text.at, wanted, size)


cdef inline bint _is_lower(Text text, const char* wanted, Py_ssize_t size) noexcept nogil:
    """Whether a text is ``wanted``, which is in lower case, case aside."""
    cdef Py_ssize_t place
    cdef unsigned char letter
    if text.size != size:
        return False
    for place in range(size):
        letter = text.at[place]
        if 65 <= letter <= 90:
            letter += 32
        if letter != <unsigned char>wanted[place]:
            return False
    return True


cdef inline bint _is_known(Text text) noexcept nogil:
    """Whether a text certainly names a site (rule 12): ASCII without outer blanks and ``_Disk``, and no word for none."""
    cdef Py_ssize_t place
    cdef unsigned char high = 0
    for place in range(text.size):
        high |= text.at[place]
    if text.size <= 0 or high & 128 or text.at[0] <= 32 or text.at[text.size - 1] <= 32:
        return False
    if text.size >= 5 and not memcmp(text.at + text.size - 5, b"_Disk", 5):
        return False
    return not (_is_lower(text, b"unknown", 7) or _is_lower(text, b"n/a", 3) or _is_lower(text, b"none", 4)
                or _is_lower(text, b"null", 4) or _is(text, b"-", 1))


cdef inline bint _is_resolved(Text text) noexcept nogil:
    """Whether a status is null, empty, or begins with ``resolved``."""
    return text.size <= 0 or (text.size >= 8 and is_same(text.at, <Bytes><const char*>b"resolved", 8))


cdef inline bint _is_zero(Text text) noexcept nogil:
    """Whether plain hours are null or 0."""
    cdef Py_ssize_t place
    for place in range(text.size):
        if text.at[place] != b"0" and text.at[place] != b".":
            return False
    return True
