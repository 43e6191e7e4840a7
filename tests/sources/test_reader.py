"""An example record of each source and generation becomes the access that it was."""

from __future__ import annotations

import gzip
import io
import json
from datetime import date
from pathlib import Path
from typing import Any

import fastavro
import pytest

from cmsspark.base.access import Group, Remote
from cmsspark.base.errors import UsageError
from cmsspark.base.schemas import input_table
from cmsspark.sources.reader import Reader

EXAMPLES = Path(__file__).resolve().parent.parent / "examples"
DAY = date(2019, 6, 15)
LFN = (
    "/store/mc/RunIISummer16MiniAODv2/TTJets_13TeV/MINIAODSIM/PUMoriond17_v6-v1/50000/"
    "72C78841-2110-E711-867F-F832E4CC4D39.root"
)
READ = 1_048_576_000
PERSON = "Example Person"
AT_CERN = Group("T2_CH_CERN", "fuse", PERSON, Remote.UNKNOWN)
IN_DESY = Group("T2_DE_DESY", "crab", PERSON, Remote.BY_REPLICA)

#: example → stream, form, schema, what it must become
WANTED: dict[str, tuple[str, str, str, Group, str | None]] = {
    "aaa-enr": (
        "aaa",
        "enr",
        "aaa/enr",
        Group("T2_CH_CERN", "crab", PERSON, Remote.YES, "T1_US_FNAL"),
        None,
    ),
    "aaa-raw": ("aaa", "raw", "aaa/raw", Group("unknown", "crab", PERSON, Remote.UNKNOWN), None),
    "eos-g1": ("eos", "eos", "eos/g1", AT_CERN, "G1"),
    "eos-g2-prefixed": ("eos", "eos", "eos/g2", AT_CERN, "G2"),
    "eos-g2": ("eos", "eos", "eos/g2", AT_CERN, "G2"),
    "eos-g3": ("eos", "eos", "eos/g3", AT_CERN, "G3"),
    "cmssw-json": ("cmssw", "json", "cmssw/json", IN_DESY, None),
    "cmssw-avro": ("cmssw", "avro", "cmssw/avro", IN_DESY, None),
    "crab-avro": ("crab", "avro", "crab/avro", IN_DESY, None),
}
JSON_EXAMPLES = [name for name in WANTED if not name.endswith("avro")]


def example(name: str) -> dict[str, Any]:
    found: dict[str, Any] = json.loads((EXAMPLES / f"{name}.json").read_text())
    return found


def content(name: str, count: int = 1) -> bytes:
    """A file with the example ``count`` times."""
    record = example(name)
    if not name.endswith("avro"):
        return (json.dumps(record, ensure_ascii=False) + "\n").encode() * count
    kinds: dict[type, str] = {str: "string", int: "long", float: "double"}
    fields = [{"name": key, "type": ["null", kinds[type(value)]]} for key, value in record.items()]
    stored = io.BytesIO()
    schema = fastavro.parse_schema({"type": "record", "name": "example", "fields": fields})
    fastavro.writer(stored, schema, [record] * count, codec="snappy")
    return stored.getvalue()


def test_lines_that_spark_has_read_have_the_limit_too() -> None:
    reader = Reader("aaa", "raw", DAY, 2_000_000)
    good = b'{"data":{"file_lfn":"/store/a"}}\n'
    batch = reader.chunk(
        good + b"x" * 2_000_001 + b"\n" + good + b"{" + b" " * 1_999_998 + b"}\n", "f"
    )
    assert batch.read == 4
    kept = [(one.position, one.reason, one.whole_size) for one in batch.malformed]
    assert kept == [
        (2, "a line of more than 2000000 bytes", 2_000_001),
        (4, "data: missing", 2_000_000),
    ]


def test_every_source_and_generation_has_an_example() -> None:
    assert {path.stem for path in EXAMPLES.glob("*.json")} == set(WANTED)


