"""The replicas of some datasets to one row for each dataset, site and kind of storage (rule 20)."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.base.arrays import Longs
from cmsspark.base.names import KINDS
from cmsspark.counting.catalogue import Hashes
from cmsspark.dumps.keyed_rows import find_starts, sum_runs

#: Numbers of a replica, in the order of the snapshot's columns.
MEASURES: Final = ("block_files", "block_bytes", "node_files", "node_bytes", "created_ms")
#: In ``there``: which numbers are not null, and whether the block has a name.
BITS: Final = {name: np.uint8(1 << number) for number, name in enumerate(MEASURES)}
_ALL: Final = BITS["block_files"] | BITS["block_bytes"] | BITS["node_files"] | BITS["node_bytes"]
NAMED: Final = np.uint8(1 << len(MEASURES))
#: Columns of replicas and their numpy types: the block's hash, the measures, and what is not null.
COLUMNS: Final = {"block": "u8", **dict.fromkeys(MEASURES, "i8"), "there": "u1"}
_LEAST: Final = np.iinfo(np.int64).min


@dataclass(frozen=True)
class Storage:
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
    order = _ordered(kinds, blocks, nodes)
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


def _ordered(kinds: Longs, blocks: Hashes, nodes: Longs) -> npt.NDArray[np.intp]:
    """Return the rows in the order of (kind, block, node)."""
    order = np.lexsort((blocks, kinds))
    in_order, of_blocks = kinds[order], blocks[order]
    is_repeated = (in_order[1:] == in_order[:-1]) & (of_blocks[1:] == of_blocks[:-1])
    if is_repeated.any():
        # Few blocks are on several nodes of one kind at a site: only their rows are
        # ordered by node.
        several = np.flatnonzero(np.append(is_repeated, False) | np.append(False, is_repeated))
        rows = order[several]
        order[several] = rows[np.lexsort((nodes[rows], blocks[rows], kinds[rows]))]
    return order


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
    files, sizes = (_values(measures, validity, name) for name in ("node_files", "node_bytes"))
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


def _values(measures: dict[str, Longs], validity: npt.NDArray[np.uint8], name: str) -> Longs:
    """Return a measure with 0 where it is null."""
    return np.where(validity & BITS[name], measures[name], 0)


def _reduced(
    function: np.ufunc, values: npt.NDArray[Any], starts: npt.NDArray[np.intp]
) -> npt.NDArray[Any]:
    reduced: npt.NDArray[Any] = function.reduceat(values, starts) if len(starts) else values[:0]
    return reduced
