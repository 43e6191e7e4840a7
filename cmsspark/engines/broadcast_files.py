"""Folders of snapshots on the hosts of tasks: opened in place, or sent to the executors
as an archive.
"""

from __future__ import annotations

import os
import tarfile
import uuid
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING, Final

from cmsspark.base import dates
from cmsspark.base.dates import DAY_MS
from cmsspark.base.errors import CmssparkError, OutputError, SettingsError
from cmsspark.filesystems.hadoop import HadoopFiles
from cmsspark.filesystems.storage import Files, join

if TYPE_CHECKING:
    from pyspark.sql import SparkSession

#: Archives from this size on are fetched from the cluster's file system, smaller ones
#: from the driver.
SHARED_BYTES: Final = 256 * 1024 * 1024
#: The option of Spark that sets another limit.
SHARED_BYTES_KEY: Final = "spark.cmsspark.sharedIndexBytes"
#: Days that an archive there is kept at least; other hosts may use it.
KEPT_DAYS: Final = 60
#: A folder in the user's home there.
SHARED_FOLDER: Final = ".cmsspark/snapshots"


def ship(spark: SparkSession, folder: Path) -> str:
    """Make the folder of a snapshot available to tasks and return its name for
    :func:`local_folder`.

    Tasks of a local session open it in place. On a cluster Spark unpacks an archive of
    it on each executor. Raises OutputError (73) if the archive cannot be written beside
    the snapshot, SettingsError (78) for an option that is no number.
    """
    master = spark.sparkContext.master
    if master.startswith("local") and "cluster" not in master:
        return str(folder)
    # Executors fetch the archive whenever they start, so it stays as long as its snapshot does.
    packed = archive(folder)
    location = str(packed)
    if master == "yarn" and packed.stat().st_size >= _shared_bytes(spark):
        location = shared(HadoopFiles(spark), packed) or location
    spark.sparkContext.addArchive(f"{location}#{folder.name}")
    return folder.name


def _shared_bytes(spark: SparkSession) -> int:
    value = spark.conf.get(SHARED_BYTES_KEY, str(SHARED_BYTES))
    assert value is not None
    if value.isascii() and value.isdigit():
        return int(value)
    raise SettingsError(
        f"{SHARED_BYTES_KEY} is not a number of bytes",
        found=repr(value),
        next_step=f"write one such as {SHARED_BYTES}",
    )


def shared(files: Files, packed: Path) -> str | None:
    """Copy an archive to the cluster's file system, once, and return its location; None
    where that does not work.

    All executors fetch a large archive when they start: many DataNodes serve them
    faster than the one driver. Archives older than ``KEPT_DAYS`` whose local copy is
    gone are deleted.
    """
    oldest_ms = dates.now_ms() - KEPT_DAYS * DAY_MS
    try:
        target = join(files.uri(SHARED_FOLDER), packed.name)
        files.make_dirs(SHARED_FOLDER)
        for entry in files.list_dir(SHARED_FOLDER):
            if entry.mtime_ms < oldest_ms and not packed.with_name(entry.name).is_file():
                files.delete(entry.path)
        uploaded = files.stat(target)
        if uploaded is None or uploaded.size != packed.stat().st_size:
            aside = f"{target}.{uuid.uuid4().hex}.part"
            files.put(packed, aside)
            files.replace(aside, target)
    except CmssparkError:
        # No home on the cluster, or no room there: the driver serves it.
        return None
    return target


def archive(folder: Path) -> Path:
    """Return a tar of the folder's files, made once beside it. Archives of deleted
    snapshots are deleted.
    """
    target = folder.parent / "shipped" / f"{folder.name}.tar"
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for earlier in target.parent.glob("*.tar"):
            if not (folder.parent / earlier.stem).is_dir():
                earlier.unlink(missing_ok=True)
        if not target.is_file():
            with tarfile.open(partial, "w") as stream:
                # File by file: Hadoop rejects an entry for the folder itself.
                for file in sorted(folder.iterdir()):
                    stream.add(file, file.name)
            partial.replace(target)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise OutputError(
            "the catalogue's archive cannot be written", where=target, found=error.strerror
        ) from None
    return target


def local_folder(name: str) -> Path:
    """Return the folder of a snapshot on this host: an absolute path, or where Spark
    unpacked the archive.
    """
    folder = Path(name)
    if folder.is_absolute():
        return folder
    from pyspark import SparkFiles

    return Path(SparkFiles.get(name))
