"""ROOT files of events, with a TTree or RNTuple: which files are named, what is in
them, and their entry ranges.
"""

from __future__ import annotations

import glob
import importlib.util
import os
import shutil
import subprocess
import uuid
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from itertools import chain, pairwise
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, Any, Final, Self
from urllib.parse import urlsplit

import numpy as np

from cmsspark.apps.events.layout import TOPOLOGY, EventLayout, layout_in
from cmsspark.base.arrays import Array
from cmsspark.base.errors import (
    CmssparkError,
    DataError,
    InputMissing,
    NotAllowed,
    OutputError,
    UsageError,
)
from cmsspark.base.memory import is_shortage
from cmsspark.filesystems.hdfs import MODULE as HDFS_MODULE
from cmsspark.filesystems.storage import Files, is_local, join, local_path

if TYPE_CHECKING:
    import pyarrow as pa

    from cmsspark.apps.events.definition import Definition
    from cmsspark.apps.events.features import Chunk


#: Events of a task: 120 MB of branches where an event has 700 particles.
RANGE_EVENTS: Final = 10_000
#: Bytes of the branches of an event, in memory.
EVENT_BYTES: Final = 12_000
_TREE_KINDS: Final = ("TTree", "TNtuple", "TNtupleD", "TChain")
_NTUPLE_KINDS: Final = ("ROOT::RNTuple", "ROOT::Experimental::RNTuple")
_REMOTE: Final = ("root", "http", "https", "s3")
#: Those that can list folders.
_LISTED: Final = ("root", "s3")
_CLASS_NAMES: Final = {"w+jets": "wjets", "w": "wjets", "tt": "ttbar"}


@dataclass(frozen=True)
class EventFile:
    """A file with events of one class; ``label`` is the number of the class, None for
    files of unknown class.
    """

    path: str
    label: int | None


@dataclass(frozen=True)
class InspectedFile:
    """What a look into a file shows: its number of events, its bytes, or why it cannot be read.

    ``defaulted``: the columns that the file lacks, and that get their default;
    ``weight_sum``: that of all generated events, None where the file has none.
    """

    path: str
    label: int | None
    events: int
    size: int | None = None
    reason: str = ""
    defaulted: tuple[str, ...] = ()
    weight_sum: float | None = None


@dataclass(frozen=True)
class EntryRange:
    """A part of a file that one task reads: entries from ``start`` to ``stop``."""

    path: str
    label: int | None
    start: int
    stop: int


def split_input(text: str) -> tuple[str, str]:
    """Return class and files of ``CLASS=FILES``. Raises UsageError (2)."""
    name, equals, pattern = text.partition("=")
    if not equals or not name.strip():
        raise UsageError(
            "--input has the form CLASS=FILES",
            found=repr(text),
            next_step="--input 'qcd=data/qcd*.root'",
        )
    return name.strip(), pattern.strip()


def files_of_inputs(inputs: Sequence[str], classes: Sequence[str]) -> list[EventFile]:
    """Return the files of options ``CLASS=FILES``, without repeats, each class in the
    order of names.

    FILES is a file, a glob, a folder, a list of files (``.txt``, one a line) or a URL
    such as ``root://``. Raises UsageError (2) for an unknown class or a file that two
    classes have, InputMissing (66) where there is no file.
    """
    files: dict[str, EventFile] = {}
    # Classes may differ in case only: then --input names one exactly.
    names = {name.lower(): name for name in classes} | {name: name for name in classes}
    for text in inputs:
        class_name, pattern = split_input(text)
        lower = class_name.lower()
        key = names.get(class_name) or names.get(lower) or names.get(_CLASS_NAMES.get(lower, ""))
        if key is None:
            is_default = tuple(classes) == TOPOLOGY.class_names
            nano = "; NanoAOD needs --definition nanoaod" if is_default else ""
            raise UsageError(
                f"there is no class {class_name}",
                where=f"--input {text}",
                found=f"the classes are {', '.join(classes)}",
                next_step=f"--classes A,B names other classes{nano}",
            )
        label = list(classes).index(key)
        for path in find_inputs(pattern):
            if files.setdefault(path, EventFile(path, label)).label != label:
                earlier = list(classes)[files[path].label or 0]
                raise UsageError(f"a file has one class, not {earlier} and {key}", where=path)
    return sorted(files.values(), key=lambda file: (file.label, file.path))


