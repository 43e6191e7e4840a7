"""FILES of a DBS dump to what each dataset holds: files, events and bytes, each file once (rule 18).

Parts are read one by one, or by several processes at once. Each part is summed as it is; the hashes of its names and
what was summed go to partitions on disk. There, rows of the same name are found and all but one taken off again.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.base.buffers import array, from_numpy, is_there, to_numpy
from cmsspark.base.exact_integers import Longs, joined, sums_by_group
from cmsspark.counting.catalogue import Hash, Hashes, check_hash, hashes_in, name_hash
from cmsspark.dumps.partitions import ROWS, PartitionedRun, PartitionRange, partition_of, ranges
from cmsspark.dumps.parts import Each, Part

if TYPE_CHECKING:
    import pyarrow as pa

#: Columns of FILES that are read, in this order.
FILE_COLUMNS: Final = ("logical_file_name", "file_id", "dataset_id", "is_file_valid", "event_count", "file_size")
#: What tells which of two rows with one name counts, the first the most: the larger value, null the smallest.
_FACTS: Final = ("file_id", "dataset", "valid", "events", "bytes")
_BITS: Final = {"file_id": 1, "valid": 2, "events": 4, "bytes": 8}


@dataclass(frozen=True)
class KnownDatasets:
    """Datasets of DATASETS that have an id and a name: the ids in order, and for each the number of its name."""

    ids: Longs
    numbers: npt.NDArray[np.int32]
    #: How many names there are.
    count: int

    def save(self, folder: Path) -> None:
        """Write what :meth:`load` maps: processes share it. Raises OSError."""
        np.save(folder / "known-ids.npy", self.ids)
        np.save(folder / "known-numbers.npy", self.numbers)

    @classmethod
    def load(cls, folder: Path) -> KnownDatasets:
        """As it was saved; the number of names is not known here."""
        ids, numbers = (np.load(folder / f"known-{name}.npy", mmap_mode="r") for name in ("ids", "numbers"))
        return cls(ids.view(np.ndarray), numbers.view(np.ndarray), 0)

    def places(self, column: pa.ChunkedArray) -> npt.NDArray[np.int64]:
        """Return the place in ``ids`` of each id of a column, -1 where it is not known."""
        wanted = to_numpy(column, np.int64)
        if not len(self.ids) or not len(wanted):
            return np.full(len(wanted), -1, np.int64)
        # Files of one dataset stand next to each other, as a rule: each run of equal ids is looked up once.
        starts = np.flatnonzero(np.concatenate(([True], wanted[1:] != wanted[:-1])))
        some = wanted[starts]
        places_of_runs = np.minimum(np.searchsorted(self.ids, some), len(self.ids) - 1)
        places_of_runs[self.ids[places_of_runs] != some] = -1
        places = np.repeat(places_of_runs, np.diff(np.append(starts, len(wanted))))
        if column.null_count:
            places[~is_there(column)] = -1
        return places


@dataclass
class Contents:
    """What the files of some datasets come to. ``groups`` number the datasets, each once; ``sums`` has a row for each
    of ``SUMS``.
    """

    groups: npt.NDArray[np.int64]
    sums: npt.NDArray[np.int64]

    @classmethod
    def of(cls, facts: dict[str, npt.NDArray[Any]]) -> Contents:
        """Sum rows by their dataset."""
        groups = facts["dataset"].astype(np.int64)
        if not len(groups):
            return cls(np.zeros(0, np.int64), np.zeros((len(SUMS), 0), np.int64))
        first = int(groups.min())
        groups -= first
        width = int(groups.max()) + 1
        validity = facts["there"]
        valid = (facts["valid"] == 1) & ((validity & _BITS["valid"]) > 0)
        files = np.bincount(groups, minlength=width)
        sums = [files, files - np.bincount(groups, valid, width).astype(np.int64)]
        for name in ("events", "bytes"):
            has = (validity & _BITS[name]) > 0
            sums.append(np.bincount(groups, has, width).astype(np.int64))
            sums += sums_by_group(groups, np.where(has, facts[name], 0), width)
        some = np.flatnonzero(files)
        return cls(some + first, np.array(sums, np.int64)[:, some])


#: Rows of :class:`Contents`: counts, how many files say a number, and the two halves of its sum.
SUMS: Final = (
    *("files", "invalid", "events_there", "events_upper", "events_lower"),
    *("bytes_there", "bytes_upper", "bytes_lower"),
)


@dataclass(frozen=True)
class DatasetContents:
    """Numbers by dataset, in the order of their numbers; ``events`` and ``bytes`` are null where ``has`` is false."""

    files: Longs
    invalid_files: Longs
    events: Longs
    has_events: npt.NDArray[np.bool_]
    bytes: Longs
    has_bytes: npt.NDArray[np.bool_]


def dataset_contents(
    files: Iterable[Part],
    datasets: KnownDatasets,
    folder: Path,
    each: Each = map,
    hash_name: Hash = name_hash,
    rows: int = ROWS,
) -> DatasetContents:
    """Return what FILES says of each known dataset, valid files and others; files of no known dataset count nowhere.

    ``files``: parts with tables of ``FILE_COLUMNS``. Of one name the row with the larger file_id counts; a file without
    a name is known by its file_id. ``folder`` takes some 55 bytes for each file meanwhile.
    Raises DataError (65) where a sum leaves 64 bits, OSError, and whatever the parts raise.
    """
    datasets.save(folder)
    totals = np.zeros((len(SUMS), len(datasets.ids)), np.int64)
    runs: list[PartitionedRun] = []
    for of_part, contents_of_part in each(partial(_read_part, folder, hash_name, rows), files):
        runs += of_part
        for contents in contents_of_part:
            totals[:, contents.groups] += contents.sums
    for repeated in each(_surplus_of_range, ranges(runs, rows)):
        totals[:, repeated.groups] -= repeated.sums
    for run in runs:
        run.path.unlink()
    return contents_by_name(totals, datasets)


def contents_by_name(totals: npt.NDArray[np.int64], datasets: KnownDatasets) -> DatasetContents:
    """From sums by dataset_id, a row for each of :data:`SUMS`, to those by name: one name may have several ids.

    Raises DataError (65) where a sum leaves 64 bits.
    """
    sums = {name: np.zeros(datasets.count, np.int64) for name in SUMS}
    for name, of_ids in zip(SUMS, totals, strict=True):
        np.add.at(sums[name], datasets.numbers, of_ids)
    return DatasetContents(
        sums["files"],
        sums["invalid"],
        joined(sums["events_upper"], sums["events_lower"], "event_count"),
        sums["events_there"] > 0,
        joined(sums["bytes_upper"], sums["bytes_lower"], "file_size"),
        sums["bytes_there"] > 0,
    )


def _read_part(folder: Path, hash_name: Hash, rows: int, part: Part) -> tuple[list[PartitionedRun], list[Contents]]:
    """Return the runs of a part's rows, and their sums as they stand."""
    datasets = KnownDatasets.load(folder)
    runs: list[PartitionedRun] = []
    sums: list[Contents] = []
    for facts in file_facts(part(), datasets, rows, hash_name):
        sums.append(Contents.of(facts))
        runs.append(PartitionedRun.write(folder, partition_of(facts["hash"]), facts))
    return runs, sums


