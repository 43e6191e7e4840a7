"""The current part files of every stored table, and what is known of each stored day and period.

A run is immutable, so what was once read of a run stays valid: a refresh reads each
``CURRENT`` again, and a manifest only where another run became current. An interval
whose files are damaged or gone stands in the index with its error, which only a query
that needs this interval gets.
"""

from __future__ import annotations

import io
import json
import os
import re
import threading
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, timedelta
from functools import lru_cache, partial
from typing import IO, TYPE_CHECKING, Any, Final
from urllib.parse import quote

import msgspec
from fsspec import AbstractFileSystem

from cmsspark.base import buffers, dates
from cmsspark.base.errors import CmssparkError, DataError, InputMissing
from cmsspark.base.manifests import InputEntry, Manifest, TableEntry
from cmsspark.base.periods import Interval, Period, first_day, named
from cmsspark.base.schemas import Table, stored_table
from cmsspark.filesystems.storage import Files, RangeFile, is_local, join
from cmsspark.store import results
from cmsspark.store.job_index import JOBS, Job
from cmsspark.store.part_files import LocalPart, StoredPart, open_stored, stored_parts
from cmsspark.store.results import CurrentTable
from cmsspark.store.stored_columns import conformed_rows
from cmsspark.store.stored_days import partial_reasons

if TYPE_CHECKING:
    import pyarrow as pa


#: A day lacks a stream where a day at most so many days before or after it has that stream.
_AROUND_DAYS: Final = 7


@dataclass(frozen=True)
class StoredInterval:
    """The current result of one table of a job for one day or period.

    ``rows`` and ``bytes`` as its manifest says. ``partial_reason``: empty, or why the
    result is partial. ``fault``: the error of a query that needs it, where the store is
    damaged. ``streams``: the log streams that its run counted.
    """

    table: str
    job: str
    interval: Interval
    run: str
    rows: int = 0
    bytes: int = 0
    fmt: str = "parquet"
    has_own_schema: bool = False
    parts: tuple[StoredPart, ...] = ()
    partial_reason: str = ""
    fault: CmssparkError | None = None
    streams: tuple[str, ...] = ()

    @property
    def is_converted(self) -> bool:
        """Whether its files are given as others than they are: CSV, and columns of
        another version of the schema.
        """
        return self.fault is None and (self.fmt != "parquet" or self.has_own_schema)

    @property
    def first_day(self) -> date:
        """Its first day."""
        return first_day(self.interval)

    @property
    def last_day(self) -> date:
        """Its last day, included."""
        return self.interval.last if isinstance(self.interval, Period) else self.interval

    @property
    def made_ms(self) -> int | None:
        """When its run began, UTC ms; None where the run's id does not say."""
        try:
            return dates.run_began_ms(self.run)
        except ValueError:
            return None


class _SlimInput(msgspec.Struct):
    """What a run read, without its files."""

    is_tmp: bool | None = None


class _SlimManifest(msgspec.Struct):
    """The parts of a manifest that say where its tables are and whether it is partial.
    A day's may list 10,000 files: decoding these alone is ten times as fast.
    """

    run: str = ""
    job: str = ""
    tables: dict[str, TableEntry] = {}
    streams: tuple[str, ...] | None = None
    missing_streams: tuple[str, ...] | None = None
    partial: bool | None = None
    damaged: list[msgspec.Raw] | None = None
    inputs: list[_SlimInput] | None = None


_SLIM: Final = msgspec.json.Decoder(_SlimManifest)


@dataclass
class _StoredRun:
    """What was read of a job's current run of one interval: a slim manifest, and its tables."""

    run: str
    manifest: Manifest
    tables: dict[str, StoredInterval]

    @property
    def faults(self) -> list[str]:
        """What is wrong with its tables. Only such a run is read again: files may be put back."""
        return [entry.fault.text() for entry in self.tables.values() if entry.fault is not None]


