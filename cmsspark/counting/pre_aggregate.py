"""Pre-aggregation: the accesses of a task become one row for each (stream, dataset,
site, app, user), beside its bins.

The same code runs in Spark's Python workers and in local processes. It knows no Spark.
"""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Callable, Mapping, Sequence
from typing import TYPE_CHECKING, Any, ClassVar, Final, Protocol

import msgspec
import numpy as np
import numpy.typing as npt

from cmsspark.base import buffers, dates
from cmsspark.base.access import NO_BYTES, AccessBatch, Packed, Quarantined, Remote
from cmsspark.base.arrays import Longs
from cmsspark.base.buffers import dictionary_array, from_numpy
from cmsspark.base.compiled import compiled
from cmsspark.counting import reconciliation
from cmsspark.counting.catalogue import (
    NOT_THERE,
    Catalogue,
    Hashes,
    Numbers,
    Replicas,
    check_hash,
    hash_all,
    site_hashes,
)
from cmsspark.counting.reconciliation import all_shown
from cmsspark.counting.site_pairs import SitePairs
from cmsspark.counting.sums import find_runs, overflow_error, sum_runs
from cmsspark.sources.formats.fast_json import Groups, group_rows
from cmsspark.sources.registry import STREAMS_NAMING_READERS, STREAMS_SETTING_BYTES_ASIDE

if TYPE_CHECKING:
    import pyarrow as pa


# The groups of a task's accesses in columns: by site, application and user, and whether
# their accesses are remote.


def _no_numbers() -> Longs:
    return np.zeros(0, np.int64)


class GroupColumns(msgspec.Struct):
    """The groups of a decoder in columns. The decoder only appends groups."""

    #: The number of each distinct (site, user, app), which have numbers themselves.
    _keys: Any = msgspec.field(default_factory=group_rows)
    _sites: dict[str, int] = msgspec.field(default_factory=dict)
    #: For each route: one of ``Remote``, the number of its site, and the site's hash.
    _kinds: Longs = msgspec.field(default_factory=_no_numbers)
    _site_numbers: Longs = msgspec.field(default_factory=_no_numbers)
    _hashes: Hashes = msgspec.field(default_factory=lambda: np.zeros(0, np.uint64))
    #: For each group: the number of its (site, user, app), and its route.
    keys: Longs = msgspec.field(default_factory=_no_numbers)
    routes: Longs = msgspec.field(default_factory=_no_numbers)

    def update(self, groups: Groups) -> None:
        """Add the new groups: those after the ones added before."""
        new = groups.routes.values_by_number[len(self._kinds) :]
        sites = [self._sites.setdefault(site, len(self._sites)) for site, _, _ in new]
        self._site_numbers = np.append(self._site_numbers, np.array(sites, np.int64))
        self._kinds = np.append(self._kinds, np.array([kind for _, kind, _ in new], np.int64))
        self._hashes = np.append(self._hashes, site_hashes([site for site, _, _ in new]))
        users, apps, routes = groups.rows.columns(len(self.keys))
        rows = np.stack([self._site_numbers[routes], users, apps], axis=1)
        self.keys = np.append(self.keys, self._keys.add_all(rows.reshape(-1)))
        self.routes = np.append(self.routes, routes)

    def kinds(self, groups: Longs) -> Longs:
        """Return what each of these groups is of ``Remote``."""
        kinds: Longs = self._kinds[self.routes[groups]]
        return kinds

    def remote(
        self, groups: Longs, blocks: Longs, pairs: Longs, replicas: Replicas | None
    ) -> Longs:
        """Return the remoteness of accesses, given their groups and pairs.

        Where the record does not tell, the replicas decide (rule 21).
        """
        remote = self.kinds(groups)
        by_replica = np.flatnonzero(remote == Remote.BY_REPLICA)
        if len(by_replica) and replicas is None:
            remote[by_replica] = Remote.UNKNOWN
        elif len(by_replica) and replicas is not None:
            of_blocks = np.asarray(blocks)[pairs[by_replica]]
            sites = self._hashes[self.routes[groups[by_replica]]]
            is_local = replicas.has_replica(of_blocks, sites)
            remote[by_replica] = np.where(is_local, Remote.NO, Remote.YES)
        return remote

    def names(
        self, groups: Groups, keys: Longs, pseudonym: Callable[[str], str]
    ) -> tuple[dict[str, Any], Longs]:
        """Return the columns ``site_name`` and ``user`` of rows with these ``keys``, and
        the number of the application of each.
        """
        sites, users, apps = (column[keys] for column in self._keys.columns(0))
        return {
            "site_name": buffers.dictionary_array(list(self._sites), sites),
            "user": user_column(groups, users, pseudonym),
        }, apps


