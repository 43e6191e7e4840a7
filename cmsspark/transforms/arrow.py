"""A scan's rows on one host, without Spark: the sums and tables of :mod:`cmsspark.transforms.aggregate`, on Arrow.

Both give the same cells; ``tests/transforms/test_arrow.py`` holds them against each other.
"""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, replace
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark import days
from cmsspark.buffers import array, from_numpy, is_there, scalar, to_numpy
from cmsspark.schemas import Table
from cmsspark.transforms.aggregate import KEYS, SUMS
from cmsspark.transforms.catalogue import Longs
from cmsspark.transforms.fold import ACCESS, QUARANTINE, sum_runs

if TYPE_CHECKING:
    import pyarrow as pa

_PERSON_KEYS: Final = (*KEYS, "user")
_MOST: Final = 2**62


@dataclass(frozen=True)
class Coded:
    """A column of texts as numbers: ``texts`` are sorted and distinct, ``codes`` index them, -1 is null."""

    texts: list[str]
    codes: Longs

    def per_text(self, of_text: Callable[[str], str | None]) -> pa.Array:
        """A column made from this one, by a function that is asked once for each text."""
        return _taken([of_text(text) for text in self.texts], self.codes)

    def at(self, rows: npt.NDArray[np.intp]) -> Coded:
        """These rows alone."""
        return Coded(self.texts, self.codes[rows])


@dataclass(frozen=True)
class Sums:
    """Rows with their keys and sums; where ``there`` is false the sum is null."""

    keys: dict[str, Coded]
    values: dict[str, Longs]
    there: dict[str, npt.NDArray[np.bool_]]
    #: Distinct users that are known, of each row.
    users: Longs

    def __len__(self) -> int:
        return len(self.users)

    def sum(self, name: str, *, per: int | None = None) -> pa.Array:
        """A column of sums; with ``per`` divided by it."""
        values = self.values[name] if per is None else self.values[name] / float(per)
        return from_numpy(values, self.there[name])


@dataclass
class Folded:
    """What a scan found: sums of its accesses, and its other rows as they came (kind, stream, app, nacc, detail)."""

    people: Sums
    others: list[pa.RecordBatch]

    def told(self) -> Iterator[tuple[str, str, str, int, str | None]]:
        """(kind, stream, name, count, detail) of each row that is neither access nor quarantined record, and the
        accesses of each stream as ``matched``.
        """
        for batch in self.others:
            for kind, *rest in _rows(batch, ("kind", "stream", "app", "nacc", "detail")):
                if kind != QUARANTINE:
                    yield (kind, *rest)
        streams = self.people.keys["stream"]
        for number, stream in enumerate(streams.texts):
            yield ACCESS, stream, "matched", int(self.people.values["nacc"][streams.codes == number].sum()), None

    def quarantined(self) -> Iterator[tuple[str, str]]:
        """(stream, detail) of each quarantined record."""
        for batch in self.others:
            for kind, stream, detail in _rows(batch, ("kind", "stream", "detail")):
                if kind == QUARANTINE:
                    yield stream, detail

    def known(self) -> dict[str, set[str]]:
        """What any counted access has, by stream: bytes, site, user, app."""
        people = self.people
        there = {
            "bytes": people.values["read_bytes"] > 0,
            "site": ~_is_text(people.keys["site_name"], "unknown"),
            "user": people.keys["user"].codes >= 0,
            "app": ~_is_text(people.keys["app"], "unknown"),
        }
        streams = people.keys["stream"]
        return {
            stream: {what for what, has in there.items() if bool(has[streams.codes == number].any())}
            for number, stream in enumerate(streams.texts)
        }


