"""The heap of a JVM on this host, from the counters that it shares in a file: no agent, no call into the JVM.

HotSpot maps ``/tmp/hsperfdata_<user>/<pid>`` (``jstat`` reads it, too) unless ``-XX:-UsePerfData`` is set.
"""

from __future__ import annotations

import mmap
import re
import struct
from contextlib import suppress
from pathlib import Path
from typing import Final

_MAGIC: Final = b"\xca\xfe\xc0\xc0"
_HEADER: Final = 32
_ENTRY: Final = 20
_USED: Final = re.compile(rb"sun\.gc\.generation\.\d+\.space\.\d+\.used")
_LONG: Final = ord("J")


class JvmCounters:
    """The counters of a JVM. ``heap()`` is None where they cannot be read: another JVM, another user, or none yet."""

    def __init__(self, pid: int, folder: Path = Path("/tmp")) -> None:  # noqa: S108 -- HotSpot uses no other
        self._pid, self._folder = pid, folder
        self._map: mmap.mmap | None = None
        self._used: list[int] = []

    def heap(self) -> int | None:
        """Used bytes of the heap, some 50 ms old."""
        if self._map is None:
            self._open()
        if self._map is None:
            return None
        return sum(int(struct.unpack_from("<q", self._map, offset)[0]) for offset in self._used)

    def _open(self) -> None:
        for path in self._folder.glob(f"hsperfdata_*/{self._pid}"):
            with suppress(OSError, ValueError, struct.error), path.open("rb") as file:
                mapped = mmap.mmap(file.fileno(), 0, access=mmap.ACCESS_READ)
                if self._find(mapped):
                    self._map = mapped
                    return
                mapped.close()

    def _find(self, data: mmap.mmap) -> bool:
        """Find the offsets of the counters; False while the JVM still makes them."""
        if data[:4] != _MAGIC or data[4] != 1 or not data[7]:
            return False
        offset, count = struct.unpack_from("<ii", data, 24)
        used = []
        for _ in range(count):
            length, name_at, vector = struct.unpack_from("<iii", data, offset)
            value_at = struct.unpack_from("<i", data, offset + 16)[0]
            end = data.find(b"\0", offset + name_at)
            name = data[offset + name_at : end]
            if data[offset + 12] == _LONG and not vector and _USED.fullmatch(name):
                used.append(offset + value_at)
            offset += length
        self._used = used
        return bool(used)
