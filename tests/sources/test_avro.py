"""Avro files: the fast reader and the patient one agree, and damage is never taken for
fewer records.
"""

from __future__ import annotations

import io
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.base.errors import DataError
from cmsspark.sources.crab import CrabDecoder
from cmsspark.sources.decoders import load_decoder
from cmsspark.sources.formats import avro, avro_blocks, fast_json
from cmsspark.sources.values import Malformed, milliseconds
from tests.sources.avro_rows import (
    APPS,
    CODECS,
    CRAB_FIELDS,
    DAY,
    LEGACY,
    NUMBERS,
    ROWS,
    Counted,
    Row,
    container,
    crab_schema,
    job,
    same,
    schema_of,
)


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_gives_every_record(codec: str) -> None:
    found = same(container(crab_schema(), ROWS, codec))
    assert found.read == len(found.accesses) == 200
    assert not found.malformed


def test_a_codec_that_nothing_here_reads_is_reported_with_the_file() -> None:
    content = container(crab_schema(), ROWS[:1]).replace(b"\x08null", b"\x08nope", 1)
    with pytest.raises(DataError) as error:
        Counted(content, name="day/part-7.avro")
    assert error.value.where == "day/part-7.avro"


_SECONDS = st.sampled_from(
    [
        None,
        "",
        "0",
        "5",
        "1.5",
        "-0",
        "-1",
        "1e3",
        "nan",
        "inf",
        " 5",
        "x",
        "1e400",
        "9" * 40,
        ".5",
        "1.",
    ]
)
_TEXTS = st.sampled_from(
    [None, "", "/store/data/a", "//store//b", "file:/store/c", "T2_X", "crab", "ü", "\x00"]
)


@settings(deadline=None, max_examples=100)
@given(
    st.lists(
        st.fixed_dictionaries(
            {
                "FileName": _TEXTS,
                "SiteName": _TEXTS,
                "GridName": _TEXTS,
                "WrapCPU": _SECONDS,
                "WrapWC": _SECONDS,
                "SubmissionTool": _TEXTS,
            }
        ),
        max_size=12,
    ),
    st.sampled_from(CODECS),
    st.sampled_from([20, 16_000]),
)
def test_the_fast_reader_comes_to_the_same_as_the_patient_one(
    rows: list[Row], codec: str, block: int
) -> None:
    found = same(container(crab_schema(CRAB_FIELDS[1:-1]), rows, codec, block))
    assert found.read == len(rows) == len(found.accesses) + found.no_lfn + len(found.malformed)


def test_fields_that_older_files_lack_are_null() -> None:
    found = same(container(crab_schema(("FileName",)), [{"FileName": "//store/data/a.root"}]))
    ((lfn, group, cpu, wall),) = found.accesses
    assert (lfn, group.site, group.user, group.app, cpu, wall) == (
        "/store/data/a.root",
        "unknown",
        None,
        "unknown",
        None,
        None,
    )


def test_a_records_own_name_and_other_fields_do_not_matter() -> None:
    fields = {name: ["null", "string"] for name in CRAB_FIELDS}
    nested = {"type": "array", "items": {"type": "map", "values": ["null", "long"]}}
    other = schema_of(
        {"x": nested, **fields, "y": {"type": "enum", "name": "e", "symbols": ["A"]}},
        "another.Name",
    )
    rows = [{**row, "x": [{"k": 1}], "y": "A"} for row in ROWS]
    assert (
        same(container(other, rows)).accesses == Counted(container(crab_schema(), ROWS)).accesses
    )


def test_a_file_of_another_schema_is_refused_with_the_fields_it_has() -> None:
    content = container(crab_schema(("Nothing", "Known")), [{"Nothing": "a", "Known": "b"}])
    with pytest.raises(DataError, match="no field FileName") as error:
        Counted(content)
    assert error.value.found == "fields Nothing, Known"


def test_a_file_that_is_no_avro_is_refused() -> None:
    for content in (b"Obj", b'{"data":{}}\n', b"\x00" * 100, b"Obj\x01" + b"\xff" * 50):
        with pytest.raises(DataError) as error:
            Counted(content, name="part-x")
        assert error.value.where == "part-x"


def test_a_file_without_records_has_none() -> None:
    assert Counted(b"").read == 0
    assert Counted(container(crab_schema(), [])).read == 0


