"""The catalogue: which block and dataset a file belongs to, as a compact index that
tasks look up in.

A snapshot is a folder of arrays made once for a dump: sorted 64-bit hashes of the
files' names and, beside them, the number of each file's (block, dataset) pair, and
where hashes with the same first bits begin; 13 bytes a file, memory-mapped, one copy a
host. Disk replicas are a sorted array of hashes of (block, site). Two names with one
hash are found when building and told apart by a second hash; a name outside the
catalogue is taken for one in it with odds of (files in it) / 2^64.
"""

from __future__ import annotations

import contextlib
import errno
import json
from collections.abc import Callable, Iterable, Iterator, Sequence
from functools import cached_property, partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt
import xxhash
from msgspec.structs import asdict

from cmsspark.base.arrays import Longs
from cmsspark.base.buffers import to_texts
from cmsspark.base.compiled import compiled
from cmsspark.base.errors import DataError
from cmsspark.base.memory import is_shortage

if TYPE_CHECKING:
    import pyarrow as pa

Hashes = npt.NDArray[np.uint64]
Numbers = npt.NDArray[np.int32]
Hash = Callable[[bytes], int]

_hashed: Final[Any] = compiled("base.hashed")
#: Of the snapshot's files; another number is another snapshot.
FORMAT: Final = 4
#: Seed of the second hash.
CHECK_SEED: Final = 0x43_4D_53
#: Hashes of an array that are passed over at once.
_PIECE: Final = 1 << 20
#: In ``lookup``: the file is not in the catalogue.
NOT_THERE: Final = -1

#: Simple enough that :mod:`cmsspark.sources.formats.template_reader` has it, too.
name_hash: Hash = xxhash.xxh64_intdigest
#: The second hash of a name, which tells apart names that share the first.
check_hash: Hash = partial(xxhash.xxh64_intdigest, seed=CHECK_SEED)


def hash_all(names: Iterable[bytes], count: int, hash_name: Hash = name_hash) -> Hashes:
    """Return the hashes of ``count`` names, in order."""
    return np.fromiter(map(hash_name, names), np.uint64, count)


def hashes_in(column: pa.ChunkedArray, hash_name: Hash = name_hash) -> Hashes:
    """Return the hashes of a column of texts, none of which is null."""
    seed = {name_hash: 0, check_hash: CHECK_SEED}.get(hash_name)
    parts = [np.zeros(0, np.uint64)]
    if _hashed is not None and seed is not None:
        parts += [
            _hashed.hashes_of_texts(ends, content, seed) for ends, content in to_texts(column)
        ]
    else:
        for chunk in column.chunks:
            names = chunk.to_pylist()
            parts.append(hash_all((name.encode() for name in names), len(names), hash_name))
    hashes: Hashes = np.concatenate(parts)
    return hashes


def sorted_order(hashes: Hashes) -> npt.NDArray[np.intp]:
    """Return the rows in the order of their hashes; those of one hash as they come."""
    order: npt.NDArray[np.intp] | None = None if _hashed is None else _hashed.sorted_order(hashes)
    return np.argsort(hashes, kind="stable") if order is None else order


def replica_keys(blocks: Longs, sites: Hashes) -> Hashes:
    """Return the key of a disk replica of each block (its id) at the site of the same
    row (the hash of its name).
    """
    return mixed_pairs(blocks, sites)


def mixed_pairs(numbers: Longs, hashes: Hashes) -> Hashes:
    """Return a hash of each number with the hash of the same row."""
    return _mixed(_mixed(numbers.astype(np.uint64)) ^ hashes)


def _mixed(numbers: Hashes) -> Hashes:
    """Return each number with its bits spread over all 64 (the last steps of splitmix64).

    Distinct numbers stay distinct.
    """
    mixed = numbers + np.uint64(0x9E3779B97F4A7C15)
    mixed = (mixed ^ (mixed >> np.uint64(30))) * np.uint64(0xBF58476D1CE4E5B9)
    mixed = (mixed ^ (mixed >> np.uint64(27))) * np.uint64(0x94D049BB133111EB)
    last: Hashes = mixed ^ (mixed >> np.uint64(31))
    return last


