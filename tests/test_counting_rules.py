"""Every rule of ``docs/counting.md`` over hand-written records: what the decoders and the oracle make of each.

The records with their expectations are in ``tests/corpus/cases_*.py``; each test here takes those of one rule.
"""

from __future__ import annotations

from collections.abc import Callable
from datetime import date
from functools import cache

import pytest

from cmsspark.errors import DataError
from tests.corpus import hostile, judged, ordinary, tables
from tests.corpus.cases import Case, Expected
from tests.corpus.cases_avro import in_a_day
from tests.corpus.json_lines import DAY_START
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


DUMPS: tuple[tuple[str, list[str], str | None], ...] = (
    ("the day after", ["2019-06-14", "2019-06-15", "2019-06-16", "2019-06-17"], "2019-06-16"),
    ("the first one after, however late", ["2019-06-15", "2019-09-01", "2020-01-01"], "2019-09-01"),
    ("the day's own where none is later", ["2019-06-13", "2019-06-14", "2019-06-15"], "2019-06-15"),
    ("the newest before", ["2018-12-31", "2019-06-01", "2019-06-14"], "2019-06-14"),
    ("of one date the later", ["2019-06-16_03h", "2019-06-16_15h", "2019-06-17_01h"], "2019-06-16_15h"),
    ("of the day's own the later", ["2019-06-15_03h", "2019-06-15_15h"], "2019-06-15_15h"),
    ("of one earlier date the later", ["2019-06-13_03h", "2019-06-14_03h", "2019-06-14_15h"], "2019-06-14_15h"),
    ("none", [], None),
)


@pytest.mark.parametrize(("name", "dates", "chosen"), DUMPS)
def test_rule_17_the_oracle_takes_the_first_dump_after_the_day(name: str, dates: list[str], chosen: str | None) -> None:
    if chosen is None:
        with pytest.raises(files.NotThere):
            files.choose_dump(dates, date(2019, 6, 15))
    else:
        assert files.choose_dump(dates, date(2019, 6, 15)) == chosen


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
def test_rule_19_the_oracle_reads_csv_by_the_letter(text: str, rows: list[list[str | None]]) -> None:
    assert list(catalogue.csv_rows(text)) == rows


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
