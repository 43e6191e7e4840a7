"""Which files are a day's (rule 16); which dump belongs to it: ``test_dump_choice.py``."""

from __future__ import annotations

import gzip
import os
import stat
from datetime import date
from pathlib import Path

import pytest

from cmsspark.base.errors import InputMissing, NotReady, SettingsError
from cmsspark.sources.folders import Dump, Layout, changed, is_hidden, resolve_day
from cmsspark.sources.layout import InputLocation, data_files
from tests.sources.input_folders import DAY, FILES, PHEDEX, layout, names, put

ENR = "project/monitoring/archive/xrootd/enr/gled"
RAW = "project/monitoring/archive/xrootd/raw/gled"
OLD_EOS = "project/monitoring/archive/eos/logs/reports/cms"
NEW_EOS = "project/monitoring/archive/eos-report/logs/cms"


# -- places
# ------------------------------------------------------------------------------------------------------


def test_without_a_root_built_in_folders_are_on_hdfs() -> None:
    places = Layout.load({}, None).locations
    assert places["aaa"][0].day_folder(DAY) == f"hdfs:///{ENR}/2026/01/15"
    assert places["crab"][0].day_folder(DAY).endswith("/year=2026/month=1/day=15")


def test_a_root_comes_before_every_built_in_folder() -> None:
    for root, start in (
        ("/mirror", "/mirror/"),
        ("s3a://bucket/a", "s3a://bucket/a/"),
        ("file:///m", "file:///m/"),
    ):
        for locations in Layout.load({}, root).locations.values():
            assert all(location.folder.startswith(f"{start}project/") for location in locations)


def test_a_relative_root_is_made_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    assert Layout.load({}, "mirror").locations["phedex"][0].folder == f"{tmp_path}/mirror/{PHEDEX}"


def test_an_overridden_folder_with_a_scheme_stays_as_given() -> None:
    given = {"aaa": {"enr": "s3a://mine/aaa"}, "dbs": {"dated": {"folder": "hdfs:///d"}}}
    loaded = Layout.load(given, "/mirror")
    assert loaded.locations["aaa"][0].folder == "s3a://mine/aaa"
    assert loaded.dump_location("dbs", "dated").folder == "hdfs:///d"
    assert Layout.load({"aaa": {"enr": "/mine"}}, None).locations["aaa"][0].folder == "/mine"


@pytest.mark.parametrize(
    "given",
    [
        {"aa": {}},
        {"aaa": {"enriched": "/x"}},
        {"aaa": "/x"},
        {"aaa": {"enr": 5}},
        {"aaa": {"enr": {"folders": "/x"}}},
        {"aaa": {"enr": {"days": "YYYYMMDD"}}},
        {"phedex": {"snapshots": ""}},
    ],
)
def test_what_no_source_has_is_refused_in_settings(given: dict[str, object]) -> None:
    with pytest.raises(SettingsError):
        Layout.load(given, "/mirror")


# -- days
# --------------------------------------------------------------------------------------------------------


def test_the_final_folder_counts_and_never_tmp_beside_it(tmp_path: Path) -> None:
    put(tmp_path, f"{ENR}/2026/01/15/part-00000")
    put(tmp_path, f"{ENR}/2026/01/15.tmp/part-00001")
    found = resolve_day(FILES, layout(tmp_path), "aaa", DAY, allow_tmp=True)
    assert (found.format_name, found.is_tmp, names(found.files)) == ("enr", False, ["part-00000"])


def test_tmp_is_read_only_when_allowed(tmp_path: Path) -> None:
    put(tmp_path, f"{ENR}/2026/01/15.tmp/part-00001")
    with pytest.raises(InputMissing, match="--allow-tmp"):
        resolve_day(FILES, layout(tmp_path), "aaa", DAY)
    found = resolve_day(FILES, layout(tmp_path), "aaa", DAY, allow_tmp=True)
    assert (found.is_tmp, names(found.files)) == (True, ["part-00001"])


def test_hidden_and_temporary_names_are_never_read(tmp_path: Path) -> None:
    hidden = ["_SUCCESS", ".part-0.crc", "_temporary/0/part-9", "a.tmp", "part-0.crc", ".hidden"]
    for name in [*hidden, "part-0", "b.json.gz"]:
        put(tmp_path, f"{ENR}/2026/01/15/{name}")
    found = resolve_day(FILES, layout(tmp_path), "aaa", DAY)
    assert names(found.files) == ["b.json.gz", "part-0"]
    assert all(is_hidden(name.split("/")[0]) for name in (*hidden, "a._COPYING_"))
    (warning,) = found.warnings
    assert warning.endswith("a.tmp is still being written and is not read")


