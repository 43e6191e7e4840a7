# Memory of Python objects. A typed memoryview would do the same, but adds 20,000 lines of C to each module.

from cpython.buffer cimport PyBUF_FORMAT, PyBUF_ND, PyBuffer_Release, PyObject_GetBuffer


cdef class Memory:
    """The contiguous memory of ``source``, whose ``count`` items have one of ``formats`` (letters of :mod:`struct`).

    Raises TypeError where ``source`` has no memory, and ValueError where it has other items.
    """

    cdef Py_buffer view
    cdef Py_ssize_t count

    def __cinit__(self, source, str formats="Bbc"):
        PyObject_GetBuffer(source, &self.view, PyBUF_FORMAT | PyBUF_ND)
        letters = "B" if self.view.format == NULL else (<bytes>self.view.format).decode()
        if self.view.ndim != 1 or letters not in formats:
            raise ValueError(f"expected one row of {formats}, not {self.view.ndim} of {letters}")
        self.count = self.view.shape[0]

    def __dealloc__(self):
        PyBuffer_Release(&self.view)
