"""Folding: a task's accesses become one row for each (stream, dataset, site, app, user), and its bins rows beside them.

Runs in Spark's Python workers and in plain Python alike; knows no Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark import buffers, days
from cmsspark.access import AccessBatch, Group, Packed, Quarantined, Remote
from cmsspark.kernel import prefixes
from cmsspark.kernel.catalogue import NOT_THERE, Catalogue, Hashes, Longs, Numbers, Replicas, site_hashes
from cmsspark.kernel.sums import sum_runs

if TYPE_CHECKING:
    import pyarrow as pa

#: Accesses that a task keeps unfolded, unless told otherwise.
FOLD_AT: Final = 50_000
#: Quarantined records that a task holds, in bytes: a file of garbage must not fill its memory.
QUARANTINE_BYTES: Final = 16 * 1024 * 1024
_TOLD_BYTES: Final = 200

#: Kinds of rows in a scan's result; readers' notes have kinds of their own.
ACCESS, BIN, QUARANTINE, PREFIX = "access", "bin", "quarantine", "prefix"

#: name and type word of each column of a scan's result; see ``scan_schema``.
COLUMNS: Final = (
    ("kind", "string"),
    ("stream", "string"),
    ("dataset_name", "string"),
    ("site_name", "string"),
    ("app", "string"),
    ("user", "string"),
    ("nacc", "long"),
    ("remote_nacc", "long"),
    ("read_bytes", "long"),
    ("cpu_ms", "long"),
    ("wall_ms", "long"),
    ("detail", "string"),
)


def unmatched_bin(lfn: str) -> str:
    """The bin of a file that is not in DBS, by its name (rule 4)."""
    if lfn.startswith(("/store/user/", "/store/group/")):
        return "user_file"
    if lfn.startswith(("/store/unmerged/", "/store/temp/")):
        return "temporary"
    return "not_in_dbs"


#: Sums by name; None where the stream does not have it.
Columns = dict[str, Longs | None]


@dataclass
class _Groups:
    """A decoder's groups in columns; they become more, and what was known of them stays."""

    #: The distinct (site, app, user), by number.
    numbers: dict[tuple[str, str, str | None], int] = field(default_factory=dict)
    #: Of each group: the number of its (site, app, user), one of ``Remote``, and the hash of its site.
    slim: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    kinds: Longs = field(default_factory=lambda: np.zeros(0, np.int64))
    sites: Hashes = field(default_factory=lambda: np.zeros(0, np.uint64))

    def update(self, groups: list[Group]) -> None:
        """Add those that are new: ``groups`` behind the ones that are known."""
        more = groups[len(self.slim) :]
        slim = [self.numbers.setdefault((one.site, one.app, one.user), len(self.numbers)) for one in more]
        self.slim = np.append(self.slim, np.array(slim, np.int64))
        self.kinds = np.append(self.kinds, np.array([one.remote for one in more], np.int64))
        self.sites = np.append(self.sites, site_hashes([one.site for one in more]))

    def remote(self, groups: Longs, blocks: Longs, pairs: Longs, replicas: Replicas | None) -> Longs:
        """The remoteness of accesses by their groups and pairs, with the catalogue's word where it is the catalogue's
        to say (rule 21).
        """
        remote = self.kinds[groups]
        asked = np.flatnonzero(remote == Remote.BY_REPLICA)
        if len(asked) and replicas is None:
            remote[asked] = Remote.UNKNOWN
        elif len(asked) and replicas is not None:
            here = replicas.there(np.asarray(blocks)[pairs[asked]], self.sites[groups[asked]])
            remote[asked] = np.where(here, Remote.NO, Remote.YES)
        return remote


