"""The partials of a day as numbers: a code for each name, whole numbers for counts,
bytes and milliseconds.
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, BinaryIO, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.apps.dashboard.segment import SUMS, TABLE
from cmsspark.base.errors import DataError
from cmsspark.base.names import DERIVED
from cmsspark.base.schemas import stored_table
from cmsspark.counting.packing import Codes, find_starts
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.sources.registry import STREAMS_OF_JOBS
from cmsspark.store.query.stored_parts import StoredInterval
from cmsspark.store.stored_columns import conformed_rows, part_rows

if TYPE_CHECKING:
    import pyarrow as pa


_NAMED: Final = ("stream", "dataset_name", "site_name", "app", "user")
_STORED: Final = (*_NAMED, "nacc", "remote_nacc", "read_bytes", "cpu_time", "wc_time")
#: Columns of which segments have numbers of names.
NAMED: Final = (*_NAMED, "site_tier", "data_tier", "campaign")
#: Columns of some rows by name. Keys are numbers of names. Additive columns are 0 where
#: they are null; bit N of ``has`` says whether the row has a value of ``SUMS[N]``.
#: Values beyond 64 bits are Python's integers.
Rows = dict[str, npt.NDArray[Any]]


class Names:
    """The numbers of names in the order of their arrival. ``stored`` have numbers already."""

    def __init__(self, stored: Mapping[str, Sequence[str]]) -> None:
        self._numbers = {
            column: {name: number for number, name in enumerate(stored.get(column, ()))}
            for column in NAMED
        }

    def codes(self, column: str, texts: Sequence[str]) -> Codes:
        """Return the number of each text."""
        numbers = self._numbers[column]
        new = [text for text in texts if text not in numbers]
        numbers.update(zip(new, range(len(numbers), len(numbers) + len(new)), strict=True))
        return np.fromiter(map(numbers.__getitem__, texts), np.int32, len(texts))

    def derived_codes(self, column: str) -> Codes:
        """Return the number of a derived column for each number of its source."""
        rule = DERIVED[column]
        parts = [rule.derive(text) or "" for text in self._numbers[rule.source]]
        self.codes(column, list(dict.fromkeys(parts)))
        return self.codes(column, parts)

    @property
    def lists(self) -> dict[str, list[str]]:
        """The names of each column by number."""
        return {column: list(numbers) for column, numbers in self._numbers.items()}


class DayRows(msgspec.Struct, frozen=True):
    """The partials of a day.

    ``day``: days since 1970; ``keys``: the ids of its pseudonym keys. Rows without a
    user have the number -1.
    """

    day: int
    rows: Rows
    keys: list[str]


def read_day(entry: StoredInterval, names: Names) -> DayRows:
    """Return the partials of a day. Raises DataError (65) where they are damaged."""
    rows = _stored_rows(entry)
    if rows.num_rows != entry.rows:
        raise DataError(
            f"the {TABLE} of {entry.interval} have another number of rows than their manifest says",
            where=entry.parts[0].path if entry.parts else None,
            found=f"{rows.num_rows:,} rows where {entry.rows:,} were written",
            next_step=f"run_spark data_aggregation --date {entry.interval}",
        )
    codes: Rows = {}
    keys: set[str] = set()
    for name in _NAMED:
        # A day without rows has no chunk.
        column = rows[name].combine_chunks()
        texts = column.dictionary.to_pylist()
        # Index -1 is null; it takes the last element.
        of_texts = np.append(names.codes(name, texts), np.int32(-1))
        codes[name] = of_texts[column.indices.fill_null(-1).to_numpy(zero_copy_only=False)]
        if name == "user":
            keys = {text.partition(":")[0] for text in texts}
    day = int(np.datetime64(entry.first_day, "D").astype(np.int64))
    is_of_jobs = np.array([text in STREAMS_OF_JOBS for text in names.lists["stream"]], np.bool_)
    return DayRows(day, codes | _sums(rows, is_of_jobs[codes["stream"]]), sorted(keys))


def _sums(rows: pa.Table, is_job: npt.NDArray[np.bool_]) -> Rows:
    """Return counts of accesses, and those of jobs in columns of their own; each null
    in rows of the other kind.
    """
    nacc, remote, read = (
        _whole_numbers(rows[name]) for name in ("nacc", "remote_nacc", "read_bytes")
    )
    cpu, wc = (_whole_numbers(_milliseconds(rows[name])) for name in ("cpu_time", "wc_time"))
    columns = {
        "nacc": _where(nacc, ~is_job),
        "remote_nacc": _where(remote, ~is_job),
        "remote_known_nacc": _where(nacc, ~is_job & remote[1]),
        "read_bytes": _where(read, ~is_job),
        "job_count": _where(nacc, is_job),
        "job_read_bytes": _where(read, is_job),
        "cpu_ms": cpu,
        "wc_ms": wc,
    }
    has = np.packbits(np.stack([columns[name][1] for name in SUMS]), axis=0, bitorder="little")[0]
    return {**{name: columns[name][0] for name in SUMS}, "has": has}


def _whole_numbers(column: pa.ChunkedArray) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    """Return whole numbers, 0 where they are null, and whether they are there."""
    return column.fill_null(0).to_numpy(), column.is_valid().to_numpy()


def _where(
    column: tuple[npt.NDArray[Any], npt.NDArray[np.bool_]], is_chosen: npt.NDArray[np.bool_]
) -> tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]:
    values, is_valid = column
    return np.where(is_chosen, values, 0), is_valid & is_chosen


def _milliseconds(seconds: pa.ChunkedArray) -> pa.ChunkedArray:
    """Return seconds of stored cells as whole milliseconds, which they are
    (``docs/counting.md``, rule 11).
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.round(pc.multiply(seconds, 1000.0)).cast(pa.int64())


