"""What a line's shape is, and which lines have none."""

from __future__ import annotations

import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.sources.formats.fast_json import LONGEST, LineTemplate, RequiredFields, learn
from tests.sources.both_ways import SHORT, TIMES, VALUES

REQUIRED = RequiredFields("name", ("user", "app"), ("read", "also"), ("wrote",))
LINE = b'{"data":{"x":[1,{"read":2}],"read":3,"name":"/a","user":null},"metadata":{"timestamp":5,"read":6}}'


def learned(line: bytes, required: RequiredFields | None = REQUIRED) -> LineTemplate | None:
    return learn(line, lambda data: required)


def test_a_shape_is_what_stands_between_values_and_what_each_is_needed_for() -> None:
    shape = learned(LINE)
    assert shape is not None
    assert b"#".join(shape.literals) == (
        b'{"data":{"x":[#,{"read":#}],"read":#,"name":#,"user":#},"metadata":{"timestamp":#,"read":#}}'
    )
    # name, user, app, read, also, wrote, timestamp
    assert shape.slots == (-1, -1, 3, 0, 1, 6, -1)
    assert shape.required is REQUIRED


@pytest.mark.parametrize(
    "line",
    [
        b"",
        b" ",
        b"x",
        b"5",
        b"[]",
        b"{}",
        b'{"data":{}}',
        b'{"data":null}',
        b'{"data":"name=/a"}',
        b'{"data":["name"]}',
        b'{"name":"/a"}',
        b'{"data":{"name":"/a"},"metadata":null}',
        b'{"data":{"name":"/a"},"metadata":[]}',
        b'{"data":{"name":"/a"},"metadata":5}',
        b'{"data":{"name":"/a"}}x',
        b'{"data":{"name":"/a"}}{}',
        b'{"data":{"name":"/a"}',
        b'{"data":{"name":"/a"}}\r',
        b'{"data":{"name":"/a"}}\t',
        b'{"data":{"name":"/a","x":NaN}}',
        b'{"data":{"name":"/a","x":-Infinity}}',
        b'{"data":{"name":"/a","x":01}}',
        b'{"data":{"name":"/a","x":"\\n"}}',
        b'{"data":{"name":"/a","\\u0078":1}}',
        b'{"data":{"name":"/a","x":"a\tb"}}',
        b'{"data":{"name":"/a","x":"\x00"}}',
        b'{"data":{"name":"/a","x":"\xff"}}',
        b'{"data":{"name":"/a","x":"\xed\xa0\x80"}}',
        b'\xef\xbb\xbf{"data":{"name":"/a"}}',
        b'{"data":{"name":"/a","name":"/a"}}',
        b'{"data":{"name":"/a","x":{"y":1,"y":2}}}',
        b'{"data":{"name":"/a"},"data":{"name":"/a"}}',
        b'{"data":{"name":"/a"},"metadata":{},"metadata":{}}',
        b'{"data":{"name":"/a","x":' + b"[" * 20_000 + b"]" * 20_000 + b"}}",
        b'{"data":{"name":"/a","x":' + b"9" * 5000 + b"}}",
    ],
)
def test_a_line_that_is_not_plainly_one_record_has_no_shape(line: bytes) -> None:
    assert learned(line) is None


@pytest.mark.parametrize("value", [b"{}", b"[]", b'{"a":1}', b"[1]", b"[[]]"])
@pytest.mark.parametrize(
    "key", [b"name", b"user", b"app", b"read", b"also", b"wrote", b"timestamp"]
)
def test_what_is_needed_must_be_a_single_value(key: bytes, value: bytes) -> None:
    member = b'"' + key + b'":' + value
    if key == b"timestamp":
        assert learned(b'{"data":{"name":"/a"},"metadata":{' + member + b"}}") is None
    else:
        assert (
            learned(b'{"data":{' + (b"" if key == b"name" else b'"name":"/a",') + member + b"}}")
            is None
        )
    assert (
        learned(b'{"data":{"name":"/a","x":{' + member + b'}},"metadata":{"x":' + value + b"}}")
        is not None
    )


