"""The scan in Spark: the tasks of :mod:`cmsspark.engines.tasks` run in Spark's Python workers.

A worker opens the files that it can reach: on a disk, and on HDFS where the extra
``cmsspark[hdfs]`` is installed (feed ``direct``). Spark reads all others and passes
their lines to the worker (feed ``spark``). Both feeds give the same rows, with the
columns ``pre_aggregate.COLUMNS``.
"""

from __future__ import annotations

import io
from collections.abc import Iterable, Iterator, Mapping, Sequence
from functools import partial, reduce
from itertools import takewhile
from typing import IO, TYPE_CHECKING, Any, Final, cast
from urllib.parse import unquote

from cmsspark.base.errors import DataError
from cmsspark.base.text.readable import encodable
from cmsspark.counting.crab_rows import HASHED_CRAB_COLUMNS
from cmsspark.counting.htcondor_jobs import JOB_COLUMNS
from cmsspark.engines.merge_task import PACKED_COLUMNS
from cmsspark.engines.session import count_cores
from cmsspark.engines.tasks import (
    GZIP_FACTOR,
    ROUNDS,
    StreamFiles,
    Task,
    TaskContext,
    first_values,
    pack_tasks,
    read_task,
    spark_schema,
    total_weight,
)
from cmsspark.filesystems.hadoop import HadoopFiles
from cmsspark.filesystems.hdfs import LineRange, RemoteFiles, choose_client, open_range
from cmsspark.filesystems.storage import Files, is_local
from cmsspark.sources.formats.lines import is_packed_name, unpacker
from cmsspark.sources.layout import COPYING
from cmsspark.sources.registry import STREAMS_OF_JOB_ROWS, STREAMS_OF_JOBS

if TYPE_CHECKING:
    import pyarrow as pa
    from pyspark.sql import DataFrame, SparkSession


# Spark's own readers on an explicit list of files: each file is read once, whatever
# characters its name has.

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


# The scan of logs on HDFS that Spark's Python workers open themselves
# (:mod:`cmsspark.filesystems.hdfs`).

SCHEME = "hdfs:"


def is_on_hdfs(stream: StreamFiles) -> bool:
    """Return whether all files of a stream are on HDFS, under its own protocol."""
    return bool(stream.files) and all(path.startswith(SCHEME) for path, _ in stream.files)


def scan_hdfs(
    spark: SparkSession,
    stream: StreamFiles,
    context: TaskContext,
    files: RemoteFiles,
    task_bytes: int,
    schema: str,
) -> DataFrame:
    """Return the rows of a stream whose files the workers open with ``files``. See
    :func:`cmsspark.engines.scan.scan`.

    ``task_bytes``: a larger plain file is divided into tasks of so many bytes.
    """
    ranges = divide(stream, task_bytes)
    divided = {piece.path for piece in ranges}
    undivided = [path for path, _ in stream.files if path not in divided]
    parts = []
    if undivided:
        # Of a file whose content is not asked for, Spark plans the place and reads nothing.
        listed = read_explicit_files(spark, "binaryFile", undivided).select("file_path")
        parts.append(listed.mapInArrow(partial(_read_hdfs, stream, context, files, ()), schema))
    if ranges:
        numbers = spark.range(0, len(ranges), 1, len(ranges))
        parts.append(
            numbers.mapInArrow(partial(_read_hdfs, stream, context, files, ranges), schema)
        )
    return reduce(lambda first, right: first.unionByName(right), parts)


def divide(stream: StreamFiles, task_bytes: int) -> list[LineRange]:
    """Return the ranges of the plain files that are larger than a task: of about even
    size, the last one open.

    A file that grows or shrinks after it was listed fails the run at its end.
    """
    files = stream.files if stream.format != "avro" else ()
    ranges = [split_file(path, size, task_bytes) for path, size in files]
    return [line_range for of_file in ranges if len(of_file) > 1 for line_range in of_file]


