"""Block replicas to the replicas of datasets: one row for each dataset, site and kind
of storage (rule 20).

All replicas of a dataset, and the blocks that DBS names of it, meet by the hash of its name.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.base.arrays import Longs, rounded
from cmsspark.base.buffers import array, flags, is_there, to_numpy
from cmsspark.base.names import KINDS, site_and_kind
from cmsspark.counting.catalogue import Hashes, check_hash, hashes_in, name_hash
from cmsspark.dumps.dataset_contents import NO_BLOCK, KnownDatasets
from cmsspark.dumps.keyed_rows import (
    Columns,
    KeyedRows,
    by_key,
    find_starts,
    join_columns,
    keys_of_hashes,
    map_slices,
    number_hashes,
    number_names,
    sum_runs,
)

if TYPE_CHECKING:
    import pyarrow as pa


# The replicas of some datasets to one row for each dataset, site and kind of storage
# (rule 20).

#: Numbers of a replica, in the order of the snapshot's columns.
MEASURES: Final = ("block_files", "block_bytes", "node_files", "node_bytes", "created_ms")
#: In ``there``: which numbers are not null, and whether the block has a name.
BITS: Final = {name: np.uint8(1 << number) for number, name in enumerate(MEASURES)}
_ALL: Final = BITS["block_files"] | BITS["block_bytes"] | BITS["node_files"] | BITS["node_bytes"]
NAMED: Final = np.uint8(1 << len(MEASURES))
#: Columns of replicas and their numpy types: the block's hash, the measures, and what is not null.
COLUMNS: Final = {"block": "u8", **dict.fromkeys(MEASURES, "i8"), "there": "u1"}
_LEAST: Final = np.iinfo(np.int64).min


class Storage(msgspec.Struct, frozen=True):
    """Of each node by its number: the number of its site, and its kind. ``site_count``:
    how many sites there are.
    """

    sites: Longs
    kinds: Longs
    site_count: int


def sum_replicas(
    storage: Storage,
    columns: dict[str, npt.NDArray[Any]],
    in_dbs: Mapping[str, npt.NDArray[Any]] | None,
) -> dict[str, npt.NDArray[Any]]:
    """Return one row for each (dataset, site, kind), from all replicas of some
    datasets; ``columns`` is emptied.

    ``columns``: ``dataset`` and ``node`` (their numbers), and those of :data:`COLUMNS`.
    ``in_dbs``: ``dataset`` and ``block`` of each block that DBS names, and
    ``has_valid``, whether it has a valid file; None: blocks are not counted. Raises DataError (65) on 64-bit overflow.
    """
    datasets, nodes, blocks = columns.pop("dataset"), columns.pop("node"), columns.pop("block")
    sites = datasets * storage.site_count + storage.sites[nodes]
    kinds = sites * len(KINDS) + storage.kinds[nodes]
    # A node has one site and one kind, so rows are ordered by (dataset, site, kind, block, node).
    order = np.lexsort((blocks, kinds))
    in_order, of_blocks = kinds[order], blocks[order]
    is_repeated = (in_order[1:] == in_order[:-1]) & (of_blocks[1:] == of_blocks[:-1])
    if is_repeated.any():
        # Few blocks are on several nodes of one kind at a site: only their rows are
        # ordered by node.
        several = np.flatnonzero(np.append(is_repeated, False) | np.append(False, is_repeated))
        rows = order[several]
        order[several] = rows[np.lexsort((nodes[rows], blocks[rows], kinds[rows]))]
    kinds, blocks, nodes = kinds[order], blocks[order], nodes[order]
    measures = {name: columns.pop(name)[order] for name in MEASURES}
    validity = columns.pop("there")[order]
    starts = find_starts(kinds, blocks, nodes)
    if len(starts) < len(order):
        for name, values in measures.items():
            values_or_least = np.where(validity & BITS[name], values, _LEAST)
            measures[name] = np.maximum.reduceat(values_or_least, starts)
        validity = np.bitwise_or.reduceat(validity, starts)
        kinds, blocks = kinds[starts], blocks[starts]
    return _summed(storage, in_dbs, kinds, blocks, measures, validity)


def _summed(
    storage: Storage,
    in_dbs: Mapping[str, npt.NDArray[Any]] | None,
    kinds: Longs,
    blocks: Hashes,
    measures: dict[str, Longs],
    validity: npt.NDArray[np.uint8],
) -> dict[str, npt.NDArray[Any]]:
    """Return rows from replicas that are there once each, ordered by (dataset, site, kind, block)."""
    starts = find_starts(kinds)
    of_kind = kinds[starts]
    groups = np.repeat(np.arange(len(starts)), np.diff(np.append(starts, len(kinds))))
    files, sizes = (
        np.where(validity & BITS[name], measures[name], 0) for name in ("node_files", "node_bytes")
    )
    # A block may lie on several nodes of one kind at a site.
    at_block = find_starts(kinds, blocks)
    has_files = sum_runs(files, at_block, "node_files") > 0
    newest = _reduced(
        np.maximum, np.where(validity & BITS["created_ms"], measures["created_ms"], _LEAST), starts
    )
    has_newest = _reduced(np.bitwise_or, validity & BITS["created_ms"], starts) > 0
    is_full = (validity & (_ALL | NAMED)) == (_ALL | NAMED)
    is_full &= (measures["node_files"] >= measures["block_files"]) & (
        measures["node_bytes"] >= measures["block_bytes"]
    )
    should_be = _should_be(storage, in_dbs, kinds, blocks, measures, validity)
    is_full &= should_be
    sites = of_kind // len(KINDS)
    dataset = sites // storage.site_count if storage.site_count else sites
    return {
        "dataset": dataset,
        "site": sites - dataset * storage.site_count,
        "kind": of_kind % len(KINDS),
        "present_file_count": sum_runs(files, starts, "node_files"),
        "present_bytes": sum_runs(sizes, starts, "node_bytes"),
        "present_block_count": np.bincount(groups[at_block], has_files, len(starts)).astype(
            np.int64
        ),
        "full_block_count": _distinct_blocks(kinds[is_full] // len(KINDS), blocks[is_full], sites),
        "newest_ms": np.where(has_newest, newest, 0),
        "has_newest": has_newest,
        "block_count": _block_counts(storage, in_dbs, kinds, blocks, should_be, dataset),
    }


def _should_be(
    storage: Storage,
    in_dbs: Mapping[str, npt.NDArray[Any]] | None,
    kinds: Longs,
    blocks: Hashes,
    measures: dict[str, Longs],
    validity: npt.NDArray[np.uint8],
) -> npt.NDArray[np.bool_]:
    """Return which replicas are of a block that a complete dataset has: one with a name
    that is not empty and not without a valid file in DBS (rule 71).
    """
    has_files = ((validity & BITS["block_files"]) == 0) | (measures["block_files"] > 0)
    named: npt.NDArray[np.bool_] = ((validity & NAMED) > 0) & has_files
    if in_dbs is None:
        return named
    is_odd = ~in_dbs["has_valid"]
    candidates = np.flatnonzero(named & np.isin(blocks, in_dbs["block"][is_odd]))
    if len(candidates):
        datasets = kinds[candidates] // (len(KINDS) * max(1, storage.site_count))
        odd = set(
            zip(in_dbs["dataset"][is_odd].tolist(), in_dbs["block"][is_odd].tolist(), strict=True)
        )
        pairs = zip(datasets.tolist(), blocks[candidates].tolist(), strict=True)
        named[candidates] = [pair not in odd for pair in pairs]
    return named


def _block_counts(
    storage: Storage,
    in_dbs: Mapping[str, npt.NDArray[Any]] | None,
    kinds: Longs,
    blocks: Hashes,
    should_be: npt.NDArray[np.bool_],
    groups_asked: Longs,
) -> Longs:
    """Count the distinct blocks that each dataset should have; -1 without a count."""
    if in_dbs is None:
        return np.full(len(groups_asked), -1, np.int64)
    datasets = kinds[should_be] // (len(KINDS) * max(1, storage.site_count))
    valid = in_dbs["has_valid"]
    both = np.concatenate((datasets, in_dbs["dataset"][valid]))
    names = np.concatenate((blocks[should_be], in_dbs["block"][valid]))
    return _distinct_blocks(both, names, groups_asked)


def _distinct_blocks(groups: Longs, blocks: Hashes, groups_asked: Longs) -> Longs:
    """Return how many distinct blocks each group in ``wanted`` has."""
    order = np.lexsort((blocks, groups))
    groups, blocks = groups[order], blocks[order]
    once = groups[find_starts(groups, blocks)]
    return np.searchsorted(once, groups_asked, "right") - np.searchsorted(
        once, groups_asked, "left"
    )


def _reduced(
    function: np.ufunc, values: npt.NDArray[Any], starts: npt.NDArray[np.intp]
) -> npt.NDArray[Any]:
    reduced: npt.NDArray[Any] = function.reduceat(values, starts) if len(starts) else values[:0]
    return reduced


#: Rows of blocks of DBS, of replicas of blocks, and of replicas of datasets.
BLOCKS, REPLICAS, DATASET_REPLICAS = "blocks", "replicas", "dataset_replicas"
#: Columns of the snapshot that are read.
REPLICA_COLUMNS: Final = (
    *("dataset_name", "block_name", "node_name", "block_files", "block_bytes"),
    *("br_node_files", "br_node_bytes", "replica_time_create"),
)
#: Columns of BLOCKS that are read.
BLOCK_COLUMNS: Final = ("block_name", "dataset_id", "block_id")


#: The site and kind of storage of nodes, by name.
StorageByNode = Mapping[str, tuple[str, str]]


class Names(msgspec.Struct):
    """Texts by number, in the order in which they come."""

    numbers: dict[str | None, int] = msgspec.field(default_factory=dict)

    def encode(self, column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
        """Return the number of each text of a column."""
        numbers = [np.zeros(0, np.int32)]
        for chunk in column.chunks:
            encoded = chunk.dictionary_encode()
            # One more for nulls, which are -1 here.
            of_texts = list(map(self.number, encoded.dictionary.to_pylist()))
            of_texts.append(self.number(None) if chunk.null_count else -1)
            numbers.append(np.array(of_texts, np.int32)[to_numpy(encoded.indices, np.int32, -1)])
        return np.concatenate(numbers)

    def number(self, text: str | None) -> int:
        """Return the number of a text, a new one where it is new."""
        return self.numbers.setdefault(text, len(self.numbers))


class ReplicaMapper(msgspec.Struct, frozen=True):
    """Makes keyed rows of replicas, of tables of :data:`REPLICA_COLUMNS`; a replica
    without a dataset has the key 0.
    """

    keys: int

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
        # Each result has names of its own, so that those of a large part do not gather.
        datasets, nodes = Names(), Names()
        for columns in map_slices(partial(_replica_columns, datasets, nodes), tables):
            texts = list(datasets.numbers)
            hashes = np.array(
                [0 if name is None else name_hash(name.encode()) for name in texts], np.uint64
            )
            names = {
                "dataset": array(texts, "string"),
                "node": array(list(nodes.numbers), "string"),
            }
            yield from by_key(
                REPLICAS, keys_of_hashes(hashes, self.keys)[columns["dataset"]], columns, names
            )
            datasets.numbers.clear()
            nodes.numbers.clear()


class BlockMapper(msgspec.Struct, frozen=True):
    """Makes keyed rows of BLOCKS, of tables of :data:`BLOCK_COLUMNS`: the named blocks
    of ``datasets``.

    ``hashes``, ``checks``: those of the names that ``datasets`` numbers. Each result
    has its own numbers of datasets, with their hashes.
    """

    datasets: KnownDatasets
    hashes: Hashes
    checks: Hashes
    keys: int

    def __call__(self, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
        for columns in map_slices(self._columns, tables):
            for rows in by_key(
                BLOCKS, keys_of_hashes(self.hashes[columns["dataset"]], self.keys), columns
            ):
                numbers, positions = np.unique(rows.columns["dataset"], return_inverse=True)
                of_rows = {
                    "dataset": positions,
                    "hash": self.hashes[numbers],
                    "check": self.checks[numbers],
                }
                yield rows._replace(columns=rows.columns | of_rows)

    def _columns(self, table: pa.Table) -> Columns:
        positions = self.datasets.find_positions(table["dataset_id"])
        stays = (positions >= 0) & is_there(table["block_name"])
        hashes = hashes_in(table["block_name"].filter(flags(stays)))
        ids = to_numpy(table["block_id"], np.int64, NO_BLOCK)[stays]
        return {
            "dataset": self.datasets.numbers[positions[stays]],
            "block": hashes,
            "block_id": ids,
        }


def merge_replicas(
    key: int,
    replicas: Sequence[KeyedRows],
    blocks: Sequence[KeyedRows] | None,
    storage: StorageByNode | None,
    valid_blocks: Sequence[KeyedRows] = (),
) -> KeyedRows:
    """Return the replicas of datasets of one key.

    A (block, node) that is there twice counts once, with its largest values. With
    ``blocks`` the column ``block_count`` is the number of blocks that DBS or the
    snapshot names of the dataset and that should be there (rule 71). ``valid_blocks``:
    ids of blocks with a valid file, and the hash of its dataset. ``storage``: of each node, where the nodes' names do
    not say it. Raises DataError (65) on 64-bit overflow.
    """
    dataset, datasets = number_names(replicas, "dataset")
    node, nodes = number_names(replicas, "node")
    columns = {name: join_columns(replicas, (name,), kind)[name] for name, kind in COLUMNS.items()}
    in_dbs = None if blocks is None else _blocks_of_dbs(blocks, datasets, valid_blocks)
    sites, of_nodes = find_storage(nodes.to_pylist(), storage)
    rows = sum_replicas(of_nodes, {"dataset": dataset, "node": node} | columns, in_dbs)
    return KeyedRows(
        key, DATASET_REPLICAS, rows, {"dataset": datasets, "site": array(sites, "string")}
    )


def _blocks_of_dbs(
    blocks: Sequence[KeyedRows], datasets: pa.StringArray, valid_blocks: Sequence[KeyedRows]
) -> Columns:
    """Return ``dataset``, a number of ``datasets``, ``block`` and ``has_valid`` of the
    blocks of DBS whose dataset is there.
    """
    import pyarrow as pa

    named = np.flatnonzero(is_there(datasets))
    texts = pa.chunked_array([datasets.drop_null()])
    columns = join_columns(blocks, ("hash", "check"))
    ids, firsts = number_hashes(
        np.concatenate((hashes_in(texts), columns["hash"])),
        np.concatenate((hashes_in(texts, check_hash), columns["check"])),
    )
    numbers = np.full(len(firsts), -1, np.int64)
    numbers[ids[: len(named)]] = named
    starts = np.cumsum([0, *(len(entry.columns["hash"]) for entry in blocks)])
    positions = [
        entry.columns["dataset"] + start for entry, start in zip(blocks, starts[:-1], strict=True)
    ]
    entries = np.concatenate([np.zeros(0, np.int64), *positions])
    dataset = numbers[ids[len(named) :]][entries]
    hashes = join_columns(blocks, ("block",), np.uint64)["block"]
    block_ids = join_columns(blocks, ("block_id",))["block_id"]
    valid = join_columns(valid_blocks, ("hash", "block_id"))
    # A block and its dataset as one number, of both sides.
    of_datasets, by_dataset = np.unique(
        np.concatenate((columns["hash"][entries], valid["hash"])), return_inverse=True
    )
    _, by_block = np.unique(np.concatenate((block_ids, valid["block_id"])), return_inverse=True)
    pairs = by_block * len(of_datasets) + by_dataset
    is_listed = np.isin(pairs[: len(block_ids)], pairs[len(block_ids) :])
    has_valid = (block_ids == NO_BLOCK) | is_listed
    is_asked = dataset >= 0
    return {
        "dataset": dataset[is_asked],
        "block": hashes[is_asked],
        "has_valid": has_valid[is_asked],
    }


def find_storage(
    nodes: Iterable[str | None], by_node: StorageByNode | None = None
) -> tuple[list[str | None], Storage]:
    """Return the sites, and the site and kind of each node: by its name, or of ``by_node``.

    A replica without a node is on disk at no known site.
    """
    sites = Names()
    storage = site_and_kind if by_node is None else by_node.__getitem__
    pairs = [(None, "disk") if node is None else storage(node) for node in nodes]
    site_numbers = np.array([sites.number(site) for site, _ in pairs], np.int64)
    kinds = np.array([KINDS.index(kind) for _, kind in pairs], np.int64)
    return list(sites.numbers), Storage(site_numbers, kinds, len(sites.numbers))


def _replica_columns(
    datasets: Names, nodes: Names, table: pa.Table
) -> dict[str, npt.NDArray[Any]]:
    has_name = is_there(table["block_name"])
    columns: dict[str, npt.NDArray[Any]] = {
        "dataset": datasets.encode(table["dataset_name"]),
        "node": nodes.encode(table["node_name"]),
        "block": _block_hashes(table["block_name"], has_name),
    }
    validity = has_name * NAMED
    for name, column in zip(MEASURES, REPLICA_COLUMNS[3:], strict=True):
        if name == "created_ms":
            columns[name], has = whole_milliseconds(to_numpy(table[column], np.float64))
            has &= is_there(table[column])
        else:
            columns[name], has = to_numpy(table[column], np.int64), is_there(table[column])
        validity |= has * BITS[name]
    return columns | {"there": validity}


def whole_milliseconds(seconds: npt.NDArray[np.float64]) -> tuple[Longs, npt.NDArray[np.bool_]]:
    """Return Unix seconds as milliseconds, halves away from 0; and whether each is a time at all."""
    with np.errstate(over="ignore"):
        return rounded(seconds * 1000)


def _block_hashes(column: pa.ChunkedArray, has_name: npt.NDArray[np.bool_]) -> Hashes:
    """Return hashes of names, 0 for a block without one. Blocks are told apart within
    their dataset only.
    """
    if has_name.all():
        return hashes_in(column)
    hashes = np.zeros(len(column), np.uint64)
    hashes[has_name] = hashes_in(column.drop_null())
    return hashes
