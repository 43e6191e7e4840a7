"""Builds one segment of the rollups: what the pages read instead of the stored partials of some days.

A segment is a folder of Parquet files and ``segment.json``, which names the run of each of its days. Sums are exact:
bytes and counts as integers, seconds as whole milliseconds. Users are numbers of the segment's own list.
"""

from __future__ import annotations

import json
import os
import shutil
import uuid
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec

from cmsspark.errors import DataError, OutputError
from cmsspark.manifests import Manifest
from cmsspark.names import DERIVED
from cmsspark.pipeline.stored_columns import part_rows
from cmsspark.query.part_system import conformed_part
from cmsspark.query.stored_parts import StoredInterval
from cmsspark.schemas import stored_table
from cmsspark.storage import LocalFiles, local_path
from cmsspark.store.results import CurrentTable

if TYPE_CHECKING:
    import duckdb
    import pyarrow as pa

#: Version of the files below; segments of another version are built anew.
VERSION: Final = 1
TABLE: Final = "partials"
INDEX: Final = "segment.json"
_ROW_GROUP: Final = 30_000
_SUMS: Final = """
    CAST(sum(nacc) AS HUGEINT) AS nacc,
    CAST(sum(remote_nacc) AS HUGEINT) AS remote_nacc,
    CAST(sum(CASE WHEN remote_nacc IS NOT NULL THEN nacc END) AS HUGEINT) AS remote_known_nacc,
    CAST(sum(read_bytes) AS HUGEINT) AS read_bytes,
    CAST(sum(cpu_ms) AS HUGEINT) AS cpu_ms,
    CAST(sum(wc_ms) AS HUGEINT) AS wc_ms
"""
#: The additive columns of every rollup: integers, null where nothing of the group has a value.
SUMS: Final = ("nacc", "remote_nacc", "remote_known_nacc", "read_bytes", "cpu_ms", "wc_ms")
_USERS: Final = "coalesce(list(DISTINCT user_id) FILTER (WHERE user_id IS NOT NULL), []) AS users"
#: File → (keys, whether it has sums, whether it has lists of users).
FILES: Final[Mapping[str, tuple[tuple[str, ...], bool, bool]]] = {
    "cube": (("day", "stream", "site_tier", "data_tier", "campaign"), True, True),
    "datasets": (("dataset_name", "stream", "site_tier"), True, True),
    "dataset_users": (("dataset_name", "day", "stream", "site_tier"), False, True),
    "detail": (("dataset_name", "day", "stream", "site_name", "app"), True, False),
    "site_days": (("site_name", "day", "stream", "data_tier", "app"), True, False),
    "site_datasets": (("site_name", "dataset_name", "stream"), True, False),
}
#: File → keys of sets of users as bits, for combinations with many users: bit N is the user with number N.
BIT_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "tier_users": ("day", "stream", "site_tier", "data_tier"),
    "campaign_users": ("day", "stream", "campaign"),
    "site_users": ("day", "stream", "site_name"),
}


class SegmentIndex(msgspec.Struct, frozen=True):
    """``segment.json``: the run of each day, the pseudonym keys of each day, and size and digest of each file."""

    version: int
    store: str
    runs: dict[str, str]
    keys: dict[str, list[str]]
    rows: int
    files: dict[str, tuple[int, str]]


def derived(column: str) -> str:
    """The SQL expression of a derived column; an empty text where the name has no such part."""
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


def read_index(folder: Path) -> SegmentIndex:
    """The index of a segment. Raises ValueError or OSError where there is none that can be read."""
    return msgspec.json.decode((folder / INDEX).read_bytes(), type=SegmentIndex)


def file_digest(path: Path) -> str:
    """The digest of a file's content."""
    import xxhash

    digest = xxhash.xxh3_64()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()


def _config(folder: Path, threads: int) -> dict[str, Any]:
    return {
        "memory_limit": "600MB",
        "threads": threads,
        "temp_directory": str(folder / "spill"),
        "preserve_insertion_order": "false",
    }


def _build(con: duckdb.DuckDBPyConnection, days: Sequence[StoredInterval], store: str, folder: Path) -> SegmentIndex:
    rows = _load(con, days)
    for name, (keys, has_sums, has_users) in FILES.items():
        _write(con, folder / f"{name}.parquet", keys, has_sums, has_users, name)
    user_count = _count(con, "users")
    for name, keys in BIT_FILES.items():
        _write_bits(con, folder / f"{name}.parquet", keys, user_count)
    con.execute("COPY users TO ? (FORMAT parquet, COMPRESSION zstd)", [str(folder / "users.parquet")])
    names = sorted(path for path in folder.glob("*.parquet"))
    return SegmentIndex(
        VERSION,
        store,
        {str(one.interval): one.run for one in days},
        _keys(con),
        rows,
        {path.name: (path.stat().st_size, file_digest(path)) for path in names},
    )


