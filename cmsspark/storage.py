"""Where files lie: one small interface over the local disk and any Hadoop file system.

A *location* is a URI or a path: ``/data/x``, ``file:///data/x``, ``hdfs://nn/x``, ``s3a://bucket/x``. Local ones are
served by Python alone, so that ``cmsspark path`` and the publisher need no JVM; all others go through
Hadoop's ``FileSystem`` in the driver's JVM.
"""

from __future__ import annotations

import os
import re
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, Protocol
from urllib.parse import quote, unquote

from cmsspark.errors import CmssparkError, InputMissing, NotAllowed, NotReady, OutputError, SettingsError, UsageError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: Two letters at least, as for Hadoop a drive letter is no scheme.
_SCHEME = re.compile(r"[A-Za-z][A-Za-z0-9+.-]+:/")


@dataclass(frozen=True, order=True)
class Entry:
    """One name in a folder: its location, whether it is a folder, its size in bytes and mtime in UTC ms."""

    path: str
    is_dir: bool
    size: int
    mtime_ms: int

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
    def write_bytes(self, path: str, content: bytes) -> None: ...
    def create(self, path: str, content: bytes) -> bool: ...
    def replace(self, source: str, target: str) -> None: ...
    def make_dirs(self, path: str) -> None: ...
    def delete(self, path: str) -> None: ...
    def fetch(self, path: str, target: Path) -> None: ...
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
    """The local disk. Listing follows links; a dangling link is an entry of size -1 so that it is named, not
    skipped.
    """

    def stat(self, path: str) -> Entry | None:
        place = local_path(path)
        try:
            found = os.stat(place)
        except FileNotFoundError:
            return None
        except NotADirectoryError:
            return None
        except PermissionError as error:
            raise _not_allowed(place, error) from None
        return Entry(place, os.path.isdir(place), found.st_size, found.st_mtime_ns // 1_000_000)

    def list_dir(self, path: str) -> list[Entry]:
        place = local_path(path)
        try:
            names = sorted(os.listdir(place))
        except FileNotFoundError:
            raise InputMissing("a folder is wanted", where=place, found="nothing of that name") from None
        except NotADirectoryError:
            raise InputMissing("a folder is wanted", where=place, found="a file of that name") from None
        except PermissionError as error:
            raise _not_allowed(place, error) from None
        entries = []
        for name in names:
            full = os.path.join(place, name)
            entries.append(self.stat(full) or Entry(full, False, -1, 0))
        return entries

    def read_bytes(self, path: str, limit: int | None = None) -> bytes:
        place = local_path(path)
        try:
            with open(place, "rb") as stream:
                return stream.read() if limit is None else stream.read(limit)
        except FileNotFoundError:
            raise InputMissing("a file is wanted", where=place, found="nothing of that name") from None
        except PermissionError as error:
            raise _not_allowed(place, error) from None

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
        except PermissionError as error:
            raise _not_allowed(place, error) from None

    def uri(self, path: str) -> str:
        """The location as a URI that pandas, DuckDB and Spark read; names with special characters stay a plain path."""
        place = os.path.abspath(local_path(path))
        return f"file://{place}" if quote(place) == place else place


class HadoopFiles:
    """Any Hadoop file system, through the running session's JVM (configuration, credentials and caching are
    Spark's).
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = spark.sparkContext._jvm  # the gateway is the only way from Python to Hadoop's FileSystem
        self._gateway: Any = spark.sparkContext._gateway
        self._conf: Any = spark.sparkContext._jsc.hadoopConfiguration()

    def _open(self, path: str) -> tuple[Any, Any]:
        with _hadoop_errors(path):
            place = self._jvm.org.apache.hadoop.fs.Path(path)
            return place.getFileSystem(self._conf), place

    def _entry(self, status: Any) -> Entry:
        return Entry(status.getPath().toString(), status.isDirectory(), status.getLen(), status.getModificationTime())

    def stat(self, path: str) -> Entry | None:
        system, place = self._open(path)
        with _hadoop_errors(path):
            return self._entry(system.getFileStatus(place)) if system.exists(place) else None

    def list_dir(self, path: str) -> list[Entry]:
        found = self.stat(path)
        if found is None or not found.is_dir:
            there = "nothing of that name" if found is None else "a file of that name"
            raise InputMissing("a folder is wanted", where=path, found=there)
        system, place = self._open(path)
        with _hadoop_errors(path):
            return sorted(self._entry(status) for status in system.listStatus(place))

    def read_bytes(self, path: str, limit: int | None = None) -> bytes:
        system, place = self._open(path)
        with _hadoop_errors(path):
            stream = system.open(place)
            try:
                if limit is None:
                    return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))
                return bytes(stream.readNBytes(limit))
            finally:
                stream.close()

    def write_bytes(self, path: str, content: bytes) -> None:
        aside = f"{path}.{uuid.uuid4().hex[:8]}.part"
        system, place = self._open(aside)
        with _hadoop_errors(path, writing=True):
            stream = system.create(place, True)
            try:
                stream.write(content)
                stream.hsync()
            finally:
                stream.close()
        self.replace(aside, path)

    def create(self, path: str, content: bytes) -> bool:
        aside = f"{path}.{uuid.uuid4().hex[:8]}.part"
        self.write_bytes(aside, content)
        try:
            self._rename(aside, path, "NONE")
        except OutputError as error:
            self.delete(aside)
            if "FileAlreadyExistsException" in str(error.found):
                return False
            raise
        return True

    def replace(self, source: str, target: str) -> None:
        self._rename(source, target, "OVERWRITE")

    def _rename(self, source: str, target: str, how: str) -> None:
        # Options.Rename is a nested class, which py4j spells with a dollar sign.
        rename = getattr(self._jvm.org.apache.hadoop.fs, "Options$Rename")
        options = self._gateway.new_array(rename, 1)
        options[0] = rename.valueOf(how)
        path = self._jvm.org.apache.hadoop.fs.Path
        with _hadoop_errors(target, writing=True):
            # By way of Path: java.net.URI takes no space in a name.
            context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(path(target).toUri(), self._conf)
            context.rename(path(source), path(target), options)

    def make_dirs(self, path: str) -> None:
        system, place = self._open(path)
        with _hadoop_errors(path, writing=True):
            made = system.mkdirs(place)
        if not made:
            raise OutputError("a folder cannot be made", where=path, found="the file system refused it")

    def delete(self, path: str) -> None:
        system, place = self._open(path)
        with _hadoop_errors(path, writing=True):
            system.delete(place, True)

    def fetch(self, path: str, target: Path) -> None:
        system, place = self._open(path)
        with _hadoop_errors(path):
            system.copyToLocalFile(False, place, self._jvm.org.apache.hadoop.fs.Path(str(target)), True)

    def uri(self, path: str) -> str:
        system, place = self._open(path)
        return str(system.makeQualified(place).toString())


class AnyFiles:
    """Each location by the file system that serves it: inputs and results may lie on different ones."""

    def __init__(self, spark: SparkSession) -> None:
        self._local = LocalFiles()
        self._hadoop = HadoopFiles(spark)

    def _of(self, path: str) -> Files:
        return self._local if is_local(path) else self._hadoop

    def stat(self, path: str) -> Entry | None:
        return self._of(path).stat(path)

    def list_dir(self, path: str) -> list[Entry]:
        return self._of(path).list_dir(path)

    def read_bytes(self, path: str, limit: int | None = None) -> bytes:
        return self._of(path).read_bytes(path, limit)

    def write_bytes(self, path: str, content: bytes) -> None:
        self._of(path).write_bytes(path, content)

    def create(self, path: str, content: bytes) -> bool:
        return self._of(path).create(path, content)

    def replace(self, source: str, target: str) -> None:
        self._of(target).replace(source, target)

    def make_dirs(self, path: str) -> None:
        self._of(path).make_dirs(path)

    def delete(self, path: str) -> None:
        self._of(path).delete(path)

    def fetch(self, path: str, target: Path) -> None:
        self._of(path).fetch(path, target)

    def uri(self, path: str) -> str:
        return self._of(path).uri(path)


def files_for(location: str, spark: SparkSession | None = None) -> Files:
    """The file system that serves ``location``.

    Raises NotReady-like usage errors: a location that is not local needs a running session.
    """
    if is_local(location):
        return LocalFiles()
    if spark is None:
        raise UsageError(
            "a Spark session is needed to reach this location",
            where=location,
            next_step="run it as a job: run_spark JOB …",
        )
    return AnyFiles(spark)


@contextmanager
def _hadoop_errors(path: str, *, writing: bool = False) -> Iterator[None]:
    """Turn a Java exception into an error of ours; its class name tells which."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import IllegalArgumentException

    try:
        yield
    except IllegalArgumentException as error:
        # A name that is no URI, or a host or name service that the configuration does not know.
        raise SettingsError(
            "this location cannot be understood or reached",
            where=path,
            found=str(error).splitlines()[0],
            next_step="check its name, --root, --fout and HADOOP_CONF_DIR",
        ) from None
    except Py4JJavaError as error:
        name = str(error.java_exception.getClass().getName())
        reason = (str(error.java_exception.getMessage()) or name).splitlines()[0]
        if name.endswith("AccessControlException"):
            raise NotAllowed("access is refused", where=path, found=reason) from None
        if name.endswith("FileNotFoundException"):
            raise InputMissing("a file is wanted", where=path, found=reason) from None
        if "no host" in reason or name.endswith("UnsupportedFileSystemException"):
            raise SettingsError(
                "this location needs a cluster's configuration, or a host in its name",
                where=path,
                found=reason,
                next_step="give --root (inputs) or --fout (results), or set HADOOP_CONF_DIR",
            ) from None
        kind: type[CmssparkError] = OutputError if writing else NotReady
        raise kind("the file system did not answer as it should", where=path, found=f"{name}: {reason}") from None


def _not_allowed(place: str, error: OSError) -> NotAllowed:
    return NotAllowed("access is refused", where=place, found=error.strerror, next_step="ask its owner for permission")


def _not_written(place: str, error: OSError) -> OutputError:
    return OutputError("this cannot be written", where=place, found=error.strerror)