@pytest.mark.parametrize("kind", ["string", ["string", "null"], ["null", "string", "long"]])
def test_text_may_be_declared_in_several_ways(kind: Any) -> None:
    rows = [{name: row[name] or "" for name in row} for row in ROWS]
    found = same(container(crab_schema(kind=kind), rows))
    assert len(found.accesses) == 200


@pytest.mark.parametrize(
    ("kind", "value"), [("long", 5), ("double", 5.0), ("boolean", True), ("bytes", b"5")]
)
def test_seconds_that_are_no_text_are_malformed(kind: str, value: object) -> None:
    fields: dict[str, Any] = {name: ["null", "string"] for name in CRAB_FIELDS} | {
        "WrapCPU": ["null", kind]
    }
    found = same(container(schema_of(fields), [job(WrapCPU=value), job(WrapCPU=None)]))
    assert (found.read, len(found.malformed), len(found.accesses)) == (2, 1, 1)
    assert "WrapCPU" in found.malformed[0][1]


@pytest.mark.parametrize("field", ["FileName", "GridName"])
def test_bad_text_in_a_needed_field_is_malformed(field: str) -> None:
    content = container(crab_schema(), [job(1), job(2, **{field: "MARK"}), job(3)]).replace(
        b"MARK", b"\xff\xfe\xc0\x80"
    )
    found = same(content)
    assert (found.read, len(found.accesses)) == (3, 2)
    assert found.malformed == [(1, f"{field}: text is not valid UTF-8")]


def test_bad_text_in_a_field_that_is_not_needed_is_not_checked() -> None:
    content = container(crab_schema(), [job(1), job(2, TaskId="MARK"), job(3)]).replace(
        b"MARK", b"\xff\xfe\xc0\x80"
    )
    found = same(content)
    assert (found.read, len(found.accesses), found.malformed) == (3, 3, [])


def _boundaries(content: bytes) -> set[int]:
    """Where a cut leaves whole blocks only."""
    reader = fastavro.block_reader(io.BytesIO(content))
    ends, header = set(), None
    for block in reader:
        header = block.offset if header is None else header
        ends.add(block.offset + block.size)
    assert header is not None
    return {header, *ends}


@pytest.mark.parametrize("codec", ["null", "snappy", "deflate"])
def test_a_cut_file_is_damaged_or_ends_with_a_block(codec: str) -> None:
    content = container(crab_schema(), ROWS[:40], codec, block=300)
    ends = _boundaries(content)
    rng = random.Random(5)
    for cut in sorted(
        {
            *rng.sample(range(1, len(content)), 250),
            *(end + more for end in ends for more in (-1, 0, 1)),
        }
    ):
        if cut >= len(content):
            continue
        try:
            found = Counted(content[:cut], name="part-cut")
        except DataError as error:
            assert error.where == "part-cut"
            assert cut not in ends, f"cut at {cut}, the end of a block"
        else:
            assert cut in ends, f"cut at {cut}, {found.read} records were read"


#: With compiled code where it is there, with polars, and with fastavro alone.
WAYS = ("as installed", "polars", "fastavro")
#: What a codec's own checksum finds: xz, bzip2 and the CRC-32 behind snappy. The others have none.
CHECKED = ("snappy", "bzip2", "xz")


