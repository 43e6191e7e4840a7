"""Rows of numbers that move between tasks: each has a key, and rows of one key meet in one task.

The halves of a job on dumps, for a runner whose tasks share no disk. ``FileMapper``, ``BlockMapper`` and
``ReplicaMapper`` make keyed rows of a part's tables, and :func:`merge` makes rows of a result of all rows of one key.
:mod:`cmsspark.dumps.dataset_contents` and ``presence`` have the rules.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cmsspark.counting.catalogue import Hashes, check_hash, name_hash
from cmsspark.dumps.dataset_contents import SUMS, Contents, KnownDatasets, file_facts, surplus
from cmsspark.dumps.dataset_replicas import Names, Presence, StorageByNode, block_pieces, replica_pieces, storage_of
from cmsspark.dumps.replica_sums import COLUMNS, rows_of_datasets

if TYPE_CHECKING:
    import pyarrow as pa

Columns = dict[str, npt.NDArray[Any]]

#: Keys at most: the first bits of a hash choose one.
MOST_KEYS: Final = 4096
#: What a row holds: files, sums of files by dataset, blocks of DBS, replicas, what lies where.
FILES, TOTALS, BLOCKS, REPLICAS, PRESENCE = "files", "totals", "blocks", "replicas", "presence"


class KeyedRows(NamedTuple):
    """Rows of one key: columns of numbers, and lists of the names that they number."""

    key: int
    what: str
    columns: Columns
    names: Mapping[str, Sequence[Any]] = {}

    def packed(self) -> bytes:
        """Columns and names as bytes, for :func:`unpacked`."""
        kinds = [(name, values.dtype.str, len(values)) for name, values in self.columns.items()]
        head = json.dumps({"columns": kinds, "names": dict(self.names)}).encode()
        return b"".join((len(head).to_bytes(8, "little"), head, *(one.tobytes() for one in self.columns.values())))


def unpacked(key: int, what: str, packed: bytes) -> KeyedRows:
    """Return the rows that :meth:`KeyedRows.packed` was called on. The columns are read-only."""
    place = 8 + int.from_bytes(packed[:8], "little")
    head = json.loads(packed[8:place])
    columns: Columns = {}
    for name, kind, count in head["columns"]:
        columns[name] = np.frombuffer(packed, kind, count, place)
        place += columns[name].nbytes
    return KeyedRows(key, what, columns, head["names"])


def keys_of(hashes: Hashes, keys: int) -> npt.NDArray[np.int64]:
    """Return the key of each hash; ``keys`` is a power of two up to :data:`MOST_KEYS`."""
    return ((hashes >> np.uint64(52)) // np.uint64(MOST_KEYS // keys)).astype(np.int64)


def by_key(
    what: str, of_rows: npt.NDArray[np.int64], columns: Columns, names: Mapping[str, Sequence[Any]] | None = None
) -> Iterator[KeyedRows]:
    """Yield the rows of each key together. ``of_rows``: the key of each row."""
    if not len(of_rows):
        return
    order = np.argsort(of_rows, kind="stable")
    in_order = of_rows[order]
    starts = np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1])))
    for first, last in zip(starts, np.append(starts[1:], len(order)), strict=True):
        rows = order[first:last]
        yield KeyedRows(int(in_order[first]), what, {name: one[rows] for name, one in columns.items()}, names or {})


@dataclass(frozen=True)
class FileMapper:
    """Keyed rows of FILES: each file by the hash of its name, and the sums of all files by dataset."""

    known: KnownDatasets
    keys: int

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
        for facts in file_facts(tables, self.known):
            yield from totals_by_key(Contents.of(facts), len(self.known.ids), self.keys)
            yield from by_key(FILES, keys_of(facts["hash"], self.keys), facts)


@dataclass(frozen=True)
class BlockMapper:
    """Keyed rows of BLOCKS, by the dataset's name. ``hashes``, ``checks``: those of the names that ``known`` numbers.

    The number of a dataset stands in the names ``datasets``, as (hash, check).
    """

    known: KnownDatasets
    hashes: Hashes
    checks: Hashes
    keys: int

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
        for numbers, blocks in block_pieces(tables, self.known):
            for rows in by_key(BLOCKS, keys_of(self.hashes[numbers], self.keys), {"dataset": numbers, "block": blocks}):
                some, places = np.unique(rows.columns["dataset"], return_inverse=True)
                pairs = list(zip(self.hashes[some].tolist(), self.checks[some].tolist(), strict=True))
                yield rows._replace(columns=rows.columns | {"dataset": places}, names={"datasets": pairs})


@dataclass(frozen=True)
class ReplicaMapper:
    """Keyed rows of the replicas, by the dataset's name; a replica without a dataset has the key 0."""

    keys: int

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
        for piece in replica_pieces(tables):
            hashes = np.array([0 if name is None else name_hash(name.encode()) for name in piece.datasets], np.uint64)
            of_rows = keys_of(hashes[piece.columns["dataset"]], self.keys)
            for rows in by_key(REPLICAS, of_rows, piece.columns):
                some, places = np.unique(rows.columns["dataset"], return_inverse=True)
                names = {"datasets": [piece.datasets[number] for number in some], "nodes": piece.nodes}
                yield rows._replace(columns=rows.columns | {"dataset": places}, names=names)


