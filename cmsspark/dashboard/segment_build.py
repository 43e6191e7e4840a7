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
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final

import msgspec
import numpy as np
import numpy.typing as npt

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
_ROW_GROUP: Final = 30_720
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
_USERS: Final = "list(user_id) AS users"
#: File → keys of its sums.
SUM_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "cube": ("day", "stream", "site_tier", "data_tier", "campaign"),
    "datasets": ("dataset_name", "stream", "site_tier"),
    "detail": ("dataset_name", "day", "stream", "site_name", "app"),
    "site_days": ("site_name", "day", "stream", "data_tier", "app"),
    "site_datasets": ("site_name", "dataset_name", "stream"),
}
#: File → keys of its users: a row for each combination and user.
USER_FILES: Final[Mapping[str, tuple[str, ...]]] = {
    "dataset_people": ("dataset_name",),
    "dataset_totals_users": ("dataset_name", "stream", "site_tier"),
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
#: Columns with names, which are numbers while the segment is built.
_NAMED: Final = ("stream", "dataset_name", "site_name", "app", "site_tier", "data_tier", "campaign")
_STORED: Final = (
    *("stream", "dataset_name", "site_name", "app", "user"),
    *("nacc", "remote_nacc", "read_bytes", "cpu_time", "wc_time"),
)


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
    names = Names()
    rows = sum(_write_coded(one, names, folder / "coded") for one in days)
    names.register(con)
    coded = str(folder / "coded" / "*").replace("'", "''")
    con.execute(
        f"CREATE VIEW accesses AS SELECT * REPLACE (DATE '1970-01-01' + day AS day) FROM read_parquet('{coded}')"
    )
    for name, keys in SUM_FILES.items():
        _write_sums(con, folder / f"{name}.parquet", keys, with_last_day=name == "site_datasets")
    for name, keys in {**USER_FILES, **LIST_FILES}.items():
        _write_users(con, folder / f"{name}.parquet", keys, as_lists=name in LIST_FILES)
    for name, keys in BIT_FILES.items():
        _write_bits(con, folder / f"{name}.parquet", keys, len(names.of["user"]))
    con.execute(
        "COPY (SELECT code AS user_id, name AS user_key FROM user_names ORDER BY 1) TO ? (FORMAT parquet)",
        [str(folder / "users.parquet")],
    )
    keys_of_days = _keys(con)
    con.execute("DROP VIEW accesses")
    shutil.rmtree(folder / "coded")
    return SegmentIndex(
        VERSION,
        store,
        {str(one.interval): one.run for one in days},
        keys_of_days,
        rows,
        {path.name: (path.stat().st_size, file_digest(path)) for path in sorted(folder.glob("*.parquet"))},
    )


class Names:
    """The numbers of all names of a segment; ``None`` of users has none."""

    def __init__(self) -> None:
        self.of: dict[str, dict[str, int]] = {name: {} for name in (*_NAMED, "user")}

    def codes(self, column: str, texts: Sequence[str]) -> npt.NDArray[np.uint32]:
        """The number of each text."""
        known = self.of[column]
        return np.array([known.setdefault(text, len(known)) for text in texts], np.uint32)

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


def _write_coded(one: StoredInterval, names: Names, folder: Path) -> int:
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
            parts = names.codes(derivation, [part_of(derivation, text) for text in texts])
            columns[derivation] = pa.array(_taken(parts, indices))
    for name in ("nacc", "remote_nacc", "read_bytes"):
        columns[name] = rows[name]
    for name, column in (("cpu_ms", "cpu_time"), ("wc_ms", "wc_time")):
        columns[name] = milliseconds(rows[column])
    folder.mkdir(exist_ok=True)
    pq.write_table(pa.table(columns), folder / f"{one.interval}.parquet", compression="lz4")
    return int(rows.num_rows)


#: Stored column → the columns that are parts of its names.
DERIVATIONS: Final = {"dataset_name": ("data_tier", "campaign"), "site_name": ("site_tier",)}


def part_of(column: str, text: str) -> str:
    """A derived column of a name; an empty text where the name has no such part."""
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
    """The partials of a day with texts as dictionaries, each column one chunk. Raises DataError (65)."""
    import pyarrow as pa

    if one.fault is not None:
        raise one.fault
    schema, files = stored_table(TABLE), LocalFiles()
    if one.fmt != "parquet":
        manifest = Manifest.of({"tables": {TABLE: {"format": one.fmt}}})
        current = CurrentTable(local_path(one.parts[0].path).rpartition("/")[0], manifest)
        parts = [part_rows(files, current, schema, _STORED)] if one.parts else []
    elif one.is_converted:
        parts = [conformed_part(files, part.path, schema).select(list(_STORED)) for part in one.parts]
    else:
        parts = [part_rows(files, part.path, schema, _STORED) for part in one.parts]
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


def _keys(con: duckdb.DuckDBPyConnection) -> dict[str, list[str]]:
    """The ids of the pseudonym keys of each day, as its pseudonyms say."""
    rows = con.execute(
        "SELECT DISTINCT day, split_part(name, ':', 1) AS key FROM (SELECT DISTINCT day, user_id FROM accesses) "
        "JOIN user_names ON user_id = code ORDER BY ALL"
    ).fetchall()
    keys: dict[str, list[str]] = {}
    for day, key in rows:
        keys.setdefault(day.isoformat(), []).append(key)
    return keys


def _with_names(keys: Sequence[str], values: Sequence[str]) -> str:
    """SQL that gives the table ``result`` its names back, in the order of the keys' names."""
    named = [key for key in keys if key in _NAMED]
    columns = ", ".join(f"{key}_names.name AS {key}" if key in named else key for key in keys)
    joins = " ".join(f"JOIN {key}_names ON result.{key} = {key}_names.code" for key in named)
    order = ", ".join(f"{key}_names.place" if key in named else key for key in keys)
    return f"SELECT {', '.join([columns, *values])} FROM result {joins} ORDER BY {order}"


def _write_sums(con: duckdb.DuckDBPyConnection, path: Path, keys: Sequence[str], *, with_last_day: bool) -> None:
    """One file of sums: a row for each combination of the keys."""
    last = "max(day) AS last_day, " if with_last_day else ""
    con.execute(f"CREATE TEMP TABLE result AS SELECT {', '.join(keys)}, {last}{_SUMS} FROM accesses GROUP BY ALL")
    _copy(con, _with_names(keys, [*(["last_day"] if with_last_day else []), *_narrow(con)]), path)


def _write_users(con: duckdb.DuckDBPyConnection, path: Path, keys: Sequence[str], *, as_lists: bool) -> None:
    """One file of users: a row, or an entry of a list, for each combination of the keys and each of its users."""
    names = ", ".join(keys)
    distinct = f"SELECT DISTINCT {names}, user_id FROM accesses WHERE user_id IS NOT NULL"
    sql = f"SELECT {names}, {_USERS} FROM ({distinct}) GROUP BY ALL" if as_lists else distinct
    con.execute(f"CREATE TEMP TABLE result AS {sql}")
    _copy(con, _with_names(keys, ["users" if as_lists else "user_id"]), path)


def _copy(con: duckdb.DuckDBPyConnection, sql: str, path: Path) -> None:
    con.execute(f"COPY ({sql}) TO ? (FORMAT parquet, COMPRESSION zstd, ROW_GROUP_SIZE {_ROW_GROUP})", [str(path)])
    con.execute("DROP TABLE result")


def _write_bits(con: duckdb.DuckDBPyConnection, path: Path, keys: Sequence[str], user_count: int) -> None:
    """One file of sets of users: a row for each combination of the keys, its users as bits of whole 64-bit words."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    names = ", ".join(keys)
    distinct = f"SELECT DISTINCT {names}, user_id FROM accesses WHERE user_id IS NOT NULL"
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
