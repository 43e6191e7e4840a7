"""Avro files: the fast reader and the patient one agree, and damage is never taken for fewer records."""

from __future__ import annotations

import io
import random
import subprocess
import sys
from collections import Counter
from collections.abc import Mapping, Sequence
from datetime import date
from pathlib import Path
from typing import Any

import fastavro
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.access import AccessBatch
from cmsspark.errors import DataError
from cmsspark.sources import avro, known_avro
from cmsspark.sources.cmssw import CmsswDecoder
from cmsspark.sources.crab import CrabDecoder, milliseconds
from cmsspark.sources.fields import Apps
from cmsspark.sources.strict_json import Malformed
from tests.sources.both_ways import needs_compiled

DAY = date(2019, 6, 15)
APPS = Apps.load()
CRAB_FIELDS = ("JobId", "FileName", "SiteName", "GridName", "SubmissionTool", "WrapCPU", "WrapWC", "NCores")
CODECS = ("null", "deflate", "snappy", "bzip2", "xz")

Row = Mapping[str, Any]


def schema_of(fields: Mapping[str, Any], name: str = "cms.JobMonitoring") -> dict[str, Any]:
    return {
        "type": "record",
        "name": name,
        "fields": [{"name": field, "type": kind} for field, kind in fields.items()],
    }


def crab_schema(names: Sequence[str] = CRAB_FIELDS, kind: Any = ("null", "string")) -> dict[str, Any]:
    listed = list(kind) if isinstance(kind, tuple) else kind
    return schema_of(dict.fromkeys(names, listed))


def container(schema: Mapping[str, Any], rows: Sequence[Row], codec: str = "null", block: int = 16_000) -> bytes:
    stored = io.BytesIO()
    fastavro.writer(stored, fastavro.parse_schema(dict(schema)), rows, codec=codec, sync_interval=block)
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
        self.malformed = [(record.position, record.reason) for batch in batches for record in batch.malformed]
        self.accesses = sorted((access for batch in batches for access in _accesses(decoder, batch)), key=repr)


def _accesses(decoder: Any, batch: AccessBatch) -> list[tuple[Any, ...]]:
    columns: list[Sequence[Any]] = [batch.lfns, [decoder.groups[number] for number in batch.groups]]
    columns += [column or [] for column in (batch.read_bytes, batch.cpu_ms, batch.wall_ms) if column is not None]
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
        patch.setattr(known_avro, "_plain_avro", None)
        assert Counted(content).__dict__ == wanted.__dict__
    return found


@pytest.mark.parametrize("codec", CODECS)
def test_every_codec_gives_every_record(codec: str) -> None:
    found = same(container(crab_schema(), ROWS, codec))
    assert found.read == len(found.accesses) == 200
    assert not found.malformed


def test_a_codec_that_nothing_here_reads_is_told_with_the_file() -> None:
    content = container(crab_schema(), ROWS[:1]).replace(b"\x08null", b"\x08nope", 1)
    with pytest.raises(DataError) as error:
        Counted(content, name="day/part-7.avro")
    assert error.value.where == "day/part-7.avro"


_SECONDS = st.sampled_from(
    [None, "", "0", "5", "1.5", "-0", "-1", "1e3", "nan", "inf", " 5", "x", "1e400", "9" * 40, ".5", "1."]
)
_TEXTS = st.sampled_from([None, "", "/store/data/a", "//store//b", "file:/store/c", "T2_X", "crab", "ü", "\x00"])


@settings(deadline=None, max_examples=100)
@given(st.lists(st.fixed_dictionaries({"FileName": _TEXTS, "SiteName": _TEXTS, "GridName": _TEXTS, "WrapCPU": _SECONDS,
                                       "WrapWC": _SECONDS, "SubmissionTool": _TEXTS}), max_size=12),
       st.sampled_from(CODECS), st.sampled_from([20, 16_000]))  # fmt: skip
def test_the_fast_reader_comes_to_the_same_as_the_patient_one(rows: list[Row], codec: str, block: int) -> None:
    found = same(container(crab_schema(CRAB_FIELDS[1:-1]), rows, codec, block))
    assert found.read == len(rows) == len(found.accesses) + found.no_lfn + len(found.malformed)


