"""Parquet parts that tasks write themselves: features keep their fixed sizes and types,
and no row passes the JVM.

A part appears under its name only when it is complete. The driver removes parts of
tasks that failed or ran twice.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self

import numpy as np

from cmsspark.apps.events.layout import EventLayout, layout_in
from cmsspark.base.arrays import Array
from cmsspark.base.errors import DataError, InputMissing, OutputError
from cmsspark.base.memory import is_shortage
from cmsspark.filesystems.storage import Files, is_local, join, local_path

if TYPE_CHECKING:
    import pyarrow as pa

#: Rows of a row group, with and without the matrix.
GROUP_ROWS: Final = {True: 500, False: 2_000}
#: Rows of a row group of scores, which have no features.
SCORE_GROUP_ROWS: Final = 100_000
_FEATURES: Final = ("hlf", "low_level")
_REPEATED: Final = ("file", "label", "predicted")


def file_system(location: str) -> tuple[Any, str]:
    """Arrow's file system of a location, and the path there. Raises OutputError (73)
    where a worker has none for it.
    """
    from pyarrow import fs

    if is_local(location):
        return fs.LocalFileSystem(), os.path.abspath(local_path(location))
    if (
        location.startswith(("hdfs://", "viewfs://"))
        and "CLASSPATH" not in os.environ
        and shutil.which("hadoop")
    ):
        classpath = subprocess.run(
            ["hadoop", "classpath", "--glob"], capture_output=True, text=True, check=False
        )
        os.environ["CLASSPATH"] = classpath.stdout.strip()
    try:
        return fs.FileSystem.from_uri(location)  # type: ignore[no-any-return]
    except (OSError, ValueError) as error:
        raise OutputError(
            "tasks cannot open the store",
            where=location,
            found=" ".join(str(error).split())[:200],
            next_step="hdfs:// needs libhdfs and `hadoop` on the workers; other stores need Arrow's support for them",
        ) from None


class PartWriter:
    """Writes one part as a context manager; without rows there is no file. Raises
    OutputError (73).
    """

    def __init__(self, folder: str, number: int, schema: pa.Schema) -> None:
        self.name = f"part-{number:06}-{uuid.uuid4()}.snappy.parquet"
        self.schema, self.rows = schema, 0
        self._group = (
            GROUP_ROWS["low_level" in schema.names] if "hlf" in schema.names else SCORE_GROUP_ROWS
        )
        self._fs, path = file_system(folder)
        self._target = f"{path}/{self.name}"
        # Neither Spark nor we take such a name for a part.
        self._aside = f"{path}/_{self.name}.incomplete"
        self._writer: Any = None

    def __enter__(self) -> Self:
        return self

    def write(self, columns: Mapping[str, Any]) -> None:
        """Add rows: a numpy array or a list for each column; those of two dimensions
        become lists of fixed size.
        """
        import pyarrow as pa

        batch = pa.table(
            [_array(columns[field.name], field) for field in self.schema], schema=self.schema
        )
        if not batch.num_rows:
            return
        try:
            self._open().write_table(batch, self._group)
        except OSError as error:
            raise self._failed(error) from None
        self.rows += batch.num_rows

    def __exit__(
        self, kind: type[BaseException] | None, error: object, trace: TracebackType | None
    ) -> None:
        if self._writer is None:
            return
        try:
            self._writer.close()
            if kind is None:
                self._fs.move(self._aside, self._target)
            else:
                self._fs.delete_file(self._aside)
        except OSError as failure:
            if kind is None:
                raise self._failed(failure) from None

    def _open(self) -> Any:
        import pyarrow.parquet as pq

        if self._writer is None:
            # Floats have few equal values: dictionaries and statistics cost time and help nobody.
            with_statistics = [name for name in self.schema.names if name not in _FEATURES]
            self._writer = pq.ParquetWriter(
                self._aside,
                self.schema,
                filesystem=self._fs,
                compression="snappy",
                use_dictionary=[name for name in with_statistics if name in _REPEATED],
                write_statistics=with_statistics,
            )
        return self._writer

    def _failed(self, error: OSError) -> OutputError:
        return OutputError(
            "a part cannot be written",
            where=self._target,
            found=error.strerror or " ".join(str(error).split())[:200],
            next_step="make room or get permission there, then run it again",
        )


def _array(values: Any, field: pa.Field) -> pa.Array:
    import pyarrow as pa

    if pa.types.is_fixed_size_list(field.type):
        flat = np.ascontiguousarray(values, dtype=np.float32).reshape(-1)
        return pa.FixedSizeListArray.from_arrays(pa.array(flat), type=field.type)
    return pa.array(values, field.type)


def to_matrix(column: Any, size: int) -> Array:
    """Return the values of a column of lists as ``(rows, size)`` in single precision,
    from fixed lists or any others.

    Raises ValueError where a list has another length.
    """
    import pyarrow as pa

    if isinstance(column, pa.ChunkedArray):
        column = column.combine_chunks()
    flat = column.flatten().to_numpy(zero_copy_only=False)
    values: Array = flat.astype(np.float32, copy=False).reshape(len(column), size)
    return values


def keep_only(files: Files, folder: str, names: Iterable[str]) -> int:
    """Delete all files of a folder of parts but these, and return the bytes of those that stay.

    Raises OutputError (73) where one of them is missing.
    """
    expected, size = set(names), 0
    for entry in files.list_dir(folder):
        if entry.name in expected:
            expected.discard(entry.name)
            size += entry.size
        elif not entry.is_dir:
            files.delete(entry.path)
    if expected:
        raise OutputError(
            "parts that tasks wrote are not there",
            where=join(folder, min(expected)),
            next_step="use a store that driver and workers share",
        )
    return size


def sample_parts(folder: str | Path) -> list[str]:
    """Return the parts of a folder on this host, in the order of their names."""
    return sorted(str(path) for path in Path(local_path(str(folder))).glob("part-*.parquet"))


def row_groups(part: str, columns: list[str]) -> Iterator[pa.Table]:
    """Yield the row groups of a part, one after another. Raises DataError (65) where it
    lacks a column, or is damaged.
    """
    import pyarrow.parquet as pq

    system, path = file_system(part)
    with system.open_input_file(path) as stream, _naming(part):
        file = pq.ParquetFile(stream, page_checksum_verification=True)
        if missing := sorted(set(columns) - set(file.schema_arrow.names)):
            raise DataError(
                "these events lack a column",
                where=part,
                found=f"no {', '.join(missing)}",
                next_step="run_spark events_prepare --low-level, then events_sample",
            )
        for number in range(file.num_row_groups):
            yield file.read_row_group(number, columns=columns)


@contextmanager
def _naming(part: str) -> Iterator[None]:
    """Turn an error of reading a part into a DataError (65) that names it."""
    import pyarrow as pa

    try:
        yield
    except (pa.ArrowException, OSError, ValueError) as error:
        if is_shortage(error):
            raise
        raise DataError(
            "a part of a sample is damaged",
            where=part,
            found=" ".join(str(error).split())[:200],
            next_step="copy it again, or make the sample again: run_spark events_sample",
        ) from None


@dataclass(frozen=True)
class Events:
    """Events in memory: ``hlf`` ``(n, features)``, ``low_level`` ``(n, rows, columns)``
    or None, labels and weights.
    """

    layout: EventLayout
    hlf: Array
    low_level: Array | None
    labels: Array
    weights: Array

    def take(self, rows: Array | slice) -> Events:
        """Return the chosen events."""
        low_level = None if self.low_level is None else self.low_level[rows]
        return Events(
            self.layout, self.hlf[rows], low_level, self.labels[rows], self.weights[rows]
        )


def event_groups(part: str, layout: EventLayout, *, low_level: bool) -> Iterator[Events]:
    """Yield the events of a part by row groups. Raises DataError (65) where it lacks a column."""
    for rows in row_groups(
        part, ["hlf", "label", "weight", *(["low_level"] if low_level else [])]
    ):
        hlf, matrices = to_matrix(rows.column("hlf"), layout.hlf_count), None
        if low_level:
            matrices = to_matrix(rows.column("low_level"), layout.matrix).reshape(
                -1, *layout.shape
            )
        yield Events(
            layout,
            hlf,
            matrices,
            rows.column("label").to_numpy(),
            rows.column("weight").to_numpy(),
        )


def read_events(
    folder: str | Path, *, low_level: bool = False, limit: int | None = None
) -> Events:
    """Return the events of a folder of parts on this host, a part of a sample.

    ``limit``: at most so many, the first ones: a random choice, as samples are
    shuffled. Raises InputMissing (66) without parts, DataError (65) where they have no
    matrices, but ``low_level`` asks for them.
    """
    if not (parts := sample_parts(folder)):
        raise InputMissing("no parts of events", where=folder, next_step="run_spark events_sample")
    layout = layout_in(Path(folder).parent)
    groups, count = [], 0
    for events in chain.from_iterable(
        event_groups(part, layout, low_level=low_level) for part in parts
    ):
        groups.append(events if limit is None else events.take(slice(limit - count)))
        count += len(groups[-1].labels)
        if count == limit:
            break
    columns = (
        None
        if name == "low_level" and not low_level
        else np.concatenate([getattr(group, name) for group in groups])
        for name in ("hlf", "low_level", "labels", "weights")
    )
    return Events(layout, *columns)  # type: ignore[arg-type]  # only particles may be None