def user_column(groups: Groups, users: Longs, pseudonym: Callable[[str], str]) -> Any:
    """Return the pseudonyms of users, given by their numbers, as an array."""
    names = groups.users.values_by_number
    hidden = [None if user is None else pseudonym(user) for user in names]
    return buffers.dictionary_array(hidden, users)


_hashed: Final[Any] = compiled("base.hashed")
#: Accesses that a task keeps before it aggregates them, by default: with compiled code
#: they fit a core's cache; without it each aggregation sorts all rows again.
AGGREGATE_AT: Final = 50_000 if _hashed is None else 16_384
#: Bytes of quarantined records that a task keeps: a file of garbage must not fill its
#: memory. Each counts so many more.
QUARANTINE_BYTES: Final = 16 * 1024 * 1024
_RECORD_BYTES: Final = 200
#: The largest sum that a row holds.
MAX_SUM: Final = 2**63 - 1
#: Different first directories of unmatched files that are counted before they go to bins.
HEADS_KEPT: Final = 10_000

#: Kinds of rows in the result of a scan. Notes of readers have other kinds.
#: ``UNMATCHED``: records of files that the shuffle join has not found, by the prefix of
#: their names.
ACCESS, BIN, QUARANTINE, PREFIX, UNMATCHED = "access", "bin", "quarantine", "prefix", "unmatched"
#: Kinds of rows with the accesses without bytes of their own and their bytes (rule 11),
#: and with the unmatched records of a site (rule 73).
SET_ASIDE, UNMATCHED_SITE = "set_aside", "unmatched_site"

#: (name, type) of each column of the result of a scan.
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
    """Return the bin of a file that is not in DBS, by its name (rule 4)."""
    if lfn.startswith(("/store/user/", "/store/group/")):
        return "user_file"
    if lfn.startswith(("/store/unmerged/", "/store/temp/")):
        return "temporary"
    return "not_in_dbs"


#: Keys and sums, whole numbers, by name. None: the stream does not have this value.
Columns = dict[str, Any]
#: Bits of the number of a (site, app, user) in the key of a row.
_GROUP_BITS: Final = 32


class Sums(Protocol):
    """Sums of accesses by ``pair``, the dataset here, and ``group``."""

    def add(self, columns: Columns, stream: str) -> None:
        """Add accesses. All have the same columns; one that is None is None in all.

        Raises DataError (65) if a sum exceeds 64 bits.
        """

    def columns(self) -> Columns:
        """Return the keys and sums, each combination of the keys once."""

    def __len__(self) -> int: ...

    @property
    def rows_sorted_again(self) -> int:
        """Rows that another ``add`` sorts again: as many new ones keep that rare."""


class SortedSums(msgspec.Struct):
    """The sums by sorting, without compiled code."""

    _columns: Columns = msgspec.field(default_factory=dict)

    def add(self, columns: Columns, stream: str) -> None:
        """Add accesses. Raises DataError (65)."""
        parts = [self._columns, columns] if self._columns else [columns]
        self._columns = pre_aggregate(joined(parts), "pair", "group", stream)

    def columns(self) -> Columns:
        """Return the keys and sums, in the order of keys."""
        return self._columns

    def __len__(self) -> int:
        return len(self._columns["pair"]) if self._columns else 0

    @property
    def rows_sorted_again(self) -> int:
        """Return all rows."""
        return len(self)


