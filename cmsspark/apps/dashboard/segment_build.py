"""Builds one segment of the rollups from the stored partials of some days.

Names are numbers until rows are written. A day is read once and reduced to what each
file needs of it. Files by day are complete then; those by dataset or site need all
days, which meet in :mod:`sorted_parts`: memory does not grow with the rows of a month.
"""

from __future__ import annotations

import errno
import os
import shutil
import signal
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from multiprocessing.connection import Connection
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.apps.dashboard import segment
from cmsspark.apps.dashboard.day_rows import DERIVATIONS, Names, Rows, SortedParts, read_day
from cmsspark.apps.dashboard.query_process import NO_MEMORY, Child, answered, how_ended
from cmsspark.apps.dashboard.segment import (
    BIT_FILES,
    NULL,
    SUM_FILES,
    SUMS,
    About,
    ResourceExhausted,
    SegmentIndex,
    write_mapped,
)
from cmsspark.base.errors import NotReady, OutputError
from cmsspark.base.memory import share_freed
from cmsspark.counting.packing import Codes, distinct, find_starts, pack
from cmsspark.store.query.stored_parts import StoredInterval

if TYPE_CHECKING:
    import pyarrow as pa


# Writes the Parquet files of a segment: rows of numbers become rows of names.

#: Columns of few values, beside those of names.
_CODED: Final = ("day", "last_day", "nacc", "remote_nacc", "remote_known_nacc", "job_count")
_ROW_GROUP: Final = 30_720
#: Rows of a group of the files in which pages look up single datasets: a few groups are
#: read for each.
_LOOKUP_GROUP: Final = 10_240
#: Files of up to so many rows, which days of the newest month have, get small groups:
#: there are many such files, and a page reads a group of each. What the server keeps of
#: each group would be too much for those of whole months.
_SMALL_ROWS, _SMALL_GROUP = 400_000, 2_048
#: Texts of a dictionary that every row group may have as it is.
_SHORT: Final = 512
#: A quarter larger than with zstd, and read in two thirds of the time.
_LOOKUP_COMPRESSION: Final = "lz4_raw"


