"""Files of lines: where they are cut never shows, and damage is never taken for the end."""

from __future__ import annotations

import gzip
import io
import tracemalloc
from datetime import date
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cmsspark.base.access import RAW_LIMIT
from cmsspark.base.errors import DataError
from cmsspark.sources.decoders import load_decoder
from cmsspark.sources.formats import lines
from cmsspark.sources.values import Apps

BOM = b"\xef\xbb\xbf"
RECORD = b'{"data":{"file_lfn":"/store/data/a.root","read_bytes":5}}'
SOME = BOM + RECORD + b"\r\n\n \t\n" + RECORD + b"\n" + b"broken\n" + RECORD


class Dripping(io.RawIOBase):
    """A stream that gives at most so many bytes at a time, whatever it is asked for."""

    def __init__(self, content: bytes, most: int) -> None:
        self._inner = io.BytesIO(content)
        self._most = most

    def read(self, size: int = -1) -> bytes:
        return self._inner.read(self._most if size < 0 else min(size, self._most))

    def readinto(self, room: Any) -> int:
        return self._inner.readinto(room[: self._most])

    def seek(self, offset: int, whence: int = 0) -> int:
        return self._inner.seek(offset, whence)


def whole_lines(content: bytes) -> list[bytes]:
    """The lines as the rules cut them: at newlines only, the last one closed."""
    content = content.removeprefix(BOM)
    return content.removesuffix(b"\n").split(b"\n") if content else []


def joined(stream: Any, size: int) -> list[bytes]:
    # Views of one buffer, each gone with the next.
    chunks = list(map(bytes, lines.chunks(stream, size)))
    assert all(chunk.endswith(b"\n") for chunk in chunks)
    content = b"".join(chunks)
    return content.removesuffix(b"\n").split(b"\n") if content else []


_TEXT = st.lists(
    st.sampled_from([b"a", b"bb", b"\n", b"\r\n", b"\r", b" ", b"\xef", b"\xbb", b"\xbf", BOM]),
    max_size=30,
)


@settings(deadline=None, max_examples=400)
@given(st.booleans(), _TEXT.map(b"".join), st.integers(1, 9), st.integers(1, 5))
@example(True, b"", 1, 1)
@example(True, b"a", 1, 1)
@example(False, b"\n", 1, 1)
def test_where_a_file_is_cut_never_shows(mark: bool, text: bytes, size: int, most: int) -> None:
    content = (BOM if mark else b"") + text
    assert joined(io.BytesIO(content), size) == whole_lines(content)
    assert joined(Dripping(content, most), size) == whole_lines(content)


@pytest.mark.parametrize("most", [2, 3, 7, 50, 61, 10_000])
def test_records_keep_their_line_numbers_whatever_the_chunks(most: int) -> None:
    decoder = load_decoder("aaa", "raw")(date(2019, 6, 15), Apps.load(), "raw")
    found = lines.decode_file(decoder, Dripping(SOME, most), "f")  # type: ignore[arg-type]
    batches = [batch.unpack() for batch in found]
    assert sum(batch.read for batch in batches) == 4
    assert [lfn for batch in batches for lfn in batch.lfns] == ["/store/data/a.root"] * 3
    assert [(record.position, record.raw) for batch in batches for record in batch.malformed] == [
        (5, b"broken")
    ]


def decoded(content: bytes, name: str = "part-0") -> list[Any]:
    decoder = load_decoder("aaa", "raw")(date(2019, 6, 15), Apps.load(), "raw")
    return [batch.unpack() for batch in lines.decode_file(decoder, io.BytesIO(content), name)]


def test_gzip_is_reported_by_its_first_bytes_not_its_name() -> None:
    packed = gzip.compress(SOME)
    for name in ("part-0.gz", "part-0", "part-0.json"):
        assert sum(batch.read for batch in decoded(packed, name)) == 4


