"""The index of a segment of the rollups: ``segment.json`` in its folder."""

from __future__ import annotations

from pathlib import Path
from typing import Final

import msgspec

INDEX: Final = "segment.json"


class SegmentIndex(msgspec.Struct, frozen=True):
    """``segment.json``: the run of each day, the pseudonym keys of each day, and size and digest of each file."""

    version: int
    store: str
    runs: dict[str, str]
    keys: dict[str, list[str]]
    rows: int
    files: dict[str, tuple[int, str]]


def read_index(folder: Path) -> SegmentIndex:
    """Return the index of a segment. Raises ValueError or OSError where there is none that can be read."""
    return msgspec.json.decode((folder / INDEX).read_bytes(), type=SegmentIndex)


def file_digest(path: Path) -> str:
    """Return the digest of a file's content."""
    import xxhash

    digest = xxhash.xxh3_64()
    with open(path, "rb") as stream:
        while chunk := stream.read(1 << 22):
            digest.update(chunk)
    return digest.hexdigest()
