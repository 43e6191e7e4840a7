"""Bytes that come in pieces are read by position, whatever the pieces, and released
bytes are gone.
"""

from __future__ import annotations

import io
import random
from typing import cast

import pytest

from cmsspark.dumps.rucio_scan import ForwardStream

CONTENT = bytes(range(256)) * 4


def pieces_of(content: bytes, rng: random.Random) -> list[bytes]:
    found = []
    while content:
        count = rng.randrange(1, 90)
        found.append(content[:count])
        content = content[count:]
    return found


@pytest.mark.parametrize("seed", range(5))
def test_reads_are_those_of_a_file(seed: int) -> None:
    rng = random.Random(seed)
    # What comes after the size, as a newline does, is no part of the file.
    stream, file = (
        ForwardStream(len(CONTENT), pieces_of(CONTENT + b"\n\n", rng)),
        io.BytesIO(CONTENT),
    )
    released = 0
    for _ in range(60):
        at, count = rng.randrange(released, len(CONTENT) + 20), rng.choice([0, 1, 50, 300, -1])
        assert stream.seek(at) == file.seek(at)
        assert stream.read(count) == file.read(count)
        assert stream.tell() == file.tell()
        if rng.random() < 0.1:
            released = min(released + 40, len(CONTENT))
            stream.release(released)


def test_released_bytes_are_an_error_and_a_file_may_end_early() -> None:
    stream = ForwardStream(100, [b"x" * 30, b"y" * 30])
    stream.release(40)
    stream.seek(39)
    with pytest.raises(ValueError, match="byte 39 was released"):
        stream.read(1)
    stream.seek(55)
    assert cast("bytes", stream.read(20)) == b"y" * 5
    stream.release(80)
    assert stream.seek(80) == 80 and stream.read() == b""
