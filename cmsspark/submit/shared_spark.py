"""One copy of Spark in the cache for all environments of a machine that have the same Spark.

Java takes a class archive only with the very jar files that it was made with: the same file (device and inode) of the
same time. Every environment has files of its own, so an archive of one is refused in all others. Hard links in the
cache to the jars of the first environment need no space, stay when that environment goes, and serve each environment
whose files have the same content.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import tempfile
from collections.abc import Iterator
from contextlib import suppress
from pathlib import Path
from typing import Final

import msgspec

from cmsspark.base.errors import OutputError
from cmsspark.filesystems.storage import LocalFiles

#: What spark-submit, the driver and Python's tasks take from SPARK_HOME.
_PARTS: Final = ("jars", "bin", "python/lib")
_JARS: Final = "jars"


class _Known(msgspec.Struct):
    """The digest of a Spark's content, with the state of its files when they were read."""

    state: str
    content: str


def state(home: Path) -> str:
    """A digest of names, sizes, times and inodes: another one whenever a file may have changed. Reads no content."""
    digest = hashlib.sha256()
    for name, path in _files(home):
        status = path.stat()
        digest.update(f"{name} {status.st_size} {status.st_mtime_ns} {status.st_ino}\n".encode())
    return digest.hexdigest()


def content(home: Path, folder: Path) -> str:
    """A digest of what the files hold. It is kept in ``folder``, so that 460 MB are read once; where that folder cannot
    be written, they are read again.
    """
    place = hashlib.sha256(os.fsencode(home.resolve())).hexdigest()[:12]
    memory, now = folder / f"content-{place}.json", state(home)
    try:
        known = msgspec.json.decode(memory.read_bytes(), type=_Known)
        if known.state == now:
            return known.content
    except (OSError, msgspec.DecodeError):
        pass  # they are read again
    digest = hashlib.sha256()
    for name, path in _files(home):
        with path.open("rb") as stream:
            digest.update(f"{name} {hashlib.file_digest(stream, 'sha256').hexdigest()}\n".encode())
    with suppress(OutputError):
        LocalFiles().write_bytes(str(memory), msgspec.json.encode(_Known(now, digest.hexdigest())))
    return digest.hexdigest()


def link(home: Path, target: Path) -> bool:
    """Make ``target`` a Spark of hard links to the files of ``home``; one that is there with the same content is left.
    False where this file system or this account cannot link them.
    """
    target.parent.mkdir(parents=True, exist_ok=True)
    if target.is_dir() and content(target, target.parent) == content(home, target.parent):
        return True
    aside = Path(tempfile.mkdtemp(prefix=f"{target.name}.", suffix=".part", dir=target.parent))
    try:
        for name, path in _files(home):
            (aside / name).parent.mkdir(parents=True, exist_ok=True)
            if name.startswith(f"{_JARS}/"):
                os.link(path, aside / name)
            else:
                shutil.copy2(path, aside / name)
        aside.chmod(0o755)
        shutil.rmtree(target, ignore_errors=True)
        os.rename(aside, target)
    except OSError:
        return False
    finally:
        shutil.rmtree(aside, ignore_errors=True)
    return True


def _files(home: Path) -> Iterator[tuple[str, Path]]:
    """Each file's name inside ``home`` and its path, in the order of names."""
    for part in _PARTS:
        for folder, folders, names in os.walk(home / part):
            folders.sort()
            for name in sorted(names):
                path = Path(folder, name)
                yield path.relative_to(home).as_posix(), path
