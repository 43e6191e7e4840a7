"""Accepted damage: what lies before it is counted, what lies behind it never is, and
the reason is told.
"""

from __future__ import annotations

import gzip
import io
import json
import zlib
from datetime import date
from typing import Any

import pytest

from cmsspark.base.errors import DataError
from cmsspark.sources.reader import Reader
from tests.corpus import cases_avro
from tests.corpus.avro_files import CRAB_FIELDS, container
from tests.corpus.json_lines import aaa

DAY = date(2019, 6, 15)
LINES = [aaa({"unique_id": f"u-{number * 7919}"}) for number in range(40)]
TEXT = b"\n".join(LINES) + b"\n"
JOBS = [{**cases_avro.CRAB, "JobId": str(number)} for number in range(40)]


def read(
    content: bytes, name: str = "part-0.json.gz", stream: str = "aaa"
) -> tuple[int, int, dict[str, Any] | None]:
    """Records, malformed ones, and what is told of the damage."""
    reader = Reader(stream, "avro" if stream == "crab" else "enr", DAY)
    batches = list(reader.file(io.BytesIO(content), name, accept_damaged=True))
    read, malformed = (
        sum(batch.read for batch in batches),
        sum(len(batch.malformed) for batch in batches),
    )
    told = [
        {**json.loads(detail), "records": count}
        for kind, _, count, detail in reader.notes()
        if kind == "damaged"
    ]
    assert len(told) <= 1
    return read, malformed, told[0] if told else None


def whole_lines(packed: bytes) -> int:
    """Newlines that come out of a cut gzip file, by zlib fed byte by byte."""
    member = zlib.decompressobj(31)
    return sum(member.decompress(packed[at : at + 1]).count(b"\n") for at in range(len(packed)))


def test_a_gzip_file_cut_anywhere_has_the_lines_that_are_whole() -> None:
    packed = gzip.compress(TEXT, mtime=0)
    for cut in range(1, len(packed)):
        records, malformed, told = read(packed[:cut])
        assert told is not None, cut
        wanted = whole_lines(packed[:cut])
        # A line that lacks only its newline is whole, too.
        assert records in (wanted, wanted + 1), cut
        assert (malformed, told["records"]) == (0, records)


def test_a_half_line_before_the_damage_is_no_record_and_its_size_is_reported() -> None:
    member = gzip.compress(LINES[0] + b"\n" + LINES[1][:50], mtime=0)
    assert read(member + b"no member")[0] == 1
    told = read(member + b"no member")[2]
    assert told is not None
    assert told["left_out_bytes"] == 50


def test_a_whole_file_that_is_named_has_no_damage() -> None:
    packed = gzip.compress(TEXT)
    for content, name, records in (
        (b"", "part-0.gz", 0),
        (TEXT, "part-0", 40),
        (packed, "part-0.gz", 40),
        (packed * 2 + b"\0" * 99, "part-0.gz", 80),
        (gzip.compress(b""), "part-0.gz", 0),
    ):
        assert read(content, name) == (records, 0, None)


def test_members_before_the_damage_count_and_those_behind_it_do_not() -> None:
    good = gzip.compress(TEXT, mtime=0)
    for bad in (good[:100], b"garbage", good[:200] + b"\xff\xff\xff\xff" + good[204:]):
        records, malformed, told = read(good + bad + good)
        assert (malformed, told is None) == (0, False)
        assert 40 <= records < 80


def test_records_that_no_checksum_covers_are_counted_apart() -> None:
    """A member's checksum stands at its end: all of a damaged member is unverified,
    whatever came out of it.
    """
    good = gzip.compress(TEXT, mtime=0)
    flipped = bytearray(good)
    flipped[-8] ^= 1  # in the checksum: all lines came out, and each may be wrong
    for content, read_wanted, unverified in (
        (bytes(flipped), 40, 40),
        (good + bytes(flipped), 80, 40),
        (good + gzip.compress(b"") + bytes(flipped) + good, 80, 40),
        (good * 2 + b"garbage", 80, 0),
        (
            gzip.compress(TEXT + LINES[0][:30], mtime=0)
            + gzip.compress(LINES[0][30:] + b"\n", mtime=0)[:-1],
            41,
            1,
        ),
        (good * 30 + bytes(flipped), 1240, 40),
    ):
        records, malformed, told = read(content)
        assert told is not None
        assert (records, malformed, told["unverified_records"]) == (read_wanted, 0, unverified)
    assert read(TEXT)[2] is not None and read(TEXT)[2]["unverified_records"] == 40  # type: ignore[index]


def test_a_large_damaged_file_is_verified_member_by_member() -> None:
    many = gzip.compress(TEXT * 100, mtime=0)  # several chunks
    records, malformed, told = read(many + many[:-1])
    assert told is not None
    assert (malformed, told["unverified_records"]) == (0, records - 4_000)
    assert records == 8_000


def test_a_line_beyond_the_limit_is_malformed_also_in_a_damaged_file() -> None:
    long = b"x" * 3_000_000
    packed = gzip.compress(LINES[0] + b"\n" + long + b"\n" + LINES[1] + b"\n", mtime=0)
    half = gzip.compress(LINES[0] + b"\n" + long, mtime=0)
    for content, records, malformed, left_out, unverified in (
        (packed + b"garbage", 3, 1, 0, 0),
        (packed[:-1], 3, 1, 0, 3),
        (half[:-1], 1, 0, len(long), 1),
        (packed + half[:-1], 4, 1, len(long), 1),
    ):
        reader = Reader("aaa", "enr", DAY, 2_000_000)
        batches = list(reader.file(io.BytesIO(content), "part-0.gz", accept_damaged=True))
        assert sum(batch.read for batch in batches) == records
        assert sum(len(batch.malformed) for batch in batches) == malformed
        (told,) = [
            json.loads(detail) for kind, _, _, detail in reader.notes() if kind == "damaged"
        ]
        assert (told["left_out_bytes"], told["unverified_records"]) == (left_out, unverified)


def test_text_under_a_gzip_name_is_read_and_anything_else_is_not() -> None:
    assert read(TEXT)[0] == 40
    assert read(b"\x00\x01" + TEXT)[0] == 0
    for content in (TEXT, b"\x00\x01" + TEXT):
        told = read(content)[2]
        assert told is not None
        assert "no gzip" in told["reason"]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_of_an_avro_file_cut_anywhere_the_blocks_before_count(codec: str) -> None:
    content = container(CRAB_FIELDS, JOBS, codec=codec, block=10)
    ends = [
        len(container(CRAB_FIELDS, JOBS[:count], codec=codec, block=10))
        for count in range(0, 41, 10)
    ]
    for cut in range(1, len(content), 7):
        records, malformed, told = read(content[:cut], "part-0.avro", "crab")
        assert records == 10 * max(0, sum(end <= cut for end in ends) - 1), cut
        assert malformed == 0
        assert (told is None) == (cut in ends)


def test_an_avro_file_of_another_schema_is_not_accepted_as_damaged() -> None:
    with pytest.raises(DataError, match="no field FileName"):
        read(container({"Other": "string"}, [{"Other": "x"}]), "part-0.avro", "crab")


def test_without_acceptance_the_same_damage_is_an_error() -> None:
    with pytest.raises(DataError, match="--accept-damaged"):
        list(Reader("aaa", "enr", DAY).file(io.BytesIO(gzip.compress(TEXT)[:-9]), "part-0.gz"))
