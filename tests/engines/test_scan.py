"""The scan: whoever reads the files and wherever the datasets are attached, the rows are the same."""

from __future__ import annotations

import gzip
import io
from collections.abc import Iterator
from datetime import date
from pathlib import Path
from typing import TYPE_CHECKING, Any

import fastavro
import pyarrow as pa
import pytest
from msgspec.structs import replace

from cmsspark.base.errors import DataError
from cmsspark.counting.catalogue import name_hash
from cmsspark.counting.merge import merge
from cmsspark.counting.pre_aggregate import COLUMNS, record_batch
from cmsspark.dumps.spark_transport import TableSource
from cmsspark.engines import shuffle_join
from cmsspark.engines.scan import SPARK_TASK_BYTES, TASK_BYTES, WHOLE_BYTES, are_passed_whole, scan
from cmsspark.engines.session import unwrap_cause
from cmsspark.engines.tasks import GZIP_FACTOR, StreamFiles, TaskContext, pack_tasks
from cmsspark.settings.pseudonyms import Pseudonyms
from cmsspark.sources.reader import Reader
from tests.counting.catalogues import Dataset, File, opened, opened_replicas

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

DAY = date(2019, 6, 15)
FILES: list[File] = [
    ("/store/a", 1, 1, 1),
    ("/store/b", 2, 2, 2),
    ("/store/b", 1, 1, 1),
    (None, 1, 1, 3),
    ("/store/orphan", 1, 9, 4),
    ("/store/noblock", None, 1, 5),
    ("/store/user/dbs", 2, 2, None),
]
DATASETS: list[Dataset] = [(1, "/x/y/RAW"), (2, "/z/y/AOD"), (3, None)]
BLOCKS = [(1, "/x/y/RAW#1"), (2, "/z/y/AOD#2"), (None, "/z/y/AOD#3"), (4, None)]
REPLICAS = [
    ("/x/y/RAW#1", "T2_X"),
    ("/x/y/RAW#1", "T2_X"),
    ("/z/y/AOD#2", "T1_Y"),
    (None, "T2_X"),
    ("/x/y/RAW#1", None),
]
LFNS = (
    "/store/a",
    "/store/b",
    "/store/orphan",
    "/store/noblock",
    "/store/user/dbs",
    "/store/user/x",
    "/store/temp/x",
    "",
)
#: Only Hadoop's own readers cannot open such a name on a local disk, and HDFS does not allow it.
COLON = "part:1.json"
#: What a Hadoop path takes for a pattern, an escape or a separator when it is not careful.
ODD_NAMES = (
    "part 0.json",
    "part%20.json",
    "part%zz.json",
    "part*.json",
    "part?.json",
    "part{a,b}.json",
    "part[0-9].json",
    "part\\d.json",
    "part#x.json",
    "part=1.json",
    "pärt-日本.json",
    "part+&;'\".json",
)


def record(number: int, **more: Any) -> bytes:
    lfn = LFNS[number % len(LFNS)]
    user = f"/DC=ch/CN=Person {number % 3}" if number % 4 else ""
    return (
        f'{{"data":{{"file_lfn":"{lfn}","read_bytes":{number},"site_name":"{("T2_X", "T1_Y", "")[number % 3]}",'
        f'"user_dn":"{user}"}}}}'
    ).encode()


def contents() -> Iterator[tuple[str, bytes]]:
    """Part files of all kinds, each with other records."""
    number = 0

    def some(count: int) -> list[bytes]:
        nonlocal number
        number += count
        return [record(one) for one in range(number - count, number)]

    for name in ODD_NAMES:
        yield name, b"\n".join(some(3)) + b"\n"
    yield "bom.json", b"\xef\xbb\xbf" + b"\n".join(some(3)) + b"\n"
    yield "crlf.json", b"\r\n".join(some(4)) + b"\r\n\r\n"
    yield "no-newline.json", b"\n".join(some(2))
    yield "blank-lines.json", b"\n\n \t\n".join(some(3)) + b"\n\n"
    yield "only-a-bom.json", b"\xef\xbb\xbf"
    yield "empty.json", b""
    yield (
        "bad.json",
        b"broken\n"
        + b"\n".join(some(2))
        + b'\n{"data":{"file_lfn":"\xff"}}\n{"data":{"file_lfn":"/a\x00"}}\n',
    )
    yield (
        "other-separators.json",
        some(1)[0] + b"\x0b\x0c\x85\xe2\x80\xa8" + some(1)[0] + b"\r" + some(1)[0] + b"\n",
    )
    yield "part 1%.json.gz", gzip.compress(b"\n".join(some(5)))
    yield "bom.json.gz", gzip.compress(b"\xef\xbb\xbf" + b"\r\n".join(some(2)))
    yield (
        "members.json.gz",
        gzip.compress(some(1)[0]) + gzip.compress(b"\n" + b"\n".join(some(2)) + b"\n"),
    )
    yield "empty.json.gz", b""


