"""Records beyond ``--quarantine-above`` count as malformed, whatever reads them; all
others stay as they are.
"""

from __future__ import annotations

import io
from datetime import date
from typing import Any

import pytest

from cmsspark.sources import access_decoder
from cmsspark.sources.reader import OVERSIZED, Reader
from tests.corpus.avro_files import CRAB_FIELDS, container
from tests.corpus.json_lines import aaa

DAY = date(2019, 6, 15)
BIG = 5 * 10**18


def sums(reader: Reader, batches: Any) -> tuple[int, int, int, list[tuple[int, str]]]:
    """Records, accesses, all bytes or milliseconds, and the malformed records' places and reasons."""
    whole = [batch.unpack() for batch in batches]
    columns = [column for batch in whole for column in (batch.read_bytes, batch.cpu_ms) if column]
    bad = [(record.position, record.reason) for batch in whole for record in batch.malformed]
    read, accesses = sum(batch.read for batch in whole), sum(len(batch.lfns) for batch in whole)
    return read, accesses, sum(value or 0 for column in columns for value in column), bad


@pytest.mark.parametrize("compiled", [True, False])
def test_lines_beyond_the_limit_are_malformed_and_others_count(
    compiled: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(access_decoder, "COMPILED", compiled and access_decoder.COMPILED)
    sizes = [7, 10, 11, BIG, 9] * 900
    lines = [aaa({"read_bytes_at_close": size, "read_bytes": 0}) for size in sizes]
    content = b"\n".join([*lines[:7], b"broken", b"", *lines[7:]]) + b"\n"
    bad = [number + 1 + 2 * (number >= 7) for number, size in enumerate(sizes) if size > 10]
    wanted = (
        4501,
        2700,
        900 * 26,
        sorted([*((line, OVERSIZED) for line in bad), (8, "not a JSON object")]),
    )
    reader = Reader("aaa", "enr", DAY, above=10)
    assert sums(reader, reader.file(io.BytesIO(content), "f")) == wanted
    assert len(reader.oversized) == 100 and reader.oversized[1].values["read_bytes"] == BIG
    assert (reader.oversized[1].file, reader.oversized[1].position) == ("f", 4)
    assert [count for kind, _, count, _ in reader.notes() if kind == "oversized"] == [1800]
    reader = Reader("aaa", "enr", DAY, above=10)
    assert sums(reader, [reader.chunk(content, "f")]) == wanted
    free = Reader("aaa", "enr", DAY, above=BIG)
    assert sums(free, free.file(io.BytesIO(content), "f"))[3] == [(8, "not a JSON object")]
    assert not [one for one in free.notes() if one[0] == "oversized"]


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_records_of_avro_beyond_the_limit_are_malformed_and_others_count(codec: str) -> None:
    jobs = [
        {"FileName": "/store/a", "WrapCPU": text}
        for text in ("5", "10", "10.001", "9e14", None, "x")
    ]
    content = container(CRAB_FIELDS, jobs * 50, codec=codec, block=7)
    reader = Reader("crab", "avro", DAY, above=10)
    read, accesses, total, bad = sums(reader, reader.file(io.BytesIO(content), "f"))
    assert (read, accesses, total) == (300, 150, 50 * 15_000)
    assert [place for place, reason in bad if reason == OVERSIZED] == [
        n for n in range(300) if n % 6 in (2, 3)
    ]
    assert len(bad) == 150
