"""Logs and dumps of an earlier run of the demo: the same options make the same bytes,
so they are not made twice.
"""

from __future__ import annotations

import hashlib
import json
import os
from collections.abc import Mapping
from importlib.metadata import version
from pathlib import Path
from typing import Any, Final

from cmsspark.apps import demo

#: Packages whose versions decide the bytes that are written.
_WRITERS: Final = ("numpy", "isal", "fastavro", "cramjam")


def save(
    marker: Path, options: Mapping[str, Any], root: Path, reconciliation: Mapping[str, Any]
) -> None:
    """Store in ``marker`` what the files below ``root`` were made with, and what a
    right count of them finds.
    """
    marked = {
        "asked": options,
        "generator": _generator(),
        "files": _state(root),
        "reconciliation": reconciliation,
    }
    marker.write_text(json.dumps(marked, indent=1), encoding="utf-8")


def load(
    marker: Path, options: Mapping[str, Any], root: Path, *, is_changed_too: bool
) -> dict[str, Any] | None:
    """Return what a right count finds of the files that are there; None where they have
    to be made.

    They are reused if ``options`` made them, as this version of the demo would make
    them, and nothing has changed them since; with ``is_changed_too`` whatever happened
    to them since.
    """
    try:
        marked = json.loads(marker.read_text(encoding="utf-8"))
        if marked.get("asked") != options:
            return None
        if not is_changed_too and (marked.get("generator"), marked.get("files")) != (
            _generator(),
            _state(root),
        ):
            return None
        return dict(marked["reconciliation"])
    except (OSError, ValueError, KeyError, AttributeError):
        return None


def _generator() -> str:
    """Return a digest of the code and the packages that write."""
    digest = hashlib.sha256(" ".join(version(name) for name in _WRITERS).encode())
    folder = Path(demo.__file__).parent
    for path in sorted([*folder.glob("*.py"), *folder.glob("*.gz")]):
        digest.update(f"{path.name} ".encode() + hashlib.sha256(path.read_bytes()).digest())
    return digest.hexdigest()


def _state(root: Path) -> str:
    """Return a digest of the names, sizes and times of all files."""
    digest = hashlib.sha256()
    for folder, folders, names in os.walk(root):
        folders.sort()
        for path in (Path(folder, name) for name in sorted(names)):
            status = path.stat()
            digest.update(
                f"{path.relative_to(root)} {status.st_size} {status.st_mtime_ns}\n".encode()
            )
    return digest.hexdigest()
