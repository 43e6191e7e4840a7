"""Merging: the pre-aggregated rows of all tasks become the tables of a day and the side rows of its scan.

Processes of one host and Spark's tasks run this same code: one merge for the day here, one for each partition by the
report's keys there. Knows no Spark.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import date
from typing import TYPE_CHECKING, Final

import numpy as np

from cmsspark import buffers, days
from cmsspark.kernel.packing import Codes, pack
from cmsspark.kernel.pre_aggregate import ACCESS, QUARANTINE
from cmsspark.kernel.sums import Nullable, runs_of, sum_by_key
from cmsspark.names import DERIVED
from cmsspark.schemas import Table

if TYPE_CHECKING:
    import pyarrow as pa

#: What one row of the report is about, beside the day.
KEYS: Final = ("stream", "dataset_name", "site_name", "app")
#: What one row of the partials is about.
USER_KEYS: Final = (*KEYS, "user")
SUMS: Final = ("nacc", "remote_nacc", "read_bytes", "cpu_ms", "wall_ms")
#: The tables' columns of seconds, and the sums of milliseconds that they are made from.
SECONDS: Final = {"cpu_time": "cpu_ms", "wc_time": "wall_ms"}
#: Kinds of side rows that the merge adds: what a stream's accesses have; quarantined records that are not kept.
HAS, QUARANTINE_CUT = "has", "quarantine_cut"
#: Bytes of quarantined records that are kept of one stream: a log of garbage must not fill the driver's memory.
QUARANTINE_KEPT_BYTES: Final = 64 * 1024 * 1024

#: Rows that are held before they are merged.
MERGE_AT: Final = 2_000_000

#: A row that is no access: kind, stream, name, count, detail.
SideRow = tuple[str, str, str, int, str | None]


@dataclass
class Merge:
    """Takes in batches of ``fold.COLUMNS``; texts may be plain or dictionaries."""

    kept_bytes: int = QUARANTINE_KEPT_BYTES
    #: Accesses, each batch with the columns ``USER_KEYS`` and ``SUMS``.
    _batches: list[pa.RecordBatch] = field(default_factory=list)
    _held: int = 0
    _merged: int = 0
    _side: Counter[tuple[str, str, str, str | None]] = field(default_factory=Counter)
    _quarantined: list[tuple[str, str]] = field(default_factory=list)
    _quarantined_bytes: Counter[str] = field(default_factory=Counter)

    def add(self, batch: pa.RecordBatch) -> None:
        """Take in the rows of a task. Raises DataError (65) where a sum leaves 64 bits."""
        import pyarrow.compute as pc

        is_access = pc.equal(batch["kind"], buffers.scalar(ACCESS, "string"))
        # Most batches have rows of one kind, and many of them: these are not copied.
        accesses = batch if pc.all(is_access).as_py() else batch.filter(is_access)
        if accesses.num_rows < batch.num_rows:
            self._add_side(batch.filter(pc.invert(is_access)))
        if accesses.num_rows:
            self._batches.append(accesses.select([*USER_KEYS, *SUMS]))
            self._held += accesses.num_rows
        if self._held >= max(MERGE_AT, 2 * self._merged):
            self._batches = [_coded(self._batches).merged(USER_KEYS).as_batch()]
            self._held = self._merged = self._batches[0].num_rows

    def _add_side(self, batch: pa.RecordBatch) -> None:
        columns = (batch[name].to_pylist() for name in ("kind", "stream", "app", "nacc", "detail"))
        for kind, stream, name, count, detail in zip(*columns, strict=True):
            if kind != QUARANTINE:
                self._side[kind, stream, name, detail] += count
            elif self._quarantined_bytes[stream] < self.kept_bytes:
                self._quarantined_bytes[stream] += len(detail)
                self._quarantined.append((stream, detail))
            else:
                self._side[QUARANTINE_CUT, stream, name, None] += 1

    def result(self) -> Aggregated:
        """The merged rows. Raises DataError (65) where a sum leaves 64 bits."""
        rows, self._batches = _coded(self._batches), []
        return Aggregated(rows.merged(USER_KEYS), dict(self._side), self._quarantined)


def merge(batches: Iterable[pa.RecordBatch]) -> Aggregated:
    """The rows of all tasks with each (stream, dataset, site, app, user) once, sorted by it, null first.

    ``batches`` have ``fold.COLUMNS``. Raises DataError (65) where a sum leaves 64 bits.
    """
    merging = Merge()
    for batch in batches:
        merging.add(batch)
    return merging.result()


@dataclass(frozen=True)
class Rows:
    """Rows whose texts are numbers: a key's number is the place of its text in ``texts``.

    Texts are sorted and distinct, and the first one is null, so that rows sort by their numbers.
    """

    texts: Mapping[str, list[str | None]]
    keys: Mapping[str, Codes]
    sums: Mapping[str, Nullable]

    def __len__(self) -> int:
        return len(self.sums["nacc"].values)

    def merged(self, keys: Sequence[str]) -> Rows:
        """Each combination of ``keys`` once, in their order, and the sums added up."""
        packed, _ = pack([self.keys[key] for key in keys], len(self))
        runs = runs_of(packed)
        return Rows(self.texts, {key: self.keys[key][runs.first] for key in keys}, sum_by_key(runs, self.sums))

    def as_batch(self) -> pa.RecordBatch:
        """The rows with their texts as dictionaries."""
        import pyarrow as pa

        columns = {key: buffers.coded(self.texts[key], codes) for key, codes in self.keys.items()}
        columns |= {name: buffers.from_numpy(*column) for name, column in self.sums.items()}
        return pa.RecordBatch.from_arrays(list(columns.values()), list(columns))

    def as_table(self, day: date, schema: Table) -> pa.Table:
        """The columns of ``schema``. Only here do keys and sums become the columns of a day's tables."""
        import pyarrow as pa

        return pa.table({name: self._column(name, day) for name in schema.names}, schema=schema.arrow())

    def _column(self, name: str, day: date) -> pa.Array:
        if name in self.keys:
            return self._texts_of(name, self.texts[name])
        if name in DERIVED:
            rule = DERIVED[name]
            return self._texts_of(
                rule.source, [None if text is None else rule.of(text) for text in self.texts[rule.source]]
            )
        if name in SECONDS:
            milliseconds = self.sums[SECONDS[name]]
            return buffers.from_numpy(milliseconds.values / 1000.0, milliseconds.known)
        if name == "day":
            import pyarrow as pa

            number = days.start_ms(day) // days.DAY_MS
            return buffers.from_numpy(np.full(len(self), number, np.int32)).view(pa.date32())
        if name == "timestamp":
            return buffers.from_numpy(np.full(len(self), days.start_ms(day), np.int64))
        return buffers.from_numpy(*self.sums[name])

    def _texts_of(self, key: str, texts: Sequence[str | None]) -> pa.Array:
        return buffers.array(texts, "string").take(buffers.from_numpy(self.keys[key]))


