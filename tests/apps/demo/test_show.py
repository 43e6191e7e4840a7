"""What the demo prints fits in 100 columns and says what is so."""

from __future__ import annotations

from cmsspark.apps.demo.cli import WIDTH, adds_up, count_differences, reconciliation, table

STREAM = {
    "read": 15,
    "matched": 5,
    "unmatched": {"no_lfn": 1, "user_file": 2, "temporary": 0, "not_in_dbs": 3},
    "malformed": 1,
    "out_of_day": 1,
    "write_only": 2,
}


def test_a_table_fits_in_the_width_whatever_stands_in_it() -> None:
    lines = table(
        ("n", "dataset"), [(12_345, "/A" * 100 + "/AOD"), (None, "/B/C/RAW")], texts=(1,)
    )
    assert max(len(line) for line in lines) <= WIDTH
    assert lines[1].startswith("  12,345  /A/A") and lines[1].endswith("/AOD")
    assert lines[2].split() == ["–", "/B/C/RAW"]


def test_the_reconciliation_shows_each_stream_and_their_sum() -> None:
    lines = reconciliation({"aaa": STREAM, "eos": STREAM})
    assert [line.split()[-4:-1] for line in lines[1:]] == [
        [str(one), str(one), str(2 * one)] for one in (15, 5, 2, 0, 3, 1, 2, 1, 1)
    ]
    assert lines[2].split()[-1] == "33.33%"
    assert max(len(line) for line in lines) <= WIDTH


def test_a_record_in_no_bin_or_in_two_is_noticed() -> None:
    assert adds_up({"aaa": STREAM})
    assert not adds_up({"aaa": {**STREAM, "matched": 6}})


def test_differences_name_the_key_and_both_values() -> None:
    other = {**STREAM, "unmatched": {**STREAM["unmatched"], "no_lfn": 4}}  # type: ignore[dict-item]  # a dict
    assert count_differences({"aaa": STREAM}, {"aaa": other}) == [
        "aaa.unmatched.no_lfn: 1 expected, 4 found"
    ]
    assert count_differences({"aaa": STREAM}, {"aaa": STREAM}) == []
    assert count_differences({"aaa": STREAM}, {}) == [f"aaa: {STREAM} expected, None found"]
