"""Building the catalogue's snapshots from a dump's parts;
:mod:`cmsspark.counting.catalogue` reads them.

Parts are worked on one by one, or by several processes at once: ``map_parts`` is
``map``, or something like it.
"""

from __future__ import annotations

import json
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
from msgspec.structs import asdict

from cmsspark.base.arrays import Longs
from cmsspark.base.buffers import array, flags, from_numpy, is_there, to_numpy
from cmsspark.counting.catalogue import (
    Hash,
    Hashes,
    Numbers,
    Report,
    check_hash,
    find_starts,
    hashes_in,
    name_hash,
    replica_keys,
    sorted_order,
)

if TYPE_CHECKING:
    import pyarrow as pa


# Rows of FILES on disk, in runs sorted by hash, so that the memory of a build does not
# grow with the dump.

#: Rows of a run, and about those that are merged at once. A row takes some 60 bytes
#: while it is sorted.
ROWS: Final = 1 << 20
_COLUMNS: Final = {
    "hashes": np.uint64,
    "pairs": np.int32,
    "checks": np.uint64,
    "file_ids": np.int64,
}


class FileRows(msgspec.Struct):
    """Rows of FILES that can match: hashes of their names, number of (block, dataset),
    file_id (-1: none).
    """

    hashes: Hashes
    checks: Hashes
    pairs: Numbers
    file_ids: Longs


class SortedRun(msgspec.Struct, frozen=True):
    """Rows in a file, column by column, sorted by hash; rows of one hash are in the
    order of the dump.
    """

    path: Path
    rows: int

    @classmethod
    def write(cls, folder: Path, rows: FileRows) -> SortedRun:
        """Write a new file in ``folder``. Raises OSError."""
        order = sorted_order(rows.hashes)
        return cls.write_columns(folder, [getattr(rows, name)[order] for name in _COLUMNS])

    @classmethod
    def write_columns(cls, folder: Path, columns: Sequence[Any]) -> SortedRun:
        """Write the first of the columns to a new file in ``folder``. Raises OSError."""
        run = cls(folder / f"{uuid.uuid4().hex}.run", len(columns[0]))
        with run.path.open("wb") as sink:
            for values in columns:
                values.tofile(sink)
        return run

    @property
    def pairs_path(self) -> Path:
        """The file with the number that each pair of the run has among those of all runs."""
        return self.path.with_suffix(".pairs")

    def read(self, name: str, first: int, last: int) -> Any:
        """Return the values of a column in the rows from ``first`` to before ``last``."""
        names = list(_COLUMNS)
        before = (
            sum(np.dtype(_COLUMNS[column]).itemsize for column in names[: names.index(name)])
            * self.rows
        )
        kind: np.dtype[Any] = np.dtype(_COLUMNS[name])
        return np.fromfile(self.path, kind, last - first, offset=before + first * kind.itemsize)


class Slice(msgspec.Struct, frozen=True):
    """The rows that some runs have in one range of hashes."""

    runs: Sequence[SortedRun]
    #: The first row of each run, and the row after the last.
    row_ranges: Sequence[tuple[int, int]]

    def column(self, name: str) -> Any:
        """Return the values of a column, one run after the other."""
        return np.concatenate(self.columns(name))

    def columns(self, name: str) -> list[Any]:
        """Return the values of a column in each run."""
        return [
            run.read(name, *rows) for run, rows in zip(self.runs, self.row_ranges, strict=True)
        ]


