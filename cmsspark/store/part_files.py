"""The part files of a stored table: writes Parquet parts and counts the rows of what was written."""

from __future__ import annotations

import binascii
import errno
import hashlib
import io
import os
import shlex
import tempfile
import threading
import time
import zlib
from array import array
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import IO, TYPE_CHECKING, Final, TypeVar

from cmsspark.base.errors import CmssparkError, DataError, InputMissing, OutputError
from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import Interval, named, options
from cmsspark.base.schemas import Table
from cmsspark.filesystems.storage import (
    Entry,
    Files,
    RangeFile,
    is_local,
    join,
    local_path,
    unreadable,
)
from cmsspark.settings.settings import DEFAULT_RECHECK_HOURS, load_settings
from cmsspark.store import results
from cmsspark.store.results import CurrentTable, stored_results
from cmsspark.store.run_history import Check, RunHistory

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame


#: Bytes at the end of a Parquet file, which usually contain its footer.
_FOOTER_BYTES: Final = 65_536
#: Bytes of CSV that are parsed at once.
_BLOCK_BYTES: Final = 8 * 1024 * 1024
_Part = TypeVar("_Part", bound=Entry)


def list_parts(files: Files, folder: str, fmt: str = "parquet") -> list[Entry]:
    """Return the part files in a table's folder, in the order of their names."""
    return [
        entry
        for entry in files.list_dir(folder)
        if entry.name.startswith("part-") and entry.name.endswith(f".{fmt}")
    ]


def read_parts(
    files: Files, parts: Sequence[_Part], open_with: Callable[[Files, _Part], IO[bytes]]
) -> pa.Table:
    """Return the rows of Parquet parts, one after another, each opened by
    ``open_with``. Raises DataError (65) if one cannot be read, or parts differ in
    their columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    tables = []
    for part in parts:
        try:
            with open_with(files, part) as stream:
                tables.append(pq.read_table(stream, page_checksum_verification=True))
        except (pa.ArrowException, OSError) as error:
            reason = " ".join(str(error).split())[:200]
            raise DataError(
                "a part of the stored table cannot be read", where=part.path, found=reason
            ) from None
    if any(not table.schema.equals(tables[0].schema) for table in tables):
        raise DataError(
            "the parts have different columns", where=parts[0].path, found="several schemas"
        )
    return pa.concat_tables(tables)


def write_part(rows: pa.Table, part: Path) -> None:
    """Write a local Parquet file with Spark's types and packing. Raises OutputError (73)."""
    import pyarrow.parquet as pq

    try:
        pq.write_table(
            rows, part, compression="snappy", store_schema=False, write_page_checksum=True
        )
    except OSError as error:
        raise OutputError(
            "the result cannot be written", where=part, found=error.strerror or error
        ) from None


def count_csv_rows(files: Files, part: Entry, schema: Table) -> int:
    """Count the rows of a CSV file with a header. Raises OutputError (73) for other
    columns, or where it is damaged.
    """
    import pyarrow as pa
    from pyarrow import csv

    read = csv.ReadOptions(block_size=_BLOCK_BYTES)
    parse = csv.ParseOptions(double_quote=True, newlines_in_values=True)
    convert = csv.ConvertOptions(column_types={name: pa.string() for name in schema.names})
    try:
        with (
            open_part(files, part.path) as stream,
            csv.open_csv(stream, read, parse, convert) as batches,
        ):
            if batches.schema.names != schema.names:
                raise OutputError(
                    "the written part has other columns",
                    where=part.path,
                    found=batches.schema.names,
                )
            return sum(batch.num_rows for batch in batches)
    except pa.ArrowInvalid as error:
        if not part.size:
            return 0
        raise OutputError(
            "the written part cannot be read back", where=part.path, found=str(error)
        ) from None


