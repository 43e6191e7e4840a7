"""A file system that stands for one elsewhere."""

from __future__ import annotations

import threading
from dataclasses import replace
from pathlib import Path

from cmsspark.filesystems.storage import Entry, LocalFiles

FAR = "far://namenode/store"


class FarFiles(LocalFiles):
    """``far://…`` is a folder of this disk; counts what is fetched, and knows no path of the disk."""

    def __init__(self, folder: str) -> None:
        self.folder = folder
        self.ranges: list[tuple[str, int]] = []
        self._lock = threading.Lock()

    def _near(self, path: str) -> str:
        assert path.startswith(FAR), path
        return self.folder + path.removeprefix(FAR)

    def _far(self, entry: Entry) -> Entry:
        return replace(entry, path=FAR + entry.path.removeprefix(self.folder))

    def stat(self, path: str) -> Entry | None:
        entry = super().stat(self._near(path))
        return self._far(entry) if entry else None

    def list_dir(self, path: str) -> list[Entry]:
        # The entries' own stat is that of the disk.
        return [self._far(entry) for entry in LocalFiles().list_dir(self._near(path))]

    def read_bytes(self, path: str) -> bytes:
        return super().read_bytes(self._near(path))

    def read_range(self, path: str, offset: int, count: int) -> bytes:
        with self._lock:
            self.ranges.append((path, count))
        return super().read_range(self._near(path), offset, count)

    def fetch(self, path: str, target: Path) -> None:
        super().fetch(self._near(path), target)
