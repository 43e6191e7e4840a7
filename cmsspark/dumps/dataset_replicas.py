"""Block replicas to what lies where: one row for each dataset, site and kind of storage (rule 20).

Parts are read one by one, or by several processes at once, into partitions on disk: all replicas of a dataset, and the
blocks that DBS names of it, have one partition, which is worked on alone.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from cmsspark.base.buffers import flags, is_there, to_numpy
from cmsspark.base.exact_integers import Longs, rounded
from cmsspark.base.names import KINDS, site_and_kind
from cmsspark.counting.catalogue import Hashes, hashes_in, name_hash
from cmsspark.dumps.dataset_contents import KnownDatasets
from cmsspark.dumps.partitions import ROWS, PartitionedRun, PartitionRange, ranges
from cmsspark.dumps.parts import Each, Part
from cmsspark.dumps.replica_sums import BITS, MEASURES, NAMED, RangeOfDatasets, Storage, names_file, rows_of_range

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of the snapshot that are read.
REPLICA_COLUMNS: Final = (
    *("dataset_name", "block_name", "node_name", "block_files", "block_bytes"),
    *("br_node_files", "br_node_bytes", "replica_time_create"),
)
#: Columns of BLOCKS that are read.
BLOCK_COLUMNS: Final = ("block_name", "dataset_id")


#: The site and kind of storage of nodes, by name.
StorageByNode = Mapping[str, tuple[str, str]]


@dataclass(frozen=True)
class Presence:
    """What lies where. ``datasets`` and ``sites`` hold the names (or None) that the numbers stand for; each row is a
    (dataset, site, kind). ``newest_ms`` is null where ``has_newest`` is false, ``block_count`` where it is negative.
    """

    datasets: list[str | None]
    sites: list[str | None]
    rows: dict[str, npt.NDArray[Any]]


@dataclass
class Names:
    """Texts by number, in the order in which they come."""

    numbers: dict[str | None, int] = field(default_factory=dict)

    def of(self, column: pa.ChunkedArray) -> npt.NDArray[np.int32]:
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


def partitions_of(names: Sequence[str | None]) -> npt.NDArray[np.uint8]:
    """Return the partition of each dataset, by its name."""
    return np.array([0 if name is None else name_hash(name.encode()) >> 56 for name in names], np.uint8)


def presence(
    replicas: Iterable[Part],
    folder: Path,
    each: Each = map,
    *,
    blocks: Iterable[Part] = (),
    dbs_datasets: KnownDatasets | None = None,
    names: Sequence[str] = (),
    rows: int = ROWS,
    storage: StorageByNode | None = None,
) -> Presence:
    """Return what of each dataset lies at each site, by kind of storage.

    ``replicas``: parts with tables of ``REPLICA_COLUMNS``; a (block, node) that is there twice counts once, with its
    largest values. ``blocks``: of ``BLOCK_COLUMNS``; with them ``block_count`` is the number of blocks that DBS or the
    snapshot names of the dataset, without them it is not counted. ``names``: the names that ``dbs_datasets`` numbers.
    ``storage``: of each node, where the nodes' names do not say it. ``folder`` takes some 60 bytes for each replica
    meanwhile. Raises DataError (65) where a sum leaves 64 bits.
    """
    datasets, nodes = Names({name: number for number, name in enumerate(names)}), Names()
    replica_runs = [run for runs in each(partial(_read_replicas, folder, rows), replicas) for run in runs]
    for run in replica_runs:
        texts = json.loads(names_file(run, "names").read_text())
        for what, numbering in (("datasets", datasets), ("nodes", nodes)):
            np.save(names_file(run, what), np.array([*map(numbering.number, texts[what])], np.int32))
    block_runs: list[PartitionedRun] = []
    if dbs_datasets is not None:
        dbs_datasets.save(folder)
        np.save(folder / "known-partitions.npy", partitions_of(names))
        block_runs = [run for runs in each(partial(_read_blocks, folder, rows), blocks) for run in runs]
    sites, of_nodes = storage_of(nodes, storage)
    tasks = [RangeOfDatasets(part, PartitionRange(block_runs, part.first, part.last), dbs_datasets is not None)
             for part in ranges(replica_runs, rows)]  # fmt: skip
    pieces = list(each(partial(rows_of_range, of_nodes), tasks))
    for run in (*replica_runs, *block_runs):
        run.path.unlink()
    empty = rows_of_range(
        of_nodes, RangeOfDatasets(PartitionRange([], 0, 0), PartitionRange([], 0, 0), dbs_datasets is not None)
    )
    columns = {name: np.concatenate([empty[name], *(part[name] for part in pieces)]) for name in empty}
    return Presence(list(datasets.numbers), list(sites.numbers), columns)


def storage_of(nodes: Names, by_node: StorageByNode | None = None) -> tuple[Names, Storage]:
    """Return the sites, and the site and kind of each node: by its name, or of ``by_node``.

    A replica without a node is on disk at no known site.
    """
    sites = Names()
    of_node = site_and_kind if by_node is None else by_node.__getitem__
    pairs = [(None, "disk") if node is None else of_node(node) for node in nodes.numbers]
    places = np.array([sites.number(site) for site, _ in pairs], np.int64)
    kinds = np.array([KINDS.index(kind) for _, kind in pairs], np.int64)
    return sites, Storage(places, kinds, len(sites.numbers))


def _read_replicas(folder: Path, rows: int, part: Part) -> list[PartitionedRun]:
    """Return the runs of a part of the snapshot. Datasets and nodes have numbers of their own in each run."""
    runs: list[PartitionedRun] = []
    for piece in replica_pieces(part(), rows):
        run = PartitionedRun.write(folder, partitions_of(piece.datasets)[piece.columns["dataset"]], piece.columns)
        names_file(run, "names").write_text(json.dumps({"datasets": piece.datasets, "nodes": piece.nodes}))
        runs.append(run)
    return runs


class ReplicaPiece(NamedTuple):
    """Some replicas: ``columns`` are ``dataset`` and ``node``, which number the names of this piece, and those of
    :data:`cmsspark.dumps.replica_sums.COLUMNS`.
    """

    columns: dict[str, npt.NDArray[Any]]
    datasets: list[str | None]
    nodes: list[str | None]


def replica_pieces(tables: Iterable[pa.Table], rows: int = ROWS) -> Iterator[ReplicaPiece]:
    """Yield the replicas of tables of ``REPLICA_COLUMNS``, about ``rows`` at a time."""
    datasets, nodes = Names(), Names()
    held: list[dict[str, npt.NDArray[Any]]] = []
    count = 0

    def piece() -> ReplicaPiece:
        columns = {name: np.concatenate([one[name] for one in held]) for name in held[0]}
        return ReplicaPiece(columns, list(datasets.numbers), list(nodes.numbers))

    for table in tables:
        for start in range(0, table.num_rows, rows):
            held.append(_replica_columns(table.slice(start, rows), datasets, nodes))
            count += len(held[-1]["dataset"])
            if count >= rows:
                yield piece()
                datasets, nodes = Names(), Names()
                held, count = [], 0
    if count:
        yield piece()


def _replica_columns(table: pa.Table, datasets: Names, nodes: Names) -> dict[str, npt.NDArray[Any]]:
    has_name = is_there(table["block_name"])
    columns: dict[str, npt.NDArray[Any]] = {
        "dataset": datasets.of(table["dataset_name"]),
        "node": nodes.of(table["node_name"]),
        "block": _block_hashes(table["block_name"], has_name),
    }
    validity = has_name * NAMED
    for name, column in zip(MEASURES, REPLICA_COLUMNS[3:], strict=True):
        if name == "created_ms" and name in table.column_names:
            columns[name], has = to_numpy(table[name], np.int64), is_there(table[name])
        elif name == "created_ms":
            columns[name], has = whole_milliseconds(to_numpy(table[column], np.float64))
            has &= is_there(table[column])
        else:
            columns[name], has = to_numpy(table[column], np.int64), is_there(table[column])
        validity |= has * BITS[name]
    return columns | {"there": validity}


def whole_milliseconds(seconds: npt.NDArray[np.float64]) -> tuple[Longs, npt.NDArray[np.bool_]]:
    """Unix seconds as milliseconds, halves away from 0; and whether each is a time at all."""
    with np.errstate(over="ignore"):
        return rounded(seconds * 1000)


def _block_hashes(column: pa.ChunkedArray, has_name: npt.NDArray[np.bool_]) -> Hashes:
    """Hashes of names, 0 for a block without one. Blocks are told apart within their dataset only."""
    if has_name.all():
        return hashes_in(column)
    hashes = np.zeros(len(column), np.uint64)
    hashes[has_name] = hashes_in(column.drop_null())
    return hashes


def _read_blocks(folder: Path, rows: int, part: Part) -> list[PartitionedRun]:
    """Return the runs of a part of BLOCKS: the named blocks of known datasets."""
    of_names = np.load(folder / "known-partitions.npy", mmap_mode="r")
    return [
        PartitionedRun.write(folder, of_names[numbers], {"dataset": numbers, "block": hashes})
        for numbers, hashes in block_pieces(part(), KnownDatasets.load(folder), rows)
    ]


def block_pieces(
    tables: Iterable[pa.Table], datasets: KnownDatasets, rows: int = ROWS
) -> Iterator[tuple[npt.NDArray[np.int32], Hashes]]:
    """Yield the named blocks of known datasets, about ``rows`` at a time: the number of the dataset, and the name's
    hash.
    """
    held: list[tuple[npt.NDArray[Any], Hashes]] = []
    count = 0
    for table in tables:
        for start in range(0, table.num_rows, rows):
            some = table.slice(start, rows)
            places = datasets.places(some["dataset_id"])
            stays = (places >= 0) & is_there(some["block_name"])
            held.append((datasets.numbers[places[stays]], hashes_in(some["block_name"].filter(flags(stays)))))
            count += len(held[-1][0])
            if count >= rows:
                yield _joined_pairs(held)
                held, count = [], 0
    if held:
        yield _joined_pairs(held)


def _joined_pairs(held: list[tuple[npt.NDArray[Any], Hashes]]) -> tuple[npt.NDArray[np.int32], Hashes]:
    numbers, hashes = (np.concatenate(values) for values in zip(*held, strict=True))
    return numbers, hashes
