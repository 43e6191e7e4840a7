"""Files that are packed or written as logs are not: all their records count, or the day
ends in 65 naming the file.
"""

from __future__ import annotations

import gzip
import os
from pathlib import Path

import pytest

from cmsspark.base.errors import DataError, UsageError
from tests.corpus import odd_files
from tests.corpus.json_lines import aaa
from tests.run.places import Place

LINES = b"".join(aaa({"unique_id": f"u-{number * 7919}"}) + b"\n" for number in range(200))
READ = odd_files.read_as_lines(LINES)
REFUSED = odd_files.refused(LINES)


@pytest.fixture
def place(tmp_path: Path) -> Place:
    place = Place(tmp_path)
    place.tree.write("aaa enr", "part-0.json", LINES)
    return place


def test_all_records_count_whatever_packing_that_is_read_a_file_has(place: Place) -> None:
    for name, content in READ.items():
        (place.tree.folder("aaa enr") / name).write_bytes(content)
    assert place.run("dbs_aaa") == 0
    manifest = place.manifest("dbs_aaa")
    assert manifest["reconciliation"]["aaa"]["matched"] == 200 * (1 + len(READ))
    assert {
        Path(file["file"]).name: file["records_counted"] for file in manifest["files_read"]["aaa"]
    } == {name: 200 for name in ("part-0.json", *READ)}


@pytest.mark.parametrize("name", REFUSED)
def test_a_file_that_no_record_can_be_read_from_ends_the_day_in_65_and_can_be_left_out(
    place: Place, name: str
) -> None:
    content, words = REFUSED[name]
    path = place.tree.folder("aaa enr") / name
    path.write_bytes(content)
    error = place.fails(DataError, "dbs_aaa", "--max-malformed", "100%")
    assert error.exit_code == 65
    assert str(error.where) == str(path)
    assert words in str(error)
    assert place.run("dbs_aaa", "--accept-damaged", name) == 0
    manifest = place.manifest("dbs_aaa")
    (damage,) = manifest["damaged"]
    counted = 200 + damage["records_read"]
    assert (
        manifest["reconciliation"]["aaa"]["matched"]
        == manifest["reconciliation"]["aaa"]["read"]
        == counted
    )
    assert (manifest["partial"], damage["file"]) == (True, str(path))
    assert damage["reason"]


def test_spark_reads_and_refuses_the_same_files(spark: object, place: Place) -> None:
    for name, content in READ.items():
        (place.tree.folder("aaa enr") / name).write_bytes(content)
    whole = gzip.compress(LINES)
    (place.tree.folder("aaa enr") / "large.json.gz").write_bytes(whole)
    named_so = [name for name in READ if name.startswith("part")]
    for name in READ.keys() - set(named_so):
        (place.tree.folder("aaa enr") / name).unlink()
    for name, (content, _) in REFUSED.items():
        (place.tree.folder("aaa enr") / name).write_bytes(content)
    accepted = [option for name in REFUSED for option in ("--accept-damaged", name)]
    by_processes = Place(place.folder)
    assert place.run("dbs_aaa", "--feed", "spark", *accepted) == 0
    by_spark = place.manifest("dbs_aaa")
    assert by_processes.run("dbs_aaa", "--feed", "direct", "--recount", *accepted) == 0
    by_hand = by_processes.manifest("dbs_aaa")
    for entry in ("reconciliation", "files_read", "damaged"):
        assert by_spark[entry] == by_hand[entry]
    assert by_spark["reconciliation"]["aaa"]["read"] >= 200 * (2 + len(named_so))


@pytest.mark.parametrize(
    "name", ["array.json", "pretty.json", "stored.zip", "part.tar", "utf-16.json"]
)
def test_through_spark_a_file_that_no_record_can_be_read_from_is_65(
    spark: object, place: Place, name: str
) -> None:
    content, words = REFUSED[name]
    path = place.tree.folder("aaa enr") / name
    path.write_bytes(content)
    error = place.fails(DataError, "dbs_aaa", "--feed", "spark")
    assert (error.exit_code, words in str(error), str(path) in str(error)) == (65, True, True)


def test_a_part_whose_only_line_is_malformed_counts_within_the_tolerance(place: Place) -> None:
    (place.tree.folder("aaa enr") / "part-1.json").write_bytes(b'{"data": {"file_lfn": ')
    assert place.run("dbs_aaa") == 0
    bins = place.manifest("dbs_aaa")["reconciliation"]["aaa"]
    assert (bins["read"], bins["malformed"], bins["matched"]) == (201, 1, 200)
    # Ten records in one line are lost as one: such a file is damaged.
    glued = LINES.replace(b"\n", b"")[: len(LINES) // 15]
    (place.tree.folder("aaa enr") / "part-1.json").write_bytes(glued)
    error = place.fails(DataError, "dbs_aaa", "--recount", "--max-malformed", "100%")
    assert "without one well-formed record is damaged" in str(error)


def test_the_path_of_a_store_is_utf_8_and_the_name_of_a_part_is_any(place: Place) -> None:
    part = place.tree.folder("aaa enr") / "part-0.json"
    part.rename(os.fsdecode(os.fsencode(part.parent) + b"/part-\xff\xe9"))
    assert place.run("dbs_aaa") == 0
    odd = os.fsdecode(os.fsencode(place.folder) + b"/store-\xff")
    error = place.fails(UsageError, "dbs_aaa", fout=odd)
    assert (error.exit_code, "must be UTF-8" in str(error)) == (2, True)
