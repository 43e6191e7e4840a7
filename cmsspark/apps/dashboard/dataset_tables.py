"""What a snapshot knows of datasets: the sums and people of each, mapped from files,
and where its rows are.

Datasets have one number over all segments, in the order of their names; each segment
has numbers of its own.
"""

from __future__ import annotations

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.apps.dashboard.segment import (
    LOOKUP_FILES,
    NAMES_FILE,
    NULL,
    PEOPLE_FILE,
    SUMS_FILE,
    About,
    Segment,
    derive_part,
    join_ranges,
    numbers,
    read_mapped,
    reading_rollups,
)

if TYPE_CHECKING:
    import pyarrow as pa
    import pyarrow.parquet as pq

Numbers = npt.NDArray[np.int64]
#: Sums by dataset: the values, and whether there are any; values of 64 bits, or
#: Python's where sums may be larger.
Sums = tuple[npt.NDArray[Any], npt.NDArray[np.bool_]]
#: Sums that are smaller as floats fit into 64 bits.
SAFE: Final = 1 << 62
#: The share of all datasets from which on all are summed: choosing rows would take longer.
_MANY: Final = 0.25


@dataclass
class Lookup:
    """A Parquet file sorted by dataset, and the datasets of each of its row groups."""

    path: str
    first: npt.NDArray[np.uint32]
    last: npt.NDArray[np.uint32]
    _metadata: pq.FileMetaData | None = None

    def rows(self, position: int, name: str, columns: Sequence[str]) -> pa.Table:
        """Return the rows of a dataset; ``place``: its number in the segment. Raises
        RollupsDamagedError (75).
        """
        import pyarrow.parquet as pq

        groups = np.flatnonzero((self.first <= position) & (position <= self.last)).tolist()
        texts = [
            "dataset_name",
            *(key for key in columns if key in ("stream", "site_name", "app", "site_tier")),
        ]
        with reading_rollups():
            file = pq.ParquetFile(self.path, metadata=self._metadata, read_dictionary=texts)
            self._metadata = file.metadata
        with reading_rollups(), file:
            rows = file.read_row_groups(
                groups, columns=["dataset_name", *columns], use_threads=False
            )
        positions = _find_positions(rows["dataset_name"], name)
        rows = rows.drop_columns("dataset_name")
        if len(positions) and positions[-1] - positions[0] + 1 == len(positions):
            return rows.slice(int(positions[0]), len(positions))
        return rows.take(positions)


def _find_positions(names: pa.ChunkedArray, name: str) -> Numbers:
    """Return where a name stands in a column whose chunks are dictionaries: numbers are
    compared, not texts.
    """
    import pyarrow as pa

    scalar, positions, begin = pa.scalar(name), [np.zeros(0, np.int64)], 0
    for chunk in names.chunks:
        code = chunk.dictionary.index(scalar).as_py()
        if code >= 0:
            positions.append(
                begin + np.flatnonzero(chunk.indices.to_numpy(zero_copy_only=False) == code)
            )
        begin += len(chunk)
    return np.concatenate(positions)


