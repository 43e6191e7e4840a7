"""The catalogue: which block and dataset a file belongs to, as a compact index that tasks look up in.

A snapshot is a folder of arrays made once for a dump: sorted 64-bit hashes of the files' names and, beside them, the
number of each file's (block, dataset) pair; 12 bytes a file, memory-mapped, one copy a host. Disk replicas are a
sorted array of hashes of (block, site). Two names with one hash are found when building and told apart by a
second hash; a name outside the catalogue is taken for one in it with odds of (files in it) / 2^64.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import os
import shutil
import uuid
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt
import xxhash

from cmsspark.errors import OutputError

if TYPE_CHECKING:
    import pyarrow as pa

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int32]
Longs = npt.NDArray[np.int64]
Hash = Callable[[bytes], int]

#: Of the snapshot's files; another number is another snapshot.
FORMAT: Final = 1
#: Snapshots kept in the cache folder; a running task keeps the files that it has mapped.
KEPT: Final = 4
#: Seed of the second hash.
CHECK_SEED: Final = 0x43_4D_53
#: In ``lookup``: the file is not in the catalogue.
NOT_THERE: Final = -1

name_hash: Hash = xxhash.xxh3_64_intdigest


def check_hash(name: bytes) -> int:
    """The second hash of a name, which tells apart names that share the first."""
    return xxhash.xxh3_64_intdigest(name, seed=CHECK_SEED)


def hashes_of(names: Iterable[bytes], count: int, hash_name: Hash = name_hash) -> Hashes:
    """The hashes of ``count`` names, in order."""
    return np.fromiter(map(hash_name, names), np.uint64, count)


def replica_key(block_id: int, site: str) -> bytes:
    """What a disk replica is hashed from."""
    return f"{block_id}\0{site}".encode()


@dataclass
class Report:
    """What building a snapshot found in the dump's FILES, in rows."""

    files: int = 0
    null_lfns: int = 0
    #: Rows whose dataset is null or not in DATASETS: they match nothing (rule 18).
    orphans: int = 0
    #: Rows beside another one of the same name with a larger file_id.
    duplicates: int = 0
    #: Names that share a hash with another name and are told apart by the second.
    collisions: int = 0


class Catalogue:
    """A snapshot, opened: arrays are mapped, nothing is read before it is asked for."""

    def __init__(self, folder: Path, hash_name: Hash = name_hash) -> None:
        self.folder = folder
        self.hash_name = hash_name
        meta = json.loads((folder / "meta.json").read_text())
        self.report = Report(**meta["report"])
        self.hashes: Hashes = np.load(folder / "hashes.npy", mmap_mode="r")
        self.pairs: Numbers = np.load(folder / "pairs.npy", mmap_mode="r")
        self.pair_blocks: Longs = np.load(folder / "pair_blocks.npy", mmap_mode="r")
        self.pair_datasets: Numbers = np.load(folder / "pair_datasets.npy", mmap_mode="r")
        #: hash → {second hash: pair number} of the names that share a hash.
        self.colliding: dict[int, dict[int, int]] = {
            int(first): {int(second): pair for second, pair in names.items()}
            for first, names in meta["colliding"].items()
        }
        self._names: Any = None

    def lookup(self, names: list[bytes]) -> Numbers:
        """The pair number of each file name (UTF-8 bytes), ``NOT_THERE`` where the catalogue has none."""
        count = len(names)
        if not count or not len(self.hashes):
            return np.full(count, NOT_THERE, np.int32)
        wanted = hashes_of(names, count, self.hash_name)
        # In sorted order the searches walk the array once, which its pages and the caches thank.
        order = np.argsort(wanted)
        in_order = wanted[order]
        places = np.searchsorted(self.hashes, in_order)
        places[places == len(self.hashes)] = 0
        found = np.where(self.hashes[places] == in_order, self.pairs[places], NOT_THERE)
        pairs = np.empty(count, np.int32)
        pairs[order] = found
        if self.colliding:
            for position in np.flatnonzero(np.isin(wanted, np.array(list(self.colliding), np.uint64))):
                known = self.colliding[int(wanted[position])]
                pairs[position] = known.get(check_hash(names[position]), NOT_THERE)
        return pairs

    def dataset_names(self, numbers: Numbers) -> list[str]:
        """The names of datasets by their number in this snapshot."""
        import pyarrow as pa

        if self._names is None:
            with pa.memory_map(str(self.folder / "datasets.arrow")) as source:
                self._names = pa.ipc.open_file(source).read_all()["name"].combine_chunks()
        found: list[str] = self._names.take(pa.array(numbers)).to_pylist()
        return found


