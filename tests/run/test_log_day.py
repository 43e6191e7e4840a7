"""The jobs on log streams as a person runs them: what ends how, and what is left behind."""

from __future__ import annotations

import gzip
import json
import os
import stat
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from click.testing import CliRunner

from cmsspark import main
from cmsspark.base import errors, reporting
from cmsspark.run.log_day import run
from cmsspark.run.scan_summary import ScanSummary
from cmsspark.store.own_jobs import find_job
from cmsspark.submit.job_help import load_command
from tests.corpus import avro_files
from tests.corpus.hostile import DAY
from tests.corpus.json_lines import aaa, g3
from tests.corpus.tree import Tree
from tests.run.places import Place, crab, write_streams


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


# A day that runs
# ---------------------------------------------------------------------------------------------------


@pytest.fixture(scope="module")
def done(spark: object, tmp_path_factory: pytest.TempPathFactory) -> Place:
    """The day of all streams, run once."""
    place = Place(tmp_path_factory.mktemp("day"))
    write_streams(place.tree)
    assert place.run("data_aggregation.py") == 0
    return place


def test_the_manifest_counts_readers_that_have_no_compiled_code(
    spark: Any, place: Place, monkeypatch: pytest.MonkeyPatch
) -> None:
    write_streams(place.tree)
    # The workers', not the driver's, as on a node with another Python.
    monkeypatch.setitem(spark.sparkContext.environment, "CMSSPARK_COMPILED", "0")
    assert place.run("dbs_aaa", "--join", "shuffle") == 0
    told = place.manifest("dbs_aaa")
    assert told["compiled"] is False
    assert list(told["readers"]) == ["off"] and told["readers"]["off"] > 0


def test_all_readers_must_have_compiled_code_for_the_manifest_to_say_so() -> None:
    def compiled(*readers: tuple[str, int]) -> dict[str, Any]:
        rows = [("reader", "aaa", name, count, "") for name, count in readers]
        return ScanSummary.from_rows(rows, ("aaa",)).compiled()

    assert compiled(("compiled", 7)) == compiled() == {"compiled": True}
    assert compiled(("compiled", 7), ("missing", 2), ("missing", 1)) == {
        "compiled": False,
        "readers": {"compiled": 7, "missing": 3},
    }


def test_every_record_is_in_one_bin_of_the_manifest(done: Place) -> None:
    found = done.manifest("partials")["reconciliation"]
    assert list(found) == ["aaa", "eos", "cmssw", "crab"]
    none = {"no_lfn": 0, "user_file": 0, "temporary": 0, "not_in_dbs": 0}
    assert found["aaa"] == {
        "read": 15,
        "matched": 6,
        "unmatched": dict.fromkeys(none, 1),
        "malformed": 2,
        "out_of_day": 2,
        "write_only": 1,
    }
    assert found["eos"] == {
        "read": 3,
        "matched": 3,
        "unmatched": none,
        "malformed": 0,
        "out_of_day": 0,
        "deletion": 0,
        "write_only": 0,
    }
    assert found["cmssw"]["matched"] == 2
    assert found["crab"] == {
        "read": 2,
        "matched": 1,
        "unmatched": none | {"no_lfn": 1},
        "malformed": 0,
        "out_of_day": 0,
        "repeated": 0,
        "write_only": 0,
    }


def test_the_manifest_says_what_the_result_was_made_from(done: Place) -> None:
    manifest = done.manifest("data_aggregation")
    assert manifest["out_of_day_by_day"] == {
        "aaa": {"2019-06-14": 1, "beyond 9999-12-31": 1},
        "eos": {},
        "cmssw": {},
        "crab": {},
    }
    assert manifest["generations"] == {"eos": {"G1": 1, "G3": 2}}
    prefixes = dict(manifest["unmatched_prefixes"]["aaa"])
    assert prefixes == {"/store/data/*": 1, "/store/temp/*": 1, "/store/user/*": 1}
    assert [[Path(path).name for path in same] for same in manifest["identical_files"]] == [
        ["part-0.json", "part-1.json"]
    ]
    assert (manifest["partial"], manifest["missing_streams"], manifest["join"]) == (
        False,
        [],
        "index",
    )
    assert {kind: dump["day"] for kind, dump in manifest["dumps"].items()} == {
        "dbs": "2019-06-16",
        "phedex": "2019-06-16",
    }
    files = {
        one["stream"]: [Path(path).name for path, _, _ in one["files"]]
        for one in manifest["inputs"]
    }
    assert files["aaa"] == ["part-0.json", "part-1.json", "part-2.json.gz"]
    assert manifest["tables"]["data_aggregation"]["rows"] == len(done.rows("data_aggregation"))
    read = sum(one["read"] for one in manifest["reconciliation"].values())
    assert manifest["reduction_factor"] == round(read / len(done.rows("data_aggregation")), 3)


