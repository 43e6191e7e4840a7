"""The dumps' CSV (rule 19): both readers, what they read and what they refuse."""

from __future__ import annotations

import gzip
import io
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import pyarrow as pa
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.base.errors import DataError
from cmsspark.base.schemas import Column, Table, input_table
from cmsspark.sources.formats import sqoop_csv
from cmsspark.sources.formats.sqoop_csv import read_table, records, value
from cmsspark.sources.registry import DUMPS

AUDIT = b"1.5e9,me,null,null"
DATASET = b"7,/a/b/RAW,1,1,1,1,1,1,1,1,null,null," + AUDIT
SMALL = Table(
    "small", "", (Column("id", "long"), Column("text", "string"), Column("size", "double"))
)


def read(
    content: bytes, table: Table = SMALL, columns: Sequence[str] | None = None
) -> list[dict[str, Any]]:
    pieces = list(
        sqoop_csv.read_table(io.BytesIO(content), table, columns or table.names, "part-0")
    )
    return pa.concat_tables(pieces).to_pylist() if pieces else []


def read_slowly(content: bytes, table: Table = SMALL) -> list[dict[str, Any]]:
    found = records(sqoop_csv._split(content), "part-0")
    return [
        {
            column.name: value(field, column, "part-0", row)
            for column, field in zip(table.columns, fields, strict=False)
        }
        for row, fields in enumerate(found, 1)
    ]


NASTY = {
    b'1,"a,b",2\n': "a,b",
    b"1,a\\,b,2\n": "a,b",
    b'1,"a\\"b",2\n': 'a"b',
    b'1,"a\\\\",2\n': "a\\",
    b'1,"\\\\\\"",2\n': '\\"',
    b"1,a\\\\b,2\n": "a\\b",
    b'1,"a\nb",2\n': "a\nb",
    b"1,a\\\nb,2\n": "a\nb",
    b'1,"a\r\nb",2\n': "a\r\nb",
    b"1,a\rb,2\n": "a\rb",
    b'1,a"b,2\n': 'a"b',
    b'1,"a""b",2\n': 'a"b',
    b'1,"",2\n': "",
    b"1,,2\n": "",
    b"1,null,2\n": None,
    b'1,"null",2\n': None,
    b"1,nullable,2\n": "nullable",
    b"1,NULL,2\n": "NULL",
    b'"1","x","2"\n': "x",
    b"1,x,2.0": "x",
    b"1,x,2\r\n": "x",
    b"1,x,2,new,columns\n": "x",
    b"\xef\xbb\xbf1,x,2\n": "x",
    b"\n\n1,x,2\n\n": "x",
    b"1.0,x,2\n": "x",
    b"+1,x,2e0\n": "x",
    b"1,\xff,2\n": "\N{REPLACEMENT CHARACTER}",
    b"1,\x00,2\n": "\x00",
    "1,ä%:*{<script>=cmd(),2\n".encode(): "ä%:*{<script>=cmd()",
}


@pytest.mark.parametrize("content", NASTY)
def test_quotes_escapes_and_null_are_read_as_written(content: bytes) -> None:
    expected = [{"id": 1, "text": NASTY[content], "size": 2.0}]
    assert read(content) == expected
    # The same beside rows that are plain, and through gzip.
    before = b"5,p,6,more,columns\n" if b"new,columns" in content else b"5,p,6\n"
    assert read(before + content.removeprefix(b"\xef\xbb\xbf"))[1:] == expected
    assert read(gzip.compress(content[:3]) + gzip.compress(content[3:])) == expected


@pytest.mark.parametrize("content", NASTY)
def test_the_slow_reader_reads_the_same(content: bytes) -> None:
    assert read_slowly(content) == read(content)


@given(
    st.lists(
        st.tuples(st.integers(-(2**63), 2**63 - 1), st.text('ab,"\\\n\r \t', max_size=6)),
        min_size=1,
        max_size=5,
    )
)
@settings(max_examples=300, deadline=None)
def test_any_text_comes_back_whole_when_it_is_enclosed_or_escaped(
    rows: list[tuple[int, str]],
) -> None:
    def enclosed(text: str) -> str:
        return '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'

    def escaped(text: str) -> str:
        return "".join("\\" + letter if letter in ',"\\\n\r' else letter for letter in text)

    expected = [{"id": number, "text": text, "size": None} for number, text in rows]
    for write in (enclosed, escaped):
        content = "".join(f"{number},{write(text)},null\n" for number, text in rows).encode()
        assert read(content) == expected
        assert read_slowly(content) == expected


def test_a_record_longer_than_what_is_read_at_once_is_whole() -> None:
    long = "x" * (9 * 1024 * 1024) + '"'
    content = b'1,"' + long.replace('"', '\\"').encode() + b'",2\n3,y,null\n'
    assert [len(row["text"]) for row in read(content)] == [len(long), 1]


def test_only_the_columns_asked_for_come_in_the_order_asked_for() -> None:
    rows = list(
        read_table(
            io.BytesIO(DATASET + b"\n"), input_table("dbs/DATASETS"), ["dataset", "dataset_id"]
        )
    )
    assert rows[0].schema.names == ["dataset", "dataset_id"]
    assert rows[0].to_pylist() == [{"dataset": "/a/b/RAW", "dataset_id": 7}]


def test_files_of_nothing_give_nothing() -> None:
    for content in (b"", gzip.compress(b""), b"\n\n"):
        assert read(content) == []


