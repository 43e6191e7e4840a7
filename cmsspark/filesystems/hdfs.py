"""Files of HDFS opened by Python itself, without a JVM: hdfs-native, of the extra
``cmsspark[hdfs]``.

The driver takes the client's settings from Hadoop's configuration and sends them to the
workers, which need no configuration of their own.
"""

from __future__ import annotations

import importlib.util
import io
import json
import os
import platform
import re
import shlex
import socket
from collections.abc import Callable, Iterator
from contextlib import contextmanager, suppress
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any, Final, Protocol, TypeVar
from urllib.parse import urlsplit

from cmsspark.base.errors import DataError, InputMissing, NotAllowed, NotReady, SettingsError
from cmsspark.filesystems.storage import Entry, RangeFile
from cmsspark.settings import kerberos

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

T = TypeVar("T")

# Damage that clients of HDFS report, told apart from a node that is only away.

#: How clients of HDFS, Java's and the native one, tell of blocks that cannot be read.
_DAMAGED: Final = re.compile(
    r"ChecksumException|[Cc]hecksum ?[Ee]rror|checksums didn't match|BlockMissingException"
    r"|Could not obtain block|BlocksNotFound|blocks not found for|All DataNodes failed"
)
#: What stands before the reason in a line of a Java trace.
_BEFORE: Final = re.compile(r"^(?:Caused by: |: )")
#: With these words a node may only be away.
_AWAY: Final = re.compile(
    r"[Cc]onnection refused|ConnectException|NoRouteToHost|[Tt]imed out|Failed to connect"
    r"|SocketTimeout|[Cc]onnection reset|UnknownHost"
)
_BLOCKS_OF: Final = re.compile(
    r"(?:file=|ChecksumException: (?:Checksum error: )?|blocks not found for )"
    r"(?:\w+://[^/\s]*)?(/[^\s,;\"]+?)(?= at \d|:\d+|[\s,;\"]|$)"
)


def hdfs_damage(text: str, location: str = "") -> DataError | None:
    """Return the error (65) for a file whose blocks are damaged, or that no DataNode
    has; None where a node only did not answer, and for other texts. ``location``: the
    file, where it is known.

    Example:
        >>> hdfs_damage("Could not obtain block: BP-1:blk_2 file=/cms/x No live nodes").where
        '/cms/x'
    """
    matches = list(_DAMAGED.finditer(text))
    if not matches or _AWAY.search(text) is not None:
        return None
    line = text[text.rfind("\n", 0, matches[-1].start()) + 1 :].partition("\n")[0]
    named = _BLOCKS_OF.search(text)
    path = urlsplit(location).path if location else named[1] if named else ""
    return DataError(
        "a block of a file on HDFS is damaged, or no DataNode has it",
        where=location or path or None,
        found=" ".join(_BEFORE.sub("", line).split())[:200],
        next_step=f"hdfs fsck {shlex.quote(path) if path else 'PATH'} -files -blocks -locations "
        "shows its blocks; then fetch the file again from its source",
    )


MODULE: Final = "hdfs_native"
#: The option of Spark that chooses who reads HDFS: ``auto`` (Python where it can) or
#: ``java`` (Spark's JVM).
CLIENT_KEY: Final = "spark.cmsspark.hdfsClient"
#: Options of Hadoop that the client reads. None of them holds a secret.
_PREFIXES: Final = (
    "fs.defaultFS",
    "fs.viewfs.",
    "dfs.",
    "hadoop.security.",
    "hadoop.rpc.protection",
)
#: A NameNode that is away is asked for a quarter of a minute, and Spark tries a task four
#: times. By default the client asks fifteen times, for minutes.
FEW_ATTEMPTS: Final = {"dfs.client.failover.max.attempts": "4"}
#: Bytes that :func:`open_whole` reads ahead: each read is a request to a DataNode.
_READ_AHEAD: Final = 8_000_000
_GZIP: Final = b"\x1f\x8b"
_HEAD_BYTES: Final = 10
_NEWLINE: Final = b"\n"
_BOM: Final = b"\xef\xbb\xbf"


class RemoteFile(Protocol):
    """What is used of ``hdfs_native.FileReader``."""

    def __len__(self) -> int: ...
    def read_range(self, offset: int, count: int) -> bytes: ...
    def read_range_stream(self, offset: int, count: int) -> Iterator[bytes]: ...


class RemoteFiles(Protocol):
    """Opens files by location. It is pickled and sent to the workers."""

    def open(self, location: str) -> RemoteFile: ...


@dataclass(frozen=True)
class LineRange:
    """The lines of a file that begin at ``start`` or later, and before ``end``; without
    ``end`` all that follow.
    """

    path: str
    start: int = 0
    end: int | None = None


@dataclass(frozen=True)
class HdfsClient:
    """The client with the settings of the driver: (name, value) of each option of
    Hadoop that is set.
    """

    options: tuple[tuple[str, str], ...]

    def open(self, location: str) -> RemoteFile:
        """Open a file. Raises SettingsError (78) where the client is not installed or
        not configured, else what
        :func:`hdfs_errors` says.
        """
        server = urlsplit(location).netloc
        # A name may hold what a URL takes for a query.
        path = location.removeprefix("hdfs:").removeprefix(f"//{server}")
        with hdfs_errors(location):
            file: RemoteFile = _connected(server, self.options).read(path)
        return file


