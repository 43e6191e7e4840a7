"""File systems: one small interface to the local disk and to any Hadoop file system.

A *location* is a URI or a path: ``/data/x``, ``file:///data/x``, ``hdfs://nn/x``,
``s3a://bucket/x``. Local locations need only Python, so that ``cmsspark show`` and the
publisher need no JVM. All others use Hadoop's ``FileSystem`` in the driver's JVM.
"""

from __future__ import annotations

import atexit
import errno
import hashlib
import io
import mmap
import os
import re
import shutil
import stat
import sys
import time
import uuid
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, Protocol
from urllib.parse import quote, unquote, urlsplit

from cmsspark.base.errors import (
    CmssparkError,
    DataError,
    InputMissing,
    NotAllowed,
    NotReady,
    OutputError,
)

#: At least two letters: for Hadoop a single one is a drive letter.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True, order=True)
class Entry:
    """One entry of a folder: its location, whether it is a folder, its size in bytes
    and mtime in UTC ms.

    ``fault``: the kind of an entry that is neither a folder nor a regular file, such as
    a named pipe; its size is -1.
    """

    path: str
    is_dir: bool
    size: int
    mtime_ms: int
    fault: str = ""

    @property
    def name(self) -> str:
        """The last part of the path, unquoted."""
        return self.path.rstrip("/").rsplit("/", 1)[-1]


@dataclass(frozen=True, order=True)
class LocalEntry(Entry):
    """An entry on a local disk. ``version``: inode and ctime in ns, which tell a file
    that was replaced or written again even where its size and mtime are the same.
    """

    version: tuple[int, int] = (0, 0)


class Files(Protocol):
    """A file system. A location that does not exist gives None from ``stat``, and
    InputMissing elsewhere.
    """

    def stat(self, path: str) -> Entry | None: ...
    def list_dir(self, path: str) -> list[Entry]: ...
    def read_bytes(self, path: str) -> bytes: ...
    def read_range(self, path: str, offset: int, count: int) -> bytes: ...
    def sha256(self, path: str) -> str: ...
    def write_bytes(self, path: str, content: bytes) -> None: ...
    def create(self, path: str, content: bytes) -> bool: ...
    def replace(self, source: str, target: str) -> None: ...
    def make_dirs(self, path: str) -> None: ...
    def set_mode(self, path: str, mode: int) -> None: ...
    def delete(self, path: str) -> None: ...
    def fetch(self, path: str, target: Path) -> None: ...
    def put(self, source: Path, path: str) -> None: ...
    def uri(self, path: str) -> str: ...


def join(base: str, *parts: str) -> str:
    """Return ``base`` and ``parts`` with single slashes between them; ``hdfs://`` keeps
    its slashes.
    """
    path = base
    for part in parts:
        path = (path if path.endswith("/") else path + "/") + part.lstrip("/")
    return path


def is_local(location: str) -> bool:
    """Return whether a location is a plain path or a ``file:`` URI, and not ``hdfs:/x``
    or ``hdfs://nn/x``.
    """
    return location.startswith(("/", "file:")) or _SCHEME.match(location) is None


def local_path(location: str) -> str:
    """Return the path on disk of a local location. Plain paths are returned unchanged,
    ``file:`` URIs are unquoted.
    """
    if not location.startswith("file:"):
        return location
    path = location[len("file:") :]
    if path.startswith("//"):
        path = "/" + path[2:].split("/", 1)[-1] if not path.startswith("///") else path[2:]
    return unquote(path)


def absolute(location: str) -> str:
    """Return the location as seen from any folder: local ones absolute, URIs without a
    slash at the end.
    """
    return (
        str(Path(local_path(location)).absolute()) if is_local(location) else location.rstrip("/")
    )


def is_same_place(first: str, second: str) -> bool:
    """Return whether two locations name one folder.

    ``hdfs:/x`` is ``hdfs://nn/x``: it lacks the name of the default.
    """
    if is_local(first) or is_local(second):
        local = is_local(first) and is_local(second)
        return local and Path(local_path(first)).resolve() == Path(local_path(second)).resolve()
    first_url, second_url = urlsplit(absolute(first)), urlsplit(absolute(second))
    names = {first_url.netloc, second_url.netloc} - {""}
    return (first_url.scheme, first_url.path) == (second_url.scheme, second_url.path) and len(
        names
    ) <= 1