class Replicas:
    """Disk replicas of blocks at sites, as a sorted array of hashes."""

    def __init__(self, folder: Path) -> None:
        self.hashes: Hashes = np.load(folder / "replicas.npy", mmap_mode="r")

    def there(self, blocks: Longs, sites: list[str]) -> npt.NDArray[np.bool_]:
        """Whether each block (-1: unknown) has a disk replica at the site beside it."""
        if not len(self.hashes) or not len(sites):
            return np.zeros(len(sites), np.bool_)
        keys = map(replica_key, blocks.tolist(), sites)
        wanted = hashes_of(keys, len(sites))
        places = np.searchsorted(self.hashes, wanted)
        places[places == len(self.hashes)] = 0
        found: npt.NDArray[np.bool_] = (self.hashes[places] == wanted) & (blocks >= 0)
        return found


def open_or_build(cache: Path, kind: str, fingerprint: str, build: Callable[[Path], None]) -> tuple[Path, bool]:
    """The snapshot's folder in ``cache``, built if it is not there; True beside it when it was.

    Two builders at once each work in a folder of their own; the first to finish is used by both. Old snapshots
    of the same kind go, the newest ``KEPT`` stay. Raises OutputError (73) where the cache cannot be written.
    """
    name = f"{kind}-v{FORMAT}-{hashlib.sha256(fingerprint.encode()).hexdigest()[:24]}"
    folder = cache / name
    if (folder / "meta.json").exists():
        with contextlib.suppress(PermissionError):
            os.utime(folder)  # pruning goes by age; another user's snapshot serves as it is
        return folder, False
    aside = cache / f".{name}.{uuid.uuid4().hex[:8]}"
    try:
        aside.mkdir(parents=True)
    except OSError as error:
        raise OutputError(
            "the cache folder cannot be written",
            where=cache,
            found=error.strerror,
            next_step="name another one in the settings, as cache_dir",
        ) from None
    try:
        build(aside)
        try:
            aside.rename(folder)
        except OSError:
            if not (folder / "meta.json").exists():
                raise
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    _prune(cache, f"{kind}-v")
    return folder, True


def _prune(cache: Path, prefix: str) -> None:
    ages: list[tuple[float, Path]] = []
    for snapshot in cache.glob(f"{prefix}*"):
        # Another builder may prune at the same time.
        with contextlib.suppress(FileNotFoundError):
            ages.append((snapshot.stat().st_mtime, snapshot))
    for _, old in sorted(ages, reverse=True)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)


