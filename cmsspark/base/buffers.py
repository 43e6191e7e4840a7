"""Conversions between lists, numpy and Arrow, made directly from Arrow's buffers.

``pa.array``, ``pa.scalar`` and ``to_numpy`` import pandas to check for its types, which
costs up to half a second of CPU in each process.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any

import numpy as np
import numpy.typing as npt

if TYPE_CHECKING:
    import pyarrow as pa


def array(values: Sequence[Any], kind: str) -> pa.Array:
    """Return ``values``, each perhaps None, as an array of ``kind``: ``string``,
    ``binary``, ``long`` or ``boolean``.

    Raises UnicodeEncodeError for text that UTF-8 cannot encode, OverflowError for a
    number beyond 64 bits or texts of more than 2 GB in total.
    """
    import pyarrow as pa

    count = len(values)
    if kind == "string":
        return _of_bytes(
            [None if value is None else value.encode() for value in values], pa.string()
        )
    if kind == "binary":
        return binary(values)
    validity = pa.py_buffer(_bits([value is not None for value in values]))
    if kind == "long":
        numbers = np.array([0 if value is None else value for value in values], np.int64)
        return pa.Array.from_buffers(pa.int64(), count, [validity, pa.py_buffer(numbers)])
    flags = pa.py_buffer(_bits([bool(value) for value in values]))
    return pa.Array.from_buffers(pa.bool_(), count, [validity, flags])


def binary(values: Sequence[bytes | None]) -> pa.Array:
    """Return ``values``, of which any may be None, as an array. Raises OverflowError
    for more than 2 GB in total.
    """
    import pyarrow as pa

    return _of_bytes(values, pa.binary())


def _of_bytes(values: Sequence[bytes | None], kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    validity = pa.py_buffer(_bits([value is not None for value in values]))
    ends = np.fromiter((len(value or b"") for value in values), np.int64, len(values)).cumsum()
    if len(values) and ends[-1] > np.iinfo(np.int32).max:
        raise OverflowError("the texts of one column are more than 2 GB")
    starts = np.concatenate((np.zeros(1, np.int32), ends.astype(np.int32)))
    content = b"".join(value or b"" for value in values)
    return pa.Array.from_buffers(
        kind, len(values), [validity, pa.py_buffer(starts), pa.py_buffer(content)]
    )


def _bits(flags: list[bool]) -> bytes:
    return _packed(np.array(flags, np.bool_))


def packed_bits(flags: bytes) -> bytes:
    """Return flags of one byte each as an Arrow bitmap."""
    return _packed(np.frombuffer(flags, np.bool_))


def is_utf8(text: bytes) -> bool:
    """Return whether ``text`` is UTF-8. The check is quick for ASCII."""
    if text.isascii():
        return True
    try:
        text.decode()
    except UnicodeDecodeError:
        return False
    return True


def scalar(value: Any, kind: str) -> pa.Scalar:
    """Return one value as an Arrow scalar."""
    return array([value], kind)[0]


def from_numpy(values: npt.NDArray[Any], valid: npt.NDArray[np.bool_] | None = None) -> pa.Array:
    """Return numbers (int32, int64 or float64) as an array, null where ``valid`` is
    false. The memory is shared.
    """
    import pyarrow as pa

    kinds = {"int32": pa.int32(), "int64": pa.int64(), "float64": pa.float64()}
    bits = None if valid is None or valid.all() else pa.py_buffer(_packed(valid))
    content = pa.py_buffer(np.ascontiguousarray(values))
    return pa.Array.from_buffers(kinds[values.dtype.name], len(values), [bits, content])


def dictionary_array(texts: Sequence[str | None], numbers: npt.NDArray[Any]) -> pa.DictionaryArray:
    """Return ``texts[number]`` for each of ``numbers``, dictionary-encoded with
    distinct texts; None is null.
    """
    import pyarrow as pa

    distinct: dict[str, int] = {}
    codes = [-1 if text is None else distinct.setdefault(text, len(distinct)) for text in texts]
    indices = np.array(codes, np.int32)[numbers]
    return pa.DictionaryArray.from_arrays(
        from_numpy(np.maximum(indices, 0), indices >= 0), array(list(distinct), "string")
    )


def flags(values: npt.NDArray[np.bool_]) -> pa.Array:
    """Return booleans as an array."""
    import pyarrow as pa

    return pa.Array.from_buffers(pa.bool_(), len(values), [None, pa.py_buffer(_packed(values))])


def to_numpy(
    column: pa.Array | pa.ChunkedArray, kind: type[np.generic], null: int = 0
) -> npt.NDArray[Any]:
    """Return a column of numbers of the numpy type ``kind`` as a numpy array, with
    ``null`` for nulls.
    """
    parts = [np.zeros(0, kind)]
    for chunk in _chunks(column):
        if not len(chunk):
            continue
        values = np.frombuffer(chunk.buffers()[1], kind)[chunk.offset : chunk.offset + len(chunk)]
        parts.append(np.where(_valid(chunk), values, kind(null)) if chunk.null_count else values)
    return parts[1] if len(parts) == 2 else np.concatenate(parts)


def to_texts(
    column: pa.Array | pa.ChunkedArray,
) -> Iterator[tuple[npt.NDArray[np.int32], npt.NDArray[np.uint8]]]:
    """For each chunk of a string column: its offsets (one more than texts), and the
    bytes they point into.
    """
    for chunk in _chunks(column):
        if len(chunk):
            _, ends, content = chunk.buffers()
            yield (
                np.frombuffer(ends, np.int32)[chunk.offset : chunk.offset + len(chunk) + 1],
                np.frombuffer(content or b"", np.uint8),
            )


def is_there(column: pa.Array | pa.ChunkedArray) -> npt.NDArray[np.bool_]:
    """Return whether each value is not null."""
    parts = [_valid(chunk) for chunk in _chunks(column)]
    return np.concatenate([np.zeros(0, np.bool_), *parts])


def _chunks(column: pa.Array | pa.ChunkedArray) -> list[pa.Array]:
    return list(column.chunks) if hasattr(column, "chunks") else [column]


def _valid(chunk: pa.Array) -> npt.NDArray[np.bool_]:
    bits = chunk.buffers()[0]
    if bits is None or not chunk.null_count:
        return np.full(len(chunk), bool(chunk.null_count == 0))
    flags = np.unpackbits(np.frombuffer(bits, np.uint8), bitorder="little")[
        chunk.offset : chunk.offset + len(chunk)
    ]
    return flags.astype(np.bool_)


def _packed(flags: npt.NDArray[np.bool_]) -> bytes:
    return np.packbits(flags, bitorder="little").tobytes()