def totals_by_key(contents: Contents, count: int, keys: int) -> Iterator[KeyedRows]:
    """Sums of datasets, by ranges of the ``count`` datasets."""
    sums = dict(zip(SUMS, contents.sums, strict=True))
    return by_key(TOTALS, contents.groups * keys // max(1, count), {"dataset": contents.groups, **sums})


@dataclass(frozen=True)
class DumpMerge:
    """Merges the rows of one key. ``count``: the number of dataset_ids; ``counts_blocks``: whether BLOCKS was read.

    ``storage``: of each node, where the nodes' names do not say it.
    """

    count: int
    keys: int
    counts_blocks: bool
    storage: StorageByNode | None = None

    def __call__(self, key: int, rows: Iterable[KeyedRows]) -> Iterator[KeyedRows]:
        """Yield sums by dataset, and what lies where. Surplus sums are negative; they may belong to another key."""
        by_kind: dict[str, list[KeyedRows]] = defaultdict(list)
        for one in rows:
            by_kind[one.what].append(one)
        if by_kind[TOTALS]:
            yield merged_totals(key, by_kind.pop(TOTALS))
        if by_kind[FILES]:
            files = by_kind.pop(FILES)
            extra = surplus(lambda name: np.concatenate([one.columns[name] for one in files]))
            del files
            yield from totals_by_key(Contents(extra.groups, -extra.sums), self.count, self.keys)
        if by_kind[REPLICAS]:
            found = _presence_of(by_kind[REPLICAS], by_kind[BLOCKS] if self.counts_blocks else None, self.storage)
            yield KeyedRows(key, PRESENCE, found.rows, {"datasets": found.datasets, "sites": found.sites})


def merged_totals(key: int, rows: Sequence[KeyedRows]) -> KeyedRows:
    """Sums by dataset of several rows of sums, each dataset once."""
    datasets = np.concatenate([one.columns["dataset"] for one in rows])
    some, places = np.unique(datasets, return_inverse=True)
    columns: Columns = {"dataset": some}
    for name in SUMS:
        columns[name] = np.zeros(len(some), np.int64)
        np.add.at(columns[name], places, np.concatenate([one.columns[name] for one in rows]))
    return KeyedRows(key, TOTALS, columns)


def _presence_of(
    replicas: Sequence[KeyedRows], blocks: Sequence[KeyedRows] | None, by_node: StorageByNode | None = None
) -> Presence:
    """Return what lies where of the datasets of one key, and with ``blocks`` how many blocks each has."""
    datasets, nodes = Names(), Names()
    columns: Columns = {}
    for what, numbering in (("dataset", datasets), ("node", nodes)):
        numbers = [_numbered(one, what, numbering.number) for one in replicas]
        columns[what] = np.concatenate(numbers).astype(np.int64)
    for name in replicas[0].columns.keys() - columns.keys():
        columns[name] = np.concatenate([one.columns[name] for one in replicas])
    in_dbs = None
    if blocks is not None:
        of_pairs = {
            (name_hash(name.encode()), check_hash(name.encode())): number
            for name, number in datasets.numbers.items()
            if name is not None
        }
        of_blocks = [_numbered(one, "dataset", lambda pair: of_pairs.get(tuple(pair), -1)) for one in blocks]
        numbers_in_dbs = np.concatenate([np.zeros(0, np.int64), *of_blocks])
        hashes = np.concatenate([np.zeros(0, np.uint64), *(one.columns["block"] for one in blocks)])
        stays = numbers_in_dbs >= 0
        in_dbs = {"dataset": numbers_in_dbs[stays], "block": hashes[stays]}
    sites, storage = storage_of(nodes, by_node)
    return Presence(list(datasets.numbers), list(sites.numbers), rows_of_datasets(storage, columns, in_dbs))


def _numbered(rows: KeyedRows, what: str, number: Any) -> npt.NDArray[np.int64]:
    """Return a column of numbers of the rows' own names, as the numbers that ``number`` gives these names."""
    return np.array([number(name) for name in rows.names[f"{what}s"]], np.int64)[rows.columns[what]]


def presence_in(rows: KeyedRows) -> Presence:
    """Return what lies where, in rows of :data:`PRESENCE`."""
    return Presence(list(rows.names["datasets"]), list(rows.names["sites"]), dict(rows.columns))


def no_presence() -> Presence:
    """Return what lies where if there are no replicas."""
    columns: Columns = {name: np.zeros(0, kind) for name, kind in COLUMNS.items()}
    columns |= {name: np.zeros(0, np.int64) for name in ("dataset", "node")}
    return _presence_of([KeyedRows(0, REPLICAS, columns, {"datasets": [], "nodes": []})], None, None)


def sums_in(rows: Iterable[KeyedRows], count: int) -> npt.NDArray[np.int64]:
    """Return the sums of ``count`` datasets, a row for each of ``SUMS``, from rows of :data:`TOTALS`."""
    sums = np.zeros((len(SUMS), count), np.int64)
    for one in rows:
        for place, name in enumerate(SUMS):
            np.add.at(sums[place], one.columns["dataset"], one.columns[name])
    return sums