def find_inputs(pattern: str) -> list[str]:
    """Return the files that a path, a glob, a folder, a list or a URL names.

    Raises InputMissing (66), UsageError (2).
    """
    scheme = urlsplit(pattern).scheme if "://" in pattern else ""
    if scheme in _REMOTE:
        _require_remote(scheme, pattern)
        return _remote_paths(scheme, pattern)
    if scheme and not is_local(pattern):
        raise UsageError(
            f"events cannot be read from {scheme}://",
            where=pattern,
            found=f"file://, {', '.join(f'{name}://' for name in _REMOTE)} can be read",
            next_step="mount the file system, or read it over XRootD",
        )
    path = os.path.abspath(local_path(pattern)) if pattern else ""
    if pattern and os.path.isfile(path):
        return _listed(path) if path.endswith((".txt", ".list")) else [path]
    matches = glob.glob(
        os.path.join(glob.escape(path), "*.root") if os.path.isdir(path) else path, recursive=True
    )
    if not pattern or not matches:
        raise InputMissing(
            "no files of events",
            where=pattern or "--input",
            found="no file",
            next_step="name a ROOT file, a glob in quotes, a folder with *.root, or a list of files (.txt)",
        )
    return sorted(path for path in matches if os.path.isfile(path))


def _listed(path: str) -> list[str]:
    """Return the files that the lines of a list name; ``#`` begins a comment. Relative
    ones begin at its folder.
    """
    try:
        lines = Path(path).read_text(encoding="utf-8").splitlines()
    except PermissionError as error:
        raise NotAllowed(
            "a list of files cannot be read", where=path, found=error.strerror
        ) from None
    except UnicodeDecodeError:
        raise DataError("a list of files is text in UTF-8", where=path) from None
    named = [text for line in lines if (text := line.partition("#")[0].strip())]
    if not named:
        raise InputMissing(
            "a list of files names at least one", where=path, found=f"{len(lines)} lines"
        )
    folder = os.path.dirname(path)
    return [
        path
        for text in named
        for path in find_inputs(text if "://" in text else os.path.join(folder, text))
    ]


def _require_remote(scheme: str, url: str) -> None:
    """Raises UsageError (2) where the package that opens such URLs is not installed."""
    package = {"root": "fsspec_xrootd", "s3": "s3fs"}.get(scheme, "aiohttp")
    if importlib.util.find_spec(package) is None:
        raise UsageError(
            f"{scheme}:// needs {package.replace('_', '-')}",
            where=url,
            found="not installed",
            next_step=f"pip install {package.replace('_', '-')}",
        )


def _remote_paths(scheme: str, url: str) -> list[str]:
    """Return the files of a glob or of a folder (with / at its end) where the protocol
    can list folders; else the URL itself.

    A question mark begins options of a URL, and is no glob. Raises InputMissing (66)
    where there is none.
    """
    if scheme not in _LISTED or not (url.endswith("/") or "*" in url or "[" in url):
        return [url]
    import fsspec

    paths: list[str] = []
    problem = "no file"
    try:
        system, path = fsspec.core.url_to_fs(f"{url}*.root" if url.endswith("/") else url)
        paths = sorted(system.unstrip_protocol(match) for match in system.glob(path))
        if not paths:
            # A glob is silent where a server is away or a folder is not there; a listing is not.
            system.ls(
                path.partition("*")[0].partition("[")[0].rpartition("/")[0] or "/", detail=False
            )
    except Exception as error:  # clients of servers have errors of their own, such as botocore's without credentials
        problem = explain_error(error)
    if not paths:
        raise InputMissing(
            "no files of events",
            where=url,
            found=problem,
            next_step="name a ROOT file, a glob in quotes, or a folder with / at its end",
        )
    return paths


