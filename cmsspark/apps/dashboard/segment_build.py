"""Builds one segment of the rollups: what the pages read instead of the stored partials of some days.

A segment is a folder of Parquet files and ``segment.json``, which names the run of each of its days. Sums are exact:
bytes and counts as integers, seconds as whole milliseconds. Users are numbers of the segment's own list.
"""

from __future__ import annotations

import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np

from cmsspark.apps.dashboard import segment_arrays
from cmsspark.apps.dashboard.coded_rows import NAMED, Names, write_coded
from cmsspark.apps.dashboard.segment_index import INDEX, SegmentIndex
from cmsspark.apps.dashboard.segment_index import file_digest as file_digest
from cmsspark.apps.dashboard.segment_index import read_index as read_index
from cmsspark.base.errors import OutputError
from cmsspark.base.names import DERIVED
from cmsspark.store.query.stored_parts import StoredInterval

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: Version of the files below; segments of another version are built anew.
VERSION: Final = 3
_ROW_GROUP: Final = 30_720
#: Files in which pages look up single datasets, with the rows of a group: a few are read for each.
LOOKUP_FILES: Final = ("detail", "dataset_users")
_LOOKUP_GROUP: Final = 10_240
#: A quarter larger than with zstd, and read in two thirds of the time.
_LOOKUP_COMPRESSION: Final = "lz4_raw"
#: Files of up to so many rows, which days of the newest month have, get small groups: there are many such files, and a
#: page reads a group of each. What the server keeps of each group would be too much for those of whole months.
_SMALL_ROWS, _SMALL_GROUP = 400_000, 2_048
#: DuckDB's memory while a segment is built; what is more goes to disk.
_MEMORY: Final = "250MB"
_SUMS: Final = """
    CAST(sum(nacc) AS HUGEINT) AS nacc,
    CAST(sum(remote_nacc) AS HUGEINT) AS remote_nacc,
    CAST(sum(CASE WHEN remote_nacc IS NOT NULL THEN nacc END) AS HUGEINT) AS remote_known_nacc,
    CAST(sum(read_bytes) AS HUGEINT) AS read_bytes,
    CAST(sum(job_count) AS HUGEINT) AS job_count,
    CAST(sum(job_read_bytes) AS HUGEINT) AS job_read_bytes,
    CAST(sum(cpu_ms) AS HUGEINT) AS cpu_ms,
    CAST(sum(wc_ms) AS HUGEINT) AS wc_ms
"""
#: The additive columns of every rollup: integers, null where nothing of the group has a value. The first four are of
#: accesses, the next two of jobs.
SUMS: Final = (
    *("nacc", "remote_nacc", "remote_known_nacc", "read_bytes"),
    *("job_count", "job_read_bytes", "cpu_ms", "wc_ms"),
)
_USERS: Final = "list(user_id) AS users"
#: File → keys of its sums.
SUM_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "cube": ("day", "stream", "site_tier", "data_tier", "campaign"),
    "detail": ("dataset_name", "day", "stream", "site_name", "app"),
    "site_days": ("site_name", "day", "stream", "data_tier", "app"),
    "site_datasets": ("site_name", "dataset_name", "stream"),
}
#: File → keys of its users: a row for each combination and user.
USER_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "dataset_users": ("dataset_name", "day", "stream", "site_tier"),
}
#: File → keys of its users: a list for each combination.
LIST_FILES: Final[Mapping[str, tuple[str, ...]]] = {"cube_users": SUM_FILES["cube"]}
#: File → keys of sets of users as bits, for combinations with many users: bit N is the user with number N.
BIT_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "tier_users": ("day", "stream", "site_tier", "data_tier"),
    "campaign_users": ("day", "stream", "campaign"),
    "site_users": ("day", "stream", "site_name"),
}
#: All files of a segment beside its index.
FILES: Final = frozenset(
    (
        *(f"{name}.parquet" for name in (*SUM_FILES, *USER_FILES, *LIST_FILES, *BIT_FILES, "users")),
        *(f"{name}.groups.arrow" for name in LOOKUP_FILES),
        *(segment_arrays.SUMS_FILE, segment_arrays.PEOPLE_FILE, segment_arrays.NAMES_FILE),
    )
)


def derived(column: str) -> str:
    """Return the SQL expression of a derived column; an empty text where the name has no such part."""
    if column == "campaign":
        return f"split_part({derived('processing_name')}, '-', 1)"
    rule = DERIVED[column]
    return f"split_part({rule.source}, '{rule.separator}', {rule.part + 1})"


