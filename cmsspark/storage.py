"""Where files lie: one small interface over the local disk and any Hadoop file system.

A *location* is a URI or a path: ``/data/x``, ``file:///data/x``, ``hdfs://nn/x``, ``s3a://bucket/x``. Local ones are
served by Python alone, so that ``cmsspark path`` and the publisher need no JVM; all others go through
Hadoop's ``FileSystem`` in the driver's JVM.
"""

from __future__ import annotations

import errno
import os
import re
import shutil
import stat
import uuid
from contextlib import suppress
from dataclasses import dataclass
from pathlib import Path
from typing import Final, Protocol
from urllib.parse import quote, unquote

from cmsspark.errors import CmssparkError, DataError, InputMissing, NotAllowed, NotReady, OutputError

#: Two letters at least, as for Hadoop a drive letter is no scheme.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True, order=True)
class Entry:
    """One name in a folder: its location, whether it is a folder, its size in bytes and mtime in UTC ms.

    ``fault``: what it is where it is neither a folder nor a file with content, such as a named pipe; its size is -1.
    """

    path: str
    is_dir: bool
    size: int
    mtime_ms: int
    fault: str = ""

    @property
    def name(self) -> str:
        """The last part of the path, as it stands on disk."""
        return self.path.rstrip("/").rsplit("/", 1)[-1]


class Files(Protocol):
    """What the rest of the package asks of a file system. Locations that do not exist give None or raise
    InputMissing.
    """

    def stat(self, path: str) -> Entry | None: ...
    def list_dir(self, path: str) -> list[Entry]: ...
    def read_bytes(self, path: str, limit: int | None = None) -> bytes: ...
    def read_end(self, path: str, count: int) -> bytes: ...
    def write_bytes(self, path: str, content: bytes) -> None: ...
    def create(self, path: str, content: bytes) -> bool: ...
    def replace(self, source: str, target: str) -> None: ...
    def make_dirs(self, path: str) -> None: ...
    def delete(self, path: str) -> None: ...
    def fetch(self, path: str, target: Path) -> None: ...
    def put(self, source: Path, path: str) -> None: ...
    def uri(self, path: str) -> str: ...


def join(base: str, *parts: str) -> str:
    """``base`` and ``parts`` with single slashes between them; ``hdfs://`` keeps its slashes."""
    path = base
    for part in parts:
        path = (path if path.endswith("/") else path + "/") + part.lstrip("/")
    return path


def is_local(location: str) -> bool:
    """True for plain paths and ``file:`` URIs; ``hdfs:/x`` and ``hdfs://nn/x`` are none."""
    return location.startswith(("/", "file:")) or _SCHEME.match(location) is None


def local_path(location: str) -> str:
    """The path on disk of a local location; plain paths are taken as they are, ``file:`` URIs are unquoted."""
    if not location.startswith("file:"):
        return location
    rest = location[len("file:") :]
    if rest.startswith("//"):
        rest = "/" + rest[2:].split("/", 1)[-1] if not rest.startswith("///") else rest[2:]
    return unquote(rest)