def slices(runs: Sequence[SortedRun], rows: int) -> Iterator[Slice]:
    """Yield the rows of all runs in ascending ranges of hashes of about ``rows`` rows.

    Equal hashes are in one range.
    """
    total = sum(run.rows for run in runs)
    count = -(-total // rows)
    ends = np.array([2**64 * number // max(1, count) for number in range(1, count)], np.uint64)
    spans = []
    for run in runs:
        inner = np.searchsorted(run.read("hashes", 0, run.rows), ends).tolist()
        spans.append([0, *inner, run.rows])
    for number in range(count):
        yield Slice(runs, [(bounds[number], bounds[number + 1]) for bounds in spans])


class RunColumn:
    """An array of a snapshot that is written piece by piece, in the format of ``np.save``."""

    def __init__(self, path: Path, kind: type[np.generic]) -> None:
        self._kind = np.dtype(kind)
        self.rows = 0
        self._sink = path.open("wb")
        self._write_header()

    def append(self, values: Any) -> None:
        """Write more values. Raises OSError."""
        values.astype(self._kind, copy=False).tofile(self._sink)
        self.rows += len(values)

    def close(self) -> None:
        """Write the final length and close the file. Raises OSError."""
        self._sink.seek(0)
        self._write_header()
        self._sink.close()

    def _write_header(self) -> None:
        # numpy leaves room in the header for a longer first dimension.
        shape = {"descr": self._kind.str, "fortran_order": False, "shape": (self.rows,)}
        np.lib.format.write_array_header_1_0(self._sink, shape)


#: The tables of one part, read when it is called. It must pickle where ``map_parts``
#: has other processes.
Part = Callable[[], "Iterator[pa.Table]"]
#: ``map``, or something like it: results in order, whoever worked them out.
MapParts = Callable[[Callable[[Any], Any], Iterable[Any]], Iterable[Any]]

_NO_BLOCK: Final = -1
#: Rows of a part of FILES that are odd: more than so many, and more than a share, are told.
ODD_ROWS: Final = 10
ORPHAN_SHARE: Final = 0.05
ODD_NAME_SHARE: Final = 0.001


class _Pairs(msgspec.Struct):
    """(block, dataset) pairs by their number: the block's id (-1: none) and the dataset's number."""

    blocks: Longs
    datasets: Numbers

    @classmethod
    def number_rows(cls, blocks: Longs, datasets: Numbers) -> tuple[Numbers, _Pairs]:
        """Return the pair number of each row, and the pairs."""
        block_codes, block_values = _distinct(blocks)
        width = int(datasets.max()) + 1 if len(datasets) else 1
        numbers, values = _distinct(block_codes.astype(np.int64) * width + datasets)
        return numbers, cls(block_values[values // width], (values % width).astype(np.int32))


def build_catalogue(
    folder: Path,
    files: Iterable[Part],
    datasets: Iterable[pa.Table],
    hash_name: Hash = name_hash,
    map_parts: MapParts = map,
    rows: int = ROWS,
) -> Report:
    """Write a snapshot to ``folder``, which takes 40 bytes for each file meanwhile.
    Needs 60 MB of memory, and 200 bytes for each pair of block and dataset.

    ``files``: parts with tables of (lfn string, block_id, dataset_id, file_id as int64,
    nullable); ``datasets``: tables of (dataset_id int64, name string). Raises whatever
    the readers raise.
    """
    known_ids, numbers = _write_datasets(folder, datasets)
    report = Report()
    spool = folder / "runs"
    spool.mkdir()
    runs: list[SortedRun] = []
    find_pairs: list[_Pairs] = []
    for number, (of_part, counted) in enumerate(
        map_parts(partial(_file_runs, known_ids, numbers, hash_name, spool, rows), files)
    ):
        for run, pairs in of_part:
            runs.append(run)
            find_pairs.append(pairs)
        for suspect in counted.suspects:
            suspect["part"] = number
        report.add(counted)
    all_pairs, numbers_of = _same_pairs(find_pairs)
    for run, numbers_of_run in zip(runs, numbers_of, strict=True):
        numbers_of_run.tofile(run.pairs_path)
    colliding: dict[int, dict[int, int]] = {}
    hashes, pairs_column = (
        RunColumn(folder / "hashes.npy", np.uint64),
        RunColumn(folder / "pairs.npy", np.int32),
    )
    for merged, counted, of_range in map_parts(partial(_merged, spool), slices(runs, rows)):
        hashes.append(merged.read("hashes", 0, merged.rows))
        pairs_column.append(merged.read("pairs", 0, merged.rows))
        merged.path.unlink()
        report.add(counted)
        colliding.update(of_range)
    hashes.close()
    pairs_column.close()
    shutil.rmtree(spool)
    np.save(folder / "starts.npy", find_starts(_pieces(folder / "hashes.npy", rows), hashes.rows))
    np.save(folder / "pair_blocks.npy", all_pairs.blocks)
    np.save(folder / "pair_datasets.npy", all_pairs.datasets)
    meta: Mapping[str, object] = {"report": asdict(report), "colliding": colliding}
    (folder / "meta.json").write_text(json.dumps(meta))
    return report


def build_replicas(
    folder: Path, blocks: Iterable[Part], replicas: Iterable[Part], map_parts: MapParts = map
) -> int:
    """Write the disk replicas' keys to ``folder`` and return how many there are.

    ``blocks``: parts with tables of (block_id int64, block_name string); ``replicas``:
    of (block_name, site), disk only; a block may be the hash of its name (int64).
    Replicas of blocks that DBS does not name are left out: no file leads to them.
    """
    names, ids = _columns(map_parts(_block_rows, blocks), np.uint64, np.int64)
    block_hashes, sites = _columns(map_parts(_replica_rows, replicas), np.uint64, np.uint64)
    order = np.argsort(names)
    names, ids = names[order], ids[order]
    first = np.searchsorted(names, block_hashes, "left")
    # A name may have several ids: each of them lies there.
    counts = np.searchsorted(names, block_hashes, "right") - first
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    block_ids = ids[np.repeat(first, counts) + offsets]
    # numpy's unique hashes numbers, which takes ten times as long as sorting them.
    keys = np.sort(replica_keys(block_ids, np.repeat(sites, counts)))
    keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))] if len(keys) else keys
    np.save(folder / "replicas.npy", keys)
    (folder / "meta.json").write_text(json.dumps({"replicas": len(keys)}))
    return len(keys)


def _write_datasets(folder: Path, datasets: Iterable[pa.Table]) -> tuple[Longs, Numbers]:
    """Names in a memory-mappable file, dataset ids in order and their numbers. Rows
    without a name are left out.
    """
    import pyarrow as pa

    names: list[str] = []
    numbers: dict[int, int] = {}
    for table in datasets:
        for dataset_id, name in zip(table[0].to_pylist(), table[1].to_pylist(), strict=True):
            if dataset_id is not None and name is not None and dataset_id not in numbers:
                numbers[dataset_id] = len(names)
                names.append(name)
    names_table = pa.table({"name": array(names, "string").cast(pa.large_string())})
    with (
        pa.OSFile(str(folder / "datasets.arrow"), "wb") as sink,
        pa.ipc.new_file(sink, names_table.schema) as writer,
    ):
        writer.write_table(names_table)
    known_ids = sorted(numbers)
    return np.array(known_ids, np.int64), np.array([numbers[key] for key in known_ids], np.int32)


def _file_runs(
    known_ids: Longs, numbers: Numbers, hash_name: Hash, spool: Path, rows: int, part: Part
) -> tuple[list[tuple[SortedRun, _Pairs]], Report]:
    """Return the rows of a part of FILES that can match: named, of a dataset in DATASETS.

    Each run has pairs of its own.
    """
    report, shape = Report(), _PartShape()
    runs: list[tuple[SortedRun, _Pairs]] = []
    pieces: list[tuple[Any, ...]] = []
    pending = 0
    for table in part():
        for start in range(0, table.num_rows, rows):
            pieces.append(
                _that_can_match(
                    known_ids, numbers, hash_name, table.slice(start, rows), report, shape
                )
            )
            pending += len(pieces[-1][0])
            if pending >= rows:
                runs.append(_sort_run(pieces, spool))
                pieces, pending = [], 0
    if pending:
        runs.append(_sort_run(pieces, spool))
    report.suspects = shape.suspects()
    return runs, report


class _PartShape(msgspec.Struct):
    """Signs of moved columns in a part of FILES: counts of odd rows, and the number,
    from 1 on, of the first one.
    """

    rows: int = 0
    orphans: int = 0
    first_orphan: int = 0
    odd_names: int = 0
    first_odd_name: int = 0

    def add(self, orphans: Any, odd_names: Any) -> None:
        """Add the flags of the next rows."""
        for name, seen in (("orphan", orphans), ("odd_name", odd_names)):
            count = int(seen.sum())
            if count and not getattr(self, f"{name}s"):
                setattr(self, f"first_{name}", self.rows + int(seen.argmax()) + 1)
            setattr(self, f"{name}s", getattr(self, f"{name}s") + count)
        self.rows += len(orphans)

    def suspects(self) -> list[dict[str, int]]:
        """Return these counts if a part has more odd rows than dumps usually have, else nothing."""
        few_orphans = self.orphans <= max(ODD_ROWS, ORPHAN_SHARE * self.rows)
        few_names = self.odd_names <= max(ODD_ROWS, ODD_NAME_SHARE * self.rows)
        return [] if few_orphans and few_names else [asdict(self)]


def _that_can_match(
    known_ids: Longs,
    numbers: Numbers,
    hash_name: Hash,
    table: pa.Table,
    report: Report,
    shape: _PartShape,
) -> tuple[Any, ...]:
    """Hashes, second hashes, file ids, block ids and dataset numbers of the rows that count."""
    report.files += table.num_rows
    report.null_lfns += table[0].null_count
    ids = _longs(table, 2)
    positions = np.minimum(np.searchsorted(known_ids, ids), max(len(known_ids) - 1, 0))
    is_known = (known_ids[positions] == ids) if len(known_ids) else np.zeros(len(ids), np.bool_)
    is_known &= is_there(table[2])
    is_named = is_there(table[0])
    orphans = is_named & ~is_known
    report.orphans += int(orphans.sum())
    shape.add(orphans, is_named & ~_begin_with_a_slash(table[0]))
    stays = is_named & is_known
    if not stays.all():
        table, positions = table.filter(flags(stays)), positions[stays]
    hashes, checks = hashes_in(table[0], hash_name), hashes_in(table[0], check_hash)
    return hashes, checks, _longs(table, 3), _longs(table, 1), numbers[positions]


def _begin_with_a_slash(names: pa.ChunkedArray) -> Any:
    """Return whether each name begins with a slash; false for null."""
    import pyarrow.compute as pc

    return to_numpy(pc.starts_with(names, "/").cast("int8"), np.int8, 0).astype(np.bool_)


def _sort_run(pieces: list[tuple[Any, ...]], spool: Path) -> tuple[SortedRun, _Pairs]:
    hashes, checks, file_ids, blocks, datasets = (
        np.concatenate(column) for column in zip(*pieces, strict=True)
    )
    rows_pairs, pairs = _Pairs.number_rows(blocks, datasets)
    return SortedRun.write(spool, FileRows(hashes, checks, rows_pairs, file_ids)), pairs


def _longs(table: pa.Table, column: int) -> Longs:
    return to_numpy(table[column], np.int64, _NO_BLOCK)


def _same_pairs(find_pairs: Sequence[_Pairs]) -> tuple[_Pairs, list[Numbers]]:
    """Return the distinct pairs of all runs, and for each run the number of each of its
    own pairs among them.
    """
    blocks = np.concatenate([np.zeros(0, np.int64), *(pairs.blocks for pairs in find_pairs)])
    datasets = np.concatenate([np.zeros(0, np.int32), *(pairs.datasets for pairs in find_pairs)])
    numbers, all_pairs = _Pairs.number_rows(blocks, datasets)
    ends = np.cumsum([len(pairs.blocks) for pairs in find_pairs])[:-1]
    return all_pairs, np.split(numbers, ends) if find_pairs else []


def _merged(spool: Path, part: Slice) -> tuple[SortedRun, Report, dict[int, dict[int, int]]]:
    """Return the index of a range, its hashes, each once, and their pairs; what was
    counted, and the names that share only their hash.
    """
    report = Report()
    # Sorted runs behind each other: a stable sort merges them, and leaves rows of one
    # hash as the dump has them.
    unsorted = part.column("hashes")
    order = sorted_order(unsorted)
    hashes = unsorted[order]
    part_pairs = zip(part.columns("pairs"), part.runs, strict=True)
    pairs = np.concatenate(
        [np.fromfile(run.pairs_path, np.int32)[of_run] for of_run, run in part_pairs]
    )[order]
    is_repeated = hashes[1:] == hashes[:-1]
    colliding: dict[int, dict[int, int]] = {}
    if is_repeated.any():
        repeated = np.flatnonzero(
            np.concatenate((is_repeated, [False])) | np.concatenate(([False], is_repeated))
        )
        rows = order[repeated]
        checks, file_ids = part.column("checks")[rows], part.column("file_ids")[rows]
        repeats = FileRows(hashes[repeated], checks, pairs[repeated], file_ids)
        goes, colliding = _resolve_repeats(repeats, report)
        keep = np.ones(len(hashes), np.bool_)
        keep[repeated[goes]] = False
        hashes, pairs = hashes[keep], pairs[keep]
    return SortedRun.write_columns(spool, [hashes, pairs]), report, colliding


def _pieces(file: Path, rows: int) -> Iterator[Hashes]:
    """Yield the values of an array in a file, ``rows`` at a time."""
    with file.open("rb") as source:
        np.lib.format.read_magic(source)
        np.lib.format.read_array_header_1_0(source)
        while len(piece := np.fromfile(source, np.uint64, rows)):
            yield piece


def _distinct(values: Longs) -> tuple[Numbers, Longs]:
    """Return the number of each value, and the distinct values by number."""
    encoded = from_numpy(values).dictionary_encode()
    return to_numpy(encoded.indices, np.int32), to_numpy(encoded.dictionary, np.int64)


def _resolve_repeats(
    rows: FileRows, report: Report
) -> tuple[list[int], dict[int, dict[int, int]]]:
    """Resolve rows that share their hash with another row; they are in the order of the dump.

    Returns the rows that leave the index, and the names that share only their hash. Of
    one name the row with the larger file_id counts, then the later one.
    """
    best: dict[int, dict[int, tuple[int, int]]] = {}
    columns = (rows.hashes, rows.checks, rows.file_ids)
    for row, (first, check, file_id) in enumerate(
        zip(*(column.tolist() for column in columns), strict=True)
    ):
        of_hash = best.setdefault(first, {})
        of_hash[check] = max(of_hash.get(check, (-2, -2)), (file_id, row))
    # One row of each hash stays; other names that share it are told apart beside the index.
    stays = {next(iter(of_hash.values()))[1] for of_hash in best.values()}
    colliding = {
        first: {check: int(rows.pairs[row]) for check, (_, row) in of_hash.items()}
        for first, of_hash in best.items()
        if len(of_hash) > 1
    }
    report.collisions += sum(len(of_hash) for of_hash in colliding.values())
    report.duplicates += len(rows.hashes) - sum(len(of_hash) for of_hash in best.values())
    return [row for row in range(len(rows.hashes)) if row not in stays], colliding


def _block_rows(part: Part) -> tuple[Hashes, Longs]:
    """(hash of the name, id) of each row of BLOCKS that has both."""
    parts = [(np.zeros(0, np.uint64), np.zeros(0, np.int64))]
    for table in part():
        complete = table.drop_null()
        parts.append((hashes_in(complete[1]), to_numpy(complete[0], np.int64)))
    return _columns(parts, np.uint64, np.int64)


def _replica_rows(part: Part) -> tuple[Hashes, Hashes]:
    """(hash of the block's name, hash of the site) of each replica that has both."""
    parts = [(np.zeros(0, np.uint64), np.zeros(0, np.uint64))]
    for table in part():
        complete = table.drop_null()
        is_hashed = str(complete.schema.types[0]) == "int64"
        blocks = (
            to_numpy(complete[0], np.int64).view(np.uint64)
            if is_hashed
            else hashes_in(complete[0])
        )
        parts.append((blocks, hashes_in(complete[1])))
    return _columns(parts, np.uint64, np.uint64)


def _columns(parts: Iterable[tuple[Any, Any]], first: Any, second: Any) -> tuple[Any, Any]:
    """Two columns, each concatenated from its parts. ``first``, ``second``: their types
    where there are no parts.
    """
    both = [(np.zeros(0, first), np.zeros(0, second)), *parts]
    return np.concatenate([pair[0] for pair in both]), np.concatenate([pair[1] for pair in both])
