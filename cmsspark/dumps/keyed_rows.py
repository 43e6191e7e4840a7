"""Rows of numbers that move between tasks: each has a key, and rows of one key meet in one task.

A job on dumps is written once: mappers make keyed rows of the parts of tables, merges
make rows of all rows of a key, and :mod:`cmsspark.dumps.dump_plan` puts them together.
The rows move by processes of one host (:mod:`cmsspark.dumps.process_transport`) or by
Spark (:mod:`cmsspark.dumps.spark_transport`).
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final, NamedTuple, TypeVar

import numpy as np
import numpy.typing as npt

from cmsspark.base.arrays import Longs, joined
from cmsspark.base.buffers import array, flags, from_numpy, is_there, to_numpy, to_texts
from cmsspark.counting.catalogue import Hashes

if TYPE_CHECKING:
    import pyarrow as pa

Columns = dict[str, npt.NDArray[Any]]

#: Keys at most: the first bits of a hash choose one.
MOST_KEYS: Final = 4096
#: Rows of a part that are keyed together.
ROWS: Final = 1 << 20
#: Behind the name of a column, in packed rows: the ends, the bytes and the presence of
#: the texts that it numbers.
_TEXT_PARTS: Final = ("\0ends", "\0bytes", "\0there")
#: Columns that are unsigned where there are no rows.
_KINDS: Final = {"hash": np.uint64, "check": np.uint64}


class KeyedRows(NamedTuple):
    """Rows of one key. ``names``: the texts that the numbers of a column stand for, by the column."""

    key: int
    kind: str
    columns: Columns
    names: Mapping[str, pa.Array] = {}

    def buffers(self) -> list[bytes | memoryview]:
        """Return the columns and names as bytes, for :func:`unpack`; each buffer ends
        at a multiple of 8.
        """
        columns = dict(self.columns)
        for name, texts in self.names.items():
            columns |= {
                name + part: values
                for part, values in zip(_TEXT_PARTS, _text_columns(texts), strict=True)
            }
        head = json.dumps(
            [(name, values.dtype.str, len(values)) for name, values in columns.items()]
        ).encode()
        head += b" " * (-len(head) % 8)
        buffers: list[bytes | memoryview] = [len(head).to_bytes(8, "little"), head]
        for values in columns.values():
            buffers += [
                np.ascontiguousarray(values).data.cast("B") if len(values) else b"",
                bytes(-values.nbytes % 8),
            ]
        return buffers


def unpack(key: int, kind: str, packed: bytes) -> KeyedRows:
    """Return the rows that :meth:`KeyedRows.buffers` was called on. The columns are read-only."""
    offset = 8 + int.from_bytes(packed[:8], "little")
    columns: Columns = {}
    for name, dtype, count in json.loads(packed[8:offset]):
        columns[name] = np.frombuffer(packed, dtype, count, offset)
        offset += columns[name].nbytes + -columns[name].nbytes % 8
    named = [
        name.removesuffix(_TEXT_PARTS[0]) for name in columns if name.endswith(_TEXT_PARTS[0])
    ]
    names = {name: _texts(*(columns.pop(name + part) for part in _TEXT_PARTS)) for name in named}
    return KeyedRows(key, kind, columns, names)


def _text_columns(texts: pa.Array) -> Iterator[npt.NDArray[Any]]:
    ends, content = next(iter(to_texts(texts)), (np.zeros(1, np.int32), np.zeros(0, np.uint8)))
    yield ends - ends[0]
    yield content[ends[0] : ends[-1]]
    yield is_there(texts)


def _texts(
    ends: npt.NDArray[np.int32], content: npt.NDArray[np.uint8], is_there: npt.NDArray[np.bool_]
) -> pa.StringArray:
    import pyarrow as pa

    validity = None if is_there.all() else flags(is_there).buffers()[1]
    return pa.Array.from_buffers(
        pa.string(), len(is_there), [validity, pa.py_buffer(ends), pa.py_buffer(content)]
    )


def keys_of_hashes(hashes: Hashes, keys: int) -> Longs:
    """Return the key of each hash; ``keys`` is a power of two up to :data:`MOST_KEYS`."""
    return ((hashes >> np.uint64(52)) // np.uint64(MOST_KEYS // keys)).astype(np.int64)


def keys_of_ids(ids: Longs, keys: int) -> Longs:
    """Return the key of each id."""
    return keys_of_hashes(ids.view(np.uint64) * np.uint64(0x9E3779B97F4A7C15), keys)


def by_key(
    kind: str, row_keys: Longs, columns: Columns, names: Mapping[str, pa.Array] | None = None
) -> Iterator[KeyedRows]:
    """Yield the rows of each key together. ``row_keys``: the key of each row.
    ``names``: as of :class:`KeyedRows`; each result has those that its own rows number.
    """
    if not len(row_keys):
        return
    # Numbers of 16 bits are sorted by counting.
    order = np.argsort(row_keys.astype(np.uint16), kind="stable")
    in_order = row_keys[order]
    starts = find_starts(in_order)
    for first, last in zip(starts, np.append(starts[1:], len(order)), strict=True):
        rows = order[first:last] if len(starts) > 1 else slice(None)
        columns_of_key = {name: values[rows] for name, values in columns.items()}
        yield with_own_names(KeyedRows(int(in_order[first]), kind, columns_of_key, names or {}))


def with_own_names(rows: KeyedRows) -> KeyedRows:
    """Return the rows with only those names that they number."""
    columns, names = dict(rows.columns), dict(rows.names)
    for column, texts in rows.names.items():
        is_used = np.zeros(len(texts), np.bool_)
        is_used[columns[column]] = True
        if not is_used.all():
            columns[column] = (np.cumsum(is_used) - 1)[columns[column]]
            names[column] = texts.take(from_numpy(np.flatnonzero(is_used)))
    return rows._replace(columns=columns, names=names)


def number_names(rows: Sequence[KeyedRows], column: str) -> tuple[Longs, pa.StringArray]:
    """Return a column of all rows, which numbers names, in one numbering; and these
    names, each once.
    """
    import pyarrow as pa

    texts = [entry.names[column] for entry in rows]
    encoded = pa.concat_arrays([array([], "string"), *texts]).dictionary_encode(
        null_encoding="encode"
    )
    starts = np.cumsum([0, *map(len, texts)])
    numbers = [
        entry.columns[column] + start for entry, start in zip(rows, starts[:-1], strict=True)
    ]
    numbering = to_numpy(encoded.indices, np.int32).astype(np.int64)
    return numbering[np.concatenate([np.zeros(0, np.int64), *numbers])], encoded.dictionary


def rank_names(names: pa.StringArray) -> Longs:
    """Return the place of each name in the order of their bytes; null is the first."""
    import pyarrow.compute as pc

    ranks = np.empty(len(names), np.int64)
    ranks[to_numpy(pc.sort_indices(names), np.uint64)] = np.arange(len(names))
    ranks[~is_there(names)] = -1
    return ranks


def number_hashes(hashes: Hashes, checks: Hashes) -> tuple[Longs, Longs]:
    """Return the number of each row's name, and a row of each name. Names are told
    apart by both hashes.
    """
    order = np.argsort(hashes, kind="stable")
    in_order = hashes[order]
    starts = np.ones(len(order), np.bool_)
    starts[1:] = in_order[1:] != in_order[:-1]
    if ((checks[order][1:] != checks[order][:-1]) & ~starts[1:]).any():
        # Two names with one hash, once in a million dumps.
        order = np.lexsort((checks, hashes))
        starts[1:] = (hashes[order][1:] != hashes[order][:-1]) | (
            checks[order][1:] != checks[order][:-1]
        )
    ids = np.empty(len(order), np.int64)
    ids[order] = np.cumsum(starts) - 1
    return ids, order[starts]


def find_starts(*columns: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Return where in ordered rows another combination begins."""
    if not len(columns[0]):
        return np.zeros(0, np.intp)
    differs = reduce(np.logical_or, (column[1:] != column[:-1] for column in columns))
    return np.flatnonzero(np.concatenate(([True], differs)))


