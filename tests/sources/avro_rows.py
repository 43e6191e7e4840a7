"""Avro files of made-up records, and what they become."""

from __future__ import annotations

import io
from collections.abc import Mapping, Sequence
from datetime import date
from typing import Any

import fastavro
import pytest

from cmsspark.base.access import AccessBatch
from cmsspark.sources.crab import CrabDecoder
from cmsspark.sources.formats import avro, fast_json
from cmsspark.sources.values import Apps

DAY = date(2019, 6, 15)
APPS = Apps.load()
CRAB_FIELDS = (
    "JobId",
    "FileName",
    "SiteName",
    "GridName",
    "SubmissionTool",
    "WrapCPU",
    "WrapWC",
    "NCores",
)
CODECS = ("null", "deflate", "snappy", "bzip2", "xz")

Row = Mapping[str, Any]


def schema_of(fields: Mapping[str, Any], name: str = "cms.JobMonitoring") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": kind} for field, kind in fields.items()],
    }


def crab_schema(
    names: Sequence[str] = CRAB_FIELDS, kind: Any = ("null", "string")
) -> dict[str, Any]:
    listed = list(kind) if isinstance(kind, tuple) else kind
    return schema_of(dict.fromkeys(names, listed))


def container(
    schema: Mapping[str, Any], rows: Sequence[Row], codec: str = "null", block: int = 16_000
) -> bytes:
    stored = io.BytesIO()
    fastavro.writer(
        stored, fastavro.parse_schema(dict(schema)), rows, codec=codec, sync_interval=block
    )
    return stored.getvalue()


def job(number: int = 0, **changes: Any) -> dict[str, Any]:
    usual = {
        "JobId": str(number),
        "FileName": f"//store/data/{number % 7}.root",
        "SiteName": "T2_US_MIT",
        "GridName": f"Person {number % 3}",
        "SubmissionTool": "crab3",
        "WrapCPU": f"{number}.25",
        "WrapWC": str(number),
        "NCores": None,
    }
    return usual | changes


ROWS = [job(number) for number in range(200)]


class Counted:
    """What a file became, in a form that does not depend on batches or the numbers of groups."""

    def __init__(self, content: bytes, decoder: Any = None, name: str = "part-0.avro") -> None:
        decoder = decoder or CrabDecoder(DAY, APPS)
        batches = [batch.unpack() for batch in avro.decode(decoder, content, name)]
        self.read = sum(batch.read for batch in batches)
        self.no_lfn = sum(batch.no_lfn for batch in batches)
        self.malformed = [
            (record.position, record.reason) for batch in batches for record in batch.malformed
        ]
        self.accesses = sorted(
            (access for batch in batches for access in _accesses(decoder, batch)), key=repr
        )


def _accesses(decoder: Any, batch: AccessBatch) -> list[tuple[Any, ...]]:
    columns: list[Sequence[Any]] = [
        batch.lfns,
        [decoder.groups[number] for number in batch.groups],
    ]
    columns += [
        column or []
        for column in (batch.read_bytes, batch.cpu_ms, batch.wall_ms)
        if column is not None
    ]
    return list(zip(*columns, strict=True)) if batch.lfns else []


def slowly(content: bytes) -> Counted:
    """The same by fastavro alone: a codec or schema that polars refuses leads there."""
    decoder = CrabDecoder(DAY, APPS)
    counted = Counted(b"", decoder)
    rows = list(fastavro.reader(io.BytesIO(content), handle_unicode_errors="surrogateescape"))
    batch = AccessBatch()
    wanted = [{name: row.get(name) for name in decoder.avro_fields} for row in rows]
    avro._take_each(decoder, wanted, batch, range(len(rows)), "f")
    counted.read, counted.no_lfn = batch.read, batch.no_lfn
    counted.malformed = [(record.position, record.reason) for record in batch.malformed]
    counted.accesses = sorted(_accesses(decoder, batch), key=repr)
    return counted


def same(content: bytes) -> Counted:
    """What it became, which must be the same by compiled code, without it, and by fastavro alone."""
    found, wanted = Counted(content), slowly(content)
    assert found.__dict__ == wanted.__dict__
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_json, "_plain_avro", None)
        assert Counted(content).__dict__ == wanted.__dict__
    return found


#: The legacy reports of CMSSW.
LEGACY = ("FILE_LFN", "SITE_NAME", "USER_DN", "APP_INFO")
NUMBERS = ("READ_BYTES", "READ_BYTES_AT_CLOSE")
