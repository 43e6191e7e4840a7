"""Which dumps a day is counted with: chosen once, of its own root, replicas only where
they are needed.
"""

from __future__ import annotations

import shutil
from pathlib import Path

import pytest

from cmsspark.base import errors
from tests.corpus.json_lines import aaa, cmssw
from tests.corpus.tree import write_case_tables, write_table
from tests.run.places import Place


@pytest.fixture
def place(tmp_path: Path) -> Place:
    return Place(tmp_path)


def test_dumps_stay_those_of_the_first_run_until_they_are_refreshed(
    spark: object, place: Place
) -> None:
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
    assert all(
        dump["folder"].startswith(str(moved))
        for dump in place.manifest("dbs_cmssw")["dumps"].values()
    )


def test_replicas_are_asked_for_only_by_streams_that_need_them(
    spark: object, place: Place
) -> None:
    place.tree.write("aaa enr", "part-0", aaa() + b"\n")
    place.tree.write("cmssw json", "part-0", cmssw() + b"\n")
    place.tree.phedex().rename(place.folder / "away")
    for join in ("index", "shuffle"):
        assert place.run("dbs_aaa", "--join", join) == 0
        assert [row["remote_nacc"] for row in place.rows("dbs_aaa")] == [1]
    assert list(place.manifest("dbs_aaa")["dumps"]) == ["dbs"]
    assert "phedex" in str(place.fails(errors.InputMissing, "dbs_cmssw"))


def test_a_damaged_dump_is_reported_with_its_file(spark: object, place: Place) -> None:
    place.tree.write("aaa enr", "part-0.json", aaa() + b"\n")
    write_table(place.tree.dbs() / "FILES", {"part-00001-1f0e.csv": b'9,"not closed'})
    error = place.fails(errors.DataError, "dbs_aaa")
    assert "part-00001-1f0e.csv" in str(error)


def files_rows(count: int, dataset_id: int, block_id: int) -> list[bytes]:
    """Plain rows of FILES with names of their own."""
    rest = b"1,null,100,1000.0,null,null,null,null,1420070400,me,null,null"
    return [
        b"%d,/store/data/more-%d.root,1,%d,%d,%s" % (9_000 + n, n, dataset_id, block_id, rest)
        for n in range(count)
    ]


def test_columns_that_changed_places_in_one_part_are_reported_with_file_and_row(
    place: Place,
) -> None:
    place.tree.write("aaa enr", "part-0", aaa() + b"\n")
    right, swapped = files_rows(40, 101, 11), files_rows(40, 11, 101)
    odd = [row.replace(b",/store", b",store") for row in right[:20]]
    write_table(
        place.tree.dbs() / "FILES",
        {
            "part-7": b"\n".join(right) + b"\n",
            "part-8": b"\n".join(right[:5] + swapped) + b"\n",
            "part-9": b"\n".join(right + odd) + b"\n",
        },
    )
    for _ in range(2):  # with a catalogue that is built, and one that is there
        assert place.run("dbs_aaa") == 0
        told = [text for text in place.manifest("dbs_aaa")["warnings"] if "columns moved" in text]
        assert len(told) == 2
        assert (
            "40 of 45 rows of " in told[0]
            and "part-8 name a dataset" in told[0]
            and "in row 6" in told[0]
        )
        assert (
            "20 of 60 rows of " in told[1]
            and "part-9 have names" in told[1]
            and "in row 41" in told[1]
        )


def test_a_comma_that_nothing_escapes_is_refused_by_file_and_row(place: Place) -> None:
    place.tree.write("aaa enr", "part-0", aaa() + b"\n")
    rows = files_rows(2_000, 101, 11)
    rows[1_700] = rows[1_700].replace(b",/store", b",x,/store")
    write_table(place.tree.dbs() / "FILES", {"part-9": b"\n".join(rows) + b"\n"})
    error = place.fails(errors.DataError, "dbs_aaa")
    assert (error.exit_code, str(error.where).rpartition("/")[2]) == (65, "part-9, row 1701")
    write_table(place.tree.dbs() / "FILES", {"part-9": b"\r".join(rows[:100]) + b"\r"})
    assert "carriage returns" in str(place.fails(errors.DataError, "dbs_aaa"))
