"""Spark's own readers on an explicit list of files: each file is read once, whatever characters its name has."""

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
    """Return the paths in groups that can be loaded together.

    With globbing off, Spark (3.5 to 4.3) still treats a path that looks like a pattern as one, and reads all files of
    the list again for each such path. Loaded alone, such a file is read once.
    """
    plain = [path for path in paths if not _PATTERN.intersection(path)]
    patterns = [[path] for path in paths if _PATTERN.intersection(path)]
    return [plain, *patterns] if plain else patterns


def read_exact_files(spark: SparkSession, kind: str, paths: Sequence[str], **options: str) -> DataFrame:
    """Return the rows of exactly these files (at least one), read by the data source ``kind``: text, binaryFile, …

    The last column, ``file_path``, is the URI of each row's file. Raises DataError (65) for a file name that is not
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

    def load(group: list[str]) -> DataFrame:
        reader: Any = spark.read.format(kind).options(**options).option("__globPaths__", "false")
        # The file's name is a hidden column; a union would drop it.
        return reader.load(group).select("*", "_metadata.file_path")

    return reduce(lambda left, right: left.unionAll(right), map(load, groups(paths)))
