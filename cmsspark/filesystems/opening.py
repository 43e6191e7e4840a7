"""Selection of the file system of a location: the local disk, or Hadoop's through the
running session's JVM.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import TYPE_CHECKING, Any, cast

from cmsspark.base.errors import UsageError
from cmsspark.filesystems.storage import Files, LocalFiles, is_local

if TYPE_CHECKING:
    from pyspark.sql import SparkSession


class AnyFiles:
    """``Files`` that passes each call on by its location, as inputs and results may be
    on different file systems.
    """

    def __init__(self, spark: SparkSession) -> None:
        from cmsspark.filesystems.hadoop import HadoopFiles

        self._local = LocalFiles()
        self._hadoop = HadoopFiles(spark)

    def __getattr__(self, operation: str) -> Callable[..., Any]:
        def call(*arguments: Any) -> Any:
            # A location is a text; of a file that is copied, the end on this host is a Path.
            location = next(argument for argument in arguments if isinstance(argument, str))
            return getattr(self._local if is_local(location) else self._hadoop, operation)(
                *arguments
            )

        return call


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
    return cast("Files", AnyFiles(spark))