def test_a_file_named_gz_that_is_none_is_damaged() -> None:
    with pytest.raises(DataError, match="the file is not gzip, as its name says") as error:
        decoded(SOME, "day/part-0.gz")
    assert error.value.where == "day/part-0.gz"
    assert "efbb" in str(error.value)


def test_files_without_records_are_no_damage() -> None:
    for content in (b"", BOM, b"\n", BOM + b"\r\n \t\n"):
        assert sum(batch.read for batch in decoded(content)) == 0
    assert decoded(b"", "part-0.gz") == []
    assert decoded(gzip.compress(b""), "part-0.gz") == []
    assert sum(batch.read for batch in decoded(gzip.compress(BOM), "part-0.gz")) == 0


def test_all_members_of_a_gzip_file_are_read() -> None:
    half = len(SOME) // 2
    packed = gzip.compress(SOME[:half]) + gzip.compress(b"") + gzip.compress(SOME[half:])
    assert sum(batch.read for batch in decoded(packed, "part-0.gz")) == 4


def test_zeros_behind_a_gzip_member_are_padding() -> None:
    assert (
        sum(batch.read for batch in decoded(gzip.compress(SOME) + b"\0" * 512, "part-0.gz")) == 4
    )


def test_what_lies_behind_a_gzip_member_and_is_none_is_damage() -> None:
    with pytest.raises(DataError, match="damaged"):
        decoded(gzip.compress(SOME) + b"garbage", "part-0.gz")


@pytest.mark.parametrize("level", [0, 1, 9])
def test_a_gzip_file_cut_anywhere_is_damaged(level: int) -> None:
    packed = gzip.compress(SOME * 3, level, mtime=0)
    for cut in range(1, len(packed)):
        with pytest.raises(DataError) as error:
            decoded(packed[:cut], "part-0.gz")
        assert error.value.where == "part-0.gz", cut


def test_a_gzip_file_cut_in_its_second_member_is_damaged() -> None:
    first, second = gzip.compress(SOME), gzip.compress(SOME[3:])
    for cut in range(1, len(second)):
        with pytest.raises(DataError):
            decoded(first + second[:cut], "part-0.gz")


@settings(deadline=None, max_examples=200)
@given(st.data())
def test_a_flipped_bit_in_a_gzip_file_is_damage_or_changes_nothing(data: st.DataObject) -> None:
    packed = bytearray(gzip.compress(SOME, mtime=0))
    at = data.draw(st.integers(2, len(packed) - 1))
    packed[at] ^= 1 << data.draw(st.integers(0, 7))
    try:
        batches = decoded(bytes(packed), "part-0.gz")
    except DataError:
        return
    assert sum(batch.read for batch in batches) == 4


def test_a_line_longer_than_what_is_read_at_once_is_whole() -> None:
    long = b'{"data":{"file_lfn":"/store/b","x":"' + b"y" * (10 << 20) + b'"}}\n'
    batches = decoded(RECORD + b"\n" + long + RECORD)
    lfns = sorted(lfn for batch in batches for lfn in batch.lfns)
    assert lfns == ["/store/b", "/store/data/a.root", "/store/data/a.root"]


_LONG_TEXT = st.lists(
    st.sampled_from([b"a", b"b" * 9, b"c" * 40, b"\n", b"\r\n", b" "]), max_size=20
)


@settings(deadline=None, max_examples=400)
@given(
    st.booleans(),
    _LONG_TEXT.map(b"".join),
    st.integers(1, 9),
    st.integers(1, 9),
    st.integers(9, 40),
)
@example(False, b"c" * 9 + b"\n", 9, 9, 9)
@example(False, b"c" * 10 + b"\n", 9, 9, 9)
@example(False, b"c" * 10, 9, 9, 9)
@example(False, b"\n" + b"b" * 9 + b"\r\n", 9, 1, 9)
def test_lines_beyond_the_limit_come_apart_wherever_a_file_is_cut(
    mark: bool, text: bytes, size: int, most: int, limit: int
) -> None:
    content = (BOM if mark else b"") + text
    wanted = [
        line if len(line) <= limit else (line[:9], len(line)) for line in whole_lines(content)
    ]
    for stream in (io.BytesIO(content), Dripping(content, most)):
        assert split(lines.chunks(stream, size, limit)) == wanted
    closed = b"".join(line + b"\n" for line in whole_lines(content))
    assert split(lines.pieces(closed, size, limit)) == wanted


