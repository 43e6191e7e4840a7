# cython: language_level=3, cdivision=True
"""Rules 9 and 10 of ``docs/counting.md`` for compiled code; ``values.py`` in this folder has them in Python.

These functions accept plain values only. Python reads the values that they reject, and decides. They must not accept a
value that Python rejects, and must return the same number. Tests read the same records with both and compare the
results: always change both together.
"""

from cmsspark.base.xxh64 cimport Bytes
from libc.math cimport floor
from libc.stdint cimport int64_t, uint8_t
from libc.string cimport memchr, memcmp, memcpy

cdef extern from "Python.h":
    double PyOS_string_to_double(const char* text, char** end, void* overflow) except? -1.0

cdef extern from *:
    """
    #if defined(__GNUC__)
    __attribute__((unused))
    #endif
    static const double CMSSPARK_TENS[10] = {1, 10, 100, 1e3, 1e4, 1e5, 1e6, 1e7, 1e8, 1e9};
    #define CMSSPARK_PAST_LONG 9223372036854775808.0
    """
    const double CMSSPARK_TENS[10]
    const double CMSSPARK_PAST_LONG

cdef extern from *:
    """
    #include <stdint.h>
    #include <string.h>
    #if defined(__GNUC__) && defined(__SSE2__)
    #include <emmintrin.h>
    #define CMSSPARK_WIDE 1
    #endif

    /* The end of the digits that begin at ``at``: eight bytes at once, without a branch for each. */
    static inline const uint8_t* cmsspark_past_digits(const uint8_t* at, const uint8_t* end) {
    #ifdef CMSSPARK_WIDE
        while (end - at >= 8) {
            uint64_t eight;
            memcpy(&eight, at, 8);
            eight ^= 0x3030303030303030ULL;  /* digits are 0 to 9 now; the rest sets the high bit of others */
            eight = ((eight + 0x7676767676767676ULL) | eight) & 0x8080808080808080ULL;
            if (eight)
                return at + (__builtin_ctzll(eight) >> 3);
            at += 8;
        }
    #endif
        while (at < end && *at >= '0' && *at <= '9')
            at++;
        return at;
    }

    /* The end of a JSON number of at most 15 digits and a point; NULL for all else. Where a value ends is what the next one waits for:
       sixteen bytes are compared at once, and what makes them a number is asked beside that. */
    static inline const uint8_t* cmsspark_past_short_number(const uint8_t* at, const uint8_t* end) {
    #ifdef CMSSPARK_WIDE
        if (end - at >= 17) {
            const __m128i here = _mm_loadu_si128((const __m128i*)at);
            const __m128i above = _mm_sub_epi8(here, _mm_set1_epi8('0'));
            const unsigned digits = _mm_movemask_epi8(_mm_cmpeq_epi8(_mm_min_epu8(above, _mm_set1_epi8(9)), above));
            const unsigned points = _mm_movemask_epi8(_mm_cmpeq_epi8(here, _mm_set1_epi8('.')));
            const int size = __builtin_ctz(~(digits | points));
            const unsigned own_points = points & ((1u << size) - 1);
            const int begins = (digits & 1) & ((at[0] != '0') | (size == 1) | (points >> 1));
            const int ends = (digits << 1 >> size) & ((at[size] | 32) != 'e') & (size < 16);
            if (begins & ends & !(own_points & (own_points - 1)))
                return at + size;
        }
    #endif
        return NULL;
    }

    /* The next quote, NULL where there is none; most texts are short. */
    static inline const uint8_t* cmsspark_next_quote(const uint8_t* at, const uint8_t* end) {
    #ifdef CMSSPARK_WIDE
        if (end - at >= 16) {
            const __m128i here = _mm_loadu_si128((const __m128i*)at);
            const int quotes = _mm_movemask_epi8(_mm_cmpeq_epi8(here, _mm_set1_epi8('"')));
            if (quotes)
                return at + __builtin_ctz(quotes);
            at += 16;
        }
    #endif
        return (const uint8_t*)memchr(at, '"', end - at);
    }
    """
    Bytes past_digits "cmsspark_past_digits"(Bytes at, Bytes end) noexcept nogil
    Bytes past_short_number "cmsspark_past_short_number"(Bytes at, Bytes end) noexcept nogil
    Bytes next_quote "cmsspark_next_quote"(Bytes at, Bytes end) noexcept nogil

