"""A file whose bytes come in pieces, in order: it is read by position, and holds no more than its reader needs."""

from __future__ import annotations

from collections.abc import Iterable, Iterator


class ForwardStream:
    """Bytes that can be read from the last released position on. ``size``: of the file; later bytes are not of it."""

    def __init__(self, size: int, pieces: Iterable[bytes]) -> None:
        self._size = size
        self._pieces: Iterator[bytes] = iter(pieces)
        self._buffer = bytearray()
        #: Where the buffer begins, and the position of the next read.
        self._begin = 0
        self._at = 0

    def seek(self, at: int, whence: int = 0) -> int:
        """Set the position: from the start, or with ``whence`` 1 from the current one."""
        self._at = at + (self._at if whence == 1 else 0)
        return self._at

    def tell(self) -> int:
        """Return the position of the next read."""
        return self._at

    def read(self, count: int = -1) -> bytes:
        """Return the next bytes; fewer at the end, and where the pieces end before it.

        Raises ValueError for released ones.
        """
        if self._at < self._begin:
            raise ValueError(f"byte {self._at} was released; the stream begins at {self._begin}")
        last = self._size if count < 0 else min(self._size, self._at + count)
        while self._begin + len(self._buffer) < last:
            piece = next(self._pieces, None)
            if piece is None:
                break
            self._buffer += piece
        content = bytes(self._buffer[self._at - self._begin : max(0, last - self._begin)])
        self._at += len(content)
        return content

    def release(self, before: int) -> None:
        """Forget the bytes before a position; those that have not come yet are dropped when they come."""
        while self._begin + len(self._buffer) <= before:
            self._begin += len(self._buffer)
            self._buffer = bytearray()
            piece = next(self._pieces, None)
            if piece is None:
                self._begin = max(self._begin, before)
                return
            self._buffer += piece
        del self._buffer[: max(0, before - self._begin)]
        self._begin = max(self._begin, before)
