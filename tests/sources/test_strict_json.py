"""One line as one JSON object, by the letter."""

from __future__ import annotations

import json
import tracemalloc
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.sources.formats.strict_json import last, parse_object
from cmsspark.sources.values import (
    MAX_LONG,
    Malformed,
    Nested,
    Number,
    integer,
    long,
    long_text,
    text,
)

_JSON = st.recursive(
    st.none()
    | st.booleans()
    | st.integers()
    | st.floats(allow_nan=False, allow_infinity=False)
    | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=3), inner, max_size=3)
    ),
    max_leaves=12,
)


def plain(value: Any, depth: int) -> Any:
    """What ``json`` reads, in the form of ``parse_object``."""
    if isinstance(value, dict):
        return (
            Nested if depth > 2 else {key: [plain(one, depth + 1)] for key, one in value.items()}
        )
    if isinstance(value, list):
        return Nested
    if isinstance(value, int | float) and not isinstance(value, bool):
        return Number(json.dumps(value))
    return value


def described(value: Any) -> Any:
    if isinstance(value, Nested):
        return Nested
    if isinstance(value, dict):
        return {key: [described(one) for one in values] for key, values in value.items()}
    return value


@settings(deadline=None)
@given(
    st.dictionaries(st.text(max_size=4), _JSON, max_size=4),
    st.booleans(),
    st.sampled_from([None, 0, 1]),
)
def test_what_json_writes_is_read(
    record: dict[str, Any], ascii_only: bool, indent: int | None
) -> None:
    line = json.dumps(record, ensure_ascii=ascii_only, indent=indent).encode(
        "utf-8", "surrogatepass"
    )
    assert described(parse_object(line)) == plain(record, 1)


@settings(deadline=None, max_examples=400)
@given(st.text(alphabet='{}[]",:\\ \t\r01-.eEtrufalsn\x00\x1f', max_size=14))
def test_it_accepts_what_json_accepts_and_nothing_else(line: str) -> None:
    def no_constant(name: str) -> Any:
        raise ValueError(name)

    try:
        accepted = isinstance(json.loads(line, parse_constant=no_constant), dict)
    except ValueError:
        accepted = False
    try:
        parse_object(line.encode())
    except Malformed:
        assert not accepted
    else:
        assert accepted


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" ",
        b"null",
        b"[]",
        b'"x"',
        b"5",
        b"{",
        b"}",
        b"{}{}",
        b"{} x",
        b"{},",
        b"{]",
        b'{"a"}',
        b'{"a":}',
        b'{"a":1,}',
        b"{,}",
        b'{,"a":1}',
        b'{"a":1 "b":2}',
        b'{"a" 1}',
        b"{a:1}",
        b"{'a':1}",
        b'{"a":01}',
        b'{"a":+1}',
        b'{"a":.5}',
        b'{"a":1.}',
        b'{"a":1e}',
        b'{"a":-}',
        b'{"a":NaN}',
        b'{"a":Infinity}',
        b'{"a":True}',
        b'{"a":nul}',
        b'{"a":"\x00"}',
        b'{"a":"\t"}',
        b'{"a":"\\x"}',
        b'{"a":"\\u12"}',
        b'{"a":"',
        b'{"a":[1,]}',
        b'{"a":[,1]}',
        b'{"a":[1 2]}',
        b'{"a":[1}',
        b'{"a":{"b":1}',
        b'{"a":1}}',
        b"\xef\xbb\xbf{}",
        b'{"a":1}\x00',
        b"\x0b{}",
        b'{"a":1,,"b":2}',
        b'{"a"::1}',
        b"{}\xa0",
        b"// x\n{}",
        b'{"a":1;}',
        b"{1:2}",
        b'{"a":"b":1}',
        b'{"a":1:2}',
        b'{"a":tru e}',
        b'{"a":--1}',
        b'{"a":0x1}',
    ],
)
def test_what_is_no_single_object_is_malformed(line: bytes) -> None:
    with pytest.raises(Malformed):
        parse_object(line)


def test_depth_does_not_matter() -> None:
    deep = 50_000
    found = parse_object(
        b'{"a":'
        + b"[" * deep
        + b"]" * deep
        + b',"b":'
        + b'{"x":' * deep
        + b"1"
        + b"}" * deep
        + b"}"
    )
    assert isinstance(found["a"][0], Nested)
    assert isinstance(found["b"][0]["x"][0], Nested)
    with pytest.raises(Malformed):
        parse_object(b'{"a":' + b"[" * deep + b"]" * (deep - 1) + b"}")