class SegmentWriter:
    """Writes files of a folder. ``totals``: sums of the additive columns, which decide
    their types.
    """

    def __init__(self, folder: Path, names: Names, totals: Mapping[str, int]) -> None:
        import pyarrow as pa

        self._folder = folder
        columns = ("stream", "site_name", "app", "site_tier", "data_tier", "campaign")
        self._names = names
        self.texts = {name: pa.array(names.texts(name), pa.string()) for name in columns}
        #: Of datasets rows have the place in the order of names.
        self.texts["dataset_name"] = pa.array(sorted(names.texts("dataset_name")), pa.string())
        self._kinds = {
            # Files have no larger integers.
            name: pa.int64() if totals[name] < 1 << 63 else pa.decimal128(38, 0)
            for name in SUMS
        }

    def write(
        self,
        name: str,
        batches: Iterable[Mapping[str, Any]],
        group: int = _ROW_GROUP,
        codec: str = "zstd",
    ) -> None:
        """Write a file from batches of rows with the same columns."""
        import pyarrow.parquet as pq

        writer = None
        for rows in batches:
            count = len(next(iter(rows.values())))
            for begin in range(0, max(1, count), group):
                table = self._table(
                    {column: values[begin : begin + group] for column, values in rows.items()}
                )
                if writer is None:
                    coded = [
                        column for column in table.column_names if column in (*self.texts, *_CODED)
                    ]
                    path = self._folder / f"{name}.parquet"
                    writer = pq.ParquetWriter(
                        path,
                        table.schema,
                        compression=codec,
                        use_dictionary=coded,
                        store_schema=False,
                    )
                writer.write_table(table, row_group_size=group)
        if writer is not None:
            writer.close()

    def write_lookup(
        self, name: str, batches: Iterable[Mapping[str, Any]], count: int
    ) -> list[tuple[int, int]]:
        """Write a file of ``count`` rows that is sorted by dataset. Return the first
        and last dataset of each group.
        """
        group = _SMALL_GROUP if count <= _SMALL_ROWS else _LOOKUP_GROUP
        bounds: list[tuple[int, int]] = []

        def noted() -> Iterable[Mapping[str, Any]]:
            for rows in batches:
                datasets = rows["dataset_name"]
                lasts = [*range(group - 1, len(datasets), group), len(datasets) - 1]
                bounds.extend(
                    (int(datasets[n - n % group]), int(datasets[n]))
                    for n in dict.fromkeys(lasts)
                    if n >= 0
                )
                yield rows

        self.write(name, noted(), group, _LOOKUP_COMPRESSION)
        return bounds

    def write_mapped(self, name: str, columns: Mapping[str, Any], **about: Any) -> None:
        """Write an Arrow file; ``about``: fields of :class:`About` beside the names."""
        streams, tiers = (sorted(self._names.texts(column)) for column in ("stream", "site_tier"))
        write_mapped(self._folder / name, columns, About(streams, tiers, **about))

    def with_nulls(self, rows: Mapping[str, Any], name: str) -> Any:
        """Return an additive column with ``NULL`` where it is null, in 32 bits where
        these are enough.
        """
        values = np.where(rows["has"] >> SUMS.index(name) & 1, rows[name], NULL)
        kind = self._kinds[name]
        if values.dtype == object:
            return _numbers(values, np.zeros(len(values), np.bool_), kind)
        return values.astype(np.int32) if values.max(initial=0) < 1 << 31 else values

    def _table(self, rows: Mapping[str, Any]) -> pa.Table:
        import pyarrow as pa

        columns = {}
        for name, values in rows.items():
            if name in SUMS:
                is_null = (rows["has"] >> SUMS.index(name) & 1) == 0
                columns[name] = _numbers(values, is_null, self._kinds[name])
            elif name in ("day", "last_day"):
                columns[name] = pa.array(values.astype(np.int32)).cast(pa.date32())
            elif name in self.texts:
                columns[name] = _coded(values, self.texts[name])
            elif name not in ("has", "place", "part"):
                columns[name] = values
        return pa.table(columns)


def _numbers(values: Any, is_null: Any, kind: pa.DataType) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_decimal(kind):
        cells = [None if null else int(value) for value, null in zip(values, is_null, strict=True)]
        return pa.array(cells, kind)
    return pa.array(values, kind, mask=is_null)


def _coded(codes: Codes, texts: pa.Array) -> pa.DictionaryArray:
    """Return texts by their numbers. Of many texts the dictionary has those that occur:
    each row group has a copy.
    """
    import pyarrow as pa

    if len(texts) < _SHORT:
        return pa.DictionaryArray.from_arrays(codes.astype(np.int32), texts)
    used = np.flatnonzero(np.bincount(codes, minlength=len(texts)))
    positions = np.zeros(len(texts), np.int32)
    positions[used] = np.arange(len(used))
    return pa.DictionaryArray.from_arrays(positions[codes], texts.take(pa.array(used)))


# Reduces the partials of days to the groups, sums and users that the files of a segment
# have.

_CUBE: Final = SUM_FILES["cube"][1:]
#: Sums that are smaller as floats fit into 64 bits.
_SAFE: Final = 2.0**62


def _sorted(numbers: Codes) -> tuple[npt.NDArray[np.intp], Codes]:
    """Return the order of numbers, and the numbers in it."""
    bits, largest = len(numbers).bit_length(), int(numbers.max(initial=0))
    if largest < 1 << 16:
        # Short numbers are sorted in one pass.
        order = np.argsort(numbers.astype(np.uint16), kind="stable")
        return order, numbers[order]
    if largest >= 1 << (62 - bits):
        order = np.argsort(numbers)
        return order, numbers[order]
    # Numbers are sorted several times as fast as their positions.
    both = np.sort(numbers << bits | np.arange(len(numbers)), kind="stable")
    return both & (1 << bits) - 1, both >> bits


