"""Files of good records that are packed or written as logs are not: those that are
read, and those that are refused.
"""

from __future__ import annotations

import bz2
import gzip
import io
import json
import lzma
import tarfile
import zipfile

import cramjam
import pyarrow as pa
import pyarrow.parquet as pq
from pyarrow import orc

from tests.corpus.avro_files import CRAB_FIELDS, container


def read_as_lines(lines: bytes) -> dict[str, bytes]:
    """Return by name the files whose records all count."""
    return {
        "part-1.json.zst": packed(lines, "zstd"),
        "part-1.zst": packed(lines[: len(lines) // 3 + 1], "zstd")
        + packed(lines[len(lines) // 3 + 1 :], "zstd"),
        "part-1.json.lz4": packed(lines, "lz4"),
        "part-1.json.sz": bytes(cramjam.snappy.compress(lines)),
        "part-1.json.bz2": bz2.compress(lines),
        "part-1.json.xz": lzma.compress(lines),
        "renamed-zst.json": packed(lines, "zstd"),
        "renamed-bz2": bz2.compress(lines),
    }


def refused(lines: bytes) -> dict[str, tuple[bytes, str]]:
    """Return by name the files that are damaged as a whole, and what the error calls them."""
    records = [json.loads(line) for line in lines.splitlines()]
    pretty = "\n".join(json.dumps(record, indent=1) for record in records).encode()
    table = pa.table({"file_lfn": [str(number) for number in range(50)]})
    return {
        "array.json": (json.dumps(records).encode(), "a JSON array"),
        "array-lines.json": (b"[\n" + lines.replace(b"}\n", b"},\n") + b"]\n", "a JSON array"),
        "glued.json": (lines.replace(b"\n", b""), "objects without a newline between them"),
        "returns.json": (lines.replace(b"\n", b"\r"), "lines that end in \\r alone"),
        "pretty.json": (pretty, "an object over several lines"),
        "utf-16.json": (lines.decode().encode("utf-16"), "UTF-16 data"),
        "utf-16-without-mark.json": (lines.decode().encode("utf-16-be"), "UTF-16 data"),
        "page.json": (
            b"<!DOCTYPE html>\n<html>\n<body>502 Bad Gateway</body>\n</html>\n",
            "a page of HTML or XML",
        ),
        "text.json": (b"log rotated\nsee the new one\n", "text that is not JSON"),
        "table.csv": (b"file_lfn,read_bytes\n/store/a,5\n/store/b,6\n", "text that is not JSON"),
        "part.json.zip": (zipped(lines), "zip data"),
        "stored.zip": (zipped(lines, zipfile.ZIP_STORED), "zip data"),
        "part.tar": (tarred(lines), "tar data"),
        "part.tar.gz": (gzip.compress(tarred(lines)), "tar data"),
        "twice.json.gz": (gzip.compress(gzip.compress(lines)), "gzip data"),
        "zst-in-gzip.gz": (gzip.compress(packed(lines, "zstd")), "zstd data"),
        "named.gz": (packed(lines, "zstd"), "zstd data"),
        "named.zst": (gzip.compress(lines), "gzip data"),
        "part.7z": (b"7z\xbc\xaf\x27\x1c\0\x04" + lines[:300], "7z data"),
        "part.parquet": (parquet(table), "Parquet data"),
        "part.orc": (orc_file(table), "ORC data"),
        "part.avro": (container(CRAB_FIELDS, [{"FileName": "/store/a"}]), "Avro data"),
        "cut.json.zst": (packed(lines, "zstd")[:-20], "cut short at byte"),
        "cut.json.bz2": (bz2.compress(lines)[:-20], "cut short at byte"),
        "cut.json.xz": (lzma.compress(lines)[:-20], "cut short at byte"),
    }


def packed(content: bytes, codec: str) -> bytes:
    """Pack content by one of Arrow's codecs."""
    sink = pa.BufferOutputStream()
    with pa.CompressedOutputStream(sink, codec) as stream:
        stream.write(content)
    return sink.getvalue().to_pybytes()


def zipped(content: bytes, method: int = zipfile.ZIP_DEFLATED) -> bytes:
    target = io.BytesIO()
    with zipfile.ZipFile(target, "w", method) as archive:
        archive.writestr("part.json", content)
    return target.getvalue()


def tarred(content: bytes) -> bytes:
    target = io.BytesIO()
    with tarfile.open(fileobj=target, mode="w") as archive:
        entry = tarfile.TarInfo("part.json")
        entry.size = len(content)
        archive.addfile(entry, io.BytesIO(content))
    return target.getvalue()


def parquet(table: pa.Table) -> bytes:
    target = io.BytesIO()
    pq.write_table(table, target)
    return target.getvalue()


def orc_file(table: pa.Table) -> bytes:
    target = io.BytesIO()
    orc.write_table(table, target)
    return target.getvalue()