def test_a_repeated_key_keeps_all_its_values() -> None:
    found = parse_object(b'{"a":1,"\\u0061":"x","a":null,"b":{"c":1,"c":2}}')
    assert found == {"a": ["1", "x", None], "b": [{"c": ["1", "2"]}]}
    assert last(found, "a", lambda value, where: value, "") is None
    assert last(found, "z", text, "") is None
    with pytest.raises(Malformed, match=r"data\.a: expected text, found number"):
        last(found, "a", text, "data.")


def test_text_that_is_no_unicode_is_malformed_only_where_it_is_needed() -> None:
    found = parse_object(
        b'{"a":"\xff","b":"\\ud800","c":"\\ud83d\\ude00","d":"\xed\xa0\x80","e":"\\udc00\\ud800"}'
    )
    assert text(found["c"][0], "c") == "😀"
    for key in "abde":
        with pytest.raises(Malformed, match=f"{key}: text is not valid UTF-8"):
            text(found[key][0], key)


GOOD = {
    "0": 0,
    "-0": 0,
    "-0.0": 0,
    "0e5": 0,
    "7": 7,
    "7.0": 7,
    "70e-1": 7,
    "1e3": 1000,
    "1E+3": 1000,
    "1.5e1": 15,
    str(MAX_LONG): MAX_LONG,
}
BAD = (
    "-1",
    "1.5",
    "1e-1",
    str(MAX_LONG + 1),
    "9" * 500,
    "1e400",
    "-1e400",
    "-0.5",
    "1e19",
    "9" * 5000,
)


@pytest.mark.parametrize("number", GOOD)
def test_whole_numbers_are_read_in_any_spelling(number: str) -> None:
    for value in (Number(number), number):
        check = long if isinstance(value, Number) else long_text
        assert check(value, "x") == GOOD[number]


@pytest.mark.parametrize("number", BAD)
def test_other_numbers_are_malformed(number: str) -> None:
    with pytest.raises(Malformed):
        long(Number(number), "x")
    with pytest.raises(Malformed):
        long_text(number, "x")


@pytest.mark.parametrize("value", [True, False, "5", "", {}, [], Nested("array")])
def test_what_is_no_number_is_malformed(value: Any) -> None:
    with pytest.raises(Malformed):
        long(value, "x")


@pytest.mark.parametrize(
    "value", ["x", " 5", "5 ", "+5", "1_0", "0x5", "nan", "inf", "٥", "5,0", "--", ".", "1e", "\0"]
)
def test_text_that_is_no_number_is_malformed(value: str) -> None:
    with pytest.raises(Malformed):
        long_text(value, "x")


def test_null_is_null_and_so_is_an_empty_text_where_numbers_are_text() -> None:
    assert long_text("-", "x") is None
    assert text(None, "x") is None
    assert long(None, "x") is None
    assert integer(None, "x") is None
    assert long_text(None, "x") is None
    assert long_text("", "x") is None
    assert long_text("007", "x") == 7
    assert integer(Number("1" + "0" * 30), "x") == 10**30
    for value in (Number("5"), True, {}):
        with pytest.raises(Malformed):
            text(value, "x")
        with pytest.raises(Malformed):
            long_text(value, "x")


def test_a_reason_never_holds_a_value() -> None:
    for check, value in (
        (text, Number("12345")),
        (long, "12345"),
        (long_text, "12345x"),
        (long, Number("-12345")),
    ):
        with pytest.raises(Malformed) as error:
            check(value, "data.x")
        assert "12345" not in str(error.value)


@pytest.mark.parametrize("line", [b"[" * 200_000, b'{"a":' * 40_000, b'{"a":[' + b"[" * 199_994])
def test_a_line_of_opening_brackets_takes_no_memory_for_each(line: bytes) -> None:
    tracemalloc.start()
    try:
        with pytest.raises(Malformed):
            parse_object(line)
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert most < 4 * len(line)


def test_what_lies_deep_is_as_strict_as_the_rest() -> None:
    assert parse_object(b'{"a":{"b":{"c":{"d":[{"e":1},[]]}},"f":2}}')["a"][0]["f"] == ["2"]
    objects = (b'{"c"}', b'{"c":}', b'{"c":1,}', b'{"c":1]', b"{1:1}", b'{"c":1 2}')
    for wrong in (*objects, b"[1}", b"[1,]", b'["c":1]', b"[,]"):
        for around in (b'{"a":{"b":%s}}', b'{"a":{"b":{"x":[%s]}}}'):
            with pytest.raises(Malformed):
                parse_object(around % wrong)
