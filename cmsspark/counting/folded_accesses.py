"""Accesses of a user's job: each batch becomes a small table in the task that reads it,
by keys and sums or by a function of the job; the tables are merged.

The records are binned as for every job on logs. Runs in Spark's Python workers and in
local processes; knows no Spark.
"""

from __future__ import annotations

import base64
import io
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from cmsspark.base import dates
from cmsspark.base.access import NO_BYTES, AccessBatch, Remote
from cmsspark.base.errors import DataError
from cmsspark.base.names import DERIVED
from cmsspark.counting.catalogue import NOT_THERE, Replicas, site_hashes
from cmsspark.counting.pre_aggregate import COLUMNS, StreamAggregator, record_batch
from cmsspark.sources.formats.fast_json import Groups

if TYPE_CHECKING:
    import pyarrow as pa


# Accesses as they are, one row each, for one's own jobs and notebooks: with file, block
# and dataset, unfolded.

#: name and type word of each column of unfolded accesses.
ACCESS_COLUMNS: Final = (
    ("stream", "string"),
    ("lfn", "string"),
    ("site_name", "string"),
    ("app", "string"),
    ("user", "string"),
    ("is_remote", "boolean"),
    ("read_bytes", "long"),
    ("cpu_ms", "long"),
    ("wall_ms", "long"),
    ("dataset_name", "string"),
    ("block_id", "long"),
)


class AccessRows(StreamAggregator):
    """Hands on the accesses of each batch; records in bins of the decoder are not
    accesses and are left out.
    """

    _batch: AccessBatch | None = None

    def add(self, batch: AccessBatch) -> None:
        """Keep the batch until it is drained."""
        batch.unpack()
        self._batch = batch

    def drain(
        self, groups: Groups, replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, list[Any]]:
        """Return the last batch's accesses as columns; dataset and block are null where
        DBS has no such file.
        """
        batch, self._batch = self._batch, None
        if batch is None or not batch.lfns:
            return {}
        catalogue = self._catalogue()
        pairs = catalogue.lookup([lfn.encode() for lfn in batch.lfns])
        is_known = pairs != NOT_THERE
        blocks, datasets = np.full(len(pairs), -1, np.int64), np.zeros(len(pairs), np.int64)
        blocks[is_known] = catalogue.pair_blocks[pairs[is_known]]
        datasets[is_known] = catalogue.pair_datasets[pairs[is_known]]
        unique = np.unique(datasets[is_known])
        names = dict(
            zip(unique.tolist(), catalogue.dataset_names(unique.astype(np.int32)), strict=True)
        )
        of_row = [groups[number] for number in batch.groups]
        has_replica: list[bool | None] = [None] * len(of_row)
        if replicas is not None:
            has_replica = replicas.has_replica(
                blocks, site_hashes([group.site for group in of_row])
            ).tolist()
        count = len(of_row)
        return {
            "stream": [self.stream] * count,
            "lfn": batch.lfns,
            "site_name": [group.site for group in of_row],
            "app": [group.app for group in of_row],
            "user": [pseudonym(group.user) if group.user else None for group in of_row],
            "is_remote": [
                _is_remote(group.remote, is_here, is_in_dbs)
                for group, is_here, is_in_dbs in zip(
                    of_row, has_replica, is_known.tolist(), strict=True
                )
            ],
            "read_bytes": [
                None if size == NO_BYTES else size
                for size in batch.read_bytes or [NO_BYTES] * count
            ],
            "cpu_ms": batch.cpu_ms or [None] * count,
            "wall_ms": batch.wall_ms or [None] * count,
            "dataset_name": [
                names.get(number) if is_in_dbs else None
                for number, is_in_dbs in zip(datasets.tolist(), is_known.tolist(), strict=True)
            ],
            "block_id": [block if block >= 0 else None for block in blocks.tolist()],
        }

    def rows(
        self, groups: Groups, replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, list[Any]]:
        """Nothing: each batch was drained."""
        return {}

    def bin_rows(self) -> dict[str, list[Any]]:
        """Nothing: bins belong to counted days."""
        return {}


def _is_remote(remote: int, is_here: bool | None, is_known: bool) -> bool | None:
    if not is_known or remote == Remote.UNKNOWN:
        return None
    if remote == Remote.BY_REPLICA:
        return None if is_here is None else not is_here
    return remote == Remote.YES


