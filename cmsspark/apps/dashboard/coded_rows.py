"""The partials of a day with numbers for names, which are grouped many times faster than texts."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import numpy as np
import numpy.typing as npt

from cmsspark.base.errors import DataError
from cmsspark.base.names import DERIVED
from cmsspark.base.schemas import stored_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.sources.registry import STREAMS_OF_JOBS
from cmsspark.store.query.part_system import conformed_part, csv_table
from cmsspark.store.query.stored_parts import StoredInterval
from cmsspark.store.stored_columns import part_rows

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

TABLE: Final = "partials"
#: Columns with names, which are numbers while the segment is built.
NAMED: Final = ("stream", "dataset_name", "site_name", "app", "site_tier", "data_tier", "campaign")
_STORED: Final = (
    *("stream", "dataset_name", "site_name", "app", "user"),
    *("nacc", "remote_nacc", "read_bytes", "cpu_time", "wc_time"),
)
#: Stored column → the columns that are parts of its names.
DERIVATIONS: Final = {"dataset_name": ("data_tier", "campaign"), "site_name": ("site_tier",)}


class Names:
    """The numbers of all names of a segment; ``None`` of users has none."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, int]] = {name: {} for name in (*NAMED, "user")}
        #: Derived column → (text → the number of its part): days have mostly the same names.
        self._parts: dict[str, dict[str, int]] = {name: {} for names in DERIVATIONS.values() for name in names}

    def codes(self, column: str, texts: Sequence[str]) -> npt.NDArray[np.uint32]:
        """Return the number of each text."""
        known = self.of[column]
        return np.array([known.setdefault(text, len(known)) for text in texts], np.uint32)

    def part_codes(self, column: str, texts: Sequence[str]) -> npt.NDArray[np.uint32]:
        """Return the number of each text's derived column."""
        known = self._parts[column]
        for text in texts:
            if text not in known:
                part = part_of(column, text)
                known[text] = self.of[column].setdefault(part, len(self.of[column]))
        return np.array([known[text] for text in texts], np.uint32)

    def register(self, con: duckdb.DuckDBPyConnection) -> None:
        """Make a table of each column's names: ``code``, ``name``, and ``place`` in the order of names."""
        import pyarrow as pa

        for column, known in self.of.items():
            names = list(known)
            place = np.empty(len(names), np.uint32)
            place[sorted(range(len(names)), key=names.__getitem__)] = np.arange(len(names), dtype=np.uint32)
            table = pa.table(
                {"code": pa.array(range(len(names)), pa.uint32()), "name": pa.array(names, pa.string()), "place": place}
            )
            con.register("new_names", table)
            con.execute(f"CREATE TABLE {column}_names AS FROM new_names")
            con.unregister("new_names")


def write_coded(one: StoredInterval, names: Names, folder: Path) -> int:
    """Write the partials of a day with numbers for names. Raises DataError (65) where they are damaged.

    Returns their number.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    rows = _rows_of(one)
    if rows.num_rows != one.rows:
        raise DataError(
            f"the {TABLE} of {one.interval} have another number of rows than their manifest says",
            where=one.parts[0].path if one.parts else None,
            found=f"{rows.num_rows:,} rows where {one.rows:,} were written",
            next_step=f"run_spark data_aggregation --date {one.interval}",
        )
    columns: dict[str, Any] = {"day": pa.array(np.full(rows.num_rows, _day_number(one), np.int32))}
    for name in ("stream", "dataset_name", "site_name", "app", "user"):
        own = rows[name].combine_chunks()
        own = own.chunk(0) if isinstance(own, pa.ChunkedArray) and own.num_chunks else own
        texts = own.dictionary.to_pylist()
        indices = own.indices.fill_null(0).to_numpy(zero_copy_only=False)
        columns["user_id" if name == "user" else name] = pa.array(
            _taken(names.codes(name, texts), indices), mask=own.is_null().to_numpy(zero_copy_only=False)
        )
        for derivation in DERIVATIONS.get(name, ()):
            columns[derivation] = pa.array(_taken(names.part_codes(derivation, texts), indices))
    columns |= _counts(rows)
    for name, column in (("cpu_ms", "cpu_time"), ("wc_ms", "wc_time")):
        columns[name] = milliseconds(rows[column])
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{one.interval}.parquet", compression="lz4")
    return int(rows.num_rows)


def _counts(rows: pa.Table) -> dict[str, Any]:
    """Return the counts of accesses, and those of jobs in columns of their own; each null in rows of the other kind."""
    import pyarrow as pa
    import pyarrow.compute as pc

    streams = rows["stream"].combine_chunks()
    is_job = pc.fill_null(pc.is_in(streams.cast(pa.string()), value_set=pa.array(STREAMS_OF_JOBS, pa.string())), False)
    none = pa.scalar(None, pa.int64())
    counts = {name: pc.if_else(is_job, none, rows[name]) for name in ("nacc", "remote_nacc", "read_bytes")}
    counts["job_count"] = pc.if_else(is_job, rows["nacc"], none)
    counts["job_read_bytes"] = pc.if_else(is_job, rows["read_bytes"], none)
    return counts


def part_of(column: str, text: str) -> str:
    """Return a derived column of a name; an empty text where the name has no such part."""
    if column == "campaign":
        return part_of("processing_name", text).partition("-")[0]
    return DERIVED[column].of(text) or ""


def milliseconds(seconds: pa.ChunkedArray) -> pa.ChunkedArray:
    """Seconds of a stored cell as whole milliseconds, which they are (``docs/counting.md``, rule 11)."""
    import pyarrow as pa
    import pyarrow.compute as pc

    return pc.round(pc.multiply(seconds, 1000.0)).cast(pa.int64())


def _taken(codes: npt.NDArray[np.uint32], indices: npt.NDArray[Any]) -> npt.NDArray[np.uint32]:
    return codes[indices] if len(codes) else np.zeros(len(indices), np.uint32)


def _day_number(one: StoredInterval) -> int:
    return (one.first_day - date(1970, 1, 1)).days


def _rows_of(one: StoredInterval) -> pa.Table:
    """Return the partials of a day with texts as dictionaries, each column one chunk. Raises DataError (65)."""
    import pyarrow as pa

    if one.fault is not None:
        raise one.fault
    schema, files = stored_table(TABLE), LocalFiles()
    if one.fmt != "parquet":
        parts = [part_rows(files, csv_table(one), schema, _STORED)] if one.parts else []
    elif one.is_converted:
        parts = [conformed_part(files, part, schema).select(list(_STORED)) for part in one.parts]
    else:
        parts = [part_rows(files, part, schema, _STORED) for part in one.parts]
    plain = schema.arrow()
    fields = [
        pa.field(
            name,
            pa.dictionary(pa.int32(), pa.string()) if plain.field(name).type == pa.string() else plain.field(name).type,
        )
        for name in _STORED
    ]
    wanted = pa.schema(fields)
    return (
        pa.concat_tables([wanted.empty_table(), *(part.cast(wanted) for part in parts)])
        .unify_dictionaries()
        .combine_chunks()
    )
