"""Rules 17 to 20 of ``docs/counting.md``: which dump is a day's, how CSV is read, what
nodes and file rows mean.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.base.errors import CmssparkError
from cmsspark.base.schemas import input_table
from cmsspark.filesystems.storage import LocalFiles
from cmsspark.sources.dumps import choose_dbs_dump, choose_phedex_dump
from cmsspark.sources.formats import sqoop_csv
from cmsspark.sources.formats.sqoop_csv import read_table
from cmsspark.sources.layout import Layout
from tests.corpus import hostile, judged, tables
from tests.corpus.tree import write_table
from tests.oracle import catalogue, files

DUMPS: dict[str, tuple[list[str], str | None]] = {
    "the day after": (["2019-06-14", "2019-06-15", "2019-06-16", "2019-06-17"], "2019-06-16"),
    "the first one after, however late": (
        ["2019-06-15", "2019-09-01", "2020-01-01"],
        "2019-09-01",
    ),
    "the day's own where none is later": (
        ["2019-06-13", "2019-06-14", "2019-06-15"],
        "2019-06-15",
    ),
    "the newest before": (["2018-12-31", "2019-06-01", "2019-06-14"], "2019-06-14"),
    "none": ([], None),
}
SNAPSHOTS: dict[str, tuple[list[str], str | None]] = {
    **{
        name: ([f"{day}_03h07m10s" for day in days], chosen and f"{chosen}_03h07m10s")
        for name, (days, chosen) in DUMPS.items()
    },
    "of one date the later": (
        ["2019-06-16_03h07m10s", "2019-06-16_15h00m00s", "2019-06-17_01h00m00s"],
        "2019-06-16_15h00m00s",
    ),
    "of the day's own the later": (
        ["2019-06-15_03h07m10s", "2019-06-15_15h07m10s"],
        "2019-06-15_15h07m10s",
    ),
    "of one earlier date the later": (
        ["2019-06-13_23h00m00s", "2019-06-14_03h00m00s", "2019-06-14_15h00m00s"],
        "2019-06-14_15h00m00s",
    ),
}
DBS_TABLES = ("FILES", "BLOCKS", "DATASETS")


@pytest.mark.parametrize("name", DUMPS)
def test_rule_17_dbs_is_the_first_complete_dump_after_the_day_else_its_own_else_the_newest_before(
    name: str, tmp_path: Path
) -> None:
    dates, chosen = DUMPS[name]
    dumps = tmp_path / "project/awg/cms/dbs/PROD_GLOBAL"
    dumps.mkdir(parents=True)
    for day in dates:
        for table in DBS_TABLES:
            write_table(dumps / day / table, {"part-0": b"1\n"})
    for day, content in (
        ("2019-06-15.tmp", b"1\n"),
        ("2019-06-16-old", b"1\n"),
        ("_2019-06-16", b"1\n"),
    ):
        for table in DBS_TABLES:  # no dumps: their names are not a date
            write_table(dumps / day / table, {"part-0": content})
    layout = Layout.load({}, str(tmp_path))
    if chosen is None:
        with pytest.raises(CmssparkError):
            choose_dbs_dump(LocalFiles(), layout, hostile.DAY, DBS_TABLES)
        with pytest.raises(files.NotThere):
            files.choose_dump(dates, hostile.DAY)
    else:
        assert files.choose_dump(dates, hostile.DAY) == chosen
        assert (
            Path(choose_dbs_dump(LocalFiles(), layout, hostile.DAY, DBS_TABLES).folder).name
            == chosen
        )


@pytest.mark.parametrize(
    ("name", "table", "parts"),
    [
        ("a table is not there", "BLOCKS", None),
        ("a table has no files", "DATASETS", {}),
        ("a table's only file is empty", "FILES", {"part-0": b""}),
        ("a table's only file is gzip of nothing", "FILES", {"part-0.gz": b""}),
        (
            "a table has hidden files only",
            "BLOCKS",
            {"_part-0": b"1\n", ".part-1": b"1\n", "part-2.tmp": b"1\n"},
        ),
    ],
)
def test_rule_17_a_dump_is_complete_when_each_table_is_there_and_not_empty(
    name: str, table: str, parts: dict[str, bytes] | None, tmp_path: Path
) -> None:
    dumps = tmp_path / "project/awg/cms/dbs/PROD_GLOBAL"
    for day in ("2019-06-16", "2019-06-18"):
        for other in DBS_TABLES:
            if day != "2019-06-16" or other != table:
                write_table(dumps / day / other, {"part-0": b"", "part-1.gz": b"1\n"})
    if parts is not None:
        write_table(dumps / "2019-06-16" / table, parts)
    layout = Layout.load({}, str(tmp_path))
    assert (
        Path(choose_dbs_dump(LocalFiles(), layout, hostile.DAY, DBS_TABLES).folder).name
        == "2019-06-18"
    )
    assert files.dbs_folder(tmp_path, hostile.DAY, DBS_TABLES).name == "2019-06-18"


@pytest.mark.parametrize("dated", [True, False])
def test_rule_17_the_undated_dump_counts_only_where_there_is_no_dated_one(
    dated: bool, tmp_path: Path
) -> None:
    folders = [tmp_path / "project/awg/cms/CMS_DBS3_PROD_GLOBAL/current"]
    folders += [tmp_path / "project/awg/cms/dbs/PROD_GLOBAL/2018-01-01"] if dated else []
    for folder in folders:
        for table in DBS_TABLES:
            write_table(folder / table, {"part-0": b"1\n"})
    layout = Layout.load({}, str(tmp_path))
    found = choose_dbs_dump(LocalFiles(), layout, hostile.DAY, DBS_TABLES)
    assert Path(found.folder) == folders[-1] == files.dbs_folder(tmp_path, hostile.DAY, DBS_TABLES)


@pytest.mark.parametrize("name", SNAPSHOTS)
def test_rule_17_of_the_snapshots_of_one_date_the_later_counts(name: str, tmp_path: Path) -> None:
    times, chosen = SNAPSHOTS[name]
    for time in times:
        folder = tmp_path / "project/awg/cms/phedex/block-replicas-snapshots/csv" / f"time={time}"
        write_table(folder, {"part-0": b"1\n"})
    layout = Layout.load({}, str(tmp_path))
    if chosen is None:
        with pytest.raises(CmssparkError):
            choose_phedex_dump(LocalFiles(), layout, hostile.DAY)
    else:
        assert (
            Path(choose_phedex_dump(LocalFiles(), layout, hostile.DAY).folder).name
            == f"time={chosen}"
        )
        assert files.phedex_folder(tmp_path, hostile.DAY).name == f"time={chosen}"


CSV: tuple[tuple[str, list[list[str | None]]], ...] = (
    ("1,a,b\n", [["1", "a", "b"]]),
    ("1,a", [["1", "a"]]),
    ('1,"a,b",c\n', [["1", "a,b", "c"]]),
    ("1,a\\,b,c\n", [["1", "a,b", "c"]]),
    ('"1","a\\"b"\n', [["1", 'a"b']]),
    ('a"b,c\n', [['a"b', "c"]]),
    ('"a\nb",c\nd,e\n', [["a\nb", "c"], ["d", "e"]]),
    ('"a\\\nb",c\n', [["a\nb", "c"]]),
    ("a\\\\,b\n", [["a\\", "b"]]),
    ('"a\\\\",b\n', [["a\\", "b"]]),
    ("null,a\n", [[None, "a"]]),
    ("nulls,anull\n", [["nulls", "anull"]]),
    (",,\n", [["", "", ""]]),
    ('"",a\n', [["", "a"]]),
    ('"a",""', [["a", ""]]),
    (" a , b \n", [[" a ", " b "]]),
    ("ü,日本,😀\n", [["ü", "日本", "😀"]]),
)


@pytest.mark.parametrize(("text", "rows"), CSV)
def test_rule_19_csv_is_read_exactly(text: str, rows: list[list[str | None]]) -> None:
    assert list(catalogue.csv_rows(text)) == rows
    lines = text.encode().splitlines(keepends=True)
    assert list(sqoop_csv.records(lines, "case")) == [
        [(field or "null" * (field is None)).encode() for field in row] for row in rows
    ]


_NAMES = st.text(st.sampled_from('ab/,"\\\n 0.é😀'), max_size=12).map(lambda text: "/" + text)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(_NAMES, min_size=1, max_size=6),
    st.sampled_from([tables.plain_csv, tables.quoted_csv, tables.escaped_csv]),
)
def test_rule_19_any_text_comes_back_however_it_is_quoted(
    names: list[str], write: Callable[[list[list[str]]], bytes]
) -> None:
    audit = ["1", names[0], "2", names[-1]]
    rows = [
        [
            str(at),
            name,
            "1",
            "5",
            "null",
            "1",
            name,
            "1",
            "2.5",
            "null",
            name,
            "null",
            "null",
            *audit,
        ]
        for at, name in enumerate(names)
    ]
    content = write(rows)
    columns = (
        "file_id",
        "logical_file_name",
        "dataset_id",
        "block_id",
        "create_by",
        "last_modified_by",
    )
    pieces = read_table(io.BytesIO(content), input_table("dbs/FILES"), columns, "case")
    found = [row for piece in pieces for row in piece.to_pylist()]
    assert [row["logical_file_name"] for row in found] == names
    assert {
        (row["dataset_id"], row["block_id"], row["create_by"], row["last_modified_by"])
        for row in found
    } == {(5, None, names[0], names[-1])}
    assert [row[1] for row in catalogue.csv_rows(content.decode())] == names


@pytest.mark.parametrize(
    ("node", "site", "kind"),
    [
        ("T1_US_FNAL_Disk", "T1_US_FNAL", "disk"),
        ("T1_US_FNAL_MSS", "T1_US_FNAL", "tape"),
        ("T1_US_FNAL_Buffer", "T1_US_FNAL", "buffer"),
        ("T2_CH_CERN_Export", "T2_CH_CERN", "buffer"),
        ("T2_CH_CERN_HLT", "T2_CH_CERN_HLT", "disk"),
        ("T2_US_MIT", "T2_US_MIT", "disk"),
        ("T3_XX_Disk_Disk", "T3_XX_Disk", "disk"),
        ("T3_XX_Disk_MSS", "T3_XX_Disk", "tape"),
        ("T1_US_FNAL_disk", "T1_US_FNAL_disk", "disk"),
    ],
)
def test_rule_20_one_ending_is_cut_from_a_nodes_name(node: str, site: str, kind: str) -> None:
    assert catalogue.site_and_kind(node) == (site, kind)


def test_rule_18_rows_without_a_dataset_match_nothing_and_the_larger_file_id_counts() -> None:
    found = judged.case_catalogue()
    assert found.orphans == 5
    assert found.files[tables.TWICE_LFN][0] == tables.TOPS
    assert found.files[tables.INVALID_LFN][0] == tables.INVALID
    assert tables.ORPHAN_LFN not in found.files
    assert set(tables.NASTY_LFNS) <= found.files.keys()