cdef enum:
    DIGITS = 18  # of a number that fits 64 bits
    DOUBLE_DIGITS = 15  # of a number that a double represents exactly
    WHOLE_DIGITS = 12  # of seconds; a double represents them exactly as milliseconds
    LONGEST_SECONDS = 40


cdef struct Text:
    Bytes at
    Py_ssize_t size  # -1: null


cdef inline Bytes past_exponent(Bytes at, Bytes end) noexcept nogil:
    """The end of an optional exponent at ``at``; NULL for an exponent without digits."""
    cdef Bytes begin
    if at == end or (at[0] != b"e" and at[0] != b"E"):
        return at
    at += 1
    if at < end and (at[0] == b"+" or at[0] == b"-"):
        at += 1
    begin = at
    at = past_digits(begin, end)
    return at if at > begin else NULL


cdef inline Bytes _past_whole(Bytes at, Bytes end, int64_t* value) noexcept nogil:
    """The end of a number of up to ``DIGITS`` digits; ``at`` where there is none."""
    cdef Bytes begin = at
    cdef int64_t found = 0
    while at < end and 48 <= at[0] <= 57:
        if at - begin == DIGITS:
            return begin
        found = 10 * found + (at[0] - 48)
        at += 1
    value[0] = found
    return at


cdef inline Bytes _past_zeros(Bytes at, Bytes end) noexcept nogil:
    """The end of an optional fraction of zeros at ``at``."""
    cdef Bytes begin = at + 1
    if at >= end or at[0] != b".":
        return at
    at = begin
    while at < end and at[0] == b"0":
        at += 1
    return at if at > begin else begin - 1


cdef inline Bytes past_long(Bytes at, Bytes end, int64_t* value) noexcept nogil:
    """Behind a whole number of JSON from 0 to 2^63-1 (rule 9), perhaps with a fraction of zeros; ``at`` for any other."""
    # Measured: to return NULL for what is refused makes lines of EOS 11 % more expensive.
    cdef Bytes begin = at
    at = _past_whole(begin, end, value)
    if at - begin > 1 and begin[0] == b"0":
        return begin
    if at - begin <= DOUBLE_DIGITS and at > begin:
        at = _past_zeros(at, end)
    return at


cdef inline bint is_long_text(Bytes at, Bytes end, int64_t* value) noexcept nogil:
    """Whether a text is empty or a whole number from 0 to 2^63-1 in digits (rule 9, EOS G1 and G2, legacy
    CMSSW)."""
    return not (end > at and _past_whole(at, end, value) != end)


cdef inline bint is_whole(Bytes at, bint is_single, int64_t* found) noexcept nogil:
    """Whether a float or double is a whole number from 0 to 2^63-1."""
    cdef float single
    cdef double value
    if is_single:
        memcpy(&single, at, 4)
        value = single
    else:
        memcpy(&value, at, 8)
    if not 0 <= value < CMSSPARK_PAST_LONG or value != floor(value):
        return False
    found[0] = <int64_t>value
    return True


cdef inline bint _plain_seconds(Text text, int64_t* found) noexcept nogil:
    """Whether seconds are plain; ``found`` is whole milliseconds, rounded half up, by the same arithmetic as Python's."""
    cdef Bytes at = text.at
    cdef Bytes end = text.at + text.size
    cdef Bytes begin = at
    cdef int64_t digits = 0
    cdef int whole, fraction = 0
    while at < end and 48 <= at[0] <= 57 and at - begin < DOUBLE_DIGITS:
        digits = 10 * digits + (at[0] - 48)
        at += 1
    whole = at - begin
    if not 0 < whole <= WHOLE_DIGITS:
        return False
    if at < end:
        if at[0] != b".":
            return False
        at += 1
        begin = at
        while at < end and 48 <= at[0] <= 57 and whole + fraction < DOUBLE_DIGITS and fraction < 9:
            digits = 10 * digits + (at[0] - 48)
            at += 1
            fraction += 1
        if at < end or not fraction:
            return False
    # Both numbers are integers below 2^53, so that the quotient is the double nearest to the text's value.
    found[0] = <int64_t>floor((<double>digits / CMSSPARK_TENS[fraction]) * 1000 + 0.5)
    return True


