"""Snapshots' folders on the hosts of tasks: opened where they are, or sent along with the job."""

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
    """Make a snapshot's folder reachable for tasks; the name is for :func:`place`.

    A local session's tasks open it where it is. Elsewhere it travels as an archive that Spark unpacks on each executor.
    Raises OutputError (73) where the archive cannot be written beside the snapshot.
    """
    if spark.sparkContext.master.startswith("local") and "cluster" not in spark.sparkContext.master:
        return str(folder)
    # Executors fetch it from the driver whenever they come: it stays as long as its snapshot does.
    spark.sparkContext.addArchive(f"{archive(folder)}#{folder.name}")
    return folder.name


def archive(folder: Path) -> Path:
    """The folder's files as a tar beside it, made once; those of snapshots that are gone go."""
    target = folder.parent / "shipped" / f"{folder.name}.tar"
    aside = target.with_name(f"{target.name}.{os.getpid()}.part")
    try:
        target.parent.mkdir(parents=True, exist_ok=True)
        for other in target.parent.glob("*.tar"):
            if not (folder.parent / other.stem).is_dir():
                other.unlink(missing_ok=True)
        if not target.is_file():
            with tarfile.open(aside, "w") as stream:
                # File by file: Hadoop refuses an entry for the folder itself.
                for file in sorted(folder.iterdir()):
                    stream.add(file, file.name)
            aside.replace(target)
    except OSError as error:
        with suppress(OSError):
            aside.unlink()
        raise OutputError("the catalogue's archive cannot be written", where=target, found=error.strerror) from None
    return target


def place(name: str) -> Path:
    """A snapshot's folder on this host: as named, or where Spark unpacked what was shipped."""
    here = Path(name)
    if here.is_absolute():
        return here
    from pyspark import SparkFiles

    return Path(SparkFiles.get(name))
