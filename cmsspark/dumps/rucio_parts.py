"""A Rucio dump by processes of this host: from the ranges of its files to replicas of blocks (rules 22 to 26)."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import date, timedelta
from functools import partial
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.base import dates
from cmsspark.base.buffers import array, from_numpy, to_numpy
from cmsspark.base.errors import DataError
from cmsspark.base.names import block_dataset
from cmsspark.base.text.plurals import number_of
from cmsspark.counting.catalogue import Hashes, hashes_in, name_hash, replica_keys
from cmsspark.dumps import block_replicas, file_partitions
from cmsspark.dumps.block_replicas import BlockReplicas
from cmsspark.dumps.file_partitions import ContentRun, FilePartitions
from cmsspark.dumps.partitions import ROWS, PartitionedRun
from cmsspark.dumps.parts import Each
from cmsspark.filesystems.storage import is_local, local_path
from cmsspark.sources.dumps import Dump
from cmsspark.sources.listing import InputFile
from cmsspark.sources.rses import Rses, load_sites
from cmsspark.sources.rucio import FUTURE_ACCESS, Arrays, RucioReader, TableCounts

if TYPE_CHECKING:
    import pyarrow as pa

#: Bytes of a file that one task reads.
RANGE_BYTES: Final = 64_000_000


@dataclass(frozen=True)
class FileRange:
    """A range of bytes of a file."""

    path: str
    first: int
    last: int


@dataclass(frozen=True)
class RucioDump:
    """What a Rucio dump says. ``replicas``: of blocks, by RSE; ``rses``: the storage elements by number; ``counts``:
    the rows of each table; ``unattached``: blocks without their own dataset among the containers; ``datasets``: the
    hashes of datasets that DIDS says were accessed, or whose blocks were, and ``accessed_ms``; ``partitions``: files on
    disk.
    """

    replicas: BlockReplicas
    rses: Rses
    counts: Mapping[str, TableCounts]
    unattached: int
    partitions: FilePartitions
    datasets: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))
    accessed_ms: npt.NDArray[np.int64] = field(default_factory=lambda: np.zeros(0, np.int64))

    def as_dict(self) -> dict[str, Any]:
        """Return the entry of manifests."""
        return {
            "tables": {table: counts.as_dict() for table, counts in sorted(self.counts.items())},
            "unattached_blocks": self.unattached,
        }


def accessed_before_ms(frames: Sequence[str], day: date) -> int | None:
    """Return the end of the day after ``day``, in UTC ms, for a job that reads last accesses (rule 35); else None."""
    return dates.start_ms(day) + 2 * dates.DAY_MS if "last_access" in frames else None


def future_accesses(entry: Mapping[str, Any], day: date) -> list[str]:
    """Return warnings about last accesses in the future, by a manifest's entry on Rucio."""
    counts = {table: rows["ignored"].get(FUTURE_ACCESS, 0) for table, rows in entry["tables"].items()}
    return [
        f"rucio: {number_of(count, 'last access', 'last accesses')} of {table} after {day + timedelta(days=1)}"
        " are in the future and not believed"
        for table, count in counts.items()
        if count
    ]


def ranges_of(files: Sequence[InputFile], size: int = RANGE_BYTES) -> list[FileRange]:
    """Return the files in ranges of at most ``size`` bytes, which cover them.

    Files of other file systems stay whole.
    """
    found = []
    for file in sorted(files, key=lambda one: -one.size):
        step = size if is_local(file.path) else max(file.size, 1)
        found += [FileRange(file.path, first, first + step) for first in range(0, file.size, step)]
    return found


def read_rses(dump: Dump, rses_file: str | None, opened: Any) -> tuple[Rses, TableCounts]:
    """Return the storage elements of a dump. Raises DataError (65), SettingsError (78) for wrong exceptions."""
    reader = RucioReader("RSES")
    rows: list[tuple[str | None, str | None, str | None, int | None]] = []
    for file in dump.tables["RSES"]:
        with opened(file.path) as stream:
            rows += reader.rse_rows(reader.pieces(stream, file.path))
    reader.counts.check("RSES")
    return Rses.of(rows, load_sites(rses_file)), reader.counts


