"""The sample of a task: new fields with examples that name nobody, and the types of the
needed ones.
"""

from __future__ import annotations

import gzip
import io
import json
from datetime import date
from pathlib import Path
from typing import Any

import pytest

from cmsspark.sources.reader import OF_TASK, ONE_IN, Reader
from tests.corpus import cases_avro
from tests.corpus.avro_files import CRAB_FIELDS, container
from tests.corpus.json_lines import ABSENT, aaa, cmssw, g1, g3

DAY = date(2019, 6, 15)
EXAMPLES = Path(__file__).parents[1] / "examples"


def notes(
    content: bytes, stream: str = "aaa", form: str = "enr"
) -> list[tuple[str, int, dict[str, Any]]]:
    reader = Reader(stream, form, DAY)
    list(reader.file(io.BytesIO(content), "part-0"))
    return [
        (name, count, json.loads(detail))
        for kind, name, count, detail in reader.notes()
        if kind == "sample"
    ]


def new(content: bytes, stream: str = "aaa", form: str = "enr") -> dict[str, str]:
    return {
        told["field"]: told["example"]
        for name, _, told in notes(content, stream, form)
        if name == "new"
    }


def types(content: bytes, field: str, stream: str = "aaa", form: str = "enr") -> dict[str, int]:
    return {
        told["type"]: count
        for name, count, told in notes(content, stream, form)
        if name == "seen" and told["field"] == field
    }


@pytest.mark.parametrize("path", sorted(EXAMPLES.glob("*.json")), ids=lambda path: path.stem)
def test_the_examples_of_all_sources_have_no_new_fields(path: Path) -> None:
    stream, _, form = path.stem.partition("-")
    record = json.loads(path.read_text(encoding="utf-8"))
    if form == "avro":
        kinds = {int: "long", float: "double"}
        fields = {key: kinds.get(type(value), "string") for key, value in record.items()}
        content = container(fields, [record])
    else:
        content = json.dumps(record).encode() + b"\n"
    assert new(content, stream, "json" if stream == "eos" else form) == {}


def test_new_fields_are_reported_with_examples_that_hold_no_text() -> None:
    secret = "Alice Secret"
    content = aaa(
        {
            "text": secret,
            "number": 7,
            "flag": True,
            "list": [secret],
            "map": {secret: 1},
            "none": None,
        }
    )
    assert new(content + b"\n") == {
        "data.text": "text of 12 characters",
        "data.number": "number 7",
        "data.flag": "boolean true",
        "data.list": "array of 1 values",
        "data.map": "object of 1 fields",
        "data.none": "null",
    }


def test_a_new_name_that_may_be_a_persons_is_not_shown() -> None:
    found = new(aaa({"Alice Secret": 1, "x" * 99: 2}) + b"\n")
    assert set(found) == {"a name of 17 characters", "a name of 104 characters"}


def test_new_fields_are_found_beside_data_and_in_metadata_and_in_g1s_text() -> None:
    assert set(new(b'{"data":{},"metadata":{"more":1},"other":2}\n')) == {"metadata.more", "other"}
    assert "newkey" in new(g1()[:-1].replace(b"path=", b"newkey=1&path=") + b"}\n", "eos", "json")


def test_needed_fields_are_reported_with_their_types_and_where_they_are_missing() -> None:
    lines = [
        aaa(),
        aaa({"user_dn": None}),
        aaa({"user_dn": ABSENT}),
        aaa({"user_dn": 5}),
        aaa({"user_dn": {}}),
    ]
    found = types(b"\n".join(lines) + b"\n", "data.user_dn")
    assert found == {"text": 1, "null": 1, "": 1, "whole number": 1, "object": 1}
    assert types(b"\n".join(lines) + b"\n", "") == {"records": 5}


def test_eos_records_are_reported_by_their_own_form() -> None:
    found = notes(g1() + b"\n" + g3() + b"\n", "eos", "json")
    assert {told["form"] for name, _, told in found if name == "seen"} == {"G1", "G3"}


def test_avro_types_come_from_the_files_schema() -> None:
    fields = {**CRAB_FIELDS, "WrapCPU": "long", "New": "boolean"}
    del fields["GridName"]
    content = container(fields, [{**cases_avro.CRAB, "WrapCPU": 5, "New": True}] * 3)
    assert types(content, "WrapCPU", "crab", "avro") == {"long": 3}
    assert types(content, "GridName", "crab", "avro") == {"": 3}
    assert new(content, "crab", "avro") == {"New": "of Avro type boolean"}


def test_a_sample_is_small_however_many_records_and_files_there_are() -> None:
    reader = Reader("cmssw", "json", DAY)
    for _ in range(50):
        list(reader.file(io.BytesIO(gzip.compress((cmssw() + b"\n") * 150)), "part-0"))
    samples = [
        (count, json.loads(detail))
        for kind, _, count, detail in reader.notes()
        if kind == "sample"
    ]
    (looked,) = [count for count, told in samples if told["field"] == ""]
    assert OF_TASK <= looked <= OF_TASK + 50 + 50 * 150 // ONE_IN


def test_a_record_of_a_thousand_new_fields_makes_few_notes() -> None:
    assert len(new(aaa({f"f{number}": 1 for number in range(1000)}) + b"\n")) == 50


def test_lines_that_are_no_records_are_no_part_of_a_sample() -> None:
    content = b'broken\n[1]\n{"data":5}\n\xff\n\n' + aaa() + b"\n"
    assert types(content, "") == {"records": 1}
