"""Stored tables as DuckDB sees them: a read-only file system with one folder a table, and nothing else in it.

DuckDB opens ``cmsstore://TABLE/day=2026-01-15/RUN/part-…`` and nothing else, as queries have no access to files. The
names carry the interval as Hive partitions, so that DuckDB leaves out days before it opens their files. Each folder
begins with a file of nulls that has the table's columns: a table has its types even where no day is stored. That file
has as many rows as a usual part, from which DuckDB estimates how large the table is; its partition is before all days,
and the views leave it out. Parts in CSV, and parts with columns of an older schema, are given as Parquet with the
columns of today. Remote parts are read in ranges, through :mod:`cmsspark.storage`.
"""

from __future__ import annotations

import io
import re
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, date, datetime
from functools import partial
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote

from fsspec import AbstractFileSystem

from cmsspark import buffers
from cmsspark.errors import CmssparkError
from cmsspark.manifests import Manifest, TableEntry
from cmsspark.periods import Period
from cmsspark.pipeline.stored_columns import part_rows
from cmsspark.pipeline.stored_rows import unreadable
from cmsspark.query.part_readers import LocalPart, RemotePart
from cmsspark.query.stored_parts import StoredInterval
from cmsspark.schemas import Table
from cmsspark.storage import Files, is_local, local_path
from cmsspark.store.results import CurrentTable

if TYPE_CHECKING:
    import pyarrow as pa

PROTOCOL: Final = "cmsstore"
#: Bytes of converted parts that are kept.
_KEPT_BYTES: Final = 256_000_000
#: Parts that are looked at where DuckDB does not say which one it could not read.
_RECENT: Final = 1_000
#: Of the file with a table's columns and no rows; it is before all days.
NO_DAY: Final = "0001-01-01"
#: Types of numpy for those of schemas that :func:`cmsspark.buffers.array` does not make.
_NUMPY: Final = {"date": "int32", "int": "int32", "double": "float64"}
_NAME: Final = re.compile(PROTOCOL + r"://[^\s'\"]+\.parquet")


@dataclass(frozen=True)
class _Content:
    """One file: the part of a stored interval, the bytes themselves, or the error of opening it."""

    size: int
    part: str = ""
    stored: StoredInterval | None = None
    content: bytes | None = None
    #: Makes the rows of a part of another form.
    make: Callable[[], pa.Table] | None = None


class PartSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """The file system of one database. Threads of DuckDB use it at once; :meth:`put` replaces a table's files."""

    protocol = PROTOCOL
    cachable = False

    def __init__(self, files: Files) -> None:
        super().__init__()
        self._files = files
        self._tables: dict[str, dict[str, _Content]] = {}
        self._schemas: dict[str, Table] = {}
        self._converted: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._recent: deque[str] = deque(maxlen=_RECENT)
        #: The error of each file that could not be opened, by its location.
        self.failures: dict[str, CmssparkError] = {}

    def put(self, schema: Table, stored: list[StoredInterval]) -> None:
        """Replace the files of a table by those of ``stored``."""
        files = sum(len(one.parts) for one in stored)
        usual = sum(one.rows for one in stored) // files if files else 0
        contents = {_schema_file(schema): _Content(0, content=null_rows(schema, usual))}
        for one in stored:
            folder = f"{schema.name}/{_partitions(one)}/{quote(one.run, safe='') or 'damaged'}"
            if one.fault is not None:
                contents[f"{folder}/damaged.parquet"] = _Content(0, stored=one)
            elif one.fmt != "parquet":
                contents[f"{folder}/all.parquet"] = _Content(one.bytes, stored=one)
            else:
                for part in one.parts:
                    contents[f"{folder}/{quote(part.name, safe='')}"] = _Content(part.size, part.path, one)
        self._schemas[schema.name] = schema
        self._tables[schema.name] = contents

    def put_rows(self, schema: Table, columns: Mapping[str, Sequence[Any]]) -> None:
        """Replace the rows of a table that is not stored."""
        content = _parquet(table_of(schema, columns))
        self._tables[schema.name] = {f"{schema.name}/rows.parquet": _Content(0, content=content)}

    def put_parts(self, table: str, columns: pa.Schema, parts: Mapping[str, Callable[[], pa.Table]]) -> None:
        """Add a table whose parts are made when they are opened. The first file by name has its types, and no rows."""
        contents = {f"{table}/columns.parquet": _Content(0, content=_parquet(columns.empty_table()))}
        contents |= {f"{table}/{name}": _Content(0, make=make) for name, make in parts.items()}
        self._tables[table] = contents

    def paths(self, table: str) -> list[str]:
        """The locations of a table's files, for error messages and tests."""
        return [content.part for content in self._tables.get(table, {}).values() if content.part]

    def part_in(self, text: str) -> str | None:
        """The location of the part whose name stands in an error message of DuckDB; None where none does."""
        match = _NAME.search(text)
        content = self._find(match[0]) if match else None
        if content is None or content.stored is None:
            return None
        return content.part or (content.stored.parts[0].path if content.stored.parts else content.stored.table)

    def damaged_part(self) -> str | None:
        """The first of the parts that were opened lately that cannot be read; None where all can."""
        import pyarrow as pa
        import pyarrow.parquet as pq

        from cmsspark.store.part_files import open_part

        for part in dict.fromkeys(self._recent):
            try:
                with open_part(self._files, part) as stream:
                    pq.read_table(stream)
            except (pa.ArrowException, OSError, CmssparkError):
                return part
        return None

    # What DuckDB calls.

    def glob(self, path: str, **_: Any) -> list[str]:
        name = _plain(path)
        table, _slash, pattern = name.partition("/")
        contents: Mapping[str, _Content] = self._tables.get(table, {})
        return list(contents) if pattern == "*" else [name] if name in contents else []

    def exists(self, path: str, **_: Any) -> bool:
        return self._find(path) is not None

    def isdir(self, path: str) -> bool:
        return False

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        content = self._require(path)
        size = content.size
        if content.content is not None:
            size = len(content.content)
        elif content.make is not None or (content.stored is not None and content.stored.is_converted):
            size = self._open(path).seek(0, io.SEEK_END)
        return {"name": path, "size": size, "type": "file"}

    def modified(self, path: str) -> Any:
        # A path names one run, which never changes.
        return datetime.fromtimestamp(0, UTC)

    def _open(self, path: str, mode: str = "rb", **_: Any) -> IO[bytes]:
        content = self._require(path)
        if mode != "rb":
            raise PermissionError(f"{path} is read only")
        if content.part:
            self._recent.append(content.part)
        try:
            return self._opened(_plain(path), content)
        except CmssparkError as error:
            self.failures[_plain(path)] = error
            raise OSError(f"{_plain(path)} cannot be opened") from None
        except OSError as error:
            self.failures[_plain(path)] = unreadable(content.part, error)
            raise OSError(f"{_plain(path)} cannot be opened") from None

    def _opened(self, name: str, content: _Content) -> IO[bytes]:
        if content.content is not None:
            return io.BytesIO(content.content)
        if content.make is not None:
            return io.BytesIO(self._as_parquet(name, content.make))
        stored = content.stored
        assert stored is not None
        if stored.fault is not None:
            raise stored.fault
        if stored.is_converted:
            return io.BytesIO(self._as_parquet(name, partial(self._conformed, content, stored)))
        if is_local(content.part):
            return LocalPart(local_path(content.part))  # type: ignore[return-value]
        return RemotePart(self._files, content.part, content.size)  # type: ignore[return-value]

    def _as_parquet(self, name: str, make: Callable[[], pa.Table]) -> bytes:
        with self._lock:
            if name in self._converted:
                self._converted.move_to_end(name)
                return self._converted[name]
        converted = _parquet(make())
        with self._lock:
            self._converted[name] = converted
            while len(self._converted) > 1 and sum(map(len, self._converted.values())) > _KEPT_BYTES:
                self._converted.popitem(last=False)
        return converted

    def _conformed(self, content: _Content, stored: StoredInterval) -> pa.Table:
        """The rows of a part with the columns of today; a column that the part does not have is null."""
        schema = self._schemas[stored.table]
        if stored.fmt != "parquet":
            folder = stored.parts[0].path.rpartition("/")[0] if stored.parts else ""
            current = CurrentTable(folder, Manifest(document={}, tables={stored.table: TableEntry(format=stored.fmt)}))
            return part_rows(self._files, current, schema, schema.names)
        return conformed_part(self._files, content.part, schema)

    def _find(self, path: str) -> _Content | None:
        name = _plain(path)
        return self._tables.get(name.partition("/")[0], {}).get(name)

    def _require(self, path: str) -> _Content:
        content = self._find(path)
        if content is None:
            raise FileNotFoundError(path)
        return content