def test_a_part_that_is_still_being_copied_is_not_ready(tmp_path: Path) -> None:
    put(tmp_path, f"{ENR}/2026/01/15/part-0")
    before = resolve_day(FILES, layout(tmp_path), "aaa", DAY)
    copying = put(tmp_path, f"{ENR}/2026/01/15/part-1._COPYING_")
    with pytest.raises(NotReady, match="still being copied") as error:
        resolve_day(FILES, layout(tmp_path), "aaa", DAY)
    assert (error.value.exit_code, error.value.where) == (75, str(copying))
    assert changed(FILES, [before]) == [f"{copying} is being copied"]
    put(tmp_path, f"{ENR}/2026/01/15/_part-2._COPYING_")
    copying.rename(copying.with_name("part-1"))
    assert names(resolve_day(FILES, layout(tmp_path), "aaa", DAY).files) == ["part-0", "part-1"]


@pytest.mark.parametrize("kind", ["a named pipe", "a socket", "a loop of links"])
def test_what_is_no_file_among_the_parts_is_named_and_not_waited_for(
    tmp_path: Path, kind: str
) -> None:
    put(tmp_path, f"{ENR}/2026/01/15/part-0")
    odd = tmp_path / ENR / "2026/01/15/part-1"
    if kind == "a named pipe":
        os.mkfifo(odd)
    elif kind == "a socket":
        os.mknod(odd, stat.S_IFSOCK | 0o600)
    else:
        odd.symlink_to("part-1")
    with pytest.raises(InputMissing) as error:
        resolve_day(FILES, layout(tmp_path), "aaa", DAY)
    assert (error.value.exit_code, error.value.where, error.value.found) == (66, str(odd), kind)


def test_a_day_s_folder_that_is_a_loop_of_links_is_missing_and_named(tmp_path: Path) -> None:
    loop = tmp_path / ENR / "2026/01/15"
    loop.parent.mkdir(parents=True)
    loop.symlink_to("15")
    with pytest.raises(InputMissing) as error:
        resolve_day(FILES, layout(tmp_path), "aaa", DAY)
    assert (error.value.where, error.value.found) == (str(loop), "a loop of links")


def test_files_of_0_bytes_are_listed_but_a_day_of_nothing_is_not_ready(tmp_path: Path) -> None:
    put(tmp_path, f"{ENR}/2026/01/15/part-0", b"")
    with pytest.raises(NotReady, match="1 file of 0 bytes"):
        resolve_day(FILES, layout(tmp_path), "aaa", DAY)
    put(tmp_path, f"{ENR}/2026/01/15/part-1")
    assert [file.size for file in resolve_day(FILES, layout(tmp_path), "aaa", DAY).files] == [0, 2]
    put(tmp_path, f"{RAW}/2026/01/16/part-1")
    (tmp_path / ENR / "2026/01/16").mkdir()
    with pytest.raises(NotReady, match="no data files"):
        resolve_day(FILES, layout(tmp_path), "aaa", date(2026, 1, 16))


BLANK = {
    "blank lines": b" \t\n\r\n\n  ",
    "a byte order mark": b"\xef\xbb\xbf",
    "a gzip of nothing": gzip.compress(b""),
    "several gzip members of blank lines": gzip.compress(b"\n" * 9999)
    + gzip.compress(b"")
    + gzip.compress(b"\r\n"),
}


@pytest.mark.parametrize("name", BLANK)
def test_a_day_of_blank_lines_or_of_a_gzip_of_nothing_is_not_ready(
    tmp_path: Path, name: str
) -> None:
    put(tmp_path, f"{ENR}/2026/01/15/part-0.gz", BLANK[name])
    put(tmp_path, f"{ENR}/2026/01/15/part-1", b"")
    with pytest.raises(NotReady, match="2 files without any record") as error:
        resolve_day(FILES, layout(tmp_path), "aaa", DAY)
    assert error.value.exit_code == 75
    put(tmp_path, f"{ENR}/2026/01/15/part-2", gzip.compress(b"\n\nx"))
    assert len(resolve_day(FILES, layout(tmp_path), "aaa", DAY).files) == 3


@pytest.mark.parametrize(
    "content",
    [gzip.compress(b"\n", mtime=0)[:-1], gzip.compress(b"\n", mtime=0) + b"\0x", b"\x1f\x8b\0"],
)
def test_a_small_file_that_is_damaged_is_for_its_reader_to_report(
    tmp_path: Path, content: bytes
) -> None:
    put(tmp_path, f"{ENR}/2026/01/15/part-0", content)
    assert resolve_day(FILES, layout(tmp_path), "aaa", DAY).size == len(content)