def _stored_rows(entry: StoredInterval) -> pa.Table:
    """Return the partials of a day with texts as dictionaries, each column one chunk.
    Raises DataError (65).
    """
    import pyarrow as pa

    if entry.fault is not None:
        raise entry.fault
    schema, files = stored_table(TABLE), LocalFiles()
    if entry.is_converted:
        parts = [conformed_rows(files, part, schema).select(list(_STORED)) for part in entry.parts]
    else:
        parts = [part_rows(files, part, schema, _STORED) for part in entry.parts]
    plain = schema.arrow()
    texts = pa.dictionary(pa.int32(), pa.string())
    coded = pa.schema(
        [(name, texts if name in _NAMED else plain.field(name).type) for name in _STORED]
    )
    tables = [part.cast(coded) for part in parts] or [coded.empty_table()]
    return pa.concat_tables(tables).unify_dictionaries().combine_chunks()


# Rows that arrive in parts, each sorted by one column, and are read back in its order
# over all parts.

#: Rows of a batch, about.
_BATCH: Final = 250_000


class _Stored(msgspec.Struct, frozen=True):
    """Where a column of a part stands in the file."""

    kind: np.dtype[Any]
    offset: int


class _Part(msgspec.Struct, frozen=True):
    """A part: its keys in order, where the rows of each begin, where those of the last
    end, and its columns.
    """

    keys: Codes
    starts: npt.NDArray[np.int64]
    columns: Mapping[str, _Stored | npt.NDArray[Any]]


class SortedParts:
    """Rows by key, which is the number of a name."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._parts: list[_Part] = []

    def add(self, keys: Codes, columns: Mapping[str, npt.NDArray[Any]]) -> None:
        """Add a part, whose rows are in the order of the keys."""
        starts = np.flatnonzero(find_starts(keys)) if len(keys) else np.zeros(0, np.int64)
        with open(self._path, "ab") as file:
            stored = {name: _store(file, column) for name, column in columns.items()}
        self._parts.append(_Part(keys[starts], np.append(starts, len(keys)), stored))

    def batches(self, key_count: int) -> Iterator[dict[str, npt.NDArray[Any]]]:
        """Return all rows sorted by key, those of a key by part. Keys are less than
        ``key_count``.

        The columns of a batch are those of the parts, ``place``, the key, and ``part``. A
        key is in one batch.
        """
        counts = np.zeros(key_count, np.int64)
        for part in self._parts:
            counts[part.keys] += np.diff(part.starts)
        batch = np.cumsum(counts) // _BATCH
        # Without rows there is one batch, whose columns make an empty table.
        firsts = np.flatnonzero(find_starts(batch)).tolist() or [0]
        for first, end in zip(firsts, [*firsts[1:], key_count], strict=True):
            yield self._batch(first, end)

    def _batch(self, first: int, end: int) -> dict[str, npt.NDArray[Any]]:
        bounds, own_places = [], []
        for part in self._parts:
            begin, stop = np.searchsorted(part.keys, (first, end))
            bounds.append((part.starts[begin], part.starts[stop]))
            own_places.append(
                np.repeat(
                    part.keys[begin:stop].astype(np.int64), np.diff(part.starts[begin : stop + 1])
                )
            )
        joined_ranks = np.concatenate(own_places)
        # Numbers are sorted faster than positions by them, and parts in order are only merged.
        order = (
            np.sort(joined_ranks << 32 | np.arange(len(joined_ranks)), kind="stable") & 0xFFFFFFFF
        )
        number = np.repeat(np.arange(len(bounds)), [len(part_ranks) for part_ranks in own_places])
        rows = {"place": joined_ranks[order], "part": number[order]}
        with open(self._path, "rb", buffering=0) as file:
            for name in self._parts[0].columns:
                parts = [
                    _read(file, part.columns[name], *span)
                    for part, span in zip(self._parts, bounds, strict=True)
                ]
                rows[name] = np.concatenate(parts)[order]
        return rows


def _store(file: BinaryIO, column: npt.NDArray[Any]) -> _Stored | npt.NDArray[Any]:
    """Append a column to a file. Python's integers stay in memory."""
    if column.dtype == object:
        return column
    offset = file.tell()
    column.tofile(file)
    return _Stored(column.dtype, offset)


def _read(
    file: BinaryIO, stored: _Stored | npt.NDArray[Any], begin: int, end: int
) -> npt.NDArray[Any]:
    if not isinstance(stored, _Stored):
        return stored[begin:end]
    file.seek(stored.offset + int(begin) * stored.kind.itemsize)
    return np.fromfile(file, stored.kind, end - begin)