def file_facts(
    tables: Iterable[pa.Table], datasets: KnownDatasets, rows: int = ROWS, hash_name: Hash = name_hash
) -> Iterator[dict[str, npt.NDArray[Any]]]:
    """Yield the files of known datasets as numbers, about ``rows`` at a time, from tables of ``FILE_COLUMNS``.

    ``dataset`` is the place in ``datasets.ids``; ``there`` has a bit for each number that is not null.
    """
    held: list[dict[str, npt.NDArray[Any]]] = []
    count = 0
    for table in tables:
        for start in range(0, table.num_rows, rows):
            held.append(_facts(datasets, hash_name, table.slice(start, rows)))
            count += len(held[-1]["hash"])
            if count >= rows:
                yield {name: np.concatenate([one[name] for one in held]) for name in held[0]}
                held, count = [], 0
    if count:
        yield {name: np.concatenate([one[name] for one in held]) for name in held[0]}


def _facts(datasets: KnownDatasets, hash_name: Hash, table: pa.Table) -> dict[str, npt.NDArray[Any]]:
    places = datasets.places(table["dataset_id"])
    stays = places >= 0
    if not stays.all():
        rows = np.flatnonzero(stays)
        table, places = table.take(from_numpy(rows)), places[rows]
    names = _names(table)
    validity = np.zeros(len(places), np.uint8)
    columns = {"file_id": "file_id", "valid": "is_file_valid", "events": "event_count", "bytes": "file_size"}
    for name, column in columns.items():
        validity |= is_there(table[column]).astype(np.uint8) * np.uint8(_BITS[name])
    return {
        "hash": hashes_in(names, hash_name),
        "check": hashes_in(names, check_hash),
        "file_id": to_numpy(table["file_id"], np.int64),
        "dataset": places.astype(np.int32),
        "valid": to_numpy(table["is_file_valid"], np.int64),
        "events": to_numpy(table["event_count"], np.int64),
        "bytes": to_numpy(table["file_size"], np.int64),
        "there": validity,
    }


