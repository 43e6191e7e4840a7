"""The merge: the pre-aggregated rows of all tasks become the tables of a day and the
side rows of its scan.

Both runners use this code: the local runner merges the whole day at once, Spark merges
each partition by the keys of the report. Knows no Spark.
"""

from __future__ import annotations

from collections import Counter, defaultdict
from collections.abc import Iterable, Iterator, Mapping, Sequence
from datetime import date
from typing import TYPE_CHECKING, Final

import msgspec
import numpy as np
from msgspec.structs import replace

from cmsspark.base import buffers, dates
from cmsspark.base.names import DERIVED
from cmsspark.base.schemas import Table
from cmsspark.counting import reconciliation
from cmsspark.counting.packing import Codes, pack
from cmsspark.counting.pre_aggregate import (
    ACCESS,
    BIN,
    PREFIX,
    QUARANTINE,
    UNMATCHED,
    UNMATCHED_SITE,
    unmatched_bin,
)
from cmsspark.counting.site_pairs import PAIR, PAIR_KEYS, SCAN_COLUMNS
from cmsspark.counting.sums import Nullable, find_runs, in_seconds, sum_by_key

if TYPE_CHECKING:
    import pyarrow as pa

#: The keys of a row of the report, besides the day.
KEYS: Final = ("stream", "dataset_name", "site_name", "app")
#: The keys of a row of the partials, besides the day.
USER_KEYS: Final = (*KEYS, "user")
SUMS: Final = ("nacc", "remote_nacc", "read_bytes", "cpu_ms", "wall_ms")
#: The columns of seconds in the tables, and the sums of milliseconds that they are computed from.
SECONDS: Final = {"cpu_time": "cpu_ms", "wc_time": "wall_ms"}
#: Kinds of side rows that the merge adds: values that the accesses of a stream have;
#: quarantined records not kept.
HAS, QUARANTINE_CUT = "has", "quarantine_cut"
#: Bytes of quarantined records that are kept for each stream: a log of garbage must not
#: fill the driver's memory.
QUARANTINE_KEPT_BYTES: Final = 64 * 1024 * 1024

#: Rows that are collected before they are merged.
MERGE_AT: Final = 2_000_000

#: A row that is not an access: kind, stream, name, count, detail.
SideRow = tuple[str, str, str, int, str | None]


class Merge(msgspec.Struct):
    """Merges batches of ``pre_aggregate.COLUMNS``. Texts may be plain or dictionary arrays."""

    kept_bytes: int = QUARANTINE_KEPT_BYTES
    _accesses: _KeyedRows = msgspec.field(default_factory=lambda: _KeyedRows(USER_KEYS))
    _pairs: _KeyedRows = msgspec.field(
        default_factory=lambda: _KeyedRows(PAIR_KEYS, is_capped=True)
    )
    _side: Counter[tuple[str, str, str, str | None]] = msgspec.field(default_factory=Counter)
    #: Records of files that the shuffle join has not found, by stream and prefix.
    _unmatched: defaultdict[str, Counter[str]] = msgspec.field(
        default_factory=lambda: defaultdict(Counter)
    )
    _quarantined: list[tuple[str, str]] = msgspec.field(default_factory=list)
    _quarantined_bytes: Counter[str] = msgspec.field(default_factory=Counter)

    def add(self, batch: pa.RecordBatch) -> None:
        """Add the rows of a task. Raises DataError (65) if a sum exceeds 64 bits."""
        import pyarrow.compute as pc

        for kind, add in ((ACCESS, self._accesses.add), (PAIR, self._add_pairs)):
            is_kind = pc.equal(batch["kind"], buffers.scalar(kind, "string"))
            # Most batches have many rows of one kind; they are not copied.
            if pc.all(is_kind).as_py():
                add(batch)
                return
            add(batch.filter(is_kind))
            batch = batch.filter(pc.invert(is_kind))
        names = ("kind", "stream", "app", "nacc", "detail", "site_name")
        columns = (batch[name].to_pylist() for name in names)
        for row_kind, stream, name, count, detail, site in zip(*columns, strict=True):
            if row_kind == UNMATCHED:
                self._side[BIN, stream, unmatched_bin(name), None] += count
                self._side[UNMATCHED_SITE, stream, site, None] += count
                reconciliation.add(self._unmatched[stream], {name: count})
            elif row_kind != QUARANTINE:
                self._side[row_kind, stream, name, detail] += count
            elif self._quarantined_bytes[stream] < self.kept_bytes:
                self._quarantined_bytes[stream] += len(detail)
                self._quarantined.append((stream, detail))
            else:
                self._side[QUARANTINE_CUT, stream, name, None] += 1

    def _add_pairs(self, batch: pa.RecordBatch) -> None:
        columns = [SCAN_COLUMNS.get(name, name) for name in (*PAIR_KEYS, *SUMS)]
        self._pairs.add(batch.select(columns).rename_columns([*PAIR_KEYS, *SUMS]))

    def result(self) -> Aggregated:
        """Return the merged rows. Raises DataError (65) if a sum exceeds 64 bits."""
        for stream, counts in self._unmatched.items():
            self._side.update(
                {(PREFIX, stream, name, ""): count for name, count in counts.items()}
            )
        return Aggregated(
            self._accesses.merged(), self._pairs.merged(), dict(self._side), self._quarantined
        )