def open_part(files: Files, path: str) -> io.BufferedReader:
    """Open a file on this host. A remote file is fetched, and deleted when it is closed."""
    if is_local(path):
        return open(local_path(path), "rb")
    with tempfile.TemporaryDirectory(prefix="cmsspark-") as folder:
        target = Path(folder) / "part"
        files.fetch(path, target)
        # The open file stays readable after its folder is removed.
        return target.open("rb")


def count_part_rows(files: Files, part: Entry, schema: Table) -> int:
    """Count the rows of a Parquet file by its footer alone. Raises OutputError (73)
    if it has other columns.
    """
    import pyarrow as pa
    import pyarrow.parquet as pq

    end = _read_end(files, part, _FOOTER_BYTES)
    # The last 8 bytes are the footer's length and the four letters of the format.
    size = int.from_bytes(end[-8:-4], "little") + 8
    if size > len(end):
        end = _read_end(files, part, size)
    footer = pq.read_metadata(pa.BufferReader(end))
    names = footer.schema.to_arrow_schema().names
    if names != schema.names:
        raise OutputError("the written part has other columns", where=part.path, found=names)
    return int(footer.num_rows)


def _read_end(files: Files, part: Entry, count: int) -> bytes:
    """Return the last ``count`` bytes of a file, or all of a shorter one."""
    return files.read_range(part.path, max(0, part.size - count), count)


def plain_texts(schema: pa.Schema) -> pa.Schema:
    import pyarrow as pa

    plain = [
        field.with_type(pa.string()) if pa.types.is_dictionary(field.type) else field
        for field in schema
    ]
    return pa.schema(plain)


def check_columns(rows: DataFrame, schema: Table) -> None:
    expected = [(f.name, f.dataType.simpleString()) for f in schema.spark().fields]
    columns = [(f.name, f.dataType.simpleString()) for f in rows.schema.fields]
    if expected != columns:
        raise RuntimeError(f"table {schema.name} wants columns {expected}, the job made {columns}")


# Checks of part files: their bytes are compared with the SHA-256 in the manifest when
# they are first opened, and with sums of blocks whenever they are read.

#: The file in the cache directory with a line for each intact part: 32 hexadecimal
#: digits, the second at which it was read, and the sums of its blocks in base64.
_FILE_NAME: Final = "intact_parts"
#: Bytes of that file beyond which it begins anew: 200,000 small parts.
_MAX_BYTES: Final = 16_000_000
#: Bytes that have one sum.
_SUMMED_BYTES: Final = 65_536
_READ_BYTES: Final = 16 * _SUMMED_BYTES
#: A file that changed so shortly before it was read may change again within a tick of
#: the file system's clock.
_TICK_NS: Final = 100_000_000


@dataclass(frozen=True)
class StoredPart(Entry):
    """A part file of a stored table, and its run's ``manifest``. ``sha256`` is None
    if an old manifest lacks it.
    """

    sha256: str | None = None
    manifest: Manifest = field(default_factory=lambda: Manifest(document={}), compare=False)

    @property
    def command(self) -> str:
        """The command that makes the result again.

        Example:
            >>> path = "/data/results/dbs_aaa/2026-01-15/runs/20260116T120000Z-0a1b2c3d/dbs_aaa/part-00000.parquet"
            >>> StoredPart(path, False, 1, 0, manifest=Manifest(document={}, streams=("aaa",))).command
            'run_spark dbs_aaa --date 2026-01-15 --recount --fout /data/results'
        """
        fout, job, interval, *_ = self.path.rsplit("/", 6)
        # The report of a stream may be taken from data_aggregation, which has partials
        # and always reads the logs.
        may_be_taken = self.manifest.streams and "partials" not in self.manifest.tables
        recount = " --recount" if may_be_taken else ""
        return f"run_spark {job} {options(named(interval))}{recount} --fout {shlex.quote(fout)}"

    def unreadable(self, error: Exception) -> DataError:
        """Return the error for a part that is damaged, or not there any more."""
        is_disk_fault = isinstance(error, OSError) and error.errno == errno.EIO
        return DataError(
            "the disk failed where a part of the stored table is read"
            if is_disk_fault
            else "a part of the stored table cannot be read",
            where=self.path,
            found=" ".join(str(error).split())[:200],
            next_step=self.command,
        )

    def damaged(self, actual: str) -> DataError:
        """Return the error for a part that is not what its run wrote."""
        run = self.path.rsplit("/", 3)[1]
        return DataError(
            f"a part of the stored table is damaged; run {run} wrote it",
            where=self.path,
            found=actual,
            next_step=self.command,
        )