def sum_runs(values: Longs, starts: npt.NDArray[np.intp], label: str) -> Longs:
    """Return sums of runs. Raises DataError (65) on 64-bit overflow."""
    if not len(starts):
        return np.zeros(0, np.int64)
    return joined(
        np.add.reduceat(values >> 32, starts), np.add.reduceat(values & 0xFFFFFFFF, starts), label
    )


def group_rows(
    rows: Columns,
    keys: Sequence[str],
    *,
    counts: Iterable[str] = (),
    sums: Iterable[str] = (),
    largest: Iterable[str] = (),
) -> Columns:
    """Join rows with equal keys, in the order of the keys: ``counts`` and ``sums`` are
    summed, of ``largest`` the largest value stays. Raises DataError (65) if one of
    ``sums`` exceeds 64 bits.
    """
    order = np.lexsort([rows[name] for name in reversed(keys)])
    rows = {name: values[order] for name, values in rows.items()}
    starts = find_starts(*(rows[name] for name in keys))
    if not len(starts):
        return rows
    grouped = {name: rows[name][starts] for name in keys}
    grouped |= {name: np.add.reduceat(rows[name], starts) for name in counts}
    grouped |= {name: sum_runs(rows[name], starts, name) for name in sums}
    return grouped | {name: np.maximum.reduceat(rows[name], starts) for name in largest}