class RangeFile(io.RawIOBase):
    """A seekable file of ``size`` bytes. ``read_range(offset, count)`` fetches them as
    they are read.
    """

    def __init__(self, size: int, read_range: Callable[[int, int], bytes]) -> None:
        self.size = size
        self._read_range = read_range
        self._position = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._position, os.SEEK_END: self.size}[whence]
        self._position = max(0, base + offset)
        return self._position

    def read(self, size: int | None = -1) -> bytes:
        content = self.read_at(self._position, size)
        self._position += len(content)
        return content

    def read_at(self, offset: int, size: int | None = -1) -> bytes:
        """Return up to ``size`` bytes from ``offset`` on, whatever the position."""
        remaining = max(0, self.size - offset)
        count = remaining if size is None or size < 0 else min(size, remaining)
        return self._read_range(offset, count) if count else b""

    def readinto(self, buffer: Any) -> int:
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


class LocalFiles:
    """The local disk. Listing follows links. A dangling link, a loop of links, a named
    pipe and the like are entries of size -1, so that they are named and not skipped,
    and nothing blocks on a pipe.
    """

    def stat(self, path: str) -> Entry | None:
        path = local_path(path)
        try:
            status = os.stat(path)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unreadable(path, error) from None
        mtime_ms = status.st_mtime_ns // 1_000_000
        if stat.S_ISDIR(status.st_mode) or stat.S_ISREG(status.st_mode):
            is_dir = stat.S_ISDIR(status.st_mode)
            version = (status.st_ino, status.st_ctime_ns)
            return LocalEntry(path, is_dir, status.st_size, mtime_ms, version=version)
        return Entry(
            path, False, -1, mtime_ms, _SPECIAL.get(stat.S_IFMT(status.st_mode), "no file")
        )

    def list_dir(self, path: str) -> list[Entry]:
        with _reading(path, "no such folder") as folder:
            return [self._entry(os.path.join(folder, name)) for name in sorted(os.listdir(folder))]

    def _entry(self, path: str) -> Entry:
        try:
            return self.stat(path) or Entry(path, False, -1, 0, "a link to nothing")
        except InputMissing as error:
            return Entry(path, False, -1, 0, str(error.found))

    def read_bytes(self, path: str) -> bytes:
        with _reading(path) as file, open(file, "rb") as stream:
            return stream.read()

    def read_range(self, path: str, offset: int, count: int) -> bytes:
        """Return at most ``count`` bytes from ``offset`` on; fewer at the end of the file."""
        with _reading(path) as file, open(file, "rb") as stream:
            stream.seek(offset)
            return stream.read(count)

    def sha256(self, path: str) -> str:
        """Return the SHA-256 of a file as hexadecimal digits."""
        with _reading(path) as file, open(file, "rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write a file atomically: a reader sees the old content or the new one."""
        path = local_path(path)
        part = _part_name(path)
        try:
            with _writing(path):
                os.makedirs(os.path.dirname(path) or ".", exist_ok=True)
                with open(part, "wb") as stream:
                    stream.write(content)
                    stream.flush()
                    os.fsync(stream.fileno())
                os.replace(part, path)
        except OutputError:
            with suppress(OSError):
                os.unlink(part)
            raise

    def create(self, path: str, content: bytes) -> bool:
        """Create a file atomically. Returns False where it exists: of several
        concurrent calls one returns True.
        """
        path = local_path(path)
        part = _part_name(path)
        self.write_bytes(part, content)
        try:
            os.link(part, path)  # unlike a rename, a link never replaces a file
        except FileExistsError:
            return False
        except OSError as error:
            raise _not_written(path, error) from None
        finally:
            self.delete(part)
        return True

    def replace(self, source: str, target: str) -> None:
        """Rename over ``target`` atomically."""
        with _writing(target) as file:
            os.replace(local_path(source), file)

    def make_dirs(self, path: str) -> None:
        with _writing(path) as folder:
            os.makedirs(folder, exist_ok=True)

    def set_mode(self, path: str, mode: int) -> None:
        """Set who may access a file or folder, whatever the umask."""
        with _writing(path) as file:
            os.chmod(file, mode)

    def delete(self, path: str) -> None:
        """Remove a file or a whole folder. A path that does not exist is not an error."""
        with _writing(path) as file:
            if os.path.isdir(file) and not os.path.islink(file):
                shutil.rmtree(file)
            else:
                Path(file).unlink(missing_ok=True)

    def fetch(self, path: str, target: Path) -> None:
        """Copy a file to the local ``target``."""
        with _reading(path) as file:
            shutil.copyfile(file, target)

    def put(self, source: Path, path: str) -> None:
        """Copy the local file ``source`` to ``path``, in an existing folder."""
        with _writing(path) as file:
            shutil.copyfile(source, file)

    def uri(self, path: str) -> str:
        """Return a URI for pandas, DuckDB and Spark; a name with special characters
        stays a plain path.
        """
        path = os.path.abspath(local_path(path))
        return f"file://{path}" if quote(path) == path else path


#: Errors of an unavailable file server, which may be available later.
AWAY: Final = frozenset(
    {errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN}
)
_SPECIAL: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def unreadable(path: str, error: OSError) -> CmssparkError:
    """Return the error for a path that cannot be read or listed: 77 without permission,
    66 for broken links, 75 where the file server is unavailable, otherwise 65.
    """
    if isinstance(error, PermissionError):
        return NotAllowed(
            "access is refused",
            where=path,
            found=error.strerror,
            next_step="ask its owner for permission",
        )
    if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
        actual = "a loop of links" if error.errno == errno.ELOOP else error.strerror
        return InputMissing("no such file or folder", where=path, found=actual)
    if error.errno in AWAY:
        return NotReady(
            "the file system did not answer as it should",
            where=path,
            found=error.strerror,
            next_step="run it again when the file server is back",
        )
    return DataError(
        "this cannot be read",
        where=path,
        found=error.strerror,
        next_step="check the disk, or fetch it again",
    )


#: Bytes of a file that are read to measure its disk: few, as a disk of 0.2 GB/s takes
#: 40 ms for them.
_MEASURED_BYTES: Final = 8 << 20


def disk_rate(path: str) -> float | None:
    """Return the bytes a second of reading the middle of a file past the page cache;
    None for less than half a megabyte, or where the file cannot be read in this way.
    """
    # Not each system has ``O_DIRECT``.
    with suppress(OSError, AttributeError), mmap.mmap(-1, _MEASURED_BYTES) as room:
        descriptor = os.open(path, os.O_RDONLY | os.O_DIRECT)
        try:
            spare = max(0, os.fstat(descriptor).st_size - _MEASURED_BYTES)
            began = time.perf_counter()
            count = os.preadv(descriptor, [room], spare // 2 // mmap.PAGESIZE * mmap.PAGESIZE)
            seconds = time.perf_counter() - began
        finally:
            os.close(descriptor)
        if count >= _MEASURED_BYTES // 16:
            return count / seconds
    return None


@contextmanager
def _reading(location: str, problem: str = "no such file") -> Iterator[str]:
    """Yield the path on disk. Raises InputMissing (66) where it does not exist, else as
    :func:`unreadable`.
    """
    path = local_path(location)
    try:
        yield path
    except FileNotFoundError:
        raise InputMissing(problem, where=path, found="nothing of that name") from None
    except OSError as error:
        if isinstance(error, NotADirectoryError) and problem == "no such folder":
            raise InputMissing(problem, where=path, found="a file of that name") from None
        raise unreadable(path, error) from None


@contextmanager
def _writing(location: str) -> Iterator[str]:
    """Yield the path on disk. Convert an OSError to OutputError (73)."""
    path = local_path(location)
    try:
        yield path
    except OSError as error:
        raise _not_written(path, error) from None


def _part_name(path: str) -> str:
    """Return a unique name for a file that is written before it is renamed to ``path``."""
    return f"{path}.{uuid.uuid4().hex[:8]}.part"


def _not_written(path: str, error: OSError) -> OutputError:
    is_no_folder = error.errno in (errno.ENOENT, errno.ENOTDIR)
    next_step = "check the path: no such folder can be made" if is_no_folder else None
    return OutputError(
        "a file cannot be written", where=path, found=error.strerror, next_step=next_step
    )


# The end of a process: a thread of Arrow may still give back the bytes of a Python stream
# after the rows that were read from it have been used. If Python has begun to end by then,
# the whole process ends with "terminate called without an active exception" (134).


def _wait_for_threads() -> None:
    """Let other threads have the interpreter until none is busy, half a second at most."""
    if "pyarrow" not in sys.modules:
        return
    end = time.monotonic() + 0.5
    while time.monotonic() < end:
        time.sleep(0.001)
        if not _is_any_thread_busy():
            return


def _is_any_thread_busy() -> bool:
    """Return whether another thread than the main one has or waits for a core or a disk."""
    try:
        numbers = [name for name in os.listdir("/proc/self/task") if name != str(os.getpid())]
    except OSError:
        return False  # no Linux
    for number in numbers:
        with suppress(OSError), open(f"/proc/self/task/{number}/stat", "rb") as stream:
            if stream.read().rpartition(b") ")[2][:1] in (b"R", b"D"):
                return True
    return False


atexit.register(_wait_for_threads)
