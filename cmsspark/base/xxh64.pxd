# cython: language_level=3, cdivision=True
"""The hash of names, XXH64, for what is compiled; Python's side of it is the package xxhash."""

from libc.stdint cimport uint8_t, uint32_t, uint64_t
from libc.string cimport memcpy

ctypedef const uint8_t* Bytes

cdef extern from *:
    """
    #define XXH_P1 0x9E3779B185EBCA87ULL
    #define XXH_P2 0xC2B2AE3D27D4EB4FULL
    #define XXH_P3 0x165667B19E3779F9ULL
    #define XXH_P4 0x85EBCA77C2B2AE63ULL
    #define XXH_P5 0x27D4EB2F165667C5ULL
    """
    const uint64_t P1 "XXH_P1"
    const uint64_t P2 "XXH_P2"
    const uint64_t P3 "XXH_P3"
    const uint64_t P4 "XXH_P4"
    const uint64_t P5 "XXH_P5"


cdef inline uint64_t _rotated(uint64_t value, int by) noexcept nogil:
    return (value << by) | (value >> (64 - by))


cdef inline uint64_t _eight(Bytes at) noexcept nogil:
    cdef uint64_t value
    memcpy(&value, at, 8)
    return value


cdef inline uint64_t _four(Bytes at) noexcept nogil:
    cdef uint32_t value
    memcpy(&value, at, 4)
    return value


cdef inline uint64_t _round(uint64_t lane, uint64_t value) noexcept nogil:
    return _rotated(lane + value * P2, 31) * P1


cdef inline uint64_t _merged(uint64_t hash, uint64_t lane) noexcept nogil:
    return (hash ^ _round(0, lane)) * P1 + P4


cdef inline uint64_t hash64(Bytes at, Py_ssize_t size, uint64_t seed) noexcept nogil:
    """The hash of ``size`` bytes, as xxhash.xxh64_intdigest has it."""
    cdef Bytes end = at + size
    cdef uint64_t hash, a, b, c, d
    if size >= 32:
        a, b, c, d = seed + P1 + P2, seed + P2, seed, seed - P1
        while end - at >= 32:
            a = _round(a, _eight(at))
            b = _round(b, _eight(at + 8))
            c = _round(c, _eight(at + 16))
            d = _round(d, _eight(at + 24))
            at += 32
        hash = _rotated(a, 1) + _rotated(b, 7) + _rotated(c, 12) + _rotated(d, 18)
        hash = _merged(_merged(_merged(_merged(hash, a), b), c), d)
    else:
        hash = seed + P5
    hash += <uint64_t>size
    while end - at >= 8:
        hash = _rotated(hash ^ _round(0, _eight(at)), 27) * P1 + P4
        at += 8
    if end - at >= 4:
        hash = _rotated(hash ^ (_four(at) * P1), 23) * P2 + P3
        at += 4
    while at < end:
        hash = _rotated(hash ^ (at[0] * P5), 11) * P1
        at += 1
    hash = (hash ^ (hash >> 33)) * P2
    hash = (hash ^ (hash >> 29)) * P3
    return hash ^ (hash >> 32)
