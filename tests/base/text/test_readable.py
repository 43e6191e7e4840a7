"""Names of files for people and for readers of JSON, whatever bytes they are made of."""

from __future__ import annotations

import json
import os

from hypothesis import given
from hypothesis import strategies as st

from cmsspark.base.errors import DataError
from cmsspark.base.text.readable import encodable, json_text, readable

NAME = os.fsdecode(b"part-\xff\x1b[2J \xc3\xa9.json")


def test_bytes_that_are_no_text_and_controls_are_shown_as_they_are_written_in_python() -> None:
    assert readable(NAME) == "part-\\xff\\x1b[2J \u00e9.json"
    assert encodable(NAME) == "part-\\xff\x1b[2J \u00e9.json"
    assert readable("a\nb\tc\r\u202e\U000e0001") == "a\nb\tc\\x0d\\u202e\\U000e0001"


def test_an_error_s_message_can_be_printed_and_stored_whatever_it_names() -> None:
    error = DataError("a file is damaged", where=NAME, found="\x1b]0;title\x07")
    assert error.text().isprintable() or "\n" in error.text()
    assert error.where == NAME
    assert "\x1b" not in str(error) and str(error).encode()


@given(
    st.recursive(
        st.text() | st.sampled_from(["\udcff", "\ud800x"]),
        lambda inner: st.lists(inner, max_size=3),
    )
)
def test_json_can_be_encoded_and_gives_every_name_again(value: object) -> None:
    assert json.loads(json_text(value, indent=1).encode()) == value