def inspect(file: EventFile, definition: Definition) -> InspectedFile:
    """Look into a file: its entries and branches. What is wrong with it is the
    ``reason``; nothing is raised.
    """
    from cmsspark.apps.events.definition import plan_branches

    size = None
    try:
        if is_local(file.path):
            size = os.path.getsize(local_path(file.path))
        with open_tree(file.path, definition.spec.tree) as tree:
            plan = plan_branches(tree.keys(), definition)
            entries, end = int(tree.num_entries), int(tree.file.fEND)
            if size is None:
                size = tree.file.source.num_bytes
            weight_sum = _weight_sum(tree.file.root_directory, definition)
    except Exception as error:
        return InspectedFile(file.path, file.label, 0, size, explain_error(error))
    reason = f"branches are missing: {', '.join(plan.missing)}" if plan.missing else ""
    if size is not None and size < end:
        reason = f"truncated: {size:,} of {end:,} bytes"
    return InspectedFile(file.path, file.label, entries, size, reason, plan.defaulted, weight_sum)


def _weight_sum(directory: Any, definition: Definition) -> float | None:
    """Return the sum of generator weights that a file keeps. Raises DataError (65) for a
    sum that is no number.
    """
    import awkward as ak

    spec = definition.spec.weight_sum
    if spec is None or spec.tree not in directory.keys(cycle=False):
        return None
    tree = directory[spec.tree]
    names = [spec.branch] if isinstance(spec.branch, str) else spec.branch
    name = next((name for name in names if name in tree.keys()), None)  # noqa: SIM118  # a method
    if name is None:
        return None
    total = float(ak.sum(ak.values_astype(tree[name].array(), np.float64), axis=None))
    if not np.isfinite(total):
        raise DataError(f"the sum {spec.tree}.{name} is finite", found=str(total))
    return total