def build_catalogue(
    folder: Path,
    files: Callable[[], Iterator[pa.Table]],
    datasets: Iterable[pa.Table],
    hash_name: Hash = name_hash,
) -> Report:
    """Write a snapshot to ``folder``.

    ``files()`` gives tables of (lfn string, block_id, dataset_id, file_id as int64, nullable) and may be called
    twice; ``datasets`` tables of (dataset_id int64, name string). Raises whatever the readers raise.
    """
    dataset_ids = _write_datasets(folder, datasets)
    report = Report()
    columns = _file_columns(files(), dataset_ids, hash_name, report)
    order = np.argsort(columns.hashes, kind="stable")
    hashes = columns.hashes[order]
    colliding: dict[int, dict[int, int]] = {}
    pairs, pair_blocks, pair_datasets = _pairs(columns.blocks[order], columns.datasets[order])
    repeated = hashes[1:] == hashes[:-1] if len(hashes) else np.zeros(0, np.bool_)
    if repeated.any():
        best = _best(files(), np.unique(hashes[1:][repeated]), dataset_ids, hash_name)
        keep, colliding = _settle(_Rows(hashes, pairs, order), best, report)
        hashes, pairs = hashes[keep], pairs[keep]
    for name, array in (
        ("hashes", hashes),
        ("pairs", pairs.astype(np.int32)),
        ("pair_blocks", pair_blocks),
        ("pair_datasets", pair_datasets.astype(np.int32)),
    ):
        np.save(folder / f"{name}.npy", array)
    meta: Mapping[str, object] = {"report": report.__dict__, "colliding": colliding}
    (folder / "meta.json").write_text(json.dumps(meta))
    return report


def build_replicas(folder: Path, blocks: Iterable[pa.Table], replicas: Iterable[pa.Table]) -> int:
    """Write the disk replicas' hashes to ``folder`` and return how many there are.

    ``blocks``: tables of (block_id int64, block_name string); ``replicas``: tables of (block_name, site), disk only.
    Replicas of blocks that DBS does not name are left out: no file leads to them.
    """
    ids: dict[str, list[int]] = {}
    for table in blocks:
        for block_id, name in zip(table[0].to_pylist(), table[1].to_pylist(), strict=True):
            if name is not None and block_id is not None:
                ids.setdefault(name, []).append(block_id)
    found: list[Hashes] = []
    for table in replicas:
        keys = [
            replica_key(block_id, site)
            for name, site in zip(table[0].to_pylist(), table[1].to_pylist(), strict=True)
            for block_id in ids.get(name, ())
        ]
        found.append(hashes_of(keys, len(keys)))
    hashes = np.unique(np.concatenate(found)) if found else np.zeros(0, np.uint64)
    np.save(folder / "replicas.npy", hashes)
    (folder / "meta.json").write_text(json.dumps({"replicas": len(hashes)}))
    return len(hashes)


@dataclass
class _Rows:
    """Rows in the order of their hashes."""

    hashes: Hashes
    pairs: Numbers
    #: Where each row stood in the dump, among those that can match.
    places: npt.NDArray[np.intp]


@dataclass
class _Columns:
    hashes: Hashes
    blocks: Longs
    datasets: Longs


def _write_datasets(folder: Path, datasets: Iterable[pa.Table]) -> dict[int, int]:
    """Names in a memory-mappable file, and the number of each dataset id. Rows without a name are no datasets."""
    import pyarrow as pa

    names: list[str] = []
    numbers: dict[int, int] = {}
    for table in datasets:
        for dataset_id, name in zip(table[0].to_pylist(), table[1].to_pylist(), strict=True):
            if dataset_id is not None and name is not None and dataset_id not in numbers:
                numbers[dataset_id] = len(names)
                names.append(name)
    whole = pa.table({"name": pa.array(names, pa.large_string())})
    with pa.OSFile(str(folder / "datasets.arrow"), "wb") as sink, pa.ipc.new_file(sink, whole.schema) as writer:
        writer.write_table(whole)
    return numbers


def _file_columns(tables: Iterable[pa.Table], dataset_ids: dict[int, int], hash_name: Hash, report: Report) -> _Columns:
    known = np.array(sorted(dataset_ids), np.int64)
    numbers = np.array([dataset_ids[key] for key in known.tolist()], np.int64)
    parts: list[_Columns] = [_Columns(np.zeros(0, np.uint64), *(np.zeros(0, np.int64) for _ in range(2)))]
    for table in tables:
        report.files += table.num_rows
        kept, names = _with_dataset(table, known, report)
        datasets = numbers[np.searchsorted(known, _longs(kept, 2))] if len(known) else np.zeros(0, np.int64)
        parts.append(_Columns(hashes_of(names, len(names), hash_name), _longs(kept, 1), datasets))
    return _Columns(
        *(np.concatenate([getattr(part, name) for part in parts]) for name in ("hashes", "blocks", "datasets"))
    )


