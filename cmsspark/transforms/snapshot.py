"""Building the catalogue's snapshots from a dump's parts; :mod:`cmsspark.transforms.catalogue` reads them.

Parts are worked on one by one, or by several processes at once: ``run`` is ``map``, or something like it.
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.buffers import array, flags, from_numpy, is_there, to_numpy
from cmsspark.transforms.catalogue import (
    Hash,
    Hashes,
    Longs,
    Numbers,
    Report,
    check_hash,
    hashes_in,
    name_hash,
    replica_keys,
    starts_of,
)

if TYPE_CHECKING:
    import pyarrow as pa

#: The tables of one part, read when it is called. It must pickle where ``run`` has other processes.
Part = Callable[[], "Iterator[pa.Table]"]
#: ``map``, or something like it: results in order, whoever worked them out.
Run = Callable[[Callable[[Part], Any], Iterable[Part]], Iterable[Any]]

_NO_BLOCK: Final = -1


@dataclass
class _Pairs:
    """(block, dataset) pairs by their number: the block's id (-1: none) and the dataset's number."""

    blocks: Longs
    datasets: Numbers

    @classmethod
    def of(cls, blocks: Longs, datasets: Numbers) -> tuple[Numbers, _Pairs]:
        """The pair number of each row, and the pairs."""
        block_codes, block_values = _coded(blocks)
        width = int(datasets.max()) + 1 if len(datasets) else 1
        numbers, values = _coded(block_codes.astype(np.int64) * width + datasets)
        return numbers, cls(block_values[values // width], (values % width).astype(np.int32))


@dataclass
class _Files:
    """Rows of FILES that can match: hashes of their names, number of (block, dataset), file_id (-1: none)."""

    hashes: Hashes
    checks: Hashes
    pairs: Numbers
    file_ids: Longs

    def at(self, rows: npt.NDArray[np.intp]) -> _Files:
        """These rows alone."""
        return _Files(*(column[rows] for column in self._columns()))

    def _columns(self) -> tuple[Any, ...]:
        return self.hashes, self.checks, self.pairs, self.file_ids

    @classmethod
    def none(cls) -> _Files:
        """No rows."""
        hashes = np.zeros(0, np.uint64)
        return cls(hashes, hashes, np.zeros(0, np.int32), np.zeros(0, np.int64))

    @classmethod
    def joined(cls, parts: Sequence[_Files]) -> _Files:
        """All parts in a row. The parts are emptied on the way: each column is there once and a half at most."""
        whole = []
        for name in ("hashes", "checks", "pairs", "file_ids"):
            whole.append(np.concatenate([getattr(part, name) for part in parts]))
            for part in parts:
                setattr(part, name, None)
        return cls(*whole)


def build_catalogue(
    folder: Path, files: Iterable[Part], datasets: Iterable[pa.Table], hash_name: Hash = name_hash, run: Run = map
) -> Report:
    """Write a snapshot to ``folder``.

    ``files``: parts with tables of (lfn string, block_id, dataset_id, file_id as int64, nullable); ``datasets``: tables
    of (dataset_id int64, name string). Raises whatever the readers raise.
    """
    known, numbers = _write_datasets(folder, datasets)
    report = Report()
    parts, pairs_of = [_Files.none()], [_Pairs(np.zeros(0, np.int64), np.zeros(0, np.int32))]
    for rows, of_part, counted in run(partial(_file_rows, known, numbers, hash_name), files):
        parts.append(rows)
        pairs_of.append(of_part)
        for name, count in counted.__dict__.items():
            setattr(report, name, getattr(report, name) + count)
    whole = _same_pairs(parts, pairs_of)
    found = _Files.joined(parts)
    order = np.argsort(found.hashes)
    hashes, pairs = found.hashes[order], found.pairs[order]
    colliding: dict[int, dict[int, int]] = {}
    same = hashes[1:] == hashes[:-1]
    if same.any():
        repeated = np.flatnonzero(np.concatenate((same, [False])) | np.concatenate(([False], same)))
        goes, colliding = _settle(found.at(order[repeated]), order[repeated], pairs[repeated], report)
        keep = np.ones(len(hashes), np.bool_)
        keep[repeated[goes]] = False
        hashes, pairs = hashes[keep], pairs[keep]
    for name, values in (
        ("hashes", hashes),
        ("pairs", pairs),
        ("starts", starts_of(hashes)),
        ("pair_blocks", whole.blocks),
        ("pair_datasets", whole.datasets),
    ):
        np.save(folder / f"{name}.npy", values)
    meta: Mapping[str, object] = {"report": report.__dict__, "colliding": colliding}
    (folder / "meta.json").write_text(json.dumps(meta))
    return report


def build_replicas(folder: Path, blocks: Iterable[Part], replicas: Iterable[Part], run: Run = map) -> int:
    """Write the disk replicas' keys to ``folder`` and return how many there are.

    ``blocks``: parts with tables of (block_id int64, block_name string); ``replicas``: of (block_name, site), disk
    only. Replicas of blocks that DBS does not name are left out: no file leads to them.
    """
    names, ids = _columns(run(_block_rows, blocks), np.uint64, np.int64)
    wanted, sites = _columns(run(_replica_rows, replicas), np.uint64, np.uint64)
    order = np.argsort(names)
    names, ids = names[order], ids[order]
    first = np.searchsorted(names, wanted, "left")
    # A name may have several ids: each of them lies there.
    counts = np.searchsorted(names, wanted, "right") - first
    offsets = np.arange(counts.sum()) - np.repeat(np.cumsum(counts) - counts, counts)
    found = ids[np.repeat(first, counts) + offsets]
    # numpy's unique hashes numbers, which takes ten times as long as sorting them.
    keys = np.sort(replica_keys(found, np.repeat(sites, counts)))
    keys = keys[np.concatenate(([True], keys[1:] != keys[:-1]))] if len(keys) else keys
    np.save(folder / "replicas.npy", keys)
    (folder / "meta.json").write_text(json.dumps({"replicas": len(keys)}))
    return len(keys)


def _write_datasets(folder: Path, datasets: Iterable[pa.Table]) -> tuple[Longs, Numbers]:
    """Names in a memory-mappable file; the dataset ids in order, and the number of each. Rows without a name are no
    datasets.
    """
    import pyarrow as pa

    names: list[str] = []
    numbers: dict[int, int] = {}
    for table in datasets:
        for dataset_id, name in zip(table[0].to_pylist(), table[1].to_pylist(), strict=True):
            if dataset_id is not None and name is not None and dataset_id not in numbers:
                numbers[dataset_id] = len(names)
                names.append(name)
    whole = pa.table({"name": array(names, "string").cast(pa.large_string())})
    with pa.OSFile(str(folder / "datasets.arrow"), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
        writer.write_table(whole)
    known = sorted(numbers)
    return np.array(known, np.int64), np.array([numbers[key] for key in known], np.int32)


def _file_rows(known: Longs, numbers: Numbers, hash_name: Hash, part: Part) -> tuple[_Files, _Pairs, Report]:
    """The rows of a part of FILES that can match: named, and of a dataset in DATASETS. Their pairs are the part's."""
    report = Report()
    pieces = [_Files.none()]
    blocks, datasets = [np.zeros(0, np.int64)], [np.zeros(0, np.int32)]
    for table in part():
        report.files += table.num_rows
        report.null_lfns += table[0].null_count
        ids = _longs(table, 2)
        place = np.minimum(np.searchsorted(known, ids), max(len(known) - 1, 0))
        is_known = (known[place] == ids) if len(known) else np.zeros(len(ids), np.bool_)
        is_known &= is_there(table[2])
        is_named = is_there(table[0])
        report.orphans += int((is_named & ~is_known).sum())
        stays = is_named & is_known
        if not stays.all():
            table, place = table.filter(flags(stays)), place[stays]
        both = (hashes_in(table[0], hash_name), hashes_in(table[0], check_hash))
        pieces.append(_Files(*both, np.zeros(0, np.int32), _longs(table, 3)))
        blocks.append(_longs(table, 1))
        datasets.append(numbers[place])
    found = _Files.joined(pieces)
    found.pairs, pairs = _Pairs.of(np.concatenate(blocks), np.concatenate(datasets))
    return found, pairs, report


