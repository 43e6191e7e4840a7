"""``--files DIR``: the folder that travels with a script, packed into one archive."""

from __future__ import annotations

import gzip
import io
import os
import tarfile
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from cmsspark.base.errors import DataError, NotAllowed

#: Bytes of the archive: in a ConfigMap, which holds 1 MiB as base64 with all else, and
#: in tasks of Spark.
K8S_BYTES: Final = 500_000
SPARK_BYTES: Final = 64 * 2**20
_LEFT_OUT: Final = ("__pycache__", ".git")


def files_in(folder: Path) -> Iterator[Path]:
    """Return the files of a folder, sorted, without caches and hidden ones.

    Raises DataError (65) for links that leave the folder, and for what is no file.
    """
    top = folder.resolve()
    for base, folders, names in os.walk(folder):
        folders[:] = sorted(
            name for name in folders if name not in _LEFT_OUT and not name.startswith(".")
        )
        for name in sorted(names):
            path = Path(base, name)
            if name.startswith("."):
                continue
            if not path.is_file() or not path.resolve().is_relative_to(top):
                raise DataError(
                    "--files holds regular files",
                    where=path,
                    found="a link out of the folder, or no file",
                    next_step="copy the file into the folder",
                )
            yield path


def pack_files(folder: Path, most: int) -> bytes:
    """Return a folder as an archive, the same bytes for the same files. Raises
    DataError (65) above ``most`` bytes.
    """
    stream = io.BytesIO()
    with (
        gzip.GzipFile(fileobj=stream, mode="wb", compresslevel=6, mtime=0) as packed,
        tarfile.open(fileobj=packed, mode="w", dereference=True) as archive,
    ):
        for path in files_in(folder):
            info = archive.gettarinfo(path, str(path.relative_to(folder)))
            info.mtime, info.uid, info.gid, info.uname, info.gname = 0, 0, 0, "", ""
            try:
                with open(path, "rb") as source:
                    archive.addfile(info, source)
            except PermissionError as error:
                raise NotAllowed(
                    "a file of --files cannot be read", where=path, found=error.strerror
                ) from None
    content = stream.getvalue()
    if len(content) > most:
        raise DataError(
            f"--files has at most {most:,} bytes, compressed",
            where=folder,
            found=f"{len(content):,} bytes",
            next_step="put data on a volume (--volume CLAIM:/data), and large packages into the image",
        )
    return content