class TableSums(msgspec.Struct):
    """The sums in a compiled table, to which each access is added."""

    _table: Any = None
    _names: tuple[str, ...] = ()
    _nulls: tuple[str, ...] = ()
    rows_sorted_again: int = 0

    def add(self, columns: Columns, stream: str) -> None:
        """Add accesses. Raises DataError (65)."""
        values = {name: column for name, column in columns.items() if column is not None}
        keys = (values.pop("pair") << _GROUP_BITS) | values.pop("group")
        if self._table is None:
            self._names = tuple(values)
            self._nulls = tuple(name for name, column in columns.items() if column is None)
            self._table = _hashed.KeyedSums(len(values))
        try:
            self._table.add(keys, [values[name] for name in self._names])
        except OverflowError as error:
            raise overflow_error(f"{self._names[error.args[0]]} of {stream}") from None

    def columns(self) -> Columns:
        """Return the keys and sums, in the order in which the keys came."""
        keys, *sums = self._table.columns()
        pairs = {"pair": keys >> _GROUP_BITS, "group": keys & ((1 << _GROUP_BITS) - 1)}
        return {**pairs, **dict(zip(self._names, sums, strict=True)), **dict.fromkeys(self._nulls)}

    def __len__(self) -> int:
        return 0 if self._table is None else int(self._table.count)


def new_sums() -> Sums:
    """Return empty sums of the quickest kind that there is."""
    return SortedSums() if _hashed is None else TableSums()