@dataclass
class StreamAggregator:
    """One stream's accesses in one task."""

    stream: str
    catalogue: Catalogue | None = None
    #: Accesses kept unfolded at most.
    fold_at: int = FOLD_AT
    bins: Counter[str] = field(default_factory=Counter)
    out_of_day: Counter[int] = field(default_factory=Counter)
    generations: Counter[str] = field(default_factory=Counter)
    quarantined: list[Quarantined] = field(default_factory=list)
    #: Where files lie that are not in DBS, as people may see it.
    unmatched: Counter[str] = field(default_factory=Counter)
    _parts: list[Columns] = field(default_factory=list)
    _unfolded: int = 0
    #: What was folded, by dataset and by (site, app, user); and the rows of it.
    _sums: Columns = field(default_factory=dict)
    _folded: int = 0
    _seen: _Groups = field(default_factory=_Groups)

    @property
    def held(self) -> int:
        """Rows that are held, folded or not."""
        return self._folded + self._unfolded

    def add(self, batch: AccessBatch) -> None:
        """Bin the batch's records and keep its matched accesses."""
        self.bins["read"] += batch.read
        self.bins["write_only"] += batch.write_only
        self.bins["no_lfn"] += batch.no_lfn
        self.bins["malformed"] += len(batch.malformed)
        self.out_of_day.update(batch.out_of_day)
        self.generations.update(batch.generations)
        self.quarantined += batch.malformed
        if batch.packed is not None and batch.packed.count:
            self._attach_packed(batch.packed)
        if batch.lfns:
            self._attach(batch)

    def _catalogue(self) -> Catalogue:
        if self.catalogue is None:
            raise TypeError("a fold by the index needs a catalogue")
        return self.catalogue

    def _attach(self, batch: AccessBatch) -> None:
        pairs = self._catalogue().lookup([lfn.encode() for lfn in batch.lfns])
        matched, others = _split(pairs)
        self._bin(prefixes.heads(batch.lfns[row] for row in others.tolist()))
        self._keep(pairs, matched, measures_of(batch, matched))

    def _attach_packed(self, packed: Packed) -> None:
        pairs = self._catalogue().lookup_hashes(packed.hashes, packed.name)
        matched, others = _split(pairs)
        self._bin({head.decode(): count for head, count in packed.heads(others).items()})
        self._keep(pairs, matched, _packed_measures(packed, matched))

    def _bin(self, heads: Mapping[str, int]) -> None:
        """Count files that are not in the catalogue, by the beginnings of their names."""
        prefixes.add(self.unmatched, heads)
        for head, count in heads.items():
            self.bins[unmatched_bin(head)] += count

    def _keep(self, pairs: Numbers, matched: npt.NDArray[np.intp], measures: Columns) -> None:
        if len(matched):
            self._parts.append({"pair": pairs[matched].astype(np.int64), **measures})
            self._unfolded += len(matched)

    def _fold(self, groups: list[Group], replicas: Replicas | None) -> None:
        """Fold what is unfolded into the sums. Blocks and remoteness end here: a row for each (dataset, site, app,
        user) is all that is kept, however many accesses there are.
        """
        if not self._parts:
            return
        sums, self._parts, self._unfolded = joined(self._parts), [], 0
        self._seen.update(groups)
        pairs, numbers = there(sums["pair"]), there(sums["group"])
        catalogue = self._catalogue()
        remote = self._seen.remote(numbers, catalogue.pair_blocks, pairs, replicas)
        sums["remote_nacc"] = (remote == Remote.YES).astype(np.int64)
        sums["remote_count"] = (remote != Remote.UNKNOWN).astype(np.int64)
        sums["pair"] = np.asarray(catalogue.pair_datasets)[pairs].astype(np.int64)
        sums["group"] = self._seen.slim[numbers]
        parts = [self._sums, sums] if self._sums else [sums]
        self._sums = fold(joined(parts), "pair", "group", self.stream)
        self._folded = len(there(self._sums["pair"]))

    def rows(self, groups: list[Group], replicas: Replicas | None, pseudonym: Callable[[str], str]) -> dict[str, Any]:
        """The folded accesses as columns of a scan's result, names of people already pseudonyms: lists, or Arrow's
        arrays with texts as dictionaries.
        """
        self._fold(groups, replicas)
        return self._as_rows(self._sums, list(self._seen.numbers), pseudonym) if self._sums else {}

    def _as_rows(
        self, sums: Columns, shared: list[tuple[str, str, str | None]], pseudonym: Callable[[str], str]
    ) -> dict[str, Any]:
        datasets, numbers = there(sums["pair"]), there(sums["group"])
        unique, places = np.unique(datasets, return_inverse=True)
        stand_ins = pseudonyms_for((user for _, _, user in shared), pseudonym)
        count = len(numbers)
        every = np.zeros(count, np.int32)
        return {
            "kind": buffers.coded([ACCESS], every),
            "stream": buffers.coded([self.stream], every),
            "dataset_name": buffers.coded(self._catalogue().dataset_names(unique.astype(np.int32)), places),
            "site_name": buffers.coded([site for site, _, _ in shared], numbers),
            "app": buffers.coded([app for _, app, _ in shared], numbers),
            "user": buffers.coded([stand_ins[user] for _, _, user in shared], numbers),
            "nacc": buffers.from_numpy(there(sums["nacc"])),
            "remote_nacc": with_nulls(sums["remote_nacc"], sums["remote_count"], count),
            "read_bytes": with_nulls(sums["read_bytes"], sums["nacc"], count),
            "cpu_ms": with_nulls(sums["cpu_ms"], sums["cpu_count"], count),
            "wall_ms": with_nulls(sums["wall_ms"], sums["wall_count"], count),
            "detail": buffers.coded([None], every),
        }

    def drain(
        self, groups: list[Group], replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, list[Any]]:
        """Rows that can go before the task ends: where accesses are folded, quarantined records once they are many."""
        # Folding costs what is kept, too: done when as much has come again, it is done a few times only.
        if self._unfolded >= max(self.fold_at, self._folded):
            self._fold(groups, replicas)
        if sum(len(record.raw) + _TOLD_BYTES for record in self.quarantined) < QUARANTINE_BYTES:
            return {}
        held, self.quarantined = self.quarantined, []
        return self._told_rows([], held)

    def bin_rows(self) -> dict[str, list[Any]]:
        """Bins as rows: the bin in ``app``, its count in ``nacc``; quarantined records with their place in
        ``detail``.
        """
        named: list[tuple[str, int, str | None]] = [(name, count, None) for name, count in self.bins.items() if count]
        named += [("out_of_day", count, days.day_name(day)) for day, count in self.out_of_day.items()]
        named += [(f"generation {name}", count, None) for name, count in self.generations.items()]
        return self._told_rows(named, self.quarantined)

    def note_rows(self, notes: Sequence[tuple[str, str, int, str]]) -> dict[str, list[Any]]:
        """A reader's notes (kind, name, count, detail), and where unmatched files lie, as rows: the name in ``app``,
        the count in ``nacc``.
        """
        notes = [*notes, *((PREFIX, name, count, "") for name, count in self.unmatched.items())]
        rows = self._told_rows([(name, count, detail) for _, name, count, detail in notes], [])
        rows["kind"] = [kind for kind, *_ in notes]
        return rows

    def _told_rows(self, named: list[tuple[str, int, str | None]], held: list[Quarantined]) -> dict[str, list[Any]]:
        size = len(named) + len(held)
        rows: dict[str, list[Any]] = {name: [None] * size for name, _ in COLUMNS}
        rows["kind"] = [BIN] * len(named) + [QUARANTINE] * len(held)
        rows["stream"] = [self.stream] * size
        rows["app"] = [name for name, _, _ in named] + ["malformed"] * len(held)
        rows["nacc"] = [count for _, count, _ in named] + [0] * len(held)
        rows["detail"] = [detail for _, _, detail in named] + [_told(record) for record in held]
        return rows