@cache
def _connected(server: str, options: tuple[tuple[str, str], ...]) -> Any:
    """Return a client, one for each NameNode and process; without a ``server`` that of
    ``fs.defaultFS``.
    """
    # Without Kerberos HDFS believes the user's name. Spark's containers run as an account of YARN.
    if "SPARK_USER" in os.environ:
        os.environ.setdefault("HADOOP_USER_NAME", os.environ["SPARK_USER"])
    try:
        from hdfs_native import Client
    except ImportError as error:
        raise SettingsError(
            "workers read HDFS with hdfs-native",
            where=platform.node(),
            found=f"no module {error.name}",
            next_step=f"add cmsspark[hdfs] to the executors' environment, or set {CLIENT_KEY}: java",
        ) from None
    return Client(f"hdfs://{server}" if server else None, {**FEW_ATTEMPTS, **dict(options)})


class HdfsView:
    """Looks at files of HDFS without a JVM, by the configuration of this host: what is
    asked of dumps before a job starts. It is a :class:`~.storage.Files` that only reads.
    """

    def stat(self, path: str) -> Entry | None:
        """Return the entry of a location, None where there is none."""
        with suppress(InputMissing):
            return self._call_client(
                path, lambda client, name: _entry(path, client.get_file_info(name))
            )
        return None

    def list_dir(self, path: str) -> list[Entry]:
        """Return the entries of a folder."""
        statuses = self._call_client(path, lambda client, name: list(client.list_status(name)))
        return [
            _entry(f"{path.rstrip('/')}/{status.path.rpartition('/')[2]}", status)
            for status in statuses
        ]

    def read_range(self, path: str, offset: int, count: int) -> bytes:
        """Return up to ``count`` bytes of a file from ``offset`` on."""

        def read(client: Any, name: str) -> bytes:
            file = client.read(name)
            # The client panics where a range goes beyond the end.
            size = max(0, min(count, len(file) - offset))
            content: bytes = file.read_range(offset, size) if size else b""
            return content

        return self._call_client(path, read)

    def _call_client(self, location: str, ask: Callable[[Any, str], T]) -> T:
        parts = urlsplit(location)
        with hdfs_errors(location):
            return ask(_connected(parts.netloc, ()), parts.path)


def _entry(path: str, status: Any) -> Entry:
    return Entry(path, status.isdir, int(status.length), int(status.modification_time))


def choose_client(spark: SparkSession) -> HdfsClient | None:
    """Return the client for the session's workers; None where Spark's JVM reads HDFS.

    That is where the extra is not installed beside the driver, where :data:`CLIENT_KEY`
    says so, and in a local session with Kerberos, whose keytab only the JVM knows.
    Raises SettingsError (78) for another value of the option.
    """
    choice = spark.conf.get(CLIENT_KEY, "auto")
    if choice not in ("auto", "java"):
        raise SettingsError(f"{CLIENT_KEY} is auto or java", found=repr(choice))
    if choice == "java" or importlib.util.find_spec(MODULE) is None:
        return None
    # The options that are not Hadoop's defaults, by one call of the JVM.
    jvm: Any = spark.sparkContext._jvm
    writer = jvm.java.io.StringWriter()
    jvm.org.apache.hadoop.conf.Configuration.dumpConfiguration(
        spark.sparkContext._jsc.hadoopConfiguration(), writer
    )
    options = tuple(
        (entry["key"], entry["value"])
        for entry in json.loads(writer.toString())["properties"]
        if entry["key"].startswith(_PREFIXES) and not entry["resource"].endswith("-default.xml")
    )
    is_secured = dict(options).get("hadoop.security.authentication", "simple").lower() != "simple"
    if is_secured and spark.sparkContext.master.startswith("local"):
        return None
    return HdfsClient(options)


@contextmanager
def hdfs_errors(location: str) -> Iterator[None]:
    """Convert an error of the client: InputMissing (66), NotAllowed (77), SettingsError
    (78), DataError (65) for damaged or missing blocks, and NotReady (75) for all others.
    """
    try:
        yield
    except FileNotFoundError as error:
        raise InputMissing(
            "a listed file cannot be read", where=location, found=_first_line(error)
        ) from None
    except (OSError, RuntimeError) as error:
        text = _first_line(error)
        if (refused := kerberos.refused(text)) is not None:
            raise refused from None
        if "AccessControlException" in text:
            raise NotAllowed("access is refused", where=location, found=text) from None
        if "InvalidArgument" in text:
            raise SettingsError(
                "this location is invalid or cannot be reached", where=location, found=text
            ) from None
        damage = hdfs_damage(str(error), location)
        if damage is not None and not _has_silent_datanode(str(error)):
            raise damage from None
        raise NotReady(
            "the file system did not answer as it should", where=location, found=text
        ) from None


