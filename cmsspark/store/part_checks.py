"""Checks of part files: their bytes are compared with the SHA-256 in the manifest when
they are first opened, and with sums of blocks whenever they are read.

A local part is read as a whole for the first comparison. An intact part is noted in the
cache directory by path, size, inode and times, with a CRC-32 of each block of its
bytes, so that a later open costs a ``stat``. The note is used for ``recheck_hours`` of
the settings, a day by default. Each block that is read is compared with its sum: bits
that change on the disk later are refused, too. A remote part is compared where it is
fetched as a whole; HDFS and object stores compare checksums of their own with each
range that is read.
"""

from __future__ import annotations

import binascii
import errno
import hashlib
import io
import os
import shlex
import threading
import time
import zlib
from array import array
from collections.abc import Callable
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from cmsspark.base.errors import CmssparkError, DataError
from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import named, options
from cmsspark.filesystems.storage import (
    Entry,
    Files,
    RangeFile,
    is_local,
    local_path,
    unreadable,
)
from cmsspark.settings.settings import DEFAULT_RECHECK_HOURS, load_settings
from cmsspark.store.part_files import list_parts, open_part
from cmsspark.store.results import CurrentTable

#: The file in the cache directory with a line for each intact part: 32 hexadecimal
#: digits, the second at which it was read, and the sums of its blocks in base64.
_FILE_NAME: Final = "intact_parts"
#: Bytes of that file beyond which it begins anew: 200,000 small parts.
_MAX_BYTES: Final = 16_000_000
#: Bytes that have one sum.
_BLOCK_BYTES: Final = 65_536
_READ_BYTES: Final = 16 * _BLOCK_BYTES
#: A file that changed so shortly before it was read may change again within a tick of
#: the file system's clock.
_TICK_NS: Final = 100_000_000


@dataclass(frozen=True)
class StoredPart(Entry):
    """A part file of a stored table, and its run's ``manifest``. ``sha256`` is None
    where an old manifest lacks it.
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
    """Return the part files of a table. Raises DataError (65) where their names are not
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
    (65) where they differ, then or while they are read.
    """
    if is_local(part.path):
        return io.BufferedReader(LocalPart(part), _BLOCK_BYTES)
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
    reads. Raises DataError (65) where the part differs from its manifest, OSError where
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
        first = offset // _BLOCK_BYTES
        last = (offset + count - 1) // _BLOCK_BYTES
        begin = first * _BLOCK_BYTES
        content = os.pread(number, (last + 1) * _BLOCK_BYTES - begin, begin)
        view = memoryview(content)
        for block in range(first, last + 1):
            start = (block - first) * _BLOCK_BYTES
            if block >= len(sums) or zlib.crc32(view[start : start + _BLOCK_BYTES]) != sums[block]:
                raise part.damaged(
                    f"bytes from {block * _BLOCK_BYTES:,} on changed after it was found intact"
                )
        return content[offset - begin : offset - begin + count]

    return read_range


def intact_sums(part: StoredPart) -> array[int] | None:
    """Return the sums of the blocks of a part on the local disk, whose bytes are
    compared with the manifest unless this file was found intact lately and has not
    changed since; None where the manifest has no SHA-256.

    Raises DataError (65) where it differs, OSError where it cannot be read.
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


def _read_sums(part: StoredPart) -> array[int]:
    """Return the sums of a local part, all of whose bytes are read. Raises DataError
    (65) where they are not those in the manifest.
    """
    digest, sums = hashlib.sha256(), array("I")
    # A buffered reader reads as many bytes as it is asked for, but at the end.
    with open(local_path(part.path), "rb") as stream:
        while content := stream.read(_READ_BYTES):
            digest.update(content)
            view = memoryview(content)
            sums.extend(
                zlib.crc32(view[start : start + _BLOCK_BYTES])
                for start in range(0, len(content), _BLOCK_BYTES)
            )
    _compare(part, digest.hexdigest())
    return sums


def check_bytes(files: Files, part: StoredPart) -> None:
    """Compare all bytes of a part with its manifest, whatever was noted. Raises
    DataError (65) where they differ.
    """
    _compare(part, files.sha256(part.path))


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
