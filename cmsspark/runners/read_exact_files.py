"""Reading an explicit list of files with Spark's own readers, each once, whatever its name holds."""

from __future__ import annotations

from collections.abc import Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from cmsspark.errors import DataError
from cmsspark.readable import encodable

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

_PATTERN: Final = frozenset("{}[]*?\\")


def groups(paths: Sequence[str]) -> list[list[str]]:
    """The paths that may be loaded together.

    With globbing off, Spark (3.5 to 4.3) still takes a path that looks like a pattern for one, and reads all files of
    the list again for each such path. Loaded alone, such a file is read once.
    """
    plain = [path for path in paths if not _PATTERN.intersection(path)]
    odd = [[path] for path in paths if _PATTERN.intersection(path)]
    return [plain, *odd] if plain else odd


def load(spark: SparkSession, kind: str, paths: Sequence[str], **options: str) -> DataFrame:
    """The rows of exactly these files (at least one), read by the data source ``kind``: text, binaryFile, …

    A last column, ``file_path``, tells the file of each row as a URI. Raises DataError (65) for a name that is no
    UTF-8, which Java cannot open.
    """
    for path in paths:
        if encodable(path) != path:
            raise DataError(
                "Spark reads files whose names are UTF-8",
                where=path,
                found="other bytes in the name",
                next_step="rename the file, or read the day without --feed spark from a local disk",
            )

    def one(together: list[str]) -> DataFrame:
        reader: Any = spark.read.format(kind).options(**options).option("__globPaths__", "false")
        # The file's name is a hidden column, which a union would drop.
        return reader.load(together).select("*", "_metadata.file_path")

    return reduce(lambda left, right: left.unionAll(right), map(one, groups(paths)))