@pytest.fixture(params=WAYS)
def way(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Each of the ways in which an Avro file is read."""
    if request.param != "as installed":
        monkeypatch.setattr(fast_json, "_plain_avro", None)
    if request.param == "fastavro":
        monkeypatch.setattr(avro, "_with_polars", lambda content, columns, records: None)
    return str(request.param)


def _flipped(content: bytes, bits: Iterable[int]) -> Iterator[tuple[bytes, int]]:
    """The content with one bit flipped, and the bit's number."""
    for bit in bits:
        changed = bytearray(content)
        changed[bit // 8] ^= 1 << bit % 8
        yield bytes(changed), bit


@pytest.mark.parametrize("codec", CHECKED)
def test_a_flipped_bit_of_a_block_is_damage_or_changes_no_content(way: str, codec: str) -> None:
    content = container(crab_schema(), ROWS[:24], codec, block=900)
    wanted = Counted(content).__dict__
    first, second = avro_blocks.blocks(content, codec)[:2]
    assert (first.records, second.records) != (0, 24)
    bits = range(8 * second.begin, 8 * second.end, 1 if codec == "snappy" else 5)
    named = f"the block at byte {first.end + avro_blocks.SYNC}"
    refused = 0
    for changed, bit in _flipped(content, bits):
        try:
            assert Counted(changed, name="part-3.avro").__dict__ == wanted, bit
        except DataError as error:
            assert (error.where, str(error.found).startswith(named)) == ("part-3.avro", True), (
                bit,
                error.found,
            )
            refused += 1
    assert refused >= len(bits) * 0.95
    assert refused == len(bits) or codec != "snappy"


def test_the_checksum_of_a_snappy_block_is_checked_where_damage_is_accepted(way: str) -> None:
    content = bytearray(container(crab_schema(), ROWS[:60], "snappy", block=900))
    first, second = avro_blocks.blocks(bytes(content), "snappy")[:2]
    content[second.end - 1] ^= 1
    reasons: list[str] = []
    batches = avro.decode(CrabDecoder(DAY, APPS), bytes(content), "f", damaged=reasons.append)
    assert sum(batch.read for batch in batches) == first.records
    assert reasons == [
        f"the block at byte {first.end + avro_blocks.SYNC}: its CRC-32 differs from that of its content"
    ]


@pytest.mark.parametrize("codec", CODECS)
def test_a_flipped_bit_of_any_sync_marker_is_damage(way: str, codec: str) -> None:
    content = container(crab_schema(), ROWS[:24], codec, block=900)
    blocks = avro_blocks.blocks(content, codec)
    bits = [8 * (block.end + 5) + 3 for block in blocks] + [
        8 * (avro_blocks.first_block(content) - 4)
    ]
    for changed, _ in _flipped(content, bits):
        with pytest.raises(DataError, match="sync marker"):
            Counted(changed)


@pytest.mark.parametrize("codec", ["null", "deflate"])
def test_a_flipped_bit_without_a_checksum_never_loses_a_record_silently(
    way: str, codec: str
) -> None:
    content = container(crab_schema(), ROWS[:40], codec, block=300)
    rng = random.Random(6)
    for changed, _ in _flipped(content, [rng.randrange(8 * len(content)) for _ in range(200)]):
        try:
            found = Counted(changed)
        except DataError:
            continue
        assert found.read == len(found.accesses) + found.no_lfn + len(found.malformed)
        assert found.read == 40


@pytest.mark.parametrize("codec", ["null", "snappy", "deflate"])
def test_a_block_of_more_records_than_its_header_names_is_damage_whatever_reads_it(
    way: str, codec: str
) -> None:
    kinds = {"FILE_LFN": "string", "READ_BYTES": "long", "SITE_NAME": "string", "APP_INFO": "long"}
    schema = {
        "type": "record",
        "name": "r",
        "fields": [{"name": name, "type": kind} for name, kind in kinds.items()],
    }
    row = {"FILE_LFN": "/store/a", "READ_BYTES": 1, "SITE_NAME": "T1_X", "APP_INFO": 5}
    content = bytearray(container(schema, [row] * 3000, codec, block=300))
    *_, before, last = avro_blocks.blocks(bytes(content), codec)
    count = before.end + avro_blocks.SYNC
    assert content[count] == 2 * last.records > 2
    decoder = load_decoder("cmssw", "avro")(DAY, APPS, "avro")
    assert sum(batch.read for batch in avro.decode(decoder, bytes(content), "f")) == 3000
    content[count] -= 2
    with pytest.raises(DataError, match=f"holds more than the {last.records - 1} records"):
        list(avro.decode(decoder, bytes(content), "f"))


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (None, None),
        ("", None),
        ("0", 0),
        ("-0", 0),
        ("-0.0", 0),
        ("5", 5000),
        ("1.5", 1500),
        ("1.0004", 1000),
        ("0.0005", 1),
        ("0.0004999", 0),
        (".5", 500),
        ("1.", 1000),
        ("1e3", 1_000_000),
        ("1E-3", 1),
        ("007", 7000),
        ("123456789012345", 123_456_789_012_344_992),
        ("1e400", Malformed),
        ("-1", Malformed),
        ("-0.1", Malformed),
        ("nan", Malformed),
        ("inf", Malformed),
        ("Infinity", Malformed),
        (" 5", Malformed),
        ("5 ", Malformed),
        ("1_0", Malformed),
        ("0x10", Malformed),
        ("1e", Malformed),
        ("٥", Malformed),
        ("x", Malformed),
        (".", Malformed),
        ("+5", Malformed),
        ("1e17", Malformed),
        ("1e306", Malformed),
        ("9223372036854775.8", Malformed),
        ("9223372036854774.7", 9_223_372_036_854_773_760),
    ],
)
def test_seconds_are_whole_milliseconds(seconds: str | None, wanted: Any) -> None:
    if wanted is Malformed:
        with pytest.raises(Malformed):
            milliseconds(seconds, "WrapCPU")
    else:
        assert milliseconds(seconds, "WrapCPU") == wanted


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.none()
        | st.sampled_from(
            [
                "",
                "nan",
                "unknown",
                "-1",
                "-0",
                "1e3",
                ".5",
                "5.",
                " 5",
                "1_0",
                "٣",
                "9" * 15,
                "9" * 400,
            ]
        )
        | st.floats(0, 1e13, allow_nan=False).map(lambda value: f"{value:.12f}".rstrip("0"))
        | st.integers(0, 2**60).map(lambda value: f"{value / 1e4:.4f}")
        | st.decimals(0, 10**6, places=9).map(str)
        | st.floats(0, allow_nan=False).map(repr)
        | st.from_regex(r"[0-9]{0,22}\.?[0-9]{0,22}(?:[eE][+-]?[0-9]{0,3})?", fullmatch=True),
        min_size=1,
        max_size=8,
    )
)
def test_a_column_of_seconds_has_the_milliseconds_of_each(values: list[str | None]) -> None:
    found = same(
        container(
            crab_schema(), [job(number, WrapCPU=value) for number, value in enumerate(values)]
        )
    )
    wanted, bad = [], []
    for number, value in enumerate(values):
        try:
            wanted.append(milliseconds(value, "WrapCPU"))
        except Malformed:
            bad.append(number)
    assert Counter(access[2] for access in found.accesses) == Counter(wanted)
    assert [position for position, _ in found.malformed] == bad