class LocalFiles:
    """The local disk. Listing follows links; a dangling link, a loop of links, a named pipe and the like are entries
    of size -1, so that they are named and not skipped, and nothing waits for a pipe.
    """

    def stat(self, path: str) -> Entry | None:
        place = local_path(path)
        try:
            found = os.stat(place)
        except (FileNotFoundError, NotADirectoryError):
            return None
        except OSError as error:
            raise unreadable(place, error) from None
        mtime_ms = found.st_mtime_ns // 1_000_000
        if stat.S_ISDIR(found.st_mode) or stat.S_ISREG(found.st_mode):
            return Entry(place, stat.S_ISDIR(found.st_mode), found.st_size, mtime_ms)
        return Entry(place, False, -1, mtime_ms, _SPECIAL.get(stat.S_IFMT(found.st_mode), "no file"))

    def list_dir(self, path: str) -> list[Entry]:
        place = local_path(path)
        try:
            names = sorted(os.listdir(place))
        except FileNotFoundError:
            raise InputMissing("a folder is wanted", where=place, found="nothing of that name") from None
        except NotADirectoryError:
            raise InputMissing("a folder is wanted", where=place, found="a file of that name") from None
        except OSError as error:
            raise unreadable(place, error) from None
        return [self._listed(os.path.join(place, name)) for name in names]

    def _listed(self, path: str) -> Entry:
        try:
            return self.stat(path) or Entry(path, False, -1, 0, "a link to nothing")
        except InputMissing as error:
            return Entry(path, False, -1, 0, str(error.found))

    def read_bytes(self, path: str, limit: int | None = None) -> bytes:
        place = local_path(path)
        try:
            with open(place, "rb") as stream:
                return stream.read() if limit is None else stream.read(limit)
        except FileNotFoundError:
            raise InputMissing("a file is wanted", where=place, found="nothing of that name") from None
        except OSError as error:
            raise unreadable(place, error) from None

    def read_end(self, path: str, count: int) -> bytes:
        """The last ``count`` bytes of a file; all of one that has fewer."""
        place = local_path(path)
        try:
            with open(place, "rb") as stream:
                stream.seek(max(0, os.fstat(stream.fileno()).st_size - count))
                return stream.read(count)
        except FileNotFoundError:
            raise InputMissing("a file is wanted", where=place, found="nothing of that name") from None
        except OSError as error:
            raise unreadable(place, error) from None

    def write_bytes(self, path: str, content: bytes) -> None:
        """Write whole or not at all: a reader sees the old file or the new one."""
        place = local_path(path)
        aside = f"{place}.{uuid.uuid4().hex[:8]}.part"
        try:
            os.makedirs(os.path.dirname(place) or ".", exist_ok=True)
            with open(aside, "wb") as stream:
                stream.write(content)
                stream.flush()
                os.fsync(stream.fileno())
            os.replace(aside, place)
        except OSError as error:
            with suppress(OSError):
                os.unlink(aside)
            raise _not_written(place, error) from None

    def create(self, path: str, content: bytes) -> bool:
        """Write a new file, whole at once; False where there is one: of several that try, one gets True."""
        place = local_path(path)
        aside = f"{place}.{uuid.uuid4().hex[:8]}.part"
        self.write_bytes(aside, content)
        try:
            os.link(aside, place)  # unlike a rename, it never replaces
        except FileExistsError:
            return False
        except OSError as error:
            raise _not_written(place, error) from None
        finally:
            self.delete(aside)
        return True

    def replace(self, source: str, target: str) -> None:
        """Rename over ``target`` in one step."""
        try:
            os.replace(local_path(source), local_path(target))
        except OSError as error:
            raise _not_written(local_path(target), error) from None

    def make_dirs(self, path: str) -> None:
        try:
            os.makedirs(local_path(path), exist_ok=True)
        except OSError as error:
            raise _not_written(local_path(path), error) from None

    def delete(self, path: str) -> None:
        """Remove a file or a whole folder; what is not there is no error."""
        place = local_path(path)
        try:
            if os.path.isdir(place) and not os.path.islink(place):
                shutil.rmtree(place)
            else:
                Path(place).unlink(missing_ok=True)
        except OSError as error:
            raise _not_written(place, error) from None

    def fetch(self, path: str, target: Path) -> None:
        """Copy a file to the local ``target``."""
        place = local_path(path)
        try:
            shutil.copyfile(place, target)
        except FileNotFoundError:
            raise InputMissing("a file is wanted", where=place, found="nothing of that name") from None
        except OSError as error:
            raise unreadable(place, error) from None

    def put(self, source: Path, path: str) -> None:
        """Copy the local file ``source`` to ``path``, in a folder that is there."""
        try:
            shutil.copyfile(source, local_path(path))
        except OSError as error:
            raise _not_written(local_path(path), error) from None

    def uri(self, path: str) -> str:
        """The location as a URI that pandas, DuckDB and Spark read; names with special characters stay a plain path."""
        place = os.path.abspath(local_path(path))
        return f"file://{place}" if quote(place) == place else place


#: What a file server says of itself rather than of the file: later it may answer.
AWAY: Final = frozenset({errno.ESTALE, errno.ETIMEDOUT, errno.EHOSTDOWN, errno.EHOSTUNREACH, errno.ENOTCONN})
_SPECIAL: Final = {
    stat.S_IFIFO: "a named pipe",
    stat.S_IFSOCK: "a socket",
    stat.S_IFCHR: "a device",
    stat.S_IFBLK: "a device",
}


def unreadable(place: str, error: OSError) -> CmssparkError:
    """What keeps from reading ``place`` (or from looking at it), with the code that fits: 77 where it is not allowed,
    66 where links lead nowhere, 75 where a file server is away, else 65.
    """
    if isinstance(error, PermissionError):
        return NotAllowed(
            "access is refused", where=place, found=error.strerror, next_step="ask its owner for permission"
        )
    if error.errno in (errno.ELOOP, errno.ENAMETOOLONG):
        found = "a loop of links" if error.errno == errno.ELOOP else error.strerror
        return InputMissing("a file or folder is wanted", where=place, found=found)
    if error.errno in AWAY:
        return NotReady(
            "the file system did not answer as it should",
            where=place,
            found=error.strerror,
            next_step="run it again when the file server is back",
        )
    return DataError(
        "this cannot be read", where=place, found=error.strerror, next_step="check the disk, or fetch it again"
    )


def _not_written(place: str, error: OSError) -> OutputError:
    return OutputError("this cannot be written", where=place, found=error.strerror)