def _load(con: duckdb.DuckDBPyConnection, days: Sequence[StoredInterval]) -> int:
    """The table ``accesses``: a row for each stored partial; and ``users``, the pseudonyms with their numbers."""
    columns = ("day", "stream", "dataset_name", "site_name", "app", "user", "nacc", "remote_nacc", "read_bytes")
    con.execute(
        "CREATE TABLE stored (day DATE, stream VARCHAR, dataset_name VARCHAR, site_name VARCHAR, app VARCHAR, "
        '"user" VARCHAR, nacc BIGINT, remote_nacc BIGINT, read_bytes BIGINT, cpu_time DOUBLE, wc_time DOUBLE)'
    )
    names = ", ".join(f'"{name}"' for name in (*columns, "cpu_time", "wc_time"))
    for one in days:
        before = _count(con, "stored")
        _insert(con, one, names)
        if (count := _count(con, "stored") - before) != one.rows:
            raise DataError(
                f"the {TABLE} of {one.interval} have another number of rows than their manifest says",
                where=one.parts[0].path if one.parts else None,
                found=f"{count:,} rows where {one.rows:,} were written",
                next_step=f"run_spark data_aggregation --date {one.interval}",
            )
    con.execute(
        "CREATE TABLE users AS SELECT CAST(row_number() OVER (ORDER BY u) - 1 AS UINTEGER) AS user_id, u AS user_key "
        'FROM (SELECT DISTINCT "user" AS u FROM stored WHERE "user" IS NOT NULL)'
    )
    con.execute(
        "CREATE TABLE accesses AS SELECT stored.day, stream, dataset_name, site_name, app, user_id, nacc, "
        "remote_nacc, read_bytes, CAST(round(cpu_time * 1000) AS BIGINT) AS cpu_ms, "
        f"CAST(round(wc_time * 1000) AS BIGINT) AS wc_ms, {derived('site_tier')} AS site_tier, "
        f"{derived('data_tier')} AS data_tier, {derived('campaign')} AS campaign "
        'FROM stored LEFT JOIN users ON stored."user" = users.user_key'
    )
    con.execute("DROP TABLE stored")
    return _count(con, "accesses")


def _insert(con: duckdb.DuckDBPyConnection, one: StoredInterval, names: str) -> None:
    import duckdb

    if one.fault is not None:
        raise one.fault
    if one.is_converted:
        con.register("day_rows", _converted(one))
        con.execute(f"INSERT INTO stored SELECT {names} FROM day_rows")
        con.unregister("day_rows")
        return
    paths = [local_path(part.path) for part in one.parts]
    try:
        if paths:
            con.execute(f"INSERT INTO stored SELECT {names} FROM read_parquet(?, hive_partitioning = false)", [paths])
    except duckdb.Error as error:
        raise DataError(
            f"the {TABLE} of {one.interval} cannot be read",
            where=paths[0],
            found=" ".join(str(error).split())[:200],
            next_step=f"run_spark data_aggregation --date {one.interval}",
        ) from None


def _converted(one: StoredInterval) -> pa.Table:
    """The partials of a day that is stored as CSV, or by an older schema, with the columns of today."""
    import pyarrow as pa

    schema, files = stored_table(TABLE), LocalFiles()
    if one.fmt != "parquet":
        folder = one.parts[0].path.rpartition("/")[0] if one.parts else ""
        current = CurrentTable(folder, Manifest.of({"tables": {TABLE: {"format": one.fmt}}}))
        return part_rows(files, current, schema, schema.names)
    return pa.concat_tables(
        [schema.arrow().empty_table(), *(conformed_part(files, part.path, schema) for part in one.parts)]
    )


def _count(con: duckdb.DuckDBPyConnection, table: str) -> int:
    return int(con.execute(f"SELECT count(*) FROM {table}").fetchall()[0][0])


def _keys(con: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """The ids of the pseudonym keys of each day, as its pseudonyms say."""
    rows = con.execute(
        "SELECT DISTINCT day, split_part(user_key, ':', 1) AS key FROM accesses JOIN users USING (user_id) ORDER BY ALL"
    ).fetchall()
    keys: dict[str, list[str]] = {}
    for day, key in rows:
        keys.setdefault(day.isoformat(), []).append(key)
    return keys


def _write(
    con: duckdb.DuckDBPyConnection, path: Path, keys: tuple[str, ...], has_sums: bool, has_users: bool, name: str
) -> None:
    """One file of the segment: the sums or users of each combination of the keys, in their order."""
    last = "max(day) AS last_day," if name == "site_datasets" else ""
    values = ", ".join(text for text, wanted in ((_SUMS, has_sums), (_USERS, has_users)) if wanted)
    con.execute(
        f"CREATE TEMP TABLE result AS SELECT {', '.join(keys)}, {last} {values} FROM accesses "
        f"GROUP BY {', '.join(keys)}"
    )
    columns = [*keys, *(["last_day"] if last else []), *(_narrow(con) if has_sums else []), *(["users"] * has_users)]
    con.execute(
        f"COPY (SELECT {', '.join(columns)} FROM result ORDER BY {', '.join(keys)}) TO ? "
        f"(FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROW_GROUP})",
        [str(path)],
    )
    con.execute("DROP TABLE result")


def _write_bits(con: duckdb.DuckDBPyConnection, path: Path, keys: tuple[str, ...], user_count: int) -> None:
    """One file of sets of users: a row for each combination of the keys, its users as bits of whole 64-bit words."""
    import numpy as np
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ", ".join(keys)
    rows = con.sql(f"SELECT {names}, {_USERS} FROM accesses GROUP BY {names} ORDER BY {names}").to_arrow_table()
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
    """The bytes of a set of so many users."""
    return max(1, -(-user_count // 64)) * 8


def _narrow(con: duckdb.DuckDBPyConnection) -> list[str]:
    """The sums as 64-bit integers where all fit, else as decimals: Parquet has no larger integers."""
    largest = con.execute(f"SELECT {', '.join(f'max({name})' for name in SUMS)} FROM result").fetchall()[0]
    kinds = ["BIGINT" if value is None or value < 1 << 63 else "DECIMAL(38, 0)" for value in largest]
    return [f"CAST({name} AS {kind}) AS {name}" for name, kind in zip(SUMS, kinds, strict=True)]


def as_json(index: SegmentIndex) -> str:
    """The index as text, for messages and tests."""
    return json.dumps(msgspec.to_builtins(index), indent=1)