@dataclass(frozen=True)
class Aggregated:
    """What a scan comes to: ``people`` has one row for each (stream, dataset, site, app, user), in that order."""

    people: Rows
    #: Rows that are no accesses: counts by kind, stream, name and detail.
    side: Mapping[tuple[str, str, str, str | None], int]
    #: (stream, detail) of each quarantined record that is kept.
    quarantined: list[tuple[str, str]]

    def partials(self, day: date, schema: Table) -> pa.Table:
        """``schemas/tables/partials.yaml``: one row for each (day, stream, dataset, site, app, user)."""
        return self.people.as_table(day, schema)

    def report(self, day: date, schema: Table) -> pa.Table:
        """``schemas/tables/data_aggregation.yaml``: one row for each (day, stream, dataset, site, app).

        Raises DataError (65) where a sum leaves 64 bits.
        """
        # Each user has one row for a key: counting those that are not null counts people.
        is_named = Nullable((self.people.keys["user"] > 0).astype(np.int64))
        people = replace(self.people, sums={**self.people.sums, "distinct_users": is_named})
        return people.merged(KEYS).as_table(day, schema)

    def side_rows(self) -> Iterator[SideRow]:
        """The side rows of the scan; the accesses of each stream as (``access``, stream, ``matched``, count, None); and
        (``has``, stream, what, rows, None) for each of bytes, site, user and app that any of its accesses has.
        """
        for (kind, stream, name, detail), count in self.side.items():
            yield kind, stream, name, count, detail
        people, keys, texts = self.people, self.people.keys, self.people.texts
        has = {
            "bytes": people.sums["read_bytes"].values > 0,
            "site": keys["site_name"] != _place("unknown", texts["site_name"]),
            "user": keys["user"] > 0,
            "app": keys["app"] != _place("unknown", texts["app"]),
        }
        for number, of in enumerate(texts["stream"]):
            of_stream = keys["stream"] == number
            if of is not None and of_stream.any():
                yield ACCESS, of, "matched", int(people.sums["nacc"].values[of_stream].sum()), None
                for what, is_there in has.items():
                    if rows := int((is_there & of_stream).sum()):
                        yield HAS, of, what, rows, None


def _coded(batches: Sequence[pa.RecordBatch]) -> Rows:
    """The rows of all batches, their texts as numbers."""
    import pyarrow as pa

    texts, keys, sums = {}, {}, {}
    for name in USER_KEYS:
        texts[name], keys[name] = _numbered([batch[name] for batch in batches])
    for name in SUMS:
        column = pa.chunked_array([batch[name] for batch in batches], pa.int64())
        known = buffers.is_there(column) if column.null_count else None
        sums[name] = Nullable(buffers.to_numpy(column, np.int64), known)
    return Rows(texts, keys, sums)


def _numbered(chunks: Sequence[pa.Array]) -> tuple[list[str | None], Codes]:
    """The distinct texts of a column in order, null before them; and of each row the place of its text."""
    import pyarrow as pa

    if not chunks:
        return [None], np.zeros(0, np.int32)
    encoded = [chunk if pa.types.is_dictionary(chunk.type) else chunk.dictionary_encode() for chunk in chunks]
    whole = pa.concat_arrays(encoded)  # with one dictionary for all
    texts = whole.dictionary.to_pylist()
    ranked = sorted(range(len(texts)), key=texts.__getitem__)
    ranks = np.zeros(len(texts) + 1, np.int32)  # -1 stands for null, and takes the last
    ranks[ranked] = np.arange(1, len(texts) + 1)
    return [None, *(texts[place] for place in ranked)], ranks[buffers.to_numpy(whole.indices, np.int32, -1)]


def _place(text: str, texts: Sequence[str | None]) -> int:
    return texts.index(text) if text in texts else -1
