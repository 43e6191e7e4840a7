"""Which dumps a day is counted with: chosen once, of its own root, replicas only where they are needed."""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cmsspark import errors
from tests.corpus.json_lines import aaa, cmssw
from tests.corpus.tree import write_case_tables, write_table
from tests.pipeline.places import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_dumps_stay_those_of_the_first_run_until_they_are_refreshed(spark: object, place: Place) -> None:
    place.tree.write("cmssw json", "part-0", cmssw() + b"\n")
    place.tree.dbs().rename(place.tree.dbs().with_name("2019-06-20"))
    assert place.run("dbs_cmssw") == 0
    first = place.manifest("dbs_cmssw")["dumps"]
    assert (first["dbs"]["day"], first["dbs"]["distance_days"]) == ("2019-06-20", 5)
    write_case_tables(place.tree.dbs(1), place.tree.phedex(1, "09h00m00s"))
    assert place.run("dbs_cmssw") == 0
    assert place.manifest("dbs_cmssw")["dumps"] == first
    assert place.run("dbs_cmssw", "--refresh-dumps") == 0
    second = place.manifest("dbs_cmssw")["dumps"]
    assert second["dbs"]["day"] == "2019-06-16"
    assert second["phedex"]["folder"].endswith("_09h00m00s")


def test_dumps_of_another_root_are_not_kept(spark: object, place: Place, tmp_path: Path) -> None:
    place.tree.write("cmssw json", "part-0", cmssw() + b"\n")
    assert place.run("dbs_cmssw") == 0
    moved = tmp_path / "another root"
    shutil.copytree(place.tree.root, moved)
    assert place.run("dbs_cmssw", "--root", str(moved)) == 0
    assert all(dump["folder"].startswith(str(moved)) for dump in place.manifest("dbs_cmssw")["dumps"].values())


def test_replicas_are_asked_for_only_by_streams_that_need_them(spark: object, place: Place) -> None:
    place.tree.write("aaa enr", "part-0", aaa() + b"\n")
    place.tree.write("cmssw json", "part-0", cmssw() + b"\n")
    place.tree.phedex().rename(place.folder / "away")
    for join in ("index", "shuffle"):
        assert place.run("dbs_aaa", "--join", join) == 0
        assert [row["remote_nacc"] for row in place.rows("dbs_aaa")] == [1]
    assert list(place.manifest("dbs_aaa")["dumps"]) == ["dbs"]
    assert "phedex" in str(place.fails(errors.InputMissing, "dbs_cmssw"))


def test_a_damaged_dump_is_told_with_its_file(spark: object, place: Place) -> None:
    place.tree.write("aaa enr", "part-0.json", aaa() + b"\n")
    write_table(place.tree.dbs() / "FILES", {"part-00001-1f0e.csv": b'9,"not closed'})
    error = place.fails(errors.DataError, "dbs_aaa")
    assert "part-00001-1f0e.csv" in str(error)