def split_ranges(files: Iterable[InspectedFile], events: int) -> list[EntryRange]:
    """Return the files cut into entry ranges of about equal size, with at most ``events`` each."""
    ranges = []
    for file in files:
        if not file.events:
            continue
        parts = max(1, -(-file.events // events))
        edges = [file.events * part // parts for part in range(parts + 1)]
        ranges += [EntryRange(file.path, file.label, *edge) for edge in pairwise(edges)]
    return ranges


def estimate_bytes(ranges: Iterable[EntryRange]) -> int:
    """About so many bytes of branches are read for some ranges."""
    return EVENT_BYTES * sum(part.stop - part.start for part in ranges)


def read_range(part: EntryRange, definition: Definition) -> Chunk:
    """Return the events of a range. Raises what uproot raises, DataError (65) for
    branches that miss or differ.
    """
    # Workers that only read samples have neither.
    from cmsspark.apps.events.definition import plan_branches
    from cmsspark.apps.events.features import Chunk

    size = part.stop - part.start
    with open_tree(part.path, definition.spec.tree) as tree:
        plan = plan_branches(tree.keys(), definition)
        if plan.missing:
            raise DataError("branches are missing", where=part.path, found=", ".join(plan.missing))
        bounds = {"entry_start": part.start, "entry_stop": part.stop}
        if tree.classname in _NTUPLE_KINDS:
            # By field: together uproot returns those of a collection as records.
            arrays = {key: tree[key].array(**bounds) for key in plan.keys()}  # noqa: SIM118  # a method
        else:
            arrays = tree.arrays(plan.keys(), how=dict, **bounds)
    return Chunk.from_arrays(definition, plan, arrays, size)


def explain_error(error: BaseException) -> str:
    """Return why a file cannot be read, in one line."""
    if isinstance(error, CmssparkError):
        text = error.problem if error.found is None else f"{error.problem} ({error.found})"
    elif isinstance(error, OSError) and error.strerror:
        text = error.strerror
    else:
        # uproot explains at length, from the second paragraph on.
        text = str(error).strip().partition("\n\n")[0] or type(error).__name__
        if text == "while reading":
            text = "damaged: its structure cannot be decoded"
    return " ".join(text.split())[:300]


@contextmanager
def open_tree(path: str, name: str) -> Iterator[Any]:
    """Yield the tree of a file. Raises what uproot raises; DataError (65) where the
    file has no such tree.
    """
    import uproot

    options = {"handler": uproot.MultithreadedFileSource} if is_local(path) else {}
    # Names of files may have colons, which mean something to uproot and fsspec.
    with uproot.open({local_path(path) if is_local(path) else path: None}, **options) as file:
        kinds: Mapping[str, str] = file.classnames(cycle=False)
        if kinds.get(name) not in (*_TREE_KINDS, *_NTUPLE_KINDS):
            shown = ", ".join(f"{key} ({kind})" for key, kind in sorted(kinds.items())[:5])
            is_nano = name == "Delphes" and "Events" in kinds
            hint = "; NanoAOD needs --definition nanoaod" if is_nano else ""
            raise DataError(
                f"there is no tree {name}",
                where=path,
                found=f"the file has {shown or 'nothing'}{hint}",
            )
        yield file[name]


# Parquet parts that tasks write themselves: features keep their fixed sizes and types,
# and no row passes the JVM.

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
    if location.startswith("hdfs://") and all(
        map(importlib.util.find_spec, (HDFS_MODULE, "fsspec"))
    ):
        # Without a JVM, and without libhdfs on the workers.
        from hdfs_native.fsspec import HdfsFileSystem

        parts = urlsplit(location)
        client = HdfsFileSystem(host=parts.hostname, port=parts.port)
        return fs.PyFileSystem(fs.FSSpecHandler(client)), parts.path
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
        """Add rows: an array or a list for each column; those of two dimensions become lists
        of fixed size.
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

    if isinstance(values, pa.ChunkedArray):
        return values
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


def row_group_sizes(part: str) -> list[int]:
    """Return the events of each row group of a part. Raises DataError (65) if it is damaged."""
    import pyarrow.parquet as pq

    system, path = file_system(part)
    with _naming(part), system.open_input_file(path) as stream:
        metadata = pq.ParquetFile(stream).metadata
        return [metadata.row_group(number).num_rows for number in range(metadata.num_row_groups)]


def row_groups(part: str, columns: list[str], number: int | None = None) -> Iterator[pa.Table]:
    """Yield the row groups of a part, one after another, or only that with this number.

    Raises DataError (65) if it lacks a column, or is damaged.
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
        for group in range(file.num_row_groups) if number is None else (number,):
            yield file.read_row_group(group, columns=columns)


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
    or None, labels, weights and, if they are asked for, hashes.
    """

    layout: EventLayout
    hlf: Array
    low_level: Array | None
    labels: Array
    weights: Array
    hashes: Array | None = None

    def take(self, rows: Array | slice) -> Events:
        """Return the chosen events."""
        low_level, hashes = (
            None if column is None else column[rows] for column in (self.low_level, self.hashes)
        )
        chosen = self.hlf[rows], low_level, self.labels[rows], self.weights[rows]
        return Events(self.layout, *chosen, hashes)


def event_groups(
    part: str,
    layout: EventLayout,
    *,
    low_level: bool,
    number: int | None = None,
    with_hashes: bool = False,
) -> Iterator[Events]:
    """Yield the events of a part by row groups, or of the row group with this number.

    Raises DataError (65) if it lacks a column or a value, or has features that are not
    finite, or labels that are no class.
    """
    columns = ["hlf", "label", "weight", *(["low_level"] if low_level else [])]
    columns += ["event_hash"] if with_hashes else []
    for rows in row_groups(part, columns, number):
        if lacking := [name for name in columns if rows.column(name).null_count]:
            nulls = rows.column(lacking[0]).null_count
            problem = f"no event may lack the column {lacking[0]}"
            raise DataError(problem, where=part, found=f"{nulls} nulls")
        hlf, labels = to_matrix(rows.column("hlf"), layout.hlf_count), rows.column("label")
        label, classes = labels.to_numpy(), len(layout.classes)
        if len(label) and not (label.min() >= 0 and label.max() < classes):
            labels_text = f"{sorted(set(label.tolist()))}"
            raise DataError(f"labels are 0 to {classes - 1}", where=part, found=labels_text)
        if not np.isfinite(hlf).all():
            raise DataError(
                "the column hlf has finite numbers", where=part, found="infinite, or no number"
            )
        matrices = None
        if low_level:
            matrices = to_matrix(rows.column("low_level"), layout.matrix)
            matrices = matrices.reshape(-1, *layout.shape)
        hashes = rows.column("event_hash").to_numpy() if with_hashes else None
        yield Events(layout, hlf, matrices, label, rows.column("weight").to_numpy(), hashes)


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
