"""Hadoop file systems, through the running session's JVM with Spark's configuration,
credentials and caching.
"""

from __future__ import annotations

import uuid
from collections.abc import Iterator
from contextlib import closing, contextmanager
from functools import cached_property
from pathlib import Path
from typing import TYPE_CHECKING, Any, Final
from urllib.parse import urlsplit

from cmsspark.base.errors import (
    CmssparkError,
    InputMissing,
    NotAllowed,
    NotReady,
    OutputError,
    SettingsError,
)
from cmsspark.filesystems.hdfs import hdfs_damage
from cmsspark.filesystems.refusals import refusal
from cmsspark.filesystems.storage import Entry
from cmsspark.settings import kerberos

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


#: The values of an entry: a getter of Hadoop's FileStatus, and the type of its result.
_STATUS: Final = "org.apache.hadoop.fs.FileStatus"
_GETTERS: Final = (
    ("getPath", "org.apache.hadoop.fs.Path"),
    ("isDirectory", "boolean"),
    ("getLen", "long"),
    ("getModificationTime", "long"),
)
_WEB_SCHEMES: Final = ("webhdfs:", "swebhdfs:")
#: No name of a file has it.
_SEPARATOR: Final = "\0"
_S3_SCHEMES: Final = ("s3", "s3n", "s3a")
#: The client belongs to one version of Hadoop: that of Spark's jars.
_JARS: Final = (
    "have Hadoop's S3 client, of the version of Spark's hadoop-client-api jar: in the settings "
    "`spark: {spark.jars.packages: org.apache.hadoop:hadoop-aws:VERSION}`, or its jars by `spark.jars`"
)
_KEYS: Final = (
    "set AWS_ACCESS_KEY_ID and AWS_SECRET_ACCESS_KEY, or name a credential provider in the settings: "
    "`spark: {spark.hadoop.hadoop.security.credential.provider.path: …}`"
)
_ENDPOINT: Final = "check spark.hadoop.fs.s3a.endpoint in the settings, and that its server runs; then the same command again"
#: Parts of messages of a server that is not there.
_AWAY: Final = (
    "Unable to execute HTTP request",
    "Connection refused",
    "UnknownHostException",
    "connect timed out",
)


class BucketMissing(InputMissing):
    """There is no bucket of that name: what is missing is more than one file."""


