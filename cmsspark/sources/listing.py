"""Listing a folder's data files: what is data by its name, and what a file was like when it was listed."""

from __future__ import annotations

import hashlib
import re
import zlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from cmsspark.errors import InputMissing
from cmsspark.storage import Files

#: The ending of a folder or file that is still being written.
TMP: Final = ".tmp"
#: The ending under which ``hdfs dfs -put`` and ``distcp`` write a file until it is whole.
COPYING: Final = "._COPYING_"
_UNREAD_ENDINGS: Final = (TMP, COPYING, ".crc")

#: An empty gzip member is some 20 bytes and a file name: what is longer than this is taken to hold data.
_EMPTY_LIMIT: Final = 1024
#: Lines without anything in them are no records (``docs/counting.md``, rule 1).
_BLANK_LINES: Final = re.compile(rb"(?:\xef\xbb\xbf)?(?:[ \t]*\r?\n)*[ \t]*\r?")


@dataclass(frozen=True, order=True)
class InputFile:
    """One file as it was listed: location, size in bytes, mtime in UTC ms."""

    path: str
    size: int
    mtime_ms: int


def digest(files: Mapping[str, Sequence[InputFile]]) -> str:
    digest = hashlib.sha256()
    for table, listed in sorted(files.items()):
        for file in sorted(listed):
            digest.update(repr((table, file.path, file.size, file.mtime_ms)).encode("utf-8", "surrogateescape"))
    return digest.hexdigest()


def is_hidden(name: str) -> bool:
    """True for names that are never data: hidden ones, and those still being written or beside a file."""
    return name.startswith((".", "_")) or name.endswith(_UNREAD_ENDINGS)


class Listed(NamedTuple):
    """A folder's data files, by name, and the paths in it that are not read: folders, files that are still being
    copied into it, and files that are written under another name first.
    """

    files: tuple[InputFile, ...]
    folders: list[str]
    copying: list[str]
    unfinished: list[str]


def data_files(files: Files, folder: str) -> Listed:
    """What a folder holds. Raises InputMissing (66) for a data file that is a link to nothing, a pipe and the like."""
    every = files.list_dir(folder)
    entries = [entry for entry in every if not is_hidden(entry.name)]
    for entry in entries:
        if entry.size < 0:
            raise InputMissing(
                "a file of the input cannot be read", where=entry.path, found=entry.fault or "a link to nothing"
            )
    shown = [entry for entry in every if not entry.name.startswith((".", "_"))]
    return Listed(
        tuple(InputFile(entry.path, entry.size, entry.mtime_ms) for entry in entries if not entry.is_dir),
        [entry.path for entry in entries if entry.is_dir],
        [entry.path for entry in shown if entry.name.endswith(COPYING)],
        [entry.path for entry in shown if entry.name.endswith(TMP)],
    )


def hold_data(files: Files, listed: Sequence[InputFile]) -> bool:
    """Whether any of the files holds data: not for files of 0 bytes, a gzip of nothing, a few blank lines.

    Only small files are opened, and only where there is no larger one. Damage counts as data: the reader reports it.
    """
    return any(_holds_data(files, file) for file in sorted(listed, key=lambda file: -file.size))


def _holds_data(files: Files, file: InputFile) -> bool:
    if file.size == 0 or file.size > _EMPTY_LIMIT:
        return file.size > 0
    content = files.read_bytes(file.path, _EMPTY_LIMIT)
    try:
        while content.startswith(b"\x1f\x8b"):
            member = zlib.decompressobj(wbits=31)
            if not _BLANK_LINES.fullmatch(member.decompress(content)) or not member.eof:
                return True
            content = member.unused_data
    except zlib.error:
        return True
    return not _BLANK_LINES.fullmatch(content)
