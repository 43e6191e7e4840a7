"""Lines of a chunk: which are plainly an object, and which one a parser's message means."""

from __future__ import annotations

from datetime import date
from itertools import pairwise
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from cmsspark.base.access import RAW_LIMIT
from cmsspark.sources.decoders import load_decoder
from cmsspark.sources.formats.chunk import Chunk
from cmsspark.sources.formats.json_lines import FEW, REJECTED, TRIES
from cmsspark.sources.values import Apps

GOOD = b'{"data":{"file_lfn":"/store/a","read_bytes":1}}\n'
#: Lines from { to } that msgspec refuses.
ILL = {
    "ill-typed": b'{"data":{"file_lfn":5}}\n',
    "a fraction": b'{"data":{"read_bytes":1.5}}\n',
    "no data": b'{"x":1}\n',
    "no object in it": b"{nothing}\n",
    "not closed": b'{"data":{"file_lfn":"/store/a"}\n',
    "closed twice": b'{"data":{}}}\n',
    "no UTF-8": b'{"data":{"file_lfn":"\xff"}}\n',
    "half a surrogate": b'{"data":{"file_lfn":"\\ud800"}}\n',
    "a text without its end": b'{"data":{"file_lfn":"/store/a}}\n',
    "a control character": b'{"data":{"x":"a\x01b"}}\n',
}


class Counting(load_decoder("aaa", "raw")):  # type: ignore[misc]  # made at run time
    """Counts the lines that it reads by themselves."""

    def __init__(self) -> None:
        super().__init__(date(2026, 1, 15), Apps.load(), "raw")
        self.alone = 0

    def decode_line(self, line: bytes) -> Any:
        self.alone += 1
        return super().decode_line(line)


@given(
    st.lists(
        st.sampled_from([b"{}", b"{", b"}", b"", b" {}", b"{} ", b"x", b"\r"]),
        min_size=1,
        max_size=12,
    )
)
def test_runs_are_all_lines_once_in_order_and_plain_ones_together(lines: list[bytes]) -> None:
    chunk = Chunk(b"".join(line + b"\n" for line in lines), "f", 1)
    assert chunk.lines == len(lines)
    runs = list(chunk.runs())
    assert [number for first, end, _ in runs for number in range(first, end)] == list(
        range(len(lines))
    )
    assert all(first < end for first, end, _ in runs)
    kinds = [is_plain for _, _, is_plain in runs]
    assert all(one != other for one, other in pairwise(kinds))
    for first, end, is_plain in runs:
        for line in map(chunk.line, range(first, end)):
            assert is_plain == (line.startswith(b"{") and line.endswith(b"}"))


def test_lines_that_end_in_return_and_newline_are_plain() -> None:
    chunk = Chunk(b"{}\r\n{}\r\n", "f", 1)
    assert list(chunk.runs()) == [(0, 2, True)]
    assert bytes(chunk.part(0, 2)) == b"{}\n{}\n"


@pytest.mark.parametrize("place", [0, 1, 7, 18, 19])
@pytest.mark.parametrize("ill", ILL)
def test_the_line_that_msgspec_refuses_is_found_by_what_it_says(ill: str, place: int) -> None:
    content = b"x\n" + GOOD * place + ILL[ill] + GOOD * (19 - place)
    chunk = Chunk(memoryview(content), "f", 1)
    with pytest.raises(REJECTED) as error:
        load_decoder("aaa", "raw")(date(2019, 6, 15), Apps.load(), "raw").decode_lines(
            chunk.part(1, 21)
        )
    assert chunk.suspect(error.value, 1, 21) == 1 + place


@pytest.mark.parametrize(
    "said", ["nothing of use", "Expected `int` - at `$[999].x`", "(byte 999999)", "at `$[]`"]
)
def test_a_message_about_no_line_of_these_names_none(said: str) -> None:
    assert Chunk(b"{}\n{}\n", "f", 1).suspect(msgspec.DecodeError(said), 0, 2) is None


@pytest.mark.parametrize("ill", ILL)
def test_a_bad_line_takes_no_other_with_it_to_the_slow_way(ill: str) -> None:
    decoder = Counting()
    batch = decoder.decode(GOOD * 500 + ILL[ill] + GOOD * 499, "f")
    assert (batch.read, len(batch.lfns), len(batch.malformed)) == (1000, 999, 1)
    assert batch.malformed[0].position == 501
    assert decoder.alone <= 1 + FEW


def test_a_line_that_starts_or_ends_otherwise_is_read_alone_without_a_try() -> None:
    decoder = Counting()
    batch = decoder.decode(GOOD * 500 + b" " + GOOD + b"[]\n" + GOOD * 500, "f")
    assert (len(batch.lfns), len(batch.malformed), decoder.alone) == (1001, 1, 2)


def test_a_message_that_names_no_line_costs_halves() -> None:
    deep = b'{"data":{"file_lfn":"/store/a","x":' + b"[" * 3000 + b"]" * 3000 + b"}}\n"
    decoder = Counting()
    batch = decoder.decode(GOOD * 300 + deep + GOOD * 300, "f")
    assert (len(batch.lfns), batch.malformed) == (601, [])
    assert decoder.alone <= 1 + FEW


def test_many_bad_lines_are_not_tried_for_ever() -> None:
    decoder = Counting()
    batch = decoder.decode((GOOD * 9 + ILL["ill-typed"]) * 1000, "f")
    assert (len(batch.lfns), len(batch.malformed)) == (9000, 1000)
    assert decoder.alone >= 10_000 - 11 * (TRIES + 1)


def test_what_is_kept_of_a_long_line_says_that_it_is_cut() -> None:
    lines = [b"x" * RAW_LIMIT, b"y" * (RAW_LIMIT + 1), "ü".encode()]
    chunk = Chunk(b"".join(line + b"\n" for line in lines), "f", 7)
    kept = [chunk.quarantined(number, "why").as_dict() for number in range(3)]
    assert [(one["record_bytes"], one["is_cut"]) for one in kept] == [
        (RAW_LIMIT, False),
        (RAW_LIMIT + 1, True),
        (2, False),
    ]
    assert [one["raw"].encode(one["raw_encoding"]) for one in kept] == [
        line[:RAW_LIMIT] for line in lines
    ]
    assert [one["position"] for one in kept] == [7, 8, 9]
