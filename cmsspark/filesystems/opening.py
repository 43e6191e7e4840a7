"""Selection of the file system of a location: the local disk, or Hadoop's through the running session's JVM."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from cmsspark.base.errors import UsageError
from cmsspark.filesystems.storage import Entry, Files, LocalFiles, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class AnyFiles:
    """Dispatches each call by its location, as inputs and results may be on different file systems."""

    def __init__(self, spark: SparkSession) -> None:
        from cmsspark.filesystems.hadoop import HadoopFiles

        self._local = LocalFiles()
        self._hadoop: Files = HadoopFiles(spark)

    def _of(self, path: str) -> Files:
        return self._local if is_local(path) else self._hadoop

    def stat(self, path: str) -> Entry | None:
        return self._of(path).stat(path)

    def list_dir(self, path: str) -> list[Entry]:
        return self._of(path).list_dir(path)

    def read_bytes(self, path: str, limit: int | None = None) -> bytes:
        return self._of(path).read_bytes(path, limit)

    def read_end(self, path: str, count: int) -> bytes:
        return self._of(path).read_end(path, count)

    def read_range(self, path: str, offset: int, count: int) -> bytes:
        return self._of(path).read_range(path, offset, count)

    def sha256(self, path: str) -> str:
        return self._of(path).sha256(path)

    def write_bytes(self, path: str, content: bytes) -> None:
        self._of(path).write_bytes(path, content)

    def create(self, path: str, content: bytes) -> bool:
        return self._of(path).create(path, content)

    def replace(self, source: str, target: str) -> None:
        self._of(target).replace(source, target)

    def make_dirs(self, path: str) -> None:
        self._of(path).make_dirs(path)

    def set_mode(self, path: str, mode: int) -> None:
        self._of(path).set_mode(path, mode)

    def delete(self, path: str) -> None:
        self._of(path).delete(path)

    def fetch(self, path: str, target: Path) -> None:
        self._of(path).fetch(path, target)

    def put(self, source: Path, path: str) -> None:
        self._of(path).put(source, path)

    def uri(self, path: str) -> str:
        return self._of(path).uri(path)


def files_for(location: str, spark: SparkSession | None = None) -> Files:
    """Return the file system of ``location``.

    Raises UsageError (2) for a location that is not local without a session.
    """
    if is_local(location):
        return LocalFiles()
    if spark is None:
        raise UsageError(
            "a Spark session is needed to reach this location",
            where=location,
            next_step="run it as a job: run_spark JOB …",
        )
    return AnyFiles(spark)