def joined(parts: Sequence[Columns]) -> Columns:
    """The parts in a row; all have the same columns, and a column that is None in one is so in all."""
    whole: Columns = {}
    for name in parts[0]:
        columns = [part[name] for part in parts]
        whole[name] = None if columns[0] is None else np.concatenate(columns)  # type: ignore[arg-type]
    return whole


def fold(columns: Columns, first: str, second: str, stream: str) -> Columns:
    """``columns`` with each combination of the keys ``first`` and ``second`` once and all else summed.

    Keys are numbers from 0 on. Raises DataError (65) where a sum leaves 64 bits.
    """
    high, low = there(columns[first]), there(columns[second])
    width = int(low.max()) + 1 if len(low) else 1
    keys = high * width + low
    order = np.argsort(keys)
    keys = keys[order]
    starts = np.flatnonzero(np.concatenate(([True], keys[1:] != keys[:-1]))) if len(keys) else np.zeros(0, np.intp)
    found: Columns = {first: keys[starts] // width, second: keys[starts] % width}
    for name, values in columns.items():
        if name not in found:
            found[name] = None if values is None else sum_runs(values[order], starts, f"{name} of {stream}")
    return found


def _split(pairs: Numbers) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The rows whose files are in the catalogue, and the others."""
    return np.flatnonzero(pairs != NOT_THERE), np.flatnonzero(pairs == NOT_THERE)


def measures_of(batch: AccessBatch, rows: npt.NDArray[np.intp]) -> Columns:
    """The group and the measures of the batch's accesses in ``rows``."""
    cpu, cpu_count = _nullable(batch.cpu_ms, rows)
    wall, wall_count = _nullable(batch.wall_ms, rows)
    return {
        "group": np.array(batch.groups, np.int64)[rows],
        "nacc": np.ones(len(rows), np.int64),
        "read_bytes": None if batch.read_bytes is None else np.array(batch.read_bytes, np.int64)[rows],
        "cpu_ms": cpu,
        "cpu_count": cpu_count,
        "wall_ms": wall,
        "wall_count": wall_count,
    }


def _packed_measures(packed: Packed, rows: npt.NDArray[np.intp]) -> Columns:
    sizes, times = packed.read_bytes, packed.times
    cpu, cpu_count, wall, wall_count = (None,) * 4 if times is None else (column[rows] for column in times)
    return {
        "group": packed.groups[rows],
        "nacc": np.ones(len(rows), np.int64),
        "read_bytes": None if sizes is None else sizes[rows],
        "cpu_ms": cpu,
        "cpu_count": cpu_count,
        "wall_ms": wall,
        "wall_count": wall_count,
    }


def pseudonyms_for(users: Iterable[str | None], pseudonym: Callable[[str], str]) -> dict[str | None, str | None]:
    return {user: None if user is None else pseudonym(user) for user in set(users)}


def _nullable(values: list[int | None] | None, rows: npt.NDArray[np.intp]) -> tuple[Longs | None, Longs | None]:
    """Values with nulls as 0, and 1 or 0 for each that was there."""
    if values is None:
        return None, None
    there = np.array([value is not None for value in values], np.int64)[rows]
    return np.array([value or 0 for value in values], np.int64)[rows], there


def there(column: Longs | None) -> Longs:
    if column is None:
        raise TypeError("a key or count is never null")
    return column


def with_nulls(values: Longs | None, known: Longs | None, count: int) -> pa.Array:
    """Values as Arrow's numbers, null where nothing was summed."""
    if values is None or known is None:
        return buffers.from_numpy(np.zeros(count, np.int64), np.zeros(count, np.bool_))
    return buffers.from_numpy(values, known > 0)


def _told(record: Quarantined) -> str:
    return json.dumps(record.as_dict())


def record_batch(
    rows: Mapping[str, Any], columns: Sequence[tuple[str, str]], *, dictionaries: bool = False
) -> pa.RecordBatch:
    """``rows`` as an Arrow batch of ``columns`` (name, type word). ``dictionaries`` may stay what they are."""
    import pyarrow as pa

    made = []
    for name, kind in columns:
        column = rows[name]
        if isinstance(column, list):
            column = buffers.array(column, kind)
        elif not dictionaries and pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        made.append(column)
    return pa.RecordBatch.from_arrays(made, names=[name for name, _ in columns])
