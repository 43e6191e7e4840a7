"""The rows of a Rucio dump on disk, by file: where its block, size and replicas meet (rules 24, 25)."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.base.exact_integers import Longs
from cmsspark.counting.catalogue import Hashes
from cmsspark.dumps.partitions import PartitionedRun, PartitionRange, partition_of, ranges

if TYPE_CHECKING:
    import pyarrow as pa

Arrays = dict[str, npt.NDArray[Any]]
REPLICA_COLUMNS: Final = ("hash", "check", "rse", "bytes", "created_ms", "accessed_ms")
CONTENT_COLUMNS: Final = ("hash", "check", "block", "bytes")
ACCESS_COLUMNS: Final = ("hash", "check", "accessed_ms")


@dataclass(frozen=True)
class ContentRun:
    """Rows of CONTENTS: a run with numbers of its own for blocks, and the file with the number of each among all."""

    run: PartitionedRun
    numbers: Path

    def blocks(self, first: int, last: int) -> Longs:
        """Return the blocks of the partitions from ``first`` to before ``last``."""
        found: Longs = np.load(self.numbers, mmap_mode="r")[self.run.read("block", first, last)]
        return found


@dataclass(frozen=True)
class FilePartitions:
    """The rows of a dump in partitions by file. ``replicas``: runs of ``hash, check, rse, bytes, created_ms,
    accessed_ms``; ``contents``: of ``hash, check, block, bytes`` (-1: null); ``accesses``: of ``hash, check,
    accessed_ms`` from DIDS. ``blocks``: the names of blocks in order, by number.
    """

    replicas: Sequence[PartitionedRun]
    contents: Sequence[ContentRun]
    blocks: pa.Array
    accesses: Sequence[PartitionedRun] = ()

    def ranges(self, rows: int) -> list[PartitionRange]:
        """Return all partitions, in ranges of about ``rows`` rows."""
        return list(ranges([*self.replicas, *(one.run for one in self.contents), *self.accesses], rows))


@dataclass(frozen=True)
class RucioFiles:
    """The files of some partitions. ``ids`` of rows number the files from 0 on."""

    #: Of each file: its block (-1: in none), and its size by CONTENTS, else by its largest replica (-1: unknown).
    block: Longs
    size: Longs
    #: Each (file, RSE) once.
    file: Longs
    rse: Longs
    bytes: Longs
    created_ms: Longs
    accessed_ms: Longs
    hash: Hashes
    check: Hashes


def gathered(pieces: Iterable[Arrays], rows: int, columns: Sequence[str]) -> Iterator[Arrays]:
    """Yield the pieces' rows, about ``rows`` together."""
    held: list[Arrays] = []
    count = 0
    for piece in pieces:
        held.append(piece)
        count += len(piece["hash"])
        if count >= rows:
            yield _concatenated(held, columns)
            held, count = [], 0
    if count:
        yield _concatenated(held, columns)


def _concatenated(pieces: Sequence[Arrays], columns: Sequence[str]) -> Arrays:
    return {name: np.concatenate([one[name] for one in pieces]) for name in columns}


def write_runs(folder: Path, rows: int, pieces: Iterable[Arrays], columns: Sequence[str]) -> list[PartitionedRun]:
    """Return the pieces' rows in runs on disk, partitioned by ``hash``."""
    return [
        PartitionedRun.write(folder, partition_of(together["hash"]), together)
        for together in gathered(pieces, rows, columns)
    ]


write_replicas = partial(write_runs, columns=REPLICA_COLUMNS)
write_contents = partial(write_runs, columns=CONTENT_COLUMNS)
write_accesses = partial(write_runs, columns=ACCESS_COLUMNS)