def avro(numbers: range) -> bytes:
    names = (
        "FILE_LFN",
        "SITE_NAME",
        "USER_DN",
        "APP_INFO",
        "READ_BYTES",
        "READ_BYTES_AT_CLOSE",
    )
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": name, "type": ["null", "string"]} for name in names],
    }
    rows = [
        {
            "FILE_LFN": LFNS[number % len(LFNS)],
            "SITE_NAME": "T1_Y",
            "USER_DN": f"/CN=P{number % 2}",
            "READ_BYTES": f"{number}",
        }
        for number in numbers
    ]
    stored = io.BytesIO()
    fastavro.writer(
        stored, fastavro.parse_schema(schema), [*rows, {"READ_BYTES": "x"}], codec="deflate"
    )
    return stored.getvalue()


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> list[StreamFiles]:
    folder = tmp_path_factory.mktemp("day 1%")
    files = [(folder / "cmssw" / name, content) for name, content in contents()]
    files += [
        (folder / "legacy" / name, avro(range(at, at + 9)))
        for at, name in enumerate(("a.avro", "b%{}.avro"))
    ]
    for path, content in files:
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(content)
    listed = [(str(path), len(content)) for path, content in files]
    return [
        StreamFiles("cmssw", "json", tuple(file for file in listed if "/cmssw/" in file[0])),
        StreamFiles("cmssw", "avro", tuple(file for file in listed if "/legacy/" in file[0])),
    ]


@pytest.fixture(scope="module")
def context(tmp_path_factory: pytest.TempPathFactory) -> TaskContext:
    folder = tmp_path_factory.mktemp("snapshots")
    opened(folder / "catalogue", FILES, DATASETS)
    opened_replicas(folder / "replicas", BLOCKS, REPLICAS)
    catalogue, replicas = str(folder / "catalogue"), str(folder / "replicas")
    return TaskContext(DAY, catalogue, replicas, Pseudonyms(b"k" * 32), Reader)


def rows_of(scanned: DataFrame) -> list[tuple[Any, ...]]:
    """All rows, added up over tasks; quarantined records without their place, which a
    feed may not know.
    """
    found = merge(_batches(scanned))
    accesses = [("access", *row.values()) for row in found.by_user.as_batch().to_pylist()]
    return sorted(
        [*accesses, *(row for row in found.side_rows() if row[0] in ("bin", "prefix"))], key=repr
    )


def _batches(scanned: DataFrame) -> list[pa.RecordBatch]:
    rows = [row.asDict() for row in scanned.collect()]
    return [record_batch({name: [row[name] for row in rows] for name, _ in COLUMNS}, COLUMNS)]


def quarantined(scanned: DataFrame) -> list[str]:
    import json

    details = [
        row["detail"] for row in scanned.where("kind = 'quarantine'").select("detail").collect()
    ]
    return sorted(
        repr((json.loads(detail)["reason"], json.loads(detail)["raw"])) for detail in details
    )


@pytest.fixture(scope="module")
def by_index(
    spark: SparkSession, streams: list[StreamFiles], context: TaskContext
) -> list[tuple[Any, ...]]:
    return rows_of(scan(spark, streams, context, "direct"))


def test_every_record_is_read_once_whatever_its_files_name(
    by_index: list[tuple[Any, ...]],
) -> None:
    counted = {(row[1], row[2]): row[3] for row in by_index if row[0] == "bin" and row[4] is None}
    lines = sum(
        sum(bool(line.strip(b"\xef\xbb\xbf \t\r")) for line in _open(content).split(b"\n"))
        for _, content in contents()
    )
    assert counted["cmssw", "read"] == lines + 20
    assert counted["cmssw", "malformed"] == 4 + 2
    matched = sum(row[6] for row in by_index if row[0] == "access")
    bins = sum(count for (_, name), count in counted.items() if name != "read")
    assert matched + bins == counted["cmssw", "read"]


def _open(content: bytes) -> bytes:
    return gzip.decompress(content) if content.startswith(b"\x1f\x8b") else content


def test_a_worker_opens_a_name_that_hadoop_does_not(
    spark: SparkSession, context: TaskContext, tmp_path: Path
) -> None:
    (tmp_path / COLON).write_bytes(record(0) + b"\n" + record(1))
    files = StreamFiles("cmssw", "json", ((f"file://{tmp_path}/{COLON}", 1),))
    assert (
        sum(
            row["nacc"] for row in scan(spark, [files], context).where("kind = 'access'").collect()
        )
        == 2
    )


def test_files_read_by_spark_give_the_same_rows(
    spark: SparkSession,
    streams: list[StreamFiles],
    context: TaskContext,
    by_index: list[tuple[Any, ...]],
) -> None:
    through_spark = scan(spark, streams, context, "spark")
    assert rows_of(through_spark) == by_index
    assert quarantined(through_spark) == quarantined(scan(spark, streams, context, "direct"))


