"""Folders that only their owner may enter, such as the state directory."""

from __future__ import annotations

from pathlib import Path


def make_private(folder: Path) -> None:
    """Make a folder, and those above it that are missing, with mode 0700; one that is
    there stays as it is. ``mkdir(parents=True)`` gives its mode to the last one only.
    Raises OSError.
    """
    missing = []
    while not folder.exists():
        missing.append(folder)
        folder = folder.parent
    for new in reversed(missing):
        new.mkdir(mode=0o700, exist_ok=True)