def test_fields_that_older_files_lack_are_null() -> None:
    found = same(container(crab_schema(("FileName",)), [{"FileName": "//store/data/a.root"}]))
    ((lfn, group, cpu, wall),) = found.accesses
    assert (lfn, group.site, group.user, group.app, cpu, wall) == (
        "/store/data/a.root", "unknown", None, "unknown", None, None,
    )  # fmt: skip


def test_a_records_own_name_and_other_fields_do_not_matter() -> None:
    fields = {name: ["null", "string"] for name in CRAB_FIELDS}
    nested = {"type": "array", "items": {"type": "map", "values": ["null", "long"]}}
    other = schema_of({"x": nested, **fields, "y": {"type": "enum", "name": "e", "symbols": ["A"]}}, "another.Name")
    rows = [{**row, "x": [{"k": 1}], "y": "A"} for row in ROWS]
    assert same(container(other, rows)).accesses == Counted(container(crab_schema(), ROWS)).accesses


def test_a_file_of_another_schema_is_refused_with_the_fields_it_has() -> None:
    content = container(crab_schema(("Nothing", "Known")), [{"Nothing": "a", "Known": "b"}])
    with pytest.raises(DataError, match="FileName is wanted") as error:
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


@pytest.mark.parametrize(("kind", "value"), [("long", 5), ("double", 5.0), ("boolean", True), ("bytes", b"5")])
def test_seconds_that_are_no_text_are_malformed(kind: str, value: object) -> None:
    fields: dict[str, Any] = {name: ["null", "string"] for name in CRAB_FIELDS} | {"WrapCPU": ["null", kind]}
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


def test_bad_text_in_a_field_that_is_not_needed_is_not_looked_at() -> None:
    content = container(crab_schema(), [job(1), job(2, JobId="MARK"), job(3)]).replace(b"MARK", b"\xff\xfe\xc0\x80")
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
    for cut in sorted({*rng.sample(range(1, len(content)), 250), *(end + more for end in ends for more in (-1, 0, 1))}):
        if cut >= len(content):
            continue
        try:
            found = Counted(content[:cut], name="part-cut")
        except DataError as error:
            assert error.where == "part-cut"
            assert cut not in ends, f"cut at {cut}, the end of a block"
        else:
            assert cut in ends, f"cut at {cut}, {found.read} records were read"


@pytest.mark.parametrize("codec", ["null", "snappy", "deflate"])
def test_flipped_bits_never_crash_and_never_lose_a_record_silently(codec: str) -> None:
    content = container(crab_schema(), ROWS[:40], codec, block=300)
    rng = random.Random(6)
    for _ in range(200):
        at = rng.randrange(len(content))
        changed = content[:at] + bytes([content[at] ^ (1 << rng.randrange(8))]) + content[at + 1 :]
        try:
            found = Counted(changed)
        except DataError:
            continue
        assert found.read == len(found.accesses) + found.no_lfn + len(found.malformed)


@pytest.mark.parametrize(
    ("seconds", "wanted"),
    [
        (None, None), ("", None), ("0", 0), ("-0", 0), ("-0.0", 0), ("5", 5000), ("1.5", 1500), ("1.0004", 1000),
        ("0.0005", 1), ("0.0004999", 0), (".5", 500), ("1.", 1000), ("1e3", 1_000_000), ("1E-3", 1), ("007", 7000),
        ("123456789012345", 123_456_789_012_345_000), ("1e400", Malformed), ("-1", Malformed), ("-0.1", Malformed),
        ("nan", Malformed), ("inf", Malformed), ("Infinity", Malformed), (" 5", Malformed), ("5 ", Malformed),
        ("1_0", Malformed), ("0x10", Malformed), ("1e", Malformed), ("٥", Malformed), ("x", Malformed),
        (".", Malformed), ("+5", Malformed), ("1e17", Malformed), ("1e306", Malformed),
        ("9223372036854775.8", Malformed), ("9223372036854774.7", 9_223_372_036_854_773_760),
    ],
)  # fmt: skip
def test_seconds_are_whole_milliseconds(seconds: str | None, wanted: Any) -> None:
    if wanted is Malformed:
        with pytest.raises(Malformed):
            milliseconds(seconds, "WrapCPU")
    else:
        assert milliseconds(seconds, "WrapCPU") == wanted


