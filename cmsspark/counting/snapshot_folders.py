"""Folders of snapshots in the cache: each is built once for its dumps and replaced when it is damaged; old ones go."""

from __future__ import annotations

import contextlib
import errno
import hashlib
import os
import shutil
import uuid
from collections.abc import Callable
from pathlib import Path
from typing import Final

from cmsspark.base.errors import OutputError, os_error_number
from cmsspark.base.locked_folders import cache_not_written, locked_folder
from cmsspark.counting.catalogue import FORMAT, DamagedSnapshot, is_no_damage

#: Snapshots kept in the cache folder; a running task keeps the files that it has mapped.
KEPT: Final = 4


def open_or_build(
    cache: Path,
    kind: str,
    fingerprint: str,
    build: Callable[[Path], None],
    check: Callable[[Path], object] = lambda folder: None,
) -> tuple[Path, bool]:
    """Return the snapshot's folder in ``cache``, built if it is not there; True beside it when it was.

    ``check`` opens it: one that is damaged is removed and built anew. Two builders at once each work in a folder of
    their own; the first to finish is used by both. Old snapshots of the same kind go, but the newest ``KEPT``, and
    what killed builders left. Raises OutputError (73) where the cache cannot be written.
    """
    name = f"{kind}-v{FORMAT}-{hashlib.sha256(fingerprint.encode()).hexdigest()[:24]}"
    folder = cache / name
    if (folder / "meta.json").exists():
        try:
            check(folder)
        except DamagedSnapshot:
            _remove_damaged(folder)
        else:
            with contextlib.suppress(PermissionError):
                os.utime(folder)  # pruning goes by age; another user's snapshot serves as it is
            return folder, False
    with contextlib.ExitStack() as stack:
        try:
            aside = stack.enter_context(locked_folder(cache, f".{kind}-v{FORMAT}-"))
        except OSError as error:
            raise cache_not_written(cache, error) from None
        try:
            build(aside)
            (aside / "lock").unlink()
        except (OSError, OutputError) as error:
            if (written := _not_written(error, cache)) is None:
                raise
            raise written from None
        try:
            aside.rename(folder)
        except OSError:
            if not (folder / "meta.json").exists():
                raise
    _prune(cache, f"{kind}-v")
    return folder, True


def _not_written(error: OSError | OutputError, cache: Path) -> OutputError | None:
    """Return the error (73) for a snapshot that could not be built; None where the cache's disk is not at fault."""
    number = os_error_number(error)  # processes of the pool hand it over as an error of ours
    if not isinstance(error, OSError) or number in (errno.ENOSPC, errno.EDQUOT, errno.EFBIG):
        return OutputError(
            "there is no room for the catalogue's snapshot",
            where=cache,
            found=error.found if isinstance(error, OutputError) else os.strerror(number),
            next_step="free 40 bytes for each file in DBS, or name another folder in the settings, as cache_dir",
        )
    if is_no_damage(error):
        return None
    return OutputError(
        "the catalogue's snapshot cannot be written",
        where=error.filename or cache,
        found=error.strerror or error,
        next_step="check that disk, or name another folder in the settings, as cache_dir",
    )


def _remove_damaged(folder: Path) -> None:
    """Remove a snapshot; a task that has mapped its files keeps them. Raises OSError."""
    aside = folder.with_name(f".{folder.name}.{uuid.uuid4().hex[:8]}")
    with contextlib.suppress(FileNotFoundError):  # another run was faster
        folder.rename(aside)
    shutil.rmtree(aside, ignore_errors=True)


def _prune(cache: Path, prefix: str) -> None:
    ages: list[tuple[float, Path]] = []
    for snapshot in cache.glob(f"{prefix}*"):
        # Another builder may prune at the same time.
        with contextlib.suppress(FileNotFoundError):
            ages.append((snapshot.stat().st_mtime, snapshot))
    for _, old in sorted(ages, reverse=True)[KEPT:]:
        shutil.rmtree(old, ignore_errors=True)
