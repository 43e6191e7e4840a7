"""Every rule of ``docs/counting.md`` over hand-written records: what the decoders and the oracle make of each.

The records with their expectations are in ``tests/corpus/cases_*.py``; each test here takes those of one rule.
"""

from __future__ import annotations

import io
from collections.abc import Callable
from functools import cache
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from cmsspark.errors import CmssparkError, DataError
from cmsspark.sources import sqoop
from cmsspark.sources.dbs import read_table_arrow
from cmsspark.sources.dumps import choose_dbs_dump, choose_phedex_dump
from cmsspark.sources.layout import Layout
from cmsspark.storage import LocalFiles
from tests.corpus import hostile, judged, ordinary, tables
from tests.corpus.cases import Case, Expected
from tests.corpus.cases_avro import in_a_day
from tests.corpus.json_lines import DAY_START
from tests.corpus.tree import write_table
from tests.oracle import catalogue, files

FORMS = ("aaa-enr", "aaa-raw", "cmssw-json", "cmssw-avro", "eos-json", "crab-avro")
text_streams = pytest.mark.parametrize("stream", ["aaa", "cmssw", "eos"])


@cache
def _cases() -> dict[tuple[int, str], list[Case]]:
    found: dict[tuple[int, str], list[Case]] = {}
    for case in hostile.cases():
        found.setdefault((case.rule, f"{case.stream}-{case.form}"), []).append(case)
    return found


def forms_of(rule: int) -> pytest.MarkDecorator:
    """The test once for each form that has cases of the rule."""
    return pytest.mark.parametrize("form", [form for form in FORMS if (rule, form) in _cases()])


def _by_decoder(case: Case) -> Expected:
    """A file of another schema may be refused as a whole; then it is told, and not counted as anything else."""
    try:
        return judged.by_decoder(case)
    except DataError:
        if in_a_day(case):
            raise
        return case.expected


def _check(rule: int, form: str) -> None:
    """Both implementations agree with the expectation in every case of the rule."""
    wrong = []
    for case in _cases()[rule, form]:
        for judge in (judged.by_oracle, _by_decoder):
            found = _judged(judge, case)
            if found != case.expected:
                wrong.append(f"{case}\n  {judge.__name__}: {found}\n  wanted: {case.expected}")
    assert not wrong, "\n".join(wrong)


def _judged(judge: Callable[[Case], Expected], case: Case) -> object:
    try:
        return judge(case)
    except Exception as error:  # one case that raises must not hide the others
        return error


def test_every_case_belongs_to_a_form_and_rule_tested_here() -> None:
    assert {form for _, form in _cases()} == set(FORMS)
    assert {rule for rule, _ in _cases()} == {1, 2, 4, 5, 6, 7, 9, 10, 11, 12, 13, 14, 15, 16, 18, 21}
    names = [str(case) for case in hostile.cases()]
    assert len(names) == len(set(names)) > 3000


@forms_of(1)
def test_rule_01_a_record_is_exactly_one_json_object(form: str) -> None:
    _check(1, form)


@text_streams
def test_rule_01_and_03_lines_end_at_newlines_only_and_duplicates_count(stream: str) -> None:
    wrong = []
    for case in hostile.file_cases():
        if case.stream == stream:
            for judge in (judged.file_by_oracle, judged.file_by_decoder):
                if (found := judge(case)) != case.bins:
                    wrong.append(f"{case}: {judge.__name__} {found}, wanted {case.bins}")
    assert not wrong, "\n".join(wrong)


@forms_of(2)
def test_rule_02_needed_fields_are_valid_text_and_a_repeated_key_counts_last(form: str) -> None:
    _check(2, form)


@forms_of(4)
def test_rule_04_the_first_bin_that_fits_counts(form: str) -> None:
    _check(4, form)


@forms_of(5)
def test_rule_05_a_record_of_no_known_shape_is_malformed(form: str) -> None:
    _check(5, form)


@forms_of(6)
def test_rule_06_a_record_delivered_on_another_day_is_out_of_day(form: str) -> None:
    _check(6, form)


@forms_of(7)
def test_rule_07_write_only_and_no_lfn(form: str) -> None:
    _check(7, form)


@forms_of(9)
def test_rule_09_a_needed_field_of_another_type_is_malformed(form: str) -> None:
    _check(9, form)


@forms_of(10)
def test_rule_10_lfns_lose_their_prefixes_each_once(form: str) -> None:
    _check(10, form)


@forms_of(11)
def test_rule_11_bytes_are_those_at_close_else_those_so_far(form: str) -> None:
    _check(11, form)


@forms_of(12)
def test_rule_12_sites_stay_as_logged(form: str) -> None:
    _check(12, form)


@forms_of(13)
def test_rule_13_a_user_is_the_last_name_of_a_certificate(form: str) -> None:
    _check(13, form)


@forms_of(14)
def test_rule_14_the_first_app_that_fits_counts(form: str) -> None:
    _check(14, form)


@forms_of(15)
def test_rule_15_eos_generations_are_told_apart_by_the_record(form: str) -> None:
    _check(15, form)


@forms_of(16)
def test_rule_16_the_legacy_form_reads_like_todays(form: str) -> None:
    _check(16, form)


@forms_of(18)
def test_rule_18_validity_is_no_filter_and_the_larger_file_id_counts(form: str) -> None:
    _check(18, form)


@forms_of(21)
def test_rule_21_remote_is_told_by_sites_or_by_replicas(form: str) -> None:
    _check(21, form)