class Report(msgspec.Struct):
    """Counts of rows of FILES that a build of a snapshot read."""

    files: int = 0
    null_lfns: int = 0
    #: Rows whose dataset is null or not in DATASETS: they match nothing (rule 18).
    orphans: int = 0
    #: Rows beside another one of the same name with a larger file_id.
    duplicates: int = 0
    #: Names that share a hash with another name and are told apart by the second.
    collisions: int = 0
    #: Parts with more orphans than dumps have, or with more names that begin with no
    #: slash: ``part`` (its place in the dump's list, from 0 on), ``rows``, ``orphans``,
    #: ``odd_names``; ``first_orphan``, ``first_odd_name``: the row, from 1 on.
    suspects: list[dict[str, int]] = msgspec.field(default_factory=list)

    def add(self, more_rows: Report) -> None:
        """Add the counts of more rows."""
        for name, count in asdict(more_rows).items():
            setattr(self, name, getattr(self, name) + count)


class Catalogue:
    """An open snapshot. Its arrays are memory-mapped: a page is read when it is needed."""

    def __init__(self, folder: Path, hash_name: Hash = name_hash) -> None:
        self.folder = folder
        self.hash_name = hash_name
        with _reading(folder):
            meta = json.loads((folder / "meta.json").read_text())
            self.report = Report(**meta["report"])
            self.hashes: Hashes = _mapped(folder / "hashes.npy")
            self.pairs: Numbers = _mapped(folder / "pairs.npy")
            self.starts: npt.NDArray[np.uint32] = _mapped(folder / "starts.npy")
            self.pair_blocks: Longs = _mapped(folder / "pair_blocks.npy")
            self.pair_datasets: Numbers = _mapped(folder / "pair_datasets.npy")
        #: hash → {second hash: pair number} of the names that share a hash.
        self.colliding: dict[int, dict[int, int]] = {
            int(first): {int(second): pair for second, pair in names.items()}
            for first, names in meta["colliding"].items()
        }
        self._names: Any = None

    def lookup(self, names: list[bytes]) -> Numbers:
        """Return the pair number of each file name (UTF-8 bytes), ``NOT_THERE`` where
        the catalogue has none.
        """
        return self.lookup_hashes(hash_all(names, len(names), self.hash_name), names.__getitem__)

    def lookup_hashes(self, hashes: Hashes, name: Callable[[int], bytes]) -> Numbers:
        """As :meth:`lookup`, for hashes; ``name`` returns the name of a row whose hash
        other names share.
        """
        count = len(hashes)
        if not count or not len(self.hashes):
            return np.full(count, NOT_THERE, np.int32)
        pairs = self._find_pairs(hashes)
        if self.colliding:
            for position in np.flatnonzero(
                np.isin(hashes, np.array(list(self.colliding), np.uint64))
            ):
                of_hash = self.colliding[int(hashes[position])]
                pairs[position] = of_hash.get(check_hash(name(int(position))), NOT_THERE)
        return pairs

    def _find_pairs(self, hashes: Hashes) -> Numbers:
        """Return the pair of each hash, without a check for other names with that hash."""
        if _hashed is not None:
            bits = choose_bits(len(self.hashes))
            try:
                pairs = _hashed.find_pairs(
                    hashes, self.hashes, self.pairs, self.starts, bits, NOT_THERE
                )
            except ValueError as error:
                raise _damaged(
                    self.folder, error, "delete that folder and run it again: it is built anew"
                ) from None
            return np.array(pairs)  # its own memory, which may be written
        # In sorted order the searches walk the array once, which its pages and the caches thank.
        order = np.argsort(hashes)
        in_order = hashes[order]
        positions = np.searchsorted(self.hashes, in_order)
        positions[positions == len(self.hashes)] = 0
        pairs = np.empty(len(hashes), np.int32)
        pairs[order] = np.where(
            self.hashes[positions] == in_order, self.pairs[positions], NOT_THERE
        )
        return pairs

    def dataset_names(self, numbers: Numbers) -> list[str]:
        """Return the names of datasets by their number in this snapshot."""
        import pyarrow as pa

        if self._names is None:
            with (
                _reading(self.folder),
                pa.memory_map(str(self.folder / "datasets.arrow")) as source,
            ):
                self._names = pa.ipc.open_file(source).read_all()["name"].combine_chunks()
        # pa.array would import pandas to ask whether these are of its kind: a third of
        # a second in each worker.
        rows = pa.Array.from_buffers(
            pa.int32(), len(numbers), [None, pa.py_buffer(np.ascontiguousarray(numbers))]
        )
        names: list[str] = self._names.take(rows).to_pylist()
        return names