def build(days: Sequence[StoredInterval], store: str, folder: Path, threads: int) -> SegmentIndex:
    """Build the segment of some stored days in ``folder``, which appears only when all its files are written.

    Raises DataError (65) where a day cannot be read or has another number of rows than its manifest says, OutputError
    (73) where the segment cannot be written.
    """
    import duckdb

    aside = folder.parent / f".building-{uuid.uuid4().hex}"
    try:
        aside.mkdir(parents=True, mode=0o700)
        with duckdb.connect(":memory:", config=_config(aside, threads)) as con:
            con.execute("SET enable_progress_bar = false")
            try:
                index = _build(con, days, store, aside)
            except duckdb.IOException as error:
                raise OutputError("the rollups cannot be written", where=aside, found=str(error)[:200]) from None
        shutil.rmtree(aside / "spill", ignore_errors=True)
        (aside / INDEX).write_bytes(msgspec.json.encode(index))
        if folder.exists():
            shutil.rmtree(folder, ignore_errors=True)
        os.rename(aside, folder)
    except OSError as error:
        if folder.exists():
            return read_index(folder)  # another dashboard was quicker
        raise OutputError("the rollups cannot be written", where=folder, found=error.strerror) from None
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return index


def _config(folder: Path, threads: int) -> dict[str, Any]:
    return {
        "memory_limit": _MEMORY,
        "threads": threads,
        "temp_directory": str(folder / "spill"),
        "preserve_insertion_order": "false",
    }


def _build(con: duckdb.DuckDBPyConnection, days: Sequence[StoredInterval], store: str, folder: Path) -> SegmentIndex:
    names = Names()
    rows = sum(write_coded(one, names, folder / "coded") for one in days)
    names.register(con)
    coded = str(folder / "coded" / "*").replace("'", "''")
    con.execute(
        f"CREATE VIEW partials AS SELECT * REPLACE (DATE '1970-01-01' + day AS day) FROM read_parquet('{coded}')"
    )
    _write_dataset_sums(con, folder)
    segment_arrays.write_people(con, folder, len(names.of["dataset_name"]))
    for name, keys in SUM_FILES.items():
        _write_sums(con, folder / f"{name}.parquet", keys, with_last_day=name == "site_datasets")
    for name, keys in {**USER_FILES, **LIST_FILES}.items():
        _write_users(con, folder / f"{name}.parquet", keys, as_lists=name in LIST_FILES)
    for name, keys in BIT_FILES.items():
        _write_bits(con, folder / f"{name}.parquet", keys, len(names.of["user"]))
    places = {name: number for number, name in enumerate(sorted(names.of["dataset_name"]))}
    for name in LOOKUP_FILES:
        segment_arrays.write_groups(folder / f"{name}.parquet", places)
    con.execute(
        "COPY (SELECT code AS user_id, name AS user_key FROM user_names ORDER BY 1) TO ? (FORMAT parquet)",
        [str(folder / "users.parquet")],
    )
    keys_of_days = _keys(con)
    con.execute("DROP VIEW partials")
    shutil.rmtree(folder / "coded")
    return SegmentIndex(
        VERSION,
        store,
        {str(one.interval): one.run for one in days},
        keys_of_days,
        rows,
        {
            path.name: (path.stat().st_size, file_digest(path))
            for path in sorted((*folder.glob("*.parquet"), *folder.glob("*.arrow")))
        },
    )