def test_any_character_in_a_name_survives(tmp_path: Path) -> None:
    odd = ["part 0", "50%.json", "a:b", "x*", "{y}", "n\nl", "[z]?", "=cmd()", "ä"]
    for name in odd:
        put(tmp_path / "a {b}*%20", f"{ENR}/2026/01/15/{name}")
    found = resolve_day(FILES, layout(tmp_path / "a {b}*%20"), "aaa", DAY)
    assert sorted(names(found.files)) == sorted(odd)
    assert changed(FILES, [found]) == []


def test_sub_folders_of_a_day_are_reported_and_not_read(tmp_path: Path) -> None:
    put(tmp_path, f"{ENR}/2026/01/15/part-0")
    put(tmp_path, f"{ENR}/2026/01/15/hour=00/part-1")
    found = resolve_day(FILES, layout(tmp_path), "aaa", DAY)
    assert names(found.files) == ["part-0"]
    assert "hour=00" in found.warnings[0]


def test_aaa_is_raw_only_where_there_is_no_enriched_day(tmp_path: Path) -> None:
    put(tmp_path, f"{RAW}/2026/01/15/part-0")
    assert resolve_day(FILES, layout(tmp_path), "aaa", DAY).format_name == "raw"
    put(tmp_path, f"{ENR}/2026/01/15/part-0")
    assert resolve_day(FILES, layout(tmp_path), "aaa", DAY).format_name == "enr"


def test_cmssw_is_the_legacy_avro_only_where_there_is_no_json_day(tmp_path: Path) -> None:
    put(
        tmp_path,
        "project/awg/cms/cmssw-popularity/avro-snappy/year=2026/month=1/day=15/part-0.avro",
    )
    assert resolve_day(FILES, layout(tmp_path), "cmssw", DAY).format_name == "avro"
    put(tmp_path, "project/monitoring/archive/cmssw_pop/raw/metric/2026/01/15/part-0")
    assert resolve_day(FILES, layout(tmp_path), "cmssw", DAY).format_name == "json"


def test_eos_days_are_found_in_both_roots_and_their_years_root_is_preferred(
    tmp_path: Path,
) -> None:
    for day in (date(2019, 12, 31), date(2020, 1, 1)):
        for folder in (OLD_EOS, NEW_EOS):
            put(tmp_path, f"{folder}/{day:%Y/%m/%d}/part-0")
    put(tmp_path, f"{OLD_EOS}/2026/01/15/part-0")
    assert OLD_EOS in resolve_day(FILES, layout(tmp_path), "eos", date(2019, 12, 31)).folder
    assert NEW_EOS in resolve_day(FILES, layout(tmp_path), "eos", date(2020, 1, 1)).folder
    assert OLD_EOS in resolve_day(FILES, layout(tmp_path), "eos", DAY).folder


def test_a_missing_day_names_the_folders_searched_and_the_days_that_are_there(
    tmp_path: Path,
) -> None:
    for name in (
        "2025/12/30",
        "2025/12/31",
        "2026/01/13",
        "2026/01/14.tmp",
        "2026/01/17",
        "2026/02/30",
        "2027/01/01",
    ):
        put(tmp_path, f"{ENR}/{name}/part-0")
    put(tmp_path, f"{RAW}/2026/01/notes.txt")
    with pytest.raises(InputMissing) as raised:
        resolve_day(FILES, layout(tmp_path), "aaa", DAY)
    error = raised.value
    assert str(tmp_path / ENR / "2026/01/15") in str(error.where)
    assert str(tmp_path / RAW / "2026/01/15") in str(error.where)
    expected = "enr: 2025-12-31, 2026-01-13, 2026-01-14 (.tmp), 2026-01-17, 2027-01-01; raw: none"
    assert str(error.found) == f"days there: {expected}"


@pytest.mark.parametrize(("root", "missing"), [("", "project"), ("wrong/root", "wrong")])
def test_of_a_root_without_any_day_the_first_missing_folder_is_named(
    tmp_path: Path, root: str, missing: str
) -> None:
    with pytest.raises(InputMissing) as raised:
        resolve_day(FILES, layout(tmp_path / root), "aaa", DAY)
    assert (raised.value.problem, raised.value.found) == (
        "no aaa log for 2026-01-15",
        f"no day at all: there is no {tmp_path / missing}",
    )


def test_a_feed_that_is_no_stream_cannot_be_left_out(tmp_path: Path) -> None:
    with pytest.raises(InputMissing) as raised:
        resolve_day(FILES, layout(tmp_path), "xcache", DAY)
    assert raised.value.next_step == "give another day or another --root"