def choose_bits(count: int) -> int:
    """Return the number of first bits that divide ``count`` hashes into groups of about eight."""
    return max(1, min(32, (count // 8).bit_length()))


def find_starts(pieces: Iterable[Hashes], count: int) -> npt.NDArray[np.uint32]:
    """Return where, in ``count`` ascending hashes, those with each beginning of
    :func:`choose_bits` bits begin; and how many there are. The hashes come in pieces.

    Raises ValueError for more than an index holds.
    """
    if count >= 2**32:
        raise ValueError("an index of more than 2^32 names: give --join shuffle")
    bits = choose_bits(count)
    starts = np.zeros((1 << bits) + 1, np.uint32)
    for piece in pieces:
        beginnings = (piece >> np.uint64(64 - bits)).astype(np.int64)
        first = int(beginnings[0]) if len(piece) else 0
        counts = np.bincount(beginnings - first)
        starts[first + 1 : first + 1 + len(counts)] += counts.astype(np.uint32)
    return np.cumsum(starts, dtype=np.uint32, out=starts)


class DamagedSnapshot(DataError):
    """A snapshot that cannot be read (65): the next run builds it anew."""


@contextlib.contextmanager
def _reading(folder: Path) -> Iterator[None]:
    """Raise DamagedSnapshot for a snapshot that cannot be read. A shortage and missing
    rights are not damage.
    """
    try:
        yield
    except (
        OSError,
        EOFError,
        ValueError,
        KeyError,
        TypeError,
    ) as error:  # pyarrow's errors are ValueErrors
        if is_no_damage(error):
            raise
        raise _damaged(folder, error, "run it again: the snapshot is built anew") from None


def is_no_damage(error: Exception) -> bool:
    """Return whether an error says that this process may not do what it asked for, not
    that a file is damaged.
    """
    is_limit = getattr(error, "errno", None) in (errno.EMFILE, errno.ENFILE) or is_shortage(error)
    return is_limit or isinstance(error, PermissionError)


def _damaged(folder: Path, error: Exception, next_step: str) -> DamagedSnapshot:
    reason = f"{type(error).__name__}: {error}"
    return DamagedSnapshot(
        "a catalogue snapshot is damaged", where=folder, found=reason, next_step=next_step
    )


def check_catalogue(folder: Path) -> None:
    """Open a catalogue as tasks do. Raises DamagedSnapshot (65)."""
    Catalogue(folder).dataset_names(np.zeros(0, np.int32))


def _mapped(file: Path) -> Any:
    # As a plain array: numpy's own class for mapped ones makes each operation dearer.
    return np.load(file, mmap_mode="r").view(np.ndarray)


class Replicas:
    """Disk replicas of blocks at sites, as a sorted array of hashes."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        with _reading(folder):
            self.hashes: Hashes = _mapped(folder / "replicas.npy")

    def has_replica(self, blocks: Longs, sites: Hashes) -> npt.NDArray[np.bool_]:
        """Return whether each block (-1: unknown) has a disk replica at the site
        (:func:`site_hashes`) of its row.
        """
        if not len(self.hashes) or not len(sites):
            return np.zeros(len(sites), np.bool_)
        return self._find(replica_keys(blocks, sites)) & (blocks >= 0)

    def _find(self, keys: Hashes) -> npt.NDArray[np.bool_]:
        is_there: npt.NDArray[np.bool_]
        if _hashed is None:
            positions = np.searchsorted(self.hashes, keys)
            positions[positions == len(self.hashes)] = 0
            is_there = self.hashes[positions] == keys
            return is_there
        bits = choose_bits(len(self.hashes))
        try:
            is_there = (
                _hashed.find_pairs(keys, self.hashes, *self._index, bits, NOT_THERE) != NOT_THERE
            )
        except ValueError as error:
            raise _damaged(
                self._folder, error, "delete that folder and run it again: it is built anew"
            ) from None
        return is_there

    @cached_property
    def _index(self) -> tuple[Numbers, npt.NDArray[np.uint32]]:
        """A number for each replica, and where those of each beginning of a hash begin."""
        pieces = (
            self.hashes[first : first + _PIECE] for first in range(0, len(self.hashes), _PIECE)
        )
        return np.zeros(len(self.hashes), np.int32), find_starts(pieces, len(self.hashes))


def site_hashes(sites: Sequence[str]) -> Hashes:
    """Return the hash of each site's name."""
    hashes = {site: name_hash(site.encode()) for site in set(sites)}
    return np.fromiter(map(hashes.__getitem__, sites), np.uint64, len(sites))