@contextmanager
def _open_local(path: str) -> Iterator[IO[bytes]]:
    try:
        with open(local_path(path), "rb") as stream:
            yield stream
    except OSError as error:
        raise DataError("a dump's file cannot be read", where=path, found=error.strerror) from None


def read_rucio(
    dump: Dump,
    day: date,
    folder: Path,
    each: Each = map,
    *,
    rses_file: str | None = None,
    opened: Any = _open_local,
    rows: int = ROWS,
    accessed_before_ms: int | None = None,
) -> RucioDump:
    """Read the tables of a dump; DIDS where the dump has it. ``folder`` takes some 60 bytes for each row meanwhile.

    ``accessed_before_ms``: as of :class:`cmsspark.sources.rucio.RucioReader`.

    Raises DataError (65) for damage, another schema, too many damaged rows, and where a sum leaves 64 bits.
    """
    counts: dict[str, TableCounts] = {}
    rses, counts["RSES"] = read_rses(dump, rses_file, opened)
    contents: list[_Contents] = []
    replica_runs: list[PartitionedRun] = []
    access_runs: list[PartitionedRun] = []
    datasets, accessed = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]
    work: dict[str, Callable[[Any], Any]] = {"CONTENTS": partial(_read_contents, folder, rows, opened),
            "REPLICAS": partial(_read_replicas, folder, rows, opened, rses, accessed_before_ms),
            "DIDS": partial(_read_dids, folder, rows, opened, accessed_before_ms)}  # fmt: skip
    for table in (name for name in work if name in dump.tables):
        counts[table] = TableCounts()
        for found in each(work[table], ranges_of(dump.tables[table])):
            counts[table].add(found.counts)
            if isinstance(found, _Contents):
                contents.append(found)
            elif isinstance(found, _Dids):
                access_runs += found.runs
                datasets.append(found.datasets)
                accessed.append(found.accessed_ms)
            else:
                replica_runs += found.runs
        counts[table].check(table)
    names, content_runs = _numbered_blocks(contents)
    partitions = FilePartitions(replica_runs, content_runs, names, access_runs)
    replicas = block_replicas.block_replicas(
        partitions, [rse.name for rse in rses.rses], dates.timestamp_ms_bounds(day), folder, each, rows
    )
    attached = np.concatenate([np.zeros(0, np.uint64), *(one.attached for one in contents)])
    unattached = _unattached(names, replicas.totals.files, attached)
    return RucioDump(replicas, rses, counts, unattached, partitions, *_largest(datasets, accessed))


@dataclass(frozen=True)
class _Replicas:
    runs: list[PartitionedRun]
    counts: TableCounts


@dataclass(frozen=True)
class _Contents:
    """Runs whose blocks are numbered as in ``names``, a file; ``attached``: keys of (block, dataset)."""

    runs: list[PartitionedRun]
    counts: TableCounts
    names: Path
    attached: Hashes


@dataclass(frozen=True)
class _Dids:
    runs: list[PartitionedRun]
    counts: TableCounts
    datasets: Hashes
    accessed_ms: npt.NDArray[np.int64]


def _read_replicas(
    folder: Path, rows: int, opened: Any, rses: Rses, accessed_before_ms: int | None, task: FileRange
) -> _Replicas:
    reader = RucioReader("REPLICAS", accessed_before_ms)
    with opened(task.path) as stream:
        pieces = (reader.replica_rows(piece, rses) for piece in reader.pieces(stream, task.path, task.first, task.last))
        return _Replicas(file_partitions.write_replicas(folder, rows, pieces), reader.counts)


