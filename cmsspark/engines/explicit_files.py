"""Spark's own readers on an explicit list of files: each file is read once, whatever
characters its name has.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from functools import reduce
from typing import TYPE_CHECKING, Any, Final

from cmsspark.base.errors import DataError
from cmsspark.base.text.readable import encodable
from cmsspark.filesystems.hadoop import HadoopFiles
from cmsspark.filesystems.storage import Files, is_local
from cmsspark.sources.listing import COPYING

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

#: So many files are loaded one by one; more by their folders, where these hold nothing else.
MANY: Final = 2_000
_PATTERN: Final = frozenset("{}[]*?\\")


def groups(paths: Sequence[str]) -> list[list[str]]:
    """Return the paths in groups that can be loaded together.

    With globbing off, Spark (3.5 to 4.3) still treats a path that looks like a pattern
    as one, and reads all files of the list again for each such path. Loaded alone, such
    a file is read once.
    """
    plain = [path for path in paths if not _PATTERN.intersection(path)]
    patterns = [[path] for path in paths if _PATTERN.intersection(path)]
    return [plain, *patterns] if plain else patterns


def read_explicit_files(
    spark: SparkSession, kind: str, paths: Sequence[str], **options: str
) -> DataFrame:
    """Return the rows of exactly these files (at least one), read by the data source
    ``kind``: text, binaryFile, …

    The last columns are ``file_path``, the URI of each row's file, and its
    ``file_size``. Raises DataError (65) for a file name that is not UTF-8, which Java
    cannot open.
    """
    for path in paths:
        if encodable(path) != path:
            raise DataError(
                "Spark reads files whose names are UTF-8",
                where=path,
                found="other bytes in the name",
                next_step="rename the file, or read the day without --feed spark from a local disk",
            )

    if len(paths) > MANY and (folders := whole_folders(HadoopFiles(spark), paths)):
        return _loaded(spark, kind, folders, options)
    return reduce(
        lambda first, right: first.unionAll(right),
        (_loaded(spark, kind, group, options) for group in groups(paths)),
    )


def whole_folders(files: Files, paths: Sequence[str]) -> list[str] | None:
    """Return the folders of the paths, if Spark reads exactly these paths in them; otherwise None.

    Spark asks the file system for each path that it loads, and lists a folder at once.
    What appears in a folder later is noticed at the end of a run, which lists its
    inputs once more.
    """
    if any(is_local(path) for path in paths):
        return None
    by_folder: dict[str, set[str]] = {}
    for path in paths:
        folder, _, name = path.rpartition("/")
        by_folder.setdefault(folder, set()).add(name)
    if len(by_folder) > MANY or any(_PATTERN.intersection(folder) for folder in by_folder):
        return None
    for folder, names in by_folder.items():
        entries = files.list_dir(folder)
        # Spark leaves out names that start with a dot or an underscore, and what is being copied.
        read = {
            entry.name
            for entry in entries
            if not entry.name.startswith((".", "_")) and COPYING not in entry.name
        }
        if read != names or any(entry.is_dir for entry in entries):
            return None
    return sorted(by_folder)


def _loaded(
    spark: SparkSession, kind: str, paths: Sequence[str], options: Mapping[str, str]
) -> DataFrame:
    reader: Any = spark.read.format(kind).options(**options).option("__globPaths__", "false")
    # The file's name and size are hidden columns; a union would drop them.
    return reader.load(list(paths)).select("*", "_metadata.file_path", "_metadata.file_size")