class HadoopFiles:
    """``storage.Files`` on the Hadoop file system that each path names, by default that
    of the cluster.
    """

    def __init__(self, spark: SparkSession) -> None:
        self._jvm: Any = (
            spark.sparkContext._jvm
        )  # the gateway is the only way from Python to Hadoop's FileSystem
        self._gateway: Any = spark.sparkContext._gateway
        self._conf: Any = spark.sparkContext._jsc.hadoopConfiguration()

    def _open(self, path: str) -> tuple[Any, Any]:
        if path.startswith(_WEB_SCHEMES):
            # Spark's jars lack the classes that read the NameNode's answers (jersey's
            # RuntimeDelegateImpl).
            raise SettingsError(
                "WebHDFS is not supported, as Spark's Hadoop client cannot read its answers",
                where=path,
                found=path.partition(":")[0],
                next_step="give hdfs://NAMENODE:PORT/…, or copy the files to a disk and give their folder",
            )
        with _hadoop_errors(path):
            hadoop_path = self._jvm.org.apache.hadoop.fs.Path(path)
            return hadoop_path.getFileSystem(self._conf), hadoop_path

    @contextmanager
    def _at(self, path: str, *, writing: bool = False) -> Iterator[tuple[Any, Any]]:
        """Yield the file system of a path, and the path for it; exceptions of Java
        become errors of ours.
        """
        system, hadoop_path = self._open(path)
        with _hadoop_errors(path, writing=writing):
            yield system, hadoop_path

    def stat(self, path: str) -> Entry | None:
        try:
            with self._at(path) as (system, hadoop_path):
                status = system.getFileStatus(hadoop_path)
                return Entry(
                    status.getPath().toString(),
                    status.isDirectory(),
                    status.getLen(),
                    status.getModificationTime(),
                )
        except BucketMissing:
            raise
        except InputMissing:
            return None

    def list_dir(self, path: str) -> list[Entry]:
        entry = self.stat(path)
        if entry is None or not entry.is_dir:
            actual = "nothing of that name" if entry is None else "a file of that name"
            raise InputMissing("no such folder", where=path, found=actual)
        with self._at(path) as (system, hadoop_path):
            statuses = self._texts.list_statuses(system.listStatusIterator(hadoop_path))
            columns = self._texts.columns(statuses)
        return sorted(
            Entry(location, is_dir == "true", int(size), int(mtime_ms))
            for location, is_dir, size, mtime_ms in zip(*columns, strict=True)
        )

    @cached_property
    def _texts(self) -> _StatusTexts:
        return _StatusTexts(self._jvm)

    @contextmanager
    def _stream(self, path: str) -> Iterator[Any]:
        """Yield the open file."""
        with self._at(path) as (system, hadoop_path), closing(system.open(hadoop_path)) as stream:
            yield stream

    def read_bytes(self, path: str) -> bytes:
        with self._stream(path) as stream:
            return bytes(self._jvm.org.apache.commons.io.IOUtils.toByteArray(stream))

    def read_range(self, path: str, offset: int, count: int) -> bytes:
        with self._stream(path) as stream:
            stream.seek(offset)
            return bytes(stream.readNBytes(count))

    def sha256(self, path: str) -> str:
        # In the JVM, so that the content does not pass through Python.
        with self._stream(path) as stream:
            return str(self._jvm.org.apache.commons.codec.digest.DigestUtils.sha256Hex(stream))

    def write_bytes(self, path: str, content: bytes) -> None:
        part = f"{path}.{uuid.uuid4().hex[:8]}.part"
        system, hadoop_path = self._open(part)
        with (
            _hadoop_errors(path, writing=True),
            closing(system.create(hadoop_path, True)) as stream,
        ):
            stream.write(content)
            stream.hsync()
        self.replace(part, path)

    def create(self, path: str, content: bytes) -> bool:
        part = f"{path}.{uuid.uuid4().hex[:8]}.part"
        self.write_bytes(part, content)
        try:
            self._rename(part, path, "NONE")
        except OutputError as error:
            self.delete(part)
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
        with self._at(target, writing=True) as (system, hadoop_path):
            # FileContext, unlike FileSystem, needs the host that `hdfs:///x` omits.
            to = system.makeQualified(hadoop_path)
            context = self._jvm.org.apache.hadoop.fs.FileContext.getFileContext(
                to.toUri(), self._conf
            )
            context.rename(system.makeQualified(path(source)), to, options)

    def make_dirs(self, path: str) -> None:
        with self._at(path, writing=True) as (system, hadoop_path):
            created = system.mkdirs(hadoop_path)
        if not created:
            raise OutputError(
                "a folder cannot be created", where=path, found="the file system refused it"
            )

    def set_mode(self, path: str, mode: int) -> None:
        # Object stores ignore it.
        with self._at(path, writing=True) as (system, hadoop_path):
            system.setPermission(
                hadoop_path, self._jvm.org.apache.hadoop.fs.permission.FsPermission(f"{mode:o}")
            )

    def delete(self, path: str) -> None:
        with self._at(path, writing=True) as (system, hadoop_path):
            system.delete(hadoop_path, True)

    def fetch(self, path: str, target: Path) -> None:
        with self._at(path) as (system, hadoop_path):
            system.copyToLocalFile(
                False, hadoop_path, self._jvm.org.apache.hadoop.fs.Path(str(target)), True
            )

    def put(self, source: Path, path: str) -> None:
        with self._at(path, writing=True) as (system, hadoop_path):
            system.copyFromLocalFile(
                False, True, self._jvm.org.apache.hadoop.fs.Path(str(source)), hadoop_path
            )

    def hosts_at(self, path: str, position: int) -> tuple[str, ...]:
        """Return the hosts that store a byte of a file."""
        with self._at(path) as (system, hadoop_path):
            blocks = system.getFileBlockLocations(hadoop_path, position, 1)
            return tuple(str(host) for block in blocks for host in block.getHosts())

    def uri(self, path: str) -> str:
        system, hadoop_path = self._open(path)
        return str(system.makeQualified(hadoop_path).toString())


class _StatusTexts:
    """The values of many statuses as text, which the JVM joins: a call for each value
    of a large folder takes long.
    """

    def __init__(self, jvm: Any) -> None:
        java = jvm.java
        self.list_statuses: Any = jvm.org.apache.hadoop.util.functional.RemoteIterators.toList
        self._array_list: Any = java.util.ArrayList
        self._join: Any = java.lang.String.join
        primitives = {"boolean": java.lang.Boolean.TYPE, "long": java.lang.Long.TYPE}
        class_of, lookup = java.lang.Class.forName, java.lang.invoke.MethodHandles.publicLookup()
        method_type = java.lang.invoke.MethodType.methodType
        as_instance = java.lang.invoke.MethodHandleProxies.asInterfaceInstance
        operator = class_of("java.util.function.UnaryOperator")

        def getter(owner: str, method: str, result: str) -> Any:
            of_type = method_type(primitives[result] if result in primitives else class_of(result))
            return as_instance(operator, lookup.findVirtual(class_of(owner), method, of_type))

        self._getters = [getter(_STATUS, name, result) for name, result in _GETTERS]
        self._to_text = getter("java.lang.Object", "toString", "java.lang.String")

    def columns(self, statuses: Any) -> list[list[str]]:
        """Return the values of :data:`_GETTERS`, of each status."""
        columns: list[list[str]] = [[] for _ in _GETTERS]
        if statuses.isEmpty():
            return columns
        for column, getter in zip(columns, self._getters, strict=True):
            values = self._array_list(statuses)
            values.replaceAll(getter)
            values.replaceAll(self._to_text)
            column += str(self._join(_SEPARATOR, values)).split(_SEPARATOR)
        return columns