def test_malformed_records_are_kept_whole_where_only_their_owner_reads(done: Place) -> None:
    kept = Path(done.manifest("partials")["quarantine"])
    assert stat.S_IMODE(kept.stat().st_mode) == 0o600
    for folder in list(kept.parents)[:3]:
        assert stat.S_IMODE(folder.stat().st_mode) == 0o700
    records = [json.loads(line) for line in kept.read_text().splitlines()]
    assert sorted(record["position"] for record in records) == [5, 6]
    assert all(
        "Secret Person" in record["raw"] and record["stream"] == "aaa" for record in records
    )
    assert all("Secret" not in record["reason"] for record in records)


def test_no_name_of_a_person_is_stored(done: Place) -> None:
    for file in (done.folder / "store").rglob("*"):
        if file.is_file():
            assert b"Alice" not in file.read_bytes(), file
    key = done.folder / "state" / "pseudonym.key"
    assert stat.S_IMODE(key.stat().st_mode) == 0o600
    users = {row["user"] for row in done.rows("partials")}
    key_id = done.manifest("partials")["pseudonym_key_id"]
    assert None in users
    assert all(user.startswith(f"{key_id}:") for user in users - {None})


def test_a_day_that_is_run_again_has_identical_rows(done: Place) -> None:
    before = done.manifest("partials")
    rows = done.rows("data_aggregation"), done.rows("partials")
    assert done.run("data_aggregation", "--join", "shuffle") == 0
    after = done.manifest("partials")
    assert after["run"] != before["run"]
    assert after["join"] == "shuffle"
    assert (done.rows("data_aggregation"), done.rows("partials")) == rows
    for name in (
        "reconciliation",
        "out_of_day_by_day",
        "generations",
        "dumps",
        "inputs",
        "pseudonym_key_id",
    ):
        assert after[name] == before[name]


def test_a_single_streams_report_has_the_rows_of_its_stream(done: Place) -> None:
    assert done.run("dbs_jm.py", "--format", "csv") == 0
    manifest = done.manifest("dbs_crab")
    assert list(manifest["reconciliation"]) == ["crab"]
    assert manifest["tables"]["dbs_crab"]["format"] == "csv"
    assert manifest["tables"]["dbs_crab"]["rows"] == sum(
        row["stream"] == "crab" for row in done.rows("data_aggregation")
    )


def test_a_day_in_which_nothing_matched_is_stored_without_rows(
    spark: object, place: Place
) -> None:
    place.tree.write("aaa enr", "part-0", aaa({"file_lfn": "/store/data/x"}) + b"\n")
    assert place.run("dbs_aaa") == 0
    assert place.rows("dbs_aaa") == []
    assert place.manifest("dbs_aaa")["reduction_factor"] is None


# Days that are not as they should be
# -------------------------------------------------------------------------------


def cut_gzip(tree: Tree) -> None:
    (tree.folder("aaa enr") / "part-1.json.gz").write_bytes(gzip.compress(aaa() * 50)[:-9])


def too_many_malformed(tree: Tree) -> None:
    tree.write(
        "aaa enr",
        "part-1.json",
        b"\n".join([aaa({"read_bytes": "Secret Person"})] * 11 + [aaa()] * 100),
    )


def none_matched(tree: Tree) -> None:
    tree.write("aaa enr", "part-0.json", b"\n".join([aaa({"file_lfn": "/store/data/x"})] * 1000))


def beyond_64_bits(tree: Tree) -> None:
    for part in range(2):
        tree.write("aaa enr", f"part-{part}.json", aaa({"read_bytes_at_close": 2**62}) + b"\n")


