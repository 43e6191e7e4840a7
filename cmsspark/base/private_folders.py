"""Folders that only their owner may enter, such as the state directory."""

from __future__ import annotations

import fcntl
import shutil
import uuid
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cmsspark.base.errors import OutputError


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


# Temporary folders, each locked while its process lives: those of killed processes can
# be told and removed.


@contextmanager
def locked_folder(parent: Path, prefix: str, mode: int = 0o777) -> Iterator[Path]:
    """Yield a new folder in ``parent``, which is removed in the end. Folders of killed
    processes with the same ``prefix`` are removed first. Raises OSError.
    """
    name = uuid.uuid4().hex
    new, folder = parent / f".new-{name}", parent / f"{prefix}{name}"
    parent.mkdir(parents=True, exist_ok=True)
    new.mkdir(mode)
    with (new / "lock").open("w") as lock:
        # Under its final name the folder is locked until this process ends.
        fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        new.rename(folder)
        try:
            for leftover in parent.glob(f"{prefix}*"):
                try:
                    with (leftover / "lock").open("r") as leftover_lock:
                        fcntl.flock(leftover_lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
                        shutil.rmtree(leftover, ignore_errors=True)
                except OSError:
                    continue  # its process lives, or another one removes it
            yield folder
        finally:
            shutil.rmtree(folder, ignore_errors=True)


def cache_not_written(folder: Path, error: OSError) -> OutputError:
    """Return the error (73) for a cache in which no folder can be made."""
    next_step = "name another one in the settings, as cache_dir"
    return OutputError(
        "the cache folder cannot be written",
        where=folder,
        found=error.strerror,
        next_step=next_step,
    )