@dataclass
class SegmentDatasets:
    """The datasets of one segment.

    ``codes``: the number of each over all segments; ``places``: for each number over
    all, its own one here, or -1.
    """

    about: About
    codes: npt.NDArray[np.int32]
    positions: npt.NDArray[np.int32]
    rows: pa.RecordBatch
    people: pa.RecordBatch
    pairs: list[tuple[int, int]]
    lookups: Mapping[str, Lookup]
    _columns: dict[str, npt.NDArray[Any]] = field(default_factory=dict)

    @cached_property
    def dataset(self) -> npt.NDArray[Any]:
        """The dataset's number of each row of sums."""
        return self.column("dataset")

    def column(self, name: str) -> npt.NDArray[Any]:
        """Return a column of the sums; nulls are ``NULL``."""
        values = self._columns.get(name)
        if values is None:
            values = numbers(self.rows.column(name))
            # Numbers of 64 bits lie in the mapped file; Python's would take memory for each.
            if values.dtype != object:
                self._columns[name] = values
        return values

    def chosen(self, filters: Mapping[str, Sequence[str]], subset: Numbers | None) -> Any:
        """Return the rows, or their positions, of the filters' streams and site tiers
        and of the subset.
        """
        conditions = [
            (self.column(column), np.array([name in filters[column] for name in names], np.bool_))
            for column, names in (
                ("stream", self.about.streams),
                ("site_tier", self.about.site_tiers),
            )
            if column in filters
        ]
        if subset is None:
            if not conditions:
                return slice(None)
            return np.flatnonzero(
                np.logical_and.reduce([is_chosen[column] for column, is_chosen in conditions])
            )
        rows = self._find_rows(self.positions[subset])
        for column, is_chosen in conditions:
            rows = rows[is_chosen[column[rows]]]
        return rows

    def bounds(self, positions: npt.NDArray[Any]) -> tuple[Numbers, Numbers]:
        """Return where the rows of datasets begin and end; ``places``: their numbers
        here, none of them -1.
        """
        # Of another type than the column's, the numbers would have numpy copy the whole column.
        typed = positions.astype(self.dataset.dtype)
        return np.searchsorted(self.dataset, typed, side="left"), np.searchsorted(
            self.dataset, typed, side="right"
        )

    def _find_rows(self, positions: npt.NDArray[Any]) -> Numbers:
        """Return the positions of the rows of datasets, in order; places of -1 have none."""
        begins, ends = self.bounds(np.unique(positions[positions >= 0]))
        return join_ranges(begins, ends - begins)

    def wanted_pairs(self, filters: Mapping[str, Sequence[str]]) -> npt.NDArray[np.bool_]:
        """Return whether each pair (stream, site tier) is one of those of the filters."""
        names = {"stream": self.about.streams, "site_tier": self.about.site_tiers}
        chosen = [
            all(
                names[column][pair[n]] in filters.get(column, names[column])
                for n, column in enumerate(names)
            )
            for pair in self.pairs
        ]
        return np.array(chosen, np.bool_)

    def users(
        self, positions: npt.NDArray[Any], is_wanted: npt.NDArray[np.bool_]
    ) -> tuple[Numbers, npt.NDArray[Any]]:
        """Return the people of some datasets: for each the position in ``positions``,
        and its number.
        """
        offsets, users, pairs = self._people
        present = np.flatnonzero(positions >= 0)
        begin = offsets[positions[present]]
        lengths = offsets[positions[present] + 1] - begin
        rows = np.repeat(present, lengths)
        at = join_ranges(begin, lengths)
        is_chosen = is_wanted[pairs[at]]
        return rows[is_chosen], users[at[is_chosen]]

    @cached_property
    def _people(self) -> tuple[Numbers, npt.NDArray[Any], npt.NDArray[np.uint16]]:
        users, pairs = self.people.column("users"), self.people.column("pairs")
        return users.offsets.to_numpy(), users.values.to_numpy(), pairs.values.to_numpy()


