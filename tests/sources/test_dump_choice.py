"""Which dump belongs to a day (rule 17)."""

from __future__ import annotations

import gzip
from datetime import date
from pathlib import Path

import pytest

from cmsspark.base.errors import InputMissing, NotReady
from cmsspark.sources.folders import changed, choose_dbs_dump, choose_phedex_dump, dump_at
from tests.sources.input_folders import CURRENT, DAY, DBS, FILES, PHEDEX, layout, names, put


def dbs(root: Path, day: str, files: bytes = b"1,x\n", blocks: bytes = b"1,x\n") -> None:
    put(root, f"{DBS}/{day}/FILES/part-0.gz", files)
    put(root, f"{DBS}/{day}/BLOCKS/part-0.gz", blocks)


def test_a_dump_whose_table_is_still_being_copied_is_passed_over(tmp_path: Path) -> None:
    for when in ("2026-01-16", "2026-01-17"):
        put(tmp_path, f"{DBS}/{when}/FILES/part-0")
    put(tmp_path, f"{DBS}/2026-01-16/FILES/part-1._COPYING_")
    found = choose_dbs_dump(FILES, layout(tmp_path), DAY, ["FILES"])
    assert found.day == date(2026, 1, 17)
    assert "FILES is still being copied" in found.warnings[0]


@pytest.mark.parametrize(
    ("there", "chosen"),
    [
        (["2026-01-14", "2026-01-15", "2026-01-16", "2026-01-17"], "2026-01-16"),
        (["2026-01-14", "2026-01-15"], "2026-01-15"),
        (["2026-01-02", "2026-01-12", "2026-01-14"], "2026-01-14"),
        (["2026-01-14", "2026-03-01"], "2026-03-01"),
        (["2026-01-14", "2026-01-16.tmp", "2026-02-30", "20260116", "latest"], "2026-01-14"),
    ],
)
def test_the_first_dump_after_the_day_then_its_own_then_the_newest_before(
    tmp_path: Path, there: list[str], chosen: str
) -> None:
    for day in there:
        dbs(tmp_path, day)
    found = choose_dbs_dump(FILES, layout(tmp_path), DAY, ["FILES", "BLOCKS"])
    assert found.day == date.fromisoformat(chosen)
    assert found.distance_days == abs((date.fromisoformat(chosen) - DAY).days)
    assert bool(found.warnings) == (found.distance_days > 7)
    assert names(found.tables["FILES"]) == ["part-0.gz"]


@pytest.mark.parametrize(
    "nothing", [b"", gzip.compress(b"", mtime=0), gzip.compress(b"", mtime=0) * 2]
)
def test_a_dump_with_an_empty_table_is_passed_over(tmp_path: Path, nothing: bytes) -> None:
    dbs(tmp_path, "2026-01-16", blocks=nothing)
    dbs(tmp_path, "2026-01-18", blocks=gzip.compress(b"1,x\n"))
    found = choose_dbs_dump(FILES, layout(tmp_path), DAY, ["FILES", "BLOCKS"])
    assert found.day == date(2026, 1, 18)
    assert "BLOCKS is empty" in found.warnings[0]
    assert choose_dbs_dump(FILES, layout(tmp_path), DAY, ["FILES"]).day == date(2026, 1, 16)


def test_a_damaged_gzip_is_not_taken_for_an_empty_one(tmp_path: Path) -> None:
    dbs(tmp_path, "2026-01-16", blocks=gzip.compress(b"1,x\n")[:-9])
    assert choose_dbs_dump(FILES, layout(tmp_path), DAY, ["FILES", "BLOCKS"]).day == date(
        2026, 1, 16
    )


def test_a_table_with_one_file_of_0_bytes_beside_another_is_complete(tmp_path: Path) -> None:
    dbs(tmp_path, "2026-01-16", blocks=b"")
    put(tmp_path, f"{DBS}/2026-01-16/BLOCKS/part-1.gz", b"1,x\n")
    assert choose_dbs_dump(FILES, layout(tmp_path), DAY, ["BLOCKS"]).day == date(2026, 1, 16)