def test_a_form_that_is_not_reported_has_no_shape() -> None:
    assert learned(LINE, None) is None


def test_very_long_lines_are_not_learned_from() -> None:
    head = b'{"data":{"name":"'
    assert learned(head + b"x" * (LONGEST - len(head) - 3) + b'"}}') is not None
    assert learned(head + b"x" * (LONGEST - len(head) - 2) + b'"}}') is None


@pytest.mark.parametrize("form", [form for form in SHORT if form != "eos G1"])
def test_blanks_between_and_around_belong_to_the_shape(form: str) -> None:
    spread = b"  " + re.sub(rb'([{}\[\]:,]|"[^"]*"|[^{}\[\]:,"]+)', rb"\1 ", SHORT[form]) + b"  "
    required = RequiredFields(
        re.search(rb'"([a-z_.]*(?:lfn|path))"', SHORT[form])[1].decode(), (), ()
    )  # type: ignore[index]
    close, wide = learned(SHORT[form], required), learned(spread, required)
    assert close is not None and wide is not None
    assert [b"".join(one.split()) for one in wide.literals] == list(close.literals)
    assert wide.slots == close.slots


_KEYS = st.sampled_from(
    ["name", "user", "read", "timestamp", "data", "metadata", "x", "", "é", " ", "a:b", "{", "],["]
)
_ANY = st.recursive(
    st.one_of(
        st.none(),
        st.booleans(),
        st.integers(),
        st.floats(allow_nan=False, allow_infinity=False),
        _KEYS,
    ),
    lambda inner: st.one_of(
        st.lists(inner, max_size=3), st.dictionaries(_KEYS, inner, max_size=3)
    ),
    max_leaves=8,
)


def _paths(value: Any, path: tuple[str | None, ...]) -> list[tuple[tuple[str | None, ...], Any]]:
    """Each single value with its path, in order."""
    if isinstance(value, dict):
        return [found for key, inner in value.items() for found in _paths(inner, (*path, key))]
    if isinstance(value, list):
        return [found for inner in value for found in _paths(inner, (*path, None))]
    return [(path, value)]


@given(
    data=st.dictionaries(_KEYS, _ANY, max_size=6),
    metadata=st.dictionaries(_KEYS, _ANY, max_size=3),
    more=_ANY,
)
def test_every_value_has_its_place(
    data: dict[str, Any], metadata: dict[str, Any], more: Any
) -> None:
    record = {"data": {**data, "name": "/a"}, "x": more, "metadata": metadata}
    line = json.dumps(record, ensure_ascii=False).encode()
    shape = learned(line)
    single = [data.get(key) for key in REQUIRED.shared + REQUIRED.read + REQUIRED.written] + [
        metadata.get("timestamp")
    ]
    assert (shape is None) == any(isinstance(value, dict | list) for value in single)
    if shape is None:
        return
    found = _paths(record, ())
    values = [json.dumps(value, ensure_ascii=False).encode() for _, value in found]
    assert (
        b"".join(
            part for pair in zip(shape.literals, [*values, b""], strict=True) for part in pair
        )
        == line
    )
    needed = {
        ("data", "name"): 0,
        ("data", "user"): 1,
        ("data", "read"): 3,
        ("metadata", "timestamp"): 6,
    }
    assert list(shape.slots) == [needed.get(path, -1) for path, _ in found]


@pytest.mark.parametrize("value", [*VALUES, *TIMES], ids=lambda value: repr(value[:20]))
def test_the_shape_does_not_depend_on_the_values(value: bytes) -> None:
    line = b'{"data":{"y":' + value + b',"name":"/a"}}'
    shape = learned(line)
    if shape is not None and value[:1] not in (b"{", b"[") and b"," not in value:
        assert shape == learned(b'{"data":{"y":5,"name":"/a"}}') or value.strip(b" ") != value
