"""Compressed event logs: those of Spark's own codecs, of other programs, and what is
left of cut ones.
"""

from __future__ import annotations

import bz2
import gzip
import io
import struct
from collections.abc import Callable
from typing import Any

import cramjam
import pyarrow as pa
import pytest

from cmsspark.apps.monitor.logs.files import CutLog, pieces
from cmsspark.base.errors import SettingsError
from tests.apps.monitor.event_logs import application

TEXT = b"\n".join(application(2_000)) + b"\n"


def lz4_java(data: bytes) -> bytes:
    """As LZ4BlockOutputStream writes it; the second block is stored as it is."""
    stream = b""
    for number, first in enumerate(range(0, len(data), 32_768)):
        block = data[first : first + 32_768]
        packed = (
            block if number == 1 else bytes(cramjam.lz4.compress_block(block, store_size=False))
        )
        token = (0x10 if number == 1 else 0x20) | 5
        stream += struct.pack("<8sBiii", b"LZ4Block", token, len(packed), len(block), 0) + packed
    return stream + struct.pack("<8sBiii", b"LZ4Block", 0x15, 0, 0, 0)


def snappy_java(data: bytes) -> bytes:
    """As SnappyOutputStream writes it."""
    stream = b"\x82SNAPPY\x00" + struct.pack(">ii", 1, 1)
    for first in range(0, len(data), 32_768):
        packed = bytes(cramjam.snappy.compress_raw(data[first : first + 32_768]))
        stream += struct.pack(">i", len(packed)) + packed
    return stream


def zstd(data: bytes) -> bytes:
    return bytes(pa.Codec("zstd").compress(data, asbytes=True))


def lz4_frame(data: bytes) -> bytes:
    return bytes(cramjam.lz4.compress(data))


CODECS: dict[str, Callable[[bytes], bytes]] = {
    "plain": bytes,
    "zstd": zstd,
    "lz4": lz4_java,
    "snappy": snappy_java,
    "lz4 frame": lz4_frame,
    "gzip": gzip.compress,
    "bzip2": bz2.compress,
}


@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("times", [1, 2])
def test_a_stream_is_read_and_what_follows_it(codec: str, times: int) -> None:
    packed = CODECS[codec](TEXT)
    assert b"".join(pieces(io.BytesIO(times * packed), "log")) == times * TEXT


@pytest.mark.parametrize("codec", [name for name in CODECS if name not in ("plain", "bzip2")])
@pytest.mark.parametrize("share", [0.5, 0.9, 0.999])
def test_of_a_cut_stream_all_until_the_cut_is_read(codec: str, share: float) -> None:
    packed = CODECS[codec](TEXT)
    read = b""
    with pytest.raises(CutLog):
        for piece in pieces(io.BytesIO(packed[: int(share * len(packed))]), "log"):
            read += piece
    assert TEXT.startswith(read)
    # At most the block with the cut is lost: 128 kB of zstd, 32 kB of lz4 and snappy.
    assert read and (share < 0.9 or len(read) >= (share - 0.15) * len(TEXT) - 150_000)


@pytest.mark.parametrize("codec", ["lz4", "snappy", "gzip"])
def test_damage_in_the_middle_ends_the_stream_and_takes_no_memory(codec: str) -> None:
    packed = bytearray(CODECS[codec](TEXT))
    packed[len(packed) // 2 : len(packed) // 2 + 4000] = b"\x7f" * 4000
    with pytest.raises(CutLog):
        for piece in pieces(io.BytesIO(bytes(packed)), "log"):
            assert len(piece) < 10_000_000


def test_lzf_is_named_as_the_one_that_no_library_reads() -> None:
    with pytest.raises(SettingsError, match="LZF"):
        b"".join(pieces(io.BytesIO(b"ZV\x01" + b"x" * 100), "log"))


def test_an_empty_file_is_an_empty_log() -> None:
    assert list(pieces(io.BytesIO(b""), "log")) == []


@pytest.mark.parametrize("codec", ["lz4", "snappy", "zstd"])
def test_streams_of_sparks_own_codecs_are_read(spark: Any, codec: str) -> None:
    jvm = spark.sparkContext._jvm
    sink = jvm.java.io.ByteArrayOutputStream()
    stream = jvm.org.apache.spark.io.CompressionCodec.createCodec(
        jvm.org.apache.spark.SparkConf(), codec
    )
    stream = stream.compressedOutputStream(sink)
    stream.write(TEXT[:300_000])
    stream.flush()
    unfinished = bytes(sink.toByteArray())
    stream.write(TEXT[300_000:])
    stream.close()
    assert b"".join(pieces(io.BytesIO(bytes(sink.toByteArray())), "log")) == TEXT
    read = b""
    try:
        for piece in pieces(io.BytesIO(unfinished), "log"):
            read += piece
    except CutLog:
        pass
    # A log that is still written: of lz4 the last block is not there before it is full.
    assert TEXT.startswith(read) and 200_000 < len(read) <= 300_000
