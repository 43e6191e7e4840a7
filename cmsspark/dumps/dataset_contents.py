"""FILES of a DBS dump to what each dataset or block holds: files, events and bytes,
each file once (rule 18).

Each part is summed as it is. All rows of a name meet by its hash, and all but one are
taken off again.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.base.arrays import Longs, sums_by_group
from cmsspark.base.buffers import array, flags, from_numpy, is_there, to_numpy
from cmsspark.counting.catalogue import Hash, Hashes, check_hash, hashes_in, name_hash
from cmsspark.counting.row_use import RowUse
from cmsspark.dumps.keyed_rows import (
    ROWS,
    Columns,
    KeyedRows,
    Mapper,
    by_key,
    find_starts,
    group_rows,
    join_columns,
    keys_of_hashes,
    keys_of_ids,
    map_slices,
    number_names,
    rank_names,
    rows_by_kind,
)

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of files, sums of files by dataset or block, and the ids of blocks with a valid file.
FILES, TOTALS, VALID_BLOCKS = "files", "totals", "valid_blocks"
#: Columns of FILES that are read, in this order; of blocks also ``block_id``.
FILE_COLUMNS: Final = (
    "logical_file_name",
    "file_id",
    "dataset_id",
    "is_file_valid",
    "event_count",
    "file_size",
)
#: What tells which of two rows with one name counts, the first the most: the larger
#: value, null the smallest.
_FACTS: Final = ("file_id", "group", "valid", "events", "bytes")
_BITS: Final = {"file_id": 1, "valid": 2, "events": 4, "bytes": 8}
#: Sums: counts, how many files say a number, and the two halves of its sum.
SUMS: Final = (
    *("files", "invalid", "events_there", "events_upper", "events_lower"),
    *("bytes_there", "bytes_upper", "bytes_lower"),
    *("invalid_events_upper", "invalid_events_lower"),
    *("invalid_bytes_upper", "invalid_bytes_lower"),
)
#: Stands for no block.
NO_BLOCK: Final = np.iinfo(np.int64).min


class KnownDatasets(msgspec.Struct, frozen=True):
    """Datasets of DATASETS that have an id and a name: the ids in order, and for each
    the number of its name.
    """

    ids: Longs
    numbers: npt.NDArray[np.int32]
    #: How many names there are.
    count: int

    def find_positions(self, column: pa.ChunkedArray) -> Longs:
        """Return the position in ``ids`` of each id of a column, -1 where it is not known."""
        expected = to_numpy(column, np.int64)
        if not len(self.ids) or not len(expected):
            return np.full(len(expected), -1, np.int64)
        # Files of one dataset stand next to each other, as a rule: each run of equal
        # ids is looked up once.
        starts = np.flatnonzero(np.concatenate(([True], expected[1:] != expected[:-1])))
        ids_of_runs = expected[starts]
        positions_of_runs = np.minimum(np.searchsorted(self.ids, ids_of_runs), len(self.ids) - 1)
        positions_of_runs[self.ids[positions_of_runs] != ids_of_runs] = -1
        positions = np.repeat(positions_of_runs, np.diff(np.append(starts, len(expected))))
        if column.null_count:
            positions[~is_there(column)] = -1
        return positions


def known_datasets(ids: Sequence[int], numbers: Sequence[int], count: int) -> KnownDatasets:
    """Return known datasets from ids, each once and in any order, and the numbers of their names."""
    in_order_given = np.array(ids, np.int64)
    order = np.argsort(in_order_given)
    return KnownDatasets(in_order_given[order], np.array(numbers, np.int32)[order], count)


class FileMerge(msgspec.Struct, frozen=True):
    """Merges the files of one key. ``count``: how many dataset_ids are known; None:
    sums are by block.
    """

    keys: int
    count: int | None

    def __call__(self, key: int, rows: Sequence[KeyedRows]) -> Iterator[KeyedRows]:
        """Yield the negative sums of all rows beside another one of the same name that counts."""
        extra = surplus([entry.columns for entry in rows])
        yield from self.totals(
            {name: values if name == "group" else -values for name, values in extra.items()}
        )

    def totals(self, sums: Columns) -> Iterator[KeyedRows]:
        """Yield sums of groups by ranges of datasets, or by the id of the block."""
        groups = sums["group"]
        by_id = self.count is None
        row_keys = (
            keys_of_ids(groups, self.keys)
            if by_id
            else groups * self.keys // max(1, self.count or 0)
        )
        return by_key(TOTALS, row_keys, sums)


class FileMapper(msgspec.Struct, frozen=True):
    """Makes keyed rows of FILES: each file of ``datasets`` by the hash of its name, and
    the sums of all files.

    ``group`` of rows is the dataset's position in ``datasets.ids`` or, where ``merge``
    sums by block, the block's id. With ``is_valid_only`` files that are not valid have
    no events and bytes. ``dataset_hashes``: those of the names that ``datasets``
    numbers; with them the ids of blocks that have a valid file come by the key of their
    dataset.
    """

    datasets: KnownDatasets
    merge: FileMerge
    is_valid_only: bool = False
    hash_name: Hash = name_hash
    dataset_hashes: Hashes | None = None

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
        import pyarrow as pa

        blocks: list[Columns] = []
        if self.dataset_hashes is not None:
            tables = _note_blocks(tables, blocks)
        for facts in self.facts(tables):
            yield from self.merge.totals(sum_files(facts))
            yield from by_key(FILES, keys_of_hashes(facts["hash"], self.merge.keys), facts)
        if blocks and self.dataset_hashes is not None:
            columns = {name: np.concatenate([part[name] for part in blocks]) for name in blocks[0]}
            order = np.lexsort((columns["dataset_id"], columns["block_id"]))
            block, dataset = columns["block_id"][order], columns["dataset_id"][order]
            firsts = find_starts(block, dataset)
            dataset_ids = pa.chunked_array([from_numpy(dataset[firsts])])
            positions = self.datasets.find_positions(dataset_ids)
            is_known = positions >= 0
            of_datasets = self.dataset_hashes[self.datasets.numbers[positions[is_known]]]
            yield from by_key(
                VALID_BLOCKS,
                keys_of_hashes(of_datasets, self.merge.keys),
                {"block_id": block[firsts][is_known], "hash": of_datasets},
            )

    def facts(self, tables: Iterable[pa.Table], rows: int = ROWS) -> Iterator[Columns]:
        """Yield the files of known datasets as numbers, about ``rows`` at a time, from
        tables of ``FILE_COLUMNS``.

        ``there`` has a bit for each number that is not null.
        """
        return map_slices(self._facts, tables, rows)

    def _facts(self, table: pa.Table) -> Columns:
        positions = self.datasets.find_positions(table["dataset_id"])
        stays = positions >= 0
        if not stays.all():
            rows = np.flatnonzero(stays)
            table, positions = table.take(from_numpy(rows)), positions[rows]
        names = name_files(table)
        columns = {
            "file_id": "file_id",
            "valid": "is_file_valid",
            "events": "event_count",
            "bytes": "file_size",
        }
        validity = np.zeros(len(positions), np.uint8)
        for name, column in columns.items():
            validity |= is_there(table[column]).astype(np.uint8) * np.uint8(_BITS[name])
        numbers = {name: to_numpy(table[column], np.int64) for name, column in columns.items()}
        if self.is_valid_only:
            is_valid = (numbers["valid"] == 1) & ((validity & _BITS["valid"]) > 0)
            validity &= np.where(is_valid, 0xFF, _BITS["file_id"] | _BITS["valid"]).astype(
                np.uint8
            )
        is_by_block = self.merge.count is None
        group = (
            to_numpy(table["block_id"], np.int64, NO_BLOCK)
            if is_by_block
            else positions.astype(np.int32)
        )
        hashes = {"hash": hashes_in(names, self.hash_name), "check": hashes_in(names, check_hash)}
        return {**hashes, **numbers, "group": group, "there": validity}


def _note_blocks(tables: Iterable[pa.Table], blocks: list[Columns]) -> Iterator[pa.Table]:
    """Yield the tables, and add the blocks and datasets of their valid files to ``blocks``."""
    for table in tables:
        is_valid = is_there(table["is_file_valid"]) & is_there(table["block_id"])
        is_valid &= to_numpy(table["is_file_valid"], np.int64) == 1
        block = to_numpy(table["block_id"], np.int64)[is_valid]
        dataset = to_numpy(table["dataset_id"], np.int64, NO_BLOCK)[is_valid]
        # Files of one block stand next to each other, as a rule.
        is_first = np.ones(len(block), np.bool_)
        is_first[1:] = (block[1:] != block[:-1]) | (dataset[1:] != dataset[:-1])
        blocks.append({"block_id": block[is_first], "dataset_id": dataset[is_first]})
        yield table


def name_files(table: pa.Table) -> pa.ChunkedArray:
    """Return the names of files; a file without one is called by its id, in a way that
    no name has.
    """
    import pyarrow as pa

    names = table["logical_file_name"]
    if not names.null_count:
        return names
    texts = [
        name if name is not None else "\0" if file_id is None else f"\0{file_id}"
        for name, file_id in zip(names.to_pylist(), table["file_id"].to_pylist(), strict=True)
    ]
    return pa.chunked_array([array(texts, "string")])


def sum_files(facts: Columns) -> Columns:
    """Return :data:`SUMS` of files by ``group``."""
    groups = facts["group"].astype(np.int64)
    if not len(groups):
        return dict.fromkeys(("group", *SUMS), groups)
    first, last = int(groups.min()), int(groups.max())
    if last - first < 4 * len(groups):
        ids, groups = np.arange(first, last + 1), groups - first
    else:
        ids, groups = np.unique(groups, return_inverse=True)
    validity = facts["there"]
    valid = (facts["valid"] == 1) & ((validity & _BITS["valid"]) > 0)
    files = np.bincount(groups, minlength=len(ids))
    sums = [files, files - np.bincount(groups, valid, len(ids)).astype(np.int64)]
    for name in ("events", "bytes"):
        has = (validity & _BITS[name]) > 0
        sums.append(np.bincount(groups, has, len(ids)).astype(np.int64))
        sums += sums_by_group(groups, np.where(has, facts[name], 0), len(ids))
    odd = np.flatnonzero(~valid)
    for name in ("events", "bytes"):
        has = (validity[odd] & _BITS[name]) > 0
        sums += sums_by_group(groups[odd], np.where(has, facts[name][odd], 0), len(ids))
    with_files = np.flatnonzero(files)
    return {"group": ids[with_files]} | {
        name: values[with_files] for name, values in zip(SUMS, sums, strict=True)
    }


def surplus(pieces: Sequence[Columns]) -> Columns:
    """Return the sums of all rows beside another one of the same name that counts. All
    rows of a name are there.
    """
    hashes = np.concatenate([piece["hash"] for piece in pieces])
    rows = rows_that_repeat(hashes)
    facts = {
        name: np.concatenate([piece[name] for piece in pieces])[rows]
        for name in (*_FACTS, "check", "there")
    }
    keys: list[npt.NDArray[Any]] = []
    for name in reversed(_FACTS):
        has = (facts["there"] & _BITS.get(name, 0)) > 0
        keys += [facts[name], has] if name in _BITS else [facts[name]]
    order = np.lexsort([*keys, facts["check"], hashes[rows]])
    ordered_hashes, ordered_checks = hashes[rows][order], facts["check"][order]
    # The last of each name counts.
    is_surplus = np.zeros(len(order), np.bool_)
    is_surplus[:-1] = (ordered_hashes[1:] == ordered_hashes[:-1]) & (
        ordered_checks[1:] == ordered_checks[:-1]
    )
    return sum_files({name: values[order[is_surplus]] for name, values in facts.items()})


def rows_that_repeat(hashes: Hashes) -> npt.NDArray[np.intp]:
    """Return the rows whose hash another row has, too."""
    # Sorting values alone is many times as quick as sorting rows by them.
    in_order = np.sort(hashes)
    repeated = in_order[1:][in_order[1:] == in_order[:-1]]
    if not len(repeated):
        return np.zeros(0, np.intp)
    # Most rows are ruled out by a few bits of their hash.
    marks = np.zeros(1 << 16, np.bool_)
    marks[repeated & np.uint64(0xFFFF)] = True
    perhaps = np.flatnonzero(marks[hashes & np.uint64(0xFFFF)])
    candidates = hashes[perhaps]
    positions = np.minimum(np.searchsorted(repeated, candidates), len(repeated) - 1)
    rows: npt.NDArray[np.intp] = perhaps[repeated[positions] == candidates]
    return rows


def sum_totals(rows: Sequence[KeyedRows]) -> Columns:
    """Return the sums of several rows of sums, each group once."""
    columns = join_columns(rows, ("group", *SUMS))
    groups, positions = np.unique(columns.pop("group"), return_inverse=True)
    return {"group": groups} | {
        name: _sum(positions, values, len(groups)) for name, values in columns.items()
    }


def merge_totals(key: int, rows: Sequence[KeyedRows]) -> Iterator[KeyedRows]:
    """Yield one row of the sums of several."""
    yield KeyedRows(key, TOTALS, sum_totals(rows))


def _sum(groups: Longs, values: Longs, count: int) -> Longs:
    sums = np.zeros(count, np.int64)
    np.add.at(sums, groups, values)
    return sums


def sum_datasets(rows: Iterable[KeyedRows], datasets: KnownDatasets) -> Columns:
    """Return :data:`SUMS` of rows of :data:`TOTALS` by the name of the dataset, in the
    order of the names' numbers; one name may have several ids.
    """
    columns = join_columns([entry for entry in rows if entry.kind == TOTALS], ("group", *SUMS))
    numbers = datasets.numbers[columns["group"]].astype(np.int64)
    return {name: _sum(numbers, columns[name], datasets.count) for name in SUMS}


# What blocks hold, by dataset and month (rule 39). Files are summed by the id of their
# block, each file once, by :class:`FileMapper`; these sums meet the rows of BLOCKS by the id.

#: Rows of BLOCKS, and sums of blocks by dataset and month.
NAMED_BLOCKS, MONTH_SUMS = "named_blocks", "month_sums"
#: Stands for no month, and for no dataset.
NULL: Final = np.iinfo(np.int64).min
#: The first and the last Unix second of the years from 1 to 9999.
_TIMES: Final = (-62_135_596_800, 253_402_300_799)
_KEYS: Final = ("dataset", "month")
_SUMMED: Final = ("block_count", *SUMS)


def map_blocks(keys: int, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
    """Yield keyed rows of BLOCKS that have an id, by the id."""
    for table in tables:
        blocks = table.filter(flags(is_there(table["block_id"])))
        ids, created = to_numpy(blocks["block_id"], np.int64), blocks["creation_date"]
        columns = {
            "block_id": ids,
            "name": np.arange(len(ids)),
            "dataset": to_numpy(blocks["dataset_id"], np.int64, NULL),
            "created": np.where(is_there(created), to_numpy(created, np.float64), -np.inf),
        }
        names = {"name": blocks["block_name"].combine_chunks()}
        yield from by_key(NAMED_BLOCKS, keys_of_ids(ids, keys), columns, names)


def merge_blocks(keys: int, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
    """Yield sums of a key's blocks by ``dataset`` (id) and ``month`` (from 1970-01), by
    the dataset's key.
    """
    by_kind = rows_by_kind(rows)
    yield from by_kind[ROW_USE]
    blocks = _blocks_once(by_kind[NAMED_BLOCKS])
    totals = sum_totals(by_kind[TOTALS])
    ids, block_ids = totals.pop("group"), blocks.pop("block_id")
    positions = np.minimum(np.searchsorted(ids, block_ids), max(0, len(ids) - 1))
    has_files = ids[positions] == block_ids if len(ids) else np.zeros(len(block_ids), np.bool_)
    sums = {name: np.zeros(len(block_ids), np.int64) for name in SUMS}
    for name, values in totals.items():
        sums[name][has_files] = values[positions[has_files]]
    columns = group_rows(
        blocks | {"block_count": np.ones(len(block_ids), np.int64)} | sums, _KEYS, counts=_SUMMED
    )
    yield from by_key(MONTH_SUMS, keys_of_ids(columns["dataset"], keys), columns)


def merge_months(key: int, rows: Sequence[KeyedRows]) -> Iterator[KeyedRows]:
    """Yield one row of the sums of several."""
    yield KeyedRows(
        key, MONTH_SUMS, group_rows(join_columns(rows, (*_KEYS, *_SUMMED)), _KEYS, counts=_SUMMED)
    )


def _blocks_once(rows: Sequence[KeyedRows]) -> Columns:
    """Return ``block_id``, each once, ``dataset`` and ``month``: of several rows the
    largest values.
    """
    numbers, names = number_names(rows, "name")
    columns = join_columns(rows, ("block_id", "dataset")) | join_columns(
        rows, ("created",), np.float64
    )
    order = np.lexsort(
        (columns["created"], columns["dataset"], rank_names(names)[numbers], columns["block_id"])
    )
    ids = columns["block_id"][order]
    last = order[np.append(ids[1:] != ids[:-1], np.ones(min(1, len(ids)), np.bool_))]
    created = columns.pop("created")[last]
    is_time = (created >= _TIMES[0]) & (created <= _TIMES[1])
    times = np.floor(np.where(is_time, created, 0)).astype(np.int64).astype("datetime64[s]")
    return {name: values[last] for name, values in columns.items()} | {
        "month": np.where(is_time, times.astype("datetime64[M]").astype(np.int64), NULL)
    }


# The rows and values of CSV tables that can be true, and how many are none (rule 70). A
# mapper gets its tables through here: a count below zero and a time in no plausible year
# become null, and what was used is counted.

#: Rows that hold what a task used, which pass all merges.
ROW_USE: Final = "row_use"
#: Columns of numbers that are never below zero; -1 is how some clients say "not known".
COUNTS: Final = frozenset(
    {
        *("event_count", "file_size", "block_files", "block_bytes"),
        *("br_node_files", "br_node_bytes"),
    }
)
#: Columns of Unix seconds.
TIMES: Final = frozenset({"creation_date", "replica_time_create"})
#: The first second of the year 2100. Milliseconds and microseconds are above it.
LAST_SECOND: Final = 4_102_444_800


class SiftedMapper(msgspec.Struct, frozen=True):
    """A mapper of a table, which gets values that can be true, and after its rows a row
    of :data:`ROW_USE`.

    ``datasets``: those that rows with a dataset_id must name to be of use.
    """

    table: str
    mapper: Mapper[pa.Table]
    datasets: KnownDatasets | None = None

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
        uses: dict[str, RowUse] = {}
        yield from self.mapper(self._sifted(table, uses) for table in tables)
        texts = [
            json.dumps([name, use.rows, use.used, use.set_aside, use.is_of_values])
            for name, use in uses.items()
        ]
        yield KeyedRows(
            0, ROW_USE, {"use": np.arange(len(texts))}, {"use": array(texts, "string")}
        )

    def _sifted(self, table: pa.Table, uses: dict[str, RowUse]) -> pa.Table:
        """Return the table with null for what cannot be true, and count."""
        # Rows are of use that name what they must name.
        names = table.column_names
        if self.datasets is not None and "dataset_id" in names:
            fits, reason = self.datasets.find_positions(table["dataset_id"]) >= 0, "no_dataset"
        else:
            # The keys of the other tables.
            keys = ("dataset", "dataset_id", "dataset_name", "block_name", "node_name")
            fits, reason = np.ones(table.num_rows, np.bool_), "no_name"
            for key in keys:
                if key in names and table[key].null_count:
                    fits &= is_there(table[key])
        used = int(fits.sum())
        uses.setdefault(self.table, RowUse()).add(
            RowUse(table.num_rows, used, Counter({reason: table.num_rows - used}))
        )
        for position, name in enumerate(table.column_names):
            if name in COUNTS or name in TIMES:
                use = uses.setdefault(f"{self.table}.{name}", RowUse(is_of_values=True))
                values = _sift(table[name], name, use)
                if values is not table[name]:
                    table = table.set_column(position, name, values)
        return table


def _sift(column: pa.ChunkedArray, name: str, use: RowUse) -> pa.ChunkedArray:
    """Return a column with null for what cannot be true; the same one where all can."""
    import pyarrow as pa
    import pyarrow.compute as pc

    use.rows += len(column) - column.null_count
    use.used += len(column) - column.null_count
    ends = pc.min_max(column).as_py()
    is_below = ends["min"] is not None and ends["min"] < 0
    is_above = name in TIMES and ends["max"] is not None and ends["max"] >= LAST_SECOND
    checks: tuple[tuple[bool, str, Any, int], ...] = (
        (is_below, "negative", pc.less, 0),
        (is_above, "after_2099", pc.greater_equal, LAST_SECOND),
    )
    for is_odd, reason, compare, limit in checks:
        if is_odd:
            is_wrong = compare(column, limit).fill_null(False)
            count = pc.sum(is_wrong).as_py() or 0
            use.used -= count
            use.set_aside[reason] += count
            column = pc.if_else(is_wrong, pa.scalar(None, column.type), column)
    return column


def sum_uses(rows: Iterable[KeyedRows]) -> dict[str, RowUse]:
    """Return by input what all tasks used, of rows of any kind."""
    uses: dict[str, RowUse] = {}
    for entry in rows:
        for text in entry.names["use"].to_pylist() if entry.kind == ROW_USE else ():
            name, read, used, set_aside, is_of_values = json.loads(text)
            use = uses.setdefault(name, RowUse(is_of_values=is_of_values))
            use.add(RowUse(read, used, Counter(set_aside)))
    return uses