@pytest.mark.parametrize("name", WANTED)
def test_an_example_becomes_its_access(name: str) -> None:
    stream, form, _, group, generation = WANTED[name]
    reader = Reader(stream, form, DAY)
    batch = next(reader.file(io.BytesIO(content(name, 3)), "part-0")).unpack()
    assert batch.lfns == [LFN] * 3
    assert [reader.groups[number] for number in batch.groups] == [group] * 3
    if stream == "crab":
        assert (batch.read_bytes, batch.cpu_ms, batch.wall_ms) == (
            None,
            [3_204_750] * 3,
            [3_600_000] * 3,
        )
    else:
        assert (batch.read_bytes, batch.cpu_ms, batch.wall_ms) == ([READ] * 3, None, None)
    assert (batch.read, batch.write_only, batch.no_lfn, batch.out_of_day, batch.malformed) == (
        3,
        0,
        0,
        {},
        [],
    )
    assert batch.generations == ({generation: 3} if generation else {})


@pytest.mark.parametrize("name", WANTED)
def test_an_example_has_the_fields_of_its_schema(name: str) -> None:
    record = example(name)
    columns = [column for column in input_table(WANTED[name][2]).columns if column.feeds]
    names = (
        set(record) if "data" not in record else {f"metadata.{key}" for key in record["metadata"]}
    )
    if name == "eos-g1":
        names |= {part.partition("=")[0] for part in record["data"].split("&")}
    elif "data" in record:
        names |= {f"data.{key}" for key in record["data"]}
    other_form = "second form" if name == "eos-g2-prefixed" else "first form"
    needed = {column.name for column in columns if other_form not in column.about}
    assert needed <= names


@pytest.mark.parametrize("name", JSON_EXAMPLES)
def test_an_example_of_another_day_is_out_of_it(name: str) -> None:
    stream, form, *_ = WANTED[name]
    reader = Reader(stream, form, date(2019, 6, 16))
    (batch,) = reader.file(io.BytesIO(content(name)), "part-0")
    assert (batch.lfns, batch.read) == ([], 1)
    assert batch.out_of_day == {(DAY - date(1970, 1, 1)).days: 1}


@pytest.mark.parametrize("name", JSON_EXAMPLES)
def test_lines_that_something_else_has_read_and_gzip_give_the_same(name: str) -> None:
    stream, form, *_ = WANTED[name]
    whole = Reader(stream, form, DAY).chunk(content(name, 2), "part-0")
    (packed,) = Reader(stream, form, DAY).file(
        io.BytesIO(gzip.compress(content(name, 2))), "part-0.gz"
    )
    assert whole.unpack() == packed.unpack()


def test_all_generations_of_eos_may_lie_in_one_file() -> None:
    names = [name for name in WANTED if name.startswith("eos")]
    reader = Reader("eos", "eos", DAY)
    (batch,) = reader.file(io.BytesIO(b"".join(map(content, names)) * 2), "part-0")
    assert batch.lfns == [LFN] * 8
    assert batch.generations == {"G1": 2, "G2": 4, "G3": 2}
    assert list(reader.groups) == [AT_CERN]


def test_groups_are_numbered_once_for_all_files_of_a_task() -> None:
    reader = Reader("aaa", "enr", DAY)
    batches = [
        batch.unpack()
        for _ in range(2)
        for batch in reader.file(io.BytesIO(content("aaa-enr")), "part-0")
    ]
    assert [batch.groups for batch in batches] == [[0], [0]]
    assert len(reader.groups) == 1


def test_avro_files_are_no_lines() -> None:
    with pytest.raises(TypeError):
        Reader("crab", "avro", DAY).chunk(b"x\n", "part-0")


def test_a_stream_of_no_known_name_is_reported() -> None:
    with pytest.raises(UsageError, match="no stream 'nosuch'"):
        Reader("nosuch", "json", DAY)