def files_of(partitions: FilePartitions, first: int, last: int) -> RucioFiles:
    """Return the files of the partitions from ``first`` to before ``last``."""
    contents = PartitionRange([one.run for one in partitions.contents], first, last)
    replicas = PartitionRange(partitions.replicas, first, last)
    of_contents, of_replicas = (
        {name: column_of(rows, name) for name in columns}
        for rows, columns in ((contents, CONTENT_COLUMNS), (replicas, REPLICA_COLUMNS))
    )
    of_runs = [one.blocks(first, last) for one in partitions.contents]
    of_contents["block"] = np.concatenate([np.zeros(0, np.int64), *of_runs])
    return rucio_files(of_contents, of_replicas)


def rucio_files(of_contents: Arrays, of_replicas: Arrays) -> RucioFiles:
    """Return the files of some rows of CONTENTS (:data:`CONTENT_COLUMNS`; numbers of blocks are in the order of the
    names' bytes) and of REPLICAS (:data:`REPLICA_COLUMNS`). All rows of a file are among them.
    """
    split = len(of_contents["hash"])
    hashes = np.concatenate((of_contents["hash"], of_replicas["hash"]))
    checks = np.concatenate((of_contents["check"], of_replicas["check"]))
    ids, firsts = numbered(hashes, checks)
    count = len(firsts)
    file, rse, values = _once(ids[split:], of_replicas)
    block, size = _blocks_of(ids[:split], of_contents["block"], of_contents["bytes"], count)
    largest = np.full(count, -1, np.int64)
    np.maximum.at(largest, file, values["bytes"])
    size = np.where(size < 0, largest, size)
    return RucioFiles(block, size, file, rse, **values, hash=hashes[firsts], check=checks[firsts])


def numbered(hashes: Hashes, checks: Hashes) -> tuple[Longs, Longs]:
    """Return the number of each row's name, and a row of each name. Names are told apart by both hashes."""
    order = np.argsort(hashes, kind="stable")
    in_order = hashes[order]
    starts = np.ones(len(order), np.bool_)
    starts[1:] = in_order[1:] != in_order[:-1]
    if ((checks[order][1:] != checks[order][:-1]) & ~starts[1:]).any():
        # Two names with one hash, once in a million dumps.
        order = np.lexsort((checks, hashes))
        starts[1:] = (hashes[order][1:] != hashes[order][:-1]) | (checks[order][1:] != checks[order][:-1])
    ids = np.empty(len(order), np.int64)
    ids[order] = np.cumsum(starts) - 1
    return ids, order[starts]


def column_of(rows: PartitionRange, name: str) -> npt.NDArray[Any]:
    """Return a column of some partitions, also where there is no run."""
    kind = np.uint64 if name in ("hash", "check") else np.int64
    return np.concatenate([np.zeros(0, kind), *rows.pieces(name)])


def _once(ids: Longs, replicas: Arrays) -> tuple[Longs, Longs, dict[str, Longs]]:
    """Return each (file, RSE) once, with its largest values."""
    width = int(replicas["rse"].max(initial=0)) + 1
    keys = ids * width + replicas["rse"]
    order = np.argsort(keys, kind="stable")
    keys = keys[order]
    starts = np.flatnonzero(np.concatenate((np.ones(min(1, len(keys)), np.bool_), keys[1:] != keys[:-1])))
    values = {name: replicas[name][order] for name in ("bytes", "created_ms", "accessed_ms")}
    if len(starts) < len(keys):
        values = {name: np.maximum.reduceat(found, starts) for name, found in values.items()}
        keys = keys[starts]
    return keys // width, keys % width, values


def _blocks_of(ids: Longs, blocks: Longs, sizes: Longs, count: int) -> tuple[Longs, Longs]:
    """Of each file its smallest block, and its size in the rows of that block; -1 where there is none."""
    none = np.iinfo(np.int64).max
    smallest = np.full(count, none, np.int64)
    np.minimum.at(smallest, ids, blocks)
    size = np.full(count, -1, np.int64)
    is_it = blocks == smallest[ids]
    np.maximum.at(size, ids[is_it], sizes[is_it])
    return np.where(smallest == none, -1, smallest), size