cdef inline bint _decimal_seconds(Text text, int64_t* found) except -1:
    """Whether seconds have a point or an exponent; ``found`` is whole milliseconds, parsed by Python's function."""
    cdef char[LONGEST_SECONDS + 1] written
    cdef Bytes begin = text.at
    cdef Bytes end = text.at + text.size
    cdef Bytes at = past_digits(begin, end)
    cdef Py_ssize_t digits = at - begin
    cdef double value
    # Integers are handled by _plain_seconds.
    if at == end or text.size > LONGEST_SECONDS:
        return False
    if at[0] == b".":
        begin = at + 1
        at = past_digits(begin, end)
        digits += at - begin
    if not digits or past_exponent(at, end) != end:
        return False
    memcpy(written, text.at, text.size)
    written[text.size] = 0
    value = PyOS_string_to_double(written, NULL, NULL) * 1000 + 0.5
    if not value < CMSSPARK_PAST_LONG:
        return False
    found[0] = <int64_t>floor(value)
    return True


cdef inline bint is_seconds(Text text, int64_t* found) except -1:
    """Whether a text is seconds from 0 on (rule 9); ``found`` is whole milliseconds, rounded half up (rule 11)."""
    return _plain_seconds(text, found) or _decimal_seconds(text, found)


cdef inline bint _has_two_slashes(Bytes at, Py_ssize_t size) noexcept nogil:
    cdef uint8_t found = 0
    cdef Py_ssize_t place
    for place in range(size - 1):
        found |= (at[place] == 47) & (at[place + 1] == 47)
    return found


cdef inline Py_ssize_t _door(Bytes at, Py_ssize_t size) noexcept nogil:
    """The size of a URL's scheme with ``://``: root(s) and dav(s), which begin the URLs of storage; 0 for another text."""
    cdef Py_ssize_t name
    if size < 6:
        return 0
    if not memcmp(at, b"root", 4):
        name = 4
    elif not memcmp(at, b"dav", 3):
        name = 3
    else:
        return 0
    if at[name] == b"s":
        name += 1
    if size - name >= 3 and not memcmp(at + name, b"://", 3):
        return name + 3
    return 0


cdef inline Bytes _query(Bytes at, Bytes end, bint is_url) noexcept nogil:
    """Where the query of a name begins: at the first ``?`` of a URL, else at ``?authz=``; the end without one."""
    cdef Bytes mark = <Bytes>memchr(at, b"?", end - at) if end > at else NULL
    while mark != NULL:
        if is_url or (end - mark >= 7 and not memcmp(mark, b"?authz=", 7)):
            return mark
        mark = <Bytes>memchr(mark + 1, b"?", end - mark - 1) if end - mark > 1 else NULL
    return end


cdef inline Py_ssize_t normalise_lfn(Text logged, uint8_t* to, Bytes* name) noexcept nogil:
    """Write the logical file name of a ``logged`` one (rule 10) to ``to``, which has room for all of it.

    ``name`` is set to its begin. Returns its size.
    """
    cdef uint8_t* begin = to
    cdef Bytes at = logged.at
    cdef Bytes end = at + logged.size
    cdef Bytes slash
    cdef Py_ssize_t door
    cdef bint is_url = False
    if end - at >= 5 and not memcmp(at, b"file:", 5):
        at += 5
    door = _door(at, end - at)
    if door and end - at > door:
        slash = <Bytes>memchr(at + door, b"/", end - at - door)
        if slash != NULL:
            at, is_url = slash, True
    end = _query(at, end, is_url)
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
    at = begin
    if to - at >= 9 and not memcmp(at, b"/eos/cms/", 9):
        at += 8
    name[0] = at
    return to - at