def merge(batches: Iterable[pa.RecordBatch]) -> Aggregated:
    """Return the rows of all tasks with each (stream, dataset, site, app, user) once,
    sorted by it, null first.

    ``batches`` have ``pre_aggregate.COLUMNS``. Raises DataError (65) if a sum exceeds 64 bits.
    """
    merging = Merge()
    for batch in batches:
        merging.add(batch)
    return merging.result()


class _KeyedRows(msgspec.Struct):
    """Rows that are merged by their keys, now and then and at the end."""

    keys: Sequence[str]
    #: A sum that exceeds 64 bits is 2^63-1 instead of an error.
    is_capped: bool = False
    #: Each batch has the columns of the keys and ``SUMS``.
    _batches: list[pa.RecordBatch] = msgspec.field(default_factory=list)
    _row_count: int = 0
    _merged: int = 0

    def add(self, batch: pa.RecordBatch) -> None:
        if batch.num_rows:
            self._batches.append(batch.select([*self.keys, *SUMS]))
            self._row_count += batch.num_rows
        if self._row_count >= max(MERGE_AT, 2 * self._merged):
            self._batches = [self.merged().as_batch()]
            self._row_count = self._merged = self._batches[0].num_rows

    def merged(self) -> Rows:
        """Return the rows with each key once, and forget them."""
        batches, self._batches = self._batches, []
        # The rows of all batches, with numbers for texts.
        import pyarrow as pa

        texts, keys, sums = {}, {}, {}
        for name in self.keys:
            texts[name], keys[name] = number_texts([batch[name] for batch in batches])
        for name in SUMS:
            column = pa.chunked_array([batch[name] for batch in batches], pa.int64())
            is_valid = buffers.is_there(column) if column.null_count else None
            sums[name] = Nullable(buffers.to_numpy(column, np.int64), is_valid)
        return Rows(texts, keys, sums).merged(self.keys, is_capped=self.is_capped)


class Rows(msgspec.Struct, frozen=True):
    """Rows with numbers for texts: the number of a key is the position of its text in ``texts``.

    The texts are distinct and sorted, null first, so that the order of numbers is the
    order of texts.
    """

    texts: Mapping[str, list[str | None]]
    keys: Mapping[str, Codes]
    sums: Mapping[str, Nullable]

    def __len__(self) -> int:
        return len(self.sums["nacc"].values)

    def merged(self, keys: Sequence[str], *, is_capped: bool = False) -> Rows:
        """Return the rows with each combination of ``keys`` once, in their order, and
        the sums added up.
        """
        packed, _ = pack([self.keys[key] for key in keys], len(self))
        runs = find_runs(packed)
        sums = sum_by_key(runs, self.sums, is_capped=is_capped)
        return Rows(self.texts, {key: self.keys[key][runs.first] for key in keys}, sums)

    def as_batch(self) -> pa.RecordBatch:
        """Return the rows as a batch, with texts as dictionary arrays."""
        import pyarrow as pa

        columns = {
            key: buffers.dictionary_array(self.texts[key], codes)
            for key, codes in self.keys.items()
        }
        columns |= {name: buffers.from_numpy(*column) for name, column in self.sums.items()}
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def as_table(self, day: date, schema: Table) -> pa.Table:
        """Return the rows as a table with the columns of ``schema``. Only this method
        computes the tables' columns.
        """
        import pyarrow as pa

        return pa.table(
            {name: self._column(name, day) for name in schema.names}, schema=schema.arrow()
        )

    def _column(self, name: str, day: date) -> pa.Array:
        if name in self.keys:
            return self._decode_texts(name, self.texts[name])
        if name in DERIVED:
            rule = DERIVED[name]
            return self._decode_texts(
                rule.source,
                [None if text is None else rule.derive(text) for text in self.texts[rule.source]],
            )
        if name in SECONDS:
            milliseconds = self.sums[SECONDS[name]]
            return buffers.from_numpy(in_seconds(milliseconds.values), milliseconds.is_valid)
        if name == "day":
            import pyarrow as pa

            number = dates.start_ms(day) // dates.DAY_MS
            return buffers.from_numpy(np.full(len(self), number, np.int32)).view(pa.date32())
        if name == "timestamp":
            return buffers.from_numpy(np.full(len(self), dates.start_ms(day), np.int64))
        return buffers.from_numpy(*self.sums[name])

    def _decode_texts(self, key: str, texts: Sequence[str | None]) -> pa.Array:
        return buffers.array(texts, "string").take(buffers.from_numpy(self.keys[key]))