@dataclass
class DatasetTables:
    """The datasets of all segments. ``names``: of all, in order; a dataset's number is
    its position.
    """

    names: list[str]
    segments: list[SegmentDatasets]
    _parts: dict[str, npt.NDArray[Any]] = field(default_factory=dict)
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @cached_property
    def positions(self) -> dict[str, int]:
        """Name → number."""
        return {name: number for number, name in enumerate(self.names)}

    def parts(self, column: str) -> npt.NDArray[Any]:
        """Return a derived column of each dataset's name."""
        with self._lock:
            if column not in self._parts:
                self._parts[column] = np.array(
                    [derive_part(column, name) for name in self.names], dtype=object
                )
        return self._parts[column]

    def match_any(self, column: str, values: Sequence[str]) -> npt.NDArray[np.bool_]:
        """Return whether a derived column of each dataset's name is one of some values;
        of no values, all are.
        """
        if not values:
            return np.ones(len(self.names), np.bool_)
        parts = self.parts(column)
        mask: npt.NDArray[np.bool_] = np.logical_or.reduce([parts == value for value in values])
        return mask

    def sums(
        self,
        segments: Sequence[int],
        columns: Sequence[str],
        filters: Mapping[str, Sequence[str]],
        subset: Numbers | None = None,
    ) -> dict[str, Sums]:
        """Sums of whole segments by dataset: column → values and whether there are any,
        by the number of the dataset.

        Those of datasets that are not in the subset may be left out.
        """
        if subset is not None and len(subset) > _MANY * len(self.names):
            subset = None
        parts_of: dict[str, list[tuple[Numbers, npt.NDArray[Any]]]] = {
            name: [] for name in columns
        }
        is_there = {name: np.zeros(len(self.names), np.bool_) for name in columns}
        for segment in (self.segments[number] for number in segments):
            rows = segment.chosen(filters, subset)
            datasets = segment.dataset[rows]
            if not len(datasets):
                continue
            lasts = np.flatnonzero(np.concatenate((datasets[1:] != datasets[:-1], [True])))
            codes = segment.codes[datasets[lasts]]
            for name in columns:
                values = segment.column(name)[rows]
                # Differences of running sums take a third of the time of sums of runs,
                # and are exact as well.
                running = np.cumsum(
                    np.maximum(values, 0).astype(object if values.dtype == object else np.int64)
                )
                parts_of[name].append((codes, np.diff(running[lasts], prepend=0)))
                is_there[name][codes] |= (
                    np.diff(np.cumsum(values != NULL, dtype=np.int32)[lasts], prepend=0) > 0
                )
        return {
            name: (self._added(name, parts), is_there[name]) for name, parts in parts_of.items()
        }

    def _added(
        self, column: str, parts: Sequence[tuple[Numbers, npt.NDArray[Any]]]
    ) -> npt.NDArray[Any]:
        """Return the sums over segments of a column: in 64 bits, or Python's integers
        where one needs more.
        """
        is_wide = False
        if sum(int(segment.about.totals[column]) for segment in self.segments) >= SAFE:
            estimates = np.zeros(len(self.names))
            for codes, sums in parts:
                estimates[codes] += sums.astype(np.float64)
            is_wide = bool(estimates.max(initial=0) >= SAFE)
        values = np.zeros(len(self.names), object if is_wide else np.int64)
        for codes, sums in parts:
            values[codes] += sums.astype(values.dtype)
        return values

    @cached_property
    def last_days(self) -> Numbers:
        """The last day on which an access or a job read each dataset, as days since
        1970; ``NULL`` where none did.
        """
        newest = np.full(len(self.names), NULL, np.int64)
        for segment in self.segments:
            np.maximum.at(
                newest, segment.codes[segment.dataset], segment.column("last_day").astype(np.int64)
            )
        return newest


def load(segments: Sequence[Segment]) -> DatasetTables:
    """Return the datasets of some segments. Raises OSError or DataError where a file is
    gone or damaged.
    """
    import pyarrow as pa
    import pyarrow.compute as pc
    import pyarrow.parquet as pq

    name_tables = [pq.read_table(segment.folder / NAMES_FILE) for segment in segments]
    name_columns = [table.column(0).combine_chunks().cast(pa.string()) for table in name_tables]
    names = sorted({name for column in name_columns for name in column.to_pylist()})
    every = pa.array(names, pa.string())
    tables = []
    for segment, column in zip(segments, name_columns, strict=True):
        codes = pc.index_in(column, value_set=every).to_numpy().astype(np.int32)
        positions = np.full(len(names), -1, np.int32)
        positions[codes] = np.arange(len(codes), dtype=np.int32)
        rows, about = read_mapped(segment.folder / SUMS_FILE)
        people, of_people = read_mapped(segment.folder / PEOPLE_FILE)
        lookups = {
            name: Lookup(
                segment.file(name), *np.array(about.groups[name], np.uint32).reshape(-1, 2).T
            )
            for name in LOOKUP_FILES
        }
        tables.append(
            SegmentDatasets(about, codes, positions, rows, people, of_people.pairs, lookups)
        )
    return DatasetTables(names, tables)
