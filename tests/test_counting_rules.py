"""Every rule of ``docs/counting.md`` over hand-written records: what the decoders and
the oracle make of each.

The records with their expectations are in ``tests/corpus/cases_*.py``; each test here
takes those of one rule.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache

import pytest

from cmsspark.base.errors import DataError
from cmsspark.counting import reconciliation
from cmsspark.counting.reconciliation import StreamBins
from tests.corpus import cases_eos, hostile, judged, ordinary, tables
from tests.corpus.cases import Case, Expected
from tests.corpus.cases_avro import in_a_day
from tests.corpus.json_lines import DAY_START

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
    """A file of another schema may be refused as a whole; then it is told, and not
    counted as anything else.
    """
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
    assert {rule for rule, _ in _cases()} == {
        1,
        2,
        4,
        5,
        6,
        7,
        9,
        10,
        11,
        12,
        13,
        14,
        15,
        16,
        18,
        21,
    }
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


@pytest.mark.parametrize(
    ("read", "malformed", "fails"),
    [
        (10, 10, False),  # all of them, and not more than ten
        (11, 11, True),
        (10_999, 11, True),
        (11_000, 11, False),  # one in a thousand, and not more
        (1_000_000, 1_000, False),
        (1_000_000, 1_001, True),
    ],
)
def test_rule_08_more_than_one_malformed_in_a_thousand_and_more_than_ten_fail(
    read: int, malformed: int, fails: bool
) -> None:
    bins = {"aaa": StreamBins(read=read, matched=read - malformed, malformed=malformed)}
    tolerances = reconciliation.parse_tolerances(None, ["aaa"])
    if fails:
        with pytest.raises(DataError, match="malformed"):
            reconciliation.check(bins, tolerances, {})
        reconciliation.check(bins, reconciliation.parse_tolerances("100%", ["aaa"]), {})
    else:
        assert reconciliation.check(bins, tolerances, {}) == []


@pytest.mark.parametrize(
    ("read", "matched", "fails"),
    [(999, 0, False), (1000, 0, True), (1000, 1, False), (0, 0, False)],
)
def test_rule_08_none_of_a_thousand_matched_fails(read: int, matched: int, fails: bool) -> None:
    bins = {"crab": StreamBins(read=read, matched=matched)}
    bins["crab"].unmatched["not_in_dbs"] = read - matched
    tolerances = reconciliation.parse_tolerances(None, ["crab"])
    if fails:
        with pytest.raises(DataError, match="matched"):
            reconciliation.check(bins, tolerances, {})
    else:
        assert reconciliation.check(bins, tolerances, {}) == []


@pytest.mark.parametrize(("out", "warns"), [(5, False), (6, True)])
def test_rule_08_more_than_five_in_a_hundred_out_of_day_warn(out: int, warns: bool) -> None:
    bins = {"eos": StreamBins(read=100, matched=100 - out)}
    bins["eos"].out_of_day["2019-06-14"] = out
    assert (
        bool(reconciliation.check(bins, reconciliation.parse_tolerances(None, ["eos"]), {}))
        == warns
    )


def test_rule_08_tolerances_are_set_for_one_stream_or_all() -> None:
    bins = {stream: StreamBins(read=100, matched=50, malformed=50) for stream in ("aaa", "eos")}
    with pytest.raises(DataError, match="eos"):
        reconciliation.check(bins, reconciliation.parse_tolerances("aaa=50%", bins), {})
    reconciliation.check(bins, reconciliation.parse_tolerances("0.5", bins), {})


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
def test_rule_15_eos_generations_are_distinguished_by_the_record(form: str) -> None:
    _check(15, form)


@forms_of(16)
def test_rule_16_the_legacy_form_reads_like_todays(form: str) -> None:
    _check(16, form)


@forms_of(18)
def test_rule_18_validity_is_no_filter_and_the_larger_file_id_counts(form: str) -> None:
    _check(18, form)


@forms_of(21)
def test_rule_21_remote_is_reported_by_sites_or_by_replicas(form: str) -> None:
    _check(21, form)


@pytest.mark.parametrize("case", cases_eos.repeated_counts(), ids=str)
def test_rule_02_a_count_that_stands_twice_is_malformed_by_the_oracle_if_any_is_ill_typed(
    case: Case,
) -> None:
    assert judged.by_oracle(case) == case.expected


@pytest.mark.parametrize("case", cases_eos.repeated_counts(), ids=str)
def test_rule_02_a_count_that_stands_twice_in_an_eos_struct_is_malformed_if_any_is_ill_typed(
    case: Case,
) -> None:
    assert judged.by_decoder(case) == case.expected


MUTATED = {
    "aaa": ("enr", ordinary.aaa_lines),
    "cmssw": ("json", ordinary.cmssw_lines),
    "eos": ("json", ordinary.eos_lines),
}


@pytest.mark.parametrize("stream", MUTATED)
def test_records_changed_at_random_are_counted_as_the_oracle_counts_them(
    stream: str, seed: int = 11
) -> None:
    form, lines = MUTATED[stream]
    made = ordinary.world(seed)
    made.lfns = [row[1] for row in tables.FILES]
    changed = list(hostile.mutated(lines(made, 1000, DAY_START), seed))
    wrong = []
    for start in range(
        0, len(changed), 10
    ):  # in small files, so that a difference is easily found
        content = b"\n".join(changed[start : start + 10])
        by_decoder = judged.decoded(stream, form, content)
        by_oracle = judged.counted_by_oracle(stream, content)
        if not judged.same(by_decoder, by_oracle):
            wrong.append(f"decoder: {by_decoder}\noracle: {by_oracle}\n{content!r}")
    assert not wrong, "\n".join(wrong)