HARM: dict[str, tuple[Callable[[Tree], None], list[str]]] = {
    "a cut gzip file": (cut_gzip, ["part-1.json.gz"]),
    "malformed beyond tolerance": (
        too_many_malformed,
        [
            "11 of 112 records",
            "0.1 %",
            "/quarantine/dbs_aaa/",
            "part-1.json, record 1: data.read_bytes",
        ],
    ),
    "none matched": (
        none_matched,
        ["none of 1,000 records", "DBS dump of 2019-06-16", "/store/data/* (1,000)"],
    ),
    "a sum beyond 64 bits": (beyond_64_bits, ["2^63-1"]),
}


@pytest.mark.parametrize(
    ("name", "feed"), [*((name, "direct") for name in HARM), ("a cut gzip file", "spark")]
)
def test_bad_data_end_in_65_and_leave_the_previous_result(
    spark: object, place: Place, name: str, feed: str
) -> None:
    harm, told = HARM[name]
    place.tree.write("aaa enr", "part-0.json", aaa() + b"\n")
    assert place.run("dbs_aaa") == 0
    before = place.manifest("dbs_aaa")
    harm(place.tree)
    error = place.fails(errors.DataError, "dbs_aaa", "--feed", feed)
    assert error.exit_code == 65
    for words in told:
        assert words in str(error)
    assert "Secret" not in str(error)
    assert "Alice" not in str(error)
    assert place.manifest("dbs_aaa") == before
    assert len(list((place.folder / "store/dbs_aaa/2019-06-15/runs").iterdir())) == 1


def test_more_malformed_records_pass_when_they_are_tolerated(spark: object, place: Place) -> None:
    too_many_malformed(place.tree)
    assert place.run("dbs_aaa", "--max-malformed", "aaa=11%") == 0
    assert place.manifest("dbs_aaa")["reconciliation"]["aaa"]["malformed"] == 11


def test_input_that_changes_while_it_is_read_fails_the_run(spark: object, place: Place) -> None:
    place.tree.write("aaa enr", "part-0.json", aaa() + b"\n")

    def write_more(text: str) -> None:
        if text.startswith("dbs_aaa: "):  # the table is written, the run has not become current
            place.tree.write("aaa enr", "part-1.json", aaa() + b"\n")

    with pytest.raises(errors.DataError, match="changed while it was read") as error:
        run(place.request(), log=write_more)
    assert "part-1.json is new" in str(error.value)
    with pytest.raises(errors.InputMissing):
        place.manifest("dbs_aaa")


def test_an_avro_file_of_another_schema_is_reported_with_its_fields(
    spark: object, place: Place
) -> None:
    place.tree.write(
        "crab avro", "part-0.avro", avro_files.container({"Other": "string"}, [{"Other": "x"}])
    )
    error = place.fails(errors.DataError, "dbs_crab")
    assert "no field FileName" in str(error)
    assert "fields Other" in str(error)
    assert "part-0.avro" in str(error)


# What is there and what is not
# -------------------------------------------------------------------------------------


def test_a_day_that_is_not_there_ends_in_66_with_the_days_that_are(place: Place) -> None:
    Tree(place.folder / "root", DAY.replace(day=13)).write("aaa enr", "part-0", aaa())
    error = place.fails(errors.InputMissing, "dbs_aaa")
    assert error.exit_code == 66
    assert "2019-06-13" in str(error)


def test_a_folder_that_is_still_written_is_read_only_when_asked_for(
    spark: object, place: Place
) -> None:
    folder = place.tree.folder("aaa enr")
    place.tree.write("aaa enr", "part-0", aaa() + b"\n")
    tmp = folder.with_name(folder.name + ".tmp")
    folder.rename(tmp)
    assert "--allow-tmp" in str(place.fails(errors.InputMissing, "dbs_aaa"))
    assert place.run("dbs_aaa", "--allow-tmp") == 0
    manifest = place.manifest("dbs_aaa")
    assert manifest["partial"]
    assert manifest["inputs"][0]["is_tmp"]
    place.tree.write("aaa enr", "part-0", aaa() * 1 + b"\n" + aaa() + b"\n")
    assert place.run("dbs_aaa", "--allow-tmp") == 0
    manifest = place.manifest("dbs_aaa")
    assert not manifest["partial"]
    assert manifest["reconciliation"]["aaa"]["read"] == 2


