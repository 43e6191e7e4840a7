"""What share of the rows of an input must be used (rule 70)."""

from __future__ import annotations

from collections import Counter

import pytest

from cmsspark.base.errors import DataError
from cmsspark.base.manifests import Manifest
from cmsspark.counting import row_use
from cmsspark.counting.reconciliation import StreamBins
from cmsspark.counting.row_use import RowUse


def used(rows: int, used: int, **facts: bool) -> dict[str, RowUse]:
    return {"T": RowUse(rows, used, Counter(odd=rows - used), **facts)}


def days(*shares: float) -> list[Manifest]:
    """Days of 1,000 rows of which such shares were used."""
    return [Manifest(document=row_use.describe(used(1000, int(1000 * share)))) for share in shares]


def test_none_of_many_rows_fails_and_none_of_few_is_told() -> None:
    with pytest.raises(DataError, match=r"(?s)T: none of 10 rows is used.*10 odd") as caught:
        row_use.check(used(10, 0), [])
    assert caught.value.exit_code == 65
    (warning,) = row_use.check(used(9, 0), [])
    assert "T: 9 of 9 rows are not used" in warning
    assert row_use.check(used(0, 0), []) == []
    assert row_use.check(used(10, 10), []) == []


def test_without_days_before_half_of_the_rows_and_a_thousandth_of_the_values_are_tolerated() -> (
    None
):
    assert row_use.check(used(1000, 500), []) == []
    assert len(row_use.check(used(1000, 499), [])) == 1
    assert row_use.check(used(1000, 999, is_of_values=True), []) == []
    (warning,) = row_use.check(used(1000, 998, is_of_values=True), [])
    assert "2 of 1,000 values are not used (0.20%): 2 odd" in warning


def test_a_twentieth_of_the_rows_with_a_fault_is_told() -> None:
    for count, warnings in ((50, 0), (51, 1)):
        use = RowUse(1000, 1000 - count, Counter(no_dataset=count))
        assert len(row_use.check({"T": use}, [])) == warnings


def test_far_more_than_on_the_days_before_is_told_with_the_median() -> None:
    assert row_use.check(used(1000, 760), days(0.9, 0.92, 0.93)) == []
    (warning,) = row_use.check(used(1000, 750), days(0.9, 0.92, 0.93))
    assert "25.00%, the median of the days before is 8.00%" in warning
    assert row_use.check(used(1000, 760), days(0.99, 0.99)) == []  # two days are no median
    assert len(row_use.check(used(1000, 940), days(1, 1, 1))) == 1
    assert row_use.check(used(1000, 955), days(1, 1, 1)) == []


def test_of_a_log_of_all_that_happens_most_may_be_of_no_use() -> None:
    mixed = {"T": RowUse(1000, 200, is_mixed=True, least_rows=1000)}
    assert row_use.check(mixed, []) == []
    assert row_use.check(mixed, days(0.3, 0.3, 0.3)) == []
    mixed["T"].used = 140
    assert len(row_use.check(mixed, days(0.3, 0.3, 0.3))) == 1


def test_a_feed_of_which_nothing_counts_is_of_no_use() -> None:
    bins = StreamBins.of_feed(["not_final"])
    bins.add("read", 1200, None)
    bins.add("not_final", 1200, None)
    with pytest.raises(DataError, match=r"(?s)jobs: none of 1,200 rows.*1,200 not_final"):
        row_use.check(row_use.of_bins({"jobs": bins}), [])
    bins.add("not_final", -300, None)
    bins.add("read", -300, None)
    assert row_use.check(row_use.of_bins({"jobs": bins}), []) == []
