"""Dump tables in Spark: the same rows as in plain Python, whichever way the bytes come."""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cmsspark.runners.dump_tables import dump_table, pack_files
from cmsspark.sources import dbs
from cmsspark.sources.dumps import Dump
from cmsspark.sources.listing import InputFile

TEXTS = [
    b'"a,b"', b"a\\,b", b'"a\\"b"', b'"a\\\\"', b"a\\\\b", b'"a\nb"', b'"a\r\nb"', b'a"b', b'"a""b"', b'""', b"",
    b"null", b'"null"', b"x\xff", b"a b", b'"\n\n"', "ä\N{SNOWMAN}".encode(), b"nullable", b" x ",
]  # fmt: skip
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
        "part-1.gz": gzip.compress(b"".join(rows[:5])) + gzip.compress(b"".join(rows[5:]) + rows[0]),
        "part-2": b"",
        "part-3.gz": gzip.compress(b""),
        "part-4": rows[0].removesuffix(b"\n"),
    }
    for name, content in contents.items():
        (folder / name).write_bytes(content)
    return dump_of([folder / name for name in contents], "ACQUISITION_ERAS")


def in_python(dump: Dump, table: str, columns: list[str]) -> list[dict[str, Any]]:
    return [
        row
        for file in dump.tables[table]
        for piece in dbs.read_table_arrow(file.path, table, columns)
        for row in piece.to_pylist()
    ]


def sortable(rows: list[dict[str, Any]]) -> list[str]:
    return sorted(repr(sorted(row.items())) for row in rows)


@pytest.mark.parametrize("feed", ["direct", "spark"])
def test_spark_reads_the_same_rows_as_plain_python(spark: Any, eras: Dump, feed: str) -> None:
    expected = in_python(eras, "ACQUISITION_ERAS", COLUMNS)
    assert len(expected) == 2 * len(TEXTS) + 3
    rows = dump_table(spark, eras, "ACQUISITION_ERAS", COLUMNS, feed)
    assert rows.schema.simpleString() == (
        "struct<acquisition_era_name:string,acquisition_era_id:bigint,description:string>"
    )
    assert sortable([row.asDict() for row in rows.collect()]) == sortable(expected)


@pytest.mark.parametrize("feed", ["direct", "spark"])
def test_what_python_refuses_fails_in_spark_and_names_the_file(spark: Any, tmp_path: Path, feed: str) -> None:
    path = tmp_path / "part-0"
    path.write_bytes(b"1,RAW,null,me\n2,RECO,null\n")
    rows = dump_table(spark, dump_of([path], "DATA_TIERS"), "DATA_TIERS", ["data_tier_name"], feed)
    with pytest.raises(Exception, match=r"(?s)DataError.*4 columns of DATA_TIERS are wanted.*part-0, row 2"):
        rows.collect()


def test_a_table_of_empty_files_has_no_rows(spark: Any, tmp_path: Path) -> None:
    (tmp_path / "part-0").touch()
    assert dump_table(spark, dump_of([tmp_path / "part-0"], "DATA_TIERS"), "DATA_TIERS", ["data_tier_id"]).count() == 0


def test_part_files_are_packed_into_tasks_of_even_size_each_once() -> None:
    files = [InputFile(f"p{number}", 10, 0) for number in range(100)] + [InputFile("big", 500, 0)]
    packed = pack_files(files, cores=4, task_bytes=100)
    assert sorted(path for paths in packed for path in paths) == sorted(file.path for file in files)
    assert all(len(paths) <= 10 for paths in packed)
    assert ("big",) in packed
    assert len(pack_files(files[:4], cores=4)) == 4
    assert pack_files([], cores=4) == []