def test_streams_that_are_not_there_are_left_out_when_allowed(spark: object, place: Place) -> None:
    place.tree.write(place.tree.eos(), "part-0", g3() + b"\n")
    place.tree.folder("crab avro")
    assert place.fails(errors.InputMissing, "data_aggregation").exit_code == 66
    assert place.run("data_aggregation", "--allow-missing", "--streams", "crab,eos,aaa") == 0
    manifest = place.manifest("partials")
    assert manifest["partial"]
    assert manifest["missing_streams"] == ["aaa", "crab"]
    assert manifest["streams"] == ["aaa", "eos", "crab"]
    assert manifest["reconciliation"]["aaa"]["read"] == 0
    assert place.fails(errors.InputMissing, "dbs_aaa", "--allow-missing").exit_code == 66


def test_fewer_streams_than_the_result_that_is_replaced_are_a_warning(place: Place) -> None:
    write_streams(place.tree)
    text = "the result that this one replaces also has eos, cmssw, crab"
    assert place.run("data_aggregation") == 0
    assert place.run("data_aggregation", "--streams", "aaa") == 0
    assert text in place.manifest("data_aggregation")["warnings"]
    assert place.run("data_aggregation", "--streams", "aaa") == 0
    assert text not in place.manifest("data_aggregation")["warnings"]


def test_a_folder_without_data_is_not_ready(place: Place) -> None:
    place.tree.write("aaa enr", "_SUCCESS", b"")
    place.tree.write("aaa enr", "part-0", b"")
    error = place.fails(errors.NotReady, "dbs_aaa")
    assert error.exit_code == 75


def test_a_file_whose_name_is_no_utf_8_is_counted_and_shown_readably(place: Place) -> None:
    name = os.fsdecode(b"part-\xff\x1b[2J.json")
    content = aaa() + b"\nbroken\n"
    (place.tree.folder("aaa enr") / name).write_bytes(content)
    (place.tree.folder("aaa enr") / "part-1").write_bytes(content)
    assert place.run("dbs_aaa") == 0
    manifest = place.manifest("dbs_aaa")
    assert manifest["reconciliation"]["aaa"]["read"] == 4
    listed = [os.path.basename(path) for path, _, _ in manifest["inputs"][0]["files"]]
    assert listed == ["part-1", name]
    run = Path(place.fout) / "dbs_aaa" / DAY.isoformat() / "runs" / manifest["run"]
    assert "part-\\xff" in (run / "report.html").read_text(encoding="utf-8")
    for arguments in (
        ["show", "dbs_aaa", "--manifest"],
        ["report", "dbs_aaa"],
        ["report", "dbs_aaa", "--json"],
    ):
        options = ["--date", "20190615", "--fout", place.fout, "--settings", str(place.settings)]
        said = CliRunner().invoke(main.command, [*arguments, *options], catch_exceptions=False)
        assert said.exit_code == 0, (arguments, said.output)


def test_a_loop_of_links_is_one_day_s_trouble_and_daily_goes_on(place: Place) -> None:
    place.tree.write("aaa enr", "part-0", aaa())
    folder = place.tree.folder("aaa enr")
    (folder.parent / "14").symlink_to("14")
    options = ["--from", "20190614", "--to", "20190615", "--job", "dbs_aaa", "--dry-run", "--root"]
    options += [f"{place.folder}/root", "--fout", place.fout, "--settings", str(place.settings)]
    said = CliRunner().invoke(main.command, ["daily", *options], catch_exceptions=False)
    assert said.exit_code == 0
    assert [line.split()[0] for line in said.stdout.splitlines()] == ["2019-06-14", "2019-06-15"]
    assert "2019-06-14  dbs_aaa  missing  not ready: " in said.stdout


