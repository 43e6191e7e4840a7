"""A part file on a Hadoop file system, read in ranges: a query fetches the columns that it needs, not whole files."""

from __future__ import annotations

import io
import os

from cmsspark.storage import Files


class RemotePart(io.RawIOBase):
    """A seekable file over ``Files.read_range``."""

    def __init__(self, files: Files, path: str, size: int) -> None:
        self._files = files
        self._path = path
        self._size = size
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def tell(self) -> int:
        return self._at

    def seek(self, offset: int, whence: int = os.SEEK_SET) -> int:
        base = {os.SEEK_SET: 0, os.SEEK_CUR: self._at, os.SEEK_END: self._size}[whence]
        self._at = max(0, base + offset)
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        left = max(0, self._size - self._at)
        count = left if size is None or size < 0 else min(size, left)
        content = self._files.read_range(self._path, self._at, count) if count else b""
        self._at += len(content)
        return content

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)