def conformed_part(files: Files, path: str, schema: Table) -> pa.Table:
    """A Parquet part of another version of the schema. Raises DataError (65) where it cannot be read as this one."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    from cmsspark.store.part_files import open_part

    wanted = schema.arrow()
    try:
        with open_part(files, path) as stream, pq.ParquetFile(stream) as file:
            rows = file.read(columns=[name for name in file.schema_arrow.names if name in schema.names])
            columns = [
                rows[field.name].cast(field.type)
                if field.name in rows.column_names
                else pa.nulls(rows.num_rows, field.type)
                for field in wanted
            ]
            return pa.table(columns, schema=wanted)
    except (pa.ArrowException, OSError) as error:
        raise unreadable(path, error) from None


def null_rows(schema: Table, count: int) -> bytes:
    """A Parquet file of a few hundred bytes with a table's columns and ``count`` rows of nulls."""
    import pyarrow as pa

    return _parquet(pa.table([pa.nulls(count, field.type) for field in schema.arrow()], schema=schema.arrow()))


def table_of(schema: Table, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Python values as a table with the columns of ``schema``, without pandas, which pyarrow would import."""
    import pyarrow as pa

    return pa.table({column.name: _array(columns[column.name], column.type) for column in schema.columns})


def _array(values: Sequence[Any], kind: str) -> pa.Array:
    import numpy as np
    import pyarrow as pa

    if kind in ("string", "long", "boolean"):
        return buffers.array(values, kind)
    if kind == "date":
        values = [None if value is None else (value - date(1970, 1, 1)).days for value in values]
    numbers = np.array([0 if value is None else value for value in values], _NUMPY[kind])
    is_valid = np.array([value is not None for value in values], np.bool_)
    array = buffers.from_numpy(numbers, is_valid)
    return array.view(pa.date32()) if kind == "date" else array


def _parquet(rows: pa.Table) -> bytes:
    import pyarrow as pa
    import pyarrow.parquet as pq

    sink = pa.BufferOutputStream()
    pq.write_table(rows, sink, compression="snappy", store_schema=False)
    return bytes(sink.getvalue())


def _partitions(stored: StoredInterval) -> str:
    if isinstance(stored.interval, Period):
        return f"period={stored.interval}/first_day={stored.first_day}/last_day={stored.last_day}"
    return f"day={stored.interval}"


def _schema_file(schema: Table) -> str:
    names = ("period", "first_day", "last_day") if "period" in schema.names else ("day",)
    return f"{schema.name}/{'/'.join(f'{name}={NO_DAY}' for name in names)}/columns.parquet"


def _plain(path: str) -> str:
    return path.removeprefix(f"{PROTOCOL}://")
