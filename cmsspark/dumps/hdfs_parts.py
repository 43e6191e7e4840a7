"""Part files of a dump on HDFS, opened by the workers: whole, or plain ones that are large divided at lines."""

from __future__ import annotations

import re
from collections.abc import Iterable
from dataclasses import dataclass
from typing import IO, TYPE_CHECKING, Final, cast

from cmsspark.engines.hdfs_scan import SCHEME
from cmsspark.engines.tasks import weigh
from cmsspark.filesystems.hdfs import LineRange, RemoteFile, RemoteFiles, choose_client, hdfs_errors, open_whole
from cmsspark.sources.formats.packings import is_packed_name, unpacker
from cmsspark.sources.listing import InputFile

if TYPE_CHECKING:
    from collections.abc import Iterator

    from pyspark.sql import SparkSession

#: Bytes that are read at once to find the end of a line: first, and at most where it is far.
_STEP: Final = 64 * 1024
_MOST: Final = 8 * 1024 * 1024
_LINE_END: Final = re.compile(rb"(?<!\\)\n")
_HEAD_BYTES: Final = 10


def client_for(spark: SparkSession, files: Iterable[InputFile]) -> RemoteFiles | None:
    """Return what opens the files in the workers where all are on HDFS and the client is used; otherwise None."""
    paths = [file.path for file in files]
    return choose_client(spark) if paths and all(path.startswith(SCHEME) for path in paths) else None


def divided(files: Iterable[InputFile], task_bytes: int) -> list[tuple[int, LineRange]]:
    """Return (decompressed bytes, range) of each file, or of its even ranges where it is plain and larger than a task.

    A value with a newline at the end of a range is an error of the reader of the table, never another value.
    """
    parts = []
    for file in files:
        count = 1 if is_packed_name(file.path) else max(1, -(-file.size // task_bytes))
        starts = [file.size * number // count for number in range(count)]
        for start, end in zip(starts, [*starts[1:], None], strict=True):
            size = (file.size if end is None else end) - start
            parts.append((weigh(file.path, size), LineRange(file.path, start, end)))
    return parts


def range_name(part: LineRange) -> str:
    """Return what errors call a range: rows count from its first line on."""
    return f"{part.path} from byte {part.start} on" if part.start else part.path


def open_lines(files: RemoteFiles, line_range: LineRange) -> IO[bytes]:
    """Open the lines of a range for reading at any place. Raises what :func:`hdfs_errors` says, also while it is read.

    A packed file has no lines: its first range is all of it.
    """
    return cast("IO[bytes]", open_whole(_LinesOf(files, line_range), line_range.path))


@dataclass(frozen=True)
class _LinesOf:
    """Opens the lines of a range of a file."""

    files: RemoteFiles
    lines: LineRange

    def open(self, location: str) -> RemoteFile:
        file, start, end = self.files.open(location), self.lines.start, self.lines.end
        size = len(file)
        if not start and end is None:
            return file
        with hdfs_errors(location):
            if unpacker(file.read_range(0, min(_HEAD_BYTES, size))):
                return _FileWindow(file, 0, 0 if start else size)
            begin = _line_start(file, start)
            return _FileWindow(file, begin, size if end is None else max(begin, _line_start(file, end)))


def _line_start(file: RemoteFile, position: int) -> int:
    """Return where the first line begins that begins at ``position`` or later: behind a newline, or at the end.

    A newline behind a ``\\`` belongs to a value, in quotes and outside.
    """
    size = len(file)
    if position <= 0:
        return 0
    # A line begins after a newline, so the byte before ``position`` counts, and the one before that may be a ``\\``.
    at = max(0, min(position, size) - 2)
    searched, step, last = min(position, size) - 1 - at, _STEP, b""
    while at < size:
        piece = last + file.read_range(at, min(step, size - at))
        if match := _LINE_END.search(piece, searched):
            return at - len(last) + match.end()
        at += len(piece) - len(last)
        searched, step, last = 1, min(2 * step, _MOST), piece[-1:]
    return size


@dataclass(frozen=True)
class _FileWindow:
    """The bytes of a file from ``begin`` to ``end``, as a file of their own."""

    file: RemoteFile
    begin: int
    end: int

    def __len__(self) -> int:
        return self.end - self.begin

    def read_range(self, offset: int, count: int) -> bytes:
        return self.file.read_range(self.begin + offset, count)

    def read_range_stream(self, offset: int, count: int) -> Iterator[bytes]:
        return self.file.read_range_stream(self.begin + offset, count)
