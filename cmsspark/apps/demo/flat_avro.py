"""Avro parts of flat rows whose fields may all be null: blocks as those of fastavro, at
a third of the cost.

Values of such rows come back (names, sizes, times), so each is encoded once for a part.
"""

from __future__ import annotations

import hashlib
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from io import BytesIO
from pathlib import Path
from typing import Any, Final

from fastavro.write import Writer

#: Bytes of a block before it is compressed, as fastavro's default.
_BLOCK_BYTES: Final = 16_000
Value = str | bytes | int | None


@dataclass(frozen=True)
class _Block:
    """What fastavro's writer takes as a block."""

    num_records: int
    bytes_: BytesIO


class _Encoded(dict[Value, bytes]):
    """Values as a union with null encodes them; 0 is null, 1 the value."""

    def __missing__(self, value: Value) -> bytes:
        encoded = self[value] = _encode(value)
        return encoded


def _encode(value: Value) -> bytes:
    if value is None:
        return b"\x00"
    if isinstance(value, int):
        return b"\x02" + _long(value)
    content = value.encode() if isinstance(value, str) else value
    return b"\x02" + _long(len(content)) + content


def _long(value: int) -> bytes:
    remaining = value << 1 if value >= 0 else (-value << 1) - 1
    out = bytearray()
    while remaining > 0x7F:
        out.append(remaining & 0x7F | 0x80)
        remaining >>= 7
    out.append(remaining)
    return bytes(out)


def write_flat_avro(
    folder: Path,
    name: str,
    fields: Mapping[str, str],
    rows: Sequence[Mapping[str, Value]],
    *,
    number: int,
    codec: str,
) -> Path:
    """Return one part. ``fields``: the type of each, ``string``, ``bytes`` or ``long``;
    a row may leave fields out.
    """
    schema = {
        "type": "record",
        "name": name,
        "fields": [
            {"name": field, "type": ["null", kind], "default": None}
            for field, kind in fields.items()
        ],
    }
    marker = hashlib.md5(f"{folder.name}/{number}".encode(), usedforsecurity=False).digest()
    folder.mkdir(parents=True, exist_ok=True)
    path = folder / f"part-m-{number:05d}.avro"
    encoded, names = _Encoded(), tuple(fields)
    with path.open("wb") as stream:
        writer: Any = Writer(stream, schema, codec=codec, sync_marker=marker)
        block, size = [], 0
        for row in rows:
            packed = b"".join([encoded[row.get(field)] for field in names])
            block.append(packed)
            size += len(packed)
            if size >= _BLOCK_BYTES:
                writer.write_block(_Block(len(block), BytesIO(b"".join(block))))
                block, size = [], 0
        if block:
            writer.write_block(_Block(len(block), BytesIO(b"".join(block))))
        writer.flush()
    return path