class StreamAggregator(msgspec.Struct):
    """Pre-aggregates the accesses of one stream in one task."""

    #: (name, type) of each column of its rows; None: those of the task's context.
    columns: ClassVar[tuple[tuple[str, str], ...] | None] = None
    stream: str
    catalogue: Catalogue | None = None
    #: Accesses that are kept before they are aggregated, at least.
    aggregate_at: int = AGGREGATE_AT
    bins: Counter[str] = msgspec.field(default_factory=Counter)
    out_of_day: Counter[int] = msgspec.field(default_factory=Counter)
    generations: Counter[str] = msgspec.field(default_factory=Counter)
    quarantined: list[Quarantined] = msgspec.field(default_factory=list)
    _quarantined_bytes: int = 0
    #: Accesses without bytes of their own, and the bytes that their records have.
    set_aside: Counter[str] = msgspec.field(default_factory=Counter)
    #: Records of files that are not in DBS, by the prefix of the name that people may see.
    unmatched: Counter[str] = msgspec.field(default_factory=Counter)
    #: Records of such files by the first directories of their names that are not in bins yet.
    _heads: dict[bytes, int] = msgspec.field(default_factory=dict)
    #: Unmatched records by the number of their group.
    _unmatched_of_group: Longs = msgspec.field(default_factory=lambda: np.zeros(0, np.int64))
    _parts: list[Columns] = msgspec.field(default_factory=list)
    _pending: int = 0
    #: The sums by dataset and (site, app, user), and their number of rows.
    _sums: Sums = msgspec.field(default_factory=new_sums)
    _groups: GroupColumns = msgspec.field(default_factory=GroupColumns)
    #: Complete once ``rows`` has run.
    site_pairs: SitePairs = msgspec.field(default_factory=SitePairs)

    @property
    def rows_in_memory(self) -> int:
        """Rows in memory, aggregated or not."""
        return len(self._sums) + self._pending

    def begin_file(self, path: str) -> None:
        """Take note of the file of the next batches, where a stream needs it."""

    def add(self, batch: AccessBatch) -> None:
        """Count the bins of a batch and keep its matched accesses."""
        counts = {name: getattr(batch, name) for name in ("read", "write_only", "no_lfn")}
        self.bins.update({**counts, "malformed": len(batch.malformed)})
        if batch.deletion:
            self.bins["deletion"] += batch.deletion
        if batch.unnamed:
            groups = np.array(list(batch.unnamed), np.int64)
            self._count_unmatched(np.repeat(groups, list(batch.unnamed.values())))
        if batch.set_aside:
            self.set_aside.update(nacc=batch.set_aside, read_bytes=batch.set_aside_bytes)
        self.out_of_day.update(batch.out_of_day)
        self.generations.update(batch.generations)
        self.quarantined += batch.malformed
        self._quarantined_bytes += sum(
            len(record.raw) + _RECORD_BYTES for record in batch.malformed
        )
        if batch.packed is not None and batch.packed.count:
            self._attach_packed(batch.packed)
        if batch.lfns:
            self._attach(batch)

    def _catalogue(self) -> Catalogue:
        if self.catalogue is None:
            raise TypeError("an aggregator with an index needs a catalogue")
        return self.catalogue

    def _attach(self, batch: AccessBatch) -> None:
        pairs = self._catalogue().lookup([lfn.encode() for lfn in batch.lfns])
        matched, unmatched = _split(pairs)
        self._bin(reconciliation.heads(batch.lfns[row] for row in unmatched.tolist()))
        if len(unmatched):
            self._count_unmatched(np.array(batch.groups, np.int64)[unmatched])
        self._keep(pairs, matched, collect_measures(batch, matched))

    def _attach_packed(self, packed: Packed) -> None:
        pairs = self._catalogue().lookup_hashes(packed.hashes, packed.name)
        matched, unmatched = _split(pairs)
        packed.add_heads(unmatched, self._heads)
        if len(unmatched):
            self._count_unmatched(packed.groups[unmatched])
        if len(self._heads) > HEADS_KEPT:
            self._bin_heads()
        self._keep(pairs, matched, packed_measures(packed, matched))

    def _count_unmatched(self, groups: Longs) -> None:
        """Count unmatched records, of which each has a group, by site in the end."""
        counts = np.bincount(groups, minlength=len(self._unmatched_of_group))
        counts[: len(self._unmatched_of_group)] += self._unmatched_of_group
        self._unmatched_of_group = counts

    def _bin_heads(self) -> None:
        heads, self._heads = self._heads, {}
        self._bin({head.decode(): count for head, count in heads.items()})

    def _bin(self, heads: Mapping[str, int]) -> None:
        """Count files that are not in the catalogue, by the first directories of their names."""
        reconciliation.add(self.unmatched, heads)
        for head, count in heads.items():
            self.bins[unmatched_bin(head)] += count

    def _keep(self, pairs: Numbers, matched: npt.NDArray[np.intp], measures: Columns) -> None:
        if len(matched):
            measures = self._with_read_count(measures)
            self._parts.append({"pair": pairs[matched].astype(np.int64), **measures})
            self._pending += len(matched)

    def _with_read_count(self, measures: Columns) -> Columns:
        """Return the measures, of a stream of which some accesses have no bytes with 0
        for these, and the number of those that have.
        """
        if self.stream not in STREAMS_SETTING_BYTES_ASIDE:
            return measures
        sizes = measures["read_bytes"]
        read_count = (sizes != NO_BYTES).astype(np.int64)
        return {**measures, "read_bytes": sizes * read_count, "read_count": read_count}

    def _aggregate(self, groups: Groups, replicas: Replicas | None) -> None:
        """Add the pending accesses to the sums.

        Remoteness is decided here. After that blocks do not matter: the sums have one
        row for each (dataset, site, app, user), however many accesses there are.
        """
        if not self._parts:
            return
        sums, self._parts, self._pending = joined(self._parts), [], 0
        self._groups.update(groups)
        pairs, numbers = sums["pair"], sums["group"]
        catalogue = self._catalogue()
        remote = self._groups.remote(numbers, catalogue.pair_blocks, pairs, replicas)
        sums["remote_nacc"] = (remote == Remote.YES).astype(np.int64)
        sums["remote_count"] = (remote != Remote.UNKNOWN).astype(np.int64)
        sums["pair"] = np.asarray(catalogue.pair_datasets)[pairs].astype(np.int64)
        if self.stream in STREAMS_NAMING_READERS:
            routes = self._groups.routes[numbers]
            self.site_pairs.add(groups, sums["pair"], catalogue, {**sums, "route": routes})
        sums["group"] = self._groups.keys[numbers]
        self._sums.add(sums, self.stream)

    def rows(
        self, groups: Groups, replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, Any]:
        """Return the aggregated accesses as columns of a scan's result, with pseudonyms
        instead of user names.

        The columns are Arrow arrays; text columns are dictionary arrays.
        """
        self._aggregate(groups, replicas)
        if not len(self._sums):
            return {}
        sums = self._sums.columns()
        names_of_groups, apps = self._groups.names(groups, sums["group"], pseudonym)
        rows = access_columns(self.stream, sums, groups, apps) | names_of_groups
        datasets, positions = np.unique(sums["pair"], return_inverse=True)
        names, count = self._catalogue().dataset_names(datasets.astype(np.int32)), len(positions)
        return rows | {
            "dataset_name": buffers.dictionary_array(names, positions),
            "remote_nacc": with_nulls(sums["remote_nacc"], sums["remote_count"], count),
            "detail": buffers.dictionary_array([None], np.zeros(count, np.int32)),
        }

    def drain(
        self, groups: Groups, replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, list[Any]]:
        """Return the rows that can leave before the task ends: quarantined records,
        once they are many.
        """
        if self._pending >= max(self.aggregate_at, self._sums.rows_sorted_again):
            self._aggregate(groups, replicas)
        if self._quarantined_bytes < QUARANTINE_BYTES:
            return {}
        records, self.quarantined, self._quarantined_bytes = self.quarantined, [], 0
        return self._side_rows([], records)

    def bin_rows(self) -> dict[str, list[Any]]:
        """Return bins as rows: the bin in ``app``, its count in ``nacc``; and
        quarantined records, in ``detail``.

        Bins and prefixes of unmatched files are complete once this has run.
        """
        self._bin_heads()
        named: list[tuple[str, int, str | None]] = [
            (name, count, None) for name, count in self.bins.items() if count
        ]
        named += [
            ("out_of_day", count, dates.day_name(day)) for day, count in self.out_of_day.items()
        ]
        named += [(f"generation {name}", count, None) for name, count in self.generations.items()]
        return self._side_rows(named, self.quarantined)

    def note_rows(
        self, notes: Sequence[tuple[str, str, int, str]], groups: Groups
    ) -> dict[str, list[Any]]:
        """Return the notes of a reader (kind, name, count, detail), the prefixes of
        unmatched files, the sites of unmatched records and what is set aside as rows.

        The name is in ``app``, the count in ``nacc``.
        """
        sites: Counter[str] = Counter()
        numbers = np.flatnonzero(self._unmatched_of_group)
        if len(numbers):  # groups of jobs are a list: none of their records is here
            routes = groups.rows.columns(0)[2][numbers]
            counts = self._unmatched_of_group[numbers]
            for route, count in zip(routes.tolist(), counts.tolist(), strict=True):
                sites[groups.routes.values_by_number[route][0]] += count
        notes = [
            *notes,
            *((UNMATCHED_SITE, name, count, "") for name, count in sites.items()),
            *((PREFIX, name, count, "") for name, count in self.unmatched.items()),
            *((SET_ASIDE, name, min(n, MAX_SUM), "") for name, n in self.set_aside.items() if n),
        ]
        rows = self._side_rows([(name, count, detail) for _, name, count, detail in notes], [])
        rows["kind"] = [kind for kind, *_ in notes]
        return rows

    def _side_rows(
        self, named: list[tuple[str, int, str | None]], records: list[Quarantined]
    ) -> dict[str, list[Any]]:
        size = len(named) + len(records)
        rows: dict[str, list[Any]] = {name: [None] * size for name, _ in COLUMNS}
        rows["kind"] = [BIN] * len(named) + [QUARANTINE] * len(records)
        rows["stream"] = [self.stream] * size
        rows["app"] = [name for name, _, _ in named] + ["malformed"] * len(records)
        rows["nacc"] = [count for _, count, _ in named] + [0] * len(records)
        rows["detail"] = [detail for _, _, detail in named] + [
            json.dumps(record.as_dict()) for record in records
        ]
        return rows