MUTATED = {
    "aaa": ("enr", ordinary.aaa_lines),
    "cmssw": ("json", ordinary.cmssw_lines),
    "eos": ("json", ordinary.eos_lines),
}


@pytest.mark.parametrize("stream", MUTATED)
def test_records_changed_at_random_are_counted_as_the_oracle_counts_them(stream: str, seed: int = 11) -> None:
    form, lines = MUTATED[stream]
    made = ordinary.world(seed)
    made.lfns = [row[1] for row in tables.FILES]
    changed = list(hostile.mutated(lines(made, 1000, DAY_START), seed))
    wrong = []
    for start in range(0, len(changed), 10):  # in small files, so that a difference is easily found
        content = b"\n".join(changed[start : start + 10])
        by_decoder = judged.decoded(stream, form, content)
        by_oracle = judged.counted_by_oracle(stream, content)
        if not judged.same(by_decoder, by_oracle):
            wrong.append(f"decoder: {by_decoder}\noracle: {by_oracle}\n{content!r}")
    assert not wrong, "\n".join(wrong)


DUMPS: dict[str, tuple[list[str], str | None]] = {
    "the day after": (["2019-06-14", "2019-06-15", "2019-06-16", "2019-06-17"], "2019-06-16"),
    "the first one after, however late": (["2019-06-15", "2019-09-01", "2020-01-01"], "2019-09-01"),
    "the day's own where none is later": (["2019-06-13", "2019-06-14", "2019-06-15"], "2019-06-15"),
    "the newest before": (["2018-12-31", "2019-06-01", "2019-06-14"], "2019-06-14"),
    "none": ([], None),
}
SNAPSHOTS: dict[str, tuple[list[str], str | None]] = {
    **{name: ([f"{day}_03h07m10s" for day in days], chosen and f"{chosen}_03h07m10s")
       for name, (days, chosen) in DUMPS.items()},
    "of one date the later": (["2019-06-16_03h07m10s", "2019-06-16_15h00m00s", "2019-06-17_01h00m00s"],
                              "2019-06-16_15h00m00s"),
    "of the day's own the later": (["2019-06-15_03h07m10s", "2019-06-15_15h07m10s"], "2019-06-15_15h07m10s"),
    "of one earlier date the later": (["2019-06-13_23h00m00s", "2019-06-14_03h00m00s", "2019-06-14_15h00m00s"],
                                      "2019-06-14_15h00m00s"),
}  # fmt: skip
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
    for day, content in (("2019-06-15.tmp", b"1\n"), ("2019-06-16-old", b"1\n"), ("_2019-06-16", b"1\n")):
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
        assert Path(choose_dbs_dump(LocalFiles(), layout, hostile.DAY, DBS_TABLES).folder).name == chosen


@pytest.mark.parametrize(
    ("name", "table", "parts"),
    [
        ("a table is not there", "BLOCKS", None),
        ("a table has no files", "DATASETS", {}),
        ("a table's only file is empty", "FILES", {"part-0": b""}),
        ("a table's only file is gzip of nothing", "FILES", {"part-0.gz": b""}),
        ("a table has hidden files only", "BLOCKS", {"_part-0": b"1\n", ".part-1": b"1\n", "part-2.tmp": b"1\n"}),
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
    assert Path(choose_dbs_dump(LocalFiles(), layout, hostile.DAY, DBS_TABLES).folder).name == "2019-06-18"
    assert files.dbs_folder(tmp_path, hostile.DAY, DBS_TABLES).name == "2019-06-18"


@pytest.mark.parametrize("dated", [True, False])
def test_rule_17_the_undated_dump_counts_only_where_there_is_no_dated_one(dated: bool, tmp_path: Path) -> None:
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
        assert Path(choose_phedex_dump(LocalFiles(), layout, hostile.DAY).folder).name == f"time={chosen}"
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
def test_rule_19_csv_is_read_by_the_letter(text: str, rows: list[list[str | None]]) -> None:
    assert list(catalogue.csv_rows(text)) == rows
    lines = text.encode().splitlines(keepends=True)
    assert list(sqoop.records(lines, "case")) == [
        [(field or "null" * (field is None)).encode() for field in row] for row in rows
    ]


_NAMES = st.text(st.sampled_from('ab/,"\\\n 0.é😀'), max_size=12).map(lambda text: "/" + text)


@settings(deadline=None, max_examples=60)
@given(
    st.lists(_NAMES, min_size=1, max_size=6), st.sampled_from([tables.plain_csv, tables.quoted_csv, tables.escaped_csv])
)
def test_rule_19_any_text_comes_back_however_it_is_quoted(
    names: list[str], write: Callable[[list[list[str]]], bytes]
) -> None:
    audit = ["1", names[0], "2", names[-1]]
    rows = [[str(at), name, "1", "5", "null", "1", name, "1", "2.5", "null", name, "null", "null", *audit]
            for at, name in enumerate(names)]  # fmt: skip
    content = write(rows)
    columns = ("file_id", "logical_file_name", "dataset_id", "block_id", "create_by", "last_modified_by")
    found = [
        row for piece in read_table_arrow(io.BytesIO(content), "FILES", columns, "case") for row in piece.to_pylist()
    ]
    assert [row["logical_file_name"] for row in found] == names
    assert {(row["dataset_id"], row["block_id"], row["create_by"], row["last_modified_by"]) for row in found} == {
        (5, None, names[0], names[-1])
    }
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