def _longs(table: pa.Table, column: int) -> Longs:
    return to_numpy(table[column], np.int64, _NO_BLOCK)


def _same_pairs(parts: Sequence[_Files], pairs_of: Sequence[_Pairs]) -> _Pairs:
    """The pairs of all parts; the parts' numbers are made those of the whole."""
    blocks = np.concatenate([pairs.blocks for pairs in pairs_of])
    numbers, whole = _Pairs.of(blocks, np.concatenate([pairs.datasets for pairs in pairs_of]))
    first = 0
    for part, pairs in zip(parts, pairs_of, strict=True):
        part.pairs = numbers[first : first + len(pairs.blocks)][part.pairs]
        first += len(pairs.blocks)
    return whole


def _coded(values: Longs) -> tuple[Numbers, Longs]:
    """Each value's number, and the value of each number."""
    coded = from_numpy(values).dictionary_encode()
    return to_numpy(coded.indices, np.int32), to_numpy(coded.dictionary, np.int64)


def _settle(
    rows: _Files, places: npt.NDArray[np.intp], pairs: Numbers, report: Report
) -> tuple[list[int], dict[int, dict[int, int]]]:
    """Of rows that share their hash with another: which leave the index, and the names that only share a hash.

    ``places``: where each row stood in the dump; of one name the row with the larger file_id counts, then the later.
    """
    best: dict[int, dict[int, tuple[int, int, int]]] = {}
    columns = (rows.hashes, rows.checks, rows.file_ids, places)
    for row, (first, check, file_id, place) in enumerate(zip(*(one.tolist() for one in columns), strict=True)):
        of_hash = best.setdefault(first, {})
        of_hash[check] = max(of_hash.get(check, (-2, -2, -2)), (file_id, place, row))
    # One row of each hash stays; other names that share it are told apart beside the index.
    stays = {next(iter(of_hash.values()))[2] for of_hash in best.values()}
    colliding = {
        first: {check: int(pairs[row]) for check, (_, _, row) in of_hash.items()}
        for first, of_hash in best.items()
        if len(of_hash) > 1
    }
    report.collisions = sum(len(of_hash) for of_hash in colliding.values())
    report.duplicates = len(places) - sum(len(of_hash) for of_hash in best.values())
    return [row for row in range(len(places)) if row not in stays], colliding


def _block_rows(part: Part) -> tuple[Hashes, Longs]:
    """(hash of the name, id) of each row of BLOCKS that has both."""
    found = [(np.zeros(0, np.uint64), np.zeros(0, np.int64))]
    for table in part():
        whole = table.drop_null()
        found.append((hashes_in(whole[1]), to_numpy(whole[0], np.int64)))
    return _columns(found, np.uint64, np.int64)


def _replica_rows(part: Part) -> tuple[Hashes, Hashes]:
    """(hash of the block's name, hash of the site) of each replica that has both."""
    found = [(np.zeros(0, np.uint64), np.zeros(0, np.uint64))]
    for table in part():
        whole = table.drop_null()
        found.append((hashes_in(whole[0]), hashes_in(whole[1])))
    return _columns(found, np.uint64, np.uint64)


def _columns(parts: Iterable[tuple[Any, Any]], first: Any, second: Any) -> tuple[Any, Any]:
    """Two columns out of the parts of both, of these kinds where there are none."""
    both = [(np.zeros(0, first), np.zeros(0, second)), *parts]
    return np.concatenate([one for one, _ in both]), np.concatenate([other for _, other in both])
