"""The merge in Spark's tasks: one for each partition by the report's keys. Runs in Python workers; knows no Spark."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from datetime import date
from typing import TYPE_CHECKING, Any, Final

import numpy as np

from cmsspark import buffers
from cmsspark.kernel.merge import merge
from cmsspark.kernel.pre_aggregate import QUARANTINE
from cmsspark.schemas import stored_table

if TYPE_CHECKING:
    import pyarrow as pa

#: Kinds of a merge's rows that belong to a table: of the partials, and of the report.
PARTIALS, REPORT = "partials", "report"
#: The kind of side rows that say how many rows a table has.
ROWS: Final = "rows"
#: Rows of an Arrow batch for the JVM, which holds it outside its heap.
_BATCH_ROWS: Final = 100_000
_SIDE: Final = ("kind", "stream", "app", "nacc", "detail")


def merged_columns() -> dict[str, str]:
    """Name and type word of the columns of merged rows: ``kind``, those of both tables, and ``detail``."""
    both = (*stored_table("partials").columns, *stored_table("data_aggregation").columns)
    return {"kind": "string", **{column.name: column.type for column in both}, "detail": "string"}


@dataclass(frozen=True)
class MergeTask:
    """Merges one partition: batches of ``fold.COLUMNS`` become batches of ``merged_columns()``, whose ``kind`` says
    the table of a row, or that it is a side row: with its name in ``app`` and its count in ``nacc``.
    """

    day: date

    def __call__(self, batches: Iterable[pa.RecordBatch]) -> Iterator[pa.RecordBatch]:

        found = merge(batches)
        side: list[tuple[Any, ...]] = list(found.side_rows())
        side += [(QUARANTINE, stream, "malformed", 0, detail) for stream, detail in found.quarantined]
        for kind, table in (
            (PARTIALS, found.partials(self.day, stored_table("partials"))),
            (REPORT, found.report(self.day, stored_table("data_aggregation"))),
        ):
            side.append((ROWS, None, kind, table.num_rows, None))
            of_kind = buffers.coded([kind], np.zeros(table.num_rows, np.int32)).dictionary_decode()
            columns = {name: table[name] for name in table.column_names}
            yield from _batches({**columns, "kind": of_kind}, table.num_rows)
        words = merged_columns()
        values = zip(*side, strict=True)
        columns = {name: buffers.array(one, words[name]) for name, one in zip(_SIDE, values, strict=True)}
        yield from _batches(columns, len(side))


def _batches(columns: Mapping[str, Any], count: int) -> Iterator[pa.RecordBatch]:
    """The rows as batches; columns that are not there are null."""
    import pyarrow as pa

    kinds = {"string": pa.string(), "long": pa.int64(), "double": pa.float64(), "date": pa.date32()}
    words = merged_columns()
    whole = {name: columns[name] if name in columns else pa.nulls(count, kinds[word]) for name, word in words.items()}
    yield from pa.table(whole).to_batches(max_chunksize=_BATCH_ROWS)
