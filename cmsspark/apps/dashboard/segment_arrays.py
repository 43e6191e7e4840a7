"""Files of a segment that pages map into memory: sums and people by dataset, sorted by it, and where each dataset is.

Datasets, streams and site tiers are numbers in the order of the segment's own names, so a dataset's rows stand together
and its numbers rise with its name. Arrow files without compression are read in place: pages that nobody asks for stay
on disk.
"""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from cmsspark.base.errors import DataError

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

SUMS_FILE, PEOPLE_FILE, NAMES_FILE = "datasets.arrow", "dataset_people.arrow", "dataset_names.parquet"
#: Stands for null in sums, which are never negative, and in days.
NULL: Final = -1
#: What a segment's file of sums says of itself: the names behind its numbers, and the sum of each column.
_ABOUT: Final = b"cmsspark"


class About(msgspec.Struct, frozen=True):
    """The names of streams and site tiers by number; ``totals``: column → the sum of all its rows, as text."""

    streams: list[str]
    site_tiers: list[str]
    totals: dict[str, str] = {}
    pairs: list[tuple[int, int]] = []


def write_sums(con: duckdb.DuckDBPyConnection, folder: Path, sums: str, kinds: Sequence[tuple[str, str]]) -> None:
    """Write sums by dataset, stream and site tier from the table ``result``, and the names of the datasets.

    ``kinds``: each sum with its type in SQL. ``last_day`` is the last day with an access or a job, as days since 1970.
    """
    columns = ", ".join(f"coalesce(result.{name}, {NULL})::{kind} AS {name}" for name, kind in kinds)
    rows = con.sql(
        f"SELECT d.place AS dataset, s.place::USMALLINT AS stream, t.place::USMALLINT AS site_tier, "
        f"coalesce(result.last_day - DATE '1970-01-01', {NULL})::INTEGER AS last_day, {columns} "
        "FROM result JOIN dataset_name_names d ON result.dataset_name = d.code "
        "JOIN stream_names s ON result.stream = s.code JOIN site_tier_names t ON result.site_tier = t.code ORDER BY ALL"
    ).to_arrow_table()
    totals = con.execute(f"SELECT {sums} FROM result").fetchall()[0]
    about = About(
        _names(con, "stream"),
        _names(con, "site_tier"),
        {name: str(int(total or 0)) for (name, _), total in zip(kinds, totals, strict=True)},
    )
    _write(folder / SUMS_FILE, rows, about)
    con.execute(
        "COPY (SELECT name FROM dataset_name_names ORDER BY place) TO ? (FORMAT parquet, COMPRESSION zstd)",
        [str(folder / NAMES_FILE)],
    )


def write_people(con: duckdb.DuckDBPyConnection, folder: Path, dataset_count: int) -> None:
    """Write the people of each dataset: a list of their numbers, and beside each the pair (stream, site tier) with
    which they read it, as a number.
    """
    import pyarrow as pa
    import pyarrow.compute as pc

    con.execute(
        "CREATE TEMP TABLE pairs AS SELECT (row_number() OVER (ORDER BY stream, site_tier) - 1)::USMALLINT AS pair, "
        "stream, site_tier FROM (SELECT DISTINCT stream, site_tier FROM partials)"
    )
    rows = con.sql(
        "SELECT d.place AS dataset, pair, user_id FROM (SELECT DISTINCT dataset_name, stream, site_tier, user_id "
        "FROM partials WHERE user_id IS NOT NULL) JOIN pairs USING (stream, site_tier) "
        "JOIN dataset_name_names d ON dataset_name = d.code ORDER BY dataset"
    ).to_arrow_table()
    found = con.execute(
        "SELECT s.place, t.place FROM pairs JOIN stream_names s ON stream = s.code "
        "JOIN site_tier_names t ON site_tier = t.code ORDER BY pair"
    ).fetchall()
    con.execute("DROP TABLE pairs")
    counts = np.bincount(rows["dataset"].to_numpy(), minlength=dataset_count)
    offsets = pa.array(np.concatenate(([0], np.cumsum(counts))), pa.int64())
    users, pairs = rows["user_id"].combine_chunks(), rows["pair"].combine_chunks()
    if (pc.max(users).as_py() or 0) < 1 << 16:
        users = users.cast(pa.uint16())
    table = pa.table(
        {
            "users": pa.LargeListArray.from_arrays(offsets, _chunk(users)),
            "pairs": pa.LargeListArray.from_arrays(offsets, _chunk(pairs)),
        }
    )
    _write(folder / PEOPLE_FILE, table, About(_names(con, "stream"), _names(con, "site_tier"), {}, found))


def write_groups(path: Path, places: dict[str, int]) -> None:
    """Write beside a Parquet file which datasets each of its row groups has: the numbers of the first and last one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    file = pq.ParquetFile(path, read_dictionary=["dataset_name"])
    first, last = [], []
    for number in range(file.metadata.num_row_groups):
        column = file.read_row_group(number, columns=["dataset_name"], use_threads=False).column(0)
        own = [places[name] for chunk in column.chunks for name in chunk.dictionary.to_pylist()]
        first.append(min(own, default=0))
        last.append(max(own, default=0))
    table = pa.table({"first": pa.array(first, pa.uint32()), "last": pa.array(last, pa.uint32())})
    _write(groups_path(path), table, About([], []))


def groups_path(path: Path) -> Path:
    """Return the file that :func:`write_groups` writes beside a Parquet file."""
    return path.with_suffix(".groups.arrow")


def read(path: str | Path) -> tuple[pa.RecordBatch, About]:
    """Return a file of this module, mapped into memory.

    Raises DataError (65) where it is damaged, OSError if it is gone.
    """
    import pyarrow as pa

    try:
        reader = pa.ipc.open_file(pa.memory_map(str(path)))
        about = msgspec.json.decode((reader.schema.metadata or {})[_ABOUT], type=About)
        batches = [reader.get_batch(number) for number in range(reader.num_record_batches)]
    except (pa.ArrowInvalid, KeyError, msgspec.MsgspecError) as error:
        raise DataError("a file of the rollups is damaged", where=str(path), found=str(error)[:200]) from None
    return batches[0] if batches else pa.RecordBatch.from_pylist([], schema=reader.schema), about


def numbers(column: pa.Array) -> Any:
    """Return a column as numpy: whole numbers of 64 bits or less in place, larger ones as Python's."""
    import pyarrow as pa

    if pa.types.is_decimal(column.type):
        return np.array([int(value) for value in column.to_pylist()], dtype=object)
    return column.to_numpy()


def _names(con: duckdb.DuckDBPyConnection, column: str) -> list[str]:
    return [row[0] for row in con.execute(f"SELECT name FROM {column}_names ORDER BY place").fetchall()]


def _chunk(column: Any) -> Any:
    return column.chunk(0) if hasattr(column, "chunk") else column


def _write(path: Path, table: pa.Table, about: About) -> None:
    import pyarrow as pa

    schema = table.schema.with_metadata({_ABOUT: msgspec.json.encode(about)})
    with pa.OSFile(str(path), "wb") as sink, pa.ipc.new_file(sink, schema) as writer:
        for batch in table.combine_chunks().to_batches():
            writer.write_batch(pa.RecordBatch.from_arrays(batch.columns, schema=schema))
