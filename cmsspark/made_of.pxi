# In each compiled module what it was made of, which setup.py says: see cmsspark/compiled.py.

cdef extern from *:
    const char* CMSSPARK_SOURCES

SOURCES = CMSSPARK_SOURCES.decode("ascii")