FORKED = """
import multiprocessing, sys
from datetime import date
from cmsspark.sources.reader import Reader
def read():
    with open(sys.argv[1], "rb") as file:
        batches = Reader("crab", "avro", date(2019, 6, 15)).file(file, "f")
        assert sum(len(batch.unpack().lfns) for batch in batches) == 299
read()
child = multiprocessing.get_context("fork").Process(target=read)
child.start()
child.join(300)
code = child.exitcode
child.kill()
sys.exit(3 if code is None else code)
"""


def test_a_process_forked_from_one_that_has_read_reads_too(tmp_path: Path) -> None:
    rows = [job(number, WrapWC="nan" if number == 150 else "5.5") for number in range(300)]
    (tmp_path / "part-0.avro").write_bytes(container(crab_schema(), rows, "snappy"))
    command = [sys.executable, "-W", "ignore", "-c", FORKED, str(tmp_path / "part-0.avro")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


@pytest.mark.parametrize("kind", ["long", "int", "double", "float"])
def test_legacy_reports_have_numbers_of_any_kind(kind: str) -> None:
    fields = {name: ["null", "string"] for name in LEGACY} | {
        name: ["null", kind] for name in NUMBERS
    }
    number: Any = float if kind in ("double", "float") else int
    rows = [
        {
            "FILE_LFN": "/store/a",
            "SITE_NAME": "T2_X",
            "READ_BYTES": number(7),
            "READ_BYTES_AT_CLOSE": number(0),
        },
        {"FILE_LFN": "/store/a", "SITE_NAME": "", "READ_BYTES": None, "READ_BYTES_AT_CLOSE": None},
        {"FILE_LFN": "/store/a", "READ_BYTES": number(-1)},
        {"FILE_LFN": None},
    ]
    found = Counted(
        container(schema_of(fields), rows), load_decoder("cmssw", "avro")(DAY, APPS, "avro")
    )
    assert [(lfn, group.site, read) for lfn, group, read in found.accesses] == [
        ("/store/a", "T2_X", 7),
        ("/store/a", "unknown", 0),
    ]
    assert ([position for position, _ in found.malformed], found.no_lfn, found.read) == ([2], 1, 4)


@pytest.mark.parametrize(
    "value", [0.5, float("nan"), float("inf"), 1e19, 2.0**63, -1.0, -(2.0**-1074)]
)
def test_legacy_numbers_that_are_no_bytes_are_malformed(value: float) -> None:
    fields = {"FILE_LFN": "string", "READ_BYTES": "double"}
    found = Counted(
        container(schema_of(fields), [{"FILE_LFN": "/store/a", "READ_BYTES": value}]),
        load_decoder("cmssw", "avro")(DAY, APPS, "avro"),
    )
    assert len(found.malformed) == 1
