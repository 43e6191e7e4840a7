"""Avro files of any content, also with strings that are no UTF-8 and with schemas that
lack fields.
"""

from __future__ import annotations

import io
import json
import struct
import zlib
from collections.abc import Mapping, Sequence

import cramjam
import fastavro

_SYNC = b"cmsspark-corpus!"

CRAB_FIELDS: dict[str, object] = dict.fromkeys(
    [
        "JobId",
        "FileName",
        "ProtocolUsed",
        "Application",
        "SubmissionTool",
        "SiteName",
        "TaskId",
        "WrapWC",
        "WrapCPU",
        "ExeCPU",
        "NCores",
        "UserId",
        "GridName",
    ],
    "string",
) | dict.fromkeys(["StartedRunningTimeStamp", "FinishedTimeStamp"], "long")

CMSSW_FIELDS: dict[str, object] = {
    "FILE_LFN": "string",
    "FILE_SIZE": "string",
    "SITE_NAME": "string",
    "USER_DN": "string",
    "APP_INFO": "string",
    "START_TIME": "string",
    "END_TIME": "string",
    "READ_BYTES": "string",
    "READ_BYTES_AT_CLOSE": "string",
    "READ_SINGLE_AVERAGE": "string",
    "START_DATE": "long",
    "FALLBACK": "string",
    "UNIQUE_ID": "string",
}


def schema(fields: Mapping[str, object], name: str = "popularity") -> dict[str, object]:
    """A record of nullable fields."""
    members = [
        {"name": field, "type": ["null", kind], "default": None} for field, kind in fields.items()
    ]
    return {"type": "record", "name": name, "namespace": "ch.cern.cms", "fields": members}


def container(
    fields: Mapping[str, object],
    records: Sequence[Mapping[str, object]],
    *,
    codec: str = "snappy",
    block: int = 100,
) -> bytes:
    """An Avro file. A value given as bytes where the field is a string becomes the
    string's bytes, valid or not.
    """
    # On the wire `bytes` and `string` look alike: the records are written with `bytes`,
    # the header says `string`.
    wire = schema({field: "bytes" if kind == "string" else kind for field, kind in fields.items()})
    header = {"avro.schema": json.dumps(schema(fields)).encode(), "avro.codec": codec.encode()}
    out = io.BytesIO()
    out.write(b"Obj\x01" + _long(len(header)))
    for key, value in header.items():
        out.write(_bytes(key.encode()) + _bytes(value))
    out.write(_long(0) + _SYNC)
    for start in range(0, len(records), block):
        part = records[start : start + block]
        body = io.BytesIO()
        for record in part:
            fastavro.schemaless_writer(
                body,
                wire,
                {field: _wire(record.get(field), kind) for field, kind in fields.items()},
            )
        out.write(_long(len(part)) + _bytes(_packed(body.getvalue(), codec)) + _SYNC)
    return out.getvalue()


def _wire(value: object, kind: object) -> object:
    return value.encode("utf-8") if kind == "string" and isinstance(value, str) else value


def _packed(content: bytes, codec: str) -> bytes:
    if codec == "snappy":
        return bytes(cramjam.snappy.compress_raw(content)) + struct.pack(">I", zlib.crc32(content))
    if codec == "deflate":
        return zlib.compress(content)[2:-4]
    return content


def _long(number: int) -> bytes:
    number = (number << 1) ^ (number >> 63)
    out = bytearray()
    while number > 0x7F:
        out.append(number & 0x7F | 0x80)
        number >>= 7
    return bytes([*out, number])


def _bytes(content: bytes) -> bytes:
    return _long(len(content)) + content