def stored_parts(files: Files, current: CurrentTable, table: str) -> list[StoredPart]:
    """Return the part files of a table. Raises DataError (65) if their names are not
    those in its manifest.
    """
    entry = current.manifest.tables[table]
    digests = entry.sha256
    parts = [
        StoredPart(
            part.path,
            False,
            part.size,
            part.mtime_ms,
            part.fault,
            (digests or {}).get(part.name),
            current.manifest,
        )
        for part in list_parts(files, current.path, entry.format)
    ]
    names = {part.name for part in parts}
    if digests is not None and names != digests.keys():
        missing, unlisted = sorted(digests.keys() - names), sorted(names - digests.keys())
        actual = [
            f"{text}: {', '.join(group)}"
            for text, group in (("missing", missing), ("new", unlisted))
            if group
        ]
        absent = StoredPart(
            f"{current.path}/{(missing or unlisted)[0]}", False, -1, 0, manifest=current.manifest
        )
        raise absent.damaged("; ".join(actual))
    return parts


def check_table(files: Files, current: CurrentTable, table: str) -> None:
    """Compare all bytes of the local part files of a table with their manifest before
    another program reads them. Raises DataError (65).
    """
    for part in stored_parts(files, current, table):
        if is_local(part.path) and part.sha256 is not None:
            try:
                _read_sums(part)
            except OSError as error:
                raise unreadable(part.path, error) from None


def open_stored(files: Files, part: StoredPart) -> io.BufferedReader:
    """Open a part after its bytes were compared with the manifest. Raises DataError
    (65) if they differ, then or while they are read.
    """
    if is_local(part.path):
        return io.BufferedReader(LocalPart(part), _SUMMED_BYTES)
    stream = open_part(files, part.path)
    try:
        if part.sha256 is not None:
            _compare(part, hashlib.file_digest(stream, "sha256").hexdigest())
            stream.seek(0)
    except BaseException:
        stream.close()
        raise
    return stream


class LocalPart(RangeFile):
    """A part on the local disk that was found intact, each of whose blocks is compared
    with its sum when it is read.

    It is closed when nothing refers to it: DuckDB does not close what it no longer
    reads. Raises DataError (65) if the part differs from its manifest, OSError where
    it cannot be read.
    """

    def __init__(self, part: StoredPart) -> None:
        sums = intact_sums(part)
        self._number = number = os.open(local_path(part.path), os.O_RDONLY | os.O_CLOEXEC)
        # The function knows the number and not the file, which would refer to itself.
        super().__init__(os.fstat(number).st_size, _checked_reads(part, number, sums))

    def close(self) -> None:
        if not self.closed:
            os.close(self._number)
        super().close()


def _checked_reads(
    part: StoredPart, number: int, sums: array[int] | None
) -> Callable[[int, int], bytes]:
    """Return what reads a range of an open part; without ``sums`` nothing is compared."""
    if sums is None:
        return lambda offset, count: os.pread(number, count, offset)

    def read_range(offset: int, count: int) -> bytes:
        first = offset // _SUMMED_BYTES
        last = (offset + count - 1) // _SUMMED_BYTES
        begin = first * _SUMMED_BYTES
        content = os.pread(number, (last + 1) * _SUMMED_BYTES - begin, begin)
        view = memoryview(content)
        for block in range(first, last + 1):
            start = (block - first) * _SUMMED_BYTES
            if (
                block >= len(sums)
                or zlib.crc32(view[start : start + _SUMMED_BYTES]) != sums[block]
            ):
                raise part.damaged(
                    f"bytes from {block * _SUMMED_BYTES:,} on changed after it was found intact"
                )
        return content[offset - begin : offset - begin + count]

    return read_range