def rows_by_kind(rows: Iterable[KeyedRows]) -> dict[str, list[KeyedRows]]:
    """Return the rows of each kind."""
    by_kind: dict[str, list[KeyedRows]] = defaultdict(list)
    for entry in rows:
        by_kind[entry.kind].append(entry)
    return by_kind


def join_columns(rows: Sequence[KeyedRows], names: Iterable[str], kind: Any = np.int64) -> Columns:
    """Return columns of rows one after the other, also where there are none."""
    return {
        name: np.concatenate(
            [np.zeros(0, _KINDS.get(name, kind)), *(entry.columns[name] for entry in rows)]
        )
        for name in names
    }


def map_slices(
    function: Callable[[pa.Table], Columns], tables: Iterable[pa.Table], rows: int = ROWS
) -> Iterator[Columns]:
    """Yield what ``function`` makes of slices of tables, about ``rows`` of its rows together."""
    slices = (
        table.slice(start, rows) for table in tables for start in range(0, table.num_rows, rows)
    )
    return join_pieces(map(function, slices), rows)


def join_pieces(pieces: Iterable[Columns], rows: int) -> Iterator[Columns]:
    """Yield the rows of pieces, about ``rows`` together."""
    waiting: list[Columns] = []
    count = 0
    for piece in pieces:
        waiting.append(piece)
        count += len(next(iter(piece.values())))
        if count >= rows:
            yield _join(waiting)
            waiting, count = [], 0
    if count:
        yield _join(waiting)


def _join(pieces: Sequence[Columns]) -> Columns:
    return {name: np.concatenate([piece[name] for piece in pieces]) for name in pieces[0]}


#: Makes rows of the rows of one key and kind.
KindMerge = Callable[[int, Sequence[KeyedRows]], Iterable[KeyedRows]]


def merge_kinds(
    merges: Mapping[str, KindMerge], key: int, rows: Iterable[KeyedRows]
) -> Iterator[KeyedRows]:
    """Merge rows of some kinds, and pass all others."""
    for kind, rows_of_kind in rows_by_kind(rows).items():
        yield from merges[kind](key, rows_of_kind) if kind in merges else rows_of_kind


Item = TypeVar("Item")
#: Makes keyed rows of what a part has, and rows of the rows of one key. Both must pickle.
Mapper = Callable[[Iterable[Item]], Iterator[KeyedRows]]
Merge = Callable[[int, Iterable[KeyedRows]], Iterator[KeyedRows]]
