"""Open part files, read in ranges as DuckDB asks: a query reads the columns that it needs, not whole files."""

from __future__ import annotations

import io
import os

from cmsspark.filesystems.storage import Files


class PartReader(io.RawIOBase):
    """A seekable file of ``size`` bytes over :meth:`read_at`."""

    def __init__(self, size: int) -> None:
        self._size = size
        self._at = 0

    def read_at(self, offset: int, count: int) -> bytes:
        """Return ``count`` bytes from ``offset`` on."""
        raise NotImplementedError

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
        remaining = max(0, self._size - self._at)
        count = remaining if size is None or size < 0 else min(size, remaining)
        content = self.read_at(self._at, count) if count else b""
        self._at += len(content)
        return content

    def readinto(self, buffer: memoryview) -> int:  # type: ignore[override]
        content = self.read(len(buffer))
        buffer[: len(content)] = content
        return len(content)


class LocalPart(PartReader):
    """A file on the local disk, closed when nothing refers to it: DuckDB does not close what it no longer reads."""

    def __init__(self, path: str) -> None:
        self._number = os.open(path, os.O_RDONLY | os.O_CLOEXEC)
        super().__init__(os.fstat(self._number).st_size)

    def read_at(self, offset: int, count: int) -> bytes:
        return os.pread(self._number, count, offset)

    def close(self) -> None:
        if not self.closed:
            os.close(self._number)
        super().close()


class RemotePart(PartReader):
    """A file on another file system."""

    def __init__(self, files: Files, path: str, size: int) -> None:
        super().__init__(size)
        self._files = files
        self._path = path

    def read_at(self, offset: int, count: int) -> bytes:
        return self._files.read_range(self._path, offset, count)