#: The kind of rows of a scan with a table of a job, in ``detail``.
FOLDED: Final = "folded"
#: Columns by which accesses can be summed, with the type of each.
KEYS: Final = {
    **{name: kind for name, kind in ACCESS_COLUMNS if kind in ("string", "boolean")},
    **dict.fromkeys(DERIVED, "string"),
    "hour": "int",
    "block_id": "long",
}
#: Sums of accesses, with the type of each, and the column that is summed.
SUMS: Final = {
    "accesses": "long",
    "remote_accesses": "long",
    "read_bytes": "long",
    "cpu_seconds": "double",
    "wall_seconds": "double",
}
_GROUP_KEYS: Final = ("stream", "dataset_name", "site_name", "app", "user")
_MILLISECONDS: Final = {"cpu_seconds": "cpu_ms", "wall_seconds": "wall_ms"}
#: Rows of partial tables that are kept before they are merged.
_MERGE_AT: Final = 500_000
#: Rows of a table that leave as one text.
_SLICE: Final = 1_000_000
_HOUR_MS: Final = 3_600_000


class Fold(msgspec.Struct, frozen=True):
    """How accesses become a table. Either ``keys`` and ``sums``, or ``map_batch`` of an
    Arrow batch with the columns of :func:`access_batch` and ``merge`` of the tables that
    it returned.
    """

    keys: tuple[str, ...] = ()
    sums: tuple[str, ...] = ()
    map_batch: Callable[[Any], Any] | None = None
    merge: Callable[[Any], Any] | None = None

    @property
    def needs_times(self) -> bool:
        """Whether the hour of an access is read."""
        return self.map_batch is not None or "hour" in self.keys

    @property
    def is_of_groups(self) -> bool:
        """Whether the keys are those by which every count groups accesses, so that the
        rows of a count have all that is needed.
        """
        return self.map_batch is None and {*self.keys} <= {*_GROUP_KEYS, *DERIVED}

    def of_groups(self, groups: pa.RecordBatch) -> pa.Table:
        """Return the table of a count's rows by user, as :meth:`finished`."""
        import pyarrow as pa

        columns = {
            name: column.dictionary_decode() if pa.types.is_dictionary(column.type) else column
            for name, column in zip(groups.schema.names, groups.columns, strict=True)
        }
        columns |= {"accesses": columns["nacc"], "remote_accesses": columns["remote_nacc"]}
        columns |= _derive_columns(columns)
        names = [*self.keys, *self._stored_sums]
        table = self.finished([pa.table({name: columns[name] for name in names})])
        assert table is not None
        return table

    def make_table(self, batch: pa.RecordBatch) -> pa.Table:
        """Return the table of a batch of accesses."""
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.map_batch is not None:
            return to_arrow(self.map_batch(batch))
        rows = pa.Table.from_batches([batch]).filter(pc.is_valid(batch["dataset_name"]))
        counts = {
            "accesses": pa.repeat(pa.scalar(1, pa.int64()), rows.num_rows),
            "remote_accesses": rows["is_remote"].cast(pa.int64()),
        }
        for name, values in counts.items():
            rows = rows.append_column(name, values)
        return _summed(rows, self.keys, self._stored_sums)

    def merged(self, tables: Sequence[pa.Table]) -> pa.Table:
        """Return one table of the tables of several batches or tasks."""
        import pyarrow as pa

        joined = pa.concat_tables(tables, promote_options="default")
        if self.merge is not None:
            return to_arrow(self.merge(joined))
        return _summed(joined, self.keys, self._stored_sums)

    def finished(self, tables: Sequence[pa.Table]) -> pa.Table | None:
        """Return the table of all tasks, sorted by its keys; sums of seconds are made of
        whole milliseconds. None where no access was given to the job's function.
        """
        import pyarrow as pa
        import pyarrow.compute as pc

        if self.map_batch is not None:
            return self.merged(tables) if tables else None
        if not tables:
            return self.empty()
        rows = self.merged(tables)
        columns = {
            name: pc.divide(rows[_MILLISECONDS[name]].cast(pa.float64()), 1000.0)
            if name in _MILLISECONDS
            else rows[name]
            for name in (*self.keys, *self.sums)
        }
        return pa.table(columns).sort_by([(key, "ascending") for key in self.keys])

    def empty(self) -> pa.Table:
        """Return the table of no access."""
        import pyarrow as pa

        kinds = {
            "string": pa.string(),
            "boolean": pa.bool_(),
            "int": pa.int32(),
            "long": pa.int64(),
            "double": pa.float64(),
        }
        types = {**KEYS, **SUMS}
        return pa.schema(
            [(name, kinds[types[name]]) for name in (*self.keys, *self.sums)]
        ).empty_table()

    @property
    def _stored_sums(self) -> list[str]:
        return [_MILLISECONDS.get(name, name) for name in self.sums]


