"""Listing of the data files in a folder, with size and mtime."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Final, NamedTuple

from cmsspark.base.errors import InputMissing
from cmsspark.filesystems.storage import Files
from cmsspark.sources.formats import avro_blocks

#: The suffix of a folder or file that is still being written.
TMP: Final = ".tmp"
#: The suffix of a file that ``hdfs dfs -put`` or ``distcp`` is still writing.
COPYING: Final = "._COPYING_"
_UNREAD_SUFFIXES: Final = (TMP, COPYING, ".crc")

#: An empty gzip member has some 20 bytes and a file name: a longer file is assumed to have data.
_EMPTY_LIMIT: Final = 1024
#: An Avro file of this size may be a header, with the schema of a wide table, and nothing else.
_AVRO_HEADER_LIMIT: Final = 65_536
#: Blank lines are not records (``docs/counting.md``, rule 1).
_BLANK_LINES: Final = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t]*\r?\n)*[ \t]*\r?")


@dataclass(frozen=True, order=True)
class InputFile:
    """A listed file: location, size in bytes, mtime in UTC ms. ``version``: inode and
    ctime of a local file.
    """

    path: str
    size: int
    mtime_ms: int
    version: tuple[int, int] = field(default=(0, 0), compare=False)


def digest(files: Mapping[str, Sequence[InputFile]]) -> str:
    """Return a digest over table, path, size and mtime of each file."""
    hasher = hashlib.sha256()
    for table, listed in sorted(files.items()):
        for file in sorted(listed):
            hasher.update(
                repr((table, file.path, file.size, file.mtime_ms)).encode(
                    "utf-8", "surrogateescape"
                )
            )
    return hasher.hexdigest()


def is_hidden(name: str) -> bool:
    """Return whether a name is never data: hidden files, files that are still being
    written, and checksums.
    """
    return name.startswith((".", "_")) or name.endswith(_UNREAD_SUFFIXES)


class Listed(NamedTuple):
    """The data files of a folder, by name, and the paths in it that are not read:
    sub-folders, files that are still being copied into it, and unfinished files
    (``.tmp``).
    """

    files: tuple[InputFile, ...]
    folders: list[str]
    copying: list[str]
    unfinished: list[str]


def data_files(files: Files, folder: str) -> Listed:
    """List a folder. Raises InputMissing (66) for a data file that is a broken link, a
    pipe and the like.
    """
    everything = files.list_dir(folder)
    entries = [entry for entry in everything if not is_hidden(entry.name)]
    for entry in entries:
        if entry.size < 0:
            raise InputMissing(
                "a file of the input cannot be read",
                where=entry.path,
                found=entry.fault or "a link to nothing",
            )
    visible = [entry for entry in everything if not entry.name.startswith((".", "_"))]
    return Listed(
        tuple(
            InputFile(entry.path, entry.size, entry.mtime_ms, getattr(entry, "version", (0, 0)))
            for entry in entries
            if not entry.is_dir
        ),
        [entry.path for entry in entries if entry.is_dir],
        [entry.path for entry in visible if entry.name.endswith(COPYING)],
        [entry.path for entry in visible if entry.name.endswith(TMP)],
    )


def hold_data(files: Files, listed: Sequence[InputFile]) -> bool:
    """Return whether any of the files has data. Empty files, empty gzip files, Avro
    files without a block and files of a few blank lines have none.

    Small files are opened only where no larger file exists. Damaged files count as
    data: the reader reports them.
    """
    return any(_holds_data(files, file) for file in sorted(listed, key=lambda file: -file.size))


def _holds_data(files: Files, file: InputFile) -> bool:
    if file.path.endswith(".avro") and file.size <= _AVRO_HEADER_LIMIT:
        try:
            return avro_blocks.first_block(files.read_bytes(file.path)) < file.size
        except avro_blocks.DamagedBlock:
            return file.size > 0
    if file.size == 0 or file.size > _EMPTY_LIMIT:
        return file.size > 0
    content = files.read_range(file.path, 0, _EMPTY_LIMIT)
    try:
        while content.startswith(b"\x1f\x8b"):
            member = zlib.decompressobj(wbits=31)
            if not _BLANK_LINES.fullmatch(member.decompress(content)) or not member.eof:
                return True
            content = member.unused_data
    except zlib.error:
        return True
    return not _BLANK_LINES.fullmatch(content)
