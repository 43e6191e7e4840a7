"""Bad lines are cut out of a chunk: nothing else is lost, whatever the lines' lengths are."""

from __future__ import annotations

from datetime import date

import pytest

from cmsspark.sources.decoders import load_decoder
from cmsspark.sources.values import Apps

GOOD = b'{"data":{"file_lfn":"/store/a","read_bytes":1}}\n'
BAD = b"no object\n"


@pytest.mark.parametrize("place", [0, 1, 16, 17, 39, 40])
@pytest.mark.parametrize("bad", [BAD, b'{"data":{"file_lfn":5,"x":"' + b"y" * 200_000 + b'"}}\n'])
def test_a_bad_line_anywhere_costs_itself_only(place: int, bad: bytes) -> None:
    decoder = load_decoder("aaa", "raw")(date(2026, 1, 15), Apps.load(), "raw")
    batch = decoder.decode(GOOD * place + bad + GOOD * (40 - place), "f", 101)
    assert batch.read == 41
    assert batch.lfns == ["/store/a"] * 40
    assert batch.read_bytes == [1] * 40
    assert [(one.position, one.raw[:20]) for one in batch.malformed] == [
        (101 + place, bad.rstrip(b"\n")[:20])
    ]


def test_a_chunk_of_bad_lines_only_ends() -> None:
    batch = load_decoder("aaa", "raw")(date(2026, 1, 15), Apps.load(), "raw").decode(
        BAD * 1000, "f"
    )
    assert (batch.read, len(batch.malformed)) == (1000, 1000)


def test_lines_that_end_in_blanks_are_records_all_the_same() -> None:
    line = GOOD.rstrip(b"\n") + b" \t\n"
    decoder = load_decoder("aaa", "raw")(date(2026, 1, 15), Apps.load(), "raw")
    assert decoder.decode(line * 100, "f").read_bytes == [1] * 100