@dataclass
class StoredParts:
    """The index of a store. :meth:`refresh` brings jobs up to date; :meth:`of` gives a
    table's intervals, in order.

    Not thread-safe: :class:`cmsspark.store.query.database.Database` holds a lock around it.
    """

    files: Files
    fout: str
    _runs: dict[str, dict[Interval, _StoredRun]] = field(default_factory=dict)

    def refresh(self, job: Job) -> bool:
        """Read which runs of the job are current. Returns whether anything changed."""
        before = self._runs.get(job.name)
        earlier = before or {}
        runs: dict[Interval, _StoredRun] = {}
        for interval, path in self._intervals(job):
            run = self._current_run(path)
            if run is None:
                continue
            old = earlier.get(interval)
            runs[interval] = (
                old
                if old and old.run == run and run and not old.faults
                else self._read(job, interval, run)
            )
            if old and old.faults and (old.run, old.faults) == (run, runs[interval].faults):
                runs[interval] = old
        is_same = (
            before is not None
            and runs.keys() == before.keys()
            and all(run is earlier[interval] for interval, run in runs.items())
        )
        if not is_same:
            self._runs[job.name] = _with_reasons(runs)
        return not is_same

    def intervals(self, job: Job, table: str) -> list[StoredInterval]:
        """Return the stored intervals of a table, oldest first, as the last refresh found them."""
        runs = self._runs.get(job.name, {})
        stored = (run.tables[table] for run in runs.values() if table in run.tables)
        return sorted(stored, key=lambda entry: (entry.first_day, entry.last_day))

    def forget(self, job: Job) -> None:
        """Read everything of a job again at its next refresh, for example after files
        of it were not found.
        """
        self._runs.pop(job.name, None)

    def _intervals(self, job: Job) -> Iterator[tuple[Interval, str]]:
        base = join(self.fout, job.name)
        try:
            entries = self.files.list_dir(base) if self.files.stat(base) is not None else []
        except InputMissing:
            return
        for entry in entries:
            try:
                interval = named(entry.name)
            except ValueError:
                continue
            if entry.is_dir and isinstance(interval, Period) == job.of_periods:
                yield interval, entry.path

    def _current_run(self, folder: str) -> str | None:
        """Return the run that ``CURRENT`` names; None where there is none yet, an empty
        text where it is damaged.
        """
        path = join(folder, "CURRENT")
        try:
            run = json.loads(self.files.read_bytes(path)).get("run")
        except InputMissing:
            return None
        except (ValueError, AttributeError):
            return ""
        return run if isinstance(run, str) else ""

    def _read(self, job: Job, interval: Interval, run: str) -> _StoredRun:
        tables: dict[str, StoredInterval] = {}
        folder = join(self.fout, job.name, interval.isoformat(), "runs", run)
        slim = self._slim_manifest(folder) if run else None
        for table in job.tables:
            path = join(folder, table)
            try:
                if slim is not None and table in slim.tables and self.files.stat(path) is not None:
                    current = CurrentTable(path, slim)
                else:
                    # Says what is wrong: no such table, or a damaged store.
                    current = results.current(self.files, self.fout, job.name, table, interval)
                tables[table] = self._table(current, stored_table(table), job, interval)
            except InputMissing:
                continue  # this run has no such table
            except CmssparkError as error:
                tables[table] = StoredInterval(table, job.name, interval, run, fault=error)
        return _StoredRun(run, slim or Manifest(document={}), tables)

    def _slim_manifest(self, folder: str) -> Manifest | None:
        """Return what the index needs of a run's manifest, without its lists of files;
        None where it cannot be read.
        """
        try:
            slim = _SLIM.decode(self.files.read_bytes(join(folder, "manifest.json")))
        except (CmssparkError, msgspec.MsgspecError, ValueError):
            return None
        return Manifest(
            document={},
            run=slim.run,
            job=slim.job,
            tables=slim.tables,
            streams=slim.streams or (),
            missing_streams=slim.missing_streams or (),
            partial=bool(slim.partial),
            damaged=({},) if slim.damaged else (),
            inputs=(InputEntry(is_tmp=True),)
            if any(source.is_tmp for source in slim.inputs or ())
            else (),
        )

    def _table(
        self, current: CurrentTable, schema: Table, job: Job, interval: Interval
    ) -> StoredInterval:
        manifest = current.manifest
        entry = manifest.tables[schema.name]
        fmt = entry.format
        parts = tuple(stored_parts(self.files, current, schema.name))
        stored = StoredInterval(
            schema.name,
            job.name,
            interval,
            manifest.run,
            entry.rows,
            sum(part.size for part in parts),
            fmt,
            bool(entry.schema) and entry.schema != schema.fingerprint(),
            parts,
            streams=tuple(
                stream for stream in manifest.streams if stream not in manifest.missing_streams
            ),
        )
        # An old run does not say how many files and bytes it wrote.
        expected = (
            entry.files or len(parts),
            stored.bytes if entry.bytes is None else entry.bytes,
        )
        if expected == (len(parts), stored.bytes):
            return stored
        fault = DataError(
            f"the part files of {schema.name} of {interval} are others than its manifest says",
            where=current.path,
            found=f"{len(parts)} files of {stored.bytes:,} bytes; {expected[0]} of {expected[1]:,} bytes were written",
            next_step=f"run {manifest.job} again for {interval}",
        )
        return replace(stored, fault=fault)


