"""The compiled reader of plain CSV gives what the other ways give, or leaves the text to them."""

from __future__ import annotations

import io
from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cmsspark.base.errors import DataError
from cmsspark.base.schemas import Column, Table
from cmsspark.sources.formats import sqoop_csv
from cmsspark.sources.formats.plain_csv import split_columns
from cmsspark.sources.formats.sqoop_csv import read_table

TABLE = Table(
    "T",
    "",
    tuple(Column(name, kind) for name, kind in (("a", "long"), ("b", "string"), ("c", "long"))),
)
WANTED = [(1, True), (2, False)]


def read(text: bytes, columns: Sequence[str]) -> list[dict[str, Any]] | str:
    try:
        tables = list(read_table(io.BytesIO(text), TABLE, columns, "f"))
    except DataError as error:
        return str(error)
    return [row for table in tables for row in table.to_pylist()]


_FIELDS = st.sampled_from(
    [
        b"1",
        b"0",
        b"007",
        b"-5",
        b"+5",
        b" 5",
        b"1.0",
        b"1.5",
        b"1e3",
        b"",
        b"null",
        b"NULL",
        b"nul",
        b"/store/a",
        b"text",
        b"9223372036854775807",
        b"9223372036854775808",
        b"999999999999999999",
        b"1000000000000000000",
        b'"q"',
        b'"q,"',
        b'"',
        b"\\,",
        b"\\\\",
        b"\\n",
        b"\r",
        b"\0",
        b"\xc3\xa9",
        b"\xff",
        b"\xef\xbb\xbf",
        b"x" * 300,
    ]
)
_PLAIN = st.sampled_from([b"1", b"22", b"null", b"/store/a", b"", b"\xc3\xa9"])
_LINES = st.lists(st.one_of(_PLAIN, _FIELDS), min_size=1, max_size=5).map(b",".join)
_GOOD = st.tuples(
    st.sampled_from([b"1", b"null"]), _FIELDS, st.sampled_from([b"7", b"null", b"12"])
).map(b",".join)
_ENDS = st.sampled_from([b"\n", b"\r\n", b"\n\n"])


@settings(deadline=None, max_examples=600)
@given(
    st.lists(st.tuples(st.one_of(_GOOD, _GOOD, _LINES), _ENDS), max_size=8),
    st.booleans(),
    st.sampled_from([["b", "c"], ["c", "b"], ["a", "b", "c"], ["c"], ["b"]]),
)
@example([(b"1,x,2", b"\n"), (b"1,\xff,2", b"\n")], True, ["b", "c"])
@example([(b"1,x,2,4", b"\n"), (b"1,x,2", b"\n")], True, ["b", "c"])
def test_with_compiled_code_and_without_it_a_dump_reads_the_same(
    lines: list[tuple[bytes, bytes]], is_closed: bool, columns: list[str]
) -> None:
    text = b"".join(line + end for line, end in lines)
    text = text if is_closed else text.rstrip(b"\r\n")
    found = read(text, columns)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqoop_csv, "_plain_csv", None)
        assert found == read(text, columns)


@pytest.mark.parametrize(
    "bad", [b"1,x", b"1,x,2,3", b'1,"x",2', b"1,x\\,y,2", b"1,x,2\r", b"1,x,y", b"1,\0,2", b"1,x,"]
)
def test_what_is_not_plain_is_refused_wherever_it_stands(bad: bytes) -> None:
    for place in range(4):
        lines = [b"1,x,2"] * 3
        lines.insert(place, bad)
        assert split_columns(b"\n".join(lines) + b"\n", 3, WANTED) is None


def test_refusal_in_a_later_piece_repeats_no_row(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sqoop_csv, "_PLAIN_BLOCK", 1 << 16)
    monkeypatch.setattr(sqoop_csv, "SAMPLE", 1 << 10)
    lines = [b"%d,/store/%d,%d" % (number, number, number) for number in range(30_000)]
    for quoted in (100, 20_000, 29_999):
        lines[quoted] = b'%d,"/store/%d",%d' % (quoted, quoted, quoted)
    rows = read(b"\n".join(lines) + b"\n", ["a", "b", "c"])
    assert rows == [
        {"a": number, "b": f"/store/{number}", "c": number} for number in range(30_000)
    ]


def test_columns_come_as_arrow_has_them() -> None:
    rows, (texts, numbers) = split_columns(b"1,x,2\n\n3,null,null\n4,,18\n", 3, WANTED)
    assert rows == 3
    assert (texts[0], texts[1], np.frombuffer(texts[2], np.int32).tolist(), texts[3]) == (
        b"\1\0\1",
        1,
        [0, 1, 1, 1],
        b"x",
    )
    assert (numbers[0], numbers[1], np.frombuffer(numbers[2], np.int64).tolist()) == (
        b"\1\0\1",
        1,
        [2, 0, 18],
    )


DOUBLES = Table("D", "", (Column("a", "long"), Column("b", "double")))
_DOUBLES = st.one_of(
    st.floats(min_value=0, allow_nan=False, allow_infinity=False).map(repr),
    st.integers(min_value=0, max_value=2**70).map(str),
    st.decimals(min_value=0, max_value=10**9, places=3).map(str),
    st.from_regex(r"[0-9]{0,17}\.?[0-9]{0,3}([eE][-+]?[0-9]{0,3})?", fullmatch=True),
    st.sampled_from(
        [
            "null",
            "",
            "-1",
            "-0.0",
            "+1",
            " 1",
            "1.",
            ".5",
            "1e",
            "1e+",
            "1E22",
            "1E23",
            "1e-22",
            "nan",
            "inf",
        ]
    ),
)


@settings(deadline=None, max_examples=600)
@given(st.lists(_DOUBLES, min_size=1, max_size=4))
@example(["1.69519079E9", "999999999999999", "9999999999999990", "0.1", "null"])
def test_with_compiled_code_and_without_it_a_double_is_the_same(numbers: list[str]) -> None:
    text = "".join(f"1,{number}\n" for number in numbers).encode()

    def rows() -> list[Any] | str:
        try:
            return [
                row
                for piece in read_table(io.BytesIO(text), DOUBLES, ["b"], "f")
                for row in piece["b"].to_pylist()
            ]
        except DataError as error:
            return str(error)

    found = rows()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sqoop_csv, "_plain_csv", None)
        assert found == rows()


@pytest.mark.parametrize(
    ("text", "number"),
    [(b"1", 1.0), (b"1.69519079E9", 1695190790.0), (b"0.1", 0.1), (b"5e-1", 0.5)],
)
def test_plain_doubles_are_read_by_compiled_code(text: bytes, number: float) -> None:
    rows, ((flags, nulls, numbers),) = split_columns(text + b"\nnull\n", 1, [(0, 2)])
    assert (rows, flags, nulls, np.frombuffer(numbers, np.float64).tolist()) == (
        2,
        b"\1\0",
        1,
        [number, 0.0],
    )


@pytest.mark.parametrize(
    "text", [b"-1", b"1.", b".5", b"1e", b"1e23", b"1e100", b"1234567890123456", b"nan", b"x"]
)
def test_doubles_that_need_care_are_left_to_other_ways(text: bytes) -> None:
    assert split_columns(text + b"\n1\n", 1, [(0, 2)]) is None


@pytest.mark.parametrize("text", [b"", b"1,x,2", b"\n" * 3])
def test_texts_without_a_whole_line(text: bytes) -> None:
    found = split_columns(text, 3, WANTED)
    assert found is None if not text.endswith(b"\n") else found[0] == 0