def _names(table: pa.Table) -> pa.ChunkedArray:
    """Names of files; a file without one is called by its id, in a way that no name has."""
    import pyarrow as pa

    names = table["logical_file_name"]
    if not names.null_count:
        return names
    texts = [
        name if name is not None else "\0" if file_id is None else f"\0{file_id}"
        for name, file_id in zip(names.to_pylist(), table["file_id"].to_pylist(), strict=True)
    ]
    return pa.chunked_array([array(texts, "string")])


def _surplus_of_range(part: PartitionRange) -> Contents:
    return surplus(part.column)


def surplus(column: Callable[[str], npt.NDArray[Any]]) -> Contents:
    """Return the sums of all rows beside another one of the same name that counts.

    ``column`` returns a column of :func:`file_facts` by its name. All rows of a name must be there.
    """
    hashes = column("hash")
    rows = rows_that_repeat(hashes)
    facts = {name: column(name)[rows] for name in (*_FACTS, "check", "there")}
    keys: list[npt.NDArray[Any]] = []
    for name in reversed(_FACTS):
        has = (facts["there"] & _BITS.get(name, 0)) > 0
        keys += [facts[name], has] if name in _BITS else [facts[name]]
    order = np.lexsort([*keys, facts["check"], hashes[rows]])
    name_of, check_of = hashes[rows][order], facts["check"][order]
    # The last of each name counts.
    is_surplus = np.zeros(len(order), np.bool_)
    is_surplus[:-1] = (name_of[1:] == name_of[:-1]) & (check_of[1:] == check_of[:-1])
    goes = order[is_surplus]
    return Contents.of({name: values[goes] for name, values in facts.items()})


def rows_that_repeat(hashes: Hashes) -> npt.NDArray[np.intp]:
    """Return the rows whose hash another row has, too."""
    # Sorting values alone is many times as quick as sorting rows by them.
    in_order = np.sort(hashes)
    repeated = in_order[1:][in_order[1:] == in_order[:-1]]
    if not len(repeated):
        return np.zeros(0, np.intp)
    # Most rows are ruled out by a few bits of their hash.
    marks = np.zeros(1 << 16, np.bool_)
    marks[repeated & np.uint64(0xFFFF)] = True
    perhaps = np.flatnonzero(marks[hashes & np.uint64(0xFFFF)])
    some = hashes[perhaps]
    places = np.minimum(np.searchsorted(repeated, some), len(repeated) - 1)
    rows: npt.NDArray[np.intp] = perhaps[repeated[places] == some]
    return rows


def known_datasets(ids: Sequence[int], numbers: Sequence[int], count: int) -> KnownDatasets:
    """Known datasets from ids, each once and in any order, and the numbers of their names."""
    of_ids = np.array(ids, np.int64)
    order = np.argsort(of_ids)
    return KnownDatasets(of_ids[order], np.array(numbers, np.int32)[order], count)
