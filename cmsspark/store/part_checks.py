"""Checks of part files: their bytes are compared with the SHA-256 in the manifest when
they are first opened.

A local part is read as a whole for that. Intact parts are noted in the cache directory
by path, size and times, so that a later open costs a ``stat``. A remote part is
compared where it is fetched as a whole; HDFS and object stores compare checksums of
their own with each range that is read.
"""

from __future__ import annotations

import hashlib
import io
import os
import shlex
import threading
import time
from contextlib import suppress
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path
from typing import Final

from cmsspark.base.errors import CmssparkError, DataError
from cmsspark.base.manifests import Manifest
from cmsspark.base.periods import named, options
from cmsspark.filesystems.storage import Entry, Files, is_local, local_path, unreadable
from cmsspark.settings.settings import load_settings
from cmsspark.store.part_files import list_parts, open_part
from cmsspark.store.results import CurrentTable

#: The file in the cache directory with a line of 32 hexadecimal digits for each intact part.
_FILE_NAME: Final = "intact_parts"
#: Bytes of that file beyond which it begins anew: 240,000 parts.
_MAX_BYTES: Final = 8_000_000
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
        return DataError(
            "a part of the stored table cannot be read",
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
    """Check the local part files of a table before another program reads them. Raises
    DataError (65).
    """
    for part in stored_parts(files, current, table):
        if is_local(part.path):
            try:
                check_local(part)
            except OSError as error:
                raise unreadable(part.path, error) from None


def open_stored(files: Files, part: StoredPart) -> io.BufferedReader:
    """Open a part after its bytes were compared with the manifest. Raises DataError
    (65) where they differ.
    """
    if is_local(part.path):
        check_local(part)
        return open_part(files, part.path)
    stream = open_part(files, part.path)
    try:
        if part.sha256 is not None:
            _compare(part, hashlib.file_digest(stream, "sha256").hexdigest())
            stream.seek(0)
    except BaseException:
        stream.close()
        raise
    return stream


def check_local(part: StoredPart) -> None:
    """Compare a part on the local disk with its manifest, unless this file was intact
    before and has not changed since.

    Raises DataError (65) where it differs, OSError where it cannot be read.
    """
    if part.sha256 is None:
        return
    path = local_path(part.path)
    status, now = os.stat(path), time.time_ns()
    # A new content changes ctime, whatever else is restored.
    values = (
        os.path.abspath(path),
        status.st_size,
        status.st_mtime_ns,
        status.st_ctime_ns,
        part.sha256,
    )
    key = hashlib.blake2b(
        "\0".join(map(str, values)).encode("utf-8", "surrogateescape"), digest_size=16
    ).hexdigest()
    notes = _notes()
    if key in notes:
        return
    with open(path, "rb") as stream:
        _compare(part, hashlib.file_digest(stream, "sha256").hexdigest())
    if status.st_ctime_ns < now - _TICK_NS:
        notes.add(key)


def check_bytes(files: Files, part: StoredPart) -> None:
    """Compare all bytes of a part with its manifest, whatever was noted. Raises
    DataError (65) where they differ.
    """
    _compare(part, files.sha256(part.path))


def _compare(part: StoredPart, digest: str) -> None:
    if digest != part.sha256:
        raise part.damaged("its SHA-256 is other than its manifest says")


class IntactParts:
    """The parts that were intact when they were read, noted by all processes in one
    file of the cache directory.

    Without a writable cache directory they are known to this process alone.
    """

    def __init__(self, folder: Path | None) -> None:
        self._file = None if folder is None else folder / _FILE_NAME
        self._keys: set[str] = set()
        self._lock = threading.Lock()
        if self._file is not None:
            # A line that was cut off is no key, so its part is read again.
            with suppress(OSError):
                self._keys.update(
                    self._file.read_text(encoding="ascii", errors="replace").split("\n")
                )

    def __contains__(self, key: str) -> bool:
        return key in self._keys

    def add(self, key: str) -> None:
        """Note an intact part."""
        with self._lock:
            self._keys.add(key)
            if self._file is None:
                return
            with suppress(OSError):
                self._file.parent.mkdir(parents=True, exist_ok=True)
                with open(self._file, "ab") as stream:
                    if stream.tell() > _MAX_BYTES:
                        stream.truncate(0)
                    stream.write(f"{key}\n".encode())


#: The notes of a cache directory, read once.
_notes_in: Final = cache(IntactParts)


def _notes() -> IntactParts:
    """Return the notes in the cache directory of the settings."""
    try:
        return _notes_in(load_settings().cache_dir)
    except CmssparkError:
        return _notes_in(None)
