"""Stored tables as DuckDB sees them: a read-only file system with one folder a table,
and nothing else in it.

DuckDB opens ``cmsstore://JOB.TABLE/day=2026-01-15/RUN/part-…`` and nothing else:
queries have no access to files. The names carry the interval as Hive partitions, so
that DuckDB leaves out days before it opens their files. Each folder begins with a file
of nulls that has the table's columns: a table has its types even where no day is
stored. That file has as many rows as a usual part, from which DuckDB estimates how
large the table is; its partition is before all days, and the views leave it out. Parts
in CSV, and parts with columns of an older schema, are given as Parquet with the columns
of today. Remote parts are read in ranges, through :mod:`cmsspark.filesystems.storage`.
"""

from __future__ import annotations

import io
import os
import re
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Mapping, Sequence
from datetime import UTC, date, datetime
from functools import lru_cache, partial
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
from fsspec import AbstractFileSystem

from cmsspark.base import buffers
from cmsspark.base.errors import CmssparkError
from cmsspark.base.periods import Period
from cmsspark.base.schemas import Table
from cmsspark.filesystems.storage import Files, RangeFile, is_local
from cmsspark.store.part_files import LocalPart, StoredPart, open_stored
from cmsspark.store.query.stored_parts import StoredInterval
from cmsspark.store.stored_columns import conformed_rows

if TYPE_CHECKING:
    import pyarrow as pa

PROTOCOL: Final = "cmsstore"
#: Bytes of converted parts that are kept.
_KEPT_BYTES: Final = 256_000_000
#: Parts that are looked at where DuckDB does not say which one it could not read.
_RECENT: Final = 1_000
#: Of the file with a table's columns and no rows; it is before all days.
NO_DAY: Final = "0001-01-01"
#: Types of numpy for those of schemas that :func:`cmsspark.base.buffers.array` does not make.
_NUMPY: Final = {"date": "int32", "int": "int32", "double": "float64"}
_NAME: Final = re.compile(PROTOCOL + r"://[^\s'\"]+\.parquet")


class _Content(msgspec.Struct, frozen=True):
    """One file: what opens it, its size (None: known when it is open), and the stored
    part that it is made of.
    """

    open: Callable[[], IO[bytes]]
    size: int | None = None
    part: StoredPart | None = None


class _PartFile(io.RawIOBase):
    """A part as DuckDB reads it: several threads at once, each of which seeks and then
    reads. Each thread has a position of its own, because another may run in between.

    ``failed`` takes the error of a read, of which DuckDB passes on only a text.
    """

    def __init__(self, file: RangeFile, failed: Callable[[Exception], OSError]) -> None:
        self._file, self._failed = file, failed
        self._threads = threading.local()

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        bases = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self._file.size}
        self._threads.position = position = max(0, bases[whence] + offset)
        return position

    @property
    def _position(self) -> int:
        return getattr(self._threads, "position", 0)

    def read(self, size: int | None = -1) -> bytes:
        position = self._position
        try:
            content = self._file.read_at(position, size)
        except (CmssparkError, OSError) as error:
            raise self._failed(error) from None
        self._threads.position = position + len(content)
        return content

    def close(self) -> None:
        self._file.close()
        super().close()