class Groups:
    """Rows with the same keys: ``keys`` has those of each group, in order."""

    def __init__(self, keys: Sequence[Codes]) -> None:
        packed, _ = pack(keys, len(keys[0]))
        self._order, in_order = _sorted(packed)
        self._starts = np.flatnonzero(find_starts(in_order)[: len(packed)])
        first = self._order[self._starts]
        self.keys = [column[first] for column in keys]

    def largest(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        """Return the largest value of each group."""
        return np.maximum.reduceat(values[self._order], self._starts) if len(values) else values

    def sums(self, rows: Rows) -> Rows:
        """Return the additive columns of each group."""
        if not len(self._order):
            return {name: rows[name] for name in (*SUMS, "has")}
        sums = {name: self._sum(rows[name]) for name in SUMS}
        return {**sums, "has": np.bitwise_or.reduceat(rows["has"][self._order], self._starts)}

    def _sum(self, values: npt.NDArray[Any]) -> npt.NDArray[Any]:
        if values.dtype != object and values.sum(dtype=np.float64) > _SAFE:
            # Such numbers are absurd, but what a log says is summed exactly.
            values = values.astype(object)
        sums: npt.NDArray[Any] = np.add.reduceat(values[self._order], self._starts)
        return sums


class Days:
    """What the files of a segment need of its days. Rows by dataset or site are in
    files of the folder ``scratch``.
    """

    def __init__(self, scratch: Path) -> None:
        self.names = Names()
        self.days: list[int] = []
        self.totals = dict.fromkeys(SUMS, 0)
        self.cube: list[Rows] = []
        #: The keys of each day's sets, the number of users of each, and these one set
        #: after another.
        self.cube_users: list[tuple[Rows, Codes, npt.NDArray[np.uint32]]] = []
        #: File of ``BIT_FILES`` → the keys of each day's sets, and a row of flags of
        #: users for each set.
        self.sets: dict[str, list[tuple[Rows, npt.NDArray[np.uint8]]]] = {
            name: [] for name in BIT_FILES
        }
        self.detail = SortedParts(scratch / "detail")
        self.users = SortedParts(scratch / "users")
        self.site_days = SortedParts(scratch / "site_days")

    def add(self, entry: StoredInterval) -> list[str]:
        """Add a day, and return the ids of its pseudonym keys. Raises DataError (65)
        where it is damaged.
        """
        day = read_day(entry, self.names)
        self.days.append(day.day)
        self._add_sums(day.rows)
        has_user = day.rows["user"] >= 0
        self._add_users(
            {
                name: day.rows[name][has_user]
                for name in ("dataset_name", "stream", "site_name", "user")
            }
        )
        return day.keys

    def _add_sums(self, rows: Rows) -> None:
        groups, keys = self._grouped(rows, ("dataset_name", "stream", "site_name", "app"))
        sums = groups.sums(rows)
        with_derived = keys | self._derive(keys)
        self.detail.add(keys.pop("dataset_name"), keys | sums)
        groups, keys = self._grouped(with_derived, _CUBE)
        of_cube = groups.sums(sums)
        self.cube.append({"day": self._day(keys), **keys, **of_cube})
        for name in SUMS:
            self.totals[name] += sum(of_cube[name].tolist())
        groups, keys = self._grouped(with_derived, ("site_name", "stream", "data_tier", "app"))
        self.site_days.add(keys.pop("site_name"), keys | groups.sums(sums))

    def _add_users(self, rows: Rows) -> None:
        self._add_sets("site_users", rows)
        keys = self._distinct(
            rows | self._derive(rows), ("dataset_name", "stream", "site_tier", "user")
        )
        rows = keys | self._derive(keys)
        self.users.add(keys.pop("dataset_name"), keys)
        for name in ("tier_users", "campaign_users"):
            self._add_sets(name, rows)
        keys = self._distinct(rows, (*_CUBE, "user"))
        user = keys.pop("user").astype(np.uint32)
        starts = np.flatnonzero(find_starts(pack(list(keys.values()), len(user))[0])[: len(user)])
        sets = {name: column[starts] for name, column in {"day": self._day(keys), **keys}.items()}
        self.cube_users.append((sets, np.diff(starts, append=len(user)), user))

    def _grouped(self, rows: Rows, columns: Sequence[str]) -> tuple[Groups, Rows]:
        """Return the groups of rows by some columns, in the order of the names of the
        first, and their keys.
        """
        order, positions = self.names.order(columns[0])
        groups = Groups([positions[rows[columns[0]]], *(rows[name] for name in columns[1:])])
        first, *remaining = groups.keys
        return groups, dict(zip(columns, (order[first], *remaining), strict=True))

    def _distinct(self, rows: Rows, columns: Sequence[str]) -> Rows:
        """Return the distinct rows of some columns, in the order of the names of the first."""
        order, positions = self.names.order(columns[0])
        packed, unpack = pack(
            [positions[rows[columns[0]]], *(rows[key] for key in columns[1:])],
            len(rows[columns[0]]),
        )
        first, *remaining = (column.astype(np.int32) for column in unpack(distinct(packed)))
        return dict(zip(columns, (order[first], *remaining), strict=True))

    def _derive(self, rows: Rows) -> Rows:
        return {
            name: self.names.derived_codes(name)[rows[source]]
            for source, names in DERIVATIONS.items()
            for name in names
            if source in rows
        }

    def _day(self, rows: Rows) -> Codes:
        return np.full(len(rows["stream"]), self.days[-1], np.int32)

    def _add_sets(self, name: str, rows: Rows) -> None:
        columns = BIT_FILES[name][1:]
        packed, unpack = pack([rows[column] for column in columns], len(rows["user"]))
        is_set = np.bincount(packed) > 0
        flags = np.zeros((is_set.sum(), len(self.names.texts("user"))), np.bool_)
        flags[(np.cumsum(is_set) - 1)[packed], rows["user"]] = True
        keys = dict(zip(columns, unpack(np.flatnonzero(is_set)), strict=True))
        self.sets[name].append(
            ({"day": self._day(keys), **keys}, np.packbits(flags, axis=1, bitorder="little"))
        )


#: What the system says of a full disk, and free bytes of one that is full.
_NO_SPACE: Final = os.strerror(errno.ENOSPC)
_FULL: Final = 16_000_000
#: Pages come first where both need the processors.
_NICE: Final = 5


def build(days: Sequence[StoredInterval], store: str, folder: Path) -> SegmentIndex:
    """Build the segment of some stored days in ``folder``, which appears only when all
    its files are written.

    Raises DataError (65) where a day cannot be read or has another number of rows than
    its manifest says, OutputError (73) where the segment cannot be written.
    """
    aside = folder.parent / f".building-{uuid.uuid4().hex}"
    try:
        aside.mkdir(parents=True, mode=0o700)
        index = _build(days, store, aside)
        segment.write_index(aside, index)
        os.rename(aside, folder)
    except OSError as error:
        if folder.exists():
            return segment.read_index(folder)  # another dashboard was quicker
        raise OutputError(
            "the rollups cannot be written",
            where=folder,
            found=_reason(error, folder.parent),
            next_step="make room there: building goes on by itself within a minute",
        ) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return index


def _reason(error: OSError, folder: Path) -> str:
    """Return why a file cannot be written. NumPy only says that fewer bytes were written."""
    text = error.strerror or str(error)
    is_full = error.errno is None and shutil.disk_usage(folder).free < _FULL
    return _NO_SPACE if is_full or _NO_SPACE in str(error) else text


def _build(days: Sequence[StoredInterval], store: str, folder: Path) -> SegmentIndex:
    scratch = folder / "scratch"
    scratch.mkdir()
    collected = Days(scratch)
    keys = {str(entry.interval): collected.add(entry) for entry in days}
    writer = SegmentWriter(folder, collected.names, collected.totals)
    _write_days(collected, writer)
    _Datasets(collected, scratch, writer).write()
    shutil.rmtree(scratch)
    files = {
        path.name: (path.stat().st_size, segment.file_digest(path))
        for path in sorted(folder.iterdir())
    }
    runs = {str(entry.interval): entry.run for entry in days}
    return SegmentIndex(
        segment.VERSION, store, runs, keys, sum(entry.rows for entry in days), files
    )


def _write_days(collected: Days, writer: SegmentWriter) -> None:
    """Write the files by day, that of sites by day, and the users."""
    import pyarrow as pa

    writer.write("cube", [_joined(collected.cube)])
    keys, counts, users = zip(*collected.cube_users, strict=True)
    offsets = np.concatenate(([0], np.cumsum(np.concatenate(counts))))
    lists = pa.ListArray.from_arrays(
        pa.array(offsets, pa.int32()), pa.array(np.concatenate(users))
    )
    writer.write("cube_users", [{**_joined(keys), "users": lists}])
    names = collected.names.texts("user")
    # Sets are of 64-bit words.
    width = max(1, -(-len(names) // 64)) * 8
    for name, of_days in collected.sets.items():
        bits = np.concatenate(
            [np.pad(bits, ((0, 0), (0, width - bits.shape[1]))) for _, bits in of_days]
        )
        sets = pa.FixedSizeBinaryArray.from_buffers(
            pa.binary(width), len(bits), [None, pa.py_buffer(bits)]
        )
        writer.write(name, [{**_joined([keys for keys, _ in of_days]), "users": sets}])
    numbers = np.arange(len(names), dtype=np.uint32)
    writer.write("users", [{"user_id": numbers, "user_key": pa.array(names, pa.string())}])
    days, (sites, _) = np.array(collected.days), collected.names.order("site_name")
    batches = collected.site_days.batches(sites)
    writer.write(
        "site_days",
        (
            {"site_name": sites[rows["place"]], "day": days[rows["part"]], **rows}
            for rows in batches
        ),
    )


def _joined(parts: Sequence[Rows]) -> Rows:
    return {name: np.concatenate([part[name] for part in parts]) for name in parts[0]}


class _Datasets:
    """Writes the files of a segment by dataset."""

    def __init__(self, collected: Days, scratch: Path, writer: SegmentWriter) -> None:
        self._collected, self._writer = collected, writer
        self._days = np.array(collected.days)
        self._names = names = collected.names
        self._order, _ = names.order("dataset_name")
        self._sites, self._site_places = names.order("site_name")
        self._at_sites = SortedParts(scratch / "site_datasets")
        self._tiers = len(names.texts("site_tier"))
        self._sums: list[Rows] = []
        self._people: list[Rows] = []

    def write(self) -> None:
        """Write the files."""
        collected, writer = self._collected, self._writer
        groups = {
            "detail": writer.write_lookup("detail", self._detail(), collected.detail.rows),
            "dataset_users": writer.write_lookup(
                "dataset_users", self._users(), collected.users.rows
            ),
        }
        batches = self._at_sites.batches(self._sites)
        writer.write(
            "site_datasets",
            ({"site_name": self._sites[rows["place"]], **rows} for rows in batches),
        )
        writer.write(Path(segment.NAMES_FILE).stem, [{"name": writer.texts["dataset_name"]}])
        self._write_sums(groups)
        self._write_people()

    def _detail(self) -> Iterator[Rows]:
        """Give the rows of ``detail``; the sums of datasets, and of these at sites, are
        made of the same batches.
        """
        for batch in self._collected.detail.batches(self._order):
            rows = {"dataset_name": batch["place"], "day": self._days[batch["part"]], **batch}
            self._add_sums(rows)
            yield rows

    def _add_sums(self, rows: Rows) -> None:
        groups = Groups(
            [self._site_places[rows["site_name"]], rows["dataset_name"], rows["stream"]]
        )
        site, dataset, stream = groups.keys
        sums, site = groups.sums(rows), self._sites[site]
        last_day = groups.largest(rows["day"])
        self._at_sites.add(
            site, {"dataset_name": dataset, "stream": stream, "last_day": last_day, **sums}
        )
        is_used = (rows["nacc"] > 0) | (rows["job_count"] > 0)
        last_used = groups.largest(np.where(is_used, rows["day"], NULL))
        groups = Groups([dataset, stream, self._names.derived_codes("site_tier")[site]])
        keys = dict(zip(("dataset", "stream", "site_tier"), groups.keys, strict=True))
        self._sums.append({**keys, "last_day": groups.largest(last_used), **groups.sums(sums)})

    def _users(self) -> Iterator[Rows]:
        """Give the rows of ``dataset_users``; the people of each dataset are those of
        the same batches.
        """
        kind: Any = np.uint16 if len(self._names.texts("user")) <= 1 << 16 else np.uint32
        for batch in self._collected.users.batches(self._order):
            dataset, user = batch["place"], batch.pop("user")
            packed, unpack = pack(
                [dataset, batch["stream"] * self._tiers + batch["site_tier"], user], len(user)
            )
            people, pairs, users = unpack(distinct(packed))
            user_rows: Rows = {
                "dataset": people.astype(np.int32),
                "pair": pairs.astype(np.uint16),
                "user": users.astype(kind),
            }
            self._people.append(user_rows)
            days = self._days[batch["part"]]
            yield {
                "dataset_name": dataset,
                "day": days,
                **batch,
                "user_id": user.astype(np.uint32),
            }

    def _write_sums(self, groups: dict[str, list[tuple[int, int]]]) -> None:
        rows = _joined(self._sums)
        columns: dict[str, Any] = {"dataset": rows["dataset"].astype(np.uint32)}
        for name in ("stream", "site_tier"):
            columns[name] = self._names.order(name)[1][rows[name]].astype(np.uint16)
        columns["last_day"] = rows["last_day"].astype(np.int32)
        columns |= {name: self._writer.with_nulls(rows, name) for name in SUMS}
        totals = {name: str(total) for name, total in self._collected.totals.items()}
        self._writer.write_mapped(segment.SUMS_FILE, columns, totals=totals, groups=groups)

    def _write_people(self) -> None:
        import pyarrow as pa

        rows = _joined(self._people)
        counts = np.bincount(rows["dataset"], minlength=len(self._order))
        offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int64())
        streams, tiers = (self._names.order(name)[1] for name in ("stream", "site_tier"))
        columns = {
            "users": pa.LargeListArray.from_arrays(offsets, pa.array(rows["user"])),
            "pairs": pa.LargeListArray.from_arrays(offsets, pa.array(rows["pair"])),
        }
        numbers = [(int(stream), int(tier)) for stream in streams for tier in tiers]
        self._writer.write_mapped(segment.PEOPLE_FILE, columns, pairs=numbers)


class BuilderEnded(NotReady):
    """The process that builds segments ended before it was done, not for lack of memory
    (75).
    """


class RollupProcess:
    """Calls :func:`build` in a process that starts when needed and ends with :meth:`close`."""

    def __init__(self) -> None:
        self._child: Child | None = None

    def __call__(self, days: Sequence[StoredInterval], store: str, folder: Path) -> SegmentIndex:
        """Build a segment. Raises ResourceExhausted (75) if the process was killed or
        lacked memory, BuilderEnded (75) if it ended otherwise, else what the function
        raises.
        """
        if self._child is None or not self._child.is_alive:
            self._child = Child(_serve)
        child = self._child
        try:
            child.pipe.send((days, store, folder))
            index: SegmentIndex = child.receive()
        except (EOFError, BrokenPipeError, ConnectionResetError):
            code, self._child = child.exit_code, None
            is_killed = code == -signal.SIGKILL
            by = " by somebody, or by the system when memory is short" if is_killed else ""
            kind = ResourceExhausted if is_killed or code == NO_MEMORY else BuilderEnded
            raise kind(
                "the process that builds the rollups ended unexpectedly",
                found=how_ended(code) + by,
                next_step="it is started again by itself",
            ) from None
        return index

    def close(self) -> None:
        """End the process; what it builds is dropped."""
        child, self._child = self._child, None
        if child is not None:
            child.kill()


def _serve(pipe: Connection) -> None:
    os.nice(_NICE)
    share_freed()
    with suppress(EOFError, OSError):
        while True:
            values = pipe.recv()
            pipe.send(answered(lambda values=values: build(*values)))  # type: ignore[misc]