def _summed(rows: pa.Table, keys: Sequence[str], sums: Sequence[str]) -> pa.Table:
    """Return the sums by keys, null where all are null. Raises DataError (65) beyond 64 bits.

    By Arrow: Polars would wait for ever in a process that was forked from one that has
    used it.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    exact = pa.table(
        {
            **{key: rows[key] for key in keys},
            **{name: rows[name].cast(pa.decimal128(19)) for name in sums},
        }
    )
    options = pc.ScalarAggregateOptions(min_count=1)
    summed = exact.group_by(list(keys), use_threads=False).aggregate(
        [(name, "sum", options) for name in sums]
    )
    columns = {key: summed[key] for key in keys}
    for name in sums:
        try:
            columns[name] = summed[f"{name}_sum"].cast(pa.int64())
        except pa.ArrowInvalid:
            raise DataError(
                f"the sum of {name} does not fit 64 bits",
                next_step="--quarantine-above leaves out absurd records",
            ) from None
    return pa.table(columns)


def to_arrow(rows: Any) -> pa.Table:
    """Return an Arrow table of what a job's function returns: pandas, Polars or Arrow.

    Raises TypeError for anything else.
    """
    import pyarrow as pa

    if isinstance(rows, pa.Table):
        return rows
    if isinstance(rows, pa.RecordBatch):
        return pa.Table.from_batches([rows])
    if hasattr(rows, "collect") and type(rows).__module__.startswith("polars"):
        rows = rows.collect()
    if type(rows).__module__.startswith("polars") and hasattr(rows, "to_arrow"):
        import polars as pl

        return rows.cast({pl.Categorical: pl.String}).to_arrow()
    if type(rows).__module__.startswith("pandas") and hasattr(rows, "columns"):
        if any(name is not None for name in rows.index.names):
            # Sums by groups have their keys there.
            rows = rows.reset_index()
        return pa.Table.from_pandas(rows, preserve_index=False).replace_schema_metadata(None)
    raise TypeError(f"a table of pandas, Polars or Arrow is needed, not {type(rows).__name__}")


class FoldedAccesses(AccessRows):
    """Counts the bins of a stream as every job does, and folds its accesses."""

    fold: Fold = msgspec.field(default_factory=Fold)
    _tables: list[pa.Table] = msgspec.field(default_factory=list)
    _table_rows: int = 0
    _merged_rows: int = 0

    def add(self, batch: AccessBatch) -> None:
        """Count the bins of a batch, and keep its accesses until they are drained."""
        batch.unpack()
        StreamAggregator.add(self, batch)
        self._batch = batch

    def drain(
        self, groups: Groups, replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, Any]:
        """Fold the last batch; return the rows that can leave before the task ends."""
        times = self._batch.times_ms if self._batch is not None else None
        rows = super().drain(groups, replicas, pseudonym)
        if rows:
            table = self.fold.make_table(access_batch(rows, times))
            self._tables.append(table)
            self._table_rows += table.num_rows
            if (
                self._table_rows >= max(_MERGE_AT, 2 * self._merged_rows)
                or len(self._tables) > 500
            ):
                self._tables = [self.fold.merged(self._tables)]
                self._table_rows = self._merged_rows = self._tables[0].num_rows
        return StreamAggregator.drain(self, groups, replicas, pseudonym)

    def rows(
        self, groups: Groups, replicas: Replicas | None, pseudonym: Callable[[str], str]
    ) -> dict[str, Any]:
        """Return few rows, which say how many accesses there are, and whether any has a
        site, a user and an application.
        """
        rows = StreamAggregator.rows(self, groups, replicas, pseudonym)
        return _without_names(record_batch(rows, COLUMNS)) if rows else {}

    def bin_rows(self) -> dict[str, list[Any]]:
        """Return bins and quarantined records as rows, and the table of the job."""
        rows = StreamAggregator.bin_rows(self)
        tables, self._tables = self._tables, []
        texts = list(_texts(self.fold.merged(tables))) if tables else []
        for name, _ in COLUMNS:
            rows[name] = [*rows[name], *[None] * len(texts)]
        if texts:
            for name, value in (
                ("kind", FOLDED),
                ("stream", self.stream),
                ("app", ""),
                ("nacc", 0),
            ):
                rows[name][-len(texts) :] = [value] * len(texts)
            rows["detail"][-len(texts) :] = texts
        return rows


def _without_names(batch: pa.RecordBatch) -> dict[str, Any]:
    """Return the rows of a scan, summed over all names but "unknown"."""
    import pyarrow as pa
    import pyarrow.compute as pc

    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    for name in ("site_name", "app"):
        columns[name] = pc.if_else(pc.equal(columns[name], "unknown"), "unknown", "known")
    columns["user"] = pc.if_else(pc.is_valid(columns["user"]), "known", None)
    columns["dataset_name"] = pa.nulls(batch.num_rows, pa.string())
    keys = [name for name, kind in COLUMNS if kind == "string"]
    sums = [name for name, kind in COLUMNS if kind == "long"]
    summed = _summed(pa.table(columns), keys, sums)
    return {name: summed[name].to_pylist() for name, _ in COLUMNS}


def access_batch(
    rows: dict[str, list[Any]], times_ms: Sequence[int | None] | None
) -> pa.RecordBatch:
    """Return accesses as an Arrow batch: the columns of ``ACCESS_COLUMNS``, derived
    ones, ``hour`` (of the day, UTC) and ``time_ms``, which are null where a record has
    no time, ``cpu_seconds`` and ``wall_seconds``.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    batch = record_batch(rows, ACCESS_COLUMNS)
    count = batch.num_rows
    columns = dict(zip(batch.schema.names, batch.columns, strict=True))
    columns |= _derive_columns(columns)
    times = list(times_ms or ())[:count]
    columns["time_ms"] = pa.array(times + [None] * (count - len(times)), pa.int64())
    hours = [None if time is None else time % dates.DAY_MS // _HOUR_MS for time in times]
    columns["hour"] = pa.array(hours + [None] * (count - len(hours)), pa.int32())
    for name, source in _MILLISECONDS.items():
        columns[name] = pc.divide(columns[source].cast(pa.float64()), 1000.0)
    return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))


