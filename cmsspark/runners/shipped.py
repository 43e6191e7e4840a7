"""Folders of snapshots on the hosts of tasks: opened in place, or sent to the executors as an archive."""

from __future__ import annotations

import os
import tarfile
from contextlib import suppress
from pathlib import Path
from typing import TYPE_CHECKING

from cmsspark.errors import OutputError

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


def ship(spark: SparkSession, folder: Path) -> str:
    """Make the folder of a snapshot available to tasks and return its name for :func:`local_folder`.

    Tasks of a local session open it in place. On a cluster Spark unpacks an archive of it on each executor. Raises
    OutputError (73) if the archive cannot be written beside the snapshot.
    """
    if spark.sparkContext.master.startswith("local") and "cluster" not in spark.sparkContext.master:
        return str(folder)
    # Executors fetch the archive from the driver whenever they start, so it stays as long as its snapshot does.
    spark.sparkContext.addArchive(f"{archive(folder)}#{folder.name}")
    return folder.name


def archive(folder: Path) -> Path:
    """Return a tar of the folder's files, made once beside it. Archives of deleted snapshots are deleted."""
    target = folder.parent / "shipped" / f"{folder.name}.tar"
    partial = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for other in target.parent.glob("*.tar"):
            if not (folder.parent / other.stem).is_dir():
                other.unlink(missing_ok=True)
        if not target.is_file():
            with tarfile.open(partial, "w") as stream:
                # File by file: Hadoop rejects an entry for the folder itself.
                for file in sorted(folder.iterdir()):
                    stream.add(file, file.name)
            partial.replace(target)
    except OSError as error:
        with suppress(OSError):
            partial.unlink()
        raise OutputError("the catalogue's archive cannot be written", where=target, found=error.strerror) from None
    return target


def local_folder(name: str) -> Path:
    """Return the folder of a snapshot on this host: an absolute path, or where Spark unpacked the archive."""
    folder = Path(name)
    if folder.is_absolute():
        return folder
    from pyspark import SparkFiles

    return Path(SparkFiles.get(name))
