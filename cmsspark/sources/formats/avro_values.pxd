# cython: language_level=3, boundscheck=False, wraparound=False, cdivision=True
"""Shared by the compiled readers of Avro: the fields of a schema, and their values in a block."""

from cmsspark.sources.values cimport Text
from cmsspark.base.xxh64 cimport Bytes
from libc.stdint cimport int64_t, uint64_t

cdef enum:
    FIELDS = 256
    BRANCHES = 8

#: The numbers of the plain types.
cdef enum:
    NULL_KIND = 0
    BOOLEAN = 1
    LONG = 2  # int, too
    FLOAT = 4
    DOUBLE = 5
    BYTES = 6
    STRING = 7

cdef struct Fields:
    int count
    int kinds[FIELDS][BRANCHES]
    int branches[FIELDS]
    int slots[FIELDS]  # -1: not required

cdef struct Value:
    int kind
    Text text  # of bytes and strings; of a float or double, its bytes
    int64_t number  # of a long


cdef inline int set_fields(Fields* fields, described, int most_branches) except -1:
    """Set the fields from (numbers of their types, slot). Raises ValueError where there are too many."""
    cdef int field, branch
    if len(described) > FIELDS:
        raise ValueError("more fields than there are places")
    fields.count = len(described)
    for field, (kinds, slot) in enumerate(described):
        if not 0 < len(kinds) <= most_branches:
            raise ValueError(f"a field has 1 to {most_branches} types")
        fields.branches[field], fields.slots[field] = len(kinds), slot
        for branch, kind in enumerate(kinds):
            fields.kinds[field][branch] = kind
    return 0


cdef inline Bytes past_varint(Bytes at, Bytes end, int64_t* number) noexcept nogil:
    """The end of an Avro integer; NULL where it is cut or has more than 64 bits."""
    cdef uint64_t found = 0
    cdef int shift = 0
    while at < end:
        if shift == 63 and at[0] > 1:
            return NULL
        found |= <uint64_t>(at[0] & 127) << shift
        if at[0] < 128:
            number[0] = <int64_t>((found >> 1) ^ (0 - (found & 1)))
            return at + 1
        at += 1
        shift += 7
    return NULL


cdef inline Bytes past_value(Fields* fields, int field, Bytes at, Bytes end, Value* value) noexcept nogil:
    """The end of a field's value, which is stored; NULL where it does not end in the block."""
    cdef int64_t number = 0
    cdef int kind
    if fields.branches[field] > 1:
        at = past_varint(at, end, &number)
        if at == NULL or not 0 <= number < fields.branches[field]:
            return NULL
    kind = value.kind = fields.kinds[field][number]
    if kind == NULL_KIND:
        return at
    if kind == LONG:
        return past_varint(at, end, &value.number)
    if kind == STRING or kind == BYTES:
        at = past_varint(at, end, &number)
        if at == NULL or number < 0:
            return NULL
    else:
        number = 1 if kind == BOOLEAN else 4 if kind == FLOAT else 8
    if number > end - at:
        return NULL
    value.text.at, value.text.size = at, number
    return at + number