class Aggregated(msgspec.Struct, frozen=True):
    """The result of a scan. ``by_user`` has one row for each (stream, dataset, site,
    app, user), in that order.
    """

    by_user: Rows
    #: One row for each (stream, data tier, reader's site, source site), in that order (rule 63).
    by_pair: Rows
    #: Rows that are not accesses: counts by kind, stream, name and detail.
    side: Mapping[tuple[str, str, str, str | None], int]
    #: (stream, detail) of each kept quarantined record.
    quarantined: list[tuple[str, str]]

    def partials(self, day: date, schema: Table) -> pa.Table:
        """Return ``schemas/tables/partials.yaml``: one row for each (day, stream,
        dataset, site, app, user).
        """
        return self.by_user.as_table(day, schema)

    def report(self, day: date, schema: Table) -> pa.Table:
        """Return ``schemas/tables/data_aggregation.yaml``: one row for each (day,
        stream, dataset, site, app).

        Raises DataError (65) if a sum exceeds 64 bits.
        """
        # Each user has one row for a key: the number of rows with a user is the number
        # of distinct users.
        has_user = Nullable((self.by_user.keys["user"] > 0).astype(np.int64))
        rows = replace(self.by_user, sums={**self.by_user.sums, "distinct_users": has_user})
        return rows.merged(KEYS).as_table(day, schema)

    def site_pairs(self, day: date, schema: Table) -> pa.Table:
        """Return ``schemas/tables/site_pairs.yaml``: one row for each (day, stream,
        data tier, reader, source).
        """
        return self.by_pair.as_table(day, schema)

    def side_rows(self) -> Iterator[SideRow]:
        """Yield the side rows of the scan, and two kinds of rows on the accesses of each stream.

        (``access``, stream, ``matched``, count, None) is the number of accesses;
        (``has``, stream, name, rows, None) is the number of rows that have bytes, a
        site, a user or an app, where it is not 0.
        """
        for (kind, stream, name, detail), count in self.side.items():
            yield kind, stream, name, count, detail
        sums, keys, texts = self.by_user.sums, self.by_user.keys, self.by_user.texts
        has = {
            "bytes": sums["read_bytes"].values > 0,
            "site": keys["site_name"] != _position("unknown", texts["site_name"]),
            "user": keys["user"] > 0,
            "app": keys["app"] != _position("unknown", texts["app"]),
        }
        for number, of_number in enumerate(texts["stream"]):
            of_stream = keys["stream"] == number
            if of_number is not None and of_stream.any():
                yield ACCESS, of_number, "matched", int(sums["nacc"].values[of_stream].sum()), None
                for name, has_value in has.items():
                    if rows := int((has_value & of_stream).sum()):
                        yield HAS, of_number, name, rows, None


def number_texts(chunks: Sequence[pa.Array]) -> tuple[list[str | None], Codes]:
    """Return the distinct texts of a column, sorted, null first; and for each row the
    position of its text.
    """
    import pyarrow as pa

    if not chunks:
        return [None], np.zeros(0, np.int32)
    encoded = [
        chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode()
        for chunk in chunks
    ]
    combined = pa.concat_arrays(encoded)  # this unifies the dictionaries
    texts = combined.dictionary.to_pylist()
    ranked = sorted(range(len(texts)), key=texts.__getitem__)
    ranks = np.zeros(len(texts) + 1, np.int32)  # index -1 is null; it takes the last element
    ranks[ranked] = np.arange(1, len(texts) + 1)
    return [None, *(texts[index] for index in ranked)], ranks[
        buffers.to_numpy(combined.indices, np.int32, -1)
    ]


def _position(text: str, texts: Sequence[str | None]) -> int:
    return texts.index(text) if text in texts else -1