class PartSystem(AbstractFileSystem):  # type: ignore[misc]  # fsspec ships no types
    """The file system of one database. Threads of DuckDB use it at once; :meth:`put`
    replaces a table's files.
    """

    protocol = PROTOCOL
    cachable = False

    def __init__(self, files: Files) -> None:
        super().__init__()
        self._files = files
        self._folders: dict[str, dict[str, _Content]] = {}
        self._converted: OrderedDict[str, bytes] = OrderedDict()
        self._lock = threading.Lock()
        self._recent: deque[StoredPart] = deque(maxlen=_RECENT)
        #: The error of each file that could not be opened, by its location.
        self.failures: dict[str, CmssparkError] = {}

    def has(self, folder: str) -> bool:
        """Return whether a table's ``folder`` was put."""
        return folder in self._folders

    def put(self, folder: str, schema: Table, stored: list[StoredInterval]) -> None:
        """Replace the files in a table's ``folder`` by those of ``stored``."""
        files = sum(len(entry.parts) for entry in stored)
        usual = sum(entry.rows for entry in stored) // files if files else 0
        keys = ("period", "first_day", "last_day") if "period" in schema.names else ("day",)
        no_day = "/".join(f"{key}={NO_DAY}" for key in keys)
        contents = {f"{folder}/{no_day}/columns.parquet": _bytes(null_rows(schema, usual))}
        for interval in stored:
            run = f"{folder}/{_partitions(interval)}/{quote(interval.run, safe='') or 'damaged'}"
            if interval.fault is not None:
                contents[f"{run}/damaged.parquet"] = _Content(partial(_raise, interval.fault), 0)
                continue
            for part in interval.parts:
                name = f"{run}/{quote(part.name, safe='').removesuffix('.parquet')}.parquet"
                if interval.is_converted:
                    make = partial(conformed_rows, self._files, part, schema)
                    contents[name] = self._converted_file(name, make, part)
                else:
                    contents[name] = _Content(
                        partial(self._open_part, name, part), part.size, part
                    )
        self._folders[folder] = contents

    def put_rows(self, schema: Table, columns: Mapping[str, Sequence[Any]]) -> None:
        """Replace the rows of a table that is not stored."""
        self._folders[schema.name] = {
            f"{schema.name}/rows.parquet": _bytes(_parquet(build_table(schema, columns)))
        }

    def put_parts(
        self, table: str, columns: pa.Schema, parts: Mapping[str, Callable[[], pa.Table]]
    ) -> None:
        """Add a table whose parts are made when they are opened. The first file by name
        has its types, and no rows.
        """
        contents = {f"{table}/columns.parquet": _bytes(_parquet(columns.empty_table()))}
        for name, make in parts.items():
            contents[f"{table}/{name}"] = self._converted_file(f"{table}/{name}", make)
        self._folders[table] = contents

    def part_in(self, text: str) -> StoredPart | None:
        """Return the part whose name stands in an error message of DuckDB; None if none does."""
        match = _NAME.search(text)
        content = self._find(match[0]) if match else None
        return content.part if content else None

    def damaged_part(self) -> StoredPart | None:
        """Return the first of the parts that were opened lately that cannot be read;
        None if all can.
        """
        import pyarrow as pa
        import pyarrow.parquet as pq

        for part in dict.fromkeys(self._recent):
            try:
                with open_stored(self._files, part) as stream:
                    pq.read_table(stream)
            except (pa.ArrowException, OSError, CmssparkError):
                return part
        return None

    # What DuckDB calls.

    def glob(self, path: str, **_: Any) -> list[str]:
        name = _plain(path)
        folder, _slash, pattern = name.partition("/")
        contents: Mapping[str, _Content] = self._folders.get(folder, {})
        return list(contents) if pattern == "*" else [name] if name in contents else []

    def exists(self, path: str, **_: Any) -> bool:
        return self._find(path) is not None

    def isdir(self, path: str) -> bool:
        return False

    def info(self, path: str, **_: Any) -> dict[str, Any]:
        content = self._require(path)
        size = self._open(path).seek(0, io.SEEK_END) if content.size is None else content.size
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
            return content.open()
        except (CmssparkError, OSError) as error:
            raise self._failed(path, content.part, error) from None

    def _failed(self, path: str, part: StoredPart | None, error: Exception) -> OSError:
        """Keep the error of a file for the query that needs it; return what DuckDB is given."""
        if isinstance(error, OSError):
            assert part is not None
            error = part.unreadable(error)
        assert isinstance(error, CmssparkError)
        self.failures[_plain(path)] = error
        return OSError(f"{_plain(path)} cannot be read")

    def _open_part(self, name: str, part: StoredPart) -> IO[bytes]:
        file = (
            LocalPart(part)
            if is_local(part.path)
            else RangeFile(part.size, partial(self._files.read_range, part.path))
        )
        return _PartFile(file, partial(self._failed, name, part))  # type: ignore[return-value]

    def _converted_file(
        self, name: str, make: Callable[[], pa.Table], part: StoredPart | None = None
    ) -> _Content:
        return _Content(lambda: io.BytesIO(self._as_parquet(name, make)), part=part)

    def _as_parquet(self, name: str, make: Callable[[], pa.Table]) -> bytes:
        with self._lock:
            if name in self._converted:
                self._converted.move_to_end(name)
                return self._converted[name]
        converted = _parquet(make())
        with self._lock:
            self._converted[name] = converted
            while (
                len(self._converted) > 1 and sum(map(len, self._converted.values())) > _KEPT_BYTES
            ):
                self._converted.popitem(last=False)
        return converted

    def _find(self, path: str) -> _Content | None:
        name = _plain(path)
        return self._folders.get(name.partition("/")[0], {}).get(name)

    def _require(self, path: str) -> _Content:
        content = self._find(path)
        if content is None:
            raise FileNotFoundError(path)
        return content


def _raise(error: CmssparkError) -> IO[bytes]:
    raise error


def _bytes(content: bytes) -> _Content:
    return _Content(partial(io.BytesIO, content), len(content))


@lru_cache(maxsize=256)
def null_rows(schema: Table, count: int) -> bytes:
    """Return a Parquet file of a few hundred bytes with a table's columns and ``count``
    rows of nulls.
    """
    import pyarrow as pa

    return _parquet(
        pa.table([pa.nulls(count, field.type) for field in schema.arrow()], schema=schema.arrow())
    )


def build_table(schema: Table, columns: Mapping[str, Sequence[Any]]) -> pa.Table:
    """Return Python values as a table with the columns of ``schema``, without pandas,
    which pyarrow would import.
    """
    import pyarrow as pa

    return pa.table(
        {column.name: _array(columns[column.name], column.type) for column in schema.columns}
    )


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


def _plain(path: str) -> str:
    return path.removeprefix(f"{PROTOCOL}://")
