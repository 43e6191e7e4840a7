"""The description of a format is the source of types, checks and keys."""

from __future__ import annotations

import msgspec
import pytest

from cmsspark.base.schemas import Column
from cmsspark.sources.record_schema import RecordSchema, load_schema
from cmsspark.sources.values import Malformed

SCHEMA = RecordSchema(
    "toy",
    (
        Column("data.name", "string", feeds="lfn"),
        Column("data.read", "long", feeds="read_bytes"),
        Column("data.read_at_close", "long", feeds="read_bytes"),
        Column("data.written", "string", feeds="write_bytes"),
        Column("data.x", "any"),
        Column("metadata.timestamp", "long", feeds="timestamp"),
    ),
)


def test_fields_are_those_that_feed_an_attribute_under_names_of_their_own() -> None:
    names = [(field.attribute, field.key) for field in SCHEMA.fields]
    assert names == [
        ("lfn", "name"),
        ("read_bytes", "read"),
        ("read_bytes_2", "read_at_close"),
        ("write_bytes", "written"),
    ]
    assert SCHEMA.keys("read_bytes", "lfn", "site") == ("read", "read_at_close", "name")


def test_a_type_for_msgspec_and_the_strict_check_refuse_the_same() -> None:
    decode = msgspec.json.Decoder(SCHEMA.struct("Data")).decode
    assert decode(b'{"name":"a","read":1,"x":[]}').read_bytes == 1
    assert SCHEMA.check({"name": ["a"], "written": ["7"]})["write_bytes"] == 7
    with pytest.raises(msgspec.ValidationError):
        decode(b'{"read":"1"}')
    with pytest.raises(Malformed, match=r"data\.read: expected a number, found text"):
        SCHEMA.check({"read": ["1"]})


def test_a_column_that_is_not_nullable_must_be_there() -> None:
    decode = msgspec.json.Decoder(load_schema("condor/json").struct("Data")).decode
    assert decode(b'{"GlobalJobId":"1"}').job_id == "1"
    for line in (b"{}", b'{"GlobalJobId":""}', b'{"GlobalJobId":null}'):
        with pytest.raises(msgspec.ValidationError):
            decode(line)