@contextmanager
def _hadoop_errors(path: str, *, writing: bool = False) -> Iterator[None]:
    """Convert a Java exception to a :class:`CmssparkError` by its class name."""
    from py4j.protocol import Py4JJavaError
    from pyspark.errors import IllegalArgumentException

    try:
        yield
    except IllegalArgumentException as error:
        # The name is not a URI, or the configuration does not have its host or name service.
        raise SettingsError(
            "this location is invalid or cannot be reached",
            where=path,
            found=str(error).splitlines()[0],
            next_step="check its name, --root, --fout and HADOOP_CONF_DIR",
        ) from None
    except Py4JJavaError as error:
        name = str(error.java_exception.getClass().getName())
        reason = (str(error.java_exception.getMessage()) or name).splitlines()[0]
        if (
            refused := kerberos.refused(f"{name}: {error.java_exception.getMessage()}")
        ) is not None:
            raise refused from None
        if (from_store := convert_s3_error(path, name, reason)) is not None:
            raise from_store from None
        if name.endswith("AccessControlException"):
            raise NotAllowed("access is refused", where=path, found=reason) from None
        if name.endswith("FileNotFoundException"):
            raise InputMissing("no such file", where=path, found=reason) from None
        if "no host" in reason or name.endswith("UnsupportedFileSystemException"):
            raise SettingsError(
                "this location needs a cluster's configuration, or a host in its name",
                where=path,
                found=reason,
                next_step="give --root (inputs) or --fout (results), or set HADOOP_CONF_DIR",
            ) from None
        if (damage := hdfs_damage(str(error), path)) is not None:
            raise damage from None
        if (cause := refusal(f"{name}: {reason}")) is not None:
            raise type(cause)(
                cause.problem, where=path, found=cause.found, next_step=cause.next_step
            ) from None
        kind: type[CmssparkError] = OutputError if writing else NotReady
        raise kind(
            "the file system did not answer as it should",
            where=path,
            found=f"{name}: {reason}",
            next_step="check that its server runs and is reached from here, then the same command again",
        ) from None


def convert_s3_error(path: str, name: str, reason: str) -> CmssparkError | None:
    """Return the error for an exception at a location in S3: of its class ``name``,
    with the first line of its message.

    SettingsError (78) without the client, NotAllowed (77) without or with wrong
    credentials, BucketMissing (66) for a bucket that is not there, NotReady (75) where
    no server answers; None for all others, and for other locations.
    """
    parts = urlsplit(path)
    if parts.scheme not in _S3_SCHEMES:
        return None
    text = f"{name}: {reason}"
    if parts.scheme != "s3a" and name.endswith("UnsupportedFileSystemException"):
        return SettingsError(
            f"Hadoop has no file system {parts.scheme}:",
            where=path,
            next_step=f"write s3a:{path.partition(':')[2]}",
        )
    if "ClassNotFoundException" in text or "NoClassDefFoundError" in text:
        return SettingsError(
            "the client of S3 is not among Spark's jars", where=path, found=reason, next_step=_JARS
        )
    if "NoAuthWithAWS" in text or "NoAwsCredentials" in text or "No AWS Credentials" in text:
        return NotAllowed("no credentials for S3", where=path, found="none", next_step=_KEYS)
    if "AccessDenied" in text or "InvalidAccessKeyId" in text or "SignatureDoesNotMatch" in text:
        return NotAllowed(
            "S3 refuses these credentials, or this bucket to them",
            where=path,
            found=reason,
            next_step=_KEYS,
        )
    if "UnknownStoreException" in text or "NoSuchBucket" in text:
        return BucketMissing(
            "the address names no bucket",
            where=path,
            found=f"no bucket {parts.netloc}",
            next_step="check its name, and " + _ENDPOINT,
        )
    if any(part in text for part in _AWAY):
        return NotReady(
            "the server of S3 does not answer", where=path, found=reason, next_step=_ENDPOINT
        )
    return None
