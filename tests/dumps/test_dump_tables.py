"""Dump tables in Spark: the same rows as in plain Python, whichever way the bytes come."""

from __future__ import annotations

import bz2
import gzip
import lzma
from dataclasses import dataclass
from datetime import date
from pathlib import Path
from typing import Any

import cramjam
import pytest

from cmsspark.base.errors import CmssparkError, DataError
from cmsspark.base.schemas import input_table
from cmsspark.dumps.spark_transport import (
    open_lines,
    pack_files,
    pack_ranges,
    range_name,
    table_source,
)
from cmsspark.engines.scan import split_file
from cmsspark.filesystems.hdfs import LineRange
from cmsspark.sources.dumps import Dump
from cmsspark.sources.formats.sqoop_csv import read_table
from cmsspark.sources.layout import InputFile
from tests.engines.test_hdfs_scan import Disk, DiskFile

TEXTS = [
    b'"a,b"',
    b"a\\,b",
    b'"a\\"b"',
    b'"a\\\\"',
    b"a\\\\b",
    b'"a\nb"',
    b'"a\r\nb"',
    b'a"b',
    b'"a""b"',
    b'""',
    b"",
    b"null",
    b'"null"',
    b"x\xff",
    b"a b",
    b'"\n\n"',
    "ä\N{SNOWMAN}".encode(),
    b"nullable",
    b" x ",
]
COLUMNS = ["acquisition_era_name", "acquisition_era_id", "description"]


def dump_of(paths: list[Path], table: str) -> Dump:
    files = tuple(InputFile(str(path), path.stat().st_size, 0) for path in paths)
    return Dump("dbs", date(2026, 1, 16), str(paths[0].parent), {table: files}, 1)