def test_days_of_the_unpadded_layout_are_named_too(tmp_path: Path) -> None:
    for name in (
        "year=2019/month=1/day=2",
        "year=2018/month=12/day=9",
        "year=2019/month=01/day=3",
    ):
        put(tmp_path, f"project/awg/cms/jm-data-popularity/avro-snappy/{name}/a.avro")
    with pytest.raises(InputMissing, match=r"days there: 2018-12-09, 2019-01-02\n"):
        resolve_day(FILES, layout(tmp_path), "crab", date(2019, 1, 15))


def test_a_file_where_a_folder_should_be_is_missing_and_named(tmp_path: Path) -> None:
    put(tmp_path, f"{ENR}/2026/01/15")
    with pytest.raises(InputMissing, match="a file, not a folder"):
        resolve_day(FILES, layout(tmp_path), "aaa", DAY)


def test_a_link_to_nothing_among_the_files_is_named(tmp_path: Path) -> None:
    put(tmp_path, f"{ENR}/2026/01/15/part-0")
    (tmp_path / ENR / "2026/01/15/part-1").symlink_to(tmp_path / "nowhere")
    with pytest.raises(InputMissing, match="part-1"):
        resolve_day(FILES, layout(tmp_path), "aaa", DAY)


# -- afterwards
# --------------------------------------------------------------------------------------------------


def test_what_changed_since_it_was_listed_is_reported(tmp_path: Path) -> None:
    folder = f"{ENR}/2026/01/15"
    paths = [put(tmp_path, f"{folder}/part-{number}") for number in range(4)]
    found = resolve_day(FILES, layout(tmp_path), "aaa", DAY)
    before = found.fingerprint()
    assert changed(FILES, [found]) == []
    paths[0].write_bytes(b"longer\n")
    paths[1].unlink()
    os.utime(paths[2], (1, 1))
    put(tmp_path, f"{folder}/part-9")
    put(tmp_path, f"{folder}/_SUCCESS")
    told = "\n".join(changed(FILES, [found]))
    assert told.count("\n") == 3
    for words in (
        "part-0 had 2 bytes and has 7",
        "part-1 is gone",
        "part-2 was written again",
        "part-9 is new",
    ):
        assert words in told
    assert resolve_day(FILES, layout(tmp_path), "aaa", DAY).fingerprint() != before


def test_tmp_that_turns_final_while_it_is_read_is_reported(tmp_path: Path) -> None:
    put(tmp_path, f"{ENR}/2026/01/15.tmp/part-0")
    found = resolve_day(FILES, layout(tmp_path), "aaa", DAY, allow_tmp=True)
    (tmp_path / ENR / "2026/01/15.tmp").rename(tmp_path / ENR / "2026/01/15")
    assert any("is final now" in line for line in changed(FILES, [found]))


@pytest.mark.parametrize(
    ("location", "folder", "is_held"),
    [
        ("/a/b/2026-01-16", "/a/b", True),
        ("/a/b", "/a/b/", True),
        ("/a/bc/2026-01-16", "/a/b", False),
        ("/other/a/b/x", "/a/b", False),
        ("hdfs://nn:8020/project/x/y", "hdfs:///project/x", True),
        ("hdfs://nn/mirror/project/x", "hdfs:///project/x", False),
        ("hdfs://a/x/y", "hdfs://b/x", False),
    ],
)
def test_a_location_holds_paths_below_it_by_whole_names(
    location: str, folder: str, is_held: bool
) -> None:
    assert InputLocation("dbs", "dated", "", folder).holds(location) is is_held


def test_a_file_that_is_replaced_by_one_of_its_size_and_mtime_is_another_one(
    tmp_path: Path,
) -> None:
    (tmp_path / "T").mkdir()
    path = tmp_path / "T" / "part-0"
    path.write_bytes(b"1234567")
    before = data_files(FILES, str(tmp_path / "T")).files
    times = path.stat()
    (tmp_path / "new").write_bytes(b"7654321")
    (tmp_path / "new").replace(path)
    os.utime(path, ns=(times.st_atime_ns, times.st_mtime_ns))
    after = data_files(FILES, str(tmp_path / "T")).files
    assert before == after  # what a manifest compares: path, size and mtime
    dumps = [Dump("dbs", DAY, str(tmp_path), {"T": listed}, 0) for listed in (before, after)]
    assert dumps[0].fingerprint() == dumps[1].fingerprint()
    assert dumps[0].identity() != dumps[1].identity()
    assert changed(FILES, [dumps[0]]) == [f"{path} was written again"]
    assert changed(FILES, [dumps[1]]) == []