def fold_batches(batches: Iterable[pa.RecordBatch]) -> Folded:
    """The rows of all processes, with each access key once and sorted by it.

    Raises DataError (65) where a sum leaves 64 bits.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    accesses: list[pa.RecordBatch] = []
    others: list[pa.RecordBatch] = []
    for batch in batches:
        is_access = pc.equal(batch["kind"], scalar(ACCESS, "string"))
        for found, kept in ((accesses, is_access), (others, pc.invert(is_access))):
            # Most batches have but one kind of rows, and are many: they stay where they are.
            some = batch if pc.all(kept).as_py() else batch.filter(kept)
            if some.num_rows:
                found.append(some)
    keys = {name: _coded([batch[name] for batch in accesses]) for name in _PERSON_KEYS}
    sums = {name: pa.chunked_array([batch[name] for batch in accesses], pa.int64()) for name in SUMS}
    there = {name: is_there(column) for name, column in sums.items()}
    values = {name: to_numpy(column, np.int64) for name, column in sums.items()}
    rows = sum(batch.num_rows for batch in accesses)
    people = _summed(Sums(keys, values, there, np.zeros(rows, np.int64)), _PERSON_KEYS)
    # From here on each user has one row for a key.
    return Folded(replace(people, users=(people.keys["user"].codes >= 0).astype(np.int64)), others)


def partials(folded: Folded, day: date, schema: Table) -> pa.Table:
    """``schemas/tables/partials.yaml``: one row for each (day, stream, dataset, site, app, user)."""
    people = folded.people
    return _table(people, day, schema, _texts(people, _PERSON_KEYS))


def report(folded: Folded, day: date, schema: Table) -> pa.Table:
    """``schemas/tables/data_aggregation.yaml``: one row for each (day, stream, dataset, site, app)."""

    sums = _summed(folded.people, KEYS)
    dataset = sums.keys["dataset_name"]
    columns = _texts(sums, KEYS)
    columns["distinct_users"] = from_numpy(sums.users)
    columns["site_tier"] = sums.keys["site_name"].per_text(lambda site: site.split("_", 1)[0])
    for place, name in enumerate(("primary_name", "processing_name", "data_tier"), 1):
        columns[name] = dataset.per_text(lambda text, place=place: _part(text, place))  # type: ignore[misc]
    columns["timestamp"] = from_numpy(np.full(len(sums), days.start_ms(day), np.int64))
    return _table(sums, day, schema, columns)


def _table(sums: Sums, day: date, schema: Table, columns: dict[str, pa.Array]) -> pa.Table:
    import pyarrow as pa

    number = days.start_ms(day) // days.DAY_MS
    columns["day"] = from_numpy(np.full(len(sums), number, np.int32)).view(pa.date32())
    for name in ("nacc", "remote_nacc", "read_bytes"):
        columns[name] = sums.sum(name)
    columns["cpu_time"] = sums.sum("cpu_ms", per=1000)
    columns["wc_time"] = sums.sum("wall_ms", per=1000)
    return pa.table({name: columns[name] for name in schema.names}, schema=schema.arrow())


def _texts(sums: Sums, names: Sequence[str]) -> dict[str, pa.Array]:
    return {name: sums.keys[name].per_text(lambda text: text) for name in names}


def _summed(sums: Sums, names: Sequence[str]) -> Sums:
    """Each combination of the keys ``names`` once, in their order (null first), and all else summed."""
    order, starts = _runs([sums.keys[name] for name in names])
    first = order[starts]
    values, there = {}, {}
    for name in SUMS:
        values[name] = sum_runs(sums.values[name][order], starts, name)
        has = sums.there[name][order]
        there[name] = np.logical_or.reduceat(has, starts) if len(starts) else has
    users = sum_runs(sums.users[order], starts, "users")
    return Sums({name: sums.keys[name].at(first) for name in names}, values, there, users)


def _runs(keys: Sequence[Coded]) -> tuple[npt.NDArray[np.intp], npt.NDArray[np.intp]]:
    """The rows in the keys' order, and where in it each combination begins."""
    packed = np.zeros(len(keys[0].codes), np.int64)
    most = 1
    for key in keys:
        width = len(key.texts) + 1
        if most > _MOST // width:
            # The keys so far as their rank: never more than there are rows.
            packed = np.unique(packed, return_inverse=True)[1].reshape(-1).astype(np.int64)
            most = len(packed) + 1
        packed = packed * width + key.codes + 1
        most *= width
    order = np.argsort(packed, kind="stable")
    in_order = packed[order]
    if not len(in_order):
        return order, np.zeros(0, np.intp)
    return order, np.flatnonzero(np.concatenate(([True], in_order[1:] != in_order[:-1])))


def _coded(chunks: Sequence[pa.Array]) -> Coded:
    """Texts, plain or as dictionaries in which each is once."""
    import pyarrow as pa

    coded = [one if pa.types.is_dictionary(one.type) else one.dictionary_encode() for one in chunks]
    packed = pa.concat_arrays(coded) if coded else array([], "string").dictionary_encode()
    texts = packed.dictionary.to_pylist()
    ranked = sorted(range(len(texts)), key=texts.__getitem__)
    ranks = np.empty(len(texts) + 1, np.int64)
    ranks[ranked] = np.arange(len(texts))
    ranks[-1] = -1
    codes = to_numpy(packed.indices, np.int32, -1)
    return Coded([texts[place] for place in ranked], ranks[codes])


def _taken(texts: Sequence[str | None], codes: Longs) -> pa.Array:
    """The text that each code stands for; -1 is null."""
    there = codes >= 0
    return array(texts, "string").take(from_numpy(np.where(there, codes, 0), there))


def _is_text(column: Coded, text: str) -> npt.NDArray[np.bool_]:
    number = column.texts.index(text) if text in column.texts else -2
    found: npt.NDArray[np.bool_] = column.codes == number
    return found


def _part(dataset: str, place: int) -> str | None:
    parts = dataset.split("/")
    return parts[place] if place < len(parts) else None


def _rows(batch: pa.RecordBatch, names: Sequence[str]) -> Iterator[tuple[Any, ...]]:
    return zip(*(batch[name].to_pylist() for name in names), strict=True)
