"""Broken, drifting and hostile input in whole runs: a clear answer to each, and nothing lost."""

from __future__ import annotations

import gzip
from collections.abc import Callable
from pathlib import Path
from typing import Any
from urllib.parse import unquote

import pytest

from cmsspark.base import errors
from cmsspark.base.schemas import stored_table
from cmsspark.publish.documents import DaySummary, DocumentSpec, completeness
from tests.corpus import cases_avro
from tests.corpus.avro_files import CRAB_FIELDS, container
from tests.corpus.hostile import DAY
from tests.corpus.json_lines import ABSENT, aaa, g3
from tests.corpus.tree import Tree
from tests.run.places import Place

LINES = [aaa({"unique_id": f"u-{number * 7919}"}) for number in range(60)]
PACKED = gzip.compress(b"\n".join(LINES) + b"\n", mtime=0)
CUT = PACKED[: len(PACKED) // 2]


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def write_damaged(tree: Tree) -> None:
    """A day with an intact file and a cut one, of each format."""
    tree.write("aaa enr", "part-0.json", b"\n".join(LINES[:5]) + b"\n")
    (tree.folder("aaa enr") / "part 1%.json.gz").write_bytes(CUT)
    jobs = container(CRAB_FIELDS, [cases_avro.CRAB] * 40, block=10)
    tree.write("crab avro", "part-0.avro", jobs)
    tree.write("crab avro", "part-1.avro", jobs[:-30])


# Damage
# -----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("feed", ["direct", "spark"])
def test_accepted_damage_is_read_as_far_as_it_is_intact_and_reported_in_the_result(
    spark: object, place: Place, feed: str
) -> None:
    write_damaged(place.tree)
    options = ["--streams", "aaa,crab", "--feed", feed]
    error = place.fails(errors.DataError, "data_aggregation", *options)
    assert "part 1%.json.gz" in unquote(str(error)) or "part-1.avro" in str(error)
    folder = place.tree.folder("aaa enr")
    accepted = [
        "--accept-damaged",
        str(folder / "part 1%.json.gz"),
        "--accept-damaged",
        "part-1.avro",
    ]
    assert place.run("data_aggregation", *options, *accepted) == 0
    manifest = place.manifest("partials")
    text, jobs = sorted(manifest["damaged"], key=lambda one: str(one["stream"]))
    assert (text["stream"], text["file"], text["reason"]) == (
        "aaa",
        str(folder / "part 1%.json.gz"),
        "cut short",
    )
    assert 0 < text["records_read"] < 60
    assert text["unverified_records"] == text["records_read"]
    assert jobs["file"] == str(place.tree.folder("crab avro") / "part-1.avro")
    assert (jobs["stream"], jobs["records_read"]) == ("crab", 30)
    assert jobs["reason"]
    assert manifest["partial"]
    assert manifest["reconciliation"]["aaa"]["read"] == 5 + text["records_read"]
    assert manifest["reconciliation"]["aaa"]["malformed"] == 0
    assert manifest["reconciliation"]["crab"]["read"] == 70
    assert sum("is damaged" in text for text in manifest["warnings"]) == 2
    assert (
        sum(
            f"{text['records_read']} of them unverified" in warning
            for warning in manifest["warnings"]
        )
        == 1
    )
    shape = DocumentSpec(stored_table("data_aggregation"), DAY, "p", "t")
    document = completeness(shape, DaySummary(1, "0" * 64, (), 0, 0), manifest)
    assert (document["is_partial"], document["damaged_file_count"]) == (True, 2)


def test_only_the_damage_that_is_named_is_accepted(spark: object, place: Place) -> None:
    write_damaged(place.tree)
    (place.tree.folder("aaa enr") / "part-2.json.gz").write_bytes(CUT)
    error = place.fails(errors.DataError, "dbs_aaa", "--accept-damaged", "part-2.json.gz")
    assert "part 1%.json.gz" in str(error)
    assert error.next_step is not None
    assert "--accept-damaged" in error.next_step


def test_a_file_that_is_not_the_days_cannot_be_accepted(place: Place) -> None:
    write_damaged(place.tree)
    for named in (
        "part-9",
        "/etc/passwd",
        "../part-0.json",
        "",
        str(place.tree.dbs() / "FILES/part-00001-1f0e.csv"),
    ):
        error = place.fails(errors.UsageError, "dbs_aaa", "--accept-damaged", named)
        assert (error.exit_code, repr(named) in str(error)) == (2, True)


def test_a_name_that_two_streams_have_must_be_given_with_its_path(place: Place) -> None:
    place.tree.write("aaa enr", "part-0", aaa())
    place.tree.write(place.tree.eos(), "part-0", g3())
    error = place.fails(
        errors.UsageError, "data_aggregation", "--streams", "aaa,eos", "--accept-damaged", "part-0"
    )
    assert "2 files of that name" in str(error)


# Drift
# ------------------------------------------------------------------------------------------------------------


def write_lines(tree: Tree, changes: dict[str, Any], count: int = 120) -> None:
    tree.write("aaa enr", "part-0.json", b"\n".join([aaa(changes)] * count) + b"\n")


def test_new_fields_are_reported_in_the_manifest_and_in_one_warning(
    spark: object, place: Place
) -> None:
    write_lines(place.tree, {"cache_hit": True, "secret_note": "Alice Secret"}, count=3)
    assert place.run("dbs_aaa") == 0
    manifest = place.manifest("dbs_aaa")
    assert manifest["drift"] == {
        "aaa": [
            {
                "field": f"data.{name}",
                "form": "enr",
                "change": "new",
                "example": example,
                "records": 3,
            }
            for name, example in (
                ("cache_hit", "boolean true"),
                ("secret_note", "text of 12 characters"),
            )
        ]
    }
    (warning,) = manifest["warnings"]
    assert warning.startswith(
        "aaa: fields are not those of its schema: data.cache_hit (new: boolean true), data."
    )
    assert "Alice" not in str(manifest)


OTHER_SCHEMA: dict[str, tuple[dict[str, Any], int, list[str]]] = {
    "the lfn is gone": (
        {"file_lfn": ABSENT, "name": "/store/x"},
        20,
        ["data.file_lfn: text expected, found in none"],
    ),
    "both byte counts are gone": (
        {"read_bytes": ABSENT, "read_bytes_at_close": ABSENT},
        120,
        [
            "data.read_bytes: a whole number expected",
            "data.read_bytes_at_close: a whole number expected",
        ],
    ),
    "the user is gone": (
        {"user_dn": ABSENT},
        120,
        ["data.user_dn: text expected, found in none of 100 records"],
    ),
    "the site is gone": ({"src_experiment_site": ABSENT}, 120, ["data.src_experiment_site"]),
    "a number became a text": (
        {"read_bytes": "5"},
        20,
        ["data.read_bytes: a whole number expected, found text in 20"],
    ),
    "a text became an object": (
        {"user_dn": {"dn": "Alice"}},
        20,
        ["data.user_dn: text expected, found object in 20"],
    ),
    "a number became a fraction": (
        {"read_bytes_at_close": 0.5},
        20,
        ["found fraction in 20 of 20 records"],
    ),
}


@pytest.mark.parametrize("name", OTHER_SCHEMA)
def test_a_needed_field_that_is_gone_or_of_another_type_in_all_records_fails_with_the_difference(
    spark: object, place: Place, name: str
) -> None:
    changes, count, told = OTHER_SCHEMA[name]
    write_lines(place.tree, changes, count)
    error = place.fails(errors.DataError, "dbs_aaa", "--max-malformed", "100%")
    assert error.exit_code == 65
    assert "another schema" in str(error)
    for words in told:
        assert words in str(error)
    assert "Alice" not in str(error)


def some_have_it(tree: Tree) -> None:
    lines = [aaa({"user_dn": ABSENT})] * 110 + [aaa()]
    tree.write("aaa enr", "part-0.json", b"\n".join(lines) + b"\n")


def few_records(tree: Tree) -> None:
    write_lines(tree, {"user_dn": ABSENT, "app_info": ABSENT}, count=30)


def all_null(tree: Tree) -> None:
    write_lines(tree, {"user_dn": None, "app_info": None, "src_experiment_site": None})


def one_count(tree: Tree) -> None:
    write_lines(
        tree, {"read_bytes_at_close": ABSENT, "write_bytes": ABSENT, "dst_experiment_site": ABSENT}
    )


@pytest.mark.parametrize(
    ("write", "fields"),
    [
        (some_have_it, ["data.user_dn"]),
        (few_records, []),
        (all_null, []),
        (one_count, ["data.read_bytes_at_close", "data.write_bytes", "data.dst_experiment_site"]),
    ],
)
def test_a_field_that_some_record_has_or_that_rules_can_do_without_is_no_other_schema(
    spark: object, place: Place, write: Callable[[Tree], None], fields: list[str]
) -> None:
    write(place.tree)
    assert place.run("dbs_aaa") == 0
    told = place.manifest("dbs_aaa")["drift"].get("aaa", [])
    assert [(one["field"], one["change"]) for one in told] == [
        (name, "missing") for name in fields
    ]


# Sums beyond 64 bits
# ------------------------------------------------------------------------------------------------


def write_oversized(tree: Tree) -> None:
    """Three records that add up to more than 64 bits hold, and a larger one of a file
    that is not in DBS.
    """
    small, large = (
        aaa({"read_bytes_at_close": 7}),
        aaa({"read_bytes_at_close": 5 * 10**18, "read_bytes": 0}),
    )
    unknown = aaa({"file_lfn": "/store/data/nowhere", "read_bytes_at_close": 9 * 10**18})
    largest = aaa({"read_bytes_at_close": 5 * 10**18 + 1, "read_bytes": 0})
    tree.write("aaa enr", "part-0.json", b"\n".join([small, large, unknown]) + b"\n")
    tree.write("aaa enr", "part-1.json", b"\n".join([small, small, largest, small]) + b"\n")
    tree.write("crab avro", "part-0.avro", container(CRAB_FIELDS, [cases_avro.CRAB] * 4))


@pytest.mark.parametrize("options", [[], ["--feed", "spark"], ["--join", "shuffle"]])
def test_a_sum_beyond_64_bits_names_the_largest_record_and_a_way_on(
    spark: object, place: Place, options: list[str]
) -> None:
    write_oversized(place.tree)
    options = ["--streams", "aaa,crab", *options]
    error = place.fails(errors.DataError, "data_aggregation", *options)
    assert "aaa, dataset /" in error.problem and "beyond 2^63-1" in error.problem
    assert str(error.where).endswith("part-1.json, line 3")
    assert "5,000,000,000,000,000,001 bytes" in str(error.found)
    assert "--quarantine-above" in str(error.next_step)
    assert not list(Path(place.fout).rglob("CURRENT"))
    options += ["--quarantine-above", str(5 * 10**18)]
    assert place.run("data_aggregation", *options) == 0
    manifest = place.manifest("partials")
    assert (manifest["partial"], manifest["oversized"]) == (True, {"aaa": 2})
    told = manifest["reconciliation"]["aaa"]
    assert (told["read"], told["matched"], told["malformed"]) == (7, 5, 2)
    assert "aaa: 2 records beyond --quarantine-above in quarantine" in manifest["warnings"]
    rows = [row for row in place.rows("data_aggregation") if row["stream"] == "aaa"]
    assert sum(row["read_bytes"] for row in rows) == 5 * 10**18 + 4 * 7
    # Another job does not take what was left out for what there is.
    assert place.run("dbs_aaa", "--quarantine-above", "1000") == 0
    assert place.manifest("dbs_aaa")["oversized"] == {"aaa": 3}
