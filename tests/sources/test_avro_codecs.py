"""The codecs of Avro blocks, in tables of Rucio: damage names file and block, whatever
packed the block.
"""

from __future__ import annotations

import bz2
import io
import json
import lzma
import resource
import subprocess
import sys
import zlib
from collections.abc import Callable
from typing import Any

import cramjam
import fastavro
import pytest

from cmsspark.base.errors import DataError
from cmsspark.sources.formats import avro_blocks
from cmsspark.sources.formats.avro_blocks import CODECS
from cmsspark.sources.rucio import RucioReader
from tests.corpus import rucio as corpus

FILE = "dids/part-m-00000.avro"


def snappy(content: bytes) -> bytes:
    return bytes(cramjam.snappy.compress_raw(content)) + zlib.crc32(content).to_bytes(4, "big")


PACK: dict[str, Callable[[bytes], bytes]] = {
    "null": bytes,
    "snappy": snappy,
    "deflate": lambda content: zlib.compress(content)[2:-4],
    "bzip2": bz2.compress,
    "xz": lzma.compress,
    "zstandard": lambda content: bytes(cramjam.zstd.compress(content)),
}
#: Whose checksum finds any change of the content.
CHECKED = ("snappy", "bzip2", "xz")


def long(number: int) -> bytes:
    """A number from 0 on as Avro writes it."""
    stored = io.BytesIO()
    fastavro.schemaless_writer(stored, "long", number)
    return stored.getvalue()


def container(codec: str) -> bytes:
    """A table of 40 rows in some blocks, packed with a codec; fastavro writes not all
    of them everywhere.
    """
    rows = [
        dict.fromkeys(corpus.FIELDS["DIDS"])
        | {
            "SCOPE": "cms",
            "NAME": f"/store/é{number}",
            "DID_TYPE": "F",
            "ACCESSED_AT": 10**12 + number,
        }
        for number in range(40)
    ]
    stored = io.BytesIO()
    schema = corpus.schema("DIDS")
    fastavro.writer(stored, fastavro.parse_schema(schema), rows, codec="null", sync_interval=250)
    plain = stored.getvalue()
    begin = avro_blocks.first_block(plain)
    sync = plain[begin - 16 : begin]
    metadata = {"avro.schema": json.dumps(schema), "avro.codec": codec}
    header = b"".join(
        long(len(text.encode())) + text.encode() for pair in metadata.items() for text in pair
    )
    parts = [b"Obj\x01", long(len(metadata)), header, b"\0", sync]
    for block in avro_blocks.blocks(plain, "null"):
        packed = PACK[codec](plain[block.begin : block.end])
        parts += [long(block.records), long(len(packed)), packed, sync]
    return b"".join(parts)


def read(content: bytes, step: int | None = None) -> tuple[list[Any], int]:
    """The rows of a file, read in ranges of ``step`` bytes, and how many are damaged."""
    reader = RucioReader("DIDS")
    rows: list[Any] = []
    for first in range(0, len(content), step or len(content)):
        last = first + (step or len(content))
        for piece in reader.pieces(io.BytesIO(content), FILE, first, last):
            kinds = reader.texts("DID_TYPE")
            columns = [
                piece.hashes("NAME")[0].tolist(),
                [kinds[code] for code in piece.numbers("DID_TYPE")],
                piece.numbers("ACCESSED_AT", -1).tolist(),
                piece.numbers("DELETED_AT", -1).tolist(),
            ]
            rows += zip(*columns, strict=True)
    return rows, reader.counts.damaged


@pytest.mark.parametrize("codec", CODECS)
def test_a_file_of_each_codec_is_read_whole_and_in_ranges(codec: str) -> None:
    content = container(codec)
    wanted = read(container("null"))
    assert len(wanted[0]) == 40 and len({row[0] for row in wanted[0]}) == 40
    assert read(content) == read(content, 100) == wanted


@pytest.mark.parametrize("codec", CHECKED)
def test_a_flipped_bit_is_refused_with_file_and_block_or_changes_nothing(codec: str) -> None:
    content = container(codec)
    wanted, header = read(content), avro_blocks.first_block(content)
    refused = 0
    for bit in range(0, 8 * len(content), 3):
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        try:
            assert read(bytes(changed)) == wanted, bit
        except DataError as error:
            assert error.where == FILE, bit
            assert bit < 8 * header or "block at byte" in str(error.found), (bit, error.found)
            refused += bit >= 8 * header
    assert refused >= 0.95 * (8 * (len(content) - header) // 3)


@pytest.mark.parametrize("codec", [codec for codec in CODECS if codec != "null"])
@pytest.mark.parametrize("change", ["cut", "longer", "empty"])
def test_content_that_its_codec_does_not_end_is_damage(codec: str, change: str) -> None:
    packed = PACK[codec](b"/store/data/a.root" * 20)
    changed = {"cut": packed[:-1], "longer": packed + b"\x01\x02", "empty": b""}[change]
    assert CODECS[codec](memoryview(packed)) == b"/store/data/a.root" * 20
    assert CODECS[codec](memoryview(changed)) is None


def test_a_size_that_snappy_cannot_hold_is_damage_without_memory_for_it() -> None:
    program = (
        "import resource, cramjam; from cmsspark.sources.formats.avro_blocks import CODECS; "
        f"resource.setrlimit(resource.RLIMIT_AS, ({1 << 30}, {resource.RLIM_INFINITY})); "
        r"print(CODECS['snappy'](memoryview(b'\xff\xff\xff\xff\x0f' + bytes(60))))"
    )
    done = subprocess.run(
        [sys.executable, "-c", program], capture_output=True, text=True, timeout=300
    )
    assert (done.returncode, done.stdout.strip()) == (0, "None"), done.stderr


def test_another_codec_is_refused_by_its_name() -> None:
    content = container("null").replace(b"\x08null", b"\x08lz4x")
    with pytest.raises(DataError, match="bzip2, xz, zstandard") as told:
        read(content)
    assert (told.value.where, told.value.found) == (FILE, "the codec lz4x")