@pytest.mark.parametrize("content", [b" \t\n" * 1000, gzip.compress(b"\n" * 2_000_000)])
def test_a_day_of_blank_lines_is_not_ready_and_no_zeros_are_stored(
    place: Place, content: bytes
) -> None:
    (place.tree.folder("aaa enr") / "part-0").write_bytes(content)
    error = place.fails(errors.NotReady, "dbs_aaa")
    assert (error.exit_code, error.where) == (75, str(place.tree.folder("aaa enr")))
    assert "1 file without any record" in str(error)
    assert not list(Path(place.fout).rglob("CURRENT"))
    error = place.fails(errors.NotReady, "dbs_aaa", "--allow-missing")
    assert "has no data" in str(error)


def test_an_avro_stream_without_a_record_is_not_ready_or_left_out(place: Place) -> None:
    place.tree.write("aaa enr", "part-0", aaa())
    place.tree.write("crab avro", "part-0.avro", crab([]))
    options = ("data_aggregation", "--streams", "aaa,crab")
    assert "crab of 2019-06-15 is there but has no data" in str(
        place.fails(errors.NotReady, *options)
    )
    assert place.run(*options, "--allow-missing") == 0
    manifest = place.manifest("partials")
    assert (manifest["partial"], manifest["missing_streams"]) == (True, ["crab"])
    assert "crab is left out: crab of 2019-06-15 is there but has no data" in manifest["warnings"]


def test_a_dump_that_is_not_whole_is_not_ready_and_none_is_missing(place: Place) -> None:
    place.tree.write("aaa enr", "part-0", aaa())
    for part in (place.tree.dbs() / "FILES").iterdir():
        part.write_bytes(b"")
    assert place.fails(errors.NotReady, "dbs_aaa").exit_code == 75
    place.tree.dbs().rename(place.folder / "away")
    assert place.fails(errors.InputMissing, "dbs_aaa").exit_code == 66


def test_a_store_that_cannot_be_written_is_reported_before_the_logs_are_read(
    spark: object, place: Place
) -> None:
    cut_gzip(place.tree)
    (place.folder / "file").write_text("in the way")
    error = place.fails(errors.OutputError, "dbs_aaa", fout=f"{place.folder}/file/store")
    assert error.exit_code == 73


def test_malformed_records_that_cannot_be_kept_fail_the_run(spark: object, place: Place) -> None:
    place.tree.write("aaa enr", "part-0", aaa() + b"\nbroken\n")
    (place.folder / "state").mkdir()
    (place.folder / "state" / "quarantine").write_text("in the way")
    assert place.fails(errors.OutputError, "dbs_aaa").exit_code == 73


@pytest.mark.parametrize(
    ("job", "options", "more"),
    [
        ("dbs_aaa", [], {"day": "2019-02-29"}),
        ("dbs_aaa", [], {"day": "the day before"}),
        ("dbs_aaa", [], {"day": "29991231"}),
        ("dbs_aaa", ["--format", "xml"], {}),
        ("dbs_aaa", ["--streams", "eos"], {}),
        ("dbs_aaa", ["--join", "nested"], {}),
        ("data_aggregation", ["--streams", "aaa,nothing"], {}),
        ("data_aggregation", ["--streams", ","], {}),
        ("dbs_aaa", ["surplus"], {}),
    ],
)
def test_a_wrong_command_line_ends_in_2(
    place: Place, job: str, options: list[str], more: dict[str, str]
) -> None:
    assert place.run(job, *options, **more) == 2


@pytest.mark.parametrize("value", ["x", "101%", "-1", "eos=1%", "aaa=", "1;2"])
def test_a_tolerance_that_is_none_ends_in_2(place: Place, value: str) -> None:
    assert place.fails(errors.UsageError, "dbs_aaa", "--max-malformed", value).exit_code == 2


def test_a_job_without_a_store_ends_in_2(place: Place) -> None:
    arguments = ["--date", "20190615", "--settings", str(place.settings)]
    with pytest.raises(errors.UsageError, match="name the result folder"):
        reporting.run_click(load_command(find_job("dbs_aaa")), "dbs_aaa", arguments)


def test_malformed_records_that_are_not_kept_are_reported() -> None:
    rows = [("quarantine_cut", "aaa", "malformed", count, None) for count in (1_200, 34)]
    summary = ScanSummary.from_rows(rows, ("aaa",))
    assert summary.not_kept == {"aaa": 1_234}
    assert summary.warnings() == [
        "aaa: 1,234 malformed records are counted but not kept: the quarantine holds 64 MB of each stream"
    ]
