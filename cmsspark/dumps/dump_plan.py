"""A job on dumps: read, key, merge, the same by processes and in Spark
(:mod:`cmsspark.dumps.keyed_rows`).

Two rounds at most. The first collects the small tables. The second reads FILES, BLOCKS
and the replicas, whose rows meet by key, and moves the sums of datasets once more. The
collecting process holds a row for each dataset, and one for each (dataset, site, kind):
no file, no block and no replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial
from typing import TYPE_CHECKING, Any, Final, Protocol

import msgspec
import numpy as np

from cmsspark.counting.catalogue import Hash, Hashes, check_hash, name_hash
from cmsspark.dumps import (
    catalogue_differences,
    dataset_contents,
    dataset_replicas,
    locked_copies,
    rucio_rows,
)
from cmsspark.dumps.dataset_contents import (
    FILES,
    ROW_USE,
    TOTALS,
    VALID_BLOCKS,
    FileMapper,
    KnownDatasets,
    SiftedMapper,
    sum_uses,
)
from cmsspark.dumps.dataset_replicas import BLOCKS, StorageByNode
from cmsspark.dumps.keyed_rows import (
    MOST_KEYS,
    KeyedRows,
    KindMerge,
    Mapper,
    Merge,
    merge_kinds,
    rows_by_kind,
)
from cmsspark.dumps.rucio_rows import (
    DISK_REPLICAS,
    FileMerge,
    find_disk_replicas,
    hash_names,
    merge_disk_replicas,
)
from cmsspark.engines.merge_task import decode_rows, encode_rows
from cmsspark.sources.accounts import Accounts
from cmsspark.sources.registry import REPLICAS

if TYPE_CHECKING:
    import polars as pl
    import pyarrow as pa

    from cmsspark.counting.row_use import RowUse
    from cmsspark.dumps.rucio_scan import RucioScan, Scan
    from cmsspark.sources.dumps import Dump

#: The tables that are not read whole.
LARGE: Final = ("FILES", "BLOCKS", REPLICAS)


class Transport(Protocol):
    """Reads the tables of dumps in tasks, and moves rows between tasks. Sources and
    rows are the transport's own.
    """

    @property
    def key_bytes(self) -> int:
        """Decompressed bytes of dumps whose rows one key takes."""

    def table(self, dump: Dump, name: str, columns: Sequence[str]) -> Any:
        """Return the source of a table of DBS or PhEDEx: its parts have Arrow tables of
        ``columns``.
        """

    def ranges(self, scan: Scan) -> list[Any]:
        """Return the sources of the tables of Rucio: their parts have
        :class:`cmsspark.dumps.rucio_scan.OpenRange`.
        """

    def map(self, source: Any, mapper: Mapper[Any], keys: int) -> Any:
        """Return the rows that ``mapper`` makes of each part of a source, for a merge
        of so many keys.
        """

    def union(self, rows: Sequence[Any]) -> Any:
        """Return rows of several origins together."""

    def merge(self, rows: Any, keys: int, merge: Merge) -> Any:
        """Return what ``merge`` makes of all rows of each of the ``keys``."""

    def collect(self, rows: Any) -> list[KeyedRows]:
        """Return the rows to this process."""


class RucioTables(msgspec.Struct, frozen=True):
    """The tables of Rucio that a job reads. ``has_replicas``: whether it reads replicas
    of datasets. ``is_check``: whether it compares files with those of DBS.
    ``accounts``: those of production where it reads which copies are locked, else None.
    """

    scan: RucioScan
    has_replicas: bool
    is_check: bool = False
    accounts: Accounts | None = None

    @property
    def joins_files(self) -> bool:
        """Whether files meet those of DBS by name."""
        return self.is_check or self.accounts is not None


class DumpRows(msgspec.Struct, frozen=True):
    """The tables of dumps. ``frames``: those of jobs. ``rucio``: merged rows of Rucio
    that are in no frame. ``names``: those of the datasets of DBS by number. ``uses``:
    what was used of the tables of DBS and PhEDEx.
    """

    frames: dict[str, pl.DataFrame]
    rucio: list[KeyedRows]
    names: pl.Series
    uses: dict[str, RowUse]


def read_dumps(
    transport: Transport,
    sources: Mapping[str, Any],
    *,
    keys: int | None = None,
    storage: StorageByNode | None = None,
    rucio: RucioTables | None = None,
    blocks: str = "",
) -> DumpRows:
    """Return the frames that jobs on dumps build on, from the sources of tables by
    name, and the rows of Rucio.

    Tables other than FILES, BLOCKS and the replicas come as they are. FILES (with
    DATASETS) give ``contents`` or, with ``blocks``, which is ``all`` or ``valid``
    files, ``block_sums``; replicas give ``dataset_replicas``:
    :mod:`cmsspark.dumps.dump_frames` describes them. ``keys``: into how many parts the
         rows of large tables are divided, a power of two; None: as many as their bytes
         need. ``storage``: of each node, where the nodes' names do not say it. Raises
         DataError (65) on 64-bit overflow, and what the tables' readers raise.
    """
    small = {name: source for name, source in sources.items() if name not in LARGE}
    small_rows = [
        transport.map(source, SiftedMapper(name, partial(_pass_rows, name)), 1)
        for name, source in small.items()
    ]
    collected = rows_by_kind(transport.collect(transport.union(small_rows))) if small_rows else {}
    # Processes are forked before this one has the threads of Polars.
    from cmsspark.dumps import dump_frames

    uses = sum_uses(collected.pop(ROW_USE, []))
    tables = {
        name: [decode_rows(rows.columns["rows"].tobytes()) for rows in parts]
        for name, parts in collected.items()
    }
    frames = {
        name: dump_frames.to_frame(tables.get(name) or [source.columns.empty_table()])
        for name, source in small.items()
    }
    datasets, names = dump_frames.datasets_in(frames)
    large = {name: source for name, source in sources.items() if name in LARGE}
    if not large and rucio is None:
        return DumpRows(frames, [], names, uses)
    weight = sum(source.weight for source in large.values()) + (rucio.scan.weight if rucio else 0)
    plan = _Plan(
        transport,
        large,
        datasets,
        names.to_list(),
        keys or key_count(weight, transport.key_bytes),
        storage,
        rucio,
        blocks,
    )
    rows = plan.run()
    replica_frames = dump_frames.make_frames(rows, datasets, names, plan.frames, blocks)
    return DumpRows(frames | replica_frames, rows, names, uses | sum_uses(rows))


def key_count(weight: int, key_bytes: int) -> int:
    """Return the number of keys for so many bytes: a power of two."""
    return min(MOST_KEYS, 1 << max(0, -(-weight // key_bytes) - 1).bit_length())


def read_disk_replicas(transport: Transport, scan: RucioScan) -> Any:
    """Return the rows of ``rucio_rows.DISK_REPLICAS`` of a dump, each (block, site)
    once, and of ``READ_COUNTS``.

    ``site`` is a number of :func:`disk_sites`. The rows are the transport's.
    """
    keys = key_count(scan.weight, transport.key_bytes)
    texts = disk_sites(scan)
    sites = tuple(texts.index(rse.site) if rse.kind == "disk" else -1 for rse in scan.rses.rses)
    rows = transport.merge(
        _map_rucio(transport, scan, keys), keys, partial(find_disk_replicas, keys, sites)
    )
    return (
        transport.merge(rows, keys, partial(merge_kinds, {DISK_REPLICAS: merge_disk_replicas}))
        if keys > 1
        else rows
    )


def disk_sites(scan: RucioScan) -> list[str]:
    """Return the sites of storage elements on disk."""
    return sorted({rse.site for rse in scan.rses.rses if rse.kind == "disk"})


def _map_rucio(transport: Transport, scan: RucioScan, keys: int) -> Any:
    return transport.union(
        [transport.map(source, scan.mapper(keys), keys) for source in transport.ranges(scan)]
    )


class _Plan(msgspec.Struct, frozen=True):
    """The tables that are merged by key. ``names``: those that ``datasets`` numbers."""

    transport: Transport
    sources: Mapping[str, Any]
    datasets: KnownDatasets
    names: Sequence[str]
    keys: int
    storage: StorageByNode | None
    rucio: RucioTables | None
    blocks: str

    @property
    def is_check(self) -> bool:
        return self.rucio is not None and self.rucio.is_check

    @property
    def joins_files(self) -> bool:
        return self.rucio is not None and self.rucio.joins_files

    @property
    def frames(self) -> Iterator[str]:
        """The frames that the rows give."""
        if self.blocks:
            yield "block_sums"
        elif "FILES" in self.sources and not self.joins_files:
            yield "contents"
        if REPLICAS in self.sources or (self.rucio is not None and self.rucio.has_replicas):
            yield (
                "dataset_replicas with blocks" if "BLOCKS" in self.sources else "dataset_replicas"
            )

    def run(self) -> list[KeyedRows]:
        """Read the tables and merge their rows, by key."""
        parts = {
            name: self.transport.map(
                source, SiftedMapper(name, self._mapper(name), self.datasets), self.keys
            )
            for name, source in self.sources.items()
        }
        if self.rucio is not None:
            # The sums of files by block; rows of FILES are compared with them.
            files = parts.pop("FILES") if self.joins_files else None
            merged: Merge = FileMerge(self.keys, self.rucio.scan.day_ms)
            of_rucio = _map_rucio(self.transport, self.rucio.scan, self.keys)
            if files is not None:
                of_rucio = self.transport.union([of_rucio, files])
            if self.rucio.accounts is not None:
                is_tape = tuple(rse.kind == "tape" for rse in self.rucio.scan.rses.rses)
                merged = locked_copies.CopyMerge(
                    self.keys, is_tape, self.rucio.accounts, len(self.names)
                )
            elif self.is_check:
                merged = catalogue_differences.CheckedFileMerge(
                    FileMerge(self.keys, self.rucio.scan.day_ms), len(self.names)
                )
            parts = {
                "rucio": self.transport.merge(of_rucio, self.keys, merged),
                **parts,
            }
        rows = self.transport.union(list(parts.values()))
        for merge in self._merges():
            rows = self.transport.merge(rows, self.keys, merge)
        return self.transport.collect(rows)

    @property
    def _files(self) -> dataset_contents.FileMerge:
        return dataset_contents.FileMerge(
            self.keys, None if self.blocks else len(self.datasets.ids)
        )

    def _mapper(self, name: str) -> Mapper[pa.Table]:
        if name == REPLICAS:
            return dataset_replicas.ReplicaMapper(self.keys)
        if name == "FILES":
            if self.is_check:
                return catalogue_differences.CheckedFileMapper(self.datasets, self.keys)
            if self.joins_files:
                return locked_copies.NamedFileMapper(self.datasets, self.keys)
            hashes = self._dataset_hashes(name_hash) if "BLOCKS" in self.sources else None
            return FileMapper(
                self.datasets,
                self._files,
                self.blocks == "valid",
                dataset_hashes=None if self.blocks else hashes,
            )
        if self.is_check:
            return partial(catalogue_differences.map_named_blocks, self.keys)
        if self.blocks:
            return partial(dataset_contents.map_blocks, self.keys)
        hashes, checks = map(self._dataset_hashes, (name_hash, check_hash))
        return dataset_replicas.BlockMapper(self.datasets, hashes, checks, self.keys)

    def _dataset_hashes(self, hash_name: Hash) -> Hashes:
        """Return the hashes of the names that ``datasets`` numbers."""
        from cmsspark.base.buffers import array

        return hash_names(array(self.names, "string"), hash_name)

    def _merges(self) -> Iterator[Merge]:
        """Yield the merges of all rows, the last of sums that other keys have, too."""
        if self.rucio is not None and self.rucio.accounts is not None:
            yield locked_copies.merge_datasets
            return
        if self.blocks:
            yield partial(merge_kinds, {FILES: self._files})
            yield partial(dataset_contents.merge_blocks, self.keys)
            if self.keys > 1:
                yield partial(
                    merge_kinds, {dataset_contents.MONTH_SUMS: dataset_contents.merge_months}
                )
            return
        merge: Merge | None = None
        if self.is_check:
            merge = partial(catalogue_differences.merge_catalogues, len(self.names), self.keys)
        elif self.sources or list(self.frames):
            merge = partial(merge_key, self._files, "BLOCKS" in self.sources, self.storage)
        if self.rucio is not None:
            merge = rucio_rows.BlockMerge(
                tuple(rse.name for rse in self.rucio.scan.rses.rses), merge
            )
        assert merge is not None
        yield merge
        if self.keys > 1 and "FILES" in self.sources:
            differing = partial(
                catalogue_differences.merge_differences, len(self.names), self.keys
            )
            merges: dict[str, KindMerge] = {TOTALS: dataset_contents.merge_totals}
            merges[catalogue_differences.DIFFERING] = differing
            yield partial(merge_kinds, merges)


def merge_key(
    files: dataset_contents.FileMerge,
    counts_blocks: bool,
    storage: StorageByNode | None,
    key: int,
    rows: Iterable[KeyedRows],
) -> Iterator[KeyedRows]:
    """Yield sums by dataset, and replicas of datasets. Surplus sums are negative; they
    may belong to another key.

    ``files``: merges the rows of FILES. ``counts_blocks``: whether BLOCKS was read.
    ``storage``: of each node, where the nodes' names do not say it.
    """
    by_kind = rows_by_kind(rows)
    yield from by_kind[ROW_USE]
    if by_kind[TOTALS]:
        yield from dataset_contents.merge_totals(key, by_kind.pop(TOTALS))
    if by_kind[FILES]:
        yield from files(key, by_kind.pop(FILES))
    if replicas := by_kind[dataset_replicas.REPLICAS]:
        blocks = by_kind[BLOCKS] if counts_blocks else None
        yield dataset_replicas.merge_replicas(
            key, replicas, blocks, storage, by_kind[VALID_BLOCKS]
        )


def _pass_rows(name: str, tables: Iterable[pa.Table]) -> Iterator[KeyedRows]:
    """Yield the rows of a small table."""
    for table in tables:
        yield KeyedRows(0, name, {"rows": np.frombuffer(encode_rows(table), np.uint8)})