LEGACY = ("FILE_LFN", "SITE_NAME", "USER_DN", "APP_INFO")
NUMBERS = ("READ_BYTES", "READ_BYTES_AT_CLOSE")


@settings(deadline=None, max_examples=300)
@given(
    st.lists(
        st.none()
        | st.sampled_from(["", "nan", "unknown", "-1", "-0", "1e3", ".5", "5.", " 5", "1_0", "٣", "9" * 15, "9" * 400])
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
    found = same(container(crab_schema(), [job(number, WrapCPU=value) for number, value in enumerate(values)]))
    wanted, bad = [], []
    for number, value in enumerate(values):
        try:
            wanted.append(milliseconds(value, "WrapCPU"))
        except Malformed:
            bad.append(number)
    assert Counter(access[2] for access in found.accesses) == Counter(wanted)
    assert [position for position, _ in found.malformed] == bad


class Counting(CrabDecoder):
    """Counts the records that are read one by one, and how often some of them are taken."""

    alone = taken = 0

    def avro_record(self, row: Mapping[str, Any]) -> Any:
        self.alone += 1
        return super().avro_record(row)

    def take(self, records: list[Any], batch: AccessBatch) -> None:
        self.taken += 1
        super().take(records, batch)


#: With compiled code, and without it.
both_ways = pytest.mark.parametrize("is_compiled", [pytest.param(True, marks=needs_compiled), False])


@both_ways
def test_a_number_that_is_none_costs_its_own_record_only(is_compiled: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if not is_compiled:
        monkeypatch.setattr(known_avro, "_plain_avro", None)
    decoder = Counting(DAY, APPS)
    rows = [job(number, WrapWC="nan" if number == 150 else "5") for number in range(300)]
    counted = Counted(container(crab_schema(), rows), decoder)
    assert (counted.read, len(counted.accesses), counted.malformed[0][0]) == (300, 299, 150)
    assert decoder.alone == int(is_compiled)


@needs_compiled
@pytest.mark.parametrize("codec", ["null", "snappy"])
def test_records_that_compiled_code_leaves_are_taken_at_once(codec: str) -> None:
    odd = {3: "nan", 7: "-0", 8: "1234567890123", 9: "x"}
    rows = [job(number, WrapCPU=odd.get(number % 25, "5")) for number in range(2000)]
    content = container(crab_schema(), rows, codec)
    decoder = Counting(DAY, APPS)
    found = Counted(content, decoder)
    assert (decoder.alone, decoder.taken) == (320, 1)
    assert found.__dict__ == same(content).__dict__
    assert [position for position, _ in found.malformed] == [n for n in range(2000) if n % 25 in (3, 9)]


@needs_compiled
def test_a_file_of_which_much_would_be_left_is_read_in_the_other_ways() -> None:
    rows = [job(number, WrapCPU="-0" if number % 4 else "5") for number in range(8000)]
    content = container(crab_schema(), rows)
    decoder = Counting(DAY, APPS)
    assert len(Counted(content, decoder).accesses) == 8000
    assert decoder.alone == 0
    same(content)


@needs_compiled
@pytest.mark.parametrize("seconds", ["0.30000000000000004", "1.0000000001e3", ".5", "5.", "1e3"])
def test_seconds_of_any_precision_are_read_by_compiled_code(seconds: str) -> None:
    decoder = Counting(DAY, APPS)
    content = container(crab_schema(), [job(number, WrapCPU=seconds) for number in range(50)])
    assert [access[2] for access in Counted(content, decoder).accesses] == [milliseconds(seconds, "")] * 50
    assert decoder.alone == 0


def long(number: int) -> bytes:
    """A number from 0 on as Avro writes it."""
    number, written = 2 * number, b""
    while number > 127:
        number, written = number >> 7, written + bytes([number & 127 | 128])
    return written + bytes([number])


@both_ways
@pytest.mark.parametrize("codec", CODECS)
@pytest.mark.parametrize("kind", ["null", ["null", "string"]], ids=["null", "string"])
@pytest.mark.parametrize("count", [4, 100, 5000, 10**9, 10**15, 2**60, 2**63 - 1])
def test_a_count_that_the_block_cannot_hold_is_damage(
    is_compiled: bool, codec: str, kind: Any, count: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not is_compiled:
        monkeypatch.setattr(known_avro, "_plain_avro", None)
    row = {"FileName": None if kind == "null" else "/store/a"}
    content = container(schema_of({"FileName": kind}), [row] * 3, codec)
    at = content.index(content[-16:]) + 16
    assert content[at] == 6
    with pytest.raises(DataError, match="cannot be read"):
        Counted(content[:at] + long(count) + content[at + 1 :])


@pytest.mark.parametrize("codec", CODECS)
def test_where_damage_is_accepted_a_count_that_cannot_be_ends_the_reading(codec: str) -> None:
    content = container(schema_of({"FileName": "null"}), [{"FileName": None}] * 3, codec)
    at = content.index(content[-16:]) + 16
    reasons: list[str] = []
    changed = content[:at] + long(2**60) + content[at + 1 :]
    batches = avro.decode(CrabDecoder(DAY, APPS), changed, "f", damaged=reasons.append)
    assert sum(batch.read for batch in batches) == 0
    assert f"{2**60} records" in reasons[-1]


@pytest.mark.parametrize("codec", CODECS)
def test_records_that_are_all_alike_are_no_damage(codec: str) -> None:
    found = same(container(crab_schema(("FileName",)), [{"FileName": None}] * 60_000, codec))
    assert (found.read, found.no_lfn) == (60_000, 60_000)


#: A process that has read such a file itself is forked: polars has threads by then, and the child has none of them.
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
child.join(60)
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
    fields = {name: ["null", "string"] for name in LEGACY} | {name: ["null", kind] for name in NUMBERS}
    number: Any = float if kind in ("double", "float") else int
    rows = [
        {"FILE_LFN": "/store/a", "SITE_NAME": "T2_X", "READ_BYTES": number(7), "READ_BYTES_AT_CLOSE": number(0)},
        {"FILE_LFN": "/store/a", "SITE_NAME": "", "READ_BYTES": None, "READ_BYTES_AT_CLOSE": None},
        {"FILE_LFN": "/store/a", "READ_BYTES": number(-1)},
        {"FILE_LFN": None},
    ]
    found = Counted(container(schema_of(fields), rows), CmsswDecoder(DAY, APPS))
    assert [(lfn, group.site, read) for lfn, group, read in found.accesses] == [
        ("/store/a", "T2_X", 7),
        ("/store/a", "unknown", 0),
    ]
    assert ([position for position, _ in found.malformed], found.no_lfn, found.read) == ([2], 1, 4)


@needs_compiled
@pytest.mark.parametrize("kind", ["double", "float"])
def test_whole_numbers_as_floats_are_read_by_compiled_code(kind: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(known_avro, "rows_of", None)
    fields = {"FILE_LFN": "string", "READ_BYTES": kind, "READ_BYTES_AT_CLOSE": ["null", kind]}
    sizes = [0.0, -0.0, 1.0, 2.0**24, 2.0**62, 2.0**63 - 2.0**39]
    rows = [{"FILE_LFN": "/store/a", "READ_BYTES": size, "READ_BYTES_AT_CLOSE": None} for size in sizes]
    found = Counted(container(schema_of(fields), rows), CmsswDecoder(DAY, APPS))
    assert sorted(read for _, _, read in found.accesses) == [0, 0, 1, 2**24, 2**62, 2**63 - 2**39]


@pytest.mark.parametrize("value", [0.5, float("nan"), float("inf"), 1e19, 2.0**63, -1.0, -(2.0**-1074)])
def test_legacy_numbers_that_are_no_bytes_are_malformed(value: float) -> None:
    fields = {"FILE_LFN": "string", "READ_BYTES": "double"}
    found = Counted(
        container(schema_of(fields), [{"FILE_LFN": "/store/a", "READ_BYTES": value}]), CmsswDecoder(DAY, APPS)
    )
    assert len(found.malformed) == 1