@pytest.fixture
def eras(tmp_path: Path) -> Dump:
    rows = [b"%d,%s,1,2.0,null,me,%s\n" % (n, text, text) for n, text in enumerate(TEXTS)]
    nulls = b"null,null,null,null,null,null,null\n"
    folder = tmp_path / "odd {name}*%20:x"
    folder.mkdir()
    contents = {
        "part 0": b"".join(rows) + nulls,
        "part-1.gz": gzip.compress(b"".join(rows[:5]))
        + gzip.compress(b"".join(rows[5:]) + rows[0]),
        "part-2": b"",
        "part-3.gz": gzip.compress(b""),
        "part-4": rows[0].removesuffix(b"\n"),
        "part-5.bz2": bz2.compress(rows[0]) + bz2.compress(b"") + bz2.compress(rows[1]),
        "part-6.xz": lzma.compress(rows[0]) + b"\0" * 8 + lzma.compress(rows[1]),
        "part-7.lz4": bytes(cramjam.lz4.compress(rows[0])),
        "part-8.sz": bytes(cramjam.snappy.compress(rows[0])),
        "part-9.gz": gzip.compress(rows[0]) + b"\0" * 512,
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return dump_of([folder / name for name in contents], "ACQUISITION_ERAS")


def in_python(dump: Dump, table: str, columns: list[str]) -> list[dict[str, Any]]:
    return [
        row
        for file in dump.tables[table]
        for piece in read_table(file.path, input_table(f"dbs/{table}"), columns)
        for row in piece.to_pylist()
    ]


def sortable(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


def through(feed: str) -> tuple[str, Disk | None]:
    return ("auto", Disk()) if feed == "client of HDFS" else (feed, None)


@pytest.mark.parametrize("feed", ["direct", "spark", "client of HDFS"])
def test_spark_reads_the_same_rows_as_plain_python(spark: Any, eras: Dump, feed: str) -> None:
    expected = in_python(eras, "ACQUISITION_ERAS", COLUMNS)
    assert len(expected) == 2 * len(TEXTS) + 3 + 7
    rows = table_source(spark, eras, "ACQUISITION_ERAS", COLUMNS, *through(feed)).table()
    assert rows.schema.simpleString() == (
        "struct<acquisition_era_name:string,acquisition_era_id:bigint,description:string>"
    )
    assert sortable([row.asDict() for row in rows.collect()]) == sortable(expected)


@pytest.mark.parametrize("feed", ["direct", "spark", "client of HDFS"])
def test_what_python_refuses_fails_in_spark_and_names_the_file(
    spark: Any, tmp_path: Path, feed: str
) -> None:
    path = tmp_path / "part-0"
    path.write_bytes(b"1,RAW,null,me\n2,RECO,null\n")
    rows = table_source(
        spark, dump_of([path], "DATA_TIERS"), "DATA_TIERS", ["data_tier_name"], *through(feed)
    ).table()
    with pytest.raises(
        Exception, match=r"(?s)DataError.*DATA_TIERS has fewer than 4 columns.*part-0, row 2"
    ):
        rows.collect()


@pytest.mark.parametrize("feed", ["direct", "spark", "client of HDFS"])
def test_what_stands_behind_a_packed_stream_is_no_row_less_in_spark(
    spark: Any, tmp_path: Path, feed: str
) -> None:
    path = tmp_path / "part-0.xz"
    row = b"1,RAW,null,me\n"
    path.write_bytes(lzma.compress(row) + lzma.compress(row)[:-9])
    rows = table_source(
        spark, dump_of([path], "DATA_TIERS"), "DATA_TIERS", ["data_tier_name"], *through(feed)
    ).table()
    with pytest.raises(
        Exception, match=r"(?s)DataError.*an? xz file is damaged.*cut short at byte"
    ):
        rows.collect()


def test_a_table_of_empty_files_has_no_rows(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "part-0").touch()
    assert (
        table_source(
            spark, dump_of([tmp_path / "part-0"], "DATA_TIERS"), "DATA_TIERS", ["data_tier_id"]
        )
        .table()
        .count()
        == 0
    )


def test_part_files_are_packed_into_tasks_of_even_size_each_once() -> None:
    files = [InputFile(f"p{number}", 10, 0) for number in range(100)] + [InputFile("big", 500, 0)]
    packed = pack_files(files, cores=4, task_bytes=100)
    assert sorted(path for paths in packed for path in paths) == sorted(
        file.path for file in files
    )
    assert all(len(paths) <= 10 for paths in packed)
    assert ("big",) in packed
    assert len(pack_files(files[:4], cores=4)) == 4
    assert pack_files([], cores=4) == []


def test_a_large_plain_file_is_divided_and_small_files_share_a_task() -> None:
    files = [
        InputFile("hdfs://n/small", 10, 0),
        InputFile("hdfs://n/a", 250, 0),
        InputFile("hdfs://n/b.gz", 250, 0),
    ]
    packed = pack_ranges(files, cores=100, task_bytes=100, least_bytes=100)
    assert packed == [
        (LineRange("hdfs://n/b.gz"),),
        (LineRange("hdfs://n/a", 166),),
        (LineRange("hdfs://n/a", 0, 83),),
        (LineRange("hdfs://n/a", 83, 166), LineRange("hdfs://n/small")),
    ]
    assert pack_ranges([], cores=4) == []


@pytest.mark.parametrize("task_bytes", range(6, 300, 7))
def test_the_ranges_of_a_part_file_hold_each_row_once(tmp_path: Path, task_bytes: int) -> None:
    path = tmp_path / "part-0"
    path.write_bytes(
        b"".join(b"%d,TIER%s,null,me\n" % (number, b"x" * number) for number in range(12))
    )
    size = path.stat().st_size
    table, columns = input_table("dbs/DATA_TIERS"), ["data_tier_id"]
    ranges = split_file(str(path), size, task_bytes)
    assert len(ranges) == -(-size // task_bytes)
    rows = []
    for part in ranges:
        with open_lines(Disk(), part) as stream:
            rows += [
                row
                for piece in read_table(stream, table, columns, "part-0")
                for row in piece.to_pylist()
            ]
    assert rows == [{"data_tier_id": number} for number in range(12)]


def test_a_packed_part_without_the_name_of_one_is_in_its_first_range(tmp_path: Path) -> None:
    path = tmp_path / "part-0"
    path.write_bytes(gzip.compress(b"1,RAW,null,me\n"))
    contents = []
    for part in (
        LineRange(str(path), 0, 9),
        LineRange(str(path), 9, 20),
        LineRange(str(path), 20),
    ):
        with open_lines(Disk(), part) as stream:
            contents.append(stream.read())
    assert contents == [path.read_bytes(), b"", b""]


def test_a_part_file_divided_anywhere_gives_its_rows_or_an_error_where_a_value_has_a_newline(
    eras: Dump,
) -> None:
    path = eras.tables["ACQUISITION_ERAS"][0].path
    content = (
        Path(path).read_bytes() + b"7,a\\\nb,1,2.0,null,me,last\\\n1\\,2\n8,c,1,2.0,null,me,\n"
    )
    Path(path).write_bytes(content)
    whole = rows_of_parts([LineRange(path)], COLUMNS)
    assert [row["description"] for row in whole[-2:]] == ["last\n1,2", ""]
    errors = []
    for cut in range(1, len(content)):
        try:
            assert (
                rows_of_parts([LineRange(path, 0, cut), LineRange(path, cut)], COLUMNS) == whole
            ), cut
        except DataError:
            errors.append(cut)
    in_quotes = {
        cut for text in (b'"a\nb"', b'"a\r\nb"', b'"\n\n"') for cut in cuts_in(content, text)
    }
    assert errors and not in_quotes.isdisjoint(errors)
    assert len(errors) < len(content) / 3


def cuts_in(content: bytes, text: bytes) -> range:
    """The places within the first occurrence of a text."""
    first = content.index(text)
    return range(first + 1, first + len(text))


def rows_of_parts(
    parts: list[LineRange], columns: list[str], table: str = "ACQUISITION_ERAS"
) -> list[dict[str, Any]]:
    rows = []
    for part in parts:
        with open_lines(Disk(), part) as stream:
            pieces = read_table(stream, input_table(f"dbs/{table}"), columns, range_name(part))
            rows += [row for piece in pieces for row in piece.to_pylist()]
    return rows


def test_an_error_in_a_range_names_its_file_and_first_byte(tmp_path: Path) -> None:
    path = tmp_path / "part-0"
    path.write_bytes(b"1,RAW,null,me\n2,RECO,null,me\n3,AOD,null\n")
    with pytest.raises(DataError, match=r"part-0 from byte 10 on, row 2"):
        rows_of_parts([LineRange(str(path), 10)], ["data_tier_id"], "DATA_TIERS")


@dataclass(frozen=True)
class Failing:
    """Opens a file on a disk whose bytes from ``good`` on cannot be read."""

    good: int
    error: Exception

    def open(self, location: str) -> FailingFile:
        return FailingFile(location, self)


@dataclass
class FailingFile(DiskFile):
    how: Failing

    def read_range(self, offset: int, count: int) -> bytes:
        if offset + count > self.how.good:
            raise self.how.error
        return super().read_range(offset, count)


@pytest.mark.parametrize(
    ("error", "code"),
    [
        (FileNotFoundError("it is gone"), 66),
        (OSError("checksums didn't match"), 65),
        (RuntimeError("RPC listener disconnected"), 75),
        (OSError("AccessControlException: Permission denied"), 77),
    ],
)
@pytest.mark.parametrize("name", [b"RAW", b'"R\\"AW"'])
@pytest.mark.parametrize("good", [0, 10_000_000])
@pytest.mark.parametrize("start", [0, 500_000])
def test_an_error_of_hdfs_while_a_range_is_read_keeps_its_exit_code(
    tmp_path: Path, error: Exception, code: int, name: bytes, good: int, start: int
) -> None:
    path = tmp_path / "part-0"
    # More than is read ahead, so that the first read succeeds with ``good`` bytes.
    path.write_bytes(b"1,%s,null,me\n" % name * 1_200_000)
    part = LineRange(str(path), start)
    with pytest.raises(CmssparkError) as raised, open_lines(Failing(good, error), part) as stream:
        list(read_table(stream, input_table("dbs/DATA_TIERS"), ["data_tier_name"], "part-0"))
    assert raised.value.exit_code == code
    assert str(path) in str(raised.value)
