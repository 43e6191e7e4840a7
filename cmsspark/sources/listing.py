"""Listing a folder's data files: what is data by its name, and what a file was like when it was listed."""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from cmsspark.errors import InputMissing
from cmsspark.storage import Files

#: The ending of a folder or file that is still being written.
TMP: Final = ".tmp"
_UNREAD_ENDINGS: Final = (TMP, "._COPYING_", ".crc")


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


def data_files(files: Files, folder: str) -> tuple[tuple[InputFile, ...], list[str]]:
    """The data files of a folder, by name, and the sub-folders in it, which are not read."""
    entries = [entry for entry in files.list_dir(folder) if not is_hidden(entry.name)]
    for entry in entries:
        if entry.size < 0:
            raise InputMissing("a file of the input cannot be read", where=entry.path, found="a link to nothing")
    listed = tuple(InputFile(entry.path, entry.size, entry.mtime_ms) for entry in entries if not entry.is_dir)
    return listed, [entry.path for entry in entries if entry.is_dir]