def _with_dataset(table: pa.Table, known: Longs, report: Report) -> tuple[pa.Table, list[bytes]]:
    """The rows that can match: named, and of a dataset in DATASETS; beside them their names."""
    import pyarrow as pa
    import pyarrow.compute as pc

    named = table.filter(pc.is_valid(table[0]))
    report.null_lfns += table.num_rows - named.num_rows
    kept = named.filter(pc.is_in(named[2], value_set=pa.array(known, pa.int64()), skip_nulls=True))
    report.orphans += named.num_rows - kept.num_rows
    return kept, kept[0].cast(pa.large_binary()).to_pylist()


def _longs(table: pa.Table, column: int) -> Longs:
    import pyarrow.compute as pc

    found: Longs = pc.fill_null(table[column], -1).to_numpy().astype(np.int64)
    return found


def _pairs(blocks: Longs, datasets: Longs) -> tuple[Numbers, Longs, Longs]:
    """Each row's pair number, and the block and dataset of each pair."""
    import pandas as pd  # type: ignore[import-untyped]

    block_codes, block_values = pd.factorize(blocks)
    dataset_codes, dataset_values = pd.factorize(datasets)
    width = max(len(dataset_values), 1)
    codes, values = pd.factorize(block_codes.astype(np.int64) * width + dataset_codes)
    return codes, np.asarray(block_values)[values // width], np.asarray(dataset_values)[values % width]


#: hash → second hash → (file_id, place in the dump among the rows that can match), of the row that counts.
_Best = dict[int, dict[int, tuple[int, int]]]


def _settle(rows: _Rows, best: _Best, report: Report) -> tuple[npt.NDArray[np.bool_], dict[int, dict[int, int]]]:
    """Of rows with one hash: which row stays in the index, and the names that only share it."""
    hashes = np.array(sorted(best), np.uint64)
    winners = {place: (first, check) for first, of_hash in best.items() for check, (_, place) in of_hash.items()}
    colliding: dict[int, dict[int, int]] = {first: {} for first, of_hash in best.items() if len(of_hash) > 1}
    keep = np.ones(len(rows.hashes), np.bool_)
    stays: set[int] = set()
    repeated = np.flatnonzero(np.isin(rows.hashes, hashes)).tolist()
    for row in repeated:
        first, check = winners.get(int(rows.places[row]), (-1, -1))
        # One row of each hash stays; names that share it are told apart beside the index.
        keep[row] = first >= 0 and first not in stays
        if first >= 0:
            stays.add(first)
        if first in colliding:
            colliding[first][check] = int(rows.pairs[row])
    report.collisions = sum(len(of_hash) for of_hash in colliding.values())
    report.duplicates = len(repeated) - len(winners)
    return keep, colliding


def _best(tables: Iterable[pa.Table], repeated: Hashes, dataset_ids: dict[int, int], hash_name: Hash) -> _Best:
    """The row that counts for each name with a hash in ``repeated``: of one name twice the larger file_id (rule 18),
    of one file_id twice the later row. Names are read again, in the same order, as few rows need them.
    """
    best: _Best = {}
    known = np.array(sorted(dataset_ids), np.int64)
    start = 0
    for table in tables:
        kept, names = _with_dataset(table, known, Report())
        found = hashes_of(names, len(names), hash_name)
        file_ids = _longs(kept, 3)
        for row in np.flatnonzero(np.isin(found, repeated)).tolist():
            of_hash = best.setdefault(int(found[row]), {})
            check = check_hash(names[row])
            of_hash[check] = max(of_hash.get(check, (-1, -1)), (int(file_ids[row]), start + row))
        start += len(names)
    return best
