"""Avro by compiled code: what it takes is what fastavro says, blocks that do not hold
what they should are refused.
"""

from __future__ import annotations

import io
from collections import Counter
from datetime import date
from typing import Any

import fastavro
import numpy as np
import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from cmsspark.base.access import AccessBatch
from cmsspark.sources.crab import CrabDecoder
from cmsspark.sources.decoders import load_decoder
from cmsspark.sources.formats import avro, fast_json
from cmsspark.sources.formats.packed import Columns
from cmsspark.sources.formats.plain_avro import KINDS, Records
from cmsspark.sources.values import Apps

DAY = date(2026, 1, 15)
APPS = Apps.load()
_NAMES = st.sampled_from(
    [
        None,
        "",
        "/",
        "//",
        "/store/a",
        "file:/store/a",
        "root://h//store//b",
        "root:///store/d",
        "/eos/cms/store/c",
        "ü",
        "x",
    ]
)
_TEXTS = st.sampled_from(
    [None, "", "T2_US_MIT", "/DC=ch/CN=Ann Ü/CN=proxy", "crab3", "\ud800", "z" * 1100]
)
_SECONDS = st.sampled_from(
    [
        None,
        "",
        "0",
        "00",
        "5",
        "1.5",
        "1545.4455",
        "0.0005",
        "0.0015",
        "123456789012.9",
        "1234567890123",
        "999999999999999",
        "9007199254740993",
        "1.0000000000",
        ".5",
        "5.",
        "1e3",
        "-1",
        "nan",
        " 5",
        "5 ",
        "9" * 30,
        "0.1234567891",
        "0.30000000000000004",
        "1e306",
        "1e400",
        "1e-400",
        "5.e0",
        ".e1",
        ".",
        "1.5e",
        "1e+",
        "9223372036854775.8",
        "9223372036854775.7",
        "1." + "0" * 38,
        "1." + "0" * 39,
        "1.5 ",
        "1.5\0",
        "1.5e3x",
        "1.5.5",
        "4503599627370.4975",
        "2.675",
        "1.005",
    ]
)
_LONGS = st.sampled_from([None, 0, 1, -1, 2**31 - 1, 2**63 - 1, -(2**63)])
_PLAIN: dict[str, Any] = {
    "null": st.none(),
    "boolean": st.booleans(),
    "int": st.integers(-(2**31), 2**31 - 1),
    "bytes": st.binary(max_size=9),
    "long": st.integers(-(2**63), 2**63 - 1),
    "double": st.floats(),
    "float": st.floats(width=32),
    "string": st.text(max_size=9),
}
NEEDED: dict[str, dict[str, Any]] = {
    "crab": {
        "FileName": _NAMES,
        "SiteName": _TEXTS,
        "GridName": _TEXTS,
        "SubmissionTool": _TEXTS,
        "WrapCPU": _SECONDS,
        "WrapWC": _SECONDS,
    },
    "cmssw": {
        "FILE_LFN": _NAMES,
        "USER_DN": _TEXTS,
        "APP_INFO": _TEXTS,
        "SITE_NAME": _TEXTS,
        "READ_BYTES_AT_CLOSE": _LONGS,
        "READ_BYTES": _LONGS,
    },
}


def decoder_of(stream: str) -> Any:
    return (
        CrabDecoder(DAY, APPS)
        if stream == "crab"
        else load_decoder("cmssw", "avro")(DAY, APPS, "avro")
    )


def usual(field: str) -> str:
    return "long" if field.startswith("READ_BYTES") else "string"


@st.composite
def files(draw: st.DrawFn) -> tuple[str, dict[str, Any], list[dict[str, Any]], str]:
    """A stream, a schema with its needed fields among others, records of it, and a codec."""
    stream = draw(st.sampled_from(["crab", "cmssw"]))
    kinds: dict[str, list[str]] = {}
    values: dict[str, Any] = {}
    for name, some in NEEDED[stream].items():
        # Mostly as it should be; sometimes another type, or not there.
        kind = draw(
            st.sampled_from(
                [usual(name)] * 8 + ["bytes", "int", "double", "boolean", "float", "null", ""]
            )
        )
        if kind or name in ("FileName", "FILE_LFN"):
            kinds[name] = [kind or "string"]
            values[name] = some if kind == usual(name) else _PLAIN[kind or "string"]
    for number in range(draw(st.integers(0, 5))):
        kind = draw(st.sampled_from(sorted(_PLAIN)))
        kinds[f"x{number}"], values[f"x{number}"] = [kind], _PLAIN[kind]
    fields, rows = [], []
    names = draw(st.permutations(sorted(kinds)))
    for name in names:
        nullable = kinds[name] != ["null"] and (
            usual(name) != kinds[name][0] or name in NEEDED[stream] or draw(st.booleans())
        )
        order = draw(st.booleans())
        union = ["null", *kinds[name]] if order else [*kinds[name], "null"]
        fields.append({"name": name, "type": union if nullable else kinds[name][0]})
        if nullable:
            values[name] = st.none() | values[name]
    for _ in range(draw(st.integers(0, 12))):
        rows.append({name: draw(values[name]) for name in names})
    return (
        stream,
        {"type": "record", "name": "r", "fields": fields},
        rows,
        draw(st.sampled_from(["null", "deflate", "snappy"])),
    )


