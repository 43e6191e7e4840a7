"""Packed files: every stream of a file counts, or the file is refused at a byte."""

from __future__ import annotations

import bz2
import gzip
import io
import lzma
import random
import shutil
import struct
import subprocess
from collections.abc import Callable, Iterator
from datetime import date
from typing import NamedTuple

import cramjam
import pyarrow as pa
import pytest

from cmsspark.base.errors import DataError
from cmsspark.base.schemas import Column, Table
from cmsspark.sources.formats.lines import name_packing, unpacked
from cmsspark.sources.formats.sqoop_csv import read_table
from cmsspark.sources.reader import Reader

DAY = date(2026, 11, 20)
TABLE = Table("small", "", (Column("id", "long"), Column("text", "string")))
RECORDS = 40


def logged(begin: int, end: int) -> bytes:
    """Lines of CMSSW's log."""
    return b"".join(
        b'{"data":{"file_lfn":"/store/data/%d.root","read_bytes":5}}\n' % number
        for number in range(begin, end)
    )


def dumped(begin: int, end: int) -> bytes:
    """Lines of a dump."""
    return b"".join(b"%d,name %d\n" % (number, number * 7919) for number in range(begin, end))


def zstd(text: bytes) -> bytes:
    """A frame as the zstd program writes it: with a checksum (RFC 8878), raw blocks."""
    import xxhash

    blocks = b""
    for begin in range(0, max(1, len(text)), 1000):
        piece = text[begin : begin + 1000]
        is_last = begin + 1000 >= len(text)
        blocks += (len(piece) << 3 | is_last).to_bytes(3, "little") + piece
    check = xxhash.xxh64_intdigest(text) & 0xFFFFFFFF
    return b"\x28\xb5\x2f\xfd\x04\x58" + blocks + check.to_bytes(4, "little")


def arrow(codec: str) -> Callable[[bytes], bytes]:
    def pack(text: bytes) -> bytes:
        sink = pa.BufferOutputStream()
        with pa.CompressedOutputStream(sink, codec) as stream:
            stream.write(text)
        return bytes(sink.getvalue())

    return pack


PACK: dict[str, Callable[[bytes], bytes]] = {
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstd": zstd,
    "zstd of Arrow": arrow("zstd"),
    "lz4": arrow("lz4"),
    "lz4 of cramjam": lambda text: bytes(cramjam.lz4.compress(text)),
    "snappy": lambda text: bytes(cramjam.snappy.compress(text)),
}
#: Those of which each plain byte is under a checksum.
CHECKED = ("gzip", "bzip2", "xz", "zstd", "snappy")
ENDINGS = {"gzip": ".gz", "bzip2": ".bz2", "xz": ".xz", "zstd": ".zst", "lz4": ".lz4"}
PROGRAMS = {"gzip": "gzip", "bzip2": "bzip2", "xz": "xz", "zstd": "zstd", "lz4": "lz4"}


def skippable(content: bytes) -> bytes:
    """A frame of zstd and lz4 that is to be skipped."""
    return b"\x53\x2a\x4d\x18" + struct.pack("<I", len(content)) + content


class Case(NamedTuple):
    name: str
    packing: str
    content: bytes
    #: None where it may be refused or whole, but nothing else.
    is_valid: bool | None


