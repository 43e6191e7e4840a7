"""Block replicas to what lies where: one row for each dataset, site and kind of storage (rule 20).

Parts are read one by one, or by several processes at once, into partitions on disk: all replicas of a dataset, and the
blocks that DBS names of it, have one partition, which is worked on alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.buffers import flags, is_there, to_numpy
from cmsspark.names import KINDS, site_and_kind
from cmsspark.transforms.catalogue import Hashes, hashes_in, name_hash
from cmsspark.transforms.dataset_contents import KnownDatasets
from cmsspark.transforms.exact_integers import Longs, joined, rounded
from cmsspark.transforms.partitions import ROWS, PartitionedRun, PartitionRange, ranges
from cmsspark.transforms.parts import Each, Part

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of the snapshot that are read.
REPLICA_COLUMNS: Final = (
    *("dataset_name", "block_name", "node_name", "block_files", "block_bytes"),
    *("br_node_files", "br_node_bytes", "replica_time_create"),
)
#: Columns of BLOCKS that are read.
BLOCK_COLUMNS: Final = ("block_name", "dataset_id")
_MEASURES: Final = ("block_files", "block_bytes", "node_files", "node_bytes", "created_ms")
_BITS: Final = {name: np.uint8(1 << number) for number, name in enumerate(_MEASURES)}
_ALL_NUMBERS: Final = _BITS["block_files"] | _BITS["block_bytes"] | _BITS["node_files"] | _BITS["node_bytes"]
_NAMED: Final = np.uint8(1 << len(_MEASURES))
_LEAST: Final = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Presence:
    """What lies where. ``datasets`` and ``sites`` hold the names (or None) that the numbers stand for; each row is a
    (dataset, site, kind). ``newest_ms`` is null where ``has_newest`` is false, ``block_count`` where it is negative.
    """

    datasets: list[str | None]
    sites: list[str | None]
    rows: dict[str, npt.NDArray[Any]]


@dataclass
class _Names:
    """Texts by number, as they come."""

    numbers: dict[str | None, int] = field(default_factory=dict)

    def of(self, column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
        """The number of each text of a column."""
        found = [np.zeros(0, np.int32)]
        for chunk in column.chunks:
            coded = chunk.dictionary_encode()
            # One more for nulls, which are -1 here.
            of_texts = [*map(self.number, coded.dictionary.to_pylist()), self.number(None) if chunk.null_count else -1]
            found.append(np.array(of_texts, np.int32)[to_numpy(coded.indices, np.int32, -1)])
        return np.concatenate(found)

    def number(self, text: str | None) -> int:
        """The number of a text, a new one where it is new."""
        return self.numbers.setdefault(text, len(self.numbers))


def partitions_of(names: Sequence[str | None]) -> npt.NDArray[np.uint8]:
    """The partition of each dataset, by its name."""
    return np.array([0 if name is None else name_hash(name.encode()) >> 56 for name in names], np.uint8)


def presence(
    replicas: Iterable[Part],
    folder: Path,
    each: Each = map,
    *,
    blocks: Iterable[Part] = (),
    known: KnownDatasets | None = None,
    names: Sequence[str] = (),
    rows: int = ROWS,
) -> Presence:
    """What of each dataset lies at each site, by kind of storage.

    ``replicas``: parts with tables of ``REPLICA_COLUMNS``; a (block, node) that is there twice counts once, with its
    largest values. ``blocks``: of ``BLOCK_COLUMNS``; with them ``block_count`` is the number of blocks that DBS or the
    snapshot names of the dataset, without them it is not counted. ``names``: the names that ``known`` numbers.
    ``folder`` takes some 60 bytes for each replica meanwhile. Raises DataError (65) where a sum leaves 64 bits.
    """
    datasets, nodes = _Names({name: number for number, name in enumerate(names)}), _Names()
    replica_runs = [run for runs in each(partial(_read_replicas, folder, rows), replicas) for run in runs]
    for run in replica_runs:
        found = json.loads(_beside(run, "names").read_text())
        for what, numbering in (("datasets", datasets), ("nodes", nodes)):
            np.save(_beside(run, what), np.array([*map(numbering.number, found[what])], np.int32))
    block_runs: list[PartitionedRun] = []
    if known is not None:
        known.save(folder)
        np.save(folder / "known-partitions.npy", partitions_of(names))
        block_runs = [run for runs in each(partial(_read_blocks, folder, rows), blocks) for run in runs]
    sites, storage = _storage_of(nodes)
    tasks = [_Task(one, PartitionRange(block_runs, one.first, one.last), known is not None)
             for one in ranges(replica_runs, rows)]  # fmt: skip
    pieces = list(each(partial(_rows_of_range, storage), tasks))
    for run in (*replica_runs, *block_runs):
        run.path.unlink()
    empty = _rows_of_range(storage, _Task(PartitionRange([], 0, 0), PartitionRange([], 0, 0), known is not None))
    columns = {name: np.concatenate([empty[name], *(one[name] for one in pieces)]) for name in empty}
    return Presence(list(datasets.numbers), list(sites.numbers), columns)


def _storage_of(nodes: _Names) -> tuple[_Names, _Storage]:
    """The sites, and the site and kind of each node. A replica without a node is on disk at no known site."""
    sites = _Names()
    pairs = [(None, "disk") if node is None else site_and_kind(node) for node in nodes.numbers]
    places = np.array([sites.number(site) for site, _ in pairs], np.int64)
    kinds = np.array([KINDS.index(kind) for _, kind in pairs], np.int64)
    return sites, _Storage(places, kinds, len(sites.numbers))


def _beside(run: PartitionedRun, what: str) -> Path:
    """A file beside a run: its own names as JSON, or the numbers of these names among all."""
    return run.path.with_suffix(".json" if what == "names" else f".{what}.npy")


def _read_replicas(folder: Path, rows: int, part: Part) -> list[PartitionedRun]:
    """The runs of a part of the snapshot. Datasets and nodes have numbers of their own in each run."""
    runs: list[PartitionedRun] = []
    datasets, nodes = _Names(), _Names()
    held: list[dict[str, npt.NDArray[Any]]] = []
    count = 0

    def write() -> None:
        columns = {name: np.concatenate([one[name] for one in held]) for name in held[0]}
        names = list(datasets.numbers)
        run = PartitionedRun.write(folder, partitions_of(names)[columns["dataset"]], columns)
        _beside(run, "names").write_text(json.dumps({"datasets": names, "nodes": list(nodes.numbers)}))
        runs.append(run)

    for table in part():
        for start in range(0, table.num_rows, rows):
            held.append(_replica_columns(table.slice(start, rows), datasets, nodes))
            count += len(held[-1]["dataset"])
            if count >= rows:
                write()
                datasets, nodes = _Names(), _Names()
                held, count = [], 0
    if count:
        write()
    return runs


def _replica_columns(table: pa.Table, datasets: _Names, nodes: _Names) -> dict[str, npt.NDArray[Any]]:
    has_name = is_there(table["block_name"])
    columns: dict[str, npt.NDArray[Any]] = {
        "dataset": datasets.of(table["dataset_name"]),
        "node": nodes.of(table["node_name"]),
        "block": _block_hashes(table["block_name"], has_name),
    }
    there = has_name * _NAMED
    for name, column in zip(_MEASURES, REPLICA_COLUMNS[3:], strict=True):
        if name == "created_ms":
            columns[name], has = whole_milliseconds(to_numpy(table[column], np.float64))
            has &= is_there(table[column])
        else:
            columns[name], has = to_numpy(table[column], np.int64), is_there(table[column])
        there |= has * _BITS[name]
    return columns | {"there": there}


def whole_milliseconds(seconds: npt.NDArray[np.float64]) -> tuple[Longs, npt.NDArray[np.bool_]]:
    """Unix seconds as milliseconds, halves away from 0; and whether each is a time at all."""
    with np.errstate(over="ignore"):
        return rounded(seconds * 1000)


def _block_hashes(column: pa.ChunkedArray, has_name: npt.NDArray[np.bool_]) -> Hashes:
    """Hashes of names, 0 for a block without one. Blocks are told apart within their dataset only."""
    if has_name.all():
        return hashes_in(column)
    found = np.zeros(len(column), np.uint64)
    found[has_name] = hashes_in(column.drop_null())
    return found


def _read_blocks(folder: Path, rows: int, part: Part) -> list[PartitionedRun]:
    """The runs of a part of BLOCKS: the named blocks of known datasets."""
    known = KnownDatasets.load(folder)
    of_names = np.load(folder / "known-partitions.npy", mmap_mode="r")
    runs: list[PartitionedRun] = []
    held: list[tuple[npt.NDArray[Any], Hashes]] = []

    def write() -> None:
        numbers, hashes = (np.concatenate(values) for values in zip(*held, strict=True))
        runs.append(PartitionedRun.write(folder, of_names[numbers], {"dataset": numbers, "block": hashes}))
        held.clear()

    for table in part():
        for start in range(0, table.num_rows, rows):
            some = table.slice(start, rows)
            places = known.places(some["dataset_id"])
            stays = (places >= 0) & is_there(some["block_name"])
            held.append((known.numbers[places[stays]], hashes_in(some["block_name"].filter(flags(stays)))))
            if sum(len(numbers) for numbers, _ in held) >= rows:
                write()
    if held:
        write()
    return runs


@dataclass(frozen=True)
class _Storage:
    """Of each node by its number: the number of its site, and its kind. ``site_count``: how many sites there are."""

    sites: Longs
    kinds: Longs
    site_count: int


@dataclass(frozen=True)
class _Task:
    """All replicas of some datasets, and the blocks that DBS names of them."""

    replicas: PartitionRange
    blocks: PartitionRange
    counts_blocks: bool


def _rows_of_range(storage: _Storage, task: _Task) -> dict[str, npt.NDArray[Any]]:
    """The rows of the datasets in a range of partitions."""
    replicas = task.replicas
    datasets, nodes = _numbers(replicas, "dataset", "datasets"), _numbers(replicas, "node", "nodes")
    sites = datasets * storage.site_count + storage.sites[nodes]
    kinds = sites * len(KINDS) + storage.kinds[nodes]
    blocks = _column(replicas, "block", np.uint64)
    # A node has one site and one kind, so rows are ordered by (dataset, site, kind, block, node).
    order = _ordered(kinds, blocks, nodes)
    kinds, blocks, nodes = kinds[order], blocks[order], nodes[order]
    measures = {name: _column(replicas, name, np.int64)[order] for name in _MEASURES}
    there = _column(replicas, "there", np.uint8)[order]
    starts = _starts(kinds, blocks, nodes)
    if len(starts) < len(order):
        for name, values in measures.items():
            known = np.where(there & _BITS[name], values, _LEAST)
            measures[name] = np.maximum.reduceat(known, starts)
        there = np.bitwise_or.reduceat(there, starts)
        kinds, blocks = kinds[starts], blocks[starts]
    return _summed(storage, task, kinds, blocks, measures, there)


def _ordered(kinds: Longs, blocks: Hashes, nodes: Longs) -> npt.NDArray[np.intp]:
    """The rows in the order of (kind, block, node)."""
    order = np.lexsort((blocks, kinds))
    in_order, of_blocks = kinds[order], blocks[order]
    same = (in_order[1:] == in_order[:-1]) & (of_blocks[1:] == of_blocks[:-1])
    if same.any():
        # Few blocks are on several nodes of one kind at a site: only their rows are ordered by node.
        several = np.flatnonzero(np.append(same, False) | np.append(False, same))
        rows = order[several]
        order[several] = rows[np.lexsort((nodes[rows], blocks[rows], kinds[rows]))]
    return order


def _summed(
    storage: _Storage,
    task: _Task,
    kinds: Longs,
    blocks: Hashes,
    measures: dict[str, Longs],
    there: npt.NDArray[np.uint8],
) -> dict[str, npt.NDArray[Any]]:
    """Rows from replicas that are there once each, ordered by (dataset, site, kind, block)."""
    starts = _starts(kinds)
    of_kind = kinds[starts]
    groups = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(kinds))))
    files, file_sums = _values(measures, there, "node_files"), {}
    for name in ("node_files", "node_bytes"):
        file_sums[name] = _sums(_values(measures, there, name), starts, name)
    # A block may lie on several nodes of one kind at a site.
    at_block = _starts(kinds, blocks)
    has_files = _sums(files, at_block, "node_files") > 0
    newest = _reduced(np.maximum, np.where(there & _BITS["created_ms"], measures["created_ms"], _LEAST), starts)
    has_newest = _reduced(np.bitwise_or, there & _BITS["created_ms"], starts) > 0
    is_full = (there & (_ALL_NUMBERS | _NAMED)) == (_ALL_NUMBERS | _NAMED)
    is_full &= (measures["node_files"] >= measures["block_files"]) & (measures["node_bytes"] >= measures["block_bytes"])
    sites = of_kind // len(KINDS)
    dataset = sites // storage.site_count if storage.site_count else sites
    return {
        "dataset": dataset,
        "site": sites - dataset * storage.site_count,
        "kind": of_kind % len(KINDS),
        "present_file_count": file_sums["node_files"],
        "present_bytes": file_sums["node_bytes"],
        "present_block_count": np.bincount(groups[at_block], has_files, len(starts)).astype(np.int64),
        "full_block_count": _distinct_blocks(kinds[is_full] // len(KINDS), blocks[is_full], sites),
        "newest_ms": np.where(has_newest, newest, 0),
        "has_newest": has_newest,
        "block_count": _block_counts(storage, task, kinds, blocks, there, dataset),
    }


def _block_counts(
    storage: _Storage, task: _Task, kinds: Longs, blocks: Hashes, there: npt.NDArray[np.uint8], wanted: Longs
) -> Longs:
    """Distinct blocks that DBS or the snapshot names of each dataset in ``wanted``; -1 where none is counted."""
    if not task.counts_blocks:
        return np.full(len(wanted), -1, np.int64)
    named = (there & _NAMED) > 0
    datasets = kinds[named] // (len(KINDS) * max(1, storage.site_count))
    in_dbs = _column(task.blocks, "dataset", np.int32).astype(np.int64)
    both = np.concatenate((datasets, in_dbs))
    return _distinct_blocks(both, np.concatenate((blocks[named], _column(task.blocks, "block", np.uint64))), wanted)


def _distinct_blocks(groups: Longs, blocks: Hashes, wanted: Longs) -> Longs:
    """How many distinct blocks each group in ``wanted`` has."""
    order = np.lexsort((blocks, groups))
    groups, blocks = groups[order], blocks[order]
    once = groups[_starts(groups, blocks)]
    return np.searchsorted(once, wanted, "right") - np.searchsorted(once, wanted, "left")


def _values(measures: dict[str, Longs], there: npt.NDArray[np.uint8], name: str) -> Longs:
    """A measure with 0 where it is null."""
    return np.where(there & _BITS[name], measures[name], 0)


def _sums(values: Longs, starts: npt.NDArray[np.intp], what: str) -> Longs:
    """Sums of runs. Raises DataError (65) where one leaves 64 bits."""
    if not len(starts):
        return np.zeros(0, np.int64)
    return joined(np.add.reduceat(values >> 32, starts), np.add.reduceat(values & 0xFFFFFFFF, starts), what)


def _reduced(function: np.ufunc, values: npt.NDArray[Any], starts: npt.NDArray[np.intp]) -> npt.NDArray[Any]:
    found: npt.NDArray[Any] = function.reduceat(values, starts) if len(starts) else values[:0]
    return found


def _starts(*columns: npt.NDArray[Any]) -> npt.NDArray[np.intp]:
    """Where in ordered rows another combination begins."""
    if not len(columns[0]):
        return np.zeros(0, np.intp)
    differs = np.logical_or.reduce([column[1:] != column[:-1] for column in columns])
    return np.flatnonzero(np.concatenate(([True], differs)))


def _numbers(part: PartitionRange, name: str, what: str) -> Longs:
    """A column of a run's own numbers as numbers among all."""
    pieces = [np.zeros(0, np.int64)]
    for run, own in zip(part.runs, part.pieces(name), strict=True):
        pieces.append(np.load(_beside(run, what))[own].astype(np.int64))
    return np.concatenate(pieces)


def _column(part: PartitionRange, name: str, kind: type[np.generic]) -> npt.NDArray[Any]:
    return np.concatenate([np.zeros(0, kind), *part.pieces(name)])