def split(chunks: Any) -> list[bytes | tuple[bytes, int]]:
    """The lines of chunks; (what is kept, size) of those that are too long."""
    found: list[bytes | tuple[bytes, int]] = []
    for chunk in chunks:
        if isinstance(chunk, lines.LongLine):
            found.append((chunk.head[:9], chunk.size))
        else:
            found += bytes(chunk).removesuffix(b"\n").split(b"\n")
    return found


class Endless(io.RawIOBase):
    """One line of so many bytes, made as it is read, and a record behind it."""

    def __init__(self, size: int) -> None:
        self._left = size
        self._end = io.BytesIO(b"\n" + RECORD + b"\n")

    def read(self, size: int = -1) -> bytes:
        return b"x" * size

    def seek(self, offset: int, whence: int = 0) -> int:
        return 0

    def readinto(self, room: Any) -> int:
        count = min(len(room), self._left)
        room[:count] = b"x" * count
        self._left -= count
        return count or self._end.readinto(room)


def test_a_line_beyond_the_limit_is_one_malformed_record_in_bounded_memory() -> None:
    size, limit = 1 << 30, 4 << 20
    decoder = load_decoder("aaa", "raw")(date(2019, 6, 15), Apps.load(), "raw")
    tracemalloc.start()
    try:
        batches = list(lines.decode_file(decoder, Endless(size), "f", line_limit=limit))  # type: ignore[arg-type]
        most = tracemalloc.get_traced_memory()[1]
    finally:
        tracemalloc.stop()
    assert sum(batch.read for batch in batches) == 2
    (kept,) = [record for batch in batches for record in batch.malformed]
    assert (kept.position, kept.reason) == (1, "a line of more than 4194304 bytes")
    assert (kept.as_dict()["record_bytes"], kept.as_dict()["is_cut"], len(kept.raw)) == (
        size,
        True,
        RAW_LIMIT,
    )
    assert most < 4 * limit


def test_reading_a_long_line_copies_each_byte_a_few_times_only(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = []

    class Noted(bytearray):
        def __init__(self, size: int) -> None:
            super().__init__(size)
            made.append(size)

    monkeypatch.setattr(lines, "bytearray", Noted, raising=False)
    (chunk,) = lines.chunks(io.BytesIO(b"x" * (48 << 20)))
    assert not isinstance(chunk, lines.LongLine) and len(chunk) == (48 << 20) + 1
    assert sum(made) < 4 * len(chunk)


def test_batches_gather_chunks_and_lose_none() -> None:
    count = 3 * lines.GATHERED
    batches = decoded((RECORD + b"\n") * count)
    assert (
        sum(batch.read for batch in batches) == sum(len(batch.lfns) for batch in batches) == count
    )
    assert all(batch.read < 2 * lines.GATHERED + lines.CHUNK // len(RECORD) for batch in batches)
    assert all(batch.read >= lines.GATHERED for batch in batches[:-1])


@given(
    st.lists(st.sampled_from([b"a\n", b"bbb\n", b"\n"]), min_size=1, max_size=20),
    st.integers(0, 9),
)
def test_pieces_of_lines_are_whole_lines(some: list[bytes], size: int) -> None:
    found = [bytes(piece) for piece in lines.pieces(b"".join(some), size)]
    assert b"".join(found) == b"".join(some)
    assert all(piece.endswith(b"\n") for piece in found)