def cases(lines: Callable[[int, int], bytes]) -> Iterator[Case]:
    """Files of the same lines, whole and damaged in all places that a packing has."""
    first, second = lines(0, 25), lines(25, RECORDS)
    for packing, pack in PACK.items():
        one, two, nothing = pack(first), pack(second), pack(b"")
        valid = {
            "one stream": pack(first + second),
            "two streams": one + two,
            "an empty stream between": one + nothing + two,
            "an empty stream first": nothing + one + two,
            "an empty stream last": one + two + nothing,
            "a stream a line": b"".join(pack(lines(at, at + 1)) for at in range(RECORDS)),
        }
        damaged = {
            "text behind": one + second,
            "a byte behind": one + two + b"\n",
            "garbage behind": one + two + b"garbage that is none of it",
            "the second cut": one + two[:-1],
            "the second cut early": one + two[: len(two) // 2],
            "a head behind": one + two + two[:3],
            "a whole head behind": one + two + two[:7],
            "ones behind": one + two + b"\xff" * 12,
        }
        padded = {
            f"{zeros} zeros {place}": one + b"\0" * zeros + two
            if place == "between"
            else one + two + b"\0" * zeros
            for zeros in (1, 3, 4, 8, 512)
            for place in ("between", "behind")
        }
        if packing == "snappy":
            # Its streams are chunks; it has no empty stream but its mark.
            valid["padding"] = one + b"\xfe\x05\0\0\0\0\0\0\0" + two
            valid["a chunk to skip"] = one + b"\x80\x02\0\0ab" + two
            damaged["a chunk of no known kind"] = one + b"\x02\x02\0\0ab" + two
        if packing.startswith(("zstd", "lz4")):
            valid["frames to skip"] = (
                skippable(b"x" * 9) + one + skippable(b"") + two + skippable(b"e")
            )
            damaged["a frame to skip is cut"] = one + two + skippable(b"x" * 99)[:-1]
        for other, pack_other in PACK.items():
            # Frames of zstd and lz4 share those to skip, and are told apart one by one.
            kinds = {other.split()[0], packing.split()[0]}
            if len(kinds) == 2:
                behind = valid if kinds == {"zstd", "lz4"} else damaged
                behind[f"{other} behind"] = one + pack_other(second)
        yield from (Case(name, packing, content, True) for name, content in valid.items())
        yield from (Case(name, packing, content, False) for name, content in damaged.items())
        for name, content in padded.items():
            zeros = int(name.split()[0])
            is_legal = packing == "gzip" or (packing == "xz" and not zeros % 4)
            yield Case(name, packing, content, is_legal)
        if packing in CHECKED:
            random_places = random.Random(packing).sample(range(len(two)), 12)
            for at in random_places:
                flipped = bytearray(two)
                flipped[at] ^= 1 << at % 8
                yield Case(f"byte {at} of the second flipped", packing, one + flipped, None)


LOGS = list(cases(logged))
DUMPS = list(cases(dumped))


def read_log(content: bytes, name: str = "part-0") -> int:
    """The records of a log by the reader that tasks use."""
    batches = Reader("cmssw", "json", DAY).file(io.BytesIO(content), name)
    return sum(batch.read for batch in batches)


def read_dump(content: bytes, name: str = "part-0") -> int:
    """The rows of a dump."""
    pieces = list(read_table(io.BytesIO(content), TABLE, TABLE.names, name))
    rows = [row for piece in pieces for row in piece.column("id").to_pylist()]
    assert rows == list(range(len(rows)))
    return len(rows)


def lost(files: list[Case], read: Callable[[bytes, str], int]) -> list[str]:
    """What was read otherwise than it should be."""
    wrong = []
    for case in files:
        ending = ENDINGS.get(case.packing, "")
        try:
            count = read(case.content, f"part-0{ending}")
        except DataError as error:
            assert error.exit_code == 65
            assert "byte" in str(error), error
            if case.is_valid:
                wrong.append(f"{case.packing}, {case.name}: refused: {error}")
        else:
            if count != RECORDS or case.is_valid is False:
                wrong.append(f"{case.packing}, {case.name}: {count} records, no error")
    return wrong


def test_of_packed_logs_all_records_count_or_the_file_is_refused_at_the_byte() -> None:
    assert len(LOGS) > 200
    assert lost(LOGS, read_log) == []


def test_of_packed_dumps_all_rows_count_or_the_file_is_refused_at_the_byte() -> None:
    assert lost(DUMPS, read_dump) == []


def test_what_is_valid_here_the_program_of_the_packing_reads_alike() -> None:
    compared = 0
    for case in LOGS:
        program = shutil.which(PROGRAMS.get(case.packing.split()[0], ""))
        if program is None or not case.is_valid or case.name.removesuffix(" behind") in PACK:
            continue
        done = subprocess.run(
            [program, "-dc"], input=case.content, capture_output=True, check=False
        )
        if case.packing == "gzip" and "zeros between" in case.name:
            # gzip ignores what stands behind zeros, and warns; here it counts.
            assert done.returncode == 2
            continue
        assert (done.returncode, done.stdout) == (0, logged(0, RECORDS)), case[:2]
        compared += 1
    assert compared > 5  # gzip is everywhere


@pytest.mark.parametrize("read", [read_log, read_dump])
def test_a_window_of_zstd_that_is_too_large_is_named_with_the_option(
    read: Callable[[bytes], int],
) -> None:
    text = logged(0, 1) if read is read_log else dumped(0, 1)
    block = (len(text) << 3 | 1).to_bytes(3, "little") + text
    allowed = b"\x28\xb5\x2f\xfd\0" + bytes([17 << 3]) + block
    assert read(allowed) == 1
    with pytest.raises(
        DataError, match=r"(?s)window above .* needs 2,147,483,648 bytes.*--long=31"
    ):
        read(b"\x28\xb5\x2f\xfd\0" + bytes([21 << 3]) + block)
    with pytest.raises(DataError, match="dictionary 77"):
        read(b"\x28\xb5\x2f\xfd\x01" + bytes([8 << 3, 77]) + block)
    with pytest.raises(DataError, match=r"before 1\.0"):
        read(b"\x26\xb5\x2f\xfd\0\0\0\0\0\0\0")


def hadoop_blocks(text: bytes, pack: Callable[[bytes], bytes]) -> bytes:
    """Blocks as Hadoop's BlockCompressorStream writes them."""
    content = b""
    for begin in range(0, len(text), 900):
        packed = pack(text[begin : begin + 900])
        content += struct.pack(">II", len(text[begin : begin + 900]), len(packed)) + packed
    return content


@pytest.mark.parametrize("read", [read_log, read_dump])
def test_what_only_hadoop_unpacks_is_named_with_what_to_do(read: Callable[..., int]) -> None:
    import zlib

    text = logged(0, RECORDS) if read is read_log else dumped(0, RECORDS)
    snappy = hadoop_blocks(text, lambda block: bytes(cramjam.snappy.compress_raw(block)))
    lz4 = hadoop_blocks(
        text, lambda block: bytes(cramjam.lz4.compress_block(block, store_size=False))
    )
    for content, name, says in (
        (snappy, "part-0.snappy", "Hadoop's snappy"),
        (lz4, "part-0.lz4", "Hadoop's lz4"),
        (lz4, "part-0", "Hadoop's lz4"),
        (zlib.compress(text), "part-0.deflate", "Hadoop's deflate"),
        (
            b"SEQ\x06\x19org.apache.hadoop.io.Text\x19org.apache.hadoop.io.Text\0\0",
            "p",
            "SequenceFile",
        ),
    ):
        with pytest.raises(DataError, match=rf"(?s){says}.*hdfs dfs -text"):
            read(content, name)


def test_text_is_no_block_of_hadoop() -> None:
    for text in (
        logged(0, 3),
        dumped(0, 3),
        b"\0\0\0\0\0\0\0\0\0\0\0\0",
        "{}".encode("utf-16-be"),
    ):
        assert "Hadoop" not in (name_packing(text) or "")


def test_memory_does_not_grow_with_the_size_of_what_is_skipped() -> None:
    class Endless(io.RawIOBase):
        left = 1 << 28

        def read(self, size: int = -1) -> bytes:
            piece = bytes(min(size, self.left))
            self.left -= len(piece)
            return piece

    head = b"\x50\x2a\x4d\x18" + struct.pack("<I", 1 << 28)

    class File(io.RawIOBase):
        at = 0

        def read(self, size: int = -1) -> bytes:
            piece = head[self.at : self.at + size] if self.at < len(head) else body.read(size)
            self.at += len(piece)
            return piece

        def seek(self, offset: int, whence: int = 0) -> int:
            self.at = 0
            return 0

    body = Endless()
    assert unpacked(File(), "f").read(10) == b""  # type: ignore[arg-type]
