# The loop over lines, for readers that take a line or leave it to the decoder. Included instead of imported: a module of
# its own would take three seconds to compile.

cdef class LineReader:
    """Reads lines of one day. ``day``: its number, from 1970 on."""

    cdef int64_t day
    cdef list out_of_day
    # Of the accesses that are appended to columns; None where rows have no groups.
    cdef Keys group_keys

    cdef bint _take(self, Bytes at, Bytes end, Columns columns) except -1:
        """Whether the line was taken."""
        return False

    cdef inline bint _is_of_day(self, int64_t timestamp) except -1:
        """Whether a record is of the day, or has no timestamp (-1). The timestamps of others are kept."""
        if timestamp < 0 or day_of(timestamp) == self.day:
            return True
        self.out_of_day.append(timestamp)
        return False

    def days(self):
        """Timestamps of records of other days since the last call."""
        found, self.out_of_day = self.out_of_day, []
        return found

    def read(self, content, Columns columns):
        """Read lines of ``content``, each with its newline.

        Returns the number of lines, the lines that are left to the decoder, and the number of each of these.
        """
        cdef Memory memory = Memory(content)
        cdef Bytes at = <Bytes>memory.view.buf
        cdef Bytes end = at + memory.count
        cdef Bytes line_end
        cdef Bytes left_from = NULL
        cdef Py_ssize_t lines = 0
        left, numbers = [], []
        if self.group_keys is not None:
            self.group_keys.waiting_count = 0  # what an error left
        while at < end:
            line_end = <Bytes>memchr(at, b"\n", end - at)
            # A last line without a newline is left to the decoder.
            if line_end != NULL and self._take(at, line_end, columns):
                if left_from != NULL:
                    left.append(PyBytes_FromStringAndSize(<const char*>left_from, at - left_from))
                    left_from = NULL
            else:
                numbers.append(lines)
                if left_from == NULL:
                    left_from = at
            lines += 1
            at = line_end + 1 if line_end != NULL else end
        if left_from != NULL:
            left.append(PyBytes_FromStringAndSize(<const char*>left_from, end - left_from))
        if self.group_keys is not None:
            self.group_keys.settle(columns)
        return lines, b"".join(left), numbers


cdef inline int64_t _size_read(int64_t* sizes, int reads, int count) noexcept nogil:
    """The first of ``reads`` sizes read that is more than 0, else 0; -1 where only a size written is, of all ``count``."""
    cdef int place
    for place in range(reads):
        if sizes[place] > 0:
            return sizes[place]
    for place in range(reads, count):
        if sizes[place] > 0:
            return -1
    return 0
