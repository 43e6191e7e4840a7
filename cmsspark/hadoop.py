"""Any Hadoop file system, through the running session's JVM: configuration, credentials and caching are Spark's."""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from cmsspark.errors import CmssparkError, InputMissing, NotAllowed, NotReady, OutputError, SettingsError
from cmsspark.storage import Entry

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class HadoopFiles:
    """A Hadoop file system as ``storage.Files``: which one, each path says; without a host it is the cluster's own."""

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

    def read_end(self, path: str, count: int) -> bytes:
        system, place = self._open(path)
        with _hadoop_errors(path):
            stream = system.open(place)
            try:
                stream.seek(max(0, system.getFileStatus(place).getLen() - count))
                return bytes(stream.readNBytes(count))
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
        system, place = self._open(target)
        with _hadoop_errors(target, writing=True):
            # FileContext, unlike FileSystem, wants the host that `hdfs:///x` leaves out.
            to = system.makeQualified(place)
            context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(to.toUri(), self._conf)
            context.rename(system.makeQualified(path(source)), to, options)

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

    def put(self, source: Path, path: str) -> None:
        system, place = self._open(path)
        with _hadoop_errors(path, writing=True):
            system.copyFromLocalFile(False, True, self._jvm.org.apache.hadoop.fs.Path(str(source)), place)

    def uri(self, path: str) -> str:
        system, place = self._open(path)
        return str(system.makeQualified(place).toString())


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
