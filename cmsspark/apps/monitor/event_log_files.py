"""Where an event log is: one file, or a rolling folder ``eventlog_v2_<id>`` with
numbered files; and its lines.

A file may be compressed, still be written (``.inprogress``), or be cut. Rolling folders
that Spark compacted begin with their last ``.compact`` file, which replaces all before
it.
"""

from __future__ import annotations

import io
import itertools
import re
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import IO, Any, Final

from cmsspark.apps.monitor.event_log_codecs import CutLog, pieces
from cmsspark.base.errors import DataError, InputMissing, NotAllowed, UsageError
from cmsspark.filesystems.storage import Entry, Files, LocalFiles, is_local, local_path

#: A longer line is skipped and counted: plans of generated queries have reached some MB.
MOST_LINE: Final = 16 << 20
#: Event logs take 10 to 60 times less on disk. What takes so many times less, beyond
#: this, is no event log: reading it would cost far more than its size.
MOST_RATIO: Final = 500
_LEAST_PLAIN: Final = 256 << 20
_ROLLED: Final = re.compile(r"events_(?P<number>\d+)_(?P<rest>.+)")
#: What lies beside event logs and is none.
_OTHER: Final = ("appstatus_", ".", "_")
_SHOWN: Final = 10


@dataclass
class LogLines:
    """The lines of an event log, in order, as bytes without newlines. What is wrong
    with it is counted on the way.
    """

    parts: list[str]
    open: Callable[[str], IO[bytes]]
    #: Parts whose end is missing, with the reason.
    cut: list[str] = field(default_factory=list)
    #: Which numbers of a rolling folder are missing.
    missing: list[str] = field(default_factory=list)
    #: Files of a rolling folder that repeat another one.
    repeated: list[str] = field(default_factory=list)
    long_lines: int = 0
    plain_bytes: int = 0
    disk_bytes: int = 0

    def __iter__(self) -> Iterator[bytes]:
        for part in self.parts:
            with self.open(part) as stream:
                yield from self._lines(part, stream)

    def _lines(self, part: str, stream: IO[bytes]) -> Iterator[bytes]:
        pieces: list[bytes] = []
        size = 0
        for piece in self._pieces(part, stream):
            self.plain_bytes += len(piece)
            if self.plain_bytes > _LEAST_PLAIN + MOST_RATIO * self.disk_bytes:
                raise DataError(
                    "an event log takes at most 500 times less on disk than its lines",
                    where=part,
                    found=f"{self.disk_bytes:,} bytes with more than {self.plain_bytes:,} bytes of lines",
                    next_step="decompress it and look at it: blank lines or one repeated line are not an event log",
                )
            *ended, end = piece.split(b"\n")
            if ended:
                pieces.append(ended[0])
                if size + len(ended[0]) <= MOST_LINE:
                    yield b"".join(pieces)
                else:
                    self.long_lines += 1
                yield from ended[1:]
                pieces, size = [], 0
            size += len(end)
            # Of a line that is too long nothing is kept.
            pieces = [*pieces, end] if size <= MOST_LINE else []
        if size > MOST_LINE:
            self.long_lines += 1
        elif last := b"".join(pieces):
            yield last

    def _pieces(self, part: str, stream: IO[bytes]) -> Iterator[bytes]:
        try:
            yield from pieces(_Counted(stream, self), part)  # type: ignore[arg-type]
        except CutLog as error:
            self.cut.append(f"{part.rpartition('/')[2]}: {error}")


def find_log(location: str, files: Files | None = None) -> LogLines:
    """Return the event log at a path or URI: a file, a rolling folder, or a folder with
    one of both.

    ``files`` serves what is not on this host's disks. Raises InputMissing (66),
    UsageError (2) for a folder of several logs, which it names.
    """
    local = is_local(location)
    path = local_path(location) if local else location
    files = files or LocalFiles()
    entry = files.stat(path)
    if entry is None:
        raise InputMissing("the event log does not exist", where=location)
    opener = (
        _open_local if local else (lambda part: io.BufferedReader(_Remote(files, part), 1 << 20))
    )
    repeated: list[str] = []
    parts = _parts(path, files, repeated) if entry.is_dir else [path]
    return LogLines(parts, opener, missing=_gaps(parts), repeated=repeated)


def is_log_name(name: str) -> bool:
    """Return whether a file or folder of this name may be an event log."""
    return not name.startswith(_OTHER)


def _open_local(path: str) -> IO[bytes]:
    try:
        return Path(path).open("rb", buffering=0)
    except OSError as error:
        raise NotAllowed(
            "the event log cannot be read", where=path, found=error.strerror
        ) from None


def _parts(folder: str, files: Files, repeated: list[str]) -> list[str]:
    """Return the files with the lines, in order. Names of those that repeat another one
    are added to ``repeated``.
    """
    entries = files.list_dir(folder)
    rolled: dict[tuple[int, bool], Entry] = {}
    # Of two files with one number an empty one is no part.
    for entry in sorted(entries, key=lambda entry: (not entry.size, entry.name)):
        match = _ROLLED.fullmatch(entry.name)
        # A file that compaction did not finish repeats those that it was made from.
        if match is None or entry.is_dir or entry.name.endswith(".compact.inprogress"):
            continue
        key = (int(match["number"]), entry.name.endswith(".compact"))
        if rolled.setdefault(key, entry) is not entry:
            repeated.append(entry.name)
    if rolled:
        compacted = max((key for key in rolled if key[1]), default=(0, False))
        return [rolled[key].path for key in sorted(rolled) if key >= compacted]
    logs = [entry for entry in entries if is_log_name(entry.name)]
    if len(logs) == 1:
        return _parts(logs[0].path, files, repeated) if logs[0].is_dir else [logs[0].path]
    names = ", ".join(sorted(entry.name for entry in logs)[:_SHOWN])
    more = f" and {len(logs) - _SHOWN} more" if len(logs) > _SHOWN else ""
    if not logs:
        raise InputMissing("the folder has no event log", where=folder)
    raise UsageError(
        "the folder has several event logs",
        where=folder,
        found=names + more,
        next_step="name one of them",
    )


def _gaps(parts: list[str]) -> list[str]:
    """Return the numbers of a rolling folder that are missing between its parts, or
    before its first one.
    """
    matches = [match for part in parts if (match := _ROLLED.fullmatch(part.rpartition("/")[2]))]
    numbers = sorted({int(match["number"]) for match in matches})
    # What a compact file replaces is gone for good, and nothing is missing.
    first = numbers[0] if numbers and matches[0]["rest"].endswith(".compact") else 1
    ends = [first - 1, *numbers]
    gaps = [
        (before + 1, after - 1) for before, after in itertools.pairwise(ends) if after > before + 1
    ]
    return [
        f"parts {start} to {last} missing" if last > start else f"part {start} missing"
        for start, last in gaps
    ]


class _Counted(io.RawIOBase):
    """A stream whose bytes are counted as they are on disk."""

    def __init__(self, stream: IO[bytes], lines: LogLines) -> None:
        self._stream, self._lines = stream, lines

    def read(self, count: int = -1, /) -> bytes:
        data = self._stream.read(count)
        self._lines.disk_bytes += len(data)
        return data


class _Remote(io.RawIOBase):
    """A file of another file system, read piece by piece."""

    def __init__(self, files: Files, path: str) -> None:
        self._files, self._path, self._position = files, path, 0

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any) -> int:
        data = self._files.read_range(self._path, self._position, len(buffer))
        buffer[: len(data)] = data
        self._position += len(data)
        return len(data)