def test_duplicate_rows_and_rows_of_nulls_stay() -> None:
    content = b"1,a,2\n1,a,2\nnull,null,null\n"
    assert read(content) == [{"id": 1, "text": "a", "size": 2.0}] * 2 + [
        {"id": None, "text": None, "size": None}
    ]


@pytest.mark.parametrize(
    ("content", "words"),
    [
        (b"1,a\n", ["3 columns", "part-0, row 1", "2 columns"]),
        (b"1,a,2\n1,a\n", ["3 columns", "row 2"]),
        (b"1,a,2\n" * 20_000 + b"1,a\n", ["3 columns", "row 20001"]),
        (
            b"1,a,2\n1,a,b,2\n1,a,2\n",
            ["differ in width", "part-0, row 2", "4 columns, where others have 3"],
        ),
        (
            b"1,a,2,x\n1,a,2\n1,a,2,x\n",
            ["differ in width", "part-0, row 2", "3 columns, where others have 4"],
        ),
        (b"1,a,2\n" * 20_000 + b"1,a,b,2\n", ["differ in width", "row 20001"]),
        (b'1,"a",2\n' * 20_000 + b'1,"a",b,2\n', ["differ in width", "row 20001"]),
        (b"1,a,2\r1,b,2\r1,c,2\r", ["end in a newline", "row 1", "carriage returns"]),
        (b"1,a,2\r" * 100_000, ["end in a newline", "row 1", "carriage returns"]),
        (b"id,text,size\n1,a,2\n", ["header"]),
        (b'"ID","TEXT","SIZE"\n1,a,2\n', ["header"]),
        (b"x,a,2\n", ["column id", "row 1", "a text of 1 bytes"]),
        (b"1.5,a,2\n", ["column id", "'1.5'"]),
        (b"9223372036854775808,a,2\n", ["column id"]),
        (b"1,a,nan\n", ["column size"]),
        (b"1,a,2\n1,a,inf\n", ["column size", "row 2"]),
        (b"1,a,2\n" * 20_000 + b"1,a,1e999\n", ["column size", "row 20001"]),
        (b'1,a,2\n1,"a,2\n1,a,2\n', ["not closed", "row 2"]),
        (b'1,a,2\n1,a,"2\n1,a,2\n', ["not closed", "row 2"]),
        (b"1 2,a,2\n", ["column id"]),
    ],
)
def test_what_cannot_be_read_rightly_is_refused_with_file_row_and_reason(
    content: bytes, words: list[str]
) -> None:
    with pytest.raises(DataError) as raised:
        read(content)
    for word in [*words, "part-0"]:
        assert word in raised.value.text()


def test_a_quote_left_open_in_the_last_text_column_swallows_no_rows() -> None:
    table = Table("t", "", (Column("id", "long"), Column("text", "string")))
    with pytest.raises(DataError, match="not closed"):
        read(b'1,a\n2,"b\n3,c\n4,d\n', table)


def test_flipped_bytes_in_a_gzip_are_named() -> None:
    whole = bytearray(
        gzip.compress(
            b"".join(b"%d,%d,2\n" % (number, number * 7919) for number in range(100_000))
        )
    )
    for place in (40, len(whole) // 2, len(whole) - 6):
        damaged = bytearray(whole)
        damaged[place] ^= 0xFF
        with pytest.raises(DataError, match="part-0"):
            read(bytes(damaged))


@pytest.mark.parametrize("cut", [1, 5, 8, 9, 100])
def test_a_cut_gzip_is_named(cut: int) -> None:
    whole = gzip.compress(
        b"".join(b"%d,%d,2\n" % (number, number * 7919) for number in range(100_000))
    )
    with pytest.raises(DataError, match="part-0"):
        read(whole[:-cut])


def test_a_file_named_gz_that_is_none_is_refused(tmp_path: Path) -> None:
    path = tmp_path / "part-0.gz"
    path.write_bytes(DATASET)
    with pytest.raises(DataError, match="gzip"):
        list(read_table(str(path), input_table("dbs/DATASETS"), ["dataset"]))


def test_columns_in_another_order_are_refused_even_where_their_types_agree() -> None:
    moved = b"7,1,/a/b/RAW,1,1,1,1,1,1,1,null,null," + AUDIT
    swapped = b"7,prep,1,1,1,1,1,1,1,1,null,/a/b/RAW," + AUDIT
    flags = b"7,/a/b/RAW,25,1,1,1,1,1,1,1,null,null," + AUDIT
    for content in (moved, swapped, flags):
        with pytest.raises(DataError):
            read(content + b"\n", input_table("dbs/DATASETS"), ["dataset_id"])


def test_no_value_that_may_name_a_person_is_shown() -> None:
    with pytest.raises(DataError) as raised:
        read(b"/DC=ch/CN=jdoe,a,2\n")
    assert "jdoe" not in raised.value.text()


def test_every_known_table_has_its_schema() -> None:
    for name in DUMPS["dbs"].tables:
        table = input_table(f"dbs/{name}")
        assert table.name == name
        assert {column.type for column in table.columns} <= {"string", "long", "double"}
    assert len(input_table("phedex/block_replicas").columns) == 28
    assert [
        len(input_table(f"dbs/{name}").columns) for name in ("DATASETS", "BLOCKS", "FILES")
    ] == [16, 11, 17]