def joined(parts: Sequence[Columns]) -> Columns:
    """Return the parts concatenated. All have the same columns; a column that is None
    in one is None in all.
    """
    joined_columns: Columns = {}
    for name in parts[0]:
        columns = [part[name] for part in parts]
        joined_columns[name] = None if columns[0] is None else np.concatenate(columns)
    return joined_columns


def pre_aggregate(columns: Columns, first: str, second: str, stream: str) -> Columns:
    """Return ``columns`` with each combination of the keys ``first`` and ``second``
    once and all others summed.

    Keys are numbers from 0 on. Raises DataError (65) if a sum exceeds 64 bits.
    """
    high, low = columns[first], columns[second]
    width = int(low.max()) + 1 if len(low) else 1
    packed = high * width + low
    runs = find_runs(packed)
    keys = packed[runs.first]
    sums: Columns = {first: keys // width, second: keys % width}
    for name, values in columns.items():
        if name not in sums:
            sums[name] = (
                None
                if values is None
                else sum_runs(values[runs.order], runs.starts, f"{name} of {stream}")
            )
    return sums


def _split(pairs: Numbers) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """Return the rows whose files are in the catalogue, and the others."""
    return np.flatnonzero(pairs != NOT_THERE), np.flatnonzero(pairs == NOT_THERE)


def collect_measures(batch: AccessBatch, rows: npt.NDArray[np.intp]) -> Columns:
    """Return the group and the measures of the batch's accesses in ``rows``."""
    cpu, cpu_count = _nullable(batch.cpu_ms, rows)
    wall, wall_count = _nullable(batch.wall_ms, rows)
    sizes = None if batch.read_bytes is None else np.array(batch.read_bytes, np.int64)[rows]
    return {
        "group": np.array(batch.groups, np.int64)[rows],
        "nacc": np.ones(len(rows), np.int64),
        "read_bytes": sizes,
        "cpu_ms": cpu,
        "cpu_count": cpu_count,
        "wall_ms": wall,
        "wall_count": wall_count,
    }


def packed_measures(packed: Packed, rows: npt.NDArray[np.intp]) -> Columns:
    """Return the group and the measures of packed accesses in ``rows``."""
    sizes, times = packed.read_bytes, packed.times
    cpu, cpu_count, wall, wall_count = (
        (None,) * 4 if times is None else (column[rows] for column in times)
    )
    return {
        "group": packed.groups[rows],
        "nacc": np.ones(len(rows), np.int64),
        "read_bytes": None if sizes is None else sizes[rows],
        "cpu_ms": cpu,
        "cpu_count": cpu_count,
        "wall_ms": wall,
        "wall_count": wall_count,
    }


def access_columns(stream: str, sums: Columns, groups: Groups, apps: Longs) -> dict[str, Any]:
    """Return columns of a scan's result by sums of accesses. ``apps``: the number of the
    application of each row.
    """
    count = len(sums["group"])
    zeros = np.zeros(count, np.int32)
    return {
        "kind": buffers.dictionary_array([ACCESS], zeros),
        "stream": buffers.dictionary_array([stream], zeros),
        "app": buffers.dictionary_array(groups.apps.values_by_number, apps),
        "nacc": buffers.from_numpy(sums["nacc"]),
        "read_bytes": with_nulls(sums["read_bytes"], sums.get("read_count", sums["nacc"]), count),
        "cpu_ms": with_nulls(sums["cpu_ms"], sums["cpu_count"], count),
        "wall_ms": with_nulls(sums["wall_ms"], sums["wall_count"], count),
    }


def _nullable(
    values: list[int | None] | None, rows: npt.NDArray[np.intp]
) -> tuple[Longs | None, Longs | None]:
    """Return values with 0 for null, and counts: 1 for a value, 0 for null."""
    if values is None:
        return None, None
    counts = np.array([value is not None for value in values], np.int64)[rows]
    return np.array([value or 0 for value in values], np.int64)[rows], counts


def with_nulls(values: Longs | None, counts: Longs | None, count: int) -> pa.Array:
    """Return sums as an Arrow array, null where the sum has no summands (``counts`` is 0)."""
    if values is None or counts is None:
        return buffers.from_numpy(np.zeros(count, np.int64), np.zeros(count, np.bool_))
    return buffers.from_numpy(values, counts > 0)


def record_batch(
    rows: Mapping[str, Any], columns: Sequence[tuple[str, str]], *, dictionaries: bool = False
) -> pa.RecordBatch:
    """Return ``rows`` as an Arrow batch of ``columns`` (name, type). ``dictionaries``:
    keep dictionary arrays.
    """
    import pyarrow as pa

    arrays = []
    for name, kind in columns:
        column = rows[name]
        if isinstance(column, list):
            column = buffers.array(column, kind)
        elif not dictionaries and pa.types.is_dictionary(column.type):
            column = column.dictionary_decode()
        arrays.append(column)
    return pa.RecordBatch.from_arrays(arrays, names=[name for name, _ in columns])


# Pre-aggregation without the catalogue: rows carry the hashes of file names, for
# Spark's shuffle join.

#: (name, type) of the additional columns of a hashed scan.
HASH_COLUMNS: Final = (
    ("hash", "long"),
    ("check", "long"),
    ("block_remote", "long"),
    ("prefix", "string"),
)


class HashAggregator(StreamAggregator):
    """Pre-aggregates the accesses of one stream in one task by the hashes of the lfn;
    Spark joins the datasets.

    ``dataset_name`` is null. ``hash`` and ``check`` are the two hashes of the lfn,
    ``block_remote`` is one of ``Remote``, and ``prefix`` is that of the lfn that people
    may see: it counts if the join does not match the row.
    """

    #: The numbers of the prefixes.
    _prefixes: dict[str, int] = msgspec.field(default_factory=dict)

    def add(self, batch: AccessBatch) -> None:
        """Count the bins of a batch and keep its accesses."""
        batch.unpack()
        super().add(batch)

    def _attach(self, batch: AccessBatch) -> None:
        names = [lfn.encode() for lfn in batch.lfns]
        all_rows = np.arange(len(names))
        prefix_numbers = [
            self._prefixes.setdefault(name, len(self._prefixes)) for name in all_shown(batch.lfns)
        ]
        self._parts.append(
            {
                "hash": hash_all(names, len(names)).view(np.int64),
                "check": hash_all(names, len(names), check_hash).view(np.int64),
                "prefix": np.array(prefix_numbers, np.int64),
                **self._with_read_count(collect_measures(batch, all_rows)),
            }
        )

    def rows(
        self, groups: Groups, replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, Any]:
        """Return the accesses as columns of a hashed scan's result."""
        if not self._parts:
            return {}
        columns = joined(self._parts)
        both = np.stack([columns.pop("hash"), columns.pop("check")], axis=1)
        files, numbers = np.unique(both, axis=0, return_inverse=True)
        prefix_of = np.zeros(len(files), np.int64)
        prefix_of[numbers.reshape(-1)] = columns.pop("prefix")
        sums = pre_aggregate(
            {"file": numbers.reshape(-1).astype(np.int64), **columns}, "file", "group", self.stream
        )
        rows, of_file = sums["group"], sums["file"]
        count = len(rows)
        users, apps, routes = (column[rows] for column in groups.rows.columns(0))
        of_routes = groups.routes.values_by_number
        return access_columns(self.stream, sums, groups, apps) | {
            "site_name": dictionary_array([site for site, _, _ in of_routes], routes),
            "user": user_column(groups, users, pseudonym),
            "dataset_name": dictionary_array([None], np.zeros(count, np.int32)),
            "remote_nacc": with_nulls(None, None, count),
            # The shuffle join takes it from here to the rows of pairs of sites (rule 63).
            "detail": dictionary_array([reader for _, _, reader in of_routes], routes),
            "hash": from_numpy(files[of_file, 0]),
            "check": from_numpy(files[of_file, 1]),
            "block_remote": from_numpy(
                np.array([kind for _, kind, _ in of_routes], np.int64)[routes]
            ),
            "prefix": dictionary_array(list(self._prefixes), prefix_of[of_file]),
        }

    def _side_rows(
        self, named: list[tuple[str, int, str | None]], records: list[Quarantined]
    ) -> dict[str, list[Any]]:
        # The columns of the hashes are null in side rows.
        rows = super()._side_rows(named, records)
        return rows | {name: [None] * len(rows["kind"]) for name, _ in HASH_COLUMNS}
