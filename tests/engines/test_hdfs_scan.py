"""Logs that the workers open with a client of HDFS: the rows are those of any other
feed, however files are divided.
"""

from __future__ import annotations

import gzip
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, cast

import pytest
from msgspec.structs import replace

from cmsspark.base.access import AccessBatch
from cmsspark.base.errors import DataError, SettingsError
from cmsspark.engines import scan as scan_module
from cmsspark.engines.scan import divide, scan, scan_hdfs
from cmsspark.engines.session import unwrap_cause
from cmsspark.engines.tasks import StreamFiles, TaskContext
from cmsspark.filesystems.hdfs import CLIENT_KEY, HdfsClient, LineRange, choose_client, open_range
from cmsspark.sources.formats.lines import unpacker
from cmsspark.sources.reader import Reader
from tests.engines.test_scan import DAY, context, quarantined, record, rows_of, streams

if TYPE_CHECKING:
    from pyspark.sql import DataFrame, SparkSession

__all__ = ["context", "streams"]


@dataclass
class DiskFile:
    """A file on a disk as the client of HDFS gives it."""

    path: str

    def __len__(self) -> int:
        return Path(self.path).stat().st_size

    def read_range(self, offset: int, count: int) -> bytes:
        return Path(self.path).read_bytes()[offset : offset + count]

    def read_range_stream(self, offset: int, count: int) -> Iterator[bytes]:
        content = Path(self.path).read_bytes()[offset : offset + count]
        for at in range(0, len(content), 100):
            yield content[at : at + 100]


@dataclass(frozen=True)
class Disk:
    """Opens files of a disk in place of HDFS."""

    def open(self, location: str) -> DiskFile:
        return DiskFile(location.removeprefix("file:"))


def through_client(
    spark: SparkSession, files: list[StreamFiles], context: TaskContext, task_bytes: int
) -> DataFrame:
    parts = [scan_hdfs(spark, one, context, Disk(), task_bytes, context.schema()) for one in files]
    return parts[0] if len(parts) == 1 else parts[0].unionByName(parts[1])


@pytest.mark.parametrize("task_bytes", [10**9, 150])
def test_files_that_the_client_reads_whole_and_divided_give_the_same_rows(
    spark: SparkSession, streams: list[StreamFiles], context: TaskContext, task_bytes: int
) -> None:
    direct = scan(spark, streams, context, "direct")
    read = through_client(spark, streams, context, task_bytes)
    assert rows_of(read) == rows_of(direct)
    assert quarantined(read) == quarantined(direct)
    assert bool(divide(streams[0], task_bytes)) == (task_bytes == 150)


def test_a_plain_file_larger_than_a_task_is_divided_evenly_and_no_other() -> None:
    files = (
        ("hdfs://n/a", 1_000),
        ("hdfs://n/b.gz", 5_000),
        ("hdfs://n/c", 1_001),
        ("hdfs://n/d", 2_999),
    )
    found = divide(StreamFiles("aaa", "enr", files), 1_000)
    assert [(one.path[-1], one.start, one.end) for one in found] == [
        ("c", 0, 500),
        ("c", 500, None),
        ("d", 0, 999),
        ("d", 999, 1999),
        ("d", 1999, None),
    ]
    assert divide(StreamFiles("crab", "avro", files), 1_000) == []


def test_a_byte_order_mark_is_skipped_at_the_start_of_a_file_only_wherever_it_is_divided(
    tmp_path: Path,
) -> None:
    mark, path = b"\xef\xbb\xbf", tmp_path / "part-0"
    path.write_bytes(
        b"\n".join(
            (mark + record(0), mark + record(1), record(2), mark + record(3), mark, record(4))
        )
    )

    def counted(*ranges: LineRange) -> tuple[int, list[bytes], int]:
        reader = Reader("cmssw", "json", DAY)
        batches: list[AccessBatch] = []
        for one in ranges:
            with open_range(Disk(), one, unpacker) as opened:
                batches += reader.file(cast("IO[bytes]", opened), one.path)
        malformed = [record.raw for batch in batches for record in batch.malformed]
        return (
            sum(batch.read for batch in batches),
            malformed,
            sum(batch.content_bytes for batch in batches),
        )

    whole = counted(LineRange(str(path)))
    assert whole[:2] == (6, [mark + record(1), mark + record(3), mark])
    for cut in range(1, path.stat().st_size + 1):
        assert counted(LineRange(str(path), 0, cut), LineRange(str(path), cut)) == whole, cut


def test_a_damaged_file_is_named_and_an_accepted_one_is_read_up_to_the_damage(
    spark: SparkSession, context: TaskContext, tmp_path: Path
) -> None:
    whole = gzip.compress(b"\n".join(record(number) for number in range(50)))
    cut = tmp_path / "cut 1.json.gz"
    cut.write_bytes(whole[:-9])
    files = StreamFiles("cmssw", "json", ((str(cut), len(whole) - 9),))
    with pytest.raises(Exception, match="damaged") as raised:
        through_client(spark, [files], context, 10**9).collect()
    error = unwrap_cause(raised.value)
    assert isinstance(error, DataError) and "cut 1.json.gz" in str(error.where)
    accepted = replace(context, accepted=frozenset({f"file:{cut}"}))
    rows = through_client(spark, [files], accepted, 10**9).where("kind = 'access'").collect()
    assert sum(row["nacc"] for row in rows) > 0


def test_workers_open_files_of_hdfs_unless_spark_or_its_jvm_shall(
    spark: SparkSession, context: TaskContext, monkeypatch: pytest.MonkeyPatch
) -> None:
    used: list[str] = []

    def noted(kind: str) -> Any:
        def made(spark: SparkSession, *arguments: Any, **options: Any) -> DataFrame:
            used.append(kind)
            return spark.createDataFrame([], context.schema())

        return made

    monkeypatch.setattr(scan_module, "scan_hdfs", noted("worker"))
    monkeypatch.setattr(scan_module, "_through_spark", noted("spark"))
    files = [StreamFiles("cmssw", "json", (("hdfs://n/a.json", 1),))]
    for feed in ("auto", "direct", "spark"):
        scan(spark, files, context, feed)
    scan(spark, [StreamFiles("cmssw", "json", (("s3a://b/a.json", 1),))], context)
    monkeypatch.setattr(scan_module, "choose_client", lambda spark: None)
    scan(spark, files, context)
    assert used == ["worker", "worker", "spark", "spark", "spark"]


def test_the_client_gets_the_options_that_are_set_and_the_option_of_spark_turns_it_off(
    spark: SparkSession,
) -> None:
    conf = spark.sparkContext._jsc.hadoopConfiguration()  # type: ignore[union-attr]
    conf.set("dfs.nameservices", "cms")
    try:
        found = choose_client(spark)
        assert isinstance(found, HdfsClient) and dict(found.options)["dfs.nameservices"] == "cms"
        assert len(found.options) < 20, "Hadoop's defaults stay where they are"
        spark.conf.set(CLIENT_KEY, "java")
        assert choose_client(spark) is None
        spark.conf.set(CLIENT_KEY, "rust")
        with pytest.raises(SettingsError, match=CLIENT_KEY):
            choose_client(spark)
    finally:
        conf.unset("dfs.nameservices")
        spark.conf.unset(CLIENT_KEY)