def test_where_no_dump_is_complete_the_lacking_tables_are_named(tmp_path: Path) -> None:
    dbs(tmp_path, "2026-01-16", blocks=b"")
    put(tmp_path, f"{DBS}/2026-01-12/BLOCKS/part-0.gz")
    put(tmp_path, f"{CURRENT}/FILES/part-0")
    with pytest.raises(NotReady) as raised:
        choose_dbs_dump(FILES, layout(tmp_path), DAY, ["FILES", "BLOCKS"])
    assert "2026-01-16: BLOCKS is empty" in str(raised.value.found)
    assert "2026-01-12: FILES is missing" in str(raised.value.found)


def test_no_dump_at_all_is_missing_input(tmp_path: Path) -> None:
    with pytest.raises(InputMissing, match="no dump at all"):
        choose_dbs_dump(FILES, layout(tmp_path), DAY, ["FILES"])
    with pytest.raises(InputMissing, match="no dump at all"):
        choose_phedex_dump(FILES, layout(tmp_path), DAY)


def test_current_serves_only_where_there_is_no_dated_dump(tmp_path: Path) -> None:
    put(tmp_path, f"{CURRENT}/FILES/part-0")
    found = choose_dbs_dump(FILES, layout(tmp_path), DAY, ["FILES"])
    assert (found.day, found.distance_days, found.folder) == (None, None, str(tmp_path / CURRENT))
    with pytest.raises(NotReady, match="BLOCKS is missing"):
        choose_dbs_dump(FILES, layout(tmp_path), DAY, ["FILES", "BLOCKS"])
    dbs(tmp_path, "2026-01-01")
    assert choose_dbs_dump(FILES, layout(tmp_path), DAY, ["FILES"]).day == date(2026, 1, 1)


def test_of_snapshots_of_one_date_the_later_complete_one_is_chosen(tmp_path: Path) -> None:
    for time in ("9h05m00s", "10h00m00s", "03h00m00s"):
        put(tmp_path, f"{PHEDEX}/time=2026-01-16_{time}/part-0")
    put(tmp_path, f"{PHEDEX}/time=2026-01-16_23h00m00s/part-0", b"")
    put(tmp_path, f"{PHEDEX}/time=2026-01-16_22h00m00s.tmp/part-0")
    put(tmp_path, f"{PHEDEX}/time=2026-01-17_01h00m00s/part-0")
    found = choose_phedex_dump(FILES, layout(tmp_path), DAY)
    assert found.folder.endswith("time=2026-01-16_10h00m00s")
    assert names(found.tables["block_replicas"]) == ["part-0"]
    assert "23h00m00s" in found.warnings[0]
    assert changed(FILES, [found]) == []


def test_a_dumps_fingerprint_knows_its_tables_apart_and_sees_a_new_size(tmp_path: Path) -> None:
    dbs(tmp_path, "2026-01-16")
    found = choose_dbs_dump(FILES, layout(tmp_path), DAY, ["FILES", "BLOCKS"])
    assert (
        found.fingerprint()
        == choose_dbs_dump(FILES, layout(tmp_path), DAY, ["BLOCKS", "FILES"]).fingerprint()
    )
    assert found.fingerprint(["FILES"]) != found.fingerprint()
    put(tmp_path, f"{DBS}/2026-01-16/FILES/part-1.gz")
    assert changed(FILES, [found]) == [f"{tmp_path}/{DBS}/2026-01-16/FILES/part-1.gz is new"]
    assert choose_dbs_dump(
        FILES, layout(tmp_path), DAY, ["FILES"]
    ).fingerprint() != found.fingerprint(["FILES"])


def test_a_dump_chosen_before_is_found_again_while_it_is_whole(tmp_path: Path) -> None:
    dbs(tmp_path, "2026-01-30")
    before = choose_dbs_dump(FILES, layout(tmp_path), DAY, ["FILES", "BLOCKS"])
    dbs(tmp_path, "2026-01-16")
    again = dump_at(FILES, "dbs", before.folder, DAY, before.day, ["FILES", "BLOCKS"])
    assert again == before
    assert "15 days away" in before.warnings[0]
    put(tmp_path, f"{DBS}/2026-01-30/BLOCKS/part-0.gz", b"")
    assert dump_at(FILES, "dbs", before.folder, DAY, before.day, ["FILES", "BLOCKS"]) is None