def split_file(path: str, size: int, task_bytes: int) -> list[LineRange]:
    """Return a file's even ranges, the last one open: one of a packed file, or of one
    no larger than a task.
    """
    count = 1 if is_packed_name(path) else max(1, -(-size // task_bytes))
    starts = [size * number // count for number in range(count)]
    return [
        LineRange(path, start, end) for start, end in zip(starts, [*starts[1:], None], strict=True)
    ]


def _read_hdfs(
    stream: StreamFiles,
    context: TaskContext,
    files: RemoteFiles,
    ranges: Sequence[LineRange],
    batches: Iterable[pa.RecordBatch],
) -> Iterator[pa.RecordBatch]:
    """Open what the input rows name: the URI of a file, or with ``ranges`` the number of one."""
    reader, aggregator = context.open(stream.stream, stream.format, stream.earlier_day)
    for value in first_values(batches):
        piece = ranges[value] if ranges else LineRange(unquote(value))
        is_accepted = piece.path in context.accepted
        with open_range(files, piece, unpacker) as opened:
            opened_stream = cast("IO[bytes]", opened)
            yield from context.read_file(
                opened_stream, piece.path, reader, aggregator, accept_damaged=is_accepted
            )
    yield from context.batches(reader, aggregator, is_last=True)


#: Bytes of input for each Spark task, at most: some 20 s. Each task returns its own
#: groups, so a few large tasks return fewer rows than many small ones.
TASK_BYTES: Final = 2_000_000_000
#: Bytes of input for each task whose files Spark reads, at least: the start of a worker
#: costs as much as reading them.
SPARK_TASK_BYTES: Final = 128_000_000
#: Packed files up to so many bytes are passed to the workers as they are, so many bytes
#: together to a task at most. A JVM inflates them and divides them into lines at ten
#: times the cost of passing them.
WHOLE_BYTES: Final = 64_000_000
_WHOLE_TASK_BYTES: Final = 128_000_000
#: Bytes that are read in the time in which a file is opened. Spark's 4 MB would make a
#: task of each 32 small files.
OPEN_BYTES: Final = 1_000_000
#: The driver lists up to so many files of a stream one by one; a Spark job of some
#: tasks lists more.
LISTED_BY_DRIVER: Final = 2_000
_LISTING_TASKS: Final = 100


def scan(
    spark: SparkSession,
    streams: Sequence[StreamFiles],
    context: TaskContext,
    feed: str = "auto",
    remote: RemoteFiles | None = None,
) -> DataFrame:
    """Return the pre-aggregated accesses of ``streams``, with their bins and quarantined records.

    The streams are all of accesses, or all of jobs, whose rows have
    ``jobs.JOB_COLUMNS``, or all of rows of jobs (``crab_rows``). With numbers of partitions in the context the rows are packed,
    with ``packed_rows.PACKED_COLUMNS``. ``remote``: what opens files on HDFS in the
    workers; None: the client that is installed, if there is one.

    One row for each (task, stream, dataset, site, app, user), of kind ``access``. Rows
    of kind ``bin`` count the records of each bin, rows of kind ``quarantine`` hold
    malformed records. An action on the result raises DataError (65) for a damaged file.
    """
    on_disk, on_hdfs, through_spark = _by_feed(streams, feed)
    if on_hdfs and remote is None and (remote := choose_client(spark)) is None:
        through_spark += on_hdfs
        on_hdfs = []
    parts = []
    if on_disk:
        tasks = pack_tasks(on_disk, count_cores(spark), TASK_BYTES)
        numbers = spark.range(0, len(tasks), 1, max(1, len(tasks)))
        parts.append(
            numbers.mapInArrow(partial(read_tasks, tasks, context), _schema(on_disk, context))
        )
    is_whole = are_passed_whole(through_spark)
    is_packed = is_whole or (not through_spark and are_packed(on_hdfs))
    files = sum(len(stream.files) for stream in streams)
    task_bytes = set_sizes(spark, total_weight(streams), files, is_packed=is_packed)
    for stream in on_hdfs:
        assert remote is not None
        parts.append(
            scan_hdfs(spark, stream, context, remote, task_bytes, _schema([stream], context))
        )
    parts += [
        _through_spark(spark, stream, context, is_whole=is_whole) for stream in through_spark
    ]
    return reduce(lambda first, right: first.unionByName(right), parts)


def _schema(streams: Sequence[StreamFiles], context: TaskContext) -> str:
    """Return the columns of the streams, which are all of accesses, all of jobs or a
    feed, or all of rows of jobs.
    """
    if context.part_numbers:
        return spark_schema(PACKED_COLUMNS)
    if streams[0].stream in STREAMS_OF_JOB_ROWS:
        return spark_schema(HASHED_CRAB_COLUMNS)
    is_of_jobs = context.feed_aggregator is not None or streams[0].stream in STREAMS_OF_JOBS
    return spark_schema(JOB_COLUMNS) if is_of_jobs else context.schema()


def are_passed_whole(streams: Sequence[StreamFiles]) -> bool:
    """Return whether Spark passes the files as they are: where each is packed, and none is large.

    Beside a file that Spark divides into lines none is, as all have tasks of one size.
    """
    return are_packed(streams) and all(size <= WHOLE_BYTES for _, size in _text_files(streams))


def are_packed(streams: Sequence[StreamFiles]) -> bool:
    """Return whether there are text files, and all of them are packed."""
    files = _text_files(streams)
    return bool(files) and all(is_packed_name(path) for path, _ in files)


def _text_files(streams: Sequence[StreamFiles]) -> list[tuple[str, int]]:
    return [file for stream in streams if stream.format != "avro" for file in stream.files]


def set_sizes(spark: SparkSession, weight: int, files: int = 0, *, is_packed: bool = False) -> int:
    """Set the size of tasks whose files Spark plans, ``files`` of ``weight`` bytes
    together, and how it lists them. Return that size in bytes.

    ``is_packed``: the files are packed, and a task may get all of its files at once.
    """
    size = choose_task_bytes(weight + files * OPEN_BYTES, count_cores(spark))
    if is_packed:
        size = min(size // GZIP_FACTOR, _WHOLE_TASK_BYTES)
    for name, value in {
        "spark.sql.files.maxPartitionBytes": size,
        "spark.sql.files.openCostInBytes": OPEN_BYTES,
        # The default is the current number of cores, which on YARN is that of the first executor.
        "spark.sql.files.minPartitionNum": 1,
        "spark.sql.sources.parallelPartitionDiscovery.threshold": LISTED_BY_DRIVER,
        "spark.sql.sources.parallelPartitionDiscovery.parallelism": _LISTING_TASKS,
    }.items():
        spark.conf.set(name, str(value))
    return size


def choose_task_bytes(weight: int, cores: int) -> int:
    """Return the size of tasks, in bytes, by which ``cores`` read ``weight`` bytes."""
    return max(SPARK_TASK_BYTES, min(TASK_BYTES, weight // (cores * ROUNDS)))


def _by_feed(
    streams: Sequence[StreamFiles], feed: str
) -> tuple[list[StreamFiles], list[StreamFiles], list[StreamFiles]]:
    """Return the streams that workers open on a disk, those that they open on HDFS, and
    those that Spark reads.
    """
    on_disk: list[StreamFiles] = []
    on_hdfs: list[StreamFiles] = []
    through_spark: list[StreamFiles] = []
    for stream in streams:
        if feed != "spark" and is_on_hdfs(stream):
            on_hdfs.append(stream)
        elif feed == "direct" or (
            feed == "auto" and all(is_local(path) for path, _ in stream.files)
        ):
            on_disk.append(stream)
        else:
            through_spark.append(stream)
    return on_disk, on_hdfs, through_spark


def read_tasks(
    tasks: Sequence[Task], context: TaskContext, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Read the files of the tasks whose numbers the input rows hold."""
    for number in first_values(batches):
        task = tasks[number]
        reader, aggregator = context.open(task.stream, task.format, task.earlier_day)
        yield from read_task(task, context, reader, aggregator)
        yield from context.batches(reader, aggregator, is_last=True)


def _read_files(
    stream: StreamFiles, context: TaskContext, is_accepted: bool, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Pre-aggregate Spark's rows (file, content). ``is_accepted``: damaged files are
    read up to the damage.
    """
    reader, aggregator = context.open(stream.stream, stream.format, stream.earlier_day)
    for batch in batches:
        for file, content in zip(*(column.to_pylist() for column in batch.columns), strict=True):
            opened = io.BytesIO(content)
            yield from context.read_file(
                opened, file, reader, aggregator, accept_damaged=is_accepted
            )
    yield from context.batches(reader, aggregator, is_last=True)


def _read_lines(
    stream: StreamFiles, context: TaskContext, batches: Iterable[pa.RecordBatch]
) -> Iterator[pa.RecordBatch]:
    """Pre-aggregate the rows (file, line) that Spark has read."""
    reader, aggregator = context.open(stream.stream, stream.format, stream.earlier_day)
    for batch in batches:
        for file, lines in _by_file(*(column.to_pylist() for column in batch.columns)):
            aggregator.add(reader.chunk(b"\n".join(lines) + b"\n", file))
        yield from context.batches(reader, aggregator, is_last=False)
    yield from context.batches(reader, aggregator, is_last=True)


def _by_file(files: Sequence[str], lines: list[bytes]) -> Iterator[tuple[str, list[bytes]]]:
    """Yield the lines of each file; a batch may hold the end of one file and the start
    of the next.
    """
    start = 0
    while start < len(files):
        file = files[start]
        # Most batches are of one file.
        end = (
            len(files)
            if files[-1] == file
            else start + sum(1 for _ in takewhile(file.__eq__, files[start:]))
        )
        yield file, lines[start:end]
        start = end


def _through_spark(
    spark: SparkSession, stream: StreamFiles, context: TaskContext, *, is_whole: bool = False
) -> DataFrame:
    """Return the rows of a stream whose files Spark reads.

    ``is_whole``: it passes files, else the lines of text files.
    """
    from pyspark.sql import functions as F

    parts = []
    schema = _schema([stream], context)
    accepted = [path for path, _ in stream.files if path in context.accepted]
    paths = [path for path, _ in stream.files if path not in context.accepted]
    # Spark's own text reader fails on damage, and knows other packings than we do. It
    # inflates large gzip files.
    of_lines = (
        []
        if is_whole or stream.format == "avro"
        else [path for path in paths if not _is_other_packing(path)]
    )
    lines_of = set(of_lines)
    undivided = [path for path in paths if path not in lines_of]
    for files, is_accepted in ((accepted, True), (undivided, False)):
        if files:
            rows = read_explicit_files(spark, "binaryFile", files).select("file_path", "content")
            parts.append(
                rows.mapInArrow(partial(_read_files, stream, context, is_accepted), schema)
            )
    if of_lines:
        lines = read_explicit_files(spark, "text", of_lines, lineSep="\n")
        rows = lines.select("file_path", F.col("value").cast("binary"))
        parts.append(rows.mapInArrow(partial(_read_lines, stream, context), schema))
    return reduce(lambda first, right: first.unionByName(right), parts)


def _is_other_packing(path: str) -> bool:
    """Return whether a file is packed, by its name, in another way than gzip."""
    return is_packed_name(path) and not path.endswith(".gz")