def _keys(con: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """Return the ids of the pseudonym keys of each day, as its pseudonyms say."""
    rows = con.execute(
        "SELECT DISTINCT day, split_part(name, ':', 1) AS key FROM (SELECT DISTINCT day, user_id FROM partials) "
        "JOIN user_names ON user_id = code ORDER BY ALL"
    ).fetchall()
    keys: dict[str, list[str]] = {}
    for day, key in rows:
        keys.setdefault(day.isoformat(), []).append(key)
    return keys


def _with_names(keys: Sequence[str], values: Sequence[str]) -> str:
    """SQL that gives the table ``result`` its names back, in the order of the keys' names."""
    named = [key for key in keys if key in NAMED]
    columns = ", ".join(f"{key}_names.name AS {key}" if key in named else key for key in keys)
    joins = " ".join(f"JOIN {key}_names ON result.{key} = {key}_names.code" for key in named)
    order = ", ".join(f"{key}_names.place" if key in named else key for key in keys)
    return f"SELECT {', '.join([columns, *values])} FROM result {joins} ORDER BY {order}"


def _write_sums(con: duckdb.DuckDBPyConnection, path: Path, keys: Sequence[str], *, with_last_day: bool) -> None:
    """Write one file of sums: a row for each combination of the keys."""
    last = "max(day) AS last_day, " if with_last_day else ""
    con.execute(f"CREATE TEMP TABLE result AS SELECT {', '.join(keys)}, {last}{_SUMS} FROM partials GROUP BY ALL")
    _copy(con, _with_names(keys, [*(["last_day"] if with_last_day else []), *_narrow(con)]), path)


def _write_dataset_sums(con: duckdb.DuckDBPyConnection, folder: Path) -> None:
    last = "max(day) FILTER (WHERE nacc > 0 OR job_count > 0) AS last_day"
    keys = "dataset_name, stream, site_tier"
    con.execute(f"CREATE TEMP TABLE result AS SELECT {keys}, {last}, {_SUMS} FROM partials GROUP BY ALL")
    sums = ", ".join(f"sum({name})" for name in SUMS)
    segment_arrays.write_sums(con, folder, sums, list(zip(SUMS, _kinds(con, has_short=True), strict=True)))
    con.execute("DROP TABLE result")


def _write_users(con: duckdb.DuckDBPyConnection, path: Path, keys: Sequence[str], *, as_lists: bool) -> None:
    """Write one file of users: a row, or an entry of a list, for each combination of the keys and each of its users."""
    names = ", ".join(keys)
    distinct = f"SELECT DISTINCT {names}, user_id FROM partials WHERE user_id IS NOT NULL"
    sql = f"SELECT {names}, {_USERS} FROM ({distinct}) GROUP BY ALL" if as_lists else distinct
    con.execute(f"CREATE TEMP TABLE result AS {sql}")
    _copy(con, _with_names(keys, ["users" if as_lists else "user_id"]), path)


def _copy(con: duckdb.DuckDBPyConnection, sql: str, path: Path) -> None:
    size, compression = _ROW_GROUP, "zstd"
    if path.stem in LOOKUP_FILES:
        rows = con.execute("SELECT count(*) FROM result").fetchall()[0][0]
        size, compression = _SMALL_GROUP if rows <= _SMALL_ROWS else _LOOKUP_GROUP, _LOOKUP_COMPRESSION
    con.execute(f"COPY ({sql}) TO ? (FORMAT parquet, COMPRESSION {compression}, ROW_GROUP_SIZE {size})", [str(path)])
    con.execute("DROP TABLE result")


def _write_bits(con: duckdb.DuckDBPyConnection, path: Path, keys: Sequence[str], user_count: int) -> None:
    """Write one file of sets of users: a row for each combination of the keys, its users as bits of 64-bit words."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ", ".join(keys)
    distinct = f"SELECT DISTINCT {names}, user_id FROM partials WHERE user_id IS NOT NULL"
    con.execute(f"CREATE TEMP TABLE result AS SELECT {names}, {_USERS} FROM ({distinct}) GROUP BY ALL")
    rows = con.sql(_with_names(keys, ["users"])).to_arrow_table()
    con.execute("DROP TABLE result")
    width = bytes_of_sets(user_count)
    kind = pa.binary(width)
    packed: list[pa.Array] = []
    for batch in rows.to_batches(max_chunksize=4_096):
        users = batch.column("users")
        flags = np.zeros((batch.num_rows, width * 8), dtype=bool)
        flags[np.repeat(np.arange(batch.num_rows), users.value_lengths().to_numpy()), users.flatten().to_numpy()] = True
        bits = np.packbits(flags, axis=1, bitorder="little")
        packed.append(pa.FixedSizeBinaryArray.from_buffers(kind, batch.num_rows, [None, pa.py_buffer(bits)]))
    sets = pa.chunked_array(packed, kind)
    pq.write_table(rows.drop_columns("users").append_column("users", sets), path, compression="zstd")


def bytes_of_sets(user_count: int) -> int:
    """Return the bytes of a set of so many users."""
    return max(1, -(-user_count // 64)) * 8


def _narrow(con: duckdb.DuckDBPyConnection) -> list[str]:
    """Return the sums in SQL, of types that Parquet has."""
    return [f"CAST({name} AS {kind}) AS {name}" for name, kind in zip(SUMS, _kinds(con), strict=True)]


def _kinds(con: duckdb.DuckDBPyConnection, *, has_short: bool = False) -> list[str]:
    """Return the types of the sums: 64-bit integers where all fit, else decimals, as files have no larger integers;
    with ``has_short`` 32 bits where these are enough.
    """
    largest = con.execute(f"SELECT {', '.join(f'max({name})' for name in SUMS)} FROM result").fetchall()[0]
    kinds = []
    for value in (value or 0 for value in largest):
        short = "INTEGER" if has_short and value < 1 << 31 else "BIGINT"
        kinds.append(short if value < 1 << 63 else "DECIMAL(38, 0)")
    return kinds