#: A DataNode that the native client has tried, which does not say how it failed.
_TRIED: Final = re.compile(r'ip_addr: \\*"([^"\\]+)\\*".*?xfer_port: (\d+)')
_CONNECT_S: Final = 3


def _has_silent_datanode(text: str) -> bool:
    """Return whether a DataNode that a message names takes no connection: then a block may
    only be out of reach.
    """
    for host, port in set(_TRIED.findall(text)):
        try:
            socket.create_connection((host, int(port)), _CONNECT_S).close()
        except OSError:
            return True
    return False


def _first_line(error: Exception) -> str:
    """Return the message without the NameNode's Java trace, whose line ends are written
    ``\\n`` in some of them.
    """
    return str(error).split("\n", 1)[0].split("\\n", 1)[0][:300]


def open_range(
    files: RemoteFiles,
    line_range: LineRange,
    is_packed: Callable[[bytes], object] = lambda head: head[:2] == _GZIP,
) -> RangeStream:
    """Open the lines of a range. A packed file is not divided: its first range is the
    whole file, and the others are empty. ``is_packed`` tells by the first bytes.

    A BOM stands before the lines of a later range: readers skip one at the start, and
    one that is data comes next.

    Raises what :func:`hdfs_errors` says, also while it is read.
    """
    file, start, end = files.open(line_range.path), line_range.start, line_range.end
    if start or end is not None:
        with hdfs_errors(line_range.path):
            head = file.read_range(0, min(_HEAD_BYTES, len(file)))
        if is_packed(head):
            return RangeStream(line_range.path, iter(()) if start else _chunks(file, 0))
    return RangeStream(
        line_range.path, _with_head(_BOM if start else b"", _lines(file, start, end))
    )


def open_whole(files: RemoteFiles, location: str) -> io.BufferedReader:
    """Open a file for reading at any place. Raises what :func:`hdfs_errors` says, also
    while it is read.
    """
    file = files.open(location)

    def read_range(offset: int, count: int) -> bytes:
        with hdfs_errors(location):
            return file.read_range(offset, count)

    return io.BufferedReader(RangeFile(len(file), read_range), _READ_AHEAD)


def _chunks(file: RemoteFile, start: int) -> Iterator[bytes]:
    size = len(file)
    return file.read_range_stream(start, size - start) if start < size else iter(())


def _lines(file: RemoteFile, start: int, end: int | None) -> Iterator[bytes]:
    """Yield the bytes of the lines that begin in the range.

    A line begins after a newline, so it reads from the byte before ``start`` on, and up
    to the first newline from the byte before ``end`` on. Ranges that meet share no line
    and leave none out.
    """
    position = max(0, start - 1)
    is_begun = start == 0
    for chunk in _chunks(file, position):
        first = 0
        if not is_begun:
            first = chunk.find(_NEWLINE) + 1
            if end is not None and position + (first or len(chunk)) >= end:
                return
            is_begun = first > 0
        if is_begun and end is not None and position + len(chunk) >= end:
            after_last = chunk.find(_NEWLINE, max(0, end - 1 - position)) + 1
            if after_last:
                yield chunk[first:after_last]
                return
        if is_begun:
            yield chunk[first:]
        position += len(chunk)


def _with_head(head: bytes, chunks: Iterator[bytes]) -> Iterator[bytes]:
    """Yield ``head`` and the chunks; the first has the bytes by which readers tell a
    packing before they go back.
    """
    for chunk in chunks:
        head += chunk
        if len(head) >= _HEAD_BYTES:
            break
    yield head
    yield from chunks


class RangeStream(io.RawIOBase):
    """Bytes that come in chunks, as a stream. It can go back to its start while the
    first chunk is read.
    """

    def __init__(self, location: str, chunks: Iterator[bytes]) -> None:
        self._location = location
        self._chunks = chunks
        self._chunk = memoryview(b"")
        self._position = 0
        self._chunk_count = 0

    def readable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        """Go back to the start. Raises UnsupportedOperation for any other place, and
        once the second chunk is read.
        """
        if offset or whence != os.SEEK_SET or self._chunk_count > 1:
            raise io.UnsupportedOperation(
                "a stream of chunks goes back to its start only, from its first chunk"
            )
        self._position = 0
        return 0

    def readinto(self, target: Any) -> int:
        """Fill ``target``; less only at the end."""
        room = memoryview(target).cast("B")
        filled = 0
        while filled < len(room) and self._has_bytes():
            piece = self._chunk[self._position : self._position + len(room) - filled]
            room[filled : filled + len(piece)] = piece
            filled += len(piece)
            self._position += len(piece)
        return filled

    def readall(self) -> bytes:
        pieces = []
        while self._has_bytes():
            pieces.append(bytes(self._chunk[self._position :]))
            self._position = len(self._chunk)
        return b"".join(pieces)

    def _has_bytes(self) -> bool:
        """Return whether bytes are left, after fetching the next chunk where this one is read."""
        while self._position == len(self._chunk):
            with hdfs_errors(self._location):
                chunk = next(self._chunks, None)
            if chunk is None:
                return False
            if chunk:
                self._chunk, self._position = memoryview(chunk), 0
                self._chunk_count += 1
        return True