def _identity(path: str) -> tuple[str, int, int, int, int]:
    """Return what tells that a file is the same: a new content changes ctime, which is
    last, whatever else is restored.
    """
    status = os.stat(path)
    return (
        os.path.abspath(path),
        status.st_ino,
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
    )


def intact_sums(part: StoredPart) -> array[int] | None:
    """Return the sums of the blocks of a part on the local disk, whose bytes are
    compared with the manifest unless this file was found intact lately and has not
    changed since; None if the manifest has no SHA-256.

    Raises DataError (65) if it differs, OSError where it cannot be read.
    """
    if part.sha256 is None:
        return None
    identity = _identity(local_path(part.path))
    key = hashlib.blake2b(
        "\0".join(map(str, (*identity, part.sha256))).encode("utf-8", "surrogateescape"),
        digest_size=16,
    ).hexdigest()
    now = time.time_ns()
    notes, valid_s = _notes()
    if (sums := notes.sums(key, now // 1_000_000_000 - valid_s)) is not None:
        return sums
    sums = _read_sums(part)
    if identity[-1] < now - _TICK_NS:
        notes.add(key, sums, now // 1_000_000_000)
    return sums


def _read_sums(part: StoredPart) -> array[int]:
    """Return the sums of a local part, all of whose bytes are read. Raises DataError
    (65) if they are not those in the manifest.
    """
    digest, sums = hashlib.sha256(), array("I")
    # A buffered reader reads as many bytes as it is asked for, but at the end.
    with open(local_path(part.path), "rb") as stream:
        while content := stream.read(_READ_BYTES):
            digest.update(content)
            view = memoryview(content)
            sums.extend(
                zlib.crc32(view[start : start + _SUMMED_BYTES])
                for start in range(0, len(content), _SUMMED_BYTES)
            )
    _compare(part, digest.hexdigest())
    return sums


def _compare(part: StoredPart, digest: str) -> None:
    if digest != part.sha256:
        raise part.damaged("its SHA-256 is other than its manifest says")


class IntactParts:
    """The parts that were intact when they were read, with the sums of their blocks,
    noted by all processes in one file of the cache directory.

    Without a writable cache directory they are known to this process alone.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / _FILE_NAME
        self._notes: dict[str, tuple[int, str]] = {}
        self._lock = threading.Lock()
        if self._file is not None:
            with suppress(OSError):
                text = self._file.read_text(encoding="ascii", errors="replace")
                # A line that was cut off is no note, so its part is read again.
                for line in text.split("\n")[:-1]:
                    words = line.split(" ")
                    if len(words) == 3 and words[1].isdecimal():
                        self._notes[words[0]] = int(words[1]), words[2]

    def sums(self, key: str, since_s: int) -> array[int] | None:
        """Return the sums of a part that was intact after ``since_s``; None for others."""
        read_s, text = self._notes.get(key, (0, ""))
        if read_s <= since_s:
            return None
        try:
            return array("I", binascii.a2b_base64(text, strict_mode=True))
        except ValueError:
            return None

    def add(self, key: str, sums: array[int], read_s: int) -> None:
        """Note an intact part."""
        text = binascii.b2a_base64(sums, newline=False).decode()
        with self._lock:
            self._notes[key] = read_s, text
            if self._file is None:
                return
            with suppress(OSError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                with open(self._file, "ab") as stream:
                    if stream.tell() > _MAX_BYTES:
                        stream.truncate(0)
                    stream.write(f"{key} {read_s} {text}\n".encode())


#: The notes of a cache directory, read once.
_notes_in: Final = cache(IntactParts)


def _notes() -> tuple[IntactParts, int]:
    """Return the notes in the cache directory of the settings, and the seconds for
    which each is used.
    """
    try:
        settings = load_settings()
    except CmssparkError:
        return _notes_in(None), DEFAULT_RECHECK_HOURS * 3_600
    return _notes_in(settings.cache_dir), settings.recheck_hours * 3_600


# Verification of a store: the bytes of all part files beside the SHA-256 in the
# manifests of their runs.

#: Each day one in so many results is checked.
SHARE: Final = 30
_DAY_MS: Final = 86_400_000


@dataclass
class RunCheck:
    """The check of one run: parts and bytes that were compared, tables without
    checksums, and errors.
    """

    job: str
    interval: Interval
    run: str = ""
    is_current: bool = True
    part_count: int = 0
    byte_count: int = 0
    unchecked: list[str] = field(default_factory=list)
    errors: list[CmssparkError] = field(default_factory=list)

    def as_note(self, at_ms: int) -> Check:
        """Return the check as the run history keeps it."""
        error = self.errors[0].text() if self.errors else ""
        interval = self.interval.isoformat()
        return Check(self.job, interval, self.run, at_ms, self.part_count, error)


def check_runs(files: Files, fout: str, *, all_runs: bool = False) -> Iterator[RunCheck]:
    """Check the current run of each day and period, with ``all_runs`` also the runs
    that it replaced.
    """
    for job, interval in stored_results(files, fout):
        check = check_result(files, fout, job, interval)
        yield check
        if all_runs:
            current_id = check.run
            for run in files.list_dir(join(fout, job, interval.isoformat(), "runs")):
                path = join(run.path, "manifest.json")
                # A run without a manifest never ended.
                if run.name == current_id or files.stat(path) is None:
                    continue
                replaced = RunCheck(job, interval, run.name, is_current=False)
                try:
                    _check(files, results.read_manifest(files, path), run.path, replaced)
                except InputMissing:
                    continue  # it was removed meanwhile
                except CmssparkError as error:
                    replaced.errors.append(error)
                yield replaced


def check_share(files: Files, fout: str, history: RunHistory, now_ms: int) -> Iterator[RunCheck]:
    """Check the results whose turn it is: one in ``SHARE`` each day in UTC, those that
    were damaged first, then those that were not checked for the longest time. A second
    call on a day checks what the first one did not.
    """
    notes = history.checks(fout)
    stored = list(stored_results(files, fout))
    due: list[tuple[bool, int, str, str, Interval]] = []
    for job, interval in stored:
        note = notes.get((job, interval.isoformat()), Check(job, "", "", 0, 0))
        if note.at_ms // _DAY_MS < now_ms // _DAY_MS:
            due.append((not note.error, note.at_ms, interval.isoformat(), job, interval))
    due.sort(key=lambda entry: entry[:4])
    damaged = sum(not is_intact for is_intact, *_ in due)
    count = max(-(-len(stored) // SHARE) - (len(stored) - len(due)), damaged)
    for *_, job, interval in due[: max(0, count)]:
        check = check_result(files, fout, job, interval)
        history.note_check(fout, check.as_note(now_ms))
        yield check


def check_result(files: Files, fout: str, job: str, interval: Interval) -> RunCheck:
    """Check the current run of a day or period."""
    check = RunCheck(job, interval)
    try:
        check.run, path, manifest = results.current_run(files, fout, job, interval)
    except CmssparkError as error:
        check.errors.append(error)
    else:
        _check(files, manifest, path, check)
    return check


def _check(files: Files, manifest: Manifest, folder: str, check: RunCheck) -> None:
    for table, entry in manifest.tables.items():
        if entry.sha256 is None:
            check.unchecked.append(table)
            continue
        try:
            parts = stored_parts(files, CurrentTable(join(folder, table), manifest), table)
        except CmssparkError as error:
            check.errors.append(error)
            continue
        for part in parts:
            try:
                _compare(part, files.sha256(part.path))
            except CmssparkError as error:
                check.errors.append(error)
            check.part_count += 1
            check.byte_count += part.size