def _read_contents(folder: Path, rows: int, opened: Any, task: FileRange) -> _Contents:
    import pyarrow as pa

    reader = RucioReader("CONTENTS")
    attachments: list[Arrays] = []

    def pieces(stream: IO[bytes]) -> Iterator[Arrays]:
        for piece in reader.pieces(stream, task.path, task.first, task.last):
            files, of_datasets = reader.content_rows(piece)
            attachments.append(of_datasets)
            yield {**files, "block": files["parent"]}

    with opened(task.path) as stream:
        runs = file_partitions.write_contents(folder, rows, pieces(stream))
    names = reader.texts("NAME")
    path = folder / f"{uuid.uuid4().hex}.names"
    table = pa.table({"name": array(names, "string")})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, table.schema) as writer:
        writer.write_table(table)
    hashes = np.fromiter((name_hash(name.encode()) for name in names), np.uint64, len(names))
    keys = [np.zeros(0, np.uint64)]
    keys += [_attachment(one["hash"], hashes[one["parent"]]) for one in attachments]
    return _Contents(runs, reader.counts, path, np.unique(np.concatenate(keys)))


def _attachment(blocks: Hashes, datasets: Hashes) -> Hashes:
    """Return what stands for a block (by its name's hash) in a dataset."""
    return replica_keys(blocks.view(np.int64), datasets)


def _read_dids(folder: Path, rows: int, opened: Any, accessed_before_ms: int | None, task: FileRange) -> _Dids:
    reader = RucioReader("DIDS", accessed_before_ms)
    datasets, accessed = [np.zeros(0, np.uint64)], [np.zeros(0, np.int64)]

    def pieces(stream: IO[bytes]) -> Iterator[Arrays]:
        for piece in reader.pieces(stream, task.path, task.first, task.last):
            files, others = reader.did_rows(piece)
            datasets.append(others["dataset"])
            accessed.append(others["accessed_ms"])
            yield files

    with opened(task.path) as stream:
        runs = file_partitions.write_accesses(folder, rows, pieces(stream))
    return _Dids(runs, reader.counts, *_largest(datasets, accessed))


def _largest(datasets: list[Hashes], accessed: list[npt.NDArray[np.int64]]) -> tuple[Hashes, npt.NDArray[np.int64]]:
    """Return each dataset once, with its last access."""
    found, places = np.unique(np.concatenate(datasets), return_inverse=True)
    largest = np.full(len(found), -1, np.int64)
    np.maximum.at(largest, places, np.concatenate(accessed))
    return found, largest


def _numbered_blocks(contents: Sequence[_Contents]) -> tuple[pa.Array, list[ContentRun]]:
    """Return the names of all parents in order of their bytes, and the runs with the numbers there of their own."""
    import pyarrow as pa
    import pyarrow.compute as pc

    named = []
    for one in contents:
        with pa.memory_map(str(one.names)) as source:
            named.append(pa.ipc.open_file(source).read_all()["name"].combine_chunks())
    chunks = pa.chunked_array([array([], "string"), *named], pa.string())
    distinct = chunks.unique().cast(pa.large_string())
    in_order = distinct.take(pc.sort_indices(distinct))
    runs = []
    for one, names in zip(contents, named, strict=True):
        numbers = pc.index_in(names.cast(pa.large_string()), value_set=in_order)
        path = one.names.with_suffix(".npy")
        np.save(path, to_numpy(numbers, np.int32).astype(np.int64))
        runs += [ContentRun(run, path) for run in one.runs]
    return in_order, runs


def _unattached(names: pa.Array, files: npt.NDArray[np.int64], attached: Hashes) -> int:
    """Return how many blocks with files are not in their own dataset.

    ``names`` has datasets too, which have no files here.
    """
    import pyarrow as pa

    blocks = names.take(from_numpy(np.flatnonzero(files).astype(np.int64))).to_pylist()
    hashes, datasets = (
        hashes_in(pa.chunked_array([array(texts, "string")]))
        for texts in (blocks, [block_dataset(name) for name in blocks])
    )
    return int((~np.isin(_attachment(hashes, datasets), attached)).sum())
