# The digest of the sources that a module was compiled from, which setup.py passes: see cmsspark/base/compiled.py.

cdef extern from *:
    const char* CMSSPARK_SOURCES

SOURCES = CMSSPARK_SOURCES.decode("ascii")