def test_packed_files_are_passed_whole_unless_one_beside_them_is_plain_or_large(
    spark: SparkSession, streams: list[StreamFiles], context: TaskContext
) -> None:
    packed = [
        replace(
            stream, files=tuple(file for file in stream.files if not file[0].endswith(".json"))
        )
        for stream in streams
    ]
    assert (
        are_passed_whole(packed)
        and not are_passed_whole(streams)
        and not are_passed_whole(packed[1:])
    )
    assert not are_passed_whole(
        [StreamFiles("aaa", "enr", (("/a.gz", WHOLE_BYTES + 1), ("/b.gz", 1)))]
    )
    through_spark = scan(spark, packed, context, "spark")
    assert spark.conf.get("spark.sql.files.maxPartitionBytes") == str(
        SPARK_TASK_BYTES // GZIP_FACTOR
    )
    direct = scan(spark, packed, context, "direct")
    assert rows_of(through_spark) == rows_of(direct)
    assert quarantined(through_spark) == quarantined(direct)


def test_a_damaged_packed_file_is_named_by_both_feeds(
    spark: SparkSession, context: TaskContext, tmp_path: Path
) -> None:
    whole = gzip.compress(b"\n".join(record(number) for number in range(50)))
    (tmp_path / "cut.json.gz").write_bytes(whole[:-9])
    files = StreamFiles("cmssw", "json", ((f"{tmp_path}/cut.json.gz", len(whole) - 9),))
    for feed in ("direct", "spark"):
        with pytest.raises(Exception, match="damaged") as told:
            scan(spark, [files], context, feed).collect()
        error = unwrap_cause(told.value)
        assert isinstance(error, DataError) and "cut.json.gz" in str(error.where)


def hashed_files(spark: SparkSession, files: list[File]) -> DataFrame:
    """Rows of FILES as the shuffle join takes them."""
    rows = spark.createDataFrame(
        files, "logical_file_name string, block_id bigint, dataset_id bigint, file_id bigint"
    )
    return TableSource(rows, iter, pa.schema([]), 0).mapped(
        shuffle_join.hashed_files, shuffle_join.HASHED_FILES
    )


def hashed_blocks(spark: SparkSession) -> DataFrame:
    """Rows of BLOCKS as the shuffle join takes them."""
    rows = spark.createDataFrame(BLOCKS, "block_id bigint, block_name string")
    return TableSource(rows, iter, pa.schema([]), 0).mapped(
        shuffle_join.hashed_blocks, shuffle_join.HASHED_BLOCKS
    )


def signed_hash(name: str | None) -> int | None:
    if name is None:
        return None
    found = name_hash(name.encode())
    return found - 2**64 if found >= 2**63 else found


@pytest.mark.parametrize("feed", ["direct", "spark"])
def test_the_shuffle_join_gives_the_same_rows(
    spark: SparkSession,
    streams: list[StreamFiles],
    context: TaskContext,
    by_index: list[tuple[Any, ...]],
    feed: str,
) -> None:
    hashed = scan(spark, streams, TaskContext(DAY, None, None, context.pseudonyms, Reader), feed)
    attached = shuffle_join.attach(
        hashed,
        hashed_files(spark, FILES),
        spark.createDataFrame(DATASETS, "dataset_id bigint, dataset_name string"),
        hashed_blocks(spark),
        spark.createDataFrame(
            [(signed_hash(name), site) for name, site in REPLICAS], shuffle_join.DISK_REPLICAS
        ),
    )
    assert rows_of(attached) == by_index


def test_each_file_is_in_one_task_and_the_largest_come_first() -> None:
    files = [
        StreamFiles("aaa", "enr", tuple((f"a{n}", n * 10) for n in range(20))),
        StreamFiles("crab", "avro", (("c.gz", 500), ("d", 0))),
    ]
    for cores in (1, 3, 64):
        tasks = pack_tasks(files, cores, TASK_BYTES)
        read = [(task.stream, path) for task in tasks for path in task.paths]
        assert sorted(read) == sorted((one.stream, path) for one in files for path, _ in one.files)
        assert all(task.format == {"aaa": "enr", "crab": "avro"}[task.stream] for task in tasks)
        assert len(tasks) >= min(cores, 20)
    assert tasks[0].paths == ("c.gz",)
    assert len(pack_tasks(files, 1, task_bytes=1)) == 22


def test_no_files_make_no_tasks() -> None:
    assert pack_tasks([], 4, TASK_BYTES) == []
    assert pack_tasks([StreamFiles("aaa", "enr", ())], 4, TASK_BYTES) == []
    assert [
        task.paths
        for task in pack_tasks([StreamFiles("aaa", "enr", (("empty", 0),))], 4, TASK_BYTES)
    ] == [("empty",)]