def _derive_columns(columns: Mapping[str, pa.Array]) -> dict[str, pa.Array]:
    """Return the derived columns of names of datasets and sites."""
    import pyarrow as pa

    columns_by_name = {}
    for name, rule in DERIVED.items():
        encoded = columns[rule.source].dictionary_encode()
        texts = [
            None if text is None else rule.derive(text) for text in encoded.dictionary.to_pylist()
        ]
        columns_by_name[name] = pa.DictionaryArray.from_arrays(
            encoded.indices, pa.array(texts, pa.string())
        ).dictionary_decode()
    return columns_by_name


def _texts(table: pa.Table) -> Iterator[str]:
    import pyarrow as pa

    for first in range(0, max(1, table.num_rows), _SLICE):
        sink = io.BytesIO()
        with pa.ipc.new_stream(sink, table.schema) as writer:
            writer.write_table(table.slice(first, _SLICE))
        yield base64.b64encode(sink.getvalue()).decode("ascii")


def split_folded(
    batches: Iterable[pa.RecordBatch], tables: list[pa.Table]
) -> Iterator[pa.RecordBatch]:
    """Yield the rows of a scan without those of jobs' tables, which are put into ``tables``."""
    import pyarrow as pa
    import pyarrow.compute as pc

    for batch in batches:
        is_table = pc.equal(batch["kind"].cast(pa.string()), FOLDED)
        if pc.any(is_table).as_py():
            for text in batch.filter(is_table)["detail"].to_pylist():
                tables.append(pa.ipc.open_stream(base64.b64decode(text)).read_all())
            batch = batch.filter(pc.invert(is_table))
        yield batch