def tables() -> dict[str, tuple[Job, ...]]:
    """Return every stored table with the jobs that write it, in the order of ``run_spark --list``.

    Example:
        >>> list(tables())[:3]
        ['data_aggregation', 'partials', 'site_pairs']
        >>> [job.name for job in tables()["condor_ids"]]
        ['data_aggregation', 'dbs_condor']
    """
    writers: dict[str, tuple[Job, ...]] = {}
    for job in JOBS.values():
        for table in job.tables:
            writers[table] = (*writers.get(table, ()), job)
    return writers


def _with_reasons(runs: dict[Interval, _StoredRun]) -> dict[Interval, _StoredRun]:
    """Return the runs with the reasons why some are partial.

    A day is compared with the days around it, a period is not.
    """
    manifests = {interval: run.manifest for interval, run in runs.items()}
    marked = {}
    for interval, run in runs.items():
        near = interval if isinstance(interval, date) else None
        around = _around(near, manifests) if near else {interval: run.manifest}
        reason = partial_reasons(around).get(interval, "")
        stored = {
            name: replace(entry, partial_reason=reason) for name, entry in run.tables.items()
        }
        marked[interval] = _StoredRun(run.run, run.manifest, stored)
    return marked


def _around(day: date, manifests: Mapping[Interval, Manifest]) -> dict[Interval, Manifest]:
    near: list[Interval] = [
        day + timedelta(days=number) for number in range(-_AROUND_DAYS, _AROUND_DAYS + 1)
    ]
    return {interval: manifests[interval] for interval in near if interval in manifests}


# Stored tables as DuckDB sees them: a read-only file system with one folder a table,
# and nothing else in it.

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


@dataclass(frozen=True)
class _Content:
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
        contents = {_schema_file(folder, schema): _bytes(null_rows(schema, usual))}
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
        """Return the part whose name stands in an error message of DuckDB; None where none does."""
        match = _NAME.search(text)
        content = self._find(match[0]) if match else None
        return content.part if content else None

    def damaged_part(self) -> StoredPart | None:
        """Return the first of the parts that were opened lately that cannot be read;
        None where all can.
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


def _schema_file(folder: str, schema: Table) -> str:
    names = ("period", "first_day", "last_day") if "period" in schema.names else ("day",)
    return f"{folder}/{'/'.join(f'{name}={NO_DAY}' for name in names)}/columns.parquet"


def _plain(path: str) -> str:
    return path.removeprefix(f"{PROTOCOL}://")