def written(schema: dict[str, Any], rows: list[dict[str, Any]], codec: str) -> bytes:
    target = io.BytesIO()
    fastavro.writer(target, fastavro.parse_schema(schema), rows, codec, sync_interval=60)
    return target.getvalue()


def counted(stream: str, content: bytes) -> tuple[Any, ...]:
    decoder = decoder_of(stream)
    batches = [batch.unpack() for batch in avro.decode(decoder, content, "f")]
    accesses: Counter[Any] = Counter()
    for batch in batches:
        columns = [batch.read_bytes, batch.cpu_ms, batch.wall_ms]
        given_ = [column if column is not None else [None] * len(batch.lfns) for column in columns]
        groups = [decoder.groups[number] for number in batch.groups]
        accesses.update(zip(batch.lfns, groups, *given_, strict=True))
    malformed = sorted(
        (one.position, one.reason, one.raw) for batch in batches for one in batch.malformed
    )
    return (
        sum(batch.read for batch in batches),
        sum(batch.no_lfn for batch in batches),
        accesses,
        malformed,
    )


@settings(deadline=None, max_examples=400)
@given(files())
def test_with_compiled_code_and_without_it_a_file_counts_the_same(
    file: tuple[str, dict[str, Any], list[dict[str, Any]], str],
) -> None:
    stream, schema, rows, codec = file
    try:
        content = written(schema, rows, codec)
    except UnicodeEncodeError:  # a lone surrogate: fastavro does not write it
        return
    if rows and all(field["type"] == "null" for field in schema["fields"]):
        return  # records of nothing are refused
    found = counted(stream, content)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(fast_json, "_plain_avro", None)
        patch.setattr(avro, "_with_polars", lambda content, columns, records: None)
        assert found == counted(stream, content)
    assert found[0] == len(rows)


def block_of(*fields: bytes) -> bytes:
    return b"".join(b"\x02" + bytes([2 * len(field)]) + field for field in fields)


def reader() -> Records:
    kinds = [KINDS["null"], KINDS["string"]]
    fields = [(kinds, 0), (kinds, 1), (kinds, -1), (kinds, 2), (kinds, 3)]
    return Records(fields, [lambda text: 0], lambda numbers: 0, 0, True)


def test_a_block_is_taken_only_where_it_holds_its_records_and_nothing_else() -> None:
    record = block_of(b"/store/a", b"T2", b"other", b"1.5", b"2")
    columns = Columns(True)
    assert reader().read(record * 3, 3, columns) == []
    assert (columns.count, columns.name(2)) == (3, b"/store/a")
    cpu, has_cpu, wall, has_wall = columns.times
    assert (cpu.tolist(), has_cpu.tolist(), wall.tolist(), has_wall.tolist()) == (
        [1500] * 3,
        [1] * 3,
        [2000] * 3,
        [1] * 3,
    )
    assert reader().read(record * 3, 2, Columns(True)) is None
    assert reader().read(record * 3, 4, Columns(True)) is None
    for cut in range(1, len(record)):
        assert reader().read((record * 2)[:-cut], 2, Columns(True)) is None
    assert reader().read(b"", 0, Columns(True)) == []


@settings(deadline=None, max_examples=300)
@given(st.binary(max_size=60), st.integers(0, 5))
@example(b"\xff" * 30, 1)
@example(b"\x02\xfe\xff\xff\xff\xff\xff\xff\xff\xff\x01", 1)
@example(b"\x02\x01", 1)
def test_no_bytes_break_it(block: bytes, count: int) -> None:
    columns = Columns(True)
    found = reader().read(block, count, columns)
    if found is not None:
        assert columns.count <= count
        assert all(0 <= begin <= end <= len(block) for _, begin, end in found)


@pytest.mark.parametrize("codec", ["null", "deflate", "snappy"])
def test_a_flipped_byte_anywhere_is_read_as_without_compiled_code_or_refused(codec: str) -> None:
    texts = {
        "SiteName": "T2_X",
        "GridName": "Ann",
        "SubmissionTool": "crab3",
        "WrapCPU": "1.5",
        "WrapWC": "2",
    }
    rows = [{"FileName": f"/store/{number}", **texts} for number in range(4)]
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": name, "type": ["null", "string"]} for name in rows[0]],
    }
    content = bytearray(written(schema, rows, codec))
    begin = bytes(content).index(b"avro.schema")
    for at in range(begin, len(content)):
        for flip in (1, 0x80):
            content[at] ^= flip
            found = outcome(bytes(content))
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(fast_json, "_plain_avro", None)
                by_polars = outcome(bytes(content))
                patch.setattr(avro, "_with_polars", lambda content, columns, records: None)
                wanted = outcome(bytes(content))
            assert found == wanted, at
            # polars takes any other branch of a union as its text.
            assert by_polars == wanted or isinstance(wanted, str), at
            content[at] ^= flip


def outcome(content: bytes) -> Any:
    try:
        return counted("crab", content)
    except Exception as error:
        return str(error)


def test_a_batch_without_accesses_unpacks() -> None:
    assert AccessBatch(packed=Columns(True)).unpack().lfns == []
    assert np.array(Columns(False).read_bytes).tolist() == []
